//! Mounting: a file system is prepared where no process sees it, and appears at its place in one
//! step.
//!
//! - M1: a mount at a place is `nosuid` and `nodev` from the first moment.
//! - M2: a mount is known as forebay's by its device, or by a source that no other mount has; not
//!   by its path.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use forebay_base::mounts::{self, Mount};
use forebay_base::way::{self, Demand};
use forebay_base::{Error, Result};
use rustix::fs;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use super::{Owner, failed, usage_error};

/// A setting of a file system, for the kernel.
pub(super) enum Setting {
    Flag(&'static str),
    Value(&'static str, String),
}

/// A file system that is mounted nowhere yet; if this is dropped before it is shown, the file
/// system is gone.
pub(super) fn system(kind: &str, source: &str, settings: &[Setting]) -> Result<OwnedFd> {
    let what = format!("mounting {source} ({kind})");
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed(&what))?;
    let configure = || {
        fsconfig_set_string(context.as_fd(), "source", source)?;
        for setting in settings {
            match setting {
                Setting::Flag(key) => fsconfig_set_flag(context.as_fd(), *key)?,
                Setting::Value(key, value) => {
                    fsconfig_set_string(context.as_fd(), *key, value.as_str())?;
                }
            }
        }
        fsconfig_create(context.as_fd())?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    configure().map_err(|e: Errno| failed(format!("{what}{}", said(&context)))(e))
}

/// The kernel's messages about a mount that failed.
fn said(context: &OwnedFd) -> String {
    let Ok(context) = context.try_clone() else { return String::new() };
    let mut context = std::fs::File::from(context);
    let mut text = String::new();
    let mut line = [0u8; 1024];
    // Each call gives one message, after `e `, `w ` or `i `; there are 8 at most.
    for _ in 0..8 {
        match context.read(&mut line) {
            Ok(len) if len > 2 => {
                let line = String::from_utf8_lossy(&line[2..len]);
                text = format!("{text}: {}", line.trim());
            }
            _ => break,
        }
    }
    text
}

/// A second view of a directory, that is mounted nowhere yet.
pub(super) fn view_of(dir: BorrowedFd<'_>, at: &Path) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let view = open_tree(dir, "", flags).map_err(failed(at.display()))?;
    restrict(&view).map_err(failed(format_args!("{}: nosuid,nodev", at.display())))?;
    Ok(view)
}

/// M1 for a view. linux/mount.h: `mount_setattr`, since Linux 5.12.
fn restrict(view: &OwnedFd) -> std::io::Result<()> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    // set, clear, propagation, user namespace
    let attr: [u64; 4] = [u64::from(attributes.bits()), 0, 0, 0];
    // SAFETY: an open descriptor, an empty path that ends in NUL, and 32 bytes to read.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            view.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            attr.as_ptr(),
            size_of_val(&attr),
        )
    };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// The root directory of a mount.
pub(super) fn top(mount: &OwnedFd) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    fs::openat(mount, ".", flags, Mode::empty()).map_err(failed("the top of a new file system"))
}

/// Gives the owner a fresh directory.
pub(super) fn hand_over(top: &OwnedFd, owner: Owner, mode: u32) -> Result<()> {
    let what = "handing a space over to its owner";
    let uid = rustix::process::Uid::from_raw(owner.uid);
    let gid = rustix::process::Gid::from_raw(owner.gid);
    fs::fchmod(top, Mode::from_raw_mode(mode)).map_err(failed(what))?;
    fs::fchown(top, Some(uid), Some(gid)).map_err(failed(what))
}

/// Only `e2fsck` needs `lost+found`, and makes it where it is missing.
pub(super) fn remove_lost_and_found(top: &OwnedFd) -> Result<()> {
    match fs::unlinkat(top, "lost+found", AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(failed("lost+found")(e)),
    }
}

/// Mounts `mount` at a place, whose last name is made if it is missing.
pub(super) fn show(mount: &OwnedFd, at: &Path) -> Result<()> {
    let point = point(at)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount.as_fd(), "", point.as_fd(), "", flags).map_err(failed(at.display()))
}

/// The directory to mount at.
fn point(at: &Path) -> Result<OwnedFd> {
    let end = way::walk(at, Demand::Fixed)?;
    match fs::mkdirat(&end.dir, &end.name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(failed(at.display())(e)),
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = fs::openat(&end.dir, &end.name, flags, Mode::empty());
    opened.map_err(failed(format_args!("{}: cannot be mounted at", at.display())))
}

/// Whether the name of a mount point exists.
pub(super) fn point_is_there(at: &Path) -> Result<bool> {
    Ok(way::walk(at, Demand::Fixed)?.found.is_some())
}

/// Removes a mount point that is empty; one that is not was used for something else since.
pub(super) fn remove_point(at: &Path) {
    if let Ok(end) = way::walk(at, Demand::Fixed) {
        let _ = fs::unlinkat(&end.dir, &end.name, AtFlags::REMOVEDIR);
    }
}

/// The sign by which forebay's mount is known (M2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sign {
    /// `major:minor` of a device that only this mount uses.
    Device(String),
    /// A tmpfs with this source.
    Source(String),
    /// A view of a directory of the tier, `major:minor` and how its path ends there.
    Directory { device: String, tail: String },
}

/// The mount that is found at a place.
pub(super) enum Seen {
    Nothing,
    Ours(Mount),
    /// Another mount, with this source, covers forebay's.
    Covered(String),
    /// Another mount, with this source.
    Other(String),
}

pub(super) fn seen(at: &Path, sign: Option<&Sign>) -> Result<Seen> {
    let table = "/proc/self/mountinfo";
    let mounts = mounts::read().map_err(failed(table))?;
    let is_ours = |mount: &Mount| sign.is_some_and(|sign| sign.fits(mount));
    let Some(top) = mounts::at(&mounts, at) else { return Ok(Seen::Nothing) };
    let source = top.source.display().to_string();
    Ok(match mounts.iter().any(|mount| mount.path == *at && is_ours(mount)) {
        true if is_ours(top) => Seen::Ours(top.clone()),
        true => Seen::Covered(source),
        false => Seen::Other(source),
    })
}

impl Sign {
    fn fits(&self, mount: &Mount) -> bool {
        match self {
            Sign::Device(device) => mount.device == *device,
            Sign::Source(source) => mount.file_system == "tmpfs" && mount.source == **source,
            Sign::Directory { device, tail } => {
                mount.device == *device && mount.root.ends_with(tail)
            }
        }
    }
}

/// The error for another mount where a space should be.
pub(super) fn occupied(at: &Path, source: &str) -> Error {
    usage_error(format!(
        "{}: {source} is mounted there: choose another place, or unmount it",
        at.display()
    ))
}
