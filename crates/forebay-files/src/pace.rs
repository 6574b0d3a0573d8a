//! Files that are written past us: what they take of the tier is measured, and what they will take
//! soon is told from how fast they grow. Nobody can stop who has one open; who comes next can be
//! sent through the daemon while there is still room.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::time::Time;
use forebay_base::lock::{Mutex, Rank};

/// A look costs a system call for each of the files, so opens make one only if the last is older.
pub const LOOK_MIN: Duration = Duration::from_millis(20);

/// For how long a work that several threads do was under way: while any of them was at it.
pub struct Busy(Mutex<Spell>);

#[derive(Default)]
struct Spell {
    threads: u32,
    /// The first of them began.
    since: Option<Instant>,
    before: Duration,
}

impl Default for Busy {
    fn default() -> Busy {
        Busy(Mutex::new(Rank::Unseen, Spell::default()))
    }
}

impl Busy {
    /// One thread is at it until what is returned is dropped.
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

/// How fast files are compared with what the store holds.
#[derive(Default)]
pub struct LookPace {
    bytes: AtomicU64,
    busy: Busy,
}

/// Until enough was compared to know: what a processor does.
const LOOKS_PER_SEC: u64 = 4 << 30;

/// Of so many parts of the time looks have one.
const PARTS: f64 = 10.0;

/// So much tells.
const LOOKED_MIN: u64 = 64 << 20;

impl LookPace {
    /// While files are compared: several threads may be at it.
    pub fn busy(&self) -> &Busy {
        &self.busy
    }

    /// So many bytes were compared.
    pub fn note(&self, bytes: u64) {
        // What is long ago counts less.
        if self.bytes.fetch_add(bytes, Relaxed) > 1 << 40 {
            self.bytes.fetch_update(Relaxed, Relaxed, |sum| Some(sum / 2)).ok();
            self.busy.halve();
        }
    }

    /// Bytes that are compared within a tenth of that time.
    pub fn bytes_within(&self, clock: &Time, time: Duration) -> u64 {
        (self.per_sec(clock) * time.as_secs_f64() / PARTS) as u64
    }

    /// So many bytes are compared within a tenth of the time that is returned.
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

/// How fast all of them grow.
pub struct Pace(Mutex<Option<Look>>);

impl Default for Pace {
    fn default() -> Pace {
        Pace(Mutex::new(Rank::Unseen, None))
    }
}

#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    /// All that they had grown by then, since start.
    grown: u64,
    bytes_per_sec: u64,
}

impl Pace {
    /// By `now` they have grown by so many bytes since start. A look that comes too soon tells nothing.
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
        // Who rests for a moment will soon go on.
        let bytes_per_sec = bytes_per_sec.max(before.bytes_per_sec / 2);
        *last = Some(Look { at: now, grown, bytes_per_sec });
    }

    /// Whether the last look was longer ago than that.
    pub fn is_older(&self, now: Instant, than: Duration) -> bool {
        let last = *self.0.lock();
        last.is_none_or(|last| now.saturating_duration_since(last.at) > than)
    }

    /// What comes within a second.
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
