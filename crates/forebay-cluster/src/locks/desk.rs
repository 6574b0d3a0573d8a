//! The locks of all files of which a member is the home, and the requests of its programs and of other
//! members for them. Pure.
//!
//! A file is held here for as long as it has a lock: `G` is the guard that holds it. After a restart no
//! new lock is granted on files that were held before, until every living member has reclaimed its
//! programs' locks.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use forebay_backing::FileKey;

use super::{HeldBy, Lock, LockAnswer, LockAsk, Of, Owner, Range, Space, Table, Waiter};

/// After a restart the desk waits at most this long for earlier locks to be reclaimed.
pub const RECLAIM: Duration = Duration::from_secs(15);

/// A request that was given up may be under way for this long.
const UNDER_WAY: Duration = Duration::from_secs(120);

/// How many requests are remembered before old ones are dropped.
const REMEMBERED: usize = 1024;

struct Sitting<G> {
    table: Table,
    guard: G,
}

/// Locks from before a restart.
#[derive(Default)]
struct Before {
    files: HashSet<FileKey>,
    until: Option<Instant>,
    /// Members that have reclaimed their locks, or have none.
    done: BTreeSet<String>,
}

/// A member that asks, and when it came: see [`Desk::arrive`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    pub member: String,
    pub epoch: u64,
    /// How often the member's locks were given back here on its behalf.
    pub ends: u64,
}

/// The result of an ask.
pub struct Done<G> {
    pub answer: LockAnswer,
    /// Waiters that have their lock now: to be told.
    pub woken: Vec<Waiter>,
    /// A guard that no longer holds its file: to be dropped without a lock.
    pub over: Option<G>,
}

pub struct Desk<G> {
    files: HashMap<FileKey, Sitting<G>>,
    change: u64,
    /// The number of the last request of each owner.
    latest: HashMap<(FileKey, Owner, Space), (u64, Instant)>,
    /// The members' numbers of requests that waited and were granted.
    granted: HashMap<(String, u64), Instant>,
    remembered_max: usize,
    /// How often each member was taken for dead, and the oldest epoch of it that counts.
    ends: HashMap<String, (u64, u64)>,
    before: Before,
}

impl<G> Default for Desk<G> {
    fn default() -> Desk<G> {
        Desk {
            files: HashMap::new(),
            change: 0,
            latest: HashMap::new(),
            granted: HashMap::new(),
            remembered_max: REMEMBERED,
            ends: HashMap::new(),
            before: Before::default(),
        }
    }
}

impl<G> Desk<G> {
    /// At a start: these files were held before, and programs of other members may have had locks of
    /// them.
    pub fn begin(&mut self, now: Instant, held: Vec<FileKey>) {
        self.before.files = held.into_iter().collect();
        self.before.until = Some(now + RECLAIM);
    }

    /// A member's programs have reclaimed all their locks, or the member is gone.
    pub fn reclaimed(&mut self, member: &str) {
        if !self.before.files.is_empty() {
            self.before.done.insert(member.into());
        }
    }

    /// Whether a file's locks from before the restart are still waited for. `others`: the living members.
    pub fn waits_for_reclaims(
        &mut self,
        now: Instant,
        file: FileKey,
        others: impl FnOnce() -> Vec<String>,
    ) -> bool {
        if !self.before.files.contains(&file) {
            return false;
        }
        let in_time = self.before.until.is_some_and(|until| now < until);
        if !in_time || others().iter().all(|member| self.before.done.contains(member)) {
            self.before = Before::default();
        }
        !self.before.files.is_empty()
    }

    /// To be called before work that may take time: a request of a member that ends meanwhile is not
    /// carried out.
    pub fn arrive(&self, member: &str, epoch: u64) -> Guest {
        let ends = self.ends.get(member).map_or(0, |(ends, _)| *ends);
        Guest { member: member.into(), epoch, ends }
    }

    fn is_gone(&self, guest: &Guest) -> bool {
        let gone = |(ends, oldest): &(u64, u64)| *ends != guest.ends || guest.epoch < *oldest;
        self.ends.get(&guest.member).is_some_and(gone)
    }

    /// Whether a program has a lock of the file or waits for one: only then is the file held.
    pub fn has(&self, file: FileKey) -> bool {
        self.files.contains_key(&file)
    }

    /// Carries out a request. `guard` holds the file; `None` if the request needs a guard and got none:
    /// the caller asks again with one. `is_early`: see [`Desk::waits_for_reclaims`].
    pub fn ask(
        &mut self,
        now: Instant,
        guest: &Guest,
        file: FileKey,
        ask: &LockAsk,
        guard: Option<G>,
        is_early: bool,
    ) -> Option<Done<G>> {
        let just = |answer| Done { answer, woken: Vec::new(), over: None };
        if self.is_gone(guest) {
            return Some(Done { over: guard, ..just(LockAnswer::Cancelled) });
        }
        let takes = match ask {
            LockAsk::Set { .. } => !is_early,
            LockAsk::Reclaim { .. } => is_early,
            _ => false,
        };
        let mut over = guard;
        if takes && !self.has(file) {
            let guard = over.take()?;
            self.files.insert(file, Sitting { table: Table::default(), guard });
        }
        let (answer, woken) = self.act(now, guest, file, ask, is_early);
        self.remember_granted(now, &woken);
        self.forget_old(now);
        over = self.drop_if_empty(file).or(over);
        Some(Done { answer, woken, over })
    }

    fn act(
        &mut self,
        now: Instant,
        guest: &Guest,
        file: FileKey,
        ask: &LockAsk,
        is_early: bool,
    ) -> (LockAnswer, Vec<Waiter>) {
        let member = &*guest.member;
        let owner = |of: Of| owner_of(guest, of);
        match *ask {
            LockAsk::Set { of, lock, number, waits } => {
                let owner = owner(of);
                if self.files.get(&file).is_some_and(|s| s.table.waits(member, number)) {
                    return (LockAnswer::Waits, Vec::new());
                }
                if self.granted.contains_key(&(member.to_string(), number)) {
                    return (self.held(file, of.space, &owner), Vec::new());
                }
                if is_early {
                    return (LockAnswer::Early, Vec::new());
                }
                if self.is_stale(now, file, &owner, of.space, number) {
                    return (LockAnswer::Stale, Vec::new());
                }
                let Some(sitting) = self.files.get_mut(&file) else {
                    return (LockAnswer::Stale, Vec::new());
                };
                let (granted, woken) = match waits {
                    true => {
                        let waiter = Waiter { owner: owner.clone(), space: of.space, lock, number };
                        sitting.table.set_or_wait(waiter)
                    }
                    false => sitting.table.set(of.space, &owner, lock),
                };
                let answer = match (granted, waits) {
                    (true, _) => self.held(file, of.space, &owner),
                    (false, true) => LockAnswer::Waits,
                    (false, false) => LockAnswer::InTheWay,
                };
                (answer, woken)
            }
            LockAsk::Unset { of, range, number } => {
                let owner = owner(of);
                if self.is_stale(now, file, &owner, of.space, number) {
                    return (LockAnswer::Stale, Vec::new());
                }
                let sitting = self.files.get_mut(&file);
                let woken = sitting.map(|s| s.table.unset(of.space, &owner, range));
                (self.held(file, of.space, &owner), woken.unwrap_or_default())
            }
            LockAsk::Test { .. } if is_early => (LockAnswer::Early, Vec::new()),
            LockAsk::Test { of, lock } => {
                let sitting = self.files.get(&file);
                let by = sitting.and_then(|s| s.table.test(of.space, &owner(of), &lock));
                let by = by.map(|(by, lock)| HeldBy { member: by.member.clone(), lock: *lock });
                (LockAnswer::By(by), Vec::new())
            }
            LockAsk::Cancel { of, number } => {
                if self.granted.contains_key(&(member.to_string(), number)) {
                    return (self.held(file, of.space, &owner(of)), Vec::new());
                }
                if let Some(sitting) = self.files.get_mut(&file) {
                    sitting.table.cancel(member, number);
                }
                // A `Set` that is still under way comes to nothing.
                self.is_stale(now, file, &owner(of), of.space, number + 1);
                (LockAnswer::Cancelled, Vec::new())
            }
            LockAsk::Reclaim { ref held } => self.reclaim(guest, file, held, is_early),
        }
    }

    /// Confirms the locks that an owner still has, and grants the owner again those from before a restart
    /// of this member.
    fn reclaim(
        &mut self,
        guest: &Guest,
        file: FileKey,
        held: &[(Of, Vec<Lock>)],
        is_early: bool,
    ) -> (LockAnswer, Vec<Waiter>) {
        let Some(sitting) = self.files.get_mut(&file) else {
            return (LockAnswer::Lost(held.iter().map(|(of, _)| *of).collect()), Vec::new());
        };
        let (mut lost, mut woken) = (Vec::new(), Vec::new());
        for (of, locks) in held {
            let owner = owner_of(guest, *of);
            if sitting.table.held(of.space, &owner) == locks {
                continue;
            }
            let mut has_all = is_early;
            for lock in locks.iter().filter(|_| is_early) {
                let (granted, more) = sitting.table.set(of.space, &owner, *lock);
                has_all &= granted;
                woken.extend(more);
            }
            if !has_all {
                lost.push(*of);
                woken.extend(sitting.table.unset(of.space, &owner, Range::ALL));
            }
        }
        (LockAnswer::Lost(lost), woken)
    }

    fn held(&mut self, file: FileKey, space: Space, owner: &Owner) -> LockAnswer {
        self.change += 1;
        let sitting = self.files.get(&file);
        let locks = sitting.map(|s| s.table.held(space, owner).to_vec()).unwrap_or_default();
        LockAnswer::Held { change: self.change, locks }
    }

    /// Whether a later request of the owner came before this one. If not, this request is now the latest.
    fn is_stale(
        &mut self,
        now: Instant,
        file: FileKey,
        owner: &Owner,
        space: Space,
        number: u64,
    ) -> bool {
        let latest = self.latest.entry((file, owner.clone(), space)).or_insert((number, now));
        if latest.0 > number {
            return true;
        }
        *latest = (number, now);
        false
    }

    /// Forgets requests that can no longer be under way.
    fn forget_old(&mut self, now: Instant) {
        if self.remembered() <= self.remembered_max {
            return;
        }
        self.latest.retain(|_, (_, at)| now.duration_since(*at) < UNDER_WAY);
        self.granted.retain(|_, at| now.duration_since(*at) < UNDER_WAY);
        self.remembered_max = REMEMBERED.max(self.remembered() * 2);
    }

    pub(super) fn remembered(&self) -> usize {
        self.latest.len() + self.granted.len()
    }

    fn remember_granted(&mut self, now: Instant, woken: &[Waiter]) {
        let numbers = woken.iter().map(|waiter| (waiter.owner.member.clone(), waiter.number));
        self.granted.extend(numbers.map(|number| (number, now)));
    }

    fn drop_if_empty(&mut self, file: FileKey) -> Option<G> {
        let is_empty = self.files.get(&file).is_some_and(|sitting| sitting.table.is_empty());
        let sitting = is_empty.then(|| self.files.remove(&file)).flatten();
        sitting.map(|sitting| sitting.guard)
    }

    /// A member is dead, or has begun anew: the locks that its programs had before epoch `oldest` are
    /// given back. `oldest` is the member's present epoch, if it lives.
    pub fn end(
        &mut self,
        now: Instant,
        member: &str,
        oldest: Option<u64>,
    ) -> (Vec<Waiter>, Vec<G>) {
        let (ends, floor) = self.ends.entry(member.into()).or_default();
        match oldest {
            Some(oldest) => *floor = oldest.max(*floor),
            None => *ends += 1,
        }
        let is_gone = |owner: &Owner| {
            owner.member == member && oldest.is_none_or(|oldest| owner.epoch < oldest)
        };
        self.reclaimed(member);
        self.latest.retain(|(_, owner, _), _| !is_gone(owner));
        let (mut woken, mut over) = (Vec::new(), Vec::new());
        let files: Vec<FileKey> = self.files.keys().copied().collect();
        for file in files {
            if let Some(sitting) = self.files.get_mut(&file) {
                woken.extend(sitting.table.end(is_gone));
            }
            over.extend(self.drop_if_empty(file));
        }
        self.remember_granted(now, &woken);
        (woken, over)
    }
}

fn owner_of(guest: &Guest, of: Of) -> Owner {
    Owner { member: guest.member.clone(), epoch: guest.epoch, number: of.owner }
}
