//! The knowledge that partners have of a file: the messages to them, and the changes they were not told yet.
//!
//! Partners are told in rounds. A round takes the bytes written since the last one, sends them in pieces, and ends
//! with the file's new state. Until the end has arrived the bytes do not count, unless they lie where bytes counted
//! before: there, a program that syncs gets the old ones or the new.
//!
//! Invariants:
//! - K1: bytes that became dirty since a round began are in `unsent`, or `anew` is set.
//! - K2: a round builds upon one that all partners have. The next round says again everything that a failed one said.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_backing::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ranges::{Ranges, State};
use crate::state::{Change, Portrait};

/// A message about one file. The bytes of `data` are sent beside it, one stretch behind the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Words<'a> {
    /// The run of the home's engine that sends the message.
    pub session: u64,
    /// Rises with each round, over all files of the home.
    pub number: u64,
    /// The round that this one builds upon.
    pub after: u64,
    /// Bytes that the round has brought so far, these included: a partner that has taken fewer has lost some.
    pub brought: u64,
    pub data: Cow<'a, [(u64, u64)]>,
    pub zeros: Cow<'a, [(u64, u64)]>,
    /// A part of the ranges that are newer than the backing store, in a round that ends with [`Then::Whole`], and the
    /// number of bytes that the round has named so far, these included.
    pub runs: Cow<'a, [(u64, u64)]>,
    pub named: u64,
    pub then: Then,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Then {
    /// More of the round follows, which ends with [`Then::Whole`] if `whole`.
    More { whole: bool },
    /// The file has grown by the bytes of this round, and has this size.
    Grown { size: u64, mtime: Timestamp },
    /// The state of the file; the runs that this round has named are newer than the backing store.
    Whole(Box<Portrait>),
    /// The state of a file that a fill brings in several rounds: the partner now also has the bytes of this round.
    Part(Box<Portrait>),
    /// No byte of the file is newer than the backing store. `lasts`: durably so when this is answered.
    Forget { lasts: bool },
}

/// A message about all files of a home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mark {
    /// The partner drops all copies of the home; all its files follow.
    Begin { session: u64 },
    /// All files were sent.
    End { session: u64 },
}

/// "To the end" must leave room for sums.
const END: u64 = 1 << 62;

/// The changes of a file that partners were not told yet.
#[derive(Debug, Default)]
pub struct Untold {
    /// The last round that all partners have; 0 if there was none.
    pub number: u64,
    unsent: Ranges,
    /// More has changed than written bytes: the next round sends the whole state.
    anew: bool,
    /// The log's position after the last rename of a directory above the file, as partners were told.
    moved_at: u64,
    /// A name that the file is about to get.
    pub also: Option<PathBuf>,
    /// The ranges that each partner being filled still lacks: those the fill has not reached, and those written
    /// since.
    /// since.
    left: BTreeMap<String, Ranges>,
    /// The number of the message by which partners forget the file, once that is settled.
    end: Option<u64>,
    /// A round is under way.
    pub sending: bool,
    pub rounds: Rounds,
}

/// The number of rounds that have begun, and the last of them that has ended well.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rounds {
    pub begun: u64,
    pub done: u64,
}

/// The changes that a round carries; given back if the round fails.
#[derive(Debug)]
pub struct Taken {
    unsent: Ranges,
    anew: bool,
    moved_at: u64,
}

impl Untold {
    /// For a file that partners know nothing about.
    pub fn none() -> Untold {
        let mut copied = Untold { anew: true, ..Untold::default() };
        copied.note_written(0, u64::MAX);
        copied
    }

    /// For a file that partners may know from an earlier run of the engine. `number` is a new one: no round builds
    /// upon it before the whole state was sent.
    pub fn of_before(number: u64) -> Untold {
        Untold { number, ..Untold::none() }
    }

    pub fn note_written(&mut self, start: u64, end: u64) {
        let end = end.min(END);
        self.unsent.set(start, end, State::Dirty);
        self.left.values_mut().for_each(|left| left.set(start, end, State::Dirty));
    }

    /// Notes that the state changes by more than written bytes.
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
            // The change may make clean bytes dirty.
            Change::Ours { .. } | Change::Again { .. } | Change::Absorbed { .. } => {
                self.note_written(0, u64::MAX);
                self.anew = true;
            }
            _ => self.anew = true,
        }
    }

    /// Whether partners are to be told anything about a file whose directories moved last at `moved_at`.
    pub fn owes(&self, moved_at: u64) -> bool {
        self.anew || self.unsent != Ranges::None || self.moved_at != moved_at
    }

    /// The ranges of the first `size` bytes that were written since the last round, most often few.
    pub fn unsent(&self, size: u64) -> Vec<(u64, u64)> {
        self.unsent.within(0, size).map(|run| (run.start, run.end)).collect()
    }

    /// The ranges of the first `size` bytes that the fill of a partner still has to bring: at first all.
    pub fn left_of(&mut self, partner: &str, size: u64) -> Vec<(u64, u64)> {
        let all = || Ranges::whole(END, State::Dirty);
        let left = self.left.entry(partner.into()).or_insert_with(all);
        left.within(0, size).map(|run| (run.start, run.end)).collect()
    }

    /// Notes that a round of the fill takes the ranges in front of `upto`.
    pub fn fills(&mut self, partner: &str, upto: u64) {
        if let Some(left) = self.left.get_mut(partner) {
            left.clear(0, upto);
        }
    }

    /// Puts back the ranges of a failed round of the fill.
    pub fn fills_again(&mut self, partner: &str, stretches: &[(u64, u64)]) {
        if let Some(left) = self.left.get_mut(partner) {
            stretches.iter().for_each(|&(start, end)| left.set(start, end, State::Dirty));
        }
    }

    pub fn fill_ends(&mut self, partner: &str) {
        self.left.remove(partner);
    }

    /// Begins a round. Returns the changes that it takes, and whether it sends the whole state.
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

    /// Notes that the file is gone: partners forget it by the message with this number.
    pub fn ends_as(&mut self, number: u64) {
        self.end = Some(number);
    }

    pub fn end(&self) -> Option<u64> {
        self.end
    }

    /// Notes that all partners have the round.
    pub fn ended(&mut self, number: u64) {
        (self.number, self.rounds.done) = (number, self.rounds.begun);
    }

    /// Notes that the round failed: which partner has which part of it is unknown.
    pub fn failed(&mut self, taken: Taken) {
        taken.unsent.iter().for_each(|run| self.note_written(run.start, run.end));
        self.anew |= taken.anew;
        self.moved_at = taken.moved_at;
    }
}
