//! Operations for operators beside flushing: evict, pin, purge, change tunables, shut down.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_backing::{Attr, Error, FileKind, Kind, Result, Version};

use crate::core::clock::Look;
use crate::core::config::Tunables;
use crate::core::report::{Failure, Progress, Report};
use crate::core::state::{Change, Owner};
use crate::drain::copy::ERRANDS_PER_COPY;
use crate::files::file::{File, Inner, failure};
use crate::ops::Ops;
use forebay_base::lock::MutexGuard;

const LINK: &str = "it is a symbolic link, or behind one: name what it points to";

/// How long a shutdown waits for the background threads, and for files of the backing store to be
/// closed.
pub(crate) const THREADS_MAX: Duration = Duration::from_secs(5);

impl Ops {
    /// Returns the paths that name nothing useful: no cached file, no directory of one and nothing
    /// on the backing store, or only a link there. While the backing store does not answer, no path
    /// is reported.
    pub fn missing(&self, scope: &[PathBuf]) -> Vec<Failure> {
        scope.iter().filter_map(|path| self.why_missing(path)).collect()
    }

    fn why_missing(&self, path: &Path) -> Option<Failure> {
        if self.files.knows_any(path) {
            return None;
        }
        let why = match self.names.ask(|b| b.stat(path)) {
            Ok(attr) if attr.kind == FileKind::Symlink => LINK,
            Err(e) if e.is(libc::ELOOP) => LINK,
            Err(e) if e.is(libc::ENOENT) || e.is(libc::ENOTDIR) => "there is no such file",
            Ok(_) | Err(_) => return None,
        };
        Some(Failure { path: path.to_path_buf(), state: "missing", error: why.into() })
    }

    /// Returns the cached files at or below the paths. The store is asked which file has a path as its name, for the
    /// file may be known by other names alone; below a directory only known names count.
    fn named(&self, scope: &[PathBuf]) -> Vec<Arc<File>> {
        scope.iter().for_each(|path| self.learn(path));
        self.files.select(scope)
    }

    /// Learns that a path is a name of a cached file, if it is.
    pub(crate) fn learn(&self, path: &Path) {
        let seen = Look::now();
        let Ok(attr) = self.names.ask(|b| b.stat(path)) else { return };
        if let Some(file) = self.files.find(attr.key) {
            self.files.learn_name(&file, path, seen);
        }
    }

    /// Evicts clean bytes. Dirty, pinned and open files stay; a file that was named and stays is in
    /// the report.
    pub fn evict(&self, scope: &[PathBuf], progress: &Progress) -> Report {
        let mut report = Report::default();
        let files = self.named(scope);
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
                () if inner.state.is_pinned() => Some("it is pinned: unpin it first"),
                () if inner.is_pinned() => Some("a rule pins it: remove the rule first"),
                () if inner.stays() => Some("a job fetches it: wait until that ends"),
                () if !inner.may_punch() => Some("it is open: close it first"),
                () if inner.state.is_dirty() => Some("it has dirty bytes: flush it first"),
                () => None,
            };
            if let (Some(why), true) = (why, asked) {
                report.failures.push(failure(&inner, &Error::os(libc::EBUSY, why)));
            }
            if inner.stays() || !inner.may_punch() {
                continue;
            }
            match self.room.evict_range(&file, &mut inner, 0, u64::MAX) {
                Ok(freed) => {
                    report.bytes += freed;
                    report.files += u64::from(freed > 0);
                }
                Err(error) if asked && why.is_none() => {
                    report.failures.push(failure(&inner, &error))
                }
                Err(_) => {}
            }
            self.files.retire(&file, inner);
        }
        report
    }

    /// Marks cached files so that they are not evicted, or removes the mark.
    pub fn set_pinned(&self, scope: &[PathBuf], pinned: bool) -> Report {
        let mut report = Report::default();
        for file in self.named(scope) {
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

    /// Returns the file's bytes in the tier; `None` if the mark was as wanted already.
    pub(crate) fn pin_file(&self, file: &Arc<File>, pinned: bool) -> Result<Option<u64>> {
        let mut inner = file.lock();
        let bytes = inner.charged();
        let changed = self.files.mark_pinned(file, &mut inner, pinned);
        self.files.retire(file, inner);
        changed.map(|changed| changed.then_some(bytes))
    }

    /// Throws cached bytes away, dirty ones too. Only an operator asks for this (S7).
    pub fn purge(&self, scope: &[PathBuf]) -> Report {
        let mut report = Report::default();
        for file in self.named(scope) {
            let bytes = file.lock().charged();
            match self.purge_file(&file) {
                Ok(()) => {
                    report.files += 1;
                    report.bytes += bytes;
                }
                Err(e) => report.failures.push(failure(&file.lock(), &e)),
            }
        }
        let _ = self.files.note_tier(self.files.index().sync());
        report
    }

    pub(crate) fn purge_file(&self, file: &Arc<File>) -> Result<()> {
        let now = self.attr_now(file);
        self.purge_locked(file, file.lock(), now)
    }

    /// Returns the backing store's attributes of the file's name, if it has one.
    pub(crate) fn attr_now(&self, file: &File) -> Option<Result<Attr>> {
        file.path().map(|path| self.names.ask(|b| b.stat(&path)))
    }

    /// Purges a locked file; `now` is from [`Ops::attr_now`]. Ends the caller's lock.
    pub(crate) fn purge_locked(
        &self,
        file: &Arc<File>,
        inner: MutexGuard<'_, Inner>,
        now: Option<Result<Attr>>,
    ) -> Result<()> {
        self.discard(file, inner, now)?;
        self.files.note_discarded(file.key);
        Ok(())
    }

    fn discard(
        &self,
        file: &Arc<File>,
        mut inner: MutexGuard<'_, Inner>,
        now: Option<Result<Attr>>,
    ) -> Result<()> {
        if !inner.is_idle() && !inner.may_punch() {
            return Err(Error::os(libc::EBUSY, "it is open or being flushed: close it first"));
        }
        if inner.is_idle() {
            self.files.erase(file, &mut inner);
            drop(inner);
            self.files.forget(file);
            return Ok(());
        }
        let (base, owner) = goes_on_with(file, &inner, now)?;
        self.files.commit(file, &mut inner, Change::Emptied { base, owner, pinned: false })?;
        inner.note_base();
        // After a loss of power dirty bytes must not come back as holes.
        self.files.note_tier(self.files.index().sync())?;
        inner.note_gone(0, u64::MAX);
        let shadow = self.files.shadow(file, &mut inner)?;
        self.files.note_tier(self.files.empty(file, &mut inner, &*shadow, base.size))?;
        self.files.account(file, &mut inner);
        Ok(())
    }

    pub fn set_tunables(&self, t: Tunables) -> Result<()> {
        t.validate().map_err(|why| Error::new(Kind::Usage, why))?;
        self.io.set_depth(t.fill_depth as usize);
        self.drain.set_depth(t.flush_depth as usize);
        self.home.errands().set_max(t.flush_depth as usize * ERRANDS_PER_COPY);
        self.files.evictor().set_policy(t.eviction);
        self.room.evict_for(&t);
        self.files.set_tunables(t);
        self.files.measure();
        self.room.evict_to_mark();
        self.files.nudge();
        Ok(())
    }
}

/// Returns the version and the owner that a file has once its bytes here are thrown away; `now` is
/// from [`Ops::attr_now`].
///
/// # Errors
///
/// Those of the store; EBUSY if programs have the file open, and its name leads to it no more.
pub(crate) fn goes_on_with(
    file: &File,
    inner: &Inner,
    now: Option<Result<Attr>>,
) -> Result<(Version, Owner)> {
    match now {
        Some(Ok(attr)) if attr.key == file.key => Ok((attr.version(), Owner::of(&attr))),
        Some(Err(error)) if !error.is_nowhere() => Err(error),
        _ if !inner.in_use().is_some_and(|live| live.is_open()) => {
            Ok((inner.state.base(), inner.state.owner()))
        }
        _ => Err(Error::os(
            libc::EBUSY,
            "it is open, and others have replaced or deleted the backing file: close it first",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use forebay_backing::{BackingStore, New};

    use crate::bed::bed;
    use crate::core::report::Progress;

    use super::*;

    /// However many clean files exist, a flush looks at none of them.
    // S-5
    #[test]
    fn an_order_for_all_looks_at_nothing_clean() {
        let bed = bed("operate-clean");
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let new = New { mode: 0o644, umask: 0, uid: uid.as_raw(), gid: gid.as_raw() };
        assert_eq!(bed.engine.drain.flush(&[], &Progress::default()).files, 1);
        let (dirty, _) = bed.engine.verbs.create(Path::new("g"), &new).unwrap();
        bed.engine.io.write(&dirty, 0, &[2; 100]).unwrap();
        let clean = bed.file.lock();
        let engine = bed.engine.clone();
        let order = std::thread::spawn(move || engine.drain.flush(&[], &Progress::default()).files);
        let began = Instant::now();
        while !order.is_finished() && began.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(order.is_finished(), "it waits for a clean file");
        drop(clean);
        assert_eq!(order.join().unwrap(), 1);
    }

    /// An order for one path is answered while a file beside it is locked.
    // S-5 S-10
    #[test]
    fn an_order_for_one_path_looks_at_nothing_beside_it() {
        let bed = bed("operate-beside");
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let new = New { mode: 0o755, umask: 0, uid: uid.as_raw(), gid: gid.as_raw() };
        bed.engine.names.alter(|b: &dyn BackingStore| b.mkdir(Path::new("d"), &new)).unwrap();
        let (below, _) = bed.engine.verbs.create(Path::new("d/g"), &new).unwrap();
        bed.engine.io.write(&below, 0, &[2; 100]).unwrap();
        drop(below);
        let busy = bed.file.lock();
        let engine = bed.engine.clone();
        let orders = std::thread::spawn(move || {
            for scope in [[PathBuf::from("d/g")], [PathBuf::from("d")]] {
                let progress = Progress::default();
                assert_eq!(engine.drain.flush(&scope, &progress).failures.len(), 0);
                assert_eq!(engine.ops.set_pinned(&scope, true).files, 1);
                assert_eq!(engine.ops.set_pinned(&scope, false).files, 1);
                assert_eq!(engine.ops.missing(&scope).len(), 0);
                assert_eq!(engine.ops.list(&scope[0]).map(|found| found.len()).ok(), Some(1));
            }
            assert_eq!(engine.ops.evict(&[PathBuf::from("d")], &Progress::default()).files, 1);
            engine.files.select(&[PathBuf::from("d")]).len()
        });
        let began = Instant::now();
        while !orders.is_finished() && began.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(orders.is_finished(), "it waits for a file beside it");
        drop(busy);
        assert_eq!(orders.join().unwrap(), 0, "evicted, it is not known any more");
    }
}
