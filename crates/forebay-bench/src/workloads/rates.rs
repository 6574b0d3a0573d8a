//! `rates`: the plain rates of writing and reading, in order and at random. The default workload of
//! `compare`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::session::{Cache, Session, Told};
use super::skew::{Picker, Skew};
use super::work::{self, Ending, Random, Sweep, Work, work};
use super::{Prepared, Queue, Workload, prepare};
use crate::args::{Parsed, Spec};
use crate::cache::Policy;
use crate::drive::Plan;
use crate::error::{Error, Result};
use crate::io::{Direction, How, Op};
use crate::progress::Goal;
use crate::record::Access;
use crate::rng::Rng;
use crate::team::Task;
use crate::units::human_bytes;

pub const WORKLOAD: Workload =
    Workload { name: "rates", spec, cache: Policy::Fadvise, queue: Queue::Deep, plan };

fn spec() -> Spec {
    Spec::new("rates")
        .about(
            "What are the plain rates of writing and reading? Four phases on one file: write and \
             read in order\nby large transfers, write and read at random by small ones. Writes end \
             with an fsync that counts.",
        )
        .value(Some('s'), "size", "SIZE", "size of the file; default 256m")
        .value(Some('t'), "transfer", "SIZE", "transfers in order; default 1m")
        .value(Some('b'), "block", "SIZE", "transfers at random; default 4k")
        .value(Some('n'), "tasks", "N", "default 1")
        .value(None, "count", "N", "random transfers per task and phase; default 2000")
        .examples("  forebay bench rates /mnt/fast\n  forebay bench rates /mnt/fast -n 4 -s 1g --cache direct")
}

fn plan(parsed: &Parsed) -> Result<Box<dyn Prepared>> {
    let rates = Rates {
        size: parsed.size("size", 256 << 20)?,
        transfer: parsed.size("transfer", 1 << 20)?,
        block: parsed.size("block", 4096)?,
        tasks: parsed.number("tasks", 1)?,
        count: parsed.number("count", 2000)?,
    };
    check_tasks(rates.tasks)?;
    check_transfer("transfer", rates.transfer, rates.size)?;
    check_transfer("block", rates.block, rates.size)?;
    Ok(Box::new(rates))
}

/// A usage error for a number of tasks that no machine runs.
pub fn check_tasks(tasks: usize) -> Result<()> {
    match tasks {
        1..=4096 => Ok(()),
        _ => Err(Error::usage(format!("--tasks {tasks}: use 1 to 4096"))),
    }
}

/// A usage error for a transfer that is empty, too large for memory, or no divisor of `size`.
pub fn check_transfer(name: &str, transfer: u64, size: u64) -> Result<()> {
    if transfer == 0 || transfer > 1 << 30 {
        return Err(Error::usage(format!("--{name} {transfer}: use 1 byte to 1 GiB")));
    }
    if size == 0 || !size.is_multiple_of(transfer) {
        return Err(Error::usage(format!(
            "--{name}: {} is no divisor of {}; change one of them",
            human_bytes(transfer),
            human_bytes(size)
        )));
    }
    Ok(())
}

struct Rates {
    size: u64,
    transfer: u64,
    block: u64,
    tasks: usize,
    count: u64,
}

/// A number of random transfers.
struct Counted {
    random: Random,
    left: u64,
}

impl Plan for Counted {
    fn next(&mut self) -> Option<Op> {
        self.left = self.left.checked_sub(1)?;
        self.random.next()
    }
}

impl Rates {
    /// One phase; `plan` makes each task's part of it.
    fn phase<P: Plan>(
        &self,
        session: &mut Session,
        path: &Path,
        (name, direction, len): (&str, Direction, u64),
        plan: impl Fn(&Task<'_>) -> P + Sync,
    ) -> Result<()> {
        let files: [PathBuf; 1] = [path.to_owned()];
        let base = session.base.clone();
        let how =
            How { write: direction == Direction::Write, direct: base.direct(), ..How::default() };
        let (access, ending, before) = match direction {
            Direction::Write => (Access::Write, Ending::Sync, session.before()),
            Direction::Read => (Access::Read, Ending::Close, session.before_reading(&files)?),
        };
        let shared = Work { ending, ..Work::on(path.to_owned(), how, len as usize) };
        let goal = match len == self.transfer {
            true => Goal::Bytes(self.size),
            false => Goal::Ops(self.count * self.tasks as u64),
        };
        let outcome = session
            .team(self.tasks, name, goal)
            .run(|task: &Task<'_>, end| work(&base, task, end, &shared, &mut plan(task)).map(drop));
        let told = Told {
            name,
            iteration: 0,
            access,
            tasks: self.tasks,
            seconds: work::seconds(&outcome),
            transfer: len,
            before,
            cache: Cache::Doubtful,
            files: &files,
            figures: BTreeMap::new(),
        };
        session.phase(told, &outcome).map(drop)
    }

    fn sweep(&self, task: &Task<'_>, direction: Direction) -> Sweep {
        let (from, to) = work::share(self.size, self.transfer, task.rank, task.tasks);
        Sweep::over(direction, from, to, self.transfer)
    }

    fn random(&self, rng: Rng, direction: Direction) -> Counted {
        let picker = Picker::new(Skew::Uniform, self.size / self.block);
        Counted { random: Random { direction, picker, rng, len: self.block }, left: self.count }
    }
}

impl Prepared for Rates {
    fn settings(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("size".into(), human_bytes(self.size)),
            ("transfer".into(), human_bytes(self.transfer)),
            ("block".into(), human_bytes(self.block)),
            ("tasks".into(), self.tasks.to_string()),
            ("count".into(), self.count.to_string()),
        ])
    }

    fn needs(&self) -> u64 {
        self.size
    }

    fn transfers(&self) -> Vec<(&'static str, u64)> {
        vec![("--transfer", self.transfer), ("--block", self.block)]
    }

    fn run(&self, session: &mut Session) -> Result<()> {
        let (read, write) = (Direction::Read, Direction::Write);
        let seed = session.base.seed;
        let path = session.file("data");
        prepare::create(session, &path)?;
        let ordered = self.transfer;
        self.phase(session, &path, ("write", write, ordered), |task| self.sweep(task, write))?;
        self.phase(session, &path, ("read", read, ordered), |task| self.sweep(task, read))?;
        let at = |task: &Task<'_>, salt| work::rng(seed + salt, task.rank);
        self.phase(session, &path, ("random write", write, self.block), |task| {
            self.random(at(task, 1), write)
        })?;
        self.phase(session, &path, ("random read", read, self.block), |task| {
            self.random(at(task, 2), read)
        })
    }
}
