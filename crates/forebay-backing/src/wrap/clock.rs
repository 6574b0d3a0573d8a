//! The clock of the layers, which a test can replace.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use forebay_base::lock::sleep;

pub trait Clock: Send + Sync + 'static {
    /// Time since some fixed point; never goes back.
    fn now(&self) -> Duration;

    /// Blocks the thread until `now` has reached `time`.
    fn sleep_until(&self, time: Duration);
}

/// The system's monotonic clock. Sleeps end late by the thread's timer slack, 50 us by default.
#[derive(Debug, Clone, Copy, Default)]
pub struct Monotonic;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

impl Clock for Monotonic {
    fn now(&self) -> Duration {
        START.elapsed()
    }

    fn sleep_until(&self, time: Duration) {
        let left = time.saturating_sub(self.now());
        if !left.is_zero() {
            sleep(left);
        }
    }
}
