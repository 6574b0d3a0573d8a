//! The middle of a flight: opens the backing files and copies runs to them, many at once.
//!
//! A large file is cut into pieces that are copied in parallel; once the last of them has ended the
//! file is finished, or cleaned up after if nobody waits any more (W2).
//!
//! Only copies count against `flush-depth`. A small file needs four calls at the backing store (to
//! open it, to write, for its times, for what it is then), of which one moves bytes: the others have
//! threads of their own, or a store with latency would be idle for most of the time.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use forebay_backing::{Access, BackingFile, Error, FileKey, Kind, Result, Version};

use crate::core::clock::What;
use crate::core::counters::add;
use crate::core::portion::pieces;
use crate::core::state::Change;
use crate::drain::Drain;
use crate::drain::job::{ABANDONED, COPIED, COPYING, Job, Latch};
use crate::lock::{Mutex, MutexGuard, Rank};
use crate::tier::media::torn;

/// Bytes moved by one call: large enough for a network file system's largest request.
const COPY_BUFFER: usize = 1 << 20;

/// So many calls that move no bytes may be in flight for each copy that may: a small file needs three
/// of them, and its copy takes longer than one where copies keep the store busy.
pub(crate) const ERRANDS_PER_COPY: usize = 2;

/// What is copied together.
struct Batch {
    latch: Latch,
    /// Its files that nobody has begun to open.
    unopened: Mutex<VecDeque<(usize, Arc<Job>)>>,
    /// The pieces of its files that were opened, by the file's place in the batch and by offset:
    /// many are copied at once, but in this order, so that a disk's head is not sent from file to
    /// file.
    waiting: Mutex<BTreeMap<(usize, u64), Piece>>,
}

struct Piece {
    job: Arc<Job>,
    target: Arc<dyn BackingFile>,
    end: u64,
    /// Of its file.
    first: bool,
}

impl Batch {
    fn waiting(&self) -> MutexGuard<'_, BTreeMap<(usize, u64), Piece>> {
        self.waiting.lock()
    }
}

impl Drain {
    /// Step 2: all jobs, at most `flush_depth` copies at once.
    pub(crate) fn copy_all(
        self: &Arc<Self>,
        jobs: &[(usize, Arc<Job>)],
        cancelled: &dyn Fn() -> bool,
    ) {
        let latch = Latch::new(jobs.len());
        let unopened = Mutex::new(Rank::Batch, jobs.iter().cloned().collect());
        let batch =
            Arc::new(Batch { latch, unopened, waiting: Mutex::new(Rank::Batch, BTreeMap::new()) });
        // What others do to a file between the look at it and its copy nobody notices: few are
        // opened ahead.
        for _ in 0..self.files.tune(|t| t.flush_depth as usize) * ERRANDS_PER_COPY {
            self.open_another(&batch);
        }
        let limit = self.files.tune(|t| t.backing_timeout);
        let stalls = || self.home.health().has_stalled_call(limit);
        let complete = loop {
            let complete = batch.latch.wait(self.files.time(), || cancelled() || stalls());
            if complete || stalls() {
                break complete;
            }
            if cancelled() {
                let stop = |job: &Arc<Job>| job.fail(Error::new(Kind::Interrupted, "cancelled"));
                jobs.iter().filter(|(_, job)| job.is(COPYING)).for_each(|(_, job)| stop(job));
                // The threads that copy may be busy for long with what others flush.
                while self.copy_next(&batch) {}
            }
        };
        if !complete {
            for (_, job) in jobs {
                job.leave_copying(ABANDONED);
            }
        }
    }

    fn open_another(self: &Arc<Self>, batch: &Arc<Batch>) {
        let next = batch.unopened.lock().pop_front();
        if let Some((at, job)) = next {
            let (drain, batch) = (self.clone(), batch.clone());
            self.home.errands().run(move || drain.start_copy(at, &job, &batch));
        }
    }

    /// Opens a file and has it copied.
    fn start_copy(self: &Arc<Self>, at: usize, job: &Arc<Job>, batch: &Arc<Batch>) {
        let wanted = !job.has_failed() && !job.is(ABANDONED);
        let pieces = if wanted { self.hand_out(at, job, batch) } else { Ok(0) };
        let pieces = pieces.unwrap_or_else(|error| {
            job.fail(error);
            0
        });
        if pieces == 0 {
            self.open_another(batch);
        }
        for _ in 0..pieces {
            let (drain, batch) = (self.clone(), batch.clone());
            // None is left for it once the batch was cancelled.
            self.flushes.run(move || _ = drain.copy_next(&batch));
        }
        if job.end_piece() {
            self.finish(job, &batch.latch);
        }
    }

    /// Opens the target and hands out its pieces; returns how many.
    fn hand_out(&self, at: usize, job: &Arc<Job>, batch: &Batch) -> Result<usize> {
        let target = self.open_target(job)?;
        // To open it, an ordinary user may have changed its mode for a moment.
        if !self.home.is_privileged()
            && let Some(flight) = &mut job.file.lock().live().flight
        {
            flight.disown_answers();
        }
        *job.target.lock() = Some(target.clone());
        let pieces = self.files.note_tier(pieces(&job.captured, |at| job.shadow.next_data(at)))?;
        let count = pieces.len();
        job.pieces.fetch_add(count, SeqCst);
        batch.waiting().extend(pieces.into_iter().enumerate().map(|(n, (start, end))| {
            let (job, target) = (job.clone(), target.clone());
            ((at, start), Piece { job, target, end, first: n == 0 })
        }));
        Ok(count)
    }

    /// Copies one piece of the batch, the first that nobody has taken; `false` if there is none.
    fn copy_next(self: &Arc<Self>, batch: &Arc<Batch>) -> bool {
        let first = batch.waiting().pop_first();
        let Some(((_, start), piece)) = first else { return false };
        let Piece { job, target, end, first } = piece;
        if first {
            self.open_another(batch);
        }
        self.copy_piece(&job, &*target, (start, end));
        if job.end_piece() {
            let (drain, batch) = (self.clone(), batch.clone());
            self.home.errands().run(move || drain.finish(&job, &batch.latch));
        }
        true
    }

    pub(crate) fn finish(&self, job: &Arc<Job>, latch: &Latch) {
        let target = job.target.lock().clone();
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
        let mut last: Option<PathBuf> = None;
        for _ in 0..4 {
            let Some(path) = job.file.path() else {
                // Its known names are gone, but it may have others: by descriptor, then.
                let held = job.file.lock().live().target.clone();
                return held.ok_or_else(|| Error::os(libc::ESTALE, "the file has no known name"));
            };
            if last.as_deref() == Some(&*path) {
                break;
            }
            if !self.home.is_privileged() {
                job.touched.store(true, SeqCst);
            }
            let opened = self.home.health().quietly(|| {
                // An ordinary user opens his own 0444 file by way of a chmod, which moves its
                // ctime: look before.
                let before = if self.home.is_privileged() {
                    None
                } else {
                    Some(self.home.backing().stat(&path)?)
                };
                let (target, attr) = self.home.backing().open_seen(&path, Access::ReadWrite)?;
                Ok((target, before.filter(|b| b.key == attr.key).unwrap_or(attr)))
            });
            match opened {
                Ok((target, attr)) if attr.key == job.file.key => {
                    let changed = attr.version() != job.base
                        && !job.resumed
                        && !self.died_meanwhile(job, &attr.version());
                    if changed && !self.moved_by_us(job, &attr.version()) {
                        tracing::debug!(known = ?job.base, found = ?attr.version(), "another version");
                        return Err(self.conflict(job, "the backing file has changed"));
                    }
                    return Ok(target);
                }
                Ok(_) => {}
                Err(e) if e.is(libc::ENOENT) || self.is_elsewhere(&path, job.file.key) => {}
                Err(e) => return Err(e),
            }
            last = Some(path);
        }
        Err(self.conflict(job, "the backing file was replaced or deleted"))
    }

    /// Whether something else than the file with this key has its name, or nothing: what cannot be
    /// opened may be a link or a directory by now, or lie below one.
    fn is_elsewhere(&self, path: &Path, key: FileKey) -> bool {
        match self.home.health().quietly(|| self.home.backing().stat(path)) {
            Ok(attr) => attr.key != key,
            Err(e) => [libc::ENOENT, libc::ENOTDIR, libc::ELOOP].iter().any(|errno| e.is(*errno)),
        }
    }

    /// Whether the backing file differs in its ctime alone, and that may be of a chmod, a link or
    /// the like which went through us when we died: its record came too late.
    fn died_meanwhile(&self, job: &Job, found: &Version) -> bool {
        let same = (found.size, found.mtime) == (job.base.size, job.base.mtime);
        same && job.seen.is_first() && !self.clean_start
    }

    /// Attributes may have changed through us since the capture: look at the base again.
    fn moved_by_us(&self, job: &Job, found: &Version) -> bool {
        let inner = job.file.lock();
        inner.state.base() == *found
    }

    fn conflict(&self, job: &Job, why: &str) -> Error {
        let mut inner = job.file.lock();
        // A rename or unlink of ours may be on its way: then it is no conflict.
        if inner.live.as_ref().is_some_and(|live| live.unlinked) {
            return Error::os(libc::ESTALE, "the file was unlinked meanwhile");
        }
        if !job.resumed {
            let base = inner.state.base();
            let _ = self.files.commit_anyway(&job.file, &mut inner, Change::FlushFailed { base });
        }
        // Several changes of ours may have come between the look at the backing file and here.
        let changed = inner.moved_since(job.seen, job.above);
        // Who began to rename it before anything of it was cached is known to the table alone.
        if changed || self.files.is_leaving(job.file.key, None) {
            return Error::os(libc::EBUSY, "the file is being renamed or changed");
        }
        self.files.declare_conflict(&job.file, &mut inner, why);
        drop(inner);
        let text = format!("{why} while dirty bytes were held: settle it with 'forebay resolve'");
        Error::new(Kind::Conflict, text)
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
            let data = self.files.note_tier(job.shadow.next_data(at))?;
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
        let wanted = || !job.is(ABANDONED) && !job.has_failed();
        let (mut at, holes) = (start, &self.holes);
        while at < end {
            let Some(_pass) = self.valve.pass(0, wanted) else {
                return Err(Error::new(Kind::TimedOut, "given up"));
            };
            let began = self.files.time().now();
            let len = self.home.health().quietly(|| {
                let size = target.stat()?.size;
                let len = end.min(size).saturating_sub(at).min(holes.bytes());
                if len > 0 {
                    job.touched.store(true, SeqCst);
                    target.punch(at, len)?;
                }
                Ok(len)
            })?;
            if len == 0 {
                break;
            }
            holes.note(len, self.files.time().since(began));
            at += len;
        }
        Ok(())
    }

    fn copy_data(&self, job: &Job, target: &dyn BackingFile, start: u64, end: u64) -> Result<()> {
        let mut buf = vec![0; COPY_BUFFER.min((end - start) as usize)];
        let mut at = start;
        let wanted = || !job.is(ABANDONED) && !job.has_failed();
        while at < end {
            let chunk = self.valve.chunk(COPY_BUFFER as u64);
            let want = buf.len().min((end - at).min(chunk) as usize);
            let Some(_pass) = self.valve.pass(want as u64, wanted) else {
                return Err(Error::new(Kind::TimedOut, "given up"));
            };
            let n = self.files.note_tier(job.shadow.read_at(&mut buf[..want], at))?;
            if n == 0 {
                // Truncated meanwhile: recorded as rewritten.
                let cut = job.file.lock().changed(job.seen, What::Size);
                return if cut { Ok(()) } else { self.files.note_tier(Err(torn())) };
            }
            job.touched.store(true, SeqCst);
            self.home.health().quietly(|| target.write_at(&buf[..n], at))?;
            self.files.landings().note_copied(n as u64);
            add(&self.unsettled, n as u64);
            add(&job.copied, n as u64);
            if let Some(meter) = &job.meter {
                meter.add(n as u64);
            }
            at += n as u64;
        }
        Ok(())
    }

    /// Size and times, once all pieces are there.
    fn finish_copy(&self, job: &Job, target: &dyn BackingFile) -> Result<()> {
        job.touched.store(true, SeqCst);
        self.home.health().quietly(|| {
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
}
