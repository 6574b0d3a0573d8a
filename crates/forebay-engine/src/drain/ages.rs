//! Dirty bytes by age, as the drain looks at them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::core::governor::age::Cohort;
use crate::core::ranges::Ranges;
use crate::core::stamps::{self, BLOCK, Part, Stamps};
use crate::drain::holds::Holds;
use crate::files::file::{File, Inner};

/// The steps in which the ages of dirty bytes are reported.
pub(crate) const AGE_BOUNDS_SECS: [u64; 10] = [1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600];

/// Bytes that became dirty about the same time, in milliseconds since the epoch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub oldest: u64,
    pub youngest: u64,
    /// The last write to any of them.
    pub last: u64,
    pub bytes: u64,
}

/// Dirty bytes by age, as of the last look.
#[derive(Default)]
pub(crate) struct Ages {
    pub slots: Vec<Slot>,
    /// Bytes of files that are being flushed.
    pub flying: Vec<Slot>,
    /// Bytes that were rewritten within `settle` and are younger than `no_wait_age` (milliseconds). They wait.
    pub hot: Vec<Slot>,
    pub settle: u64,
    pub no_wait_age: u64,
    pub settled_bytes: u64,
    pub look_again: Option<Instant>,
    /// Dirty and flushed bytes together at the last tick, and the sum of all rises of that number.
    pub sum: u64,
    pub arrived: u64,
}

/// One pass over dirty files.
pub(crate) struct Look {
    pub instant: Instant,
    pub max_age: Duration,
    /// The least time between two looks at a file that is written past the daemon.
    pub look_rest: Duration,
    /// The time of day, in milliseconds.
    pub now: u64,
    pub width: u64,
    /// In milliseconds.
    pub settle: u64,
    pub no_wait_age: u64,
    pub holds: Arc<Holds>,
    /// Slots by time.
    pub slots: BTreeMap<u64, Slot>,
    pub flying: BTreeMap<u64, Slot>,
    pub hot: BTreeMap<u64, Slot>,
    pub seen: u64,
    pub settled: u64,
}

impl Look {
    pub fn file(&mut self, since: u64, file: &Arc<File>) {
        // A lock that is held long is that of a file being written or copied: the file keeps its known age.
        let Some(inner) = file.try_lock() else { return };
        let flying = inner.in_use().is_some_and(|live| live.flight.is_some());
        let way = match flying && !inner.state.conflict().stands() {
            true => Way::Flying,
            false => Way::Here,
        };
        let was_looked_at = inner.was_looked_at(self.instant, self.look_rest, self.max_age);
        let stays = !is_flushable(&inner, self.instant) || was_looked_at;
        if (way == Way::Here && stays) || self.holds.covers(&inner) {
            self.seen += inner.dirty_charged();
            return;
        }
        if goes_whole(&inner) {
            let bytes = inner.dirty_charged().max(1);
            let last = inner.last_write();
            self.add_part(since, last, bytes, way);
            return;
        }
        for (part, bytes) in weighed(&inner) {
            self.add_part(part.stamp.first, part.stamp.last, bytes, way);
        }
    }

    fn add_part(&mut self, first: u64, last: u64, bytes: u64, way: Way) {
        let (first, last) = (stamps::known(first, self.now), stamps::known(last, self.now));
        let age = |then| self.now.saturating_sub(then);
        let settled = age(last) >= self.settle;
        if settled {
            self.settled += bytes;
        }
        // Hot bytes cannot be taken yet: counted here they would only speed up the flush of other bytes.
        let waits = way == Way::Here && !settled && age(first) < self.no_wait_age;
        self.add((first, last), bytes, if waits { Way::Hot } else { way });
    }

    pub fn add(&mut self, (first, last): (u64, u64), bytes: u64, way: Way) {
        let slots = match way {
            Way::Here => &mut self.slots,
            Way::Flying => &mut self.flying,
            Way::Hot => &mut self.hot,
        };
        let new = Slot { oldest: first, youngest: first, last, bytes: 0 };
        let slot = slots.entry(first / self.width).or_insert(new);
        slot.oldest = slot.oldest.min(first);
        slot.youngest = slot.youngest.max(first);
        slot.last = slot.last.max(last);
        slot.bytes += bytes;
        self.seen += bytes;
    }
}

/// Whether a part can be taken, is being flushed already, or waits since it was just rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Here,
    Flying,
    Hot,
}

/// Dirty bytes as the governor gets them, the oldest first.
pub(crate) struct Cohorts {
    pub here: Vec<Cohort>,
    pub flying: Vec<Cohort>,
    pub hot: Vec<Cohort>,
}

impl Ages {
    /// The bytes that can be taken, those being flushed less those copied already, and those that
    /// wait. The last look may be a while ago: bytes that have settled since count as ready.
    pub fn cohorts(&self, now: u64, unsettled: u64) -> Cohorts {
        let age = |then: u64| now.saturating_sub(then);
        let waits =
            |slot: &Slot| age(slot.last) < self.settle && age(slot.oldest) < self.no_wait_age;
        let (hot, ripe): (Vec<Slot>, Vec<Slot>) = self.hot.iter().partition(|slot| waits(slot));
        let mut here = [self.slots.clone(), ripe].concat();
        here.sort_by_key(|slot| slot.oldest);
        Cohorts {
            here: since_to_age(&here, now, 0),
            flying: since_to_age(&self.flying, now, unsettled),
            hot: since_to_age(&hot, now, 0),
        }
    }
}

/// Whether the drain may take the file now.
pub(crate) fn is_flushable(inner: &Inner, now: Instant) -> bool {
    obstacle(inner, now).is_none()
}

/// The obstacle that keeps the drain from a file: a conflict, a flight under way, a pause after a
/// failure, or a writer past the daemon that has changed nothing since the last copy.
pub(crate) fn obstacle(inner: &Inner, now: Instant) -> Option<&'static str> {
    let flying = || inner.in_use().is_some_and(|live| live.flight.is_some());
    let resting = || inner.state.is_unseen() && !may_have_changed(inner, now);
    match () {
        () if inner.state.conflict().stands() => Some("conflicts"),
        () if flying() => Some("in-flight"),
        () if inner.is_pausing(now) => Some("failed-files"),
        () if resting() => Some("open-writers"),
        () => None,
    }
}

/// Whether a file is flushed as one: it is small, or written past the daemon, or only its size or
/// its times have to be flushed.
pub(crate) fn goes_whole(inner: &Inner) -> bool {
    inner.state.size() <= BLOCK || !inner.state.tracked().is_some_and(Ranges::any_dirty)
}

/// The dirty parts of a file.
pub(crate) fn parts(inner: &Inner) -> impl Iterator<Item = Part> {
    static NONE: Stamps = Stamps::NONE;
    let state = &inner.state;
    let runs = state.tracked().into_iter().flat_map(Ranges::iter);
    let dirty = runs.filter(|run| run.state.is_dirty());
    let stamps = inner.stamps().unwrap_or(&NONE);
    stamps.parts(dirty, state.dirty_bytes(), state.dirty_since())
}

/// The dirty parts, each with the bytes that it takes in the tier, as far as known. In a file with holes
/// the parts that were written lately have data; the other parts share the rest. Each part counts
/// for at least a byte, or it would never be reported.
pub(crate) fn weighed(inner: &Inner) -> impl Iterator<Item = (Part, u64)> {
    let (charged, dirty) = (inner.dirty_charged(), inner.state.dirty_bytes());
    let written = match charged < dirty {
        true => parts(inner).filter(|part| part.known).map(|part| part.bytes()).sum(),
        false => dirty,
    };
    let known = written.min(charged);
    parts(inner).map(move |part| {
        let (share, of) = match part.known || charged >= dirty {
            true => (known, written),
            false => (charged - known, dirty - written),
        };
        let bytes = u128::from(part.bytes()) * u128::from(share) / u128::from(of);
        (part, (bytes as u64).max(1))
    })
}

/// The cohorts of `slots`, the oldest first, less the bytes that are `copied` already.
pub(crate) fn since_to_age(slots: &[Slot], now: u64, copied: u64) -> Vec<Cohort> {
    let age = |since: u64| Duration::from_millis(now.saturating_sub(since));
    let mut copied = copied;
    let rest = |slot: &Slot| {
        let gone = copied.min(slot.bytes);
        copied -= gone;
        let bytes = slot.bytes - gone;
        let cohort = Cohort { age: age(slot.oldest), youngest: age(slot.youngest), bytes };
        (cohort.bytes > 0).then_some(cohort)
    };
    slots.iter().filter_map(rest).collect()
}

/// Whether an unseen writer may have written since the last copy.
pub(super) fn may_have_changed(inner: &Inner, now: Instant) -> bool {
    inner.unseen().and_then(|unseen| unseen.copied.as_ref()).is_none_or(|copied| {
        let doubted = copied.doubted_from.is_some_and(|from| now >= from);
        doubted || inner.shadow_stat() != Some(copied.at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tunables;
    use crate::bed::bed;
    use crate::core::state::Change;

    /// The file was written while the clock was a year ahead.
    // S-7
    #[test]
    fn what_is_dirty_from_before_the_clock_was_set_back_goes_home() {
        let bed = bed("ages-clock");
        let year = Duration::from_secs(365 * 24 * 3600).as_millis() as u64;
        let since = bed.engine.files.time().ms() + year;
        bed.engine.files.commit(&bed.file, &mut bed.file.lock(), Change::Aged { since }).unwrap();
        bed.engine.ops.set_tunables(Tunables::default()).unwrap();
        let began = Instant::now();
        while bed.file.lock().state.is_dirty() {
            assert!(began.elapsed() < Duration::from_secs(60), "it stays here");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A look over many parts is rare, so hot bytes may have settled since.
    #[test]
    fn what_has_settled_since_the_last_look_waits_no_longer() {
        let now = 1 << 40;
        let slot = |oldest_ago: u64, last_ago: u64| Slot {
            oldest: now - oldest_ago,
            youngest: now - oldest_ago,
            last: now - last_ago,
            bytes: 1,
        };
        let (still, settled, old) = (slot(20_000, 1000), slot(15_000, 9000), slot(29_000, 0));
        let ages = Ages {
            slots: vec![slot(25_000, 25_000), slot(10_000, 10_000)],
            hot: vec![old, still, settled],
            settle: 5000,
            no_wait_age: 26_000,
            ..Ages::default()
        };
        let Cohorts { here, hot, .. } = ages.cohorts(now, 0);
        let secs = |cohorts: &[Cohort]| -> Vec<u64> {
            cohorts.iter().map(|cohort| cohort.age.as_secs()).collect()
        };
        assert_eq!((secs(&here), secs(&hot)), (vec![29, 25, 15, 10], vec![20]));
    }
}
