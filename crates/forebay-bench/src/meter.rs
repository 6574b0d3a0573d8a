//! The measurements of one task in one phase.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_base::histogram::Histogram;

use crate::slices::{self, Slices};

/// Latencies in nanoseconds, each within 1/64. 2^41 ns is 36 minutes; longer ones count as that.
pub type Latencies = Histogram<6, { 36 << 6 }>;

/// Operations, bytes, latencies and their course over time. One writer; zeros are empty.
#[repr(C)]
pub struct Meter {
    ops: AtomicU64,
    bytes: AtomicU64,
    /// The time when the phase began, which is where the time series starts.
    began: AtomicU64,
    pub latency: Latencies,
    pub series: Slices,
}

impl Meter {
    /// Sets the moment from which the time series counts; all tasks of a phase use the same one.
    pub fn begin(&self, at: u64) {
        self.began.store(at, Relaxed);
    }

    /// Counts an operation that ran from `start` to `end` (ns of [`crate::clock::now`]).
    #[inline]
    pub fn record(&self, start: u64, end: u64, bytes: u64) {
        let latency = end - start;
        self.ops.store(self.ops.load(Relaxed) + 1, Relaxed);
        self.bytes.store(self.bytes.load(Relaxed) + bytes, Relaxed);
        self.latency.record_alone(latency);
        self.series.record(end.saturating_sub(self.began.load(Relaxed)), latency, bytes);
    }

    pub fn ops(&self) -> u64 {
        self.ops.load(Relaxed)
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

/// The sum over all tasks.
pub struct Total {
    pub ops: u64,
    pub bytes: u64,
    pub latency: Box<Latencies>,
    pub series: Box<Slices>,
}

impl Total {
    pub fn of<'a>(meters: impl IntoIterator<Item = &'a Meter>) -> Self {
        let mut total =
            Self { ops: 0, bytes: 0, latency: Latencies::boxed(), series: slices::boxed() };
        for meter in meters {
            total.ops += meter.ops();
            total.bytes += meter.bytes();
            total.latency.merge(&meter.latency);
            total.series.merge(&meter.series);
        }
        total
    }
}
