//! What all files take together, and what of it has gone home.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex};

use hashbrown::HashMap;

use crate::core::id::FileId;
use crate::files::file::File;
use crate::files::pace::Pace;

/// Sums over all files, in bytes.
#[derive(Default)]
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
#[derive(Default)]
pub(crate) struct Landings {
    /// Bytes copied since start, settled or not: the sign of life for who waits.
    pub copied: AtomicU64,
    /// Batches that have landed; signaled after each.
    pub settled: (Mutex<u64>, Condvar),
    /// A writer waits for room.
    pub urgent: AtomicBool,
}
