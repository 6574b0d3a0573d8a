//! The threads that keep house, and the end of the engine's work.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_backing::{Error, Result};

use crate::core::clock::{Look, What};
use crate::core::config::KeepDirty;
use crate::core::report::{Failure, PERISHABLE, Progress, Report};
use crate::files::file::{Beside, File, Inner, failure};
use crate::ops::Ops;
use crate::ops::operate::THREADS_MAX;

/// The unsynced ranges of one file before a sync of the tier.
struct Unsynced {
    size: u64,
    ranges: Vec<(u64, u64)>,
    seen: Look,
}

impl Unsynced {
    fn of(inner: &mut Inner) -> Unsynced {
        let size = inner.size();
        Unsynced { size, ranges: inner.state.unsynced(size), seen: inner.look() }
    }
}

/// How long a file without a name is kept for a request that looked it up before.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

impl Ops {
    /// Ends the engine's work: flushes (unless told to keep dirty bytes) until `deadline`, stops the background
    /// threads, and makes the tier durable. Bytes that stay dirty are found again at the next start, also of
    /// the machine; bytes that could not be made so durable are in the report as [`PERISHABLE`].
    pub fn shutdown(
        self: &Arc<Self>,
        keep: KeepDirty,
        progress: &Progress,
        deadline: Option<Instant>,
    ) -> Report {
        let mut report = match keep {
            KeepDirty::Yes => Report::default(),
            KeepDirty::No => self.flush_all_until(progress, deadline),
        };
        self.files.stop();
        self.files.nudge();
        self.passed.end_lingering();
        let quiet = self.join_threads();
        self.home.reaper().rest(THREADS_MAX);
        self.sync_names_at_end();
        self.files.sweep_graveyard(Duration::ZERO);
        self.files.empty_trash();
        let writing: Vec<Arc<File>> = self.files.totals().unseen();
        report.failures.extend(self.keep_durably());
        let seq = self.files.index().seq();
        let durable = self.files.media().sync_all();
        // Writers past the daemon go on after its end: their bytes are not known to be durable.
        if quiet && durable.is_ok() && writing.is_empty() {
            let next_id = self.files.next_id();
            if let Err(e) =
                self.files.index().end(&self.witness, next_id, seq, &|id| self.files.state_of(id))
            {
                tracing::error!(error = %e, "the tier could not be marked as cleanly shut down");
            }
        }
        report
    }

    /// Makes the remaining dirty bytes durable, and their record: the tier may not get marked as cleanly
    /// shut down, for example if a thread hangs in the store. Returns the files for which this failed.
    fn keep_durably(&self) -> Vec<Failure> {
        let dirty = self.files.select_dirty(&[]);
        let before: Vec<_> = dirty.iter().map(|file| Unsynced::of(&mut file.lock())).collect();
        let whole = dirty.is_empty() || self.files.media().sync_all().is_ok();
        let mut failures = Vec::new();
        for (file, before) in dirty.iter().zip(before) {
            let kept = match whole && self.is_kept(file, before) {
                true => Ok(()),
                false => self.io.sync_here(file),
            };
            if let Err(error) = kept {
                failures.push(Failure { state: PERISHABLE, ..failure(&file.lock(), &error) });
            }
        }
        let recorded = self.files.note_tier(self.files.index().sync());
        if let (Err(error), true) = (recorded, failures.is_empty()) {
            let all = dirty.iter();
            failures.extend(
                all.map(|file| Failure { state: PERISHABLE, ..failure(&file.lock(), &error) }),
            );
        }
        failures
    }

    /// Records that the whole tier was synced since `before`; `false` if that sync does not cover
    /// all of the file.
    fn is_kept(&self, file: &Arc<File>, before: Unsynced) -> bool {
        let mut inner = file.lock();
        let is_told = !inner.state.is_unseen() && !inner.state.is_unsynced();
        let Unsynced { size, ranges, seen } = before;
        let beside = Beside::default();
        let went = |&(start, end): &(u64, u64)| inner.changed(seen, What::Bytes(start, end));
        let recorded = is_told && !ranges.iter().any(went);
        recorded
            && self
                .files
                .record_synced(file, &mut inner, size, &ranges, &beside, seen)
                .unwrap_or(false)
    }

    /// Has the names on the store synced, so that the next start need not ask the store about them.
    /// Takes no longer than the wait for other threads.
    fn sync_names_at_end(self: &Arc<Self>) {
        if !self.home.health().is_available() {
            return;
        }
        self.names.sync_names_soon();
        let deadline = self.files.time().now() + THREADS_MAX;
        while self.names.are_syncing() && self.files.time().now() < deadline {
            self.files.time().sleep(Duration::from_millis(1));
        }
    }

    /// Flushes all, and once more if a mapping ended during the flush: it may have left newer bytes.
    fn flush_all_until(self: &Arc<Self>, progress: &Progress, deadline: Option<Instant>) -> Report {
        let mut report = Report::default();
        loop {
            let mapped = self.passed.lingering_count();
            report.add(self.flush_until(progress, deadline));
            self.passed.end_lingering();
            if report.cancelled || self.passed.lingering_count() >= mapped {
                return report;
            }
        }
    }

    fn flush_until(self: &Arc<Self>, progress: &Progress, deadline: Option<Instant>) -> Report {
        let Some(deadline) = deadline else { return self.drain.flush(&[], progress) };
        std::thread::scope(|threads| {
            let part = self.files.time().part();
            let worker = threads.spawn(move || {
                part.for_life();
                self.drain.flush(&[], progress)
            });
            while !worker.is_finished() {
                if self.files.time().now() >= deadline {
                    progress.cancel();
                }
                self.files.time().sleep(Duration::from_millis(20));
            }
            worker.join().unwrap_or_default()
        })
    }

    /// Waits a while for the background threads; one that hangs in the backing store is left behind.
    fn join_threads(&self) -> bool {
        let threads = std::mem::take(&mut *self.threads.lock());
        let deadline = self.files.time().now() + THREADS_MAX;
        let mut quiet = true;
        for thread in threads {
            while !thread.is_finished() && self.files.time().now() < deadline {
                self.files.time().sleep(Duration::from_millis(5));
            }
            quiet &= thread.is_finished() && thread.join().is_ok();
        }
        quiet
    }

    pub(crate) fn start_threads(self: Arc<Self>) -> Result<()> {
        self.drain.govern();
        let (drain, govern, keep) = (self.drain.clone(), self.drain.clone(), self.clone());
        let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
            let part = self.files.time().part();
            let work = move || {
                part.for_life();
                work();
            };
            std::thread::Builder::new()
                .name(name.into())
                .spawn(work)
                .map_err(|e| Error::io(e, "starting a thread"))
        };
        let mut threads = self.threads.lock();
        threads.push(spawn("fb-drain", Box::new(move || drain.drain_loop()))?);
        threads.push(spawn("fb-governor", Box::new(move || govern.govern_loop()))?);
        threads.push(spawn("fb-keep", Box::new(move || keep.keep_house()))?);
        Ok(())
    }

    /// The thread for all periodic work.
    fn keep_house(self: Arc<Self>) {
        let (probing, settling) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let mut last_compaction = self.files.time().now();
        let mut last_measure = self.files.time().now();
        while !self.files.is_stopping() {
            self.passed.measure_unseen();
            self.passed.tend_sluice();
            if self.files.time().since(last_measure) >= Duration::from_secs(1) {
                last_measure = self.files.time().now();
                self.files.measure();
                self.room.keep_rules();
                self.room.keep_empty();
            }
            self.room.evict_to_mark();
            self.files.sweep_graveyard(GRACE);
            self.passed.end_lingering();
            self.files.empty_trash();
            self.home.reaper().tend();
            self.tend_copies();
            self.home.health().check_stalls(self.files.tune(|t| t.backing_timeout));
            if !self.home.health().is_available() && !probing.swap(true, Relaxed) {
                self.clone().probe(probing.clone());
            }
            if self.files.index().wants_compaction()
                || self.files.time().since(last_compaction) >= Duration::from_secs(60)
            {
                last_compaction = self.files.time().now();
                self.compact();
                self.names.sync_names_soon();
            } else if self.names.owes_names() {
                self.names.sync_names_soon();
            }
            // Without this sync a loss of power would bring back a flush that had ended, to be
            // repeated over bytes that others have written since.
            if !self.files.index().has_settled() && !settling.swap(true, Relaxed) {
                self.sync_what_settled(settling.clone());
            }
            self.files.time().sleep(Duration::from_millis(100));
        }
    }

    /// Syncs on another thread than this one: the tier may have much else to write first. If the
    /// sync fails, the next caller that relies on the log gets the error.
    fn sync_what_settled(self: &Arc<Self>, settling: Arc<AtomicBool>) {
        let engine = self.clone();
        self.home.errands().run(move || {
            let _ = engine.files.index().sync();
            settling.store(false, Relaxed);
        });
    }

    /// Tells partners what they may forget, on another thread: partners may not answer.
    fn tend_copies(self: &Arc<Self>) {
        self.copies.tend();
        if self.outbox.has_over() {
            let outbox = self.outbox.clone();
            self.home.errands().run(move || outbox.tend());
        }
    }

    /// Asks the backing store whether it is back, on a thread of its own: the question may hang.
    pub(crate) fn probe(self: Arc<Self>, probing: Arc<AtomicBool>) {
        let part = self.files.time().part();
        let ask = move || {
            part.for_life();
            while !self.files.is_stopping() && !self.home.health().is_available() {
                self.files.time().sleep(Duration::from_millis(500));
                let limit = self.files.tune(|t| t.backing_timeout);
                if self.home.health().probe(|| self.home.backing().stat(Path::new(""))).is_ok()
                    && !self.home.health().has_stalled_call(limit)
                {
                    self.home.health().came_back();
                    self.retry_now();
                }
            }
            probing.store(false, Relaxed);
        };
        let _ = std::thread::Builder::new().name("fb-probe".into()).spawn(ask);
    }

    /// Ends the pauses after failed flushes.
    fn retry_now(&self) {
        let now = self.files.time().ms();
        let dirty = self.files.dirty().older(now, u64::MAX);
        for file in dirty {
            file.lock().end_pause(self.files.time().now());
        }
        self.files.nudge();
    }

    pub(crate) fn compact(&self) {
        let compacted =
            self.files.index().compact(self.files.next_id(), &|id| self.files.state_of(id));
        match compacted {
            Ok(()) => crate::core::counters::add(&self.files.counters().compactions, 1),
            Err(e) => {
                tracing::error!(error = %e, "the index could not be compacted; it is tried again")
            }
        }
    }
}
