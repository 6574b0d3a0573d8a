//! The encoding of the verbs' answers for the kernel.

use std::ffi::OsStr;
use std::time::{Duration, Instant};

use forebay_backing::{Attr, DirEntry, FileKind, StatFs, Timestamp};
use forebay_cluster::locks::{HeldBy, Kind, Lock};

use super::abi;
use super::answer::{Carrier, Listing, Reply};
use crate::nodes::generation;
use crate::reply::{AttrOf, Bytes, Fail, Fill, FillPlus, Found, Tell, Value, Written};
use crate::request::Shared;
use crate::vfs::{AtClose, Entry, How, Looked, Opened};

/// The bytes of an answer, in the kernel's order. The largest fixed answer, to STATX, has 288.
pub struct Words {
    bytes: [u8; 288],
    len: usize,
}

impl Words {
    pub fn new() -> Words {
        Words { bytes: [0; 288], len: 0 }
    }

    pub fn put(mut self, bytes: &[u8]) -> Words {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        self
    }

    pub fn u16(self, value: u16) -> Words {
        self.put(&value.to_ne_bytes())
    }

    pub fn u32(self, value: u32) -> Words {
        self.put(&value.to_ne_bytes())
    }

    pub fn u64(self, value: u64) -> Words {
        self.put(&value.to_ne_bytes())
    }

    pub fn zeros(mut self, count: usize) -> Words {
        self.len += count;
        self
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// `struct fuse_attr`.
    fn attr(self, id: u64, attr: &Attr) -> Words {
        self.u64(id)
            .u64(attr.size)
            .u64(attr.blocks)
            .u64(attr.atime.sec as u64)
            .u64(attr.mtime.sec as u64)
            .u64(attr.ctime.sec as u64)
            .u32(attr.atime.nsec)
            .u32(attr.mtime.nsec)
            .u32(attr.ctime.nsec)
            .u32(kind_bits(attr.kind) | (attr.mode & 0o7777))
            .u32(attr.nlink)
            .u32(attr.uid)
            .u32(attr.gid)
            .u32(attr.rdev as u32)
            .u32(attr.blksize)
            .u32(0)
    }

    /// `struct fuse_statx`, up to the last known field.
    fn statx(self, id: u64, attr: &Attr) -> Words {
        let birth = if attr.btime == Timestamp::default() { 0 } else { abi::STATX_BIRTH };
        let mode = (kind_bits(attr.kind) | (attr.mode & 0o7777)) as u16;
        self.u32(abi::STATX_BASIC | birth)
            .u32(attr.blksize)
            .u64(0)
            .u32(attr.nlink)
            .u32(attr.uid)
            .u32(attr.gid)
            .put(&mode.to_ne_bytes())
            .zeros(2)
            .u64(id)
            .u64(attr.size)
            .u64(attr.blocks)
            .u64(0)
            .time(attr.atime)
            .time(attr.btime)
            .time(attr.ctime)
            .time(attr.mtime)
            .u32(libc::major(attr.rdev))
            .u32(libc::minor(attr.rdev))
    }

    /// `struct fuse_sx_time`.
    fn time(self, at: Timestamp) -> Words {
        self.u64(at.sec as u64).u32(at.nsec).u32(0)
    }

    /// `struct fuse_entry_out`.
    fn entry(self, shared: &Shared, entry: &Entry) -> Words {
        let (entry_ttl, attr_ttl): (Duration, Duration) = (
            left(shared.entry_ttl, entry.as_of),
            left(shared.vfs.attr_ttl(&entry.attr), entry.as_of),
        );
        self.u64(entry.id)
            .u64(generation(entry.attr.key))
            .u64(entry_ttl.as_secs())
            .u64(attr_ttl.as_secs())
            .u32(entry_ttl.subsec_nanos())
            .u32(attr_ttl.subsec_nanos())
            .attr(shared.vfs.shown(&entry.attr), &entry.attr)
    }

    /// `struct fuse_entry_out` of a name that does not exist.
    fn nowhere(self, ttl: Duration) -> Words {
        self.zeros(16).u64(ttl.as_secs()).zeros(8).u32(ttl.subsec_nanos()).zeros(4 + 88)
    }

    /// `struct fuse_open_out`.
    fn open(self, opened: &Opened) -> Words {
        let (way, id) = match opened.how {
            How::Cached { keep: true } => (abi::FOPEN_KEEP_CACHE, 0),
            How::Cached { keep: false } => (0, 0),
            How::Direct => (abi::FOPEN_DIRECT_IO, 0),
            How::Passthrough(id) => (abi::FOPEN_PASSTHROUGH, id),
        };
        // FLUSH is not answered ENOSYS: the kernel would never send another, and the policy may
        // change.
        let at_close = match opened.at_close {
            AtClose::Nothing => abi::FOPEN_NOFLUSH,
            AtClose::Flush => 0,
        };
        self.u64(opened.handle).u32(way | at_close).u32(id)
    }
}

/// The rest of a time to live.
fn left(ttl: Duration, as_of: Instant) -> Duration {
    // A time to live of zero needs no look at the clock.
    if ttl.is_zero() { ttl } else { ttl.saturating_sub(as_of.elapsed()) }
}

fn kind_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::File => libc::S_IFREG,
        FileKind::Dir => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::Char => libc::S_IFCHR,
        FileKind::Block => libc::S_IFBLK,
    }
}

impl<C: Carrier> Tell<()> for Reply<C> {
    fn tell(self, _: &Shared, (): ()) {
        self.done();
    }
}

impl<C: Carrier> Tell<Entry> for Reply<C> {
    fn tell(self, shared: &Shared, entry: Entry) {
        self.bytes(Words::new().entry(shared, &entry).bytes());
    }
}

/// A name that does not exist has the node 0 (`struct fuse_entry_out`, "negative dentry" in the kernel).
impl<C: Carrier> Tell<Looked> for Reply<C> {
    fn tell(self, shared: &Shared, looked: Looked) {
        match looked {
            Looked::There(entry) => self.tell(shared, entry),
            Looked::Nowhere(as_of) => {
                self.bytes(Words::new().nowhere(left(shared.entry_ttl, as_of)).bytes());
            }
            Looked::Bare => self.fail(libc::EIO),
        }
    }
}

impl<C: Carrier> Tell<AttrOf> for Reply<C> {
    fn tell(self, shared: &Shared, of: AttrOf) {
        let ttl = left(shared.vfs.attr_ttl(&of.attr), of.as_of);
        let words = Words::new().u64(ttl.as_secs()).u32(ttl.subsec_nanos()).u32(0);
        self.bytes(words.attr(shared.vfs.shown(&of.attr), &of.attr).bytes());
    }
}

/// Attributes as STATX asks for them.
pub struct Extended<C: Carrier>(pub Reply<C>);

impl<C: Carrier> Fail for Extended<C> {
    fn fail(self, errno: i32) {
        self.0.fail(errno);
    }
}

impl<C: Carrier> Tell<AttrOf> for Extended<C> {
    fn tell(self, shared: &Shared, of: AttrOf) {
        let ttl = left(shared.vfs.attr_ttl(&of.attr), of.as_of);
        let words = Words::new().u64(ttl.as_secs()).u32(ttl.subsec_nanos()).u32(0).zeros(16);
        let words = words.statx(shared.vfs.shown(&of.attr), &of.attr);
        // The zeros are the device of the file, and the spare fields.
        self.0.bytes(words.zeros(8 + 112).bytes());
    }
}

impl<C: Carrier> Tell<Opened> for Reply<C> {
    fn tell(self, _: &Shared, opened: Opened) {
        self.bytes(Words::new().open(&opened).bytes());
    }
}

impl<C: Carrier> Tell<(Entry, Opened)> for Reply<C> {
    fn tell(self, shared: &Shared, (entry, opened): (Entry, Opened)) {
        self.bytes(Words::new().entry(shared, &entry).open(&opened).bytes());
    }
}

impl<C: Carrier> Tell<Written> for Reply<C> {
    fn tell(self, _: &Shared, written: Written) {
        self.bytes(Words::new().u32(written.0).u32(0).bytes());
    }
}

impl<C: Carrier> Tell<Found> for Reply<C> {
    fn tell(self, _: &Shared, at: Found) {
        self.bytes(Words::new().u64(at.0).bytes());
    }
}

/// `struct fuse_lk_out`.
impl<C: Carrier> Tell<Option<HeldBy>> for Reply<C> {
    fn tell(self, _: &Shared, by: Option<HeldBy>) {
        let words = match by {
            Some(HeldBy { lock: Lock { kind, range, pid }, .. }) => {
                let kind = match kind {
                    Kind::Shared => libc::F_RDLCK,
                    Kind::Exclusive => libc::F_WRLCK,
                };
                Words::new().u64(range.first).u64(range.last).u32(kind as u32).u32(pid)
            }
            None => Words::new().zeros(16).u32(libc::F_UNLCK as u32).u32(0),
        };
        self.bytes(words.bytes());
    }
}

impl<C: Carrier> Tell<StatFs> for Reply<C> {
    fn tell(self, _: &Shared, s: StatFs) {
        let words = Words::new().u64(s.blocks).u64(s.bfree).u64(s.bavail).u64(s.files).u64(s.ffree);
        let words = words.u32(s.bsize).u32(s.namelen).u32(s.frsize).u32(0);
        self.bytes(words.zeros(24).bytes());
    }
}

impl<C: Carrier> Tell<Value> for Reply<C> {
    fn tell(self, _: &Shared, value: Value) {
        match value.room as usize {
            0 => self.bytes(Words::new().u32(value.bytes.len() as u32).u32(0).bytes()),
            room if room < value.bytes.len() => self.fail(libc::ERANGE),
            _ => self.bytes(&value.bytes),
        }
    }
}

/// `struct fuse_dirent`, with the name.
fn dirent<C: Carrier>(
    ino: u64,
    next: u64,
    kind: FileKind,
    name: &OsStr,
    into: &mut Listing<C>,
    entry: &[u8],
) -> bool {
    let name = name.as_encoded_bytes();
    let words = Words::new().u64(ino).u64(next).u32(name.len() as u32).u32(kind_bits(kind) >> 12);
    into.add(&[entry, words.bytes(), name])
}

impl<C: Carrier> Fill for Listing<C> {
    fn add(&mut self, entry: &DirEntry, ino: u64, next: u64) -> bool {
        dirent(ino, next, entry.kind, &entry.name, self, &[])
    }

    fn done(self) {
        self.send();
    }
}

impl<C: Carrier> FillPlus for Listing<C> {
    fn fits(&self) -> usize {
        // `struct fuse_direntplus` with a name of 24 bytes.
        self.room() / (128 + 24 + 24)
    }

    fn add(&mut self, shared: &Shared, name: &OsStr, entry: &Entry, next: u64) -> bool {
        let words = Words::new().entry(shared, entry);
        dirent(shared.vfs.shown(&entry.attr), next, entry.attr.kind, name, self, words.bytes())
    }

    fn add_bare(&mut self, entry: &DirEntry, ino: u64, next: u64) -> bool {
        // With node 0 the kernel takes the name and no attributes.
        let nothing = Words::new().zeros(40 + 88);
        dirent(ino, next, entry.kind, &entry.name, self, nothing.bytes())
    }

    fn done(self) {
        self.send();
    }
}
