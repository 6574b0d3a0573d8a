//! One task's share of a phase: opens the file, waits for the other tasks, transfers, syncs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::base::Base;
use crate::clock;
use crate::drive::{Driven, Limits, Plan, SyncEach, drive};
use crate::error::{Error, Result};
use crate::io::{self, Api, Buffers, Direction, How, Null, Op, Posix, Target, Uring};
use crate::pattern::{Filler, Pattern};
use crate::rng::Rng;
use crate::shared::Plain;
use crate::team::{Outcome, Task};
use crate::workloads::skew::Picker;

/// Whether the open belongs to the phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    Before,
    Counted,
}

/// Whether a task's writes are synced at its end, within the phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    Close,
    Sync,
}

/// The way a task does its share.
#[derive(Debug, Clone)]
pub struct Work {
    pub path: PathBuf,
    pub how: How,
    /// Largest transfer.
    pub len: usize,
    /// Stop after this time.
    pub seconds: Option<f64>,
    pub each: SyncEach,
    pub opening: Opening,
    pub ending: Ending,
}

impl Work {
    /// For reading or writing an existing file, opened before the phase, closed after it.
    pub fn on(path: PathBuf, how: How, len: usize) -> Self {
        let (each, opening, ending) = (SyncEach::No, Opening::Before, Ending::Close);
        Self { path, how, len, seconds: None, each, opening, ending }
    }
}

/// The time when a task ended, in ns of the clock.
#[derive(Default)]
#[repr(C)]
pub struct End(AtomicU64);

// SAFETY: an atomic integer; zero is valid.
unsafe impl Plain for End {}

/// Runs a plan as one task of a phase.
pub fn work<P: Plan>(
    base: &Base,
    task: &Task<'_>,
    end: &End,
    work: &Work,
    plan: &mut P,
) -> Result<Driven> {
    match base.api {
        Api::Null => go(base, task, end, work, plan, || Ok(Null::default())),
        Api::Uring => go(base, task, end, work, plan, || {
            Uring::new(io::open(&work.path, work.how)?, base.depth)
        }),
        Api::Posix | Api::Mmap => {
            go(base, task, end, work, plan, || Ok(Posix::new(io::open(&work.path, work.how)?)))
        }
    }
}

fn go<P: Plan, T: Target>(
    base: &Base,
    task: &Task<'_>,
    end: &End,
    work: &Work,
    plan: &mut P,
    open: impl FnOnce() -> Result<T>,
) -> Result<Driven> {
    let mut buffers = Buffers::new(base.depth, work.len);
    let filler = Filler::new(Pattern::Incompressible, base.seed as u32, task.rank, work.len);
    (0..base.depth).for_each(|slot| filler.fill(buffers.slice(slot)));
    let (mut target, start) = match work.opening {
        Opening::Before => {
            let target = open()?;
            (target, task.start()?)
        }
        Opening::Counted => {
            let start = task.start()?;
            (open()?, start)
        }
    };
    let deadline = work.seconds.map(|seconds| start + (seconds * 1e9) as u64);
    let limits = Limits { deadline, sync: work.each, ..Limits::default() };
    let stopping = || task.stopping();
    let mut plan = Stamped { plan, filler };
    let driven =
        drive(&mut target, &mut buffers, &mut plan, task.meter(), limits, stopping, clock::now())?;
    if work.ending == Ending::Sync {
        target.sync().map_err(|e| Error::io("sync", &work.path, &e))?;
    }
    drop(target);
    end.0.store(clock::now(), Relaxed);
    Ok(driven)
}

/// Seconds from the common start to the end of the last task.
pub fn seconds(outcome: &Outcome<End>) -> f64 {
    let last = outcome.results().iter().map(|end| end.0.load(Relaxed)).max().unwrap_or(0);
    last.saturating_sub(outcome.began) as f64 / 1e9
}

/// A plan whose writes differ from each other, so that no device can deduplicate them.
struct Stamped<'a, P> {
    plan: &'a mut P,
    filler: Filler,
}

impl<P: Plan> Plan for Stamped<'_, P> {
    #[inline]
    fn next(&mut self) -> Option<Op> {
        self.plan.next()
    }

    #[inline]
    fn prepare(&mut self, op: Op, buffer: &mut [u8]) {
        self.filler.stamp(buffer, op.offset);
    }

    #[inline]
    fn inspect(&mut self, op: Op, buffer: &[u8]) {
        self.plan.inspect(op, buffer);
    }
}

/// Equal steps through a range of a file; the last may be shorter.
#[derive(Debug, Clone)]
pub struct Sweep {
    pub direction: Direction,
    pub at: u64,
    pub end: u64,
    /// From the start of one transfer to the next.
    pub stride: u64,
    pub len: u64,
}

impl Sweep {
    pub fn over(direction: Direction, from: u64, to: u64, len: u64) -> Self {
        Self { direction, at: from, end: to, stride: len, len }
    }
}

impl Plan for Sweep {
    #[inline]
    fn next(&mut self) -> Option<Op> {
        let offset = self.at;
        if offset >= self.end {
            return None;
        }
        self.at += self.stride;
        let len = self.len.min(self.end - offset) as usize;
        Some(Op { direction: self.direction, offset, len })
    }
}

/// Picks blocks for ever.
#[derive(Debug, Clone)]
pub struct Random {
    pub direction: Direction,
    pub picker: Picker,
    pub rng: Rng,
    pub len: u64,
}

impl Plan for Random {
    #[inline]
    fn next(&mut self) -> Option<Op> {
        let offset = self.picker.pick(&mut self.rng) * self.len;
        Some(Op { direction: self.direction, offset, len: self.len as usize })
    }
}

/// A random generator for one task, different from those of its neighbors.
pub fn rng(seed: u64, rank: usize) -> Rng {
    Rng::new(seed ^ (rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The part of `total` for one of `count` tasks, in multiples of `unit` except for the last one's
/// rest.
pub fn share(total: u64, unit: u64, rank: usize, count: usize) -> (u64, u64) {
    let units = total.div_ceil(unit);
    let edge = |rank: usize| (units * rank as u64 / count as u64 * unit).min(total);
    (edge(rank), edge(rank + 1))
}
