//! Fetching on request, with progress, until files are complete; and pinning what was fetched.

use std::collections::{HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay_backing::{Error, FileKey, FileKind, Result};
use forebay_base::units::human_size;

use crate::core::report::{Progress, Report};
use crate::files::file::{File, failure, named_failure};
use crate::files::open::OpenFile;
use crate::io::Why;
use crate::io::fill::{CHUNK, Filled};
use crate::ops::Ops;
use forebay_base::lock::{Mutex, Rank};

const LESS: &str = "enlarge it with `forebay set MOUNTPOINT tier-size=SIZE`, or prefetch less";

const CHANGED: &str = "changed while it was fetched: prefetch it again";

const DETACHED: &str = "the fast tier is detached: `forebay attach` it first";

const OVER_QUOTA: &str = "more than the quota of its rule: raise that, or prefetch less";

enum Fetch {
    File(PathBuf),
    Piece(Arc<Large>, u64, u64),
}

/// A file that is to be fetched.
struct Found {
    path: PathBuf,
    key: FileKey,
    /// So many bytes it takes in the tier at least: its holes take none.
    least: u64,
}

/// A large file being fetched in pieces: how many are left, and the first error. Its last piece closes
/// it, fetched or not.
struct Large {
    file: OpenFile,
    path: PathBuf,
    left: Mutex<(usize, Option<Error>)>,
}

/// One call: what is left to be fetched, and what came of the rest.
struct Fetching<'a> {
    queue: Mutex<VecDeque<Fetch>>,
    progress: &'a Progress,
    report: Mutex<Report>,
    /// Something did not fit.
    full: AtomicBool,
    /// Where each file is to be pinned as soon as it is complete: those that were not before.
    pinned: Option<Mutex<Vec<Arc<File>>>>,
}

impl Ops {
    /// Fetches files, or everything below directories, until they are complete.
    pub fn prefetch(self: &Arc<Self>, scope: &[PathBuf], progress: &Progress) -> Report {
        self.fetch_all(scope, progress, None).0
    }

    /// The same, and pins each file that is complete before it can be evicted. If they do not fit, or
    /// if it is cancelled, it pins none that was not pinned before: a tier that is full of pins would
    /// have no room for writers.
    pub fn pin(self: &Arc<Self>, scope: &[PathBuf], progress: &Progress) -> Report {
        let (mut report, fetching) =
            self.fetch_all(scope, progress, Some(Mutex::new(Rank::Prefetch, Default::default())));
        if fetching.full.into_inner() || report.cancelled {
            let pinned = fetching.pinned.map(|files| files.into_inner());
            for file in pinned.into_iter().flatten() {
                if let Err(error) = self.pin_file(&file, false) {
                    report.failures.push(failure(&file.lock(), &error));
                }
            }
            (report.files, report.bytes) = (0, 0);
        }
        report
    }

    fn fetch_all<'a>(
        self: &Arc<Self>,
        scope: &[PathBuf],
        progress: &'a Progress,
        pinned: Option<Mutex<Vec<Arc<File>>>>,
    ) -> (Report, Fetching<'a>) {
        let mut report = Report::default();
        let mut todo = Vec::new();
        let roots = if scope.is_empty() { vec![PathBuf::new()] } else { scope.to_vec() };
        for root in roots {
            self.walk(&root, &mut todo, progress, &mut report);
        }
        let fetching = Fetching {
            queue: Mutex::new(Rank::Prefetch, VecDeque::new()),
            progress,
            report: Mutex::new(Rank::Prefetch, report),
            full: AtomicBool::new(false),
            pinned,
        };
        self.refuse_too_much(&fetching, scope, &mut todo);
        fetching.queue.lock().extend(todo.into_iter().map(|found| Fetch::File(found.path)));
        let workers = self.files.tune(|t| t.fill_depth) as usize;
        std::thread::scope(|threads| {
            let (time, fetching) = (self.files.time(), &fetching);
            let spawn = |_| {
                let part = time.part();
                threads.spawn(move || {
                    part.for_life();
                    self.prefetch_worker(fetching);
                })
            };
            let workers: Vec<_> = (0..workers).map(spawn).collect();
            for worker in workers {
                time.join(worker).expect("no panic inside");
            }
        });
        let mut report = std::mem::take(&mut *fetching.report.lock());
        report.cancelled = progress.is_cancelled();
        // What is left of it, if it was cancelled: closes files, which is no work under a lock.
        let left = std::mem::take(&mut *fetching.queue.lock());
        drop(left);
        (report, fetching)
    }

    fn walk(&self, path: &Path, todo: &mut Vec<Found>, progress: &Progress, report: &mut Report) {
        if progress.is_cancelled() {
            return;
        }
        match self.names.ask(|b| b.stat(path)) {
            Ok(attr) if attr.kind == FileKind::File => {
                progress.total_files.fetch_add(1, Relaxed);
                progress.total_bytes.fetch_add(attr.size, Relaxed);
                todo.push(Found {
                    path: path.to_path_buf(),
                    key: attr.key,
                    least: attr.size.min(attr.blocks * 512),
                });
            }
            Ok(attr) if attr.kind == FileKind::Dir => match self.names.ask(|b| b.read_dir(path)) {
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

    /// Takes files that are larger than the tier from what is to be fetched, and all of it if it is to be
    /// pinned and is more than that: to find out by fetching takes long, and evicts what others use.
    fn refuse_too_much(&self, fetching: &Fetching<'_>, scope: &[PathBuf], todo: &mut Vec<Found>) {
        let (limit, before) = (self.files.level().tier_bytes, todo.len());
        let refuse = |path: &Path, bytes: u64| {
            let (bytes, tier) = (human_size(bytes), human_size(limit));
            let why = format!("{bytes} do not fit into the fast tier, which has {tier}: {LESS}");
            let failure = named_failure(path, &Error::os(libc::ENOSPC, why));
            fetching.progress.failed(&failure);
            fetching.report.lock().failures.push(failure);
        };
        for found in todo.extract_if(.., |found| found.least > limit) {
            refuse(&found.path, found.least);
        }
        let (all, refused) = (in_all(todo), todo.len() < before);
        if all > limit && fetching.pinned.is_some() {
            refuse(scope.first().map_or(Path::new(""), |path| path), all);
        }
        // What is pinned is pinned whole, or not at all.
        if fetching.pinned.is_some() && (refused || all > limit) {
            todo.clear();
        }
        fetching.full.fetch_or(todo.len() < before, Relaxed);
    }

    fn is_full(&self) -> Error {
        let tier = human_size(self.files.level().tier_bytes);
        Error::os(libc::ENOSPC, format!("the fast tier, which has {tier}, is full: {LESS}"))
    }

    fn prefetch_worker(self: &Arc<Self>, fetching: &Fetching<'_>) {
        let progress = fetching.progress;
        loop {
            let next = fetching.queue.lock().pop_front();
            let Some(fetch) = next.filter(|_| !progress.is_cancelled()) else { return };
            let (path, done) = match fetch {
                Fetch::File(path) => {
                    let opened = self.prefetch_file(&path, fetching);
                    (path, opened)
                }
                Fetch::Piece(large, start, end) => {
                    let got = self.fill_all(&large.file, start, end, progress);
                    (large.path.clone(), self.piece_done(&large, got, fetching))
                }
            };
            match done {
                Ok(None) => {}
                Ok(Some(bytes)) => {
                    let mut report = fetching.report.lock();
                    report.files += 1;
                    report.bytes += bytes;
                    progress.done_files.fetch_add(1, Relaxed);
                }
                Err(e) => {
                    fetching.full.fetch_or(e.is(libc::ENOSPC), Relaxed);
                    let failure = named_failure(&path, &e);
                    progress.failed(&failure);
                    fetching.report.lock().failures.push(failure);
                }
            }
        }
    }

    /// Fetches a small file, or hands out the pieces of a large one. Returns the bytes of a file
    /// that was found complete.
    fn prefetch_file(
        self: &Arc<Self>,
        path: &Path,
        fetching: &Fetching<'_>,
    ) -> Result<Option<u64>> {
        let file = self.io.open(path, None)?;
        let size = file.lock().size();
        if size <= 4 * CHUNK {
            let got = self.fill_all(&file, 0, size, fetching.progress);
            return got.and_then(|()| self.verify(&file, path, fetching)).map(Some);
        }
        let count = size.div_ceil(4 * CHUNK) as usize;
        let large = Arc::new(Large {
            file,
            path: path.to_path_buf(),
            left: Mutex::new(Rank::Prefetch, (count, None)),
        });
        let mut queue = fetching.queue.lock();
        for piece in (0..count as u64).rev() {
            let start = piece * 4 * CHUNK;
            let end = (start + 4 * CHUNK).min(size);
            queue.push_front(Fetch::Piece(large.clone(), start, end));
        }
        Ok(None)
    }

    fn piece_done(
        &self,
        large: &Arc<Large>,
        got: Result<()>,
        fetching: &Fetching<'_>,
    ) -> Result<Option<u64>> {
        let failed = {
            let mut left = large.left.lock();
            left.0 -= 1;
            if let Err(e) = got {
                left.1.get_or_insert(e);
            }
            if left.0 > 0 {
                return Ok(None);
            }
            left.1.take()
        };
        match failed {
            Some(error) => Err(error),
            None => self.verify(&large.file, &large.path, fetching).map(Some),
        }
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
            let gap = file.lock().state.first_gap(at, end);
            let Some((from, to)) = gap else { break };
            let to = to.min(from / CHUNK * CHUNK + CHUNK);
            let refused = |why| match why {
                Why::Detached => Error::os(libc::EBUSY, DETACHED),
                Why::Quota => Error::os(libc::EDQUOT, OVER_QUOTA),
                _ => self.is_full(),
            };
            match self.io.fill_exactly(file, (from, to), None)? {
                Filled::Again | Filled::Bytes(_, None) => {}
                Filled::Bytes(_, Some(why)) | Filled::Refused(why) => return Err(refused(why)),
            }
            at = from;
        }
        // Cancelled, it has come as far as the first gap.
        let gap = file.lock().state.first_gap(start, end);
        let reached = gap.map_or(end, |(from, _)| from);
        progress.done_bytes.fetch_add(reached - start, Relaxed);
        Ok(())
    }

    /// Complete, and still of the version that is on the backing store. Then it is pinned, if it is
    /// to be, before anybody can evict from it. What is not complete had to make room, perhaps for its own
    /// later bytes: it does not fit.
    fn verify(&self, file: &Arc<File>, path: &Path, fetching: &Fetching<'_>) -> Result<u64> {
        let attr = self.names.ask(|b| b.stat(path))?;
        let mut inner = file.lock();
        let same = attr.version() == inner.state.base() || inner.state.is_dirty();
        if same && inner.state.is_complete() {
            if let Some(pinned) = &fetching.pinned
                && self.files.mark_pinned(file, &mut inner, true)?
            {
                pinned.lock().push(file.clone());
            }
            return Ok(inner.size());
        }
        Err(match same {
            true => self.is_full(),
            false => Error::os(libc::ESTALE, CHANGED),
        })
    }
}

/// What has two names, or was named twice, counts once.
fn in_all(todo: &[Found]) -> u64 {
    let mut seen = HashSet::new();
    let new = todo.iter().filter(|found| seen.insert(found.key));
    new.fold(0, |sum: u64, found| sum.saturating_add(found.least))
}
