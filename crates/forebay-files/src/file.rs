//! One cached file at run time: its state, its open parts, and the accounting that follows every
//! change.
//!
//! A file's lock is held while the shadow file is written, so that a fill cannot land between a
//! write and its record; it is never held during a call to the backing store. Its place among the
//! locks is in docs/ARCHITECTURE.md.
//!
//! R5 is a rule of docs/decisions/content.md.

use std::num::NonZeroU64;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_backing::{Attr, Error, FileKey, Timestamp};

use crate::core::clock::{Clock, Look, What};
use crate::core::copied::Untold;
use crate::core::evict::{Unit, Uses, count_down, count_up};
use crate::core::heat::Heat;
use crate::core::id::FileId;
use crate::core::paths::{Paths, Weight};
use crate::core::ranges::{Ranges, State};
use crate::core::report::Failure;
use crate::core::served::Before;
use crate::core::stamps::Stamps;
use crate::core::state::{Change, FileState, Record};
use crate::live::{Around, Asked, Live, Seen};
use crate::tier::media::{MediaFile, MediaStat};
use crate::unseen::{Doubt, Looks, Unseen};
use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank};

/// A file the engine knows. Handles of front-ends, the flusher and the fills share it.
pub struct File {
    pub id: FileId,
    pub key: FileKey,
    pub(super) inner: Mutex<Inner>,
    /// Signaled when a fill, a flush or an I/O in flight ends.
    pub(super) changed: Condvar,
    hits: AtomicU8,
    /// Whether uses of the file's units are counted separately.
    in_units: AtomicBool,
    /// The bytes that requests moved lately.
    pub(super) heat: Heat,
}

/// The data behind a file's lock. The state is changed on record first, by [`Files`](crate::Files).
pub struct Inner {
    pub state: Known,
    /// Present while the file is open or has work in flight.
    pub(super) live: Option<Box<Live>>,
    /// Present from the first dirty byte to the last.
    pub(super) dirt: Option<Box<Dirt>>,
    /// The bytes of the tier that are charged to this file.
    pub(super) charged: u64,
    /// Whether the file has a record in the index.
    pub(super) recorded: bool,
    /// Whether the shadow matches the record: it was made by this daemon, or compared.
    pub(super) proven: bool,
    /// Whether the file is about to leave the table: a thread that found it there looks again.
    pub(super) gone: bool,
    /// The number of holders that keep the file's bytes from being evicted.
    pub(super) keepers: u16,
    /// The weight that its directories count for it.
    weight: Weight,
    /// Whether a sync may have sealed the file, or is about to, while no record says yet that any
    /// byte is durable.
    sealing: bool,
    /// The log's position just after bytes of this file last became clean.
    pub(super) settled_seq: u64,
    pub(super) clock: Clock,
    /// The results of looks at the file.
    pub(super) looks: Option<Box<Looks>>,
    /// The admission rule of the last open.
    pub(super) rule: Option<Arc<crate::core::rules::Active>>,
}

/// The state of a file. All rooms may read it; this one alone changes it, on record first.
pub struct Known(FileState);

impl Deref for Known {
    type Target = FileState;

    #[inline]
    fn deref(&self) -> &FileState {
        &self.0
    }
}

/// The parts that only a dirty file has.
#[derive(Default)]
pub(crate) struct Dirt {
    /// The dirty bytes that are in the engine's sum.
    pub charged: u64,
    /// The dirty bytes beyond the backing file's end, as in the engine's sum of growth.
    pub growth: u64,
    /// The file's place in the dirty queue.
    pub queued: Option<NonZeroU64>,
    /// The times since when blocks are dirty.
    pub stamps: Stamps,
    /// Present if the file was written past the daemon, and no look has found which bytes.
    pub doubt: Option<Doubt>,
    /// Bytes that may be dirty and are not in the sum of dirty ones: they cannot be evicted.
    pub doubted: u64,
    pub trouble: Option<Trouble>,
}

/// The failure of the last flush.
pub struct Trouble {
    pub error: String,
    pub count: u32,
    pub retry_at: Instant,
}

/// The clean bytes beside those that a sync is about to make durable, as of its beginning.
#[derive(Debug, Default)]
pub struct Beside {
    pub clean: Vec<(u64, u64)>,
    seen: Look,
}

/// A sync of more stretches than this keeps no clean bytes beside them: it would go over the same
/// pages again and again.
const SYNCED_APART_MAX: usize = 64;

impl File {
    /// Returns a file that is not in use yet. `recorded`: the index has its record, and its shadow
    /// is compared before it is used.
    pub fn new(id: FileId, Record { key, state }: Record, recorded: bool) -> Arc<File> {
        state.paths.enter(id);
        let mut inner = Inner {
            state: Known(state),
            live: None,
            dirt: None,
            charged: 0,
            recorded,
            proven: !recorded,
            gone: false,
            keepers: 0,
            weight: Weight::None,
            sealing: false,
            settled_seq: 0,
            clock: Clock::default(),
            looks: None,
            rule: None,
        };
        inner.weigh();
        Arc::new(File {
            id,
            key,
            inner: Mutex::new(Rank::File, inner),
            changed: Condvar::new(),
            hits: AtomicU8::new(0),
            in_units: AtomicBool::new(false),
            heat: Heat::default(),
        })
    }

    /// Locks the file. The lock is held while the shadow is written, and never while the backing
    /// store is called.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Locks the file, unless its lock is held.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Inner>> {
        self.inner.try_lock()
    }

    /// Returns the condition that is notified when a fill, a flush or an I/O in flight ends. Used
    /// with the file's lock.
    #[inline]
    pub fn changed(&self) -> &Condvar {
        &self.changed
    }

    /// Returns the measure of bytes that requests moved lately.
    #[inline]
    pub fn heat(&self) -> &Heat {
        &self.heat
    }

    /// Counts one use of the whole file, for eviction.
    #[inline]
    pub fn hit(&self) {
        count_up(&self.hits);
    }

    /// Counts one use of a unit of the file.
    #[inline]
    pub fn hit_unit(&self, uses: &Uses, unit: Unit) {
        self.in_units.store(true, Relaxed);
        uses.note(unit);
    }

    /// Returns the count of uses, and lowers it.
    pub fn take_hits(&self, uses: &Uses, unit: Unit) -> u8 {
        let hits = count_down(&self.hits);
        if self.in_units.load(Relaxed) { hits.max(uses.take(unit)) } else { hits }
    }

    /// Returns the file's first known path.
    pub fn path(&self) -> Option<PathBuf> {
        self.lock().state.paths.first()
    }

    /// Returns the user that owns the file.
    pub fn owner(&self) -> u32 {
        self.lock().state.owner().uid
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let inner = self.inner.get_mut();
        inner.state.paths.leave(self.id, inner.weight);
    }
}

impl Inner {
    /// Changes the names of the file with this id.
    pub fn rename(&mut self, file: FileId, change: impl FnOnce(&mut Paths)) {
        self.note_untold(Untold::note_anew);
        self.state.0.paths.change_of(file, self.weight, change);
    }

    /// Makes a change, and updates the weight in the file's directories.
    pub(super) fn apply(&mut self, change: &Change<'_>) {
        self.note_untold(|copied| copied.note_change(change));
        if !change.leaves_bytes() {
            self.clock.note_content();
        }
        self.state.0.apply(change);
        self.weigh();
    }

    /// Changes the state as `change` does, which may concern the bytes.
    pub(super) fn alter(&mut self, change: impl FnOnce(&mut FileState)) {
        self.clock.note_content();
        change(&mut self.state.0);
        self.weigh();
    }

    /// Notes a change for partners, if they know the file.
    #[inline]
    pub(super) fn note_untold(&mut self, note: impl FnOnce(&mut Untold)) {
        if let Some(copied) = self.live.as_mut().and_then(|live| live.copied_mut()) {
            note(copied);
        }
    }

    /// Whether partners may know the file.
    pub fn is_copied(&self) -> bool {
        self.live.as_ref().is_some_and(|live| live.copied.is_some())
    }

    /// [`FileState::note_links`].
    pub fn note_links(&mut self, links: u32) {
        self.state.0.note_links(links);
    }

    /// [`FileState::note_mtime`].
    pub fn note_mtime(&mut self, mtime: Timestamp) {
        self.state.0.note_mtime(mtime);
    }

    /// Begins to seal the file. A change of its names checks `may_last` after its announcement: of a seal and
    /// a change at the same time either the seal comes after the announcement, or the check sees `sealing`.
    pub fn begin_seal(&mut self) {
        self.sealing = true;
        self.weigh();
    }

    /// Whether a loss of power may leave bytes of the file, by its records or a seal.
    pub fn may_last(&self) -> bool {
        self.sealing || self.state.durable_size().is_some()
    }

    pub(crate) fn weigh(&mut self) {
        // Once durable bytes are on record, the mark is not needed.
        self.sealing &= self.state.durable_size().is_none();
        let weight = match self.may_last() {
            true => Weight::Durable,
            false => Weight::None,
        };
        if weight != self.weight {
            self.weight = weight;
            self.state.paths.weigh(weight);
        }
    }

    /// Whether clean durable bytes may be kept: the file is in use, and the tier's bytes and the
    /// backing store's are the same for all that is known.
    pub fn may_keep(&self) -> bool {
        let Some(live) = &self.live else { return false };
        let moved = live.around != Around::None;
        let sound = !live.stale && !moved && !live.unlinked && !self.state.is_unsynced();
        live.is_open() && sound && !self.state.conflict().stands() && !self.state.is_unseen()
    }

    /// Returns the clean bytes that a sync of `ranges` makes durable beside them.
    pub fn beside(&mut self, ranges: &[(u64, u64)]) -> Beside {
        // After a flush that was broken off the backing file has not been compared with the bytes here.
        let broken_off = self.state.flush_is_open() && self.live().flight.is_none();
        if ranges.len() > SYNCED_APART_MAX || broken_off || !self.may_keep() {
            return Beside::default();
        }
        Beside { clean: self.state.clean_beside(ranges), seen: self.clock.look() }
    }

    /// Returns the parts of `beside` that are still the same clean bytes at the sync's end. Bytes
    /// that were written meanwhile, and are clean again, were synced by their flush.
    pub fn still_clean(&mut self, beside: &Beside) -> Vec<(u64, u64)> {
        if !self.may_keep() {
            return Vec::new();
        }
        let mut clean = Vec::new();
        for &(start, end) in &beside.clean {
            if !self.changed(beside.seen, What::Bytes(start, end)) {
                clean.extend(self.state.in_state(State::Clean, start, end));
            }
        }
        clean
    }

    /// Returns the run-time part of a file in use; `None` if it is not in use.
    #[inline]
    pub fn in_use(&self) -> Option<&Live> {
        self.live.as_deref()
    }

    /// As [`Inner::in_use`], for noting events.
    #[inline]
    pub fn in_use_mut(&mut self) -> Option<&mut Live> {
        self.live.as_deref_mut()
    }

    /// Returns a look at the file's clock, to be compared with [`Inner::changed`].
    #[inline]
    pub fn look(&self) -> Look {
        self.clock.look()
    }

    /// Whether a change of the file's names or attributes is under way.
    pub fn is_changing(&self) -> bool {
        self.clock.is_under_way()
    }

    /// [`Clock::note_base`].
    pub fn note_base(&mut self) {
        self.clock.note_base();
    }

    /// [`Clock::note_size`].
    pub fn note_size(&mut self) {
        self.clock.note_size();
    }

    /// [`Clock::note_asked`].
    pub fn note_asked(&mut self) {
        self.clock.note_asked();
    }

    /// Whether the file has changed since a look at its clock.
    #[inline]
    pub fn changed(&self, since: Look, what: What) -> bool {
        let lately = self.live.as_ref().map(|live| &live.gone_lately);
        self.clock.changed(since, what, lately)
    }

    /// Whether a different answer of the store about its names may be due to the daemon, since a look.
    pub fn moved_since(&self, since: Look) -> bool {
        self.changed(since, What::Home) || self.state.paths.moved_since(since)
    }

    /// Notes that bytes were thrown away, or changed around the tier.
    pub fn note_gone(&mut self, start: u64, end: u64) {
        let live = self.live.get_or_insert_default();
        self.clock.note_bytes(&mut live.mine().gone_lately, start, end);
    }

    /// Returns the writers past the daemon, if the file has any.
    pub fn unseen(&self) -> Option<&Unseen> {
        self.live.as_ref()?.unseen.as_deref()
    }

    /// Whether the file was written past the daemon since it got set-user-id or set-group-id.
    pub fn is_written_over_set_id(&self) -> bool {
        let given = self.unseen().and_then(|unseen| unseen.set_id_at);
        given.is_some() && given != self.shadow_stat().map(|stat| stat.ctime)
    }

    /// Notes that the file gets such a bit, or has changed in a way that no write does.
    pub fn note_set_id(&mut self) {
        let now = self.shadow_stat().map(|stat| stat.ctime);
        if let Some(unseen) = self.live.as_mut().and_then(|live| live.unseen_mut()) {
            unseen.set_id_at = now;
        }
    }

    /// Returns the estimate of dirty bytes, if these are to be found by content.
    pub fn doubt(&self) -> Option<Doubt> {
        match self.unseen() {
            Some(unseen) => unseen.doubt,
            None => self.dirt.as_ref()?.doubt,
        }
    }

    /// Whether the file's last name is gone.
    pub fn is_unlinked(&self) -> bool {
        self.live.as_ref().is_some_and(|live| live.unlinked)
    }

    /// Returns the run-time part, created if necessary.
    #[inline]
    pub fn live(&mut self) -> &mut Live {
        self.live.get_or_insert_default()
    }

    /// Returns the bytes of the tier that the file takes, as in the sum of all files.
    #[inline]
    pub fn charged(&self) -> u64 {
        self.charged
    }

    /// Whether the index has a record of the file.
    #[inline]
    pub fn recorded(&self) -> bool {
        self.recorded
    }

    /// Whether the file leaves the table: a thread that found it there looks again.
    #[inline]
    pub fn gone(&self) -> bool {
        self.gone
    }

    /// Returns the log's position just after bytes of the file last became clean.
    pub fn settled_seq(&self) -> u64 {
        self.settled_seq
    }

    /// Returns the admission rule of the last open.
    pub fn rule(&self) -> Option<&Arc<crate::core::rules::Active>> {
        self.rule.as_ref()
    }

    /// Returns the results of looks at the file while it was written past the daemon.
    pub fn looks(&self) -> Looks {
        self.looks.as_deref().copied().unwrap_or_default()
    }

    /// Ends the use of the file, and drops its run-time part.
    pub fn end_use(&mut self) {
        self.live = None;
    }

    /// Marks the file as leaving the table, or as never to enter it.
    pub fn leave(&mut self) {
        self.gone = true;
    }

    /// Sets the admission rule of the file.
    pub fn follow(&mut self, rule: Option<Arc<crate::core::rules::Active>>) {
        self.rule = rule;
    }

    /// Sets or removes the doubt: whether dirty bytes are to be found by content.
    pub fn doubt_it(&mut self, doubt: Option<Doubt>) {
        self.dirt().doubt = doubt;
    }

    /// Notes that the last flush failed, or that the trouble is over.
    pub fn note_trouble(&mut self, trouble: Option<Trouble>) {
        self.dirt().trouble = trouble;
    }

    /// Lets the drain try the file from now on, whatever the last flush came to.
    pub fn end_pause(&mut self, now: Instant) {
        if let Some(trouble) = self.dirt.as_mut().and_then(|dirt| dirt.trouble.as_mut()) {
            trouble.retry_at = now;
        }
    }

    /// Notes that bytes were written, or count as written.
    pub fn touch(&mut self, start: u64, end: u64, now_ms: u64) {
        self.dirt().stamps.touch(start, end, now_ms);
    }

    /// Notes that the flight which began at `began_ms` has landed.
    pub fn settle_stamps(&mut self, captured: &[(u64, u64)], rewritten: &Ranges, began_ms: u64) {
        self.dirt().stamps.settle(captured, rewritten, began_ms);
    }

    /// Notes for how long the file was written past the daemon.
    pub fn note_written_for(&mut self, time: Duration) {
        self.looks.get_or_insert_default().written_for = time;
    }

    pub(super) fn dirt(&mut self) -> &mut Dirt {
        self.dirt.get_or_insert_default()
    }

    /// Returns the dirty bytes that are in the engine's sum.
    pub fn dirty_charged(&self) -> u64 {
        self.dirt.as_ref().map_or(0, |dirt| dirt.charged)
    }

    /// Returns the room that the file's dirty bytes will take on the backing store.
    pub fn growth(&self) -> u64 {
        self.dirt.as_ref().map_or(0, |dirt| dirt.growth)
    }

    /// Returns the time of the last write of a dirty byte; 0 if it is not known.
    pub fn last_write(&self) -> u64 {
        self.dirt.as_ref().map_or(0, |dirt| dirt.stamps.last())
    }

    /// Returns the times since when blocks are dirty.
    pub fn stamps(&self) -> Option<&Stamps> {
        self.dirt.as_ref().map(|dirt| &dirt.stamps)
    }

    /// Returns the failure of the last flush, if it failed.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.dirt.as_ref()?.trouble.as_ref()
    }

    /// Whether the file was compared a moment ago, and is still written past the daemon: its age
    /// alone asks for no look yet (R5).
    pub fn was_looked_at(&self, now: Instant, rest: Duration, max_age: Duration) -> bool {
        let looks = self.looks.as_deref();
        self.state.is_unseen() && looks.is_some_and(|looks| looks.is_recent(now, rest, max_age))
    }

    /// Whether the file pauses after a flush that failed.
    pub fn is_pausing(&self, now: Instant) -> bool {
        self.trouble().is_some_and(|trouble| trouble.retry_at > now)
    }

    /// Returns how much of a range is in the tier.
    pub fn before(&self, start: u64, end: u64) -> Before {
        let existing = end.min(self.size()).saturating_sub(start);
        let mut before = Before { len: end - start, existing, ..Before::default() };
        let Some(ranges) = self.state.tracked() else {
            (before.present, before.dirty) = (existing, existing);
            return before;
        };
        for run in ranges.within(start, end) {
            let len = run.end - run.start;
            before.present += len;
            before.dirty += if run.state.is_dirty() { len } else { 0 };
        }
        before
    }

    /// Returns the size that programs see.
    #[inline]
    pub fn size(&self) -> u64 {
        match self.state.is_unseen() {
            true => self
                .open_shadow()
                .and_then(|shadow| shadow.size().ok())
                .unwrap_or(self.state.size()),
            false => self.state.size(),
        }
    }

    /// Returns the mtime that programs see.
    pub fn mtime(&self) -> Timestamp {
        if !self.state.is_unseen() {
            return self.state.mtime();
        }
        let from = self.unseen().and_then(|unseen| unseen.from);
        match self.shadow_stat() {
            Some(now) if from.is_none_or(|from| now.mtime != from.mtime) => now.mtime,
            _ => self.state.mtime(),
        }
    }

    /// Returns the stat of the shadow, if the shadow is open.
    pub fn shadow_stat(&self) -> Option<MediaStat> {
        self.open_shadow()?.stat().ok()
    }

    fn open_shadow(&self) -> Option<&Arc<dyn MediaFile>> {
        self.live.as_ref()?.shadow.as_ref()
    }

    /// Whether bytes may be taken out of the shadow now.
    pub fn may_punch(&self) -> bool {
        let held = self.state.is_held();
        !held && self.may_be_emptied() && self.live.as_ref().is_none_or(|live| !live.is_at_work())
    }

    /// Whether clean bytes may be evicted now. A flight does not prevent that: it reads dirty bytes
    /// only, and a busy file would otherwise never make room. Nor does a sync: a database's largest
    /// file would keep unused bytes for ever.
    pub fn may_evict(&self) -> bool {
        let held = self.state.is_held();
        !held && self.may_be_emptied() && self.live.as_ref().is_none_or(|live| live.io == 0)
    }

    /// Whether no program reads or writes the file past the daemon and would find it empty. Where
    /// the tier did not say which bytes were written, all count.
    pub fn may_be_emptied(&self) -> bool {
        !self.state.is_unseen() && !self.is_passed()
    }

    /// Whether programs have the file open past the daemon.
    #[inline]
    pub fn is_passed(&self) -> bool {
        self.live.as_ref().is_some_and(|live| live.pins > 0 || live.unseen.is_some())
    }

    /// Whether clean bytes are to stay, by the file's own mark or by its rule's.
    pub fn is_pinned(&self) -> bool {
        self.state.is_pinned() || self.rule.as_ref().is_some_and(|active| active.rule.pin)
    }

    /// Whether a flush cannot make the file clean now: it is written past the daemon, in conflict,
    /// pauses after a failure, or has lost its name.
    pub fn is_stuck(&self, now: Instant) -> bool {
        let unlinked = self.live.as_ref().is_some_and(|live| live.unlinked);
        self.state.is_unseen() || self.state.conflict().stands() || self.is_pausing(now) || unlinked
    }

    /// Whether the run-time part is not needed any more.
    pub fn is_idle(&self) -> bool {
        !self.is_copied() && self.is_unused()
    }

    /// Whether the file is neither open nor at work; partners may know it.
    pub fn is_unused(&self) -> bool {
        let rests = |live: &Live| {
            let moves = live.is_at_work() || live.around.is_under_way() || !live.fills.is_empty();
            !live.is_open() && !moves && !live.is_waited_for()
        };
        !self.is_passed() && self.live.as_deref().is_none_or(rests)
    }

    /// Closes the descriptors of a file whose run-time part is here only because partners know the file.
    pub(crate) fn close_for_partners(&mut self) {
        if self.is_copied() && self.is_unused() && !self.only_descriptor() {
            let live = self.live().mine();
            (live.shadow, live.backing, live.target) = (None, None, None);
        }
    }

    /// Whether dirty bytes can be flushed through the descriptor alone: no name is known any more,
    /// though the file has one.
    pub fn only_descriptor(&self) -> bool {
        self.state.is_dirty()
            && self.state.paths.is_empty()
            && self.live.as_ref().is_some_and(|live| live.target.is_some() && !live.unlinked)
    }

    /// Whether the file may leave the table.
    pub fn is_forgettable(&self) -> bool {
        let state = &self.state;
        let stays = state.is_dirty() || state.is_pinned() || state.is_held() || self.keepers > 0;
        !state.has_bytes() && !stays && self.is_idle()
    }

    /// Notes that bytes were written: a flush under way does not make them clean, and partners are to be told.
    pub fn note_rewritten(&mut self, start: u64, end: u64) {
        self.note_untold(|copied| copied.note_written(start, end));
        if let Some(flight) = self.live.as_mut().and_then(|live| live.mine().flight.as_mut()) {
            flight.note(start, end);
        }
    }

    /// Voids earlier answers of the store: names or attributes have changed through the daemon.
    pub(crate) fn forget_seen(&mut self) {
        self.clock.note_asked();
        if let Some(live) = &mut self.live {
            live.mine().seen = None;
        }
    }

    /// Whether the store's answer at `asked` still holds, apart from changes by others. During a
    /// flush the version says nothing, but then the daemon sets size and times, and the other
    /// attributes change only by changes of names and attributes; except for the set-id bits, which
    /// a write takes away.
    pub fn is_known(&self, attr: &Attr, asked: Asked) -> bool {
        let flight = self.live.as_ref().and_then(|live| live.flight.as_ref());
        let in_flight = flight.is_some_and(|flight| flight.covers(asked.look))
            && self.state.is_dirty()
            && attr.mode & 0o6000 == 0;
        !self.changed(asked.look, What::Home) && (attr.version() == self.state.base() || in_flight)
    }

    /// Puts values that are newer here than on the backing store into `attr`. `shadow` finds the
    /// shadow's stat while the shadow is not open.
    pub fn overlay(&self, attr: &mut Attr, shadow: impl FnOnce() -> Option<MediaStat>) {
        // For a held file the store may have attributes that its former home has left.
        if !self.state.is_dirty() && !self.state.is_held() {
            return;
        }
        attr.size = self.size();
        attr.mtime = self.mtime();
        attr.ctime = attr.ctime.max(attr.mtime);
        if self.state.is_complete() {
            let stat = self.shadow_stat().or_else(shadow);
            attr.blocks = stat.map_or(self.charged, |stat| stat.allocated) / 512;
        } else {
            attr.blocks = attr.blocks.max(self.charged / 512);
        }
    }
}

/// Returns the report for an operator of an error with this file.
pub fn failure(inner: &Inner, error: &Error) -> Failure {
    let state = if inner.state.conflict().stands() { "conflict" } else { "failed" };
    Failure { path: inner.state.display_path(), state, error: error.to_string() }
}

/// As [`failure`], for a file known by its path alone.
pub fn named_failure(path: &Path, error: &Error) -> Failure {
    Failure { path: path.to_path_buf(), state: "failed", error: error.to_string() }
}

/// Remembers the backing store's attributes of a file that it has just made: a new file has no
/// `security.capability`, which no directory hands down (capabilities(7)).
pub fn note_new(inner: &mut Inner, at: Instant, attr: &Attr) {
    let look = inner.clock.look();
    // Otherwise the file was changed since.
    if look.is_untouched() {
        note_seen(inner, Asked { at, look }, attr);
    }
    let seen = inner.live.as_mut().and_then(|live| live.seen_mut());
    if let Some(seen) = seen.filter(|seen| seen.asked.at == at) {
        seen.no_capability = Some(at);
        seen.made = true;
    }
}

/// Keeps the store's attributes of an open file, from about `asked`. Returns whether its capability
/// should be asked for again: it had none once, and its ctime has moved since.
pub fn note_seen(inner: &mut Inner, asked: Asked, attr: &Attr) -> bool {
    let known = inner.is_known(attr, asked);
    let Some(live) = inner.live.as_mut().filter(|live| live.is_open() && known) else {
        return false;
    };
    if live.seen.as_ref().is_some_and(|seen| seen.asked.at > asked.at) {
        return false; // A later question got its answer sooner.
    }
    let live = live.mine();
    let before = live.seen.take();
    let unmoved = before.as_ref().is_some_and(|seen| seen.attr.version() == attr.version());
    let known = before.as_ref().and_then(|seen| seen.no_capability);
    let made = unmoved && before.as_ref().is_some_and(|seen| seen.made);
    let no_capability = if unmoved && known.is_some() { Some(asked.at) } else { known };
    let seen = Seen { asked, attr: *attr, no_capability, made, asked_again: false };
    live.seen = Some(match before {
        Some(mut place) => {
            *place = seen;
            place
        }
        None => Box::new(seen),
    });
    known.is_some() && !unmoved
}
