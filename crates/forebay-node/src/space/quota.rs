//! Project limits, as ext4 and XFS keep them: quotactl(2), with the requests of XFS, which the kernel
//! answers for both.
//!
//! A project limit guards against accidents only: the owner of a file can give it another project, and
//! thus another limit.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use forebay_base::Result;

use super::failed;

/// linux/quota.h, linux/dqblk_xfs.h
const PROJECTS: u32 = 2;
const Q_XGETQUOTA: u32 = xfs_request(3);
const Q_XSETQLIM: u32 = xfs_request(4);
const Q_XGETQSTAT: u32 = xfs_request(5);
const PROJECTS_ACCOUNTED: u16 = 1 << 4;
const PROJECTS_ENFORCED: u16 = 1 << 5;
const VERSION: i8 = 1;
const OF_PROJECT: i8 = 2;
const INODES_SOFT: u16 = 1;
const INODES_HARD: u16 = 1 << 1;
const BLOCKS_SOFT: u16 = 1 << 2;
const BLOCKS_HARD: u16 = 1 << 3;

/// The unit of `fs_disk_quota`, whatever the block size is.
const UNIT: u64 = 512;

/// linux/fs.h
const FS_IOC_FSGETXATTR: u32 = 0x801C_581F;
const FS_IOC_FSSETXATTR: u32 = 0x401C_5820;
const INHERIT_PROJECT: u32 = 0x200;

/// Room for a few directories in the smallest space.
const NAMES_MIN: u64 = 64 << 10;

const fn xfs_request(number: u32) -> u32 {
    ((b'X' as u32) << 8) + number
}

/// `struct fs_disk_quota`
#[repr(C)]
#[derive(Clone, Copy)]
struct Limits {
    version: i8,
    flags: i8,
    fields: u16,
    id: u32,
    blocks_hard: u64,
    blocks_soft: u64,
    inodes_hard: u64,
    inodes_soft: u64,
    blocks: u64,
    inodes: u64,
    inode_timer: i32,
    block_timer: i32,
    inode_warnings: u16,
    block_warnings: u16,
    timers_high: [i8; 4],
    realtime_hard: u64,
    realtime_soft: u64,
    realtime_blocks: u64,
    realtime_timer: i32,
    realtime_warnings: u16,
    padding3: i16,
    padding4: [i8; 8],
}

/// `struct fs_quota_stat`: it contains two files of 24 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct Status {
    version: i8,
    flags: u16,
    padding: i8,
    files: [u64; 6],
    in_core: u32,
    timers: [i32; 3],
    warnings: [u16; 2],
}

/// `struct fsxattr`
#[repr(C)]
#[derive(Clone, Copy)]
struct Attributes {
    flags: u32,
    extent_hint: u32,
    extents: u32,
    project: u32,
    cow_hint: u32,
    padding: [u8; 8],
}

/// Why project limits are not available here, if they are not.
pub(super) fn missing(dir: BorrowedFd<'_>) -> Option<String> {
    // SAFETY: integers and arrays of them, for which zeros are values.
    let mut status: Status = unsafe { std::mem::zeroed() };
    let wanted = PROJECTS_ACCOUNTED | PROJECTS_ENFORCED;
    match ask(dir, Q_XGETQSTAT, 0, &mut status) {
        Ok(()) if status.flags & wanted == wanted => None,
        Ok(()) => Some("not enforced here: mount the tier with the option prjquota".into()),
        Err(e) => Some(match e.raw_os_error() {
            // Where no quota of any kind is on, both file systems answer ENOSYS, too.
            Some(libc::ENOSYS | libc::ENOTTY | libc::ESRCH) => {
                "not switched on: mount the tier with the option prjquota (XFS, or ext4 with the \
                 features project,quota; Linux 5.14 or newer)"
                    .into()
            }
            _ => format!("quotactl says: {e}"),
        }),
    }
}

/// A project's use, and whether it has a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Used {
    pub bytes: u64,
    pub inodes: u64,
    limited: bool,
}

impl Used {
    pub fn is_nothing(&self) -> bool {
        self.bytes + self.inodes == 0
    }

    /// Whether the project is in use: one with a limit may be reserved for files still to come.
    pub fn is_taken(&self) -> bool {
        self.limited || !self.is_nothing()
    }
}

/// The room for a limit: it also counts bytes that are not in files (names of files, their directories,
/// maps of extents). With this addition the owner can fill the capacity with bytes of files.
pub(super) fn size(capacity: u64) -> u64 {
    (capacity + capacity / 256 + NAMES_MIN).next_multiple_of(4096)
}

/// A project's use; `None` for a project without any record.
pub(super) fn used(dir: BorrowedFd<'_>, project: u32) -> Result<Option<Used>> {
    // SAFETY: integers and arrays of them, for which zeros are values.
    let mut limits: Limits = unsafe { std::mem::zeroed() };
    match ask(dir, Q_XGETQUOTA, project, &mut limits) {
        Ok(()) => Ok(Some(Used {
            bytes: limits.blocks * UNIT,
            inodes: limits.inodes,
            limited: limits.blocks_hard + limits.inodes_hard > 0,
        })),
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(e) => Err(failed(format_args!("project {project}: cannot ask for its use"))(e)),
    }
}

/// Sets a project's limit; zeros remove it.
pub(super) fn limit(dir: BorrowedFd<'_>, project: u32, bytes: u64, inodes: u64) -> Result<()> {
    // SAFETY: integers and arrays of them, for which zeros are values.
    let mut limits: Limits = unsafe { std::mem::zeroed() };
    limits.version = VERSION;
    limits.flags = OF_PROJECT;
    limits.fields = INODES_SOFT | INODES_HARD | BLOCKS_SOFT | BLOCKS_HARD;
    limits.id = project;
    (limits.blocks_hard, limits.inodes_hard) = (bytes.div_ceil(UNIT), inodes);
    ask(dir, Q_XSETQLIM, project, &mut limits)
        .map_err(failed(format_args!("project {project}: cannot set its limit")))
}

/// Puts a directory, and everything that is made in it, into a project.
pub(super) fn put_into(dir: BorrowedFd<'_>, project: u32) -> Result<()> {
    let what = format!("cannot put a directory into project {project}");
    // SAFETY: integers and arrays of them, for which zeros are values.
    let mut attributes: Attributes = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one `Attributes`.
    let got =
        unsafe { libc::ioctl(dir.as_raw_fd(), FS_IOC_FSGETXATTR.into(), &raw mut attributes) };
    check(got.into()).map_err(failed(&what))?;
    attributes.flags |= INHERIT_PROJECT;
    attributes.project = project;
    // SAFETY: the kernel reads one `Attributes`.
    let set =
        unsafe { libc::ioctl(dir.as_raw_fd(), FS_IOC_FSSETXATTR.into(), &raw const attributes) };
    check(set.into()).map_err(failed(&what))
}

/// quotactl_fd(2), since Linux 5.14: needs no path of a device.
fn ask<T: Copy>(dir: BorrowedFd<'_>, request: u32, id: u32, answer: &mut T) -> io::Result<()> {
    let request = (request << 8) | PROJECTS;
    // SAFETY: `answer` is the structure of the request, which the kernel reads or writes once.
    check(unsafe {
        libc::syscall(
            libc::SYS_quotactl_fd,
            dir.as_raw_fd(),
            request,
            id,
            std::ptr::from_mut(answer),
        )
    })
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sizes of the structures in linux/dqblk_xfs.h and linux/fs.h on 64 bits.
    #[test]
    fn structures_are_as_large_as_the_kernels() {
        assert_eq!(size_of::<Limits>(), 112);
        assert_eq!(size_of::<Status>(), 80);
        assert_eq!(size_of::<Attributes>(), 28);
        assert_eq!(std::mem::offset_of!(Limits, realtime_hard), 72);
        assert_eq!((Q_XGETQUOTA, Q_XSETQLIM, Q_XGETQSTAT), (0x5803, 0x5804, 0x5805));
    }
}
