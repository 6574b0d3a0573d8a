use std::sync::Arc;
use std::time::Instant;

use forebay_backing::Result;

use crate::core::ranges::{Run, State};
use crate::core::state::Record;
use crate::files::Files;
use crate::files::file::{Beside, File, Inner};
use crate::tier::log::{Entry, Mark};

impl Files {
    pub(crate) fn append(&self, inner: &mut Inner, entry: &Entry) -> Result<()> {
        let seq = self.note_tier(self.index.append(entry))?;
        if let Some(live) = &mut inner.live {
            live.logged_seq = Some(seq);
        }
        Ok(())
    }

    /// Records the whole state of a file. One without a name has no record: it ends with us.
    pub(crate) fn put(&self, file: &File, inner: &mut Inner) -> Result<()> {
        if inner.live.as_ref().is_some_and(|live| live.unlinked) {
            return Ok(());
        }
        let record = Record { key: file.key, state: inner.state.clone() };
        let entry = Entry::Put(file.id, Box::new(record));
        self.append(inner, &entry)?;
        inner.recorded = true;
        Ok(())
    }

    /// Records that ranges changed their state, in whatever way is shortest. `inner.state` is
    /// already as it will be.
    pub(crate) fn record(&self, file: &File, inner: &mut Inner, marks: &[Mark]) -> Result<()> {
        // Of a file of thousands of runs the whole state costs milliseconds.
        if !inner.recorded || marks.len() > 8.max(inner.state.ranges.count() / 8) {
            return self.put(file, inner);
        }
        let since = inner.state.dirty_since;
        for run in marks {
            self.append(inner, &Entry::Mark { id: file.id, run: *run, since })?;
        }
        Ok(())
    }

    /// Records what a sync has made durable, unless the size has changed since `cut_seq`: then
    /// the bytes in those ranges may be younger than the sync. Returns whether it did. If it takes a
    /// record, clean bytes `beside` it are kept by it.
    pub(crate) fn record_synced(
        &self,
        file: &Arc<File>,
        inner: &mut Inner,
        size: u64,
        ranges: &[(u64, u64)],
        beside: &Beside,
        cut_seq: u64,
    ) -> Result<bool> {
        if inner.live().cut_seq != cut_seq {
            return Ok(false);
        }
        if !inner.state.is_dirty() {
            return Ok(true);
        }
        let ranges = inner.state.still_dirty(ranges);
        // What was flushed beyond the sync's end is not to be cut off after a loss of power. Before
        // a flush has ended, what is there may be what was cut off here.
        let flushed = inner.live().landed_cut == Some(cut_seq)
            && !inner.state.flags.opaque
            && !inner.state.flags.conflict.stands();
        let on_store = if flushed { inner.state.base.size.min(inner.state.size) } else { 0 };
        let size = size.max(on_store);
        let known = inner.state.durable_size.get() == Some(size)
            && ranges.iter().all(|&(start, end)| {
                inner.state.ranges.within(start, end).all(|run| run.state == State::Durable)
                    && inner.state.ranges.covers(start, end)
            });
        if known {
            return Ok(true);
        }
        let all = |&(start, end): &(u64, u64)| inner.state.ranges.within(start, end);
        let runs: Vec<Run> = ranges.iter().flat_map(all).collect();
        let durable_size = inner.state.durable_size;
        inner.state.mark_synced(size, &ranges);
        let recorded = if !inner.recorded || ranges.len() > 1000 {
            self.put(file, inner)
        } else {
            let size = inner.state.durable_size.get().expect("set by the sync");
            let entry = Entry::Synced { id: file.id, size, ranges: ranges.clone() };
            self.append(inner, &entry)
        };
        if recorded.is_err() {
            // The next sync must not take it for known.
            inner.state.durable_size = durable_size;
            ranges.iter().for_each(|&(start, end)| inner.state.ranges.clear(start, end));
            runs.iter().for_each(|run| inner.state.ranges.set(run.start, run.end, run.state));
            return recorded.map(|()| true);
        }
        let kept = inner.still_clean(beside);
        let entry = Entry::Kept { id: file.id, ranges: kept.clone() };
        if !kept.is_empty() && self.append(inner, &entry).is_ok() {
            inner.state.keep(&kept);
            inner.live().keeps_since.get_or_insert_with(Instant::now);
        }
        Ok(true)
    }

    /// Returns whether it was marked otherwise before.
    pub(crate) fn mark_pinned(
        &self,
        file: &Arc<File>,
        inner: &mut Inner,
        pinned: bool,
    ) -> Result<bool> {
        if inner.state.flags.pinned == pinned || inner.gone {
            return Ok(false);
        }
        inner.state.flags.pinned = pinned;
        let put = self.put(file, inner);
        if put.is_err() {
            inner.state.flags.pinned = !pinned;
        }
        put.map(|()| true)
    }

    /// Bytes that were kept are clean and no more: whoever is about to take them out of the tier, or
    /// to change the backing file beneath them, first makes everything up to `settled_seq` durable.
    pub(crate) fn let_go_of(
        &self,
        file: &File,
        inner: &mut Inner,
        start: u64,
        end: u64,
    ) -> Result<()> {
        let durable_size = inner.state.durable_size;
        let kept = inner.state.let_go(start, end);
        if kept.is_empty() {
            return Ok(());
        }
        // One record for all: of some alone the log would know what is not so here.
        if let Err(error) = self.put(file, inner) {
            inner.state.durable_size = durable_size;
            for run in &kept {
                inner.state.ranges.set(run.start, run.end, run.state);
            }
            return Err(error);
        }
        inner.settled_seq = self.index.seq();
        Ok(())
    }

    /// The same with all of the file, durably.
    pub(crate) fn let_go(&self, file: &File, inner: &mut Inner) -> Result<()> {
        self.let_go_of(file, inner, 0, u64::MAX)?;
        self.note_tier(self.index.sync_to(inner.settled_seq))
    }
}
