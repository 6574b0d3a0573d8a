//! A mapping of the whole file; a transfer is a copy.
//!
//! The file must be as long as the mapping before the first transfer: touching a page past the end
//! of the file kills the process.

use std::fs::File;
use std::os::fd::AsRawFd;

use super::{Direction, Done, Op, Target};

pub struct Mmap {
    start: *mut u8,
    len: usize,
    done: Option<Done>,
}

impl Mmap {
    /// Maps `len` bytes of `file`, which must be that long; for writing if `direction` says so.
    pub fn new(file: &File, len: u64, direction: Direction) -> std::io::Result<Self> {
        let (len, prot) = match direction {
            Direction::Read => (len, libc::PROT_READ),
            Direction::Write => (len, libc::PROT_READ | libc::PROT_WRITE),
        };
        if file.metadata()?.len() < len {
            return Err(std::io::Error::other(format!("the file is shorter than {len} bytes")));
        }
        let fd = file.as_raw_fd();
        // SAFETY: a new mapping; `len` is not more than the file has.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len as usize, prot, libc::MAP_SHARED, fd, 0)
        };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self { start: start.cast(), len: len as usize, done: None })
    }
}

impl Target for Mmap {
    #[inline]
    unsafe fn start(&mut self, slot: usize, op: Op, buffer: *mut u8) {
        let at = op.offset as usize;
        let len = op.len.min(self.len.saturating_sub(at));
        // SAFETY: `at + len` is within the mapping; the caller vouches for `buffer`, which is not
        // part of a file mapping, so the two do not overlap.
        unsafe {
            match op.direction {
                Direction::Read => buffer.copy_from_nonoverlapping(self.start.add(at), len),
                Direction::Write => self.start.add(at).copy_from_nonoverlapping(buffer, len),
            }
        }
        self.done = Some(Done { slot, result: Ok(len) });
    }

    #[inline]
    fn wait(&mut self) -> Done {
        self.done.take().expect("a transfer was started")
    }

    fn sync(&mut self) -> std::io::Result<()> {
        // SAFETY: exactly this value's mapping.
        match unsafe { libc::msync(self.start.cast(), self.len, libc::MS_SYNC) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

impl Drop for Mmap {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}
