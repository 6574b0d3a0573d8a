//! The locks that each thread holds, for debug builds.

use std::cell::RefCell;
use std::panic::Location;

use crate::lock::{Rank, explored};

thread_local! {
    static HELD: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug, Clone, Copy)]
struct Held {
    rank: Rank,
    /// Tasks that are explored share a thread.
    task: Option<usize>,
    /// Tells apart two locks of one rank, the second of which was tried.
    number: u64,
    taken: &'static Location<'static>,
}

impl Rank {
    /// L2.
    fn is_leaf(self) -> bool {
        self >= Rank::Dirty
    }

    /// Whether the lock is waited for under leaves, too (L2): no other lock is taken under it.
    fn is_last(self) -> bool {
        matches!(self, Rank::Time | Rank::Diary)
    }

    /// Whether the lock may be held for as long as the store, another member, or the registry takes (L3).
    fn lasts(self) -> bool {
        matches!(
            self,
            Rank::Leaving
                | Rank::NextRequest
                | Rank::NodeTime
                | Rank::NodeClock
                | Rank::NodeLease
                | Rank::NodeDoors
                | Rank::Capacity
                | Rank::Spool
                | Rank::FarAppend
                | Rank::LockTurn
                | Rank::LockDebts
                | Rank::Tree
                | Rank::GuestAppend
                | Rank::Append
                | Rank::Turn
                | Rank::Marks
        )
    }
}

/// The mark of a lock that is taken when a thread ends, and its list is gone already.
const LATE: u64 = u64::MAX;

/// A lock's place in the order.
#[derive(Debug)]
pub(super) struct Place(Rank);

/// The mark of a lock that is held as long as the mark lives.
#[must_use]
pub(super) struct Mark(u64);

impl Place {
    pub const fn new(rank: Rank) -> Place {
        Place(rank)
    }

    /// The lock is about to be waited for.
    #[track_caller]
    pub fn wait(&self) -> Mark {
        let rank = self.0;
        if let Some(held) =
            first(|held| held.rank >= rank || (held.rank.is_leaf() && !rank.is_last()))
        {
            let Held { rank: before, taken, .. } = held;
            complain(format!("the lock {rank:?} is waited for under {before:?}, taken at {taken}"));
        }
        self.tried()
    }

    /// The lock was taken without a wait.
    #[track_caller]
    pub fn tried(&self) -> Mark {
        let taken = Location::caller();
        let held = HELD.try_with(|all| {
            let mut all = all.borrow_mut();
            let number = all.last().map_or(0, |held| held.number + 1);
            all.push(Held { rank: self.0, task: explored::task(), number, taken });
            Mark(number)
        });
        held.unwrap_or(Mark(LATE))
    }
}

impl Mark {
    /// Complains if any lock besides this one must not be held for long.
    #[track_caller]
    pub fn lasts_without(&self, what: &str) {
        complain_of(what, first(|held| held.number != self.0 && !held.rank.lasts()));
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let _ = HELD.try_with(|all| {
            let mut all = all.borrow_mut();
            if let Some(at) = all.iter().rposition(|held| held.number == self.0) {
                all.remove(at);
            }
        });
        explored::point();
    }
}

/// Complains if any lock is held that must not be held for long.
#[track_caller]
pub(super) fn lasts(what: &str) {
    complain_of(what, first(|held| !held.rank.lasts()));
}

#[track_caller]
fn complain_of(what: &str, held: Option<Held>) {
    if let Some(Held { rank, taken, .. }) = held {
        complain(format!("{what} under the lock {rank:?}, taken at {taken}"));
    }
}

fn first(which: impl Fn(&Held) -> bool) -> Option<Held> {
    let held = |held: &Held| which(held) && held.task == explored::task();
    HELD.try_with(|all| all.borrow().iter().copied().find(held)).ok()?
}

#[track_caller]
fn complain(what: String) {
    // A second panic would hide the first.
    if !std::thread::panicking() {
        panic!("{what}");
    }
}
