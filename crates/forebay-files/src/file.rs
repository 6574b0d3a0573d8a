//! One cached file at run time: its state, what is open of it, and the accounting that follows
//! every change.
//!
//! A file's lock is held while the shadow file is written, so that a fill cannot land between a
//! write and its record; it is never held during a call to the backing store. Its place among the
//! locks is in docs/ARCHITECTURE.md.

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
    /// Uses of its units are counted apart.
    in_units: AtomicBool,
    /// Bytes that requests moved lately.
    pub(super) heat: Heat,
}

/// What a file's lock guards. Its state is changed on record first, by [`Files`](crate::Files).
pub struct Inner {
    pub state: Known,
    /// Present while something is open or in flight.
    pub(super) live: Option<Box<Live>>,
    /// Present from the first dirty byte to the last.
    pub(super) dirt: Option<Box<Dirt>>,
    /// Bytes of the tier charged to this file.
    pub(super) charged: u64,
    /// The file has a record in the index.
    pub(super) recorded: bool,
    /// The shadow is what the record says: it is ours, or was compared.
    pub(super) proven: bool,
    /// It is about to leave the table: who found it there looks again.
    pub(super) gone: bool,
    /// So many keep what is here of it from being evicted.
    pub(super) keepers: u16,
    /// What its directories know of it.
    weight: Weight,
    /// A sync may have sealed it, or is about to, and no record says yet that anything of it is durable.
    sealing: bool,
    /// The log's position right after bytes of this file last became clean.
    pub(super) settled_seq: u64,
    pub(super) clock: Clock,
    /// What looks at it have found.
    pub(super) looks: Option<Box<Looks>>,
    /// The admission rule by which it was opened last.
    pub(super) rule: Option<Arc<crate::core::rules::Active>>,
}

/// The state of a file. All may read it; this room alone changes it, on record first.
pub struct Known(FileState);

impl Known {
    pub(super) fn mine(&mut self) -> &mut FileState {
        &mut self.0
    }
}

impl Deref for Known {
    type Target = FileState;

    #[inline]
    fn deref(&self) -> &FileState {
        &self.0
    }
}

/// What only a dirty file has.
#[derive(Default)]
pub(crate) struct Dirt {
    /// Its dirty bytes that are in the engine's sum.
    pub charged: u64,
    /// What of them is beyond the backing file's end, and in the engine's sum of that.
    pub growth: u64,
    /// Its place in the dirty queue.
    pub queued: Option<NonZeroU64>,
    /// Since when which of its blocks are dirty.
    pub stamps: Stamps,
    /// It was written past us, and nobody has looked yet what of it.
    pub doubt: Option<Doubt>,
    /// What of the bytes that cannot be evicted is not in the sum of dirty ones for that.
    pub doubted: u64,
    pub trouble: Option<Trouble>,
}

/// Why the last flush failed.
pub struct Trouble {
    pub error: String,
    pub count: u32,
    pub retry_at: Instant,
}

/// Clean bytes beside what a sync is about to make durable, as they were when it began.
#[derive(Debug, Default)]
pub struct Beside {
    pub clean: Vec<(u64, u64)>,
    seen: Look,
}

/// Who syncs more stretches at once than this does not go over the same pages again and again.
const SYNCED_APART_MAX: usize = 64;

impl File {
    /// A file that nobody uses yet. `recorded`: the index has its record, and its shadow is compared before it is
    /// believed.
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

    /// Held while the shadow is written, and never while the backing store is called.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// The same, unless somebody has it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Inner>> {
        self.inner.try_lock()
    }

    /// Waited for with the file's lock. Whoever ends a fill, a flush or an I/O in flight notifies all.
    #[inline]
    pub fn changed(&self) -> &Condvar {
        &self.changed
    }

    /// Bytes that requests moved lately.
    #[inline]
    pub fn heat(&self) -> &Heat {
        &self.heat
    }

    /// Counts one use of all of it, for eviction.
    #[inline]
    pub fn hit(&self) {
        count_up(&self.hits);
    }

    /// Counts one use of a unit of it.
    #[inline]
    pub fn hit_unit(&self, uses: &Uses, unit: Unit) {
        self.in_units.store(true, Relaxed);
        uses.note(unit);
    }

    /// Reads and lowers.
    pub fn take_hits(&self, uses: &Uses, unit: Unit) -> u8 {
        let hits = count_down(&self.hits);
        if self.in_units.load(Relaxed) { hits.max(uses.take(unit)) } else { hits }
    }

    /// The path it is known by now.
    pub fn path(&self) -> Option<PathBuf> {
        self.lock().state.paths.first()
    }

    /// The user it belongs to.
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
    /// Changes the names of the file with this number.
    pub fn rename(&mut self, file: FileId, change: impl FnOnce(&mut Paths)) {
        self.note_untold(Untold::note_anew);
        self.state.0.paths.change_of(file, self.weight, change);
    }

    /// Makes a change; its directories follow.
    pub(super) fn apply(&mut self, change: &Change<'_>) {
        self.note_untold(|copied| copied.note_change(change));
        self.state.0.apply(change);
        self.weigh();
    }

    /// Partners, if they know it, are to be told.
    #[inline]
    pub(super) fn note_untold(&mut self, note: impl FnOnce(&mut Untold)) {
        if let Some(copied) = self.live.as_mut().and_then(|live| live.copied_mut()) {
            note(copied);
        }
    }

    /// Whether partners may know of it.
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

    /// A sync is about to seal it. Who changes its names looks whether it may last after announcing that: of two that
    /// come at once the seal is behind the announcement, or this is seen.
    pub fn begin_seal(&mut self) {
        self.sealing = true;
        self.weigh();
    }

    /// Whether a loss of power may leave bytes of it, by its records or a seal.
    pub fn may_last(&self) -> bool {
        self.sealing || self.state.durable_size().is_some()
    }

    pub(crate) fn weigh(&mut self) {
        // On record, it is as durable as that says.
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

    /// Whether what is clean and durable may be kept: the file is in use, and the tier's bytes and
    /// the backing store's are the same for all we know.
    pub fn may_keep(&self) -> bool {
        let Some(live) = &self.live else { return false };
        let moved = live.around != Around::None;
        let sound = !live.stale && !moved && !live.unlinked && !self.state.is_unsynced();
        live.is_open() && sound && !self.state.conflict().stands() && !self.state.is_unseen()
    }

    /// The clean bytes that a sync of `ranges` makes durable beside them.
    pub fn beside(&mut self, ranges: &[(u64, u64)]) -> Beside {
        // Since a flush that was broken off nobody has compared the backing file with what is here.
        let broken_off = self.state.flush_is_open() && self.live().flight.is_none();
        if ranges.len() > SYNCED_APART_MAX || broken_off || !self.may_keep() {
            return Beside::default();
        }
        Beside { clean: self.state.clean_beside(ranges), seen: self.clock.look() }
    }

    /// What of it is still the same clean bytes at the sync's end. What was written meanwhile, and
    /// is clean again, was synced by its flush.
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

    /// What there is only while it is in use, if it is.
    #[inline]
    pub fn in_use(&self) -> Option<&Live> {
        self.live.as_deref()
    }

    /// The same for whoever tells what has happened.
    #[inline]
    pub fn in_use_mut(&mut self) -> Option<&mut Live> {
        self.live.as_deref_mut()
    }

    /// A look at its clock, to be compared with [`Inner::changed`].
    #[inline]
    pub fn look(&self) -> Look {
        self.clock.look()
    }

    /// Whether a change of its names or attributes is under way.
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

    /// Whether it moved since a look at its clock.
    #[inline]
    pub fn changed(&self, since: Look, what: What) -> bool {
        let lately = self.live.as_ref().map(|live| &live.gone_lately);
        self.clock.changed(since, what, lately)
    }

    /// Whether another answer of the store to its names may be our doing, since a look.
    pub fn moved_since(&self, since: Look) -> bool {
        self.changed(since, What::Home) || self.state.paths.moved_since(since)
    }

    /// Bytes were thrown away, or changed around the tier.
    pub fn note_gone(&mut self, start: u64, end: u64) {
        let live = self.live.get_or_insert_default();
        self.clock.note_bytes(&mut live.mine().gone_lately, start, end);
    }

    /// Who writes it past us, if anybody does.
    pub fn unseen(&self) -> Option<&Unseen> {
        self.live.as_ref()?.unseen.as_deref()
    }

    /// Whether it was written past us since it was given set-user-id or set-group-id.
    pub fn is_written_over_set_id(&self) -> bool {
        let given = self.unseen().and_then(|unseen| unseen.set_id_at);
        given.is_some() && given != self.shadow_stat().map(|stat| stat.ctime)
    }

    /// It is about to be given such a bit, or has changed as no write does.
    pub fn note_set_id(&mut self) {
        let now = self.shadow_stat().map(|stat| stat.ctime);
        if let Some(unseen) = self.live.as_mut().and_then(|live| live.unseen_mut()) {
            unseen.set_id_at = now;
        }
    }

    /// What is thought to be dirty of it, if that is to be found by content.
    pub fn doubt(&self) -> Option<Doubt> {
        match self.unseen() {
            Some(unseen) => unseen.doubt,
            None => self.dirt.as_ref()?.doubt,
        }
    }

    /// Whether its last name is gone.
    pub fn is_unlinked(&self) -> bool {
        self.live.as_ref().is_some_and(|live| live.unlinked)
    }

    /// What there is only while it is in use, which it is from now on.
    #[inline]
    pub fn live(&mut self) -> &mut Live {
        self.live.get_or_insert_default()
    }

    /// Bytes of the tier that it takes, in the sum of all files.
    #[inline]
    pub fn charged(&self) -> u64 {
        self.charged
    }

    /// Whether the index has a record of it.
    #[inline]
    pub fn recorded(&self) -> bool {
        self.recorded
    }

    /// Whether it leaves the table: who found it there looks again.
    #[inline]
    pub fn gone(&self) -> bool {
        self.gone
    }

    /// The log's position right after bytes of it last became clean.
    pub fn settled_seq(&self) -> u64 {
        self.settled_seq
    }

    /// The admission rule by which it was opened last.
    pub fn rule(&self) -> Option<&Arc<crate::core::rules::Active>> {
        self.rule.as_ref()
    }

    /// What looks at it have found, while it was written past us.
    pub fn looks(&self) -> Looks {
        self.looks.as_deref().copied().unwrap_or_default()
    }

    /// Nobody uses it any more, and nothing is to be remembered of who did.
    pub fn end_use(&mut self) {
        self.live = None;
    }

    /// It leaves the table, or was never to come there.
    pub fn leave(&mut self) {
        self.gone = true;
    }

    /// It belongs to another admission rule, or to none.
    pub fn follow(&mut self, rule: Option<Arc<crate::core::rules::Active>>) {
        self.rule = rule;
    }

    /// What is dirty of it is to be found by content, or is known.
    pub fn doubt_it(&mut self, doubt: Option<Doubt>) {
        self.dirt().doubt = doubt;
    }

    /// Its last flush failed, or the trouble is over.
    pub fn note_trouble(&mut self, trouble: Option<Trouble>) {
        self.dirt().trouble = trouble;
    }

    /// It is tried again from now on, whatever its last flush came to.
    pub fn end_pause(&mut self, now: Instant) {
        if let Some(trouble) = self.dirt.as_mut().and_then(|dirt| dirt.trouble.as_mut()) {
            trouble.retry_at = now;
        }
    }

    /// Bytes of it were written, or count as written.
    pub fn touch(&mut self, start: u64, end: u64, now_ms: u64) {
        self.dirt().stamps.touch(start, end, now_ms);
    }

    /// A flight that began then has landed.
    pub fn settle_stamps(&mut self, captured: &[(u64, u64)], rewritten: &Ranges, began_ms: u64) {
        self.dirt().stamps.settle(captured, rewritten, began_ms);
    }

    /// For so long it was written past us.
    pub fn note_written_for(&mut self, time: Duration) {
        self.looks.get_or_insert_default().written_for = time;
    }

    pub(super) fn dirt(&mut self) -> &mut Dirt {
        self.dirt.get_or_insert_default()
    }

    /// Dirty bytes that are in the engine's sum.
    pub fn dirty_charged(&self) -> u64 {
        self.dirt.as_ref().map_or(0, |dirt| dirt.charged)
    }

    /// What it will take of the backing store's room.
    pub fn growth(&self) -> u64 {
        self.dirt.as_ref().map_or(0, |dirt| dirt.growth)
    }

    /// When anything dirty of it was last written; 0 if that is not known.
    pub fn last_write(&self) -> u64 {
        self.dirt.as_ref().map_or(0, |dirt| dirt.stamps.last())
    }

    /// Since when which of its blocks are dirty.
    pub fn stamps(&self) -> Option<&Stamps> {
        self.dirt.as_ref().map(|dirt| &dirt.stamps)
    }

    /// Why its last flush failed, if it did.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.dirt.as_ref()?.trouble.as_ref()
    }

    /// Whether it was compared a moment ago, and is written past us still: its age alone asks for no look yet (R5).
    pub fn was_looked_at(&self, now: Instant, rest: Duration, max_age: Duration) -> bool {
        let looks = self.looks.as_deref();
        self.state.is_unseen() && looks.is_some_and(|looks| looks.is_recent(now, rest, max_age))
    }

    /// Whether it rests after a flush that failed.
    pub fn is_pausing(&self, now: Instant) -> bool {
        self.trouble().is_some_and(|trouble| trouble.retry_at > now)
    }

    /// What of a range is in the tier.
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

    /// The size programs see.
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

    /// The time of last change that programs see.
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

    /// The stat of the open shadow, if it is open.
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

    /// Whether clean bytes may be given up now. A flight is in no way: it
    /// reads dirty bytes only, and a busy file would otherwise never make room. Nor is a sync: a
    /// database's largest file would keep what nobody wants for ever.
    pub fn may_evict(&self) -> bool {
        let held = self.state.is_held();
        !held && self.may_be_emptied() && self.live.as_ref().is_none_or(|live| live.io == 0)
    }

    /// Whether nobody reads or writes it past us, who would find it gone. Where the tier did not say
    /// what was written, all of it counts.
    pub fn may_be_emptied(&self) -> bool {
        !self.state.is_unseen() && !self.is_passed()
    }

    /// Whether programs have it open past us.
    #[inline]
    pub fn is_passed(&self) -> bool {
        self.live.as_ref().is_some_and(|live| live.pins > 0 || live.unseen.is_some())
    }

    /// Whether its clean bytes are to stay, by its own mark or by its rule's.
    pub fn is_pinned(&self) -> bool {
        self.state.is_pinned() || self.rule.as_ref().is_some_and(|active| active.rule.pin)
    }

    /// Whether a flush cannot make it clean now: it is written past us, in conflict, pauses after a
    /// failure, or has lost its name.
    pub fn is_stuck(&self, now: Instant) -> bool {
        let unlinked = self.live.as_ref().is_some_and(|live| live.unlinked);
        self.state.is_unseen() || self.state.conflict().stands() || self.is_pausing(now) || unlinked
    }

    /// Whether nothing needs the run-time part any more.
    pub fn is_idle(&self) -> bool {
        !self.is_copied() && self.is_unused()
    }

    /// Whether nobody has it open or does anything with it; partners may know of it.
    pub fn is_unused(&self) -> bool {
        let rests = |live: &Live| {
            let moves = live.is_at_work() || live.around.is_under_way() || !live.fills.is_empty();
            !live.is_open() && !moves && !live.is_waited_for()
        };
        !self.is_passed() && self.live.as_deref().is_none_or(rests)
    }

    /// Closes what nobody uses of a file that is here only for what partners know of it.
    pub(crate) fn close_for_partners(&mut self) {
        let Some(copied) = self.live.as_mut().and_then(|live| live.mine().copied.take()) else {
            return;
        };
        let closes = self.is_idle() && !self.only_descriptor();
        let live = self.live().mine();
        live.copied = Some(copied);
        if closes {
            (live.shadow, live.backing, live.target) = (None, None, None);
        }
    }

    /// Whether dirty bytes can be flushed through the descriptor alone: no name is known any more,
    /// though there is one.
    pub fn only_descriptor(&self) -> bool {
        self.state.is_dirty()
            && self.state.paths.is_empty()
            && self.live.as_ref().is_some_and(|live| live.target.is_some() && !live.unlinked)
    }

    /// Whether nothing of it has to be known any more.
    pub fn is_forgettable(&self) -> bool {
        let state = &self.state;
        let stays = state.is_dirty() || state.is_pinned() || state.is_held() || self.keepers > 0;
        !state.has_bytes() && !stays && self.is_idle()
    }

    /// Bytes of it were written: a flush that is under way does not make them clean, and partners are to be told.
    pub fn note_rewritten(&mut self, start: u64, end: u64) {
        self.note_untold(|copied| copied.note_written(start, end));
        if let Some(flight) = self.live.as_mut().and_then(|live| live.mine().flight.as_mut()) {
            flight.note(start, end);
        }
    }

    /// Names or attributes have changed through us: what the store said before does not count.
    pub(crate) fn forget_seen(&mut self) {
        self.clock.note_asked();
        if let Some(live) = &mut self.live {
            live.mine().seen = None;
        }
    }

    /// Whether what the store said at `asked` is what it says now, but for what others change.
    /// While a flush of ours is under way there its version says nothing, but then size and times
    /// are told by us, and the rest changes by names and attributes alone; but for the set-id bits,
    /// which a write takes away.
    pub fn is_known(&self, attr: &Attr, asked: Asked) -> bool {
        let flight = self.live.as_ref().and_then(|live| live.flight.as_ref());
        let in_flight = flight.is_some_and(|flight| flight.covers(asked.look))
            && self.state.is_dirty()
            && attr.mode & 0o6000 == 0;
        !self.changed(asked.look, What::Home) && (attr.version() == self.state.base() || in_flight)
    }

    /// Puts what we know better than the backing store into `attr`. `shadow` finds the shadow's
    /// stat while it is not open.
    pub fn overlay(&self, attr: &mut Attr, shadow: impl FnOnce() -> Option<MediaStat>) {
        // Of one that is held the store may say what its former home has left.
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

/// A change of names or attributes of some files, from before the backing store is asked until
/// what we know follows.
pub struct Changing(Vec<Arc<File>>);

impl Changing {
    /// From here on no answer of the store about them is taken for what is so afterwards.
    pub fn begin(files: impl IntoIterator<Item = Arc<File>>) -> Changing {
        let files: Vec<_> = files.into_iter().collect();
        files.iter().for_each(|file| file.lock().clock.begin_change());
        Changing(files)
    }

    /// Ends it when what we know has followed, by `look`: `told` takes note of what the store has answered,
    /// unless the file has changed once more since.
    pub fn end_told(mut self, look: Look, mut told: impl FnMut(&mut Inner)) {
        for file in std::mem::take(&mut self.0) {
            let mut inner = file.lock();
            let is_last = !inner.changed(look, What::Base);
            inner.clock.end_change();
            inner.forget_seen();
            if is_last {
                told(&mut inner);
            }
        }
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        for file in &self.0 {
            let mut inner = file.lock();
            inner.clock.end_change();
            inner.forget_seen();
        }
    }
}

/// What an operator is told of an error with this file.
pub fn failure(inner: &Inner, error: &Error) -> Failure {
    let state = if inner.state.conflict().stands() { "conflict" } else { "failed" };
    Failure { path: inner.state.display_path(), state, error: error.to_string() }
}

/// The same of one that is known by its path alone.
pub fn named_failure(path: &Path, error: &Error) -> Failure {
    Failure { path: path.to_path_buf(), state: "failed", error: error.to_string() }
}

/// Remembers what the backing store told of a file that it has just made: a new one has no
/// `security.capability`, which no directory hands down (capabilities(7)).
pub fn note_new(inner: &mut Inner, at: Instant, attr: &Attr) {
    let look = inner.clock.look();
    // Else it was changed since.
    if look.is_untouched() {
        note_seen(inner, Asked { at, look }, attr);
    }
    let seen = inner.live.as_mut().and_then(|live| live.seen_mut());
    if let Some(seen) = seen.filter(|seen| seen.asked.at == at) {
        seen.no_capability = Some(at);
        seen.made = true;
    }
}

/// Keeps what the store said of an open file at about `asked`. Returns whether somebody should ask
/// for its capability again: it had none once, and its ctime has moved since.
pub fn note_seen(inner: &mut Inner, asked: Asked, attr: &Attr) -> bool {
    let known = inner.is_known(attr, asked);
    let Some(live) = inner.live.as_mut().filter(|live| live.is_open() && known) else {
        return false;
    };
    if live.seen.as_ref().is_some_and(|seen| seen.asked.at > asked.at) {
        return false; // Somebody asked later, and was answered sooner.
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
