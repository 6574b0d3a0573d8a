//! An open file of the directory store.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs as sys;
use rustix::io as rio;

use super::root::{Root, stat_fd};
use super::{Sys, own};
use crate::fd::{close, next_data, punch, read_full, write_full};
use crate::{Attr, BackingFile, Result, SetAttr, SetTime, Timestamp};

pub struct DirFile {
    fd: OwnedFd,
    device: (u32, u32),
    /// Grows with each open in this process; see [`super::sync`].
    opened: u64,
    root: Arc<Root>,
    /// The path at the open: for messages only, since a rename does not change it.
    path: PathBuf,
}

impl DirFile {
    pub fn new(fd: OwnedFd, device: (u32, u32), root: Arc<Root>, path: &Path) -> DirFile {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let opened = OPENED.fetch_add(1, Ordering::Relaxed);
        DirFile { fd, device, opened, root, path: path.to_owned() }
    }

    pub fn device(&self) -> (u32, u32) {
        self.device
    }

    pub fn opened(&self) -> u64 {
        self.opened
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn run<T>(&self, what: &str, work: impl FnOnce() -> Sys<T>) -> Result<T> {
        self.root.run(what, &self.path, work)
    }
}

impl BackingFile for DirFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.run("read", || read_full(self.fd(), buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.run("write", || write_full(self.fd(), buf, offset))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.run("set length of", || rio::retry_on_intr(|| sys::ftruncate(&self.fd, len)))
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.run("punch hole in", || punch(self.fd(), offset, len))
    }

    fn stat(&self) -> Result<Attr> {
        self.run("stat", || stat_fd(&self.fd).map(|stat| self.root.attr(&stat)))
    }

    fn set_times(&self, atime: Option<Timestamp>, mtime: Option<Timestamp>) -> Result<()> {
        let times = own::times(atime.map(SetTime::At), mtime.map(SetTime::At));
        self.run("set times of", || sys::futimens(&self.fd, &times))
    }

    fn set_attr(&self, set: &SetAttr) -> Result<Attr> {
        self.run("set attributes of", || own::set_attr_fd(self.fd(), set))?;
        self.stat()
    }

    fn sync(&self) -> Result<()> {
        // Not repeated on any error: a second fsync may succeed though the pages were dropped.
        self.run("sync", || sys::fsync(&self.fd))
    }

    fn next_data(&self, offset: u64) -> Result<Option<(u64, u64)>> {
        self.run("find data in", || next_data(self.fd(), offset))
    }

    fn close(self: Arc<Self>) -> Result<()> {
        let Some(last) = Arc::into_inner(self) else { return Ok(()) };
        let DirFile { fd, root, path, .. } = last;
        root.run("close", &path, || close(fd))
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}
