//! The answer to each request of the kernel, over either transport: the verb that does the work, how
//! long it may take, the answer if it hangs, and what to undo if nobody receives the answer.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::time::Instant;

use forebay_backing::metrics::Op;
use forebay_backing::{Error, FileKind, New, RenameMode, Result, SetAttr, StatFs};
use forebay_engine::rules::Origin;
use forebay_engine::{Cached, Came, on_behalf_of};

use crate::flags::OpenFlags;
use crate::reply::{AttrOf, Bytes, Fill, FillPlus, Found, Patience, Slot, Tell, Value, Written};
use crate::request::{Do, Shared, Verbs};
use crate::spare::give_back;
use crate::usage::{Moved, Who};
use crate::vfs::{Entry, Looked, Make, Manner, Opened, Reader, Vfs};

/// The largest write request. Larger ones fall out of the processor's caches between the two
/// copies; smaller ones pay more round trips.
pub const MAX_WRITE: u32 = 1 << 20;

/// The most entries of one piece of a listing that the store and other members are asked about at once.
const FORESEEN_MAX: usize = 256;

fn who(from: Origin) -> Who {
    Who { uid: from.uid, thread: from.pid }
}

fn new_file(from: Origin, mode: u32, umask: u32) -> New {
    New { mode: mode & 0o7777, umask, uid: from.uid, gid: from.gid }
}

/// A range of an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    pub handle: u64,
    pub offset: u64,
}

impl Shared {
    /// A missing name is an answer, too: the kernel caches it as long as it caches a name that exists.
    pub fn lookup(
        self: &Arc<Shared>,
        from: Origin,
        parent: u64,
        name: &OsStr,
        reply: impl Tell<Looked>,
    ) {
        let name = name.to_os_string();
        let again = name.clone();
        let work = move |vfs: &Vfs| vfs.lookup(parent, &name, from);
        let lookup = Do::new(|v| &v.lookup, reply, work).undo(|shared, looked| {
            if let Looked::There(entry) = looked {
                shared.vfs.forget(entry.id, 1);
            }
        });
        lookup.or(move |vfs| vfs.lookup_cached(parent, &again).map(Looked::There)).run(self);
    }

    pub fn getattr(self: &Arc<Shared>, id: u64, reply: impl Tell<AttrOf>) {
        let of = move |(attr, as_of)| AttrOf { attr, as_of };
        let now = |attr| (attr, Instant::now());
        let getattr = Do::new(|v| &v.getattr, reply, move |vfs| vfs.getattr_as_of(id).map(of));
        getattr.or(move |vfs| vfs.getattr_cached(id).map(now).map(of)).run(self);
    }

    /// `size` is the new size, with the handle through which the file is truncated, if there is one.
    pub fn setattr(
        self: &Arc<Shared>,
        from: Origin,
        id: u64,
        set: SetAttr,
        size: Option<(u64, Option<u64>)>,
        reply: impl Tell<AttrOf>,
    ) {
        let work = move |vfs: &Vfs| {
            let as_of = Instant::now();
            vfs.setattr(id, from, &set, size).map(|attr| AttrOf { attr, as_of })
        };
        Do::new(|v| &v.setattr, reply, work).patient().run(self);
    }

    pub fn readlink(self: &Arc<Shared>, id: u64, reply: impl Bytes) {
        let work = move |vfs: &Vfs| vfs.readlink(id);
        Do::with(
            |v| &v.readlink,
            reply,
            work,
            |_, reply, target| {
                reply.bytes(target.as_os_str().as_encoded_bytes());
            },
        )
        .run(self);
    }

    pub fn mknod(
        self: &Arc<Shared>,
        from: Origin,
        at: (u64, &OsStr),
        (mode, umask): (u32, u32),
        rdev: u32,
        reply: impl Tell<Entry>,
    ) {
        let kind = match mode & libc::S_IFMT {
            libc::S_IFIFO => FileKind::Fifo,
            libc::S_IFSOCK => FileKind::Socket,
            libc::S_IFCHR => FileKind::Char,
            libc::S_IFBLK => FileKind::Block,
            _ => FileKind::File,
        };
        self.make(at, new_file(from, mode, umask), Make::Node(kind, rdev.into()), reply);
    }

    pub fn mkdir(
        self: &Arc<Shared>,
        from: Origin,
        at: (u64, &OsStr),
        (mode, umask): (u32, u32),
        reply: impl Tell<Entry>,
    ) {
        self.make(at, new_file(from, mode, umask), Make::Dir, reply);
    }

    pub fn symlink(
        self: &Arc<Shared>,
        from: Origin,
        at: (u64, &OsStr),
        target: OsString,
        reply: impl Tell<Entry>,
    ) {
        self.make(at, new_file(from, 0o777, 0), Make::Link(target), reply);
    }

    fn make(
        self: &Arc<Shared>,
        (parent, name): (u64, &OsStr),
        new: New,
        what: Make,
        reply: impl Tell<Entry>,
    ) {
        let name = name.to_os_string();
        do_entry(|v| &v.make, reply, move |vfs| vfs.make(parent, &name, new, &what)).run(self);
    }

    pub fn unlink(self: &Arc<Shared>, parent: u64, name: &OsStr, reply: impl Tell<()>) {
        let name = name.to_os_string();
        Do::new(|v| &v.unlink, reply, move |vfs| vfs.unlink(parent, &name)).run(self);
    }

    pub fn rmdir(self: &Arc<Shared>, parent: u64, name: &OsStr, reply: impl Tell<()>) {
        let name = name.to_os_string();
        Do::new(|v| &v.rmdir, reply, move |vfs| vfs.rmdir(parent, &name)).run(self);
    }

    pub fn rename(
        self: &Arc<Shared>,
        (parent, name): (u64, &OsStr),
        (new_parent, new_name): (u64, &OsStr),
        mode: Result<RenameMode>,
        reply: impl Tell<()>,
    ) {
        let (name, new_name) = (name.to_os_string(), new_name.to_os_string());
        let work = move |vfs: &Vfs| vfs.rename((parent, &name), (new_parent, &new_name), mode?);
        Do::new(|v| &v.rename, reply, work).run(self);
    }

    pub fn link(
        self: &Arc<Shared>,
        id: u64,
        (parent, name): (u64, &OsStr),
        reply: impl Tell<Entry>,
    ) {
        let name = name.to_os_string();
        do_entry(|v| &v.link, reply, move |vfs| vfs.link(id, parent, &name)).run(self);
    }

    pub fn open(
        self: &Arc<Shared>,
        from: Origin,
        id: u64,
        flags: OpenFlags,
        reply: impl Tell<Opened>,
    ) {
        self.usage.note(who(from), Moved::Opened);
        let open = Do::new(|v| &v.open, reply, move |vfs| vfs.open(id, flags, from));
        open.or(move |vfs| vfs.open_cached(id, flags, from))
            .undo(|shared, opened| shared.vfs.release(opened.handle))
            .run(self);
    }

    pub fn create(
        self: &Arc<Shared>,
        from: Origin,
        (parent, name): (u64, &OsStr),
        (mode, umask): (u32, u32),
        flags: OpenFlags,
        reply: impl Tell<(Entry, Opened)>,
    ) {
        self.usage.note(who(from), Moved::Opened);
        let (name, new) = (name.to_os_string(), new_file(from, mode, umask));
        let work = move |vfs: &Vfs| vfs.create(parent, &name, new, flags, from);
        Do::new(|v| &v.create, reply, work)
            .undo(|shared, (entry, opened)| {
                shared.vfs.release(opened.handle);
                shared.vfs.forget(entry.id, 1);
            })
            .run(self);
    }

    pub fn read(
        self: &Arc<Shared>,
        from: Origin,
        at: At,
        (size, reader): (u32, Reader),
        mut reply: impl Bytes,
    ) {
        // A read from the tier cannot hang: it needs no watchdog and no hand-over to the pool.
        let began = Instant::now();
        match self.vfs.read_cached(reader, at.handle, at.offset, reply.room(size as usize)) {
            Some(Ok(came)) => {
                // As in all verbs, measured before the answer: the program that it wakes may run first.
                let took = began.elapsed();
                let n = give(came, reply);
                self.verbs.read.record(took, n as u64);
                self.usage.note(who(from), Moved::Read(n as u64));
            }
            Some(Err(error)) => reply.fail(error.errno()),
            None => self.read_slowly(from, at, (size, reader), reply),
        }
    }

    /// A read that may have to ask the backing store, and therefore has a buffer of its own.
    fn read_slowly(
        self: &Arc<Shared>,
        from: Origin,
        at: At,
        (size, reader): (u32, Reader),
        mut reply: impl Bytes,
    ) {
        let mut buf = reply.buffer(size as usize);
        let work = move |vfs: &Vfs| {
            let came = vfs.read_by(reader, at.handle, at.offset, &mut buf[..size as usize])?;
            Ok((buf, came))
        };
        Do::with(
            |v| &v.read,
            reply,
            work,
            move |shared, reply, (buf, came)| {
                let bytes = came.bytes(&buf);
                reply.bytes(bytes);
                shared.usage.note(who(from), Moved::Read(bytes.len() as u64));
                give_back(buf);
            },
        )
        .run(self);
    }

    pub fn write(
        self: &Arc<Shared>,
        from: Origin,
        id: u64,
        at: At,
        data: &[u8],
        how: (Suid, Manner),
        reply: impl Tell<Written>,
    ) {
        let len = data.len() as u32;
        self.usage.note(who(from), Moved::Written(len.into()));
        let Some(_seat) = self.seat() else {
            // The pool needs a copy of the data, since the session's buffer is used again.
            let data = data.to_vec();
            let work = move |vfs: &Vfs| write(vfs, id, from, at, &data, how).map(|()| Written(len));
            return Do::new(|v| &v.write, reply, work).patient().run(self);
        };
        let answer = move |shared: &Shared, result: Result<()>| match result {
            Ok(()) => reply.tell(shared, Written(len)),
            Err(error) => reply.fail(error.errno()),
        };
        let slot = Slot::new(answer, None);
        let watched = self.watch.watched(self.watch.begin(&slot, Patience::Long));
        let op = &self.verbs.write;
        let work = || op.time(|()| len.into(), || write(&self.vfs, id, from, at, data, how));
        let result = on_behalf_of(slot.clone(), work);
        drop(watched);
        let _ = slot.give(self, result);
        self.vfs.wrote(at.handle, at.offset + u64::from(len), len.into());
    }

    /// Called when a descriptor was closed. `owner` owns the record locks of the process.
    pub fn flush(self: &Arc<Shared>, handle: u64, owner: u64, reply: impl Tell<()>) {
        let flush = move |vfs: &Vfs| {
            let flushed = vfs.flush(handle);
            if vfs.grants_locks() {
                vfs.flush_locks(handle, owner);
            }
            flushed
        };
        self.done(|v| &v.flush, reply, flush);
    }

    pub fn release(self: &Arc<Shared>, handle: u64, reply: impl Tell<()>) {
        let release = move |vfs: &Vfs| {
            vfs.release(handle);
            Ok(())
        };
        self.done(|v| &v.release, reply, release);
    }

    pub fn fsync(self: &Arc<Shared>, handle: u64, reply: impl Tell<()>) {
        self.done(|v| &v.fsync, reply, move |vfs| vfs.fsync(handle));
    }

    pub fn readdir(self: &Arc<Shared>, handle: u64, offset: u64, reply: impl Fill) {
        let work = move |vfs: &Vfs| vfs.list(handle, offset == 0);
        let readdir = Do::with(
            |v| &v.readdir,
            reply,
            work,
            move |shared, mut reply, list| {
                for (cookie, entry) in list.1.after(offset) {
                    if !reply.add(entry, shared.vfs.shown_ino(entry.ino), cookie) {
                        break;
                    }
                }
                reply.done();
            },
        );
        readdir.or(move |vfs| vfs.list_cached(handle)).run(self);
    }

    pub fn readdirplus(self: &Arc<Shared>, handle: u64, offset: u64, reply: impl FillPlus) {
        // A program that goes on with a listing will probably want the piece after this one, too.
        let pieces = if offset == 0 { 1 } else { 2 };
        let next = FORESEEN_MAX.min(reply.fits()) * pieces;
        let work = move |vfs: &Vfs| {
            let (dir, entries) = vfs.list(handle, offset == 0)?;
            vfs.foresee(dir, entries.after(offset).take(next).map(|(_, entry)| &*entry.name));
            Ok((dir, entries))
        };
        let readdir = Do::with(
            |v| &v.readdir,
            reply,
            work,
            move |shared, mut reply, list| {
                let (dir, entries) = list;
                for (cookie, entry) in entries.after(offset) {
                    // The kernel takes no attributes of `.` and `..`.
                    let dots = entry.name == "." || entry.name == "..";
                    let found = match dots {
                        true => Ok(Looked::Bare),
                        false => shared.vfs.lookup_listed(dir, &entry.name),
                    };
                    let found = match found {
                        Ok(Looked::There(found)) => found,
                        // A lookup of the name reports the error; the listing has to contain the name.
                        Ok(Looked::Bare) | Err(_) => {
                            if !reply.add_bare(entry, shared.vfs.shown_ino(entry.ino), cookie) {
                                break;
                            }
                            continue;
                        }
                        Ok(Looked::Nowhere(_)) => continue, // Gone since the directory was read.
                    };
                    if !reply.add(shared, &entry.name, &found, cookie) {
                        shared.vfs.forget(found.id, 1);
                        break;
                    }
                }
                reply.done();
            },
        );
        readdir.or(move |vfs| vfs.list_cached(handle)).run(self);
    }

    pub fn fsyncdir(self: &Arc<Shared>, handle: u64, reply: impl Tell<()>) {
        self.done(|v| &v.fsyncdir, reply, move |vfs| vfs.fsyncdir(handle));
    }

    pub fn statfs(self: &Arc<Shared>, reply: impl Tell<StatFs>) {
        Do::new(|v| &v.statfs, reply, Vfs::statfs).run(self);
    }

    pub fn setxattr(
        self: &Arc<Shared>,
        from: Origin,
        id: u64,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        reply: impl Tell<()>,
    ) {
        let (name, value) = (name.to_os_string(), value.to_vec());
        let work = move |vfs: &Vfs| vfs.setxattr(id, from, &name, &value, flags);
        Do::new(|v| &v.xattr, reply, work).run(self);
    }

    pub fn getxattr(self: &Arc<Shared>, id: u64, name: &OsStr, room: u32, reply: impl Tell<Value>) {
        let name = name.to_os_string();
        let again = name.clone();
        let value = move |bytes| Value { room, bytes };
        let get = Do::new(|v| &v.xattr, reply, move |vfs| vfs.getxattr(id, &name).map(value));
        get.or(move |vfs| vfs.getxattr_cached(id, &again).map(value)).run(self);
    }

    pub fn listxattr(self: &Arc<Shared>, id: u64, room: u32, reply: impl Tell<Value>) {
        let work = move |vfs: &Vfs| Ok(Value { room, bytes: vfs.listxattr(id)? });
        Do::new(|v| &v.xattr, reply, work).run(self);
    }

    pub fn removexattr(
        self: &Arc<Shared>,
        from: Origin,
        id: u64,
        name: &OsStr,
        reply: impl Tell<()>,
    ) {
        if let Some(number) = self.holds.number_of(name) {
            return self.holds.come(id, number, Box::new(|| reply.fail(libc::ENODATA)));
        }
        let name = name.to_os_string();
        Do::new(|v| &v.xattr, reply, move |vfs| vfs.removexattr(id, from, &name)).run(self);
    }

    pub fn fallocate(
        self: &Arc<Shared>,
        from: Origin,
        id: u64,
        at: At,
        (len, mode): (u64, i32),
        reply: impl Tell<()>,
    ) {
        let work = move |vfs: &Vfs| {
            vfs.fallocate(at.handle, at.offset, len, mode)?;
            vfs.strip_privilege(id, None, Some(from));
            Ok(())
        };
        self.done(|v| &v.fallocate, reply, work);
    }

    pub fn lseek(self: &Arc<Shared>, at: At, whence: i32, reply: impl Tell<Found>) {
        let work = move |vfs: &Vfs| vfs.lseek(at.handle, at.offset, whence).map(Found);
        Do::new(|v| &v.lseek, reply, work).run(self);
    }

    /// Runs a verb that answers only success and may take long.
    fn done(
        self: &Arc<Shared>,
        op: fn(&Verbs) -> &Op,
        reply: impl Tell<()>,
        work: impl FnOnce(&Vfs) -> Result<()> + Send + 'static,
    ) {
        Do::new(op, reply, work).patient().run(self);
    }
}

fn do_entry(
    op: fn(&Verbs) -> &Op,
    reply: impl Tell<Entry>,
    work: impl FnOnce(&Vfs) -> Result<Entry> + Send + 'static,
) -> Do<Entry> {
    // The kernel was not told of the node: take back its reference.
    Do::new(op, reply, work).undo(|shared, entry| shared.vfs.forget(entry.id, 1))
}

/// Whether a write strips the set-user-id and set-group-id bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suid {
    Keep,
    Strip,
}

impl Suid {
    /// The meaning of the flag FUSE_WRITE_KILL_SUIDGID.
    pub fn of(kill: bool) -> Suid {
        if kill { Suid::Strip } else { Suid::Keep }
    }
}

fn write(
    vfs: &Vfs,
    id: u64,
    from: Origin,
    at: At,
    data: &[u8],
    (suid, manner): (Suid, Manner),
) -> Result<()> {
    vfs.write(at.handle, at.offset, data, manner)?;
    if suid == Suid::Strip {
        vfs.strip_privilege(id, None, Some(from));
    }
    Ok(())
}

/// Answers with bytes of the tier, and returns their number.
fn give(came: Cached, reply: impl Bytes) -> usize {
    match came {
        Cached::Here(len) => {
            reply.filled(len);
            len
        }
        Cached::Came(parts) => {
            let parts: Vec<_> = parts.iter().map(Came::bytes).collect();
            reply.parts(&parts);
            parts.iter().map(|part| part.len()).sum()
        }
    }
}

/// The kind of rename that the flags of renameat2 ask for.
pub fn rename_mode(flags: u32) -> Result<RenameMode> {
    match flags {
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(Error::os(libc::EINVAL, "this kind of rename")),
    }
}
