//! A registry of one machine: a file that one process serves.
//!
//! Requests that several threads make at the same time share a transaction, and its sync. Reads look
//! at a snapshot and never wait.
//!
//! - E1: a lease that has run out is ended before any answer that could show its keys, and before it
//!   can be renewed or used again.
//!
//! The writing thread holds no lock: it has the `Queue::turn`.

mod history;
mod leases;
mod place;
mod store;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use forebay_base::lock::{Condvar, Mutex, Rank, asks_the_registry};
pub use history::{BOUND, Bound};
use history::{History, Past};
use leases::Leases;
use store::{Store, Writing};

use crate::keep::{Kept, Source, check_ttl};
use crate::{
    BootClock, Clock, Commit, Entry, Error, Health, Identity, Kind, Lease, LeaseId, Outcome,
    Registry, Result, Revision, Seen, Watch, limits,
};

/// How often the clock is looked at if no lease is about to run out: an injected clock may jump.
const LOOK: Duration = Duration::from_secs(1);

/// The most jobs that share one transaction: each may be as large as a commit.
const BATCH_MAX: usize = 128;

/// A registry of one machine, open until this and everything derived from it are dropped.
pub struct Embedded {
    inner: Arc<Inner>,
    sweeper: Option<JoinHandle<()>>,
}

struct Inner {
    dir: PathBuf,
    address: String,
    cluster: String,
    store: Store,
    clock: Arc<dyn Clock>,
    queue: Mutex<Queue>,
    /// Notified when a turn has ended.
    written: Condvar,
    leases: Mutex<Leases>,
    /// Notified when a lease is granted, and at the end.
    leased: Condvar,
    history: Mutex<History>,
    happened: Condvar,
    closed: OnceLock<()>,
}

/// The jobs that wait to be written.
#[derive(Default)]
struct Queue {
    jobs: Vec<Arc<Job>>,
    turn: Turn,
}

/// Whether a thread writes. All waiting threads are woken when it has finished: those whose jobs are
/// done hand in their next ones together, and the next turn has them all.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Turn {
    #[default]
    Free,
    Taken,
}

/// Ends a turn on drop, also after a panic.
struct Writer<'r>(&'r Inner);

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        // Also while unwinding.
        self.0.queue.lock_anyway().turn = Turn::Free;
        self.0.written.notify_all();
    }
}

/// A job to be written, and its outcome.
struct Job {
    wish: Wish,
    done: OnceLock<std::result::Result<Outcome, Failure>>,
}

enum Wish {
    Commit(Commit),
    Grant(LeaseId, Duration),
    End(LeaseId),
    Compact(Revision),
}

/// An error that several callers get.
#[derive(Debug, Clone)]
struct Failure(Kind, String);

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure(error.kind(), error.to_string())
    }
}

impl Embedded {
    /// Opens the registry in `dir`, or makes one (mode 0700; only the last name may be missing). Waits
    /// up to `patience` for another process that has it open.
    ///
    /// # Errors
    ///
    /// [`Kind::Usage`] if another user could replace the directory; [`Kind::Unavailable`] if another
    /// process has it open.
    pub fn open(dir: &Path, patience: Duration) -> Result<Embedded> {
        Embedded::with(dir, patience, Arc::new(BootClock), BOUND)
    }

    /// Whether there is a registry in `dir` already.
    pub fn is_in(dir: &Path) -> bool {
        place::bytes(dir).is_some()
    }

    /// As [`Embedded::open`], with another clock for the leases, or another bound of the history.
    pub fn with(
        dir: &Path,
        patience: Duration,
        clock: Arc<dyn Clock>,
        bound: Bound,
    ) -> Result<Embedded> {
        let db = place::open(dir, patience)?;
        let address = format!("embedded://{}", dir.display());
        let (store, loaded) = Store::open(db, address.clone())?;
        let mut leases = Leases::default();
        for (id, millis) in loaded.leases {
            leases.add(id, Duration::from_millis(millis), clock.now())?;
        }
        let mut history = History::new(bound, loaded.compacted, loaded.revision);
        loaded.past.into_iter().for_each(|past| history.push(past));
        let inner = Arc::new(Inner {
            dir: dir.into(),
            address,
            cluster: loaded.cluster,
            store,
            clock,
            queue: Mutex::new(Rank::Embedded, Queue::default()),
            written: Condvar::new(),
            leases: Mutex::new(Rank::Embedded, leases),
            leased: Condvar::new(),
            history: Mutex::new(Rank::Embedded, history),
            happened: Condvar::new(),
            closed: OnceLock::new(),
        });
        let sweeping = Arc::clone(&inner);
        let sweeper = Builder::new().name("leases".into()).spawn(move || sweeping.sweep());
        let sweeper = sweeper.map_err(|e| Error::io(e, "starting the thread that ends leases"))?;
        Ok(Embedded { inner, sweeper: Some(sweeper) })
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        // Also while unwinding.
        let leases = self.inner.leases.lock_anyway();
        self.inner.closed.get_or_init(|| ());
        drop(leases);
        self.inner.leased.notify_all();
        if let Some(sweeper) = self.sweeper.take() {
            let _ = sweeper.join(); // The thread has reported its error when it panicked.
        }
    }
}

impl Registry for Embedded {
    fn address(&self) -> &str {
        &self.inner.address
    }

    fn get(&self, key: &str) -> Result<(Option<Entry>, Revision)> {
        limits::check_key(key)?;
        self.inner.end_due()?;
        self.inner.store.get(key)
    }

    fn range(&self, prefix: &str) -> Result<(Vec<Entry>, Revision)> {
        limits::check_prefix(prefix)?;
        self.inner.end_due()?;
        self.inner.store.range(prefix)
    }

    fn commit(&self, commit: &Commit) -> Result<Outcome> {
        limits::check_commit(commit)?;
        self.inner.end_due()?;
        self.inner.write(Wish::Commit(commit.clone()))
    }

    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>> {
        limits::check_prefix(prefix)?;
        let inner = Arc::clone(&self.inner);
        Ok(Box::new(Follower { inner, prefix: prefix.into(), after }))
    }

    fn lease(&self, ttl: Duration) -> Result<Box<dyn Lease>> {
        check_ttl(ttl)?;
        let sent = self.inner.clock.now();
        let id = new_lease_id()?;
        self.inner.write(Wish::Grant(id, ttl))?;
        let source: Arc<dyn Source> = self.inner.clone();
        Ok(Box::new(Kept::new(id, ttl, sent, source, self.inner.clock.clone())?))
    }

    fn barrier(&self) -> Result<Revision> {
        self.inner.end_due()?;
        self.inner.store.barrier()
    }

    fn compact(&self, upto: Revision) -> Result<()> {
        self.inner.write(Wish::Compact(upto)).map(drop)
    }

    fn cluster(&self) -> Result<Identity> {
        Ok(Identity { cluster: self.inner.cluster.clone(), revision: self.barrier()? })
    }

    fn health(&self) -> Result<Health> {
        let bytes = place::bytes(&self.inner.dir).unwrap_or(0);
        Ok(Health {
            version: format!("forebay {}", env!("CARGO_PKG_VERSION")),
            identity: self.cluster()?,
            bytes,
            bytes_in_use: bytes,
            quota: None,
            alarms: Vec::new(),
        })
    }
}

impl Source for Inner {
    fn renew(&self, id: LeaseId) -> Result<Option<Duration>> {
        Ok(self.leases.lock().renew(id, self.clock.now()))
    }

    fn revoke(&self, id: LeaseId) -> Result<()> {
        self.write(Wish::End(id)).map(drop)
    }
}

impl Inner {
    /// Hands in a wish, and writes all waiting wishes unless another thread is writing.
    fn write(&self, wish: Wish) -> Result<Outcome> {
        asks_the_registry();
        let job = Arc::new(Job { wish, done: OnceLock::new() });
        let mut queue = self.queue.lock();
        queue.jobs.push(Arc::clone(&job));
        loop {
            if let Some(done) = job.done.get() {
                return done.clone().map_err(|Failure(kind, text)| Error::new(kind, text));
            }
            if queue.turn == Turn::Taken {
                queue = self.written.wait(queue);
                continue;
            }
            let count = queue.jobs.len().min(BATCH_MAX);
            if count == 0 {
                let text = format!("{}: a thread that wrote to it has died", self.address);
                return Err(Error::new(Kind::Unavailable, text));
            }
            let jobs: Vec<Arc<Job>> = queue.jobs.drain(..count).collect();
            queue.turn = Turn::Taken;
            drop(queue);
            self.take_turn(&jobs);
            queue = self.queue.lock();
        }
    }

    /// Writes jobs in one transaction.
    fn take_turn(&self, jobs: &[Arc<Job>]) {
        let _turn = Writer(self);
        let outcomes = self.write_all(jobs).unwrap_or_else(|error| {
            let failure = Failure::from(error);
            jobs.iter().map(|_| Err(failure.clone())).collect()
        });
        for (job, outcome) in jobs.iter().zip(outcomes) {
            job.done.set(outcome).expect("a job is done once");
        }
    }

    fn write_all(&self, jobs: &[Arc<Job>]) -> Result<Vec<std::result::Result<Outcome, Failure>>> {
        let mut writing = self.store.begin()?;
        let mut outcomes = Vec::new();
        for job in jobs {
            outcomes.push(self.grant_wish(&mut writing, &job.wish)?);
        }
        let compact = self.history.lock().to_compact(&writing.past).max(writing.unwanted);
        let past = writing.finish(compact)?;
        self.forget_ended(jobs);
        self.publish(past, compact);
        Ok(outcomes)
    }

    /// Carries out one wish. The outer error is one of the storage, and fails all jobs of the
    /// transaction.
    fn grant_wish(
        &self,
        writing: &mut Writing<'_>,
        wish: &Wish,
    ) -> Result<std::result::Result<Outcome, Failure>> {
        match wish {
            Wish::Commit(commit) => match self.lapsed(commit) {
                Some(lapsed) => Ok(Err(lapsed.into())),
                None => writing.commit(commit).map(Ok),
            },
            Wish::Grant(id, ttl) => {
                if let Err(full) = self.leases.lock().add(*id, *ttl, self.clock.now()) {
                    return Ok(Err(full.into()));
                }
                self.leased.notify_all();
                writing.grant(*id, u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))?;
                Ok(Ok(Outcome::Committed(writing.revision)))
            }
            Wish::End(id) => {
                // No commit may use the lease from here on; it is forgotten once its keys are gone
                // (E1).
                self.leases.lock().run_out(*id, self.clock.now());
                writing.end_lease(*id)?;
                Ok(Ok(Outcome::Committed(writing.revision)))
            }
            Wish::Compact(upto) => {
                writing.compact(*upto);
                Ok(Ok(Outcome::Committed(writing.revision)))
            }
        }
    }

    fn forget_ended(&self, jobs: &[Arc<Job>]) {
        let mut leases = self.leases.lock();
        for job in jobs {
            if let Wish::End(id) = &job.wish {
                leases.forget(*id);
            }
        }
    }

    fn lapsed(&self, commit: &Commit) -> Option<Error> {
        let (leases, now) = (self.leases.lock(), self.clock.now());
        let used = commit.changes.iter().filter_map(|change| match change {
            crate::Change::Put { lease, .. } => *lease,
            _ => None,
        });
        let lapsed = used.into_iter().find(|id| !leases.stands(*id, now))?;
        Some(Error::new(Kind::Lapsed, format!("{}: the lease {lapsed} has run out", self.address)))
    }

    fn publish(&self, past: Vec<Past>, compact: Revision) {
        let mut history = self.history.lock();
        past.into_iter().for_each(|past| history.push(past));
        history.compact(compact);
        drop(history);
        self.happened.notify_all();
    }

    /// Ends the leases that have run out (E1).
    fn end_due(&self) -> Result<()> {
        asks_the_registry();
        let due = self.leases.lock().due(self.clock.now());
        due.into_iter().try_for_each(|id| self.write(Wish::End(id)).map(drop))
    }

    fn sweep(&self) {
        let mut leases = self.leases.lock();
        while self.closed.get().is_none() {
            let until = leases.next_deadline().map(|at| at.saturating_sub(self.clock.now()));
            if until == Some(Duration::ZERO) {
                drop(leases);
                let failed = self.end_due().is_err();
                leases = self.leases.lock();
                if !failed {
                    continue;
                }
            }
            // The next caller gets the error of a write that fails now, and the write is tried again.
            let pause = until.filter(|until| !until.is_zero()).unwrap_or(LOOK).min(LOOK);
            leases = self.leased.wait_timeout(leases, pause).0;
        }
    }
}

/// A watch: a position in the history.
struct Follower {
    inner: Arc<Inner>,
    prefix: String,
    after: Revision,
}

impl Watch for Follower {
    fn next(&mut self, timeout: Duration) -> Result<Seen> {
        let began = Instant::now();
        let mut history = self.inner.history.lock();
        loop {
            let seen = history.since(&mut self.after, &self.prefix);
            let left = timeout.saturating_sub(began.elapsed());
            if seen != Seen::Quiet || left.is_zero() {
                return Ok(seen);
            }
            history = self.inner.happened.wait_timeout(history, left).0;
        }
    }
}

fn new_lease_id() -> Result<LeaseId> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|e| Error::io(e, "/dev/urandom"))?;
    // Positive as an i64 and never zero, like etcd's ids.
    Ok(LeaseId((u64::from_ne_bytes(bytes) >> 1).max(1)))
}

/// The error of the storage, as one of this crate.
fn failed(error: redb::Error, address: &str) -> Error {
    match error {
        redb::Error::Io(error) => Error::io(error, address),
        redb::Error::PreviousIo => Error::new(
            Kind::Unavailable,
            format!(
                "{address}: its storage failed before, and nothing was written since: mend that, and \
                 start again what serves it"
            ),
        ),
        other => Error::new(Kind::Corrupt, address).with_source(other),
    }
}
