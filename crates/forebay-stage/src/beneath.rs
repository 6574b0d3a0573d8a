//! Directories are opened beneath a root, and everything else by its name in one of them (T2).
//!
//! On the way to the top of a transfer, links are followed as long as they stay beneath the root; below the
//! top none is followed.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_base::{Error, Result};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::spec::Place;

/// The limit of a path in one system call is 4,096 bytes; longer paths are walked in parts.
const PART_MAX: usize = 4000;

/// The most tries after EAGAIN: a rename was under way while the kernel resolved `..` in a link.
const AGAIN_MAX: usize = 64;

/// As many links as the kernel follows before it says ELOOP.
const LINKS_MAX: usize = 40;

const DIR: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Followed if they stay beneath the directory.
    Beneath,
    Never,
}

/// The directories that all paths of a transfer are relative to.
#[derive(Debug)]
pub struct Base {
    pub src: OwnedFd,
    pub dst: OwnedFd,
}

/// A directory of the plan, by its paths: there are not enough descriptors to keep all open.
#[derive(Debug)]
pub struct Node {
    pub from: PathBuf,
    pub to: PathBuf,
    pub state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Made by this run: it holds only files that this run put there.
    Fresh,
    Used,
}

/// The opened directories of a node.
#[derive(Debug)]
pub struct Pair {
    pub src: OwnedFd,
    pub dst: OwnedFd,
}

impl Base {
    pub fn open(&self, node: &Node) -> std::result::Result<Pair, (Side, Errno)> {
        let src = open_dir(self.src.as_fd(), &node.from).map_err(|e| (Side::Source, e))?;
        let dst = open_dir(self.dst.as_fd(), &node.to).map_err(|e| (Side::Destination, e))?;
        Ok(Pair { src, dst })
    }
}

/// The side on which an error occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Source,
    Destination,
}

/// The open directory that this thread used last: files come in the order of directories.
#[derive(Default)]
pub struct Near(Option<(Arc<Node>, Arc<Pair>)>);

impl Near {
    pub fn pair(
        &mut self,
        base: &Base,
        node: &Arc<Node>,
    ) -> std::result::Result<Arc<Pair>, (Side, Errno)> {
        match &self.0 {
            Some((last, pair)) if Arc::ptr_eq(last, node) => Ok(pair.clone()),
            _ => {
                let pair = Arc::new(base.open(node)?);
                self.0 = Some((node.clone(), pair.clone()));
                Ok(pair)
            }
        }
    }
}

/// Opens the root of a place.
pub fn root(place: &Place) -> Result<OwnedFd> {
    let root = &place.root.0;
    fs::open(root, DIR, Mode::empty()).map_err(|e| Error::io(e.into(), root.display().to_string()))
}

/// Opens a directory below the top of a transfer, by a path of any length.
pub fn open_dir(base: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    let mut at: Option<OwnedFd> = None;
    for part in parts(path) {
        let from = at.as_ref().map_or(base, AsFd::as_fd);
        at = Some(open(from, &part, DIR, Links::Never)?);
    }
    match at {
        Some(fd) => Ok(fd),
        None => fs::openat(base, ".", DIR, Mode::empty()),
    }
}

/// Opens the directory at the top of a transfer.
pub fn open_top(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<OwnedFd> {
    match path.as_os_str().is_empty() {
        true => fs::openat(root, ".", DIR, Mode::empty()),
        false => open(root, path, DIR, Links::Beneath),
    }
}

/// Opens a path, which can never lead out of `dir`. A new file is accessible to its owner alone.
pub fn open(
    dir: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    links: Links,
) -> rustix::io::Result<OwnedFd> {
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    if links == Links::Never {
        resolve |= ResolveFlags::NO_SYMLINKS;
    }
    // NONBLOCK: an open does not wait for the other end of a FIFO. O_PATH opens no file and allows no such flags.
    let more = OFlags::NOCTTY | OFlags::NONBLOCK;
    let more = if flags.contains(OFlags::PATH) { OFlags::empty() } else { more };
    let flags = flags | OFlags::CLOEXEC | more;
    let mode = match flags.contains(OFlags::CREATE) {
        true => Mode::RUSR | Mode::WUSR,
        false => Mode::empty(),
    };
    let mut tries = 0;
    loop {
        match fs::openat2(dir, path, flags, mode, resolve) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if tries < AGAIN_MAX => tries += 1,
            done => return done,
        }
    }
}

/// Opens a name in a directory; never through a link.
pub fn open_name(dir: &impl AsFd, name: &OsStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    open(dir.as_fd(), Path::new(name), flags | OFlags::NOFOLLOW, Links::Never)
}

pub fn look(dir: &impl AsFd, name: &OsStr) -> rustix::io::Result<Stat> {
    fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// The `stat` of a name, or `None` if it does not exist.
pub fn find(dir: &impl AsFd, name: &OsStr) -> rustix::io::Result<Option<Stat>> {
    match look(dir, name) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Changes the mode of a file by its name, even if its owner may not open it; never through a link.
pub fn set_mode(dir: &impl AsFd, name: &OsStr, mode: Mode) -> rustix::io::Result<()> {
    let fd = open_name(dir, name, OFlags::PATH)?;
    if FileType::from_raw_mode(fs::fstat(&fd)?.st_mode) == FileType::Symlink {
        return Err(Errno::LOOP);
    }
    fs::chmod(format!("/proc/self/fd/{}", fd.as_raw_fd()), mode)
}

/// The path to which a link at the top of a transfer leads.
pub fn resolve_top(root: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        let parent = path.parent().unwrap_or(Path::new("")).to_path_buf();
        let Some(name) = path.file_name() else { return Ok(path) };
        let dir = open_top(root, &parent)?;
        match fs::readlinkat(&dir, name, Vec::new()) {
            Ok(target) => path = parent.join(OsStr::from_bytes(target.as_bytes())),
            Err(Errno::INVAL | Errno::NOENT) => return Ok(path),
            Err(e) => return Err(e),
        }
        if path.is_absolute() {
            return Err(Errno::XDEV);
        }
    }
    Err(Errno::LOOP)
}

fn parts(path: &Path) -> Vec<PathBuf> {
    let mut parts: Vec<PathBuf> = Vec::new();
    for name in path {
        match parts.last_mut() {
            Some(part) if part.as_os_str().len() + name.len() < PART_MAX => part.push(name),
            _ => parts.push(name.into()),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_very_deep_directory_is_found_again() {
        let top = tempfile::tempdir().unwrap();
        let base = fs::open(top.path(), DIR, Mode::empty()).unwrap();
        let mut at = fs::openat(&base, ".", DIR, Mode::empty()).unwrap();
        let mut path = PathBuf::new();
        let name = "n".repeat(250);
        for _ in 0..40 {
            fs::mkdirat(&at, &name, Mode::RWXU).unwrap();
            at = fs::openat(&at, &name, DIR, Mode::empty()).unwrap();
            path.push(&name);
        }
        assert!(path.as_os_str().len() > 2 * PART_MAX);
        let found = open_dir(base.as_fd(), &path).unwrap();
        assert_eq!(fs::fstat(&found).unwrap().st_ino, fs::fstat(&at).unwrap().st_ino);
        crate::clean::remove_tree(&base, OsStr::new(&name)).unwrap();
        assert_eq!(std::fs::read_dir(top.path()).unwrap().count(), 0);
    }

    #[test]
    fn links_lead_nowhere_but_beneath() {
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir(top.path().join("in")).unwrap();
        std::fs::write(top.path().join("in/file"), "").unwrap();
        symlink("in", top.path().join("inner")).unwrap();
        symlink("/etc", top.path().join("outer")).unwrap();
        symlink("../..", top.path().join("in/up")).unwrap();
        symlink("in/file", top.path().join("name")).unwrap();
        let base = fs::open(top.path(), DIR, Mode::empty()).unwrap();
        let base = base.as_fd();
        assert!(open_top(base, Path::new("inner")).is_ok());
        assert_eq!(open_top(base, Path::new("outer")).unwrap_err(), Errno::XDEV);
        assert_eq!(open_top(base, Path::new("in/up")).unwrap_err(), Errno::XDEV);
        assert_eq!(open_dir(base, Path::new("inner")).unwrap_err(), Errno::LOOP);
        assert_eq!(resolve_top(base, Path::new("name")).unwrap(), Path::new("in/file"));
        assert_eq!(resolve_top(base, Path::new("outer")).unwrap_err(), Errno::XDEV);
    }
}
