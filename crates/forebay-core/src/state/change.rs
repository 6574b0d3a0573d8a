//! Every change of what is known of a file, as the log holds it, and the one function that makes it:
//! while the file is used, and when the log is replayed.
//!
//! A stretch of the log may be replayed over a state that is later than its beginning (a compaction does not
//! stop the world). Changes from the beginning of a stretch to its end, made over any state in between,
//! end in the state that they ended in (C1).

use std::borrow::Cow;

use forebay_backing::{Timestamp, Version};
use serde::{Deserialize, Serialize};

use super::{Bytes, Conflict, FileState, MaybeSize, Owner};
use crate::ranges::{Mark, Ranges, Run, State};

/// Ranges, borrowed from who makes the change.
pub type Stretches<'a> = Cow<'a, [(u64, u64)]>;

/// A change of what is known of a file. New ones come last: the log holds them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change<'a> {
    /// Ranges are in these states now. `age` counts if they are dirty.
    Marked {
        marks: Cow<'a, [Mark]>,
        age: Age,
    },
    /// Bytes beyond a smaller size are gone; bytes up to a larger one are zeros that are ours to flush
    /// (F3).
    Resized {
        size: u64,
        mtime: Timestamp,
        age: Age,
    },
    /// A sync that began when the size was `size` has made `ranges` durable. What was written to them
    /// meanwhile is newer than what is durable, which is all that [`State::Durable`] says.
    Synced {
        size: u64,
        ranges: Stretches<'a>,
    },
    /// `ranges`, all of them clean, are durable, of a file that has a durable size.
    Kept {
        ranges: Stretches<'a>,
    },
    /// What was kept of `[start, end)` is clean and no more.
    LetGo {
        start: u64,
        end: u64,
    },
    /// A flush is about to change the backing file.
    FlushBegan {
        mtime: Timestamp,
    },
    /// It has changed nothing, or made the backing file this.
    FlushFailed {
        base: Version,
    },
    /// It is on the backing store, and synced there (S6).
    Settled(Settled<'a>),
    /// The oldest dirty byte is from then.
    Aged {
        since: u64,
    },
    /// Somebody may write past us from here on.
    Unseen {
        age: Age,
    },
    /// Who wrote past us has written nothing.
    Untouched,
    /// Who wrote past us has left this: everything up to `len` is dirty.
    Absorbed {
        len: u64,
        mtime: Timestamp,
        age: Age,
    },
    /// The backing file has this size through us, without the tier. Of the clean bytes beyond it
    /// nothing is left.
    WentAround {
        size: u64,
    },
    /// Nothing of it is cached, and it is what the backing store has.
    Emptied {
        base: Version,
        owner: Owner,
        pinned: bool,
    },
    /// Names or attributes have changed on the backing store through us.
    Followed {
        owner: Owner,
        base: Version,
        mtime: Timestamp,
    },
    /// No flush until somebody decides what counts.
    InConflict(Conflict),
    /// It counts as it is here, over `base`: clean bytes are of a version that is gone from the store.
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
    /// What is flushed of it is to stay, to be flushed again, or no longer so.
    Held(bool),
    /// What was kept is newer than the backing file, which has this version: it is flushed again.
    Again {
        base: Version,
        age: Age,
    },
    /// The tier has failed to sync it.
    Unsynced,
}

/// Since when a file is dirty, and up to where a sync has covered it. Told with what makes it dirty: the
/// state that it is replayed over may be dirty for longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Age {
    pub since: u64,
    pub durable: MaybeSize,
}

/// What goes with bytes that are not in the shadow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Loss {
    /// Nothing that is not on the backing store.
    None,
    /// Dirty bytes: what is left is not the file that was written, and waits for a decision.
    Torn,
    /// All that was dirty: the file is what the backing store has.
    All,
}

/// What a flush has brought home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled<'a> {
    /// What was copied, and not rewritten meanwhile.
    pub copied: Stretches<'a>,
    pub base: Version,
    pub size: u64,
    pub mtime: Timestamp,
    /// What was durable is kept, rather than clean.
    pub keep: bool,
    /// What the flush has brought to the backing store is not to be cut off after a loss of power,
    /// though nothing here says that it is durable. Only if nothing was cut off since the flush began:
    /// else what lies there may be older.
    pub lasts: bool,
    /// What is left is dirty since then.
    pub since: u64,
}

impl Change<'_> {
    /// Whether bytes become clean by it that a lost record would bring back as dirty ones.
    pub fn cleans(&self) -> bool {
        matches!(self, Change::Settled(_) | Change::LetGo { .. })
    }
}

impl FileState {
    /// Makes a change.
    pub fn apply(&mut self, change: &Change<'_>) {
        match change {
            Change::Marked { marks, age } => marks.iter().for_each(|mark| self.mark(mark, *age)),
            Change::Resized { size, mtime, age } => self.resize(*size, *mtime, *age),
            Change::Synced { size, ranges } => {
                self.synced(*size, ranges);
                // Of a log with holes: nobody knows since when what was synced is dirty.
                self.dirty_since = self.dirty_since.max(1);
            }
            Change::Kept { ranges } => {
                let size = self.size;
                for &(start, end) in &**ranges {
                    self.ranges_mut().set(start, end.min(size), State::Kept);
                }
            }
            Change::LetGo { start, end } => self.let_go(*start, *end),
            Change::FlushBegan { mtime } => {
                self.mtime = *mtime;
                self.flush_open = true;
            }
            Change::FlushFailed { base } => {
                self.base = *base;
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
                (self.base, self.owner) = (*base, *owner);
                (self.pinned, self.bytes) = (*pinned, Bytes::Tracked(Ranges::None));
                self.unsynced = false;
                self.revert();
            }
            Change::Followed { owner, base, mtime } => {
                (self.owner, self.base, self.mtime) = (*owner, *base, *mtime);
            }
            Change::InConflict(conflict) => self.conflict = *conflict,
            Change::Ours { base, age } => self.make_ours(*base, *age),
            Change::Pinned(pinned) => self.pinned = *pinned,
            Change::Lost { len, loss } => self.lose(*len, *loss),
            Change::Held(held) => {
                self.held = *held;
                self.claim *= u64::from(*held);
            }
            Change::Again { base, age } => {
                self.base = *base;
                // Whoever wrote to it may have left another size, or time.
                self.meta_dirty = true;
                self.turn(0, u64::MAX, |state| (state == State::Kept).then_some(State::Durable));
                self.age(*age);
            }
            Change::Unsynced => self.unsynced = true,
        }
        self.come_clean();
        self.check(change);
    }

    /// Nothing of what is not dirty is old (F5), or durable, unless it is kept (F4).
    pub(super) fn come_clean(&mut self) {
        if !self.is_dirty() {
            self.dirty_since = 0;
            if !self.keeps() {
                self.durable_size = MaybeSize::NONE;
            }
        }
    }

    /// The invariants that a state alone can show.
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

    /// Of what becomes dirty now, unless something is for longer.
    pub fn age_at(&self, now_ms: u64) -> Age {
        let since = if self.dirty_since == 0 { now_ms.max(1) } else { self.dirty_since };
        Age { since, durable: self.durable_size }
    }

    fn age(&mut self, age: Age) {
        // The state that it is replayed over may be later, and shorter.
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
            // The state it is replayed over may be later, and shorter.
            Some(state) => self.ranges_mut().set(mark.start, mark.end.min(size), state),
            None => self.ranges_mut().clear(mark.start, mark.end),
        }
    }

    /// Puts the runs of `[start, end)` that have an answer into that state.
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
        // Past us more may have been written, and synced, than the size says.
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
        // Syncs may end in another order than they began; truncation alone makes it smaller.
        let known = self.durable_size.get().unwrap_or(0);
        self.durable_size = Some(known.max(size)).into();
    }

    fn settle(&mut self, settled: &Settled<'_>) {
        for &(start, end) in &*settled.copied {
            self.turn(start, end.min(self.size), |state| match state {
                State::Durable if settled.keep => Some(State::Kept),
                State::Dirty | State::Durable => Some(State::Clean),
                State::Clean | State::Kept => None,
            });
        }
        (self.base, self.mtime) = (settled.base, settled.mtime);
        self.flush_open = false;
        // The state that it is replayed over may have another size since.
        let same = (settled.size, self.mtime) == (self.base.size, self.base.mtime);
        self.meta_dirty = !same;
        self.dirty_since = settled.since.max(1);
        self.come_clean();
        if settled.lasts {
            let on_store = self.base.size.min(self.size);
            self.durable_size = self.durable_size.get().map(|size| size.max(on_store)).into();
        }
    }

    /// Takes over what an unseen writer left. What of it was synced stays durable.
    pub(super) fn absorb(&mut self, len: u64, mtime: Timestamp, age: Age) {
        self.track();
        self.meta_dirty = true;
        (self.size, self.mtime) = (len, mtime);
        self.age(age);
        self.cut(len);
        self.make_dirty(0, len);
    }

    /// Makes all of `[start, end)` dirty. What was durable, or kept, is durable.
    fn make_dirty(&mut self, start: u64, end: u64) {
        let durable: Vec<Run> =
            self.ranges().within(start, end).filter(|run| run.state.outlasts_power()).collect();
        self.ranges_mut().set(start, end, State::Dirty);
        for run in durable {
            self.ranges_mut().set(run.start, run.end, State::Durable);
        }
    }

    fn make_ours(&mut self, base: Version, age: Age) {
        self.base = base;
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

    /// What goes with the bytes at and beyond `len`, and how many of them are dirty.
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

    /// Takes from the record what a shadow of `len` bytes has not: it is absent then. The size does
    /// not reach over what nobody has.
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

    /// Nothing here is newer than what the backing store has.
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
