//! The interface to the fast tier: everything that the engine writes to the tier goes through [`Media`], so
//! that a test can keep, drop or tear unsynced bytes.
//!
//! Names are relative to the tier, ASCII, with `/` between components.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_backing::metrics::{Op, OpCounts};
use forebay_backing::{FileKind, Timestamp, leave_room};
use rustix::fs;
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use crate::media::raw::{read_behind, read_full, write_full};
use crate::media::stock::Stock;
use crate::media::whole::Whole;
use forebay_base::folder::{Folder, Wanted};

mod mark;
mod raw;
mod sealing;
mod stock;
mod whole;

/// What to do when a name does or does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    Existing,
    /// Created empty, in the place of an existing file.
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
    /// Moves with every change of the file, however its other times are set.
    pub ctime: Timestamp,
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
    /// Makes a file durable for the first time: bytes, size, and its name in `dir`.
    fn sync_new(&self, file: &dyn MediaFile, dir: &str) -> io::Result<()> {
        file.sync_data()?;
        self.sync_dir(dir)
    }
    /// Makes everything on the medium durable.
    fn sync_all(&self) -> io::Result<()>;
    /// The number of failed syncs of the medium and its files so far. With each failure the device may have
    /// lost bytes of any file that it had been given and had not flushed; the kernel counts them as written.
    fn failed_syncs(&self) -> u64 {
        0
    }
    fn space(&self) -> io::Result<Space>;
    /// Whether the medium is memory, where a file's pages are allocated when they are written.
    fn is_memory(&self) -> bool {
        false
    }
    /// Whether overwriting bytes takes new room.
    fn copies_on_write(&self) -> bool {
        false
    }
    /// Whether any two changes of a file have different times if its times are read in between. Where times
    /// come from a clock's last tick, they may be equal.
    fn tells_each_change(&self) -> bool {
        true
    }
    /// Whether a lease tells if another program has a file open. Where leases are not granted, no program may
    /// have a file open past the daemon.
    fn grants_leases(&self) -> bool {
        true
    }
    /// Whether the seal that [`MediaFile::seal`] sets is durable only once all bytes that were written out
    /// before are, of that file or another.
    fn keeps_seals(&self) -> bool {
        false
    }
    /// The seal of a file, if it has one.
    fn seal_of(&self, _name: &str) -> io::Result<Option<Vec<u8>>> {
        Ok(None)
    }
    /// A mark that stays the same as long as the medium stays mounted; `None` if there is none.
    fn mount_mark(&self) -> Option<String> {
        None
    }
    /// The latency of every operation so far, by name.
    fn op_counts(&self) -> Vec<(&'static str, OpCounts)> {
        Vec::new()
    }
}

/// An open file of a [`Media`].
pub trait MediaFile: Send + Sync {
    /// Reads until `buf` is full or the file ends; returns the bytes read.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Appends up to `len` bytes from `offset` to `out`; returns their number.
    fn read_onto(&self, out: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<usize> {
        let begin = out.len();
        out.resize(begin + len, 0);
        let read = self.read_at(&mut out[begin..], offset);
        out.truncate(begin + *read.as_ref().unwrap_or(&0));
        read
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()>;
    fn set_len(&self, len: u64) -> io::Result<()>;
    fn stat(&self) -> io::Result<MediaStat>;
    /// The file's length in bytes, and no more: a caller that reads the times makes the file's next change keep
    /// a time of its own (Linux, multigrain-ts.rst), and the sync after that write the inode as well.
    fn size(&self) -> io::Result<u64> {
        Ok(self.stat()?.len)
    }
    fn set_mtime(&self, mtime: Timestamp) -> io::Result<()>;
    /// Makes bytes and size durable (fdatasync).
    fn sync_data(&self) -> io::Result<()>;
    /// Hands all bytes before `end` to the device, which may still lose them.
    fn write_out(&self, _end: u64) -> io::Result<()> {
        Ok(())
    }
    /// Sets the seal of the file, in the place of the earlier one. The seal is durable after the next
    /// [`MediaFile::sync_sealed`], or before.
    ///
    /// # Errors
    ///
    /// Also if a seal of this file would not be valid, whatever [`Media::keeps_seals`] says.
    fn seal(&self, _seal: &[u8]) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }
    /// Makes bytes, size, seal and name of the file durable (fsync), with a flush of the device that begins
    /// after this call.
    fn sync_sealed(&self) -> io::Result<()> {
        self.sync_data()
    }
    /// Whether the flush by another sealed file of the medium reaches the device that this file's bytes are on.
    fn is_flushed_by_others(&self) -> bool {
        false
    }
    /// About how many bytes a sync would have to write; 0 if unknown.
    fn unsynced(&self) -> u64 {
        0
    }
    /// Starts the writing of dirty pages, and does not wait.
    fn begin_sync(&self) {}
    /// Frees `[offset, offset + len)`, which then reads as zeros; the size stays.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Reserves space for `[offset, offset + len)` without changing bytes or size.
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()>;
    /// The next stretch at or after `offset` that is not a hole.
    fn next_data(&self, offset: u64) -> io::Result<Option<(u64, u64)>>;
    /// Whether no other descriptor has the file open, in this process or another.
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
    copies_on_write: bool,
    syncs_names: bool,
    /// The device number of the directory's file system, as its files report it.
    dev: u64,
    tells_each_change: OnceLock<bool>,
    leases: Arc<OnceLock<bool>>,
    keeps_seals: OnceLock<bool>,
    stock: Stock,
    ops: Arc<Ops>,
    whole: Whole,
}

/// Types of file systems that write nothing in place: btrfs, bcachefs, ZFS.
const COPYING: [i64; 3] = [0x9123_683e, 0xca45_1a4e, 0x2fc1_2fc1];

/// The number of changes that are tried to see whether each one has a time of its own.
const CHANGES: usize = 16;

impl DirMedia {
    /// Opens a directory, whichever users may write to it.
    pub fn open(root: &Path) -> io::Result<DirMedia> {
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        let fd = fs::open(root, flags, Mode::empty())?;
        DirMedia::of(Folder::of(fd.as_fd(), root)?)
    }

    pub fn of(folder: Folder) -> io::Result<DirMedia> {
        let magic = fs::fstatfs(&folder)?.f_type;
        let syncs_names = mark::syncs_names(folder.as_fd());
        let dev = fs::fstat(&folder)?.st_dev;
        Ok(DirMedia {
            folder,
            syncs_names,
            dev,
            is_memory: magic == libc::TMPFS_MAGIC,
            copies_on_write: COPYING.contains(&magic),
            tells_each_change: OnceLock::new(),
            leases: Arc::default(),
            keeps_seals: OnceLock::new(),
            stock: Stock::default(),
            ops: Arc::default(),
            whole: Whole::default(),
        })
    }

    /// Changes a file again and again within a tick, and reads its time after each change.
    fn see_changes(&self) -> io::Result<bool> {
        const NAME: &str = "digests/times";
        let began = Instant::now();
        let file = self.open(NAME, Open::Fresh)?;
        let mut times = Vec::new();
        for n in 0..CHANGES {
            file.write_at(&[n as u8], 0)?;
            times.push(file.stat()?.ctime);
        }
        let took = began.elapsed();
        self.remove(NAME)?;
        times.dedup();
        // This time cannot hold as many ticks, whatever the clock.
        Ok(times.len() == CHANGES && took < Duration::from_millis(CHANGES as u64 / 2))
    }

    /// Takes a lease of a file that no other program knows.
    fn see_lease(&self) -> io::Result<bool> {
        const NAME: &str = "digests/lease";
        let told = self.open(NAME, Open::Fresh)?.is_ours_alone().is_ok();
        self.remove(NAME)?;
        Ok(told)
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
        let open = || open().map_err(full);
        let fd = match self.ops.open.time(|_| 0, open) {
            // The old file is not emptied: programs may have it mapped.
            Err(e) if e.raw_os_error() == Some(libc::EEXIST) => {
                fs::unlinkat(&self.folder, name, AtFlags::empty())?;
                self.ops.open.time(|_| 0, open)?
            }
            opened => opened?,
        };
        // The log and files like it must stay openable, however many files programs have open.
        let is_of_a_file =
            ["shadow/", "digests/", "taken/"].iter().any(|dir| name.starts_with(dir));
        let fd = if is_of_a_file { leave_room(fd)? } else { fd };
        let (leases, ops) = (self.leases.clone(), self.ops.clone());
        Ok(Arc::new(DirMediaFile { fd, dev: self.dev, leases, ops, seals: OnceLock::new() }))
    }

    fn stat(&self, name: &str) -> io::Result<MediaStat> {
        Ok(media_stat(&fs::statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(self.ops.remove.time(|()| 0, || fs::unlinkat(&self.folder, name, AtFlags::empty()))?)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::renameat(&self.folder, from, &self.folder, to).map_err(|e| full(e.into()))
    }

    fn make_dir(&self, name: &str) -> io::Result<()> {
        self.folder.make_dir(name).map_err(full)
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

    fn sync_new(&self, file: &dyn MediaFile, dir: &str) -> io::Result<()> {
        match file.as_fd() {
            // Not fdatasync: the name may be younger than the file, which only its times show.
            Some(fd) if self.syncs_names => Ok(self.ops.sync.time(|()| 0, || fs::fsync(fd))?),
            _ => {
                file.sync_data()?;
                self.sync_dir(dir)
            }
        }
    }

    fn sync_all(&self) -> io::Result<()> {
        self.whole.sync(|| Ok(self.ops.sync.time(|()| 0, || fs::syncfs(&self.folder))?))
    }

    fn space(&self) -> io::Result<Space> {
        let s = fs::fstatvfs(&self.folder)?;
        Ok(Space { total: s.f_blocks * s.f_frsize, available: s.f_bavail * s.f_frsize })
    }

    fn is_memory(&self) -> bool {
        self.is_memory
    }

    fn copies_on_write(&self) -> bool {
        self.copies_on_write
    }

    fn tells_each_change(&self) -> bool {
        *self.tells_each_change.get_or_init(|| self.see_changes().unwrap_or(false))
    }

    fn grants_leases(&self) -> bool {
        *self.leases.get_or_init(|| self.see_lease().unwrap_or(true))
    }

    fn keeps_seals(&self) -> bool {
        let keeps = || self.syncs_names && mark::commits_in_order(self.folder.as_fd());
        *self.keeps_seals.get_or_init(keeps)
    }

    fn seal_of(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        sealing::seal_of(self.folder.open(name, OFlags::RDONLY, Wanted::File)?.as_fd())
    }

    fn mount_mark(&self) -> Option<String> {
        mark::of(self.folder.as_fd())
    }

    fn failed_syncs(&self) -> u64 {
        self.ops.sync.errors()
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
    /// The device number of the medium's file system.
    dev: u64,
    /// Whether the medium grants leases, once that was tried.
    leases: Arc<OnceLock<bool>>,
    ops: Arc<Ops>,
    /// Whether seals of the file are valid, once that was tried.
    seals: OnceLock<bool>,
}

impl MediaFile for DirMediaFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.ops.read.time(|n: &usize| *n as u64, || read_full(&self.fd, buf, offset))
    }

    fn read_onto(&self, out: &mut Vec<u8>, len: usize, offset: u64) -> io::Result<usize> {
        self.ops.read.time(|n: &usize| *n as u64, || read_behind(&self.fd, out, len, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let len = buf.len() as u64;
        self.ops.write.time(|()| len, || write_full(&self.fd, buf, offset)).map_err(full)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        fs::ftruncate(&self.fd, len).map_err(|e| full(e.into()))
    }

    fn stat(&self) -> io::Result<MediaStat> {
        Ok(media_stat(&fs::fstat(&self.fd)?))
    }

    fn size(&self) -> io::Result<u64> {
        Ok(fs::statx(&self.fd, "", AtFlags::EMPTY_PATH, fs::StatxFlags::SIZE)?.stx_size)
    }

    fn set_mtime(&self, mtime: Timestamp) -> io::Result<()> {
        let omit = fs::Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT };
        let mtime = fs::Timespec { tv_sec: mtime.sec, tv_nsec: mtime.nsec.into() };
        Ok(fs::futimens(&self.fd, &fs::Timestamps { last_access: omit, last_modification: mtime })?)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(self.ops.sync.time(|()| 0, || fs::fdatasync(&self.fd))?)
    }

    fn write_out(&self, end: u64) -> io::Result<()> {
        sealing::write_out(self.fd.as_fd(), end).inspect_err(|_| self.ops.sync.fail())
    }

    fn seal(&self, seal: &[u8]) -> io::Result<()> {
        if !self.is_flushed_by_others() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        sealing::seal(self.fd.as_fd(), seal).map_err(full)
    }

    fn sync_sealed(&self) -> io::Result<()> {
        Ok(self.ops.sync.time(|()| 0, || fs::fsync(&self.fd))?)
    }

    fn is_flushed_by_others(&self) -> bool {
        *self.seals.get_or_init(|| mark::is_flushed_by_commits(self.fd.as_fd(), self.dev))
    }

    /// Uses cachestat(2), which Linux has since 6.5.
    fn unsynced(&self) -> u64 {
        const CACHESTAT: libc::c_long = 451;
        const PAGE: u64 = 4096;
        // From the beginning to the end.
        let range = [0u64; 2];
        // Pages in the cache, dirty, under writeback, evicted, and recently evicted.
        let mut found = [0u64; 5];
        // SAFETY: the range is two numbers and the answer five, as the system call defines them.
        let done = unsafe {
            libc::syscall(CACHESTAT, self.fd.as_raw_fd(), range.as_ptr(), found.as_mut_ptr(), 0)
        };
        if done == 0 { (found[1] + found[2]) * PAGE } else { 0 }
    }

    fn begin_sync(&self) {
        // SAFETY: the call takes numbers alone.
        unsafe { libc::sync_file_range(self.fd.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(self.ops.punch.time(|()| len, || fs::fallocate(&self.fd, flags, offset, len))?)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        fs::fallocate(&self.fd, FallocateFlags::KEEP_SIZE, offset, len).map_err(|e| full(e.into()))
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
        // A program that opens the file at this very moment breaks the lease. The signal for that ends the
        // process by default: this one is ignored by default.
        fcntl(F_SETSIG, libc::SIGURG)?;
        match fcntl(libc::F_SETLEASE, libc::F_WRLCK) {
            Ok(()) => fcntl(libc::F_SETLEASE, libc::F_UNLCK).map(|()| true),
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => Ok(false),
            // The medium grants no leases: no program was let past the daemon.
            Err(_) if self.leases.get() == Some(&false) => Ok(true),
            Err(e) => Err(e),
        }
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }
}

/// A used-up quota counts as a full medium: eviction or a flush can make room.
fn full(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EDQUOT) => io::Error::from_raw_os_error(libc::ENOSPC),
        _ => error,
    }
}

/// Whether no program has the shadow open or mapped past the daemon. A program with a passed-through shadow may
/// close it and keep its mapping, which the kernel does not report: the mapping holds the shadow and not the
/// file in the mount. Bytes that are punched out of the shadow would be zeros to the program, and its stores
/// would be lost. (`backing_file_mmap` in Linux, fs/backing-file.c.)
pub fn is_alone(shadow: &dyn MediaFile) -> bool {
    // If the medium cannot tell, a program may have it open.
    shadow.is_ours_alone().unwrap_or(false)
}

/// The error for bytes that are on record as present and not in the shadow: they are not zeros.
pub fn torn() -> std::io::Error {
    std::io::Error::other("a shadow file is shorter than the record of it")
}

fn media_stat(stat: &fs::Stat) -> MediaStat {
    MediaStat {
        len: stat.st_size as u64,
        allocated: stat.st_blocks as u64 * 512,
        mtime: Timestamp { sec: stat.st_mtime, nsec: stat.st_mtime_nsec as u32 },
        ctime: Timestamp { sec: stat.st_ctime, nsec: stat.st_ctime_nsec as u32 },
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

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use forebay_backing::Timestamp;
    use forebay_backing::suite::TempDir;
    use rustix::time::{ClockId, clock_gettime};

    use super::{DirMedia, DirMediaFile, Media, MediaFile, Open};

    /// On a device that no commit flushes, a seal is refused.
    // S-3
    #[test]
    fn a_file_of_which_no_seal_counts_gets_none() {
        let dir = TempDir::new();
        let file = std::fs::File::create_new(dir.path().join("f")).expect("room");
        let media = DirMedia::open(dir.path()).expect("it is there");
        let (leases, ops) = (media.leases.clone(), media.ops.clone());
        let (fd, dev, seals) = (file.into(), media.dev, OnceLock::from(false));
        let file = DirMediaFile { fd, dev, leases, ops, seals };
        file.seal(&[1; 28]).expect_err("it would say what is not so");
        assert_eq!(media.seal_of("f").expect("it is there"), None);
    }

    /// How often of `TRIES` the second of two changes had a time of its own, with `look` between the two.
    fn times_of_their_own(file: &dyn MediaFile, look: impl Fn()) -> usize {
        let own = |_: &usize| {
            file.stat().expect("it is there");
            file.write_at(b"1", 0).expect("room");
            look();
            let between = clock_gettime(ClockId::Realtime);
            file.write_at(b"2", 0).expect("room");
            let between = Timestamp { sec: between.tv_sec, nsec: between.tv_nsec as u32 };
            file.stat().expect("it is there").ctime >= between
        };
        (0..TRIES).filter(own).count()
    }

    const TRIES: usize = 100;

    #[test]
    fn a_look_at_the_size_gives_the_next_change_no_time_of_its_own() {
        let dir = TempDir::new();
        let media = DirMedia::open(dir.path()).expect("it is there");
        let file = media.open("f", Open::Fresh).expect("room");
        let look = || assert_eq!(file.stat().expect("it is there").len, 1);
        if times_of_their_own(&*file, look) < TRIES {
            return eprintln!("SKIPPED: this file system's times are of a clock's ticks");
        }
        let sized = times_of_their_own(&*file, || assert_eq!(file.size().expect("it is there"), 1));
        // A tick may fall between the two changes.
        assert!(sized < TRIES / 2, "{sized} of {TRIES}");
    }
}
