//! Running a request: here or in the pool, watched, and answered once.
//!
//! Over /dev/fuse, a session thread runs a verb itself while another session thread is free to take
//! the next request; otherwise the verb goes to a pool. So a fast request costs no hand-over, and a
//! slow backing store neither stops the mount nor limits how many requests wait for it. Over
//! io_uring whoever takes a request runs it, since somebody else is always free.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

use forebay_backing::metrics::Op;
use forebay_backing::{FileKey, Result};
use forebay_base::lock::{Mutex, Rank, sleep};
use forebay_cluster::core::Revision;
use forebay_cluster::front::{Front, Home, Keeper, Kept, Told};
use forebay_cluster::words::{Answer as Answered, Question};
use forebay_engine::time::Time;
use forebay_engine::{Pool, Teller, Told as AsTold, on_behalf_of};

use crate::busy_poll::BusyPoll;
use crate::reply::{Answer, Fail, Patience, Slot, Tell, Watch, Work};
use crate::usage::Usage;
use crate::vfs::Vfs;
use crate::waits::Waits;

/// Requests that may wait for the backing store at once, beside those on session threads.
const POOL_THREADS: usize = 64;

/// At the end of the session requests at work are waited for so long: one that hangs is left.
pub const SETTLE_MAX: Duration = Duration::from_secs(5);

/// What all requests share.
pub struct Shared {
    pub vfs: Vfs,
    pub watch: Watch,
    pub verbs: Verbs,
    pub usage: Usage,
    pub waits: Waits,
    pub entry_ttl: Duration,
    pool: Pool,
    /// Its threads that hang in the store with a request that was answered: so many others have come. No more can than
    /// programs had requests under way, since a store that hangs counts as away, which nobody waits for.
    hanging: Mutex<usize>,
    /// Requests that were handed to it and have not ended.
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
            entry_ttl,
            pool: Pool::new("fb-request", POOL_THREADS, Time::default()),
            hanging: Mutex::new(Rank::Hanging, 0),
            pooled: AtomicUsize::new(0),
            threads: AtomicUsize::new(threads),
            busy: AtomicUsize::new(0),
            busy_poll: BusyPoll::default(),
        }
    }

    /// Whether the calling session thread may do the work itself: another one is free. It counts
    /// as busy until the seat is dropped, which is when the request has been answered.
    pub fn seat(&self) -> Option<Seat<'_>> {
        let free = self.busy.fetch_add(1, Relaxed) + 1 < self.threads.load(Relaxed);
        if !free {
            self.busy.fetch_sub(1, Relaxed);
        }
        free.then(|| Seat(self))
    }

    /// A thread of the pool hangs: what waits there does not wait for it.
    pub(crate) fn replace_hanging(&self) {
        let mut hanging = self.hanging.lock();
        *hanging += 1;
        self.pool.set_max(POOL_THREADS + *hanging);
        self.pool.tend();
    }

    /// It hangs no more.
    pub(crate) fn came_back(&self) {
        let mut hanging = self.hanging.lock();
        *hanging -= 1;
        self.pool.set_max(POOL_THREADS + *hanging);
    }

    /// Answers for requests that hang in the backing store, in their stead. Returns how many.
    pub fn expire(self: &Arc<Shared>) -> usize {
        let engine = &self.vfs.engine;
        let limit = engine.files.tunables().backing_timeout;
        // The keeper looks too, if it gets there: it works in the tier.
        engine.health.check_stalls(limit);
        let is_away = !engine.health.is_available();
        // While no call to the store hangs a request may rightly wait for another member.
        if is_away {
            self.vfs.expire_guests(limit);
        }
        let limit = if is_away { limit } else { limit.max(self.vfs.waits_for_members()) };
        self.watch.expire(self, limit, is_away)
    }

    /// From now on there is a seat for everybody: the transport keeps a thread free by itself.
    pub fn seat_all(&self) {
        self.threads.store(usize::MAX, Relaxed);
    }

    /// When the session has ended, and no session thread is at work: ends what the pool works on,
    /// then what is still open. The kernel ends a session without a word of the last closes. What a
    /// request that hangs may need stays open.
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

/// So are copies.
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
        self.vfs.engine.ops.hold_taken(file)
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

/// What members of the store ask is the vfs's to answer.
impl Front for Shared {
    fn release(&self, file: FileKey) -> bool {
        self.vfs.release_claim(file)
    }

    fn is_free(&self, file: FileKey) -> bool {
        self.vfs.is_free(file)
    }

    fn forget(&self, file: FileKey, given: Revision) {
        self.vfs.forget_file(file, given);
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

/// Waits until `quiet`; `false` if that takes too long.
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

/// One request: what to do, how to answer, and what to do if that hangs.
pub struct Do<T> {
    op: fn(&Verbs) -> &Op,
    patience: Patience,
    work: Work<T>,
    answer: Answer<T>,
    fallback: Option<Work<T>>,
    /// Undoes a result that nobody will hear of.
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

    /// How to answer from what is in the tier (S10).
    pub fn or(mut self, fallback: impl FnOnce(&Vfs) -> Result<T> + Send + 'static) -> Do<T> {
        self.fallback = Some(Box::new(move |shared| fallback(&shared.vfs)));
        self
    }

    pub fn undo(mut self, abandon: fn(&Shared, T)) -> Do<T> {
        self.abandon = abandon;
        self
    }

    /// Runs it here or in the pool.
    pub fn run(self, shared: &Arc<Shared>) {
        let Do { op, patience, work, answer, fallback, abandon } = self;
        let slot = Slot::new(answer, fallback);
        let n = shared.watch.begin(&slot, patience);
        let at = slot.clone();
        let job = move |shared: &Shared| {
            let result =
                on_behalf_of(slot.clone(), || op(&shared.verbs).time(|_| 0, || work(shared)));
            shared.watch.end(n);
            if let Some(Ok(unwanted)) = slot.give(shared, result) {
                abandon(shared, unwanted);
            }
        };
        match shared.seat() {
            Some(_seat) => job(shared),
            None => {
                let (pool, shared) = (shared.pool.clone(), shared.clone());
                shared.pooled.fetch_add(1, SeqCst);
                pool.run(move || {
                    let in_pool = at.in_pool(&shared);
                    job(&shared);
                    drop(in_pool);
                    shared.pooled.fetch_sub(1, SeqCst);
                });
            }
        }
    }
}
