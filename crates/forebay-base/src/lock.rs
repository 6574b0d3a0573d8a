//! The locks of all crates, each with its place in one order.
//!
//! Debug builds check the order as it is used: waiting for a lock out of turn, and calling the backing store, another
//! member or the registry under a lock that others need, panic and name both places. Release builds have the standard
//! library's locks and nothing else.
//!
//! There is one order and not one for each layer: layers call each other in both directions, the front-end the
//! members' core before an open, and the core's threads the front-end when a file is given up.
//!
//! Invariants:
//! - L1: a thread that holds a lock waits only for locks whose [`Rank`] is greater than that of every lock it holds.
//!   It never waits for two locks of one rank at once: with one file's lock it only tries another's.
//! - L2: a leaf is held for one look or one append, and under it a thread waits for nothing but the simulated clock
//!   and the daemon's log.
//! - L3: a thread calls the store, asks other members and the registry, and waits for conditions only under locks for
//!   which [`Rank::lasts`] says so.
//!
//! Trying a lock never waits, so any lock may be tried in any order. A lock whose holder panicked is lost: a thread
//! that waits for it panics too, rather than believe the guarded value, and a thread that tries it finds it held for
//! ever. [`Mutex::lock_anyway`] is for values that no panic can leave half changed.

use std::ops::{Deref, DerefMut};
use std::sync;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use crate::lock::order::{Mark, Place};

#[cfg_attr(debug_assertions, path = "lock/checked.rs")]
#[cfg_attr(not(debug_assertions), path = "lock/unchecked.rs")]
mod order;

#[cfg(debug_assertions)]
pub mod explored;

/// The order of locks: a thread that holds one may wait for those after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Which thread of a daemon takes its mount down: held until the mount is gone, and the member has left.
    Leaving,
    /// Which thread of a door takes the next request: held until one has come.
    NextRequest,
    /// Lets one thread at a time note a node's clock: held until the clocks of other nodes are known from the
    /// registry.
    NodeTime,
    /// Lets one thread at a time tell the registry a node's clock.
    NodeClock,
    /// A node's lease: held until the registry has granted another one.
    NodeLease,
    /// Whether the doors of a node's spaces stand open: held until the registry has named the spaces that need them.
    NodeDoors,
    /// The room that a pool may grant: held until the registry has named its grants.
    Capacity,
    /// Lets one thread at a time write the files that a scheduler's hooks read: held until the registry has answered.
    Spool,
    /// One append at a time through an open file that another member serves: held until its home has answered.
    FarAppend,
    /// Shared by requests for locks of a file, exclusive for reclaiming them: held until the file's home has
    /// answered.
    LockTurn,
    /// Lets one thread at a time tell a home which locks of a file are owed to it.
    LockDebts,
    /// The front-end's tree of names: held for reading by every verb that turns a node into a path,
    /// until the store has acted on the path; for writing while a directory is renamed.
    Tree,
    /// One append at a time by a program of another member that has the file open: held until its bytes are in the
    /// file.
    GuestAppend,
    /// One append at a time to a file, by any program, and no open for writing meanwhile.
    Append,
    /// One file that was taken over from a dead member: held while the engine begins to serve it, so that opens of
    /// the file wait for that.
    Taking,
    /// The front-end's table of open inodes: held while an open or a release decides an inode's mode,
    /// the opening of its shadow and the record of that included.
    Open,
    /// Whether another member may have this one's place, and the drain stands still.
    Suspended,
    /// Lets one thread at a time finish files on a store without room.
    Turn,
    /// Lets one thread at a time write the log into the index; it asks for each file's state, one after the other.
    Compaction,
    /// Lets one thread at a time evict; it tries files' locks, or waits for them one after the other.
    Eviction,
    /// The members that copies are kept for.
    CopyHomes,
    /// One copy that is kept for another member: held while it is written and its record appended.
    Copy,
    /// The copies that are kept for one other member, with their log.
    Copies,
    /// One file. Held while the shadow is written and its record appended, so that a fill cannot land between a write
    /// and its record; a writer waits first for a fill that lands in its range.
    File,
    /// The evictor: which unit is evicted next. Held for one look or one change of its queues.
    Evictor,
    /// The table of files.
    Table,
    /// Lets one thread at a time sync the log, for all threads that wait for it.
    LogSync,
    /// The log in the tier, with the journal of names; a copy of the index that is only looked at.
    Log,
    /// The directories that names of files are in.
    Dirs,
    /// One directory's place.
    Dir,
    /// The remains of directories that have ended.
    DirEnds,
    /// A request of the kernel's: whether it is answered, and which thread works on it.
    Request,
    /// Threads that hang with a request that is answered, and the number of threads that replace them.
    Hanging,
    /// The programs that wait for locks of files.
    Waits,
    /// The files that programs have open.
    Handles,
    /// The files that programs here have locks of.
    Locked,
    /// The holders of locks of the files that this mount is the home of.
    Desk,
    /// The files with changes that homes have acknowledged and that are not synced.
    Unsynced,
    /// Changes that homes have not answered.
    Doubts,
    /// The bytes fetched ahead for one open file that another member serves.
    Ahead,
    /// Whether a look with a user's rights is still waited for.
    Looking,
    /// The daemon's jobs: held while each says how far it is.
    Jobs,
    /// A member's leases: held for one look at how long they last.
    MemberLease,
    /// A member's core: its knowledge of which member holds which file. Held while the results of a decision are
    /// queued in order.
    Core,
    /// Idle connections to other members: held while one is looked at.
    Connections,
    /// Lets one thread at a time ask etcd for the lease that its marks hang on.
    Marks,
    /// Files with dirty bytes, by age. The first leaf.
    Dirty,
    /// The names that the kernel knows, with their files.
    Nodes,
    /// The recent answers of the store about names.
    Answers,
    /// How long requests are under way.
    Requests,
    /// The amounts that each user asks for.
    Usage,
    /// One program's wait for a lock.
    Wait,
    /// The entries of one open directory.
    Listing,
    /// Whether a rename of a directory holds other verbs back.
    TreeHeld,
    /// The state of files that other members also use, and the open files of their programs here.
    Members,
    /// The member that serves one open file.
    Seat,
    /// The changes of one file that homes have acknowledged and that are not synced.
    Pending,
    /// The locks that programs here have of one file, and the open files that have lost some.
    Locks,
    /// Changes that other members asked for, and whether they have given them up.
    Fences,
    /// Unused handles at homes.
    Left,
    /// Ranges where pages of a mapping would overwrite bytes that are written for others.
    Laundry,
    /// Ranges that the kernel has as zeros, of files that other members serve.
    Blanks,
    /// Buffers for bytes that are fetched ahead.
    Spare,
    /// Whether the session with the kernel has ended.
    Ended,
    /// Settings in force.
    Tunables,
    /// The members that keep copies of files here, and the copies that are over.
    Partners,
    /// Rules, the processes that a rule is for, and whether the last eviction was in vain.
    Room,
    /// Files that lost their last name a moment ago.
    Graveyard,
    /// Files that grow unseen and how fast, files whose writers linger, and files that the kernel asks about.
    Unseen,
    /// The requests that hold writers past the daemon.
    Holds,
    /// Shadow files to be removed or reused, and shadow files made ahead.
    Shadows,
    /// Ages of dirty bytes, and the time by which all must be flushed.
    Ages,
    /// The measurements and decisions of the governor, and why the drain is stuck.
    Govern,
    /// How fast the drain may go.
    Valve,
    /// The condition that wakes the governor, the drain, and threads that wait for batches to land.
    Wake,
    /// Room on the store.
    HomeRoom,
    /// Orders: their holds, debts and batches.
    Orders,
    /// A batch of flights: its rest, its targets and its outcomes.
    Batch,
    /// A prefetch: its queue and report.
    Prefetch,
    /// The store's answer for a range that is fetched, and buffers for it.
    Fetched,
    /// Streams of reads and writes, and bytes that went around the tier and are not synced.
    Streams,
    /// The condition of the store, and its files that wait to be closed.
    Home,
    /// Work for a pool of threads.
    Pool,
    /// Lets one thread at a time sync the tier's whole file system.
    TierSync,
    /// The daemon's own background threads.
    Threads,
    /// How far a long operation has come.
    Progress,
    /// A member's notes besides its core: the threads that wait for its answers, the position of its watch, and news
    /// of others.
    MemberNotes,
    /// Connections that other members have to a door.
    Guests,
    /// One connection under TLS: held until bytes of it have come or gone.
    Sealed,
    /// One lease: its end, and whether it is to end early.
    Lease,
    /// An embedded registry's pending writes, its leases, or its history.
    Embedded,
    /// The state of the connection to etcd: idle connections, a token, and the position reached.
    Etcd,
    /// The tasks of a node, and when each is due.
    Crew,
    /// A node's notes: of its pools, its transfers, its clock, its jobs, and of what it has reported already.
    NodeNotes,
    /// Lets one thread at a time find an unused project number, and record it.
    Projects,
    /// Spaces of a pool that are worked on, being deleted, or being swapped off.
    Spaces,
    /// The remaining work of a transfer.
    Tasks,
    /// A transfer's journal, or the objects it has to make durable: held while that is done.
    Durable,
    /// A transfer's notes: of links, directories and failures, of one large file, and of its pace.
    TransferNotes,
    /// A daemon's notes: readings, the registry's answers, and drains and commands that callers wait for.
    DaemonNotes,
    /// Looks and commands of a node that are late.
    Late,
    /// Lets one thread at a time change the mode of a file of the store, or open a file by such a change.
    Modes,
    /// Directories of the store that were found a moment ago.
    Parents,
    /// A store that is slow or fails on purpose.
    Played,
    /// Simulated time, which may be asked under any lock.
    Time,
    /// The daemon's log, which may be written under any lock.
    Diary,
}

/// Says that the store is called now (L3).
#[inline]
#[track_caller]
pub fn calls_the_store() {
    order::lasts("the store is called");
}

/// Says that another member is asked now (L3).
#[inline]
#[track_caller]
pub fn asks_a_member() {
    order::lasts("a member is asked");
}

/// Says that the registry is asked now, or that the coming wait depends on it (L3).
#[inline]
#[track_caller]
pub fn asks_the_registry() {
    order::lasts("the registry is asked");
}

/// Says that the thread sleeps now (L3).
#[inline]
#[track_caller]
pub fn sleeps() {
    order::lasts("a thread sleeps");
}

/// Sleeps, and reports it to the check (L3).
#[track_caller]
pub fn sleep(time: Duration) {
    sleeps();
    std::thread::sleep(time);
}

#[derive(Debug)]
pub struct Mutex<T: ?Sized> {
    place: Place,
    lock: sync::Mutex<T>,
}

/// What happens to a thread that waits for a lost lock.
#[derive(Debug, Clone, Copy)]
enum Lost {
    Panics,
    /// The thread gets the lock all the same.
    HasIt,
}

impl Lost {
    #[inline]
    #[track_caller]
    fn taken<T>(self, lock: sync::LockResult<T>) -> T {
        match self {
            Lost::Panics => lock.expect(LOST),
            Lost::HasIt => lock.unwrap_or_else(sync::PoisonError::into_inner),
        }
    }
}

#[must_use]
pub struct MutexGuard<'a, T: ?Sized> {
    lock: sync::MutexGuard<'a, T>,
    mark: Mark,
    #[cfg(debug_assertions)]
    of: &'a Mutex<T>,
}

impl<T> Mutex<T> {
    #[inline]
    pub const fn new(rank: Rank, value: T) -> Mutex<T> {
        Mutex { place: Place::new(rank), lock: sync::Mutex::new(value) }
    }

    #[inline]
    pub fn into_inner(self) -> T {
        self.lock.into_inner().expect(LOST)
    }
}

impl<T: ?Sized> Mutex<T> {
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.take(Lost::Panics)
    }

    /// As [`Mutex::lock`], also if the lock is lost: for values that a panic cannot leave half changed, and that more
    /// than the panicking thread depends on. Each caller says why.
    #[inline]
    #[track_caller]
    pub fn lock_anyway(&self) -> MutexGuard<'_, T> {
        self.take(Lost::HasIt)
    }

    #[inline]
    #[track_caller]
    fn take(&self, lost: Lost) -> MutexGuard<'_, T> {
        let mark = self.wait();
        self.guard(lost.taken(self.lock.lock()), mark)
    }

    #[inline]
    #[track_caller]
    fn wait(&self) -> Mark {
        let mark = self.place.wait();
        #[cfg(debug_assertions)]
        explored::until(|| explored::is_free(&self.lock.try_lock()));
        mark
    }

    /// The lock, if it is free and not lost.
    #[inline]
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        #[cfg(debug_assertions)]
        explored::point();
        let lock = self.lock.try_lock().ok()?;
        Some(self.guard(lock, self.place.tried()))
    }

    /// The lock, if it is free: as [`Mutex::lock_anyway`].
    #[inline]
    #[track_caller]
    pub fn try_lock_anyway(&self) -> Option<MutexGuard<'_, T>> {
        let lock = match self.lock.try_lock() {
            Ok(lock) => lock,
            Err(sync::TryLockError::Poisoned(lost)) => lost.into_inner(),
            Err(sync::TryLockError::WouldBlock) => return None,
        };
        Some(self.guard(lock, self.place.tried()))
    }

    #[inline]
    fn guard<'a>(&'a self, lock: sync::MutexGuard<'a, T>, mark: Mark) -> MutexGuard<'a, T> {
        MutexGuard {
            lock,
            mark,
            #[cfg(debug_assertions)]
            of: self,
        }
    }

    /// The value, even if the lock is lost: for a destructor.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut().unwrap_or_else(sync::PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub struct RwLock<T: ?Sized> {
    place: Place,
    lock: sync::RwLock<T>,
}

#[must_use]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    lock: sync::RwLockReadGuard<'a, T>,
    _mark: Mark,
}

#[must_use]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    lock: sync::RwLockWriteGuard<'a, T>,
    _mark: Mark,
}

impl<T> RwLock<T> {
    #[inline]
    pub const fn new(rank: Rank, value: T) -> RwLock<T> {
        RwLock { place: Place::new(rank), lock: sync::RwLock::new(value) }
    }
}

impl<T: ?Sized> RwLock<T> {
    #[inline]
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let _mark = self.place.wait();
        #[cfg(debug_assertions)]
        explored::until(|| explored::is_free(&self.lock.try_read()));
        RwLockReadGuard { lock: self.lock.read().expect(LOST), _mark }
    }

    #[inline]
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let _mark = self.place.wait();
        #[cfg(debug_assertions)]
        explored::until(|| explored::is_free(&self.lock.try_write()));
        RwLockWriteGuard { lock: self.lock.write().expect(LOST), _mark }
    }

    /// The lock for writing, if it is free and not lost.
    #[inline]
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let lock = self.lock.try_write().ok()?;
        Some(RwLockWriteGuard { lock, _mark: self.place.tried() })
    }
}

/// A condition variable. A notification without a waiting thread makes no system call. As ever, the awaited state
/// changes under the lock that the waiting threads release.
#[derive(Debug, Default)]
pub struct Condvar {
    condition: sync::Condvar,
    /// The number of waiting threads, counted under their lock.
    waiting: AtomicUsize,
    #[cfg(debug_assertions)]
    queue: explored::Queue,
}

impl Condvar {
    #[inline]
    pub const fn new() -> Condvar {
        Condvar {
            condition: sync::Condvar::new(),
            waiting: AtomicUsize::new(0),
            #[cfg(debug_assertions)]
            queue: explored::Queue::new(),
        }
    }

    #[inline]
    pub fn notify_one(&self) {
        #[cfg(debug_assertions)]
        self.queue.notify_one();
        if self.is_waited_for() {
            self.condition.notify_one();
        }
    }

    #[inline]
    pub fn notify_all(&self) {
        #[cfg(debug_assertions)]
        self.queue.notify_all();
        if self.is_waited_for() {
            self.condition.notify_all();
        }
    }

    #[inline]
    fn is_waited_for(&self) -> bool {
        self.waiting.load(SeqCst) > 0
    }

    /// Waits until it is notified, or wakes for no reason.
    #[inline]
    #[track_caller]
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        guard.mark.lasts_without(WAITS);
        #[cfg(debug_assertions)]
        let guard = match self.queue.wait(guard) {
            Ok((guard, _)) => return guard,
            Err(guard) => guard,
        };
        let mut guard = guard;
        self.waiting.fetch_add(1, SeqCst);
        let woken = self.condition.wait(guard.lock);
        self.waiting.fetch_sub(1, SeqCst);
        guard.lock = woken.expect(LOST);
        guard
    }

    /// Waits for at most a time. Also says whether the time has run out.
    #[inline]
    #[track_caller]
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        guard.mark.lasts_without(WAITS);
        #[cfg(debug_assertions)]
        let guard = match self.queue.wait(guard) {
            Ok(waited) => return waited,
            Err(guard) => guard,
        };
        let mut guard = guard;
        let timed_out;
        self.waiting.fetch_add(1, SeqCst);
        let woken = self.condition.wait_timeout(guard.lock, limit);
        self.waiting.fetch_sub(1, SeqCst);
        (guard.lock, timed_out) = woken.expect(LOST);
        (guard, timed_out.timed_out())
    }

    /// Waits as long as `condition` holds. Also says whether the time has run out.
    #[inline]
    #[track_caller]
    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, bool) {
        self.wait_timeout_while_as(Lost::Panics, guard, limit, condition)
    }

    /// The same, also if the lock is lost: as [`Mutex::lock_anyway`].
    #[inline]
    #[track_caller]
    pub fn wait_timeout_while_anyway<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, bool) {
        self.wait_timeout_while_as(Lost::HasIt, guard, limit, condition)
    }

    #[inline]
    #[track_caller]
    fn wait_timeout_while_as<'a, T>(
        &self,
        lost: Lost,
        guard: MutexGuard<'a, T>,
        limit: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, bool) {
        guard.mark.lasts_without(WAITS);
        let mut guard = guard;
        #[cfg(debug_assertions)]
        if explored::task().is_some() {
            let mut timed_out = false;
            while !timed_out && condition(&mut guard) {
                (guard, timed_out) = self.wait_timeout(guard, limit);
            }
            return (guard, timed_out);
        }
        self.waiting.fetch_add(1, SeqCst);
        let waited = self.condition.wait_timeout_while(guard.lock, limit, &mut condition);
        self.waiting.fetch_sub(1, SeqCst);
        let timed_out;
        (guard.lock, timed_out) = lost.taken(waited);
        (guard, timed_out.timed_out())
    }
}

/// The lock itself is released and waited for again: it must be the last one held, or it is out of turn.
const WAITS: &str = "a condition is waited for";

const LOST: &str = "nobody panics who holds it";

macro_rules! guards {
    ($($guard:ident),*) => {$(
        impl<T: ?Sized> Deref for $guard<'_, T> {
            type Target = T;

            #[inline]
            fn deref(&self) -> &T {
                &self.lock
            }
        }
    )*};
}

guards!(MutexGuard, RwLockReadGuard, RwLockWriteGuard);

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.lock
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.lock
    }
}

#[cfg(not(debug_assertions))]
const _: () = {
    use std::mem::size_of;
    assert!(size_of::<Mutex<u64>>() == size_of::<sync::Mutex<u64>>());
    assert!(size_of::<RwLock<u64>>() == size_of::<sync::RwLock<u64>>());
    assert!(size_of::<MutexGuard<'_, u64>>() == size_of::<sync::MutexGuard<'_, u64>>());
};

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// The complaint of the check about `act`, if there is one.
    fn complaint(act: impl FnOnce()) -> Option<String> {
        let panic = catch_unwind(AssertUnwindSafe(act)).err()?;
        Some(*panic.downcast::<String>().expect("it says what is wrong"))
    }

    #[test]
    fn a_wait_for_a_lock_out_of_order_names_both_locks() {
        let (file, evictor) = (Mutex::new(Rank::File, ()), Mutex::new(Rank::Evictor, ()));
        let in_order = complaint(|| {
            let _file = file.lock();
            drop(evictor.lock());
        });
        assert_eq!(in_order, None);
        let first = line!() + 2;
        let wrong = complaint(|| {
            let _evictor = evictor.lock();
            drop(file.lock());
        });
        let expected = "the lock File is waited for under Evictor, taken at ";
        let wrong = wrong.expect("it is out of turn");
        assert!(
            wrong.starts_with(expected) && wrong.contains(&format!("lock.rs:{first}:")),
            "{wrong}"
        );
    }

    #[test]
    fn a_lock_is_held_until_its_guard_goes_in_whatever_order_they_go() {
        let [turn, file, table] =
            [Rank::Turn, Rank::File, Rank::Dirty].map(|rank| Mutex::new(rank, ()));
        let (first, second) = (turn.lock(), file.lock());
        drop(first);
        assert!(complaint(|| drop(turn.lock())).is_some());
        let third = table.lock();
        drop(second);
        assert!(complaint(|| drop(file.lock())).is_some());
        drop(third);
        assert_eq!(complaint(|| drop(turn.lock())), None);
    }

    #[test]
    fn two_of_one_rank_and_what_is_under_a_leaf_are_tried_only() {
        let (one, other) = (Mutex::new(Rank::File, ()), Mutex::new(Rank::File, ()));
        let _one = one.lock();
        assert!(complaint(|| drop(other.lock())).is_some());
        assert!(other.try_lock().is_some());
        let (leaf, other) = (RwLock::new(Rank::Dirty, ()), RwLock::new(Rank::Room, ()));
        let read = leaf.read();
        assert!(complaint(|| drop(other.read())).is_some());
        assert!(complaint(|| drop(leaf.read())).is_some(), "it could stand behind a writer");
        assert!(other.try_write().is_some());
        drop(read);
        drop(other.write());
    }

    #[test]
    fn the_store_is_called_and_conditions_are_waited_for_under_what_lasts_alone() {
        let (turn, file) = (Mutex::new(Rank::Turn, ()), Mutex::new(Rank::File, ()));
        let (leaf, condition) = (Mutex::new(Rank::Batch, ()), Condvar::new());
        let wait = || drop(condition.wait_timeout(leaf.lock(), Duration::ZERO));
        let turn = turn.lock();
        assert_eq!(complaint(|| calls_the_store()), None);
        assert_eq!(complaint(wait), None);
        let file = file.lock();
        assert!(complaint(|| calls_the_store()).is_some());
        assert!(complaint(wait).is_some());
        drop((turn, file));
    }

    #[test]
    fn a_lock_that_a_panicked_thread_held_is_lost() {
        let file = Mutex::new(Rank::File, ());
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _file = file.lock();
            panic!("under the lock");
        }));
        assert!(panicked.is_err());
        assert!(file.try_lock().is_none());
        assert!(complaint(|| drop(file.lock())).is_some_and(|why| why.starts_with(LOST)));
        drop(Mutex::new(Rank::Turn, ()).lock());
    }
}
