//! System calls in the form that tests need: paths in, `io::Result` out, nothing buffered.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

pub fn c(text: impl AsRef<OsStr>) -> CString {
    CString::new(text.as_ref().as_bytes()).expect("no NUL in test names")
}

/// Turns the -1 of a system call into its errno.
pub fn check(result: impl Into<i64>) -> Result<i64> {
    match result.into() {
        -1 => Err(Error::last_os_error()),
        n => Ok(n),
    }
}

pub fn open(path: &Path, flags: i32, mode: u32) -> Result<File> {
    // SAFETY: the path is NUL-terminated; the returned descriptor has no other owner.
    let fd = check(unsafe { libc::open(c(path).as_ptr(), flags | libc::O_CLOEXEC, mode) })?;
    // SAFETY: as above.
    Ok(unsafe { File::from_raw_fd(fd as i32) })
}

pub fn errno<T: std::fmt::Debug>(result: Result<T>) -> i32 {
    match result {
        Ok(value) => panic!("expected an error, got {value:?}"),
        Err(error) => error.raw_os_error().expect("an errno"),
    }
}

pub fn fallocate(file: &File, mode: i32, offset: u64, len: u64) -> Result<()> {
    // SAFETY: integers only.
    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as i64, len as i64) }).map(drop)
}

pub const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

pub fn lseek(file: &File, offset: i64, whence: i32) -> Result<u64> {
    // SAFETY: integers only.
    check(unsafe { libc::lseek(file.as_raw_fd(), offset, whence) }).map(|n| n as u64)
}

pub fn mkfifo(path: &Path, mode: u32) -> Result<()> {
    // SAFETY: the path is NUL-terminated.
    check(unsafe { libc::mkfifo(c(path).as_ptr(), mode) }).map(drop)
}

pub fn mknod(path: &Path, mode: u32, dev: u64) -> Result<()> {
    // SAFETY: the path is NUL-terminated.
    check(unsafe { libc::mknod(c(path).as_ptr(), mode, dev) }).map(drop)
}

pub fn mkdir(path: &Path, mode: u32) -> Result<()> {
    // SAFETY: the path is NUL-terminated.
    check(unsafe { libc::mkdir(c(path).as_ptr(), mode) }).map(drop)
}

pub fn truncate(path: &Path, len: i64) -> Result<()> {
    // SAFETY: the path is NUL-terminated.
    check(unsafe { libc::truncate(c(path).as_ptr(), len) }).map(drop)
}

/// `RENAME_NOREPLACE` or `RENAME_EXCHANGE` in `flags`; 0 replaces.
pub fn rename(from: &Path, to: &Path, flags: u32) -> Result<()> {
    let (from, to) = (c(from), c(to));
    let at = libc::AT_FDCWD;
    // SAFETY: both paths are NUL-terminated.
    check(unsafe { libc::renameat2(at, from.as_ptr(), at, to.as_ptr(), flags) }).map(drop)
}

/// Sets access and modification time of the name itself.
pub fn utimens(path: &Path, atime: (i64, i64), mtime: (i64, i64)) -> Result<()> {
    let times = [atime, mtime].map(|(sec, nsec)| libc::timespec { tv_sec: sec, tv_nsec: nsec });
    let flags = libc::AT_SYMLINK_NOFOLLOW;
    // SAFETY: the path is NUL-terminated, the array has the two elements the call reads.
    check(unsafe { libc::utimensat(libc::AT_FDCWD, c(path).as_ptr(), times.as_ptr(), flags) })
        .map(drop)
}

pub fn set_xattr(path: &Path, name: &str, value: &[u8], flags: i32) -> Result<()> {
    let (path, name) = (c(path), c(name));
    let data = value.as_ptr().cast();
    // SAFETY: NUL-terminated strings, and a buffer of the length given.
    check(unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), data, value.len(), flags) })
        .map(drop)
}

pub fn get_xattr(path: &Path, name: &str) -> Result<Vec<u8>> {
    let (path, name) = (c(path), c(name));
    let mut value = vec![0u8; 65536];
    let data = value.as_mut_ptr().cast();
    // SAFETY: NUL-terminated strings, and a buffer of the length given.
    let len =
        check(unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), data, value.len()) } as i64)?;
    value.truncate(len as usize);
    Ok(value)
}

/// The attribute of the target of a link.
pub fn get_xattr_followed(path: &Path, name: &str) -> Result<Vec<u8>> {
    let (path, name) = (c(path), c(name));
    let mut value = vec![0u8; 65536];
    let data = value.as_mut_ptr().cast();
    // SAFETY: NUL-terminated strings, and a buffer of the length given.
    let len =
        check(unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), data, value.len()) } as i64)?;
    value.truncate(len as usize);
    Ok(value)
}

pub fn remove_xattr(path: &Path, name: &str) -> Result<()> {
    // SAFETY: NUL-terminated strings.
    check(unsafe { libc::lremovexattr(c(path).as_ptr(), c(name).as_ptr()) }).map(drop)
}

/// Names of all extended attributes, sorted.
pub fn list_xattr(path: &Path) -> Result<Vec<String>> {
    let mut names = vec![0u8; 65536];
    let data = names.as_mut_ptr().cast();
    // SAFETY: a NUL-terminated path, and a buffer of the length given.
    let len = check(unsafe { libc::llistxattr(c(path).as_ptr(), data, names.len()) } as i64)?;
    names.truncate(len as usize);
    let split = names.split(|b| *b == 0).filter(|name| !name.is_empty());
    let mut names: Vec<_> = split.map(|n| String::from_utf8_lossy(n).into_owned()).collect();
    names.sort();
    Ok(names)
}

/// A lock on a byte range as `fcntl` takes it; `kind` is `F_RDLCK`, `F_WRLCK` or `F_UNLCK`. With
/// `F_OFD_SETLK` locks belong to the open file, so one process can hold two.
pub fn ofd_lock(file: &File, kind: i32, start: i64, len: i64) -> Result<()> {
    ofd_call(file, libc::F_OFD_SETLK, kind, start, len)
}

/// Takes a lock, and waits until it is granted.
pub fn ofd_lock_wait(file: &File, kind: i32, start: i64, len: i64) -> Result<()> {
    ofd_call(file, libc::F_OFD_SETLKW, kind, start, len)
}

fn ofd_call(file: &File, command: i32, kind: i32, start: i64, len: i64) -> Result<()> {
    // SAFETY: flock is plain data for which zeros are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_start = start;
    lock.l_len = len;
    // SAFETY: the structure lives through the call.
    check(unsafe { libc::fcntl(file.as_raw_fd(), command, &lock) }).map(drop)
}

/// Shuts down the file system of `file` (XFS or ext4) without writing its log: from then on reads of
/// anything not in memory fail with EIO.
pub fn shut_down(file: &File) -> Result<()> {
    // `_IOR('X', 125, u32)`, the same for both; 2 is "no log flush".
    const SHUT_DOWN: u64 = 0x8004_587d;
    let how: u32 = 2;
    // SAFETY: the request reads one u32.
    check(unsafe { libc::ioctl(file.as_raw_fd(), SHUT_DOWN, &raw const how) }).map(drop)
}

pub fn flock(file: &File, operation: i32) -> Result<()> {
    // SAFETY: integers only.
    check(unsafe { libc::flock(file.as_raw_fd(), operation) }).map(drop)
}

pub fn copy_range(from: &File, at: u64, to: &File, to_at: u64, len: usize) -> Result<u64> {
    let (mut at, mut to_at) = (at as i64, to_at as i64);
    let (from, to) = (from.as_raw_fd(), to.as_raw_fd());
    // SAFETY: both offsets live through the call.
    check(unsafe { libc::copy_file_range(from, &mut at, to, &mut to_at, len, 0) } as i64)
        .map(|n| n as u64)
}

/// Space figures of the file system a path is on.
pub fn statvfs(path: &Path) -> rustix::fs::StatVfs {
    rustix::fs::statvfs(path).expect("statvfs")
}

/// Sets the process's file mode mask, for as long as the guard lives. Tests that use it run in a
/// process of their own, or hold no other creating thread.
pub fn umask(mask: u32) -> u32 {
    // SAFETY: an integer only.
    unsafe { libc::umask(mask) }
}

/// A shared mapping of a whole file.
pub struct Map {
    at: *mut u8,
    len: usize,
}

// SAFETY: a mapping belongs to the process, and not to a thread.
unsafe impl Send for Map {}

impl Map {
    pub fn shared(file: &File, len: usize, write: bool) -> Result<Map> {
        let protection = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        let null = std::ptr::null_mut();
        let fd = file.as_raw_fd();
        // SAFETY: a fresh mapping at a place of the kernel's choice.
        let at = unsafe { libc::mmap(null, len, protection, libc::MAP_SHARED, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        Ok(Map { at: at.cast(), len })
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping belongs to this value, with this length, until drop. Others may change
        // the file; tests that do so only look at bytes through copies made by them.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }

    /// Faults pages in, for reading. EFAULT stands for the SIGBUS that would kill a program reading
    /// them.
    pub fn populate(&self, range: std::ops::Range<usize>) -> Result<()> {
        // SAFETY: within this value's own mapping.
        let at = unsafe { self.at.add(range.start) };
        // SAFETY: as above.
        check(unsafe { libc::madvise(at.cast(), range.len(), libc::MADV_POPULATE_READ) }).map(drop)
    }

    pub fn sync(&self) -> Result<()> {
        // SAFETY: this value's own mapping.
        check(unsafe { libc::msync(self.at.cast(), self.len, libc::MS_SYNC) }).map(drop)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this value's own mapping, not used after this.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

/// Modification time with nanoseconds.
pub fn mtime(path: &Path) -> (i64, i64) {
    let meta = std::fs::symlink_metadata(path).expect("stat");
    (meta.mtime(), meta.mtime_nsec())
}

/// Copies a whole file by sharing its blocks: one moment of the source.
pub fn clone_file(from: &Path, to: &Path) -> Result<()> {
    let (from, to) = (File::open(from)?, File::create(to)?);
    // SAFETY: two descriptors that live through the call.
    check(unsafe { libc::ioctl(to.as_raw_fd(), libc::FICLONE as _, from.as_raw_fd()) }).map(drop)
}

/// The number of a file's extents that are shared with another file, and the number of all its
/// extents.
pub fn shared_extents(path: &Path) -> Result<(usize, usize)> {
    const MOST: usize = 512;
    // Parts of struct fiemap: the size of its head, of each extent, and the offsets of numbers in
    // them.
    const HEAD: usize = 32;
    const EXTENT: usize = 56;
    const MAPPED: usize = 20;
    const FLAGS: usize = 40;
    const FS_IOC_FIEMAP: u64 = 0xc020_660b;
    const SYNC_FIRST: u32 = 1;
    const SHARED: u32 = 0x2000;
    let mut map = vec![0u8; HEAD + EXTENT * MOST];
    map[8..16].copy_from_slice(&u64::MAX.to_ne_bytes());
    map[16..20].copy_from_slice(&SYNC_FIRST.to_ne_bytes());
    map[24..28].copy_from_slice(&(MOST as u32).to_ne_bytes());
    let file = File::open(path)?;
    // SAFETY: the map has room for as many extents as it says.
    check(unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP as _, map.as_mut_ptr()) })?;
    let word = |at: usize| u32::from_ne_bytes(map[at..at + 4].try_into().expect("four bytes"));
    let all = word(MAPPED) as usize;
    let shared = (0..all).filter(|n| word(HEAD + EXTENT * n + FLAGS) & SHARED != 0).count();
    Ok((shared, all))
}

pub fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<_> = std::env::split_paths(&path).collect();
    dirs.extend(["/sbin".into(), "/usr/sbin".into()]);
    dirs.iter().any(|dir| dir.join(program).exists())
}
