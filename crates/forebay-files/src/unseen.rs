//! A file that is written past the daemon: the number of its writers, and the estimate of its dirty bytes.
//!
//! R5 is a rule of docs/decisions/content.md.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use forebay_backing::Timestamp;

use crate::tier::media::MediaStat;

/// The writers of a file past the daemon, and the facts about their writes.
pub struct Unseen {
    writers: NonZeroU32,
    pub since: Instant,
    /// Whether a writer may go on after the report of its close: it may have left a mapping.
    pub outlives_close: bool,
    /// The shadow at the first writer's beginning, to see whether anything was written.
    pub from: Option<MediaStat>,
    /// Bytes in the shadow at the last measurement.
    pub(super) measured: Option<u64>,
    pub copied: Option<Copied>,
    /// Present if the file was complete and clean, or nearly: the written bytes are found by content.
    pub doubt: Option<Doubt>,
    /// The time of the shadow's last change when the daemon last set set-user-id or set-group-id.
    pub(super) set_id_at: Option<Timestamp>,
}

/// The estimate of dirty bytes of a file that was, or is, written past the daemon.
#[derive(Debug, Clone, Copy)]
pub struct Doubt {
    /// Dirty bytes when the first writer came.
    pub dirty: u64,
    /// Bytes that the shadow took then.
    pub allocated: u64,
    /// Whether nothing moved the file's time since it was the store's: if its content is the same, nothing was
    /// written.
    pub unmoved: bool,
}

impl Doubt {
    /// Returns the estimate now that the shadow takes `allocated` bytes.
    pub fn dirty(&self, allocated: u64) -> u64 {
        self.dirty + allocated.saturating_sub(self.allocated)
    }
}

impl Unseen {
    /// Begins with the first writer, which comes now and finds the shadow as `from`.
    pub fn begin(now: Instant, from: Option<MediaStat>) -> Unseen {
        let writers = NonZeroU32::MIN;
        Unseen {
            writers,
            since: now,
            outlives_close: false,
            from,
            measured: None,
            copied: None,
            doubt: None,
            set_id_at: None,
        }
    }

    /// Sets the estimate of dirty bytes, and the known copy.
    pub fn of(self, doubt: Option<Doubt>, copied: Option<Copied>) -> Unseen {
        Unseen { doubt, copied, ..self }
    }

    /// Notes whether a writer may go on after its close, from now on.
    pub fn may_outlive_close(&mut self, may: bool) {
        self.outlives_close |= may;
    }

    /// Notes a complete look or copy at this stat: later writes are left to the next look.
    pub fn note_copied(&mut self, copied: Copied) {
        if let Some(doubt) = &mut self.doubt {
            (doubt.dirty, doubt.allocated, doubt.unmoved) = (0, copied.at.allocated, false);
        }
        self.copied = Some(copied);
    }

    /// Whether the shadow has not changed since the first writer came, as far as its times tell.
    pub fn is_unmoved(&self, now: &MediaStat) -> bool {
        self.from.as_ref().is_some_and(|from| times(from) == times(now))
    }

    /// Whether the shadow has not changed since its last complete copy, as far as its times tell.
    pub fn is_as_copied(&self, now: &MediaStat) -> bool {
        self.copied.as_ref().is_some_and(|copied| times(&copied.at) == times(now))
    }

    /// Whether one writer is left.
    pub fn is_last(&self) -> bool {
        self.writers == NonZeroU32::MIN
    }

    /// Counts one writer more.
    pub fn join(&mut self) {
        self.writers = self.writers.saturating_add(1);
    }

    /// Counts one writer fewer, of several.
    pub fn part(&mut self) {
        self.writers = NonZeroU32::new(self.writers.get() - 1).expect("it is not the last");
    }
}

fn times(stat: &MediaStat) -> (u64, Timestamp, Timestamp) {
    (stat.len, stat.mtime, stat.ctime)
}

/// Bytes that were lately compared with the backing store's content, and copied.
#[derive(Debug, Clone, Copy, Default)]
pub struct Looks {
    pub looked: u64,
    pub copied: u64,
    /// When the last look ended, and how long it took.
    pub last: Option<(Instant, Duration)>,
    /// For how long the file was written past the daemon the last time.
    pub written_for: Duration,
}

/// The rest after a look, as a multiple of the look's duration.
const LOOK_PARTS: u32 = 10;

/// A shorter look disturbs nobody, however often it comes.
const LOOK_SHORT: Duration = Duration::from_millis(100);

impl Looks {
    /// Whether the last look is too recent for another one that only the age of the bytes asks for,
    /// while a program writes the file past the daemon (R5). `rest` is the rest of every file.
    pub fn is_recent(&self, now: Instant, rest: Duration, max_age: Duration) -> bool {
        let rest = |took: Duration| (took * LOOK_PARTS).max(rest).min(max_age);
        self.last.is_some_and(|(ended, took)| now < ended + rest(took))
    }

    /// Whether the last look took too long, too short a time ago, for the file to be opened past
    /// the daemon and compared again. A program that has it open for as long as the rest, as a
    /// database does, has paid for the look.
    pub fn rests(&self, now: Instant) -> bool {
        let rests = |(ended, took)| {
            let rest = took * LOOK_PARTS;
            took >= LOOK_SHORT && self.written_for < rest && now < ended + rest
        };
        self.last.is_some_and(rests)
    }
}

/// A complete copy of a file that is written past the daemon.
pub struct Copied {
    /// The shadow at the copy.
    pub at: MediaStat,
    /// From this moment on equal times prove nothing any more: a write may have been under way, which
    /// moves them at its beginning; and a store into a mapping on a tier in memory moves none.
    pub doubted_from: Option<Instant>,
}
