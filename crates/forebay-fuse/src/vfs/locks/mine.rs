//! The locks that this mount's own programs have on one file.

use std::time::Duration;

use forebay_backing::Result;
use forebay_base::lock::{Mutex, MutexGuard, Rank, RwLock};
use forebay_cluster::locks::{Lock, Of, Range};
use hashbrown::HashMap;

use crate::vfs::homes::moved;

/// The place of a file's locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seat {
    Here,
    /// At a home, in its life with this epoch; `ends` says how often that has taken this member for dead.
    There {
        home: String,
        epoch: u64,
        ends: u64,
    },
}

#[derive(Debug, Default)]
pub struct Owned {
    /// The open file through which the owner took its last lock.
    pub handle: u64,
    /// The home's count of changes as of these `locks`.
    change: u64,
    pub locks: Vec<Lock>,
}

/// A message that a home is still owed: that an owner has given a range back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owed {
    pub home: String,
    pub epoch: u64,
    pub of: Of,
    pub range: Range,
    /// The number of the wait for the lock, which is to be given back only if it was granted.
    pub waited: Option<u64>,
}

#[derive(Debug, Default)]
pub struct State {
    /// The place of the locks; `None` if there are none.
    pub seat: Option<Seat>,
    pub owners: HashMap<Of, Owned>,
    pub owed: Vec<Owed>,
    /// The home of each request without an answer, by the request's number: if no answer comes, that home is owed a
    /// message.
    pub asked: HashMap<u64, Seat>,
    /// The number of requests under way: an answer that comes late may be older than another.
    asking: usize,
}

impl State {
    /// Takes an owner's locks from an answer of the home. ESTALE if the home has forgotten the locks that
    /// others here have there.
    pub fn took(
        &mut self,
        seat: &Seat,
        (of, handle): (Of, Option<u64>),
        change: u64,
        locks: Vec<Lock>,
    ) -> Result<()> {
        if self.seat.as_ref().is_some_and(|known| known != seat) {
            return Err(moved());
        }
        let owned = self.owners.entry(of).or_default();
        if change < owned.change {
            return Ok(());
        }
        owned.change = change;
        owned.locks = locks;
        owned.handle = handle.unwrap_or(owned.handle);
        self.seat = Some(seat.clone());
        Ok(())
    }

    /// Takes a range from an owner, whatever its home knows.
    pub fn took_out(&mut self, of: Of, range: Range) {
        let Some(owned) = self.owners.get_mut(&of) else { return };
        let parts = owned.locks.drain(..).flat_map(|lock| {
            if !lock.range.overlaps(range) {
                return [Some(lock), None];
            }
            let before = (lock.range.first < range.first)
                .then(|| Range { first: lock.range.first, last: range.first - 1 });
            let after = (lock.range.last > range.last)
                .then(|| Range { first: range.last + 1, last: lock.range.last });
            [before, after].map(|part| part.map(|range| Lock { range, ..lock }))
        });
        owned.locks = parts.flatten().collect();
    }

    /// Whether an owner has a lock in a range.
    pub fn has_some(&self, of: Of, range: Range) -> bool {
        let owned = self.owners.get(&of);
        owned.is_some_and(|owned| owned.locks.iter().any(|lock| lock.range.overlaps(range)))
    }

    /// The locks of all owners.
    pub fn held(&self) -> Vec<(Of, Vec<Lock>)> {
        let held = self.owners.iter().filter(|(_, owned)| !owned.locks.is_empty());
        held.map(|(of, owned)| (*of, owned.locks.clone())).collect()
    }

    /// Notes that the home has begun anew, and counts anew.
    pub fn sit_down(&mut self, seat: Seat) {
        self.owners.values_mut().for_each(|owned| owned.change = 0);
        self.seat = Some(seat);
    }

    fn tidy(&mut self) {
        if self.asking == 0 {
            self.owners.retain(|_, owned| !owned.locks.is_empty());
        }
        if self.owners.is_empty() {
            self.seat = None;
        }
    }
}

pub struct Mine {
    /// A node of the file, by which its path is found.
    pub id: u64,
    state: Mutex<State>,
    /// Held alone by a thread that reclaims, shared by threads that ask: neither sees the other's half.
    pub turn: RwLock<()>,
    /// Held by the thread that tells the home what it is owed.
    pub owing: Mutex<()>,
}

/// A request under way.
pub struct Asking<'a>(&'a Mine);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.asking -= 1;
        state.tidy();
    }
}

/// The pause before a request without a result is tried again.
pub const PAUSE: Duration = Duration::from_millis(50);

impl Mine {
    pub fn new(id: u64) -> Mine {
        Mine {
            id,
            state: Mutex::new(Rank::Locks, State::default()),
            turn: RwLock::new(Rank::LockTurn, ()),
            owing: Mutex::new(Rank::LockDebts, ()),
        }
    }

    #[track_caller]
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub fn ask(&self) -> Asking<'_> {
        self.state().asking += 1;
        Asking(self)
    }

    pub fn is_idle(&self) -> bool {
        let state = self.state();
        state.owners.is_empty() && state.owed.is_empty() && state.asked.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use forebay_cluster::locks::{Kind, Space};

    use super::*;

    const OF: Of = Of { space: Space::Record, owner: 1 };

    fn lock(first: u64, last: u64) -> Lock {
        Lock { kind: Kind::Shared, range: Range { first, last }, pid: 1 }
    }

    #[test]
    fn an_answer_that_comes_late_changes_nothing() {
        let mine = Mine::new(1);
        let (first, second) = (mine.ask(), mine.ask());
        mine.state().took(&Seat::Here, (OF, None), 6, vec![]).unwrap();
        drop(first);
        mine.state().took(&Seat::Here, (OF, Some(3)), 5, vec![lock(0, 9)]).unwrap();
        assert_eq!(mine.state().held(), []);
        drop(second);
        assert!(mine.is_idle() && mine.state().seat.is_none());
    }

    #[test]
    fn what_a_home_has_forgotten_is_not_forgotten_here() {
        let mine = Mine::new(1);
        let at = |ends| Seat::There { home: "n".into(), epoch: 1, ends };
        let other = Of { owner: 2, ..OF };
        let asking = (mine.ask(), mine.ask());
        mine.state().took(&at(1), (OF, Some(3)), 1, vec![lock(0, 9)]).unwrap();
        let late = mine.state().took(&at(2), (other, Some(4)), 2, vec![lock(20, 29)]);
        assert!(late.unwrap_err().is(libc::ESTALE));
        assert_eq!(mine.state().held(), [(OF, vec![lock(0, 9)])]);
        drop(asking);
        assert_eq!(mine.state().seat, Some(at(1)));
    }

    #[test]
    fn what_is_given_back_goes_though_its_home_was_not_told() {
        let mine = Mine::new(1);
        let asking = mine.ask();
        mine.state().took(&Seat::Here, (OF, Some(3)), 1, vec![lock(0, 9), lock(20, 29)]).unwrap();
        drop(asking);
        assert!(!mine.is_idle());
        mine.state().took_out(OF, Range { first: 5, last: 21 });
        assert_eq!(mine.state().held(), [(OF, vec![lock(0, 4), lock(22, 29)])]);
        mine.state().took_out(OF, Range::ALL);
        drop(mine.ask());
        assert!(mine.is_idle());
    }
}
