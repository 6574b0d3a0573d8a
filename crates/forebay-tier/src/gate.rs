//! The gate: the kernel asks the daemon before programs read or write shadow files that they have open
//! past the daemon, with fanotify's pre-content events (Linux 6.14, on ext4, XFS and btrfs;
//! CAP_SYS_ADMIN).
//!
//! Invariants:
//! - G1: every waiting program gets an answer: an [`Asked`] that is dropped lets its program go on. A
//!   gate does so for all unread questions when the gate and its last [`Asked`] are dropped, or the
//!   process dies.
//! - G2: this process never waits for itself: its own accesses are answered as they are read.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{self, SeekFrom, Timespec};
use rustix::io::Errno;

/// `FAN_PRE_ACCESS` of linux/fanotify.h, not in the libc crate.
const PRE_ACCESS: u64 = 0x0010_0000;
/// `FAN_EVENT_INFO_TYPE_RANGE` of linux/fanotify.h.
const INFO_RANGE: u8 = 6;

/// Questions that are read at once: each of them opens a descriptor.
const BATCH: usize = 16;
const METADATA: usize = size_of::<libc::fanotify_event_metadata>();
/// A head of four bytes, four of padding, offset and length.
const RANGE: usize = 24;

/// A group of marks: the files on which the kernel asks, or only stays ready to ask.
#[derive(Clone)]
pub struct Gate(Arc<OwnedFd>);

impl Gate {
    /// # Errors
    ///
    /// On an old kernel, or without the right to ask.
    pub fn new() -> io::Result<Gate> {
        let flags = libc::FAN_CLASS_PRE_CONTENT
            | libc::FAN_CLOEXEC
            | libc::FAN_NONBLOCK
            | libc::FAN_REPORT_TID
            | libc::FAN_UNLIMITED_QUEUE
            | libc::FAN_UNLIMITED_MARKS;
        let opened = libc::O_RDONLY | libc::O_LARGEFILE | libc::O_CLOEXEC;
        // SAFETY: takes two integers.
        let fd = match unsafe { libc::fanotify_init(flags, opened as libc::c_uint) } {
            -1 => return Err(io::Error::last_os_error()),
            fd => fd,
        };
        // SAFETY: the descriptor is new, and nothing else owns it.
        Ok(Gate(Arc::new(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Makes the kernel ready to ask about programs that open the file from now on, as long as the
    /// gate exists; it does not ask yet. The kernel decides at the open whether it ever asks, so
    /// opens of other files cost nothing.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP on a file system that does not ask, such as tmpfs.
    pub fn keep_ready(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        // A mark that ignores its own event counts as interest in the event.
        self.change(libc::FAN_MARK_ADD | libc::FAN_MARK_IGNORE_SURV, file)
    }

    /// From now on every access by a program that can be asked about waits for an answer.
    pub fn ask(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.change(libc::FAN_MARK_ADD, file)
    }

    pub fn ask_no_more(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.change(libc::FAN_MARK_REMOVE, file)
    }

    fn change(&self, flags: libc::c_uint, file: BorrowedFd<'_>) -> io::Result<()> {
        let (group, file) = (self.0.as_raw_fd(), file.as_raw_fd());
        // SAFETY: both descriptors are open; without a path it is the descriptor's own file.
        match unsafe { libc::fanotify_mark(group, flags, PRE_ACCESS, file, ptr::null()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The accesses that wait for an answer; waits up to `patience` for the first.
    pub fn asked(&self, patience: Duration) -> io::Result<Vec<Asked>> {
        let mut polled = [PollFd::new(&*self.0, PollFlags::IN)];
        let patience =
            Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        match rustix::event::poll(&mut polled, Some(&patience)) {
            Ok(0) | Err(Errno::INTR) => return Ok(Vec::new()),
            other => other?,
        };
        // The kernel refuses an access if it cannot open a descriptor in this process for it.
        let spare: Vec<_> =
            (0..BATCH).map(|_| rustix::io::fcntl_dupfd_cloexec(&*self.0, 0)).collect();
        if spare.iter().any(Result::is_err) {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        drop(spare);
        let mut bytes = [0; BATCH * (METADATA + RANGE)];
        let read = match rustix::io::read(&*self.0, &mut bytes) {
            Err(Errno::AGAIN | Errno::INTR) => 0,
            other => other?,
        };
        let asked = parsed(&bytes[..read]).into_iter().filter_map(|event| self.take(event));
        // G2.
        Ok(asked.filter(|asked| !is_own(asked.thread)).collect())
    }

    fn take(&self, event: Event) -> Option<Asked> {
        if event.fd < 0 {
            return None;
        }
        // SAFETY: the kernel has just opened the descriptor for this process.
        let file = unsafe { OwnedFd::from_raw_fd(event.fd) };
        event.asks.then(|| Asked {
            group: self.0.clone(),
            file,
            thread: event.thread,
            start: event.range.0,
            end: event.range.1,
        })
    }
}

/// A program that waits to read or write `[start, end)` of a shadow, until this is dropped. The kernel
/// does not say whether the program reads or writes.
pub struct Asked {
    group: Arc<OwnedFd>,
    file: OwnedFd,
    thread: i32,
    start: u64,
    end: u64,
}

impl Asked {
    /// The id of the thread that waits; 0 if it is in another pid namespace.
    pub fn thread(&self) -> i32 {
        self.thread
    }

    /// The shadow's inode number.
    pub fn ino(&self) -> io::Result<u64> {
        Ok(fs::fstat(&self.file)?.st_ino)
    }

    /// The growth of the shadow if the program writes: the bytes beyond its end, or the whole range if
    /// it has a hole. `None` if the range is full of bytes.
    pub fn growth(&self) -> io::Result<Option<Growth>> {
        let len = fs::fstat(&self.file)?.st_size as u64;
        if self.end > len {
            let bytes = self.end - self.start.max(len);
            return Ok(Some(Growth { bytes, end: Some(self.end) }));
        }
        let hole = match fs::seek(&self.file, SeekFrom::Hole(self.start)) {
            Err(Errno::NXIO) => len,
            other => other?,
        };
        let fills = hole < self.end;
        Ok(fills.then(|| Growth { bytes: self.end - self.start, end: None }))
    }
}

/// The growth of a shadow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    pub bytes: u64,
    /// The new end of the shadow, if it becomes longer.
    pub end: Option<u64>,
}

impl Drop for Asked {
    /// G1.
    fn drop(&mut self) {
        let answer =
            libc::fanotify_response { fd: self.file.as_raw_fd(), response: libc::FAN_ALLOW };
        let (from, len) = (ptr::from_ref(&answer).cast(), size_of_val(&answer));
        // SAFETY: writes one answer, which is alive during the call.
        if unsafe { libc::write(self.group.as_fd().as_raw_fd(), from, len) } < 0 {
            let error = io::Error::last_os_error();
            // ENOENT: the waiting program was killed.
            if error.raw_os_error() != Some(libc::ENOENT) {
                tracing::error!(%error, "letting a program go on that writes past the daemon");
            }
        }
    }
}

/// Whether the thread is one of this process.
fn is_own(thread: i32) -> bool {
    let process = std::process::id() as i32;
    // SAFETY: takes three integers; signal 0 only asks.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) == 0 }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Event {
    asks: bool,
    fd: i32,
    thread: i32,
    range: (u64, u64),
}

/// The complete events in `bytes`.
fn parsed(mut bytes: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    while bytes.len() >= METADATA {
        let len = word(bytes, 0) as usize;
        if len < METADATA || len > bytes.len() {
            break;
        }
        let (event, rest) = bytes.split_at(len);
        let head = usize::from(u16::from_ne_bytes([event[6], event[7]])).clamp(METADATA, len);
        events.push(Event {
            asks: long(event, 8) & PRE_ACCESS != 0,
            fd: word(event, 16) as i32,
            thread: word(event, 20) as i32,
            range: range(&event[head..]).unwrap_or_default(),
        });
        bytes = rest;
    }
    events
}

fn range(mut infos: &[u8]) -> Option<(u64, u64)> {
    while infos.len() >= 4 {
        let len = usize::from(u16::from_ne_bytes([infos[2], infos[3]]));
        if len < 4 || len > infos.len() {
            return None;
        }
        if infos[0] == INFO_RANGE && len >= RANGE {
            let (offset, count) = (long(infos, 8), long(infos, 16));
            return Some((offset, offset.saturating_add(count)));
        }
        infos = &infos[len..];
    }
    None
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(fd: i32, mask: u64, infos: &[u8]) -> Vec<u8> {
        let mut bytes = ((METADATA + infos.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend([3, 0]);
        bytes.extend((METADATA as u16).to_ne_bytes());
        bytes.extend(mask.to_ne_bytes());
        bytes.extend(fd.to_ne_bytes());
        bytes.extend(77i32.to_ne_bytes());
        bytes.extend(infos);
        bytes
    }

    fn info(kind: u8, offset: u64, count: u64) -> Vec<u8> {
        let mut bytes = vec![kind, 0];
        bytes.extend((RANGE as u16).to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(offset.to_ne_bytes());
        bytes.extend(count.to_ne_bytes());
        bytes
    }

    /// Records of other kinds are skipped; a record that is cut short or invalid ends the parsing.
    #[test]
    fn questions_are_read_whatever_stands_between_them() {
        let asked = event(5, PRE_ACCESS, &info(INFO_RANGE, 4096, 100));
        let behind = [info(9, 1, 1), info(INFO_RANGE, u64::MAX - 1, 100)].concat();
        let other = event(-1, 0x4000, &[]);
        let bytes = [asked.clone(), other, event(6, PRE_ACCESS, &behind)].concat();
        let expected = [
            Event { asks: true, fd: 5, thread: 77, range: (4096, 4196) },
            Event { asks: false, fd: -1, thread: 77, range: (0, 0) },
            Event { asks: true, fd: 6, thread: 77, range: (u64::MAX - 1, u64::MAX) },
        ];
        assert_eq!(parsed(&bytes), expected);
        for len in 0..bytes.len() {
            let found = parsed(&bytes[..len]);
            assert!(found.len() < 3 && expected.starts_with(&found), "{len} bytes: {found:?}");
        }
        for at in 0..asked.len() {
            for value in [0, 1, 23, 255] {
                let mut bytes = asked.clone();
                bytes[at] = value;
                assert!(parsed(&bytes).len() <= 1);
            }
        }
    }
}
