//! Running a request: on the calling thread or in the pool, watched, and answered once.
//!
//! Over /dev/fuse, a session thread runs a verb itself while another session thread is free to take
//! the next request; otherwise the verb goes to a pool. So a fast request costs no hand-over, and a
//! slow backing store neither stops the mount nor limits how many requests wait for it. Over
//! io_uring the thread that takes a request runs it, since another thread is always free.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use forebay_backing::metrics::Op;
use forebay_backing::{FileKey, Result};
use forebay_base::lock::{Mutex, Rank, sleep};
use forebay_cluster::core::Ends;
use forebay_cluster::front::{Front, Home, Keeper, Kept, Told};
use forebay_cluster::words::{Answer as Answered, Question};
use forebay_engine::time::Time;
use forebay_engine::{Pool, Teller, Told as AsTold, on_behalf_of};

use crate::busy_poll::BusyPoll;
use crate::holds::Holds;
use crate::reply::{Answer, Fail, Patience, Slot, Tell, Watch, Work};
use crate::returning::former;
use crate::usage::Usage;
use crate::vfs::Vfs;
use crate::waits::Waits;

/// Requests that may wait for the backing store at once, beside those on session threads.
const POOL_THREADS: usize = 64;

/// How long the end of a session waits for requests at work. A request that hangs longer is left.
pub const SETTLE_MAX: Duration = Duration::from_secs(5);

/// The state that all requests share.
pub struct Shared {
    pub vfs: Vfs,
    pub watch: Watch,
    pub verbs: Verbs,
    pub usage: Usage,
    pub waits: Waits,
    pub holds: Holds,
    pub entry_ttl: Duration,
    pool: Pool,
    /// The pool's threads that hang in the store with a request that was answered. Each has a replacement. There are
    /// at most as many as there were requests under way: a store that hangs counts as away, and nobody waits for it.
    hanging: Mutex<usize>,
    /// Requests that were handed to the pool and have not ended.
    pooled: AtomicUsize,
    /// Session threads, and how many of them are at work.
    threads: AtomicUsize,
    busy: AtomicUsize,
    pub busy_poll: BusyPoll,
}

impl Shared {
    pub fn new(vfs: Vfs, threads: usize, entry_ttl: Duration) -> Shared {
        Shared {
            vfs,
            watch: Watch::default(),
            verbs: Verbs::default(),
            usage: Usage::default(),
            waits: Waits::default(),
            holds: Holds::default(),
            entry_ttl,
            pool: Pool::new("fb-request", POOL_THREADS, Time::default()),
            hanging: Mutex::new(Rank::Hanging, 0),
            pooled: AtomicUsize::new(0),
            threads: AtomicUsize::new(threads),
            busy: AtomicUsize::new(0),
            busy_poll: BusyPoll::default(),
        }
    }

    /// Returns a seat if the calling session thread may do the work itself, since another one is free.
    /// The thread counts as busy until the seat is dropped, after the request was answered.
    pub fn seat(&self) -> Option<Seat<'_>> {
        let free = self.busy.fetch_add(1, Relaxed) + 1 < self.threads.load(Relaxed);
        if !free {
            self.busy.fetch_sub(1, Relaxed);
        }
        free.then(|| Seat(self))
    }

    /// Adds a thread to the pool in place of one that hangs, for the requests that wait in the pool.
    pub(crate) fn replace_hanging(&self) {
        let mut hanging = self.hanging.lock();
        *hanging += 1;
        self.pool.set_max(POOL_THREADS + *hanging);
        self.pool.tend();
    }

    /// Takes the replacement of a thread away again: the thread hangs no more.
    pub(crate) fn came_back(&self) {
        let mut hanging = self.hanging.lock();
        *hanging -= 1;
        self.pool.set_max(POOL_THREADS + *hanging);
    }

    /// Answers the requests that hang in the backing store. Returns their number.
    pub fn expire(self: &Arc<Shared>) -> usize {
        let engine = &self.vfs.engine;
        let limit = engine.files.tunables().backing_timeout;
        // The engine's keeper thread checks this, too, but its work in the tier may hold it up.
        engine.health.check_stalls(limit);
        let is_away = !engine.health.is_available();
        // While no call to the store hangs, a request may still be waiting for another member.
        if is_away {
            self.vfs.expire_guests(limit);
        }
        let limit = if is_away { limit } else { limit.max(self.vfs.waits_for_members()) };
        self.watch.expire(self, limit, is_away)
    }

    /// From now on every thread gets a seat: the transport itself keeps a thread free.
    pub fn seat_all(&self) {
        self.threads.store(usize::MAX, Relaxed);
    }

    /// Called at the end of the session, when no session thread is at work. Waits for the pool's
    /// requests, then closes the open handles: the kernel does not report the last closes of a
    /// session. If a request hangs, the handles stay open, since the request may need them.
    pub fn settle(&self) {
        let quiet = || self.pooled.load(SeqCst) == 0;
        if settles(quiet) {
            self.vfs.close_all();
        }
    }
}

fn teller(home: Home<'_>) -> Teller<'_> {
    Teller { home: home.name, epoch: home.epoch, fill: home.fill }
}

/// Passes what a keeper of copies is asked to do on to the engine and the vfs.
impl Keeper for Shared {
    fn keep(
        &self,
        home: Home<'_>,
        told: Told,
        number: u64,
        file: FileKey,
        words: &[u8],
        bytes: &[u8],
    ) -> Result<()> {
        let told = match told {
            Told::Owes => AsTold::Owes,
            Told::Beside => AsTold::Beside,
        };
        self.vfs.engine.copies.keep(teller(home), told, number, file, words, bytes)
    }

    fn mark(&self, home: Home<'_>, words: &[u8]) -> Result<()> {
        self.vfs.engine.copies.mark(teller(home), words)
    }

    fn begin_fill(&self, home: Home<'_>) -> Result<()> {
        self.vfs.engine.copies.announce(teller(home))
    }

    fn copies_of(&self, home: &str) -> Kept {
        let copies = &self.vfs.engine.copies;
        let files = copies.list(home).into_iter().map(|copy| (copy.file, copy.number)).collect();
        Kept { files, is_whole: copies.is_whole(home) }
    }

    fn adopt(&self, home: &str, file: FileKey) -> Result<()> {
        self.vfs.engine.ops.adopt(home, file)
    }

    fn take(&self, file: FileKey) -> Result<()> {
        let from = self.vfs.cluster().map_or_else(Vec::new, |cluster| cluster.taken_from(file));
        self.vfs.engine.ops.hold_taken(file, &former(from))
    }

    fn disown(&self, file: FileKey) -> Result<()> {
        self.vfs.disown(file)
    }

    fn drop_copies(&self, home: &str) {
        self.vfs.drop_copies(home);
    }

    fn settle(&self, file: FileKey) -> Result<()> {
        self.vfs.engine.ops.settle_taken(file)
    }

    fn fill(&self, partner: &str, stop: &dyn Fn() -> bool) -> Result<()> {
        self.vfs.engine.outbox.fill_partner(partner, stop)
    }

    fn suspend(&self, is_suspended: bool) {
        self.vfs.suspend(is_suspended);
    }

    fn superseded(&self) {
        self.vfs.lose_own_locks();
    }

    fn is_idle(&self) -> bool {
        self.vfs.is_idle()
    }
}

/// Passes the questions of the store's members on to the vfs.
impl Front for Shared {
    fn release(&self, file: FileKey) -> bool {
        self.vfs.release_claim(file)
    }

    fn is_free(&self, file: FileKey) -> bool {
        self.vfs.is_free(file)
    }

    fn forget(&self, file: FileKey, ends: &Ends) {
        self.vfs.forget_file(file, ends);
    }

    fn lost(&self, file: FileKey) {
        self.vfs.lose_file(file);
    }

    fn below(&self, path: &Path) -> Vec<FileKey> {
        self.vfs.engine.files.known_below(path)
    }

    fn answer(
        &self,
        from: (&str, u64),
        question: Question,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Answered {
        self.vfs.answer(from, question, bytes, out)
    }

    fn ended(&self, member: &str) {
        self.vfs.member_ended(member);
        self.vfs.locks_ended(member);
    }
}

/// Waits until `quiet` is true. Returns `false` if that takes longer than [`SETTLE_MAX`].
pub fn settles(quiet: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + SETTLE_MAX;
    while !quiet() {
        if Instant::now() >= deadline {
            return false;
        }
        sleep(Duration::from_millis(1));
    }
    true
}

/// A session thread at work.
pub struct Seat<'a>(&'a Shared);

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Relaxed);
        self.0.busy_poll.look_out();
    }
}

macro_rules! verbs {
    ($($name:ident),* $(,)?) => {
        /// Latency of every verb.
        #[derive(Default)]
        pub struct Verbs { $(pub $name: Op),* }

        impl Verbs {
            pub fn all(&self) -> Vec<(&'static str, &Op)> {
                vec![$((stringify!($name), &self.$name)),*]
            }
        }
    };
}

verbs!(
    lookup, getattr, setattr, readlink, make, unlink, rmdir, rename, link, create, open, read,
    write, flush, release, fsync, readdir, fsyncdir, statfs, xattr, fallocate, lseek, lock,
);

/// One request: its work, its answer, and its fallback if the work hangs.
pub struct Do<T> {
    op: fn(&Verbs) -> &Op,
    patience: Patience,
    work: Work<T>,
    answer: Answer<T>,
    fallback: Option<Work<T>>,
    /// Undoes a result that came after the request was answered.
    abandon: fn(&Shared, T),
}

impl<T: Send + 'static> Do<T> {
    pub fn new<R: Tell<T>>(
        op: fn(&Verbs) -> &Op,
        reply: R,
        work: impl FnOnce(&Vfs) -> Result<T> + Send + 'static,
    ) -> Do<T> {
        Do::with(op, reply, work, |shared, reply: R, value| reply.tell(shared, value))
    }

    pub fn with<R: Fail>(
        op: fn(&Verbs) -> &Op,
        reply: R,
        work: impl FnOnce(&Vfs) -> Result<T> + Send + 'static,
        answer: impl FnOnce(&Shared, R, T) + Send + 'static,
    ) -> Do<T> {
        let answer = move |shared: &Shared, result: Result<T>| match result {
            Ok(value) => answer(shared, reply, value),
            Err(error) => {
                tracing::trace!(error = %error, "request failed");
                reply.fail(error.errno());
            }
        };
        Do {
            op,
            patience: Patience::Short,
            work: Box::new(move |shared| work(&shared.vfs)),
            answer: Box::new(answer),
            fallback: None,
            abandon: |_, _| (),
        }
    }

    pub fn patient(mut self) -> Do<T> {
        self.patience = Patience::Long;
        self
    }

    /// Sets the work that answers from the tier alone (S10).
    pub fn or(mut self, fallback: impl FnOnce(&Vfs) -> Result<T> + Send + 'static) -> Do<T> {
        self.fallback = Some(Box::new(move |shared| fallback(&shared.vfs)));
        self
    }

    pub fn undo(mut self, abandon: fn(&Shared, T)) -> Do<T> {
        self.abandon = abandon;
        self
    }

    /// Runs the request on this thread or in the pool.
    pub fn run(self, shared: &Arc<Shared>) {
        let Do { op, patience, work, answer, fallback, abandon } = self;
        let slot = Slot::new(answer, fallback);
        let n = shared.watch.begin(&slot, patience);
        let at = slot.clone();
        let job = move |shared: &Shared| {
            let watched = shared.watch.watched(n);
            let result =
                on_behalf_of(slot.clone(), || op(&shared.verbs).time(|_| 0, || work(shared)));
            drop(watched);
            if let Some(Ok(unwanted)) = slot.give(shared, result) {
                abandon(shared, unwanted);
            }
        };
        match shared.seat() {
            Some(_seat) => job(shared),
            None => {
                let pool = shared.pool.clone();
                let pooled = Pooled::new(shared.clone());
                pool.run(move || {
                    let in_pool = at.in_pool(&pooled.0);
                    job(&pooled.0);
                    drop(in_pool);
                });
            }
        }
    }
}

/// Counts a request that is in the pool.
struct Pooled(Arc<Shared>);

impl Pooled {
    fn new(shared: Arc<Shared>) -> Pooled {
        shared.pooled.fetch_add(1, SeqCst);
        Pooled(shared)
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.0.pooled.fetch_sub(1, SeqCst);
    }
}
