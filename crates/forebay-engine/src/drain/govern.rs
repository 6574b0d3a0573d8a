//! The governor's hands: measure ten times a second, ask the governor, and set valve and gate accordingly.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::core::config::{Attachment, Tunables};
use crate::core::counters::add;
use crate::core::governor::age::{Cohort, no_wait_age};
use crate::core::governor::gate::Gate;
use crate::core::governor::{Available, Decision, Limit, Sample, Urgent};
use crate::core::report::AgeBucket;
use crate::drain::Drain;
use crate::drain::ages::{AGE_BOUNDS_SECS, Ages, Cohorts, Look, Way};
use crate::drain::valve::Setting;
use crate::files::file::File;

const TICK: Duration = Duration::from_millis(100);

/// A writer that waits for room causes a tick at once; many such writers cause one in this time.
const LEAST: Duration = Duration::from_millis(10);

/// Files that are looked at for their ages, the oldest first; all others count as old as the next one.
const LOOK_MAX: usize = 4096;

/// A look at the ages takes at most this part of the time.
const LOOK_SHARE: u32 = 50;

/// How often a waiting writer checks whether it still has to wait.
const NAP: Duration = Duration::from_millis(10);

/// When the drain is to rest, a flight under way gets one of this many parts of the service rate.
const REST_PARTS: f64 = 8.0;

impl Drain {
    /// The governor's thread.
    pub(crate) fn govern_loop(self: &Arc<Self>) {
        while !self.files.is_stopping() {
            self.govern();
            self.files.time().sleep(LEAST);
            self.files.wait_for_nudge(TICK - LEAST);
        }
    }

    /// Makes one look and one decision. The first is made before anything is served, or the user's
    /// caps would not hold until the governor's thread has its turn.
    pub(crate) fn govern(&self) {
        let tunables = self.files.tunables();
        self.look_at_ages(&tunables);
        let decision = self.decide(&tunables);
        let pace = match decision.limit {
            // Copies under way find out by themselves that the store is away.
            Limit::BackingAway => f64::INFINITY,
            _ if decision.pace == 0.0 => decision.outlook.service_rate / REST_PARTS,
            _ => decision.pace,
        };
        self.valve.set(Setting {
            pace,
            depth: decision.depth,
            depth_max: decision.depth_max,
            rate_max: tunables.rate_max,
            ops_max: tunables.ops_max,
        });
        *self.decision.write() = decision;
        if decision.rate > 0.0 {
            self.nudge_drain();
        }
    }

    fn decide(&self, tunables: &Tunables) -> Decision {
        let unsettled = self.unsettled();
        let mut ages = self.ages.lock();
        self.note_arrivals(&mut ages);
        let Cohorts { here, flying, hot } = ages.cohorts(self.files.time().ms(), unsettled);
        let (arrived, settled_bytes) = (ages.arrived, ages.settled_bytes);
        drop(ages);
        let level = self.files.level();
        let sample = Sample {
            now: self.files.uptime(),
            tier_bytes: level.tier_bytes,
            used_bytes: level.used_bytes,
            dirty_bytes: level.dirty_bytes,
            unsettled_bytes: unsettled,
            arrived,
            written: self.written_here(),
            copied: self.files.landings().copied(),
            cohorts: &here,
            flying: &flying,
            hot: &hot,
            settled_bytes: settled_bytes.saturating_sub(unsettled),
            tier: self.tier_pulse.take(),
            backing: self.home.health().pulse().take(),
            idle_for: self.home.health().pulse().idle_for(),
            busy: self.valve.busy(),
            lag: Duration::from_micros(self.lag_us.load(Relaxed)),
            backing_available: match level.backing_available {
                true => Available::Yes,
                false => Available::No,
            },
            urgent: match self.files.landings().take_urge() {
                true => Urgent::Yes,
                false => Urgent::No,
            },
            demands: self.valve.demands(),
            drain_by: self.drain_by_left(level.dirty_bytes),
            minute: local_minute(self.files.time().ms()),
        };
        let decision = self.governor.lock().tick(&sample, tunables);
        // Callers that wait, for a flush or for room, are served all the same.
        let awaited = sample.demands > 0
            || sample.urgent == Urgent::Yes
            || sample.drain_by.is_some()
            || self.slowed.load(Relaxed) > 0;
        match self.files.attachment() == Attachment::DetachedKeepDirty && !awaited {
            true => Decision { rate: 0.0, pace: 0.0, limit: Limit::Detached, ..decision },
            false => decision,
        }
    }

    /// Returns the bytes that programs wrote into the tier.
    fn written_here(&self) -> u64 {
        let around = self.files.counters().write_around_bytes.load(Relaxed);
        self.files.counters().write_bytes.load(Relaxed).saturating_sub(around)
    }

    /// Counts arrivals. Bytes that leave the tier unflushed (truncated, unlinked) lower the sum and
    /// are no arrivals.
    fn note_arrivals(&self, ages: &mut Ages) {
        let flushed = self.files.counters().flushed_bytes.load(Relaxed);
        let sum = self.files.totals().dirty() + flushed;
        ages.arrived += sum.saturating_sub(ages.sum);
        ages.sum = sum;
    }

    /// Flushes everything that is dirty, and becomes dirty, by `deadline`, at an even rate. `None`
    /// withdraws the deadline; reaching it does too.
    pub fn drain_by(&self, deadline: Option<Instant>) {
        *self.deadline.lock() = deadline;
        self.files.nudge();
    }

    /// As [`Drain::drain_by`], unless an earlier deadline is set already.
    pub(crate) fn drain_by_at_latest(&self, by: Instant) {
        let mut deadline = self.deadline.lock();
        *deadline = Some(deadline.map_or(by, |sooner| sooner.min(by)));
    }

    /// Withdraws the deadline `by`; an order that still needs one sets its own again.
    pub(crate) fn end_drain_by(&self, by: Instant) {
        let mut deadline = self.deadline.lock();
        deadline.take_if(|at| *at == by);
    }

    fn drain_by_left(&self, dirty: u64) -> Option<Duration> {
        let mut deadline = self.deadline.lock();
        let left = (*deadline)?.saturating_duration_since(self.files.time().now());
        if left.is_zero() && dirty == 0 {
            *deadline = None;
        }
        Some(left)
    }

    /// Returns the dirty bytes by age, cumulative, as of the drain's last look.
    pub fn dirty_ages(&self) -> Vec<AgeBucket> {
        let ages = self.ages.lock();
        let Cohorts { here, flying, hot } = ages.cohorts(self.files.time().ms(), self.unsettled());
        drop(ages);
        let cohorts = [here, flying, hot].concat();
        let bounds = AGE_BOUNDS_SECS.iter().map(|secs| Some(*secs)).chain([None]);
        let younger = |bound: Option<u64>| {
            let fits = |cohort: &&Cohort| bound.is_none_or(|secs| cohort.age.as_secs() < secs);
            cohorts.iter().filter(fits).map(|cohort| cohort.bytes).sum()
        };
        bounds.map(|up_to_secs| AgeBucket { up_to_secs, bytes: younger(up_to_secs) }).collect()
    }

    /// Whether all dirty bytes that could be taken were rewritten a moment ago.
    pub(crate) fn all_settles(&self) -> bool {
        let ages = self.ages.lock();
        let cohorts = ages.cohorts(self.files.time().ms(), 0);
        cohorts.here.is_empty() && !cohorts.hot.is_empty()
    }

    /// Looks at files without the lock for which a caller that reads their ages waits.
    fn look_at_ages(&self, tunables: &Tunables) {
        let began = self.files.time().now();
        if self.ages.lock().look_again.is_some_and(|at| began < at) {
            return;
        }
        let (files, next) = self.oldest_files();
        let width = (tunables.max_age.as_millis() as u64 / 32).max(1);
        let mut look = Look {
            instant: began,
            max_age: tunables.max_age,
            look_rest: self.files.totals().look_rest(self.files.time(), tunables.max_age),
            now: self.files.time().ms(),
            width,
            settle: tunables.settle.as_millis() as u64,
            no_wait_age: no_wait_age(tunables.max_age).as_millis() as u64,
            holds: self.holds.clone(),
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
            let dirty = self.files.totals().dirty();
            look.add((since, since), dirty.saturating_sub(look.seen), Way::Here);
        }
        let mut ages = self.ages.lock();
        ages.slots = look.slots.into_values().collect();
        ages.flying = look.flying.into_values().collect();
        ages.hot = look.hot.into_values().collect();
        (ages.settle, ages.no_wait_age) = (look.settle, look.no_wait_age);
        ages.settled_bytes = look.settled;
        ages.look_again =
            Some(self.files.time().now() + self.files.time().since(began) * LOOK_SHARE);
    }

    /// Returns the files that have been dirty longest, and since when the next one has been dirty.
    fn oldest_files(&self) -> (Vec<(u64, Arc<File>)>, Option<u64>) {
        let now = self.files.time().ms();
        let queue = self.files.dirty();
        let mut entries = queue.oldest_first(now);
        let files = entries.by_ref().take(LOOK_MAX).map(|(since, file)| (since, file.clone()));
        let files = files.collect();
        (files, entries.next().map(|(since, _)| since))
    }

    /// Makes a writer wait as the dirty level demands (S9).
    pub fn slow_down(&self, len: u64) {
        let gate: Gate = self.decision.read().gate;
        let dirty = self.files.totals().dirty().saturating_sub(self.unsettled());
        if dirty <= gate.hard_bytes || gate.full_bytes == 0 {
            return;
        }
        self.files.nudge();
        let began = self.files.time().now();
        let writers = self.slowed.fetch_add(1, Relaxed) + 1;
        while let Some(left) =
            self.still_to_wait(len, writers).checked_sub(self.files.time().since(began))
        {
            self.files.time().sleep(left.clamp(Duration::from_micros(50), NAP));
        }
        self.slowed.fetch_sub(1, Relaxed);
        add(&self.files.counters().writers_slowed, 1);
        add(
            &self.files.counters().writers_slowed_us,
            self.files.time().since(began).as_micros() as u64,
        );
    }

    /// Returns how long a write of `len` waits in all, at the present level.
    fn still_to_wait(&self, len: u64, writers: u32) -> Duration {
        let gate: Gate = self.decision.read().gate;
        let dirty = self.files.totals().dirty().saturating_sub(self.unsettled());
        gate.delay(dirty, len, writers)
    }
}

/// Returns the minute of the local day.
fn local_minute(now_ms: u64) -> u16 {
    let now = (now_ms / 1000) as libc::time_t;
    // SAFETY: localtime_r fills the zeroed struct, which has no invariants; both pointers live.
    let tm = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        libc::localtime_r(&now, &mut tm);
        tm
    };
    (tm.tm_hour * 60 + tm.tm_min).clamp(0, 24 * 60 - 1) as u16
}
