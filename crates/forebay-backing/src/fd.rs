//! Bytes of an open descriptor: whole reads and writes, holes made and found.
//!
//! Knows nothing of names and returns errno as it comes; the stores add the file's name.

use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

use rustix::fs::{self as sys, FallocateFlags, SeekFrom};
use rustix::io::{self as rio, Errno};
use rustix::process::{Resource, getrlimit};

/// The result of a system call, before the path is added to the error.
pub type Sys<T> = std::result::Result<T, Errno>;

/// Zeros written at once where a hole cannot be punched.
const ZEROS: usize = 64 * 1024;

pub fn read_full(fd: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> Sys<usize> {
    let mut done = 0;
    while done < buf.len() {
        match rio::pread(fd, &mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

/// The number of the process's descriptors that are not for files: a command for the daemon's status,
/// or for its end, is answered even if programs have as many files open as possible. A quarter of a
/// low limit.
const RESERVE: u64 = 256;

/// Refuses one of the last descriptors with EMFILE: those of the reserve.
pub fn leave_reserve(fd: OwnedFd) -> Sys<OwnedFd> {
    leave(fd, 1)
}

/// As [`leave_reserve`], but leaves twice as many, for the descriptors that come with a program's open
/// file: bytes that are written to it must find their way to the store.
pub fn leave_room(fd: OwnedFd) -> Sys<OwnedFd> {
    leave(fd, 2)
}

/// Half of the descriptors that [`leave_room`] leaves beside the reserve: this many finished files may
/// wait to be closed, while other files can still be opened.
pub fn room_to_close() -> usize {
    (reserve(limit()) / 2) as usize
}

/// The kernel gives the lowest free number, so a number tells how many are taken.
fn leave(fd: OwnedFd, reserves: u64) -> Sys<OwnedFd> {
    let limit = limit();
    let number = u64::try_from(fd.as_raw_fd()).expect("a descriptor that is open");
    if number < limit - reserves * reserve(limit) { Ok(fd) } else { Err(Errno::MFILE) }
}

fn reserve(limit: u64) -> u64 {
    RESERVE.min(limit / 4)
}

fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Closes the descriptor, and returns the store's answer to that.
pub fn close(fd: OwnedFd) -> Sys<()> {
    // SAFETY: this function owns the descriptor, and nothing uses it after this.
    match unsafe { libc::close(fd.into_raw_fd()) } {
        0 => Ok(()),
        _ => match Errno::from_io_error(&std::io::Error::last_os_error()) {
            // Linux has closed the descriptor all the same.
            None | Some(Errno::INTR) => Ok(()),
            Some(errno) => Err(errno),
        },
    }
}

pub fn write_full(fd: BorrowedFd<'_>, buf: &[u8], offset: u64) -> Sys<()> {
    let mut done = 0;
    while done < buf.len() {
        match rio::pwrite(fd, &buf[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Makes a hole, by writing zeros where the file system has no holes; never grows the file.
pub fn punch(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Sys<()> {
    let end = offset.saturating_add(len);
    match free(fd, offset, end) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(fd, offset, end.min(size(fd)?)),
        done => done,
    }
}

/// Gives the space of a range back to the file system or device. Both promise that the range reads as
/// zeros then, or refuse.
pub fn free(fd: BorrowedFd<'_>, start: u64, end: u64) -> Sys<()> {
    if start >= end {
        return Ok(());
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rio::retry_on_intr(|| sys::fallocate(fd, flags, start, end - start))
}

/// Writes zeros in place of a hole (NFS before 4.2, FAT, some devices).
pub fn write_zeros(fd: BorrowedFd<'_>, start: u64, end: u64) -> Sys<()> {
    let zeros = [0; ZEROS];
    let mut at = start;
    while at < end {
        let n = (end - at).min(ZEROS as u64);
        write_full(fd, &zeros[..n as usize], at)?;
        at += n;
    }
    Ok(())
}

/// The next data range. Uses the descriptor's position, which nothing else here depends on.
pub fn next_data(fd: BorrowedFd<'_>, offset: u64) -> Sys<Option<(u64, u64)>> {
    let start = match sys::seek(fd, SeekFrom::Data(offset)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return rest(fd, offset),
        Err(errno) => return Err(errno),
    };
    match sys::seek(fd, SeekFrom::Hole(start)) {
        Ok(end) => Ok(Some((start, end))),
        // The file was cut off in between: it ends before `start`.
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn rest(fd: BorrowedFd<'_>, offset: u64) -> Sys<Option<(u64, u64)>> {
    let size = size(fd)?;
    Ok((offset < size).then_some((offset, size)))
}

fn size(fd: BorrowedFd<'_>) -> Sys<u64> {
    Ok(sys::fstat(fd)?.st_size.cast_unsigned())
}
