//! Simulated time.
//!
//! Invariants:
//! - T1: time moves only when all participants wait for it, and then to the first wake-up: the work
//!   between two waits takes no time.
//! - T2: a thread whose time has come is notified until it has left its wait, and time stands until
//!   then.
//! - T3: time moves only while a driver exists and waits: the end of a test leaves time standing.
//!
//! A participant that sleeps elsewhere for [`HANGS`], such as in a call to a store, hangs, and is not
//! waited for until it is back; a driver is always waited for. A thread that only waits for a processor
//! does not hang.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Pid;

use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank};

/// In real time: far longer than any thread sleeps for a lock.
const HANGS: Duration = Duration::from_millis(500);

/// After this many times `HANGS` without a thread that begins the owed work, all threads that could
/// begin it are thought to hang.
const UNBEGUN: u32 = 20;

/// In real time: how often a waiting thread looks for a driver while there is none.
const STANDS: Duration = Duration::from_secs(60);

/// In real time: a notification may come just before the wait that it is for.
const AGAIN: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Simulation {
    start: (Instant, SystemTime),
    /// Nanoseconds after the start. Each look adds one, so that two looks never give the same moment.
    now: AtomicU64,
    people: Mutex<People>,
}

#[derive(Debug, Default)]
struct People {
    last_id: u64,
    waiting: BTreeMap<u64, Waiting>,
    /// The work that is owed or under way.
    at_work: BTreeMap<u64, Work>,
    /// When it was last checked which threads hang, in real time.
    looked: Option<Instant>,
    drivers: BTreeSet<u64>,
    /// The number of times that a participant came or went.
    moves: u64,
}

#[derive(Debug)]
struct Waiting {
    until: u64,
    /// Points to the condition that the waiting thread borrows as long as this entry exists.
    condition: *const Condvar,
}

// SAFETY: the pointer is followed only while the waiting thread borrows its target, and a condition
// variable may be notified from any thread.
unsafe impl Send for Waiting {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    UnderWay,
    Waits,
    Hangs,
}

#[derive(Debug)]
struct Work {
    doing: Doing,
    /// The thread that does the work; `None` until it is begun.
    by: Option<Pid>,
    /// How often the thread had gone to sleep when it was last found asleep.
    slept: Option<u64>,
    /// How often the work was found unbegun.
    unbegun: u32,
}

impl Work {
    fn hangs(&mut self) -> bool {
        let Some(by) = self.by else {
            self.unbegun += 1;
            return self.unbegun >= UNBEGUN;
        };
        let before = std::mem::replace(&mut self.slept, sleeps(by));
        before.is_some() && before == self.slept
    }
}

/// How often a thread has gone to sleep, if it is asleep now, and not waiting for a disk.
fn sleeps(thread: Pid) -> Option<u64> {
    let path = format!("/proc/self/task/{}/status", thread.as_raw_nonzero());
    let status = std::fs::read_to_string(path).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|rest| rest.trim_start_matches(':').trim())
    };
    let asleep = field("State")?.starts_with('S');
    asleep.then(|| field("voluntary_ctxt_switches")?.parse().ok()).flatten()
}

/// Work that no thread has begun yet.
#[derive(Debug)]
pub(super) struct Owed {
    of: Arc<Simulation>,
    id: u64,
}

/// The calling thread's work.
#[derive(Debug)]
pub(super) struct Entered {
    /// `None` if the thread was at work already.
    owed: Option<Owed>,
}

thread_local! {
    /// The work of this thread.
    static MINE: RefCell<Option<(Weak<Simulation>, u64)>> = const { RefCell::new(None) };
}

impl Simulation {
    pub fn begin() -> Arc<Simulation> {
        let start = (Instant::now(), SystemTime::now());
        Arc::new(Simulation {
            start,
            now: AtomicU64::new(0),
            people: Mutex::new(Rank::Time, Default::default()),
        })
    }

    pub fn now(&self) -> Instant {
        self.start.0 + Duration::from_nanos(self.now.fetch_add(1, SeqCst))
    }

    pub fn of_day(&self) -> SystemTime {
        self.start.1 + Duration::from_nanos(self.now.load(SeqCst))
    }

    fn people(&self) -> MutexGuard<'_, People> {
        self.people.lock()
    }

    pub fn owe(self: &Arc<Simulation>) -> Owed {
        let mut people = self.people();
        let id = people.next_id();
        let work = Work { doing: Doing::UnderWay, by: None, slept: None, unbegun: 0 };
        people.at_work.insert(id, work);
        drop(people);
        Owed { of: self.clone(), id }
    }

    pub fn drive(self: &Arc<Simulation>) -> Entered {
        let owed = self.owe();
        self.people().drivers.insert(owed.id);
        owed.enter()
    }

    /// The id of the calling thread's work.
    fn mine(&self) -> Option<u64> {
        let is_ours = |of: &Weak<Simulation>| std::ptr::eq(of.as_ptr(), self);
        MINE.with_borrow(|mine| mine.as_ref().filter(|(of, _)| is_ours(of)).map(|(_, id)| *id))
    }

    pub fn wait_while<'a, T>(
        &self,
        condition: &Condvar,
        mut guard: MutexGuard<'a, T>,
        limit: Duration,
        mut holds: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, bool) {
        let until = self.in_nanos(limit);
        while holds(&mut guard) {
            let timed_out;
            (guard, timed_out) = self.wait_until(condition, guard, until);
            if timed_out {
                let timed_out = holds(&mut guard);
                return (guard, timed_out);
            }
        }
        (guard, false)
    }

    pub fn wait<'a, T>(
        &self,
        condition: &Condvar,
        guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        self.wait_until(condition, guard, self.in_nanos(limit))
    }

    fn in_nanos(&self, limit: Duration) -> u64 {
        let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        self.now.load(SeqCst).saturating_add(limit)
    }

    fn wait_until<'a, T>(
        &self,
        condition: &Condvar,
        mut guard: MutexGuard<'a, T>,
        until: u64,
    ) -> (MutexGuard<'a, T>, bool) {
        let stay = Stay::enter(self, condition, until);
        loop {
            let (timeout, seen) = {
                let mut people = self.people();
                people.pass(&self.now);
                let now = self.now.load(SeqCst);
                let due = people.notify_due(now);
                if now >= until {
                    break;
                }
                // No wake-up will be late where no time passes.
                let limit = if people.drivers.is_empty() { STANDS } else { HANGS };
                (if due { AGAIN } else { limit }, people.moves)
            };
            let (again, timed_out) = condition.wait_timeout(guard, timeout);
            guard = again;
            if !timed_out {
                break;
            }
            let mut people = self.people();
            if timeout == HANGS && people.moves == seen {
                people.let_hang();
            }
        }
        drop(stay);
        let timed_out = self.now.load(SeqCst) >= until;
        (guard, timed_out)
    }
}

impl People {
    fn next_id(&mut self) -> u64 {
        self.moves += 1;
        self.last_id += 1;
        self.last_id
    }

    /// Moves time to the first wake-up (T1, T2, T3).
    fn pass(&mut self, now: &AtomicU64) {
        let busy = self.at_work.values().any(|work| work.doing == Doing::UnderWay);
        let Some(first) = self.waiting.values().map(|waiting| waiting.until).min() else { return };
        if !busy && !self.drivers.is_empty() && now.fetch_max(first, SeqCst) < first {
            self.moves += 1;
        }
    }

    /// Notifies the waiting threads that are due; returns whether there are any (T2).
    fn notify_due(&self, now: u64) -> bool {
        let mut due = self.waiting.values().filter(|waiting| waiting.until <= now).peekable();
        let any = due.peek().is_some();
        for waiting in due {
            // SAFETY: the entry is in the table, whose lock is held: the waiting thread still borrows
            // the condition.
            unsafe { (*waiting.condition).notify_all() };
        }
        any
    }

    fn let_hang(&mut self) {
        if self.looked.is_some_and(|looked| looked.elapsed() < HANGS) {
            return;
        }
        self.looked = Some(Instant::now());
        let drivers = &self.drivers;
        let under_way =
            |(id, work): &(&u64, &mut Work)| work.doing == Doing::UnderWay && !drivers.contains(id);
        let mut busy: Vec<_> = self.at_work.iter_mut().filter(under_way).collect();
        // A thread that does not hang may be the one that the others wait for.
        let awake = busy.iter_mut().filter_map(|(_, work)| (!work.hangs()).then_some(())).count();
        if awake == 0 {
            busy.into_iter().for_each(|(_, work)| work.doing = Doing::Hangs);
        }
    }
}

/// One wait of a thread.
struct Stay<'a> {
    of: &'a Simulation,
    id: u64,
    /// The work that the thread otherwise does.
    work: Option<u64>,
}

impl<'a> Stay<'a> {
    fn enter(of: &'a Simulation, condition: &'a Condvar, until: u64) -> Stay<'a> {
        let work = of.mine();
        let mut people = of.people();
        let id = people.next_id();
        people.waiting.insert(id, Waiting { until, condition });
        if let Some(work) = work {
            people.at_work.entry(work).and_modify(|work| work.doing = Doing::Waits);
        }
        Stay { of, id, work }
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        let mut people = self.of.people();
        people.moves += 1;
        people.waiting.remove(&self.id);
        if let Some(work) = self.work {
            people.at_work.entry(work).and_modify(|work| work.doing = Doing::UnderWay);
        }
    }
}

impl Owed {
    pub fn enter(self) -> Entered {
        if self.of.mine().is_some() {
            return Entered { owed: None };
        }
        MINE.set(Some((Arc::downgrade(&self.of), self.id)));
        let me = rustix::thread::gettid();
        self.of.people().at_work.entry(self.id).and_modify(|work| work.by = Some(me));
        Entered { owed: Some(self) }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        let mut people = self.of.people();
        people.moves += 1;
        people.at_work.remove(&self.id);
        people.drivers.remove(&self.id);
        // Another waiting thread may have waited for this change.
        people.pass(&self.of.now);
        people.notify_due(self.of.now.load(SeqCst));
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.owed.is_some() {
            // Destructors of a thread's locals run in any order.
            let _ = MINE.try_with(|mine| mine.replace(None));
        }
    }
}
