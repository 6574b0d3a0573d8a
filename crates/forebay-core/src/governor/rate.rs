//! Rates from counters, smoothed, and the speed of the backing store.

use std::time::Duration;

/// Bytes (or other counted things) per second, exponentially forgetting.
#[derive(Debug, Clone, Copy, Default)]
pub struct Smooth {
    value: f64,
    seen: Duration,
}

impl Smooth {
    /// Notes `bytes` in `dt`. The first seconds are a plain mean, so that the rate starts true.
    pub fn note(&mut self, bytes: u64, dt: Duration, memory: Duration) {
        if dt.is_zero() {
            return;
        }
        self.seen = (self.seen + dt).min(memory);
        let share = dt.as_secs_f64() / self.seen.as_secs_f64();
        self.value += (bytes as f64 / dt.as_secs_f64() - self.value) * share.min(1.0);
    }

    pub fn get(&self) -> f64 {
        self.value
    }
}

/// The assumed speed of a store that was never measured. Low, so that the first data is begun early.
const UNKNOWN: f64 = 10e6;

/// Copies come in bursts with a sync between: a measure must span a few of them.
const SPAN: Duration = Duration::from_secs(2);

/// The span of the first measure, which had better be rough than late.
const FIRST_SPAN: Duration = Duration::from_millis(500);

/// The speed of the backing store, learned while nothing else limits the drain.
#[derive(Debug, Clone, Copy, Default)]
pub struct Service {
    rate: f64,
    bytes: u64,
    time: Duration,
}

impl Service {
    /// Notes a time in which the backing store was the limit.
    pub fn note_busy(&mut self, bytes: u64, dt: Duration) {
        self.bytes += bytes;
        self.time += dt;
        if self.time < if self.rate == 0.0 { FIRST_SPAN } else { SPAN } {
            return;
        }
        let rate = self.bytes as f64 / self.time.as_secs_f64();
        (self.bytes, self.time) = (0, Duration::ZERO);
        self.rate = if self.rate == 0.0 { rate } else { self.rate * 0.6 + rate * 0.4 };
    }

    /// Notes a rate that was reached: whatever the limit was, the store can do at least this.
    pub fn note_reached(&mut self, rate: f64) {
        if rate > self.get() {
            self.rate = rate;
        }
    }

    pub fn get(&self) -> f64 {
        if self.rate > 0.0 { self.rate } else { UNKNOWN }
    }
}

/// The rate at which programs write when they are not slowed down: the highest rate of late.
#[derive(Debug, Clone, Copy, Default)]
pub struct Offer {
    now: Smooth,
    free: f64,
}

/// An offer is forgotten in this time.
const OFFER_MEMORY: Duration = Duration::from_secs(20);

impl Offer {
    pub fn note(&mut self, bytes: u64, dt: Duration) {
        self.now.note(bytes, dt, Duration::from_secs(1));
        self.free = self.free.max(self.now.get());
    }

    /// Forgets a little: only while no writer is slowed down, since a slowed writer does not show
    /// its rate.
    pub fn was_free(&mut self, dt: Duration) {
        let share = dt.as_secs_f64() / OFFER_MEMORY.as_secs_f64();
        self.free -= (self.free - self.now.get()).max(0.0) * share.min(1.0);
    }

    pub fn free(&self) -> f64 {
        self.free
    }
}
