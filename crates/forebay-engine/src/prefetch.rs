//! Fetching on request, with progress, until files are complete.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use forebay_backing::{Error, FileKind, Result};

use crate::around::Why;
use crate::engine::Engine;
use crate::file::File;
use crate::fill::CHUNK;
use crate::operate::named_failure;
use crate::report::{Progress, Report};

const FULL: &str = "the fast tier is full: enlarge it, or prefetch less";

const DETACHED: &str = "the fast tier is detached: `forebay attach` it first";

const OVER_QUOTA: &str = "more than the quota of its rule: raise that, or prefetch less";

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

impl Engine {
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
                    let failure = named_failure(&path, &e);
                    progress.failed(&failure);
                    report.failures.push(failure);
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
            match self.fill_exactly(file, from, to)? {
                None => {}
                Some(Why::Detached) => return Err(Error::os(libc::EBUSY, DETACHED)),
                Some(Why::Quota) => return Err(Error::os(libc::EDQUOT, OVER_QUOTA)),
                Some(_) => return Err(Error::os(libc::ENOSPC, FULL)),
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
}
