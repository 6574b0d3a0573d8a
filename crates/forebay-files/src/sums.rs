//! The effect of a change of a file on the sums, the evictor and the queue of dirty files.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::Files;
use crate::core::counters::add;
use crate::core::id::FileId;
use crate::core::policy::Level;
use crate::core::state::Record;
use crate::file::{File, Inner};
use crate::tier::dir as tier;
use crate::tier::media::{MediaStat, Space};
use crate::totals::shift;

/// Less than this part of its file system is little for a tier without a configured size.
const DUE_PARTS: u64 = 10;

/// Holes in a file are looked for when it may take this many bytes fewer than it has.
pub const HOLES_MIN: u64 = 1 << 20;

impl Files {
    /// Enters the files that are on record.
    pub fn populate(&self, records: BTreeMap<FileId, Record>) {
        self.table.write().reserve(records.len());
        for (id, record) in records {
            let file = File::new(id, record, true);
            self.table.write().insert(file.clone());
            let mut inner = file.lock();
            if inner.state.conflict().is_aside() {
                self.forget_key(&file); // Its name leads programs to another file.
            }
            // A file without bytes is announced too, to be forgotten.
            let none = !inner.state.has_bytes();
            let present = inner.state.present(0, inner.state.size());
            self.admit(&file, present.into_iter().chain(none.then_some((0, 0))));
            self.account(&file, &mut inner);
        }
    }

    /// Updates the sums after a change of `inner`, from its ranges.
    pub fn account(&self, file: &Arc<File>, inner: &mut Inner) {
        self.account_as_seen(file, inner, None);
    }

    /// As `account`, for a file whose shadow was looked at just now, under its lock.
    pub fn account_as_seen(&self, file: &Arc<File>, inner: &mut Inner, seen: Option<MediaStat>) {
        let (used, dirty) = match inner.state.tracked() {
            None => {
                let stat = seen.or_else(|| inner.shadow_stat());
                let allocated = stat.map_or(inner.charged, |stat| stat.allocated);
                let thought = inner.doubt().map(|doubt| doubt.dirty(allocated));
                (allocated, thought.unwrap_or(allocated).min(allocated))
            }
            Some(ranges) => {
                let present = round_up(ranges.bytes(|_| true));
                let used = present.min(self.allocated_if_large(file, inner, present));
                let thought = inner.doubt().map_or(u64::MAX, |doubt| doubt.dirty(used).max(1));
                (used, inner.state.dirty_bytes().min(used).min(thought))
            }
        };
        self.settle_sums(inner, used, dirty);
        self.queue_if_dirty(file, inner);
        if inner.is_copied() && !inner.state.is_dirty() && !inner.state.is_held() {
            self.copying.is_over(file.clone());
        }
    }

    /// Returns the bytes that a file takes. A large file may be mostly holes, which are present and
    /// take no space; a small one is not worth the look.
    fn allocated_if_large(&self, file: &File, inner: &Inner, present: u64) -> u64 {
        if present < 16 << 20 || present.abs_diff(inner.charged) < HOLES_MIN {
            return present;
        }
        // Mostly the shadow is closed: at start, and during eviction.
        let by_name = || self.media().stat(&tier::shadow_name(file.id)).ok();
        inner.shadow_stat().or_else(by_name).map_or(present, |stat| stat.allocated)
    }

    /// Announces the units of stretches of a file to the evictor.
    pub fn admit(&self, file: &File, stretches: impl IntoIterator<Item = (u64, u64)>) {
        let mut evictor = self.evictor.lock();
        let mut last = None;
        for (start, end) in stretches {
            for unit in self.grain.units(file.id, start, end) {
                if last.replace(unit) != Some(unit) {
                    evictor.admit(unit);
                }
            }
        }
    }

    pub(crate) fn settle_sums(&self, inner: &mut Inner, used: u64, dirty: u64) {
        shift(&self.totals.used, inner.charged, used);
        if let Some(rule) = &inner.rule {
            shift(&rule.used, inner.charged, used);
            shift(&rule.dirty, inner.dirty_charged(), dirty);
        }
        shift(&self.totals.dirty, inner.dirty_charged(), dirty);
        let growth = match inner.state.is_dirty() && dirty > 0 {
            true => dirty.min(inner.size().saturating_sub(inner.state.base().size)),
            false => 0,
        };
        shift(&self.totals.growth, inner.growth(), growth);
        inner.charged = used;
        let in_doubt = inner.state.is_dirty() && inner.doubt().is_some();
        let doubted = if in_doubt { used.saturating_sub(dirty) } else { 0 };
        shift(&self.totals.doubted, inner.dirt.as_ref().map_or(0, |dirt| dirt.doubted), doubted);
        if inner.state.is_dirty() {
            inner.dirt().doubted = doubted;
            inner.dirt().charged = dirty;
            inner.dirt().growth = growth;
        } else {
            self.unqueue(inner);
            inner.dirt = None;
        }
    }

    /// Takes a file out of the queue of dirty files.
    pub fn unqueue(&self, inner: &mut Inner) {
        if let Some(place) = inner.dirt.as_mut().and_then(|dirt| dirt.queued.take()) {
            self.dirty.lock().remove(place);
        }
    }

    fn queue_if_dirty(&self, file: &Arc<File>, inner: &mut Inner) {
        let unlinked = inner.live.as_ref().is_some_and(|live| live.unlinked);
        if inner.state.is_dirty() && !unlinked {
            let since = inner.state.dirty_since().max(1);
            let mut queue = self.dirty.lock();
            // A dirty file is never seen outside the queue.
            let queued = inner.dirt().queued;
            if queued.is_none_or(|place| !queue.is_of(place, since)) {
                queued.into_iter().for_each(|place| queue.remove(place));
                inner.dirt().queued = Some(queue.push(since, file.clone()));
            }
        }
    }

    /// Counts the growth of a file that is written past the daemon. Bytes that replace others
    /// cannot be seen.
    pub fn note_growth(&self, file: &File, inner: &mut Inner) {
        let stat = inner.shadow_stat();
        self.note_growth_seen(file, inner, stat);
    }

    /// As `note_growth`, for a file whose shadow was looked at just now, under its lock.
    pub fn note_growth_seen(&self, file: &File, inner: &mut Inner, seen: Option<MediaStat>) {
        let Some(stat) = seen else { return };
        // Blocks that the file system allocates ahead of a writer are not written.
        let there = stat.len.min(stat.allocated);
        let Some(unseen) = inner.live.as_mut().and_then(|live| live.unseen_mut()) else {
            return;
        };
        // The first look has no earlier one to compare with.
        let before = unseen.measured.replace(there).unwrap_or(there);
        let new = there.saturating_sub(before);
        add(&self.counters.passthrough_new_bytes, new);
        file.heat.add(new, self.uptime().as_secs());
    }

    /// Measures how much the tier may hold: the configured size, or the room of its file system
    /// less 5 % for the index and for other users of it; and how much less that is than it should be.
    pub fn measure(&self) {
        let asked = self.tune(|t| t.tier_size);
        let Ok(space) = self.media().space() else { return };
        let limit = self.limit_in(space, asked);
        let due = asked.unwrap_or(space.total / DUE_PARTS).min(space.total / 100 * 80);
        self.totals.limit.store(limit, Relaxed);
        self.totals.short.store(due.saturating_sub(limit), Relaxed);
    }

    /// Returns the bytes that the tier may hold if `asked` are configured; `None` if the room
    /// cannot be measured.
    pub fn limit_of(&self, asked: Option<u64>) -> Option<u64> {
        Some(self.limit_in(self.media().space().ok()?, asked))
    }

    fn limit_in(&self, space: Space, asked: Option<u64>) -> u64 {
        let possible = (space.available + self.totals.used()) / 100 * 95;
        asked.map_or(possible, |asked| asked.min(possible)).max(1)
    }

    /// Returns how full the tier is, and with which bytes.
    pub fn level(&self) -> Level {
        let oldest = {
            let queue = self.dirty.lock();
            queue.by_age.first_key_value().map(|(_, (since, _))| *since)
        };
        let age = |since| Duration::from_millis(self.time.ms().saturating_sub(since));
        Level {
            tier_bytes: self.totals.limit(),
            used_bytes: self.totals.used(),
            dirty_bytes: self.totals.dirty(),
            doubted_bytes: self.totals.doubted(),
            arriving_bytes: self.totals.pace().arriving(),
            oldest_age: oldest.map(age),
            backing_available: self.home.health().is_available(),
        }
    }

    /// Returns the bytes that fit into the tier before anything is evicted.
    pub fn free_bytes(&self) -> u64 {
        self.totals.limit().saturating_sub(self.totals.used())
    }
}

/// Rounds up to blocks, the unit of allocation.
pub(crate) fn round_up(bytes: u64) -> u64 {
    bytes.div_ceil(4096) * 4096
}
