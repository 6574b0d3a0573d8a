//! Operations that depend on the daemon's user: opening files it owns but may not write, and
//! changing modes, owners and times.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    self as sys, AtFlags, FileType, Gid, Mode, OFlags, Statx, Timespec, Timestamps, Uid,
};
use rustix::io::Errno;

use super::root::stat_fd;
use super::{DirStore, Sys};
use crate::fd::leave_reserve;
use crate::{Access, Attr, FileKey, SetAttr, SetTime, Timestamp};

/// Opens a regular file (the caller still has to check that it is one).
pub fn open(store: &DirStore, path: &Path, access: Access) -> Sys<OwnedFd> {
    let flags = flags(access);
    let opened = match open_now(store, path, flags) {
        Err(Errno::ACCESS) => open_own(store, path, flags),
        done => done,
    };
    opened.and_then(leave_reserve)
}

/// Opens the regular file that an O_PATH descriptor holds, whether it still has a name or not.
pub fn open_held(held: &OwnedFd, access: Access) -> Sys<OwnedFd> {
    sys::open(proc_path(held.as_fd()), flags(access) | OFlags::CLOEXEC, Mode::empty())
        .and_then(leave_reserve)
}

fn flags(access: Access) -> OFlags {
    match access {
        Access::Read => OFlags::RDONLY,
        Access::ReadWrite => OFlags::RDWR,
    }
}

/// A FIFO must not make the daemon wait for its other end, hence NONBLOCK; on a regular file that
/// flag would turn a lease of another process into EAGAIN and io_uring reads into short ones, so it
/// is removed again.
fn open_now(store: &DirStore, path: &Path, flags: OFlags) -> Sys<OwnedFd> {
    match store.root.open_fd(path, flags | OFlags::NONBLOCK | OFlags::NOCTTY, 0) {
        Ok(fd) => {
            sys::fcntl_setfl(&fd, OFlags::empty())?;
            Ok(fd)
        }
        // Only a regular file has leases, and waiting for one is bounded by the kernel.
        Err(Errno::WOULDBLOCK) => store.root.open_fd(path, flags, 0),
        Err(errno) => Err(errno),
    }
}

/// Opens a file that belongs to the daemon although its mode forbids it: an owner may always grant
/// itself the right, so the file's 0444 is for the kernel above the daemon to enforce.
///
/// A crash between the two chmods leaves the file with `u+rw` added. Both change its ctime.
fn open_own(store: &DirStore, path: &Path, flags: OFlags) -> Sys<OwnedFd> {
    let fd = store.root.open_fd(path, OFlags::PATH, 0)?;
    let _held = store.modes();
    let stat = stat_fd(&fd)?;
    require_regular(&stat)?;
    if stat.stx_uid != rustix::process::geteuid().as_raw() {
        return Err(Errno::ACCESS);
    }
    let mode = u32::from(stat.stx_mode) & 0o7777;
    chmod_fd(fd.as_fd(), mode | 0o600)?;
    let opened = sys::open(proc_path(fd.as_fd()), flags | OFlags::CLOEXEC, Mode::empty());
    let restored = chmod_fd(fd.as_fd(), mode);
    let opened = opened?;
    restored?;
    Ok(opened)
}

pub fn require_regular(stat: &Statx) -> Sys<()> {
    match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Errno::ISDIR),
        FileType::Symlink => Err(Errno::LOOP),
        _ => Err(Errno::INVAL),
    }
}

/// Changes attributes, the owner first, since chown removes set-uid and set-gid bits; times last,
/// since nothing after them may touch the file.
pub fn set_attr(store: &DirStore, path: &Path, key: Option<FileKey>, set: &SetAttr) -> Sys<Attr> {
    let held = store.root.hold(&store.root.place(path)?, key)?;
    if set.uid.is_some() || set.gid.is_some() {
        let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
        sys::chownat(&held, "", uid, gid, AtFlags::EMPTY_PATH)?;
    }
    if let Some(mode) = set.mode {
        let _one = store.modes();
        chmod(held.as_fd(), mode & 0o7777)?;
    }
    if set.atime.is_some() || set.mtime.is_some() {
        set_times(held.as_fd(), &times(set.atime, set.mtime))?;
    }
    stat_fd(&held).map(|stat| store.root.attr(&stat))
}

/// Sets the times of the object that an O_PATH descriptor holds. Linux before 5.8 needs a path for
/// that.
fn set_times(held: BorrowedFd<'_>, times: &Timestamps) -> Sys<()> {
    match sys::utimensat(held, "", times, AtFlags::EMPTY_PATH) {
        Err(Errno::INVAL | Errno::NOENT) => {
            sys::utimensat(sys::CWD, proc_path(held), times, AtFlags::empty())
        }
        done => done,
    }
}

/// Changes attributes through a descriptor, for a file that may have lost its name.
pub fn set_attr_fd(fd: BorrowedFd<'_>, set: &SetAttr) -> Sys<()> {
    if set.uid.is_some() || set.gid.is_some() {
        sys::fchown(fd, set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw))?;
    }
    if let Some(mode) = set.mode {
        sys::fchmod(fd, Mode::from_raw_mode(mode & 0o7777))?;
    }
    if set.atime.is_some() || set.mtime.is_some() {
        sys::futimens(fd, &times(set.atime, set.mtime))?;
    }
    Ok(())
}

pub fn times(atime: Option<SetTime>, mtime: Option<SetTime>) -> Timestamps {
    let spec = |time: Option<SetTime>| match time {
        None => Timespec { tv_sec: 0, tv_nsec: sys::UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: sys::UTIME_NOW },
        Some(SetTime::At(Timestamp { sec, nsec })) => {
            Timespec { tv_sec: sec, tv_nsec: nsec.into() }
        }
    };
    Timestamps { last_access: spec(atime), last_modification: spec(mtime) }
}

/// chmod of the object that an O_PATH descriptor holds; a link's mode cannot be changed
/// (EOPNOTSUPP).
fn chmod(held: BorrowedFd<'_>, mode: u32) -> Sys<()> {
    let link = FileType::from_raw_mode(stat_fd(held)?.stx_mode.into()) == FileType::Symlink;
    if link { Err(Errno::OPNOTSUPP) } else { chmod_fd(held, mode) }
}

/// chmod of the object that `fd` holds, O_PATH or not; never a link.
pub fn chmod_fd(fd: BorrowedFd<'_>, mode: u32) -> Sys<()> {
    sys::chmod(proc_path(fd), Mode::from_raw_mode(mode))
}

/// A name for the object that a descriptor holds; the kernel follows it to the object, not to a
/// name.
pub fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}
