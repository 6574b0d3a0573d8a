//! Moves the bytes of one range of one file, by the cheapest way that both sides support.
//!
//! Holes are found and skipped. A way that a pair of file systems does not support is tried once.

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{self, Advice, SeekFrom};
use rustix::io::{self, Errno};
use xxhash_rust::xxh3::Xxh3;

use crate::pace::Pace;
use crate::progress::{Control, Tally, add};
use crate::report::{Reason, Tried, Trouble, destination, source};
use crate::sync;

/// The size of one read and one write: on the file systems measured, larger ones gain no throughput.
const BUFFER: usize = 1 << 20;

/// The size of one `copy_file_range`: a stop may have to wait for this much.
const RANGE_STEP: u64 = 16 << 20;

/// Write-out to the medium starts after this many bytes, so that the sync at the end finds few.
const PUSH: u64 = 8 << 20;

thread_local! {
    static BUF: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// The ways that this pair of file systems supports, as far as they were tried.
#[derive(Debug)]
pub struct Means {
    reflink: AtomicBool,
    range: AtomicBool,
}

impl Default for Means {
    fn default() -> Means {
        Means { reflink: AtomicBool::new(true), range: AtomicBool::new(true) }
    }
}

/// The check of a copy: by its size, or by reading its content back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    Size,
    Content,
}

/// Whether a range may have holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Solid,
    Sparse,
}

pub struct Mover<'a> {
    pub control: &'a Control,
    pub pace: &'a Pace,
    pub tally: &'a Tally,
    pub means: &'a Means,
    pub verify: Verify,
    /// The bytes that this file has added to `bytes_done`: they are subtracted again if it fails.
    pub own: &'a AtomicU64,
}

/// The data that was read of a range while it was copied.
struct Seen {
    hash: Xxh3,
    data: Vec<Range<u64>>,
}

impl Mover<'_> {
    /// Shares all blocks of a file, if the file system can.
    pub fn reflink(&self, src: &impl AsFd, dst: &impl AsFd, size: u64) -> bool {
        if self.verify == Verify::Content || !self.means.reflink.load(Ordering::Relaxed) {
            return false;
        }
        match fs::ioctl_ficlone(dst, src) {
            Ok(()) => {
                self.passed(size);
                add(&self.tally.bytes_cloned, size);
                true
            }
            Err(errno) => {
                if matches!(errno, Errno::XDEV | Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS) {
                    self.means.reflink.store(false, Ordering::Relaxed);
                }
                false
            }
        }
    }

    /// Copies one range, and reads it back if the content is to be verified.
    pub fn copy(
        &self,
        src: &impl AsFd,
        dst: &impl AsFd,
        range: Range<u64>,
        shape: Shape,
    ) -> Tried<()> {
        let mut seen = Seen { hash: Xxh3::new(), data: Vec::new() };
        let mut at = range.start;
        while let Some(data) = next_data(src, at..range.end, shape)? {
            self.passed(data.start - at);
            self.copy_data(src, dst, data.clone(), &mut seen)?;
            at = data.end;
        }
        self.passed(range.end - at);
        match self.verify {
            Verify::Content => verify(dst, &seen),
            Verify::Size => Ok(()),
        }
    }

    /// Counts bytes of the file as done, in whatever way they were moved.
    pub fn passed(&self, len: u64) {
        add(self.own, len);
        add(&self.tally.bytes_done, len);
    }

    fn copy_data(
        &self,
        src: &impl AsFd,
        dst: &impl AsFd,
        data: Range<u64>,
        seen: &mut Seen,
    ) -> Tried<()> {
        let mut at = data.start;
        let mut pushed = at;
        while at < data.end {
            if self.control.stops() {
                return Err(Trouble::Stopped);
            }
            let step = self.step(src, dst, at..data.end, seen)?;
            self.passed(step);
            add(&self.tally.bytes_copied, step);
            at += step;
            if at - pushed >= PUSH {
                push(dst, pushed..at);
                pushed = at;
            }
        }
        if self.verify == Verify::Content {
            seen.data.push(data);
        }
        Ok(())
    }

    fn step(
        &self,
        src: &impl AsFd,
        dst: &impl AsFd,
        rest: Range<u64>,
        seen: &mut Seen,
    ) -> Tried<u64> {
        let len = rest.end - rest.start;
        let ranged = len > BUFFER as u64
            && self.verify == Verify::Size
            && self.means.range.load(Ordering::Relaxed);
        let len = self.pace.step(len.min(if ranged { RANGE_STEP } else { BUFFER as u64 }));
        self.pace.take(len, self.control);
        if ranged && let Some(done) = self.by_range(src, dst, rest.start, len)? {
            return Ok(done);
        }
        let len = len.min(BUFFER as u64) as usize;
        by_buffer(src, dst, rest.start, len, |bytes| {
            if self.verify == Verify::Content {
                seen.hash.update(bytes);
            }
        })
    }

    /// `None` if the file systems do not support it.
    fn by_range(&self, src: &impl AsFd, dst: &impl AsFd, at: u64, len: u64) -> Tried<Option<u64>> {
        let (mut from, mut to) = (at, at);
        match fs::copy_file_range(src, Some(&mut from), dst, Some(&mut to), len as usize) {
            // Some file systems return 0 where they cannot copy; the read by buffer shows whether the file ends here.
            Ok(0) => Ok(None),
            Ok(done) => {
                add(&self.tally.bytes_in_kernel, done as u64);
                Ok(Some(done as u64))
            }
            Err(Errno::INTR) => Ok(None),
            Err(
                Errno::XDEV
                | Errno::INVAL
                | Errno::OPNOTSUPP
                | Errno::NOSYS
                | Errno::PERM
                | Errno::BADF,
            ) => {
                self.means.range.store(false, Ordering::Relaxed);
                Ok(None)
            }
            // The error does not tell the failed side; the read and the write by buffer do.
            Err(Errno::IO) => Ok(None),
            Err(errno) => Err(destination("copying to it")(errno)),
        }
    }
}

fn by_buffer(
    src: &impl AsFd,
    dst: &impl AsFd,
    at: u64,
    len: usize,
    mut look: impl FnMut(&[u8]),
) -> Tried<u64> {
    BUF.with_borrow_mut(|buf| {
        let read = retried(|| io::pread(src, &mut buf[..len], at)).map_err(source("reading"))?;
        if read == 0 {
            return Err(Trouble::new(Reason::Changed, "it became shorter while it was copied"));
        }
        look(&buf[..read]);
        let mut done = 0;
        while done < read {
            let to = at + done as u64;
            let wrote = retried(|| io::pwrite(dst, &buf[done..read], to));
            done += match wrote.map_err(destination("writing"))? {
                0 => return Err(destination("writing")(Errno::NOSPC)),
                n => n,
            };
        }
        Ok(read as u64)
    })
}

fn retried<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// The next stretch of data in a range.
fn next_data(src: &impl AsFd, range: Range<u64>, shape: Shape) -> Tried<Option<Range<u64>>> {
    if range.is_empty() {
        return Ok(None);
    }
    if shape == Shape::Solid {
        return Ok(Some(range));
    }
    let start = match fs::seek(src, SeekFrom::Data(range.start)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // The file system does not report holes: everything is data.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(range)),
        Err(errno) => return Err(source("looking for holes")(errno)),
    };
    if start >= range.end {
        return Ok(None);
    }
    let end = fs::seek(src, SeekFrom::Hole(start)).unwrap_or(range.end).min(range.end);
    // A file that is truncated meanwhile may give any answer; the check of its version finds that.
    Ok((start < end).then_some(start..end))
}

/// Starts write-out to the medium; a hint, so its result does not matter.
fn push(dst: &impl AsFd, range: Range<u64>) {
    let (offset, len) = (range.start.cast_signed(), (range.end - range.start).cast_signed());
    let fd = dst.as_fd().as_raw_fd();
    // SAFETY: integers only.
    unsafe { libc::sync_file_range(fd, offset, len, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Compares the data on the medium with the data that was read.
fn verify(dst: &impl AsFd, seen: &Seen) -> Tried<()> {
    sync::data(dst).map_err(destination("syncing"))?;
    let mut hash = Xxh3::new();
    for data in &seen.data {
        // Pages that cannot be dropped are compared from memory, which is still what readers get.
        let len = NonZeroU64::new(data.end - data.start);
        _ = fs::fadvise(dst, data.start, len, Advice::DontNeed);
        read_back(dst, data.clone(), &mut hash)?;
    }
    match hash.digest128() == seen.hash.digest128() {
        true => Ok(()),
        false => Err(Trouble::new(Reason::Mismatch, "what was read back is not what was written")),
    }
}

fn read_back(dst: &impl AsFd, data: Range<u64>, hash: &mut Xxh3) -> Tried<()> {
    BUF.with_borrow_mut(|buf| {
        let mut at = data.start;
        while at < data.end {
            let len = BUFFER.min((data.end - at) as usize);
            let read = retried(|| io::pread(dst, &mut buf[..len], at));
            match read.map_err(destination("reading back"))? {
                0 => return Err(Trouble::new(Reason::Mismatch, "it is shorter than was written")),
                n => {
                    hash.update(&buf[..n]);
                    at += n as u64;
                }
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs::File;
    use std::os::fd::BorrowedFd;

    use super::*;

    /// A medium that loses its data: from the second call on, another file answers.
    struct Lying {
        written: File,
        read: File,
        calls: Cell<u32>,
    }

    impl AsFd for Lying {
        fn as_fd(&self) -> BorrowedFd<'_> {
            match self.calls.replace(self.calls.get() + 1) {
                0 => self.written.as_fd(),
                _ => self.read.as_fd(),
            }
        }
    }

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, bytes).unwrap();
        file
    }

    fn copied(verify: Verify, there: &[u8]) -> Tried<()> {
        let (tally, means, own) = (Tally::default(), Means::default(), AtomicU64::new(0));
        let (control, pace) = (Control::default(), Pace::new(0));
        let (control, pace, tally, means, own) = (&control, &pace, &tally, &means, &own);
        let mover = Mover { control, pace, tally, means, verify, own };
        let (written, calls) = (file(b""), Cell::new(0));
        let dst = Lying { written, read: file(there), calls };
        mover.copy(&file(b"what was written"), &dst, 0..16, Shape::Solid)
    }

    #[test]
    fn what_is_read_back_is_what_was_written_or_the_file_fails() {
        assert_eq!(copied(Verify::Content, b"what was written"), Ok(()));
        for (there, words) in [
            (&b"what was writtem"[..], "is not what was written"),
            (b"what was", "shorter than was written"),
            (b"", "shorter than was written"),
        ] {
            let Err(Trouble::Failed(reason, text)) = copied(Verify::Content, there) else {
                panic!("{there:?} passed")
            };
            assert_eq!(reason, Reason::Mismatch);
            assert!(text.contains(words), "{text}");
            assert_eq!(copied(Verify::Size, there), Ok(()), "nobody asked for the content");
        }
    }
}
