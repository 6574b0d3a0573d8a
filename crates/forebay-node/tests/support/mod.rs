//! A pool in a directory of its own, and the state that the tests look at.
#![allow(dead_code, reason = "each suite uses a part of it")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use forebay_base::mounts::{self, Mount};
use forebay_node::space::{
    Choice, Enforce, Fs, Id, Means, Owner, Pool, Settings, SpaceSpec, State, Swept,
};

pub const MIB: u64 = 1 << 20;

/// Two users that own nothing else on this machine.
pub const ALICE: Owner = Owner { uid: 61_001, gid: 61_001 };
pub const BOB: Owner = Owner { uid: 61_002, gid: 61_002 };

/// A directory with a pool and mount points; dropping it unmounts everything below.
pub struct Place {
    pub dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        assert!(rustix::process::geteuid().is_root(), "these tests mount: run them as root");
        let dir = tempfile::Builder::new().prefix("forebay-space-").tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(dir.path().join("mnt")).unwrap();
        Place { dir }
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn mount_at(&self, id: &str) -> PathBuf {
        self.at("mnt").join(id)
    }

    pub fn pool(&self) -> Pool {
        self.try_pool().unwrap()
    }

    /// A sweep in the background may have the pool open for a moment.
    pub fn try_pool(&self) -> forebay_base::Result<Pool> {
        let settings = Settings { enforce: Enforce::No, ..Settings::default() };
        let mut last = Pool::open(&self.at("pool"), settings.clone());
        let end = Instant::now() + Duration::from_secs(5);
        while last.as_ref().is_err_and(|e| e.to_string().contains("in use")) && Instant::now() < end
        {
            std::thread::sleep(Duration::from_millis(5));
            last = Pool::open(&self.at("pool"), settings.clone());
        }
        last
    }

    pub fn spec(&self, id: &str, kind: Kind, mib: u64) -> SpaceSpec {
        let mut spec = SpaceSpec::new(self::id(id), mib * MIB, ALICE, self.mount_at(id));
        spec.means = Choice::Exactly(kind.means());
        spec.fs = if kind == Kind::Xfs { Fs::Xfs } else { Fs::Ext4 };
        spec
    }

    pub fn mounts(&self) -> Vec<Mount> {
        let mounts = mounts::read().unwrap();
        mounts.into_iter().filter(|mount| mount.path.starts_with(self.dir.path())).collect()
    }

    /// Loop devices with a backing file below this directory.
    pub fn loops(&self) -> Vec<String> {
        let dir = self.dir.path().to_str().unwrap();
        let devices = fs::read_dir("/sys/block").unwrap().flatten();
        let backs = devices.filter_map(|device| {
            let back = fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
            back.contains(dir).then(|| device.file_name().into_string().unwrap())
        });
        backs.collect()
    }

    pub fn names(&self, below: &str) -> Vec<String> {
        let entries = fs::read_dir(self.at("pool").join(below)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Asserts that nothing is left.
    pub fn assert_empty(&self, pool: &Pool) {
        let end = Instant::now() + Duration::from_secs(10);
        let mut swept = pool.sweep().unwrap();
        while !(swept.left.is_empty() && self.loops().is_empty()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
            swept = pool.sweep().unwrap();
        }
        assert_eq!(swept, Swept { gone: swept.gone.clone(), left: Vec::new() });
        assert_eq!(self.mounts(), []);
        assert_eq!(self.loops(), [""; 0]);
        for folder in ["state", "spaces", "trash", "tiers", "swap"] {
            assert_eq!(self.names(folder), [""; 0], "{folder}");
        }
        assert_eq!(fs::read_dir(self.at("mnt")).unwrap().count(), 0);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Ok(entries) = fs::read_dir(self.at("pool/swap")) {
            entries.flatten().for_each(|entry| {
                let _ = Command::new("swapoff").arg(entry.path()).output();
            });
        }
        for mount in self.mounts().iter().rev() {
            let _ = rustix::mount::unmount(&mount.path, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Ext4,
    Xfs,
    Tmpfs,
    Directory,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::Ext4, Kind::Xfs, Kind::Tmpfs, Kind::Directory];

    pub fn means(self) -> Means {
        match self {
            Kind::Ext4 | Kind::Xfs => Means::Image,
            Kind::Tmpfs => Means::Tmpfs,
            Kind::Directory => Means::Directory,
        }
    }

    pub fn mib(self) -> u64 {
        if self == Kind::Xfs { 300 } else { 32 }
    }
}

pub fn id(text: &str) -> Id {
    text.parse().unwrap()
}

/// Runs a line of shell as a user.
pub fn run_as(owner: Owner, line: &str) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).uid(owner.uid).gid(owner.gid);
    shell.output().unwrap()
}

pub fn is_ready(pool: &Pool, name: &str) -> bool {
    matches!(pool.adopt(&id(name)).unwrap(), State::Ready(_))
}

pub fn mode_and_owner(path: &Path) -> (u32, u32, u32) {
    let stat = fs::metadata(path).unwrap();
    (stat.mode() & 0o7777, stat.uid(), stat.gid())
}

/// Runs one test of this suite in a process of its own, which is to die at a failpoint.
pub fn die_at(point: &str, test: &str, dir: &Path, how: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("FOREBAY_FAILPOINTS", point)
        .env("FOREBAY_TEST_DIR", dir)
        .env("FOREBAY_TEST_HOW", how)
        .output()
        .unwrap();
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(signal, Some(libc::SIGKILL), "{point} was not passed by {how}: {said}");
}
