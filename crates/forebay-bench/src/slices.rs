//! A time series of fixed size: operations, bytes and a coarse latency histogram per slice of time.
//!
//! A slice starts one second wide; when the run outlasts the slices, neighbors are joined and the
//! width doubles, so a run of any length fits.
//!
//! Invariants: S1: one writer. S2: all zeros is an empty series. S3: joining loses no operation.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_base::histogram::Histogram;

/// Even, so that neighbors pair up. Nine minutes at a second each before they are first joined.
const SLICES: usize = 512;
const FIRST_WIDTH: u64 = 1_000_000_000;

#[repr(C)]
pub struct Slice {
    bytes: AtomicU64,
    /// Two steps to a doubling, up to nine minutes (2^39 ns).
    pub latency: Histogram<1, 78>,
}

#[repr(C)]
pub struct Slices {
    /// How often the width has doubled.
    doublings: AtomicU64,
    /// Index of the last slice with an operation, plus one.
    used: AtomicU64,
    slices: [Slice; SLICES],
}

/// A series on the heap, in zeroed memory.
pub fn boxed() -> Box<Slices> {
    // SAFETY: all fields are atomics of integers, for which zero bytes are valid (S2).
    unsafe { Box::<Slices>::new_zeroed().assume_init() }
}

#[inline]
fn add(cell: &AtomicU64, amount: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(amount), Relaxed);
}

impl Slices {
    /// Counts an operation that ended `elapsed` ns after the start of the phase.
    #[inline]
    pub fn record(&self, elapsed: u64, latency: u64, bytes: u64) {
        let mut index = (elapsed / self.width()) as usize;
        while index >= SLICES {
            self.widen();
            index = (elapsed / self.width()) as usize;
        }
        let slice = &self.slices[index];
        add(&slice.bytes, bytes);
        slice.latency.record_alone(latency);
        if index as u64 >= self.used.load(Relaxed) {
            self.used.store(index as u64 + 1, Relaxed);
        }
    }

    /// Adds the counts of `other`; both series must have started at the same moment.
    pub fn merge(&self, other: &Slices) {
        while self.doublings.load(Relaxed) < other.doublings.load(Relaxed) {
            self.widen();
        }
        let shift = self.doublings.load(Relaxed) - other.doublings.load(Relaxed);
        for index in 0..other.used() {
            self.slices[index >> shift].merge(&other.slices[index]);
        }
        let used = (other.used() as u64).div_ceil(1 << shift);
        self.used.fetch_max(used, Relaxed);
    }

    /// Nanoseconds a slice spans.
    #[inline]
    pub fn width(&self) -> u64 {
        FIRST_WIDTH << self.doublings.load(Relaxed)
    }

    /// How many slices, from the first, were reached.
    pub fn used(&self) -> usize {
        (self.used.load(Relaxed) as usize).min(SLICES)
    }

    pub fn slice(&self, index: usize) -> &Slice {
        &self.slices[index]
    }

    pub fn iter(&self) -> impl Iterator<Item = &Slice> {
        self.slices[..self.used()].iter()
    }

    #[cold]
    fn widen(&self) {
        for index in 0..SLICES / 2 {
            // The target is at or before both sources, so nothing unread is overwritten (S3).
            let target = &self.slices[index];
            if index > 0 {
                target.clear();
                target.merge(&self.slices[2 * index]);
            }
            target.merge(&self.slices[2 * index + 1]);
        }
        self.slices[SLICES / 2..].iter().for_each(Slice::clear);
        self.used.store(self.used.load(Relaxed).div_ceil(2), Relaxed);
        add(&self.doublings, 1);
    }
}

impl Slice {
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    fn merge(&self, other: &Slice) {
        add(&self.bytes, other.bytes());
        self.latency.merge(&other.latency);
    }

    fn clear(&self) {
        self.bytes.store(0, Relaxed);
        self.latency.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three times the span of the slices: two doublings, and nothing lost (S3).
    #[test]
    fn a_long_run_widens_its_slices_and_keeps_its_sums() {
        let series = boxed();
        let seconds = 3 * SLICES as u64;
        for second in 0..seconds {
            series.record(second * FIRST_WIDTH, 1000 + second, 10);
        }
        assert_eq!(series.width(), 4 * FIRST_WIDTH);
        assert_eq!(series.used(), 3 * SLICES / 4);
        assert_eq!(series.iter().map(|slice| slice.latency.count()).sum::<u64>(), seconds);
        assert!(series.iter().all(|slice| slice.latency.count() == 4 && slice.bytes() == 40));
        assert!(
            series
                .iter()
                .enumerate()
                .all(|(i, slice)| slice.latency.counts().max() == 1003 + 4 * i as u64)
        );
    }

    #[test]
    fn series_of_different_widths_merge() {
        let (short, long) = (boxed(), boxed());
        short.record(FIRST_WIDTH, 5, 1);
        long.record(SLICES as u64 * FIRST_WIDTH, 5, 2);
        long.merge(&short);
        assert_eq!((long.slice(0).bytes(), long.slice(SLICES / 2).bytes()), (1, 2));
        short.merge(&long);
        assert_eq!(short.iter().map(|slice| slice.latency.count()).sum::<u64>(), 3);
    }
}
