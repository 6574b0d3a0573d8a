//! The trait that every backing store implements, and its values.

use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Result;

/// Identifies one file for as long as it exists: two names with one key are hard links.
///
/// `generation` tells a reused inode number from the one before it (the birth time in
/// nanoseconds where the store knows it, otherwise 0).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileKey {
    pub ino: u64,
    pub generation: u64,
}

impl FileKey {
    /// Set in the inode numbers of files of other file systems that are mounted below the root.
    pub const NESTED: u64 = 1 << 63;

    /// Whether the file may be on such a file system. If not, it is on the root's own for certain.
    pub fn may_be_nested(self) -> bool {
        self.ino & FileKey::NESTED != 0
    }
}

/// Seconds and nanoseconds since the epoch, as the kernel keeps them (`sec` may be negative).
/// Packed, since three of them are kept for each of maybe a million cached files.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[repr(Rust, packed(4))]
pub struct Timestamp {
    pub sec: i64,
    pub nsec: u32,
}

impl Timestamp {
    /// After all others.
    pub const MAX: Timestamp = Timestamp { sec: i64::MAX, nsec: 999_999_999 };

    pub fn plus(self, time: Duration) -> Timestamp {
        let nsec = self.nsec + time.subsec_nanos();
        let sec =
            self.sec.saturating_add_unsigned(time.as_secs() + u64::from(nsec / 1_000_000_000));
        Timestamp { sec, nsec: nsec % 1_000_000_000 }
    }

    pub fn minus(self, time: Duration) -> Timestamp {
        let up = time.as_secs() + u64::from(time.subsec_nanos() > 0);
        let sec = self.sec.saturating_sub_unsigned(up);
        Timestamp { sec, ..self }.plus(Duration::from_secs(up) - time)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FileKind {
    File,
    Dir,
    Symlink,
    Fifo,
    Socket,
    Char,
    Block,
}

/// The attributes of a file, as `stat` returns them. `mode` holds the twelve permission bits only; `blocks`
/// counts 512-byte units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    pub key: FileKey,
    pub kind: FileKind,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u64,
    pub size: u64,
    pub blocks: u64,
    pub blksize: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
}

impl Attr {
    pub fn version(&self) -> Version {
        Version { key: self.key, size: self.size, mtime: self.mtime, ctime: self.ctime }
    }
}

/// Holds a file, whatever happens to its names: for as long as this lives its inode number is given to no other
/// file.
pub trait Pin: Send + Sync {
    /// Opens the file, also when it has no name any more.
    ///
    /// # Errors
    ///
    /// EISDIR, ELOOP or EINVAL if it is no regular file; EACCES if its mode refuses the daemon.
    fn open(&self, access: Access) -> Result<(Arc<dyn BackingFile>, Attr)>;

    /// As [`BackingStore::xattr_get`], also when the file has no name any more.
    fn xattr_get(&self, name: &OsStr) -> Result<Vec<u8>>;
}

/// The part of a file's attributes that changes whenever its bytes may have changed. Equal
/// versions mean equal bytes, as far as the store can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    pub key: FileKey,
    pub size: u64,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    ReadWrite,
}

/// Mode and owner of an object that is about to be created. The store applies them whatever the daemon's own
/// user and umask are; where the parent directory is set-gid, its group wins, as on a local file system. A
/// daemon that is not root stays the owner.
#[derive(Debug, Clone, Copy)]
pub struct New {
    /// The requested mode.
    pub mode: u32,
    /// The bits removed from the mode, unless the parent directory has a default ACL: see umask(2).
    pub umask: u32,
    pub uid: u32,
    pub gid: u32,
}

/// Whether the size of a file can be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sizes {
    Free,
    /// Every file keeps its size. Known beforehand, so that a write that could never be flushed is refused at
    /// once.
    Fixed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    Replace,
    NoReplace,
    Exchange,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    Now,
    At(Timestamp),
}

/// The attributes to change; `None` leaves an attribute alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct SetAttr {
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrMode {
    Any,
    Create,
    Replace,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    pub name: OsString,
    pub kind: FileKind,
    pub ino: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatFs {
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub bsize: u32,
    pub namelen: u32,
    pub frsize: u32,
}

/// Slow storage with POSIX names. Every call may block for as long as the storage does; a caller that promises a
/// bound enforces it.
pub trait BackingStore: Send + Sync + 'static {
    /// A string that stays the same for this store and differs for every other, across restarts
    /// and mounts. Compared before a fast tier is used (S11).
    fn identity(&self) -> Result<String>;

    /// Whether files of this store can grow and shrink.
    fn sizes(&self) -> Sizes {
        Sizes::Free
    }

    /// Attributes of `path` itself (never of a link's target).
    fn stat(&self, path: &Path) -> Result<Attr>;

    /// The attributes and the names of extended attributes, as [`BackingStore::xattr_list`] returns them: one
    /// call where the store can answer both.
    fn stat_all(&self, path: &Path) -> Result<(Attr, Vec<OsString>)> {
        Ok((self.stat(path)?, self.xattr_list(path)?))
    }

    /// Whether a file's access list is among the names of its extended attributes: if it is not listed, the file
    /// has none.
    fn lists_acls(&self) -> bool {
        false
    }

    /// The most by which the clock of the store's times may differ from this machine's.
    fn clocks_differ(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// Opens a regular file. `ReadWrite` succeeds wherever the daemon may legitimately write for
    /// the file's owner: a daemon that owns a 0444 file gets it.
    fn open(&self, path: &Path, access: Access) -> Result<Arc<dyn BackingFile>>;

    /// Opens a file and returns its attributes: one request to a network file system, whose open is answered
    /// with the attributes.
    fn open_seen(&self, path: &Path, access: Access) -> Result<(Arc<dyn BackingFile>, Attr)> {
        let file = self.open(path, access)?;
        let attr = file.stat()?;
        Ok((file, attr))
    }

    /// Creates a regular file, which must not exist.
    fn create(&self, path: &Path, new: &New) -> Result<(Arc<dyn BackingFile>, Attr)>;

    fn mkdir(&self, path: &Path, new: &New) -> Result<Attr>;

    /// Creates a FIFO, socket, device node or (with `FileKind::File`) an empty regular file.
    fn mknod(&self, path: &Path, new: &New, kind: FileKind, rdev: u64) -> Result<Attr>;

    fn symlink(&self, path: &Path, target: &OsStr, new: &New) -> Result<Attr>;

    /// Makes `to` another name of `from`, if `from` has this key: as for [`BackingStore::set_attr`].
    fn link(&self, from: &Path, key: Option<FileKey>, to: &Path) -> Result<Attr>;

    fn read_link(&self, path: &Path) -> Result<PathBuf>;

    fn unlink(&self, path: &Path) -> Result<()>;

    /// Holds the file at `path`. `None` where a store never removes a file.
    fn pin(&self, _path: &Path) -> Result<Option<Arc<dyn Pin>>> {
        Ok(None)
    }

    fn rmdir(&self, path: &Path) -> Result<()>;

    fn rename(&self, from: &Path, to: &Path, mode: RenameMode) -> Result<()>;

    /// Changes attributes of the object at the path, if it has this `key`: the requester had the right to change
    /// that object, and may lack the right to change one that was put there since. `None`: any object.
    ///
    /// # Errors
    ///
    /// ESTALE if another object is at the path.
    fn set_attr(&self, path: &Path, key: Option<FileKey>, set: &SetAttr) -> Result<Attr>;

    /// All entries but `.` and `..`.
    fn read_dir(&self, path: &Path) -> Result<Vec<DirEntry>>;

    fn xattr_get(&self, path: &Path, name: &OsStr) -> Result<Vec<u8>>;

    /// Sets an attribute of the object with this key, as for [`BackingStore::set_attr`].
    fn xattr_set(
        &self,
        path: &Path,
        key: Option<FileKey>,
        name: &OsStr,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()>;

    fn xattr_list(&self, path: &Path) -> Result<Vec<OsString>>;

    /// Removes an attribute of the object with this key, as for [`BackingStore::set_attr`].
    fn xattr_remove(&self, path: &Path, key: Option<FileKey>, name: &OsStr) -> Result<()>;

    fn statfs(&self) -> Result<StatFs>;

    /// Makes the entries of a directory durable.
    fn sync_dir(&self, path: &Path) -> Result<()>;

    /// Makes data and metadata of all these files durable, in the cheapest way that is correct for this store:
    /// one syncfs where the file system is known to honour it, else one fsync for each file.
    fn sync_files(&self, files: &[Arc<dyn BackingFile>]) -> Result<()>;
}

/// An open regular file of a backing store.
pub trait BackingFile: Send + Sync {
    /// Reads at most `buf.len()` bytes; short only at the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize>;

    /// Writes all of `buf`.
    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()>;

    fn set_len(&self, len: u64) -> Result<()>;

    /// Makes `[offset, offset + len)` read as zeros without changing the size, freeing the space
    /// where the store can.
    fn punch(&self, offset: u64, len: u64) -> Result<()>;

    fn stat(&self) -> Result<Attr>;

    fn set_times(&self, atime: Option<Timestamp>, mtime: Option<Timestamp>) -> Result<()>;

    /// Changes attributes, whatever happened to the file's name.
    fn set_attr(&self, set: &SetAttr) -> Result<Attr>;

    /// Makes the file's data and metadata durable (fsync).
    fn sync(&self) -> Result<()>;

    /// The first run of data at or after `offset`, as `[start, end)`; `None` if only a hole is left. A store
    /// without holes reports everything up to the end as data.
    fn next_data(&self, offset: u64) -> Result<Option<(u64, u64)>> {
        let size = self.stat()?.size;
        Ok((offset < size).then_some((offset, size)))
    }

    /// Gives the file back to the store, which may take as long as any other call: many stores write the rest
    /// out only now, and report its errors now. The file is closed whatever the result. If there are other
    /// holders, the last of them closes it by dropping it, without a result.
    fn close(self: Arc<Self>) -> Result<()> {
        Ok(())
    }

    /// The descriptor behind the file, where there is one.
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Lets a store recognize the files it handed out (for `sync_files`).
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}
