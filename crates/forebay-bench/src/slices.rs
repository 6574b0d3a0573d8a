//! A time series of fixed size: operations, bytes and a coarse latency histogram per slice of time.
//!
//! A slice starts one second wide; when the run outlasts the slices, neighbors are folded together
//! and the width doubles, so a run of any length fits.
//!
//! Invariants: S1: one writer. S2: all zeros is an empty series. S3: folding loses no operation.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Even, so that folding pairs up. Nine minutes at a second each before the first fold.
pub const SLICES: usize = 512;
/// Two steps to a doubling from 2^7 ns (128 ns) on: 64 steps end at 2^39 ns (nine minutes).
pub const COARSE: usize = 64;
const FIRST_BIT: u32 = 7;
const FIRST_WIDTH: u64 = 1_000_000_000;

#[repr(C)]
pub struct Slice {
    ops: AtomicU64,
    bytes: AtomicU64,
    /// The longest, exactly: its bucket may reach half as far again.
    max: AtomicU64,
    latency: [AtomicU64; COARSE],
}

#[repr(C)]
pub struct Slices {
    /// How often the width has doubled.
    folds: AtomicU64,
    /// Index of the last slice that holds something, plus one.
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

#[inline]
fn coarse_of(nanos: u64) -> usize {
    if nanos < 1 << FIRST_BIT {
        return 0;
    }
    let bit = nanos.ilog2();
    let half = (nanos >> (bit - 1)) & 1;
    (u64::from(bit - FIRST_BIT) * 2 + half).min(COARSE as u64 - 1) as usize
}

/// The latencies `low..high`, in ns, that coarse bucket `index` stands for; the first also holds
/// all below, the last all above.
pub fn coarse_bounds(index: usize) -> (u64, u64) {
    let edge = |i: usize| {
        let base = 1u64 << (FIRST_BIT as usize + i / 2);
        base + if i % 2 == 1 { base / 2 } else { 0 }
    };
    (if index == 0 { 0 } else { edge(index) }, edge(index + 1))
}

impl Slices {
    /// Counts an operation that ended `elapsed` ns after the start of the phase.
    #[inline]
    pub fn record(&self, elapsed: u64, latency: u64, bytes: u64) {
        let mut index = (elapsed / self.width()) as usize;
        while index >= SLICES {
            self.fold();
            index = (elapsed / self.width()) as usize;
        }
        let slice = &self.slices[index];
        add(&slice.ops, 1);
        add(&slice.bytes, bytes);
        if latency > slice.max.load(Relaxed) {
            slice.max.store(latency, Relaxed);
        }
        add(&slice.latency[coarse_of(latency)], 1);
        if index as u64 >= self.used.load(Relaxed) {
            self.used.store(index as u64 + 1, Relaxed);
        }
    }

    /// Adds what `other` counted; both series must have started at the same moment.
    pub fn merge(&self, other: &Slices) {
        while self.folds.load(Relaxed) < other.folds.load(Relaxed) {
            self.fold();
        }
        let shift = self.folds.load(Relaxed) - other.folds.load(Relaxed);
        for index in 0..other.used() {
            self.slices[index >> shift].add(&other.slices[index]);
        }
        let used = (other.used() as u64).div_ceil(1 << shift);
        self.used.fetch_max(used, Relaxed);
    }

    /// Nanoseconds a slice spans.
    #[inline]
    pub fn width(&self) -> u64 {
        FIRST_WIDTH << self.folds.load(Relaxed)
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
    fn fold(&self) {
        for index in 0..SLICES / 2 {
            let (left, right) = (&self.slices[2 * index], &self.slices[2 * index + 1]);
            // The target is at or before both sources, so nothing unread is overwritten (S3).
            let sums = left.sum_with(right);
            self.slices[index].set(&sums);
        }
        let empty = [0; COARSE + 3];
        self.slices[SLICES / 2..].iter().for_each(|slice| slice.set(&empty));
        self.used.store(self.used.load(Relaxed).div_ceil(2), Relaxed);
        add(&self.folds, 1);
    }
}

impl Slice {
    pub fn ops(&self) -> u64 {
        self.ops.load(Relaxed)
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// The longest latency in ns; 0 without operations.
    pub fn max(&self) -> u64 {
        self.max.load(Relaxed)
    }

    /// Operations per coarse latency bucket; see [`coarse_bounds`].
    pub fn latencies(&self) -> [u64; COARSE] {
        std::array::from_fn(|i| self.latency[i].load(Relaxed))
    }

    fn add(&self, other: &Slice) {
        let sums = self.sum_with(other);
        self.set(&sums);
    }

    fn sum_with(&self, other: &Slice) -> [u64; COARSE + 3] {
        let (mine, theirs) = (self.latencies(), other.latencies());
        std::array::from_fn(|i| match i {
            0 => self.ops() + other.ops(),
            1 => self.bytes() + other.bytes(),
            2 => self.max().max(other.max()),
            _ => mine[i - 3] + theirs[i - 3],
        })
    }

    fn set(&self, values: &[u64; COARSE + 3]) {
        self.ops.store(values[0], Relaxed);
        self.bytes.store(values[1], Relaxed);
        self.max.store(values[2], Relaxed);
        for (cell, value) in self.latency.iter().zip(&values[3..]) {
            cell.store(*value, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coarse_buckets_meet_without_gaps() {
        for index in 0..COARSE - 1 {
            let (low, high) = coarse_bounds(index);
            assert_eq!((coarse_of(low), coarse_of(high - 1)), (index, index));
            assert_eq!(coarse_bounds(index + 1).0, high);
        }
        assert_eq!(coarse_of(u64::MAX), COARSE - 1);
    }

    /// Three times the span of the slices: two folds, and nothing lost (S3).
    #[test]
    fn a_long_run_folds_and_keeps_its_sums() {
        let series = boxed();
        let seconds = 3 * SLICES as u64;
        for second in 0..seconds {
            series.record(second * FIRST_WIDTH, 1000 + second, 10);
        }
        assert_eq!(series.width(), 4 * FIRST_WIDTH);
        assert_eq!(series.used(), 3 * SLICES / 4);
        assert_eq!(series.iter().map(Slice::ops).sum::<u64>(), seconds);
        assert!(series.iter().all(|slice| slice.ops() == 4 && slice.bytes() == 40));
        assert!(series.iter().enumerate().all(|(i, slice)| slice.max() == 1003 + 4 * i as u64));
    }

    #[test]
    fn series_of_different_widths_merge() {
        let (short, long) = (boxed(), boxed());
        short.record(FIRST_WIDTH, 5, 1);
        long.record(SLICES as u64 * FIRST_WIDTH, 5, 2);
        long.merge(&short);
        assert_eq!((long.slice(0).bytes(), long.slice(SLICES / 2).bytes()), (1, 2));
        short.merge(&long);
        assert_eq!(short.iter().map(Slice::ops).sum::<u64>(), 3);
    }
}
