//! What goes into a registry and comes out of it. All of it can be sent through a socket.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Counts the commits of a registry.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Never zero, and never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A key with what it stands for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub key: String,
    #[serde(with = "crate::bytes")]
    pub value: Vec<u8>,
    /// Of the last change.
    pub revision: Revision,
    pub lease: Option<LeaseId>,
}

/// What must hold for a commit to happen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compare {
    Absent(String),
    Present(String),
    /// The key was last changed at this revision.
    Revision(String, Revision),
    Value(String, #[serde(with = "crate::bytes")] Vec<u8>),
}

impl Compare {
    pub fn key(&self) -> &str {
        match self {
            Compare::Absent(key)
            | Compare::Present(key)
            | Compare::Revision(key, _)
            | Compare::Value(key, _) => key,
        }
    }

    pub fn holds(&self, found: Option<&Entry>) -> bool {
        match self {
            Compare::Absent(_) => found.is_none(),
            Compare::Present(_) => found.is_some(),
            Compare::Revision(_, revision) => found.is_some_and(|e| e.revision == *revision),
            Compare::Value(_, value) => found.is_some_and(|e| e.value == *value),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    Put {
        key: String,
        #[serde(with = "crate::bytes")]
        value: Vec<u8>,
        lease: Option<LeaseId>,
    },
    Delete {
        key: String,
    },
    DeletePrefix {
        prefix: String,
    },
}

/// Changes that happen together, and what they depend on. No key may be changed twice in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
pub struct Commit {
    pub compares: Vec<Compare>,
    pub changes: Vec<Change>,
}

impl Commit {
    pub fn new() -> Commit {
        Commit::default()
    }

    /// Only if there is no such key.
    pub fn if_absent(mut self, key: impl Into<String>) -> Commit {
        self.compares.push(Compare::Absent(key.into()));
        self
    }

    pub fn if_present(mut self, key: impl Into<String>) -> Commit {
        self.compares.push(Compare::Present(key.into()));
        self
    }

    /// Only if the key was not changed since `entry` was read.
    pub fn if_unchanged(mut self, entry: &Entry) -> Commit {
        self.compares.push(Compare::Revision(entry.key.clone(), entry.revision));
        self
    }

    /// Only if the key is as it was found, or still missing.
    pub fn if_as_found(self, key: &str, found: Option<&Entry>) -> Commit {
        match found {
            Some(entry) => self.if_unchanged(entry),
            None => self.if_absent(key),
        }
    }

    pub fn if_value(mut self, key: impl Into<String>, value: impl Into<Vec<u8>>) -> Commit {
        self.compares.push(Compare::Value(key.into(), value.into()));
        self
    }

    pub fn put(mut self, key: impl Into<String>, value: impl Into<Vec<u8>>) -> Commit {
        self.changes.push(Change::Put { key: key.into(), value: value.into(), lease: None });
        self
    }

    /// Puts a key that vanishes with the lease.
    pub fn put_leased(
        mut self,
        key: impl Into<String>,
        value: impl Into<Vec<u8>>,
        lease: LeaseId,
    ) -> Commit {
        let (key, value) = (key.into(), value.into());
        self.changes.push(Change::Put { key, value, lease: Some(lease) });
        self
    }

    pub fn delete(mut self, key: impl Into<String>) -> Commit {
        self.changes.push(Change::Delete { key: key.into() });
        self
    }

    pub fn delete_prefix(mut self, prefix: impl Into<String>) -> Commit {
        self.changes.push(Change::DeletePrefix { prefix: prefix.into() });
        self
    }
}

/// What became of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// All of it happened; what was put has this revision.
    Committed(Revision),
    /// Something that was compared did not hold, and nothing happened. `found` has the compared keys,
    /// in the order of the compares.
    Refused { revision: Revision, found: Vec<Option<Entry>> },
}

impl Outcome {
    pub fn committed(&self) -> Option<Revision> {
        match self {
            Outcome::Committed(revision) => Some(*revision),
            Outcome::Refused { .. } => None,
        }
    }
}

/// A change as watches tell it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    Put(Entry),
    Deleted { key: String, revision: Revision },
}

impl Event {
    pub fn key(&self) -> &str {
        match self {
            Event::Put(entry) => &entry.key,
            Event::Deleted { key, .. } => key,
        }
    }

    pub fn revision(&self) -> Revision {
        match self {
            Event::Put(entry) => entry.revision,
            Event::Deleted { revision, .. } => *revision,
        }
    }
}

/// Whole commits, in order: everything up to `revision` has been told then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    pub revision: Revision,
    pub changes: Vec<Event>,
}

/// What a watch has to say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seen {
    Changes(Events),
    /// Nothing within the time.
    Quiet,
    /// The history up to this revision is gone, and changes that were not told yet are in it: ask for
    /// the range again, and watch after the revision that it has.
    Compacted(Revision),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub cluster: String,
    pub revision: Revision,
}

/// What the registry says is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Alarm {
    /// The quota is used up: it refuses whatever takes room.
    NoSpace,
    /// Members' data differ.
    Corrupt,
    Other,
}

/// What an operator wants to know of a registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Of the program that serves it.
    pub version: String,
    pub identity: Identity,
    /// On its storage.
    pub bytes: u64,
    /// What of it is in use; the rest is taken back by a defragmentation.
    pub bytes_in_use: u64,
    /// Where it stops taking more; `None` if nothing but its file system bounds it, or nobody knows.
    pub quota: Option<u64>,
    pub alarms: Vec<Alarm>,
}
