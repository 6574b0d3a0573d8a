//! The FUSE verbs of the empty daemons.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::*;

use super::inodes::{Node, attr_of, c_name, owned};
use super::{EmptyFs, Mode};

/// How long the kernel may cache a name or an attribute: forebay's default.
const TTL: Duration = Duration::from_secs(1);
const GENERATION: Generation = Generation(0);
/// The kernel's limit unless `fs.fuse.max_pages_limit` is raised.
const MAX_WRITE: u32 = 1 << 20;
/// Per thread, so that a read does not pay for a fresh allocation.
const READ_BUFFER: usize = 1 << 20;

thread_local! {
    static BUFFER: std::cell::RefCell<Vec<u8>> = std::cell::RefCell::new(vec![0; READ_BUFFER]);
}

/// Answers with `$body`'s value through `$ok`, or with its errno.
macro_rules! answer {
    ($reply:ident, $body:expr, $ok:expr) => {
        match $body {
            Ok(value) => $ok(value),
            Err(error) => $reply.error(Errno::from(error)),
        }
    };
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The file behind a handle; the handle keeps ownership.
fn borrowed(fh: FileHandle) -> ManuallyDrop<File> {
    // SAFETY: `fh` is a descriptor that the daemon gave to the kernel and closes only in release.
    ManuallyDrop::new(unsafe { File::from_raw_fd(fh.0 as RawFd) })
}

/// Flags for the daemon's own descriptor: the kernel above takes care of alignment and append.
fn backing_flags(flags: i32) -> i32 {
    let kept = flags & !(libc::O_DIRECT | libc::O_APPEND | libc::O_ACCMODE | libc::O_NOFOLLOW);
    kept | libc::O_RDWR | libc::O_CLOEXEC
}

impl EmptyFs {
    fn wait(&self) {
        if !self.delay.is_zero() {
            std::thread::sleep(self.delay);
        }
    }

    fn open_file(&self, node: &Node, flags: i32) -> io::Result<OwnedFd> {
        // SAFETY: a NUL-terminated path.
        owned(unsafe { libc::open(node.magic().as_ptr(), backing_flags(flags)) })
    }

    fn create_file(
        &self,
        parent: &Node,
        name: &OsStr,
        mode: u32,
        flags: i32,
    ) -> io::Result<OwnedFd> {
        let name = c_name(name)?;
        let flags = backing_flags(flags) | libc::O_CREAT;
        // SAFETY: a live descriptor and a NUL-terminated name.
        owned(unsafe { libc::openat(parent.raw(), name.as_ptr(), flags, mode) })
    }

    fn child_call(
        &self,
        parent: INodeNo,
        name: &OsStr,
        call: impl FnOnce(RawFd, *const libc::c_char) -> libc::c_int,
    ) -> io::Result<()> {
        let parent = self.inodes.get(parent)?;
        let name = c_name(name)?;
        check(call(parent.raw(), name.as_ptr()))
    }

    fn entry(&self, parent: INodeNo, name: &OsStr) -> io::Result<FileAttr> {
        let parent = self.inodes.get(parent)?;
        Ok(self.inodes.lookup(&parent, name)?.0)
    }

    fn resize(&self, node: &Node, size: u64) -> io::Result<()> {
        // SAFETY: a NUL-terminated path.
        check(unsafe { libc::truncate(node.magic().as_ptr(), size as libc::off_t) })
    }

    fn set_times(&self, node: &Node, times: [Option<TimeOrNow>; 2]) -> io::Result<()> {
        let times = times.map(timespec);
        let path = node.magic();
        // SAFETY: a NUL-terminated path and two timespecs.
        check(unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), times.as_ptr(), 0) })
    }

    fn set_owner(&self, node: &Node, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        let (uid, gid) = (uid.unwrap_or(u32::MAX), gid.unwrap_or(u32::MAX));
        // SAFETY: a NUL-terminated path; u32::MAX means "leave".
        check(unsafe { libc::chown(node.magic().as_ptr(), uid, gid) })
    }

    fn listing(&self, node: &Node) -> io::Result<Vec<(u64, FileType, std::ffi::OsString)>> {
        let path = format!("/proc/self/fd/{}", node.raw());
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let kind = FileType::from_std(entry.file_type()?).unwrap_or(FileType::RegularFile);
            let ino = std::os::unix::fs::DirEntryExt::ino(&entry);
            entries.push((ino, kind, entry.file_name()));
        }
        Ok(entries)
    }
}

fn timespec(time: Option<TimeOrNow>) -> libc::timespec {
    let special = |tv_nsec| libc::timespec { tv_sec: 0, tv_nsec };
    match time {
        None => special(libc::UTIME_OMIT),
        Some(TimeOrNow::Now) => special(libc::UTIME_NOW),
        Some(TimeOrNow::SpecificTime(at)) => {
            let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
            libc::timespec {
                tv_sec: since.as_secs() as i64,
                tv_nsec: i64::from(since.subsec_nanos()),
            }
        }
    }
}

/// A directory as it was when it was opened; `offset` counts its entries.
struct Snapshot(Vec<(u64, FileType, std::ffi::OsString)>);

impl Filesystem for EmptyFs {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_EXPORT_SUPPORT,
        ];
        for flag in wanted {
            // An older kernel without it is only slower.
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_write(MAX_WRITE);
        if self.mode == Mode::Pass {
            let refused = |_| io::Error::from_raw_os_error(libc::ENOTSUP);
            config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).map_err(refused)?;
            let _ = config.set_max_stack_depth(1);
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.wait();
        answer!(reply, self.entry(parent, name), |attr| reply.entry(&TTL, &attr, GENERATION));
    }

    fn forget(&self, _: &Request, ino: INodeNo, count: u64) {
        self.inodes.forget(ino, count);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.wait();
        let attr = self.inodes.get(ino).and_then(|node| attr_of(node.raw()));
        answer!(reply, attr, |attr| reply.attr(&TTL, &as_seen(ino, attr)));
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.wait();
        let set = || {
            let node = self.inodes.get(ino)?;
            if uid.is_some() || gid.is_some() {
                self.set_owner(&node, uid, gid)?;
            }
            if let Some(mode) = mode {
                // SAFETY: a NUL-terminated path.
                check(unsafe { libc::chmod(node.magic().as_ptr(), mode & 0o7777) })?;
            }
            if let Some(size) = size {
                self.resize(&node, size)?;
            }
            if atime.is_some() || mtime.is_some() {
                self.set_times(&node, [atime, mtime])?;
            }
            attr_of(node.raw())
        };
        answer!(reply, set(), |attr| reply.attr(&TTL, &as_seen(ino, attr)));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        self.wait();
        // SAFETY: child_call passes a live descriptor and a NUL-terminated name.
        let made = self
            .child_call(parent, name, |dir, name| unsafe { libc::mkdirat(dir, name, mode) })
            .and_then(|()| match request.uid() {
                0 => Ok(()),
                // SAFETY: as above.
                uid => self.child_call(parent, name, |dir, name| unsafe {
                    libc::fchownat(dir, name, uid, request.gid(), libc::AT_SYMLINK_NOFOLLOW)
                }),
            })
            .and_then(|()| self.entry(parent, name));
        answer!(reply, made, |attr| reply.entry(&TTL, &attr, GENERATION));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.wait();
        // SAFETY: as in mkdir.
        let done =
            self.child_call(parent, name, |dir, name| unsafe { libc::unlinkat(dir, name, 0) });
        answer!(reply, done, |()| reply.ok());
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.wait();
        // SAFETY: as in mkdir.
        let done = self.child_call(parent, name, |dir, name| unsafe {
            libc::unlinkat(dir, name, libc::AT_REMOVEDIR)
        });
        answer!(reply, done, |()| reply.ok());
    }

    fn symlink(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        self.wait();
        let made = c_name(target.as_os_str())
            .and_then(|target| {
                // SAFETY: as in mkdir; the target is NUL-terminated too.
                self.child_call(parent, name, |dir, name| unsafe {
                    libc::symlinkat(target.as_ptr(), dir, name)
                })
            })
            .and_then(|()| self.entry(parent, name));
        answer!(reply, made, |attr| reply.entry(&TTL, &attr, GENERATION));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.wait();
        let rename = || {
            let (to, to_name) = (self.inodes.get(newparent)?, c_name(newname)?);
            // SAFETY: as in mkdir, twice.
            self.child_call(parent, name, |from, name| unsafe {
                libc::renameat2(from, name, to.raw(), to_name.as_ptr(), flags.bits())
            })
        };
        answer!(reply, rename(), |()| reply.ok());
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.wait();
        let opened = || {
            let node = self.inodes.get(ino)?;
            let fd = self.open_file(&node, flags.0)?;
            Ok::<_, io::Error>((node, fd))
        };
        let (node, fd) = match opened() {
            Ok(pair) => pair,
            Err(error) => return reply.error(error.into()),
        };
        if self.mode == Mode::Plain {
            return reply.opened(FileHandle(fd.into_raw_fd() as u64), FopenFlags::empty());
        }
        let mut state = node.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if state.backing.is_none() {
            match reply.open_backing(fd.as_fd()) {
                Ok(id) => state.backing = Some(id),
                Err(error) => return reply.error(error.into()),
            }
        }
        state.count += 1;
        let id = state.backing.as_ref().expect("registered above");
        reply.opened_passthrough(FileHandle(fd.into_raw_fd() as u64), FopenFlags::empty(), id);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.wait();
        let created = || {
            let parent = self.inodes.get(parent)?;
            let fd = self.create_file(&parent, name, mode, flags)?;
            if request.uid() != 0 {
                // SAFETY: takes a descriptor and numbers alone.
                check(unsafe { libc::fchown(fd.as_raw_fd(), request.uid(), request.gid()) })?;
            }
            let (attr, node) = self.inodes.lookup(&parent, name)?;
            Ok::<_, io::Error>((attr, node, fd))
        };
        let (attr, node, fd) = match created() {
            Ok(made) => made,
            Err(error) => return reply.error(error.into()),
        };
        let none = FopenFlags::empty();
        if self.mode == Mode::Plain {
            let fh = FileHandle(fd.into_raw_fd() as u64);
            return reply.created(&TTL, &attr, GENERATION, fh, none);
        }
        let mut state = node.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if state.backing.is_none() {
            match reply.open_backing(fd.as_fd()) {
                Ok(id) => state.backing = Some(id),
                Err(error) => return reply.error(error.into()),
            }
        }
        state.count += 1;
        let id = state.backing.as_ref().expect("registered above");
        let fh = FileHandle(fd.into_raw_fd() as u64);
        reply.created_passthrough(&TTL, &attr, GENERATION, fh, none, id);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.wait();
        BUFFER.with_borrow_mut(|buffer| {
            let len = (size as usize).min(buffer.len());
            let read = borrowed(fh).read_at(&mut buffer[..len], offset);
            answer!(reply, read, |count| reply.data(&buffer[..count]));
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.wait();
        let written = borrowed(fh).write_all_at(data, offset);
        answer!(reply, written, |()| reply.written(data.len() as u32));
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // After this answer the kernel does not ask again: a close needs no work.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        drop(ManuallyDrop::into_inner(borrowed(fh)));
        if let (Mode::Pass, Ok(node)) = (self.mode, self.inodes.get(ino)) {
            let mut state = node.opened.lock().unwrap_or_else(PoisonError::into_inner);
            state.count -= 1;
            if state.count == 0 {
                state.backing = None;
            }
        }
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, fh: FileHandle, datasync: bool, reply: ReplyEmpty) {
        self.wait();
        let file = borrowed(fh);
        let synced = if datasync { file.sync_data() } else { file.sync_all() };
        answer!(reply, synced, |()| reply.ok());
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.wait();
        let (offset, length) = (offset as libc::off_t, length as libc::off_t);
        // SAFETY: a live descriptor and three numbers.
        let done =
            check(unsafe { libc::fallocate(borrowed(fh).as_raw_fd(), mode, offset, length) });
        answer!(reply, done, |()| reply.ok());
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let listing = self.inodes.get(ino).and_then(|node| self.listing(&node));
        answer!(reply, listing, |entries| {
            let handle = Box::into_raw(Box::new(Snapshot(entries)));
            reply.opened(FileHandle(handle as u64), FopenFlags::empty());
        });
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.wait();
        // SAFETY: `fh` is the box made in opendir and dropped only in releasedir.
        let Snapshot(entries) = unsafe { &*(fh.0 as *const Snapshot) };
        for (index, (ino, kind, name)) in entries.iter().enumerate().skip(offset as usize) {
            if reply.add(INodeNo(*ino), index as u64 + 1, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        _: &Request,
        dir: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.wait();
        let parent = match self.inodes.get(dir) {
            Ok(node) => node,
            Err(error) => return reply.error(error.into()),
        };
        // SAFETY: as in readdir.
        let Snapshot(entries) = unsafe { &*(fh.0 as *const Snapshot) };
        for (index, (_, _, name)) in entries.iter().enumerate().skip(offset as usize) {
            // Entries that vanished since opendir are not listed.
            let Ok((attr, _)) = self.inodes.lookup(&parent, name) else { continue };
            if reply.add(attr.ino, index as u64 + 1, name, &TTL, &attr, GENERATION) {
                self.inodes.forget(attr.ino, 1);
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, fh: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        // SAFETY: the kernel releases a handle once.
        drop(unsafe { Box::from_raw(fh.0 as *mut Snapshot) });
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1 << 30, 1 << 30, 1 << 30, 1 << 30, 1 << 30, 4096, 255, 4096);
    }
}

/// The root's own inode number differs from the one FUSE reserves for it.
fn as_seen(ino: INodeNo, attr: FileAttr) -> FileAttr {
    FileAttr { ino, ..attr }
}
