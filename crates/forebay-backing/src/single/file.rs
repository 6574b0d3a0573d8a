//! An open descriptor of the one file.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs as sys;
use rustix::io::Errno;

use super::{Medium, MediumKind};
use crate::dir::own;
use crate::fd::{self, Sys};
use crate::{Access, Attr, BackingFile, Result, SetAttr, SetTime, Timestamp};

/// No device has larger logical blocks; discards must be whole ones.
const DISCARD: u64 = 4096;

pub struct SingleFile {
    fd: OwnedFd,
    access: Access,
    medium: Arc<Medium>,
}

impl SingleFile {
    pub fn new(fd: OwnedFd, access: Access, medium: Arc<Medium>) -> SingleFile {
        SingleFile { fd, access, medium }
    }

    fn run<T>(&self, what: &str, work: impl FnOnce() -> Sys<T>) -> Result<T> {
        work().map_err(|errno| self.medium.error(errno, format!("{what} {}", self.medium.shown())))
    }

    /// The size (O3). A file is asked each time: another program may have cut it short.
    fn size(&self) -> Sys<u64> {
        self.medium.attr().map(|attr| attr.size)
    }

    /// Discards through the descriptor that claimed the device: without the claim the kernel
    /// refuses while pages of the range are in use.
    fn discard(&self, start: u64, end: u64) -> Sys<()> {
        if self.access == Access::Read {
            return Err(Errno::BADF);
        }
        let inner = (start.next_multiple_of(DISCARD), end - end % DISCARD);
        if inner.0 >= inner.1 {
            return fd::write_zeros(self.fd.as_fd(), start, end);
        }
        match fd::free(self.medium.fd.as_fd(), inner.0, inner.1) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                return fd::write_zeros(self.fd.as_fd(), start, end);
            }
            done => done?,
        }
        fd::write_zeros(self.fd.as_fd(), start, inner.0)?;
        fd::write_zeros(self.fd.as_fd(), inner.1, end)
    }
}

impl BackingFile for SingleFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.run("read", || fd::read_full(self.fd.as_fd(), buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.run("write", || {
            let end = offset.checked_add(buf.len() as u64).ok_or(Errno::FBIG)?;
            if end > self.size()? {
                return Err(Errno::NOSPC);
            }
            fd::write_full(self.fd.as_fd(), buf, offset)
        })
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.run("set length of", || match len == self.size()? {
            true => Ok(()),
            false => Err(Errno::PERM),
        })
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.run("punch hole in", || match self.medium.kind {
            MediumKind::File => fd::punch(self.fd.as_fd(), offset, len),
            MediumKind::Device => {
                let end = offset.saturating_add(len).min(self.size()?);
                if offset < end { self.discard(offset, end) } else { Ok(()) }
            }
        })
    }

    fn stat(&self) -> Result<Attr> {
        self.run("stat", || self.medium.attr())
    }

    fn set_times(&self, atime: Option<Timestamp>, mtime: Option<Timestamp>) -> Result<()> {
        let (atime, mtime) = (atime.map(SetTime::At), mtime.map(SetTime::At));
        let set = SetAttr { atime, mtime, ..SetAttr::default() };
        self.run("set times of", || set_attr(&self.medium, &set))
    }

    fn set_attr(&self, set: &SetAttr) -> Result<Attr> {
        self.run("set attributes of", || set_attr(&self.medium, set))?;
        self.stat()
    }

    fn sync(&self) -> Result<()> {
        // Not repeated on any error: a second fsync may succeed though the pages were dropped.
        self.run("sync", || sys::fsync(&self.fd))
    }

    fn next_data(&self, offset: u64) -> Result<Option<(u64, u64)>> {
        self.run("find data in", || match self.medium.kind {
            MediumKind::File => fd::next_data(self.fd.as_fd(), offset),
            MediumKind::Device => {
                let size = self.size()?;
                Ok((offset < size).then_some((offset, size)))
            }
        })
    }

    fn close(self: Arc<Self>) -> Result<()> {
        let Some(last) = Arc::into_inner(self) else { return Ok(()) };
        let SingleFile { fd, medium, .. } = last;
        let what = || format!("close {}", medium.shown());
        fd::close(fd).map_err(|errno| medium.error(errno, what()))
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

/// Changes attributes of an image, which may change its owner; the node of a device belongs to the
/// system, and times of a device are not kept.
pub fn set_attr(medium: &Medium, set: &SetAttr) -> Sys<()> {
    match medium.kind {
        MediumKind::File => own::set_attr_fd(medium.fd.as_fd(), set),
        MediumKind::Device if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() => {
            Err(Errno::PERM)
        }
        MediumKind::Device => Ok(()),
    }
}
