//! The drain governor decides how fast to flush, how many copies to make at once, for which reason,
//! and how long writers wait. A sample of the present goes in, a decision comes out; no clock, no
//! I/O, no thread.
//!
//! The rate is the largest that the terms ask for ([`age`], [`occupancy`], idleness, a deadline of
//! the operator's), cut down by the limits (the [`brake`], the schedule, the user's caps, which a
//! [`bucket`] keeps). Above the hard mark the [`gate`] slows writers down and the brake lets go.
//!
//! Invariants:
//! - G1: progress never depends on idleness: above the high mark, and past a deadline, no term and
//!   no brake brings the rate to zero; only the schedule, the hold preset and an absent store do,
//!   and above the hard mark only the last.
//! - G2: nothing winds up: every state is bounded by the store's speed.

pub mod age;
pub mod brake;
pub mod bucket;
pub mod gate;
pub mod law;
pub mod occupancy;
pub mod pick;
pub mod queue;
pub mod rate;
pub mod schedule;

use std::time::Duration;

use age::Cohort;
use brake::{Brake, Need, Seen, Targets, Yields};
use gate::Gate;
use law::{ByAge, Law, Switch};
use occupancy::{Obeyed, Occupancy, Place};
use rate::{Offer, Service, Smooth};

use crate::config::{Marks, Tunables};

/// A sample of the present state. Counters rise for ever; the governor takes differences.
#[derive(Debug, Clone, Default)]
pub struct Sample<'a> {
    /// The time since some fixed moment.
    pub now: Duration,
    pub tier_bytes: u64,
    pub used_bytes: u64,
    pub dirty_bytes: u64,
    /// The part of the dirty bytes that is copied already, not yet synced and settled.
    pub unsettled_bytes: u64,
    /// Counter: bytes that became dirty; overwriting dirty bytes does not count.
    pub arrived: u64,
    /// Counter: bytes that programs wrote.
    pub written: u64,
    /// Counter: bytes copied to the backing store.
    pub copied: u64,
    /// Dirty bytes by age, oldest first: those that a flush could take now, ...
    pub cohorts: &'a [Cohort],
    /// ... and those that are on their way and not yet copied.
    pub flying: &'a [Cohort],
    /// Dirty bytes that may not be flushed yet, since they were just rewritten.
    pub hot: &'a [Cohort],
    /// Dirty bytes that were not rewritten for as long as `settle`.
    pub settled_bytes: u64,
    /// Foreground operations since the last sample, on the fast tier and on the backing store.
    pub tier: Seen,
    pub backing: Seen,
    /// The time since the last foreground operation on the backing store.
    pub idle_for: Duration,
    /// Whether the drain had work since the last sample, and only the backing store held it up.
    pub busy: Busy,
    /// How long a byte takes from being picked to being settled.
    pub lag: Duration,
    pub backing_available: Available,
    /// A writer waits for room.
    pub urgent: Urgent,
    /// The number of callers that wait for a flush.
    pub demands: u32,
    /// Time left until everything should be clean.
    pub drain_by: Option<Duration>,
    /// Minute of the local day.
    pub minute: u16,
}

impl Sample<'_> {
    /// Counter: bytes that were copied and are not waiting for their sync any more.
    fn settled(&self) -> u64 {
        self.copied.saturating_sub(self.unsettled_bytes)
    }
}

/// The cause that held the drain up since the last sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Busy {
    /// The drain had nothing to do.
    #[default]
    No,
    /// The drain kept to its rate.
    Paced,
    /// The backing store was the limit.
    Store,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Available {
    #[default]
    Yes,
    No,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Urgent {
    #[default]
    No,
    Yes,
}

/// The term that asks for the most now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Term {
    #[default]
    None,
    Idle,
    Age,
    Level,
    /// `drain-by`.
    Deadline,
    /// The level is above the hard mark, or a writer waits for room.
    Hard,
    /// A flush that a caller waits for, and nothing else.
    Demand,
}

/// The limit that keeps the drain from being faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Limit {
    #[default]
    NothingDirty,
    NotYetDue,
    /// The ruling term, or what is on its way, asks for no more.
    Pace,
    LatencyTarget,
    RateMax,
    Schedule,
    Hold,
    BackingStore,
    BackingAway,
    /// The tier is detached and keeps its dirty bytes.
    Detached,
}

impl Term {
    pub fn name(self) -> &'static str {
        match self {
            Term::None => "none",
            Term::Idle => "idle",
            Term::Age => "age",
            Term::Level => "level",
            Term::Deadline => "drain-by",
            Term::Hard => "hard-mark",
            Term::Demand => "flush",
        }
    }
}

impl Limit {
    pub fn name(self) -> &'static str {
        match self {
            Limit::NothingDirty => "nothing-dirty",
            Limit::NotYetDue => "not-yet-due",
            Limit::Pace => "pace",
            Limit::LatencyTarget => "latency-target",
            Limit::RateMax => "rate-max",
            Limit::Schedule => "schedule",
            Limit::Hold => "hold",
            Limit::BackingStore => "backing-store",
            Limit::BackingAway => "backing-away",
            Limit::Detached => "detached",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Decision {
    /// Bytes per second that should be picked; infinite where the store itself is the limit, 0 for a
    /// rest.
    pub rate: f64,
    /// Bytes per second that should be copied. This may be more: the bytes on their way have their
    /// deadlines, too, and so have the bytes that wait for them to land.
    pub pace: f64,
    /// Copies in flight at once; small copies count for less, as a [`queue`] counts them, ...
    pub depth: u32,
    /// ... up to this many.
    pub depth_max: u32,
    pub term: Term,
    pub limit: Limit,
    /// Only bytes of at least this age are due.
    pub from_age: Duration,
    pub gate: Gate,
    pub outlook: Outlook,
}

/// The forecast at the present rates.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Outlook {
    /// Bytes per second that become dirty, and bytes per second that are flushed.
    pub arrival_rate: f64,
    pub drain_rate: f64,
    pub service_rate: f64,
    /// The time until writers would find no room; `None` while the level does not rise.
    pub full_in: Option<Duration>,
    /// The time until nothing is dirty; `None` while the level does not fall, and until the first bytes of a drain
    /// that had rested are settled: copies alone show no pace.
    pub clean_in: Option<Duration>,
}

/// The memory of the governor.
#[derive(Debug, Clone, Default)]
pub struct Governor {
    occupancy: Occupancy,
    brake: Brake,
    need: Need,
    arrival: Smooth,
    offer: Offer,
    drain: Smooth,
    /// Foreground operations per second on the tier.
    programs: Smooth,
    service: Service,
    last: Option<Last>,
    /// The time since bytes last became dirty.
    quiet: Duration,
    /// The time since bytes were last copied, or copied and not yet settled.
    rested: Duration,
    /// The counter of settled bytes when the drain last rested.
    settled_at_rest: u64,
    told: f64,
}

#[derive(Debug, Clone, Copy)]
struct Last {
    now: Duration,
    arrived: u64,
    written: u64,
    copied: u64,
}

/// The backing store counts as idle after this long without a foreground operation.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// Programs that do more than this many operations a second on the tier are at work, however idle
/// the store: a database whose data is cached rewrites what was just copied.
const AT_WORK: f64 = 100.0;

/// How fast the rate of operations forgets.
const AT_WORK_MEMORY: Duration = Duration::from_secs(1);

/// Settled bytes go out in about this many seconds of idleness: all at once would make a drain that
/// starts and stops with every cohort.
const IDLE_SECS: f64 = 2.0;

/// A rate in proportion to the rest would never come to its end: this part of the store's rate is
/// the least.
const LEAST_PARTS: f64 = 64.0;

/// Rates that are shown, and compared with the ordered rate, forget in this time.
const MEMORY: Duration = Duration::from_secs(5);

/// The targets of a brake that is not configured: those of the kernel's write-back throttling for
/// flash and for disks.
const AUTO_TARGETS: Targets =
    Targets { tier: Duration::from_millis(2), backing: Duration::from_millis(75) };

/// Programs that write nothing for this long do not fill the tier, whatever the rates still show.
const QUIET: Duration = Duration::from_secs(1);

/// A drain that reaches this share of the ordered rate obeys.
const OBEYS: f64 = 0.85;

/// Used bytes beyond `used-high` that no eviction could free: only flushing makes room.
const STUCK_PARTS: u64 = 50;

/// A drain to a deadline aims at this share of the time that is left.
const BEFORE: f64 = 0.95;

impl Governor {
    /// Makes a decision by the preset of `tunables`.
    pub fn tick(&mut self, sample: &Sample, tunables: &Tunables) -> Decision {
        self.tick_by(tunables.preset.law(), sample, tunables)
    }

    /// Makes a decision by `law`.
    pub fn tick_by(&mut self, law: Law, sample: &Sample, tunables: &Tunables) -> Decision {
        let dt = self.measure(sample);
        let marks = tunables.marks(sample.tier_bytes);
        let (term, want, from_age) = self.ruling(law, sample, tunables, &marks, dt);
        if sample.dirty_bytes.saturating_sub(sample.unsettled_bytes) <= marks.hard {
            self.offer.was_free(dt);
        }
        let depth_max = tunables.flush_depth.min(law.depth_max).max(1);
        self.look_at_brake(law, sample, tunables, term, dt, depth_max);
        let least = self.service.get() / LEAST_PARTS;
        let want = if want > 0.0 { want.max(least) } else { 0.0 };
        let (rate, limit) = self.limit(sample, tunables, term, want, depth_max);
        let in_all = want.max(self.by_age_in_all(law, sample, tunables));
        let (pace, _) = self.limit(sample, tunables, term, in_all, depth_max);
        self.told = pace;
        let depth = match term {
            Term::Hard | Term::Demand => depth_max,
            _ if law.brake == Switch::Off => depth_max,
            _ => self.brake.depth().min(self.need.depth()).min(depth_max),
        };
        Decision {
            rate,
            pace,
            depth,
            depth_max,
            term: if rate > 0.0 { term } else { Term::None },
            limit,
            from_age,
            gate: Gate {
                hard_bytes: marks.hard,
                full_bytes: marks.full,
                drain_rate: self.reachable(tunables),
                free_rate: self.offer.free(),
            },
            outlook: self.outlook(sample, &marks),
        }
    }

    /// The integral's share of the rate, for the proofs.
    pub fn integral(&self) -> f64 {
        self.occupancy.integral()
    }

    fn measure(&mut self, s: &Sample) -> Duration {
        let now = Last { now: s.now, arrived: s.arrived, written: s.written, copied: s.copied };
        let last = self.last.replace(now);
        let Some(last) = last else { return Duration::ZERO };
        let dt = s.now.saturating_sub(last.now);
        self.quiet = if s.arrived > last.arrived { Duration::ZERO } else { self.quiet + dt };
        let copied = s.copied.saturating_sub(last.copied);
        let rests = copied == 0 && s.unsettled_bytes == 0;
        self.rested = if rests { self.rested + dt } else { Duration::ZERO };
        if self.rested >= QUIET {
            self.settled_at_rest = s.settled();
        }
        self.arrival.note(s.arrived.saturating_sub(last.arrived), dt, MEMORY);
        self.drain.note(copied, dt, MEMORY);
        self.offer.note(s.written.saturating_sub(last.written), dt);
        self.programs.note(s.tier.count.into(), dt, AT_WORK_MEMORY);
        match s.busy {
            // A store that is away or braked does not show its speed, nor does one that gets all
            // there is: writers that are slowed to its rate would bring the measure down.
            Busy::Store
                if s.backing_available == Available::Yes
                    && self.brake.share() >= 1.0
                    && s.dirty_bytes.saturating_sub(s.unsettled_bytes) as f64
                        > self.drain.get() =>
            {
                self.service.note_busy(copied, dt);
            }
            _ => self.service.note_reached(self.drain.get()),
        }
        dt
    }

    /// The term that asks for the most, the rate it asks for, and the age from which on bytes are
    /// due for it.
    fn ruling(
        &mut self,
        law: Law,
        s: &Sample,
        t: &Tunables,
        marks: &Marks,
        dt: Duration,
    ) -> (Term, f64, Duration) {
        let age = self.by_age(law, s.cohorts, s, t);
        let level = self.by_level(law, s, marks, dt);
        let stuck = s.used_bytes > marks.full + s.tier_bytes / STUCK_PARTS;
        let none = Duration::ZERO;
        let mut ruling = (Term::None, 0.0, none);
        let mut ask = |term, rate, from| {
            if rate > ruling.1 {
                ruling = (term, rate, from);
            }
        };
        if s.dirty_bytes > marks.hard || s.urgent == Urgent::Yes || stuck {
            ask(Term::Hard, f64::INFINITY, none);
        }
        if let Some(left) = s.drain_by {
            ask(
                Term::Deadline,
                by_deadline(s.dirty_bytes - s.unsettled_bytes.min(s.dirty_bytes), left, s.lag),
                none,
            );
        }
        ask(Term::Level, level, none);
        ask(Term::Age, age.rate, age.from_age);
        let idle = s.idle_for >= IDLE_AFTER && self.programs.get() < AT_WORK;
        if law.idle == Switch::On && idle && s.settled_bytes > 0 {
            ask(Term::Idle, s.settled_bytes as f64 / IDLE_SECS, t.settle);
        }
        // A caller that waits for a flush lifts the pace and copies by itself. There may always be
        // such a caller: bytes that are due for another reason must not wait for its end (G1).
        if s.demands > 0 && ruling.1 <= 0.0 {
            ruling = (Term::Demand, f64::INFINITY, none);
        }
        ruling
    }

    fn by_age(&self, law: Law, cohorts: &[Cohort], s: &Sample, t: &Tunables) -> age::Demand {
        let max_age = match law.age {
            ByAge::Off => return age::Demand::default(),
            ByAge::MaxAge => t.max_age,
            ByAge::After(age) => age,
        };
        let (lag, service) = (s.lag * 2, self.service.get());
        if !age::is_too_much_at_once(s.hot, max_age, service) {
            return age::demand(cohorts, max_age, lag, service);
        }
        age::demand(&oldest_first(&[cohorts, s.hot]), max_age, lag, service)
    }

    /// The rate that the deadlines ask for while bytes are on their way; otherwise 0.
    fn by_age_in_all(&self, law: Law, s: &Sample, t: &Tunables) -> f64 {
        if s.flying.is_empty() {
            return 0.0;
        }
        self.by_age(law, &oldest_first(&[s.flying, s.cohorts]), s, t).rate
    }

    fn by_level(&mut self, law: Law, s: &Sample, marks: &Marks, dt: Duration) -> f64 {
        // Copied bytes will be clean without another order.
        let level = s.dirty_bytes.saturating_sub(s.unsettled_bytes) as f64;
        let band_bytes = (marks.high.saturating_sub(marks.low)).max(1) as f64;
        let share = (level - marks.low as f64) / band_bytes;
        let place = Place { share, band_bytes, service: self.service.get() };
        let obeyed = match self.told.is_finite() && self.drain.get() >= OBEYS * self.told {
            true => Obeyed::Yes,
            false => Obeyed::No,
        };
        self.occupancy.rate(law.level, place, dt, obeyed)
    }

    fn look_at_brake(
        &mut self,
        law: Law,
        s: &Sample,
        t: &Tunables,
        term: Term,
        dt: Duration,
        depth_max: u32,
    ) {
        if law.brake == Switch::Off {
            self.brake = Brake::default();
            return;
        }
        match s.busy {
            Busy::Store => self.need.note_short(dt, depth_max),
            Busy::Paced => self.need.note_paced(dt),
            Busy::No => {}
        }
        let oldest = [s.cohorts, s.flying].into_iter().flat_map(|of| of.first());
        let oldest = oldest.map(|cohort| cohort.age).max().unwrap_or_default();
        let overdue = age::is_late(oldest, t.max_age, s.lag * 2);
        let yields = match term == Term::Hard || (overdue && law.age == ByAge::MaxAge) {
            true => Yields::Yes,
            false => Yields::No,
        };
        let targets = match t.latency_target {
            Some(target) => Targets { tier: target, backing: target },
            None => AUTO_TARGETS,
        };
        self.brake.look((s.tier, s.backing), targets, dt, depth_max, yields);
    }

    fn limit(
        &self,
        s: &Sample,
        t: &Tunables,
        term: Term,
        want: f64,
        depth_max: u32,
    ) -> (f64, Limit) {
        if s.backing_available == Available::No {
            return (0.0, Limit::BackingAway);
        }
        if want <= 0.0 {
            let limit = match () {
                () if s.dirty_bytes == 0 => Limit::NothingDirty,
                () if t.preset == law::Preset::Hold => Limit::Hold,
                () if s.flying.is_empty() => Limit::NotYetDue,
                () => Limit::Pace,
            };
            return (0.0, limit);
        }
        let mut lowest = match want.is_finite() {
            true => (want, Limit::Pace),
            false => (want, Limit::BackingStore),
        };
        let mut cap = |rate: f64, limit| {
            if rate < lowest.0 {
                lowest = (rate, limit);
            }
        };
        let forced = matches!(term, Term::Hard | Term::Demand);
        if !forced {
            if self.brake.share() < 1.0 {
                cap(self.service.get() * self.brake.share(), Limit::LatencyTarget);
            }
            cap(t.schedule.allows(s.minute), Limit::Schedule);
        }
        if t.rate_max > 0 {
            cap(t.rate_max as f64, Limit::RateMax);
        }
        if lowest.1 == Limit::BackingStore && !forced && self.brake.is_on(depth_max) {
            lowest.1 = Limit::LatencyTarget;
        }
        lowest
    }

    /// The highest rate that the drain can reach: the store's rate or the user's cap.
    fn reachable(&self, t: &Tunables) -> f64 {
        let service = self.service.get();
        if t.rate_max > 0 { service.min(t.rate_max as f64) } else { service }
    }

    fn outlook(&self, s: &Sample, marks: &Marks) -> Outlook {
        let (arrival, drain) = (self.arrival.get(), self.drain.get());
        let at = |bytes: u64, rate: f64| {
            (rate > 1.0).then(|| Duration::try_from_secs_f64(bytes as f64 / rate).ok()).flatten()
        };
        Outlook {
            arrival_rate: arrival,
            drain_rate: drain,
            service_rate: self.service.get(),
            // Means go on rising a while after the last writer has ended.
            full_in: at(marks.full.saturating_sub(s.dirty_bytes), arrival - drain)
                .filter(|_| self.quiet < QUIET),
            clean_in: at(s.dirty_bytes, drain - arrival)
                .filter(|_| s.settled() > self.settled_at_rest),
        }
    }
}

fn oldest_first(cohorts: &[&[Cohort]]) -> Vec<Cohort> {
    let mut all = cohorts.concat();
    all.sort_by_key(|cohort| std::cmp::Reverse(cohort.age));
    all
}

/// The bytes of the next batch: as many as two seconds copy, since a batch costs a sync, and a
/// larger batch has a better order; but not so many that the level is only seen in leaps.
pub fn batch_bytes(decision: &Decision, marks: &Marks) -> u64 {
    let rate = decision.rate.min(decision.outlook.service_rate);
    let most = (marks.high - marks.low) / 4;
    let most = most.min((marks.full - marks.hard) / 2).clamp(BATCH_MIN, BATCH_MAX);
    ((rate * BATCH_SECS) as u64).clamp(BATCH_MIN, most)
}

/// The longest time that a batch lasts.
pub const BATCH_SECS: f64 = 2.0;
const BATCH_MIN: u64 = 256 << 10;
const BATCH_MAX: u64 = 512 << 20;

/// The rate at which `bytes` are copied and synced a little before `left` has passed.
fn by_deadline(bytes: u64, left: Duration, lag: Duration) -> f64 {
    let left = left.mul_f64(BEFORE).saturating_sub(lag).as_secs_f64();
    if bytes == 0 {
        0.0
    } else if left < 0.2 {
        f64::INFINITY
    } else {
        bytes as f64 / left
    }
}
