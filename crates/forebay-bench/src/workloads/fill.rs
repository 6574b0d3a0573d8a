//! `fill`: how does write throughput change as the device, or the fast tier, fills?
//!
//! Each step fills the file up to the next share of the capacity, then writes at random all over
//! the filled part, and takes the steady part of that.

use std::collections::BTreeMap;
use std::path::Path;

use super::rates::{check_tasks, check_transfer};
use super::scatter::Scatter;
use super::session::Session;
use super::{Prepared, Queue, Workload, prepare};
use crate::args::{Parsed, Spec};
use crate::cache::Policy;
use crate::drive::SyncEach;
use crate::error::{Error, Result};
use crate::io::Direction;
use crate::meter::Total;
use crate::record::{FillPoint, Line};
use crate::recorder::latency;
use crate::slices::Slices;
use crate::stats;
use forebay_base::units::exact_size;

use crate::units::{human_bytes, human_rate};

pub const WORKLOAD: Workload =
    Workload { name: "fill", spec, cache: Policy::Direct, queue: Queue::Deep, plan };

const STEPS: &str = "1/3,1/2,2/3,1";

fn spec() -> Spec {
    Spec::new("fill")
        .about(
            "How does write throughput change as the device, or the fast tier, fills? Random writes \
             over a growing\nshare of the capacity; of each step the part counts in which throughput \
             no longer moves. Published:\none flash card fell from 959 MiB/s at a third to 417 when \
             full (0.43), another to a tenth.",
        )
        .value(Some('c'), "capacity", "SIZE", "what is filled at the last step (needed)")
        .value(None, "steps", "LIST", "shares of it; default 1/3,1/2,2/3,1")
        .value(Some('t'), "transfer", "SIZE", "default 16k")
        .value(Some('n'), "tasks", "N", "default 4")
        .value(None, "time", "TIME", "length of a step; default 60s")
        .examples(
            "  forebay bench fill /mnt/fast --capacity 8g --out fill.ndjson\n  \
             forebay bench fill /mnt/forebay --capacity 40g --time 10m --steps 0.25,0.5,0.75,1,1.25",
        )
}

fn plan(parsed: &Parsed) -> Result<Box<dyn Prepared>> {
    let Some(_) = parsed.get("capacity") else {
        return Err(Error::usage(
            "--capacity is needed: the size of the device or of the fast tier, which the last step \
             fills",
        ));
    };
    let fill = Fill {
        capacity: parsed.size("capacity", 0)?,
        shares: shares(parsed.get("steps").unwrap_or(STEPS))?,
        transfer: parsed.size("transfer", 16 << 10)?,
        tasks: parsed.number("tasks", 4)?,
        seconds: parsed.seconds("time", 60.0)?,
    };
    check_tasks(fill.tasks)?;
    check_transfer("transfer", fill.transfer, fill.transfer)?;
    if fill.filled(fill.shares[0]) == 0 {
        return Err(Error::usage(format!(
            "--capacity {}: the first step, {} of it, has not even one transfer of {}: give the size of the \
             device with its unit, such as 8g, or a smaller --transfer",
            exact_size(fill.capacity),
            parsed.get("steps").unwrap_or(STEPS).split(',').next().unwrap_or_default(),
            exact_size(fill.transfer)
        )));
    }
    if fill.seconds < 1.0 {
        return Err(Error::usage("--time: use a second or more"));
    }
    Ok(Box::new(fill))
}

/// Reads `1/3,0.5,1`: positive and growing.
fn shares(text: &str) -> Result<Vec<f64>> {
    let shares: Option<Vec<f64>> = text.split(',').map(share).collect();
    match shares {
        Some(shares) if shares[0] > 0.0 && shares.is_sorted_by(|a, b| a < b) => Ok(shares),
        _ => Err(Error::usage(format!(
            "--steps {text}: use growing shares such as 1/3,1/2,2/3,1 or 0.25,0.5,1"
        ))),
    }
}

fn share(text: &str) -> Option<f64> {
    let value = match text.split_once('/') {
        Some((over, under)) => over.parse::<f64>().ok()? / under.parse::<f64>().ok()?,
        None => text.parse().ok()?,
    };
    (value.is_finite() && value <= 100.0).then_some(value)
}

struct Fill {
    capacity: u64,
    shares: Vec<f64>,
    transfer: u64,
    tasks: usize,
    seconds: f64,
}

impl Fill {
    /// The filled bytes at a share, in whole transfers.
    fn filled(&self, share: f64) -> u64 {
        let transfers = (self.capacity as f64 * share / self.transfer as f64).round() as u64;
        transfers.saturating_mul(self.transfer)
    }

    fn step(
        &self,
        session: &mut Session,
        path: &Path,
        (index, share): (usize, f64),
    ) -> Result<FillPoint> {
        let scatter = Scatter {
            path,
            size: self.filled(share),
            direction: Direction::Write,
            transfer: self.transfer,
            each: SyncEach::No,
            tasks: self.tasks,
            seconds: self.seconds,
            stream: index as u64,
        };
        let (seconds, total) = scatter.run(session, &format!("fill {:.0} %", share * 100.0))?;
        Ok(self.point(share, seconds, &total))
    }

    fn point(&self, share: f64, seconds: f64, total: &Total) -> FillPoint {
        let rates = per_second(&total.series, seconds);
        let part = stats::steady_part(&rates);
        let counted = &rates[part.from..];
        // A step shorter than two slices has no parts.
        let rate = match counted {
            [] => total.bytes as f64 / seconds.max(1e-9),
            counted => stats::mean(counted),
        };
        FillPoint {
            share,
            filled_bytes: self.filled(share),
            bytes_per_second: rate,
            ops_per_second: rate / self.transfer as f64,
            variation: stats::variation(counted),
            discarded_seconds: part.from as f64 * total.series.width() as f64 / 1e9,
            steady: part.steady,
            ratio_to_first: 1.0,
            latency: latency(&total.latency),
        }
    }

    fn conclude(session: &mut Session, mut points: Vec<FillPoint>) -> Result<()> {
        let [first, .., last] = &points[..] else {
            return points.into_iter().try_for_each(|p| session.recorder.put(Line::Fill(p)));
        };
        let base = first.bytes_per_second.max(1e-9);
        let text = format!(
            "At {:.0} % it writes {}, at {:.0} % {}: {:.2} of the first.",
            first.share * 100.0,
            human_rate(first.bytes_per_second),
            last.share * 100.0,
            human_rate(last.bytes_per_second),
            last.bytes_per_second / base,
        );
        let moving: Vec<String> = points
            .iter()
            .filter(|point| !point.steady)
            .map(|point| format!("{:.0} %", point.share * 100.0))
            .collect();
        for mut point in points.drain(..) {
            point.ratio_to_first = point.bytes_per_second / base;
            session.recorder.put(Line::Fill(point))?;
        }
        session.recorder.finding(text)?;
        if moving.is_empty() {
            return Ok(());
        }
        session.recorder.finding(format!(
            "Throughput was still moving at the end of {}: raise --time.",
            moving.join(", ")
        ))
    }
}

/// Bytes per second of each whole slice.
pub fn per_second(series: &Slices, seconds: f64) -> Vec<f64> {
    let width = series.width() as f64 / 1e9;
    let whole = (seconds / width + 1e-6) as usize;
    let filled = series.iter().map(|slice| slice.bytes() as f64 / width);
    // A target that stopped before the end has slices that were never reached.
    filled.chain(std::iter::repeat(0.0)).take(whole).collect()
}

impl Prepared for Fill {
    fn settings(&self) -> BTreeMap<String, String> {
        let shares: Vec<String> = self.shares.iter().map(|share| format!("{share:.3}")).collect();
        BTreeMap::from([
            ("capacity".into(), human_bytes(self.capacity)),
            ("steps".into(), shares.join(",")),
            ("transfer".into(), human_bytes(self.transfer)),
            ("tasks".into(), self.tasks.to_string()),
            ("time".into(), format!("{} s", self.seconds)),
        ])
    }

    fn needs(&self) -> u64 {
        self.filled(self.shares.last().copied().unwrap_or(0.0))
    }

    fn transfers(&self) -> Vec<(&'static str, u64)> {
        vec![("--transfer", self.transfer)]
    }

    fn run(&self, session: &mut Session) -> Result<()> {
        let path = session.file("data");
        prepare::create(session, &path)?;
        let (mut points, mut end) = (Vec::new(), 0);
        let mut steps = || {
            for (index, &share) in self.shares.iter().enumerate() {
                let filled = self.filled(share);
                prepare::lay(session, &path, (end, filled), index as u32, 1)?;
                end = filled;
                points.push(self.step(session, &path, (index, share))?);
            }
            Ok(())
        };
        let filled = steps();
        Self::conclude(session, points)?;
        filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_fractions_or_decimals_that_grow() {
        assert_eq!(shares("1/4,0.5,1").unwrap(), [0.25, 0.5, 1.0]);
        for text in ["", "0", "1/0", "1,1", "0.5,0.25", "x", "NaN", "-1,1", "101"] {
            let error = shares(text).unwrap_err();
            assert!(error.exit_code() == 2 && error.to_string().contains("--steps"), "{text}");
        }
    }

    #[test]
    fn a_stop_counts_as_seconds_without_bytes() {
        let series = crate::slices::boxed();
        for second in [0, 1, 1, 4] {
            series.record(second * 1_000_000_000, 5, 100);
        }
        assert_eq!(per_second(&series, 6.5), [100.0, 200.0, 0.0, 0.0, 100.0, 0.0]);
        assert_eq!(per_second(&series, 0.9), Vec::<f64>::new());
    }
}
