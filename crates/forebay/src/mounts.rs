//! The forebay mounts of this machine, and the mount that a path is in. A mount whose daemon died or
//! hangs is never touched.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use forebay_backing::{Error, Kind, Result};
use forebay_base::mounts::{self, Mount};

/// The types of a forebay mount. `fuse` is that of a mount whose helper could not set a subtype.
const FS_TYPES: [&str; 2] = ["fuse.forebay", "fuse"];
const SOURCE_PREFIX: &[u8] = b"forebay#";

/// As many links as the kernel follows before it says ELOOP.
const LINKS_MAX: usize = 40;

/// The mount's source as the daemon announces it. Commands find the tier by it.
pub fn source(tier: &Path) -> String {
    format!("forebay#{}", tier.display())
}

/// A path inside a forebay mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub mountpoint: PathBuf,
    pub tier: PathBuf,
    /// Relative to the root of the backing store; empty for the root.
    pub path: PathBuf,
}

/// The mounts this process sees, oldest first.
#[derive(Debug, Clone, Default)]
pub struct Mounts(Vec<Mount>);

impl Mounts {
    pub fn read() -> Result<Mounts> {
        let seen = mounts::read().map_err(|e| Error::io(e, "/proc/self/mountinfo"))?;
        Ok(Mounts(seen))
    }

    /// All forebay mounts: their mount points and tiers.
    pub fn ours(&self) -> impl Iterator<Item = (&Path, &Path)> {
        self.0.iter().filter_map(|mount| Some((mount.path.as_path(), tier_of(mount)?)))
    }

    /// The mounts of a user, each once, the newest first: one mount may be inside another.
    pub fn of_user(&self, uid: u32) -> Vec<Place> {
        let theirs = |mount: &&Mount| mount.owner() == Some(uid) && mount.root == Path::new("/");
        let place = |mount: &Mount| {
            let (mountpoint, tier) = (mount.path.clone(), tier_of(mount)?.into());
            Some(Place { mountpoint, tier, path: PathBuf::new() })
        };
        self.0.iter().rev().filter(theirs).filter_map(place).collect()
    }

    /// The device of the newest forebay mount at exactly this path.
    fn device_at(&self, path: &Path) -> Option<(u32, u32)> {
        let ours = |mount: &&Mount| mount.path == path && tier_of(mount).is_some();
        let (major, minor) = self.0.iter().rfind(ours)?.device.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }

    /// The place inside a forebay mount that an absolute path without links names.
    pub fn place(&self, path: &Path) -> Option<Place> {
        let mount = mounts::holding(&self.0, path)?;
        let below = path.strip_prefix(&mount.path).ok()?;
        let root = mount.root.strip_prefix("/").unwrap_or(&mount.root);
        Some(Place {
            mountpoint: mount.path.clone(),
            tier: tier_of(mount)?.into(),
            path: root.components().chain(below.components()).collect(),
        })
    }

    /// Makes a path absolute and free of links, without entering a forebay mount: links outside are
    /// followed, `..` inside is resolved by the text alone.
    pub fn absolute(&self, path: &Path) -> Result<PathBuf> {
        let cwd = std::env::current_dir().map_err(|e| Error::io(e, "current directory"))?;
        let mut links = 0;
        self.walk(&cwd.join(path), &mut links)
            .ok_or_else(|| Error::os(libc::ELOOP, path.display().to_string()))
    }

    fn walk(&self, path: &Path, links: &mut usize) -> Option<PathBuf> {
        let mut at = PathBuf::from("/");
        for component in path.components() {
            match component {
                Component::ParentDir => {
                    at.pop();
                }
                Component::Normal(name) => at = self.step(at, Path::new(name), links)?,
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
        Some(at)
    }

    fn step(&self, dir: PathBuf, name: &Path, links: &mut usize) -> Option<PathBuf> {
        let next = dir.join(name);
        if mounts::holding(&self.0, &next).and_then(tier_of).is_some() {
            return Some(next);
        }
        let Ok(target) = std::fs::read_link(&next) else { return Some(next) };
        *links += 1;
        if *links > LINKS_MAX {
            return None;
        }
        self.walk(&dir.join(target), links)
    }

    /// The place that a typed path names. Outside of forebay mounts no daemon can be reached: then the
    /// error lists the mounts.
    pub fn find(&self, typed: &Path) -> Result<Place> {
        let path = self.absolute(typed)?;
        self.place(&path)
            .ok_or_else(|| self.not_ours(Kind::Unreachable, &typed.display().to_string()))
    }

    /// The mount of the current directory, or the only mount.
    pub fn implied(&self) -> Result<Place> {
        if let Ok(place) = self.find(Path::new(".")) {
            return Ok(Place { path: PathBuf::new(), ..place });
        }
        let mut ours = self.ours();
        match (ours.next(), ours.next()) {
            (Some((mountpoint, tier)), None) => {
                Ok(Place { mountpoint: mountpoint.into(), tier: tier.into(), path: PathBuf::new() })
            }
            _ => Err(self.not_ours(Kind::Usage, "the current directory")),
        }
    }

    fn not_ours(&self, kind: Kind, what: &str) -> Error {
        let mounted: Vec<String> =
            self.ours().map(|(path, _)| path.display().to_string()).collect();
        let hint = match mounted.is_empty() {
            true => "nothing is mounted; see `forebay mount --help`".into(),
            false => format!("give a path in one of: {}", mounted.join(", ")),
        };
        Error::new(kind, format!("{what} is not in a forebay mount; {hint}"))
    }
}

/// The fast tier of a forebay mount; `None` for other mounts.
pub fn tier_of(mount: &Mount) -> Option<&Path> {
    let ours = FS_TYPES.contains(&mount.file_system.as_str());
    let tier = mount.source.as_bytes().strip_prefix(SOURCE_PREFIX).filter(|_| ours)?;
    Some(Path::new(OsStr::from_bytes(tier)))
}

/// The number of other mounted tiers on the file system that `tier` is on.
pub fn sharing(tier: &Path) -> u64 {
    let device = |path: &Path| Some(path.metadata().ok()?.dev());
    let (Some(own), Ok(mounts)) = (device(tier), Mounts::read()) else { return 0 };
    let others = mounts.ours().filter(|(_, other)| *other != tier && device(other) == Some(own));
    others.map(|(_, other)| other).collect::<BTreeSet<_>>().len() as u64
}

/// Processes with something open, mapped, running or working below a directory, at most `max`, as
/// `pid (command)`; for a forebay mount, in that mount: the paths of what it covers are the same. Reads `/proc` only,
/// so it cannot hang on the mount. This process is not among them.
pub fn users_of(dir: &Path, max: usize) -> Vec<String> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let device = Mounts::read().ok().and_then(|mounts| mounts.device_at(dir));
    let within = Within { dir, device };
    let own = std::process::id().to_string();
    let pids = processes.flatten().filter(|e| e.file_name().as_bytes()[0].is_ascii_digit());
    let others = pids.filter(|process| process.file_name() != *own);
    let named = others.filter_map(|process| {
        let works = within.is_used_by(&process.path())?;
        let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        Some(format!("{} ({}{works})", process.file_name().display(), name.trim()))
    });
    named.take(max).collect()
}

/// What is below a directory, and on a device if one is given.
struct Within<'a> {
    dir: &'a Path,
    device: Option<(u32, u32)>,
}

impl Within<'_> {
    /// How a process uses it, in words behind the name of its program; `None` if it does not.
    fn is_used_by(&self, process: &Path) -> Option<&'static str> {
        if self.holds(&process.join("cwd")) {
            return Some(", works in it");
        }
        let entries = |name| std::fs::read_dir(process.join(name)).into_iter().flatten().flatten();
        let mut open = entries("fd").chain(entries("map_files")).map(|entry| entry.path());
        let uses = ["exe", "root"].iter().any(|name| self.holds(&process.join(name)))
            || open.any(|link| self.holds(&link));
        uses.then_some("")
    }

    fn holds(&self, link: &Path) -> bool {
        let is_below = || std::fs::read_link(link).is_ok_and(|target| target.starts_with(self.dir));
        is_below() && self.device.is_none_or(|device| is_on(link, device))
    }
}

/// Whether a link of `/proc` leads to this device. Asks no file system for anything: it may hang.
fn is_on(link: &Path, device: (u32, u32)) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
    match statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()) {
        Ok(found) => (found.stx_dev_major, found.stx_dev_minor) == device,
        // Only root follows the links of mappings.
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &[u8] = b"\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
40 22 0:35 / /mnt/fast rw,nosuid,nodev shared:2 master:3 - fuse.forebay forebay\\043/nvme/my\\040tier rw,user_id=0\n\
41 40 0:36 / /mnt/fast/sub rw - tmpfs tmpfs rw\n\
42 22 0:37 / /mnt/fas rw - fuse.sshfs host: rw\n\
43 22 0:35 /deep/er /home/bind rw - fuse.forebay forebay\\043/nvme/my\\040tier rw\n\
44 22 0:38 / /mnt/a\\134b rw - fuse.forebay forebay#/t2 rw\n\
broken line\n";

    fn parsed(table: &[u8]) -> Mounts {
        Mounts(mounts::parse(table))
    }

    fn place(path: &str) -> Option<(String, String)> {
        let place = parsed(MOUNTINFO).place(Path::new(path))?;
        Some((place.tier.display().to_string(), place.path.display().to_string()))
    }

    #[test]
    fn a_path_is_in_the_mount_with_the_longest_prefix() {
        let in_tier = |path: &str| Some(("/nvme/my tier".to_string(), path.to_string()));
        assert_eq!(place("/mnt/fast"), in_tier(""));
        assert_eq!(place("/mnt/fast/a/b"), in_tier("a/b"));
        assert_eq!(place("/mnt/fast/sub/x"), None, "another file system on top");
        assert_eq!(place("/mnt/faster"), None, "prefixes end at a slash");
        assert_eq!(place("/mnt/fas/x"), None, "not ours");
        assert_eq!(place("/home/bind/x"), in_tier("deep/er/x"));
        assert_eq!(place("/mnt/a\\b/x"), Some(("/t2".into(), "x".into())));
        assert_eq!(parsed(MOUNTINFO).ours().count(), 3);
    }

    #[test]
    fn the_newest_of_stacked_mounts_is_the_one_that_shows() {
        let text = b"1 0 0:1 / /m rw - fuse.forebay forebay#/old rw\n\
                     2 1 0:2 / /m rw - fuse.forebay forebay#/new rw\n";
        let place = parsed(text).place(Path::new("/m/x")).unwrap();
        assert_eq!(place.tier, Path::new("/new"));
    }

    #[test]
    fn links_are_followed_outside_and_left_alone_inside() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        std::fs::create_dir(real.join("m")).unwrap();
        std::os::unix::fs::symlink("m", real.join("link")).unwrap();
        std::os::unix::fs::symlink("/nowhere", real.join("m/inner")).unwrap();
        std::os::unix::fs::symlink("loop", real.join("loop")).unwrap();
        let line = format!("1 0 0:1 / {}/m rw - fuse.forebay forebay#/t rw\n", real.display());
        let mounts = parsed(line.as_bytes());
        let find = |path: &str| mounts.find(&real.join(path)).map(|place| place.path);
        assert_eq!(find("link/inner").unwrap(), Path::new("inner"));
        assert_eq!(find("link/x/../y/./z").unwrap(), Path::new("y/z"));
        assert!(find("link/../other").unwrap_err().to_string().contains("give a path in one of"));
        assert!(find("loop/x").unwrap_err().is(libc::ELOOP));
    }

    #[test]
    fn the_device_of_a_mount_is_that_of_the_newest_forebay_at_its_path() {
        let mounts = parsed(MOUNTINFO);
        assert_eq!(mounts.device_at(Path::new("/mnt/fast")), Some((0, 35)));
        for not_ours in ["/", "/mnt/fast/sub", "/mnt/fas", "/mnt/fast/x"] {
            assert_eq!(mounts.device_at(Path::new(not_ours)), None, "{not_ours}");
        }
    }

    #[test]
    fn processes_that_use_a_directory_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap();
        assert!(users_of(&real, 5).is_empty());
        let open = || std::fs::File::create(real.join("open")).unwrap();
        let sleeping = |input: std::process::Stdio, at: &Path| {
            let mut sleep = std::process::Command::new("sleep");
            sleep.arg("600").stdin(input).current_dir(at).spawn().unwrap()
        };
        let _ours = open();
        let mut reads = sleeping(open().into(), Path::new("/"));
        let mut works = sleeping(std::process::Stdio::null(), &real);
        let mut found = users_of(&real, 5);
        [&mut reads, &mut works].iter_mut().for_each(|child| {
            child.kill().unwrap();
            child.wait().unwrap();
        });
        found.sort();
        let mut expected =
            [format!("{} (sleep)", reads.id()), format!("{} (sleep, works in it)", works.id())];
        expected.sort();
        assert_eq!(found, expected);
    }
}
