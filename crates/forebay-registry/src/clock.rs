//! The clock of leases, which also runs while the machine sleeps.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

pub trait Clock: Send + Sync {
    /// The time since some fixed moment.
    fn now(&self) -> Duration;
}

/// `CLOCK_BOOTTIME`.
#[derive(Debug, Clone, Copy, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
    }
}

/// A clock for tests, which stands still until it is advanced.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    pub fn advance(&self, by: Duration) {
        let millis = u64::try_from(by.as_millis()).expect("tests do not wait for ages");
        self.0.fetch_add(millis, SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(SeqCst))
    }
}
