//! The sums over all files, and the drain's progress.
//!
//! R5 is a rule of docs/decisions/content.md.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hashbrown::HashMap;

use crate::core::id::FileId;
use crate::file::File;
use crate::pace::{LookPace, Pace};
use crate::time::Time;
use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank};

/// Sums over all files, in bytes.
pub struct Totals {
    pub(super) used: AtomicU64,
    pub(super) dirty: AtomicU64,
    /// Bytes that may be dirty though they are not counted so: they cannot be evicted.
    pub(super) doubted: AtomicU64,
    /// The part of `used` that is copies of other members' files.
    copies: AtomicU64,
    /// Room that dirty files will take on the backing store.
    pub(super) growth: AtomicU64,
    writers: AtomicU64,
    /// Files that grow unseen, to be measured from time to time.
    unseen: Mutex<HashMap<FileId, Arc<File>>>,
    pace: Pace,
    looks: LookPace,
    /// The bytes that the tier may hold; measured again from time to time.
    pub(super) limit: AtomicU64,
    /// How much less that is than it should be, since other files take the room.
    pub(super) short: AtomicU64,
}

impl Totals {
    /// Returns the bytes that are in the tier.
    #[inline]
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Returns the bytes in the tier that are newer than the backing store, as far as known.
    #[inline]
    pub fn dirty(&self) -> u64 {
        self.dirty.load(Relaxed)
    }

    /// Returns the bytes that may be dirty though they are not counted so.
    pub fn doubted(&self) -> u64 {
        self.doubted.load(Relaxed)
    }

    /// Returns the bytes that dirty files will take on the backing store.
    pub fn growth(&self) -> u64 {
        self.growth.load(Relaxed)
    }

    /// Returns the bytes that the tier may hold.
    #[inline]
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Returns how much less that is than it should be, since other files take the room.
    pub fn short(&self) -> u64 {
        self.short.load(Relaxed)
    }

    /// Changes the bytes of a copy for another member.
    pub fn charge_copy(&self, from: u64, to: u64) {
        shift(&self.used, from, to);
        shift(&self.copies, from, to);
    }

    /// Returns the bytes of copies for other members.
    pub fn copies(&self) -> u64 {
        self.copies.load(Relaxed)
    }

    /// Returns the number of programs that write past the daemon.
    pub fn writers(&self) -> u64 {
        self.writers.load(Relaxed)
    }

    /// Counts one more program that writes past the daemon.
    pub fn begin_writer(&self) {
        self.writers.fetch_add(1, Relaxed);
    }

    /// Counts one fewer.
    pub fn end_writer(&self) {
        self.writers.fetch_sub(1, Relaxed);
    }

    /// Returns the pace at which files are compared with the store's content.
    pub fn looks(&self) -> &LookPace {
        &self.looks
    }

    /// Returns the least rest between two looks at a file that is written past the daemon: looks
    /// this often at all files in doubt take a tenth of the time (R5).
    pub fn look_rest(&self, clock: &Time, max_age: Duration) -> Duration {
        self.looks.time_for(clock, self.doubted()).clamp(max_age / 2, Self::rest_max(max_age))
    }

    /// Returns the longest rest. No more is written past the daemon than can be looked at so often:
    /// a write just after a look must be found in time to be flushed before it is `max_age` old.
    pub fn rest_max(max_age: Duration) -> Duration {
        max_age * 5 / 8
    }

    /// Returns the pace at which files written past the daemon grow.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    fn growing(&self) -> MutexGuard<'_, HashMap<FileId, Arc<File>>> {
        self.unseen.lock()
    }

    /// Adds a file to those measured from time to time.
    pub fn grows_unseen(&self, file: &Arc<File>) {
        self.growing().insert(file.id, file.clone());
    }

    /// Removes a file from those measured from time to time.
    pub fn is_seen(&self, file: &File) {
        self.growing().remove(&file.id);
    }

    /// Returns the files that are measured from time to time.
    pub fn unseen(&self) -> Vec<Arc<File>> {
        self.growing().values().cloned().collect()
    }
}

/// The drain's progress: a writer that waits for room sees by it whether waiting is of use.
pub struct Landings {
    /// Bytes copied since start, settled or not.
    copied: AtomicU64,
    /// Bytes compared with the store's content since start.
    looked: AtomicU64,
    /// The number of batches that have landed; signaled after each.
    settled: (Mutex<u64>, Condvar),
    /// Whether a writer waits for room.
    urgent: AtomicBool,
}

impl Landings {
    /// Returns the bytes copied to the store since start, settled or not.
    pub fn copied(&self) -> u64 {
        self.copied.load(Relaxed)
    }

    /// Returns a number that grows while the drain works, as a sign of life for waiting writers.
    pub fn progress(&self) -> u64 {
        self.copied() + self.looked.load(Relaxed)
    }

    /// Notes that `bytes` were compared with the store's content.
    pub fn note_looked(&self, bytes: u64) {
        self.looked.fetch_add(bytes, Relaxed);
    }

    /// Notes that `bytes` were copied to the store.
    pub fn note_copied(&self, bytes: u64) {
        self.copied.fetch_add(bytes, Relaxed);
    }

    /// Returns the number of batches that have landed since start.
    pub fn landed(&self) -> u64 {
        *self.settled.0.lock()
    }

    /// Notes that a batch has landed, and wakes the waiting threads.
    pub fn note_batch(&self) {
        *self.settled.0.lock() += 1;
        self.settled.1.notify_all();
    }

    /// Waits until a batch has landed, at most for `patience`.
    pub fn wait(&self, time: &Time, patience: Duration) {
        let settled = self.settled.0.lock();
        drop(time.wait(&self.settled.1, settled, patience));
    }

    /// Notes that a writer waits for room: the drain is not to wait for its next turn.
    pub fn urge(&self) {
        self.urgent.store(true, Relaxed);
    }

    pub(crate) fn is_urgent(&self) -> bool {
        self.urgent.load(Relaxed)
    }

    /// Whether a writer waits for room. The drain takes each urge once.
    pub fn take_urge(&self) -> bool {
        self.urgent.swap(false, Relaxed)
    }
}

pub(crate) fn shift(sum: &AtomicU64, from: u64, to: u64) {
    if to >= from {
        sum.fetch_add(to - from, Relaxed);
    } else {
        sum.fetch_sub(from - to, Relaxed);
    }
}

impl Default for Totals {
    fn default() -> Totals {
        Totals {
            used: AtomicU64::default(),
            dirty: AtomicU64::default(),
            doubted: AtomicU64::default(),
            copies: AtomicU64::default(),
            growth: AtomicU64::default(),
            writers: AtomicU64::default(),
            unseen: Mutex::new(Rank::Unseen, HashMap::new()),
            pace: Pace::default(),
            looks: LookPace::default(),
            limit: AtomicU64::default(),
            short: AtomicU64::default(),
        }
    }
}

impl Default for Landings {
    fn default() -> Landings {
        Landings {
            copied: AtomicU64::default(),
            looked: AtomicU64::default(),
            settled: (Mutex::new(Rank::Wake, 0), Condvar::new()),
            urgent: AtomicBool::default(),
        }
    }
}
