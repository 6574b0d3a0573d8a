//! The governor's hands: measures ten times a second, asks it, and sets valve and gate as it says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::attach::Attachment;
use crate::config::Tunables;
use crate::engine::{Engine, add, now_ms};
use crate::file::{File, Inner};
use crate::governor::age::{Cohort, no_wait_age};
use crate::governor::gate::Gate;
use crate::governor::{Available, Decision, Limit, Sample, Urgent};
use crate::order::Holds;
use crate::report::AgeBucket;
use crate::stamps::{BLOCK, Part, Stamps};
use crate::valve::Setting;

const TICK: Duration = Duration::from_millis(100);

/// A writer that waits for room does not wait for the next tick, but neither does each of many
/// cause one.
const LEAST: Duration = Duration::from_millis(10);

/// Files looked at for their ages, the oldest first; all others count as old as the next one.
const LOOK_MAX: usize = 4096;

/// The steps in which ages of dirty bytes are told.
const AGE_BOUNDS_SECS: [u64; 10] = [1, 5, 10, 30, 60, 120, 300, 600, 1800, 3600];

/// A look at the ages takes at most this part of the time.
const LOOK_SHARE: u32 = 50;

/// A writer that waits looks this often whether it still has to.
const NAP: Duration = Duration::from_millis(10);

/// How long a flight under way still takes of what the drain could do, when it is to rest.
const REST_PARTS: f64 = 8.0;

/// Bytes that became dirty about the same time, in milliseconds since the epoch.
#[derive(Debug, Clone, Copy)]
struct Slot {
    oldest: u64,
    youngest: u64,
    /// When any of them was last written.
    last: u64,
    bytes: u64,
}

/// Dirty bytes by age, as last looked at.
#[derive(Default)]
pub(crate) struct Ages {
    slots: Vec<Slot>,
    /// Of files that are on their way.
    flying: Vec<Slot>,
    /// What was rewritten within `settle` and is younger than `no_wait_age` (milliseconds), and waits.
    hot: Vec<Slot>,
    settle: u64,
    no_wait_age: u64,
    settled_bytes: u64,
    look_again: Option<Instant>,
    /// Dirty and flushed bytes together, at the last tick, and by how much they ever rose.
    sum: u64,
    arrived: u64,
}

impl Engine {
    /// The governor's thread.
    pub(crate) fn govern_loop(self: &Arc<Self>) {
        while !self.stopping.load(Relaxed) {
            self.govern();
            std::thread::sleep(LEAST);
            let seen = self.wake.0.lock().expect("no panic inside");
            if !self.drain.urgent.load(Relaxed) {
                let _ = self.wake.1.wait_timeout(seen, TICK - LEAST);
            }
        }
    }

    /// One look, one decision. The first is made before anything is served, or the user's caps would
    /// not hold until the governor's thread has its turn.
    pub(crate) fn govern(&self) {
        let tunables = self.tunables();
        let mut ages = self.drain.ages.lock().expect("no panic inside");
        self.look_at_ages(&mut ages, &tunables);
        self.note_arrivals(&mut ages);
        let decision = self.decide(&ages, &tunables);
        drop(ages);
        let pace = match decision.limit {
            // Copies under way are to find out by themselves.
            Limit::BackingAway => f64::INFINITY,
            _ if decision.pace == 0.0 => decision.outlook.service_rate / REST_PARTS,
            _ => decision.pace,
        };
        self.drain.valve.set(Setting {
            pace,
            depth: decision.depth,
            depth_max: decision.depth_max,
            rate_max: tunables.rate_max,
            ops_max: tunables.ops_max,
        });
        *self.drain.decision.write().expect("no panic inside") = decision;
        if decision.rate > 0.0 {
            self.nudge_drain();
        }
    }

    fn decide(&self, ages: &Ages, tunables: &Tunables) -> Decision {
        let drain = &self.drain;
        let level = self.level();
        let unsettled = self.unsettled();
        let Cohorts { here, flying, hot } = ages.cohorts(unsettled);
        let sample = Sample {
            now: self.started.elapsed(),
            tier_bytes: level.tier_bytes,
            used_bytes: level.used_bytes,
            dirty_bytes: level.dirty_bytes,
            unsettled_bytes: unsettled,
            arrived: ages.arrived,
            written: self.written_here(),
            copied: drain.copied.load(Relaxed),
            cohorts: &here,
            flying: &flying,
            hot: &hot,
            settled_bytes: ages.settled_bytes.saturating_sub(unsettled),
            tier: drain.tier_pulse.take(),
            backing: self.health.pulse.take(),
            idle_for: self.health.pulse.idle_for(),
            busy: drain.valve.busy(),
            lag: Duration::from_micros(drain.lag_us.load(Relaxed)),
            backing_available: match level.backing_available {
                true => Available::Yes,
                false => Available::No,
            },
            urgent: match drain.urgent.swap(false, Relaxed) {
                true => Urgent::Yes,
                false => Urgent::No,
            },
            demands: drain.valve.demands(),
            drain_by: self.drain_by_left(level.dirty_bytes),
            minute: local_minute(),
        };
        let decision = drain.governor.lock().expect("no panic inside").tick(&sample, tunables);
        // Who waits, for a flush or for room, is served all the same.
        let awaited = sample.demands > 0
            || sample.urgent == Urgent::Yes
            || sample.drain_by.is_some()
            || drain.slowed.load(Relaxed) > 0;
        match self.attachment() == Attachment::DetachedKeepDirty && !awaited {
            true => Decision { rate: 0.0, pace: 0.0, limit: Limit::Detached, ..decision },
            false => decision,
        }
    }

    /// Bytes that programs wrote into the tier.
    fn written_here(&self) -> u64 {
        let around = self.counters.write_around_bytes.load(Relaxed);
        self.counters.write_bytes.load(Relaxed).saturating_sub(around)
    }

    /// What left the tier unflushed (truncated, unlinked) lowers the sum and has not arrived.
    fn note_arrivals(&self, ages: &mut Ages) {
        let flushed = self.counters.flushed_bytes.load(Relaxed);
        let sum = self.space.dirty.load(Relaxed) + flushed;
        ages.arrived += sum.saturating_sub(ages.sum);
        ages.sum = sum;
    }

    /// Bytes that were copied and not yet settled.
    pub(crate) fn unsettled(&self) -> u64 {
        self.drain.unsettled.load(Relaxed)
    }

    /// Brings everything that is dirty, and becomes so, to the backing store by `deadline`, at an
    /// even rate. `None` takes that back; reaching it does too.
    pub fn drain_by(&self, deadline: Option<Instant>) {
        *self.drain.deadline.lock().expect("no panic inside") = deadline;
        self.nudge();
    }

    /// The same, unless everything is to be there sooner already.
    pub(crate) fn drain_by_at_latest(&self, by: Instant) {
        let mut deadline = self.drain.deadline.lock().expect("no panic inside");
        *deadline = Some(deadline.map_or(by, |sooner| sooner.min(by)));
    }

    /// Takes that back; who still needs a deadline sets his again.
    pub(crate) fn end_drain_by(&self, by: Instant) {
        let mut deadline = self.drain.deadline.lock().expect("no panic inside");
        deadline.take_if(|at| *at == by);
    }

    fn drain_by_left(&self, dirty: u64) -> Option<Duration> {
        let mut deadline = self.drain.deadline.lock().expect("no panic inside");
        let left = (*deadline)?.saturating_duration_since(Instant::now());
        if left.is_zero() && dirty == 0 {
            *deadline = None;
        }
        Some(left)
    }

    /// Dirty bytes by age, cumulative, as the drain last saw them.
    pub fn dirty_ages(&self) -> Vec<AgeBucket> {
        let ages = self.drain.ages.lock().expect("no panic inside");
        let Cohorts { here, flying, hot } = ages.cohorts(self.unsettled());
        drop(ages);
        let cohorts = [here, flying, hot].concat();
        let bounds = AGE_BOUNDS_SECS.iter().map(|secs| Some(*secs)).chain([None]);
        let younger = |bound: Option<u64>| {
            let fits = |cohort: &&Cohort| bound.is_none_or(|secs| cohort.age.as_secs() < secs);
            cohorts.iter().filter(fits).map(|cohort| cohort.bytes).sum()
        };
        bounds.map(|up_to_secs| AgeBucket { up_to_secs, bytes: younger(up_to_secs) }).collect()
    }

    /// Whether all that could be taken was rewritten a moment ago.
    pub(crate) fn all_settles(&self) -> bool {
        let cohorts = self.drain.ages.lock().expect("no panic inside").cohorts(0);
        cohorts.here.is_empty() && !cohorts.hot.is_empty()
    }

    fn look_at_ages(&self, ages: &mut Ages, tunables: &Tunables) {
        let began = Instant::now();
        if ages.look_again.is_some_and(|at| began < at) {
            return;
        }
        let (files, next) = self.oldest_files();
        let width = (tunables.max_age.as_millis() as u64 / 32).max(1);
        let mut look = Look {
            now: now_ms(),
            width,
            settle: tunables.settle.as_millis() as u64,
            no_wait_age: no_wait_age(tunables.max_age).as_millis() as u64,
            holds: self.drain.holds.clone(),
            slots: BTreeMap::new(),
            flying: BTreeMap::new(),
            hot: BTreeMap::new(),
            seen: 0,
            settled: 0,
        };
        for (since, file) in &files {
            look.file(*since, file);
        }
        if let Some(since) = next {
            let dirty = self.space.dirty.load(Relaxed);
            look.add((since, since), dirty.saturating_sub(look.seen), Way::Here);
        }
        ages.slots = look.slots.into_values().collect();
        ages.flying = look.flying.into_values().collect();
        ages.hot = look.hot.into_values().collect();
        (ages.settle, ages.no_wait_age) = (look.settle, look.no_wait_age);
        ages.settled_bytes = look.settled;
        ages.look_again = Some(Instant::now() + began.elapsed() * LOOK_SHARE);
    }

    /// The files that have been dirty longest, and since when the next one has.
    fn oldest_files(&self) -> (Vec<(u64, Arc<File>)>, Option<u64>) {
        let queue = self.dirty.lock().expect("no panic inside");
        let mut entries = queue.by_age.values();
        let files = entries.by_ref().take(LOOK_MAX).cloned().collect();
        (files, entries.next().map(|(since, _)| *since))
    }

    /// Waits as the dirty level demands (S9).
    pub fn slow_down(&self, len: u64) {
        let gate: Gate = self.drain.decision.read().expect("no panic inside").gate;
        let dirty = self.space.dirty.load(Relaxed).saturating_sub(self.unsettled());
        if dirty <= gate.hard_bytes || gate.full_bytes == 0 {
            return;
        }
        self.nudge();
        let began = Instant::now();
        let writers = self.drain.slowed.fetch_add(1, Relaxed) + 1;
        while let Some(left) = self.still_to_wait(len, writers).checked_sub(began.elapsed()) {
            std::thread::sleep(left.clamp(Duration::from_micros(50), NAP));
        }
        self.drain.slowed.fetch_sub(1, Relaxed);
        add(&self.counters.writers_slowed, 1);
        add(&self.counters.writers_slowed_us, began.elapsed().as_micros() as u64);
    }

    /// How long a write of `len` waits in all, as the level is now.
    fn still_to_wait(&self, len: u64, writers: u32) -> Duration {
        let gate: Gate = self.drain.decision.read().expect("no panic inside").gate;
        let dirty = self.space.dirty.load(Relaxed).saturating_sub(self.unsettled());
        gate.delay(dirty, len, writers)
    }
}

/// One pass over dirty files.
struct Look {
    now: u64,
    width: u64,
    /// Milliseconds.
    settle: u64,
    no_wait_age: u64,
    holds: Arc<Holds>,
    /// By time.
    slots: BTreeMap<u64, Slot>,
    flying: BTreeMap<u64, Slot>,
    hot: BTreeMap<u64, Slot>,
    seen: u64,
    settled: u64,
}

impl Look {
    fn file(&mut self, since: u64, file: &Arc<File>) {
        // Who holds the lock long is being written or copied: as old as it is known to be.
        let Ok(inner) = file.inner.try_lock() else { return };
        let flying = inner.live.as_ref().is_some_and(|live| live.flight.is_some());
        let way = match flying && !inner.state.flags.conflict.stands() {
            true => Way::Flying,
            false => Way::Here,
        };
        if (way == Way::Here && !is_flushable(&inner)) || self.holds.covers(&inner) {
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
        let age = |then| self.now.saturating_sub(then);
        let settled = age(last) >= self.settle;
        if settled {
            self.settled += bytes;
        }
        // Nobody may take it: it would only drive on what else there is, which then is done too soon.
        let waits = way == Way::Here && !settled && age(first) < self.no_wait_age;
        self.add((first, last), bytes, if waits { Way::Hot } else { way });
    }

    fn add(&mut self, (first, last): (u64, u64), bytes: u64, way: Way) {
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

/// Whether a part can be taken, is on its way already, or waits since it was just rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Here,
    Flying,
    Hot,
}

/// Oldest first.
struct Cohorts {
    here: Vec<Cohort>,
    flying: Vec<Cohort>,
    hot: Vec<Cohort>,
}

impl Ages {
    /// What can be taken, what is on its way less what is copied already, and what waits. The last
    /// look may be a while ago: what has settled since waits no longer.
    fn cohorts(&self, unsettled: u64) -> Cohorts {
        let now = now_ms();
        let age = |then: u64| now.saturating_sub(then);
        let waits =
            |slot: &Slot| age(slot.last) < self.settle && age(slot.oldest) < self.no_wait_age;
        let (hot, ripe): (Vec<Slot>, Vec<Slot>) = self.hot.iter().partition(|slot| waits(slot));
        let mut here = [self.slots.clone(), ripe].concat();
        here.sort_by_key(|slot| slot.oldest);
        Cohorts {
            here: since_to_age(&here, 0),
            flying: since_to_age(&self.flying, unsettled),
            hot: since_to_age(&hot, 0),
        }
    }
}

/// Whether the drain may take it now.
pub(crate) fn is_flushable(inner: &Inner) -> bool {
    obstacle(inner).is_none()
}

/// What keeps the drain from a file: a conflict, a flight under way, a pause after a failure, or a
/// writer past us who has changed nothing since the last copy.
pub(crate) fn obstacle(inner: &Inner) -> Option<&'static str> {
    let flying = || inner.live.as_ref().is_some_and(|live| live.flight.is_some());
    let resting = || inner.state.flags.opaque && !crate::flush::opaque_changed(inner);
    match () {
        () if inner.state.flags.conflict.stands() => Some("conflicts"),
        () if flying() => Some("in-flight"),
        () if inner.is_pausing() => Some("failed-files"),
        () if resting() => Some("open-writers"),
        () => None,
    }
}

/// Whether a file is flushed as one: it is small, or written past us, or only its size or its times
/// are to be told.
pub(crate) fn goes_whole(inner: &Inner) -> bool {
    inner.state.flags.opaque || inner.state.size <= BLOCK || !inner.state.ranges.any_dirty()
}

/// The dirty parts of a file.
pub(crate) fn parts(inner: &Inner) -> impl Iterator<Item = Part> {
    static NONE: Stamps = Stamps::NONE;
    let state = &inner.state;
    let runs = state.ranges.iter().filter(|run| run.state.is_dirty());
    let stamps = inner.dirt.as_ref().map_or(&NONE, |dirt| &dirt.stamps);
    stamps.parts(runs, state.dirty_bytes(), state.dirty_since)
}

/// The same, each with the bytes that it takes in the tier, as far as is known: those of a file with
/// holes are where it was written to lately, and what is left of them anywhere else. None takes
/// nothing, or nobody would be told of it.
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

/// Oldest first, less what is `copied` already.
fn since_to_age(slots: &[Slot], copied: u64) -> Vec<Cohort> {
    let now = now_ms();
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

/// The minute of the local day.
fn local_minute() -> u16 {
    let now = (now_ms() / 1000) as libc::time_t;
    // SAFETY: localtime_r fills the zeroed struct, which has no invariants; both pointers live.
    let tm = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        libc::localtime_r(&now, &mut tm);
        tm
    };
    (tm.tm_hour * 60 + tm.tm_min).clamp(0, 24 * 60 - 1) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look over many parts is rare.
    #[test]
    fn what_has_settled_since_the_last_look_waits_no_longer() {
        let now = now_ms();
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
        let Cohorts { here, hot, .. } = ages.cohorts(0);
        let secs = |cohorts: &[Cohort]| -> Vec<u64> {
            cohorts.iter().map(|cohort| cohort.age.as_secs()).collect()
        };
        assert_eq!((secs(&here), secs(&hot)), (vec![29, 25, 15, 10], vec![20]));
    }
}
