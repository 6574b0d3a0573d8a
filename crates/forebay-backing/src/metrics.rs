//! Counters and latency histograms that cost two relaxed atomic adds an operation and no
//! allocation.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde::Serialize;

/// Buckets of a quarter of an octave: 4 per power of two of microseconds, up to 2^26 us (67 s).
/// The error of a quantile is at most 19 %.
const BUCKETS: usize = 4 * 27;

/// Count, bytes, errors and latency of one kind of operation.
#[derive(Debug)]
pub struct Op {
    pub count: AtomicU64,
    pub errors: AtomicU64,
    pub bytes: AtomicU64,
    total_us: AtomicU64,
    max_us: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Op {
    fn default() -> Op {
        Op {
            count: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            total_us: AtomicU64::new(0),
            max_us: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
        }
    }
}

/// What an [`Op`] has seen so far; latencies in microseconds.
#[derive(Debug, Clone, Serialize)]
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
        self.count.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.total_us.fetch_add(us, Relaxed);
        self.max_us.fetch_max(us, Relaxed);
        self.buckets[bucket(us)].fetch_add(1, Relaxed);
    }

    /// Runs `work` and records how long it took, its bytes (told by `size`) or its error.
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

    pub fn summary(&self) -> OpSummary {
        let counts: Vec<u64> = self.buckets.iter().map(|b| b.load(Relaxed)).collect();
        let count: u64 = counts.iter().sum();
        let max_us = self.max_us.load(Relaxed);
        let at = |q: f64| quantile(&counts, count, q).min(max_us);
        OpSummary {
            count,
            errors: self.errors.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            mean_us: self.total_us.load(Relaxed).checked_div(count).unwrap_or(0),
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us,
        }
    }
}

fn bucket(us: u64) -> usize {
    if us < 4 {
        return us as usize;
    }
    let octave = 63 - us.leading_zeros() as usize;
    let quarter = (us >> (octave - 2)) as usize & 3;
    (4 * (octave - 1) + quarter).min(BUCKETS - 1)
}

/// The upper edge of a bucket, so that a quantile never flatters.
fn edge(bucket: usize) -> u64 {
    if bucket < 4 {
        return bucket as u64;
    }
    let octave = bucket / 4 + 1;
    ((bucket as u64 % 4 + 5) << (octave - 2)) - 1
}

fn quantile(counts: &[u64], total: u64, q: f64) -> u64 {
    let rank = (total as f64 * q).ceil() as u64;
    let mut seen = 0;
    for (i, n) in counts.iter().enumerate() {
        seen += n;
        if seen >= rank && *n > 0 {
            return edge(i);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_falls_below_its_buckets_edge_and_above_the_one_before() {
        for us in (0..5000).chain([1 << 20, (1 << 26) - 1]) {
            let b = bucket(us);
            assert!(us <= edge(b), "{us} in {b} with edge {}", edge(b));
            assert!(b == 0 || us > edge(b - 1), "{us} in {b}");
        }
    }

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
}
