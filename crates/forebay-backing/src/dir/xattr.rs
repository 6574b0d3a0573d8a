//! Extended attributes, through the descriptor of the object itself: the l*xattr calls take only
//! paths, whose links the kernel would follow on the way.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use rustix::fs::{self as sys, OFlags, XattrFlags};
use rustix::io::Errno;

use super::Sys;
use super::own::proc_path;
use super::root::{Place, Root};
use crate::{FileKey, XattrMode};

/// Most values and lists fit here; the retry takes the kernel's limit of both (xattr(7)).
const USUAL: usize = 512;
const LIMIT: usize = 65536;

pub fn get(root: &Root, path: &Path, name: &OsStr) -> Sys<Vec<u8>> {
    with_object(root, path, None, |object| fetch(|buf| sys::getxattr(object, name, buf)))
}

/// The value from the object that an O_PATH descriptor holds.
pub fn get_held(held: &OwnedFd, name: &OsStr) -> Sys<Vec<u8>> {
    let object = proc_path(held.as_fd());
    fetch(|buf| sys::getxattr(&object, name, buf))
}

pub fn list(root: &Root, path: &Path) -> Sys<Vec<OsString>> {
    with_object(root, path, None, |object| fetch(|buf| sys::listxattr(object, buf))).map(names)
}

/// The attributes of a name in an open directory, in one call: the kernel follows the descriptor to the
/// directory, and no link after it.
pub fn list_at(place: &Place<'_>) -> Sys<Vec<OsString>> {
    let at = Path::new(&proc_path(place.dir())).join(place.name());
    fetch(|buf| sys::llistxattr(&at, buf)).map(names)
}

fn names(bytes: Vec<u8>) -> Vec<OsString> {
    let names = bytes.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| OsString::from_vec(name.to_vec())).collect()
}

pub fn set(
    root: &Root,
    path: &Path,
    key: Option<FileKey>,
    name: &OsStr,
    value: &[u8],
    mode: XattrMode,
) -> Sys<()> {
    let flags = match mode {
        XattrMode::Any => XattrFlags::empty(),
        XattrMode::Create => XattrFlags::CREATE,
        XattrMode::Replace => XattrFlags::REPLACE,
    };
    with_object(root, path, key, |object| sys::setxattr(object, name, value, flags))
}

pub fn remove(root: &Root, path: &Path, key: Option<FileKey>, name: &OsStr) -> Sys<()> {
    with_object(root, path, key, |object| sys::removexattr(object, name))
}

fn with_object<T>(
    root: &Root,
    path: &Path,
    key: Option<FileKey>,
    work: impl FnOnce(&str) -> Sys<T>,
) -> Sys<T> {
    let fd = root.open_fd(path, OFlags::PATH, 0)?;
    root.require(&fd, key)?;
    work(&proc_path(fd.as_fd()))
}

fn fetch(call: impl Fn(&mut [u8]) -> Sys<usize>) -> Sys<Vec<u8>> {
    let mut buf = vec![0; USUAL];
    let len = match call(&mut buf) {
        Err(Errno::RANGE) => {
            buf.resize(LIMIT, 0);
            call(&mut buf)?
        }
        done => done?,
    };
    buf.truncate(len);
    Ok(buf)
}
