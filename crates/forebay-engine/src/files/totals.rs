//! What all files take together, and what of it has gone home.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use hashbrown::HashMap;

use crate::core::id::FileId;
use crate::files::file::File;
use crate::files::pace::Pace;
use crate::lock::{Condvar, Mutex, Rank};

/// Sums over all files, in bytes.
pub(crate) struct Totals {
    pub used: AtomicU64,
    pub dirty: AtomicU64,
    /// What dirty files will take of the backing store's room.
    pub growth: AtomicU64,
    pub writers: AtomicU64,
    /// Files that grow unseen, to be measured from time to time.
    pub unseen: Mutex<HashMap<FileId, Arc<File>>>,
    pub pace: Pace,
    /// What the tier may hold; measured again from time to time.
    pub limit: AtomicU64,
}

/// What the drain has brought home: who waits for room sees by it whether waiting is of use.
pub(crate) struct Landings {
    /// Bytes copied since start, settled or not: the sign of life for who waits.
    pub copied: AtomicU64,
    /// Batches that have landed; signaled after each.
    pub settled: (Mutex<u64>, Condvar),
    /// A writer waits for room.
    pub urgent: AtomicBool,
}

impl Default for Totals {
    fn default() -> Totals {
        Totals {
            used: AtomicU64::default(),
            dirty: AtomicU64::default(),
            growth: AtomicU64::default(),
            writers: AtomicU64::default(),
            unseen: Mutex::new(Rank::Unseen, HashMap::new()),
            pace: Pace::default(),
            limit: AtomicU64::default(),
        }
    }
}

impl Default for Landings {
    fn default() -> Landings {
        Landings {
            copied: AtomicU64::default(),
            settled: (Mutex::new(Rank::Wake, 0), Condvar::new()),
            urgent: AtomicBool::default(),
        }
    }
}
