//! A store that squashes root, as an NFS server does by default: a directory behind a FUSE file system
//! that makes each call with the rights of its caller, and root's calls with those of nobody.
//!
//! The kernel caches nothing, so each lookup of a name is a call with the rights of its caller. Links,
//! extended attributes and supplementary groups are left out.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    AccessFlags, BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType,
    Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    SessionACL, TimeOrNow, WriteFlags,
};

use crate::sys;
use crate::user::User;
use crate::wait::{PATIENCE, eventually};

const NOBODY: User = User { uid: 65_534, gid: 65_534, groups: &[] };
const NOTHING: Duration = Duration::ZERO;

/// The mount, removed when dropped.
pub struct Squashed {
    session: Option<BackgroundSession>,
    at: PathBuf,
    store: Arc<Store>,
}

impl Squashed {
    pub fn export(dir: &Path, at: &Path) -> Squashed {
        fs::create_dir_all(at).expect("a directory for the mount");
        let store = Arc::new(Store::of(dir));
        let mut config = Config::default();
        config.acl = SessionACL::All;
        let session = fuser::spawn_mount(Server(store.clone()), at, &config).expect("a FUSE mount");
        Squashed { session: Some(session), at: at.into(), store }
    }

    /// The number of root's calls that were refused: proof that root has no rights there.
    pub fn refused_root(&self) -> u64 {
        self.store.refused_root.load(Relaxed)
    }
}

impl Drop for Squashed {
    fn drop(&mut self) {
        drop(self.session.take());
        if !eventually(PATIENCE, || crate::images::unmount(&self.at, false).is_ok()) {
            let _ = crate::images::unmount(&self.at, true);
        }
    }
}

struct Store {
    dir: PathBuf,
    /// The last known path of each inode, relative to the directory.
    paths: Mutex<HashMap<u64, PathBuf>>,
    files: Mutex<HashMap<u64, Arc<File>>>,
    next: AtomicU64,
    refused_root: AtomicU64,
}

impl Store {
    fn of(dir: &Path) -> Store {
        let (next, refused_root) = (AtomicU64::new(1), AtomicU64::new(0));
        let (paths, files) = (Mutex::default(), Mutex::default());
        Store { dir: dir.into(), paths, files, next, refused_root }
    }

    fn paths(&self) -> MutexGuard<'_, HashMap<u64, PathBuf>> {
        self.paths.lock().expect("no panic inside")
    }

    fn files(&self) -> MutexGuard<'_, HashMap<u64, Arc<File>>> {
        self.files.lock().expect("no panic inside")
    }

    fn path(&self, ino: INodeNo) -> PathBuf {
        match ino {
            INodeNo::ROOT => self.dir.clone(),
            INodeNo(ino) => self.paths().get(&ino).cloned().unwrap_or_default(),
        }
    }

    /// Makes a call with the rights of the requester.
    fn act<T: Send>(
        &self,
        request: &Request,
        work: impl FnOnce() -> io::Result<T> + Send,
    ) -> Result<T, Errno> {
        let (uid, gid) = (request.uid(), request.gid());
        let whose = if uid == 0 { NOBODY } else { User { uid, gid, groups: &[] } };
        let done = whose.run(0, work);
        let refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        if uid == 0 && done.as_ref().is_err_and(refused) {
            self.refused_root.fetch_add(1, Relaxed);
        }
        done.map_err(Errno::from)
    }

    /// Notes the path of a file that the kernel now knows, and returns its attributes.
    fn seen(&self, path: PathBuf, meta: &Metadata) -> FileAttr {
        self.paths().insert(meta.ino(), path);
        attr(INodeNo(meta.ino()), meta)
    }

    fn keep(&self, file: File) -> FileHandle {
        let handle = self.next.fetch_add(1, Relaxed);
        self.files().insert(handle, Arc::new(file));
        FileHandle(handle)
    }

    fn file(&self, handle: FileHandle) -> Arc<File> {
        self.files().get(&handle.0).expect("the kernel has opened it").clone()
    }

    fn renamed(&self, from: &Path, to: &Path) {
        for path in self.paths().values_mut() {
            if let Ok(below) = path.strip_prefix(from) {
                *path = if below.as_os_str().is_empty() { to.into() } else { to.join(below) };
            }
        }
    }
}

fn attr(ino: INodeNo, meta: &Metadata) -> FileAttr {
    let time = |seconds: i64, nanos: i64| {
        UNIX_EPOCH + Duration::new(seconds.cast_unsigned(), nanos as u32)
    };
    FileAttr {
        ino,
        size: meta.size(),
        blocks: meta.blocks(),
        atime: time(meta.atime(), meta.atime_nsec()),
        mtime: time(meta.mtime(), meta.mtime_nsec()),
        ctime: time(meta.ctime(), meta.ctime_nsec()),
        crtime: UNIX_EPOCH,
        kind: FileType::from_std(meta.file_type()).expect("a file of a known kind"),
        perm: (meta.mode() & 0o7777) as u16,
        nlink: meta.nlink() as u32,
        uid: meta.uid(),
        gid: meta.gid(),
        rdev: 0,
        blksize: meta.blksize() as u32,
        flags: 0,
    }
}

fn opened(path: &Path, flags: i32) -> io::Result<File> {
    // The kernel gives the offset of each write.
    let kept = flags & !(libc::O_ACCMODE | libc::O_APPEND | libc::O_CREAT | libc::O_EXCL);
    let access = flags & libc::O_ACCMODE;
    OpenOptions::new()
        .read(access != libc::O_WRONLY)
        .write(access != libc::O_RDONLY)
        .custom_flags(kept)
        .open(path)
}

/// The attributes to set on a file.
struct Change {
    mode: Option<u32>,
    owner: (Option<u32>, Option<u32>),
    size: Option<u64>,
    times: (Option<TimeOrNow>, Option<TimeOrNow>),
}

impl Change {
    fn make(&self, path: &Path, open: Option<&File>) -> io::Result<()> {
        if let Some(mode) = self.mode {
            fs::set_permissions(path, PermissionsExt::from_mode(mode & 0o7777))?;
        }
        if self.owner != (None, None) {
            std::os::unix::fs::chown(path, self.owner.0, self.owner.1)?;
        }
        match (self.size, open) {
            (None, _) => {}
            (Some(size), Some(file)) => file.set_len(size)?,
            (Some(size), None) => opened(path, libc::O_WRONLY)?.set_len(size)?,
        }
        if self.times != (None, None) {
            sys::utimens(path, timespec(self.times.0), timespec(self.times.1))?;
        }
        Ok(())
    }
}

fn timespec(time: Option<TimeOrNow>) -> (i64, i64) {
    match time {
        None => (0, libc::UTIME_OMIT),
        Some(TimeOrNow::Now) => (0, libc::UTIME_NOW),
        Some(TimeOrNow::SpecificTime(at)) => {
            let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
            (since.as_secs().cast_signed(), i64::from(since.subsec_nanos()))
        }
    }
}

struct Server(Arc<Store>);

impl Server {
    fn child(&self, parent: INodeNo, name: &OsStr) -> PathBuf {
        self.0.path(parent).join(name)
    }

    /// Makes or finds a name, and replies with its entry.
    fn entry(
        &self,
        request: &Request,
        path: PathBuf,
        reply: ReplyEntry,
        make: impl FnOnce(&Path) -> io::Result<()> + Send,
    ) {
        let made = self.0.act(request, || {
            make(&path)?;
            fs::symlink_metadata(&path)
        });
        match made {
            Ok(meta) => reply.entry(&NOTHING, &self.0.seen(path, &meta), Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn empty(
        &self,
        request: &Request,
        reply: ReplyEmpty,
        work: impl FnOnce() -> io::Result<()> + Send,
    ) {
        match self.0.act(request, work) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }
}

impl Filesystem for Server {
    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(request, self.child(parent, name), reply, |_| Ok(()));
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let path = self.0.path(ino);
        match self.0.act(request, || fs::symlink_metadata(&path)) {
            Ok(meta) => reply.attr(&NOTHING, &attr(ino, &meta)),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = Change { mode, owner: (uid, gid), size, times: (atime, mtime) };
        let (path, open) = (self.0.path(ino), handle.map(|handle| self.0.file(handle)));
        let changed = self.0.act(request, || {
            change.make(&path, open.as_deref())?;
            fs::symlink_metadata(&path)
        });
        match changed {
            Ok(meta) => reply.attr(&NOTHING, &attr(ino, &meta)),
            Err(errno) => reply.error(errno),
        }
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
        self.entry(request, self.child(parent, name), reply, |path| {
            fs::DirBuilder::new().mode(mode & 0o7777).create(path)
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let path = self.child(parent, name);
        self.empty(request, reply, || fs::remove_file(&path));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let path = self.child(parent, name);
        self.empty(request, reply, || fs::remove_dir(&path));
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = (self.child(parent, name), self.child(new_parent, new_name));
        self.empty(request, reply, || {
            sys::rename(&from, &to, flags.bits())?;
            self.0.renamed(&from, &to);
            Ok(())
        });
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let path = self.0.path(ino);
        match self.0.act(request, || opened(&path, flags.0)) {
            Ok(file) => reply.opened(self.0.keep(file), FopenFlags::FOPEN_DIRECT_IO),
            Err(errno) => reply.error(errno),
        }
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
        let path = self.child(parent, name);
        let made = self.0.act(request, || {
            let flags = flags & !libc::O_APPEND | libc::O_CREAT;
            let file = sys::open(&path, flags, mode & 0o7777)?;
            let meta = file.metadata()?;
            Ok((file, meta))
        });
        match made {
            Ok((file, meta)) => {
                let (attr, handle) = (self.0.seen(path, &meta), self.0.keep(file));
                let flags = FopenFlags::FOPEN_DIRECT_IO;
                reply.created(&NOTHING, &attr, Generation(0), handle, flags);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; size as usize];
        match self.0.file(handle).read_at(&mut bytes, offset) {
            Ok(read) => reply.data(&bytes[..read]),
            Err(error) => reply.error(error.into()),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.0.file(handle).write_all_at(data, offset) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error.into()),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.0.file(handle).sync_all() {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.0.files().remove(&handle.0);
        reply.ok();
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let path = self.0.path(ino);
        match self.0.act(request, || fs::read_dir(&path).map(drop)) {
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = fs::read_dir(self.0.path(ino)).expect("it was opened");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("an entry"))
            .map(|entry| (entry.file_name(), entry.file_type().expect("its kind")))
            .collect();
        names.sort_by(|a, b| a.0.cmp(&b.0));
        for (at, (name, kind)) in names.into_iter().enumerate().skip(offset as usize) {
            let kind = FileType::from_std(kind).expect("a known kind");
            // Without a number: the kernel looks the name up.
            if reply.add(INodeNo(u64::MAX), at as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let path = self.0.path(ino);
        // SAFETY: the path is NUL-terminated.
        let ask = || sys::check(unsafe { libc::access(sys::c(&path).as_ptr(), mask.bits()) });
        self.empty(request, reply, || ask().map(drop));
    }
}
