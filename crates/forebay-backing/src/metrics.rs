//! Counters and latencies of operations, which cost a few relaxed atomic adds each and no
//! allocation.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_base::histogram::{Counts, Histogram};
use serde::{Deserialize, Serialize};

/// Steps in a doubling: the error of a quantile is at most a quarter.
const STEP_BITS: u32 = 2;
/// The reported bounds are powers of two of microseconds, up to 2^26 (67 s).
const POWERS: u32 = 27;

/// Bytes, errors and latency of one kind of operation.
#[derive(Debug, Default)]
pub struct Op {
    errors: AtomicU64,
    bytes: AtomicU64,
    latency_us: Histogram<STEP_BITS, { (POWERS as usize) << STEP_BITS }>,
}

/// The state of an [`Op`] at one moment. The difference of two states is the activity in between.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OpCounts {
    pub errors: u64,
    pub bytes: u64,
    latency_us: Counts<STEP_BITS>,
}

impl OpCounts {
    pub fn count(&self) -> u64 {
        self.latency_us.count()
    }

    /// The sum of all latencies.
    pub fn total_us(&self) -> u64 {
        self.latency_us.sum()
    }

    /// The activity since `before`.
    pub fn since(&self, before: &OpCounts) -> OpCounts {
        OpCounts {
            errors: self.errors.saturating_sub(before.errors),
            bytes: self.bytes.saturating_sub(before.bytes),
            latency_us: self.latency_us.since(&before.latency_us),
        }
    }

    pub fn summary(&self) -> OpSummary {
        let at = |share| self.latency_us.quantile(share);
        OpSummary {
            count: self.count(),
            errors: self.errors,
            bytes: self.bytes,
            mean_us: self.latency_us.mean() as u64,
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: self.latency_us.max(),
        }
    }

    /// The numbers of operations that took at most so many microseconds, for all bounds `2^n - 1`.
    pub fn cumulative(&self) -> Vec<(u64, u64)> {
        self.latency_us.cumulative(POWERS)
    }
}

/// A summary of an [`Op`] so far; latencies in microseconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OpSummary {
    pub count: u64,
    pub errors: u64,
    pub bytes: u64,
    pub mean_us: u64,
    pub p50_us: u64,
    pub p99_us: u64,
    pub p999_us: u64,
    pub max_us: u64,
}

impl Op {
    pub fn record(&self, took: Duration, bytes: u64) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.bytes.fetch_add(bytes, Relaxed);
        self.latency_us.record(us);
    }

    /// Runs `work` and records its time, its bytes (given by `size`) or its error.
    pub fn time<T, E>(
        &self,
        size: impl FnOnce(&T) -> u64,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let start = Instant::now();
        let result = work();
        match &result {
            Ok(value) => self.record(start.elapsed(), size(value)),
            Err(_) => {
                self.errors.fetch_add(1, Relaxed);
                self.record(start.elapsed(), 0);
            }
        }
        result
    }

    /// Counts a failure of a part of an operation.
    pub fn fail(&self) {
        self.errors.fetch_add(1, Relaxed);
    }

    pub fn errors(&self) -> u64 {
        self.errors.load(Relaxed)
    }

    pub fn counts(&self) -> OpCounts {
        OpCounts {
            errors: self.errors.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            latency_us: self.latency_us.counts(),
        }
    }

    pub fn summary(&self) -> OpSummary {
        self.counts().summary()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_come_from_what_was_recorded() {
        let op = Op::default();
        for us in 1..=1000 {
            op.record(Duration::from_micros(us), 2);
        }
        let s = op.summary();
        assert_eq!((s.count, s.bytes, s.max_us), (1000, 2000, 1000));
        assert!((500..=600).contains(&s.p50_us), "{s:?}");
        assert!((990..=1000).contains(&s.p99_us), "{s:?}");
    }

    #[test]
    fn two_moments_make_what_was_in_between() {
        let op = Op::default();
        op.record(Duration::from_micros(5000), 1);
        let before = op.counts();
        for us in [10, 20, 30, 1 << 40] {
            op.record(Duration::from_micros(us), 10);
        }
        let between = op.counts().since(&before);
        assert_eq!((between.count(), between.bytes), (4, 40));
        assert!((20..=23).contains(&between.summary().p50_us), "{:?}", between.summary());
        assert_eq!(op.counts().since(&op.counts()), OpCounts::default());
        let cumulative = op.counts().cumulative();
        let at = |us: u64| cumulative.iter().find(|(bound, _)| *bound >= us).unwrap();
        assert_eq!((at(9).1, at(30).1, at(5000).1), (1, 3, 4), "{cumulative:?}");
        assert!(cumulative.is_sorted_by(|a, b| a.1 <= b.1 && a.0 < b.0));
        assert!(cumulative.last().unwrap().1 <= op.counts().count());
    }
}
