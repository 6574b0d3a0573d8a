//! Test beds: a backing directory, a fast tier, a mount point.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;

use crate::cli::{Out, binary, forebay_env};
use crate::images::{self, ImageFs, MountedFs};
use crate::procs::{Proc, is_alive, kill};
use crate::wait::{PATIENCE, eventually, within};
use crate::{plain, say};

/// The place of a bed's fast tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// A plain directory next to the backing one.
    Disk,
    /// A tmpfs of this many MiB.
    Tmpfs(u64),
    /// An image of this many MiB.
    Ext4(u64),
    Xfs(u64),
}

/// The directories of one test, all below one new directory that is removed when this is dropped.
pub struct Bed {
    pub root: PathBuf,
    pub backing: PathBuf,
    pub tier: PathBuf,
    pub mnt: PathBuf,
    /// The file or device that is mounted instead of the backing directory.
    single: Option<PathBuf>,
    env: Vec<(String, String)>,
    fast: Option<MountedFs>,
    /// The file system of the backing directory, if it has one of its own.
    behind: Option<MountedFs>,
    keep: bool,
}

impl Bed {
    pub fn new(tier: Tier) -> Bed {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let base = std::env::var_os("FOREBAY_TEST_DIR").map_or("/var/tmp".into(), PathBuf::from);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = base.join(format!("fbt-{}-{id}", std::process::id()));
        let mut bed = Bed {
            backing: root.join("backing"),
            tier: root.join("fast/tier"),
            mnt: root.join("mnt"),
            single: None,
            env: Vec::new(),
            fast: None,
            behind: None,
            keep: std::env::var_os("FOREBAY_TEST_KEEP").is_some(),
            root,
        };
        for dir in ["backing", "fast", "mnt"] {
            std::fs::create_dir_all(bed.root.join(dir)).expect("the test directory is writable");
        }
        bed.fast = bed.make_fast(tier);
        bed
    }

    fn make_fast(&self, tier: Tier) -> Option<MountedFs> {
        let (at, image) = (self.root.join("fast"), self.root.join("fast.img"));
        let (fs, mib) = match tier {
            _ if plain::on() => return None,
            Tier::Disk => return None,
            Tier::Tmpfs(mib) => return Some(MountedFs::tmpfs(&at, mib)),
            Tier::Ext4(mib) => (ImageFs::Ext4, mib),
            Tier::Xfs(mib) => (ImageFs::Xfs, mib),
        };
        images::make(&image, fs, mib);
        Some(MountedFs::image(&image, &at))
    }

    /// Puts the backing directory on a tmpfs of this many MiB, where a sync takes no time, however
    /// busy the disk is. Called while the directory is empty.
    pub fn backing_in_memory(&mut self, mib: u64) {
        self.behind = Some(MountedFs::tmpfs(&self.backing, mib));
    }

    /// From now on mounts serve this one file or device, not the backing directory.
    pub fn serve(&mut self, single: &Path) {
        self.single = Some(single.to_path_buf());
    }

    fn source(&self) -> &Path {
        self.single.as_deref().unwrap_or(&self.backing)
    }

    /// Sets an environment variable for every `forebay` this bed starts from now on.
    pub fn env(&mut self, name: &str, value: &str) {
        self.env.retain(|(n, _)| n != name);
        self.env.push((name.into(), value.into()));
    }

    pub fn unset(&mut self, name: &str) {
        self.env.retain(|(n, _)| n != name);
    }

    /// Runs `forebay ARGS` in this bed's environment.
    pub fn forebay(&self, args: &[&str]) -> Out {
        forebay_env(args, &self.env)
    }

    /// Mounts, and asserts that the mount serves.
    #[track_caller]
    pub fn mount(&self, flags: &[&str]) -> Mounted {
        if plain::on() {
            let bind = MountedFs::bind(&self.backing, &self.mnt);
            return Mounted { path: self.mnt.clone(), pid: 0, env: vec![], plain: Some(bind) };
        }
        self.try_mount(flags).ok();
        self.mounted()
    }

    pub fn try_mount(&self, flags: &[&str]) -> Out {
        let mut args = vec!["mount", text(self.source()), text(&self.mnt)];
        args.extend(["--tier", text(&self.tier)]);
        args.extend(flags);
        self.forebay(&args)
    }

    /// A handle for the mount at this bed's mount point.
    #[track_caller]
    pub fn mounted(&self) -> Mounted {
        let (fs, source) = images::mounted_at(&self.mnt).expect("something is mounted");
        assert!(fs == "fuse" || fs == "fuse.forebay", "{fs} is mounted");
        assert_eq!(source, format!("forebay#{}", self.tier.display()));
        let mut mounted =
            Mounted { path: self.mnt.clone(), pid: 0, env: self.env.clone(), plain: None };
        mounted.pid = mounted.status()["pid"].as_i64().expect("status has a pid") as i32;
        assert!(is_alive(mounted.pid), "the daemon that status names is alive");
        mounted
    }

    /// Mounts with the daemon as a child of the test, which then sees its exit status.
    #[track_caller]
    pub fn mount_foreground(&self, flags: &[&str]) -> Foreground {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.root.join("daemon.log"))
            .expect("log file");
        let mut command = Command::new(binary());
        command.args(["mount", text(self.source()), text(&self.mnt), "--foreground"]);
        command.args(["--tier", text(&self.tier)]).args(flags);
        command.envs(self.env.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("dup")).stderr(log);
        let mut child = Proc::spawn(&mut command);
        let pid = child.pid();
        let up =
            eventually(PATIENCE, || !child.running() || images::mounted_at(&self.mnt).is_some());
        assert!(up, "a mount in the foreground serves within 30 s");
        let path = self.mnt.clone();
        let mounted = Mounted { path, pid, env: self.env.clone(), plain: None };
        Foreground { mounted, child }
    }

    pub fn daemon_log(&self) -> String {
        std::fs::read_to_string(self.root.join("daemon.log")).unwrap_or_default()
    }

    /// A directory of the bed that is neither backing nor tier, for the plain side of comparisons.
    pub fn dir(&self, name: &str) -> PathBuf {
        let dir = self.root.join(name);
        std::fs::create_dir_all(&dir).expect("directory in the bed");
        dir
    }

    /// The file system of the tier, to unmount or replace it.
    pub fn take_fast(&mut self) -> Option<MountedFs> {
        self.fast.take()
    }

    pub fn set_fast(&mut self, fast: MountedFs) {
        self.fast = Some(fast);
    }

    /// Whether to keep the directory of a bed whose test fails.
    fn keep_on_failure(&self) -> bool {
        self.keep && std::thread::panicking()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for at in [&self.mnt, &self.backing] {
            let _ = images::unmount(at, true);
        }
        if self.keep_on_failure() {
            say(&format!("kept: {}", self.root.display()));
            return;
        }
        self.fast = None;
        if images::mounted_at(&self.root.join("fast")).is_none() {
            let _ = std::fs::remove_dir_all(&self.root);
        }
    }
}

/// A daemon that is a child of the test, and its mount.
pub struct Foreground {
    // Dropped first: the mount is removed before the child is reaped.
    pub mounted: Mounted,
    pub child: Proc,
}

/// A serving mount. Dropping it kills its daemon and detaches the mount: a test that wants an
/// orderly end calls [`Mounted::umount`].
pub struct Mounted {
    pub path: PathBuf,
    pub pid: i32,
    env: Vec<(String, String)>,
    plain: Option<MountedFs>,
}

impl Mounted {
    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    #[track_caller]
    pub fn status(&self) -> Value {
        let value = self.forebay(&["status", "--json", text(&self.path)]).ok().json();
        match value {
            Value::Array(mut all) => all.remove(0),
            one => one,
        }
    }

    /// A number of the status; panics with the whole status if the field is missing.
    #[track_caller]
    pub fn number(&self, field: &str) -> u64 {
        let status = self.status();
        status[field].as_u64().unwrap_or_else(|| panic!("no number {field} in {status:#}"))
    }

    /// Waits until the tier holds at least this many bytes: bytes that a reader gets are stored
    /// beside the answers, the last of them a moment later.
    #[track_caller]
    pub fn keeps(&self, bytes: u64) {
        within(PATIENCE, "what was read is kept", || self.number("used_bytes") >= bytes);
    }

    /// The cached bytes of the files at a name or below it, as `forebay ls` shows them.
    #[track_caller]
    pub fn cached(&self, name: &str) -> u64 {
        let files = self.forebay(&["ls", "--json", text(&self.at(name))]).ok().json();
        let files = files.as_array().expect("a list of files").iter();
        files.map(|file| file["cached_bytes"].as_u64().expect("a number of bytes")).sum()
    }

    /// Waits until exactly this many bytes of a name are cached: see [`Mounted::keeps`].
    #[track_caller]
    pub fn keeps_of(&self, name: &str, bytes: u64) {
        let kept = || self.cached(name) == bytes;
        assert!(eventually(PATIENCE, kept), "{name}: {} of {bytes} bytes", self.cached(name));
    }

    /// Waits until the daemon knows that no program writes past it any more: the kernel reports a
    /// close some time after it, and until then written bytes are counted now and then.
    #[track_caller]
    pub fn hear_closes(&self) {
        within(PATIENCE, "every close is heard of", || self.number("passthrough_writers") == 0);
    }

    /// Runs `forebay ARGS`, with the environment of the bed.
    pub fn forebay(&self, args: &[&str]) -> Out {
        forebay_env(args, &self.env)
    }

    #[track_caller]
    pub fn flush(&self) {
        if self.plain.is_none() {
            self.forebay(&["flush", "--wait", text(&self.path)]).ok();
        }
    }

    /// Evicts every clean byte and drops the kernel's caches: the next read comes from the
    /// backing store.
    #[track_caller]
    pub fn evict(&self) {
        if self.plain.is_none() {
            self.forebay(&["evict", text(&self.path)]).ok();
        }
        drop_caches();
    }

    /// Unmounts in order, and asserts that the command reports success.
    #[track_caller]
    pub fn umount(self) -> Out {
        if self.plain.is_some() {
            return Out {
                command: "plain".into(),
                code: Some(0),
                stdout: String::new(),
                stderr: String::new(),
            };
        }
        let out = self.umount_with(&[]).ok();
        self.assert_gone();
        out
    }

    /// Unmounts with no file open; the test judges the result.
    pub fn umount_with(&self, flags: &[&str]) -> Out {
        while_busy(|| self.try_umount(flags))
    }

    /// Unmounts in one attempt, for a mount that is in use.
    pub fn try_umount(&self, flags: &[&str]) -> Out {
        let mut args = vec!["umount", text(&self.path)];
        args.extend(flags);
        self.forebay(&args)
    }

    #[track_caller]
    pub fn assert_gone(&self) {
        assert_eq!(images::mounted_at(&self.path), None, "still mounted");
        within(PATIENCE, "the daemon ends", || !is_alive(self.pid));
    }

    /// kill -9 of the daemon and of nothing else.
    pub fn kill9(&self) {
        kill(self.pid, libc::SIGKILL);
        within(PATIENCE, "the killed daemon is gone", || !is_alive(self.pid));
    }

    /// kill -9 and a lazy unmount: what an operator does before mounting again.
    pub fn crash(self) {
        self.kill9();
        images::unmount(&self.path, true).expect("a dead mount can be detached");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.plain.is_some() {
            return;
        }
        if self.pid > 1 && is_alive(self.pid) {
            kill(self.pid, libc::SIGCONT);
            kill(self.pid, libc::SIGKILL);
            eventually(PATIENCE, || !is_alive(self.pid));
        }
        if images::mounted_at(&self.path).is_some_and(|(fs, _)| fs.starts_with("fuse")) {
            let _ = images::unmount(&self.path, true);
        }
    }
}

/// Repeats an unmount while the mount is busy, although the test has no file open: a program that
/// another test is just starting has the test's descriptors until it execs.
pub fn while_busy(mut unmount: impl FnMut() -> Out) -> Out {
    let mut last = None;
    eventually(PATIENCE, || {
        let out = unmount();
        let said = |word| out.stderr.contains(word);
        let busy = !matches!(out.code, Some(0 | 4)) && (said("in use") || said("busy"));
        last = Some(out);
        !busy
    });
    last.expect("one attempt at least")
}

/// Drops the page, inode and name caches of the kernel.
pub fn drop_caches() {
    // Names can be dropped only once their dirty pages are written.
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").expect("root may drop caches");
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are plain text")
}
