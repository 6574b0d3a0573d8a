//! Files that programs read and write past the daemon, by the kernel's passthrough.
//!
//! R1 is a rule of docs/decisions/content.md.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use forebay_backing::{FileKey, Result};

use crate::core::id::FileId;
use crate::core::policy::may_write_unseen;
use crate::core::state::Change;
use crate::failpoint;
use crate::files::Files;
use crate::files::file::{File, Inner};
use crate::files::live::{Around, Live};
use crate::files::pace::LOOK_MIN;
use crate::files::unseen::{Doubt, Unseen};
use crate::room::Room;
use crate::room::held::WriterHolds;
use crate::room::ready::Ready;
use crate::room::sluice::Sluice;
use crate::tier::media::{MediaFile, MediaStat, is_alone};
use forebay_base::lock::{Mutex, Rank};

pub struct Passed {
    files: Arc<Files>,
    /// Files with writers whose end the kernel does not report: those of an earlier daemon, and mappings.
    lingering: Mutex<Vec<Arc<File>>>,
    ready: Ready,
    sluice: Arc<Sluice>,
}

/// The condition under which a file may be written past the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// The file is complete.
    All,
    /// All bytes of the file are durable here (R1).
    AllDurable,
}

impl Passed {
    pub(crate) fn new(files: Arc<Files>, room: Arc<Room>) -> Passed {
        let sluice = Arc::new(Sluice::new(files.clone(), room.clone()));
        // The medium tries a lease now, before one of a shadow is needed.
        files.media().grants_leases();
        let lingering = Mutex::new(Rank::Unseen, Default::default());
        let ready = Ready::new(files.clone(), room);
        Passed { files, lingering, ready, sluice }
    }
}

/// A program that has a file open past the daemon, until this is dropped. Not to be dropped under
/// the file's lock.
pub struct Past {
    passed: Arc<Passed>,
    file: Arc<File>,
    shadow: Arc<dyn MediaFile>,
    /// `None` once it has ended.
    way: Option<Way>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Reads,
    Writes,
}

impl Past {
    pub fn writes(&self) -> bool {
        self.way == Some(Way::Writes)
    }

    /// Notes that the kernel reported no close, but will ask no more: the program may still have the file open.
    pub fn may_go_on(&self) {
        if let Some(unseen) = self.file.lock().live().unseen_mut() {
            unseen.may_outlive_close(true);
        }
    }

    /// Returns the shadow file that the program has open.
    pub fn shadow(&self) -> &dyn MediaFile {
        &*self.shadow
    }
}

impl Past {
    /// Ends the program's access; an error says that its writes are not on record.
    pub fn end(mut self) -> Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        match self.way.take() {
            Some(Way::Reads) => self.file.lock().live().unpin(),
            Some(Way::Writes) => self.passed.end_unseen(&self.file)?,
            None => {}
        }
        Ok(())
    }
}

impl Drop for Past {
    fn drop(&mut self) {
        if let Err(e) = self.finish() {
            tracing::error!(error = %e, "closing a file that was written past the daemon");
        }
    }
}

impl Passed {
    fn past(self: &Arc<Self>, file: &Arc<File>, shadow: Arc<dyn MediaFile>, way: Way) -> Past {
        Past { passed: self.clone(), file: file.clone(), shadow, way: Some(way) }
    }

    /// Whether attributes of the file may change without a report: it is written past the daemon,
    /// and may be mapped. Also `true` for a file whose lock is held.
    pub fn moves_unseen(&self, key: FileKey) -> bool {
        let Some(file) = self.files.find(key) else { return false };
        let Some(inner) = file.try_lock() else { return true };
        // If no descriptor is left, a mapping is.
        let is_mapped =
            |live: &Live| live.unseen.as_ref().is_some_and(|unseen| unseen.outlives_close);
        let maps = |live: &Live| is_mapped(live) || !live.is_open();
        inner.state.is_unseen() && inner.in_use().is_some_and(maps)
    }

    /// Begins writing past the daemon: the kernel will write the shadow. The file counts as wholly
    /// dirty until this ends. `None` if the file is not complete (any more), since its holes would
    /// count as data, and while partners get copies of writes. `maps`: the writer may map the file,
    /// and so write to it after its close.
    pub fn write(self: &Arc<Self>, file: &Arc<File>, maps: bool) -> Result<Option<Past>> {
        self.begin(file, maps, Needs::All)
    }

    /// Makes a complete file ready to be written past the daemon (R1), which takes a flush of the device if it
    /// was not ready before. Returns whether it is ready; if not, its writers have to go through the daemon.
    ///
    /// # Errors
    ///
    /// Those of the tier.
    pub fn make_ready(&self, file: &Arc<File>) -> Result<bool> {
        self.ready.make(file)
    }

    /// As [`Passed::write`], for a file that [`Passed::make_ready`] has made ready; `None` if the file is ready no more
    /// (R1).
    pub fn write_ready(self: &Arc<Self>, file: &Arc<File>, maps: bool) -> Result<Option<Past>> {
        self.begin(file, maps, Needs::AllDurable)
    }

    fn begin(self: &Arc<Self>, file: &Arc<File>, maps: bool, needs: Needs) -> Result<Option<Past>> {
        let mut inner = file.lock();
        let ready = self.ready.is_ready(&mut inner);
        if needs == Needs::AllDurable && !ready && !inner.state.is_unseen() {
            return Ok(None);
        }
        let moved = inner.live().around != Around::None;
        let copied = self.files.copying().is_wanted();
        if !inner.state.is_complete() || moved || copied || !self.files.may_pass(&inner) {
            return Ok(None);
        }
        let is_missing = inner.live().shadow.is_none();
        // A shadow that was made for this has no bytes yet; until it has, its mtime does not count.
        let fresh = !inner.state.has_bytes() && (is_missing || inner.live().blank);
        if fresh && is_missing {
            self.files.note_no_blank();
        }
        let shadow = self.files.shadow_unwritten(file, &mut inner)?;
        let mut seen = None;
        if let Some(unseen) = inner.live().unseen_mut() {
            unseen.join();
        } else {
            if !fresh {
                self.ready.set_time(&inner, &*shadow)?;
            }
            seen = shadow.stat().ok();
            let before = inner.doubt();
            let doubt = seen.filter(|_| ready || before.is_some()).map(|seen| Doubt {
                dirty: inner.dirty_charged(),
                allocated: seen.allocated,
                unmoved: before.is_none_or(|before| before.unmoved),
            });
            // No program may write bytes that no record covers.
            let age = inner.state.age_at(self.files.time().ms());
            let is_home = before.is_none() && !inner.state.is_dirty_besides();
            self.files.commit(file, &mut inner, Change::Unseen { age })?;
            // A flush under way does not know which bytes the program writes.
            inner.note_rewritten(0, u64::MAX);
            let now = self.files.time().now();
            let copied = seen.filter(|_| is_home).and_then(|seen| self.files.home_as(seen));
            inner.live().begin_unseen(Unseen::begin(now, seen).of(doubt, copied));
            self.files.note_growth_seen(file, &mut inner, seen);
            self.files.totals().grows_unseen(file);
        }
        failpoint::pass("create.done");
        inner.live().unseen_mut().expect("made so above").may_outlive_close(maps);
        if maps {
            inner.live().note_maps();
        }
        self.files.totals().begin_writer();
        self.files.counters().passthrough_writes.fetch_add(1, Relaxed);
        self.files.account_as_seen(file, &mut inner, seen);
        self.sluice.watch(file, &shadow);
        drop(inner);
        Ok(Some(self.past(file, shadow, Way::Writes)))
    }

    /// Ends one unseen writer; after the last one the shadow's content is the file's. If a mapping is
    /// left the writer counts on, until [`Passed::end_lingering`] finds that the mapping is gone.
    fn end_unseen(&self, file: &Arc<File>) -> Result<()> {
        let mut inner = file.lock();
        let unseen = inner.live().unseen_mut().expect("a writer ends once");
        if !unseen.is_last() {
            unseen.part();
            self.files.totals().end_writer();
            return Ok(());
        }
        // Nothing is changed before the stat is there: what fails is tried again.
        let stat = match self.stat_at_end(file, &mut inner) {
            Ok(Some(stat)) => stat,
            ended => {
                drop(inner);
                self.lingering.lock().push(file.clone());
                return ended.map(drop);
            }
        };
        self.files.totals().end_writer();
        self.files.note_growth_seen(file, &mut inner, Some(stat));
        let unseen = inner.live().end_unseen().expect("looked at above");
        if unseen.doubt.is_some() {
            inner.note_written_for(self.files.time().since(unseen.since));
        }
        self.files.totals().is_seen(file);
        self.sluice.leave(file.id);
        // Emptiness proves it, too: a mapping of a tmpfs file moves no time, but an empty file is not mapped.
        let is_empty = |from: MediaStat| from.len == 0 && from.mtime == stat.mtime;
        let empty = stat.len == 0 && unseen.from.is_some_and(is_empty);
        let unwritten = self.files.proves_untouched(&unseen, &stat)
            || unseen.doubt.is_none() && empty && !inner.state.is_dirty_besides();
        // The rest of a failed flush on the store is left to the next flush.
        let untouched = unwritten && !inner.state.flush_is_open();
        if untouched {
            // If this record is lost, recovery finds an empty file that may be dirty, which is harmless.
            let _ = self.files.commit_at_close(file, &mut inner, Change::Untouched);
            // Without this a loss of power would make bytes dirty that no program has written.
            let _ = self.files.let_go_of(file, &mut inner, 0, u64::MAX);
            self.files.account(file, &mut inner);
            return Ok(());
        }
        inner.live().note_touched();
        inner.note_rewritten(0, u64::MAX);
        let (len, mtime, age) = (stat.len, stat.mtime, inner.state.age_at(self.files.time().ms()));
        let change = Change::Absorbed { len, mtime, age };
        let absorbed = self.files.commit_anyway(file, &mut inner, change);
        inner.doubt_it(unseen.doubt.map(|doubt| Doubt {
            dirty: doubt.dirty(stat.allocated).max(1),
            allocated: stat.allocated,
            unmoved: unseen.is_unmoved(&stat) && doubt.unmoved || unseen.is_as_copied(&stat),
        }));
        self.files.admit(file, [(0, stat.len)]);
        self.files.account(file, &mut inner);
        absorbed
    }

    /// Returns what the last writer leaves of the shadow; `None` while a program has it mapped.
    fn stat_at_end(&self, file: &Arc<File>, inner: &mut Inner) -> Result<Option<MediaStat>> {
        let may_map = inner.live().unseen.as_ref().is_some_and(|unseen| unseen.outlives_close);
        if may_map && !self.is_closed(file, inner)? {
            return Ok(None);
        }
        if let Some(stat) = inner.shadow_stat() {
            return Ok(Some(stat));
        }
        let stat = self.files.shadow_unwritten(file, inner)?.stat();
        self.files.note_tier(stat).map(Some)
    }

    /// Whether no program has the shadow open or mapped any more. The kernel reports a close a
    /// moment before it has closed the shadow.
    fn is_closed(&self, file: &Arc<File>, inner: &mut Inner) -> Result<bool> {
        let shadow = self.files.shadow_unwritten(file, inner)?;
        let alone = || {
            std::thread::yield_now();
            is_alone(&*shadow)
        };
        Ok(is_alone(&*shadow) || alone() || alone())
    }

    /// Pins the shadow of a complete file for reading past the daemon; `None` if it is not complete.
    pub fn read(self: &Arc<Self>, file: &Arc<File>) -> Result<Option<Past>> {
        let mut inner = file.lock();
        // Old bytes are served on only beside a program that has them already.
        let unseen = inner.state.is_unseen();
        let stale = inner.live().stale && inner.live().pins == 0 && !unseen;
        let moved = inner.live().around != Around::None;
        if !inner.state.is_complete() || stale || moved || !self.files.may_pass(&inner) {
            return Ok(None);
        }
        let shadow = self.files.shadow(file, &mut inner)?;
        inner.live().pin();
        file.hit();
        self.files.counters().passthrough_reads.fetch_add(1, Relaxed);
        drop(inner);
        Ok(Some(self.past(file, shadow, Way::Reads)))
    }

    /// Counts a program that still writes to a shadow file as a writer: descriptors that were
    /// passed through outlive their mount, and writes through them are acknowledged (S2).
    pub(crate) fn adopt_writer(&self, id: FileId) -> Result<()> {
        let Some(file) = self.files.by_id(id) else { return Ok(()) };
        let mut inner = file.lock();
        let shadow = self.files.shadow(&file, &mut inner)?;
        let now = self.files.time().now();
        // Each such file is found once, before any other program can write it.
        let mut unseen = Unseen::begin(now, None);
        unseen.may_outlive_close(true);
        inner.live().begin_unseen(unseen);
        self.files.totals().begin_writer();
        self.files.account(&file, &mut inner);
        self.sluice.watch(&file, &shadow);
        let path = inner.state.display_path();
        tracing::warn!(path = %path.display(), "a program has kept this file open for writing since an earlier daemon died; it counts as dirty until it is closed");
        drop(inner);
        self.files.totals().grows_unseen(&file);
        self.lingering.lock().push(file);
        Ok(())
    }

    /// Returns the number of writers whose end the kernel does not report.
    pub(crate) fn lingering_count(&self) -> usize {
        self.lingering.lock().len()
    }

    /// Ends writers whose end the kernel does not report: those of an earlier daemon, and mappings
    /// of closed files.
    pub(crate) fn end_lingering(&self) {
        let lingering = self.lingering.lock().clone();
        for file in lingering {
            let shadow = file.lock().live().shadow.clone();
            if shadow.is_none_or(|shadow| shadow.is_ours_alone().unwrap_or(false)) {
                let ended = {
                    let mut lingering = self.lingering.lock();
                    let at = lingering.iter().position(|known| known.id == file.id);
                    at.map(|at| lingering.swap_remove(at))
                };
                if ended.is_none() {
                    continue; // Another thread was faster.
                }
                if let Err(e) = self.end_unseen(&file) {
                    tracing::error!(error = %e, "a writer past the daemon has ended, and its file cannot be looked at");
                }
                let inner = file.lock();
                self.files.retire(&file, inner);
            }
        }
    }

    /// Gives the means to hold writers past the daemon. Returns whether they are needed.
    pub fn set_holds(&self, holds: Arc<dyn WriterHolds>) -> bool {
        self.sluice.set_holds(holds)
    }

    /// Checks whether writers past the daemon have to wait.
    pub(crate) fn tend_sluice(&self) {
        self.sluice.tend();
    }

    pub(crate) fn measure_unseen(&self) {
        self.sluice.measure_all();
    }

    /// Whether one more program may write past the daemon now.
    pub fn may_write_unseen(&self) -> bool {
        let writers = self.files.totals().writers();
        if writers > 0 && self.files.totals().pace().is_older(self.files.time().now(), LOOK_MIN) {
            self.sluice.measure_all();
        }
        let (level, bound) = (self.files.level(), self.sluice.bound());
        self.files.tune(|t| may_write_unseen(level, t, writers, bound))
    }
}
