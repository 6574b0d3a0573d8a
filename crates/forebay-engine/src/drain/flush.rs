//! The drain: copies dirty bytes to the backing store and settles the files.
//!
//! A batch of files goes through four steps, each for all files before the next: (1) the dirty
//! bytes are captured and made durable in the tier, and the index says that a flush is under way;
//! (2) the runs are copied, many at once; (3) the backing store is synced once; (4) each file is
//! settled: bytes that were copied and not rewritten meanwhile are clean (S6).
//!
//! Invariants:
//! - W1: a byte becomes clean only if it was not written since its copy began, and after the
//!   backing store was synced.
//! - W2: a file has at most one flight, and it ends only when its last copy has returned, however
//!   long that hangs: an old copy never lands on top of a newer one.
//! - W3: a failed flush leaves dirty bytes dirty (S7).
//! - W4: no byte reaches the backing store before it is durable in the tier, so a power loss in
//!   the middle of a flush is repaired by flushing again.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_backing::{Error, Kind, Result};

use crate::core::governor::{Limit, Term};
use crate::core::report::Meter;
use crate::drain::ages::obstacle;
use crate::drain::away::kept_away;
use crate::drain::home_room::{Room, split};
use crate::drain::owed::Owed;
use crate::drain::parcel::{Outcome, Parcel, Pick, Take};
use crate::drain::{DISTURBED_MAX, Drain, PAUSE};
use crate::failpoint;
use crate::files::file::File;

/// How often a caller that waits for another thread's flight checks whether to go on waiting.
const WAIT_LOOK: Duration = Duration::from_millis(50);

/// How often the drain looks for work by itself.
const LOOK: Duration = Duration::from_millis(100);

/// The number of files that are examined for obstacles when none can be taken, ten times a second.
const ASKED_MAX: usize = 64;

/// The rest of an order for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    Nothing,
    Some,
    /// All of the part: it is tried again after a pause.
    Disturbed,
}

impl Drain {
    /// The drain's thread: flushes due files, and rests.
    pub(crate) fn drain_loop(self: &Arc<Self>) {
        while !self.files.is_stopping() {
            if !self.drain_once() {
                self.rest();
            }
        }
    }

    pub(crate) fn rest(&self) {
        let wake = self.wake.0.lock();
        let (mut wake, _) = self.files.time().wait_while(&self.wake.1, wake, LOOK, |wake| !*wake);
        *wake = false;
    }

    /// Flushes one batch if something is due; returns whether it did.
    fn drain_once(self: &Arc<Self>) -> bool {
        let decision = *self.decision.read();
        if self.suspended.stands() {
            return self.is_stuck(Some("suspended"));
        }
        // A caller that waits for a flush flushes by itself.
        if decision.term == Term::Demand {
            return self.is_stuck(None);
        }
        if decision.rate <= 0.0 {
            let asked_for_nothing = decision.limit == Limit::NotYetDue;
            let settles = || self.all_settles().then_some("settle");
            let why = || self.why_nothing_can_be_taken(Duration::ZERO, None).or_else(settles);
            return self.is_stuck(asked_for_nothing.then(why).flatten());
        }
        let batch = self.due(&decision);
        if batch.is_empty() {
            return self.is_stuck(self.why_nothing_can_be_taken(decision.from_age, Some("settle")));
        }
        self.is_stuck(None);
        let began = self.files.time().now();
        let outcomes = self.fly(&batch, &|| self.files.is_stopping(), None);
        self.note_lag(self.files.time().since(began));
        outcomes.iter().any(|outcome| matches!(outcome, Outcome::Flushed(_)))
    }

    pub(crate) fn is_stuck(&self, why: Option<&'static str>) -> bool {
        *self.stuck.lock() = why;
        false
    }

    /// Returns the obstacle of the oldest file; `free` if one of the files of at least this age has
    /// none.
    fn why_nothing_can_be_taken(
        &self,
        from_age: Duration,
        free: Option<&'static str>,
    ) -> Option<&'static str> {
        let ms = self.files.time().ms();
        let until = ms.saturating_sub(from_age.as_millis() as u64);
        // The lock of the queue comes after a file's.
        let oldest = self.files.dirty().oldest(ms, until, ASKED_MAX);
        let now = self.files.time().now();
        let obstacle = |file: &Arc<File>| {
            let inner = file.lock();
            let held = self.holds.covers(&inner).then_some("held-for-last");
            held.or_else(|| obstacle(&inner, now))
        };
        let obstacles: Vec<_> = oldest.iter().map(obstacle).collect();
        match obstacles.iter().all(Option::is_some) {
            true => obstacles.first().copied().flatten(),
            false => free,
        }
    }

    fn note_lag(&self, took: Duration) {
        let (before, now) = (self.lag_us.load(Relaxed), took.as_micros() as u64);
        let lag = if before == 0 { now } else { (before * 7 + now * 3) / 10 };
        self.lag_us.store(lag, Relaxed);
    }

    /// Flushes the files that the backing store has room for.
    pub(crate) fn fly(
        self: &Arc<Self>,
        picks: &[Pick],
        cancelled: &dyn Fn() -> bool,
        meter: Option<&Arc<Meter>>,
    ) -> Vec<Outcome> {
        if !self.is_let_home(cancelled) {
            return picks.iter().map(|_| Outcome::Failed(kept_away())).collect();
        }
        let room = self.room_for_flights();
        let (together, alone) = split(&self.room, picks);
        if alone.is_empty() {
            return self.fly_within(&room, picks, cancelled, meter);
        }
        let picked: Vec<Pick> = together.iter().map(|at| picks[*at].clone()).collect();
        let flown = self.fly_within(&room, &picked, cancelled, meter);
        let mut outcomes: Vec<Outcome> = picks.iter().map(|_| Outcome::Nothing).collect();
        together.into_iter().zip(flown).for_each(|(at, outcome)| outcomes[at] = outcome);
        for at in alone {
            let _turn = self.room.turn_of(&picks[at].0);
            let flown = self.fly_within(&room, &picks[at..=at], cancelled, meter);
            flown.into_iter().for_each(|outcome| outcomes[at] = outcome);
        }
        outcomes
    }

    /// The four steps of a flush.
    fn fly_within(
        self: &Arc<Self>,
        room: &Room,
        picks: &[Pick],
        cancelled: &dyn Fn() -> bool,
        meter: Option<&Arc<Meter>>,
    ) -> Vec<Outcome> {
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(picks.len());
        let mut parcels: Vec<(usize, Arc<Parcel>)> = Vec::new();
        for (file, take) in picks {
            if !room.admits(file) {
                outcomes.push(Outcome::Failed(self.no_room_for(file)));
                continue;
            }
            match self.begin_flight(file, take, meter) {
                Ok(Some(parcel)) => parcels.push((outcomes.len(), parcel)),
                Ok(None) => {
                    outcomes.push(Outcome::Nothing);
                    continue;
                }
                Err(e) if e.is(libc::EBUSY) => {
                    outcomes.push(Outcome::Busy);
                    continue;
                }
                Err(e) => {
                    outcomes.push(Outcome::Failed(e));
                    continue;
                }
            }
            outcomes.push(Outcome::Nothing);
        }
        if parcels.is_empty() {
            return outcomes;
        }
        let flying: u64 = parcels.iter().map(|(_, parcel)| parcel.bytes()).sum();
        self.flushing_bytes.fetch_add(flying, Relaxed);
        self.make_durable(&parcels);
        self.tell_partners(&parcels);
        failpoint::pass("flush.begin");
        self.copy_all(&parcels, cancelled);
        failpoint::pass("flush.copied");
        self.sync_targets(&parcels);
        failpoint::pass("flush.synced");
        for ((at, _), outcome) in parcels.iter().zip(self.end_all(&parcels)) {
            outcomes[*at] = outcome;
        }
        failpoint::pass("flush.settled");
        self.settle_sums_of(&parcels, flying);
        self.files.landings().note_batch();
        outcomes
    }

    /// Settles the sums of a batch that has ended, well or not.
    fn settle_sums_of(&self, parcels: &[(usize, Arc<Parcel>)], flying: u64) {
        let copied: u64 = parcels.iter().map(|(_, parcel)| parcel.copied.swap(0, Relaxed)).sum();
        let unsettled = &self.unsettled;
        let _ = unsettled.fetch_update(Relaxed, Relaxed, |sum| Some(sum.saturating_sub(copied)));
        // An abandoned copy may still add bytes, which must not stay in the sum for ever.
        if self.flushing_bytes.fetch_sub(flying, Relaxed) == flying {
            unsettled.store(0, Relaxed);
        }
    }

    /// Flushes one file and waits until the bytes that were dirty at the call are on the backing
    /// store and synced there (S5).
    pub fn flush_file(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        let _waits = self.valve.demand();
        // A writer that goes on must not prolong the call: only bytes that were dirty at its
        // beginning are owed.
        let mut owed = Owed::of(file.clone(), &file.lock());
        let cancelled = &|| false;
        loop {
            let part = owed.next_part();
            let pick = (file.clone(), Take::Runs(part.clone()));
            let Some(outcome) = self.fly(&[pick], cancelled, None).pop() else { return Ok(()) };
            match self.go_on(&mut owed, &part, outcome, cancelled)? {
                Left::Nothing => return Ok(()),
                Left::Some => {}
                Left::Disturbed => self.files.time().sleep(PAUSE),
            }
        }
    }

    /// Returns the rest of an order for a file after a flight that was to take `part` of it.
    ///
    /// # Errors
    ///
    /// The reason why the rest cannot be flushed; Interrupted if the order was cancelled.
    pub(crate) fn go_on(
        &self,
        owed: &mut Owed,
        part: &[(u64, u64)],
        outcome: Outcome,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Left> {
        match outcome {
            Outcome::Flushed(flown) => {
                owed.take_off(part, flown);
                // One flight takes all of a file that is written past the daemon, and such a file
                // never becomes clean.
                let paid = owed.is_paid() || (flown.unseen && owed.is_unseen());
                Ok(if paid { Left::Nothing } else { Left::Some })
            }
            Outcome::Nothing => Ok(Left::Nothing),
            Outcome::Busy => {
                self.wait_for_flight_unless(&owed.file, cancelled).map(|()| Left::Some)
            }
            Outcome::Disturbed(error) => match owed.disturb() < DISTURBED_MAX {
                true => Ok(Left::Disturbed),
                false => Err(error),
            },
            Outcome::Failed(error) => Err(error),
        }
    }

    /// Waits until the flight that is under way, if any, has ended, however long the user's caps
    /// make it take: only a store that does not answer keeps it from its end.
    pub(crate) fn wait_for_flight(&self, file: &File) -> Result<()> {
        self.wait_for_flight_unless(file, &|| false)
    }

    pub(crate) fn wait_for_flight_unless(
        &self,
        file: &File,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<()> {
        let _waits = self.valve.demand();
        let limit = self.files.tune(|t| t.backing_timeout);
        let mut inner = file.lock();
        while inner.in_use().is_some_and(|live| live.flight.is_some()) {
            if cancelled() {
                return Err(Error::new(Kind::Interrupted, "cancelled"));
            }
            if !self.home.health().is_available() || self.home.health().has_stalled_call(limit) {
                let what = "an earlier flush of this file has not returned";
                return Err(Error::new(Kind::TimedOut, what));
            }
            inner = self.files.time().wait(file.changed(), inner, WAIT_LOOK).0;
        }
        Ok(())
    }
}
