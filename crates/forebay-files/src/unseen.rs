//! A file that is written past us: by how many, and what is thought to be dirty of it.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use forebay_backing::Timestamp;

use crate::tier::media::MediaStat;

/// Who writes a file past our eyes, and what is known of it.
pub struct Unseen {
    writers: NonZeroU32,
    pub since: Instant,
    /// One of them may write on after we were told of its close: it may have left a mapping.
    pub outlives_close: bool,
    /// The shadow when they began, to see whether anything was written.
    pub from: Option<MediaStat>,
    /// Bytes in the shadow when it was last measured.
    pub(super) measured: Option<u64>,
    pub copied: Option<Copied>,
    /// It was complete and clean, or nearly: what was written is found by content.
    pub doubt: Option<Doubt>,
    /// The shadow's last change when it was last given set-user-id or set-group-id through us.
    pub(super) set_id_at: Option<Timestamp>,
}

/// What is thought to be dirty of a file that was, or is, written past us.
#[derive(Debug, Clone, Copy)]
pub struct Doubt {
    /// When the first writer came.
    pub dirty: u64,
    /// Bytes that its shadow took then.
    pub allocated: u64,
    /// Nothing moved its time: if nothing is different, nothing was written.
    pub unmoved: bool,
}

impl Doubt {
    /// The same now that its shadow takes so many bytes.
    pub fn dirty(&self, allocated: u64) -> u64 {
        self.dirty + allocated.saturating_sub(self.allocated)
    }
}

impl Unseen {
    /// Of the first writer, who comes now and found the shadow like this.
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

    /// What is thought to be dirty then, and which copy of it is known.
    pub fn of(self, doubt: Option<Doubt>, copied: Option<Copied>) -> Unseen {
        Unseen { doubt, copied, ..self }
    }

    /// Whether one of them may write on after its close, from now on.
    pub fn may_outlive_close(&mut self, may: bool) {
        self.outlives_close |= may;
    }

    /// All of it was found, or copied, as it is now: what comes from here on is for the next look.
    pub fn note_copied(&mut self, copied: Copied) {
        if let Some(doubt) = &mut self.doubt {
            (doubt.dirty, doubt.allocated, doubt.unmoved) = (0, copied.at.allocated, false);
        }
        self.copied = Some(copied);
    }

    /// Whether the shadow was not changed since they began, as far as its times tell.
    pub fn is_unmoved(&self, now: &MediaStat) -> bool {
        let at = |stat: &MediaStat| (stat.len, stat.mtime, stat.ctime);
        self.from.as_ref().is_some_and(|from| at(from) == at(now))
    }

    /// Whether a single one is left.
    pub fn is_last(&self) -> bool {
        self.writers == NonZeroU32::MIN
    }

    /// One writer more.
    pub fn join(&mut self) {
        self.writers = self.writers.saturating_add(1);
    }

    /// One writer fewer, of several.
    pub fn part(&mut self) {
        self.writers = NonZeroU32::new(self.writers.get() - 1).expect("it is not the last");
    }
}

/// Bytes that were compared with what the backing store holds, and copied, of late.
#[derive(Debug, Clone, Copy, Default)]
pub struct Looks {
    pub looked: u64,
    pub copied: u64,
    /// When the last one ended, and how long it took.
    pub last: Option<(Instant, Duration)>,
    /// For how long it was last written past us.
    pub written_for: Duration,
}

/// So much longer than a look lasts it is until the next.
const LOOK_PARTS: u32 = 10;

/// A look of less disturbs nobody, however often.
const LOOK_SHORT: Duration = Duration::from_millis(100);

impl Looks {
    /// Whether the last one is too short a time ago for one more that only its age asks for, while somebody
    /// writes it past us (R5). `rest` is what each file has.
    pub fn is_recent(&self, now: Instant, rest: Duration, max_age: Duration) -> bool {
        let rest = |took: Duration| (took * LOOK_PARTS).max(rest).min(max_age);
        self.last.is_some_and(|(ended, took)| now < ended + rest(took))
    }

    /// Whether it took too long, too short a time ago, for the file to be opened past us and compared again.
    /// Who has it open for as long as that, as a database does, has paid for the look.
    pub fn rests(&self, now: Instant) -> bool {
        let rests = |(ended, took)| {
            let rest = took * LOOK_PARTS;
            took >= LOOK_SHORT && self.written_for < rest && now < ended + rest
        };
        self.last.is_some_and(rests)
    }
}

/// A complete copy of a file that is written past us.
pub struct Copied {
    /// The shadow then.
    pub at: MediaStat,
    /// From then on equal times prove nothing any more: a write may have been under way, which moved them
    /// when it began; and a store into a mapping of a tier in memory moves none.
    pub doubted_from: Option<Instant>,
}
