//! The middle of a flight: opens the backing files and copies runs to them, many at once.
//!
//! A large file is cut into pieces that are copied in parallel; once the last piece has ended the
//! file is finished, or, if no caller waits any more, cleaned up (W2).
//!
//! Only copies count against `flush-depth`. A small file needs four calls to the backing store
//! (open, write, set times, stat), of which one moves bytes: the others have threads of their own,
//! or a store with latency would be idle most of the time.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use forebay_backing::{Access, BackingFile, Error, FileKey, Kind, Result, Version};

use crate::core::portion::pieces;
use crate::core::state::Change;
use crate::drain::Drain;
use crate::drain::parcel::{Latch, Parcel, Phase, Stop};
use crate::files::digests::OpenTable;
use forebay_base::lock::{Mutex, MutexGuard, Rank};

/// Bytes moved by one call: as many as the largest request of a network file system.
const COPY_BUFFER: usize = 1 << 20;

/// The number of calls that move no bytes which may be in flight for each copy. A small file needs
/// three of them, and its copy takes longer than one such call where copies keep the store busy.
pub(crate) const ERRANDS_PER_COPY: usize = 2;

/// Files that are copied together.
struct Batch {
    latch: Latch,
    /// The files that are not being opened yet.
    unopened: Mutex<VecDeque<(usize, Arc<Parcel>)>>,
    /// The pieces of the opened files, by the file's place in the batch and by offset: many are
    /// copied at once, but in this order, so that a disk's head does not go from file to file.
    waiting: Mutex<BTreeMap<(usize, u64), Piece>>,
}

struct Piece {
    parcel: Arc<Parcel>,
    target: Arc<dyn BackingFile>,
    end: u64,
    /// Whether it is the first piece of its file.
    first: bool,
}

impl Batch {
    fn waiting(&self) -> MutexGuard<'_, BTreeMap<(usize, u64), Piece>> {
        self.waiting.lock()
    }
}

impl Drain {
    /// Step 2: copies all parcels, at most `flush_depth` at once.
    pub(crate) fn copy_all(
        self: &Arc<Self>,
        parcels: &[(usize, Arc<Parcel>)],
        cancelled: &dyn Fn() -> bool,
    ) {
        let latch = Latch::new(parcels.len());
        let unopened = Mutex::new(Rank::Batch, parcels.iter().cloned().collect());
        let batch =
            Arc::new(Batch { latch, unopened, waiting: Mutex::new(Rank::Batch, BTreeMap::new()) });
        // A change by another program between the look at a file and its copy is not seen, so few
        // files are opened ahead.
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
                let stop =
                    |parcel: &Arc<Parcel>| parcel.stop(Error::new(Kind::Interrupted, "cancelled"));
                parcels
                    .iter()
                    .filter(|(_, parcel)| parcel.is(Phase::Copying))
                    .for_each(|(_, parcel)| stop(parcel));
                // The threads that copy may be busy for long with other flushes.
                while self.copy_next(&batch) {}
            }
        };
        if !complete {
            for (_, parcel) in parcels {
                parcel.leave_copying(Phase::Abandoned);
            }
        }
    }

    fn open_another(self: &Arc<Self>, batch: &Arc<Batch>) {
        let next = batch.unopened.lock().pop_front();
        if let Some((at, parcel)) = next {
            let (drain, batch) = (self.clone(), batch.clone());
            self.home.errands().run(move || drain.start_copy(at, &parcel, &batch));
        }
    }

    /// Opens a file and queues its pieces for copying.
    fn start_copy(self: &Arc<Self>, at: usize, parcel: &Arc<Parcel>, batch: &Arc<Batch>) {
        let wanted = parcel.is_wanted();
        let pieces = if wanted { self.hand_out(at, parcel, batch) } else { Ok(0) };
        let pieces = pieces.unwrap_or_else(|stop| {
            parcel.stop(stop);
            0
        });
        if pieces == 0 {
            self.open_another(batch);
        }
        for _ in 0..pieces {
            let (drain, batch) = (self.clone(), batch.clone());
            // `copy_next` finds no piece once the batch was cancelled.
            self.flushes.run(move || _ = drain.copy_next(&batch));
        }
        if parcel.end_piece() {
            self.finish(parcel, &batch.latch);
        }
    }

    /// Opens the target and queues its pieces; returns how many.
    fn hand_out(
        &self,
        at: usize,
        parcel: &Arc<Parcel>,
        batch: &Batch,
    ) -> std::result::Result<usize, Stop> {
        let target = self.open_target(parcel)?;
        {
            let mut inner = parcel.file.lock();
            inner.live().note_flown(target.clone());
            // An ordinary user may have changed the file's mode for a moment to open it.
            if !self.home.is_privileged() {
                inner.live().disown_answers();
            }
        }
        *parcel.target.lock() = Some(target.clone());
        let pieces =
            self.files.note_tier(pieces(&parcel.captured, |at| parcel.shadow.next_data(at)))?;
        let count = pieces.len();
        parcel.pieces.fetch_add(count, SeqCst);
        batch.waiting().extend(pieces.into_iter().enumerate().map(|(n, (start, end))| {
            let (parcel, target) = (parcel.clone(), target.clone());
            ((at, start), Piece { parcel, target, end, first: n == 0 })
        }));
        Ok(count)
    }

    /// Copies the first piece of the batch that is not taken; `false` if no piece is left.
    fn copy_next(self: &Arc<Self>, batch: &Arc<Batch>) -> bool {
        let first = batch.waiting().pop_first();
        let Some(((_, start), piece)) = first else { return false };
        let Piece { parcel, target, end, first } = piece;
        if first {
            self.open_another(batch);
        }
        self.copy_piece(&parcel, &*target, (start, end));
        if parcel.end_piece() {
            let (drain, batch) = (self.clone(), batch.clone());
            self.home.errands().run(move || drain.finish(&parcel, &batch.latch));
        }
        true
    }

    pub(crate) fn finish(&self, parcel: &Arc<Parcel>, latch: &Latch) {
        let target = parcel.target.lock().clone();
        if let Some(target) = target
            && !parcel.is_stopped()
            && let Err(error) = self.finish_copy(parcel, &*target)
        {
            parcel.stop(error);
        }
        let in_time = parcel.leave_copying(Phase::Copied);
        latch.count_down();
        if !in_time {
            parcel.stop(Error::new(Kind::TimedOut, "the backing store did not answer in time"));
            self.land_stopped(parcel);
        }
    }

    /// Opens the backing file for writing, if it is still the known one (S8).
    fn open_target(&self, parcel: &Parcel) -> std::result::Result<Arc<dyn BackingFile>, Stop> {
        let mut last: Option<PathBuf> = None;
        for _ in 0..4 {
            let Some(path) = parcel.file.path() else {
                // All known names are gone, but the file may have others: use the descriptor.
                let held = parcel.file.lock().live().target.clone();
                let no_name = || Error::os(libc::ESTALE, "the file has no known name").into();
                return held.ok_or_else(no_name);
            };
            if last.as_deref() == Some(&*path) {
                break;
            }
            if !self.home.is_privileged() {
                parcel.made.note_any();
            }
            let opened = self.call_home(|| {
                // To open a 0444 file of its own an ordinary user goes by way of a chmod, which
                // moves the ctime: look at the file before.
                let before = if self.home.is_privileged() {
                    None
                } else {
                    Some(self.home.backing().stat(&path)?)
                };
                let (target, attr) = self.home.backing().open_seen(&path, Access::ReadWrite)?;
                Ok((target, before.filter(|b| b.key == attr.key).unwrap_or(attr)))
            });
            match opened {
                Ok((target, attr)) if attr.key == parcel.file.key => {
                    let differs = attr.version() != parcel.base && !parcel.resumed;
                    let died = differs && {
                        let inner = parcel.file.lock();
                        self.files.died_meanwhile(parcel.seen, &inner.state, &attr.version())
                    };
                    // The version may be that of another program's write all the same.
                    parcel.digests.iter().filter(|_| died).for_each(OpenTable::distrust);
                    let changed = differs && !died;
                    if changed && !self.moved_by_us(parcel, &attr.version()) {
                        if self.only_theirs(parcel) {
                            return Err(Stop::IsHome);
                        }
                        tracing::debug!(known = ?parcel.base, found = ?attr.version(), "another version");
                        return Err(self.conflict(parcel, "the backing file has changed").into());
                    }
                    return Ok(target);
                }
                Ok(_) => {}
                Err(e) if e.is(libc::ENOENT) || self.is_elsewhere(&path, parcel.file.key) => {}
                Err(e) => return Err(e.into()),
            }
            last = Some(path);
        }
        Err(self.conflict(parcel, "the backing file was replaced or deleted").into())
    }

    /// Whether the path leads to another file than the one with this key, or to none: a path that
    /// cannot be opened may be a link or a directory by now, or lie below one.
    fn is_elsewhere(&self, path: &Path, key: FileKey) -> bool {
        match self.call_home(|| self.home.backing().stat(path)) {
            Ok(attr) => attr.key != key,
            Err(e) => e.is_nowhere(),
        }
    }

    /// Looks at the base again: attributes may have changed through the daemon since the capture.
    fn moved_by_us(&self, parcel: &Parcel, found: &Version) -> bool {
        let inner = parcel.file.lock();
        inner.state.base() == *found
    }

    fn conflict(&self, parcel: &Parcel, why: &str) -> Error {
        let mut inner = parcel.file.lock();
        // A rename or unlink through the daemon may be under way: then there is no conflict.
        if inner.in_use().is_some_and(|live| live.unlinked) {
            return Error::os(libc::ESTALE, "the file was unlinked meanwhile");
        }
        if !parcel.resumed {
            let base = inner.state.base();
            let _ =
                self.files.commit_anyway(&parcel.file, &mut inner, Change::FlushFailed { base });
            parcel.digests.iter().for_each(|open| self.files.close_table_unchanged(open));
        }
        // Several changes through the daemon may have come since the look at the backing file.
        let changed = inner.moved_since(parcel.seen);
        // A rename that began before any byte of the file was cached is known to the table alone.
        if changed || self.files.is_leaving(parcel.file.key, None) {
            return Error::os(libc::EBUSY, "the file is being renamed or changed");
        }
        self.files.declare_conflict(&parcel.file, &mut inner, why);
        drop(inner);
        let text = format!("{why} while dirty bytes were held");
        Error::new(Kind::Conflict, text)
    }

    fn copy_piece(&self, parcel: &Parcel, target: &dyn BackingFile, piece: (u64, u64)) {
        if !parcel.is_wanted() {
            return;
        }
        let copied = match &parcel.digests {
            Some(open) => self.copy_different(parcel, open, target, piece),
            None => self.copy_range(parcel, target, piece),
        };
        if let Err(error) = copied {
            parcel.stop(error);
        }
    }

    /// Copies data, and makes holes where the shadow file has holes.
    fn copy_range(
        &self,
        parcel: &Parcel,
        target: &dyn BackingFile,
        (start, end): (u64, u64),
    ) -> Result<()> {
        let mut at = start;
        while at < end {
            let data = self.files.note_tier(parcel.next_data(at))?;
            let (from, to) = data.map_or((end, end), |(a, b)| (a.clamp(at, end), b.clamp(at, end)));
            if from > at {
                self.copy_hole(parcel, target, at, from)?;
            }
            self.copy_data(parcel, target, from, to)?;
            at = to.max(from);
        }
        Ok(())
    }

    fn copy_data(
        &self,
        parcel: &Parcel,
        target: &dyn BackingFile,
        start: u64,
        end: u64,
    ) -> Result<()> {
        let mut buf = vec![0; COPY_BUFFER.min((end - start) as usize)];
        let mut at = start;
        while at < end {
            let chunk = self.valve.chunk(COPY_BUFFER as u64);
            let want = buf.len().min((end - at).min(chunk) as usize);
            let _pass = self.pass(parcel, want as u64)?;
            let n = self.files.note_tier(parcel.shadow.read_at(&mut buf[..want], at))?;
            if n == 0 {
                return self.may_be_cut(parcel);
            }
            self.send(parcel, target, &buf[..n], at)?;
            at += n as u64;
        }
        Ok(())
    }

    /// Sets size and times, once all pieces are copied.
    fn finish_copy(&self, parcel: &Parcel, target: &dyn BackingFile) -> Result<()> {
        let same = (parcel.target_size(), parcel.mtime) == (parcel.base.size, parcel.base.mtime);
        let compared = parcel.digests.is_some() && !parcel.resumed;
        if compared && same && !parcel.made.is_any() {
            return Ok(()); // The store has the bytes, the size and the time already.
        }
        parcel.made.note_any();
        self.call_home(|| {
            let end = parcel.target_size();
            let known = if parcel.resumed { None } else { Some(parcel.base.size) };
            // A hole that was found may be data by now: only what was sent has extended the file.
            let reached = parcel.made.reached() >= end && known.is_some_and(|size| size <= end);
            if known != Some(end) && !reached {
                parcel.made.note_sized();
                target.set_len(end)?;
            }
            target.set_times(None, Some(parcel.mtime))
        })?;
        parcel.made.note_whole();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::Named;
    use crate::bed::bed;
    use crate::core::journal::Journal;
    use crate::drain::parcel::Take;
    use crate::files::journaled::unlinked;

    use super::*;

    /// A store that forgets the removal may remember what a flush has done to the file just before.
    // S-3
    #[test]
    fn a_removal_is_no_older_than_what_a_flush_has_done_to_the_file() {
        let bed = bed("names-flown");
        let engine = &bed.engine;
        let parcel = engine.drain.begin_flight(&bed.file, &Take::All, None).unwrap();
        let flown = [(0, parcel.expect("it is dirty"))];
        engine.drain.copy_all(&flown, &|| false);
        let left = engine.names.ask(|b| b.stat(Path::new("f"))).unwrap();
        let named = Named { path: Path::new("f"), key: left.key, is_dir: false };
        engine.verbs.unlink(named).unwrap();
        let steps = engine.files.index().names(Journal::steps);
        let removal = steps.iter().find(|step| step.op == unlinked(named)).expect("on record");
        assert!(removal.at.expect("a time") >= left.ctime, "{removal:?} {left:?}");
        engine.drain.end_all(&flown);
    }
}
