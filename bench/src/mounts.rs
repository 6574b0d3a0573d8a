//! The places where work is done: plain directories, empty daemons, forebay, its peers.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use crate::guard::{Serving, detach, go_on, is_mounted};
use crate::nodes::Host;

/// How long a daemon may take until its mount point serves.
const MOUNT_BOUND: Duration = Duration::from_secs(60);

/// A directory to work in, and what keeps it alive.
pub struct Place {
    pub name: String,
    pub dir: PathBuf,
    keeper: Keeper,
    /// Directories that are removed when the place is dropped.
    owned: Vec<PathBuf>,
}

enum Keeper {
    Nothing,
    Daemon(Daemon),
    Forebay(Forebay),
}

impl Place {
    pub fn native(dir: PathBuf) -> Place {
        Place { name: "native".into(), owned: vec![dir.clone()], dir, keeper: Keeper::Nothing }
    }

    /// A directory that another owner keeps.
    pub fn at(name: &str, dir: &Path) -> Place {
        Place { name: name.into(), dir: dir.into(), keeper: Keeper::Nothing, owned: vec![] }
    }

    pub fn daemon(name: &str, daemon: Daemon, owned: Vec<PathBuf>) -> Place {
        let dir = daemon.mountpoint.clone();
        Place { name: name.into(), dir, keeper: Keeper::Daemon(daemon), owned }
    }

    pub fn forebay(forebay: Forebay) -> Place {
        let dir = forebay.mountpoint.clone();
        Place { name: "forebay".into(), dir, keeper: Keeper::Forebay(forebay), owned: vec![] }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Brings the place to rest: forebay flushes, the others have nothing to do.
    pub fn settle(&self) -> Result<()> {
        match &self.keeper {
            Keeper::Forebay(forebay) => forebay.flush().map(drop),
            Keeper::Nothing | Keeper::Daemon(_) => Ok(()),
        }
    }

    /// Evicts a file from forebay's tier; other places have no tier.
    pub fn forget(&self, path: &Path) -> Result<()> {
        match &self.keeper {
            Keeper::Forebay(forebay) => forebay.evict(path),
            Keeper::Nothing | Keeper::Daemon(_) => Ok(()),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.keeper, Keeper::Nothing) {
            Keeper::Nothing => {}
            Keeper::Daemon(daemon) => drop(daemon),
            Keeper::Forebay(forebay) => drop(forebay),
        }
        remove_all(&self.owned);
    }
}

/// Removes this run's directories, but never walks into a mount that still exists.
fn remove_all<'a>(dirs: impl IntoIterator<Item = &'a PathBuf>) {
    for dir in dirs {
        if !is_mounted(dir) {
            let _ = fs::remove_dir_all(dir);
        }
    }
}

/// Starts a server in a process group of its own: Ctrl-C must reach the benchmark first, or the
/// server would die during the work.
pub fn start_apart(command: &mut Command, log: &Path) -> Result<Child> {
    let output = File::create(log)?;
    command
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", command.get_program().display()))
}

/// A child process that serves a mount point in the foreground.
pub struct Daemon {
    mountpoint: PathBuf,
    child: Child,
    serving: Option<Serving>,
}

impl Daemon {
    /// Starts `command` and waits until `mountpoint` is a mount.
    pub fn start(command: &mut Command, mountpoint: &Path, log: &Path) -> Result<Daemon> {
        let child = start_apart(command, log)?;
        let serving = Serving::new(mountpoint, child.id() as i32);
        let mut daemon =
            Daemon { mountpoint: mountpoint.to_owned(), child, serving: Some(serving) };
        let start = Instant::now();
        while !is_mounted(mountpoint) {
            go_on()?;
            if let Some(status) = daemon.child.try_wait()? {
                bail!("ended with {status} instead of mounting: {}", last_line(log));
            }
            ensure!(start.elapsed() < MOUNT_BOUND, "did not mount within {MOUNT_BOUND:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(daemon)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        detach(&self.mountpoint);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(5) {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        drop(self.serving.take());
    }
}

/// A forebay mount, driven through its command line alone; owns its directories.
pub struct Forebay {
    binary: PathBuf,
    /// The host on which its commands run, if it is another one.
    host: Option<Arc<Host>>,
    pub backing: PathBuf,
    pub tier: PathBuf,
    pub mountpoint: PathBuf,
    options: Vec<String>,
    log: PathBuf,
    serving: Option<Serving>,
    /// Directories that are removed when the mount is dropped.
    owned: Vec<PathBuf>,
}

impl Forebay {
    /// Describes a mount; nothing is mounted yet. `root` gets a log file.
    pub fn new(
        binary: &Path,
        root: &Path,
        [backing, tier, mountpoint]: [PathBuf; 3],
        options: &[&str],
    ) -> Forebay {
        Forebay {
            binary: binary.to_owned(),
            host: None,
            owned: vec![mountpoint.clone(), backing.clone(), tier.clone()],
            backing,
            tier,
            mountpoint,
            options: options.iter().map(|&option| option.to_owned()).collect(),
            log: root.join("forebay.log"),
            serving: None,
        }
    }

    /// Runs the daemon, and all commands, on this host.
    pub fn on(mut self, host: Arc<Host>) -> Forebay {
        self.host = Some(host);
        self
    }

    /// Marks the store as shared with others: it stays when the mount is dropped.
    pub fn with_shared_store(mut self) -> Forebay {
        self.owned.retain(|dir| *dir != self.backing);
        self
    }

    /// Mounts; returns how long `forebay mount` took.
    pub fn mount(&mut self) -> Result<Duration> {
        let mut arguments = vec!["mount".into(), text(&self.backing), text(&self.mountpoint)];
        arguments.extend(["--tier".into(), text(&self.tier)]);
        arguments.extend(self.options.iter().cloned());
        let start = Instant::now();
        self.run(&arguments)?;
        let time = start.elapsed();
        ensure!(is_mounted(&self.mountpoint), "`forebay mount` succeeded without a mount");
        let pid = self.status()?.get("pid").and_then(Value::as_i64);
        let pid = pid.context("`forebay status --json` names no pid")?;
        self.serving = Some(Serving::new(&self.mountpoint, i32::try_from(pid)?));
        Ok(time)
    }

    pub fn unmount(&mut self) -> Result<Duration> {
        let start = Instant::now();
        self.run(&["umount".into(), text(&self.mountpoint)])?;
        self.serving = None;
        Ok(start.elapsed())
    }

    /// kill -9 of the daemon; its mount is detached.
    pub fn kill(&mut self) -> Result<()> {
        let serving = self.serving.take().context("not mounted")?;
        // SAFETY: the daemon that `forebay mount` started.
        let sent = unsafe { libc::kill(serving.pid(), libc::SIGKILL) };
        ensure!(sent == 0, "kill: {}", std::io::Error::last_os_error());
        detach(&self.mountpoint);
        Ok(())
    }

    /// Flushes everything; returns how long it took.
    pub fn flush(&self) -> Result<Duration> {
        self.flush_path(&self.mountpoint)
    }

    pub fn flush_path(&self, path: &Path) -> Result<Duration> {
        let start = Instant::now();
        self.run(&["flush".into(), "--wait".into(), text(path)])?;
        Ok(start.elapsed())
    }

    pub fn evict(&self, path: &Path) -> Result<()> {
        self.run(&["evict".into(), text(path)]).map(drop)
    }

    /// The object of this mount in `forebay status --json`.
    pub fn status(&self) -> Result<Value> {
        let output = self.run(&["status".into(), text(&self.mountpoint), "--json".into()])?;
        let status: Value = serde_json::from_str(&output).context("status is not JSON")?;
        match status {
            Value::Array(mounts) => mounts.into_iter().next().context("status lists no mount"),
            other => Ok(other),
        }
    }

    /// The output of `forebay status --cluster --json`.
    pub fn cluster_status(&self) -> Result<Value> {
        let mountpoint = text(&self.mountpoint);
        let output =
            self.run(&["status".into(), "--cluster".into(), mountpoint, "--json".into()])?;
        serde_json::from_str(&output).context("status --cluster is not JSON")
    }

    pub fn stats(&self) -> Result<Value> {
        let output = self.run(&["stats".into(), text(&self.mountpoint), "--json".into()])?;
        serde_json::from_str(&output).context("stats is not JSON")
    }

    /// `forebay jobs --json`; `None` if it does not answer, as where there is no such command.
    pub fn jobs(&self) -> Option<Value> {
        let told = self.run(&["jobs".into(), "--json".into(), text(&self.mountpoint)]).ok()?;
        serde_json::from_str(&told).ok()
    }

    /// Resident memory of the daemon, in KiB.
    pub fn resident_kib(&self) -> Result<f64> {
        let pid = self.serving.as_ref().context("not mounted")?.pid();
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.context("no VmRSS")?.trim().trim_end_matches(" kB");
        Ok(kib.parse()?)
    }

    /// Runs a subcommand; returns its standard output, or an error that quotes its message.
    ///
    /// Output goes to files, since a daemon that kept a pipe open would block the benchmark for
    /// ever.
    fn run(&self, arguments: &[String]) -> Result<String> {
        let (out, err) = (self.log.with_extension("out"), self.log.with_extension("err"));
        let mut command = Command::new(&self.binary);
        if let Some(host) = &self.host {
            host.put(&mut command);
        }
        let mut child = command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(File::create(&out)?)
            .stderr(File::create(&err)?)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", self.binary.display()))?;
        // The watchdog ends a command that hangs.
        let watched = Path::new("command").join(child.id().to_string());
        let _watched = Serving::new(&watched, child.id() as i32);
        let status = child.wait()?;
        if status.success() {
            return Ok(fs::read_to_string(&out)?);
        }
        let command = arguments.join(" ");
        Err(anyhow!("`forebay {command}` ended with {status}: {}", last_line(&err)))
    }
}

impl Drop for Forebay {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.take() {
            // Dirty bytes of a benchmark are not needed on the backing store.
            let arguments = ["umount".into(), text(&self.mountpoint), "--keep-dirty".into()];
            if let Err(error) = self.run(&arguments) {
                eprintln!("{error:#}; killing the daemon");
            }
            drop(serving);
        }
        remove_all(&self.owned);
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn last_line(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join(" / ")
}
