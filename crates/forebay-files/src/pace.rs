//! Files that are written past the daemon: their bytes in the tier are measured, and their growth
//! is predicted from their pace. A program that has such a file open cannot be stopped; a later one
//! can be sent through the daemon while there is still room.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::time::Time;
use forebay_base::lock::{Mutex, Rank};

/// The least age of the last look at which an open makes another: a look costs a system call for each file.
pub const LOOK_MIN: Duration = Duration::from_millis(20);

/// The time during which at least one of several threads was doing some work.
pub struct Busy(Mutex<Spell>);

#[derive(Default)]
struct Spell {
    threads: u32,
    /// When the first of them began.
    since: Option<Instant>,
    before: Duration,
}

impl Default for Busy {
    fn default() -> Busy {
        Busy(Mutex::new(Rank::Unseen, Spell::default()))
    }
}

impl Busy {
    /// Counts a thread as working until the returned guard is dropped.
    pub fn begin<'a>(&'a self, time: &'a Time) -> impl Drop + 'a {
        let mut spell = self.0.lock();
        spell.threads += 1;
        let now = time.now();
        spell.since.get_or_insert(now);
        AtIt(self, time)
    }

    pub(crate) fn total(&self, time: &Time) -> Duration {
        let spell = self.0.lock();
        spell.before + spell.since.map_or(Duration::ZERO, |since| time.since(since))
    }

    fn halve(&self) {
        self.0.lock().before /= 2;
    }
}

struct AtIt<'a>(&'a Busy, &'a Time);

impl Drop for AtIt<'_> {
    fn drop(&mut self) {
        let mut spell = self.0.0.lock();
        spell.threads -= 1;
        if spell.threads == 0
            && let Some(since) = spell.since.take()
        {
            spell.before += self.1.since(since);
        }
    }
}

/// The pace at which files are compared with the store's content.
#[derive(Default)]
pub struct LookPace {
    bytes: AtomicU64,
    busy: Busy,
}

/// The assumed pace until enough bytes were compared: that of one processor.
const LOOKS_PER_SEC: u64 = 4 << 30;

/// Looks take one of this many parts of the time.
const PARTS: f64 = 10.0;

/// Bytes from which on the measured pace counts.
const LOOKED_MIN: u64 = 64 << 20;

impl LookPace {
    /// Returns the time spent comparing: several threads may do so at once.
    pub fn busy(&self) -> &Busy {
        &self.busy
    }

    /// Notes that `bytes` were compared.
    pub fn note(&self, bytes: u64) {
        // Old observations count less.
        if self.bytes.fetch_add(bytes, Relaxed) > 1 << 40 {
            self.bytes.fetch_update(Relaxed, Relaxed, |sum| Some(sum / 2)).ok();
            self.busy.halve();
        }
    }

    /// Returns the bytes that can be compared in a tenth of `time`.
    pub fn bytes_within(&self, clock: &Time, time: Duration) -> u64 {
        (self.per_sec(clock) * time.as_secs_f64() / PARTS) as u64
    }

    /// Returns the time of which comparing `bytes` takes a tenth.
    pub(crate) fn time_for(&self, clock: &Time, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 * PARTS / self.per_sec(clock))
    }

    fn per_sec(&self, clock: &Time) -> f64 {
        let (bytes, took) = (self.bytes.load(Relaxed), self.busy.total(clock));
        match bytes < LOOKED_MIN || took.is_zero() {
            true => LOOKS_PER_SEC as f64,
            false => bytes as f64 / took.as_secs_f64(),
        }
    }
}

/// The pace at which files written past the daemon grow.
pub struct Pace(Mutex<Option<Look>>);

impl Default for Pace {
    fn default() -> Pace {
        Pace(Mutex::new(Rank::Unseen, None))
    }
}

#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    /// The total growth since start.
    grown: u64,
    bytes_per_sec: u64,
}

impl Pace {
    /// Notes the total growth at `now`. A look that comes too soon is ignored.
    pub fn note(&self, now: Instant, grown: u64) {
        let mut last = self.0.lock();
        let Some(before) = *last else {
            *last = Some(Look { at: now, grown, bytes_per_sec: 0 });
            return;
        };
        let took = now.saturating_duration_since(before.at);
        if took < LOOK_MIN {
            return;
        }
        let bytes_per_sec = (grown.saturating_sub(before.grown) as f64 / took.as_secs_f64()) as u64;
        // A writer that rests for a moment will soon go on.
        let bytes_per_sec = bytes_per_sec.max(before.bytes_per_sec / 2);
        *last = Some(Look { at: now, grown, bytes_per_sec });
    }

    /// Whether the last look is older than `than`.
    pub fn is_older(&self, now: Instant, than: Duration) -> bool {
        let last = *self.0.lock();
        last.is_none_or(|last| now.saturating_duration_since(last.at) > than)
    }

    /// Returns the growth that is expected within a second.
    pub(crate) fn arriving(&self) -> u64 {
        self.0.lock().map_or(0, |last| last.bytes_per_sec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_arrives_is_what_arrived_and_is_forgotten_slowly() {
        let (pace, start) = (Pace::default(), Instant::now());
        let after = |ms: u64| start + Duration::from_millis(ms);
        pace.note(start, 5000);
        assert_eq!(pace.arriving(), 0, "the first look has nothing to compare with");
        pace.note(after(100), 5100);
        assert_eq!(pace.arriving(), 1000);
        pace.note(after(101), 6000);
        assert_eq!(pace.arriving(), 1000, "too soon to tell");
        pace.note(after(200), 9100);
        assert_eq!(pace.arriving(), 40_000);
        pace.note(after(300), 9100);
        assert_eq!(pace.arriving(), 20_000);
        (4..30).for_each(|n| pace.note(after(n * 100), 9100));
        assert_eq!(pace.arriving(), 0);
    }
}
