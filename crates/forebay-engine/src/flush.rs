//! The drain: copies dirty bytes to the backing store and settles what that means.
//!
//! A batch of files goes through four steps, each for all of them before the next: (1) what is
//! dirty is captured and made durable in the tier, and the index says that a flush is under way;
//! (2) the runs are copied, many at once; (3) the backing store is synced once; (4) each file is
//! settled: clean is what was copied and not rewritten meanwhile (S6).
//!
//! Invariants:
//! - W1: a byte becomes clean only if it was not written since its copy began, and after the
//!   backing store was synced.
//! - W2: a file has at most one flight, and it ends only when its last copy has returned, however
//!   long that hangs: an old copy never lands on top of a newer one.
//! - W3: a failed flush leaves dirty bytes dirty (S7).
//! - W4: no byte reaches the backing store before it is durable in the tier, so a power loss in
//!   the middle of a flush is repaired by flushing again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use forebay_backing::{Error, Kind, Result};

use crate::engine::{Engine, now_ms};
use crate::failpoint;
use crate::file::File;
use crate::flight::{FLIGHT_BYTES, Job, Outcome};
use crate::policy::{self, Drain};

/// Files in one batch, and so per sync of the backing store.
const BATCH_FILES: usize = 512;
const BATCH_BYTES: u64 = 512 << 20;

/// What the drain keeps between looks.
#[derive(Default)]
pub(crate) struct DrainState {
    pub draining: AtomicBool,
    /// A writer waits for room.
    pub urgent: AtomicBool,
    pub flushing_bytes: AtomicU64,
    /// Bytes copied since start, settled or not: the sign of life for who waits.
    pub copied: AtomicU64,
    /// Bytes per second of the last batches, smoothed.
    pub rate: AtomicU64,
    pub limited_by: Mutex<&'static str>,
    /// Signaled after every batch.
    pub settled: (Mutex<u64>, Condvar),
    pub bucket: Mutex<Option<(Instant, f64)>>,
}

impl Engine {
    /// The drain's thread: looks, flushes what is due, rests.
    pub(crate) fn drain_loop(self: &Arc<Self>) {
        while !self.stopping.load(Relaxed) {
            if !self.drain_once() {
                self.rest(Duration::from_millis(100));
            }
        }
    }

    fn rest(&self, at_most: Duration) {
        let seen = self.wake.0.lock().expect("no panic inside");
        let _ = self.wake.1.wait_timeout(seen, at_most);
    }

    /// Flushes one batch if something is due; returns whether it did.
    fn drain_once(self: &Arc<Self>) -> bool {
        let mut level = self.level();
        if self.drain.urgent.swap(false, Relaxed) {
            level.draining = true;
            level.dirty_bytes = level.dirty_bytes.max(level.tier_bytes);
        }
        let decision = self.tune(|t| policy::drain(level, t));
        self.drain.draining.store(decision == Drain::Level, Relaxed);
        let until = match decision {
            Drain::Rest(why) => return self.limited(why),
            Drain::Older(age) => now_ms().saturating_sub(age.as_millis() as u64),
            Drain::Level | Drain::Everything => u64::MAX,
        };
        let batch = self.due(until);
        if batch.is_empty() {
            let open = self.space.writers.load(Relaxed) > 0;
            return self.limited(if open { "open-writers" } else { "conflicts" });
        }
        self.limited("backing-store");
        let outcomes = self.flush_batch(&batch);
        outcomes.iter().any(|outcome| matches!(outcome, Outcome::Flushed(_)))
    }

    fn limited(&self, why: &'static str) -> bool {
        *self.drain.limited_by.lock().expect("no panic inside") = why;
        false
    }

    /// The files to flush next: oldest cohort first, within it in the order of their paths.
    fn due(&self, until: u64) -> Vec<Arc<File>> {
        let files = self.dirty.lock().expect("no panic inside").older(until);
        let now = Instant::now();
        let mut bytes = 0;
        let mut batch = Vec::new();
        for file in files {
            let inner = file.lock();
            let pausing = inner.trouble.as_ref().is_some_and(|t| t.retry_at > now);
            let resting = inner.state.flags.opaque && !opaque_changed(&inner);
            if inner.state.flags.conflict || pausing || resting {
                continue;
            }
            bytes += inner.dirty_charged;
            drop(inner);
            batch.push(file);
            if batch.len() >= BATCH_FILES || bytes >= BATCH_BYTES {
                break;
            }
        }
        batch.sort_by_cached_key(|file| file.path());
        batch
    }

    /// Flushes these files and waits for it. The outcomes are in the order of the files.
    pub(crate) fn flush_batch(self: &Arc<Self>, files: &[Arc<File>]) -> Vec<Outcome> {
        self.flush_batch_until(files, &|| false)
    }

    /// The same, given up when `cancelled` says so: what was not copied by then stays dirty.
    pub(crate) fn flush_batch_until(
        self: &Arc<Self>,
        files: &[Arc<File>],
        cancelled: &dyn Fn() -> bool,
    ) -> Vec<Outcome> {
        let began = Instant::now();
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(files.len());
        let mut jobs: Vec<(usize, Arc<Job>)> = Vec::new();
        for file in files {
            match self.begin_flight(file) {
                Ok(Some(job)) => jobs.push((outcomes.len(), job)),
                Ok(None) => {
                    outcomes.push(Outcome::Nothing);
                    continue;
                }
                Err(e) if e.is(libc::EBUSY) => {
                    outcomes.push(Outcome::Busy);
                    continue;
                }
                Err(e) => {
                    outcomes.push(Outcome::Failed(e));
                    continue;
                }
            }
            outcomes.push(Outcome::Nothing);
        }
        if jobs.is_empty() {
            return outcomes;
        }
        let flying: u64 = jobs.iter().map(|(_, job)| job.bytes()).sum();
        self.drain.flushing_bytes.fetch_add(flying, Relaxed);
        self.make_durable(&jobs);
        failpoint::pass("flush.begin");
        self.copy_all(&jobs, cancelled);
        failpoint::pass("flush.copied");
        self.sync_targets(&jobs);
        failpoint::pass("flush.synced");
        let mut flushed = 0;
        for ((at, _), outcome) in jobs.iter().zip(self.end_all(&jobs)) {
            if let Outcome::Flushed(bytes) = outcome {
                flushed += bytes;
            }
            outcomes[*at] = outcome;
        }
        failpoint::pass("flush.settled");
        self.drain.flushing_bytes.fetch_sub(flying, Relaxed);
        self.note_rate(flushed, began.elapsed());
        *self.drain.settled.0.lock().expect("no panic inside") += 1;
        self.drain.settled.1.notify_all();
        outcomes
    }

    fn note_rate(&self, bytes: u64, took: Duration) {
        if bytes == 0 {
            return;
        }
        let now = bytes as f64 / took.as_secs_f64().max(0.001);
        let before = self.drain.rate.load(Relaxed) as f64;
        let rate = if before == 0.0 { now } else { before * 0.7 + now * 0.3 };
        self.drain.rate.store(rate as u64, Relaxed);
    }

    /// Flushes one file and waits until what was dirty at the call is on the backing store and
    /// synced there (S5).
    pub fn flush_file(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        // Who goes on writing must not keep us here: what was dirty at the call takes so many.
        let mut flights = 2 + file.lock().dirty_charged / FLIGHT_BYTES;
        loop {
            match self.flush_batch(std::slice::from_ref(file)).pop() {
                Some(Outcome::Failed(error)) => return Err(error),
                Some(Outcome::Busy) => self.wait_for_flight(file)?,
                Some(Outcome::Flushed(_)) if flights > 0 => flights -= 1,
                _ => return Ok(()),
            }
            if file.lock().state.flags.opaque {
                return Ok(()); // One flight takes all of it, and it never becomes clean.
            }
        }
    }

    pub(crate) fn wait_for_flight(&self, file: &File) -> Result<()> {
        let inner = file.lock();
        let limit = self.tune(|t| t.backing_timeout) * 4;
        let (_inner, timeout) = file
            .changed
            .wait_timeout_while(inner, limit, |inner| {
                inner.live.as_ref().is_some_and(|live| live.flight.is_some())
                    && self.health.is_available()
            })
            .expect("no panic under a file's lock");
        match timeout.timed_out() || !self.health.is_available() {
            true => {
                Err(Error::new(Kind::TimedOut, "an earlier flush of this file has not returned"))
            }
            false => Ok(()),
        }
    }
}

/// Whether an unseen writer may have written since the last copy.
fn opaque_changed(inner: &crate::file::Inner) -> bool {
    let copied = inner.live.as_ref().and_then(|live| live.copied_at);
    copied.is_none() || copied != inner.shadow_stat()
}
