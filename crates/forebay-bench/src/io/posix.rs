//! `pread` and `pwrite`, with O_DIRECT or without, one transfer at a time.

use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd;

use super::{Direction, Done, Op, Target};

/// Whether each transfer takes a lock on its range first (`--posix.rangelocks`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RangeLocks {
    #[default]
    Off,
    On,
}

pub struct Posix {
    file: File,
    locks: RangeLocks,
    done: Option<Done>,
}

impl Posix {
    pub fn new(file: File) -> Self {
        Self { file, locks: RangeLocks::Off, done: None }
    }

    #[must_use]
    pub fn locks(mut self, locks: RangeLocks) -> Self {
        self.locks = locks;
        self
    }

    fn lock(&self, op: Op, kind: libc::c_int) -> std::io::Result<()> {
        // SAFETY: all fields are integers, for which zero is valid.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        lock.l_start = op.offset.cast_signed();
        lock.l_len = op.len as libc::off_t;
        // SAFETY: `lock` lives through the call.
        match unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETLKW, &raw const lock) } {
            -1 => Err(Error::last_os_error()),
            _ => Ok(()),
        }
    }

    unsafe fn transfer(&self, op: Op, buffer: *mut u8) -> std::io::Result<usize> {
        let (fd, at) = (self.file.as_raw_fd(), op.offset.cast_signed());
        // SAFETY: the caller vouches for `op.len` bytes at `buffer`.
        let moved = unsafe {
            match op.direction {
                Direction::Read => libc::pread(fd, buffer.cast(), op.len, at),
                Direction::Write => libc::pwrite(fd, buffer.cast_const().cast(), op.len, at),
            }
        };
        usize::try_from(moved).map_err(|_| Error::last_os_error())
    }

    unsafe fn locked(&self, op: Op, buffer: *mut u8) -> std::io::Result<usize> {
        self.lock(
            op,
            match op.direction {
                Direction::Read => libc::F_RDLCK,
                Direction::Write => libc::F_WRLCK,
            },
        )?;
        // SAFETY: as vouched for by the caller.
        let moved = unsafe { self.transfer(op, buffer) };
        self.lock(op, libc::F_UNLCK)?;
        moved
    }
}

impl Target for Posix {
    #[inline]
    unsafe fn start(&mut self, slot: usize, op: Op, buffer: *mut u8) {
        // SAFETY: the caller vouches for `buffer`.
        let result = unsafe {
            match self.locks {
                RangeLocks::Off => self.transfer(op, buffer),
                RangeLocks::On => self.locked(op, buffer),
            }
        };
        self.done = Some(Done { slot, result });
    }

    #[inline]
    fn wait(&mut self) -> Done {
        self.done.take().expect("a transfer was started")
    }

    fn sync(&mut self) -> std::io::Result<()> {
        self.file.sync_all()
    }
}
