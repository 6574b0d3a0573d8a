//! Counters of events since start.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::served::{Before, Served};

macro_rules! counters {
    ($($name:ident),* $(,)?) => {
        /// Counters of events since start.
        #[derive(Default)]
        pub struct Counters { $(pub $name: AtomicU64),* }

        impl Counters {
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Relaxed))),*]
            }
        }
    };
}

counters!(
    read_requests,
    read_hits,
    read_partial_hits,
    read_misses,
    write_requests,
    write_hits,
    write_partial_hits,
    write_misses,
    write_new,
    absorbed_writes,
    absorbed_bytes,
    read_bytes,
    read_uncached_bytes,
    write_bytes,
    write_around_bytes,
    fill_bytes,
    fills,
    near_bytes,
    near_fills,
    readahead_fills,
    flushed_files,
    flushed_bytes,
    flush_failures,
    conflicts,
    invalidations,
    evicted_bytes,
    evicted_units,
    syncs,
    sealed_syncs,
    compactions,
    writers_slowed,
    writers_slowed_us,
    tier_errors,
    passthrough_reads,
    passthrough_writes,
    passthrough_new_bytes,
    read_bypass_full,
    read_bypass_sequential,
    read_bypass_rule,
    read_bypass_detached,
    write_bypass_policy,
    write_bypass_sequential,
    write_bypass_rule,
    write_bypass_detached,
);

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

pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}
