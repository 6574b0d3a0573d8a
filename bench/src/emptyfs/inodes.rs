//! The inodes the kernel knows: number to `O_PATH` descriptor, with the kernel's lookup count.
//!
//! The descriptor pins the inode, so a number cannot be reused while it is in the table. All
//! inodes must be on one file system: the file system's own inode number is the node id.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{BackingId, FileAttr, FileType, INodeNo};

pub struct Node {
    fd: OwnedFd,
    /// Changed only under the table's write lock.
    lookups: Mutex<u64>,
    pub opened: Mutex<Opened>,
}

/// The passthrough state of an inode: all opens of it must share one backing id.
#[derive(Default)]
pub struct Opened {
    pub count: u32,
    pub backing: Option<BackingId>,
}

pub struct Inodes {
    root: Arc<Node>,
    table: RwLock<HashMap<u64, Arc<Node>>>,
}

impl Node {
    fn new(fd: OwnedFd) -> Arc<Node> {
        Arc::new(Node { fd, lookups: Mutex::new(1), opened: Mutex::default() })
    }

    pub fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// A path that system calls without an `AT_EMPTY_PATH` can follow to this inode.
    pub fn magic(&self) -> CString {
        CString::new(format!("/proc/self/fd/{}", self.raw())).expect("digits hold no NUL")
    }
}

impl Inodes {
    pub fn new(source: &Path) -> io::Result<Inodes> {
        let dir = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
            .open(source)?;
        Ok(Inodes { root: Node::new(dir.into()), table: RwLock::default() })
    }

    pub fn get(&self, ino: INodeNo) -> io::Result<Arc<Node>> {
        if ino == INodeNo::ROOT {
            return Ok(self.root.clone());
        }
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.get(&ino.0).cloned().ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))
    }

    /// Looks `name` up below `parent` and counts one kernel reference to the inode.
    pub fn lookup(&self, parent: &Node, name: &OsStr) -> io::Result<(FileAttr, Arc<Node>)> {
        let name = c_name(name)?;
        let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: a live descriptor and a NUL-terminated name.
        let fd = owned(unsafe { libc::openat(parent.raw(), name.as_ptr(), flags) })?;
        let attr = attr_of(fd.as_raw_fd())?;
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = table.get(&attr.ino.0) {
            *node.lookups.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            return Ok((attr, node.clone()));
        }
        let node = Node::new(fd);
        table.insert(attr.ino.0, node.clone());
        Ok((attr, node))
    }

    pub fn forget(&self, ino: INodeNo, count: u64) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let Some(node) = table.get(&ino.0) else { return };
        let left = {
            let mut lookups = node.lookups.lock().unwrap_or_else(PoisonError::into_inner);
            *lookups = lookups.saturating_sub(count);
            *lookups
        };
        if left == 0 {
            table.remove(&ino.0);
        }
    }
}

pub fn c_name(name: &OsStr) -> io::Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Takes the result of a system call: a new descriptor, or -1 and errno.
pub fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given this descriptor to this process, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub fn attr_of(fd: RawFd) -> io::Result<FileAttr> {
    // SAFETY: the descriptor outlives this call; ManuallyDrop keeps it open afterwards.
    let file = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    let meta = file.metadata()?;
    Ok(FileAttr {
        ino: INodeNo(meta.ino()),
        size: meta.size(),
        blocks: meta.blocks(),
        atime: time(meta.atime(), meta.atime_nsec()),
        mtime: time(meta.mtime(), meta.mtime_nsec()),
        ctime: time(meta.ctime(), meta.ctime_nsec()),
        crtime: UNIX_EPOCH,
        kind: FileType::from_std(meta.file_type()).unwrap_or(FileType::RegularFile),
        perm: (meta.mode() & 0o7777) as u16,
        nlink: meta.nlink() as u32,
        uid: meta.uid(),
        gid: meta.gid(),
        rdev: meta.rdev() as u32,
        blksize: meta.blksize() as u32,
        flags: 0,
    })
}

fn time(secs: i64, nanos: i64) -> SystemTime {
    let since = Duration::new(u64::try_from(secs).unwrap_or(0), nanos as u32);
    UNIX_EPOCH + since
}
