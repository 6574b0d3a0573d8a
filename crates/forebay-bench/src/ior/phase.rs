//! One phase: all tasks open, transfer and close, and verify where asked.
//!
//! A task's preparation (buffers, contents) comes before the common start and is not measured.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use super::layout::{self, Layout};
use super::params::Params;
use crate::clock;
use crate::drive::{Driven, Limits, Plan, Retry, SyncEach, drive};
use crate::io::{
    self, Api, Buffers, Direction, How, Mmap, Null, Op, Posix, RangeLocks, Target, Uring,
};
use crate::pattern::Filler;
use crate::progress::{Goal, Progress};
use crate::shared::{Plain, Shared};
use crate::team::{Outcome, Task, Team};
use crate::{Error, Result};

/// How many differences a task keeps in full; the rest are counted.
pub const KEPT: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    No,
    Yes,
}

/// The task of one run of a phase.
pub struct Lap<'a> {
    pub params: &'a Params,
    pub name: &'static str,
    pub direction: Direction,
    pub verify: Verify,
    pub repetition: usize,
    pub signature: u32,
    /// The rank whose data each rank handles.
    pub owners: Vec<usize>,
    /// The number of existing transfers of each rank's data.
    pub available: Vec<u64>,
}

/// One byte that differs from the written one.
#[repr(C)]
#[derive(Default)]
pub struct Wrong {
    pub offset: AtomicU64,
    /// Expected in the low byte, found in the next.
    pub values: AtomicU64,
}

/// What one task reports; times are clock values in ns.
#[repr(C)]
#[derive(Default)]
pub struct Report {
    pub opening: AtomicU64,
    pub opened: AtomicU64,
    pub transferring: AtomicU64,
    pub transferred: AtomicU64,
    pub closing: AtomicU64,
    pub closed: AtomicU64,
    pub transfers: AtomicU64,
    pub bytes: AtomicU64,
    pub short: AtomicU64,
    /// Transfers with at least one wrong byte.
    pub errors: AtomicU64,
    pub wrong: [Wrong; KEPT],
    /// The time when the deadline struck, and the bytes until then; 0 if it did not.
    pub stonewall_at: AtomicU64,
    pub stonewall_bytes: AtomicU64,
}

// SAFETY: atomics only; zero means nothing happened.
unsafe impl Plain for Report {}

/// Runs the phase.
pub fn run(lap: &Lap<'_>) -> Outcome<Report> {
    let params = lap.params;
    let counts = Shared::<AtomicU64>::new(params.tasks);
    let goal = match params.deadline {
        seconds if seconds > 0.0 => Goal::Seconds(seconds),
        _ => Goal::Bytes(params.aggregate()),
    };
    let progress = Progress::new(lap.name, goal);
    Team::new(params.tasks, params.kind)
        .progress(progress)
        .run(|task, own| Worker { lap, task, own, counts: &counts }.work())
}

struct Worker<'a> {
    lap: &'a Lap<'a>,
    task: &'a Task<'a>,
    own: &'a Report,
    /// Transfers done by each task, for the wear-out.
    counts: &'a Shared<AtomicU64>,
}

impl Worker<'_> {
    fn work(&self) -> Result<()> {
        let (lap, params) = (self.lap, self.lap.params);
        let owner = lap.owners[self.task.rank];
        let transfer = params.transfer as usize;
        let filler = Filler::new(params.pattern, lap.signature, owner, transfer);
        let slots = if params.api == Api::Uring { params.depth } else { 1 };
        let mut buffers = Buffers::new(slots, transfer);
        if lap.direction == Direction::Write {
            (0..slots).for_each(|slot| filler.fill(buffers.slice(slot)));
        }
        let path = layout::file(params, owner, lap.repetition);
        let mut walk = Walk::new(lap, owner, filler, path);
        self.task.start()?;
        self.open(&mut buffers, &mut walk)?;
        self.closed();
        walk.report(self.own);
        walk.save(params, lap, self.task.rank)
    }

    /// Opens the file under the API asked for; the loop is compiled for each.
    fn open(&self, buffers: &mut Buffers, walk: &mut Walk) -> Result<()> {
        let (params, path) = (self.lap.params, walk.path.clone());
        self.own.opening.store(clock::now(), SeqCst);
        if params.api == Api::Null {
            return self.transfer(Null::default(), buffers, walk);
        }
        let write = self.lap.direction == Direction::Write;
        let direct = params.around_cache();
        let file = io::open(&path, How { write, create: write, truncate: false, direct })?;
        match params.api {
            Api::Mmap => {
                let target = self.map(&file).map_err(|error| Error::io("map", &path, &error))?;
                self.transfer(target, buffers, walk)
            }
            Api::Uring => self.transfer(Uring::new(file, params.depth)?, buffers, walk),
            _ => {
                let locks = if params.range_locks { RangeLocks::On } else { RangeLocks::Off };
                self.transfer(Posix::new(file).locks(locks), buffers, walk)
            }
        }
    }

    /// A file to be written must have its full length before it is mapped.
    fn map(&self, file: &std::fs::File) -> std::io::Result<Mmap> {
        let wanted = layout::file_size(self.lap.params);
        if self.lap.direction == Direction::Write && file.metadata()?.len() < wanted {
            file.set_len(wanted)?;
        }
        Mmap::new(file, wanted, self.lap.direction)
    }

    fn transfer(
        &self,
        mut target: impl Target,
        buffers: &mut Buffers,
        walk: &mut Walk,
    ) -> Result<()> {
        let (params, own) = (self.lap.params, self.own);
        own.opened.store(clock::now(), SeqCst);
        self.between()?;
        let start = clock::now();
        own.transferring.store(start, SeqCst);
        let result = self.go(&mut target, buffers, walk, start);
        let driven = result.map_err(|error| in_file(&walk.path, &error))?;
        own.transfers.store(driven.ops, SeqCst);
        own.bytes.store(driven.bytes, SeqCst);
        own.short.store(driven.short, SeqCst);
        if params.sync && self.lap.direction == Direction::Write {
            target.sync().map_err(|error| Error::io("sync", &walk.path, &error))?;
        }
        own.transferred.store(clock::now(), SeqCst);
        self.between()?;
        own.closing.store(clock::now(), SeqCst);
        drop(target);
        Ok(())
    }

    /// The transfers until the plan's end or the deadline, then the wear-out.
    fn go(
        &self,
        target: &mut impl Target,
        buffers: &mut Buffers,
        walk: &mut Walk,
        start: u64,
    ) -> Result<Driven> {
        let params = self.lap.params;
        let stopping = || self.task.stopping();
        let nanos = |seconds: f64| start + (seconds * 1e9) as u64;
        walk.until = if params.min_seconds > 0.0 { nanos(params.min_seconds) } else { 0 };
        let limits = Limits {
            deadline: (params.deadline > 0.0).then(|| nanos(params.deadline)),
            retry: if params.single_attempt { Retry::Never } else { Retry::UntilComplete },
            sync: if params.sync_each { SyncEach::Write } else { SyncEach::No },
        };
        let meter = self.task.meter();
        let first = drive(target, buffers, walk, meter, limits, stopping, start)?;
        if limits.deadline.is_none() {
            return Ok(first);
        }
        self.own.stonewall_at.store(first.end, SeqCst);
        self.own.stonewall_bytes.store(first.bytes, SeqCst);
        if !params.wear_out {
            return Ok(first);
        }
        self.counts[self.task.rank].store(first.ops, SeqCst);
        self.task.barrier()?;
        walk.count = self.counts.iter().map(|count| count.load(SeqCst)).max().unwrap_or(0);
        let limits = Limits { deadline: None, ..limits };
        let rest = drive(target, buffers, walk, meter, limits, stopping, clock::now())?;
        Ok(Driven {
            ops: first.ops + rest.ops,
            bytes: first.bytes + rest.bytes,
            short: first.short + rest.short,
            ..rest
        })
    }

    fn between(&self) -> Result<()> {
        if self.lap.params.barriers { self.task.barrier() } else { Ok(()) }
    }

    fn closed(&self) {
        let now = clock::now();
        // The null target is not closed.
        if self.own.closing.load(SeqCst) == 0 {
            self.own.closing.store(now, SeqCst);
        }
        self.own.closed.store(now, SeqCst);
    }
}

fn in_file(path: &std::path::Path, error: &Error) -> Error {
    match error {
        Error::Interrupted => Error::Interrupted,
        other => Error::failed(format!("{}: {other}", path.display())),
    }
}

/// The transfers of one rank's data, in order, and the check of the bytes read.
struct Walk {
    layout: Layout,
    filler: Filler,
    direction: Direction,
    len: usize,
    index: u64,
    count: u64,
    /// The time until which the plan begins again at its end; 0 for once.
    until: u64,
    now: u64,
    verify: Verify,
    scratch: Vec<u8>,
    errors: u64,
    wrong: Vec<(u64, u8, u8)>,
    path: PathBuf,
    log: Option<Vec<(u64, u64)>>,
}

impl Walk {
    fn new(lap: &Lap<'_>, owner: usize, filler: Filler, path: PathBuf) -> Self {
        Self {
            layout: Layout::new(lap.params, owner),
            filler,
            direction: lap.direction,
            len: lap.params.transfer as usize,
            index: 0,
            count: lap.available[owner],
            until: 0,
            now: 0,
            verify: lap.verify,
            scratch: Vec::new(),
            errors: 0,
            wrong: Vec::new(),
            path,
            log: lap.params.op_csv.is_some().then(Vec::new),
        }
    }

    fn report(&self, own: &Report) {
        own.errors.store(self.errors, SeqCst);
        for (cell, (offset, expected, found)) in own.wrong.iter().zip(&self.wrong) {
            cell.offset.store(*offset, SeqCst);
            cell.values.store(u64::from(*expected) | u64::from(*found) << 8, SeqCst);
        }
    }

    /// Writes the protocol of single operations in IOR's form.
    fn save(&self, params: &Params, lap: &Lap<'_>, rank: usize) -> Result<()> {
        let (Some(log), Some(prefix)) = (&self.log, &params.op_csv) else { return Ok(()) };
        let name = format!("{}-{}-{}-{rank:05}.csv", prefix.display(), lap.name, lap.repetition);
        let mut text = "time,runtime,tp\n".to_owned();
        let began = log.first().map_or(0, |first| first.0);
        for (start, end) in log {
            let (at, took) = (clock::seconds(start - began), clock::seconds(end - start));
            text += &format!("{at:.8e},{took:.8e},{:e}\n", self.len as f64 / took);
        }
        std::fs::write(&name, text).map_err(|error| Error::io("write", &name, &error))
    }

    #[cold]
    fn note(&mut self, op: Op, at: usize, expected: u8, found: u8) {
        self.errors += 1;
        if self.wrong.len() < KEPT {
            self.wrong.push((op.offset + at as u64, expected, found));
        }
    }
}

impl Plan for Walk {
    #[inline]
    fn next(&mut self) -> Option<Op> {
        if self.index >= self.count {
            if self.now >= self.until || self.count == 0 {
                return None;
            }
            self.index = 0;
        }
        let offset = self.layout.offset(self.index);
        self.index += 1;
        Some(Op { direction: self.direction, offset, len: self.len })
    }

    #[inline]
    fn prepare(&mut self, op: Op, buffer: &mut [u8]) {
        self.filler.stamp(buffer, op.offset);
    }

    #[inline]
    fn inspect(&mut self, op: Op, buffer: &[u8]) {
        if self.verify == Verify::No {
            return;
        }
        if buffer.len() < op.len {
            self.note(op, buffer.len(), 0, 0);
        } else if let Some(wrong) = self.filler.check(buffer, op.offset, &mut self.scratch) {
            self.note(op, wrong.at, wrong.expected, wrong.found);
        }
    }

    #[inline]
    fn done(&mut self, _op: Op, start: u64, end: u64) {
        self.now = end;
        if let Some(log) = &mut self.log {
            log.push((start, end));
        }
    }
}

impl Lap<'_> {
    /// The wrong bytes of a finished phase, each a line naming task, file, offset and values.
    pub fn complaints(&self, reports: &[Report]) -> Vec<String> {
        let mut lines = Vec::new();
        for (rank, report) in reports.iter().enumerate() {
            let errors = report.errors.load(SeqCst);
            let file = layout::file(self.params, self.owners[rank], self.repetition);
            for wrong in report.wrong.iter().take(errors as usize) {
                let values = wrong.values.load(SeqCst);
                lines.push(format!(
                    "task {rank}: {}: offset {}: expected {:#04x}, found {:#04x}",
                    file.display(),
                    wrong.offset.load(SeqCst),
                    values & 0xff,
                    values >> 8 & 0xff
                ));
            }
            if errors > KEPT as u64 {
                lines.push(format!("task {rank}: {errors} transfers with wrong bytes in all"));
            }
        }
        lines
    }
}
