//! The measured loop: takes transfers from a plan, keeps the target's slots busy, records latencies.
//!
//! Invariants:
//! - D1: the clock is read once per completed transfer; the end of one is the start of the next in
//!   the same slot, so the time a plan takes to prepare a buffer counts as part of the transfer.
//! - D2: nothing is allocated per transfer.
//! - D3: a short transfer is continued until it is complete, unless [`Limits::retry`] forbids it.

use crate::io::{Buffers, Op, Target};
use crate::meter::Meter;
use crate::{Error, Result, clock};

/// The source of the transfers, and the handling of their contents.
pub trait Plan {
    /// The next transfer, or `None` at the end. Called once more after `None` only by mistake.
    fn next(&mut self) -> Option<Op>;

    /// Fills the buffer of a write.
    #[inline]
    fn prepare(&mut self, _op: Op, _buffer: &mut [u8]) {}

    /// Examines the bytes of a read.
    #[inline]
    fn inspect(&mut self, _op: Op, _buffer: &[u8]) {}

    /// Called for every completed transfer with its times, for protocols kept per operation.
    #[inline]
    fn done(&mut self, _op: Op, _start: u64, _end: u64) {}
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Retry {
    #[default]
    UntilComplete,
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SyncEach {
    #[default]
    No,
    Write,
}

/// When to stop early, and how to treat each transfer.
#[derive(Debug, Clone, Copy, Default)]
pub struct Limits {
    /// Clock time (ns) after which no further transfer begins.
    pub deadline: Option<u64>,
    pub retry: Retry,
    pub sync: SyncEach,
}

/// The result of one task's loop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Driven {
    pub ops: u64,
    pub bytes: u64,
    /// Transfers that moved fewer bytes than asked, even after retries or because retries are
    /// forbidden.
    pub short: u64,
    /// The time when the last transfer ended.
    pub end: u64,
    /// Whether a deadline or a stop flag ended the loop before the plan's end.
    pub early: bool,
}

#[derive(Clone, Copy)]
struct Flight {
    op: Op,
    start: u64,
    moved: usize,
}

/// Runs `plan` from the moment `start`; `stopping` is asked once per transfer.
pub fn drive<T: Target, P: Plan>(
    target: &mut T,
    buffers: &mut Buffers,
    plan: &mut P,
    meter: &Meter,
    limits: Limits,
    stopping: impl Fn() -> bool,
    start: u64,
) -> Result<Driven> {
    let nothing = Op { direction: crate::io::Direction::Read, offset: 0, len: 0 };
    let mut flights = vec![Flight { op: nothing, start: 0, moved: 0 }; buffers.slots()];
    let mut driven = Driven { end: start, ..Driven::default() };
    let (mut busy, mut failure) = (0, None);
    for (slot, flight) in flights.iter_mut().enumerate() {
        busy += usize::from(launch(target, buffers, plan, flight, slot, start));
    }
    while busy > 0 {
        let done = target.wait();
        let (slot, flight) = (done.slot, &mut flights[done.slot]);
        let moved = match done.result {
            Ok(moved) => moved,
            Err(error) => {
                // The other slots are still in flight: their buffers must outlive them.
                failure.get_or_insert_with(|| failed(flight.op, &error));
                busy -= 1;
                continue;
            }
        };
        flight.moved += moved;
        if flight.moved < flight.op.len && moved > 0 && limits.retry == Retry::UntilComplete {
            resume(target, buffers, *flight, slot);
            continue;
        }
        let op = flight.op;
        if limits.sync == SyncEach::Write && op.direction == crate::io::Direction::Write {
            failure = failure.or(target.sync().err().map(|error| failed(op, &error)));
        }
        let now = clock::now();
        meter.record(flight.start, now, flight.moved as u64);
        driven.ops += 1;
        driven.bytes += flight.moved as u64;
        driven.short += u64::from(flight.moved < op.len);
        driven.end = now;
        plan.done(op, flight.start, now);
        if op.direction == crate::io::Direction::Read {
            plan.inspect(op, &buffers.slice(slot)[..flight.moved]);
        }
        driven.early |= limits.deadline.is_some_and(|deadline| now >= deadline) || stopping();
        if driven.early || failure.is_some() || !launch(target, buffers, plan, flight, slot, now) {
            busy -= 1;
        }
    }
    failure.map_or(Ok(driven), Err)
}

/// Begins the plan's next transfer in a free slot; false at the end of the plan.
#[inline]
fn launch<T: Target, P: Plan>(
    target: &mut T,
    buffers: &mut Buffers,
    plan: &mut P,
    flight: &mut Flight,
    slot: usize,
    now: u64,
) -> bool {
    let Some(op) = plan.next() else { return false };
    if op.direction == crate::io::Direction::Write {
        plan.prepare(op, &mut buffers.slice(slot)[..op.len]);
    }
    *flight = Flight { op, start: now, moved: 0 };
    let buffer = buffers.slice(slot)[..op.len].as_mut_ptr();
    // SAFETY: the slot is free, its buffer holds `op.len` bytes (else the slice panics), and is not touched until
    // `wait` returns it.
    unsafe { target.start(slot, op, buffer) };
    true
}

/// Continues a transfer that stopped short (D3).
#[cold]
fn resume<T: Target>(target: &mut T, buffers: &mut Buffers, flight: Flight, slot: usize) {
    let Flight { op, moved, .. } = flight;
    let rest = Op { offset: op.offset + moved as u64, len: op.len - moved, ..op };
    // SAFETY: the rest of a buffer whose transfer has returned.
    unsafe { target.start(slot, rest, buffers.pointer(slot).add(moved)) };
}

#[cold]
fn failed(op: Op, error: &std::io::Error) -> Error {
    let verb = match op.direction {
        crate::io::Direction::Read => "read",
        crate::io::Direction::Write => "write",
    };
    let hint = match error.raw_os_error() {
        Some(libc::ENOSPC) => "; lower -b, -s or the number of tasks",
        Some(libc::EINVAL) => "; with O_DIRECT, transfers must be multiples of the sector size",
        _ => "",
    };
    Error::failed(format!("cannot {verb} {} bytes at offset {}: {error}{hint}", op.len, op.offset))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{self, Direction, How, Mmap, Null, Posix, Uring};
    use crate::shared::Shared;

    /// Writes or reads `count` blocks of `len` bytes; block `i` holds bytes of value `i`.
    struct Blocks {
        direction: Direction,
        len: usize,
        next: u64,
        count: u64,
        wrong: u64,
    }

    impl Plan for Blocks {
        fn next(&mut self) -> Option<Op> {
            let offset = self.next * self.len as u64;
            self.next += 1;
            (self.next <= self.count).then_some(Op {
                direction: self.direction,
                offset,
                len: self.len,
            })
        }

        fn prepare(&mut self, op: Op, buffer: &mut [u8]) {
            buffer.fill((op.offset / self.len as u64) as u8);
        }

        fn inspect(&mut self, op: Op, buffer: &[u8]) {
            let value = (op.offset / self.len as u64) as u8;
            self.wrong += u64::from(buffer.iter().any(|&byte| byte != value));
        }
    }

    const LEN: usize = 4096;

    fn go(target: &mut impl Target, direction: Direction, slots: usize, limits: Limits) -> Driven {
        let meters = Shared::<Meter>::new(1);
        let mut plan = Blocks { direction, len: LEN, next: 0, count: 100, wrong: 0 };
        let mut buffers = Buffers::new(slots, LEN);
        let start = clock::now();
        let driven =
            drive(target, &mut buffers, &mut plan, &meters[0], limits, || false, start).unwrap();
        assert_eq!(plan.wrong, 0);
        assert_eq!((meters[0].ops(), meters[0].bytes()), (driven.ops, driven.bytes));
        driven
    }

    fn file(create: bool, path: &std::path::Path) -> std::fs::File {
        io::open(path, How { write: true, create, ..How::default() }).unwrap()
    }

    #[test]
    fn what_one_interface_writes_the_others_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("blocks");
        let all = Limits::default();
        let written = go(&mut Posix::new(file(true, &path)), Direction::Write, 1, all);
        assert_eq!((written.ops, written.bytes, written.early), (100, 100 * LEN as u64, false));
        let mut map = Mmap::new(&file(false, &path), 100 * LEN as u64, Direction::Read).unwrap();
        assert_eq!(go(&mut map, Direction::Read, 1, all).ops, 100);
        assert_eq!(go(&mut Posix::new(file(false, &path)), Direction::Read, 1, all).ops, 100);
        match Uring::new(file(false, &path), 8) {
            Ok(mut ring) => {
                assert_eq!(go(&mut ring, Direction::Read, 8, all).ops, 100);
                assert_eq!(go(&mut ring, Direction::Write, 8, all).bytes, 100 * LEN as u64);
            }
            Err(error) => println!("SKIPPED: {error}"),
        }
    }

    #[test]
    fn a_deadline_ends_the_loop_after_the_transfer_that_passed_it() {
        let limits = Limits { deadline: Some(0), ..Limits::default() };
        let driven = go(&mut Null::default(), Direction::Read, 1, limits);
        assert_eq!((driven.ops, driven.early), (1, true));
    }

    /// Half a block at a time, as a pipe or a network file system may do.
    struct Halting {
        inner: Posix,
        calls: usize,
    }

    impl Target for Halting {
        unsafe fn start(&mut self, slot: usize, op: Op, buffer: *mut u8) {
            self.calls += 1;
            let op = Op { len: op.len.min(LEN / 2), ..op };
            // SAFETY: a shorter transfer into the same buffer.
            unsafe { self.inner.start(slot, op, buffer) };
        }

        fn wait(&mut self) -> io::Done {
            self.inner.wait()
        }

        fn sync(&mut self) -> std::io::Result<()> {
            self.inner.sync()
        }
    }

    #[test]
    fn short_transfers_are_continued_or_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("halves");
        let mut target = Halting { inner: Posix::new(file(true, &path)), calls: 0 };
        let driven = go(&mut target, Direction::Write, 1, Limits::default());
        assert_eq!((driven.bytes, driven.short, target.calls), (100 * LEN as u64, 0, 200));
        let once = Limits { retry: Retry::Never, ..Limits::default() };
        let driven = go(&mut target, Direction::Write, 1, once);
        assert_eq!((driven.bytes, driven.short, target.calls), (50 * LEN as u64, 100, 300));
    }

    #[test]
    fn a_failed_transfer_names_its_offset() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("read-only");
        file(true, &path);
        let mut target = Posix::new(io::open(&path, How::default()).unwrap());
        let meters = Shared::<Meter>::new(1);
        let mut plan =
            Blocks { direction: Direction::Write, len: LEN, next: 3, count: 9, wrong: 0 };
        let mut buffers = Buffers::new(1, LEN);
        let limits = Limits::default();
        let error = drive(&mut target, &mut buffers, &mut plan, &meters[0], limits, || false, 0)
            .unwrap_err();
        assert!(error.to_string().contains("write 4096 bytes at offset 12288"), "{error}");
    }
}
