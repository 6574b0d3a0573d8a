//! Writes for other members beside programs here that have the file mapped.
//!
//! A page that a program has changed through a mapping comes from the kernel whole, with the bytes of before beside what was
//! changed. If it comes after a write for another member and was read before that, it takes that write back: so
//! who writes looks whether such a page came, and writes again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use forebay_backing::FileKey;
use forebay_engine::lock::{Mutex, MutexGuard, Rank};

/// The ranges that are being written for others.
pub struct Laundry {
    count: AtomicUsize,
    ranges: Mutex<Vec<Arc<Watched>>>,
}

impl Default for Laundry {
    fn default() -> Laundry {
        let ranges = Mutex::new(Rank::Laundry, Vec::new());
        Laundry { count: AtomicUsize::new(0), ranges }
    }
}

struct Watched {
    key: FileKey,
    start: u64,
    end: u64,
    is_covered: AtomicBool,
}

pub struct Watch<'a> {
    laundry: &'a Laundry,
    watched: Arc<Watched>,
}

impl Laundry {
    #[track_caller]
    fn ranges(&self) -> MutexGuard<'_, Vec<Arc<Watched>>> {
        self.ranges.lock()
    }

    pub fn watch(&self, key: FileKey, offset: u64, len: u64) -> Watch<'_> {
        let (start, end) = (offset, offset.saturating_add(len));
        let watched = Arc::new(Watched { key, start, end, is_covered: AtomicBool::new(false) });
        self.ranges().push(watched.clone());
        self.count.fetch_add(1, SeqCst);
        Watch { laundry: self, watched }
    }

    /// Pages of the kernel's were written, before that is answered.
    pub fn came(&self, key: FileKey, offset: u64, len: u64) {
        if self.count.load(SeqCst) == 0 {
            return;
        }
        let meets = |w: &&Arc<Watched>| w.key == key && offset < w.end && w.start < offset + len;
        self.ranges().iter().filter(meets).for_each(|w| w.is_covered.store(true, SeqCst));
    }
}

impl Watch<'_> {
    /// Whether a page came since this was asked last.
    pub fn is_covered(&self) -> bool {
        self.watched.is_covered.swap(false, SeqCst)
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.laundry.ranges().retain(|watched| !Arc::ptr_eq(watched, &self.watched));
        self.laundry.count.fetch_sub(1, SeqCst);
    }
}
