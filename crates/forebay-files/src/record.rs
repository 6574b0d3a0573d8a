//! The way of every change of a known file: on record first, then made. A change that cannot be
//! recorded is not made, so no change is ever taken back.

use std::borrow::Cow;
use std::sync::Arc;

use forebay_backing::Result;

use crate::Files;
use crate::core::clock::{Look, What};
use crate::core::copied::Untold;
use crate::core::state::{Change, FileState, Record};
use crate::file::{Beside, File, Inner};
use crate::tier::log::Entry;

impl Files {
    /// Records a change and makes it. The first record of a file holds its whole state.
    pub fn commit(&self, file: &File, inner: &mut Inner, change: Change<'_>) -> Result<()> {
        self.record(file, inner, &change)
    }

    /// As [`Files::commit`], for a change that is a fact whether it is on record or not: it is made
    /// even if it cannot be recorded.
    pub fn commit_anyway(&self, file: &File, inner: &mut Inner, change: Change<'_>) -> Result<()> {
        let recorded = self.record(file, inner, &change);
        if recorded.is_err() {
            inner.apply(&change);
        }
        recorded
    }

    /// As [`Files::commit_anyway`], for a change whose record may be lost in a crash a moment later.
    /// The last close of a file makes one more record, most often: both are written together.
    pub fn commit_at_close(
        &self,
        file: &File,
        inner: &mut Inner,
        change: Change<'_>,
    ) -> Result<()> {
        let is_last = inner.live.as_ref().is_some_and(|live| live.opens == 1);
        if !is_last || !inner.recorded || inner.is_unlinked() {
            return self.commit_anyway(file, inner, change);
        }
        let appended = self.index.append_later(&Entry::of(file.id, &change));
        inner.apply(&change);
        self.note_logged(inner, appended)
    }

    /// As [`Files::commit`], for a change that is worth no record if the file has none yet.
    pub(crate) fn commit_if_known(
        &self,
        file: &File,
        inner: &mut Inner,
        change: Change<'_>,
    ) -> Result<()> {
        if inner.recorded {
            return self.commit(file, inner, change);
        }
        inner.apply(&change);
        Ok(())
    }

    /// Makes a change around the tier, which is a fact whether it is on record or not, and records it
    /// if the file has a record.
    pub fn commit_around(&self, file: &File, inner: &mut Inner, change: Change<'_>) {
        match inner.recorded {
            true => drop(self.commit_anyway(file, inner, change)),
            false => inner.apply(&change),
        }
    }

    /// A file without a name has no record: it ends with the daemon.
    fn record(&self, file: &File, inner: &mut Inner, change: &Change<'_>) -> Result<()> {
        if inner.is_unlinked() {
            inner.apply(change);
            return Ok(());
        }
        if !inner.recorded {
            inner.note_untold(|copied| copied.note_change(change));
            return self.put_as(file, inner, |state| state.apply(change));
        }
        self.append(inner, &Entry::of(file.id, change))?;
        inner.apply(change);
        if change.cleans() {
            inner.settled_seq = self.index.seq();
        }
        Ok(())
    }

    /// Records the whole state of a file whose names have changed.
    pub fn put(&self, file: &File, inner: &mut Inner) -> Result<()> {
        self.put_as(file, inner, |_| {})
    }

    /// Records the whole state of a file as changed by `change`, and takes it over.
    pub(crate) fn put_as(
        &self,
        file: &File,
        inner: &mut Inner,
        change: impl FnOnce(&mut FileState),
    ) -> Result<()> {
        inner.note_untold(Untold::note_anew);
        if inner.is_unlinked() {
            inner.alter(change);
            return Ok(());
        }
        let mut record = Box::new(Record { key: file.key, state: inner.state.clone() });
        change(&mut record.state);
        self.append(inner, &Entry::Put(file.id, Cow::Borrowed(&record)))?;
        inner.alter(|state| *state = record.state);
        inner.recorded = true;
        Ok(())
    }

    /// Records that no byte of a file is in the tier any more.
    pub fn drop_record(&self, file: &File, inner: &mut Inner) -> Result<()> {
        if inner.recorded {
            self.append(inner, &Entry::Drop(file.id))?;
            inner.recorded = false;
        }
        Ok(())
    }

    fn append(&self, inner: &mut Inner, entry: &Entry<'_>) -> Result<()> {
        let appended = self.index.append(entry);
        self.note_logged(inner, appended)
    }

    fn note_logged(&self, inner: &mut Inner, appended: std::io::Result<u64>) -> Result<()> {
        let seq = self.note_tier(appended)?;
        if let Some(live) = inner.live.as_mut().map(|live| live.mine()) {
            live.logged_seq = Some(seq);
            live.last_seq = seq;
        }
        Ok(())
    }

    /// Records the ranges that a sync has made durable, unless the size has changed since `seen`:
    /// then the bytes in those ranges may be younger than the sync. Returns whether it did. If a
    /// record is needed, it also keeps the clean bytes `beside` them.
    pub fn record_synced(
        &self,
        file: &Arc<File>,
        inner: &mut Inner,
        size: u64,
        ranges: &[(u64, u64)],
        beside: &Beside,
        seen: Look,
    ) -> Result<bool> {
        if inner.changed(seen, What::Size) {
            return Ok(false);
        }
        if !inner.state.is_dirty() {
            return Ok(true);
        }
        let ranges = inner.state.still_dirty(ranges);
        // Bytes that were flushed beyond the sync's end must not be cut off after a loss of power.
        // Before a flush has ended, the store may have bytes that were cut off here.
        let landed = inner.live().landed;
        let flushed = landed.is_some_and(|landed| !inner.changed(landed, What::Size))
            && !inner.state.is_unseen()
            && !inner.state.conflict().stands();
        let on_store = if flushed { inner.state.base().size.min(inner.state.size()) } else { 0 };
        let size = size.max(on_store);
        let known = inner.state.durable_size() == Some(size) && inner.state.are_durable(&ranges);
        if known {
            return Ok(true);
        }
        self.commit(file, inner, Change::Synced { size, ranges: ranges.into() })?;
        let kept = inner.still_clean(beside);
        if !kept.is_empty()
            && self.commit(file, inner, Change::Kept { ranges: kept.into() }).is_ok()
        {
            inner.live().mine().keeps_since.get_or_insert_with(|| self.time.now());
        }
        Ok(true)
    }

    /// Sets the pin mark; returns whether it was set otherwise before.
    pub fn mark_pinned(&self, file: &Arc<File>, inner: &mut Inner, pinned: bool) -> Result<bool> {
        if inner.state.is_pinned() == pinned || inner.gone {
            return Ok(false);
        }
        self.commit(file, inner, Change::Pinned(pinned)).map(|()| true)
    }

    /// Makes kept bytes simply clean: before they are evicted, or the backing file beneath them is
    /// changed, everything up to `settled_seq` must be made durable.
    pub fn let_go_of(&self, file: &File, inner: &mut Inner, start: u64, end: u64) -> Result<()> {
        // In a file that is written past the daemon, all durable bytes outlast a loss of power.
        let stays = inner.state.is_held() || inner.state.is_unseen();
        match inner.state.keeps_within(start, end) && !stays {
            true => self.commit(file, inner, Change::LetGo { start, end }),
            false => Ok(()),
        }
    }

    /// As [`Files::let_go_of`], for the whole file, durably.
    pub fn let_go(&self, file: &File, inner: &mut Inner) -> Result<()> {
        self.let_go_of(file, inner, 0, u64::MAX)?;
        self.note_tier(self.index.sync_to(inner.settled_seq))
    }
}
