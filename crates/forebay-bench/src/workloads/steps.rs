//! `steps`: what is the maximum? One more client every interval, until throughput stops growing.

use std::collections::BTreeMap;
use std::path::Path;

use super::rates::check_transfer;
use super::scatter::Scatter;
use super::session::Session;
use super::{Prepared, Queue, Workload, prepare};
use crate::args::{Parsed, Spec};
use crate::cache::Policy;
use crate::drive::SyncEach;
use crate::error::{Error, Result};
use crate::io::Direction;
use crate::meter::Total;
use crate::record::{Line, ScalePoint};
use crate::recorder::latency;
use crate::stats;
use crate::units::{human_bytes, human_count, human_nanos};

pub const WORKLOAD: Workload =
    Workload { name: "steps", spec, cache: Policy::Direct, queue: Queue::Deep, plan };

fn spec() -> Spec {
    Spec::new("steps")
        .about(
            "What is the maximum, and with how many clients? Adds clients every interval until \
             throughput has\nstopped growing; the knee is the least number of clients that reaches \
             95 % of the best. Each client\nhas one transfer at a time at a random place.",
        )
        .value(None, "op", "OP", "write (default) or read")
        .value(Some('t'), "transfer", "SIZE", "default 4k")
        .value(Some('s'), "size", "SIZE", "size of the file; default 256m")
        .flag(None, "fsync", "each write is synced (acknowledged only when durable)")
        .value(None, "interval", "TIME", "length of a step; default 5s")
        .value(None, "first", "N", "clients of the first step; default 1")
        .value(None, "add", "N", "clients added each step; default 1")
        .value(None, "max", "N", "most clients; default 128")
        .examples(
            "  forebay bench steps /mnt/fast --fsync --out steps.ndjson\n  \
             forebay bench steps /mnt/fast --op read --cache keep --add 4 --interval 10s",
        )
}

fn plan(parsed: &Parsed) -> Result<Box<dyn Prepared>> {
    let steps = Steps {
        direction: direction(parsed)?,
        transfer: parsed.size("transfer", 4096)?,
        size: parsed.size("size", 256 << 20)?,
        each: if parsed.flag("fsync") { SyncEach::Write } else { SyncEach::No },
        interval: parsed.seconds("interval", 5.0)?,
        first: parsed.number("first", 1)?,
        add: parsed.number("add", 1)?,
        max: parsed.number("max", 128)?,
    };
    check_transfer("transfer", steps.transfer, steps.size)?;
    if steps.interval < 0.1 {
        return Err(Error::usage("--interval: use 100ms or more"));
    }
    if steps.first == 0 || steps.add == 0 || !(steps.first..=4096).contains(&steps.max) {
        return Err(Error::usage("--first and --add are 1 or more, --max from --first to 4096"));
    }
    if steps.direction == Direction::Read && steps.each == SyncEach::Write {
        return Err(Error::usage("--fsync: reads have nothing to sync; drop it or use --op write"));
    }
    Ok(Box::new(steps))
}

fn direction(parsed: &Parsed) -> Result<Direction> {
    match parsed.get("op").unwrap_or("write") {
        "write" => Ok(Direction::Write),
        "read" => Ok(Direction::Read),
        other => Err(Error::usage(format!("--op {other}: use write or read"))),
    }
}

struct Steps {
    direction: Direction,
    transfer: u64,
    size: u64,
    each: SyncEach,
    interval: f64,
    first: usize,
    add: usize,
    max: usize,
}

impl Steps {
    fn step(&self, session: &mut Session, path: &Path, clients: usize) -> Result<ScalePoint> {
        let scatter = Scatter {
            path,
            size: self.size,
            direction: self.direction,
            transfer: self.transfer,
            each: self.each,
            tasks: clients,
            seconds: self.interval,
            stream: clients as u64,
        };
        let name = format!("{clients} client{}", if clients == 1 { "" } else { "s" });
        let (seconds, total) = scatter.run(session, &name)?;
        Ok(point(clients, seconds, &total))
    }

    /// Steps until throughput has stopped growing; the measurements are in `points` even after an
    /// error.
    fn climb(&self, session: &mut Session, points: &mut Vec<ScalePoint>) -> Result<()> {
        let path = session.file("data");
        prepare::create(session, &path)?;
        prepare::lay(session, &path, (0, self.size), 0, 1)?;
        for clients in (self.first..=self.max).step_by(self.add) {
            points.push(self.step(session, &path, clients)?);
            if stats::stopped_growing(&rates(points)) {
                break;
            }
        }
        Ok(())
    }

    fn conclude(&self, session: &mut Session, mut points: Vec<ScalePoint>) -> Result<()> {
        let Some(knee) = stats::knee(&rates(&points)) else {
            return Ok(());
        };
        let stopped = stats::stopped_growing(&rates(&points));
        points[knee].knee = true;
        let at = points[knee].clone();
        for point in points {
            session.recorder.put(Line::Scale(point))?;
        }
        let still = match stopped {
            true => "",
            false => " Throughput was still growing at the last step, so the maximum is higher.",
        };
        session.recorder.finding(format!(
            "The knee is at {} clients: {} operations a second, half of them within {}, 99 % \
             within {}.{still}",
            at.clients,
            human_count(at.ops_per_second),
            human_nanos(at.latency.p50_ns),
            human_nanos(at.latency.p99_ns),
        ))
    }
}

fn rates(points: &[ScalePoint]) -> Vec<f64> {
    points.iter().map(|point| point.ops_per_second).collect()
}

fn point(clients: usize, seconds: f64, total: &Total) -> ScalePoint {
    ScalePoint {
        clients: clients as u32,
        seconds,
        ops: total.ops,
        bytes: total.bytes,
        ops_per_second: total.ops as f64 / seconds.max(1e-9),
        bytes_per_second: total.bytes as f64 / seconds.max(1e-9),
        latency: latency(&total.latency),
        knee: false,
    }
}

impl Prepared for Steps {
    fn settings(&self) -> BTreeMap<String, String> {
        let op = match self.direction {
            Direction::Read => "read",
            Direction::Write => "write",
        };
        let each = if self.each == SyncEach::Write { "each write" } else { "no" };
        BTreeMap::from([
            ("op".into(), op.into()),
            ("transfer".into(), human_bytes(self.transfer)),
            ("size".into(), human_bytes(self.size)),
            ("fsync".into(), each.into()),
            ("interval".into(), format!("{} s", self.interval)),
            ("clients".into(), format!("{} to {} by {}", self.first, self.max, self.add)),
        ])
    }

    fn needs(&self) -> u64 {
        self.size
    }

    fn transfers(&self) -> Vec<(&'static str, u64)> {
        vec![("--transfer", self.transfer)]
    }

    fn run(&self, session: &mut Session) -> Result<()> {
        let mut points = Vec::new();
        let climbed = self.climb(session, &mut points);
        self.conclude(session, points)?;
        climbed
    }
}
