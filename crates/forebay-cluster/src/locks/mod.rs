//! The locks that programs have of one file, as its home knows them: flock locks, and record locks of fcntl.
//! Pure.
//!
//! The two kinds do not see each other, as on one machine. A free lock is granted at once; when a lock is
//! given back, waiters are looked at in the order of their coming. Deadlocks are not detected (no EDEADLK):
//! each member sees only its own programs.

pub mod desk;
#[cfg(test)]
mod desk_tests;
#[cfg(test)]
mod tests;
mod words;

use std::collections::BTreeMap;

pub use self::words::{HeldBy, LockAnswer, LockAsk, Of};
use serde::{Deserialize, Serialize};

/// The last byte that a lock can reach, which stands for "to the end of the file, wherever that is".
pub const END: u64 = i64::MAX as u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Space {
    /// flock(2): always of the whole file, owned by an open file.
    Flock,
    /// fcntl(2): owned by a process, or by an open file (OFD).
    Record,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Shared,
    Exclusive,
}

/// A range of bytes, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    pub first: u64,
    pub last: u64,
}

impl Range {
    pub const ALL: Range = Range { first: 0, last: END };

    pub fn overlaps(self, other: Range) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    fn is_followed_by(self, other: Range) -> bool {
        self.last.checked_add(1) == Some(other.first)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    pub kind: Kind,
    pub range: Range,
    /// The process that asked for the lock, as its node numbers it.
    pub pid: u32,
}

impl Lock {
    fn conflicts(&self, other: &Lock) -> bool {
        self.range.overlaps(other.range)
            && (self.kind == Kind::Exclusive || other.kind == Kind::Exclusive)
    }
}

/// The owner of a lock: one life of a member, and the number that the kernel there has for the owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    pub member: String,
    pub epoch: u64,
    pub number: u64,
}

/// An owner that waits for a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiter {
    pub owner: Owner,
    pub space: Space,
    pub lock: Lock,
    /// The number by which the member knows the waiter.
    pub number: u64,
}

#[derive(Debug, Default)]
struct Side {
    /// The locks of each owner by their place; adjacent locks of one kind are merged.
    held: BTreeMap<Owner, Vec<Lock>>,
}

impl Side {
    fn conflict(&self, owner: &Owner, lock: &Lock) -> Option<(&Owner, &Lock)> {
        let others = self.held.iter().filter(|(other, _)| *other != owner);
        let mut locks = others.flat_map(|(other, locks)| locks.iter().map(move |l| (other, l)));
        locks.find(|(_, held)| held.conflicts(lock))
    }

    /// Takes a range out of an owner's locks.
    fn take_out(&mut self, owner: &Owner, range: Range) {
        let Some(locks) = self.held.get_mut(owner) else { return };
        let mut left = Vec::with_capacity(locks.len() + 1);
        for lock in locks.drain(..) {
            if !lock.range.overlaps(range) {
                left.push(lock);
                continue;
            }
            if lock.range.first < range.first {
                let before = Range { first: lock.range.first, last: range.first - 1 };
                left.push(Lock { range: before, ..lock });
            }
            if lock.range.last > range.last {
                let after = Range { first: range.last + 1, last: lock.range.last };
                left.push(Lock { range: after, ..lock });
            }
        }
        match left.is_empty() {
            true => _ = self.held.remove(owner),
            false => *locks = left,
        }
    }

    fn put_in(&mut self, owner: &Owner, lock: Lock) {
        self.take_out(owner, lock.range);
        let locks = self.held.entry(owner.clone()).or_default();
        let at = locks.partition_point(|held| held.range.first < lock.range.first);
        locks.insert(at, lock);
        let mut merged: Vec<Lock> = Vec::with_capacity(locks.len());
        for lock in locks.drain(..) {
            match merged.last_mut() {
                Some(before)
                    if before.kind == lock.kind && before.range.is_followed_by(lock.range) =>
                {
                    before.range.last = lock.range.last;
                    before.pid = lock.pid;
                }
                _ => merged.push(lock),
            }
        }
        *locks = merged;
    }
}

/// The locks of one file, and the waiters for them.
#[derive(Debug, Default)]
pub struct Table {
    flock: Side,
    record: Side,
    /// In the order of their coming.
    waiters: Vec<Waiter>,
}

impl Table {
    fn side(&self, space: Space) -> &Side {
        match space {
            Space::Flock => &self.flock,
            Space::Record => &self.record,
        }
    }

    fn side_mut(&mut self, space: Space) -> &mut Side {
        match space {
            Space::Flock => &mut self.flock,
            Space::Record => &mut self.record,
        }
    }

    /// Whether there is neither a lock nor a waiter.
    pub fn is_empty(&self) -> bool {
        self.flock.held.is_empty() && self.record.held.is_empty() && self.waiters.is_empty()
    }

    /// An owner's locks, by their place in the file.
    pub fn held(&self, space: Space, owner: &Owner) -> &[Lock] {
        self.side(space).held.get(owner).map_or(&[], Vec::as_slice)
    }

    /// A lock of another owner that conflicts with this one.
    pub fn test(&self, space: Space, owner: &Owner, lock: &Lock) -> Option<(&Owner, &Lock)> {
        self.side(space).conflict(owner, lock)
    }

    /// Grants a lock, unless another owner's is in its way: over any lock that the owner has there. Returns
    /// the waiters that are granted now, since the owner had more before; `false` if the lock is not
    /// granted.
    ///
    /// A flock lock is given back before it is changed (as on one machine): if the new one is not granted,
    /// the old one is lost.
    pub fn set(&mut self, space: Space, owner: &Owner, lock: Lock) -> (bool, Vec<Waiter>) {
        if space == Space::Flock {
            let had = self.flock.held.get(owner);
            if had.is_some_and(|locks| locks.iter().any(|held| held.kind == lock.kind)) {
                return (true, Vec::new());
            }
            self.flock.held.remove(owner);
        }
        let is_free = self.side(space).conflict(owner, &lock).is_none();
        if is_free {
            self.side_mut(space).put_in(owner, lock);
        }
        (is_free, self.grant())
    }

    /// As [`Table::set`] for an owner that waits until the lock is granted: `false` if it waits.
    pub fn set_or_wait(&mut self, waiter: Waiter) -> (bool, Vec<Waiter>) {
        let (granted, woken) = self.set(waiter.space, &waiter.owner, waiter.lock);
        if !granted {
            self.waiters.push(waiter);
        }
        (granted, woken)
    }

    /// Whether the member's waiter of this number waits here.
    pub fn waits(&self, member: &str, number: u64) -> bool {
        self.waiters.iter().any(|w| w.number == number && w.owner.member == member)
    }

    /// Removes a waiter: `false` if there was none.
    pub fn cancel(&mut self, member: &str, number: u64) -> bool {
        let before = self.waiters.len();
        self.waiters.retain(|w| w.number != number || w.owner.member != member);
        self.waiters.len() < before
    }

    /// Takes a range away from an owner, and returns the waiters that are granted now.
    pub fn unset(&mut self, space: Space, owner: &Owner, range: Range) -> Vec<Waiter> {
        self.side_mut(space).take_out(owner, range);
        self.grant()
    }

    /// Removes owners that are gone, with all their locks and waiters.
    pub fn end(&mut self, is_gone: impl Fn(&Owner) -> bool) -> Vec<Waiter> {
        for side in [&mut self.flock, &mut self.record] {
            side.held.retain(|owner, _| !is_gone(owner));
        }
        self.waiters.retain(|waiter| !is_gone(&waiter.owner));
        self.grant()
    }

    fn grant(&mut self) -> Vec<Waiter> {
        let mut granted = Vec::new();
        let mut at = 0;
        while let Some(waiter) = self.waiters.get(at) {
            if self.side(waiter.space).conflict(&waiter.owner, &waiter.lock).is_some() {
                at += 1;
                continue;
            }
            let waiter = self.waiters.remove(at);
            self.side_mut(waiter.space).put_in(&waiter.owner, waiter.lock);
            granted.push(waiter);
            // The owner may have had more before: start over.
            at = 0;
        }
        granted
    }
}
