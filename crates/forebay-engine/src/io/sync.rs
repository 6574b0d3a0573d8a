//! Making what was written survive the loss of power: the shadow first, then its record.

use std::sync::Arc;
use std::time::Instant;

use forebay_backing::Result;

use crate::around::Lane;
use crate::config::WritePolicy;
use crate::engine::{Engine, add};
use crate::failpoint;
use crate::file::{Beside, File, Inner};
use crate::log::Entry;
use crate::media::MediaFile;
use crate::ranges::{Run, State};

/// Whether clean bytes may be evicted while a file is synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meanwhile {
    Allowed,
    Refused,
}

/// A sync that the size changes under is tried so often before it keeps everybody else out.
const SYNC_TRIES: u32 = 8;

impl Engine {
    /// Makes every byte written so far survive the loss of power (S3): the shadow first, then the
    /// record that says so.
    pub fn sync(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        self.sync_in(&Lane::default(), file)
    }

    /// As [`Engine::sync`], for a handle with rules of its own.
    pub fn sync_in(self: &Arc<Self>, lane: &Lane, file: &Arc<File>) -> Result<()> {
        match self.sync_way(lane) {
            WritePolicy::WriteBack => self.sync_around(file)?,
            WritePolicy::WriteThrough => {
                self.sync_around(file)?;
                return self.flush_file(file);
            }
            WritePolicy::WriteAround => {
                self.flush_file(file)?;
                return self.sync_target(file);
            }
        }
        add(&self.counters.syncs, 1);
        // A truncation that falls into a sync makes it say nothing; where the size changes all the
        // time it has to wait. So does an eviction, once.
        let mut evictions = Meanwhile::Allowed;
        let mut synced = false;
        for _ in 0..SYNC_TRIES {
            synced = self.try_sync(file, evictions)?;
            if synced {
                break;
            }
            evictions = Meanwhile::Refused;
        }
        if !synced {
            self.sync_alone(file)?;
        }
        // What was recorded since of others is theirs to sync.
        let logged = file.lock().live.as_ref().and_then(|live| live.logged_seq);
        self.note_tier(logged.map_or_else(|| self.index.sync(), |seq| self.index.sync_to(seq)))?;
        failpoint::pass("sync.marked");
        Ok(())
    }

    /// One sync; `false` if the size changed meanwhile, or what it was for is gone, so that it proves
    /// nothing.
    pub(crate) fn try_sync(
        self: &Arc<Self>,
        file: &Arc<File>,
        evictions: Meanwhile,
    ) -> Result<bool> {
        let mut inner = file.lock();
        if !inner.state.is_dirty() {
            // It was flushed: the record that says so must not be lost, or recovery would take an
            // older durable state for the newest.
            let seq = inner.settled_seq;
            drop(inner);
            return self.note_tier(self.index.sync_to(seq)).map(|()| true);
        }
        let shadow = self.shadow(file, &mut inner)?;
        let size = inner.size();
        let ranges = inner.state.unsynced(size);
        let beside = inner.beside(&ranges);
        let live = inner.live();
        live.synced_to = live.written_to;
        live.synced_at = Some(Instant::now());
        let (named, cut_seq, thrown) = (live.named, live.cut_seq, live.thrown.mark());
        let looks = u32::from(evictions == Meanwhile::Allowed);
        live.io += 1;
        live.io_that_looks += looks;
        drop(inner);
        let synced = self.sync_shadow(file, &*shadow, named);
        failpoint::pass("sync.shadow");
        let mut inner = file.lock();
        let synced = self.note_shadow_sync(&mut inner, synced);
        // What was flushed, evicted and written again since is not what was synced.
        let live = inner.live();
        let gone = evictions == Meanwhile::Allowed
            && ranges.iter().any(|&(start, end)| live.thrown.any_since(thrown, start, end));
        live.io_that_looks -= looks;
        let recorded = match synced {
            Ok(()) if gone => Ok(false),
            Ok(()) => self.record_synced(file, &mut inner, size, &ranges, &beside, cut_seq),
            Err(error) => Err(error),
        };
        drop(inner);
        self.end_io(file, recorded)
    }

    /// One sync while nothing of the file changes.
    fn sync_alone(&self, file: &Arc<File>) -> Result<()> {
        let mut inner = file.lock();
        if !inner.state.is_dirty() {
            return self.note_tier(self.index.sync_to(inner.settled_seq));
        }
        let shadow = self.shadow(file, &mut inner)?;
        let size = inner.size();
        let ranges = inner.state.unsynced(size);
        let live = inner.live();
        let (named, cut_seq) = (live.named, live.cut_seq);
        let synced = self.sync_shadow(file, &*shadow, named);
        self.note_shadow_sync(&mut inner, synced)?;
        let beside = Beside::default();
        self.record_synced(file, &mut inner, size, &ranges, &beside, cut_seq).map(drop)
    }

    fn sync_shadow(&self, file: &File, shadow: &dyn MediaFile, named: bool) -> std::io::Result<()> {
        if failpoint::skips_sync("shadow") {
            return Ok(());
        }
        shadow.sync_data()?;
        if named { Ok(()) } else { self.media().sync_dir(&crate::tier::shadow_dir(file.id)) }
    }

    /// Not before its end: another sync of the file must not take the name for durable.
    fn note_shadow_sync(&self, inner: &mut Inner, synced: std::io::Result<()>) -> Result<()> {
        match &synced {
            Ok(()) => inner.live().named = true,
            Err(_) => inner.sync_failed = true,
        }
        self.note_tier(synced)
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
}
