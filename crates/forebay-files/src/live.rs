//! The parts of a file that exist only while it is in use.

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

/// The run-time part of a file. All rooms may read it; they change it by noting events.
#[derive(Default)]
pub struct Live(InUse);

impl Deref for Live {
    type Target = InUse;

    #[inline]
    fn deref(&self) -> &InUse {
        &self.0
    }
}

/// The fields, which other rooms may read.
#[derive(Default)]
pub struct InUse {
    pub shadow: Option<Arc<dyn MediaFile>>,
    pub backing: Option<Arc<dyn BackingFile>>,
    /// The backing file open for writing, where writes go around the tier.
    pub target: Option<Arc<dyn BackingFile>>,
    /// The number of syncs of `target` that failed since the file was opened.
    pub(super) failed_syncs: u64,
    /// The digests of what the backing store holds, once they were asked for.
    pub digests: Option<Arc<Table>>,
    /// The number of open handles.
    pub(super) opens: u32,
    /// Present while a program writes past the daemon.
    pub unseen: Option<Box<Unseen>>,
    /// The number of programs that read past the daemon: the shadow must not be punched.
    pub pins: u32,
    /// I/O operations on the shadow in flight, except a flush.
    pub(super) io: u32,
    /// Such operations that see by the clock whether clean bytes went meanwhile; they do not count in `io`.
    io_that_looks: u32,
    pub around: Around,
    /// The waiting changes around the tier, in the order of arrival.
    waits_around: Vec<(u64, End)>,
    /// Ranges being fetched.
    pub fills: Vec<Fetch>,
    /// The changes that partners were told of, and those not yet: from the first message until they
    /// have forgotten the file.
    pub copied: Option<Box<Untold>>,
    /// Bytes written since the last round began.
    pub fresh: u64,
    /// Whether partners get the file's bytes now, ahead of any sync.
    pub goes_ahead: bool,
    /// The flush in progress (one at a time), and the ranges written since its copy began (S6).
    pub flight: Option<Watch>,
    /// The backing file that the flush writes.
    flown: Option<Arc<dyn BackingFile>>,
    /// The cached ranges that were lately thrown away, or changed around the tier.
    pub(super) gone_lately: Gone,
    /// When the last landed flush had begun, if the size was the same at its end, and the backing
    /// file had no bytes left that were cut off here.
    pub landed: Option<Look>,
    /// The log's position after the last record about this file since this part exists. A sync of
    /// the file need not wait for later records.
    pub logged_seq: Option<u64>,
    /// The position after the last record of any kind about the file, likewise.
    pub(super) last_seq: u64,
    /// The last seal of the shadow.
    pub seal: Option<Seal>,
    /// The end of memory reserved beyond the end of the shadow; 0 if none is.
    pub(super) reserved: u64,
    /// The end of the last write.
    pub(super) written_to: u64,
    /// The end of the last write before the last sync.
    pub synced_to: u64,
    /// The time of the last sync.
    pub synced_at: Option<Instant>,
    /// The time since when flushed bytes are kept.
    pub keeps_since: Option<Instant>,
    /// When the attributes were last compared with the backing store's.
    pub checked: Option<Instant>,
    /// The backing store's last answer about the file, while it is open.
    pub seen: Option<Box<Seen>>,
    pub stream: Stream,
    /// The end of the last read.
    pub(super) read_to: u64,
    /// The last name is gone; the file lives until its last handle is closed.
    pub unlinked: bool,
    /// Whether the shadow's directory entry is known to be durable.
    pub named: bool,
    pub readiness: Readiness,
    /// Whether the shadow was made for a writer past the daemon, and never written.
    pub blank: bool,
    /// Whether a writer past the daemon may have mapped the shadow.
    pub(super) maps: bool,
    /// Whether the bytes are of a version that the backing store no longer has; they are dropped
    /// once no program reads them past the daemon.
    pub stale: bool,
}

/// Whether the records of a file are known to be durable, as of when all of it was last found durable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Readiness {
    #[default]
    Unknown,
    /// A thread makes the file ready.
    Sought,
    Known,
}

/// Whether clean bytes may be evicted while the shadow is read, copied or synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meanwhile {
    /// The operation sees by the clock whether any bytes went.
    Allowed,
    Refused,
}

/// The state of changes of a file around the tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Around {
    #[default]
    None,
    /// The number of changes in flight.
    UnderWay(u32),
    /// A change in flight that depends on the file's end.
    Alone,
    /// Changes have ended: the backing file differs from the known one.
    Over,
}

/// Whether a change around the tier depends on the file's end, or moves it: then it is made alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    IsNothing,
    Counts,
}

impl Around {
    /// Whether a change is in flight.
    pub fn is_under_way(self) -> bool {
        matches!(self, Around::UnderWay(_) | Around::Alone)
    }

    /// Whether a change that begins now has to wait.
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

    /// Whether the file is open.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.opens > 0
    }

    /// Returns the rounds in which partners were told.
    pub fn rounds(&self) -> Rounds {
        self.copied.as_ref().map_or(Rounds::default(), |copied| copied.rounds)
    }

    /// Returns the parts to keep after the file's last use.
    pub(crate) fn remains(&self) -> Live {
        let InUse { checked, named, around, last_seq, seal, .. } = *self;
        Live(InUse { checked, named, around, last_seq, seal, ..InUse::default() })
    }

    /// Whether a change around the tier waits.
    pub fn is_waited_for(&self) -> bool {
        !self.waits_around.is_empty()
    }

    /// Returns the number of the change that has waited longest.
    pub fn first_waiting(&self) -> Option<u64> {
        self.waits_around.first().map(|(number, _)| *number)
    }

    /// Whether the change that waits under `number` may begin. A change that has to be made alone
    /// neither overtakes an earlier change nor is overtaken by a later one: changes of one kind
    /// could come without end, and one of the other kind would wait for ever.
    pub fn may_begin_around(&self, number: u64, end: End) -> bool {
        let mut before = self.waits_around.iter().take_while(|(other, _)| *other != number);
        let may_pass = |other: &End| (end, *other) == (End::IsNothing, End::IsNothing);
        !self.around.bars(end) && before.all(|(_, other)| may_pass(other))
    }

    /// Returns the backing file if it is open, however.
    pub fn held(&self) -> Option<&Arc<dyn BackingFile>> {
        self.target.as_ref().or(self.flown.as_ref()).or(self.backing.as_ref())
    }

    /// Whether the shadow is being read, copied or synced.
    pub fn is_at_work(&self) -> bool {
        self.io + self.io_that_looks > 0 || self.flight.is_some()
    }
}

/// Events of a file in use, as other rooms report them.
impl Live {
    pub(super) fn mine(&mut self) -> &mut InUse {
        &mut self.0
    }

    /// Reserves memory for `len` bytes behind `end`. A failure does not matter.
    pub fn reserve(&mut self, end: u64, len: u64) {
        if let Some(shadow) = &self.0.shadow
            && shadow.reserve(end, len).is_ok()
        {
            self.0.reserved = end + len;
        }
    }

    /// Gives a new file its shadow, unless another thread has made one.
    pub(crate) fn give_blank(&mut self, shadow: Arc<dyn MediaFile>) {
        if self.0.shadow.is_none() {
            self.0.shadow = Some(shadow);
            self.0.blank = true;
        }
    }

    /// Makes the next use open the shadow anew.
    pub fn close_shadow(&mut self) {
        self.0.shadow = None;
    }

    /// Keeps the backing file, open for reading, for the next use.
    pub fn keep_backing(&mut self, backing: Arc<dyn BackingFile>) {
        self.0.backing.get_or_insert(backing);
    }

    /// Notes one more program that reads past the daemon.
    pub fn pin(&mut self) {
        self.0.pins += 1;
    }

    /// Notes one fewer.
    pub fn unpin(&mut self) {
        self.0.pins -= 1;
    }

    /// Notes that a writer past the daemon can map the shadow.
    pub fn note_maps(&mut self) {
        self.0.maps = true;
    }

    /// Notes the first writer past the daemon.
    pub fn begin_unseen(&mut self, unseen: Unseen) {
        self.0.unseen = Some(Box::new(unseen));
    }

    /// Returns the writers past the daemon, for changes.
    pub fn unseen_mut(&mut self) -> Option<&mut Unseen> {
        self.0.unseen.as_deref_mut()
    }

    /// Notes that the last writer has gone.
    pub fn end_unseen(&mut self) -> Option<Box<Unseen>> {
        self.0.unseen.take()
    }

    /// Notes that a shadow was written, which may have been made for a writer past the daemon.
    pub fn note_touched(&mut self) {
        self.0.blank = false;
    }

    /// Notes that the bytes here are of a version that the store no longer has.
    pub fn outdate(&mut self) {
        self.0.stale = true;
    }

    /// Begins a flight: bytes that are written from now on stay dirty (S6).
    pub fn begin_flight(&mut self) {
        self.0.flight = Some(Watch::begin());
    }

    /// Notes the backing file that the flight writes.
    pub fn note_flown(&mut self, target: Arc<dyn BackingFile>) {
        self.0.flown = Some(target);
    }

    /// Notes that answers of the store during the flight may be due to the flight.
    pub fn disown_answers(&mut self) {
        if let Some(flight) = &mut self.0.flight {
            flight.disown_answers();
        }
    }

    /// Ends the flight.
    pub fn end_flight(&mut self) {
        (self.0.flight, self.0.flown) = (None, None);
    }

    /// Notes that the flush which had begun at `began` has landed.
    pub fn note_landed(&mut self, began: Look) {
        self.0.landed = Some(began);
    }

    /// Adds a change around the tier to the waiting ones, and returns its number.
    pub fn wait_around(&mut self, end: End) -> u64 {
        let waits = &mut self.0.waits_around;
        let number = waits.last().map_or(0, |(last, _)| last + 1);
        waits.push((number, end));
        number
    }

    /// Ends the wait under this number.
    pub fn end_wait_around(&mut self, number: u64) {
        self.0.waits_around.retain(|(other, _)| *other != number);
    }

    /// Begins a change around the tier.
    pub fn begin_around(&mut self, end: End) {
        self.0.around.begin(end);
    }

    /// Ends a change around the tier: the backing file differs from the known one.
    pub fn end_around(&mut self) {
        self.0.around.end();
        self.0.checked = None;
    }

    /// Forgets the changes around the tier, which do not matter any more.
    pub fn forget_around(&mut self) {
        self.0.around = Around::None;
    }

    /// Begins the fetch of a range.
    pub fn begin_fill(&mut self, fetch: Fetch) {
        self.0.fills.push(fetch);
    }

    /// Notes whether the bytes of a fill are being put into the tier.
    pub fn note_landing(&mut self, said: &Arc<Said>, lands: bool) {
        let mine = |fetch: &&mut Fetch| Arc::ptr_eq(&fetch.said, said);
        if let Some(fetch) = self.0.fills.iter_mut().find(mine) {
            fetch.lands = lands;
        }
    }

    /// Ends the fetch of a range, successful or not.
    pub fn end_fill(&mut self, said: &Arc<Said>) {
        self.0.fills.retain(|fetch| !Arc::ptr_eq(&fetch.said, said));
    }

    /// Sets the state of the file's stream of reads.
    pub fn follow_stream(&mut self, stream: Stream) {
        self.0.stream = stream;
    }

    /// Notes a read, and returns whether it begins where the last one ended.
    pub fn read_on(&mut self, offset: u64, len: u64) -> bool {
        std::mem::replace(&mut self.0.read_to, offset + len) == offset
    }

    /// Notes the end of a write.
    pub fn note_written_to(&mut self, end: u64) {
        self.0.written_to = end;
    }

    /// Notes a sync, which covers the bytes up to the end of the last write.
    pub fn note_syncing(&mut self, now: Instant) {
        self.0.synced_to = self.0.written_to;
        self.0.synced_at = Some(now);
    }

    /// Makes syncs of the file wait for the log up to `seq`, and not for later records.
    pub fn needs_logged(&mut self, seq: Option<u64>) {
        self.0.logged_seq = seq;
    }

    /// Keeps bytes that are flushed from `now` on, unless some were kept before.
    pub fn keep_from(&mut self, now: Instant) {
        self.0.keeps_since.get_or_insert(now);
    }

    /// Notes since when flushed bytes are kept, now that none are.
    pub fn keep_anew(&mut self, since: Option<Instant>) {
        self.0.keeps_since = since;
    }

    /// Notes that the attributes were compared with the store's.
    pub fn note_checked(&mut self, now: Instant) {
        self.0.checked = Some(now);
    }

    /// Begins to make the file ready; `false` if another thread does so already.
    pub fn begin_readying(&mut self) -> bool {
        std::mem::replace(&mut self.0.readiness, Readiness::Sought) != Readiness::Sought
    }

    /// Ends the attempt to make the file ready.
    pub fn end_readying(&mut self) {
        if self.0.readiness == Readiness::Sought {
            self.0.readiness = Readiness::Unknown;
        }
    }

    /// Notes that all records of the file are durable.
    pub fn note_ready(&mut self) {
        self.0.readiness = Readiness::Known;
    }

    /// Returns the store's last answer, for additions.
    pub fn seen_mut(&mut self) -> Option<&mut Seen> {
        self.0.seen.as_deref_mut()
    }

    /// Notes that partners know the file, or are about to.
    pub fn begin_copies(&mut self, untold: Untold) {
        self.0.copied = Some(Box::new(untold));
    }

    /// Returns the changes that partners are told of, for additions.
    #[inline]
    pub fn copied_mut(&mut self) -> Option<&mut Untold> {
        self.0.copied.as_deref_mut()
    }

    /// Notes that partners have forgotten the file.
    pub fn end_copies(&mut self) {
        self.0.copied = None;
    }

    /// Notes written bytes that no round has.
    pub fn note_fresh(&mut self, bytes: u64) {
        self.0.fresh += bytes;
    }

    /// Notes that a round takes the fresh bytes.
    pub fn take_fresh(&mut self) {
        self.0.fresh = 0;
    }

    /// Sets whether the file goes to partners ahead of any sync.
    pub fn go_ahead(&mut self, goes: bool) {
        self.0.goes_ahead = goes;
    }
}

/// A moment just before the backing store was asked.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    pub at: Instant,
    pub look: Look,
}

impl Asked {
    /// Now, on a clock that shows `at`.
    pub fn at(at: Instant) -> Asked {
        Asked { at, look: Look::now() }
    }
}

/// The backing store's answer about a file.
pub struct Seen {
    pub asked: Asked,
    pub attr: Attr,
    /// When the file was known to have no `security.capability`, which the kernel reads at writes.
    pub no_capability: Option<Instant>,
    /// Whether this mount made the file, and no change by others has been seen since.
    pub made: bool,
    /// Whether the store is being asked again.
    pub asked_again: bool,
}

/// How sequential the readers of a file are.
#[derive(Debug, Default, Clone, Copy)]
pub struct Stream {
    /// The expected offset of the next sequential read.
    pub next: u64,
    /// Bytes read in order so far.
    pub run: u64,
    /// How far ahead to fetch; 0 while reads are random.
    pub window: u64,
    /// The end of the fetches that were requested.
    pub asked: u64,
}
