//! Makes a fast store slow: a latency for every call and one bandwidth for all of them.
//!
//! Latencies of different threads overlap, as in a device with a queue; the bytes then share one
//! link, first come first served. A model of seeks belongs into [`Device::done_at`], which sees
//! the call's offset and path.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::clock::{Clock, Monotonic};
use super::layer::{Call, Done, Layer};
use super::store::Wrapped;
use crate::{BackingStore, Result};

/// How slow to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Data read and written by all threads together; `None` for no limit.
    pub bytes_per_sec: Option<u64>,
    /// Of each call, data or metadata.
    pub latency: Duration,
}

pub struct Throttle {
    device: Mutex<Device>,
    clock: Box<dyn Clock>,
}

/// The pretended hardware: pure, its time is told.
#[derive(Debug)]
struct Device {
    limits: Limits,
    /// When the link has moved everything admitted so far.
    link_free: Duration,
}

impl Throttle {
    pub fn wrap(store: Arc<dyn BackingStore>, limits: Limits) -> Arc<Wrapped<Throttle>> {
        Throttle::with_clock(store, limits, Monotonic)
    }

    pub fn with_clock(
        store: Arc<dyn BackingStore>,
        limits: Limits,
        clock: impl Clock,
    ) -> Arc<Wrapped<Throttle>> {
        let device = Mutex::new(Device { limits, link_free: Duration::ZERO });
        Wrapped::new(store, Arc::new(Throttle { device, clock: Box::new(clock) }))
    }

    /// Applies to calls whose real work ends from now on; a link that was busy is free.
    pub fn set_limits(&self, limits: Limits) {
        *self.device() = Device { limits, link_free: Duration::ZERO };
    }

    fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Layer for Throttle {
    const PASSES_FD: bool = false;

    /// The time the real store takes counts towards the pretended one.
    fn around<T>(
        &self,
        call: &Call<'_>,
        mut run: impl FnMut() -> Result<Done<T>>,
    ) -> Result<Done<T>> {
        let start = self.clock.now();
        let result = run();
        let bytes = result.as_ref().map_or(0, |done| done.bytes);
        let done_at = self.device().done_at(start, call, bytes);
        self.clock.sleep_until(done_at);
        result
    }
}

impl Device {
    /// When a call that came at `start` and moved `bytes` is over.
    fn done_at(&mut self, start: Duration, _call: &Call<'_>, bytes: u64) -> Duration {
        let arrives = start + self.limits.latency;
        let Some(rate) = self.limits.bytes_per_sec.filter(|_| bytes > 0) else { return arrives };
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        let moving = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.link_free = self.link_free.max(arrives) + moving;
        self.link_free
    }
}
