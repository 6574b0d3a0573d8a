//! A mark that a mounted file system keeps until its last unmount, the same for every process, mount namespace
//! and bind mount: the inode number of its directory in sysfs. The kernel numbers these (kernfs) in the order
//! of creation and does not use a number again while it runs.
//!
//! The ids of mounts (`statx` with `STATX_MNT_ID_UNIQUE`) are no such mark: a bind mount or another namespace
//! has a different id for the same file system.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs;

/// The mark of the file system that `fd` is on; `None` where the kernel has none to show (tmpfs,
/// which loses everything with its last unmount, overlays, network file systems, no sysfs).
pub(super) fn of(fd: BorrowedFd<'_>) -> Option<String> {
    let dir = sysfs_dir(fd)?;
    let number = std::fs::metadata(&dir).ok()?.ino();
    Some(format!("{}:{number}", dir.display()))
}

/// Whether fsync of a new file makes its name durable: the drivers of ext4, which commits the
/// transaction of the last change of the inode, or without a journal syncs the directories above
/// (`fs/ext4/fsync.c`), and of XFS, which forces its log to that change (`fs/xfs/xfs_file.c`).
pub(super) fn syncs_names(fd: BorrowedFd<'_>) -> bool {
    let of = |dir: &Path| dir.starts_with("/sys/fs/ext4") || dir.starts_with("/sys/fs/xfs");
    sysfs_dir(fd).is_some_and(|dir| of(&dir) && dir.is_dir())
}

/// Whether the file system commits changes of inodes in order, each commit after a flush of what the device
/// took before: XFS, and ext4 with a journal of its own in which no commit happens without a flush
/// (`data=ordered` and barriers). For ext4 the kernel says so in `/proc/fs`; where that cannot be read the
/// answer is no.
pub(super) fn commits_in_order(fd: BorrowedFd<'_>) -> bool {
    let Some(dir) = sysfs_dir(fd).filter(|dir| dir.is_dir()) else { return false };
    let Some(device) = dir.file_name().and_then(|name| name.to_str()) else { return false };
    if dir.starts_with("/sys/fs/xfs") {
        return true;
    }
    let options = std::fs::read_to_string(format!("/proc/fs/ext4/{device}/options"));
    let has = |wanted: &str| options.iter().flat_map(|all| all.lines()).any(|one| one == wanted);
    // A journal on another device has another name.
    let own_journal = || Path::new(&format!("/proc/fs/jbd2/{device}-8")).exists();
    dir.starts_with("/sys/fs/ext4") && has("data=ordered") && has("barrier") && own_journal()
}

fn sysfs_dir(fd: BorrowedFd<'_>) -> Option<PathBuf> {
    let driver = match fs::fstatfs(fd).ok()?.f_type as u32 {
        // The driver of ext4 serves ext2 and ext3 as well.
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0xf2f5_2010 => "f2fs",
        0x9123_683e => return Some(Path::new("/sys/fs/btrfs").join(btrfs_uuid(fd)?)),
        _ => return None,
    };
    let dev = fs::fstat(fd).ok()?.st_dev;
    let link = format!("/sys/dev/block/{}:{}", fs::major(dev), fs::minor(dev));
    let device = std::fs::read_link(link).ok()?;
    Some(Path::new("/sys/fs").join(driver).join(device.file_name()?))
}

/// Whether a commit of the file system `dev` flushes the device that the file's bytes are on. It does not if
/// another file system is mounted below the tier, nor for XFS's realtime device. A file takes the realtime flag
/// from the directory that it was made in, wherever it is now, and keeps it once it has bytes.
pub(super) fn is_flushed_by_commits(fd: BorrowedFd<'_>, dev: u64) -> bool {
    /// `FS_IOC_FSGETXATTR` of linux/fs.h: `_IOR('X', 31, struct fsxattr)`.
    const FS_GET_XATTR: libc::Ioctl = 0x801c_581f_u32 as libc::Ioctl;
    // No times are asked for: see `MediaFile::size`.
    let own = fs::statx(fd, "", fs::AtFlags::EMPTY_PATH, fs::StatxFlags::TYPE);
    let is_here = own.is_ok_and(|own| fs::makedev(own.stx_dev_major, own.stx_dev_minor) == dev);
    let mut found = [0_u32; 7];
    // SAFETY: the call writes 28 bytes, which is what `found` has, and reads none of our memory.
    let told = unsafe { libc::ioctl(fd.as_raw_fd(), FS_GET_XATTR, found.as_mut_ptr()) };
    is_here && told == 0 && !is_realtime(found[0])
}

/// Whether the flags (`fsx_xflags`) say that the file is on the realtime device.
fn is_realtime(flags: u32) -> bool {
    /// `FS_XFLAG_REALTIME`.
    const REALTIME: u32 = 0x1;
    flags & REALTIME != 0
}

/// The uuid of a btrfs, whose device numbers differ from `st_dev`.
fn btrfs_uuid(fd: BorrowedFd<'_>) -> Option<String> {
    /// `BTRFS_IOC_FS_INFO` of linux/btrfs.h: `_IOR(0x94, 31, struct btrfs_ioctl_fs_info_args)`.
    const FS_INFO: libc::Ioctl = 0x8400_941f_u32 as libc::Ioctl;
    /// The place of the uuid, behind `max_id` and `num_devices` of 8 bytes each.
    const FSID: std::ops::Range<usize> = 16..32;
    let mut info = [0_u64; 128];
    // SAFETY: the call writes 1024 bytes, which is what `info` has, and reads none of our memory.
    if unsafe { libc::ioctl(fd.as_raw_fd(), FS_INFO, info.as_mut_ptr()) } != 0 {
        return None;
    }
    let bytes: Vec<u8> = info.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let hex: String = bytes[FSID].iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    Some(parts.join("-"))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use forebay_backing::suite::TempDir;

    use super::{is_flushed_by_commits, is_realtime};

    #[test]
    fn a_file_is_flushed_by_commits_unless_it_is_a_realtime_one() {
        // 0x2 is preallocated; 0x100 is an inherited realtime flag.
        assert!(!is_realtime(0) && !is_realtime(0x2 | 0x100) && is_realtime(0x3));
        let dir = TempDir::new();
        let file = std::fs::File::create(dir.path().join("f")).expect("room");
        let magic = rustix::fs::fstatfs(&file).expect("a file system").f_type;
        // Files on other file systems are never sealed.
        let dev = rustix::fs::fstat(&file).expect("it is open").st_dev;
        if [0xef53, 0x5846_5342].contains(&magic) {
            assert!(is_flushed_by_commits(file.as_fd(), dev), "nobody made it one");
        }
        assert!(!is_flushed_by_commits(file.as_fd(), dev + 1), "it is on another file system");
        let null = std::fs::File::open("/dev/null").expect("a device");
        let dev = rustix::fs::fstat(&null).expect("it is open").st_dev;
        assert!(!is_flushed_by_commits(null.as_fd(), dev), "what cannot tell is none");
    }
}
