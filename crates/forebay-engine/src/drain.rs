//! What goes home: when, how fast, and what it means once it is there.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::copies::Outbox;
use crate::core::governor::{Decision, Governor};
use crate::core::portion::HoleStep;
use crate::drain::ages::Ages;
use crate::drain::away::Suspended;
use crate::drain::debts::Debts;
use crate::drain::holds::Holds;
use crate::drain::home_room::HomeRoom;
use crate::drain::valve::Valve;
use crate::files::Files;
use crate::files::names::Names;
use crate::home::Home;
use crate::home::pulse::{Beat, Pulse};
use crate::pool::Pool;
use crate::room::passed::Passed;
use forebay_base::lock::{Condvar, Mutex, Rank, RwLock};

mod ages;
mod away;
mod compare;
pub mod copy;
mod debts;
mod due;
pub mod flight;
mod flush;
mod govern;
pub mod holds;
mod home_room;
pub mod order;
pub mod owed;
mod parcel;
mod permits;
mod put;
mod search;
pub mod suspend;
pub mod valve;

pub struct Drain {
    home: Arc<Home>,
    files: Arc<Files>,
    names: Arc<Names>,
    passed: Arc<Passed>,
    outbox: Arc<Outbox>,
    flushes: Pool,
    governor: Mutex<Governor>,
    decision: RwLock<Decision>,
    ages: Mutex<Ages>,
    valve: Valve,
    /// Everything is to be clean by then.
    deadline: Mutex<Option<Instant>>,
    /// Foreground operations on the fast tier.
    tier_pulse: Pulse,
    /// Writers that wait because of the level.
    slowed: AtomicU32,
    flushing_bytes: AtomicU64,
    /// Bytes copied by flights that have not ended.
    unsettled: AtomicU64,
    /// What the backing store makes of holes.
    holes: HoleStep,
    /// Room on the backing store.
    room: HomeRoom,
    /// How long a batch took lately, in microseconds.
    lag_us: AtomicU64,
    /// Nothing could be taken although something is due, and why.
    stuck: Mutex<Option<&'static str>>,
    /// Files that the drain is to leave alone.
    holds: Arc<Holds>,
    /// What the drain is to bring home for orders with a deadline.
    debts: Debts,
    /// Whether it is kept from the store.
    suspended: Suspended,
    /// The drain has something to do.
    wake: (Mutex<bool>, Condvar),
}

/// What the upper parts stand on.
#[derive(Clone)]
pub(crate) struct Ground {
    pub home: Arc<Home>,
    pub files: Arc<Files>,
    pub names: Arc<Names>,
    pub passed: Arc<Passed>,
}

impl Drain {
    pub(crate) fn new(ground: Ground, outbox: Arc<Outbox>, flushes: Pool) -> Drain {
        let Ground { home, files, names, passed } = ground;
        let time = files.time().clone();
        Drain {
            home,
            files,
            names,
            passed,
            outbox,
            flushes,
            governor: Mutex::new(Rank::Govern, Governor::default()),
            decision: RwLock::new(Rank::Govern, Decision::default()),
            ages: Mutex::new(Rank::Ages, Ages::default()),
            valve: Valve::new(time.clone()),
            deadline: Mutex::new(Rank::Ages, None),
            tier_pulse: Pulse::new(time.clone()),
            slowed: Default::default(),
            flushing_bytes: Default::default(),
            unsettled: Default::default(),
            holes: Default::default(),
            room: HomeRoom::new(time),
            lag_us: Default::default(),
            stuck: Mutex::new(Rank::Govern, None),
            holds: Default::default(),
            debts: Default::default(),
            suspended: Default::default(),
            wake: (Mutex::new(Rank::Wake, false), Condvar::new()),
        }
    }
}

/// A flush that somebody waits for is tried so often, with a pause between, when the file is cut or
/// renamed under it each time: long enough for any but one that never rests.
pub(crate) const DISTURBED_MAX: u32 = 40;

pub(crate) const PAUSE: Duration = Duration::from_millis(25);

impl Drain {
    pub(crate) fn nudge_drain(&self) {
        *self.wake.0.lock() = true;
        self.wake.1.notify_all();
    }

    /// How many copies run at a time.
    pub(crate) fn set_depth(&self, depth: usize) {
        self.flushes.set_max(depth);
    }

    /// Counts an operation of a program on the fast tier while it lives.
    pub(crate) fn beat(&self) -> Beat<'_> {
        self.tier_pulse.begin()
    }

    /// The governor's last.
    pub(crate) fn decision(&self) -> Decision {
        *self.decision.read()
    }

    pub(crate) fn flushing_bytes(&self) -> u64 {
        self.flushing_bytes.load(Relaxed)
    }

    /// Why nothing could be taken although something is due.
    pub(crate) fn stuck(&self) -> Option<&'static str> {
        *self.stuck.lock()
    }

    /// Bytes that were copied and not yet settled.
    pub(crate) fn unsettled(&self) -> u64 {
        self.unsettled.load(Relaxed)
    }
}
