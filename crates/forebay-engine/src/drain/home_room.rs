//! Room on the backing store: how much is left once all dirty bytes of this tier are flushed, and
//! which files may begin where not all fit.
//!
//! Invariants:
//! - H1: where not all files fit, the oldest that fit are flushed whole, and no other file is
//!   begun: five files in five parts would be of use to nobody.
//! - H2: a flight that finds no room gives back the room that it took.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::core::id::FileId;
use crate::drain::parcel::Pick;
use crate::files::file::{File, Inner};
use crate::time::Time;
use forebay_base::lock::{Mutex, MutexGuard, Rank};

/// How long the store's last answer about its room is believed.
pub(crate) const BELIEVED: Duration = Duration::from_secs(10);

/// How long after the store refused a file the files of the same owner go one by one: the store has
/// quotas that it does not tell, so whether the next file fits cannot be known.
const DOUBTED: Duration = Duration::from_secs(60);

/// The known facts about the store's room.
pub(crate) struct HomeRoom {
    pub time: Time,
    pub said: Mutex<Option<Said>>,
    /// Owners of files that were refused lately, and when.
    pub refused: Mutex<HashMap<u32, Instant>>,
    /// Held during the flush of a file of such an owner.
    pub turn: Mutex<()>,
}

#[derive(Clone, Copy)]
pub(crate) struct Said {
    pub at: Instant,
    pub free: u64,
    /// Bytes that had been copied to the store by then.
    pub copied: u64,
}

/// The files that may begin.
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

    /// Waits until no other file of the same owner is being flushed, if one was refused lately.
    pub fn turn_of(&self, file: &File) -> Option<MutexGuard<'_, ()>> {
        self.is_doubted(file).then(|| self.turn.lock())
    }

    fn is_doubted(&self, file: &File) -> bool {
        if self.refused.lock().is_empty() {
            return false;
        }
        let owner = file.owner();
        let refused = self.refused.lock();
        refused.get(&owner).is_some_and(|at| self.time.since(*at) < DOUBTED)
    }
}

/// Returns the places of the picks that may go together, and of those that go one by one, the oldest first.
pub(crate) fn split(room: &HomeRoom, picks: &[Pick]) -> (Vec<usize>, Vec<usize>) {
    let doubted = |at: &usize| room.is_doubted(&picks[*at].0);
    let (mut alone, together): (Vec<usize>, Vec<usize>) = (0..picks.len()).partition(doubted);
    alone.sort_by_cached_key(|at| picks[*at].0.lock().state.dirty_since());
    (together, alone)
}
