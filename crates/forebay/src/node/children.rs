//! The forebay commands that the node daemon runs for a cache. The daemon waits a while for a command, then
//! lets it run and asks later how it ended.
//!
//! - K1: no thread waits longer than [`PATIENCE`] for a command, and not at all for one that was late before.
//! - K2: each tier has one command at a time. A command that hangs in the kernel blocks the care of its tier,
//!   and nothing else.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output};
use std::time::{Duration, Instant};

use forebay_base::lock::{Mutex, MutexGuard, Rank};
use forebay_base::units::human_secs;
use forebay_base::{Error, Kind, Result};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal, kill_process_group};

use super::running::Running;

/// A healthy command has ended by then, or has much to flush and is not waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// A killed process that does not end by then hangs in the kernel.
const KILL_PATIENCE: Duration = Duration::from_secs(2);

/// The late commands, by tier.
pub struct Children(Mutex<BTreeMap<PathBuf, Late>>);

impl Default for Children {
    fn default() -> Children {
        Children(Mutex::new(Rank::Late, BTreeMap::new()))
    }
}

struct Late {
    child: Child,
    words: Vec<OsString>,
    since: Instant,
    said: Said,
}

/// The output of a command. It goes to memory, so that no thread has to read it while the command runs.
struct Said {
    out: File,
    errors: File,
}

impl Children {
    #[track_caller]
    fn lock(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Late>> {
        self.0.lock()
    }

    /// Runs a command for a tier. If an earlier command of the same words was late, that one is waited for
    /// instead; a late command of other words is ended first.
    ///
    /// # Errors
    ///
    /// [`Kind::TimedOut`] if the command has not ended; it goes on.
    pub fn run(&self, tier: &Path, command: Command) -> Result<Output> {
        let late = self.lock().remove(tier);
        let mut running = match late {
            Some(late) if late.words == words(&command) => late,
            Some(late) => {
                self.end(tier, late)?;
                start(command)?
            }
            None => start(command)?,
        };
        let patience = PATIENCE.saturating_sub(running.since.elapsed());
        match running.wait(patience)? {
            Some(status) => running.said.output(status),
            None => Err(self.keep(tier, running)),
        }
    }

    fn keep(&self, tier: &Path, late: Late) -> Error {
        let (what, pid) = (late.what(), late.child.id());
        let since = human_secs(late.since.elapsed().as_secs().max(1) as f64);
        self.lock().insert(tier.into(), late);
        Error::new(Kind::TimedOut, format!("`{what}` (pid {pid}) has not ended after {since}"))
    }

    /// Kills the command and its children. A process that it has put into the background lives on.
    fn end(&self, tier: &Path, mut late: Late) -> Result<()> {
        if let Some(group) = Pid::from_raw(late.child.id().cast_signed()) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        match late.wait(KILL_PATIENCE)? {
            Some(_) => Ok(()),
            None => Err(self.keep(tier, late)),
        }
    }
}

impl Late {
    fn what(&self) -> String {
        let verb = self.words.first().map(|word| word.to_string_lossy());
        format!("forebay {}", verb.unwrap_or_default())
    }

    fn wait(&mut self, patience: Duration) -> Result<Option<ExitStatus>> {
        let failed = |e| Error::io(e, "a command of the node daemon");
        if let Some(running) = Running::open(self.child.id())? {
            let deadline = Instant::now() + patience;
            while !running.is_over(deadline.saturating_duration_since(Instant::now()))? {
                if Instant::now() >= deadline {
                    return Ok(None);
                }
            }
        }
        self.child.try_wait().map_err(failed)
    }
}

fn words(command: &Command) -> Vec<OsString> {
    command.get_args().map(OsString::from).collect()
}

fn start(mut command: Command) -> Result<Late> {
    let failed = |e| Error::io(e, "a command of the node daemon");
    let said = Said { out: memory().map_err(failed)?, errors: memory().map_err(failed)? };
    command.stdout(said.out.try_clone().map_err(failed)?);
    command.stderr(said.errors.try_clone().map_err(failed)?);
    // In a group of its own, so that it can be ended together with its children.
    command.process_group(0);
    let words = words(&command);
    let child = command.spawn().map_err(failed)?;
    Ok(Late { child, words, since: Instant::now(), said })
}

fn memory() -> std::io::Result<File> {
    Ok(rustix::fs::memfd_create("said", MemfdFlags::CLOEXEC)?.into())
}

impl Said {
    fn output(mut self, status: ExitStatus) -> Result<Output> {
        let read = |file: &mut File| {
            let mut bytes = Vec::new();
            file.rewind()?;
            file.read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let failed = |e: std::io::Error| Error::io(e, "what a command of the node daemon said");
        let stdout = read(&mut self.out).map_err(failed)?;
        let stderr = read(&mut self.errors).map_err(failed)?;
        Ok(Output { status, stdout, stderr })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_is_late_is_heard_of_later_and_nobody_waits_for_it_again() {
        let (children, tier) = (Children::default(), Path::new("/t"));
        let output = children.run(tier, sh("echo out; echo err >&2; exit 3")).unwrap();
        assert_eq!((output.stdout, output.stderr), (b"out\n".to_vec(), b"err\n".to_vec()));
        assert_eq!(output.status.code(), Some(3));

        let dir = tempfile::tempdir().unwrap();
        let gate = dir.path().join("gate");
        let script = format!("until [ -e {} ]; do sleep 0.05; done; echo late", gate.display());
        let mut late = start(sh(&script)).unwrap();
        late.since = Instant::now().checked_sub(PATIENCE).unwrap();
        children.keep(tier, late);
        let asked = Instant::now();
        let error = children.run(tier, sh(&script)).unwrap_err();
        assert_eq!(error.kind(), Kind::TimedOut, "{error}");
        assert!(asked.elapsed() < Duration::from_secs(5), "it was waited for again");
        std::fs::write(&gate, "").unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let output = loop {
            match children.run(tier, sh(&script)) {
                Ok(output) => break output,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        };
        assert_eq!(output.stdout, b"late\n");
    }

    #[test]
    fn another_command_ends_the_one_that_is_late() {
        let (children, tier) = (Children::default(), Path::new("/t"));
        let late = start(sh("sleep 600; :")).unwrap();
        let pid = late.child.id();
        children.keep(tier, late);
        let output = children.run(tier, sh("echo new")).unwrap();
        assert_eq!(output.stdout, b"new\n");
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "the late one runs on");
    }
}
