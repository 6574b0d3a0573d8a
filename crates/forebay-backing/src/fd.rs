//! Bytes of an open descriptor: whole reads and writes, holes made and found.
//!
//! Says nothing about names and gives errno as it comes; the stores add what it befell.

use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

use rustix::fs::{self as sys, FallocateFlags, SeekFrom};
use rustix::io::{self as rio, Errno};
use rustix::process::{Resource, getrlimit};

/// What a system call gives, before the path is known to the error.
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

/// So many of a process's descriptors are not for files: who asks the daemon how it is, or to end, is
/// answered though programs have as many files open as can be. Of a low limit a quarter.
const RESERVE: u64 = 256;

/// Refuses one of the last descriptors with EMFILE: those in the reserve.
pub fn leave_reserve(fd: OwnedFd) -> Sys<OwnedFd> {
    leave(fd, 1)
}

/// The same for what comes with a file that a program opens, which leaves as many again: what is
/// written to it must find its way to the store.
pub fn leave_room(fd: OwnedFd) -> Sys<OwnedFd> {
    leave(fd, 2)
}

/// Half of what [`leave_room`] leaves beside the reserve: so many files that are done with may wait to
/// be closed, and others can be opened meanwhile.
pub fn room_to_close() -> usize {
    (reserve(limit()) / 2) as usize
}

/// The kernel gives the lowest number that is free, so that a number tells how many are taken.
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

/// Closes the descriptor, and tells what the store says at that.
pub fn close(fd: OwnedFd) -> Sys<()> {
    // SAFETY: the descriptor is ours, and nobody uses it after this.
    match unsafe { libc::close(fd.into_raw_fd()) } {
        0 => Ok(()),
        _ => match Errno::from_io_error(&std::io::Error::last_os_error()) {
            // Linux has closed it all the same.
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

/// Makes a hole, by writing zeros where the file system knows none; never grows the file.
pub fn punch(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Sys<()> {
    let end = offset.saturating_add(len);
    match free(fd, offset, end) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeros(fd, offset, end.min(size(fd)?)),
        done => done,
    }
}

/// Gives the space of a range back to whoever holds it. A file system and a block device both
/// promise that it reads as zeros then, or refuse.
pub fn free(fd: BorrowedFd<'_>, start: u64, end: u64) -> Sys<()> {
    if start >= end {
        return Ok(());
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rio::retry_on_intr(|| sys::fallocate(fd, flags, start, end - start))
}

/// Stands in for a hole where there are none (NFS before 4.2, FAT, some devices).
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

/// Uses the descriptor's position, which nothing else here depends on.
pub fn next_data(fd: BorrowedFd<'_>, offset: u64) -> Sys<Option<(u64, u64)>> {
    let start = match sys::seek(fd, SeekFrom::Data(offset)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return rest(fd, offset),
        Err(errno) => return Err(errno),
    };
    match sys::seek(fd, SeekFrom::Hole(start)) {
        Ok(end) => Ok(Some((start, end))),
        // Cut off in between: the file ends before `start`.
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
