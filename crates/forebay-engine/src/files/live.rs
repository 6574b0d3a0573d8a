//! What is known of a file only while it is in use.

use std::sync::Arc;
use std::time::Instant;

use forebay_backing::{Attr, BackingFile};

use crate::core::clock::{Gone, Look, Watch};
use crate::core::copied::{Rounds, Untold};
use crate::core::seal::Seal;
use crate::files::fetch::Fetch;
use crate::files::unseen::Unseen;
use crate::tier::digests::Table;
use crate::tier::media::MediaFile;

/// What exists only while a file is in use.
#[derive(Default)]
pub(crate) struct Live {
    pub shadow: Option<Arc<dyn MediaFile>>,
    pub backing: Option<Arc<dyn BackingFile>>,
    /// The backing file open for writing, where writes go around the tier.
    pub target: Option<Arc<dyn BackingFile>>,
    /// What the backing store holds, once somebody has asked.
    pub digests: Option<Arc<Table>>,
    /// How often it is open.
    pub(super) opens: u32,
    /// Present while somebody writes past our eyes.
    pub unseen: Option<Box<Unseen>>,
    /// Programs that read past our eyes: the shadow must not be punched.
    pub pins: u32,
    /// I/O on the shadow in flight, a flush not counted.
    pub(super) io: u32,
    /// The same of those who see by the clock whether clean bytes went meanwhile.
    io_that_looks: u32,
    pub around: Around,
    /// Ranges being fetched.
    pub fills: Vec<Fetch>,
    /// What partners are told of it, and what not yet: from the first word until they have forgotten it.
    pub copied: Option<Box<Untold>>,
    /// Bytes written since a round of it began last, and whether it is told of ahead of any sync now.
    pub fresh: u64,
    pub goes_ahead: bool,
    /// The flush in progress (one at a time), and what was written since the copy began (S6).
    pub flight: Option<Watch>,
    /// What was lately thrown away of what was cached, or changed around the tier.
    pub gone_lately: Gone,
    /// When the last flush that landed had begun, if the size was the same at its end, and the
    /// backing file has nothing left of what was cut off here.
    pub landed: Option<Look>,
    /// The log's position after the last record about this file, if there was one since this is
    /// here. Later ones are of no concern to a sync of it.
    pub logged_seq: Option<u64>,
    /// The position after the last record of the file of any kind, likewise.
    pub last_seq: u64,
    /// The last seal that its shadow got.
    pub seal: Option<Seal>,
    /// Up to where there may be memory beyond the end of the shadow; 0 if there is none.
    pub reserved: u64,
    /// Where the last write ended, and the last one before a sync.
    pub written_to: u64,
    pub synced_to: u64,
    /// When it was synced last.
    pub synced_at: Option<Instant>,
    /// Since when what is flushed is kept.
    pub keeps_since: Option<Instant>,
    /// When the attributes were last compared with the backing store's.
    pub checked: Option<Instant>,
    /// What the backing store said of it last, while it is open.
    pub seen: Option<Box<Seen>>,
    pub stream: Stream,
    /// Where the last read ended.
    pub read_to: u64,
    /// The last name is gone; the file lives until its last handle is closed.
    pub unlinked: bool,
    /// The shadow's directory entry is known to be durable.
    pub named: bool,
    pub readiness: Readiness,
    /// The shadow was made for a writer past us, and nothing was ever written to it.
    pub blank: bool,
    /// The bytes are of a version that the backing store no longer has; they are dropped once
    /// nobody reads them past us.
    pub stale: bool,
}

/// Whether what was on record when all of a file was last found durable is durable, too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Readiness {
    #[default]
    Unknown,
    /// Somebody makes it so.
    Sought,
    Known,
}

/// Whether clean bytes may be evicted while the shadow is read, copied or synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meanwhile {
    /// Who is at it sees by the clock whether any went.
    Allowed,
    Refused,
}

/// Changes of a file around the tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Around {
    #[default]
    None,
    /// So many are in flight.
    UnderWay(u32),
    /// There were some: the backing file is another than we know.
    Over,
}

impl Around {
    pub fn is_under_way(self) -> bool {
        matches!(self, Around::UnderWay(_))
    }

    pub fn begin(&mut self) {
        let others = if let Around::UnderWay(others) = *self { others } else { 0 };
        *self = Around::UnderWay(others + 1);
    }

    pub fn end(&mut self) {
        *self = match *self {
            Around::UnderWay(more @ 2..) => Around::UnderWay(more - 1),
            _ => Around::Over,
        };
    }
}

impl Live {
    pub fn at_work(&mut self, evictions: Meanwhile) -> &mut u32 {
        match evictions {
            Meanwhile::Allowed => &mut self.io_that_looks,
            Meanwhile::Refused => &mut self.io,
        }
    }

    pub fn is_open(&self) -> bool {
        self.opens > 0
    }

    /// The rounds in which partners were told.
    pub fn rounds(&self) -> Rounds {
        self.copied.as_ref().map_or(Rounds::default(), |copied| copied.rounds)
    }

    /// What is worth remembering when nobody uses the file any more.
    pub fn remains(&self) -> Live {
        let Live { checked, named, around, last_seq, seal, .. } = *self;
        Live { checked, named, around, last_seq, seal, ..Live::default() }
    }

    /// Whether anything of the shadow is read, copied or synced.
    pub fn is_at_work(&self) -> bool {
        self.io + self.io_that_looks > 0 || self.flight.is_some()
    }
}

/// A moment before the backing store was asked.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    pub(crate) at: Instant,
    pub(crate) look: Look,
}

impl Asked {
    pub fn at(at: Instant) -> Asked {
        Asked { at, look: Look::now() }
    }
}

/// What the backing store said of a file.
pub(crate) struct Seen {
    pub asked: Asked,
    pub attr: Attr,
    /// When it was known to have no `security.capability`, after which the kernel asks at writes.
    pub no_capability: Option<Instant>,
    /// Made by this mount, and nobody else has been seen to change it since.
    pub made: bool,
    /// Somebody asks again already.
    pub asked_again: bool,
}

/// How sequential the readers of a file are.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Stream {
    /// Where the next read of a sequential reader begins.
    pub next: u64,
    /// Bytes read in order so far.
    pub run: u64,
    /// How far ahead is worth fetching; 0 while reads are random.
    pub window: u64,
    /// Up to where fetches were already asked for.
    pub asked: u64,
}
