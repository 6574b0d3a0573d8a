//! Room on the backing store: what is left there once everything is there that is dirty here, and
//! which files may begin where it does not do for all.
//!
//! Invariants:
//! - H1: where not all fits, the oldest files that fit go home whole, and no other is begun: of
//!   five files in five parts nobody has any.
//! - H2: who found no room gives back what he took of it.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::core::id::FileId;
use crate::drain::parcel::Pick;
use crate::files::file::{File, Inner};
use crate::time::Time;
use forebay_base::lock::{Mutex, MutexGuard, Rank};

/// For so long the store is believed to have about as much room as it said.
pub(crate) const BELIEVED: Duration = Duration::from_secs(10);

/// For so long after the store refused a file, others of the same owner go one by one: it has quotas
/// that it tells nobody of, and what the next has room for cannot be known.
const DOUBTED: Duration = Duration::from_secs(60);

/// What is known of the store's room.
pub(crate) struct HomeRoom {
    pub time: Time,
    pub said: Mutex<Option<Said>>,
    /// Owners of files that were refused lately.
    pub refused: Mutex<HashMap<u32, Instant>>,
    /// Held by who flushes one of theirs.
    pub turn: Mutex<()>,
}

#[derive(Clone, Copy)]
pub(crate) struct Said {
    pub at: Instant,
    pub free: u64,
    /// Bytes that had been copied there by then.
    pub copied: u64,
}

/// Who may begin.
pub(crate) enum Room {
    Enough,
    Short(HashSet<FileId>),
}

impl Room {
    pub fn admits(&self, file: &File) -> bool {
        match self {
            Room::Enough => true,
            Room::Short(granted) => {
                let goes_without =
                    |inner: &Inner| inner.growth() == 0 || inner.state.conflict().stands();
                granted.contains(&file.id) || goes_without(&file.lock())
            }
        }
    }
}

impl HomeRoom {
    pub fn new(time: Time) -> HomeRoom {
        HomeRoom {
            time,
            said: Mutex::new(Rank::HomeRoom, None),
            refused: Mutex::new(Rank::HomeRoom, HashMap::new()),
            turn: Mutex::new(Rank::Turn, ()),
        }
    }

    pub fn was_refused(&self, owner: u32) {
        let mut refused = self.refused.lock();
        refused.retain(|_, at| self.time.since(*at) < DOUBTED);
        refused.insert(owner, self.time.now());
        drop(refused);
        *self.said.lock() = None;
    }

    /// Waits until no other of the file's owner is on its way, if one was refused lately.
    pub fn turn_of(&self, file: &File) -> Option<MutexGuard<'_, ()>> {
        self.is_doubted(file).then(|| self.turn.lock())
    }

    pub fn is_doubted(&self, file: &File) -> bool {
        if self.refused.lock().is_empty() {
            return false;
        }
        let owner = file.owner();
        let refused = self.refused.lock();
        refused.get(&owner).is_some_and(|at| self.time.since(*at) < DOUBTED)
    }
}

/// The places of those that may go together, and of those that go one by one, the oldest first.
pub(crate) fn split(room: &HomeRoom, picks: &[Pick]) -> (Vec<usize>, Vec<usize>) {
    let doubted = |at: &usize| room.is_doubted(&picks[*at].0);
    let (mut alone, together): (Vec<usize>, Vec<usize>) = (0..picks.len()).partition(doubted);
    alone.sort_by_cached_key(|at| picks[*at].0.lock().state.dirty_since());
    (together, alone)
}
