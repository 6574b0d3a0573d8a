//! The life of a known file: compared with the store, in conflict, let go of.
//!
//! R4 is a rule of docs/decisions/content.md.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_backing::{Attr, Error, Result, Version};

use crate::Files;
use crate::core::clock::{Look, What};
use crate::core::counters::add;
use crate::core::state::{Change, Conflict, FileState, Owner};
use crate::failpoint;
use crate::file::{File, Inner};
use crate::live::{Around, Live};
use crate::shadow::is_blank;
use crate::tier::media::MediaStat;
use crate::unseen::{Copied, Unseen};
use forebay_base::lock::MutexGuard;

impl Inner {
    /// Whether the daemon is changing the file on the store.
    pub(crate) fn changes_home(&self) -> bool {
        let copies = |live: &Live| live.flight.is_some() || live.around.is_under_way();
        self.clock.is_under_way() || self.live.as_deref().is_some_and(copies)
    }

    /// Whether no time tells of a write to a dirty file: its content tells whether there was one (R4).
    pub fn is_unmoved(&self) -> bool {
        match self.unseen() {
            Some(unseen) => {
                let was = unseen.doubt.as_ref().is_some_and(|doubt| doubt.unmoved)
                    || !self.state.is_dirty_besides();
                let now = self.shadow_stat();
                now.is_some_and(|now| was && unseen.is_unmoved(&now) || unseen.is_as_copied(&now))
            }
            None => !self.state.is_unseen() && self.doubt().is_some_and(|doubt| doubt.unmoved),
        }
    }
}

impl Files {
    /// Compares the cached file with the backing store's present answer. Clean bytes of another version
    /// are thrown away; for dirty ones it is a conflict (S8). `seen` is from before the question. Returns
    /// whether only a flush can tell, by the content: the file may have been written past the daemon.
    pub fn revalidate(&self, file: &Arc<File>, attr: &Attr, seen: Look) -> bool {
        let mut inner = file.lock();
        let outdated = inner.changed(seen, What::Base);
        let busy = inner.changes_home()
            || inner.state.flush_is_open()
            // The former home may still write to the file: the flush overwrites that.
            || inner.state.is_held();
        inner.live().mine().checked = Some(self.time.now());
        if busy || outdated {
            return false;
        }
        if inner.state.base() == attr.version() {
            inner.clock.note_found_as_known();
            inner.live().mine().around = Around::None;
            // A page that could not be synced may have become an old one.
            let suspect = inner.live().stale || inner.state.is_unsynced();
            if suspect && !inner.state.is_dirty() {
                self.drop_stale(file, &mut inner, attr);
            }
            return false;
        }
        if inner.state.is_unseen() && self.untouched(&mut inner).is_some() {
            // The program that has the file open has written nothing: it may have the old bytes until it does.
            inner.live().mine().stale = true;
            return false;
        }
        if inner.state.is_dirty() {
            if self.died_meanwhile(inner.look(), &inner.state, &attr.version()) {
                return false;
            }
            // If nothing was written here, only others have changed the file.
            if inner.is_unmoved() {
                return true;
            }
            self.declare_conflict(file, &mut inner, "the backing file has changed");
            return false;
        }
        add(&self.counters.invalidations, 1);
        self.drop_stale(file, &mut inner, attr);
        false
    }

    /// Returns the shadow's stat, if nothing was written past the daemon since the first writer
    /// came, and no byte was dirty before.
    pub fn untouched(&self, inner: &mut Inner) -> Option<MediaStat> {
        let now = inner.shadow_stat()?;
        let besides = inner.state.is_dirty_besides();
        let proved = |unseen: &Unseen| self.proves_untouched(unseen, &now);
        (!besides && inner.live().unseen.as_deref().is_some_and(proved)).then_some(now)
    }

    /// Whether the times of a shadow prove that nothing was written past the daemon since the first
    /// writer came (R4).
    pub fn proves_untouched(&self, unseen: &Unseen, now: &MediaStat) -> bool {
        let moves = || self.media().tells_each_change() && !self.stores_unseen(unseen);
        // An empty file is not mapped, and if it is still empty it has not changed.
        unseen.is_unmoved(now) && (now.len == 0 || moves())
    }

    /// Whether a program may store into a mapping without moving a time.
    pub fn stores_unseen(&self, unseen: &Unseen) -> bool {
        unseen.outlives_close && self.media().is_memory()
    }

    /// Notes that a file was not written past the daemon until its shadow had this stat: the next
    /// flush looks only for later writes, where they move the shadow's times.
    pub fn rests_untouched(&self, inner: &mut Inner, now: MediaStat) {
        let copied = self.home_as(now);
        if let Some(unseen) = inner.live().unseen_mut() {
            unseen.copied = copied;
        }
    }

    /// Returns the state from which on a flush has to look only for later writes, where they move
    /// the shadow's times.
    pub fn home_as(&self, at: MediaStat) -> Option<Copied> {
        // A store into a mapping on a tier in memory moves no time.
        let half = || self.time.now() + self.tune(|t| t.max_age) / 2;
        let doubted_from = self.media().is_memory().then(half);
        (at.len == 0 || self.media().tells_each_change()).then_some(Copied { at, doubted_from })
    }

    /// Throws away clean bytes of an old version, or marks them stale until no program reads them
    /// past the daemon.
    fn drop_stale(&self, file: &Arc<File>, inner: &mut Inner, attr: &Attr) {
        // Without this a loss of power would bring back the flush that these bytes came from, to be
        // repeated with the holes made below.
        if self.let_go(file, inner).is_err() || !inner.may_punch() {
            inner.live().mine().stale = true;
            return;
        }
        let had = inner.state.has_bytes()
            || inner.live.as_ref().is_some_and(|live| live.shadow.is_some());
        // Recorded before the shadow is emptied: a crash must not leave holes that count as data.
        let (base, owner, pinned) = (attr.version(), Owner::of(attr), inner.state.is_pinned());
        let emptied = Change::Emptied { base, owner, pinned };
        if self.commit_if_known(file, inner, emptied).is_err() {
            inner.live().mine().stale = true;
            return;
        }
        inner.clock.note_base();
        inner.note_gone(0, u64::MAX);
        let live = inner.live().mine();
        live.stale = false;
        live.around = Around::None;
        live.stream = crate::live::Stream::default();
        if had && let Ok(shadow) = self.shadow(file, inner) {
            let emptied = self.note_tier(self.empty(file, inner, &*shadow, attr.size));
            // The old bytes must not be found in it: the next use makes a fresh shadow.
            if emptied.is_err() {
                inner.live().mine().shadow = None;
            }
        }
        self.account(file, inner);
    }

    /// Whether the bytes here are of a version that the store no longer has, and programs that read them past the
    /// daemon keep them. A file that programs may write is not: what they write counts.
    pub fn is_outdated(&self, file: &File) -> bool {
        let inner = file.lock();
        let is_ours = inner.state.is_unseen() || inner.state.is_dirty();
        !is_ours && inner.in_use().is_some_and(|live| live.stale)
    }

    /// Whether the backing file differs in its ctime alone, or in a time that was being set, and was not found
    /// as known since a crash. Then a chmod, a link or the like through the daemon may have been under way
    /// at the crash, and its record came too late.
    pub fn died_meanwhile(&self, seen: Look, known: &FileState, found: &Version) -> bool {
        let is_own = found.size == known.base().size && known.is_own_time(found.mtime);
        is_own && !seen.is_proven() && !self.clean_start
    }

    /// Drops the cached bytes of a file that is wholly on the store, but that the tier has failed to sync:
    /// a page that it could not write may come back with older content. The bytes are fetched again.
    pub fn drop_unsynced(&self, file: &Arc<File>, inner: &mut Inner, attr: &Attr) {
        if inner.state.is_unsynced() && !inner.state.is_dirty() && !inner.state.conflict().stands()
        {
            self.drop_stale(file, inner, attr);
        }
    }

    /// Declares a conflict: the backing file is not the known one, and no byte is flushed until the
    /// conflict is settled. Durable on record.
    pub fn declare_conflict(&self, file: &Arc<File>, inner: &mut Inner, why: &str) {
        self.declare(file, inner, Conflict::Changed, why);
    }

    /// Declares a conflict: the tier could not sync writes past the daemon, whose content is known
    /// nowhere else.
    pub(crate) fn declare_unsynced(&self, file: &Arc<File>, inner: &mut Inner) {
        self.declare(file, inner, Conflict::Unsynced, Conflict::Unsynced.why());
    }

    fn declare(&self, file: &Arc<File>, inner: &mut Inner, conflict: Conflict, why: &str) {
        if inner.state.conflict().stands() {
            return;
        }
        add(&self.counters.conflicts, 1);
        tracing::warn!(path = %inner.state.display_path().display(), why, "conflict: flushing of this file stops until it is resolved");
        let recorded = self.commit_anyway(file, inner, Change::InConflict(conflict));
        // Over a conflicting file only bytes that were written here may be flushed.
        let recorded = recorded.and_then(|()| self.let_go_of(file, inner, 0, u64::MAX));
        // Synced at once: otherwise, after a loss of power, a record "flush begun" would make the
        // change look like the daemon's own.
        let _ = recorded.and_then(|()| self.note_tier(self.index.sync()));
    }

    /// Lets go of parts that are not needed any more: descriptors, the shadow of an unlinked file,
    /// the table's entry of a file without cached bytes. Ends the caller's lock.
    pub fn retire(&self, file: &Arc<File>, mut inner: MutexGuard<'_, Inner>) {
        if !inner.is_idle() || inner.only_descriptor() {
            inner.close_for_partners();
            return;
        }
        let (unlinked, stale) =
            inner.live.as_ref().map_or((false, false), |l| (l.unlinked, l.stale));
        let nothing = !inner.state.is_dirty()
            && !inner.state.is_pinned()
            && !inner.state.is_held()
            && inner.keepers == 0
            && (!inner.state.has_bytes() || stale);
        // At the engine's end no sweep comes any more.
        let waits = || self.graveyard.lock().holds(file);
        if unlinked && !self.stopping.load(Relaxed) && waits() {
            let live = inner.live().mine();
            (live.shadow, live.backing, live.target) = (None, live.backing.take(), None);
            return;
        }
        if unlinked || nothing {
            self.erase(file, &mut inner);
            drop(inner);
            self.forget(file);
            return;
        }
        let trusted = self.tune(|t| t.revalidate) > Duration::ZERO;
        // A sync may have sealed more than is on record as durable.
        let sealed = self.sealed_to(&inner) > inner.state.durable_size();
        inner.live = inner
            .live
            .take()
            .filter(|live| {
                sealed || live.around == Around::Over || (trusted && live.checked.is_some())
            })
            .map(|live| Box::new(live.remains()));
    }

    /// Removes every trace of a file from the tier: record first, shadow after. The caller removes
    /// it from the table next, without its lock; a thread that opens it in between finds it gone.
    pub fn erase(&self, file: &Arc<File>, inner: &mut Inner) {
        inner.gone = true;
        let had_record = inner.recorded;
        if self.drop_record(file, inner).is_err() {
            return; // The record still stands, so the shadow must too.
        }
        failpoint::pass("erase.logged");
        // A shadow may not exist: for a file that was only looked at none was made. Partners are
        // told later, but before they are told of another file with the same key.
        let copied = inner.live.as_mut().and_then(|live| live.mine().copied.take());
        if had_record
            || inner.live.as_ref().is_some_and(|live| live.shadow.is_some() || live.unlinked)
        {
            let blank = inner.live.take().filter(|live| live.blank);
            let shadow = blank.and_then(|mut live| Some((live.mine().shadow.take()?, live.maps)));
            match shadow {
                Some((blank, maps)) if is_blank(&*blank, maps) => self.keep_blank(file.id, blank),
                _ => self.trash.lock().push(file.id),
            }
        }
        inner.live = None;
        if let Some(mut copied) = copied {
            copied.ends_as(self.copying.next_number());
            inner.live().mine().copied = Some(copied);
            self.copying.is_over(file.clone());
        }
        let (base, owner) = (inner.state.base(), inner.state.owner());
        inner.apply(&Change::Emptied { base, owner, pinned: false });
        self.settle_sums(inner, 0, 0);
    }

    /// Gives up an open file that is not this member's, with its dirty bytes: programs that have it
    /// open go on with their bytes, and a new open finds the store's. Ends the caller's lock.
    pub fn disclaim(&self, file: &Arc<File>, mut inner: MutexGuard<'_, Inner>) -> Result<()> {
        self.drop_record(file, &mut inner)?;
        let (base, owner) = (inner.state.base(), inner.state.owner());
        inner.apply(&Change::Emptied { base, owner, pinned: false });
        inner.note_gone(0, u64::MAX);
        inner.apply(&Change::Held(false));
        inner.live().mine().stale = true;
        self.account(file, &mut inner);
        drop(inner);
        self.forget_key(file);
        Ok(())
    }

    /// Looks again at a backing file that has changed, and returns the error for the reader of
    /// bytes that are gone (S1).
    pub fn shrank(&self, file: &Arc<File>) -> Error {
        let seen = file.lock().clock.look();
        if let Some(path) = file.path()
            && let Ok(attr) = self.home.health().call(|| self.home.backing().stat(&path))
            && attr.key == file.key
        {
            self.revalidate(file, &attr, seen);
        }
        Error::os(libc::EIO, "the backing file is shorter than it was: open it again")
    }
}
