//! The transport over /dev/fuse, by way of the `fuser` crate: decodes requests and hands them to
//! the verbs. Also where the other transport begins: the handshake, and what never comes over
//! io_uring (FORGET, INTERRUPT).

mod replies;
mod words;

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::SystemTime;

use forebay_backing::SetAttr;
use forebay_engine::rules::Origin;
use fuser::{
    BsdFileFlags, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request,
    TimeOrNow, WriteFlags,
};

use self::replies::Data;
use self::words::set_time;
use crate::reply::Fail;
use crate::request::Shared;
use crate::verbs::{At, MAX_WRITE, Suid, rename_mode};

/// The file system as `fuser` sees it.
pub struct Server {
    pub shared: Arc<Shared>,
    pub passthrough: bool,
    pub kernel_writeback: bool,
    /// Whether requests shall come over io_uring; after the handshake, whether they may.
    pub io_uring: Arc<AtomicBool>,
}

fn origin(req: &Request) -> Origin {
    Origin { uid: req.uid(), gid: req.gid(), pid: req.pid() }
}

impl Filesystem for Server {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Without it a file's mode alone would decide, and grant what its list of access denies.
        config.add_capabilities(InitFlags::FUSE_POSIX_ACL).map_err(|_| {
            std::io::Error::other("this kernel enforces no ACLs here: Linux 4.9 is needed")
        })?;
        let wanted = [
            InitFlags::FUSE_EXPORT_SUPPORT,
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_DONT_MASK,
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
        if self.io_uring.load(Relaxed) {
            let granted = config.add_capabilities(InitFlags::FUSE_OVER_IO_URING).is_ok();
            self.io_uring.store(granted, Relaxed);
        }
        let _ = config.set_max_write(MAX_WRITE);
        // What is held back is given out several at a time, of which a ring's entries, which do not
        // look for more unless one was committed, would take one.
        let background = if self.io_uring.load(Relaxed) { 512 } else { 64 };
        let _ = config.set_max_background(background);
        let _ = config.set_congestion_threshold(background / 4 * 3);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.shared.lookup(parent.0, name, reply);
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.shared.vfs.forget(ino.0, nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.shared.getattr(ino.0, reply);
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
        let handle = fh.map(|fh| fh.0);
        let set = SetAttr {
            mode: mode.map(|m| m & 0o7777),
            uid,
            gid,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
        };
        self.shared.setattr(origin(req), ino.0, set, size.map(|size| (size, handle)), reply);
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        self.shared.readlink(ino.0, Data::new(reply));
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.shared.mknod(origin(req), (parent.0, name), (mode, umask), rdev, reply);
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.shared.mkdir(origin(req), (parent.0, name), (mode, umask), reply);
    }

    fn unlink(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.shared.unlink(parent.0, name, reply);
    }

    fn rmdir(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.shared.rmdir(parent.0, name, reply);
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let target = target.as_os_str().to_os_string();
        self.shared.symlink(origin(req), (parent.0, link_name), target, reply);
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
        let mode = rename_mode(flags.bits());
        self.shared.rename((parent.0, name), (newparent.0, newname), mode, reply);
    }

    fn link(
        &self,
        _req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        self.shared.link(ino.0, (newparent.0, newname), reply);
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.shared.open(origin(req), ino.0, flags.0, reply);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.shared.create(origin(req), (parent.0, name), (mode, umask), flags, reply);
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
        self.shared.read(origin(req), At { handle: fh.0, offset }, size, Data::new(reply));
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
        let suid = Suid::of(write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID));
        let at = At { handle: fh.0, offset };
        self.shared.write(origin(req), ino.0, at, data, suid, reply);
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        self.shared.flush(fh.0, reply);
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
        self.shared.release(fh.0, reply);
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.shared.fsync(fh.0, reply);
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
        self.shared.readdir(fh.0, offset, reply);
    }

    fn readdirplus(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.shared.readdirplus(fh.0, offset, reply);
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
        self.shared.fsyncdir(fh.0, reply);
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.shared.statfs(reply);
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        self.shared.setxattr(origin(req), ino.0, name, value, flags, reply);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.shared.getxattr(ino.0, name, size, reply);
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.shared.listxattr(ino.0, size, reply);
    }

    fn removexattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.shared.removexattr(ino.0, name, reply);
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let at = At { handle: fh.0, offset };
        self.shared.fallocate(origin(req), ino.0, at, (length, mode), reply);
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
        self.shared.lseek(At { handle: fh.0, offset: offset as u64 }, whence, reply);
    }
}
