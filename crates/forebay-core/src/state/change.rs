//! Every change of a file's state, as the log holds it, and the one function that applies it: while the file
//! is used, and when the log is replayed.
//!
//! A stretch of the log may be replayed over a state that is later than its beginning (a compaction does not
//! stop the world). All changes of a stretch, applied to any state in between, end in the same state as at
//! first (C1).

use std::borrow::Cow;

use forebay_backing::{Timestamp, Version};
use serde::{Deserialize, Serialize};

use super::{Bytes, Conflict, FileState, MaybeSize, Owner};
use crate::ranges::{Mark, Ranges, Run, State};

/// Ranges, borrowed from the maker of the change.
pub type Stretches<'a> = Cow<'a, [(u64, u64)]>;

/// A change of a file's state. New kinds come last: the log holds their numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change<'a> {
    /// Ranges get these states. `age` counts if they are dirty.
    Marked {
        marks: Cow<'a, [Mark]>,
        age: Age,
    },
    /// Bytes beyond a smaller size are gone; bytes up to a larger one are zeros that have to be flushed
    /// (F3).
    Resized {
        size: u64,
        mtime: Timestamp,
        age: Age,
    },
    /// A sync that began when the size was `size` has made `ranges` durable. Bytes written to them meanwhile
    /// are newer than the durable ones, which is all that [`State::Durable`] says.
    Synced {
        size: u64,
        ranges: Stretches<'a>,
    },
    /// `ranges`, all of them clean, are durable, in a file that has a durable size.
    Kept {
        ranges: Stretches<'a>,
    },
    /// Kept bytes of `[start, end)` become clean.
    LetGo {
        start: u64,
        end: u64,
    },
    /// A flush is about to change the backing file.
    FlushBegan {
        mtime: Timestamp,
    },
    /// The flush has changed nothing, or made the backing file this version.
    FlushFailed {
        base: Version,
    },
    /// The flushed bytes are on the backing store, and synced there (S6).
    Settled(Settled<'a>),
    /// The oldest dirty byte is from this time.
    Aged {
        since: u64,
    },
    /// A program may write past the daemon from here on.
    Unseen {
        age: Age,
    },
    /// The programs that could write past the daemon have written nothing.
    Untouched,
    /// The programs that wrote past the daemon have left the file like this: everything up to `len` is
    /// dirty.
    Absorbed {
        len: u64,
        mtime: Timestamp,
        age: Age,
    },
    /// The backing file got this size through the mount, without the tier. Clean bytes beyond it are gone.
    WentAround {
        size: u64,
    },
    /// No byte of the file is cached, and it equals the backing file.
    Emptied {
        base: Version,
        owner: Owner,
        pinned: bool,
    },
    /// Names or attributes have changed on the backing store through the mount.
    Followed {
        owner: Owner,
        base: Version,
        mtime: Timestamp,
    },
    /// No flush until a user decides which version counts.
    InConflict(Conflict),
    /// The file counts as it is here, over `base`: clean bytes are of a version that is gone from the store.
    Ours {
        base: Version,
        age: Age,
    },
    Pinned(bool),
    /// The shadow has only `len` bytes.
    Lost {
        len: u64,
        loss: Loss,
    },
    /// Whether flushed bytes of the file are to stay, to be flushed again.
    Held(bool),
    /// Kept bytes are newer than the backing file, which has this version: they are flushed again.
    Again {
        base: Version,
        age: Age,
    },
    /// The tier has failed to sync the file.
    Unsynced,
    /// The backing file is about to get this mtime, or has not got it.
    Setting(Option<Timestamp>),
}

/// The time since which a file is dirty, and the size that a sync has covered. Part of each change that
/// makes bytes dirty: the state that the change is replayed over may be dirty for longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Age {
    pub since: u64,
    pub durable: MaybeSize,
}

/// The loss that goes with bytes missing from the shadow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Loss {
    /// Nothing that the backing store does not have.
    None,
    /// Dirty bytes: the rest is not the file that was written, and waits for a decision.
    Torn,
    /// All dirty bytes: the file is again that of the backing store.
    All,
}

/// The result of a flush.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled<'a> {
    /// The ranges that were copied, and not rewritten meanwhile.
    pub copied: Stretches<'a>,
    pub base: Version,
    pub size: u64,
    pub mtime: Timestamp,
    /// Durable bytes become kept, rather than clean.
    pub keep: bool,
    /// The bytes that the flush has brought to the backing store must not be cut off after a loss of power,
    /// though no record here says that they are durable. Only if nothing was cut off since the flush began:
    /// else the bytes there may be older.
    pub lasts: bool,
    /// The rest is dirty since this time.
    pub since: u64,
}

impl Change<'_> {
    /// Whether the change makes bytes clean that the loss of its record would bring back as dirty.
    pub fn cleans(&self) -> bool {
        matches!(self, Change::Settled(_) | Change::LetGo { .. })
    }

    /// Whether the bytes that are in the tier before and after the change are the same for certain.
    pub fn leaves_bytes(&self) -> bool {
        let leaves = |mark: &Mark| matches!(mark.state, None | Some(State::Clean));
        matches!(self, Change::Marked { marks, .. } if marks.iter().all(leaves))
    }
}

impl FileState {
    /// Applies a change.
    pub fn apply(&mut self, change: &Change<'_>) {
        match change {
            Change::Marked { marks, age } => marks.iter().for_each(|mark| self.mark(mark, *age)),
            Change::Resized { size, mtime, age } => self.resize(*size, *mtime, *age),
            Change::Synced { size, ranges } => {
                self.synced(*size, ranges);
                // In a log with holes the time since which the synced bytes are dirty is unknown.
                self.dirty_since = self.dirty_since.max(1);
            }
            Change::Kept { ranges } => self.keep(ranges),
            Change::LetGo { start, end } => self.let_go(*start, *end),
            Change::FlushBegan { mtime } => {
                self.mtime = *mtime;
                self.flush_open = true;
            }
            Change::FlushFailed { base } => {
                self.rebase(*base);
                self.flush_open = false;
            }
            Change::Settled(settled) => self.settle(settled),
            Change::Aged { since } => self.dirty_since = (*since).max(1),
            Change::Unseen { age } => {
                let before = std::mem::replace(self.ranges_mut(), Ranges::None);
                self.bytes = Bytes::Unseen(Box::new(before));
                self.age(*age);
            }
            Change::Untouched => {
                self.track();
                self.cut(self.size);
            }
            Change::Absorbed { len, mtime, age } => self.absorb(*len, *mtime, *age),
            Change::WentAround { size } => {
                self.cut(*size);
                (self.size, self.base.size) = (*size, *size);
            }
            Change::Emptied { base, owner, pinned } => {
                self.rebase(*base);
                (self.owner, self.pinned, self.unsynced) = (*owner, *pinned, false);
                self.bytes = Bytes::Tracked(Ranges::None);
                self.revert();
            }
            Change::Followed { owner, base, mtime } => {
                self.rebase(*base);
                (self.owner, self.mtime) = (*owner, *mtime);
            }
            Change::InConflict(conflict) => self.conflict = *conflict,
            Change::Ours { base, age } => self.make_ours(*base, *age),
            Change::Pinned(pinned) => self.pinned = *pinned,
            Change::Lost { len, loss } => self.lose(*len, *loss),
            Change::Held(held) => self.held = held.then_some(self.held.unwrap_or(0)),
            Change::Again { base, age } => {
                self.rebase(*base);
                // The other writer may have left another size, or time.
                self.meta_dirty = true;
                self.turn(0, u64::MAX, |state| (state == State::Kept).then_some(State::Durable));
                self.age(*age);
            }
            Change::Unsynced => self.unsynced = true,
            Change::Setting(mtime) => self.setting = *mtime,
        }
        self.come_clean();
        self.check(change);
    }

    /// Makes a file that is not dirty neither old (F5), nor durable, unless it is kept (F4).
    pub(super) fn come_clean(&mut self) {
        if !self.is_dirty() {
            self.dirty_since = 0;
            if !self.keeps() {
                self.durable_size = MaybeSize::NONE;
            }
        }
    }

    /// Checks the invariants that a state alone can show.
    fn check(&self, change: &Change<'_>) {
        let within = self.tracked().is_none_or(|ranges| ranges.end() <= self.size);
        assert!(within, "F1: a run beyond the size after {change:?}");
        let durable = self.durable_size.get().unwrap_or(0);
        let within = self.is_unseen() || durable <= self.size;
        assert!(within, "F4: durable to {durable}, beyond the size, after {change:?}");
        debug_assert!(
            !self.is_dirty() || self.dirty_since > 0,
            "F5: dirty since never after {change:?}"
        );
    }

    /// The age of bytes that become dirty now, unless the file is dirty for longer.
    pub fn age_at(&self, now_ms: u64) -> Age {
        let since = if self.dirty_since == 0 { now_ms.max(1) } else { self.dirty_since };
        Age { since, durable: self.durable_size }
    }

    fn age(&mut self, age: Age) {
        // The state that the change is replayed over may be later, and shorter.
        let most = if self.is_unseen() { u64::MAX } else { self.size };
        let durable = age.durable.get().map(|durable| durable.min(most));
        (self.dirty_since, self.durable_size) = (age.since.max(1), durable.into());
    }

    fn mark(&mut self, mark: &Mark, age: Age) {
        let size = self.size;
        match mark.state {
            Some(state) if state.is_dirty() => {
                self.ranges_mut().set(mark.start, mark.end, state);
                self.size = size.max(mark.end);
                self.age(age);
            }
            // The state that the change is replayed over may be later, and shorter.
            Some(state) => self.ranges_mut().set(mark.start, mark.end.min(size), state),
            None => self.ranges_mut().clear(mark.start, mark.end),
        }
    }

    /// Puts each run of `[start, end)` for which `into` gives a state into that state.
    pub(super) fn turn(&mut self, start: u64, end: u64, into: impl Fn(State) -> Option<State>) {
        let turned = |run: Run| into(run.state).map(|state| Run { state, ..run });
        let turned: Vec<Run> = self.ranges().within(start, end).filter_map(turned).collect();
        for run in turned {
            self.ranges_mut().set(run.start, run.end, run.state);
        }
    }

    fn resize(&mut self, size: u64, mtime: Timestamp, age: Age) {
        self.meta_dirty = true;
        self.age(age);
        self.cut(size);
        // Past the daemon more may have been written, and synced, than the size says.
        for (start, end) in self.ranges().gaps(self.size, size) {
            self.ranges_mut().set(start, end, State::Dirty);
        }
        (self.size, self.mtime) = (size, mtime);
    }

    fn cut(&mut self, size: u64) {
        self.ranges_mut().clear(size, u64::MAX);
        self.durable_size = self.durable_size.get().map(|durable| durable.min(size)).into();
    }

    fn synced(&mut self, size: u64, ranges: &[(u64, u64)]) {
        let size = if self.is_unseen() { size } else { size.min(self.size) };
        for &(start, end) in ranges {
            self.ranges_mut().set(start, end.min(size), State::Durable);
        }
        // Syncs may end in another order than they began; only truncation makes the durable size smaller.
        let known = self.durable_size.get().unwrap_or(0);
        self.durable_size = Some(known.max(size)).into();
    }

    fn keep(&mut self, ranges: &[(u64, u64)]) {
        let size = self.size;
        for &(start, end) in ranges {
            self.ranges_mut().set(start, end.min(size), State::Kept);
        }
    }

    /// Takes over the version of the backing file.
    fn rebase(&mut self, base: Version) {
        self.base = base;
        self.setting = self.setting.filter(|mtime| *mtime != base.mtime);
    }

    fn settle(&mut self, settled: &Settled<'_>) {
        for &(start, end) in &*settled.copied {
            self.turn(start, end.min(self.size), |state| match state {
                State::Durable if settled.keep => Some(State::Kept),
                State::Dirty | State::Durable => Some(State::Clean),
                State::Clean | State::Kept => None,
            });
        }
        self.rebase(settled.base);
        self.mtime = settled.mtime;
        self.flush_open = false;
        // The state that the change is replayed over may have another size since.
        let same = (settled.size, self.mtime) == (self.base.size, self.base.mtime);
        self.meta_dirty = !same;
        self.dirty_since = settled.since.max(1);
        self.come_clean();
        if settled.lasts {
            let on_store = self.base.size.min(self.size);
            self.durable_size = self.durable_size.get().map(|size| size.max(on_store)).into();
        }
    }

    /// Takes over the bytes that an unseen writer left. Synced bytes stay durable.
    pub(super) fn absorb(&mut self, len: u64, mtime: Timestamp, age: Age) {
        self.track();
        self.meta_dirty = true;
        (self.size, self.mtime) = (len, mtime);
        self.age(age);
        self.cut(len);
        self.make_dirty(0, len);
    }

    /// Makes all of `[start, end)` dirty. Durable and kept bytes become durable.
    fn make_dirty(&mut self, start: u64, end: u64) {
        let durable: Vec<Run> =
            self.ranges().within(start, end).filter(|run| run.state.outlasts_power()).collect();
        self.ranges_mut().set(start, end, State::Dirty);
        for run in durable {
            self.ranges_mut().set(run.start, run.end, State::Durable);
        }
    }

    fn make_ours(&mut self, base: Version, age: Age) {
        self.rebase(base);
        self.conflict = Conflict::None;
        self.flush_open = false;
        self.turn(0, u64::MAX, |state| match state {
            State::Clean => Some(State::Dirty),
            State::Kept => Some(State::Durable),
            State::Dirty | State::Durable => None,
        });
        self.age(age);
    }

    pub(super) fn let_go(&mut self, start: u64, end: u64) {
        if self.keeps() {
            self.turn(start, end, |state| (state == State::Kept).then_some(State::Clean));
        }
    }

    /// The loss that goes with the bytes at and beyond `len`, and the number of dirty bytes among them.
    pub fn loss_beyond(&self, len: u64) -> (Loss, u64) {
        let dirty = self.ranges().within(len, u64::MAX).filter(|run| run.state.is_dirty());
        let lost = dirty.map(|run| run.bytes()).sum();
        let loss = match lost {
            0 => Loss::None,
            _ if lost < self.dirty_bytes() || self.is_unseen() => Loss::Torn,
            _ => Loss::All,
        };
        (loss, lost)
    }

    /// Removes from the record the bytes that a shadow of `len` bytes lacks: they are absent then. The size
    /// does not reach over bytes that exist nowhere.
    pub(super) fn lose(&mut self, len: u64, loss: Loss) {
        self.ranges_mut().clear(len, u64::MAX);
        match loss {
            Loss::None => {}
            Loss::All => self.revert(),
            Loss::Torn => {
                let size = self.size.min(self.base.size.max(self.ranges().end()));
                (self.size, self.conflict) = (size, Conflict::Torn);
                self.cut(size);
            }
        }
    }

    /// Makes the file equal to the backing file.
    fn revert(&mut self) {
        self.size = self.base.size;
        self.mtime = self.base.mtime;
        self.cut(self.size);
        self.meta_dirty = false;
        self.flush_open = false;
        self.conflict = Conflict::None;
    }
}

#[cfg(test)]
mod tests;
