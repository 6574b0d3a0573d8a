//! Simulated time.
//!
//! Invariants:
//! - T1: time moves only when all who take part wait for it, and then to where the first one wakes: what
//!   one does between two waits takes none.
//! - T2: whose time has come is notified until it has left its wait, and time stands until then.
//! - T3: time moves only while somebody drives it and waits: a test that has ended leaves it standing.
//!
//! Who takes part and sleeps elsewhere for [`HANGS`], such as in a call to a store, hangs, and is not
//! waited for until it is back; who drives is. Who only has to wait for a processor does not hang.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Pid;

use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank};

/// In real time: far more than anybody sleeps for a lock.
const HANGS: Duration = Duration::from_millis(500);

/// So many times as long nobody may come to begin what is owed, before it is thought that those who
/// would all hang.
const UNBEGUN: u32 = 20;

/// In real time: so often who waits looks for a driver while there is none.
const STANDS: Duration = Duration::from_secs(60);

/// In real time: a notification can come just before the wait that it is for.
const AGAIN: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Simulation {
    start: (Instant, SystemTime),
    /// Nanoseconds after the start. Each look takes one, so that what is compared is never the same.
    now: AtomicU64,
    people: Mutex<People>,
}

#[derive(Debug, Default)]
struct People {
    last_id: u64,
    waiting: BTreeMap<u64, Waiting>,
    /// What is owed or under way.
    at_work: BTreeMap<u64, Work>,
    /// When it was last looked who hangs, in real time.
    looked: Option<Instant>,
    drivers: BTreeSet<u64>,
    /// How often somebody came or went.
    moves: u64,
}

#[derive(Debug)]
struct Waiting {
    until: u64,
    /// Of a borrow that lasts as long as this is here.
    condition: *const Condvar,
}

// SAFETY: the pointer is followed only while what it points to is borrowed by the thread that waits, and
// a condition variable may be notified from any thread.
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
    /// `None` until it is begun.
    by: Option<Pid>,
    /// How often the thread had gone to sleep when it was found asleep last.
    slept: Option<u64>,
    /// How often it was found to be unbegun.
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

/// How often a thread has gone to sleep, if it is asleep: and not for a disk.
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
    /// `None` where the thread was at work already.
    owed: Option<Owed>,
}

thread_local! {
    /// What the thread is at work on.
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
                // Nothing will be late where no time passes.
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

    /// Lets time go on to where the first one wakes (T1, T2, T3).
    fn pass(&mut self, now: &AtomicU64) {
        let busy = self.at_work.values().any(|work| work.doing == Doing::UnderWay);
        let Some(first) = self.waiting.values().map(|waiting| waiting.until).min() else { return };
        if !busy && !self.drivers.is_empty() && now.fetch_max(first, SeqCst) < first {
            self.moves += 1;
        }
    }

    /// Returns whether somebody is notified who has not left yet (T2).
    fn notify_due(&self, now: u64) -> bool {
        let mut due = self.waiting.values().filter(|waiting| waiting.until <= now).peekable();
        let any = due.peek().is_some();
        for waiting in due {
            // SAFETY: it is in the table, under whose lock we are: who waits borrows it still.
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
        // One that does not may be who the others wait for.
        let awake = busy.iter_mut().filter_map(|(_, work)| (!work.hangs()).then_some(())).count();
        if awake == 0 {
            busy.into_iter().for_each(|(_, work)| work.doing = Doing::Hangs);
        }
    }
}

/// One wait.
struct Stay<'a> {
    of: &'a Simulation,
    id: u64,
    /// What the thread is at work on otherwise.
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
        // Whoever waits may have waited for this.
        people.pass(&self.of.now);
        people.notify_due(self.of.now.load(SeqCst));
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.owed.is_some() {
            // Destructors of a thread come in any order.
            let _ = MINE.try_with(|mine| mine.replace(None));
        }
    }
}
