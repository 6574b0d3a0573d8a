//! One io_uring, with at most one command in it: that of the entry its thread holds.
//!
//! The ring belongs to one thread and delivers only while that thread waits (SINGLE_ISSUER,
//! DEFER_TASKRUN). So the kernel writes to the entry's buffer at known times (B1 of `buffer`), and
//! an entry changes hands by being committed in another thread's ring.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use forebay_base::lock::sleep;

/// A command for an entry.
pub struct Command<'a> {
    pub op: u32,
    pub queue: u16,
    pub commit_id: u64,
    /// The entry's buffers, for a registration.
    pub buffers: &'a [libc::iovec],
}

pub struct Uring(IoUring<squeue::Entry128, cqueue::Entry>);

impl Uring {
    pub fn new() -> io::Result<Uring> {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun();
        builder.build(2).map(Uring)
    }

    /// Submits the pushed commands to the kernel. A result that is there at once is then found by
    /// [`Uring::ready`].
    pub fn submit_pushed(&mut self) -> io::Result<()> {
        loop {
            match self.0.submit() {
                Err(e) if again(&e) => {}
                other => return other.map(|_| ()),
            }
        }
    }

    /// Pushes a command. Its buffers are read when it is submitted.
    pub fn push(&mut self, device: BorrowedFd<'_>, command: &Command<'_>) {
        let entry = entry(device, command);
        // SAFETY: the device stays open and the buffers stay mapped as long as the session, or
        // until the command has completed.
        let pushed = unsafe { self.0.submission().push(&entry) };
        pushed.expect("a ring for two has room for the one command of its entry");
    }

    /// The result of the command, if it has completed.
    pub fn ready(&mut self) -> Option<i32> {
        self.0.completion().next().map(|done| done.result())
    }

    /// Submits the pushed commands and waits. Returns `None` if no result came within `limit`.
    pub fn wait(&mut self, limit: Option<Duration>) -> io::Result<Option<i32>> {
        loop {
            if let Some(result) = self.ready() {
                return Ok(Some(result));
            }
            let waited = match limit {
                None => self.0.submit_and_wait(1),
                Some(limit) => {
                    let limit = Timespec::from(limit);
                    let args = SubmitArgs::new().timespec(&limit);
                    self.0.submitter().submit_with_args(1, &args)
                }
            };
            match waited {
                Err(e) if e.raw_os_error() == Some(libc::ETIME) => return Ok(self.ready()),
                Err(e) if again(&e) => {}
                other => {
                    other?;
                }
            }
        }
    }
}

/// Whether to make the call again. Where the kernel is short of something, this waits 1 ms first.
fn again(e: &io::Error) -> bool {
    match e.raw_os_error() {
        Some(libc::EINTR) => true,
        Some(libc::EAGAIN | libc::EBUSY) => {
            sleep(Duration::from_millis(1));
            true
        }
        _ => false,
    }
}

fn entry(device: BorrowedFd<'_>, command: &Command<'_>) -> squeue::Entry128 {
    // `struct fuse_uring_cmd_req`: flags, commit id, queue.
    let mut words = [0; 80];
    words[8..16].copy_from_slice(&command.commit_id.to_ne_bytes());
    words[16..18].copy_from_slice(&command.queue.to_ne_bytes());
    let mut entry = opcode::UringCmd80::new(Fd(device.as_raw_fd()), command.op)
        .cmd(words)
        .addr(Some(command.buffers.as_ptr() as u64))
        .build();
    // The crate has no word for the number of buffers: `len` of `struct io_uring_sqe`.
    const LEN_AT: usize = 24;
    // SAFETY: an entry is the kernel's structure of 128 bytes, in which any number may stand here.
    unsafe {
        let len = (&raw mut entry).cast::<u8>().add(LEN_AT).cast::<u32>();
        len.write(command.buffers.len() as u32);
    }
    entry
}
