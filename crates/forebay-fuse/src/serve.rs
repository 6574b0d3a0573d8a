//! The transport over /dev/fuse, by way of the `fuser` crate: decodes requests and says which
//! verb answers them, and how.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use forebay_backing::metrics::Op;
use forebay_backing::{FileKind, New, Result, SetAttr};
use forebay_engine::rules::Origin;
use fuser::{
    BsdFileFlags, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::answer::{answer_create, answer_open, answer_xattr, fill_plus};
use crate::encode::{file_attr, file_type, rename_mode, set_time};
use crate::nodes::generation;
use crate::reply::{Fail, Patience, Slot};
use crate::request::{Do, Shared, Verbs};
use crate::usage::{Moved, Who};
use crate::vfs::{Entry, Make, Vfs};

/// The largest write request. Larger ones fall out of the processor's caches between the two
/// copies; smaller ones pay more round trips.
const MAX_WRITE: u32 = 1 << 20;

/// The file system as `fuser` sees it.
pub struct Server {
    pub shared: Arc<Shared>,
    pub passthrough: bool,
    pub kernel_writeback: bool,
}

fn who(req: &Request) -> Who {
    Who { uid: req.uid(), thread: req.pid() }
}

fn origin(req: &Request) -> Origin {
    Origin { uid: req.uid(), gid: req.gid(), pid: req.pid() }
}

fn new_file(req: &Request, mode: u32) -> New {
    New { mode: mode & 0o7777, uid: req.uid(), gid: req.gid() }
}

fn do_entry(
    op: fn(&Verbs) -> &Op,
    reply: ReplyEntry,
    work: impl FnOnce(&Vfs) -> Result<Entry> + Send + 'static,
) -> Do<Entry> {
    let answer = |shared: &Shared, reply: ReplyEntry, entry: Entry| {
        reply.entry_with_ttls(
            &shared.attr_ttl,
            &shared.entry_ttl,
            &file_attr(&entry.attr, entry.id),
            Generation(generation(entry.attr.key)),
        );
    };
    // Nobody was told of the node: take back the reference.
    Do::new(op, reply, work, answer).undo(|shared, entry| shared.vfs.forget(entry.id, 1))
}

impl Filesystem for Server {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let wanted = [
            InitFlags::FUSE_EXPORT_SUPPORT,
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_CACHE_SYMLINKS,
        ];
        for flag in wanted {
            let _ = config.add_capabilities(flag); // An older kernel does without.
        }
        if self.kernel_writeback {
            let _ = config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE);
        }
        if self.passthrough {
            let granted = config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok();
            // One layer of stacking: shadow files lie on a real file system.
            self.passthrough = granted && config.set_max_stack_depth(1).is_ok();
        }
        let _ = config.set_max_write(MAX_WRITE);
        let _ = config.set_max_background(64);
        let _ = config.set_congestion_threshold(48);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_os_string();
        let again = name.clone();
        let lookup = do_entry(|v| &v.lookup, reply, move |vfs| vfs.lookup(parent.0, &name));
        self.run(lookup.or(move |vfs| vfs.lookup_cached(parent.0, &again)));
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.shared.vfs.forget(ino.0, nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let ttl = self.shared.attr_ttl;
        let getattr = Do::new(
            |v| &v.getattr,
            reply,
            move |vfs| vfs.getattr(ino.0),
            move |_, reply: ReplyAttr, attr| reply.attr(&ttl, &file_attr(&attr, ino.0)),
        );
        self.run(getattr.or(move |vfs| vfs.getattr_cached(ino.0)));
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (who, handle) = (origin(req), fh.map(|fh| fh.0));
        let set = SetAttr {
            mode: mode.map(|m| m & 0o7777),
            uid,
            gid,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
        };
        let ttl = self.shared.attr_ttl;
        let setattr = Do::new(
            |v| &v.setattr,
            reply,
            move |vfs| vfs.setattr(ino.0, who, &set, size.map(|size| (size, handle))),
            move |_, reply: ReplyAttr, attr| reply.attr(&ttl, &file_attr(&attr, ino.0)),
        );
        self.run(setattr.patient());
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        self.simple(
            |v| &v.readlink,
            reply,
            move |vfs| vfs.readlink(ino.0),
            |reply, target| reply.data(target.as_os_str().as_encoded_bytes()),
        );
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let (name, new) = (name.to_os_string(), new_file(req, mode));
        let kind = match mode & libc::S_IFMT {
            libc::S_IFIFO => FileKind::Fifo,
            libc::S_IFSOCK => FileKind::Socket,
            libc::S_IFCHR => FileKind::Char,
            libc::S_IFBLK => FileKind::Block,
            _ => FileKind::File,
        };
        let what = Make::Node(kind, rdev.into());
        self.entry(|v| &v.make, reply, move |vfs| vfs.make(parent.0, &name, new, &what));
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let (name, new) = (name.to_os_string(), new_file(req, mode));
        self.entry(|v| &v.make, reply, move |vfs| vfs.make(parent.0, &name, new, &Make::Dir));
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_os_string();
        self.simple(
            |v| &v.unlink,
            reply,
            move |vfs| vfs.unlink(parent.0, &name),
            |reply, ()| reply.ok(),
        );
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_os_string();
        self.simple(
            |v| &v.rmdir,
            reply,
            move |vfs| vfs.rmdir(parent.0, &name),
            |reply, ()| reply.ok(),
        );
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (name, new) = (link_name.to_os_string(), new_file(req, 0o777));
        let what = Make::Link(target.as_os_str().to_os_string());
        self.entry(|v| &v.make, reply, move |vfs| vfs.make(parent.0, &name, new, &what));
    }

    fn rename(
        &self,
        _req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (name, newname) = (name.to_os_string(), newname.to_os_string());
        self.simple(
            |v| &v.rename,
            reply,
            move |vfs| {
                let mode = rename_mode(flags)?;
                vfs.rename((parent.0, &name), (newparent.0, &newname), mode)
            },
            |reply, ()| reply.ok(),
        );
    }

    fn link(
        &self,
        _req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let name = newname.to_os_string();
        self.entry(|v| &v.link, reply, move |vfs| vfs.link(ino.0, newparent.0, &name));
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.shared.usage.note(who(req), Moved::Opened);
        let origin = origin(req);
        let work = move |vfs: &Vfs| vfs.open(ino.0, flags.0, origin);
        let open = Do::new(|v| &v.open, reply, work, answer_open);
        let open = open.or(move |vfs| vfs.open_cached(ino.0, flags.0, origin));
        self.run(open.undo(|shared, opened| shared.vfs.release(opened.handle)));
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.shared.usage.note(who(req), Moved::Opened);
        let (name, new, origin) = (name.to_os_string(), new_file(req, mode), origin(req));
        let create = Do::new(
            |v| &v.create,
            reply,
            move |vfs| vfs.create(parent.0, &name, new, flags, origin),
            answer_create,
        );
        self.run(create.undo(|shared, (entry, opened)| {
            shared.vfs.release(opened.handle);
            shared.vfs.forget(entry.id, 1);
        }));
    }

    fn read(
        &self,
        req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // What is in the tier cannot hang, so it needs no watching and no hand-over.
        let mut buf = take_spare(size as usize);
        let began = Instant::now();
        match self.shared.vfs.read_cached(fh.0, offset, &mut buf[..size as usize]) {
            Some(Ok(n)) => {
                reply.data(&buf[..n]);
                self.shared.verbs.read.record(began.elapsed(), n as u64);
                self.shared.usage.note(who(req), Moved::Read(n as u64));
                give_back(buf);
            }
            Some(Err(error)) => reply.fail(error.errno()),
            None => self.read_slowly(who(req), fh.0, offset, size, buf, reply),
        }
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let kill = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        let len = data.len() as u32;
        let shared = &self.shared;
        shared.usage.note(who(req), Moved::Written(len.into()));
        let Some(_seat) = shared.seat() else {
            // Only now is a copy of the data needed: the session's buffer is used again.
            let data = data.to_vec();
            let write = Do::new(
                |v| &v.write,
                reply,
                move |vfs| write(vfs, ino.0, fh.0, offset, &data, kill),
                move |_, reply: ReplyWrite, ()| reply.written(len),
            );
            return self.run(write.patient());
        };
        let answer = move |_: &Shared, result: Result<()>| match result {
            Ok(()) => reply.written(len),
            Err(error) => reply.fail(error.errno()),
        };
        let slot = Slot::new(answer, None);
        let n = shared.watch.begin(&slot, Patience::Long);
        let op = &shared.verbs.write;
        let result =
            op.time(|()| len.into(), || write(&shared.vfs, ino.0, fh.0, offset, data, kill));
        shared.watch.end(n);
        let _ = slot.give(shared, result);
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.done(|v| &v.flush, reply, move |vfs| vfs.flush(fh.0));
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.done(
            |v| &v.release,
            reply,
            move |vfs| {
                vfs.release(fh.0);
                Ok(())
            },
        );
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.done(|v| &v.fsync, reply, move |vfs| vfs.fsync(fh.0));
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.shared.vfs.opendir(ino.0) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(error) => reply.fail(error.errno()),
        }
    }

    fn readdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let readdir = Do::new(
            |v| &v.readdir,
            reply,
            move |vfs| vfs.list(fh.0, offset == 0),
            move |shared, mut reply: ReplyDirectory, (_, entries)| {
                for (at, entry) in entries.iter().enumerate().skip(offset as usize) {
                    let ino = INodeNo(shared.vfs.shown_ino(entry.ino));
                    if reply.add(ino, at as u64 + 1, file_type(entry.kind), &entry.name) {
                        break;
                    }
                }
                reply.ok();
            },
        );
        self.run(readdir.or(move |vfs| vfs.list_cached(fh.0)));
    }

    fn readdirplus(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let readdir = Do::new(
            |v| &v.readdir,
            reply,
            move |vfs| vfs.list(fh.0, offset == 0),
            move |shared, reply: ReplyDirectoryPlus, (dir, entries)| {
                fill_plus(shared, reply, dir, &entries, offset);
            },
        );
        self.run(readdir.or(move |vfs| vfs.list_cached(fh.0)));
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.shared.vfs.release(fh.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.done(|v| &v.fsyncdir, reply, move |vfs| vfs.fsyncdir(fh.0));
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.simple(
            |v| &v.statfs,
            reply,
            |vfs| vfs.statfs(),
            |reply, s| {
                reply.statfs(
                    s.blocks, s.bfree, s.bavail, s.files, s.ffree, s.bsize, s.namelen, s.frsize,
                );
            },
        );
    }

    fn setxattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (name, value) = (name.to_os_string(), value.to_vec());
        self.simple(
            |v| &v.xattr,
            reply,
            move |vfs| vfs.setxattr(ino.0, &name, &value, flags),
            |reply, ()| reply.ok(),
        );
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = name.to_os_string();
        self.simple(
            |v| &v.xattr,
            reply,
            move |vfs| vfs.getxattr(ino.0, &name),
            move |reply, value| answer_xattr(reply, size, &value),
        );
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.simple(
            |v| &v.xattr,
            reply,
            move |vfs| vfs.listxattr(ino.0),
            move |reply, names| answer_xattr(reply, size, &names),
        );
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_os_string();
        self.simple(
            |v| &v.xattr,
            reply,
            move |vfs| vfs.removexattr(ino.0, &name),
            |reply, ()| reply.ok(),
        );
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.done(|v| &v.fallocate, reply, move |vfs| vfs.fallocate(fh.0, offset, length, mode));
    }

    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.simple(
            |v| &v.lseek,
            reply,
            move |vfs| vfs.lseek(fh.0, offset as u64, whence),
            |reply, at| reply.offset(at as i64),
        );
    }
}

impl Server {
    /// A read that may have to ask the backing store.
    fn read_slowly(
        &self,
        who: Who,
        handle: u64,
        offset: u64,
        size: u32,
        mut buf: Vec<u8>,
        reply: ReplyData,
    ) {
        self.run(Do::new(
            |v| &v.read,
            reply,
            move |vfs| {
                let n = vfs.read(handle, offset, &mut buf[..size as usize])?;
                Ok((buf, n))
            },
            move |shared, reply: ReplyData, (buf, n)| {
                reply.data(&buf[..n]);
                shared.usage.note(who, Moved::Read(n as u64));
                give_back(buf);
            },
        ));
    }

    fn run<T: Send + 'static>(&self, request: Do<T>) {
        request.run(&self.shared);
    }

    fn simple<R: Fail, T: Send + 'static>(
        &self,
        op: fn(&Verbs) -> &Op,
        reply: R,
        work: impl FnOnce(&Vfs) -> Result<T> + Send + 'static,
        answer: impl FnOnce(R, T) + Send + 'static,
    ) {
        self.run(Do::new(op, reply, work, move |_, reply, value| answer(reply, value)));
    }

    fn entry(
        &self,
        op: fn(&Verbs) -> &Op,
        reply: ReplyEntry,
        work: impl FnOnce(&Vfs) -> Result<Entry> + Send + 'static,
    ) {
        self.run(do_entry(op, reply, work));
    }

    /// A verb that answers nothing but success and may rightly take long.
    fn done(
        &self,
        op: fn(&Verbs) -> &Op,
        reply: ReplyEmpty,
        work: impl FnOnce(&Vfs) -> Result<()> + Send + 'static,
    ) {
        self.run(Do::new(op, reply, work, |_, reply: ReplyEmpty, ()| reply.ok()).patient());
    }
}

fn write(vfs: &Vfs, id: u64, handle: u64, offset: u64, data: &[u8], kill_suid: bool) -> Result<()> {
    vfs.write(handle, offset, data)?;
    if kill_suid {
        vfs.strip_suid(id, None);
    }
    Ok(())
}

thread_local! {
    /// Read buffers are used again: clearing and faulting in 128 KiB costs more than the read.
    static SPARE: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// A buffer of at least `size` bytes.
fn take_spare(size: usize) -> Vec<u8> {
    let mut buf = SPARE.with_borrow_mut(std::mem::take);
    if buf.len() < size {
        buf.resize(size, 0);
    }
    buf
}

fn give_back(buf: Vec<u8>) {
    SPARE.with_borrow_mut(|spare| *spare = buf);
}
