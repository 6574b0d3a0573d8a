//! Verbs on open files.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use forebay_backing::{Error, Result};
use forebay_engine::{Admission, Allocate, Cached, File};

use super::ahead::Part;
use super::{Handle, Vfs};

/// The kernel's flags of a write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Manner {
    /// Whether the descriptor is O_DSYNC, or the call is. For bytes that come through the kernel's cache, the kernel
    /// asks for the sync itself, but not for bytes that come past it.
    pub syncs: bool,
    /// Whether the bytes are whole pages of the kernel's cache, with the bytes that were there before.
    pub is_cached: bool,
}

/// The reader of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    Program,
    /// The kernel, whole pages for its cache.
    Cache,
}

/// The bytes that were read, and their place.
pub enum Reading {
    /// At the beginning of the reader's buffer: so many bytes.
    Here(usize),
    There(Part),
}

impl Reading {
    pub fn bytes<'a>(&'a self, buf: &'a [u8]) -> &'a [u8] {
        match self {
            Reading::Here(len) => &buf[..*len],
            Reading::There(part) => part.bytes(),
        }
    }
}

impl Handle {
    /// Called once bytes, or a part of them, are written, before the answer: a sync beside it may have missed them.
    fn note_written(&self, vfs: &Vfs) {
        if let Handle::File { has_written, .. } = self
            && vfs.cluster().is_some()
            && !has_written.load(SeqCst)
        {
            has_written.store(true, SeqCst);
        }
    }
}

impl Vfs {
    /// Reads at most as much as the buffer has room for; bytes from another member are not put there.
    pub fn read(&self, handle: u64, offset: u64, buf: &mut [u8]) -> Result<Reading> {
        self.read_as(Reader::Program, handle, offset, buf)
    }

    fn read_as(&self, reader: Reader, handle: u64, offset: u64, buf: &mut [u8]) -> Result<Reading> {
        self.locks.check(handle)?;
        match &*self.handle(handle)? {
            Handle::File { file, admission, .. } => {
                let range = (offset, buf.len() as u64);
                let gives = || self.members.laundry.gives(file.key, range);
                let pages = self.has_pages(reader).then(gives).transpose()?;
                let n = self.engine.io.read_in(admission, file, offset, buf)?;
                drop(pages);
                self.wait_fit().map(|()| Reading::Here(n))
            }
            Handle::Control { text, .. } => {
                let from = text.len().min(offset as usize);
                let n = buf.len().min(text.len() - from);
                buf[..n].copy_from_slice(&text[from..from + n]);
                Ok(Reading::Here(n))
            }
            Handle::There(remote) => self.read_there(remote, offset, buf.len()).map(Reading::There),
            Handle::Dir { .. } => Err(Error::os(libc::EISDIR, "read")),
        }
    }

    /// As [`Vfs::read`], also for the kernel's cache, which fills the rest of whole pages with zeros.
    pub fn read_by(
        &self,
        reader: Reader,
        handle: u64,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<Reading> {
        let came = self.read_as(reader, handle, offset, buf)?;
        if let (Reader::Cache, Handle::There(remote)) = (reader, &*self.handle(handle)?) {
            remote.blank.was_read(offset, came.bytes(buf).len(), buf.len());
        }
        Ok(came)
    }

    /// Whether the bytes go into pages of the kernel that are kept apart from other members' changes.
    fn has_pages(&self, reader: Reader) -> bool {
        reader == Reader::Cache && self.cluster().is_some()
    }

    /// Reads what can be read without the backing store. `None`: the read has to ask it.
    pub fn read_cached(
        &self,
        reader: Reader,
        handle: u64,
        offset: u64,
        buf: &mut [u8],
    ) -> Option<Result<Cached>> {
        self.locks.check(handle).ok()?;
        match &*self.handle(handle).ok()? {
            Handle::File { file, admission, .. } if self.is_fit() => {
                let range = (offset, buf.len() as u64);
                let _pages = match self.has_pages(reader) {
                    true => Some(self.members.laundry.gives_now(file.key, range)?),
                    false => None,
                };
                self.engine.io.read_cached(admission, file, offset, buf)
            }
            _ => None,
        }
    }

    pub fn write(&self, handle: u64, offset: u64, data: &[u8], manner: Manner) -> Result<()> {
        self.locks.check(handle)?;
        let handle = self.handle(handle)?;
        let written = self.write_to(&handle, offset, data, manner);
        handle.note_written(self);
        written
    }

    fn write_to(&self, handle: &Handle, offset: u64, data: &[u8], manner: Manner) -> Result<()> {
        match handle {
            // A page has its own place, also if the descriptor appends.
            Handle::File { file, admission, append: true, .. } if !manner.is_cached => {
                self.append(file, admission, data)?;
                if manner.syncs {
                    self.engine.io.sync_in(admission, file)?;
                }
                self.wait_fit()
            }
            Handle::File { file, admission, .. } => {
                self.write_here((file, admission), offset, data, manner)?;
                self.wait_fit()
            }
            Handle::There(remote) if manner.is_cached => {
                self.write_pages_there(remote, offset, data)
            }
            Handle::There(remote) => self.write_there(remote, offset, data, manner),
            Handle::Control { .. } if manner.is_cached => {
                Err(Error::os(libc::EINVAL, "a value is written whole, and through no mapping"))
            }
            Handle::Control { id, .. } => self.control.write(*id, offset, data),
            Handle::Dir { .. } => Err(Error::os(libc::EISDIR, "write")),
        }
    }

    /// Writes bytes here. The parts of a kernel's page that were changed for other members since are left alone.
    fn write_here(
        &self,
        (file, admission): (&Arc<File>, &Admission),
        offset: u64,
        data: &[u8],
        manner: Manner,
    ) -> Result<()> {
        let write = |at, part: &[u8]| self.engine.io.write_in(admission, file, at, part);
        if self.cluster().is_none() {
            return write(offset, data);
        }
        let (laundry, range) = (&self.members.laundry, (offset, data.len() as u64));
        if !manner.is_cached {
            let _pages = laundry.renews(file.key, range)?;
            return write(offset, data);
        }
        let (_pages, parts) = laundry.comes(file.key, range)?;
        let part = |start: u64, end: u64| &data[(start - offset) as usize..(end - offset) as usize];
        parts.into_iter().try_for_each(|(start, end)| write(start, part(start, end)))
    }

    /// To be called once a write has been answered.
    pub fn wrote(&self, handle: u64, end: u64, len: u64) {
        if let Ok(handle) = self.handle(handle)
            && let Handle::File { file, .. } = &*handle
        {
            self.engine.room.reserve_ahead(file, end, len);
        }
    }

    pub fn fsync(&self, handle: u64) -> Result<()> {
        self.locks.check(handle)?;
        match &*self.handle(handle)? {
            Handle::File { file, admission, has_written, .. } => {
                self.wait_fit()?;
                let had_written = has_written.swap(false, SeqCst);
                let synced = self.engine.io.sync_in(admission, file).and_then(|()| self.wait_fit());
                has_written.fetch_or(had_written && synced.is_err(), SeqCst);
                synced?;
                self.synced_here(file.key)
            }
            Handle::There(remote) => self.sync_there(remote),
            _ => Ok(()),
        }
    }

    /// Called when a descriptor was closed. Flushes where the bytes have to be on the backing store by then.
    pub fn flush(&self, handle: u64) -> Result<()> {
        match &*self.handle(handle)? {
            Handle::File { file, admission, has_written, .. } => {
                self.engine.io.closing(file, admission)?;
                // Once another member has this mount's place, bytes that were not synced are not served.
                if has_written.load(SeqCst) { self.wait_fit() } else { Ok(()) }
            }
            Handle::There(remote) => self.flush_there(remote),
            _ => Ok(()),
        }
    }

    pub fn fallocate(&self, handle: u64, offset: u64, len: u64, mode: i32) -> Result<()> {
        match &*self.handle(handle)? {
            Handle::File { file, admission, .. } => {
                // Partners would be told, and they do not answer a member that is not their home any more.
                self.wait_fit()?;
                let allocated = self.allocate(file, admission, offset, len, mode);
                self.handle(handle)?.note_written(self);
                allocated?;
                self.wait_fit()
            }
            Handle::There(remote) => self.allocate_there(remote, offset, len, mode),
            _ => Err(Error::os(libc::EINVAL, "not a regular file")),
        }
    }

    pub(super) fn allocate(
        &self,
        file: &Arc<File>,
        admission: &Admission,
        offset: u64,
        len: u64,
        mode: i32,
    ) -> Result<()> {
        let how = match mode {
            0 => Allocate::Extend,
            libc::FALLOC_FL_KEEP_SIZE => Allocate::KeepSize,
            m if m == libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE => Allocate::Zero,
            m if m == libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE => Allocate::Zero,
            libc::FALLOC_FL_ZERO_RANGE => {
                self.engine.io.allocate_in(admission, file, Allocate::Extend, offset, len)?;
                Allocate::Zero
            }
            _ => return Err(Error::os(libc::EOPNOTSUPP, "this kind of fallocate")),
        };
        self.engine.io.allocate_in(admission, file, how, offset, len)
    }

    pub fn lseek(&self, handle: u64, offset: u64, whence: i32) -> Result<u64> {
        match &*self.handle(handle)? {
            Handle::There(remote) => self.seek_there(remote, offset, whence),
            _ => self.seek(&self.file(handle)?, offset, whence),
        }
    }

    pub(super) fn seek(&self, file: &Arc<File>, offset: u64, whence: i32) -> Result<u64> {
        let size = self.engine.verbs.facts(file).size;
        if offset >= size {
            return Err(Error::os(libc::ENXIO, "seeking beyond the end"));
        }
        match whence {
            libc::SEEK_DATA => match self.engine.io.next_data(file, offset)? {
                Some((start, _)) => Ok(start),
                None => Err(Error::os(libc::ENXIO, "no data beyond here")),
            },
            libc::SEEK_HOLE => match self.engine.io.next_data(file, offset)? {
                Some((start, end)) if start <= offset => Ok(end.min(size)),
                _ => Ok(offset),
            },
            _ => Err(Error::os(libc::EINVAL, "seek")),
        }
    }
}
