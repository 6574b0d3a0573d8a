//! The evaluation of a second-by-second course: percentiles, steadiness; and its lines for `forebay
//! bench report`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use forebay_bench::environment;
use forebay_bench::meter::Latencies;
use forebay_bench::record::{Access, Line, Outcome, Part, Phase, Second};
use forebay_bench::recorder::{Recorder, Sinks, latency};

use super::fio::Op;

/// A stretch of time in milliseconds, end excluded.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub from: u64,
    pub to: u64,
}

impl Span {
    pub fn secs(from: u64, to: u64) -> Span {
        Span { from: from * 1000, to: to * 1000 }
    }

    pub fn holds(self, at_ms: u64) -> bool {
        (self.from..self.to).contains(&at_ms)
    }
}

pub fn within(ops: &[Op], span: Span) -> Vec<Op> {
    ops.iter().copied().filter(|op| span.holds(op.at_ms)).collect()
}

/// The latency that `percent` of the operations do not exceed, in milliseconds.
pub fn percentile_ms(ops: &[Op], percent: f64) -> f64 {
    let mut nanos: Vec<u64> = ops.iter().map(|op| op.nanos).collect();
    nanos.sort_unstable();
    let at = (nanos.len() as f64 * percent / 100.0).ceil() as usize;
    nanos.get(at.saturating_sub(1)).map_or(f64::NAN, |ns| *ns as f64 / 1e6)
}

/// Operations in each second of the span.
pub fn per_second(ops: &[Op], span: Span) -> Vec<f64> {
    let mut counts = vec![0.0; ((span.to - span.from) / 1000) as usize];
    for op in ops.iter().filter(|op| span.holds(op.at_ms)) {
        if let Some(count) = counts.get_mut(((op.at_ms - span.from) / 1000) as usize) {
            *count += 1.0;
        }
    }
    counts
}

/// The evenness of a course.
#[derive(Clone, Copy, Debug)]
pub struct Steadiness {
    pub mean: f64,
    /// Standard deviation over mean.
    pub variation: f64,
    /// The lowest value over the mean.
    pub lowest: f64,
}

impl Steadiness {
    pub fn of(course: &[f64]) -> Steadiness {
        let n = course.len().max(1) as f64;
        let mean = course.iter().sum::<f64>() / n;
        let square = course.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let lowest = course.iter().copied().fold(f64::INFINITY, f64::min);
        Steadiness { mean, variation: square.sqrt() / mean, lowest: lowest / mean }
    }
}

/// Writes one result file.
pub struct Book(Recorder, PathBuf);

impl Book {
    pub fn open(out: &Path, name: &str, settings: &[(&str, String)]) -> Result<Book> {
        let path = out.join(format!("flat-{name}.ndjson"));
        let mut header = environment::header("flat", &[], &[]);
        header.tool = concat!("forebay-perf ", env!("CARGO_PKG_VERSION")).into();
        header.command = std::env::args().collect();
        header.settings =
            settings.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        let sinks = Sinks { ndjson: Some(path.clone()), json: None };
        Ok(Book(Recorder::begin(header, &sinks).map_err(told)?, path))
    }

    /// Writes a phase with every second of it; the first `warm_up` seconds are not counted.
    pub fn ops(&mut self, name: &str, ops: &[Op], secs: u64, warm_up: u64) -> Result<()> {
        let counted = within(ops, Span::secs(warm_up, secs));
        let all = Latencies::boxed();
        counted.iter().for_each(|op| all.record(op.nanos));
        self.put(Line::Phase(Phase {
            name: name.into(),
            access: Access::Mixed,
            bytes: counted.iter().map(|op| op.bytes).sum(),
            ops: counted.len() as u64,
            seconds: (secs - warm_up) as f64,
            latency: Some(latency(&all)),
            ..Phase::default()
        }))?;
        for second in 0..secs {
            let ops = within(ops, Span::secs(second, second + 1));
            let part = if second < warm_up { Part::WarmUp } else { Part::Measured };
            self.put(Line::Second(Second { part, ..slice(name, second, &ops) }))?;
        }
        Ok(())
    }

    /// Writes a phase with known bytes per interval only.
    pub fn bytes(&mut self, name: &str, course: &[(f64, u64)], secs: f64) -> Result<()> {
        let bytes = course.iter().map(|point| point.1).sum();
        let phase = Phase { name: name.into(), bytes, seconds: secs, ..Phase::default() };
        self.put(Line::Phase(Phase { access: Access::Write, ..phase }))?;
        for &(at_seconds, bytes) in course {
            let second = Second { phase: name.into(), at_seconds, bytes, ..Second::default() };
            self.put(Line::Second(Second { seconds: 1.0, ..second }))?;
        }
        Ok(())
    }

    /// Writes a phase with known operations per interval.
    pub fn counts(&mut self, name: &str, course: &[Interval]) -> Result<()> {
        let figures = BTreeMap::new();
        let seconds = course.iter().map(|one| one.seconds).sum();
        let ops = course.iter().map(|one| one.ops).sum();
        self.put(Line::Phase(Phase {
            name: name.into(),
            ops,
            seconds,
            figures,
            ..Phase::default()
        }))?;
        for one in course {
            self.put(Line::Second(Second {
                phase: name.into(),
                at_seconds: one.at,
                seconds: one.seconds,
                ops: one.ops,
                p50_ns: one.typical_ns,
                p99_ns: one.high_ns,
                max_ns: one.high_ns,
                ..Second::default()
            }))?;
        }
        Ok(())
    }

    pub fn finding(&mut self, text: &str) -> Result<()> {
        self.0.finding(text).map_err(told)
    }

    pub fn close(self) -> Result<PathBuf> {
        self.0.finish(Outcome::Complete).map_err(told)?;
        Ok(self.1)
    }

    fn put(&mut self, line: Line) -> Result<()> {
        self.0.put(line).map_err(told)
    }
}

/// The report of a database's load generator about one interval.
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    pub at: f64,
    pub seconds: f64,
    pub ops: u64,
    pub typical_ns: u64,
    pub high_ns: u64,
}

fn slice(name: &str, second: u64, ops: &[Op]) -> Second {
    let nanos = |percent| (percentile_ms(ops, percent) * 1e6) as u64;
    Second {
        phase: name.into(),
        at_seconds: second as f64,
        seconds: 1.0,
        ops: ops.len() as u64,
        bytes: 0,
        p50_ns: nanos(50.0),
        p99_ns: nanos(99.0),
        max_ns: nanos(100.0),
        ..Second::default()
    }
}

fn told(error: forebay_bench::Error) -> anyhow::Error {
    anyhow!("{error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(at_ms: u64, nanos: u64) -> Op {
        Op { at_ms, nanos, bytes: 4096 }
    }

    #[test]
    fn percentiles_are_of_single_operations() {
        let ops: Vec<Op> = (1..=100).map(|ms| op(0, ms * 1_000_000)).collect();
        assert_eq!((percentile_ms(&ops, 50.0), percentile_ms(&ops, 99.0)), (50.0, 99.0));
        assert!(percentile_ms(&[], 99.0).is_nan());
    }

    #[test]
    fn a_second_without_operations_counts() {
        let course =
            per_second(&[op(0, 1), op(2500, 1), op(2600, 1), op(4000, 1)], Span::secs(0, 4));
        assert_eq!(course, [1.0, 0.0, 2.0, 0.0]);
        let steadiness = Steadiness::of(&[2.0, 4.0]);
        assert_eq!((steadiness.mean, steadiness.lowest), (3.0, 2.0 / 3.0));
        assert!((steadiness.variation - 1.0 / 3.0).abs() < 1e-9);
    }
}
