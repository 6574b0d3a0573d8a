//! Every change of what is known of a file goes this way: on record first, then made. What cannot be
//! recorded is not made, so nothing is ever taken back.

use std::sync::Arc;

use forebay_backing::Result;

use crate::Files;
use crate::core::clock::{Look, What};
use crate::core::copied::Untold;
use crate::core::state::{Change, FileState, Record};
use crate::file::{Beside, File, Inner};
use crate::tier::log::Entry;

impl Files {
    /// Records a change and makes it. The first record of a file holds all of it.
    pub fn commit(&self, file: &File, inner: &mut Inner, change: Change<'_>) -> Result<()> {
        self.record(file, inner, change).1
    }

    /// The same for what is so whether it is on record or not.
    pub fn commit_anyway(&self, file: &File, inner: &mut Inner, change: Change<'_>) -> Result<()> {
        let (change, recorded) = self.record(file, inner, change);
        if recorded.is_err() {
            inner.apply(&change);
        }
        recorded
    }

    /// The same for what costs nothing if it is lost with us a moment later. Who closes a file as the
    /// last has one more record to make, most often: they are written together.
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
        let entry = Entry::Change(file.id, change);
        let appended = self.index.append_later(&entry);
        let Entry::Change(_, change) = entry else { unreachable!("made so above") };
        inner.apply(&change);
        self.note_logged(inner, appended)
    }

    /// The same for what is worth no record of its own, of a file that has none.
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

    /// The same for what changes around the tier, which is so whether it is on record or not.
    pub fn commit_around(&self, file: &File, inner: &mut Inner, change: Change<'_>) {
        match inner.recorded {
            true => drop(self.commit_anyway(file, inner, change)),
            false => inner.apply(&change),
        }
    }

    /// Hands the change back, too. A file without a name has no record: it ends with us.
    fn record<'a>(
        &self,
        file: &File,
        inner: &mut Inner,
        change: Change<'a>,
    ) -> (Change<'a>, Result<()>) {
        if inner.is_unlinked() {
            inner.apply(&change);
            return (change, Ok(()));
        }
        if !inner.recorded {
            inner.note_untold(|copied| copied.note_change(&change));
            let put = self.put_as(file, inner, |state| state.apply(&change));
            return (change, put);
        }
        let entry = Entry::Change(file.id, change);
        let appended = self.append(inner, &entry);
        let Entry::Change(_, change) = entry else { unreachable!("made so above") };
        if appended.is_ok() {
            inner.apply(&change);
            if change.cleans() {
                inner.settled_seq = self.index.seq();
            }
        }
        (change, appended)
    }

    /// Records the whole state of a file, whose names have changed.
    pub fn put(&self, file: &File, inner: &mut Inner) -> Result<()> {
        self.put_as(file, inner, |_| {})
    }

    /// Records the whole state of a file as it is to be, and takes it over.
    pub(crate) fn put_as(
        &self,
        file: &File,
        inner: &mut Inner,
        change: impl FnOnce(&mut FileState),
    ) -> Result<()> {
        inner.note_untold(Untold::note_anew);
        if inner.is_unlinked() {
            change(inner.state.mine());
            inner.weigh();
            return Ok(());
        }
        let mut record = Box::new(Record { key: file.key, state: inner.state.clone() });
        change(&mut record.state);
        let entry = Entry::Put(file.id, record);
        self.append(inner, &entry)?;
        let Entry::Put(_, record) = entry else { unreachable!("made so above") };
        *inner.state.mine() = record.state;
        inner.weigh();
        inner.recorded = true;
        Ok(())
    }

    /// Records that nothing of a file is in the tier any more.
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

    /// Records what a sync has made durable, unless the size has changed since it was `seen`: then
    /// the bytes in those ranges may be younger than the sync. Returns whether it did. If it takes a
    /// record, clean bytes `beside` it are kept by it.
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
        // What was flushed beyond the sync's end is not to be cut off after a loss of power. Before
        // a flush has ended, what is there may be what was cut off here.
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

    /// Returns whether it was marked otherwise before.
    pub fn mark_pinned(&self, file: &Arc<File>, inner: &mut Inner, pinned: bool) -> Result<bool> {
        if inner.state.is_pinned() == pinned || inner.gone {
            return Ok(false);
        }
        self.commit(file, inner, Change::Pinned(pinned)).map(|()| true)
    }

    /// Bytes that were kept are clean and no more: whoever is about to take them out of the tier, or
    /// to change the backing file beneath them, first makes everything up to `settled_seq` durable.
    pub fn let_go_of(&self, file: &File, inner: &mut Inner, start: u64, end: u64) -> Result<()> {
        // Of one that is written past us all that was durable outlasts a loss of power.
        let stays = inner.state.is_held() || inner.state.is_unseen();
        match inner.state.keeps_within(start, end) && !stays {
            true => self.commit(file, inner, Change::LetGo { start, end }),
            false => Ok(()),
        }
    }

    /// The same with all of the file, durably.
    pub fn let_go(&self, file: &File, inner: &mut Inner) -> Result<()> {
        self.let_go_of(file, inner, 0, u64::MAX)?;
        self.note_tier(self.index.sync_to(inner.settled_seq))
    }
}
