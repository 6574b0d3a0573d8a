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

/// The state of an [`Op`] at one moment, kept small: most buckets are empty. Two of them make what
/// was in between.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OpCounts {
    pub count: u64,
    pub errors: u64,
    pub bytes: u64,
    pub total_us: u64,
    /// The largest since start; of a difference, the edge of the highest bucket.
    max_us: u64,
    /// Bucket and count, in order, without empty ones.
    buckets: Vec<(u8, u64)>,
}

impl OpCounts {
    /// What happened since `before`.
    pub fn since(&self, before: &OpCounts) -> OpCounts {
        let was = |bucket: u8| {
            let at = before.buckets.binary_search_by_key(&bucket, |(b, _)| *b);
            at.map_or(0, |at| before.buckets[at].1)
        };
        let buckets: Vec<(u8, u64)> = self
            .buckets
            .iter()
            .map(|&(bucket, count)| (bucket, count.saturating_sub(was(bucket))))
            .filter(|(_, count)| *count > 0)
            .collect();
        let highest = buckets.last().map_or(0, |(bucket, _)| edge(usize::from(*bucket)));
        OpCounts {
            count: self.count.saturating_sub(before.count),
            errors: self.errors.saturating_sub(before.errors),
            bytes: self.bytes.saturating_sub(before.bytes),
            total_us: self.total_us.saturating_sub(before.total_us),
            max_us: if before.count == 0 { self.max_us } else { highest.min(self.max_us) },
            buckets,
        }
    }

    pub fn summary(&self) -> OpSummary {
        let at = |q: f64| self.quantile_us(q).min(self.max_us);
        OpSummary {
            count: self.count,
            errors: self.errors,
            bytes: self.bytes,
            mean_us: self.total_us.checked_div(self.count).unwrap_or(0),
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: self.max_us,
        }
    }

    fn quantile_us(&self, q: f64) -> u64 {
        let total: u64 = self.buckets.iter().map(|(_, count)| count).sum();
        let rank = (total as f64 * q).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in &self.buckets {
            seen += count;
            if seen >= rank {
                return edge(usize::from(*bucket));
            }
        }
        0
    }

    /// How many took at most each power of two of microseconds, from 2^0 - 1 on: the bounds, and
    /// the counts at or below them.
    pub fn cumulative(&self) -> Vec<(u64, u64)> {
        let mut seen = 0;
        let mut at = self.buckets.iter().peekable();
        let bound = |power: u32| (1_u64 << power) - 1;
        (0..BUCKETS as u32 / 4)
            .map(|power| {
                while at.peek().is_some_and(|(b, _)| edge(usize::from(*b)) <= bound(power)) {
                    seen += at.next().map_or(0, |(_, count)| *count);
                }
                (bound(power), seen)
            })
            .collect()
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

    pub fn counts(&self) -> OpCounts {
        let loaded = self.buckets.iter().map(|bucket| bucket.load(Relaxed));
        let buckets: Vec<(u8, u64)> = (0..).zip(loaded).filter(|(_, count)| *count > 0).collect();
        OpCounts {
            count: buckets.iter().map(|(_, count)| count).sum(),
            errors: self.errors.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            total_us: self.total_us.load(Relaxed),
            max_us: self.max_us.load(Relaxed),
            buckets,
        }
    }

    pub fn summary(&self) -> OpSummary {
        self.counts().summary()
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

    #[test]
    fn two_moments_make_what_was_in_between() {
        let op = Op::default();
        op.record(Duration::from_micros(5000), 1);
        let before = op.counts();
        for us in [10, 20, 30, 1 << 40] {
            op.record(Duration::from_micros(us), 10);
        }
        let between = op.counts().since(&before);
        assert_eq!((between.count, between.bytes), (4, 40));
        assert!((20..=23).contains(&between.summary().p50_us), "{:?}", between.summary());
        assert_eq!(op.counts().since(&op.counts()), OpCounts::default());
        let cumulative = op.counts().cumulative();
        let at = |us: u64| cumulative.iter().find(|(bound, _)| *bound >= us).unwrap();
        assert_eq!((at(9).1, at(30).1, at(5000).1), (1, 3, 4), "{cumulative:?}");
        assert!(cumulative.is_sorted_by(|a, b| a.1 <= b.1 && a.0 < b.0));
        assert!(cumulative.last().unwrap().1 <= op.counts().count);
    }
}
