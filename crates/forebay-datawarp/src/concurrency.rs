//! The number of files of an instance that later stages of this process copy at once.
//!
//! A table of atomics: it needs no lock, so it is whole in a child after a fork.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use forebay_base::{Error, Result};

/// The most threads that a transfer accepts.
const THREADS_MAX: u32 = 256;

/// The number of instances for which a process can set it: a job has a handful.
const INSTANCES_MAX: usize = 64;

struct Slot {
    /// The key of the instance's name; 0 in a free slot.
    key: AtomicU64,
    threads: AtomicU32,
}

static SLOTS: [Slot; INSTANCES_MAX] =
    [const { Slot { key: AtomicU64::new(0), threads: AtomicU32::new(0) } }; INSTANCES_MAX];

pub fn set(instance: &str, threads: u32) -> Result<()> {
    let key = key(instance);
    let slot = SLOTS.iter().find(|slot| {
        let found = slot.key.compare_exchange(0, key, Relaxed, Relaxed);
        found.map_or_else(|taken| taken == key, |_| true)
    });
    let slot = slot.ok_or_else(|| Error::os(libc::ENOSPC, "too many instances"))?;
    slot.threads.store(threads.min(THREADS_MAX), Relaxed);
    Ok(())
}

pub fn of(instance: &str) -> Option<u32> {
    let key = key(instance);
    let slot = SLOTS.iter().find(|slot| slot.key.load(Relaxed) == key)?;
    Some(slot.threads.load(Relaxed)).filter(|threads| *threads > 0)
}

fn key(instance: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    instance.hash(&mut hasher);
    hasher.finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_holds_for_its_instance_until_the_table_is_full() {
        set("a", 3).unwrap();
        set("b", 4).unwrap();
        set("a", 1000).unwrap();
        assert_eq!((of("a"), of("b"), of("c")), (Some(THREADS_MAX), Some(4), None));
        let full = (0..INSTANCES_MAX).map(|n| set(&format!("more{n}"), 1)).find_map(Result::err);
        assert_eq!(full.unwrap().errno(), libc::ENOSPC);
        assert_eq!(of("a"), Some(THREADS_MAX));
    }
}
