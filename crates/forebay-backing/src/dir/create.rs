//! The creation of objects that belong to the caller although the daemon makes them.
//!
//! Group and mode are right from the start: the creating thread takes the caller's group and umask
//! for the one call, so the file system itself lets a set-gid parent or a default ACL win. The user
//! is changed afterwards, because a thread with another user would lose root's right to search
//! directories. A crash in between leaves an empty object that belongs to root.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self as sys, AtFlags, FileType, Mode, OFlags, Statx, Uid};
use rustix::io::Errno;

use super::own::chmod_fd;
use super::root::{Place, stat_fd};
use super::{DirStore, Sys};
use crate::fd::leave_reserve;
use crate::{Attr, FileKind, New};

/// The kind of object to create, besides an open regular file.
pub enum What<'a> {
    Dir,
    Node(FileKind, u64),
    Symlink(&'a OsStr),
}

pub fn file(store: &DirStore, path: &Path, new: &New) -> Sys<(OwnedFd, Statx)> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let fd = {
        let (_group, umask) = (Group::take(new.gid), Umask::take(new.umask));
        store.root.open_fd(path, flags, umask.mode(new))?
    };
    let settled = leave_reserve(fd).and_then(|fd| {
        let stat = stat_fd(&fd).and_then(|stat| settle(fd.as_fd(), stat, new))?;
        Ok((fd, stat))
    });
    match settled {
        Ok(made) => Ok(made),
        Err(errno) => {
            let place = store.root.place(path)?;
            undo(&place, AtFlags::empty());
            Err(errno)
        }
    }
}

pub fn node(store: &DirStore, path: &Path, what: What<'_>, new: &New) -> Sys<Attr> {
    let place = store.root.place(path)?;
    make(&place, &what, new)?;
    match settle_name(&place, &what, new) {
        Ok(stat) => Ok(store.root.attr(&stat)),
        Err(errno) => {
            let dir = matches!(what, What::Dir);
            undo(&place, if dir { AtFlags::REMOVEDIR } else { AtFlags::empty() });
            Err(errno)
        }
    }
}

fn make(place: &Place<'_>, what: &What<'_>, new: &New) -> Sys<()> {
    let (_group, umask) = (Group::take(new.gid), Umask::take(new.umask));
    let (dir, name) = (place.dir(), place.name());
    let mode = Mode::from_raw_mode(umask.mode(new));
    match *what {
        What::Dir => sys::mkdirat(dir, name, mode),
        What::Node(kind, rdev) => sys::mknodat(dir, name, node_type(kind)?, mode, rdev),
        What::Symlink(target) => sys::symlinkat(target, dir, name),
    }
}

fn node_type(kind: FileKind) -> Sys<FileType> {
    match kind {
        FileKind::File => Ok(FileType::RegularFile),
        FileKind::Fifo => Ok(FileType::Fifo),
        FileKind::Socket => Ok(FileType::Socket),
        FileKind::Char => Ok(FileType::CharacterDevice),
        FileKind::Block => Ok(FileType::BlockDevice),
        FileKind::Dir | FileKind::Symlink => Err(Errno::INVAL),
    }
}

/// Removes the object, best effort: the caller reports why the object could not be made right; an
/// object that stays is empty.
fn undo(place: &Place<'_>, flags: AtFlags) {
    let _ = sys::unlinkat(place.dir(), place.name(), flags);
}

/// As [`settle`] for an object known by name only. Most objects need nothing; the others are pinned
/// first, and must still be the fresh ones.
fn settle_name(place: &Place<'_>, what: &What<'_>, new: &New) -> Sys<Statx> {
    let stat = place.stat()?;
    let symlink = matches!(what, What::Symlink(_));
    let mode = if symlink { mode(&stat) } else { wanted_mode(&stat, new) };
    if mode == self::mode(&stat) && new_owner(&stat, new).is_none() {
        return Ok(stat);
    }
    let fd = place.pin()?;
    let stat = stat_fd(&fd)?;
    require_fresh(&stat)?;
    if symlink {
        give(fd.as_fd(), &stat, new)?;
        return stat_fd(&fd);
    }
    settle(fd.as_fd(), stat, new)
}

/// Fails unless the object is fresh. A program with direct access to the tree may have replaced the
/// name by a hard link to another file before it was pinned; that file must not be given away.
fn require_fresh(stat: &Statx) -> Sys<()> {
    let dir = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory;
    let mine = stat.stx_uid == rustix::process::geteuid().as_raw();
    if mine && (dir || stat.stx_nlink == 1) { Ok(()) } else { Err(Errno::STALE) }
}

/// Gives a fresh object its owner, and the mode bits that chown removed.
fn settle(fd: BorrowedFd<'_>, stat: Statx, new: &New) -> Sys<Statx> {
    let want = wanted_mode(&stat, new);
    let given = give(fd, &stat, new)?;
    let strips = given && want & 0o6000 != 0;
    if want != mode(&stat) || strips {
        chmod_fd(fd, want)?;
    } else if !given {
        return Ok(stat);
    }
    stat_fd(fd)
}

/// The mode that umask and ACL left, plus the bits that the kernel removed because of the daemon. A
/// set-gid bit that a directory inherited stays.
fn wanted_mode(stat: &Statx, new: &New) -> u32 {
    mode(stat) | new.mode & 0o7000
}

fn mode(stat: &Statx) -> u32 {
    u32::from(stat.stx_mode) & 0o7777
}

fn new_owner(stat: &Statx, new: &New) -> Option<u32> {
    (stat.stx_uid != new.uid && is_root()).then_some(new.uid)
}

/// Changes the owner; returns whether that was done. A file system without owners (FAT) or that
/// maps root to nobody (NFS) answers EPERM to root: then the object stays as it was made, as for a
/// local program.
fn give(fd: BorrowedFd<'_>, stat: &Statx, new: &New) -> Sys<bool> {
    let Some(uid) = new_owner(stat, new) else { return Ok(false) };
    match sys::chownat(fd, "", Some(Uid::from_raw(uid)), None, AtFlags::EMPTY_PATH) {
        Ok(()) => Ok(true),
        Err(Errno::PERM | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The calling thread's file-system group, changed for the life of this value.
struct Group {
    before: Option<u32>,
}

impl Group {
    fn take(gid: u32) -> Group {
        if gid == rustix::process::getegid().as_raw() || !is_root() {
            return Group { before: None };
        }
        Group { before: Some(set_group(gid)) }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(gid) = self.before {
            set_group(gid);
        }
    }
}

/// Sets the group of this thread's file operations and returns the earlier one.
fn set_group(gid: u32) -> u32 {
    // SAFETY: changes the calling thread's credentials only; touches no memory.
    unsafe { libc::setfsgid(gid) }.cast_unsigned()
}

/// The calling thread's umask, changed for the life of this value.
struct Umask {
    /// The thread's own umask; `None` where a thread cannot have one.
    own: Option<libc::mode_t>,
    is_changed: bool,
}

impl Umask {
    fn take(umask: u32) -> Umask {
        thread_local! {
            static OWN: Option<libc::mode_t> = own_umask();
        }
        let own = OWN.with(|own| *own);
        let is_changed = own.is_some_and(|own| own != umask & 0o777);
        if is_changed {
            set_umask(umask);
        }
        Umask { own, is_changed }
    }

    /// The mode to create with.
    fn mode(&self, new: &New) -> u32 {
        let taken = if self.own.is_some() { 0 } else { new.umask };
        new.mode & 0o7777 & !taken
    }
}

impl Drop for Umask {
    fn drop(&mut self) {
        if let (Some(own), true) = (self.own, self.is_changed) {
            set_umask(own);
        }
    }
}

/// Gives the thread a umask of its own, and returns it. Only this file changes it.
fn own_umask() -> Option<libc::mode_t> {
    // SAFETY: from now on the thread has a working directory and a umask of its own, which no other
    // code relies on; touches no memory.
    let is_own = unsafe { libc::unshare(libc::CLONE_FS) } == 0;
    is_own.then(|| {
        let own = set_umask(0);
        set_umask(own);
        own
    })
}

/// Sets the umask and returns the earlier one.
fn set_umask(umask: u32) -> libc::mode_t {
    // SAFETY: changes a number in the kernel; touches no memory.
    unsafe { libc::umask(umask & 0o777) }
}
