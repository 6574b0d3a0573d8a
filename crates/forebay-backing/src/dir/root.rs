//! Names below the root: the one place where a path becomes a descriptor.
//!
//! A path of one component needs no resolution: the kernel is given the root and the name. A longer
//! path is resolved by `openat2` with `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`, or component by
//! component where the kernel (before 5.6) or a sandbox does not offer that call.
//!
//! A file system that is mounted below the root is served with it, unless it shows the kernel's state
//! (see [`magic::of_kernel`]): `/proc` would be open to all with the daemon's rights.

use std::ffi::OsStr;
use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use forebay_base::magic;
use rustix::fs::{self as sys, AtFlags, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::Errno;

use super::parents::Parents;
use super::{Sys, attr};
use crate::{Attr, Error, FileKey, Kind, Result};

/// The opened root directory and its constant properties.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    path: PathBuf,
    device: (u32, u32),
    resolver: Resolver,
    parents: Parents,
    /// The kind of file system; 0 if it is not known.
    magic: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resolver {
    Openat2,
    Walk,
}

/// A name in an open directory. The root itself is `.` in the root.
pub struct Place<'a> {
    dir: Dir<'a>,
    name: &'a OsStr,
}

enum Dir<'a> {
    Root(BorrowedFd<'a>),
    Opened(Arc<OwnedFd>),
}

impl Root {
    pub fn open(path: &Path) -> Result<Root> {
        let context = || format!("open backing store {}", path.display());
        let canonical = path.canonicalize().map_err(|e| Error::io(e, context()))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = sys::open(&canonical, flags, Mode::empty())
            .map_err(|e| Error::storage(e.raw_os_error(), context()))?;
        Root::of(fd, canonical)
    }

    /// The root at an opened directory; `path` is its path, without links.
    pub fn of(fd: OwnedFd, path: PathBuf) -> Result<Root> {
        let context = || format!("open backing store {}", path.display());
        if let Some(name) = magic::of_kernel(&fd) {
            let why = format!("{}: this is {name}, where the kernel keeps no files", context());
            return Err(Error::new(Kind::Usage, why));
        }
        let stat = stat_fd(&fd).map_err(|e| Error::storage(e.raw_os_error(), context()))?;
        let device = attr::device(&stat);
        let resolver = probe(&fd);
        let magic = sys::fstatfs(&fd).map_or(0, |statfs| magic::of(&statfs));
        let parents = Parents::default();
        Ok(Root { fd, path, device, resolver, parents, magic })
    }

    #[cfg(test)]
    pub fn resolve_by_walking(&mut self) {
        self.resolver = Resolver::Walk;
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn magic(&self) -> u32 {
        self.magic
    }

    pub fn attr(&self, stat: &Statx) -> Attr {
        attr::attr(stat, self.device)
    }

    /// Holds the object at a place, if it has this key.
    pub fn hold(&self, place: &Place<'_>, key: Option<FileKey>) -> Sys<OwnedFd> {
        let held = place.pin()?;
        self.require(&held, key)?;
        Ok(held)
    }

    /// Fails with ESTALE if the descriptor's object does not have this key.
    pub fn require(&self, held: &OwnedFd, key: Option<FileKey>) -> Sys<()> {
        let Some(key) = key else { return Ok(()) };
        if self.attr(&stat_fd(held)?).key == key { Ok(()) } else { Err(Errno::STALE) }
    }

    /// Opens `path`, never a link in it or at its end.
    pub fn open_fd(&self, path: &Path, flags: OFlags, mode: u32) -> Sys<OwnedFd> {
        check(path)?;
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode);
        let opened = match self.resolver {
            Resolver::Openat2 => open_beneath(self.fd.as_fd(), path, flags, mode),
            Resolver::Walk => self.walk(path, flags, mode),
        };
        if matches!(opened, Err(Errno::LOOP | Errno::NOTDIR)) {
            // Perhaps the parent directory was replaced: a question about the path must not be answered
            // with the old directory.
            path.parent().into_iter().for_each(|parent| self.parents.forget(parent));
        }
        opened
    }

    fn walk(&self, path: &Path, flags: OFlags, mode: Mode) -> Sys<OwnedFd> {
        let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut at: Option<OwnedFd> = None;
        let mut rest = path.components().peekable();
        while let Some(component) = rest.next() {
            let dir = at.as_ref().map_or(self.fd.as_fd(), |fd| fd.as_fd());
            let (flags, mode) =
                if rest.peek().is_some() { (step, Mode::empty()) } else { (flags, mode) };
            at = Some(require_stored(sys::openat(dir, component.as_os_str(), flags, mode)?)?);
        }
        at.ok_or(Errno::NOENT)
    }

    /// The directory that holds `path`'s last component, and that component's name.
    pub fn place<'a>(&'a self, path: &'a Path) -> Sys<Place<'a>> {
        check(path)?;
        let root = Dir::Root(self.fd.as_fd());
        let Some(name) = path.file_name() else {
            return Ok(Place { dir: root, name: OsStr::new(".") });
        };
        let parent = path.parent().unwrap_or(Path::new(""));
        if parent.as_os_str().is_empty() {
            return Ok(Place { dir: root, name });
        }
        let open = || self.open_fd(parent, OFlags::PATH | OFlags::DIRECTORY, 0);
        Ok(Place { dir: Dir::Opened(self.parents.get(parent, open)?), name })
    }

    /// Notes that other machines move directories, too.
    pub fn trust_nobody(&mut self) {
        self.parents.trust_nobody();
    }

    /// Called when the directory that may be at `path` was moved or removed.
    pub fn moved(&self, path: &Path) {
        self.parents.forget(path);
    }

    /// Runs one operation and adds the operation and the path to its error.
    pub fn run<T>(&self, what: &str, path: &Path, work: impl FnOnce() -> Sys<T>) -> Result<T> {
        work().map_err(|errno| {
            let context = format!("{what} {}", self.show(path));
            // If the parent directory exists, the root does, too.
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            match errno {
                Errno::NOENT if parent.is_some_and(|parent| self.parents.knows(parent)) => {
                    Error::storage(errno.raw_os_error(), context)
                }
                _ => self.error(errno, context),
            }
        })
    }

    pub fn run2<T>(
        &self,
        what: &str,
        from: &Path,
        to: &Path,
        work: impl FnOnce() -> Sys<T>,
    ) -> Result<T> {
        work().map_err(|errno| {
            self.error(errno, format!("{what} {} to {}", self.show(from), self.show(to)))
        })
    }

    fn show(&self, path: &Path) -> impl Display {
        let shown = if path.as_os_str().is_empty() { &self.path } else { path };
        shown.display().to_string()
    }

    /// D3: ENOENT or ESTALE below a root that is itself gone says nothing about the file.
    pub fn error(&self, errno: Errno, context: String) -> Error {
        let gone = match errno {
            Errno::NOENT => stat_fd(&self.fd).is_ok_and(|root| root.stx_nlink == 0),
            Errno::STALE => stat_fd(&self.fd).is_err(),
            _ => false,
        };
        if gone {
            let source = std::io::Error::from_raw_os_error(errno.raw_os_error());
            return Error::new(Kind::Unavailable, format!("{context}: the backing store is gone"))
                .with_source(source);
        }
        Error::storage(errno.raw_os_error(), context)
    }

    /// Opens a directory for listing or syncing.
    pub fn open_dir(&self, path: &Path) -> Sys<OwnedFd> {
        self.open_fd(path, OFlags::RDONLY | OFlags::DIRECTORY, 0)
    }
}

impl Place<'_> {
    pub fn dir(&self) -> BorrowedFd<'_> {
        match &self.dir {
            Dir::Root(fd) => *fd,
            Dir::Opened(fd) => fd.as_fd(),
        }
    }

    pub fn name(&self) -> &OsStr {
        self.name
    }

    pub fn stat(&self) -> Sys<Statx> {
        statx(self.dir(), self.name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Holds the object itself, link or not, whatever happens to its name.
    pub fn pin(&self) -> Sys<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        sys::openat(self.dir(), self.name, flags, Mode::empty())
    }
}

pub fn stat_fd(fd: impl AsFd) -> Sys<Statx> {
    statx(fd.as_fd(), OsStr::new(""), AtFlags::EMPTY_PATH)
}

fn statx(dir: BorrowedFd<'_>, name: &OsStr, flags: AtFlags) -> Sys<Statx> {
    sys::statx(dir, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)
}

/// The trait promises plain relative paths; any other path must not reach the kernel (D1).
fn check(path: &Path) -> Sys<()> {
    let plain = path.components().all(|c| matches!(c, Component::Normal(_)));
    if plain { Ok(()) } else { Err(Errno::INVAL) }
}

fn probe(root: &OwnedFd) -> Resolver {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match open_beneath(root.as_fd(), Path::new("."), flags, Mode::empty()) {
        // Some container sandboxes answer EPERM to a call that they do not know.
        Err(Errno::NOSYS | Errno::PERM) => Resolver::Walk,
        _ => Resolver::Openat2,
    }
}

fn open_beneath(root: BorrowedFd<'_>, path: &Path, flags: OFlags, mode: Mode) -> Sys<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match open_by(root, path, flags, mode, resolve | ResolveFlags::NO_XDEV) {
        // A mount is on the way.
        Err(Errno::XDEV) => open_by(root, path, flags, mode, resolve).and_then(require_stored),
        done => done,
    }
}

fn open_by(
    root: BorrowedFd<'_>,
    path: &Path,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Sys<OwnedFd> {
    loop {
        match sys::openat2(root, path, flags, mode, resolve) {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

fn require_stored(fd: OwnedFd) -> Sys<OwnedFd> {
    if magic::of_kernel(&fd).is_none() { Ok(fd) } else { Err(Errno::ACCESS) }
}
