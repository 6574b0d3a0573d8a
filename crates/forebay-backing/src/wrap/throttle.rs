//! Makes a fast store slow: a latency for every call and one bandwidth for all of them.
//!
//! Latencies of different threads overlap, as in a device with a queue; the bytes then share one link, first come
//! first served. With seeks the device is a disk: it has one head, which calls that move data take in turn. A file
//! lies at one place of the disk, and a call that does not continue at the head's position costs a seek, a short one
//! less than a long one. Calls for names, attributes and syncs keep their latency and leave the head alone.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use forebay_base::lock::{Mutex, MutexGuard, Rank};

use super::clock::{Clock, Monotonic};
use super::layer::{Call, Done, Layer, Verb};
use super::store::Wrapped;
use crate::{BackingStore, Result};

/// The limits that make the store slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Data read and written by all threads together; `None` for no limit.
    pub bytes_per_sec: Option<u64>,
    /// The latency of each call, data or metadata, except closing a file.
    pub latency: Duration,
    /// Calls that move data take a seek instead of the latency where the head has to move.
    pub seeks: Seeks,
}

/// Whether the place of data matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Seeks {
    /// As on flash or behind a network: the latency for each call, in parallel.
    #[default]
    None,
    /// As on a disk of this many bytes: one head; the latency is that of a seek across a third of it.
    Head { disk_bytes: u64 },
}

pub struct Throttle {
    device: Mutex<Device>,
    clock: Box<dyn Clock>,
}

/// The pretended hardware: pure, its time is an argument.
#[derive(Debug)]
struct Device {
    limits: Limits,
    /// When the link has moved everything admitted so far.
    link_free: Duration,
    /// Where the head stands once it is free.
    head: u64,
}

/// The pretended disk's default size. It should be about the size of a trial's data, so that random places in it cost
/// whole seeks. A file's place depends on its path.
pub const DISK_BYTES: u64 = 8 << 30;

/// A seek within this distance goes to a neighboring track.
const NEAR_BYTES: u64 = 1 << 20;

/// The length of a track: a call that skips less waits for the platter instead of seeking.
const SKIP_BYTES: u64 = 64 << 10;

impl Throttle {
    pub fn wrap(store: Arc<dyn BackingStore>, limits: Limits) -> Arc<Wrapped<Throttle>> {
        Throttle::with_clock(store, limits, Monotonic)
    }

    pub fn with_clock(
        store: Arc<dyn BackingStore>,
        limits: Limits,
        clock: impl Clock,
    ) -> Arc<Wrapped<Throttle>> {
        let device = Mutex::new(Rank::Played, Device::new(limits));
        Wrapped::new(store, Arc::new(Throttle { device, clock: Box::new(clock) }))
    }

    fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock()
    }
}

impl Layer for Throttle {
    const PASSES_FD: bool = false;

    /// The real store's time counts towards the pretended time.
    fn around<T>(
        &self,
        call: &Call<'_>,
        mut run: impl FnMut() -> Result<Done<T>>,
    ) -> Result<Done<T>> {
        if call.verb == Verb::Close {
            return run(); // No caller waits for the answer to a close.
        }
        let start = self.clock.now();
        let result = run();
        let bytes = result.as_ref().map_or(0, |done| done.bytes);
        let done_at = self.device().done_at(start, call, bytes);
        self.clock.sleep_until(done_at);
        result
    }
}

impl Device {
    fn new(limits: Limits) -> Device {
        Device { limits, link_free: Duration::ZERO, head: 0 }
    }

    /// The end of a call that came at `start` and moved `bytes`.
    fn done_at(&mut self, start: Duration, call: &Call<'_>, bytes: u64) -> Duration {
        if let Seeks::Head { disk_bytes } = self.limits.seeks
            && bytes > 0
        {
            return self.after_seek(start, call, bytes, disk_bytes.max(1));
        }
        let arrives = start + self.limits.latency;
        if bytes == 0 {
            return arrives;
        }
        match self.moving(bytes) {
            Some(moving) => {
                self.link_free = self.link_free.max(arrives) + moving;
                self.link_free
            }
            None => arrives,
        }
    }

    /// There is one head: seeks do not overlap.
    fn after_seek(&mut self, start: Duration, call: &Call<'_>, bytes: u64, disk: u64) -> Duration {
        let place = area(call, disk).wrapping_add(call.offset) % disk;
        let seek = seek(place.abs_diff(self.head), self.limits.latency, disk);
        let moving = self.moving(bytes).unwrap_or_default();
        self.link_free = self.link_free.max(start) + seek + moving;
        self.head = place + bytes;
        self.link_free
    }

    /// The time the link takes for these bytes; `None` without a limit.
    fn moving(&self, bytes: u64) -> Option<Duration> {
        let rate = self.limits.bytes_per_sec?;
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }
}

/// The place where a file begins.
fn area(call: &Call<'_>, disk: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    call.paths.hash(&mut hasher);
    hasher.finish() % disk
}

/// The time the head takes to move so far: nothing at its position, a fifth of a whole seek to the neighborhood, then
/// growing with the root of the distance, as the arm speeds up and brakes, to `whole` across a third of the disk, the
/// mean of random places, and beyond.
fn seek(distance: u64, whole: Duration, disk: u64) -> Duration {
    if distance == 0 {
        return Duration::ZERO;
    }
    if distance <= SKIP_BYTES {
        return whole / 20;
    }
    if distance <= NEAR_BYTES {
        return whole / 5;
    }
    let share = (distance as f64 / (disk as f64 / 3.0)).sqrt();
    whole.mul_f64(0.2 + share * 0.8)
}
