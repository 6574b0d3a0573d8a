//! The three directories of a mount, and the checks of them before anything is changed.

use std::io;
use std::path::{Path, PathBuf};

use forebay_backing::{Error, Kind, Result, SingleStore};
use forebay_engine::Tier;

use rustix::io::Errno;

use crate::http::{Client, Liveness};
use crate::mounts::Mounts;

const FUSE: &str = "/dev/fuse";

/// Canonical paths, checked: none is inside another.
#[derive(Debug, Clone)]
pub struct Places {
    pub backing: PathBuf,
    pub mountpoint: PathBuf,
    pub tier: PathBuf,
}

impl Places {
    pub fn check(backing: &Path, mountpoint: &Path, tier: &Path) -> Result<Places> {
        let mounts = Mounts::read()?;
        let places = Places {
            backing: backing_store(backing, tier, &mounts)?,
            // Checked by mountinfo alone at first: system calls on a dead mount there would fail.
            mountpoint: mountpoint_dir(mountpoint, &mounts)?,
            tier: tier_dir(tier, &mounts)?,
        };
        places.check_apart()?;
        require_utf8("backing store", &places.backing)?;
        require_utf8("tier", &places.tier)?;
        if !places.covers() {
            check_empty(&places.mountpoint)?;
        }
        Ok(places)
    }

    /// Whether the mount lies over its own backing directory. Then the daemon reaches the directory by a
    /// descriptor opened before, and no other program can while the mount is there.
    fn covers(&self) -> bool {
        self.backing == self.mountpoint
    }

    /// Refuses a backing store that is mounted read-only: programs could write, but nothing could be flushed.
    pub fn require_writable(&self) -> Result<()> {
        let backing = self.backing.display();
        let found = rustix::fs::statvfs(&self.backing)
            .map_err(|e| cannot_use("backing store", &self.backing, &e.into()))?;
        match found.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
            false => Ok(()),
            true => Err(usage(format!(
                "backing store {backing}: its file system is mounted read-only: make it writable, \
                 or give --read-only"
            ))),
        }
    }

    /// Checks that /dev/fuse can be opened: fusermount3 opens it with the rights of the mounting user.
    pub fn require_fuse() -> Result<()> {
        use rustix::fs::Access;
        let remedy = match rustix::fs::access(FUSE, Access::READ_OK | Access::WRITE_OK) {
            Ok(()) => return Ok(()),
            Err(Errno::NOENT) => "load the kernel's module, with modprobe fuse as root",
            Err(Errno::ACCESS) => {
                "have root give you access to it, with chmod 0666 /dev/fuse, or mount for you"
            }
            // The real open reports other errors.
            Err(_) => return Ok(()),
        };
        Err(usage(format!(
            "{FUSE} cannot be opened, and nothing can be mounted without it: {remedy}"
        )))
    }

    fn check_apart(&self) -> Result<()> {
        // The path of a link to a file keeps the link, so its target must be apart, too.
        let backing = self.backing.canonicalize().unwrap_or_else(|_| self.backing.clone());
        let named = [
            ("the backing store", &backing),
            ("the mount point", &self.mountpoint),
            ("the tier", &self.tier),
        ];
        for (i, (outer_name, outer)) in named.iter().enumerate() {
            for (j, (inner_name, inner)) in named.iter().enumerate() {
                let covers = self.covers() && i.max(j) < 2;
                if i != j && !covers && inner.starts_with(outer) {
                    let relation = if inner == outer { "is the same as" } else { "is inside" };
                    return Err(usage(format!(
                        "{inner_name} {} {relation} {outer_name} {}: choose directories apart \
                         from each other",
                        inner.display(),
                        outer.display()
                    )));
                }
            }
        }
        Ok(())
    }
}

/// A directory, or one file or device. The last name of a file or device is kept as typed, even if it is
/// a link: it becomes the file's name in the mount, and links like those in /dev/disk/by-id outlast the
/// names that they point to.
fn backing_store(path: &Path, tier: &Path, mounts: &Mounts) -> Result<PathBuf> {
    refuse_inside("backing store", path, mounts)?;
    if path.is_dir() {
        return existing_dir("backing store", path, mounts);
    }
    path.metadata().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => missing_store(path, tier),
        _ => cannot_use("backing store", path, &e),
    })?;
    if !SingleStore::serves(path) {
        return Err(usage(format!(
            "backing store {}: is not a directory, a file or a block device",
            path.display()
        )));
    }
    let typed = std::path::absolute(path).map_err(|e| cannot_use("backing store", path, &e))?;
    let at = typed.parent().map(Path::canonicalize).transpose();
    let dir = at.map_err(|e| cannot_use("backing store", path, &e))?;
    match (dir, typed.file_name()) {
        (Some(dir), Some(name)) => Ok(dir.join(name)),
        _ => Err(usage(format!("backing store {}: name a file", path.display()))),
    }
}

/// The error for a backing store that is not there. Only that of a new tier may be new, too.
fn missing_store(path: &Path, tier: &Path) -> Error {
    let path = path.display();
    usage(match Tier::owner(tier) {
        Ok(owner) => format!(
            "backing store {path}: nothing is there, and the tier {} belongs to {}: mount the file system that \
             this is on",
            tier.display(),
            owner.path.display()
        ),
        Err(_) => format!(
            "backing store {path}: nothing is there: mount the file system that it is on, or create it, with \
             mkdir -p, if it is to be new"
        ),
    })
}

fn existing_dir(what: &str, path: &Path, mounts: &Mounts) -> Result<PathBuf> {
    refuse_inside(what, path, mounts)?;
    let canonical = path.canonicalize().map_err(|e| cannot_use(what, path, &e))?;
    match canonical.is_dir() {
        true => Ok(canonical),
        false => Err(usage(format!("{what} {}: is not a directory", path.display()))),
    }
}

fn refuse_inside(what: &str, path: &Path, mounts: &Mounts) -> Result<()> {
    if let Ok(place) = mounts.find(path) {
        return Err(usage(format!(
            "{what} {} is inside the forebay mount {}: name a directory of its own",
            path.display(),
            place.mountpoint.display()
        )));
    }
    Ok(())
}

fn mountpoint_dir(path: &Path, mounts: &Mounts) -> Result<PathBuf> {
    if let Ok(place) = mounts.find(path) {
        let at = place.mountpoint.display();
        if Client::new(&place.tier).liveness() == Liveness::Dead {
            return Err(usage(format!(
                "mount point {at}: is a forebay mount whose daemon has died: `forebay umount --keep-dirty \
                 {at}` clears it, then mount again; what is dirty stays in the tier until then"
            )));
        }
        let relation = if place.path.as_os_str().is_empty() { "already is" } else { "is inside" };
        return Err(usage(format!(
            "mount point {} {relation} a forebay mount: `forebay umount {at}` first, or choose \
             another directory",
            path.display()
        )));
    }
    existing_dir("mount point", path, mounts)
}

fn check_empty(mountpoint: &Path) -> Result<()> {
    let mut entries =
        std::fs::read_dir(mountpoint).map_err(|e| cannot_use("mount point", mountpoint, &e))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(usage(format!(
            "mount point {}: is not empty, and what is in it would be hidden: choose an empty \
             directory",
            mountpoint.display()
        ))),
    }
}

/// Refuses a path that is not UTF-8: the superblock and the control socket name it in JSON.
fn require_utf8(what: &str, path: &Path) -> Result<()> {
    match path.to_str() {
        Some(_) => Ok(()),
        None => Err(usage(format!(
            "{what} {}: its path is not UTF-8: rename it, or give a bind mount of it",
            path.display()
        ))),
    }
}

/// The tier may not exist yet; its parent must.
fn tier_dir(path: &Path, mounts: &Mounts) -> Result<PathBuf> {
    refuse_inside("tier", path, mounts)?;
    Tier::path(path).map_err(|error| match error.kind() {
        Kind::Os(libc::ENOENT) => usage(format!(
            "tier {}: its parent directory does not exist: create it",
            path.display()
        )),
        Kind::Os(errno) => cannot_use("tier", path, &io::Error::from_raw_os_error(errno)),
        _ => error,
    })
}

fn cannot_use(what: &str, path: &Path, error: &io::Error) -> Error {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => ": create it first, with mkdir -p",
        io::ErrorKind::PermissionDenied => ": run as a user who may enter it",
        _ if error.raw_os_error() == Some(libc::ENOTCONN) => ": a dead mount, unmount it first",
        _ => "",
    };
    usage(format!("{what} {}: {error}{remedy}", path.display()))
}

fn usage(message: String) -> Error {
    Error::new(Kind::Usage, message)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    struct Dirs(tempfile::TempDir);

    impl Dirs {
        fn new() -> Dirs {
            let dir = tempfile::tempdir().unwrap();
            for name in ["slow", "slow/inner", "mnt", "full", "full/x", "fast"] {
                fs::create_dir(dir.path().join(name)).unwrap();
            }
            for name in ["file", "fast/img"] {
                fs::write(dir.path().join(name), "").unwrap();
            }
            std::os::unix::fs::symlink("fast/img", dir.path().join("img")).unwrap();
            std::os::unix::fs::symlink("/dev/zero", dir.path().join("zero")).unwrap();
            Dirs(dir)
        }

        fn check(&self, backing: &str, mountpoint: &str, tier: &str) -> Result<Places> {
            let at = |name: &str| self.0.path().join(name);
            Places::check(&at(backing), &at(mountpoint), &at(tier))
        }
    }

    #[test]
    fn good_places_pass_whether_or_not_the_tier_exists() {
        let dirs = Dirs::new();
        assert!(dirs.check("slow", "mnt", "fast").is_ok());
        let places = dirs.check("slow", "mnt", "fast/new").unwrap();
        assert!(places.tier.ends_with("fast/new"));
    }

    #[test]
    fn one_file_is_a_backing_store_under_its_own_name() {
        let dirs = Dirs::new();
        std::os::unix::fs::symlink("file", dirs.0.path().join("by-id")).unwrap();
        for name in ["file", "by-id"] {
            let places = dirs.check(name, "mnt", "fast").unwrap();
            assert!(places.backing.ends_with(name), "{}", places.backing.display());
        }
    }

    #[test]
    fn a_path_that_is_not_utf_8_is_refused_for_backing_store_and_tier() {
        let dirs = Dirs::new();
        let odd = dirs.0.path().join(OsStr::from_bytes(b"od\xffd"));
        fs::create_dir(&odd).unwrap();
        let at = |name: &str| dirs.0.path().join(name);
        for (backing, tier) in [(odd.clone(), at("fast")), (at("slow"), odd.join("tier"))] {
            let error = Places::check(&backing, &at("mnt"), &tier).unwrap_err();
            assert!(error.to_string().contains("is not UTF-8"), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
        assert!(Places::check(&at("slow"), &odd, &at("fast")).is_ok());
    }

    #[test]
    fn each_bad_place_is_refused_by_name_with_a_remedy() {
        let dirs = Dirs::new();
        for (backing, mountpoint, tier, expected) in [
            ("none", "mnt", "fast", "mount the file system that it is on"),
            ("slow/../zero", "mnt", "fast", "a file or a block device"),
            ("fast/img", "mnt", "fast", "is inside the tier"),
            ("img", "mnt", "fast", "is inside the tier"),
            ("slow", "none", "fast", "create it first"),
            ("slow", "full", "fast", "is not empty"),
            ("slow", "mnt", "no/tier", "parent directory does not exist"),
            ("slow", "mnt", "file", "is not a directory"),
            ("slow", "slow/inner", "fast", "the mount point"),
            ("slow", "mnt", "slow/inner", "is inside the backing store"),
            ("slow", "mnt", "slow", "is the same as"),
            ("slow/inner", "mnt", "slow", "is inside the tier"),
            ("slow", "mnt", "mnt/tier", "is inside the mount point"),
        ] {
            let error = dirs.check(backing, mountpoint, tier).unwrap_err();
            assert!(error.to_string().contains(expected), "{expected:?} not in: {error}");
            assert_eq!(error.exit_code(), 2);
        }
    }
}
