//! What an operator asks for, beside flushing: evict, pin, purge, change tunables, shut down.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use forebay_backing::{Attr, Error, FileKind, Kind, Result};

use crate::config::Tunables;
use crate::copy::ERRANDS_PER_COPY;
use crate::engine::Engine;
use crate::file::{File, Inner};
use crate::io::Meanwhile;
use crate::report::{Failure, Progress, Report};
use crate::state::FileState;

const LINK: &str = "it is a symbolic link, or behind one: name what it points to";

/// So long a shutdown waits for the background threads, and for files of the backing store to be
/// closed.
const THREADS_MAX: Duration = Duration::from_secs(5);

/// What to do with dirty bytes at shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepDirty {
    No,
    Yes,
}

impl Engine {
    /// Files at or below one of the paths; all if there is none. In the order of their paths.
    pub(crate) fn select(&self, scope: &[PathBuf]) -> Vec<Arc<File>> {
        let within = |file: &Arc<File>| {
            let inner = file.lock();
            scope.is_empty() || scope.iter().any(|s| inner.state.paths.any_within(s))
        };
        let mut files: Vec<Arc<File>> = self.all_files().into_iter().filter(within).collect();
        files.sort_by_cached_key(|file| file.path());
        files
    }

    /// Which of the paths name nothing that could be meant: neither a cached file nor a directory
    /// of one nor anything on the backing store, or only a link to it. Where the backing store does
    /// not answer, nothing is said.
    pub fn missing(&self, scope: &[PathBuf]) -> Vec<Failure> {
        scope.iter().filter_map(|path| self.why_missing(path)).collect()
    }

    fn why_missing(&self, path: &Path) -> Option<Failure> {
        if !self.select(&[path.to_path_buf()]).is_empty() {
            return None;
        }
        let why = match self.ask(|b| b.stat(path)) {
            Ok(attr) if attr.kind == FileKind::Symlink => LINK,
            Err(e) if e.is(libc::ELOOP) => LINK,
            Err(e) if e.is(libc::ENOENT) || e.is(libc::ENOTDIR) => "there is no such file",
            Ok(_) | Err(_) => return None,
        };
        Some(Failure { path: path.to_path_buf(), state: "missing", error: why.into() })
    }

    /// Takes clean bytes out of the tier. Dirty, pinned and open files stay; a file that was named
    /// and stays is in the report.
    pub fn evict(&self, scope: &[PathBuf], progress: &Progress) -> Report {
        let mut report = Report::default();
        let files = self.select(scope);
        progress.total_files.store(files.len() as u64, Relaxed);
        for file in files {
            if progress.is_cancelled() {
                report.cancelled = true;
                break;
            }
            progress.done_files.fetch_add(1, Relaxed);
            let mut inner = file.lock();
            let asked = inner.state.paths.first().is_some_and(|p| scope.contains(&p));
            let why = match () {
                () if inner.state.flags.pinned => Some("it is pinned: unpin it first"),
                () if inner.is_pinned() => Some("a rule pins it: remove the rule first"),
                () if !inner.may_punch() => Some("it is open: close it first"),
                () if inner.state.is_dirty() => Some("it has dirty bytes: flush it first"),
                () => None,
            };
            if let (Some(why), true) = (why, asked) {
                report.failures.push(failure(&inner, &Error::os(libc::EBUSY, why)));
            }
            if inner.is_pinned() || !inner.may_punch() {
                continue;
            }
            if let Ok(freed) = self.evict_range(&file, &mut inner, 0, u64::MAX) {
                report.bytes += freed;
                report.files += u64::from(freed > 0);
            }
            self.retire(&file, inner);
        }
        report
    }

    /// Marks cached files so that they are not evicted, or takes the mark away.
    pub fn set_pinned(&self, scope: &[PathBuf], pinned: bool) -> Report {
        let mut report = Report::default();
        for file in self.select(scope) {
            match self.pin_file(&file, pinned) {
                Ok(None) => {}
                Ok(Some(bytes)) => {
                    report.files += 1;
                    report.bytes += bytes;
                }
                Err(e) => report.failures.push(failure(&file.lock(), &e)),
            }
        }
        report
    }

    /// Returns what it holds of the tier; `None` if there was nothing to change.
    pub(crate) fn pin_file(&self, file: &Arc<File>, pinned: bool) -> Result<Option<u64>> {
        let mut inner = file.lock();
        let bytes = inner.charged;
        let changed = self.mark_pinned(file, &mut inner, pinned);
        self.retire(file, inner);
        changed.map(|changed| changed.then_some(bytes))
    }

    /// Returns whether it was marked otherwise before.
    pub(crate) fn mark_pinned(
        &self,
        file: &Arc<File>,
        inner: &mut Inner,
        pinned: bool,
    ) -> Result<bool> {
        if inner.state.flags.pinned == pinned || inner.gone {
            return Ok(false);
        }
        inner.state.flags.pinned = pinned;
        let put = self.put(file, inner);
        if put.is_err() {
            inner.state.flags.pinned = !pinned;
        }
        put.map(|()| true)
    }

    /// Throws cached bytes away, dirty ones too. Only the operator asks for this (S7).
    pub fn purge(&self, scope: &[PathBuf]) -> Report {
        let mut report = Report::default();
        for file in self.select(scope) {
            let bytes = file.lock().charged;
            match self.purge_file(&file) {
                Ok(()) => {
                    report.files += 1;
                    report.bytes += bytes;
                }
                Err(e) => report.failures.push(failure(&file.lock(), &e)),
            }
        }
        let _ = self.note_tier(self.index.sync());
        report
    }

    pub(crate) fn purge_file(&self, file: &Arc<File>) -> Result<()> {
        let now = self.attr_now(file);
        self.purge_locked(file, file.lock(), now)
    }

    /// What the backing store says of the file's name, if it has one.
    pub(crate) fn attr_now(&self, file: &File) -> Option<Result<Attr>> {
        file.path().map(|path| self.ask(|b| b.stat(&path)))
    }

    /// `now` is from [`Engine::attr_now`]. Ends the caller's lock.
    pub(crate) fn purge_locked(
        &self,
        file: &Arc<File>,
        mut inner: MutexGuard<'_, Inner>,
        now: Option<Result<Attr>>,
    ) -> Result<()> {
        if !inner.is_idle() && !inner.may_punch() {
            return Err(Error::os(libc::EBUSY, "it is open or being flushed: close it first"));
        }
        if inner.is_idle() {
            self.discard(file, &mut inner);
            drop(inner);
            self.forget(file);
            return Ok(());
        }
        let attr = now.unwrap_or_else(|| Err(Error::os(libc::ENOENT, "it has no name")))?;
        let path = inner.state.display_path();
        let names = std::mem::take(&mut inner.state.paths);
        inner.state = FileState { paths: names, ..FileState::absent(&path, &attr) };
        self.put(file, &mut inner)?;
        inner.base_seq += 1;
        // A loss of power must not bring dirty bytes back when they are holes.
        self.note_tier(self.index.sync())?;
        let live = inner.live();
        live.thrown.note(0, u64::MAX);
        let shadow = self.shadow(file, &mut inner)?;
        self.note_tier(self.empty(file, &mut inner, &*shadow, attr.size))?;
        self.account(file, &mut inner);
        Ok(())
    }

    pub fn tunables(&self) -> Tunables {
        self.tune(Clone::clone)
    }

    pub fn set_tunables(&self, t: Tunables) -> Result<()> {
        t.validate().map_err(|why| Error::new(Kind::Usage, why))?;
        self.fills.set_max(t.fill_depth as usize);
        self.flushes.set_max(t.flush_depth as usize);
        self.errands.set_max(t.flush_depth as usize * ERRANDS_PER_COPY);
        self.evictor.lock().expect("no panic inside").set_policy(t.eviction);
        self.evict_for(&t);
        *self.tunables.write().expect("no panic inside") = t;
        self.measure();
        self.evict_to_mark();
        self.nudge();
        Ok(())
    }

    /// Ends the engine's work: flushes (unless told to keep what is dirty) until `deadline`, stops
    /// the background threads, and makes the tier durable. What stays dirty is found again at the
    /// next start.
    pub fn shutdown(
        self: &Arc<Self>,
        keep: KeepDirty,
        progress: &Progress,
        deadline: Option<Instant>,
    ) -> Report {
        let report = match keep {
            KeepDirty::Yes => Report::default(),
            KeepDirty::No => self.flush_until(progress, deadline),
        };
        self.stopping.store(true, Relaxed);
        self.nudge();
        self.check_orphans();
        let quiet = self.join_threads();
        self.reaper.rest(THREADS_MAX);
        self.sync_names_at_end();
        self.sweep_graveyard(std::time::Duration::ZERO);
        self.empty_trash();
        let writing: Vec<Arc<File>> =
            self.space.unseen.lock().expect("no panic inside").values().cloned().collect();
        for file in &writing {
            let _ = self.try_sync(file, Meanwhile::Refused);
        }
        let seq = self.index.seq();
        let durable = self.media().sync_all();
        // Who writes past us goes on without us: what he writes is not known to be durable.
        if quiet && durable.is_ok() && writing.is_empty() {
            let next_id = self.next_id.load(Relaxed);
            if let Err(e) = self.index.end(&self.witness, next_id, seq, &|id| self.state_of(id)) {
                tracing::error!(error = %e, "the tier could not be marked as cleanly shut down");
            }
        } else {
            let _ = self.note_tier(self.index.sync());
        }
        report
    }

    /// What the store is not asked again after the next start. Not for longer than other threads are
    /// waited for.
    fn sync_names_at_end(self: &Arc<Self>) {
        if !self.health.is_available() {
            return;
        }
        self.sync_names_soon();
        let deadline = Instant::now() + THREADS_MAX;
        while self.syncing_names.load(Relaxed) && Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    fn flush_until(self: &Arc<Self>, progress: &Progress, deadline: Option<Instant>) -> Report {
        let Some(deadline) = deadline else { return self.flush(&[], progress) };
        std::thread::scope(|threads| {
            let worker = threads.spawn(|| self.flush(&[], progress));
            while !worker.is_finished() {
                if Instant::now() >= deadline {
                    progress.cancel();
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            worker.join().unwrap_or_default()
        })
    }

    /// Waits for the background threads a while; one that hangs in the backing store is left.
    fn join_threads(&self) -> bool {
        let threads = std::mem::take(&mut *self.threads.lock().expect("no panic inside"));
        let deadline = Instant::now() + THREADS_MAX;
        let mut quiet = true;
        for thread in threads {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            quiet &= thread.is_finished() && thread.join().is_ok();
        }
        quiet
    }
}

pub(crate) fn failure(inner: &Inner, error: &Error) -> Failure {
    let state = if inner.state.flags.conflict.stands() { "conflict" } else { "failed" };
    Failure { path: inner.state.display_path(), state, error: error.to_string() }
}

pub(crate) fn named_failure(path: &Path, error: &Error) -> Failure {
    Failure { path: path.to_path_buf(), state: "failed", error: error.to_string() }
}
