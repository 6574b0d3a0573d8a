//! The seam to the fast tier: everything the engine writes there goes through [`Media`], so that
//! a test can keep, drop or tear what was not synced.
//!
//! Names are relative to the tier, ASCII, with `/` between components.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use forebay_backing::metrics::{Op, OpCounts};
use forebay_backing::{FileKind, Timestamp, leave_room};
use rustix::fs;
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::tier::media::stock::Stock;
use forebay_base::folder::{Folder, Wanted};

mod mark;
mod stock;

/// What to do when a name does or does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    Existing,
    /// Created empty, in the place of one that exists.
    Fresh,
    /// Opened as it is, created empty if missing.
    Keep,
}

/// Total and available bytes of the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    pub total: u64,
    pub available: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MediaStat {
    pub len: u64,
    /// Bytes occupied, which differs from `len` for sparse files.
    pub allocated: u64,
    pub mtime: Timestamp,
    pub kind: FileKind,
}

/// A place for files on fast storage.
pub trait Media: Send + Sync + 'static {
    fn open(&self, name: &str, how: Open) -> io::Result<Arc<dyn MediaFile>>;
    fn stat(&self, name: &str) -> io::Result<MediaStat>;
    fn remove(&self, name: &str) -> io::Result<()>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn make_dir(&self, name: &str) -> io::Result<()>;
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;
    /// Makes the entries of `dir` durable.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;
    /// Makes everything on the medium durable.
    fn sync_all(&self) -> io::Result<()>;
    fn space(&self) -> io::Result<Space>;
    /// Whether it is memory, of which a file's pages are found when it is written.
    fn is_memory(&self) -> bool {
        false
    }
    /// What tells that it was mounted all the time since it said the same; `None` if nothing does.
    fn mount_mark(&self) -> Option<String> {
        None
    }
    /// Latency of every operation so far, by name.
    fn op_counts(&self) -> Vec<(&'static str, OpCounts)> {
        Vec::new()
    }
}

/// An open file of a [`Media`].
pub trait MediaFile: Send + Sync {
    /// Reads until `buf` is full or the file ends; returns the bytes read.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    fn set_len(&self, len: u64) -> io::Result<()>;
    fn stat(&self) -> io::Result<MediaStat>;
    fn set_mtime(&self, mtime: Timestamp) -> io::Result<()>;
    /// Makes bytes and size durable (fdatasync).
    fn sync_data(&self) -> io::Result<()>;
    /// Begins to write a range out, so that the next sync has less to wait for. Nothing is durable by it.
    fn begin_sync(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Ok(())
    }
    /// Frees `[offset, offset + len)`, which then reads as zeros; the size stays.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Reserves space for `[offset, offset + len)` without changing bytes or size.
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()>;
    /// The next stretch at or after `offset` that is not a hole.
    fn next_data(&self, offset: u64) -> io::Result<Option<(u64, u64)>>;
    /// Whether nobody else has the file open, in this process or another.
    fn is_ours_alone(&self) -> io::Result<bool> {
        Ok(true)
    }
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[derive(Debug, Default)]
struct Ops {
    open: Op,
    read: Op,
    write: Op,
    sync: Op,
    punch: Op,
    remove: Op,
}

/// A directory of a local file system.
#[derive(Debug)]
pub struct DirMedia {
    folder: Folder,
    is_memory: bool,
    stock: Stock,
    ops: Arc<Ops>,
}

impl DirMedia {
    /// Any directory, whoever may write to it.
    pub fn open(root: &Path) -> io::Result<DirMedia> {
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        let fd = fs::open(root, flags, Mode::empty())?;
        DirMedia::of(Folder::of(fd.as_fd(), root)?)
    }

    pub fn of(folder: Folder) -> io::Result<DirMedia> {
        let is_memory = fs::fstatfs(&folder)?.f_type == libc::TMPFS_MAGIC;
        Ok(DirMedia { folder, is_memory, stock: Stock::default(), ops: Arc::default() })
    }

    fn create(&self, name: &str) -> io::Result<OwnedFd> {
        if let Some(fd) = self.stock.take(self.folder.as_fd(), name)? {
            return Ok(fd);
        }
        let began = Instant::now();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let made = self.folder.open(name, flags, Wanted::File);
        self.stock.note(began.elapsed());
        made
    }
}

impl Media for DirMedia {
    fn open(&self, name: &str, how: Open) -> io::Result<Arc<dyn MediaFile>> {
        let open = || match how {
            Open::Existing => self.folder.open(name, OFlags::RDWR, Wanted::File),
            Open::Keep => self.folder.open(name, OFlags::RDWR | OFlags::CREATE, Wanted::File),
            Open::Fresh => self.create(name),
        };
        let fd = match self.ops.open.time(|_| 0, open) {
            // Not emptied: programs may have mapped what is there.
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {
                fs::unlinkat(&self.folder, name, AtFlags::empty())?;
                self.ops.open.time(|_| 0, open)?
            }
            opened => opened?,
        };
        // The log and its like are to be opened whatever programs have open.
        let fd = if name.starts_with("shadow/") { leave_room(fd)? } else { fd };
        Ok(Arc::new(DirMediaFile { fd, ops: self.ops.clone() }))
    }

    fn stat(&self, name: &str) -> io::Result<MediaStat> {
        Ok(media_stat(&fs::statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(self.ops.remove.time(|()| 0, || fs::unlinkat(&self.folder, name, AtFlags::empty()))?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(fs::renameat(&self.folder, from, &self.folder, to)?)
    }

    fn make_dir(&self, name: &str) -> io::Result<()> {
        self.folder.make_dir(name)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let names = self.folder.list(dir)?.into_iter();
        Ok(names.filter_map(|name| name.into_string().ok()).collect())
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY;
        let below = match dir {
            "" => None,
            _ => Some(self.folder.open(dir, flags, Wanted::Dir)?),
        };
        let fd = below.as_ref().map_or(self.folder.as_fd(), AsFd::as_fd);
        Ok(self.ops.sync.time(|()| 0, || fs::fsync(fd))?)
    }

    fn sync_all(&self) -> io::Result<()> {
        Ok(self.ops.sync.time(|()| 0, || fs::syncfs(&self.folder))?)
    }

    fn space(&self) -> io::Result<Space> {
        let s = fs::fstatvfs(&self.folder)?;
        Ok(Space { total: s.f_blocks * s.f_frsize, available: s.f_bavail * s.f_frsize })
    }

    fn is_memory(&self) -> bool {
        self.is_memory
    }

    fn mount_mark(&self) -> Option<String> {
        mark::of(self.folder.as_fd())
    }

    fn op_counts(&self) -> Vec<(&'static str, OpCounts)> {
        let o = &self.ops;
        [
            ("open", &o.open),
            ("read", &o.read),
            ("write", &o.write),
            ("sync", &o.sync),
            ("punch", &o.punch),
            ("remove", &o.remove),
        ]
        .map(|(name, op)| (name, op.counts()))
        .to_vec()
    }
}

struct DirMediaFile {
    fd: OwnedFd,
    ops: Arc<Ops>,
}

impl MediaFile for DirMediaFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.ops.read.time(|n: &usize| *n as u64, || read_full(&self.fd, buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let len = buf.len() as u64;
        self.ops.write.time(|()| len, || write_full(&self.fd, buf, offset))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(fs::ftruncate(&self.fd, len)?)
    }

    fn stat(&self) -> io::Result<MediaStat> {
        Ok(media_stat(&fs::fstat(&self.fd)?))
    }

    fn set_mtime(&self, mtime: Timestamp) -> io::Result<()> {
        let omit = fs::Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT };
        let mtime = fs::Timespec { tv_sec: mtime.sec, tv_nsec: mtime.nsec.into() };
        Ok(fs::futimens(&self.fd, &fs::Timestamps { last_access: omit, last_modification: mtime })?)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(self.ops.sync.time(|()| 0, || fs::fdatasync(&self.fd))?)
    }

    fn begin_sync(&self, offset: u64, len: u64) -> io::Result<()> {
        let (offset, len) = (offset as libc::off64_t, len as libc::off64_t);
        // SAFETY: takes numbers alone.
        match unsafe {
            libc::sync_file_range(self.fd.as_raw_fd(), offset, len, libc::SYNC_FILE_RANGE_WRITE)
        } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(self.ops.punch.time(|()| len, || fs::fallocate(&self.fd, flags, offset, len))?)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(fs::fallocate(&self.fd, FallocateFlags::KEEP_SIZE, offset, len)?)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<(u64, u64)>> {
        let start = match fs::seek(&self.fd, SeekFrom::Data(offset)) {
            Err(Errno::NXIO) => return Ok(None),
            other => other?,
        };
        Ok(Some((start, fs::seek(&self.fd, SeekFrom::Hole(start))?)))
    }

    /// A write lease is granted to the only opener; see fcntl(2), F_SETLEASE.
    fn is_ours_alone(&self) -> io::Result<bool> {
        // Not in the libc crate: fcntl(2).
        const F_SETSIG: i32 = 10;
        let fcntl = |command: i32, value: i32| {
            // SAFETY: both commands take an integer.
            match unsafe { libc::fcntl(self.fd.as_raw_fd(), command, value) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        // Who opens the file at this very moment breaks the lease, and the signal that tells of it
        // by default ends the process: one that does nothing instead.
        fcntl(F_SETSIG, libc::SIGURG)?;
        match fcntl(libc::F_SETLEASE, libc::F_WRLCK) {
            Ok(()) => fcntl(libc::F_SETLEASE, libc::F_UNLCK).map(|()| true),
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }
}

/// Whether no program has the shadow open or mapped past us. One that was passed through to it may
/// close it and keep its mapping, of which the kernel tells us nothing: the mapping holds the shadow
/// and not our file. What is taken out of a shadow would be zeros to it, and what it stores there
/// would be seen by nobody. (`backing_file_mmap` in Linux, fs/backing-file.c.)
pub(crate) fn is_alone(shadow: &dyn MediaFile) -> bool {
    // A file system without leases cannot tell; then there is none.
    shadow.is_ours_alone().unwrap_or(true)
}

/// What is on record as present and is not in the shadow is not zeros.
pub(crate) fn torn() -> std::io::Error {
    std::io::Error::other("a shadow file is shorter than the record of it")
}

fn read_full(fd: &OwnedFd, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pread(fd, &mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(done)
}

fn write_full(fd: &OwnedFd, buf: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pwrite(fd, &buf[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn media_stat(stat: &fs::Stat) -> MediaStat {
    MediaStat {
        len: stat.st_size as u64,
        allocated: stat.st_blocks as u64 * 512,
        mtime: Timestamp { sec: stat.st_mtime, nsec: stat.st_mtime_nsec as u32 },
        kind: kind(stat),
    }
}

fn kind(stat: &fs::Stat) -> FileKind {
    match fs::FileType::from_raw_mode(stat.st_mode) {
        fs::FileType::RegularFile => FileKind::File,
        fs::FileType::Directory => FileKind::Dir,
        fs::FileType::Symlink => FileKind::Symlink,
        fs::FileType::Fifo => FileKind::Fifo,
        fs::FileType::Socket => FileKind::Socket,
        fs::FileType::CharacterDevice => FileKind::Char,
        _ => FileKind::Block,
    }
}
