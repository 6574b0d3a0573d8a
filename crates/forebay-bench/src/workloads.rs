//! Workloads named after the question each answers, and their common part: the order of events of a
//! run.
//!
//! Invariants:
//! - L1: an impossible command line is refused before anything is written.
//! - L2: however a run ends, its files are removed (unless `--keep`) and the measurements until
//!   then are printed and recorded.

pub mod base;
pub mod bfs;
pub mod checkpoint;
pub mod fill;
mod prepare;
pub mod rates;
pub mod reread;
mod scatter;
pub mod session;
pub mod skew;
pub mod steady;
pub mod steps;
mod work;

use std::collections::BTreeMap;
use std::io::Write;

use crate::args::{Parsed, Spec};
use crate::cache::Policy;
use crate::error::{Error, Result};
use crate::record::{Outcome, Record};
use crate::recorder::Sinks;
use crate::report::terminal;
use base::Base;
pub use prepare::NAME as PREPARE;
use session::{Session, Voice};

/// A kind of run.
pub struct Workload {
    pub name: &'static str,
    /// The workload's own options; [`Base`] adds the common ones.
    pub spec: fn() -> Spec,
    /// The default of `--cache`.
    pub cache: Policy,
    pub queue: Queue,
    /// Reads the options, as far as that is possible without touching the target.
    pub plan: fn(&Parsed) -> Result<Box<dyn Prepared>>,
}

/// The number of transfers that a task can have in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// As many as `--depth` says, with `--api URING`.
    Deep,
    /// One, with the remedy for a wish for more.
    Single(&'static str),
}

/// A run, ready to start.
pub trait Prepared {
    /// Every setting in force, for the record.
    fn settings(&self) -> BTreeMap<String, String>;

    /// The most bytes that the run writes, all files together.
    fn needs(&self) -> u64;

    /// Sizes of transfers that go around the page cache with `--cache direct`, by option.
    fn transfers(&self) -> Vec<(&'static str, u64)>;

    /// Runs the measurement. Results go into the session as they come.
    fn run(&self, session: &mut Session) -> Result<()>;
}

/// Runs a workload as a command.
pub fn run(workload: &Workload, args: &[String]) -> Result<u8> {
    let parsed = Base::options((workload.spec)()).parse(args)?;
    if let Some(help) = parsed.help_wanted() {
        print!("{help}");
        return Ok(0);
    }
    let (record, ended) = conduct(workload, args, &parsed, Voice::Loud)?;
    let _ = write!(Sinks::of(&parsed).terminal(), "{}", terminal::results(&record));
    ended.map(|()| 0)
}

/// Runs a workload for its record alone.
pub fn record(workload: &Workload, args: &[String]) -> Result<Record> {
    let parsed = Base::options((workload.spec)()).parse(args)?;
    let (record, ended) = conduct(workload, args, &parsed, Voice::Quiet)?;
    ended.map(|()| record)
}

/// Checks a command line as far as that is possible without writing (L1).
pub fn check(workload: &Workload, args: &[String]) -> Result<()> {
    prepared(workload, &Base::options((workload.spec)()).parse(args)?).map(drop)
}

/// Runs a workload. An error means that nothing ran; otherwise returns the measurements, and how
/// the run ended (L2).
fn conduct(
    workload: &Workload,
    args: &[String],
    parsed: &Parsed,
    voice: Voice,
) -> Result<(Record, Result<()>)> {
    let (base, ready) = prepared(workload, parsed)?;
    let mut session = Session::begin(workload.name, args, base, ready.settings(), voice)?;
    let ended = ready.run(&mut session);
    let outcome = match &ended {
        Ok(()) => Outcome::Complete,
        Err(Error::Interrupted) => Outcome::Interrupted,
        Err(_) => Outcome::Failed,
    };
    Ok((session.end(outcome)?, ended))
}

fn prepared(workload: &Workload, parsed: &Parsed) -> Result<(Base, Box<dyn Prepared>)> {
    let named = |error: Error| match error {
        Error::Usage(text) => Error::Usage(format!("{}: {text}", workload.name)),
        other => other,
    };
    let base = Base::read(parsed, workload.cache, workload.queue).map_err(named)?;
    let ready = (workload.plan)(parsed).map_err(named)?;
    base.check_aligned(&ready.transfers()).map_err(named)?;
    base.check_room(ready.needs()).map_err(named)?;
    Ok((base, ready))
}

/// A command of the command line.
pub type Command = (&'static str, &'static str, fn(&[String]) -> Result<u8>);

/// Name, one line about it, and its entry.
pub const COMMANDS: &[Command] = &[
    ("fill", "how does write throughput change as it fills?", |args| run(&fill::WORKLOAD, args)),
    ("steps", "what is the maximum, and with how many clients?", |args| {
        run(&steps::WORKLOAD, args)
    }),
    ("steady", "is it flat under a given load?", |args| run(&steady::WORKLOAD, args)),
    ("checkpoint", "how long does an application wait for its checkpoints?", |args| {
        run(&checkpoint::WORKLOAD, args)
    }),
    ("reread", "what does the page cache do for input read twice?", |args| {
        run(&reread::WORKLOAD, args)
    }),
    ("bfs", "how fast is a graph searched that does not fit into memory?", |args| {
        run(&bfs::WORKLOAD, args)
    }),
    ("rates", "what are the plain rates of writing and reading?", |args| {
        run(&rates::WORKLOAD, args)
    }),
];

/// All workloads, for `compare`.
pub const WORKLOADS: &[&Workload] = &[
    &fill::WORKLOAD,
    &steps::WORKLOAD,
    &steady::WORKLOAD,
    &checkpoint::WORKLOAD,
    &reread::WORKLOAD,
    &bfs::WORKLOAD,
    &rates::WORKLOAD,
];

#[cfg(test)]
mod tests;
