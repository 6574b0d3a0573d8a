//! What all files take together, and what of it has gone home.

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
    /// Of what is used and not thought to be dirty, what may be: it cannot be evicted.
    pub(super) doubted: AtomicU64,
    /// Of what is used, copies of other members' files.
    copies: AtomicU64,
    /// What dirty files will take of the backing store's room.
    pub(super) growth: AtomicU64,
    writers: AtomicU64,
    /// Files that grow unseen, to be measured from time to time.
    unseen: Mutex<HashMap<FileId, Arc<File>>>,
    pace: Pace,
    looks: LookPace,
    /// What the tier may hold; measured again from time to time.
    pub(super) limit: AtomicU64,
}

impl Totals {
    /// Bytes that are in the tier.
    #[inline]
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Of these, newer than the backing store, as far as is known.
    #[inline]
    pub fn dirty(&self) -> u64 {
        self.dirty.load(Relaxed)
    }

    /// Of those that are not thought to be dirty, what may be.
    pub fn doubted(&self) -> u64 {
        self.doubted.load(Relaxed)
    }

    /// Bytes that dirty files will take of the backing store's room.
    pub fn growth(&self) -> u64 {
        self.growth.load(Relaxed)
    }

    /// Bytes that the tier may hold.
    #[inline]
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Bytes that are kept for another member are now so many.
    pub fn charge_copy(&self, from: u64, to: u64) {
        shift(&self.used, from, to);
        shift(&self.copies, from, to);
    }

    /// Bytes that are kept for other members.
    pub fn copies(&self) -> u64 {
        self.copies.load(Relaxed)
    }

    /// Programs that write past us.
    pub fn writers(&self) -> u64 {
        self.writers.load(Relaxed)
    }

    /// One more program writes past us.
    pub fn begin_writer(&self) {
        self.writers.fetch_add(1, Relaxed);
    }

    /// One writes past us no more.
    pub fn end_writer(&self) {
        self.writers.fetch_sub(1, Relaxed);
    }

    /// How fast files are compared with what the store holds.
    pub fn looks(&self) -> &LookPace {
        &self.looks
    }

    /// How long a file that is written past us rests at least from one look to the next: all that are in doubt, looked at so
    /// often, take a tenth of the time (R5).
    pub fn look_rest(&self, clock: &Time, max_age: Duration) -> Duration {
        self.looks.time_for(clock, self.doubted()).clamp(max_age / 2, Self::rest_max(max_age))
    }

    /// So long at most, and no more is written past us than can be looked at so often: what is written right after a look
    /// is to be found in time to be home before it is `max_age` old.
    pub fn rest_max(max_age: Duration) -> Duration {
        max_age * 5 / 8
    }

    /// How fast files grow that are written past us.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    fn growing(&self) -> MutexGuard<'_, HashMap<FileId, Arc<File>>> {
        self.unseen.lock()
    }

    /// This one is to be measured from time to time.
    pub fn grows_unseen(&self, file: &Arc<File>) {
        self.growing().insert(file.id, file.clone());
    }

    /// This one need not be measured any more.
    pub fn is_seen(&self, file: &File) {
        self.growing().remove(&file.id);
    }

    /// Files that are to be measured from time to time.
    pub fn unseen(&self) -> Vec<Arc<File>> {
        self.growing().values().cloned().collect()
    }
}

/// What the drain has brought home: who waits for room sees by it whether waiting is of use.
pub struct Landings {
    /// Bytes copied since start, settled or not.
    copied: AtomicU64,
    /// And bytes that were compared with what the store holds.
    looked: AtomicU64,
    /// Batches that have landed; signaled after each.
    settled: (Mutex<u64>, Condvar),
    /// A writer waits for room.
    urgent: AtomicBool,
}

impl Landings {
    /// Bytes that were copied home since start, settled or not.
    pub fn copied(&self) -> u64 {
        self.copied.load(Relaxed)
    }

    /// What moves while the drain is at work: the sign of life for who waits.
    pub fn progress(&self) -> u64 {
        self.copied() + self.looked.load(Relaxed)
    }

    /// So many bytes were compared with what the store holds.
    pub fn note_looked(&self, bytes: u64) {
        self.looked.fetch_add(bytes, Relaxed);
    }

    /// So many bytes were copied home.
    pub fn note_copied(&self, bytes: u64) {
        self.copied.fetch_add(bytes, Relaxed);
    }

    /// Batches that have landed since start.
    pub fn landed(&self) -> u64 {
        *self.settled.0.lock()
    }

    /// A batch has landed: who waits looks again.
    pub fn note_batch(&self) {
        *self.settled.0.lock() += 1;
        self.settled.1.notify_all();
    }

    /// Waits until a batch has landed, but not for longer than that.
    pub fn wait(&self, time: &Time, patience: Duration) {
        let settled = self.settled.0.lock();
        drop(time.wait(&self.settled.1, settled, patience));
    }

    /// A writer waits for room: the drain is not to wait for its next turn.
    pub fn urge(&self) {
        self.urgent.store(true, Relaxed);
    }

    pub(crate) fn is_urgent(&self) -> bool {
        self.urgent.load(Relaxed)
    }

    /// Whether a writer waits for room. Each urge is taken once, by the drain.
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
