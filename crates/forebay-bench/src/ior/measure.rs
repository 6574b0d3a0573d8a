//! The numbers of one finished phase, and their statistics over repetitions.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use super::phase::Report;
use crate::clock::seconds;
use crate::io::Direction;
use crate::meter::Total;
use crate::team::Outcome;

/// The result of one phase of one repetition, over all tasks.
pub struct Measured {
    pub direction: Direction,
    pub repetition: usize,
    pub bytes: u64,
    pub transfers: u64,
    pub short: u64,
    pub errors: u64,
    /// Last end minus first start, over all tasks, in seconds.
    pub open: f64,
    pub transfer: f64,
    pub close: f64,
    /// From the first open to the last close.
    pub total: f64,
    /// Mean time of a transfer, in seconds.
    pub latency: f64,
    pub stonewall: Option<Stonewall>,
    pub meters: Total,
    pub resident: Option<f64>,
    pub unwritten: Option<f64>,
    pub device: Option<u64>,
    pub warnings: Vec<String>,
    pub ranks: Vec<Rank>,
}

/// The progress of all tasks when the deadline struck.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stonewall {
    pub seconds: f64,
    pub bytes: u64,
}

/// One task's part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rank {
    pub total: f64,
    pub transfer: f64,
    pub bytes: u64,
    pub transfers: u64,
}

impl Measured {
    pub fn of(direction: Direction, repetition: usize, outcome: &Outcome<Report>) -> Self {
        let reports = outcome.results();
        let sum = |of: fn(&Report) -> &AtomicU64| -> u64 {
            reports.iter().map(|report| of(report).load(SeqCst)).sum()
        };
        let meters = Total::of(outcome.meters());
        let started = |of: fn(&Report) -> &AtomicU64| first(reports, of);
        let ended = |of: fn(&Report) -> &AtomicU64| last(reports, of);
        let span = |a: u64, b: u64| seconds(b.saturating_sub(a));
        let bytes = sum(|r| &r.stonewall_bytes);
        let stonewall_at = ended(|r| &r.stonewall_at);
        let transferring = started(|r| &r.transferring);
        Self {
            direction,
            repetition,
            bytes: sum(|r| &r.bytes),
            transfers: sum(|r| &r.transfers),
            short: sum(|r| &r.short),
            errors: sum(|r| &r.errors),
            open: span(started(|r| &r.opening), ended(|r| &r.opened)),
            transfer: span(transferring, ended(|r| &r.transferred)),
            close: span(started(|r| &r.closing), ended(|r| &r.closed)),
            total: span(started(|r| &r.opening), ended(|r| &r.closed)),
            latency: meters.latency.counts().mean() / 1e9,
            stonewall: (stonewall_at > 0)
                .then(|| Stonewall { seconds: span(transferring, stonewall_at), bytes }),
            meters,
            resident: None,
            unwritten: None,
            device: None,
            warnings: Vec::new(),
            ranks: reports.iter().map(Rank::of).collect(),
        }
    }

    /// Bytes per second from the first open to the last close.
    pub fn bandwidth(&self) -> f64 {
        self.bytes as f64 / self.total.max(1e-9)
    }

    /// Transfers per second of the transfer part.
    pub fn iops(&self) -> f64 {
        self.transfers as f64 / self.transfer.max(1e-9)
    }

    pub fn name(&self) -> &'static str {
        match self.direction {
            Direction::Write => "write",
            Direction::Read => "read",
        }
    }

    /// Tasks whose transfer time is further than `threshold` seconds from the mean.
    pub fn outliers(&self, threshold: f64) -> Vec<String> {
        let mean = self.ranks.iter().map(|rank| rank.transfer).sum::<f64>()
            / self.ranks.len().max(1) as f64;
        let far = self.ranks.iter().enumerate();
        far.filter(|(_, rank)| (rank.transfer - mean).abs() > threshold)
            .map(|(number, rank)| {
                format!("task {number} took {:.3} s, the mean is {mean:.3} s", rank.transfer)
            })
            .collect()
    }
}

impl Rank {
    fn of(report: &Report) -> Self {
        let at = |cell: &AtomicU64| cell.load(SeqCst);
        let span = |a: &AtomicU64, b: &AtomicU64| seconds(at(b).saturating_sub(at(a)));
        Self {
            total: span(&report.opening, &report.closed),
            transfer: span(&report.transferring, &report.transferred),
            bytes: at(&report.bytes),
            transfers: at(&report.transfers),
        }
    }
}

fn first(reports: &[Report], of: fn(&Report) -> &AtomicU64) -> u64 {
    reports.iter().map(|r| of(r).load(SeqCst)).filter(|&at| at > 0).min().unwrap_or(0)
}

fn last(reports: &[Report], of: fn(&Report) -> &AtomicU64) -> u64 {
    reports.iter().map(|r| of(r).load(SeqCst)).max().unwrap_or(0)
}

/// Largest, smallest, mean and standard deviation (of the population, as IOR computes it).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Statistics {
    pub max: f64,
    pub min: f64,
    pub mean: f64,
    pub deviation: f64,
}

impl Statistics {
    /// The statistics with the standard deviation of a sample, as mdtest computes it; zero for one
    /// value.
    pub fn of_sample(values: impl IntoIterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.into_iter().collect();
        let count = values.len() as f64;
        let found = Self::of(values);
        let wider = if count > 1.0 { (count / (count - 1.0)).sqrt() } else { 0.0 };
        Self { deviation: found.deviation * wider, ..found }
    }

    /// The statistics of the values; zeros without values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.into_iter().collect();
        if values.is_empty() {
            return Self::default();
        }
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
        Self {
            max: values.iter().copied().fold(f64::MIN, f64::max),
            min: values.iter().copied().fold(f64::MAX, f64::min),
            mean,
            deviation: variance.sqrt(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_those_of_the_population() {
        let found = Statistics::of([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!(found, Statistics { max: 9.0, min: 2.0, mean: 5.0, deviation: 2.0 });
        assert_eq!(Statistics::of([]), Statistics::default());
    }

    #[test]
    fn of_a_sample_the_deviation_is_wider() {
        let found = Statistics::of_sample([1.0, 2.0, 3.0]);
        assert!((found.deviation - 1.0).abs() < 1e-12, "{found:?}");
        assert!(Statistics::of_sample([7.0]).deviation == 0.0);
        assert_eq!(Statistics::of_sample([]), Statistics::default());
    }
}
