//! What partners know of a file: the words in which they are told, and what they are not told yet.
//!
//! Partners are told in rounds. A round takes what was written since the last one, sends the bytes in
//! pieces, and ends with what the file is then. Until that is there the bytes count for nothing, unless
//! they lie where bytes counted before: there, who syncs gets the old ones or the new.
//!
//! Bytes of a large file are sent *ahead*, while programs still write it: they are pieces of a round that has
//! its number already and begins when somebody syncs.
//!
//! Invariants:
//! - K1: whatever became dirty since a round began is in `unsent`, or `anew` is set.
//! - K2: a round builds upon one that all partners have. One that failed left nothing that the next does
//!   not say again.
//! - K3: what was sent ahead counts for the round with its number alone. That one takes all of it, or has another
//!   number and sends it again: when the file was cut, is not dirty there any more, or one partner was told
//!   of it apart.

use std::borrow::Cow;
use std::path::PathBuf;

use forebay_backing::Timestamp;
use serde::{Deserialize, Serialize};

use crate::core::clock::Look;
use crate::core::ranges::{Ranges, State};
use crate::core::state::{Change, Portrait};

/// Words about one file. The bytes of `data` go beside, one stretch behind the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Words<'a> {
    /// Which run of the home's engine says so.
    pub session: u64,
    /// Rises with each round, over all files of the home.
    pub number: u64,
    /// The round that this one builds upon.
    pub after: u64,
    pub data: Cow<'a, [(u64, u64)]>,
    pub zeros: Cow<'a, [(u64, u64)]>,
    pub then: Then,
    /// How far the round has come: words with a higher one were sent when all before had been answered, and may
    /// bring the same bytes anew. One that comes late brings nothing.
    pub step: u32,
    /// Of the words that a round ends with: how many bytes it has brought, these included. A partner that
    /// finds fewer has begun anew since it was sent some of them, and has to be filled.
    pub brought: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Then {
    /// More of the round follows, which ends with [`Then::Whole`] if `whole`.
    More { whole: bool },
    /// The file has grown by what this round has brought, and has this size.
    Grown { size: u64, mtime: Timestamp },
    /// The file is this.
    Whole(Box<Portrait>),
    /// Nothing of it is newer than the backing store. `lasts`: durably so when this is answered.
    Forget { lasts: bool },
}

/// Words about all files of a home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mark {
    /// Whatever there is of the home goes; all that it has follows.
    Begin { session: u64 },
    /// All of it was sent.
    End { session: u64 },
}

/// What partners are not told yet of a file.
#[derive(Debug, Default)]
pub struct Untold {
    /// The last round that all have; 0 if there was none.
    pub number: u64,
    unsent: Ranges,
    /// More has changed than what was written: the next round tells all of the state.
    anew: bool,
    /// The log's position after the last rename of a directory above it, when they were told.
    moved_at: u64,
    /// What the next round has brought already.
    ahead: Option<Ahead>,
    /// A name that it is about to get.
    pub also: Option<PathBuf>,
    /// The number of the words by which it is forgotten, if that is settled.
    end: Option<u64>,
    telling: Telling,
    /// So many wait for that to end.
    pub awaited: u32,
    pub rounds: Rounds,
}

/// What is under way to partners.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Telling {
    #[default]
    Nothing,
    /// Bytes of a round that has not begun.
    Ahead,
    /// A round, or that they may forget the file.
    Round,
}

/// Bytes that partners were sent of a round that has not begun.
#[derive(Debug)]
pub struct Ahead {
    pub number: u64,
    /// Of the last of them: see [`Words::step`].
    pub step: u32,
    /// When the first of them were read.
    pub since: Look,
    /// All of it was sent, is on its way, or is unsent again.
    pub sent: Ranges,
}

/// Rounds that have begun, and the last one of those that have ended well.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rounds {
    pub begun: u64,
    pub done: u64,
}

/// What a round takes with it; given back if it fails.
#[derive(Debug)]
pub struct Taken {
    unsent: Ranges,
    anew: bool,
    moved_at: u64,
}

/// A round that begins.
#[derive(Debug)]
pub struct Begun {
    pub taken: Taken,
    /// It tells all of the state.
    pub whole: bool,
    /// What it has brought already.
    pub ahead: Option<Ahead>,
}

impl Ahead {
    /// Of a round with this number of which nothing was sent yet.
    pub fn begin(number: u64, since: Look) -> Ahead {
        Ahead { number, step: 0, since, sent: Ranges::None }
    }
}

impl Untold {
    /// Of a file that partners know nothing of.
    pub fn none() -> Untold {
        let mut copied = Untold { anew: true, ..Untold::default() };
        copied.note_written(0, u64::MAX);
        copied
    }

    pub fn note_written(&mut self, start: u64, end: u64) {
        // "To the end" must leave room for sums.
        self.unsent.set(start, end.min(1 << 62), State::Dirty);
    }

    /// The state changes by more than what is written.
    pub fn note_anew(&mut self) {
        self.anew = true;
    }

    pub fn note_change(&mut self, change: &Change<'_>) {
        match change {
            Change::Marked { marks, .. } => {
                let dirty = |state: Option<State>| state.is_some_and(State::is_dirty);
                let dirty = marks.iter().filter(|mark| dirty(mark.state));
                dirty.for_each(|mark| self.note_written(mark.start, mark.end));
            }
            Change::Synced { .. }
            | Change::Kept { .. }
            | Change::LetGo { .. }
            | Change::Aged { .. }
            | Change::Pinned(_) => {}
            // Bytes that were clean may be dirty by it.
            Change::Ours { .. } | Change::Again { .. } | Change::Absorbed { .. } => {
                self.note_written(0, u64::MAX);
                self.anew = true;
            }
            _ => self.anew = true,
        }
    }

    /// Whether partners are to be told anything of a file whose directories moved last at `moved_at`.
    pub fn owes(&self, moved_at: u64) -> bool {
        let has_sent = self.ahead.is_some();
        self.anew || has_sent || self.unsent != Ranges::None || self.moved_at != moved_at
    }

    /// Whether partners have been told of the file, or are being told, so that what they know of it counts.
    pub fn is_told(&self) -> bool {
        self.number > 0 || self.telling == Telling::Round
    }

    pub fn is_busy(&self) -> bool {
        self.telling != Telling::Nothing
    }

    /// What was written since the last round of the first `size` bytes, and was not sent ahead; most often
    /// little.
    pub fn unsent(&self, size: u64) -> Vec<(u64, u64)> {
        self.unsent.within(0, size).map(|run| (run.start, run.end)).collect()
    }

    /// What of the first `size` bytes does not count at partners.
    pub fn untold(&self, size: u64) -> Vec<(u64, u64)> {
        let mut untold = self.unsent.clone();
        let sent = self.ahead.iter().flat_map(|ahead| ahead.sent.iter());
        sent.for_each(|run| untold.set(run.start, run.end, State::Dirty));
        untold.within(0, size).map(|run| (run.start, run.end)).collect()
    }

    pub fn ahead(&self) -> Option<&Ahead> {
        self.ahead.as_ref()
    }

    /// Begins to send these stretches, which are unsent, ahead of the next round.
    pub fn begin_ahead(
        &mut self,
        stretches: &[(u64, u64)],
        fresh: impl FnOnce() -> Ahead,
    ) -> &Ahead {
        self.telling = Telling::Ahead;
        let ahead = self.ahead.get_or_insert_with(fresh);
        ahead.step += 1;
        for &(start, end) in stretches {
            self.unsent.clear(start, end);
            ahead.sent.set(start, end, State::Dirty);
        }
        ahead
    }

    /// All but what is `left` was sent.
    pub fn end_ahead(&mut self, left: &Ranges) {
        self.end_telling();
        left.iter().for_each(|run| self.note_written(run.start, run.end));
    }

    /// What was sent ahead is to be sent again (K3).
    pub fn drop_ahead(&mut self) {
        if let Some(ahead) = self.ahead.take() {
            ahead.sent.iter().for_each(|run| self.note_written(run.start, run.end));
        }
    }

    /// Whether the next round tells all of the state.
    pub fn tells_all(&self, moved_at: u64) -> bool {
        self.anew || self.number == 0 || self.moved_at != moved_at
    }

    /// Begins a round.
    pub fn begin(&mut self, moved_at: u64) -> Begun {
        let whole = self.tells_all(moved_at);
        let mut taken = Taken {
            unsent: std::mem::replace(&mut self.unsent, Ranges::None),
            anew: std::mem::replace(&mut self.anew, false),
            moved_at: std::mem::replace(&mut self.moved_at, moved_at),
        };
        let ahead = self.ahead.take();
        let sent = ahead.iter().flat_map(|ahead| ahead.sent.iter());
        sent.for_each(|run| taken.unsent.set(run.start, run.end, State::Dirty));
        self.rounds.begun += 1;
        Begun { taken, whole, ahead }
    }

    pub fn begin_telling(&mut self) {
        self.telling = Telling::Round;
    }

    pub fn end_telling(&mut self) {
        self.telling = Telling::Nothing;
    }

    /// Its file is no more: partners forget it by words with this number.
    pub fn ends_as(&mut self, number: u64) {
        self.end = Some(number);
    }

    pub fn end(&self) -> Option<u64> {
        self.end
    }

    /// All have the round.
    pub fn ended(&mut self, number: u64) {
        self.end_telling();
        (self.number, self.rounds.done) = (number, self.rounds.begun);
    }

    /// It failed: nobody knows who has what of it.
    pub fn failed(&mut self, taken: Taken) {
        self.end_telling();
        taken.unsent.iter().for_each(|run| self.note_written(run.start, run.end));
        self.anew |= taken.anew;
        self.moved_at = taken.moved_at;
    }
}
