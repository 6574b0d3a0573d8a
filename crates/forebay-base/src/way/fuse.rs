//! The user whose program serves a FUSE file system.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::OnceLock;

use crate::mounts;
use crate::{Error, Kind, Result, users};
use rustix::fs;

/// `FUSE_SUPER_MAGIC` of linux/magic.h.
const FUSE: u32 = 0x6573_5546;

/// W3.
pub fn refuse_of_others(fd: BorrowedFd<'_>, us: u32, path: &Path) -> Result<()> {
    let found = fs::fstatfs(fd).map_err(|e| Error::io(e.into(), path.display().to_string()))?;
    if found.f_type as u32 != FUSE {
        return Ok(());
    }
    let whose = match mounted_by(fd) {
        Some(uid) if uid == 0 || uid == us => return Ok(()),
        Some(uid) => format!("a program of {}", users::show(uid)),
        None => "somebody's program".into(),
    };
    let message = format!("{}: {whose} serves this file system: choose another", path.display());
    Err(Error::new(Kind::Usage, message))
}

/// The user that a FUSE file system was mounted for, as the kernel knows it.
fn mounted_by(fd: BorrowedFd<'_>) -> Option<u32> {
    let info = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let info = std::fs::read_to_string(info).ok()?;
    let id: u64 =
        info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim().parse().ok()?;
    mounts::read().ok()?.iter().find(|mount| mount.id == id)?.owner()
}

/// The uid that the machine's root has in a user namespace that does not map it: all unmapped users
/// share one. `None` outside of such a namespace.
pub fn unmapped_root() -> Option<u32> {
    static FOUND: OnceLock<Option<u32>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
        let everybody = map.split_whitespace().eq(["0", "0", "4294967295"]);
        let number = std::fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
        number.trim().parse().ok().filter(|_| !everybody)
    })
}
