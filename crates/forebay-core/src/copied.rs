//! What partners know of a file: the words in which they are told, and what they are not told yet.
//!
//! Partners are told in rounds. A round takes what was written since the last one, sends the bytes in
//! pieces, and ends with what the file is then. Until that is there the bytes count for nothing, unless
//! they lie where bytes counted before: there, who syncs gets the old ones or the new.
//!
//! Invariants:
//! - K1: whatever became dirty since a round began is in `unsent`, or `anew` is set.
//! - K2: a round builds upon one that all partners have. One that failed left nothing that the next does
//!   not say again.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_backing::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ranges::{Ranges, State};
use crate::state::{Change, Portrait};

/// Words about one file. The bytes of `data` go beside, one stretch behind the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Words<'a> {
    /// Which run of the home's engine says so.
    pub session: u64,
    /// Rises with each round, over all files of the home.
    pub number: u64,
    /// The round that this one builds upon.
    pub after: u64,
    /// Bytes that the round has brought so far, these among them: who has taken fewer has lost some.
    pub brought: u64,
    pub data: Cow<'a, [(u64, u64)]>,
    pub zeros: Cow<'a, [(u64, u64)]>,
    /// Of what is newer than the backing store, in a round that ends with [`Then::Whole`]: a part, and how many bytes the
    /// round has named so far, these among them.
    pub runs: Cow<'a, [(u64, u64)]>,
    pub named: u64,
    pub then: Then,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Then {
    /// More of the round follows, which ends with [`Then::Whole`] if `whole`.
    More { whole: bool },
    /// The file has grown by what this round has brought, and has this size.
    Grown { size: u64, mtime: Timestamp },
    /// The file is this, and what is newer than the backing store are the runs that this round has named.
    Whole(Box<Portrait>),
    /// Of this file, which a fill brings in several rounds, the partner has what this one has brought besides.
    Part(Box<Portrait>),
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

/// "To the end" must leave room for sums.
const END: u64 = 1 << 62;

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
    /// A name that it is about to get.
    pub also: Option<PathBuf>,
    /// What each partner that is being filled with it still lacks: what the fill has not come to, and what was written
    /// since.
    left: BTreeMap<String, Ranges>,
    /// The number of the words by which it is forgotten, if that is settled.
    end: Option<u64>,
    /// A round is under way.
    pub sending: bool,
    pub rounds: Rounds,
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

impl Untold {
    /// Of a file that partners know nothing of.
    pub fn none() -> Untold {
        let mut copied = Untold { anew: true, ..Untold::default() };
        copied.note_written(0, u64::MAX);
        copied
    }

    /// Of a file that partners may know from a run of the engine before this one. `number` is a new one: nobody
    /// builds upon it before all was told.
    pub fn of_before(number: u64) -> Untold {
        Untold { number, ..Untold::none() }
    }

    pub fn note_written(&mut self, start: u64, end: u64) {
        let end = end.min(END);
        self.unsent.set(start, end, State::Dirty);
        self.left.values_mut().for_each(|left| left.set(start, end, State::Dirty));
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
        self.anew || self.unsent != Ranges::None || self.moved_at != moved_at
    }

    /// What was written since the last round of the first `size` bytes, most often little.
    pub fn unsent(&self, size: u64) -> Vec<(u64, u64)> {
        self.unsent.within(0, size).map(|run| (run.start, run.end)).collect()
    }

    /// What the fill of a partner has to bring still of the first `size` bytes: at first all.
    pub fn left_of(&mut self, partner: &str, size: u64) -> Vec<(u64, u64)> {
        let all = || Ranges::whole(END, State::Dirty);
        let left = self.left.entry(partner.into()).or_insert_with(all);
        left.within(0, size).map(|run| (run.start, run.end)).collect()
    }

    /// A round of the fill takes what is left in front of `upto`.
    pub fn fills(&mut self, partner: &str, upto: u64) {
        if let Some(left) = self.left.get_mut(partner) {
            left.clear(0, upto);
        }
    }

    /// That round has failed: it had these.
    pub fn fills_again(&mut self, partner: &str, stretches: &[(u64, u64)]) {
        if let Some(left) = self.left.get_mut(partner) {
            stretches.iter().for_each(|&(start, end)| left.set(start, end, State::Dirty));
        }
    }

    pub fn fill_ends(&mut self, partner: &str) {
        self.left.remove(partner);
    }

    /// Begins a round. Returns what it takes, and whether it tells all.
    pub fn begin(&mut self, moved_at: u64) -> (Taken, bool) {
        let whole = self.anew || self.number == 0 || self.moved_at != moved_at;
        let taken = Taken {
            unsent: std::mem::replace(&mut self.unsent, Ranges::None),
            anew: std::mem::replace(&mut self.anew, false),
            moved_at: std::mem::replace(&mut self.moved_at, moved_at),
        };
        self.rounds.begun += 1;
        (taken, whole)
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
        (self.number, self.rounds.done) = (number, self.rounds.begun);
    }

    /// It failed: nobody knows who has what of it.
    pub fn failed(&mut self, taken: Taken) {
        taken.unsent.iter().for_each(|run| self.note_written(run.start, run.end));
        self.anew |= taken.anew;
        self.moved_at = taken.moved_at;
    }
}
