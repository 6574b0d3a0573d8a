//! Counts of values in buckets that widen with the values, of fixed size.
//!
//! A doubling has `2^STEP_BITS` buckets, so that a value is known to within that part of itself. The
//! last of the `BUCKETS` also counts all larger values.
//!
//! Invariants:
//! - H1: recording allocates nothing and takes no lock.
//! - H2: all zeros is an empty histogram, so it can live in fresh shared memory.
//! - H3: merging two histograms equals recording both sets of values into one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Debug)]
#[repr(C)]
pub struct Histogram<const STEP_BITS: u32, const BUCKETS: usize> {
    sum: AtomicU64,
    max: AtomicU64,
    /// Holds `!min`, so that zero means "none yet" (H2).
    inverse_min: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// The state of a [`Histogram`] at one moment, kept small: most buckets are empty. The difference of
/// two states is the values recorded in between.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts<const STEP_BITS: u32> {
    sum: u64,
    /// The smallest value, exact; for a difference, the lower end of its bucket.
    min: u64,
    /// The largest value, exact; for a difference, the upper end of its bucket.
    max: u64,
    /// Bucket and count, in order, without empty buckets.
    buckets: Vec<(u16, u64)>,
}

impl<const STEP_BITS: u32, const BUCKETS: usize> Default for Histogram<STEP_BITS, BUCKETS> {
    fn default() -> Self {
        let zero = AtomicU64::default;
        let buckets = [const { AtomicU64::new(0) }; BUCKETS];
        Self { sum: zero(), max: zero(), inverse_min: zero(), buckets }
    }
}

/// Adds without a locked instruction, for one writer.
#[inline]
fn add(cell: &AtomicU64, amount: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(amount), Relaxed);
}

#[inline]
fn raise(cell: &AtomicU64, value: u64) {
    if value > cell.load(Relaxed) {
        cell.fetch_max(value, Relaxed);
    }
}

#[inline]
fn bucket_of(step_bits: u32, value: u64) -> usize {
    let steps = 1 << step_bits;
    if value < steps {
        return value as usize;
    }
    let shift = value.ilog2() - step_bits;
    (((u64::from(shift) + 1) << step_bits) + ((value >> shift) - steps)) as usize
}

/// The values `low..high` a bucket stands for.
fn bounds(step_bits: u32, bucket: usize) -> (u64, u64) {
    let steps = 1 << step_bits;
    let (row, step) = ((bucket >> step_bits) as u32, bucket as u64 & (steps - 1));
    if row == 0 {
        return (step, step + 1);
    }
    let shift = row - 1;
    ((steps + step) << shift, (steps + step + 1) << shift)
}

impl<const STEP_BITS: u32, const BUCKETS: usize> Histogram<STEP_BITS, BUCKETS> {
    /// A histogram on the heap, in zeroed memory.
    pub fn boxed() -> Box<Self> {
        // SAFETY: all fields are atomics of integers, for which zero bytes are valid (H2).
        unsafe { Box::<Self>::new_zeroed().assume_init() }
    }

    /// Records a value; for any number of writers.
    #[inline]
    pub fn record(&self, value: u64) {
        self.sum.fetch_add(value, Relaxed);
        self.mark_ends(value);
        self.bucket(value).fetch_add(1, Relaxed);
    }

    /// Records a value without locked instructions; for one writer.
    #[inline]
    pub fn record_alone(&self, value: u64) {
        add(&self.sum, value);
        self.mark_ends(value);
        add(self.bucket(value), 1);
    }

    #[inline]
    fn mark_ends(&self, value: u64) {
        raise(&self.max, value);
        raise(&self.inverse_min, !value);
    }

    #[inline]
    fn bucket(&self, value: u64) -> &AtomicU64 {
        &self.buckets[bucket_of(STEP_BITS, value).min(BUCKETS - 1)]
    }

    /// Adds the values that `other` has recorded (H3); for one writer.
    pub fn merge(&self, other: &Self) {
        add(&self.sum, other.sum.load(Relaxed));
        raise(&self.max, other.max.load(Relaxed));
        raise(&self.inverse_min, other.inverse_min.load(Relaxed));
        for (mine, theirs) in self.buckets.iter().zip(&other.buckets) {
            add(mine, theirs.load(Relaxed));
        }
    }

    pub fn clear(&self) {
        let ends = [&self.sum, &self.max, &self.inverse_min];
        self.buckets.iter().chain(ends).for_each(|cell| cell.store(0, Relaxed));
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum()
    }

    pub fn counts(&self) -> Counts<STEP_BITS> {
        let loaded = (0..).zip(self.buckets.iter().map(|bucket| bucket.load(Relaxed)));
        Counts {
            sum: self.sum.load(Relaxed),
            min: match self.inverse_min.load(Relaxed) {
                0 => 0,
                inverse => !inverse,
            },
            max: self.max.load(Relaxed),
            buckets: loaded.filter(|(_, count)| *count > 0).collect(),
        }
    }
}

impl<const STEP_BITS: u32> Counts<STEP_BITS> {
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// The sum of all values, exact.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// The exact mean; 0 when empty.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count().max(1) as f64
    }

    /// The smallest value; 0 when empty.
    pub fn min(&self) -> u64 {
        self.min
    }

    /// The largest value; 0 when empty.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// The value that this share of all values does not exceed: the end of its bucket, so that it is
    /// never too low; 0 when empty.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (self.count() as f64 * share).ceil() as u64;
        let mut seen = 0;
        let mut reaching = self.buckets().skip_while(|(.., count)| {
            seen += count;
            seen < wanted
        });
        let end = reaching.next().map_or(0, |(_, high, _)| high - 1);
        end.max(self.min).min(self.max)
    }

    /// The buckets that hold something: lowest value, one past the highest, count.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.buckets.iter().map(|(bucket, count)| {
            let (low, high) = bounds(STEP_BITS, usize::from(*bucket));
            (low, high, *count)
        })
    }

    /// The values recorded since `before`.
    pub fn since(&self, before: &Self) -> Self {
        if before.buckets.is_empty() {
            return self.clone();
        }
        let was = |bucket: u16| {
            let at = before.buckets.binary_search_by_key(&bucket, |(b, _)| *b);
            at.map_or(0, |at| before.buckets[at].1)
        };
        let now = self.buckets.iter().map(|&(b, count)| (b, count.saturating_sub(was(b))));
        let buckets: Vec<(u16, u64)> = now.filter(|(_, count)| *count > 0).collect();
        let ends = |&(bucket, _): &(u16, u64)| bounds(STEP_BITS, usize::from(bucket));
        Self {
            sum: self.sum.saturating_sub(before.sum),
            min: buckets.first().map_or(0, |first| ends(first).0.max(self.min)),
            max: buckets.last().map_or(0, |last| self.max.min(ends(last).1 - 1)),
            buckets,
        }
    }

    /// The numbers of values that are at most `2^power - 1`, for all powers below `powers`: each
    /// bound with its count.
    pub fn cumulative(&self, powers: u32) -> Vec<(u64, u64)> {
        let mut seen = 0;
        let mut at = self.buckets().peekable();
        let below = |power: u32| {
            let end = 1_u64 << power;
            while let Some((.., count)) = at.next_if(|(_, high, _)| *high <= end) {
                seen += count;
            }
            (end - 1, seen)
        };
        (0..powers).map(below).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUCKETS: usize = 36 << 6;
    type Fine = Histogram<6, BUCKETS>;

    fn recorded(values: impl IntoIterator<Item = u64>) -> Box<Fine> {
        let histogram = Fine::boxed();
        values.into_iter().for_each(|value| histogram.record(value));
        histogram
    }

    /// Numbers that look random, each below 2^30.
    fn scattered(count: u64) -> Vec<u64> {
        (1..=count).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 34).collect()
    }

    #[test]
    fn buckets_cover_every_value_once_and_in_order() {
        for step_bits in [1, 2, 6] {
            let mut expected = 0;
            for bucket in 0..36 << step_bits {
                let (low, high) = bounds(step_bits, bucket);
                assert_eq!(low, expected);
                let ends = [low, high - 1].map(|value| bucket_of(step_bits, value));
                assert_eq!(ends, [bucket, bucket]);
                expected = high;
            }
            assert_eq!(expected, 1 << (35 + step_bits));
        }
        assert_eq!(recorded([u64::MAX]).counts().buckets[0].0, BUCKETS as u16 - 1);
    }

    /// Compares with the sorted list of the same values.
    #[test]
    fn quantiles_are_within_a_64th_of_the_exact_ones() {
        let mut values = scattered(10_001);
        let counts = recorded(values.iter().copied()).counts();
        values.sort_unstable();
        for share in [0.0, 0.01, 0.5, 0.95, 0.99, 0.999, 1.0] {
            let rank = ((values.len() as f64 * share).ceil() as usize).max(1);
            let (exact, ours) = (values[rank - 1] as f64, counts.quantile(share) as f64);
            assert!((ours - exact).abs() <= exact / 64.0, "{share}: {ours} for {exact}");
        }
        assert_eq!((counts.min(), counts.max()), (values[0], values[10_000]));
        assert_eq!((counts.sum(), counts.count()), (values.iter().sum(), 10_001));
    }

    #[test]
    fn merging_and_a_single_writer_equal_recording_all() {
        let values = scattered(1000);
        let (a, b) = (recorded(values[..333].iter().copied()), Fine::boxed());
        values[333..].iter().for_each(|value| b.record_alone(*value));
        a.merge(&b);
        assert_eq!(a.counts(), recorded(values).counts());
        a.clear();
        assert_eq!(a.counts(), Fine::default().counts());
    }

    #[test]
    fn two_moments_make_what_was_in_between() {
        let histogram = Histogram::<2, 108>::default();
        histogram.record(5000);
        let before = histogram.counts();
        [10, 20, 30, 1 << 40].into_iter().for_each(|value| histogram.record(value));
        let now = histogram.counts();
        let between = now.since(&before);
        assert_eq!((between.count(), between.min()), (4, 10));
        assert!((20..=23).contains(&between.quantile(0.5)), "{between:?}");
        assert_eq!(now.since(&now), Counts::default());
        let cumulative = now.cumulative(27);
        let at = |value: u64| cumulative.iter().find(|(bound, _)| *bound >= value).unwrap();
        assert_eq!((at(9).1, at(30).1, at(5000).1), (1, 3, 4), "{cumulative:?}");
        assert!(cumulative.is_sorted_by(|a, b| a.1 <= b.1 && a.0 < b.0));
        assert!(cumulative.last().unwrap().1 <= now.count());
    }

    #[test]
    fn an_empty_histogram_answers_zero() {
        let empty = Fine::boxed().counts();
        assert_eq!((empty.quantile(0.5), empty.min(), empty.max(), empty.count()), (0, 0, 0, 0));
        assert!(empty.mean().abs() < f64::EPSILON);
    }
}
