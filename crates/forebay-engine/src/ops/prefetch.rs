//! Fetching on request, with progress, until files are complete; and pinning the fetched files.
//!
//! Invariants:
//! - G1: bytes that a job has fetched are not evicted before the job ends: they never make room for
//!   the job's own other files.
//! - G2: a job fetches no file that does not fit beside those before it and the bytes that cannot be evicted.
//! - G3: a file that is reported as fetched is in the tier at the moment of the report.

use std::collections::{HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay_backing::{Error, FileKey, FileKind, Result};
use forebay_base::units::human_size;

use crate::core::report::{Progress, Report};
use crate::files::Files;
use crate::files::file::{File, failure, named_failure};
use crate::files::open::OpenFile;
use crate::files::stay::Stay;
use crate::io::Why;
use crate::io::fill::{CHUNK, Filled};
use crate::ops::Ops;
use forebay_base::lock::{Mutex, Rank};

/// The tier counts in blocks, which have this size on most file systems.
const BLOCK: u64 = 4096;

const LESS: &str = "enlarge it with `forebay set MOUNTPOINT tier-size=SIZE`, or prefetch less";

const CHANGED: &str = "changed while it was fetched: prefetch it again";

const DETACHED: &str = "the fast tier is detached: `forebay attach` it first";

const OVER_QUOTA: &str = "more than the quota of its rule: raise that, or prefetch less";

/// The aim of a fetch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Aim {
    Fetched,
    /// All of them pinned, or none: a tier full of pins would have no room for writers.
    Pinned,
}

enum Fetch {
    File(PathBuf),
    Piece(Arc<Large>, u64, u64),
}

/// A file to fetch.
struct Found {
    path: PathBuf,
    key: FileKey,
    /// The bytes that the file takes in the tier at least: its holes take none.
    least: u64,
}

/// A large file being fetched in pieces: the number of pieces left, and the first error. The last
/// piece closes the file, fetched or not.
struct Large {
    open: Opened,
    path: PathBuf,
    left: Mutex<(usize, Option<Error>)>,
}

/// An open file of which no byte is evicted (G1).
struct Opened {
    file: OpenFile,
    stay: Stay,
}

/// One call: the files left to fetch, and the report on the others.
struct Fetching<'a> {
    queue: Mutex<VecDeque<Fetch>>,
    progress: &'a Progress,
    report: Mutex<Report>,
    /// Whether a file found no room, so that the rest is not tried.
    full: AtomicBool,
    /// The files that were found complete.
    here: Mutex<Vec<Stay>>,
}

impl Ops {
    /// Fetches files, or everything below directories, until they are complete.
    pub fn prefetch(self: &Arc<Self>, scope: &[PathBuf], progress: &Progress) -> Report {
        self.fetch_all(scope, progress, Aim::Fetched)
    }

    /// As [`Ops::prefetch`], and pins the files. If they do not fit, or if the job is cancelled, no
    /// file is pinned that was not pinned before.
    pub fn pin(self: &Arc<Self>, scope: &[PathBuf], progress: &Progress) -> Report {
        self.fetch_all(scope, progress, Aim::Pinned)
    }

    fn fetch_all(self: &Arc<Self>, scope: &[PathBuf], progress: &Progress, aim: Aim) -> Report {
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
            here: Mutex::new(Rank::Prefetch, Vec::new()),
        };
        self.refuse_too_much(&fetching, scope, &mut todo, aim);
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
        self.conclude(fetching, aim)
    }

    /// Reports the results. It drops the rest of a cancelled job first, which closes files and must
    /// not be done under a lock.
    fn conclude(&self, fetching: Fetching<'_>, aim: Aim) -> Report {
        let Fetching { queue, progress, report, full, here } = fetching;
        drop(queue.into_inner());
        let mut report = report.into_inner();
        report.cancelled = progress.is_cancelled();
        if aim == Aim::Pinned && (full.into_inner() || report.cancelled) {
            return report;
        }
        let here = here.into_inner();
        for file in &here {
            match self.confirm(file, aim) {
                Ok(bytes) => {
                    report.files += 1;
                    report.bytes += bytes;
                }
                Err(e) => {
                    let failure = failure(&file.lock(), &e);
                    progress.failed(&failure);
                    report.failures.push(failure);
                }
            }
        }
        report
    }

    /// Returns the size of a file that is still complete (G3), and is pinned now if it is to be.
    fn confirm(&self, file: &Arc<File>, aim: Aim) -> Result<u64> {
        let mut inner = file.lock();
        if inner.gone() || !inner.state.is_complete() {
            return Err(match self.files.is_attached() {
                true => Error::os(libc::ESTALE, CHANGED),
                false => Error::os(libc::EBUSY, DETACHED),
            });
        }
        if aim == Aim::Pinned {
            self.files.mark_pinned(file, &mut inner, true)?;
        }
        Ok(inner.size())
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
                    least: attr.size.min(attr.blocks * 512).next_multiple_of(BLOCK),
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

    /// Removes files without room from `todo` (G2), in their order, or all of them if they are to
    /// be pinned: finding that out by fetching takes long, and evicts other programs' bytes.
    fn refuse_too_much(
        &self,
        fetching: &Fetching<'_>,
        scope: &[PathBuf],
        todo: &mut Vec<Found>,
        aim: Aim,
    ) {
        let mut room = self.room.room_to_fetch();
        let mut needs = Needs { files: &self.files, seen: HashSet::new() };
        let refused: Vec<(PathBuf, u64)> = match aim {
            Aim::Fetched => {
                let mut fits = |need| room.checked_sub(need).inspect(|left| room = *left).is_some();
                let has_none = |found: &mut Found| !fits(needs.of(found));
                todo.extract_if(.., has_none).map(|found| (found.path, found.least)).collect()
            }
            Aim::Pinned => {
                let all =
                    todo.iter().fold(0, |sum: u64, found| sum.saturating_add(needs.of(found)));
                match all > room {
                    true => {
                        todo.clear();
                        vec![(scope.first().cloned().unwrap_or_default(), all)]
                    }
                    false => Vec::new(),
                }
            }
        };
        for (path, bytes) in &refused {
            let (bytes, tier) = (human_size(*bytes), human_size(self.files.level().tier_bytes));
            let room = human_size(room);
            let why = format!(
                "{bytes} do not fit into the fast tier, which has {tier}, {room} of it left for this: {LESS}"
            );
            let failure = named_failure(path, &Error::os(libc::ENOSPC, why));
            fetching.progress.failed(&failure);
            fetching.report.lock().failures.push(failure);
        }
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
                    let opened = match fetching.full.load(Relaxed) {
                        true => Err(self.is_full()),
                        false => self.prefetch_file(&path, fetching),
                    };
                    (path, opened)
                }
                Fetch::Piece(large, start, end) => {
                    let got = self.fill_all(&large.open.file, start, end, progress);
                    (large.path.clone(), self.piece_done(&large, got))
                }
            };
            match done {
                Ok(None) => {}
                Ok(Some(stay)) => {
                    fetching.here.lock().push(stay);
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

    /// Fetches a small file, or queues the pieces of a large one. Returns a file that was found
    /// complete.
    fn prefetch_file(
        self: &Arc<Self>,
        path: &Path,
        fetching: &Fetching<'_>,
    ) -> Result<Option<Stay>> {
        let file = self.io.open(path, None)?;
        let stay = self.files.keep_in(&file);
        let open = Opened { file, stay };
        let size = open.file.lock().size();
        if size <= 4 * CHUNK {
            self.fill_all(&open.file, 0, size, fetching.progress)?;
            return self.verify(&open, path).map(Some);
        }
        let count = size.div_ceil(4 * CHUNK) as usize;
        let large = Arc::new(Large {
            open,
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

    fn piece_done(&self, large: &Arc<Large>, got: Result<()>) -> Result<Option<Stay>> {
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
            None => self.verify(&large.open, &large.path).map(Some),
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
                // Other programs may have taken the room that was made for the piece.
                Filled::Refused(Why::Full) if self.room.insist(to - from) => {}
                Filled::Bytes(_, Some(why)) | Filled::Refused(why) => return Err(refused(why)),
            }
            at = from;
        }
        // A cancelled fetch has come as far as the first gap.
        let gap = file.lock().state.first_gap(start, end);
        let reached = gap.map_or(end, |(from, _)| from);
        progress.done_bytes.fetch_add(reached - start, Relaxed);
        Ok(())
    }

    /// Checks that a file is complete, and still of the version on the backing store. An incomplete
    /// file had to make room: it does not fit.
    fn verify(&self, open: &Opened, path: &Path) -> Result<Stay> {
        let attr = self.names.ask(|b| b.stat(path))?;
        let inner = open.file.lock();
        let same = attr.version() == inner.state.base() || inner.state.is_dirty();
        match (same, inner.state.is_complete()) {
            (true, true) => {
                drop(inner);
                Ok(self.files.keep_in(&open.stay))
            }
            (true, false) => Err(self.is_full()),
            (false, _) => Err(Error::os(libc::ESTALE, CHANGED)),
        }
    }
}

/// The room that files take in the tier beside the bytes that stay in any case. A file with two
/// names, or named twice, counts once.
struct Needs<'a> {
    files: &'a Files,
    seen: HashSet<FileKey>,
}

impl Needs<'_> {
    fn of(&mut self, found: &Found) -> u64 {
        if !self.seen.insert(found.key) {
            return 0;
        }
        let here = self.files.find(found.key).map_or(0, |file| file.lock().staying());
        found.least.saturating_sub(here)
    }
}
