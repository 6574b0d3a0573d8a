//! Latency histogram of fixed size: log-linear, so that every value is kept within 1/64.
//!
//! Invariants:
//! - H1: recording allocates nothing and takes no lock; one writer, any number of readers.
//! - H2: all zeros is an empty histogram, so it can live in fresh shared memory.
//! - H3: merging two histograms equals recording both sets of values into one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Linear steps in each doubling: 64 keeps the relative error under 1.6 %.
const STEP_BITS: u32 = 6;
const STEPS: u64 = 1 << STEP_BITS;
/// 2^41 ns is 36 minutes; what takes longer is counted in the last bucket.
const TOP_BIT: u32 = 41;
const BUCKETS: usize = ((TOP_BIT - STEP_BITS + 1) as usize) << STEP_BITS;

/// Counts of latencies in nanoseconds.
#[repr(C)]
pub struct Histogram {
    count: AtomicU64,
    sum: AtomicU64,
    max: AtomicU64,
    /// Holds `!min`, so that zero means "none yet" (H2).
    inverse_min: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// A histogram on the heap, in zeroed memory.
pub fn boxed() -> Box<Histogram> {
    // SAFETY: all fields are atomics of integers, for which zero bytes are valid (H2).
    unsafe { Box::<Histogram>::new_zeroed().assume_init() }
}

/// Adds without a locked instruction: there is one writer (H1).
#[inline]
fn add(cell: &AtomicU64, amount: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(amount), Relaxed);
}

#[inline]
fn raise(cell: &AtomicU64, value: u64) {
    if value > cell.load(Relaxed) {
        cell.store(value, Relaxed);
    }
}

#[inline]
fn bucket_of(value: u64) -> usize {
    let value = value.min((1 << TOP_BIT) - 1);
    if value < STEPS {
        return value as usize;
    }
    let shift = value.ilog2() - STEP_BITS;
    (((u64::from(shift) + 1) << STEP_BITS) + ((value >> shift) - STEPS)) as usize
}

/// The values `low..high` a bucket stands for.
fn bounds(bucket: usize) -> (u64, u64) {
    let (row, step) = ((bucket >> STEP_BITS) as u32, bucket as u64 & (STEPS - 1));
    if row == 0 {
        return (step, step + 1);
    }
    let shift = row - 1;
    ((STEPS + step) << shift, (STEPS + step + 1) << shift)
}

impl Histogram {
    #[inline]
    pub fn record(&self, nanos: u64) {
        add(&self.count, 1);
        add(&self.sum, nanos);
        raise(&self.max, nanos);
        raise(&self.inverse_min, !nanos);
        add(&self.buckets[bucket_of(nanos)], 1);
    }

    /// Adds what `other` counted (H3).
    pub fn merge(&self, other: &Histogram) {
        add(&self.count, other.count.load(Relaxed));
        add(&self.sum, other.sum.load(Relaxed));
        raise(&self.max, other.max.load(Relaxed));
        raise(&self.inverse_min, other.inverse_min.load(Relaxed));
        for (mine, theirs) in self.buckets.iter().zip(&other.buckets) {
            add(mine, theirs.load(Relaxed));
        }
    }

    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// The sum of all values, exact.
    pub fn sum(&self) -> u64 {
        self.sum.load(Relaxed)
    }

    /// The exact mean; 0 when empty.
    pub fn mean(&self) -> f64 {
        self.sum() as f64 / self.count().max(1) as f64
    }

    /// The exact largest value; 0 when empty.
    pub fn max(&self) -> u64 {
        self.max.load(Relaxed)
    }

    /// The exact smallest value; 0 when empty.
    pub fn min(&self) -> u64 {
        match self.inverse_min.load(Relaxed) {
            0 => 0,
            inverse => !inverse,
        }
    }

    /// The value that `percent` of all values do not exceed, within 1/64; 0 when empty.
    pub fn percentile(&self, percent: f64) -> u64 {
        let wanted = ((self.count() as f64 * percent / 100.0).ceil() as u64).max(1);
        let mut seen = 0;
        for (_, high, count) in self.buckets() {
            seen += count;
            if seen >= wanted {
                return (high - 1).clamp(self.min(), self.max());
            }
        }
        self.max()
    }

    /// The buckets that hold something: lowest value, one past the highest, count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.buckets.iter().enumerate().filter_map(|(index, cell)| {
            let count = cell.load(Relaxed);
            let (low, high) = bounds(index);
            (count > 0).then_some((low, high, count))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn buckets_cover_every_value_once_and_in_order() {
        let mut expected = 0;
        for bucket in 0..BUCKETS {
            let (low, high) = bounds(bucket);
            assert_eq!(low, expected);
            assert_eq!((bucket_of(low), bucket_of(high - 1)), (bucket, bucket));
            expected = high;
        }
        assert_eq!(expected, 1 << TOP_BIT);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    /// Compares with the sorted list of the same values.
    #[test]
    fn percentiles_are_within_a_64th_of_the_exact_ones() {
        let (histogram, mut rng) = (boxed(), Rng::new(3));
        let mut values: Vec<u64> = (0..10_001).map(|_| rng.below(1 << 30)).collect();
        values.iter().for_each(|&value| histogram.record(value));
        values.sort_unstable();
        for percent in [0.0, 1.0, 50.0, 95.0, 99.0, 99.9, 100.0] {
            let rank = ((values.len() as f64 * percent / 100.0).ceil() as usize).max(1);
            let (exact, ours) = (values[rank - 1] as f64, histogram.percentile(percent) as f64);
            assert!((ours - exact).abs() <= exact / 64.0, "p{percent}: {ours} for {exact}");
        }
        assert_eq!((histogram.min(), histogram.max()), (values[0], values[10_000]));
    }

    #[test]
    fn merging_equals_recording_all() {
        let (a, b, both) = (boxed(), boxed(), boxed());
        for value in 0..1000 {
            if value % 3 == 0 {
                a.record(value * 7)
            } else {
                b.record(value * 7)
            }
            both.record(value * 7);
        }
        a.merge(&b);
        assert!(a.buckets().eq(both.buckets()));
        assert_eq!((a.count(), a.sum(), a.min(), a.max()), (1000, both.sum(), 0, both.max()));
    }

    #[test]
    fn an_empty_histogram_answers_zero() {
        let empty = boxed();
        assert_eq!((empty.percentile(50.0), empty.min(), empty.max()), (0, 0, 0));
        assert!(empty.mean().abs() < f64::EPSILON);
    }
}
