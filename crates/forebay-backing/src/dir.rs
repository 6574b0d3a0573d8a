//! The directory store: a directory tree of the local kernel (disk, NFS, parallel file system).
//!
//! Invariants:
//! - D1: no call resolves a symbolic link or leaves the tree (see [`root`]).
//! - D2: an object that a call creates has the owner and mode asked for, or is removed again (see
//!   [`create`]).
//! - D3: if the tree's storage is gone, the error is `Unavailable`, never `ENOENT`: no caller may
//!   conclude that a file was deleted.
//!
//! `access_lock` is held across system calls of one file only.

pub(crate) mod attr;
mod create;
mod file;
pub(crate) mod own;
mod parents;
pub(crate) mod root;
mod sync;
mod xattr;

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::fd::Sys;
use crate::fd::leave_reserve;
use crate::{
    Access, Attr, BackingFile, BackingStore, DirEntry, FileKey, New, Pin, RenameMode, Result,
    SetAttr, StatFs, XattrMode,
};
use file::DirFile;
use forebay_base::lock::{Mutex, MutexGuard, Rank};
use root::Root;
use rustix::fs::{self as sys, AtFlags, RenameFlags};
use rustix::io::Errno;

/// Serves one directory as a backing store.
#[derive(Debug)]
pub struct DirStore {
    root: Arc<Root>,
    /// Held while a mode is changed, so that the temporary mode of [`own::open_own`] is not taken for
    /// the true one, and a newer mode is not overwritten.
    access_lock: Mutex<()>,
}

impl DirStore {
    /// Opens an existing directory; links in `root` itself are followed, once.
    pub fn open(root: &Path) -> Result<DirStore> {
        Ok(DirStore::with(Root::open(root)?))
    }

    /// A store on a directory that the caller has opened: `path` is its path, without links.
    pub fn of(dir: OwnedFd, path: PathBuf) -> Result<DirStore> {
        Ok(DirStore::with(Root::of(dir, path)?))
    }

    /// As [`DirStore::open`], where other machines move and make directories, too: none is remembered
    /// from one call to the next.
    pub fn open_shared(root: &Path) -> Result<DirStore> {
        let mut root = Root::open(root)?;
        root.trust_nobody();
        Ok(DirStore::with(root))
    }

    fn with(root: Root) -> DirStore {
        DirStore { root: Arc::new(root), access_lock: Mutex::new(Rank::Modes, ()) }
    }

    /// Takes the turn to change modes; the lock guards no data.
    fn modes(&self) -> MutexGuard<'_, ()> {
        self.access_lock.lock_anyway()
    }

    /// The canonical path of the root.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// The root as it was opened.
    pub fn dir(&self) -> Result<OwnedFd> {
        let root = Path::new("");
        self.root.run("open", root, || rustix::io::fcntl_dupfd_cloexec(self.root.fd(), 0))
    }

    fn file(&self, fd: OwnedFd, attr: &sys::Statx, path: &Path) -> Arc<DirFile> {
        Arc::new(DirFile::new(fd, attr::device(attr), self.root.clone(), path))
    }
}

impl BackingStore for DirStore {
    fn identity(&self) -> Result<String> {
        self.root.run("identity", Path::new(""), || {
            attr::identity(self.root.fd(), self.root.path()).map(|id| format!("dir:{id}"))
        })
    }

    fn stat(&self, path: &Path) -> Result<Attr> {
        self.root.run("stat", path, || {
            let place = self.root.place(path)?;
            place.stat().map(|stat| self.root.attr(&stat))
        })
    }

    fn stat_all(&self, path: &Path) -> Result<(Attr, Vec<OsString>)> {
        self.root.run("stat", path, || {
            let place = self.root.place(path)?;
            let stat = place.stat()?;
            let names = match xattr::list_at(&place) {
                Err(Errno::OPNOTSUPP) => Vec::new(),
                names => names?,
            };
            Ok((self.root.attr(&stat), names))
        })
    }

    fn lists_acls(&self) -> bool {
        attr::lists_acls(self.root.magic())
    }

    fn clocks_differ(&self) -> Duration {
        attr::clocks_differ(self.root.magic())
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn BackingFile>> {
        self.root.run("open", path, || {
            let fd = own::open(self, path, access)?;
            let stat = root::stat_fd(&fd)?;
            own::require_regular(&stat)?;
            Ok(self.file(fd, &stat, path) as _)
        })
    }

    fn create(&self, path: &Path, new: &New) -> Result<(Arc<dyn BackingFile>, Attr)> {
        self.root.run("create", path, || {
            let (fd, stat) = create::file(self, path, new)?;
            Ok((self.file(fd, &stat, path) as _, self.root.attr(&stat)))
        })
    }

    fn mkdir(&self, path: &Path, new: &New) -> Result<Attr> {
        self.root.run("mkdir", path, || create::node(self, path, create::What::Dir, new))
    }

    fn mknod(&self, path: &Path, new: &New, kind: crate::FileKind, rdev: u64) -> Result<Attr> {
        self.root
            .run("mknod", path, || create::node(self, path, create::What::Node(kind, rdev), new))
    }

    fn symlink(&self, path: &Path, target: &OsStr, new: &New) -> Result<Attr> {
        self.root
            .run("symlink", path, || create::node(self, path, create::What::Symlink(target), new))
    }

    fn link(&self, from: &Path, key: Option<FileKey>, to: &Path) -> Result<Attr> {
        self.root.run2("link", from, to, || {
            let (from, to) = (self.root.place(from)?, self.root.place(to)?);
            let held = self.root.hold(&from, key)?;
            // A new name for a symbolic link itself: following ends at the held object.
            let held_at = own::proc_path(held.as_fd());
            sys::linkat(sys::CWD, held_at, to.dir(), to.name(), AtFlags::SYMLINK_FOLLOW)?;
            to.stat().map(|stat| self.root.attr(&stat))
        })
    }

    fn read_link(&self, path: &Path) -> Result<PathBuf> {
        self.root.run("read link", path, || {
            let place = self.root.place(path)?;
            let target = sys::readlinkat(place.dir(), place.name(), Vec::with_capacity(256))?;
            Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
        })
    }

    fn pin(&self, path: &Path) -> Result<Option<Arc<dyn Pin>>> {
        let fd = self.root.run("pin", path, || leave_reserve(self.root.place(path)?.pin()?))?;
        Ok(Some(Arc::new(DirPin { fd, root: self.root.clone(), path: path.into() })))
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        self.root.run("unlink", path, || {
            let place = self.root.place(path)?;
            sys::unlinkat(place.dir(), place.name(), AtFlags::empty())
        })
    }

    fn rmdir(&self, path: &Path) -> Result<()> {
        self.root.run("rmdir", path, || {
            let place = self.root.place(path)?;
            let removed = sys::unlinkat(place.dir(), place.name(), AtFlags::REMOVEDIR);
            self.root.moved(path);
            removed
        })
    }

    fn rename(&self, from: &Path, to: &Path, mode: RenameMode) -> Result<()> {
        let flags = match mode {
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
        };
        self.root.run2("rename", from, to, || {
            let (a, b) = (self.root.place(from)?, self.root.place(to)?);
            let renamed = sys::renameat_with(a.dir(), a.name(), b.dir(), b.name(), flags);
            self.root.moved(from);
            self.root.moved(to);
            renamed
        })
    }

    fn set_attr(&self, path: &Path, key: Option<FileKey>, set: &SetAttr) -> Result<Attr> {
        self.root.run("set attributes of", path, || own::set_attr(self, path, key, set))
    }

    fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        self.root.run("list", path, || {
            let fd = self.root.open_dir(path)?;
            attr::entries(fd)
        })
    }

    fn xattr_get(&self, path: &Path, name: &OsStr) -> Result<Vec<u8>> {
        self.root.run("read xattr of", path, || xattr::get(&self.root, path, name))
    }

    fn xattr_set(
        &self,
        path: &Path,
        key: Option<FileKey>,
        name: &OsStr,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.root.run("set xattr of", path, || xattr::set(&self.root, path, key, name, value, mode))
    }

    fn xattr_list(&self, path: &Path) -> Result<Vec<OsString>> {
        self.root.run("list xattrs of", path, || xattr::list(&self.root, path))
    }

    fn xattr_remove(&self, path: &Path, key: Option<FileKey>, name: &OsStr) -> Result<()> {
        self.root.run("remove xattr of", path, || xattr::remove(&self.root, path, key, name))
    }

    fn statfs(&self) -> Result<StatFs> {
        self.root.run("statfs", Path::new(""), || attr::statfs(&self.root))
    }

    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.root.run("sync directory", path, || {
            let fd = self.root.open_dir(path)?;
            sys::fsync(&fd)
        })
    }

    fn sync_files(&self, files: &[Arc<dyn BackingFile>]) -> Result<()> {
        sync::files(files)
    }
}

/// A file held by an O_PATH descriptor.
struct DirPin {
    fd: std::os::fd::OwnedFd,
    root: Arc<Root>,
    path: PathBuf,
}

impl Pin for DirPin {
    fn open(&self, access: Access) -> Result<(Arc<dyn BackingFile>, Attr)> {
        self.root.run("open what was", &self.path, || {
            let stat = root::stat_fd(&self.fd)?;
            own::require_regular(&stat)?;
            let fd = own::open_held(&self.fd, access)?;
            let file = DirFile::new(fd, attr::device(&stat), self.root.clone(), &self.path);
            Ok((Arc::new(file) as _, self.root.attr(&stat)))
        })
    }

    fn xattr_get(&self, name: &OsStr) -> Result<Vec<u8>> {
        self.root.run("read xattr of what was", &self.path, || xattr::get_held(&self.fd, name))
    }
}

#[cfg(test)]
mod tests;
