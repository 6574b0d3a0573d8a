//! Other file systems that are mounted below the root, told apart by where they are: of many (NFS, btrfs,
//! overlayfs) the kernel makes the device number up each time they are mounted.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use forebay_base::mounts::{self, Mount};

/// Major and minor.
pub type Device = (u32, u32);

/// What was mounted where is looked up again after so long: a number may be given to another file system.
const BELIEVED: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Devices {
    own: Device,
    root: PathBuf,
    known: RwLock<HashMap<Device, (Instant, u64)>>,
}

impl Devices {
    /// Those below a root, which is an absolute path without links and lies on `own`.
    pub fn below(root: &Path, own: Device) -> Devices {
        Devices { own, root: root.into(), known: RwLock::default() }
    }

    /// The inode number that a file has beside those of the root's own file system. The top bit, which none in use
    /// sets, keeps others apart from these.
    pub fn inode(&self, device: Device, ino: u64) -> u64 {
        match device == self.own {
            true => ino,
            false => mix(self.place(device) ^ mix(ino)) | 1 << 63,
        }
    }

    fn place(&self, device: Device) -> u64 {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).get(&device).copied();
        if let Some((_, place)) = known.filter(|(at, _)| at.elapsed() < BELIEVED) {
            return place;
        }
        let mounts = mounts::read().unwrap_or_default();
        let place = place(&mounts, &self.root, device);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(device, (Instant::now(), place));
        place
    }
}

/// A number for where a file system is mounted below the root: the same whatever its device number, and on every host.
/// What has no mount of its own, such as a subvolume of btrfs, has its device number.
fn place(mounts: &[Mount], root: &Path, (major, minor): Device) -> u64 {
    let device = format!("{major}:{minor}");
    let of = mounts.iter().filter(|mount| mount.device == device);
    let below = of.filter_map(|mount| mount.path.strip_prefix(root).ok());
    match below.min() {
        Some(path) => {
            path.as_os_str().as_bytes().iter().fold(1, |hash, byte| mix(hash ^ u64::from(*byte)))
        }
        None => u64::from(major) << 32 | u64::from(minor),
    }
}

/// The finalizer of splitmix64: every input bit reaches every output bit.
fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table names what is mounted at `/store` and below, by its number.
    fn table(numbers: [&str; 3]) -> Vec<Mount> {
        let [root, first, second] = numbers;
        let line =
            |device: &str, path: &str| format!("1 1 {device} / {path} rw - nfs4 host:/ rw\n");
        let lines = [line(root, "/store"), line(first, "/store/a b"), line(second, "/store/b")];
        mounts::parse(lines.concat().replace("a b", "a\\040b").as_bytes())
    }

    /// After a reboot, and on another host, a file is the same.
    // S-3 S-25
    #[test]
    fn a_file_system_below_the_root_is_known_by_its_place() {
        let root = Path::new("/store");
        let before = table(["0:40", "0:41", "0:42"]);
        let after = table(["0:50", "0:42", "0:41"]);
        let at = |mounts: &[Mount], minor| place(mounts, root, (0, minor));
        assert_eq!(at(&before, 41), at(&after, 42));
        assert_eq!(at(&before, 42), at(&after, 41));
        assert_ne!(at(&before, 41), at(&before, 42));
        assert_eq!(at(&before, 99), 99, "a subvolume");
        let devices = Devices::below(root, (0, 40));
        assert_eq!(devices.inode((0, 40), 7), 7);
        assert_ne!(devices.inode((0, 99), 7), 7);
    }
}
