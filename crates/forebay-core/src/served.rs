//! How a request was served: each is exactly one of hit, partial hit, miss, new or bypass, so that
//! requests = hits + partial hits + misses + new + bypasses for both directions.
//!
//! A read whose bytes were all in the tier is a hit, with some of them a partial hit. A write is
//! judged by the bytes it overwrites: a write behind the end of the file is new, which no read is,
//! and one that fails is a miss. Each way around the tier has a counter `read_bypass_REASON` or
//! `write_bypass_REASON`; sums are made by that prefix.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// Requests of one direction: `total` is the sum of the other five.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Requests {
    pub total: u64,
    pub hits: u64,
    pub partial_hits: u64,
    pub misses: u64,
    pub new: u64,
    pub bypasses: u64,
    pub bytes: u64,
}

impl Requests {
    pub(crate) fn sum(&self) -> u64 {
        self.hits + self.partial_hits + self.misses + self.new + self.bypasses
    }

    /// The requests since `before`; all, if another rule of the same name counted `before`.
    pub fn since(&self, before: &Requests) -> Requests {
        if self.total < before.total {
            return *self;
        }
        Requests {
            total: self.total - before.total,
            hits: self.hits.saturating_sub(before.hits),
            partial_hits: self.partial_hits.saturating_sub(before.partial_hits),
            misses: self.misses.saturating_sub(before.misses),
            new: self.new.saturating_sub(before.new),
            bypasses: self.bypasses.saturating_sub(before.bypasses),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Served {
    #[default]
    Hit,
    Partial,
    Miss,
    /// The request met no existing bytes: none could have been in the tier.
    New,
    /// Past the tier, and counted where that was decided.
    Bypassed,
}

/// The bytes of a range that were in the tier before the request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Before {
    pub len: u64,
    /// Bytes that the file had in the range, in the tier or not.
    pub existing: u64,
    pub present: u64,
    pub dirty: u64,
}

impl Before {
    pub fn served(self) -> Served {
        match self.present {
            _ if self.existing == 0 => Served::New,
            0 => Served::Miss,
            present if present < self.existing => Served::Partial,
            _ => Served::Hit,
        }
    }
}

/// Requests through the handles of a rule in one direction, by how they were served.
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
        place.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
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
