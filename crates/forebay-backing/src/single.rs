//! One file or one block device as a backing store: a root directory that holds one file.
//!
//! Invariants:
//! - O1: the medium is the opened one, whatever happens to its name.
//! - O2: no other writer has a claim of the kernel on the medium (a device with a mounted file
//!   system is refused), and no other forebay. Other ways of writing are not prevented, and on a
//!   device not even noticed: a device has no time of last change.
//! - O3: the size is fixed, and so is the one name: a call that would change the tree gets EPERM.
//!
//! Each open has a descriptor of its own, since the kernel reports a write error once per
//! descriptor: one user's sync must not swallow another's error.

mod file;
mod identity;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{self as sys, FileType, FlockOperation, Mode, OFlags, SeekFrom, Statx};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::dir::attr;
use crate::dir::own;
use crate::dir::root::stat_fd;
use crate::fd::Sys;
use crate::lock;
use crate::{
    Access, Attr, BackingFile, BackingStore, DirEntry, Error, FileKey, FileKind, Kind, New,
    RenameMode, Result, SetAttr, Sizes, StatFs, Timestamp, XattrMode,
};
use file::SingleFile;

const ROOT: FileKey = FileKey { ino: 1, generation: 0 };

/// The inode number of the file. The generation tells one image from another.
const FILE_INO: u64 = 2;

const BLOCK: u32 = 4096;

/// Serves one regular file or block device.
#[derive(Debug)]
pub struct SingleStore {
    medium: Arc<Medium>,
    name: OsString,
    opened: Timestamp,
}

/// The opened file or device.
#[derive(Debug)]
struct Medium {
    fd: OwnedFd,
    path: PathBuf,
    kind: MediumKind,
    /// The size of a device, which has no size in its attributes.
    device_size: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MediumKind {
    File,
    Device,
}

/// The two objects that a path can name.
enum Spot {
    Root,
    File,
}

impl SingleStore {
    /// Whether this store can serve `path`; false if the path cannot be looked at.
    pub fn serves(path: &Path) -> bool {
        use std::os::unix::fs::FileTypeExt;
        std::fs::metadata(path).is_ok_and(|m| m.is_file() || m.file_type().is_block_device())
    }

    /// Opens a file or block device, following links, and claims it for as long as this lives.
    ///
    /// # Errors
    ///
    /// [`Kind::Usage`] if the device or file is claimed by something else: a mounted file system,
    /// an array, a swap area, another forebay.
    pub fn open(path: &Path, access: Access) -> Result<SingleStore> {
        let medium = Arc::new(Medium::open(path, access)?);
        let name = path.file_name().unwrap_or(OsStr::new("disk")).to_owned();
        Ok(SingleStore { medium, name, opened: now() })
    }

    /// The store with its file under another name. A tier that has cached the file knows it by that
    /// name, and device names change from boot to boot.
    pub fn named(self, name: &OsStr) -> SingleStore {
        SingleStore { name: name.to_owned(), ..self }
    }

    pub fn name(&self) -> &OsStr {
        &self.name
    }

    fn spot(&self, path: &Path) -> Sys<Spot> {
        if !path.components().all(|c| matches!(c, Component::Normal(_))) {
            return Err(Errno::INVAL);
        }
        let mut parts = path.components();
        match (parts.next(), parts.next()) {
            (None, _) => Ok(Spot::Root),
            (Some(first), below) if first.as_os_str() == self.name => match below {
                None => Ok(Spot::File),
                Some(_) => Err(Errno::NOTDIR),
            },
            _ => Err(Errno::NOENT),
        }
    }

    /// Does `work` on the file; for the root directory it fails with `root`.
    fn on_file<T>(
        &self,
        what: &str,
        path: &Path,
        root: Errno,
        work: impl FnOnce() -> Sys<T>,
    ) -> Result<T> {
        let done = self.spot(path).and_then(|spot| match spot {
            Spot::File => work(),
            Spot::Root => Err(root),
        });
        done.map_err(|errno| self.medium.error(errno, format!("{what} {}", path.display())))
    }

    /// Refuses to create `path`: no object can be made in this store.
    fn refuse_new<T>(&self, what: &str, path: &Path) -> Result<T> {
        let errno = match self.spot(path) {
            Ok(_) => Errno::EXIST,
            Err(Errno::NOENT) => Errno::PERM,
            Err(errno) => errno,
        };
        Err(self.medium.error(errno, format!("{what} {}", path.display())))
    }

    fn root_attr(&self) -> Sys<Attr> {
        let file = self.medium.attr()?;
        let at = self.opened;
        Ok(Attr {
            key: ROOT,
            kind: FileKind::Dir,
            // Readable for every user who may read the file; no object can be made in it.
            mode: 0o555,
            nlink: 2,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: at,
            mtime: at,
            ctime: at,
            btime: at,
            ..file
        })
    }

    fn attr_at(&self, path: &Path) -> Sys<Attr> {
        match self.spot(path)? {
            Spot::Root => self.root_attr(),
            Spot::File => self.medium.attr(),
        }
    }

    fn no_xattrs<T>(&self, what: &str, path: &Path) -> Result<T> {
        let errno = self.spot(path).err().unwrap_or(Errno::OPNOTSUPP);
        Err(self.medium.error(errno, format!("{what} xattr of {}", path.display())))
    }
}

impl Medium {
    fn open(path: &Path, access: Access) -> Result<Medium> {
        let context = || format!("open backing store {}", path.display());
        let fail = |errno: Errno| Error::storage(errno.raw_os_error(), context());
        // EXCL claims a block device; on a file it would mean something only together with CREAT.
        let flags = flags(access) | OFlags::EXCL | OFlags::NONBLOCK;
        let fd = match lock::past(Errno::BUSY, || sys::open(path, flags, Mode::empty())) {
            Err(Errno::BUSY) => return Err(claimed(path)),
            opened => opened.map_err(fail)?,
        };
        sys::fcntl_setfl(&fd, OFlags::empty()).map_err(fail)?;
        let kind = kind_of(&stat_fd(&fd).map_err(fail)?, path)?;
        let device_size = match kind {
            MediumKind::Device => sys::seek(&fd, SeekFrom::End(0)).map_err(fail)?,
            MediumKind::File => claim(&fd, path, access).map(|()| 0)?,
        };
        let path = path.canonicalize().map_err(|e| Error::io(e, context()))?;
        Ok(Medium { fd, path, kind, device_size })
    }

    /// Another descriptor of the same medium, with its own memory of write errors.
    fn reopen(&self, access: Access) -> Sys<OwnedFd> {
        use std::os::fd::AsFd;
        sys::open(own::proc_path(self.fd.as_fd()), flags(access), Mode::empty())
    }

    fn attr(&self) -> Sys<Attr> {
        let stat = stat_fd(&self.fd)?;
        let attr = attr::attr(&stat, attr::device(&stat));
        Ok(match self.kind {
            MediumKind::File => Attr {
                key: FileKey { ino: FILE_INO, generation: attr.key.generation },
                nlink: 1,
                ..attr
            },
            MediumKind::Device => self.device_attr(&attr),
        })
    }

    /// The times of a device node are the node's and change at boot: constants instead, so that the
    /// tier finds equal versions after a restart (O2).
    fn device_attr(&self, node: &Attr) -> Attr {
        let never = Timestamp::default();
        Attr {
            key: FileKey { ino: FILE_INO, generation: 0 },
            kind: FileKind::File,
            nlink: 1,
            rdev: 0,
            size: self.device_size,
            blocks: self.device_size / 512,
            blksize: BLOCK,
            atime: never,
            mtime: never,
            ctime: never,
            btime: never,
            ..*node
        }
    }

    /// The error of a medium that went away says nothing about its bytes.
    fn error(&self, errno: Errno, context: String) -> Error {
        match errno {
            Errno::NXIO | Errno::STALE => {
                let source = std::io::Error::from_raw_os_error(errno.raw_os_error());
                Error::new(Kind::Unavailable, format!("{context}: {} is gone", self.shown()))
                    .with_source(source)
            }
            _ => Error::storage(errno.raw_os_error(), context),
        }
    }

    fn shown(&self) -> impl Display {
        self.path.display()
    }
}

fn now() -> Timestamp {
    let now = clock_gettime(ClockId::Realtime);
    Timestamp { sec: now.tv_sec, nsec: u32::try_from(now.tv_nsec).unwrap_or(0) }
}

fn flags(access: Access) -> OFlags {
    let way = match access {
        Access::Read => OFlags::RDONLY,
        Access::ReadWrite => OFlags::RDWR,
    };
    way | OFlags::CLOEXEC | OFlags::NOCTTY
}

fn kind_of(stat: &Statx, path: &Path) -> Result<MediumKind> {
    match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::RegularFile => Ok(MediumKind::File),
        FileType::BlockDevice => Ok(MediumKind::Device),
        _ => Err(Error::new(
            Kind::Usage,
            format!(
                "backing store {}: is not a directory, a file or a block device",
                path.display()
            ),
        )),
    }
}

/// Keeps other forebays out. The lock is advisory: other writers of the file are the user's
/// business.
fn claim(fd: &OwnedFd, path: &Path, access: Access) -> Result<()> {
    let how = match access {
        Access::Read => FlockOperation::NonBlockingLockShared,
        Access::ReadWrite => FlockOperation::NonBlockingLockExclusive,
    };
    match lock::outlive(fd, how) {
        Err(Errno::WOULDBLOCK) => Err(claimed(path)),
        // The file system has no locks.
        _ => Ok(()),
    }
}

fn claimed(path: &Path) -> Error {
    Error::new(
        Kind::Usage,
        format!(
            "backing store {}: is in use, as a mounted file system, by another forebay or as part \
             of something else: end that use first",
            path.display()
        ),
    )
}

impl BackingStore for SingleStore {
    fn identity(&self) -> Result<String> {
        identity::of(&self.medium)
            .map_err(|errno| self.medium.error(errno, format!("identity {}", self.medium.shown())))
    }

    fn sizes(&self) -> Sizes {
        Sizes::Fixed
    }

    fn stat(&self, path: &Path) -> Result<Attr> {
        self.attr_at(path)
            .map_err(|errno| self.medium.error(errno, format!("stat {}", path.display())))
    }

    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn BackingFile>> {
        self.on_file("open", path, Errno::ISDIR, || {
            let fd = self.medium.reopen(access)?;
            Ok(Arc::new(SingleFile::new(fd, access, self.medium.clone())) as _)
        })
    }

    fn create(&self, path: &Path, _new: &New) -> Result<(Arc<dyn BackingFile>, Attr)> {
        self.refuse_new("create", path)
    }

    fn mkdir(&self, path: &Path, _new: &New) -> Result<Attr> {
        self.refuse_new("mkdir", path)
    }

    fn mknod(&self, path: &Path, _new: &New, _kind: FileKind, _rdev: u64) -> Result<Attr> {
        self.refuse_new("mknod", path)
    }

    fn symlink(&self, path: &Path, _target: &OsStr, _new: &New) -> Result<Attr> {
        self.refuse_new("symlink", path)
    }

    fn link(&self, from: &Path, _: Option<FileKey>, to: &Path) -> Result<Attr> {
        self.on_file("link", from, Errno::PERM, || Ok(()))?;
        self.refuse_new("link", to)
    }

    fn read_link(&self, path: &Path) -> Result<PathBuf> {
        self.on_file("read link", path, Errno::INVAL, || Err(Errno::INVAL))
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        self.on_file("unlink", path, Errno::ISDIR, || Err(Errno::PERM))
    }

    fn rmdir(&self, path: &Path) -> Result<()> {
        self.on_file("rmdir", path, Errno::BUSY, || Err(Errno::NOTDIR))
    }

    fn rename(&self, from: &Path, to: &Path, _mode: RenameMode) -> Result<()> {
        self.spot(to).map(drop).or_else(|errno| match errno {
            Errno::NOENT => Ok(()),
            _ => Err(self.medium.error(errno, format!("rename to {}", to.display()))),
        })?;
        self.on_file("rename", from, Errno::BUSY, || Err(Errno::PERM))
    }

    fn set_attr(&self, path: &Path, _: Option<FileKey>, set: &SetAttr) -> Result<Attr> {
        self.on_file("set attributes of", path, Errno::PERM, || {
            file::set_attr(&self.medium, set)?;
            self.medium.attr()
        })
    }

    fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>> {
        match self.spot(path) {
            Ok(Spot::Root) => {
                Ok(vec![DirEntry { name: self.name.clone(), kind: FileKind::File, ino: FILE_INO }])
            }
            other => {
                let errno = other.err().unwrap_or(Errno::NOTDIR);
                Err(self.medium.error(errno, format!("list {}", path.display())))
            }
        }
    }

    fn xattr_get(&self, path: &Path, _name: &OsStr) -> Result<Vec<u8>> {
        self.no_xattrs("read", path)
    }

    fn xattr_set(
        &self,
        path: &Path,
        _: Option<FileKey>,
        _name: &OsStr,
        _value: &[u8],
        _: XattrMode,
    ) -> Result<()> {
        self.no_xattrs("set", path)
    }

    fn xattr_list(&self, path: &Path) -> Result<Vec<OsString>> {
        self.stat(path).map(|_| Vec::new())
    }

    fn xattr_remove(&self, path: &Path, _: Option<FileKey>, _name: &OsStr) -> Result<()> {
        self.no_xattrs("remove", path)
    }

    fn statfs(&self) -> Result<StatFs> {
        let size = self.stat(Path::new(&self.name))?.size;
        Ok(StatFs {
            blocks: size.div_ceil(BLOCK.into()),
            bfree: 0,
            bavail: 0,
            files: 2,
            ffree: 0,
            bsize: BLOCK,
            namelen: 255,
            frsize: BLOCK,
        })
    }

    /// The one entry needs no sync.
    fn sync_dir(&self, path: &Path) -> Result<()> {
        self.read_dir(path).map(drop)
    }

    fn sync_files(&self, files: &[Arc<dyn BackingFile>]) -> Result<()> {
        files.iter().try_for_each(|file| file.sync())
    }
}
