//! What is known of a file only while it is in use.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

use forebay_backing::{Attr, BackingFile};

use crate::core::clock::{Gone, Look, Watch};
use crate::core::copied::{Rounds, Untold};
use crate::core::seal::Seal;
use crate::fetch::{Fetch, Said};
use crate::tier::digests::Table;
use crate::tier::media::MediaFile;
use crate::unseen::Unseen;

/// What exists only while a file is in use. All may read it; who changes it says what has happened.
#[derive(Default)]
pub struct Live(InUse);

impl Deref for Live {
    type Target = InUse;

    #[inline]
    fn deref(&self) -> &InUse {
        &self.0
    }
}

/// What others may read of it.
#[derive(Default)]
pub struct InUse {
    pub shadow: Option<Arc<dyn MediaFile>>,
    pub backing: Option<Arc<dyn BackingFile>>,
    /// The backing file open for writing, where writes go around the tier.
    pub target: Option<Arc<dyn BackingFile>>,
    /// The number of syncs of `target` that failed since somebody has the file open.
    pub(super) failed_syncs: u64,
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
    /// Who waits to change it around the tier, in the order of coming.
    waits_around: Vec<(u64, End)>,
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
    pub(super) gone_lately: Gone,
    /// When the last flush that landed had begun, if the size was the same at its end, and the
    /// backing file has nothing left of what was cut off here.
    pub landed: Option<Look>,
    /// The log's position after the last record about this file, if there was one since this is
    /// here. Later ones are of no concern to a sync of it.
    pub logged_seq: Option<u64>,
    /// The position after the last record of the file of any kind, likewise.
    pub(super) last_seq: u64,
    /// The last seal that its shadow got.
    pub seal: Option<Seal>,
    /// Up to where there may be memory beyond the end of the shadow; 0 if there is none.
    pub(super) reserved: u64,
    /// Where the last write ended, and the last one before a sync.
    pub(super) written_to: u64,
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
    pub(super) read_to: u64,
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
pub enum Readiness {
    #[default]
    Unknown,
    /// Somebody makes it so.
    Sought,
    Known,
}

/// Whether clean bytes may be evicted while the shadow is read, copied or synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meanwhile {
    /// Who is at it sees by the clock whether any went.
    Allowed,
    Refused,
}

/// Changes of a file around the tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Around {
    #[default]
    None,
    /// So many are in flight.
    UnderWay(u32),
    /// One for which the file's end counts is in flight.
    Alone,
    /// There were some: the backing file is another than we know.
    Over,
}

/// Whether a change around the tier goes by the file's end, or moves it: then none is made beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    IsNothing,
    Counts,
}

impl Around {
    /// Whether one is in flight.
    pub fn is_under_way(self) -> bool {
        matches!(self, Around::UnderWay(_) | Around::Alone)
    }

    /// Whether one that begins now has to wait.
    pub(crate) fn bars(self, end: End) -> bool {
        match end {
            End::IsNothing => self == Around::Alone,
            End::Counts => self.is_under_way(),
        }
    }

    pub(crate) fn begin(&mut self, end: End) {
        *self = match (end, *self) {
            (End::Counts, _) => Around::Alone,
            (End::IsNothing, Around::UnderWay(others)) => Around::UnderWay(others + 1),
            (End::IsNothing, _) => Around::UnderWay(1),
        };
    }

    pub(crate) fn end(&mut self) {
        *self = match *self {
            Around::UnderWay(more @ 2..) => Around::UnderWay(more - 1),
            _ => Around::Over,
        };
    }
}

impl InUse {
    pub(super) fn at_work(&mut self, evictions: Meanwhile) -> &mut u32 {
        match evictions {
            Meanwhile::Allowed => &mut self.io_that_looks,
            Meanwhile::Refused => &mut self.io,
        }
    }

    /// Whether anybody has it open.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.opens > 0
    }

    /// The rounds in which partners were told.
    pub fn rounds(&self) -> Rounds {
        self.copied.as_ref().map_or(Rounds::default(), |copied| copied.rounds)
    }

    /// What is worth remembering when nobody uses the file any more.
    pub(crate) fn remains(&self) -> Live {
        let InUse { checked, named, around, last_seq, seal, .. } = *self;
        Live(InUse { checked, named, around, last_seq, seal, ..InUse::default() })
    }

    /// Whether somebody waits to change it around the tier.
    pub fn is_waited_for(&self) -> bool {
        !self.waits_around.is_empty()
    }

    /// The number of who has waited longest.
    pub fn first_waiting(&self) -> Option<u64> {
        self.waits_around.first().map(|(number, _)| *number)
    }

    /// Whether who waits under this number may begin. Who needs the file alone is passed by nobody that came later, and passes
    /// nobody that came before: either kind could go on for ever, and the other would wait for as long.
    pub fn may_begin_around(&self, number: u64, end: End) -> bool {
        let mut before = self.waits_around.iter().take_while(|(other, _)| *other != number);
        let may_pass = |other: &End| (end, *other) == (End::IsNothing, End::IsNothing);
        !self.around.bars(end) && before.all(|(_, other)| may_pass(other))
    }

    /// Whether anything of the shadow is read, copied or synced.
    pub fn is_at_work(&self) -> bool {
        self.io + self.io_that_looks > 0 || self.flight.is_some()
    }
}

/// What happens to a file in use, as other rooms tell it.
impl Live {
    pub(super) fn mine(&mut self) -> &mut InUse {
        &mut self.0
    }

    /// Takes memory for `len` bytes behind `end`. Of a courtesy that fails nobody has to know.
    pub fn reserve(&mut self, end: u64, len: u64) {
        if let Some(shadow) = &self.0.shadow
            && shadow.reserve(end, len).is_ok()
        {
            self.0.reserved = end + len;
        }
    }

    /// The shadow is opened anew before it is used again.
    pub fn close_shadow(&mut self) {
        self.0.shadow = None;
    }

    /// The backing file, open for reading, for who needs it next.
    pub fn keep_backing(&mut self, backing: Arc<dyn BackingFile>) {
        self.0.backing.get_or_insert(backing);
    }

    /// A program reads past us.
    pub fn pin(&mut self) {
        self.0.pins += 1;
    }

    /// One program fewer reads past us.
    pub fn unpin(&mut self) {
        self.0.pins -= 1;
    }

    /// The first writer past us comes.
    pub fn begin_unseen(&mut self, unseen: Unseen) {
        self.0.unseen = Some(Box::new(unseen));
    }

    /// Who writes it past us, to be told more of.
    pub fn unseen_mut(&mut self) -> Option<&mut Unseen> {
        self.0.unseen.as_deref_mut()
    }

    /// The last one has gone.
    pub fn end_unseen(&mut self) -> Option<Box<Unseen>> {
        self.0.unseen.take()
    }

    /// Something was written to a shadow that may have been made for that.
    pub fn note_touched(&mut self) {
        self.0.blank = false;
    }

    /// The bytes here are of a version that the store has no longer.
    pub fn outdate(&mut self) {
        self.0.stale = true;
    }

    /// A copy home begins: what is written from now on stays dirty (S6).
    pub fn begin_flight(&mut self) {
        self.0.flight = Some(Watch::begin());
    }

    /// What the store says of it while the flight is on may be its doing.
    pub fn disown_answers(&mut self) {
        if let Some(flight) = &mut self.0.flight {
            flight.disown_answers();
        }
    }

    /// The copy home has ended.
    pub fn end_flight(&mut self) {
        self.0.flight = None;
    }

    /// A flush that had begun then has landed.
    pub fn note_landed(&mut self, began: Look) {
        self.0.landed = Some(began);
    }

    /// Somebody comes who is to change it around the tier, and waits for his turn under this number.
    pub fn wait_around(&mut self, end: End) -> u64 {
        let waits = &mut self.0.waits_around;
        let number = waits.last().map_or(0, |(last, _)| last + 1);
        waits.push((number, end));
        number
    }

    /// He waits no longer.
    pub fn end_wait_around(&mut self, number: u64) {
        self.0.waits_around.retain(|(other, _)| *other != number);
    }

    /// A change around the tier begins.
    pub fn begin_around(&mut self, end: End) {
        self.0.around.begin(end);
    }

    /// The backing file is another than we know.
    pub fn end_around(&mut self) {
        self.0.around.end();
        self.0.checked = None;
    }

    /// What went around is of no concern any more.
    pub fn forget_around(&mut self) {
        self.0.around = Around::None;
    }

    /// A range is fetched.
    pub fn begin_fill(&mut self, fetch: Fetch) {
        self.0.fills.push(fetch);
    }

    /// Whether the bytes of a fill are being put into the tier.
    pub fn note_landing(&mut self, said: &Arc<Said>, lands: bool) {
        let mine = |fetch: &&mut Fetch| Arc::ptr_eq(&fetch.said, said);
        if let Some(fetch) = self.0.fills.iter_mut().find(mine) {
            fetch.lands = lands;
        }
    }

    /// A range was fetched, or could not be.
    pub fn end_fill(&mut self, said: &Arc<Said>) {
        self.0.fills.retain(|fetch| !Arc::ptr_eq(&fetch.said, said));
    }

    /// What is known of its readers now.
    pub fn follow_stream(&mut self, stream: Stream) {
        self.0.stream = stream;
    }

    /// Whether a read goes on where the last one ended.
    pub fn read_on(&mut self, offset: u64, len: u64) -> bool {
        std::mem::replace(&mut self.0.read_to, offset + len) == offset
    }

    /// A write has ended there.
    pub fn note_written_to(&mut self, end: u64) {
        self.0.written_to = end;
    }

    /// It is synced, up to where the last write ended.
    pub fn note_syncing(&mut self, now: Instant) {
        self.0.synced_to = self.0.written_to;
        self.0.synced_at = Some(now);
    }

    /// A sync of the file waits for the log up to there, and not for records after it.
    pub fn needs_logged(&mut self, seq: Option<u64>) {
        self.0.logged_seq = seq;
    }

    /// What is flushed from then on is kept, unless some has been kept for longer.
    pub fn keep_from(&mut self, now: Instant) {
        self.0.keeps_since.get_or_insert(now);
    }

    /// The same, now that nothing is kept.
    pub fn keep_anew(&mut self, since: Option<Instant>) {
        self.0.keeps_since = since;
    }

    /// Its attributes were compared with the store's.
    pub fn note_checked(&mut self, now: Instant) {
        self.0.checked = Some(now);
    }

    /// `false`: somebody makes it ready already.
    pub fn begin_readying(&mut self) -> bool {
        std::mem::replace(&mut self.0.readiness, Readiness::Sought) != Readiness::Sought
    }

    /// Whoever was to make it ready has stopped.
    pub fn end_readying(&mut self) {
        if self.0.readiness == Readiness::Sought {
            self.0.readiness = Readiness::Unknown;
        }
    }

    /// All that is on record of it is durable.
    pub fn note_ready(&mut self) {
        self.0.readiness = Readiness::Known;
    }

    /// What the store said of it last, to be added to.
    pub fn seen_mut(&mut self) -> Option<&mut Seen> {
        self.0.seen.as_deref_mut()
    }

    /// Partners know of it, or are about to.
    pub fn begin_copies(&mut self, untold: Untold) {
        self.0.copied = Some(Box::new(untold));
    }

    /// What partners are told of it, to be added to.
    #[inline]
    pub fn copied_mut(&mut self) -> Option<&mut Untold> {
        self.0.copied.as_deref_mut()
    }

    /// They have forgotten it.
    pub fn end_copies(&mut self) {
        self.0.copied = None;
    }

    /// So many bytes were written that no round has.
    pub fn note_fresh(&mut self, bytes: u64) {
        self.0.fresh += bytes;
    }

    /// A round takes what is fresh.
    pub fn take_fresh(&mut self) {
        self.0.fresh = 0;
    }

    /// Whether partners are told of it ahead of any sync.
    pub fn go_ahead(&mut self, goes: bool) {
        self.0.goes_ahead = goes;
    }
}

/// A moment before the backing store was asked.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    pub at: Instant,
    pub look: Look,
}

impl Asked {
    /// Now, by a clock that says `at`.
    pub fn at(at: Instant) -> Asked {
        Asked { at, look: Look::now() }
    }
}

/// What the backing store said of a file.
pub struct Seen {
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
pub struct Stream {
    /// Where the next read of a sequential reader begins.
    pub next: u64,
    /// Bytes read in order so far.
    pub run: u64,
    /// How far ahead is worth fetching; 0 while reads are random.
    pub window: u64,
    /// Up to where fetches were already asked for.
    pub asked: u64,
}
