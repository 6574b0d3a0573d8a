//! The last commits, in memory, for watches.
//!
//! A watch holds a position in the history and has no queue of its own: a slow watch costs nothing,
//! and is told that it was left behind.

use std::collections::VecDeque;

use crate::{Event, Events, Revision, Seen};

/// How far back watches can begin: commits beyond either bound, in commits or in bytes, are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    pub commits: usize,
    pub bytes: usize,
}

/// Minutes of a busy node, and a few MiB of memory and of the file.
pub const BOUND: Bound = Bound { commits: 10_000, bytes: 16 << 20 };

/// The most commits that one look at the history returns.
const GIVEN_MAX: usize = 4096;

#[derive(Debug)]
pub struct Past {
    pub revision: Revision,
    pub events: Vec<Event>,
    bytes: usize,
}

impl Past {
    pub fn new(revision: Revision, events: Vec<Event>) -> Past {
        let bytes = events.iter().map(size).sum();
        Past { revision, events, bytes }
    }
}

fn size(event: &Event) -> usize {
    let value = if let Event::Put(entry) = event { entry.value.len() } else { 0 };
    size_of::<Event>() + event.key().len() + value
}

#[derive(Debug)]
pub struct History {
    past: VecDeque<Past>,
    bytes: usize,
    bound: Bound,
    /// All commits up to this one are dropped.
    pub compacted: Revision,
    pub revision: Revision,
}

impl History {
    pub fn new(bound: Bound, compacted: Revision, revision: Revision) -> History {
        History { past: VecDeque::new(), bytes: 0, bound, compacted, revision }
    }

    pub fn push(&mut self, past: Past) {
        self.revision = past.revision;
        self.bytes += past.bytes;
        self.past.push_back(past);
    }

    /// The revision up to which the history has to be dropped once `more` is added.
    pub fn to_compact(&self, more: &[Past]) -> Revision {
        let mut commits = self.past.len() + more.len();
        let mut bytes = self.bytes + more.iter().map(|past| past.bytes).sum::<usize>();
        let mut upto = self.compacted;
        for past in self.past.iter().chain(more) {
            if commits <= self.bound.commits && bytes <= self.bound.bytes {
                break;
            }
            (commits, bytes, upto) = (commits - 1, bytes - past.bytes, past.revision);
        }
        upto
    }

    pub fn compact(&mut self, upto: Revision) {
        while let Some(past) = self.past.pop_front_if(|past| past.revision <= upto) {
            self.bytes -= past.bytes;
        }
        self.compacted = self.compacted.max(upto);
    }

    /// The changes below `prefix` after `after`, which moves past all commits that were looked at:
    /// other prefixes' changes must not leave a watch behind.
    pub fn since(&self, after: &mut Revision, prefix: &str) -> Seen {
        if *after < self.compacted {
            return Seen::Compacted(self.compacted);
        }
        let mut changes = Vec::new();
        let first = self.past.partition_point(|past| past.revision <= *after);
        for past in self.past.range(first..) {
            if changes.len() >= GIVEN_MAX {
                break;
            }
            *after = past.revision;
            let ours = past.events.iter().filter(|event| event.key().starts_with(prefix));
            changes.extend(ours.cloned());
        }
        match changes.is_empty() {
            true => Seen::Quiet,
            false => Seen::Changes(Events { revision: *after, changes }),
        }
    }
}
