//! The state of one cached file, and every legal way for it to change.
//!
//! Pure: no I/O, clock or lock. The fields are private: [`FileState::apply`] changes them, and its caller records
//! the [`Change`] before. Each change is made durable in the index in the order that [`FileState::plan_write`]
//! and the docs below demand.
//!
//! Invariants:
//! - F1: no run reaches beyond `size` (of a tracked file).
//! - F2: a byte is `Clean` only if it equals the backing store's byte at `base`.
//! - F3: a byte beyond `base.size` and below `size` is present: it cannot be fetched.
//! - F4: `durable_size` is set if and only if a sync has made the file's dirty state durable, or
//!   bytes of it are `Kept`; it is no larger than `size`.
//! - F5: `dirty_since` is set if and only if the file is dirty.

use std::ops::{Deref, DerefMut};
use std::path::PathBuf;

use forebay_backing::{Attr, FileKey, Timestamp, Version};
use serde::{Deserialize, Serialize};

use crate::paths::Paths;
use crate::ranges::{Mark, Ranges, Run, State};

mod change;
mod portrait;
mod stored;

pub use change::{Age, Change, Loss, Settled, Stretches};
pub use portrait::Portrait;

/// In blocks of this size clean bytes are kept beside those that a sync makes durable. A database that writes a
/// page sooner or later writes its neighbors, and the first sync of each costs a record. After a loss of power
/// the kept bytes are flushed once more, for nothing.
const BESIDE: u64 = 256 << 10;

/// Mode and owner as last seen, to serve and to recreate the file without its backing store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
}

/// A size in bytes that may not be known, in one word, since there may be millions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Option<u64>", into = "Option<u64>")]
pub struct MaybeSize(u64);

impl MaybeSize {
    pub const NONE: MaybeSize = MaybeSize(u64::MAX);

    pub fn get(self) -> Option<u64> {
        Some(self.0).filter(|_| self != MaybeSize::NONE)
    }
}

impl From<Option<u64>> for MaybeSize {
    fn from(size: Option<u64>) -> MaybeSize {
        size.map_or(MaybeSize::NONE, MaybeSize)
    }
}

impl From<MaybeSize> for Option<u64> {
    fn from(size: MaybeSize) -> Option<u64> {
        size.get()
    }
}

/// The states of a file's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Bytes {
    /// Each byte is as its range says.
    Tracked(Ranges),
    /// A program writes past the daemon: all of the shadow may be newer than the ranges. They hold the state
    /// before, and what syncs have made durable since: only the part that outlasts a loss of power counts.
    Unseen(Box<Ranges>),
}

/// The reason why dirty bytes wait for a user's decision. Older versions wrote a flag here, false or true, which
/// are the first two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Conflict {
    #[default]
    None,
    /// The backing file changed while the tier held dirty bytes (S8).
    Changed,
    /// Dirty bytes were lost in the tier: the rest is not the file that was written (S4).
    Torn,
    /// Another member of the store took the file over while this one was away: it has newer bytes, or may have.
    Superseded,
    /// The file is another member's, and this member is about to take it over: it is not its own yet.
    Adopted,
    /// The tier has failed to sync bytes that were written past the daemon: its bytes since may be older.
    Unsynced,
}

impl Conflict {
    pub fn stands(self) -> bool {
        self != Conflict::None
    }

    /// Whether a program that opens the file by its name finds another file.
    pub fn is_aside(self) -> bool {
        matches!(self, Conflict::Superseded | Conflict::Adopted)
    }

    pub fn why(self) -> &'static str {
        match self {
            Conflict::None => "nothing",
            Conflict::Changed => "changed on the backing store while it was dirty here",
            Conflict::Torn => {
                "dirty bytes of it were lost in the tier: what is left is not all of it"
            }
            Conflict::Superseded => "another member took it over while it was dirty here",
            Conflict::Adopted => "it is being taken over from another member",
            Conflict::Unsynced => {
                "the fast tier failed to sync it: what it has may be older than what was written"
            }
        }
    }
}

/// The record that the index keeps of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub key: FileKey,
    pub state: FileState,
}

impl Deref for Record {
    type Target = FileState;

    fn deref(&self) -> &FileState {
        &self.state
    }
}

impl DerefMut for Record {
    fn deref_mut(&mut self) -> &mut FileState {
        &mut self.state
    }
}

/// The state of one cached file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileState {
    pub paths: Paths,
    owner: Owner,
    /// The size that programs see, in bytes, of a tracked file; else the shadow's size is the truth.
    size: u64,
    mtime: Timestamp,
    /// The version of the backing file that was seen last.
    base: Version,
    /// The mtime that the backing file is being given: it may have that one or the known version's.
    setting: Option<Timestamp>,
    bytes: Bytes,
    durable_size: MaybeSize,
    /// When the oldest dirty byte was written, in milliseconds since the epoch; 0 when clean.
    dirty_since: u64,
    /// Size or mtime differ from the backing store's.
    meta_dirty: bool,
    /// A flush has begun to change the backing file: its version proves nothing until it ends.
    flush_open: bool,
    /// The file must not be evicted.
    pinned: bool,
    /// The tier has failed to sync dirty bytes of the file.
    unsynced: bool,
    /// The file is not flushed until a user decides which version counts.
    conflict: Conflict,
    /// The file was another member's, which may still write to the backing file: flushed bytes stay, to be
    /// flushed again. The number of the claim that the file was taken over under, 0 if it is not on record.
    held: Option<u64>,
}

/// The records around a write of `[start, end)`.
///
/// Clean bytes must be recorded as dirty *before* they are overwritten, or a crash would leave
/// new bytes that count as equal to the backing store. Absent bytes must be recorded *after*, or
/// a crash would leave a hole that counts as data. Dirty bytes need nothing.
#[derive(Debug, PartialEq, Eq)]
pub struct WritePlan {
    /// The marks as they are to be recorded: kept bytes become durable at once.
    pub before: Vec<Mark>,
    pub after: Vec<Mark>,
}

/// The meaning of a restart for unsynced bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boot {
    /// The page cache lived on (same boot), or everything was synced at shutdown.
    Kept,
    /// Power was lost: only durable bytes are to be trusted.
    Lost,
}

/// The decision of recovery about one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Keep,
    /// Nothing of the file is worth keeping.
    Drop,
}

/// The result of recovery for one file, in dirty bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Survived {
    pub verdict: Verdict,
    /// Bytes that were never synced, and are lost with the kernel's memory.
    pub dropped: u64,
    /// Bytes that should be in the shadow, and are not.
    pub lost: u64,
}

impl FileState {
    /// The state of a file with no cached bytes.
    pub fn absent(paths: Paths, attr: &Attr) -> FileState {
        FileState {
            paths,
            owner: Owner::of(attr),
            size: attr.size,
            mtime: attr.mtime,
            base: attr.version(),
            setting: None,
            bytes: Bytes::Tracked(Ranges::None),
            durable_size: MaybeSize::NONE,
            dirty_since: 0,
            meta_dirty: false,
            flush_open: false,
            pinned: false,
            unsynced: false,
            conflict: Conflict::None,
            held: None,
        }
    }

    /// Whether flushed bytes of the file stay, to be flushed again.
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// The number of the claim that a held file was taken over under.
    pub fn held_under(&self) -> Option<u64> {
        self.held.filter(|claim| *claim > 0)
    }

    pub fn owner(&self) -> Owner {
        self.owner
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn mtime(&self) -> Timestamp {
        self.mtime
    }

    pub fn base(&self) -> Version {
        self.base
    }

    pub fn durable_size(&self) -> Option<u64> {
        self.durable_size.get()
    }

    pub fn dirty_since(&self) -> u64 {
        self.dirty_since
    }

    /// Whether the tier has failed to sync bytes of the file: a later sync of them proves nothing, and a page
    /// that could not be written may be read with old content. Lasts until none of its bytes is in the tier.
    pub fn is_unsynced(&self) -> bool {
        self.unsynced
    }

    pub fn is_pinned(&self) -> bool {
        self.pinned
    }

    /// Whether a flush has begun, and not ended.
    pub fn flush_is_open(&self) -> bool {
        self.flush_open
    }

    pub fn conflict(&self) -> Conflict {
        self.conflict
    }

    pub fn display_path(&self) -> PathBuf {
        self.paths.first().unwrap_or_else(|| PathBuf::from("(unlinked)"))
    }

    /// The ranges, if they describe the bytes: while no program writes past the daemon.
    pub fn tracked(&self) -> Option<&Ranges> {
        match &self.bytes {
            Bytes::Tracked(ranges) => Some(ranges),
            Bytes::Unseen(_) => None,
        }
    }

    /// Whether a program may write past the daemon: all of the shadow counts, as it is.
    pub fn is_unseen(&self) -> bool {
        self.tracked().is_none()
    }

    /// The recorded ranges, also while a program writes past the daemon.
    fn ranges(&self) -> &Ranges {
        match &self.bytes {
            Bytes::Tracked(ranges) => ranges,
            Bytes::Unseen(ranges) => ranges,
        }
    }

    fn ranges_mut(&mut self) -> &mut Ranges {
        match &mut self.bytes {
            Bytes::Tracked(ranges) => ranges,
            Bytes::Unseen(ranges) => ranges,
        }
    }

    /// Makes the ranges describe the bytes again.
    fn track(&mut self) {
        self.bytes = Bytes::Tracked(std::mem::replace(self.ranges_mut(), Ranges::None));
    }

    pub fn is_dirty(&self) -> bool {
        self.tracked().is_none_or(Ranges::any_dirty) || self.meta_dirty
    }

    /// Whether a time of the backing file is that of the known version, or one that the daemon was setting.
    pub fn is_own_time(&self, mtime: Timestamp) -> bool {
        mtime == self.base.mtime || self.setting == Some(mtime)
    }

    /// Whether anything is dirty apart from unseen writes.
    pub fn is_dirty_besides(&self) -> bool {
        self.meta_dirty || self.ranges().any_dirty()
    }

    pub fn is_complete(&self) -> bool {
        self.covers(0, self.size)
    }

    /// Whether more unseen writes would not add to the bytes that must be flushed.
    pub fn is_wholly_dirty(&self) -> bool {
        self.is_dirty() && self.tracked().is_none_or(|ranges| ranges.all_dirty(0, self.size))
    }

    /// Whether bytes of its shadow count.
    pub fn has_bytes(&self) -> bool {
        self.tracked().is_none_or(|ranges| ranges.count() > 0)
    }

    /// Whether all of `[start, end)` is in the tier.
    pub fn covers(&self, start: u64, end: u64) -> bool {
        self.tracked().is_none_or(|ranges| ranges.covers(start, end))
    }

    /// The first stretch of `[start, end)` that is absent.
    pub fn first_gap(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        self.tracked()?.first_gap(start, end)
    }

    /// All stretches of `[start, end)` that are absent.
    pub fn gaps(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        self.tracked().map_or(Vec::new(), |ranges| ranges.gaps(start, end))
    }

    /// The stretches of `[start, end)` that are present, `end` at most the size.
    pub fn present(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        match &self.bytes {
            Bytes::Tracked(ranges) => ranges.within(start, end).map(edges).collect(),
            Bytes::Unseen(_) if start < end => vec![(start, end)],
            Bytes::Unseen(_) => Vec::new(),
        }
    }

    /// The stretches of `[start, end)` that are present and equal to the backing store's.
    pub fn clean(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let Some(ranges) = self.tracked() else { return Vec::new() };
        ranges.within(start, end).filter(|run| !run.state.is_dirty()).map(edges).collect()
    }

    /// The dirty ranges in a shadow of `len` bytes, adjacent ones joined.
    pub fn dirty(&self, len: u64) -> Vec<(u64, u64)> {
        let Some(ranges) = self.tracked() else { return self.present(0, len) };
        let mut found: Vec<(u64, u64)> = Vec::with_capacity(ranges.count());
        for run in ranges.iter().filter(|run| run.state.is_dirty()) {
            match found.last_mut() {
                Some(last) if last.1 == run.start => last.1 = run.end,
                _ => found.push(edges(run)),
            }
        }
        found
    }

    /// The ranges of `[start, end)` that partners are to have: the dirty ones, and, of a held file, the flushed
    /// ones, since its former home may still write over them.
    pub fn owed_of(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let Some(ranges) = self.tracked() else { return self.present(start, end) };
        let is_owed =
            |run: &Run| run.state.is_dirty() || (self.is_held() && run.state == State::Kept);
        ranges.within(start, end).filter(is_owed).map(edges).collect()
    }

    /// Whether anything of `[start, end)` is dirty.
    pub fn is_dirty_within(&self, start: u64, end: u64) -> bool {
        let any = |ranges: &Ranges| ranges.within(start, end).any(|run| run.state.is_dirty());
        self.tracked().is_none_or(any)
    }

    /// Whether all of `ranges` is known to be durable, and newer than the backing store.
    pub fn are_durable(&self, ranges: &[(u64, u64)]) -> bool {
        // Where a program writes past the daemon, the shadow counts as it is, also where it was only kept.
        let is_durable = |state: State| match self.is_unseen() {
            true => state.outlasts_power(),
            false => state == State::Durable,
        };
        ranges.iter().all(|&(start, end)| {
            let mut within = self.ranges().within(start, end);
            within.all(|run| is_durable(run.state)) && self.ranges().covers(start, end)
        })
    }

    /// Whether after a loss of power all of the file, with its length, is as it is here or newer.
    pub fn outlasts_power(&self) -> bool {
        let whole = self.tracked().is_some_and(|ranges| {
            let mut within = ranges.within(0, self.size);
            within.all(|run| run.state.outlasts_power()) && ranges.covers(0, self.size)
        });
        whole && self.durable_size.get() == Some(self.size)
    }

    /// The number of present bytes of a tracked file.
    pub fn present_bytes(&self) -> u64 {
        self.tracked().map_or(0, |ranges| ranges.bytes(|_| true))
    }

    /// The number of dirty bytes, without unseen writes.
    pub fn dirty_bytes(&self) -> u64 {
        self.ranges().bytes(State::is_dirty)
    }

    /// The records that are needed around a write of `[start, end)`, end above start. A gap between the old end
    /// of the file and `start` becomes zeros that have to be flushed (F3), recorded with the absent part.
    pub fn plan_write(&self, start: u64, end: u64) -> WritePlan {
        let changed = |run: Run| match run.state {
            State::Clean => Some(Mark::of((run.start, run.end), State::Dirty)),
            State::Kept => Some(Mark::of((run.start, run.end), State::Durable)),
            State::Dirty | State::Durable => None,
        };
        let before = self.ranges().within(start, end).filter_map(changed).collect();
        let from = start.min(self.size);
        let dirty = |gap| Mark::of(gap, State::Dirty);
        WritePlan { before, after: self.ranges().gaps(from, end).into_iter().map(dirty).collect() }
    }

    /// The ranges a sync that begins now has to cover: dirty, and not known to be durable. If a program writes
    /// past the daemon that is everything below `len`, the shadow's size.
    pub fn unsynced(&self, len: u64) -> Vec<(u64, u64)> {
        let Some(ranges) = self.tracked() else { return self.present(0, len) };
        let mut left = ranges.bytes(|state| state == State::Dirty);
        let mut found = Vec::new();
        // Mostly there are no such runs among thousands of others.
        for run in ranges.iter() {
            if left == 0 {
                break;
            }
            if run.state == State::Dirty {
                left -= run.bytes();
                found.push(edges(run));
            }
        }
        found
    }

    /// The part of `synced` that is still dirty: a sync has nothing to say about bytes that were flushed
    /// meanwhile.
    pub fn still_dirty(&self, synced: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let Some(ranges) = self.tracked() else { return synced.to_vec() };
        let dirty = |&(start, end): &(u64, u64)| {
            let within = ranges.within(start, end).filter(|run| run.state.is_dirty());
            within.map(edges).collect::<Vec<_>>()
        };
        synced.iter().flat_map(dirty).collect()
    }

    /// Clean bytes in the blocks of [`BESIDE`] that `ranges` lie in.
    pub fn clean_beside(&self, ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        let mut done = 0;
        for &(start, end) in ranges {
            let start = (start - start % BESIDE).max(done);
            done = end.next_multiple_of(BESIDE).max(done);
            found.extend(self.in_state(State::Clean, start, done));
        }
        found
    }

    /// The stretches of `[start, end)` in one state.
    pub fn in_state(&self, state: State, start: u64, end: u64) -> Vec<(u64, u64)> {
        let Some(ranges) = self.tracked() else { return Vec::new() };
        ranges.within(start, end).filter(|run| run.state == state).map(edges).collect()
    }

    /// Whether bytes of the file are kept.
    pub fn keeps(&self) -> bool {
        self.ranges().bytes(|state| state == State::Kept) > 0
    }

    pub fn keeps_within(&self, start: u64, end: u64) -> bool {
        self.keeps() && self.ranges().within(start, end).any(|run| run.state == State::Kept)
    }

    /// Notes the time of the shadow, which is that of a file with dirty bytes; a record follows with the next
    /// change.
    pub fn note_mtime(&mut self, mtime: Timestamp) {
        self.mtime = mtime;
    }

    /// Takes the state of a shadow for the file's, whatever the record says.
    pub fn believe(&mut self, size: u64, mtime: Timestamp, ranges: Ranges) {
        (self.size, self.mtime, self.bytes) = (size, mtime, Bytes::Tracked(ranges));
    }

    /// Notes the number of names that the store reports; a record follows with the next change.
    pub fn note_links(&mut self, links: u32) {
        self.owner.nlink = links;
    }

    /// Whether the file may be dirty after a restart: after a loss of power kept bytes are dirty.
    pub fn may_be_dirty(&self, boot: Boot) -> bool {
        self.is_dirty() || self.dirty_bytes_after(boot) > 0
    }

    fn dirty_bytes_after(&self, boot: Boot) -> u64 {
        self.ranges().bytes(|s| s.is_dirty() || (boot == Boot::Lost && s == State::Kept))
    }

    /// The length that the shadow needs; `None` if no byte in it counts.
    pub fn needs_shadow(&self, boot: Boot) -> Option<u64> {
        let outlasts = || {
            let runs = self.ranges().within(0, self.durable_size.get().unwrap_or(0));
            runs.filter(|run| run.state.outlasts_power()).last().map(|run| run.end)
        };
        match boot {
            // Bytes written past the daemon are the shadow as it is; the synced ones must be there.
            Boot::Kept if self.is_unseen() => Some(outlasts().unwrap_or(0)),
            Boot::Kept => self.ranges().iter().last().map(|run| run.end),
            Boot::Lost => outlasts(),
        }
    }

    /// Decides what survives a restart. `shadow` is length and time of the shadow file as found, `None` if it is
    /// needed and missing.
    pub fn recover(
        &mut self,
        boot: Boot,
        shadow: Option<(u64, Timestamp)>,
        now_ms: u64,
    ) -> Survived {
        let was_unseen = self.is_unseen();
        let dropped = match boot {
            Boot::Kept => 0,
            Boot::Lost => self.drop_unsynced(now_ms),
        };
        let (len, mtime) = shadow.unwrap_or((0, self.mtime));
        if was_unseen && self.dirty_bytes() > 0 {
            self.mtime = mtime;
        }
        let (loss, lost) = self.loss_beyond(len);
        self.lose(len, loss);
        match &self.bytes {
            _ if shadow.is_none() => self.track(),
            Bytes::Unseen(_) => self.absorb(len, mtime, self.age_at(now_ms)),
            Bytes::Tracked(ranges) if boot == Boot::Kept && ranges.any_dirty() => {
                self.mtime = mtime;
            }
            Bytes::Tracked(_) => {}
        }
        self.come_clean();
        Survived { verdict: self.verdict(), dropped, lost }
    }

    /// Drops unsynced bytes after a loss of power. Returns the number of dirty bytes lost.
    fn drop_unsynced(&mut self, now_ms: u64) -> u64 {
        // Kept bytes may have been written and synced without another record.
        if self.keeps() {
            self.turn(0, u64::MAX, |state| (state == State::Kept).then_some(State::Durable));
            self.dirty_since = self.age_at(now_ms).since;
        }
        let before = self.dirty_bytes();
        self.track();
        let volatile: Vec<Run> =
            self.ranges().iter().filter(|run| run.state != State::Durable).collect();
        for run in volatile {
            self.ranges_mut().clear(run.start, run.end);
        }
        match self.durable_size.get() {
            Some(size) => {
                self.ranges_mut().clear(size, u64::MAX);
                self.size = size;
                self.meta_dirty = true;
            }
            None => {
                self.size = self.base.size;
                self.meta_dirty = false;
                *self.ranges_mut() = Ranges::None;
            }
        }
        before - self.dirty_bytes()
    }

    fn verdict(&self) -> Verdict {
        let worth = self.is_dirty() || self.has_bytes() || self.pinned || self.is_held();
        if worth && !self.paths.is_empty() { Verdict::Keep } else { Verdict::Drop }
    }
}

impl Owner {
    pub fn of(attr: &Attr) -> Owner {
        Owner { mode: attr.mode, uid: attr.uid, gid: attr.gid, nlink: attr.nlink }
    }
}

fn edges(run: Run) -> (u64, u64) {
    (run.start, run.end)
}
