//! io_uring with a queue depth: many transfers of one task in flight.

use std::fs::File;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use super::{Direction, Done, Op, Target};
use crate::{Error, Result};

pub struct Uring {
    ring: IoUring,
    file: File,
}

impl Uring {
    /// A queue for `depth` transfers; an error tells what to use where io_uring is forbidden.
    pub fn new(file: File, depth: usize) -> Result<Self> {
        let entries = depth.next_power_of_two().max(2) as u32;
        let ring = IoUring::new(entries).map_err(|error| {
            Error::failed(format!(
                "io_uring is not to be had here ({error}; containers and \
                 /proc/sys/kernel/io_uring_disabled forbid it); use -a POSIX"
            ))
        })?;
        Ok(Self { ring, file })
    }
}

impl Target for Uring {
    unsafe fn start(&mut self, slot: usize, op: Op, buffer: *mut u8) {
        let (fd, len) = (types::Fd(self.file.as_raw_fd()), op.len as u32);
        let entry = match op.direction {
            Direction::Read => opcode::Read::new(fd, buffer, len).offset(op.offset).build(),
            Direction::Write => opcode::Write::new(fd, buffer, len).offset(op.offset).build(),
        };
        // SAFETY: the caller keeps `buffer` alive until `wait` returns this slot. The queue has
        // room: there are at least as many entries as slots, and a slot is in flight once.
        unsafe {
            self.ring.submission().push(&entry.user_data(slot as u64)).expect("room for each slot");
        }
    }

    fn wait(&mut self) -> Done {
        loop {
            if let Some(entry) = self.ring.completion().next() {
                let moved = entry.result();
                let result =
                    usize::try_from(moved).map_err(|_| std::io::Error::from_raw_os_error(-moved));
                return Done { slot: entry.user_data() as usize, result };
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => (),
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => (),
                Err(error) => panic!("io_uring_enter failed: {error}"),
            }
        }
    }

    fn sync(&mut self) -> std::io::Result<()> {
        self.file.sync_all()
    }
}
