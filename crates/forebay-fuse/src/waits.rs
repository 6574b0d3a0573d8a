//! Programs that wait for a lock. Each answer is kept here until the lock is granted, the program is
//! interrupted, or the file's home is out of reach for too long. A wait holds no thread.
//!
//! One thread tends all waits of a mount. It is told of granted locks, and asks again now and then, since
//! such a message may be lost. Work that may itself wait is done in a pool.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::{Duration, Instant};

use forebay_backing::{Error, Result};
use forebay_base::lock::{Mutex, Rank};
use forebay_cluster::locks::{HeldBy, Lock, Of, Range, Waiter};
use forebay_engine::Pool;
use forebay_engine::time::Time;

use crate::reply::{Answer, Tell};
use crate::request::{Do, Shared};
use crate::vfs::{Came, Told, Vfs, Wanted};

/// The most waits at once. Over io_uring each one has an entry of its queue, which has at most 512.
const WAITS_MAX: usize = 400;

/// How often a wait asks the file's home again, whether or not it was told anything.
const AGAIN: Duration = Duration::from_secs(1);

/// How often a wait asks a home that is out of reach, and after how long it fails.
const RETRY: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(5);

/// The most interrupts that are remembered for requests that are not known yet.
const EARLY_MAX: usize = 1024;

const THREADS: usize = 64;

pub struct Waits {
    table: Mutex<Table>,
    pool: Pool,
}

impl Default for Waits {
    fn default() -> Waits {
        let pool = Pool::new("fb-locks", THREADS, Time::default());
        Waits { table: Mutex::new(Rank::Waits, Table::default()), pool }
    }
}

#[derive(Default)]
struct Table {
    /// By the kernel's number of the request.
    waits: HashMap<u64, Arc<Wait>>,
    early: VecDeque<u64>,
}

struct Wait {
    unique: u64,
    wanted: Wanted,
    /// The number by which the file's home knows the wait.
    number: AtomicU64,
    stage: Mutex<Stage>,
}

struct Stage {
    answer: Option<Answer<()>>,
    /// Whether a thread drives the wait.
    is_driven: bool,
    /// Whether something has happened since that thread began its step.
    again: bool,
    is_interrupted: bool,
    has_asked: bool,
    due: Instant,
    /// Since when the file's home is out of reach.
    failing: Option<Instant>,
}

impl Waits {
    /// Returns `false` if there are too many waits already.
    fn enter(&self, wait: &Arc<Wait>) -> bool {
        let mut table = self.table.lock();
        if table.waits.len() >= WAITS_MAX {
            return false;
        }
        if let Some(at) = table.early.iter().position(|unique| *unique == wait.unique) {
            table.early.remove(at);
            wait.stage.lock().is_interrupted = true;
        }
        table.waits.insert(wait.unique, wait.clone());
        true
    }

    fn all(&self) -> Vec<Arc<Wait>> {
        self.table.lock().waits.values().cloned().collect()
    }

    /// Returns the wait that an interrupt names. An interrupt that comes before its request is
    /// remembered.
    fn interrupted(&self, unique: u64) -> Option<Arc<Wait>> {
        let mut table = self.table.lock();
        if let Some(wait) = table.waits.get(&unique) {
            return Some(wait.clone());
        }
        table.early.push_back(unique);
        if table.early.len() > EARLY_MAX {
            table.early.pop_front();
        }
        None
    }
}

impl Wait {
    /// Takes one step. Returns the result of the wait, or `None` if the wait goes on.
    fn step(&self, shared: &Shared) -> Option<Result<()>> {
        let (is_interrupted, has_asked) = {
            let mut stage = self.stage.lock();
            stage.again = false;
            let has_asked = stage.has_asked;
            stage.has_asked |= !stage.is_interrupted;
            (stage.is_interrupted, has_asked)
        };
        let interrupted = || Error::os(libc::EINTR, "a signal came while it waited for a lock");
        let number = self.number.load(Relaxed);
        if is_interrupted {
            if !has_asked {
                return Some(Err(interrupted()));
            }
            return Some(match shared.vfs.cancel_lock(&self.wanted, number) {
                Ok(Came::Granted) => Ok(()),
                _ => Err(interrupted()),
            });
        }
        match shared.vfs.set_lock(&self.wanted, Some(&self.number)) {
            Ok(Came::Granted) => Some(Ok(())),
            Ok(Came::Waits | Came::Cancelled) => {
                let mut stage = self.stage.lock();
                stage.failing = None;
                stage.due = Instant::now() + AGAIN;
                None
            }
            Err(error) if matches!(error.errno(), libc::EIO | libc::ETIMEDOUT) => {
                let mut stage = self.stage.lock();
                stage.due = Instant::now() + RETRY;
                let since = *stage.failing.get_or_insert_with(Instant::now);
                drop(stage);
                if since.elapsed() < PATIENCE {
                    return None;
                }
                shared.vfs.give_up_lock(&self.wanted, self.number.load(Relaxed));
                let pid = self.wanted.lock.pid;
                tracing::warn!(%error, pid, "the wait for a lock has failed");
                Some(Err(error))
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// Takes the wait as far as it goes now; one thread at a time.
    fn drive(&self, shared: &Shared) {
        {
            let mut stage = self.stage.lock();
            stage.again = true;
            if std::mem::replace(&mut stage.is_driven, true) {
                return;
            }
        }
        loop {
            let came = self.step(shared);
            let mut stage = self.stage.lock();
            match came {
                None if stage.again => {}
                None => {
                    stage.is_driven = false;
                    drop(stage);
                    shared.vfs.look_at_locks();
                    return;
                }
                Some(result) => {
                    // `is_driven` stays set: no other thread drives an ended wait.
                    let answer = stage.answer.take();
                    drop(stage);
                    shared.waits.table.lock().waits.remove(&self.unique);
                    if let Some(answer) = answer {
                        answer(shared, result);
                    }
                    return;
                }
            }
        }
    }
}

impl Shared {
    /// Takes a lock now or not at all.
    pub fn set_lock(self: &Arc<Shared>, handle: u64, of: Of, wish: Lock, reply: impl Tell<()>) {
        let wanted = Wanted { handle, of, lock: wish };
        let work = move |vfs: &Vfs| vfs.set_lock(&wanted, None).map(drop);
        Do::new(|v| &v.lock, reply, work).patient().run(self);
    }

    pub fn unset_lock(self: &Arc<Shared>, handle: u64, of: Of, range: Range, reply: impl Tell<()>) {
        let work = move |vfs: &Vfs| vfs.unset_lock(handle, of, range);
        Do::new(|v| &v.lock, reply, work).patient().run(self);
    }

    pub fn test_lock(
        self: &Arc<Shared>,
        handle: u64,
        of: Of,
        wish: Lock,
        reply: impl Tell<Option<HeldBy>>,
    ) {
        let work = move |vfs: &Vfs| vfs.test_lock(handle, of, wish);
        Do::new(|v| &v.lock, reply, work).patient().run(self);
    }

    /// Takes a lock and waits for it. `unique` is the kernel's number of the request.
    pub fn wait_lock(
        self: &Arc<Shared>,
        unique: u64,
        handle: u64,
        of: Of,
        wish: Lock,
        reply: impl Tell<()>,
    ) {
        let began = Instant::now();
        let answer = move |shared: &Shared, result: Result<()>| {
            shared.verbs.lock.record(began.elapsed(), 0);
            match result {
                Ok(()) => reply.tell(shared, ()),
                Err(error) => reply.fail(error.errno()),
            }
        };
        let stage = Stage {
            answer: Some(Box::new(answer)),
            is_driven: false,
            again: false,
            is_interrupted: false,
            has_asked: false,
            due: began,
            failing: None,
        };
        let number = AtomicU64::new(self.vfs.lock_number());
        let wanted = Wanted { handle, of, lock: wish };
        let wait = Wait { unique, wanted, number, stage: Mutex::new(Rank::Wait, stage) };
        let wait = Arc::new(wait);
        match (self.waits.enter(&wait), self.seat()) {
            (true, Some(_seat)) => wait.drive(self),
            (true, None) => self.drive_in_pool(wait),
            (false, _) => {
                tracing::warn!(waits = WAITS_MAX, "too many programs wait for locks: ENOLCK");
                let answer = wait.stage.lock().answer.take();
                let full = Error::os(libc::ENOLCK, "too many programs wait for locks");
                if let Some(answer) = answer {
                    answer(self, Err(full));
                }
            }
        }
    }

    fn drive_in_pool(self: &Arc<Shared>, wait: Arc<Wait>) {
        let shared = self.clone();
        self.waits.pool.run(move || wait.drive(&shared));
    }

    /// Ends the wait of the request `unique`: a signal has interrupted its program.
    pub fn interrupt(self: &Arc<Shared>, unique: u64) {
        if let Some(wait) = self.waits.interrupted(unique) {
            wait.stage.lock().is_interrupted = true;
            self.drive_in_pool(wait);
        }
    }

    /// Starts the thread that tends locks; to be called before requests are served.
    pub fn tend_locks(self: &Arc<Shared>) -> Result<()> {
        let (tells, told) = channel();
        self.vfs.tell_of_locks(tells);
        let shared = Arc::downgrade(self);
        let tend = Builder::new().name("fb-locks".into()).spawn(move || tend(&shared, &told));
        tend.map(drop).map_err(|e| Error::io(e, "starting the thread that tends locks"))
    }

    fn told_of_locks(self: &Arc<Shared>, told: Told) {
        match told {
            Told::Granted(number) => {
                let mut waits = self.waits.all().into_iter();
                if let Some(wait) = waits.find(|wait| wait.number.load(Relaxed) == number) {
                    self.drive_in_pool(wait);
                }
            }
            Told::GrantedThere(waiter) => {
                let shared = self.clone();
                let Waiter { owner, number, .. } = waiter;
                self.waits.pool.run(move || shared.vfs.tell_granted(&owner.member, number));
            }
            Told::Ended(member) => {
                for wait in self.waits.all() {
                    self.drive_in_pool(wait);
                }
                let shared = self.clone();
                self.waits.pool.run(move || shared.vfs.reclaim_locks(&member));
            }
            Told::Look => {}
        }
    }

    /// Drives the waits that are due. Returns when the next one is due.
    fn look_at_waits(self: &Arc<Shared>) -> Option<Instant> {
        let now = Instant::now();
        let mut next = None::<Instant>;
        for wait in self.waits.all() {
            let stage = wait.stage.lock();
            let (due, is_driven) = (stage.due, stage.is_driven);
            drop(stage);
            match !is_driven && due <= now {
                true => self.drive_in_pool(wait),
                // The thread that drives the wait calls for another look when it is done.
                false if is_driven => {}
                false => next = Some(next.map_or(due, |next| next.min(due))),
            }
        }
        next
    }
}

fn tend(shared: &Weak<Shared>, told: &Receiver<Told>) {
    let mut paid = Instant::now();
    loop {
        let Some(mine) = shared.upgrade() else { return };
        let mut next = mine.look_at_waits();
        if mine.vfs.owes_locks() || mine.vfs.has_left_handles() {
            if paid.elapsed() >= AGAIN {
                paid = Instant::now();
                let payer = mine.clone();
                mine.waits.pool.run(move || payer.vfs.pay_owed_locks());
                let closer = mine.clone();
                mine.waits.pool.run(move || closer.vfs.close_left());
            }
            let again = paid + AGAIN;
            next = Some(next.map_or(again, |next| next.min(again)));
        }
        drop(mine);
        let came = match next {
            Some(next) => told.recv_timeout(next.saturating_duration_since(Instant::now())),
            None => told.recv().map_err(RecvTimeoutError::from),
        };
        match came {
            Ok(told) => {
                let Some(mine) = shared.upgrade() else { return };
                mine.told_of_locks(told);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
