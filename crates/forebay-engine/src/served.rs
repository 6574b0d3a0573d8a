//! How a request was served: each is exactly one of hit, partial hit, miss, new or bypass, so that
//! requests = hits + partial hits + misses + new + bypasses for both directions.
//!
//! A read of which all bytes were in the tier is a hit, of which some were a partial hit. A write
//! is judged by what it overwrites: one behind the end of the file is new, which no read is. It is a
//! miss if it fails. Whoever adds a way around the tier
//! adds a counter `read_bypass_REASON` or `write_bypass_REASON`; sums are made by that prefix.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::engine::{Counters, Engine, add};
use crate::file::{File, Inner};
use crate::report::Requests;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Served {
    #[default]
    Hit,
    Partial,
    Miss,
    /// Over nothing: there was no byte that could have been in the tier.
    New,
    /// Past the tier, and counted where that was decided.
    Bypassed,
}

/// What of a range was in the tier before it was touched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Before {
    pub len: u64,
    /// Bytes that the file had there, in the tier or not.
    pub existing: u64,
    pub present: u64,
    pub dirty: u64,
}

impl Before {
    pub fn of(inner: &Inner, start: u64, end: u64) -> Before {
        let existing = end.min(inner.size()).saturating_sub(start);
        let mut before = Before { len: end - start, existing, ..Before::default() };
        if inner.state.flags.opaque {
            (before.present, before.dirty) = (existing, existing);
            return before;
        }
        for run in inner.state.ranges.within(start, end) {
            let len = run.end - run.start;
            before.present += len;
            before.dirty += if run.state.is_dirty() { len } else { 0 };
        }
        before
    }

    pub fn served(self) -> Served {
        match self.present {
            _ if self.existing == 0 => Served::New,
            0 => Served::Miss,
            present if present < self.existing => Served::Partial,
            _ => Served::Hit,
        }
    }
}

/// Requests of one direction that handles of a rule made, by how they were served.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    hits: AtomicU64,
    partial_hits: AtomicU64,
    misses: AtomicU64,
    new: AtomicU64,
    bypasses: AtomicU64,
    bytes: AtomicU64,
}

impl Tally {
    pub fn note(&self, served: Served, bytes: u64) {
        let place = match served {
            Served::Hit => &self.hits,
            Served::Partial => &self.partial_hits,
            Served::Miss => &self.misses,
            Served::New => &self.new,
            Served::Bypassed => &self.bypasses,
        };
        add(place, 1);
        add(&self.bytes, bytes);
    }

    pub fn requests(&self) -> Requests {
        let count = |count: &AtomicU64| count.load(Relaxed);
        let mut requests = Requests {
            total: 0,
            hits: count(&self.hits),
            partial_hits: count(&self.partial_hits),
            misses: count(&self.misses),
            new: count(&self.new),
            bypasses: count(&self.bypasses),
            bytes: count(&self.bytes),
        };
        requests.total = requests.sum();
        requests
    }
}

impl Counters {
    /// The end of a read; its beginning counts the request.
    pub fn note_read(&self, served: Served) {
        let place: &AtomicU64 = match served {
            Served::Hit => &self.read_hits,
            Served::Partial => &self.read_partial_hits,
            Served::Miss | Served::New => &self.read_misses,
            Served::Bypassed => return,
        };
        add(place, 1);
    }

    /// The end of a write; its beginning counts the request.
    pub fn note_write(&self, served: Served) {
        let place: &AtomicU64 = match served {
            Served::Hit => &self.write_hits,
            Served::Partial => &self.write_partial_hits,
            Served::Miss => &self.write_misses,
            Served::New => &self.write_new,
            Served::Bypassed => return,
        };
        add(place, 1);
    }

    /// Dirty bytes that a write replaced before they were ever flushed.
    pub fn note_absorbed(&self, before: Before) {
        if before.dirty > 0 {
            add(&self.absorbed_writes, 1);
            add(&self.absorbed_bytes, before.dirty);
        }
    }
}

impl Engine {
    /// Counts by how much a file has grown that is written past our eyes. Bytes that replace others
    /// cannot be seen.
    pub(crate) fn note_growth(&self, file: &File, inner: &mut Inner) {
        let Some(stat) = inner.shadow_stat() else { return };
        // Blocks that the file system takes ahead of a writer are not written.
        let there = stat.len.min(stat.allocated);
        // The first look has nothing to compare with.
        let before = inner.live().measured.replace(there).unwrap_or(there);
        let new = there.saturating_sub(before);
        add(&self.counters.passthrough_new_bytes, new);
        file.heat.add(new, self.started.elapsed().as_secs());
    }
}
