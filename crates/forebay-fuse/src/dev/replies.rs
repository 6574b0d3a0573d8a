//! The answers of verbs as `fuser` sends them.

use std::ffi::OsStr;

use forebay_backing::{DirEntry, StatFs};
use fuser::{
    Errno, FileHandle, Generation, INodeNo, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr,
};

use super::words::{file_attr, file_type, fopen_flags};
use crate::nodes::generation;
use crate::reply::{AttrOf, Bytes, Fail, Fill, FillPlus, Found, Tell, Value, Written};
use crate::request::Shared;
use crate::verbs::{give_back, take_spare};
use crate::vfs::{Entry, How, Opened};

macro_rules! fail {
    ($($reply:ty),* $(,)?) => {
        $(impl Fail for $reply {
            fn fail(self, errno: i32) {
                self.error(Errno::from_i32(errno));
            }
        })*
    };
}

fail!(
    ReplyEntry,
    ReplyAttr,
    ReplyEmpty,
    ReplyOpen,
    ReplyCreate,
    ReplyWrite,
    ReplyStatfs,
    ReplyDirectory,
    ReplyDirectoryPlus,
    ReplyXattr,
    ReplyLseek,
);

impl Tell<()> for ReplyEmpty {
    fn tell(self, _: &Shared, (): ()) {
        self.ok();
    }
}

impl Tell<Entry> for ReplyEntry {
    fn tell(self, shared: &Shared, entry: Entry) {
        self.entry_with_ttls(
            &shared.vfs.attr_ttl(&entry.attr),
            &shared.entry_ttl,
            &file_attr(&entry.attr, entry.id),
            Generation(generation(entry.attr.key)),
        );
    }
}

impl Tell<AttrOf> for ReplyAttr {
    fn tell(self, shared: &Shared, of: AttrOf) {
        self.attr(&shared.vfs.attr_ttl(&of.attr), &file_attr(&of.attr, of.id));
    }
}

impl Tell<Opened> for ReplyOpen {
    fn tell(self, _: &Shared, opened: Opened) {
        let handle = FileHandle(opened.handle);
        match opened.how {
            How::Passthrough(id) => {
                // SAFETY: the id belongs to this session and stays registered while the handle
                // that was just made exists; `into_raw` keeps the wrapper from closing it.
                let wrapped = unsafe { self.wrap_backing(id) };
                self.opened_passthrough(handle, fopen_flags(&opened), &wrapped);
                let _ = wrapped.into_raw();
            }
            How::Cached { .. } | How::Direct => self.opened(handle, fopen_flags(&opened)),
        }
    }
}

impl Tell<(Entry, Opened)> for ReplyCreate {
    fn tell(self, shared: &Shared, (entry, opened): (Entry, Opened)) {
        let attr = file_attr(&entry.attr, entry.id);
        let generation = Generation(generation(entry.attr.key));
        let handle = FileHandle(opened.handle);
        // `fuser` has one time for name and attributes.
        let ttl = &shared.entry_ttl.min(shared.attr_ttl);
        let flags = fopen_flags(&opened);
        match opened.how {
            How::Passthrough(id) => {
                // SAFETY: as for `ReplyOpen`.
                let wrapped = unsafe { self.wrap_backing(id) };
                self.created_passthrough(ttl, &attr, generation, handle, flags, &wrapped);
                let _ = wrapped.into_raw();
            }
            How::Cached { .. } | How::Direct => {
                self.created(ttl, &attr, generation, handle, flags);
            }
        }
        if shared.vfs.attr_ttl(&entry.attr) < shared.attr_ttl {
            shared.vfs.tell_attributes(entry.id);
        }
    }
}

impl Tell<Written> for ReplyWrite {
    fn tell(self, _: &Shared, written: Written) {
        self.written(written.0);
    }
}

impl Tell<StatFs> for ReplyStatfs {
    fn tell(self, _: &Shared, s: StatFs) {
        self.statfs(s.blocks, s.bfree, s.bavail, s.files, s.ffree, s.bsize, s.namelen, s.frsize);
    }
}

impl Tell<Value> for ReplyXattr {
    fn tell(self, _: &Shared, value: Value) {
        match value.room as usize {
            0 => self.size(value.bytes.len() as u32),
            room if room < value.bytes.len() => self.fail(libc::ERANGE),
            _ => self.data(&value.bytes),
        }
    }
}

impl Tell<Found> for ReplyLseek {
    fn tell(self, _: &Shared, at: Found) {
        self.offset(at.0 as i64);
    }
}

/// A reply of bytes, with the buffer they are gathered in.
pub struct Data {
    reply: ReplyData,
    buf: Vec<u8>,
}

impl Data {
    pub fn new(reply: ReplyData) -> Data {
        Data { reply, buf: Vec::new() }
    }
}

impl Fail for Data {
    fn fail(self, errno: i32) {
        self.reply.error(Errno::from_i32(errno));
    }
}

impl Bytes for Data {
    fn room(&mut self, size: usize) -> &mut [u8] {
        self.buf = take_spare(size);
        &mut self.buf[..size]
    }

    fn filled(self, len: usize) {
        self.reply.data(&self.buf[..len]);
        give_back(self.buf);
    }

    fn buffer(&mut self, size: usize) -> Vec<u8> {
        match self.buf.len() < size {
            true => take_spare(size),
            false => std::mem::take(&mut self.buf),
        }
    }

    fn bytes(self, bytes: &[u8]) {
        self.reply.data(bytes);
    }
}

impl Fill for ReplyDirectory {
    fn add(&mut self, entry: &DirEntry, ino: u64, next: u64) -> bool {
        !ReplyDirectory::add(self, INodeNo(ino), next, file_type(entry.kind), &entry.name)
    }

    fn done(self) {
        self.ok();
    }
}

impl FillPlus for ReplyDirectoryPlus {
    fn add(&mut self, shared: &Shared, name: &OsStr, entry: &Entry, next: u64) -> bool {
        !ReplyDirectoryPlus::add(
            self,
            INodeNo(entry.id),
            next,
            name,
            &shared.entry_ttl.min(shared.vfs.attr_ttl(&entry.attr)),
            &file_attr(&entry.attr, entry.id),
            Generation(generation(entry.attr.key)),
        )
    }

    fn done(self) {
        self.ok();
    }
}
