//! The parcel: one file that is being flushed, and its outcome.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use forebay_backing::{BackingFile, Error, Timestamp, Version};

use crate::core::clock::Look;
use crate::core::portion::FLIGHT_BYTES;
use crate::core::report::Meter;
use crate::core::spans::sum;
use crate::files::digests::OpenTable;
use crate::files::file::File;
use crate::tier::media::{MediaFile, MediaStat};
use crate::time::Time;
use forebay_base::lock::{Condvar, Mutex, Rank};

/// The part of a file to flush.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Take {
    All,
    /// The dirty bytes within these ranges, which are in order.
    Runs(Vec<(u64, u64)>),
}

/// A file, and the part of it.
pub(crate) type Pick = (Arc<File>, Take);

/// One file that is being flushed.
pub(crate) struct Parcel {
    pub file: Arc<File>,
    pub shadow: Arc<dyn MediaFile>,
    pub captured: Vec<(u64, u64)>,
    /// The captured ranges that are not known to be holes.
    pub data: Vec<(u64, u64)>,
    /// The end of this flight: wanted bytes beyond it are left for the next.
    pub upto: u64,
    /// A stretch of the shadow without holes, as found: nothing is punched out of it during the flight.
    pub found: Mutex<(u64, u64)>,
    /// All dirty ranges, of which `captured` is a part: they are made durable as a whole (W4).
    pub dirty: Vec<(u64, u64)>,
    pub size: u64,
    pub mtime: Timestamp,
    pub base: Version,
    /// Whether an earlier flush did not end: the backing file's version proves nothing then.
    pub resumed: bool,
    /// The shadow file at the capture, if the file is written past the daemon.
    pub unseen: Option<MediaStat>,
    /// The file's clock at the capture.
    pub seen: Look,
    pub target: Mutex<Option<Arc<dyn BackingFile>>>,
    pub pieces: AtomicUsize,
    /// Why the copy was broken off.
    pub stop: Mutex<Option<Stop>>,
    pub phase: Mutex<Phase>,
    /// The changes that the flight has made there.
    pub made: Made,
    /// The digests of what the backing store holds: only blocks that differ are copied.
    pub digests: Option<OpenTable>,
    /// Bytes copied by a flight that has not ended.
    pub copied: AtomicU64,
    /// Counts the copied bytes for a caller that watches.
    pub meter: Option<Arc<Meter>>,
    /// The time of the capture, in milliseconds since the epoch.
    pub began_ms: u64,
}

/// The reason for which a flight is broken off.
#[derive(Debug)]
pub(crate) enum Stop {
    Failed(Error),
    /// Only others have changed the backing file: it held all bytes of the file before.
    IsHome,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

/// The changes that a copy may have made to the backing file so far.
#[derive(Default)]
pub(crate) struct Made {
    /// Whether there may be any.
    any: AtomicBool,
    /// The end of the copy's writes.
    reached: AtomicU64,
    /// Whether the copy may have set the file's size.
    sized: AtomicBool,
    /// Whether all bytes are there, and size and time were set.
    whole: AtomicBool,
}

impl Made {
    pub(crate) fn note_any(&self) {
        self.any.store(true, SeqCst);
    }

    pub(crate) fn is_any(&self) -> bool {
        self.any.load(SeqCst)
    }

    pub(crate) fn note_reached(&self, end: u64) {
        self.reached.fetch_max(end, SeqCst);
    }

    pub(crate) fn reached(&self) -> u64 {
        self.reached.load(SeqCst)
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

    /// Notes that the file was cut to its old size.
    pub(crate) fn note_given_back(&self) {
        self.reached.store(0, SeqCst);
        self.sized.store(false, SeqCst);
        self.whole.store(false, SeqCst);
    }
}

/// The phase says which thread ends a flight: the waiting caller once the copies have ended, the
/// last copy once the caller has given up. Only one of the two moves out of `Copying` succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Copying,
    Copied,
    Abandoned,
}

/// The outcome for one file of a batch.
pub(crate) enum Outcome {
    Flushed(Flown),
    /// No byte was dirty, or the dirty bytes are being flushed already.
    Nothing,
    /// Another flight is under way.
    Busy,
    /// The file was changed through the daemon in a way that voids the copy; no flight is under way now.
    Disturbed(Error),
    Failed(Error),
}

/// The result of a flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flown {
    pub bytes: u64,
    /// The end of the wanted bytes that the flight took.
    pub upto: u64,
    /// Whether the file was written past the daemon when the flight began.
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

    /// Waits until all are done, or `give_up` returns true.
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
    /// Like [`MediaFile::next_data`], of which each call may look at all pages up to the next hole.
    pub(crate) fn next_data(&self, at: u64) -> std::io::Result<Option<(u64, u64)>> {
        let (start, end) = *self.found.lock();
        if (start..end).contains(&at) {
            return Ok(Some((at, end)));
        }
        let next = self.shadow.next_data(at)?;
        *self.found.lock() = next.unwrap_or_default();
        Ok(next)
    }

    pub(crate) fn leave_copying(&self, to: Phase) -> bool {
        let mut phase = self.phase.lock();
        let leaves = *phase == Phase::Copying;
        if leaves {
            *phase = to;
        }
        leaves
    }

    pub(crate) fn is(&self, phase: Phase) -> bool {
        *self.phase.lock() == phase
    }

    /// Notes that a piece is copied, or the target opened; returns whether that was the last.
    pub(crate) fn end_piece(&self) -> bool {
        self.pieces.fetch_sub(1, SeqCst) == 1
    }

    /// Returns the number of bytes to copy, as far as known.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = sum(&self.data);
        match self.unseen {
            Some(stat) if bytes > FLIGHT_BYTES => bytes.min(stat.allocated),
            _ => bytes,
        }
    }

    /// Returns the number of bytes that the flight has copied to the backing store.
    pub(crate) fn moved(&self) -> u64 {
        match self.digests {
            Some(_) => self.copied.load(SeqCst),
            None => self.bytes(),
        }
    }

    pub(crate) fn flown(&self) -> Flown {
        Flown { bytes: self.moved(), upto: self.upto, unseen: self.unseen.is_some() }
    }

    /// Returns the size that the backing file is to have after this flight: the file's, unless
    /// dirty bytes are left for the next; then not beyond the copied bytes, which would be zeros.
    pub(crate) fn target_size(&self) -> u64 {
        match self.captured.last().map(|run| run.1) == self.dirty.last().map(|run| run.1) {
            true => self.size,
            false => {
                let copied = self.captured.last().map_or(0, |run| run.1);
                self.base.size.max(copied).min(self.size)
            }
        }
    }

    /// Whether the copy is blind: without digests a file that is written past the daemon is copied
    /// as a whole, again and again.
    pub(crate) fn is_blind(&self) -> bool {
        self.unseen.is_some() && self.digests.as_ref().is_none_or(|open| !open.counts())
    }

    /// Whether a copy that was broken off may have left the backing file with this size.
    pub(crate) fn may_have_left(&self, size: u64) -> bool {
        let (old, reached) = (self.base.size, self.made.reached());
        let told = self.made.sized.load(SeqCst) && size == self.target_size();
        self.resumed || told || (old..=old.max(reached)).contains(&size)
    }

    /// Breaks the copy off; the first reason counts.
    pub(crate) fn stop(&self, stop: impl Into<Stop>) {
        self.stop.lock().get_or_insert(stop.into());
    }

    /// Whether a copy of the file still counts.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.is(Phase::Abandoned) && !self.is_stopped()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.lock().is_some()
    }
}
