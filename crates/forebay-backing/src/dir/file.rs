//! An open file of the directory store.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{self as sys, FallocateFlags, SeekFrom};
use rustix::io::{self as rio, Errno};

use super::root::{Root, stat_fd};
use super::{Sys, own};
use crate::{Attr, BackingFile, Result, SetAttr, SetTime, Timestamp};

/// Zeros written at once where a hole cannot be punched.
const ZEROS: usize = 64 * 1024;

pub struct DirFile {
    fd: OwnedFd,
    device: (u32, u32),
    /// Grows with each open of this process; see [`super::sync`].
    opened: u64,
    root: Arc<Root>,
    /// As it was opened: for messages only, a rename does not reach it.
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

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

fn read_full(fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> Sys<usize> {
    let mut done = 0;
    while done < buf.len() {
        match rio::pread(fd, &mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

fn write_full(fd: BorrowedFd<'_>, buf: &[u8], offset: u64) -> Sys<()> {
    let mut done = 0;
    while done < buf.len() {
        match rio::pwrite(fd, &buf[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn punch(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Sys<()> {
    if len == 0 {
        return Ok(());
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rio::retry_on_intr(|| sys::fallocate(fd, flags, offset, len)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(fd, offset, len),
        done => done,
    }
}

/// Stands in for a hole on file systems without (NFS before 4.2, FAT); never grows the file.
fn write_zeros(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Sys<()> {
    let end = offset.saturating_add(len).min(stat_fd(fd)?.stx_size);
    let zeros = [0; ZEROS];
    let mut at = offset;
    while at < end {
        let n = (end - at).min(ZEROS as u64);
        write_full(fd, &zeros[..n as usize], at)?;
        at += n;
    }
    Ok(())
}

/// Uses the descriptor's position, which nothing else here depends on.
fn next_data(fd: BorrowedFd<'_>, offset: u64) -> Sys<Option<(u64, u64)>> {
    let start = match sys::seek(fd, SeekFrom::Data(offset)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return rest(fd, offset),
        Err(errno) => return Err(errno),
    };
    match sys::seek(fd, SeekFrom::Hole(start)) {
        Ok(end) => Ok(Some((start, end))),
        // Cut off in between: the file ends before `start`.
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn rest(fd: BorrowedFd<'_>, offset: u64) -> Sys<Option<(u64, u64)>> {
    let size = stat_fd(fd)?.stx_size;
    Ok((offset < size).then_some((offset, size)))
}
