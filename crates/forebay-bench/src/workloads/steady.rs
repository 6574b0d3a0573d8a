//! `steady`: is it flat? An open loop: operations arrive at a given rate whether or not earlier ones
//! have been answered.
//!
//! Invariants:
//! - O1: the latency of an operation that had to wait for its client counts from the moment it was
//!   due, so a stall is seen by every operation it delayed (no coordinated omission).
//! - O2: the latency of an operation whose client was free counts from its real start: the delay of
//!   the client's wake-up is a figure of its own (`woken_late`), not the target's.
//! - O3: operations that were due before the end, and had not begun, count with the time they had
//!   waited until then; their number is reported.
//!
//! The clock is read once for an operation that had to wait for its client: the end of the previous
//! operation is its beginning. An operation whose client had to wait for it costs a second reading,
//! as the loop is open: only the clock tells that it is due.

mod client;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::rates::{check_tasks, check_transfer};
use super::session::{Before, Cache, Session, Told};
use super::skew::Skew;
use super::{Prepared, Queue, Workload, fill, prepare};
use crate::args::{Parsed, Spec};
use crate::cache::Policy;
use crate::error::{Error, Result};
use crate::io::Api;
use crate::meter::{Latencies, Total};
use crate::progress::Goal;
use crate::record::{Access, Part};
use crate::recorder::{Course, latency};
use crate::stats;
use crate::team::{Outcome, Task};
use crate::units::{self, human_bytes, human_count, human_nanos};
use client::{Client, Own};

pub const WORKLOAD: Workload = Workload {
    name: "steady",
    spec,
    cache: Policy::Keep,
    queue: Queue::Single(
        "a client has one operation at a time; raise --clients for more in flight",
    ),
    plan,
};

fn spec() -> Spec {
    Spec::new("steady")
        .about(
            "Is it flat? Operations arrive at random (Poisson) at a given rate, whether or not \
             earlier ones are\ndone; latency counts from when an operation was to start, so stalls \
             show. Tells the course, its\ncoefficient of variation, minimum over mean, and percentiles. \
             The warm-up is discarded.",
        )
        .value(Some('r'), "rate", "N", "operations a second, all clients together (needed)")
        .value(None, "reads", "PERCENT", "share of reads; default 0")
        .value(None, "skew", "SKEW", "uniform (default), zipf[:1.1], pareto[:0.2]")
        .value(None, "fsync", "N", "each client syncs after every N writes; default never")
        .value(Some('t'), "transfer", "SIZE", "default 4k")
        .value(Some('s'), "size", "SIZE", "size of the file; default 256m")
        .value(Some('n'), "clients", "N", "default 4; more hide stalls of single operations")
        .value(None, "time", "TIME", "measured time; default 60s")
        .value(None, "warm-up", "TIME", "discarded time before it; default 5s")
        .examples(
            "  forebay bench steady /mnt/fast --rate 2000 --reads 70 --skew zipf:1.1 --out steady.ndjson\n  \
             forebay bench steady /mnt/fast --rate 500 --fsync 1 --time 10m -n 16\n  \
             forebay bench steady --target null --rate 100000",
        )
}

fn plan(parsed: &Parsed) -> Result<Box<dyn Prepared>> {
    if parsed.get("rate").is_none() {
        return Err(Error::usage(
            "--rate is needed: operations a second; `steps` finds what is possible",
        ));
    }
    let steady = Steady {
        rate: parsed.number("rate", 0.0)?,
        reads: percent(parsed.get("reads").unwrap_or("0"))?,
        skew: Skew::parse(parsed.get("skew").unwrap_or("uniform"))?,
        fsync: parsed.number("fsync", 0)?,
        transfer: parsed.size("transfer", 4096)?,
        size: parsed.size("size", 256 << 20)?,
        clients: parsed.number("clients", 4)?,
        seconds: parsed.seconds("time", 60.0)?,
        warm_up: parsed.seconds("warm-up", 5.0)?,
    };
    if !(steady.rate > 0.0 && steady.rate <= 1e9) {
        return Err(Error::usage(format!("--rate {}: use more than 0, up to 1e9", steady.rate)));
    }
    check_tasks(steady.clients)?;
    check_transfer("transfer", steady.transfer, steady.size)?;
    if steady.seconds < 1.0 {
        return Err(Error::usage("--time: use a second or more"));
    }
    Ok(Box::new(steady))
}

/// Reads `70` or `70%`.
fn percent(text: &str) -> Result<f64> {
    let wrong = || Error::usage(format!("--reads {text}: use 0 to 100"));
    units::percent(text).map(|share| share / 100.0).ok_or_else(wrong)
}

#[derive(Debug, Clone)]
struct Steady {
    rate: f64,
    /// The share of reads, 0 to 1.
    reads: f64,
    skew: Skew,
    /// Writes between two syncs; 0 is never.
    fsync: u64,
    transfer: u64,
    size: u64,
    clients: usize,
    seconds: f64,
    warm_up: f64,
}

impl Steady {
    fn access(&self) -> Access {
        match self.reads {
            0.0 => Access::Write,
            1.0 => Access::Read,
            _ => Access::Mixed,
        }
    }

    fn load(&self, session: &mut Session, path: &Path) -> Result<()> {
        let files: [PathBuf; 1] = [path.to_owned()];
        let before = match self.access() {
            Access::Write => session.before(),
            _ => session.before_reading(&files)?,
        };
        let base = session.base.clone();
        let goal = Goal::Seconds(self.warm_up + self.seconds);
        let outcome = session.team(self.clients, "steady", goal).run(|task: &Task<'_>, own| {
            let mut client = Client::open(self, &base, path, task.rank)?;
            client.serve(task, own)
        });
        self.record(session, &files, before, &outcome)?;
        outcome.check()?;
        if outcome.interrupted { Err(Error::Interrupted) } else { Ok(()) }
    }

    fn record(
        &self,
        session: &mut Session,
        files: &[PathBuf],
        before: Before,
        outcome: &Outcome<Own>,
    ) -> Result<()> {
        let warm = Total::of(outcome.results().iter().map(|own| &own.warm_up));
        let course = Course {
            phase: "steady",
            iteration: 0,
            from_seconds: 0.0,
            seconds: self.warm_up,
            part: Part::WarmUp,
        };
        session.recorder.put_series(course, &warm.series)?;
        let total = Total::of(outcome.meters());
        let seconds = self.measured_seconds(outcome);
        if total.ops == 0 || seconds <= 0.0 {
            return Ok(());
        }
        let figures = self.figures(outcome, &total, seconds);
        let told = Told {
            name: "steady",
            iteration: 0,
            access: self.access(),
            tasks: self.clients,
            seconds,
            transfer: self.transfer,
            before,
            cache: Cache::Doubtful,
            files,
            figures: figures.clone(),
        };
        session.put_phase_from(&told, &total, self.warm_up)?;
        self.conclude(session, &total, &figures)
    }

    /// The whole time, or the part of it before an interruption.
    fn measured_seconds(&self, outcome: &Outcome<Own>) -> f64 {
        let end = outcome.results().iter().map(Own::end).max().unwrap_or(0);
        let passed = end.saturating_sub(outcome.began) as f64 / 1e9 - self.warm_up;
        passed.min(self.seconds)
    }

    fn figures(
        &self,
        outcome: &Outcome<Own>,
        total: &Total,
        seconds: f64,
    ) -> BTreeMap<String, f64> {
        let rates = fill::per_second(&total.series, seconds);
        let undone: u64 = outcome.results().iter().map(Own::undone).sum();
        let late = Latencies::boxed();
        outcome.results().iter().for_each(|own| late.merge(&own.woken_late));
        let offered = self.rate * total.series.width() as f64 / 1e9;
        BTreeMap::from([
            ("asked_ops_per_second".into(), self.rate),
            ("achieved_ops_per_second".into(), total.ops as f64 / seconds),
            ("variation".into(), stats::variation(&rates)),
            ("variation_of_arrivals".into(), 1.0 / offered.sqrt()),
            ("minimum_over_mean".into(), stats::minimum_over_mean(&rates)),
            ("not_begun_ops".into(), undone as f64),
            ("woken_late_p99_ns".into(), latency(&late).p99_ns as f64),
            ("discarded_seconds".into(), self.warm_up),
        ])
    }

    fn conclude(
        &self,
        session: &mut Session,
        total: &Total,
        figures: &BTreeMap<String, f64>,
    ) -> Result<()> {
        let figure = |name: &str| figures.get(name).copied().unwrap_or(0.0);
        let found = latency(&total.latency);
        session.recorder.finding(format!(
            "At {} operations a second: variation {:.1} % from second to second ({:.1} % is in \
             the arrivals), minimum over mean {:.2}; 99 % within {}, 99.9 % within {}, the longest \
             {}. The first {} s were discarded as warm-up.",
            human_count(figure("achieved_ops_per_second")),
            figure("variation") * 100.0,
            figure("variation_of_arrivals") * 100.0,
            figure("minimum_over_mean"),
            human_nanos(found.p99_ns),
            human_nanos(found.p999_ns),
            human_nanos(found.max_ns),
            self.warm_up,
        ))?;
        let undone = figure("not_begun_ops");
        if undone <= 0.01 * total.ops as f64 {
            return Ok(());
        }
        session.recorder.finding(format!(
            "The rate was too high: {} operations had not begun when the time was up, so the \
             latencies are those of a queue that grows. Lower --rate, or raise --clients.",
            human_count(undone)
        ))
    }
}

impl Prepared for Steady {
    fn settings(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            ("rate".into(), format!("{} per second, Poisson", self.rate)),
            ("reads".into(), format!("{} %", self.reads * 100.0)),
            ("skew".into(), format!("{:?}", self.skew).to_lowercase()),
            (
                "fsync".into(),
                match self.fsync {
                    0 => "never".into(),
                    n => format!("after every {n} writes of a client"),
                },
            ),
            ("transfer".into(), human_bytes(self.transfer)),
            ("size".into(), human_bytes(self.size)),
            ("clients".into(), self.clients.to_string()),
            ("time".into(), format!("{} s", self.seconds)),
            ("warm-up".into(), format!("{} s, discarded", self.warm_up)),
        ])
    }

    fn needs(&self) -> u64 {
        self.size
    }

    fn transfers(&self) -> Vec<(&'static str, u64)> {
        vec![("--transfer", self.transfer)]
    }

    fn run(&self, session: &mut Session) -> Result<()> {
        let path = session.file("data");
        prepare::create(session, &path)?;
        if session.base.api != Api::Null {
            prepare::lay(session, &path, (0, self.size), 0, 1)?;
        }
        self.load(session, &path)
    }
}
