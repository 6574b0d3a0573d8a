//! One file on its way, and what becomes of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use forebay_backing::{BackingFile, Error, Timestamp, Version};

use crate::core::clock::Look;
use crate::core::portion::FLIGHT_BYTES;
use crate::core::report::Meter;
use crate::files::digests::OpenTable;
use crate::files::file::File;
use crate::tier::media::{MediaFile, MediaStat};
use crate::time::Time;
use forebay_base::lock::{Condvar, Mutex, Rank};

/// What of a file to flush.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Take {
    All,
    /// These ranges, in order; what of them is dirty then.
    Runs(Vec<(u64, u64)>),
}

/// A file, and what of it.
pub(crate) type Pick = (Arc<File>, Take);

/// One file on its way.
pub(crate) struct Parcel {
    pub file: Arc<File>,
    pub shadow: Arc<dyn MediaFile>,
    pub captured: Vec<(u64, u64)>,
    /// What of it is not known to be a hole.
    pub data: Vec<(u64, u64)>,
    /// What was wanted beyond is left for the next.
    pub upto: u64,
    /// A stretch of the shadow without holes that was found: nobody takes any of that out while it flies.
    pub found: Mutex<(u64, u64)>,
    /// All that is dirty, of which `captured` is a part: made durable as a whole (W4).
    pub dirty: Vec<(u64, u64)>,
    pub size: u64,
    pub mtime: Timestamp,
    pub base: Version,
    /// An earlier flush did not end: the backing file's version proves nothing.
    pub resumed: bool,
    /// The shadow at the capture, of a file that is written past us.
    pub unseen: Option<MediaStat>,
    /// The file's clock at the capture.
    pub seen: Look,
    pub target: Mutex<Option<Arc<dyn BackingFile>>>,
    pub pieces: AtomicUsize,
    pub error: Mutex<Option<Error>>,
    pub phase: AtomicU8,
    /// The backing file may not be what it was.
    pub touched: AtomicBool,
    /// What is there of it then.
    pub made: Made,
    /// What the backing store holds: only what is different is copied.
    pub digests: Option<OpenTable>,
    /// Bytes copied of a flight that has not ended.
    pub copied: AtomicU64,
    /// Counts the copied bytes for who watches.
    pub meter: Option<Arc<Meter>>,
    /// When it was captured, in milliseconds since the epoch.
    pub began_ms: u64,
}

/// What the copy has made of the backing file so far.
#[derive(Default)]
pub(crate) struct Made {
    /// It wrote nothing beyond.
    reached: AtomicU64,
    /// It may have given it its size.
    sized: AtomicBool,
    /// All is there, and its size and time were told.
    whole: AtomicBool,
}

impl Made {
    pub(crate) fn note_reached(&self, end: u64) {
        self.reached.fetch_max(end, SeqCst);
    }

    pub(crate) fn note_sized(&self) {
        self.sized.store(true, SeqCst);
    }

    pub(crate) fn note_whole(&self) {
        self.whole.store(true, SeqCst);
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.whole.load(SeqCst)
    }

    /// It was cut to what it was.
    pub(crate) fn note_given_back(&self) {
        self.reached.store(0, SeqCst);
        self.sized.store(false, SeqCst);
        self.whole.store(false, SeqCst);
    }
}

/// Whose the end of a flight is: the waiter's once the copies have ended, the last copy's once
/// the waiter has given up. Only one of the two moves out of `COPYING` succeeds.
pub(crate) const COPYING: u8 = 0;

pub(crate) const COPIED: u8 = 1;

pub(crate) const ABANDONED: u8 = 2;

/// What became of one file of a batch.
pub(crate) enum Outcome {
    Flushed(Flown),
    /// Nothing was dirty, or what was is on its way already.
    Nothing,
    /// Another flight is on.
    Busy,
    /// The file was changed through us in a way that makes the copy worth nothing; none is on now.
    Disturbed(Error),
    Failed(Error),
}

/// What a flight has brought home.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flown {
    pub bytes: u64,
    /// What was wanted up to there.
    pub upto: u64,
    /// It was written past us when the flight began.
    pub unseen: bool,
}

/// Counts parcels down.
pub(crate) struct Latch {
    left: Mutex<usize>,
    zero: Condvar,
}

impl Latch {
    pub(crate) fn new(count: usize) -> Latch {
        Latch { left: Mutex::new(Rank::Batch, count), zero: Condvar::new() }
    }

    pub(crate) fn count_down(&self) {
        let mut left = self.left.lock();
        *left -= 1;
        if *left == 0 {
            self.zero.notify_all();
        }
    }

    /// Waits until all are done, or `give_up` says so.
    pub(crate) fn wait(&self, time: &Time, give_up: impl Fn() -> bool) -> bool {
        let mut left = self.left.lock();
        while *left > 0 {
            left = time.wait(&self.zero, left, Duration::from_millis(50)).0;
            if *left > 0 && give_up() {
                return false;
            }
        }
        true
    }
}

impl Parcel {
    /// As [`MediaFile::next_data`], of which each call may look at all pages up to the next hole.
    pub(crate) fn next_data(&self, at: u64) -> std::io::Result<Option<(u64, u64)>> {
        let (start, end) = *self.found.lock();
        if (start..end).contains(&at) {
            return Ok(Some((at, end)));
        }
        let next = self.shadow.next_data(at)?;
        *self.found.lock() = next.unwrap_or_default();
        Ok(next)
    }

    pub(crate) fn leave_copying(&self, to: u8) -> bool {
        self.phase.compare_exchange(COPYING, to, SeqCst, SeqCst).is_ok()
    }

    pub(crate) fn is(&self, phase: u8) -> bool {
        self.phase.load(SeqCst) == phase
    }

    /// One piece is copied, or the target opened; returns whether it was the last.
    pub(crate) fn end_piece(&self) -> bool {
        self.pieces.fetch_sub(1, SeqCst) == 1
    }

    /// What there is to copy, as far as is known.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = sum(&self.data);
        match self.unseen {
            Some(stat) if bytes > FLIGHT_BYTES => bytes.min(stat.allocated),
            _ => bytes,
        }
    }

    /// What it has brought to the backing store.
    pub(crate) fn moved(&self) -> u64 {
        match self.digests {
            Some(_) => self.copied.load(SeqCst),
            None => self.bytes(),
        }
    }

    pub(crate) fn flown(&self) -> Flown {
        Flown { bytes: self.moved(), upto: self.upto, unseen: self.unseen.is_some() }
    }

    /// The size the backing file is to have after this flight: the file's, unless dirty bytes are
    /// left for the next; then nothing beyond what was copied, which would be zeros.
    pub(crate) fn target_size(&self) -> u64 {
        match self.captured.last().map(|run| run.1) == self.dirty.last().map(|run| run.1) {
            true => self.size,
            false => {
                let copied = self.captured.last().map_or(0, |run| run.1);
                self.base.size.max(copied).min(self.size)
            }
        }
    }

    /// Without digests what is written past us is copied as a whole, again and again.
    pub(crate) fn is_blind(&self) -> bool {
        self.unseen.is_some() && self.digests.as_ref().is_none_or(|open| !open.counts())
    }

    /// Whether a copy that was broken off may have left a backing file of this size.
    pub(crate) fn may_have_left(&self, size: u64) -> bool {
        let (old, reached) = (self.base.size, self.made.reached.load(SeqCst));
        let told = self.made.sized.load(SeqCst) && size == self.target_size();
        self.resumed || told || (old..=old.max(reached)).contains(&size)
    }

    pub(crate) fn fail(&self, error: Error) {
        self.error.lock().get_or_insert(error);
    }

    /// Whether what is copied of it still counts.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.is(ABANDONED) && !self.has_failed()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.error.lock().is_some()
    }
}

/// Joins neighbors, whatever their durability.
fn merge(runs: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let mut merged: Vec<(u64, u64)> = Vec::with_capacity(runs.len());
    for (start, end) in runs {
        match merged.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => merged.push((start, end)),
        }
    }
    merged
}

pub(crate) fn sum(runs: &[(u64, u64)]) -> u64 {
    runs.iter().map(|(start, end)| end - start).sum()
}

/// What is in both.
pub(crate) fn common(runs: &[(u64, u64)], wanted: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut from = 0;
    for &(start, end) in wanted {
        from += runs[from..].partition_point(|run| run.1 <= start);
        let within = runs[from..].iter().take_while(|run| run.0 < end);
        found.extend(within.map(|run| (run.0.max(start), run.1.min(end))));
    }
    merge(found)
}
