//! The pulse of foreground operations on one side, for the governor's brake: how many there were since
//! the last look, the fastest of them, and when the last one ended. A few atomics per operation.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::core::governor::brake::Seen;
use crate::time::Time;

/// Measures of the operations on one side since the last look.
#[derive(Debug)]
pub struct Pulse {
    time: Time,
    epoch: Instant,
    count: AtomicU32,
    fastest_us: AtomicU32,
    active: AtomicU32,
    /// The end of the last operation, in microseconds after `epoch`.
    last_end_us: AtomicU64,
}

impl Pulse {
    /// Creates the pulse of a side without operations yet.
    pub fn new(time: Time) -> Pulse {
        Pulse {
            epoch: time.now(),
            time,
            count: AtomicU32::new(0),
            fastest_us: AtomicU32::new(u32::MAX),
            active: AtomicU32::new(0),
            last_end_us: AtomicU64::new(0),
        }
    }
}

/// One operation under way.
pub struct Beat<'a> {
    pulse: &'a Pulse,
    began: Instant,
}

impl Pulse {
    /// Begins an operation; it ends when the returned guard is dropped.
    #[inline]
    pub fn begin(&self) -> Beat<'_> {
        self.active.fetch_add(1, Relaxed);
        Beat { pulse: self, began: self.time.now() }
    }

    /// Returns the measures since the last call, and begins anew.
    pub fn take(&self) -> Seen {
        let fastest = self.fastest_us.swap(u32::MAX, Relaxed);
        let count = self.count.swap(0, Relaxed);
        // A beat between these two lines is not counted, or counted twice: that does not matter.
        match fastest {
            u32::MAX => Seen::default(),
            us => Seen { count: count.max(1), fastest: Duration::from_micros(us.into()) },
        }
    }

    /// Returns how long there has been no operation.
    pub fn idle_for(&self) -> Duration {
        if self.active.load(Relaxed) > 0 {
            return Duration::ZERO;
        }
        let last = Duration::from_micros(self.last_end_us.load(Relaxed));
        self.time.since(self.epoch).saturating_sub(last)
    }
}

impl Drop for Beat<'_> {
    fn drop(&mut self) {
        let pulse = self.pulse;
        let us = u32::try_from(pulse.time.since(self.began).as_micros()).unwrap_or(u32::MAX - 1);
        pulse.fastest_us.fetch_min(us, Relaxed);
        pulse.count.fetch_add(1, Relaxed);
        pulse.last_end_us.store(pulse.time.since(pulse.epoch).as_micros() as u64, Relaxed);
        pulse.active.fetch_sub(1, Relaxed);
    }
}
