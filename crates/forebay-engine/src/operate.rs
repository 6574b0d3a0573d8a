//! What an operator asks for: flush, prefetch, evict, pin, purge, resolve, shut down; and what he
//! wants to know.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use forebay_backing::{BackingFile, BackingStore, Error, FileKind, Kind, New, Result};

use crate::config::Tunables;
use crate::engine::{Engine, now_ms};
use crate::file::{File, Inner};
use crate::fill::CHUNK;
use crate::flush::Outcome;
use crate::ranges::State;
use crate::report::{Failure, FileInfo, Progress, Report, Stats, Status};
use crate::state::FileState;

/// Which side of a conflict wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Our dirty bytes are flushed over what is there.
    Ours,
    /// Our dirty bytes are thrown away.
    Theirs,
    /// Ours are saved beside the file, under a name that says so.
    Both,
}

/// What to do with dirty bytes at shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepDirty {
    No,
    Yes,
}

/// How many files one call to the drain takes: small enough for progress to move.
const FLUSH_STEP: usize = 128;

impl Engine {
    /// Files at or below one of the paths; all if there is none. In the order of their paths.
    fn select(&self, scope: &[PathBuf]) -> Vec<Arc<File>> {
        let within = |file: &Arc<File>| {
            let inner = file.lock();
            scope.is_empty()
                || inner.state.paths.iter().any(|path| scope.iter().any(|s| path.starts_with(s)))
        };
        let mut files: Vec<Arc<File>> = self.all_files().into_iter().filter(within).collect();
        files.sort_by_cached_key(|file| file.path());
        files
    }

    /// Brings everything that is dirty now to the backing store, synced there (S5). What could not
    /// be flushed stays dirty and is in the report.
    pub fn flush(self: &Arc<Self>, scope: &[PathBuf], progress: &Progress) -> Report {
        let mut files = self.select(scope);
        files.retain(|file| file.lock().state.is_dirty());
        let bytes = files.iter().map(|file| file.lock().dirty_charged).sum();
        progress.total_files.store(files.len() as u64, Relaxed);
        progress.total_bytes.store(bytes, Relaxed);
        let mut report = Report::default();
        for step in files.chunks(FLUSH_STEP) {
            if progress.is_cancelled() {
                report.cancelled = true;
                break;
            }
            for (file, outcome) in
                step.iter().zip(self.flush_batch_until(step, &|| progress.is_cancelled()))
            {
                self.tally(file, outcome, progress, &mut report);
            }
        }
        report
    }

    fn tally(
        self: &Arc<Self>,
        file: &Arc<File>,
        outcome: Outcome,
        progress: &Progress,
        report: &mut Report,
    ) {
        let outcome = match outcome {
            Outcome::Busy => {
                self.wait_for_flight(file).and_then(|()| self.flush_file(file)).map(|()| 0)
            }
            Outcome::Failed(error) => Err(error),
            Outcome::Flushed(bytes) if file.lock().state.flags.opaque => Ok(bytes),
            Outcome::Flushed(bytes) => self.flush_rest(file, bytes, progress),
            Outcome::Nothing => Ok(0),
        };
        match outcome {
            Err(error) if error.kind() == Kind::Interrupted => report.cancelled = true,
            Ok(bytes) => {
                report.files += 1;
                report.bytes += bytes;
                progress.done_files.fetch_add(1, Relaxed);
                progress.done_bytes.fetch_add(bytes, Relaxed);
            }
            Err(error) => {
                progress.failed_files.fetch_add(1, Relaxed);
                report.failures.push(failure(&file.lock(), &error));
            }
        }
    }

    /// The later flights of a large file.
    fn flush_rest(
        self: &Arc<Self>,
        file: &Arc<File>,
        first: u64,
        progress: &Progress,
    ) -> Result<u64> {
        let mut bytes = first;
        let mut flights = 2 + file.lock().dirty_charged / first.max(1);
        while flights > 0 && file.lock().state.is_dirty() {
            flights -= 1;
            let one = std::slice::from_ref(file);
            match self.flush_batch_until(one, &|| progress.is_cancelled()).pop() {
                Some(Outcome::Flushed(more)) => bytes += more,
                Some(Outcome::Failed(error)) => return Err(error),
                Some(Outcome::Busy) => self.wait_for_flight(file)?,
                _ => break,
            }
        }
        Ok(bytes)
    }

    /// Fetches files, or everything below directories, until they are complete.
    pub fn prefetch(self: &Arc<Self>, scope: &[PathBuf], progress: &Progress) -> Report {
        let mut report = Report::default();
        let mut todo = VecDeque::new();
        let roots = if scope.is_empty() { vec![PathBuf::new()] } else { scope.to_vec() };
        for root in roots {
            self.walk(&root, &mut todo, progress, &mut report);
        }
        let queue = Mutex::new(todo);
        let shared = Mutex::new(report);
        let workers = self.tune(|t| t.fill_depth) as usize;
        std::thread::scope(|threads| {
            for _ in 0..workers {
                threads.spawn(|| self.prefetch_worker(&queue, progress, &shared));
            }
        });
        let mut report = shared.into_inner().expect("no panic inside");
        report.cancelled = progress.is_cancelled();
        report
    }

    fn walk(
        &self,
        path: &Path,
        todo: &mut VecDeque<Fetch>,
        progress: &Progress,
        report: &mut Report,
    ) {
        if progress.is_cancelled() {
            return;
        }
        match self.ask(|b| b.stat(path)) {
            Ok(attr) if attr.kind == FileKind::File => {
                progress.total_files.fetch_add(1, Relaxed);
                progress.total_bytes.fetch_add(attr.size, Relaxed);
                todo.push_back(Fetch::File(path.to_path_buf()));
            }
            Ok(attr) if attr.kind == FileKind::Dir => match self.ask(|b| b.read_dir(path)) {
                Ok(entries) => {
                    for entry in entries {
                        self.walk(&path.join(entry.name), todo, progress, report);
                    }
                }
                Err(e) => report.failures.push(named_failure(path, &e)),
            },
            Ok(_) => {}
            Err(e) => report.failures.push(named_failure(path, &e)),
        }
    }

    fn prefetch_worker(
        self: &Arc<Self>,
        queue: &Mutex<VecDeque<Fetch>>,
        progress: &Progress,
        report: &Mutex<Report>,
    ) {
        loop {
            let next = queue.lock().expect("no panic inside").pop_front();
            let Some(fetch) = next.filter(|_| !progress.is_cancelled()) else { return };
            let (path, done) = match fetch {
                Fetch::File(path) => {
                    let opened = self.prefetch_file(&path, queue, progress);
                    (path, opened)
                }
                Fetch::Piece(large, start, end) => {
                    let got = self.fill_all(&large.file, start, end, progress);
                    (large.path.clone(), self.piece_done(&large, got))
                }
            };
            let mut report = report.lock().expect("no panic inside");
            match done {
                Ok(None) => {}
                Ok(Some(bytes)) => {
                    report.files += 1;
                    report.bytes += bytes;
                    progress.done_files.fetch_add(1, Relaxed);
                }
                Err(e) => {
                    progress.failed_files.fetch_add(1, Relaxed);
                    report.failures.push(named_failure(&path, &e));
                }
            }
        }
    }

    /// Fetches a small file, or hands out the pieces of a large one. Returns the bytes of a file
    /// that was found complete.
    fn prefetch_file(
        self: &Arc<Self>,
        path: &Path,
        queue: &Mutex<VecDeque<Fetch>>,
        progress: &Progress,
    ) -> Result<Option<u64>> {
        let file = self.open(path, None)?;
        let size = file.lock().size();
        if size <= 4 * CHUNK {
            let got = self.fill_all(&file, 0, size, progress);
            let complete = got.and_then(|()| self.verify(&file, path));
            self.close(&file);
            return complete.map(Some);
        }
        let count = size.div_ceil(4 * CHUNK) as usize;
        let large =
            Arc::new(Large { file, path: path.to_path_buf(), left: Mutex::new((count, None)) });
        let mut queue = queue.lock().expect("no panic inside");
        for piece in (0..count as u64).rev() {
            let start = piece * 4 * CHUNK;
            let end = (start + 4 * CHUNK).min(size);
            queue.push_front(Fetch::Piece(large.clone(), start, end));
        }
        Ok(None)
    }

    fn piece_done(&self, large: &Arc<Large>, got: Result<()>) -> Result<Option<u64>> {
        let mut left = large.left.lock().expect("no panic inside");
        left.0 -= 1;
        if let Err(e) = got {
            left.1.get_or_insert(e);
        }
        if left.0 > 0 {
            return Ok(None);
        }
        let complete = match left.1.take() {
            Some(error) => Err(error),
            None => self.verify(&large.file, &large.path).map(Some),
        };
        self.close(&large.file);
        complete
    }

    fn fill_all(
        self: &Arc<Self>,
        file: &Arc<File>,
        start: u64,
        end: u64,
        progress: &Progress,
    ) -> Result<()> {
        let mut at = start;
        while at < end && !progress.is_cancelled() {
            let gap = {
                let inner = file.lock();
                if inner.state.flags.opaque { None } else { inner.state.ranges.first_gap(at, end) }
            };
            let Some((from, to)) = gap else { break };
            let to = to.min(from / CHUNK * CHUNK + CHUNK);
            if !self.fill_exactly(file, from, to)? {
                return Err(Error::os(
                    libc::ENOSPC,
                    "the fast tier is full: enlarge it, or prefetch less",
                ));
            }
            at = from;
        }
        progress.done_bytes.fetch_add(end - start, Relaxed);
        Ok(())
    }

    /// Complete, and still of the version that is on the backing store.
    fn verify(&self, file: &Arc<File>, path: &Path) -> Result<u64> {
        let attr = self.ask(|b| b.stat(path))?;
        let inner = file.lock();
        let same = attr.version() == inner.state.base || inner.state.is_dirty();
        if same && inner.state.is_complete() {
            return Ok(inner.size());
        }
        Err(Error::os(
            libc::ESTALE,
            "changed or was evicted while it was fetched: prefetch it again",
        ))
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
            let asked = inner.state.path().is_some_and(|p| scope.iter().any(|s| **s == *p));
            let why = match () {
                () if inner.state.flags.pinned => Some("it is pinned: unpin it first"),
                () if !inner.may_punch() => Some("it is open: close it first"),
                () if inner.state.is_dirty() => Some("it has dirty bytes: flush it first"),
                () => None,
            };
            if let (Some(why), true) = (why, asked) {
                report.failures.push(failure(&inner, &Error::os(libc::EBUSY, why)));
            }
            if inner.state.flags.pinned || !inner.may_punch() {
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
            let mut inner = file.lock();
            if inner.state.flags.pinned == pinned {
                continue;
            }
            inner.state.flags.pinned = pinned;
            match self.put(&file, &mut inner) {
                Ok(()) => {
                    report.files += 1;
                    report.bytes += inner.charged;
                }
                Err(e) => report.failures.push(failure(&inner, &e)),
            }
            self.retire(&file, inner);
        }
        report
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
        report
    }

    fn purge_file(&self, file: &Arc<File>) -> Result<()> {
        let path = file.path();
        let now = path.map(|path| self.ask(|b| b.stat(&path)));
        let mut inner = file.lock();
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
        inner.state = FileState::absent(&path, &attr);
        self.put(file, &mut inner)?;
        let live = inner.live();
        live.epoch += 1;
        let shadow = self.shadow(file, &mut inner)?;
        self.note_tier(shadow.set_len(0).and_then(|()| shadow.set_len(attr.size)))?;
        self.account(file, &mut inner);
        Ok(())
    }

    /// Settles a conflict (S8).
    pub fn resolve(self: &Arc<Self>, path: &Path, keep: Keep) -> Result<()> {
        let file = self.conflicted(path)?;
        match keep {
            Keep::Theirs => self.purge_file(&file),
            Keep::Ours => self.resolve_ours(&file, path),
            Keep::Both => {
                let beside = self.beside(path);
                self.export_file(&file, &*self.backing, &beside)?;
                tracing::info!(path = %path.display(), saved = %beside.display(), "conflict resolved");
                self.purge_file(&file)
            }
        }
    }

    fn conflicted(&self, path: &Path) -> Result<Arc<File>> {
        let named = |file: &Arc<File>| {
            let inner = file.lock();
            inner.state.flags.conflict && inner.state.paths.iter().any(|p| **p == *path)
        };
        self.all_files().into_iter().find(named).ok_or_else(|| {
            Error::new(
                Kind::Usage,
                format!(
                    "{} has no conflict: 'forebay status' lists those that have",
                    path.display()
                ),
            )
        })
    }

    fn beside(&self, path: &Path) -> PathBuf {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        (1..)
            .map(|n| path.with_file_name(format!("{name}.forebay-ours-{n}")))
            .find(|candidate| self.ask(|b| b.stat(candidate)).is_err())
            .expect("some name is free")
    }

    fn resolve_ours(self: &Arc<Self>, file: &Arc<File>, path: &Path) -> Result<()> {
        match self.ask(|b| b.stat(path)) {
            Ok(attr) if attr.key == file.key => {
                let mut inner = file.lock();
                inner.state.base = attr.version();
                inner.base_seq += 1;
                inner.state.flags.conflict = false;
                inner.state.flags.flush_open = false;
                // Bytes cached from the old version no longer match what is there.
                let clean: Vec<_> =
                    inner.state.ranges.iter().filter(|run| run.state == State::Clean).collect();
                for run in clean {
                    inner.state.ranges.clear(run.start, run.end);
                }
                self.put(file, &mut inner)?;
                drop(inner);
                self.flush_file(file)
            }
            Ok(_) => {
                self.replace_there(file, path)?;
                self.purge_file(file)
            }
            Err(e) if e.is(libc::ENOENT) => {
                self.export_file(file, &*self.backing, path)?;
                self.purge_file(file)
            }
            Err(e) => Err(e),
        }
    }

    /// Writes our version beside the foreign file and renames it over: either is there whole.
    fn replace_there(&self, file: &Arc<File>, path: &Path) -> Result<()> {
        let beside = self.beside(path);
        self.export_file(file, &*self.backing, &beside)?;
        self.ask(|b| b.rename(&beside, path, forebay_backing::RenameMode::Replace))
    }

    /// Writes the file as programs see it to `to`, a name that is free there.
    fn export_file(&self, file: &Arc<File>, store: &dyn BackingStore, to: &Path) -> Result<u64> {
        let (owner, size, mtime, shadow, gaps) = {
            let mut inner = file.lock();
            let shadow = self.shadow(file, &mut inner)?;
            let size = inner.size();
            let gaps = if inner.state.flags.opaque {
                Vec::new()
            } else {
                inner.state.ranges.gaps(0, size)
            };
            (inner.state.owner, size, inner.mtime(), shadow, gaps)
        };
        let theirs = match gaps.is_empty() {
            true => None,
            false => Some(self.backing_file(file).map_err(|e| {
                e.context("only parts of the file are in the tier and the rest is gone")
            })?),
        };
        let new = New { mode: owner.mode, uid: owner.uid, gid: owner.gid };
        let (target, _) = store.create(to, &new)?;
        let mut buf = vec![0; CHUNK as usize];
        let mut at = 0;
        while at < size {
            let want = (buf.len() as u64).min(size - at) as usize;
            self.note_tier(shadow.read_at(&mut buf[..want], at))?;
            if let Some(theirs) = &theirs {
                patch(&mut buf[..want], at, &gaps, &**theirs)?;
            }
            target.write_at(&buf[..want], at)?;
            at += want as u64;
        }
        target.set_len(size)?;
        target.set_times(None, Some(mtime))?;
        target.sync()?;
        Ok(size)
    }

    /// Writes every file that has dirty bytes to another store, whole where the rest of it can be
    /// had. The tier stays as it is.
    pub fn export_dirty(&self, to: &dyn BackingStore, progress: &Progress) -> Report {
        let mut files = self.select(&[]);
        files.retain(|file| file.lock().state.is_dirty());
        progress.total_files.store(files.len() as u64, Relaxed);
        let mut report = Report::default();
        for file in files {
            if progress.is_cancelled() {
                report.cancelled = true;
                break;
            }
            let Some(path) = file.path() else { continue };
            make_parents(to, &path);
            match self.export_file(&file, to, &path) {
                Ok(bytes) => {
                    report.files += 1;
                    report.bytes += bytes;
                    progress.done_files.fetch_add(1, Relaxed);
                    progress.done_bytes.fetch_add(bytes, Relaxed);
                }
                Err(e) => {
                    progress.failed_files.fetch_add(1, Relaxed);
                    report.failures.push(failure(&file.lock(), &e));
                }
            }
        }
        report
    }

    pub fn tunables(&self) -> Tunables {
        self.tune(Clone::clone)
    }

    pub fn set_tunables(&self, t: Tunables) -> Result<()> {
        t.validate().map_err(|why| Error::new(Kind::Usage, why))?;
        self.fills.set_max(t.fill_depth as usize);
        self.flushes.set_max(t.flush_depth as usize);
        *self.tunables.write().expect("no panic inside") = t;
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
        self.sweep_graveyard(std::time::Duration::ZERO);
        self.empty_trash();
        let quiet = self.join_threads();
        let durable = self.media().sync_all();
        if quiet && durable.is_ok() {
            let next_id = self.next_id.load(Relaxed);
            if let Err(e) = self.index.end(&self.boot_id, next_id, &|id| self.state_of(id)) {
                tracing::error!(error = %e, "the tier could not be marked as cleanly shut down");
            }
        }
        report
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
        let deadline = Instant::now() + std::time::Duration::from_secs(5);
        let mut quiet = true;
        for thread in threads {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            quiet &= thread.is_finished() && thread.join().is_ok();
        }
        quiet
    }

    pub fn list(&self, prefix: &Path) -> Vec<FileInfo> {
        let scope = [prefix.to_path_buf()];
        let files = self.select(if prefix.as_os_str().is_empty() { &[] } else { &scope });
        let info = |file: Arc<File>| {
            let inner = file.lock();
            (inner.charged > 0 || inner.state.is_dirty() || inner.state.flags.pinned)
                .then(|| file_info(&inner))
        };
        files.into_iter().filter_map(info).collect()
    }

    pub fn status(&self) -> Status {
        let level = self.level();
        let mut status = Status {
            tier_bytes: level.tier_bytes,
            used_bytes: level.used_bytes,
            dirty_bytes: level.dirty_bytes,
            clean_bytes: level.used_bytes.saturating_sub(level.dirty_bytes),
            flushing_bytes: self.drain.flushing_bytes.load(Relaxed),
            passthrough_writers: self.space.writers.load(Relaxed),
            oldest_dirty_age_secs: level.oldest_age.map_or(0.0, |age| age.as_secs_f64()),
            drain_bytes_per_sec: self.drain.rate.load(Relaxed),
            limited_by: self.drain.limited_by.lock().expect("no panic inside").to_string(),
            backing_available: level.backing_available,
            last_error: self.health.last_error(),
            ..Status::default()
        };
        for file in self.all_files() {
            self.count_file(&file.lock(), &mut status);
        }
        if status.dirty_files == 0 {
            status.limited_by = "nothing-dirty".into();
        } else if status.drain_bytes_per_sec > 0 {
            status.clean_in_secs =
                Some(status.dirty_bytes as f64 / status.drain_bytes_per_sec as f64);
        }
        status
    }

    fn count_file(&self, inner: &Inner, status: &mut Status) {
        status.files += u64::from(inner.charged > 0 || inner.state.is_dirty());
        status.dirty_files += u64::from(inner.state.is_dirty());
        status.open_files += u64::from(inner.live.as_ref().is_some_and(|live| live.opens > 0));
        if inner.state.flags.pinned {
            status.pinned_files += 1;
            status.pinned_bytes += inner.charged;
        }
        let trouble = match (&inner.trouble, inner.state.flags.conflict) {
            (_, true) => {
                status.conflicted_files += 1;
                let what =
                    inner.trouble.as_ref().map_or("the backing file has changed", |t| &t.error);
                Some(("conflict", what.to_string()))
            }
            (Some(trouble), false) if inner.state.is_dirty() => {
                status.failed_files += 1;
                Some(("failed", format!("{} ({} times)", trouble.error, trouble.count)))
            }
            _ => None,
        };
        if let Some((state, error)) = trouble
            && status.troubles.len() < 100
        {
            status.troubles.push(Failure { path: inner.state.display_path(), state, error });
        }
    }

    pub fn stats(&self) -> Stats {
        Stats {
            uptime_secs: self.started.elapsed().as_secs_f64(),
            counters: self
                .counters
                .all()
                .into_iter()
                .chain([
                    ("backing_errors", self.health.errors.load(Relaxed)),
                    ("backing_absences", self.health.absences.load(Relaxed)),
                ])
                .collect(),
            backing: Default::default(),
            tier: self.media().summaries().into_iter().collect(),
        }
    }
}

enum Fetch {
    File(PathBuf),
    Piece(Arc<Large>, u64, u64),
}

/// A large file being fetched in pieces: how many are left, and the first error.
struct Large {
    file: Arc<File>,
    path: PathBuf,
    left: Mutex<(usize, Option<Error>)>,
}

/// Fetches what is absent of `[at, at + buf.len())` into `buf`.
fn patch(buf: &mut [u8], at: u64, gaps: &[(u64, u64)], theirs: &dyn BackingFile) -> Result<()> {
    let end = at + buf.len() as u64;
    for &(a, b) in gaps {
        let (a, b) = (a.max(at), b.min(end));
        if a < b {
            theirs.read_at(&mut buf[(a - at) as usize..(b - at) as usize], a)?;
        }
    }
    Ok(())
}

fn make_parents(store: &dyn BackingStore, path: &Path) {
    let mut parents: Vec<&Path> = path.ancestors().skip(1).collect();
    parents.reverse();
    for parent in parents.into_iter().filter(|p| !p.as_os_str().is_empty()) {
        let new = New {
            mode: 0o755,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
        };
        let _ = store.mkdir(parent, &new);
    }
}

fn failure(inner: &Inner, error: &Error) -> Failure {
    let state = if inner.state.flags.conflict { "conflict" } else { "failed" };
    Failure { path: inner.state.display_path(), state, error: error.to_string() }
}

fn named_failure(path: &Path, error: &Error) -> Failure {
    Failure { path: path.to_path_buf(), state: "failed", error: error.to_string() }
}

fn file_info(inner: &Inner) -> FileInfo {
    let state = &inner.state;
    let flushing = inner.live.as_ref().is_some_and(|live| live.flight.is_some());
    let word = match () {
        () if state.flags.conflict => "conflict",
        () if flushing => "flushing",
        () if state.is_dirty() && inner.trouble.is_some() => "failed",
        () if state.is_dirty() => "dirty",
        () => "clean",
    };
    let age = || now_ms().saturating_sub(state.dirty_since) as f64 / 1000.0;
    FileInfo {
        path: state.display_path(),
        size: inner.size(),
        cached_bytes: if state.flags.opaque { inner.charged } else { state.ranges.bytes(|_| true) },
        dirty_bytes: if state.flags.opaque { inner.charged } else { state.dirty_bytes() },
        pinned: state.flags.pinned,
        state: word,
        dirty_age_secs: state.is_dirty().then(age),
        error: inner.trouble.as_ref().map(|t| t.error.clone()),
    }
}
