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

use std::path::Path;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst,
};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use forebay_backing::{Access, Attr, BackingFile, Error, Kind, Result, Timestamp, Version};

use crate::engine::{Engine, add, now_ms};
use crate::failpoint;
use crate::file::{File, Flight, Trouble};
use crate::media::{MediaFile, MediaStat};
use crate::policy::{self, Drain};
use crate::ranges::Ranges;

/// Files in one batch, and so per sync of the backing store.
const BATCH_FILES: usize = 512;
const BATCH_BYTES: u64 = 512 << 20;

/// One piece of a large file: pieces of a file are copied in parallel.
const PIECE: u64 = 8 << 20;

/// Bytes moved by one call: large enough for a network file system's largest request.
const COPY_BUFFER: usize = 1 << 20;

/// Syncing files one by one is cheaper than the whole tier up to about this many.
const SYNC_EACH_MAX: usize = 16;

/// What one flight takes of a file: a large file becomes clean, and evictable, piece by piece
/// while it is still being written (S9).
const FLIGHT_BYTES: u64 = 128 << 20;

const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

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
    bucket: Mutex<Option<(Instant, f64)>>,
}

/// One file on its way.
struct Job {
    file: Arc<File>,
    shadow: Arc<dyn MediaFile>,
    captured: Vec<(u64, u64)>,
    /// All that is dirty, of which `captured` is the first part: made durable as a whole (W4).
    dirty: Vec<(u64, u64)>,
    size: u64,
    mtime: Timestamp,
    base: Version,
    /// An earlier flush did not end: the backing file's version proves nothing.
    resumed: bool,
    opaque: Option<MediaStat>,
    meta_seq: u64,
    target: Mutex<Option<Arc<dyn BackingFile>>>,
    pieces: AtomicUsize,
    error: Mutex<Option<Error>>,
    phase: AtomicU8,
}

/// Whose the end of a flight is: the waiter's once the copies have ended, the last copy's once
/// the waiter has given up. Only one of the two moves out of `COPYING` succeeds.
const COPYING: u8 = 0;
const COPIED: u8 = 1;
const ABANDONED: u8 = 2;

/// What became of one file of a batch.
pub(crate) enum Outcome {
    Flushed(u64),
    /// Nothing was dirty, or what was is on its way already.
    Nothing,
    Busy,
    Failed(Error),
}

/// Counts jobs down.
struct Latch {
    left: Mutex<usize>,
    zero: Condvar,
}

impl Latch {
    fn count_down(&self) {
        let mut left = self.left.lock().expect("no panic inside");
        *left -= 1;
        if *left == 0 {
            self.zero.notify_all();
        }
    }

    /// Waits until all are done, or `give_up` says so.
    fn wait(&self, give_up: impl Fn() -> bool) -> bool {
        let mut left = self.left.lock().expect("no panic inside");
        while *left > 0 {
            let wait = self.zero.wait_timeout(left, Duration::from_millis(50));
            left = wait.expect("no panic inside").0;
            if *left > 0 && give_up() {
                return false;
            }
        }
        true
    }
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

    /// Captures what is dirty. `Ok(None)`: nothing is. EBUSY: another flight is on (W2).
    fn begin_flight(&self, file: &Arc<File>) -> Result<Option<Arc<Job>>> {
        let mut inner = file.lock();
        if !inner.state.is_dirty() || inner.live.as_ref().is_some_and(|live| live.unlinked) {
            return Ok(None);
        }
        if inner.live().flight.is_some() {
            return Err(Error::os(libc::EBUSY, "already being flushed"));
        }
        if inner.state.flags.conflict {
            let path = inner.state.display_path();
            return Err(Error::new(
                Kind::Conflict,
                format!("{} changed on the backing store while it was dirty here", path.display()),
            ));
        }
        let shadow = self.shadow(file, &mut inner)?;
        let opaque = match inner.state.flags.opaque {
            true => Some(self.note_tier(shadow.stat())?),
            false => None,
        };
        let size = opaque.map_or(inner.state.size, |stat| stat.len);
        let captured = match opaque {
            Some(_) if size > 0 => vec![(0, size)],
            Some(_) => Vec::new(),
            None => {
                let dirty = inner.state.ranges.iter().filter(|run| run.state.is_dirty());
                dirty.map(|run| (run.start, run.end)).collect()
            }
        };
        let dirty = merge(captured);
        let captured = match opaque {
            Some(_) => dirty.clone(),
            None => first_part(&dirty, FLIGHT_BYTES),
        };
        let live = inner.live();
        live.flight = Some(Flight { rewritten: Ranges::None });
        live.io += 1;
        let meta_seq = live.meta_seq;
        Ok(Some(Arc::new(Job {
            file: file.clone(),
            shadow,
            captured,
            dirty,
            size,
            mtime: opaque.map_or(inner.state.mtime, |stat| stat.mtime),
            base: inner.state.base,
            resumed: inner.state.flags.flush_open,
            opaque,
            meta_seq,
            target: Mutex::new(None),
            pieces: AtomicUsize::new(1),
            error: Mutex::new(None),
            phase: AtomicU8::new(COPYING),
        })))
    }

    /// Step 1 (W4). If the tier cannot sync, the bytes are worth more on the backing store than
    /// here: the flush goes on.
    fn make_durable(&self, jobs: &[(usize, Arc<Job>)]) {
        let volatile: Vec<&Arc<Job>> =
            jobs.iter().map(|(_, job)| job).filter(|job| !self.is_durable(job)).collect();
        let synced = if volatile.len() > SYNC_EACH_MAX {
            self.media().sync_all()
        } else {
            volatile.iter().try_for_each(|job| {
                job.shadow.sync_data()?;
                self.media().sync_dir(&crate::tier::shadow_dir(job.file.id))
            })
        };
        let synced = self.note_tier(synced).is_ok();
        for (_, job) in jobs {
            if synced {
                let _ = self.record_synced(&job.file, job.size, &job.dirty);
            }
            let mut inner = job.file.lock();
            inner.state.flags.flush_open = true;
            let _ = self.put(&job.file, &mut inner);
        }
        let _ = self.note_tier(self.index.sync());
    }

    fn is_durable(&self, job: &Job) -> bool {
        let inner = job.file.lock();
        !inner.state.flags.opaque && inner.state.is_synced()
    }

    /// Step 2: all jobs through the pool, at most `flush_depth` copies at once.
    fn copy_all(self: &Arc<Self>, jobs: &[(usize, Arc<Job>)], cancelled: &dyn Fn() -> bool) {
        let latch = Arc::new(Latch { left: Mutex::new(jobs.len()), zero: Condvar::new() });
        for (_, job) in jobs {
            let (engine, job, latch) = (self.clone(), job.clone(), latch.clone());
            self.flushes.clone().run(move || engine.start_copy(&job, &latch));
        }
        let limit = self.tune(|t| t.backing_timeout);
        let complete = latch.wait(|| {
            if cancelled() {
                let stop = |job: &Arc<Job>| job.fail(Error::new(Kind::Interrupted, "cancelled"));
                jobs.iter().filter(|(_, job)| job.is(COPYING)).for_each(|(_, job)| stop(job));
            }
            self.health.has_stalled_call(limit)
        });
        if !complete {
            for (_, job) in jobs {
                job.leave_copying(ABANDONED);
            }
        }
    }

    /// Opens the target and hands out its pieces; the last one to end finishes the job.
    fn start_copy(self: &Arc<Self>, job: &Arc<Job>, latch: &Arc<Latch>) {
        match self.open_target(job) {
            Ok(target) => {
                *job.target.lock().expect("no panic inside") = Some(target.clone());
                let pieces = pieces(&job.captured);
                job.pieces.fetch_add(pieces.len(), SeqCst);
                let mut mine = None;
                for piece in pieces {
                    if mine.is_none() {
                        mine = Some(piece);
                        continue;
                    }
                    let (engine, job, latch, target) =
                        (self.clone(), job.clone(), latch.clone(), target.clone());
                    self.flushes.run(move || {
                        engine.copy_piece(&job, &*target, piece);
                        engine.end_piece(&job, &latch);
                    });
                }
                if let Some(piece) = mine {
                    self.copy_piece(job, &*target, piece);
                    self.end_piece(job, latch);
                }
            }
            Err(error) => job.fail(error),
        }
        self.end_piece(job, latch);
    }

    fn end_piece(&self, job: &Arc<Job>, latch: &Latch) {
        if job.pieces.fetch_sub(1, SeqCst) > 1 {
            return;
        }
        let target = job.target.lock().expect("no panic inside").clone();
        if let Some(target) = target
            && !job.has_failed()
            && let Err(error) = self.finish_copy(job, &*target)
        {
            job.fail(error);
        }
        let in_time = job.leave_copying(COPIED);
        latch.count_down();
        if !in_time {
            job.fail(Error::new(Kind::TimedOut, "the backing store did not answer in time"));
            self.land_failed(job);
        }
    }

    /// The backing file, opened for writing, if it is still the one we know (S8).
    fn open_target(&self, job: &Job) -> Result<Arc<dyn BackingFile>> {
        let mut last: Option<Box<Path>> = None;
        for _ in 0..4 {
            let Some(path) = job.file.path() else {
                // Its known names are gone, but it may have others: by descriptor, then.
                let held = job.file.lock().live().target.clone();
                return held.ok_or_else(|| Error::os(libc::ESTALE, "the file has no known name"));
            };
            if last.as_deref() == Some(&*path) {
                break;
            }
            let opened = self.health.call(|| {
                // An ordinary user opens his own 0444 file by way of a chmod, which moves its
                // ctime: look before.
                let before = if self.privileged { None } else { Some(self.backing.stat(&path)?) };
                let target = self.backing.open(&path, Access::ReadWrite)?;
                let attr = target.stat()?;
                Ok((target, before.filter(|b| b.key == attr.key).unwrap_or(attr)))
            });
            match opened {
                Ok((target, attr)) if attr.key == job.file.key => {
                    let changed = attr.version() != job.base && !job.resumed;
                    if changed && !self.moved_by_us(job, &attr.version()) {
                        return Err(self.conflict(job, "the backing file has changed"));
                    }
                    return Ok(target);
                }
                Ok(_) => {}
                Err(e) if e.is(libc::ENOENT) => {}
                Err(e) => return Err(e),
            }
            last = Some(path);
        }
        Err(self.conflict(job, "the backing file was replaced or deleted"))
    }

    /// Attributes may have changed through us since the capture: look at the base again.
    fn moved_by_us(&self, job: &Job, found: &Version) -> bool {
        let inner = job.file.lock();
        inner.state.base == *found
    }

    fn conflict(&self, job: &Job, why: &str) -> Error {
        let mut inner = job.file.lock();
        // A rename or unlink of ours may be on its way: then it is no conflict.
        if inner.live.as_ref().is_some_and(|live| live.unlinked) {
            return Error::os(libc::ESTALE, "the file was unlinked meanwhile");
        }
        inner.state.flags.flush_open = job.resumed;
        self.declare_conflict(&job.file, &mut inner, why);
        let path = inner.state.display_path();
        Error::new(
            Kind::Conflict,
            format!(
                "{}: {why} while dirty bytes were held: settle it with 'forebay resolve'",
                path.display()
            ),
        )
    }

    fn copy_piece(&self, job: &Job, target: &dyn BackingFile, piece: (u64, u64)) {
        if job.has_failed() || job.is(ABANDONED) {
            return;
        }
        if let Err(error) = self.copy_range(job, target, piece) {
            job.fail(error);
        }
    }

    /// Copies data, and makes holes where the shadow has holes.
    fn copy_range(
        &self,
        job: &Job,
        target: &dyn BackingFile,
        (start, end): (u64, u64),
    ) -> Result<()> {
        let mut at = start;
        while at < end {
            let data = self.note_tier(job.shadow.next_data(at))?;
            let (from, to) = data.map_or((end, end), |(a, b)| (a.clamp(at, end), b.clamp(at, end)));
            if from > at {
                self.copy_hole(job, target, at, from)?;
            }
            self.copy_data(job, target, from, to)?;
            at = to.max(from);
        }
        Ok(())
    }

    /// Beyond the backing file's old end there is nothing to overwrite: the size will do.
    fn copy_hole(&self, job: &Job, target: &dyn BackingFile, start: u64, end: u64) -> Result<()> {
        let end = if job.resumed { end } else { end.min(job.base.size) };
        if start >= end {
            return Ok(());
        }
        self.health.call(|| {
            let size = target.stat()?.size;
            let len = end.min(size).saturating_sub(start);
            if len > 0 { target.punch(start, len) } else { Ok(()) }
        })
    }

    fn copy_data(&self, job: &Job, target: &dyn BackingFile, start: u64, end: u64) -> Result<()> {
        let mut buf = vec![0; COPY_BUFFER.min((end - start) as usize)];
        let mut at = start;
        while at < end {
            if job.is(ABANDONED) || job.has_failed() {
                return Err(Error::new(Kind::TimedOut, "given up"));
            }
            let want = buf.len().min((end - at) as usize);
            let n = self.note_tier(job.shadow.read_at(&mut buf[..want], at))?;
            if n == 0 {
                return Ok(()); // Truncated meanwhile: recorded as rewritten.
            }
            self.pace(n as u64);
            self.health.call(|| target.write_at(&buf[..n], at))?;
            add(&self.drain.copied, n as u64);
            at += n as u64;
        }
        Ok(())
    }

    /// Keeps to the rate cap: a bucket of a tenth of a second.
    fn pace(&self, bytes: u64) {
        let rate = self.tune(|t| t.rate_max);
        if rate == 0 {
            return;
        }
        let wait = {
            let mut bucket = self.drain.bucket.lock().expect("no panic inside");
            let now = Instant::now();
            let (at, debt) = bucket.unwrap_or((now, 0.0));
            let paid = now.duration_since(at).as_secs_f64() * rate as f64;
            let debt = (debt - paid).max(-(rate as f64) / 10.0) + bytes as f64;
            *bucket = Some((now, debt));
            Duration::from_secs_f64((debt / rate as f64).max(0.0))
        };
        std::thread::sleep(wait);
    }

    /// Size and times, once all pieces are there.
    fn finish_copy(&self, job: &Job, target: &dyn BackingFile) -> Result<()> {
        self.health.call(|| {
            let end = job.target_size();
            let known = if job.resumed { None } else { Some(job.base.size) };
            let reached = job.captured.last().is_some_and(|run| run.1 == end);
            if known != Some(end)
                && !(reached
                    && known.is_some_and(|size| size <= end)
                    && self.ends_in_data(job, end))
            {
                target.set_len(end)?;
            }
            target.set_times(None, Some(job.mtime))
        })
    }

    /// Whether the copy itself has made the file as long as it is to be.
    fn ends_in_data(&self, job: &Job, end: u64) -> bool {
        let last = end.saturating_sub(1);
        matches!(job.shadow.next_data(last), Ok(Some((start, _))) if start <= last)
    }

    /// Step 3: one sync for the batch.
    fn sync_targets(self: &Arc<Self>, jobs: &[(usize, Arc<Job>)]) {
        let ready: Vec<Arc<Job>> = jobs
            .iter()
            .map(|(_, job)| job.clone())
            .filter(|job| job.is(COPIED) && !job.has_failed())
            .collect();
        if ready.is_empty() {
            return;
        }
        let latch = Arc::new(Latch { left: Mutex::new(1), zero: Condvar::new() });
        let (engine, mine) = (self.clone(), latch.clone());
        let result: Arc<Mutex<Option<Result<()>>>> = Arc::default();
        let slot = result.clone();
        let targets: Vec<_> = ready
            .iter()
            .filter_map(|job| job.target.lock().expect("no panic inside").clone())
            .collect();
        self.flushes.run(move || {
            let synced = engine.health.call(|| engine.backing.sync_files(&targets));
            *slot.lock().expect("no panic inside") = Some(synced);
            mine.count_down();
        });
        let limit = self.tune(|t| t.backing_timeout);
        // A sync may rightly take long: it ends with an answer, or the store counts as away.
        latch.wait(|| self.health.has_stalled_call(limit * 4) || !self.health.is_available());
        let outcome = result.lock().expect("no panic inside").take();
        for job in ready {
            match &outcome {
                Some(Ok(())) => {}
                Some(Err(e)) => {
                    job.fail(Error::new(e.kind(), format!("syncing the backing store: {e}")))
                }
                None => {
                    job.fail(Error::new(Kind::TimedOut, "the backing store did not sync in time"))
                }
            }
        }
    }

    /// Step 4 for all, in parallel: each asks the backing store for its new version.
    fn end_all(self: &Arc<Self>, jobs: &[(usize, Arc<Job>)]) -> Vec<Outcome> {
        let latch = Arc::new(Latch { left: Mutex::new(jobs.len()), zero: Condvar::new() });
        let results: Arc<Mutex<Vec<Option<Outcome>>>> =
            Arc::new(Mutex::new(jobs.iter().map(|_| None).collect()));
        for (n, (_, job)) in jobs.iter().enumerate() {
            let (engine, job, latch, results) =
                (self.clone(), job.clone(), latch.clone(), results.clone());
            self.flushes.run(move || {
                let outcome = engine.end_flight(&job);
                results.lock().expect("no panic inside")[n] = Some(outcome);
                latch.count_down();
            });
        }
        let limit = self.tune(|t| t.backing_timeout);
        latch.wait(|| self.health.has_stalled_call(limit));
        let mut results = results.lock().expect("no panic inside");
        let late = || Outcome::Failed(Error::new(Kind::TimedOut, "the backing store hangs"));
        results.iter_mut().map(|result| result.take().unwrap_or_else(late)).collect()
    }

    /// Step 4.
    fn end_flight(self: &Arc<Self>, job: &Arc<Job>) -> Outcome {
        if job.is(ABANDONED) {
            // Its last copy still hangs; it keeps the flight (W2) and cleans up when it returns.
            return Outcome::Failed(Error::new(
                Kind::TimedOut,
                "the backing store did not answer in time",
            ));
        }
        if job.has_failed() {
            return Outcome::Failed(self.land_failed(job));
        }
        match self.land(job) {
            Ok(()) => Outcome::Flushed(job.bytes()),
            Err(error) => {
                job.fail(error);
                Outcome::Failed(self.land_failed(job))
            }
        }
    }

    fn land(&self, job: &Job) -> Result<()> {
        let target = job.target.lock().expect("no panic inside").clone();
        let target = target.ok_or_else(|| Error::os(libc::EIO, "the copy left no target"))?;
        let (found, kept_time) = self.health.call(|| look_after(&*target, job))?;
        let file = &job.file;
        let mut inner = file.lock();
        if !kept_time && inner.state.mtime == job.mtime {
            inner.state.mtime = found.mtime;
        }
        let live = inner.live();
        let rewritten = live.flight.as_ref().is_some_and(|f| f.rewritten != Ranges::None);
        // Changed through us meanwhile, it is dirty again; then its size and time prove nothing.
        let ours = (found.size == job.target_size() && (found.mtime == job.mtime || !kept_time))
            || live.meta_seq != job.meta_seq
            || live.unlinked
            || rewritten
            || job.opaque.is_some();
        if !ours {
            inner.state.flags.flush_open = false;
            inner.state.base = found.version();
            self.declare_conflict(
                file,
                &mut inner,
                "somebody else wrote to the backing file during the flush",
            );
            return Err(Error::new(
                Kind::Conflict,
                "somebody else wrote to the backing file during the flush",
            ));
        }
        let flight = inner.live().flight.take().expect("W2: a flight ends once");
        let now_ms = now_ms();
        inner.base_seq += 1;
        if job.opaque.is_some() && inner.state.flags.opaque {
            // Still open to writers we do not see: all of it stays dirty, from now.
            inner.state.base = found.version();
            inner.state.flags.flush_open = false;
            inner.state.flags.newborn = false;
            inner.state.dirty_since = now_ms;
            inner.live().copied_at = job.opaque;
            if let Some(place) = inner.queued.take() {
                self.dirty.lock().expect("no panic inside").remove(place);
            }
        } else {
            inner.state.settle(&job.captured, &flight.rewritten, found.version(), now_ms);
        }
        inner.trouble = None;
        if !inner.live().unlinked {
            self.put(file, &mut inner)?;
            inner.settled_seq = self.index.seq();
            self.account(file, &mut inner);
        }
        add(&self.counters.flushed_files, 1);
        add(&self.counters.flushed_bytes, job.bytes());
        self.leave(job, inner);
        Ok(())
    }

    fn leave(&self, job: &Job, mut inner: std::sync::MutexGuard<'_, crate::file::Inner>) {
        let live = inner.live();
        live.flight = None;
        live.io -= 1;
        job.file.changed.notify_all();
        self.retire(&job.file, inner);
    }

    /// Records a failure; the bytes stay dirty (W3).
    fn land_failed(&self, job: &Job) -> Error {
        let error = job.error.lock().expect("no panic inside").take();
        let error = error.unwrap_or_else(|| Error::os(libc::EIO, "the flush failed"));
        add(&self.counters.flush_failures, 1);
        let mut inner = job.file.lock();
        if inner.live().unlinked || error.kind() == Kind::Interrupted {
            self.leave(job, inner);
            return error;
        }
        let path = inner.state.display_path();
        let count = inner.trouble.as_ref().map_or(1, |t| t.count.saturating_add(1));
        if error.kind() != Kind::Conflict && count == 1 {
            tracing::warn!(path = %path.display(), error = %error, "flush failed; the bytes stay dirty and it is tried again");
        }
        let pause = (RETRY_MIN * 2u32.saturating_pow(count.min(7) - 1)).min(RETRY_MAX);
        inner.trouble = Some(Box::new(Trouble {
            error: error.to_string(),
            count,
            retry_at: Instant::now() + pause,
        }));
        self.leave(job, inner);
        error.context(path.display())
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

impl Job {
    fn leave_copying(&self, to: u8) -> bool {
        self.phase.compare_exchange(COPYING, to, SeqCst, SeqCst).is_ok()
    }

    fn is(&self, phase: u8) -> bool {
        self.phase.load(SeqCst) == phase
    }

    fn bytes(&self) -> u64 {
        self.captured.iter().map(|(start, end)| end - start).sum()
    }

    /// The size the backing file is to have after this flight: the file's, unless dirty bytes are
    /// left for the next; then nothing beyond what was copied, which would be zeros.
    fn target_size(&self) -> u64 {
        match self.captured.len() == self.dirty.len() && self.captured.last() == self.dirty.last() {
            true => self.size,
            false => {
                let copied = self.captured.last().map_or(0, |run| run.1);
                self.base.size.max(copied).min(self.size)
            }
        }
    }

    fn fail(&self, error: Error) {
        self.error.lock().expect("no panic inside").get_or_insert(error);
    }

    fn has_failed(&self) -> bool {
        self.error.lock().expect("no panic inside").is_some()
    }
}

/// The backing file after its flush, and whether the store keeps the time it is told. Some do not
/// (object stores, some FUSE file systems): there, only the size tells of a foreign write.
fn look_after(target: &dyn BackingFile, job: &Job) -> Result<(Attr, bool)> {
    let found = target.stat()?;
    if found.mtime == job.mtime {
        return Ok((found, true));
    }
    target.set_times(None, Some(job.mtime))?;
    let again = target.stat()?;
    // Told again it is as it should be: somebody had changed it since we told it first.
    Ok(if again.mtime == job.mtime { (found, true) } else { (again, false) })
}

/// Whether an unseen writer may have written since the last copy.
fn opaque_changed(inner: &crate::file::Inner) -> bool {
    let copied = inner.live.as_ref().and_then(|live| live.copied_at);
    copied.is_none() || copied != inner.shadow_stat()
}

/// Joins neighbors, whatever their durability.
fn merge(runs: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(runs.len());
    for (start, end) in runs {
        match merged.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => merged.push((start, end)),
        }
    }
    merged
}

/// The first runs of together at most `limit` bytes, the last of them cut.
fn first_part(runs: &[(u64, u64)], limit: u64) -> Vec<(u64, u64)> {
    let mut left = limit;
    let mut part = Vec::new();
    for &(start, end) in runs {
        if left == 0 {
            break;
        }
        let end = end.min(start + left);
        left -= end - start;
        part.push((start, end));
    }
    part
}

/// Cuts runs into pieces to copy in parallel.
fn pieces(runs: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let cut = |&(start, end): &(u64, u64)| {
        (start..end).step_by(PIECE as usize).map(move |at| (at, (at + PIECE).min(end)))
    };
    runs.iter().flat_map(cut).collect()
}
