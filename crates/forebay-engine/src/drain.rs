//! The drain: when dirty bytes are flushed, how fast, and how a flush is settled.

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
mod failed;
pub mod flight;
mod flush;
mod govern;
pub mod holds;
mod home_room;
mod look;
pub mod order;
pub mod owed;
mod parcel;
mod permits;
mod put;
mod search;
mod settle;
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
    /// The time by which everything is to be clean.
    deadline: Mutex<Option<Instant>>,
    /// Foreground operations on the fast tier.
    tier_pulse: Pulse,
    /// Writers that wait because of the level.
    slowed: AtomicU32,
    flushing_bytes: AtomicU64,
    /// Bytes that flights have copied and not settled yet.
    unsettled: AtomicU64,
    /// How fast the backing store makes holes, as measured.
    holes: HoleStep,
    /// The room on the backing store.
    room: HomeRoom,
    /// The smoothed time that a batch takes, in microseconds.
    lag_us: AtomicU64,
    /// Why no file can be taken although some are due; `None` where one can.
    stuck: Mutex<Option<&'static str>>,
    /// Files that the drain is to leave alone.
    holds: Arc<Holds>,
    /// The bytes that the drain is to flush for orders with a deadline.
    debts: Debts,
    /// Whether the drain is kept from the backing store.
    suspended: Suspended,
    /// Whether the drain was woken: it has work.
    wake: (Mutex<bool>, Condvar),
}

/// The parts that the upper parts share.
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

/// A flush with a waiting caller is tried this often, with a pause between, when the file is
/// truncated or renamed under it each time: enough for any file but one that never rests.
pub(crate) const DISTURBED_MAX: u32 = 40;

pub(crate) const PAUSE: Duration = Duration::from_millis(25);

impl Drain {
    pub(crate) fn nudge_drain(&self) {
        *self.wake.0.lock() = true;
        self.wake.1.notify_all();
    }

    /// Sets how many copies run at once.
    pub(crate) fn set_depth(&self, depth: usize) {
        self.flushes.set_max(depth);
    }

    /// Counts an operation of a program on the fast tier while the guard lives.
    pub(crate) fn beat(&self) -> Beat<'_> {
        self.tier_pulse.begin()
    }

    /// The last decision of the governor.
    pub(crate) fn decision(&self) -> Decision {
        *self.decision.read()
    }

    pub(crate) fn flushing_bytes(&self) -> u64 {
        self.flushing_bytes.load(Relaxed)
    }

    /// Why no file can be taken although some are due.
    pub(crate) fn stuck(&self) -> Option<&'static str> {
        *self.stuck.lock()
    }

    /// Bytes that were copied and not settled yet.
    pub(crate) fn unsettled(&self) -> u64 {
        self.unsettled.load(Relaxed)
    }
}
