//! The inputs and results of a registry. All of them can be sent through a socket.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The number of a commit of a registry.
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

/// The id of a lease: never zero, and never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// A key with its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub key: String,
    #[serde(with = "crate::bytes")]
    pub value: Vec<u8>,
    /// The revision of the last change.
    pub revision: Revision,
    pub lease: Option<LeaseId>,
}

/// A condition for a commit.
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

/// Changes that happen together, and their conditions. A commit may change no key twice.
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

    /// Adds the condition that the key does not exist.
    pub fn if_absent(mut self, key: impl Into<String>) -> Commit {
        self.compares.push(Compare::Absent(key.into()));
        self
    }

    pub fn if_present(mut self, key: impl Into<String>) -> Commit {
        self.compares.push(Compare::Present(key.into()));
        self
    }

    /// Adds the condition that the key was not changed since `entry` was read.
    pub fn if_unchanged(mut self, entry: &Entry) -> Commit {
        self.compares.push(Compare::Revision(entry.key.clone(), entry.revision));
        self
    }

    /// Adds the condition that the key is as it was found, or still missing.
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

/// The outcome of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The whole commit happened; the keys it put have this revision.
    Committed(Revision),
    /// A compare did not hold at this revision, and nothing happened. The compared keys are not returned: etcd would
    /// carry each of them a third time in every commit, to all its members.
    Refused(Revision),
}

impl Outcome {
    pub fn committed(&self) -> Option<Revision> {
        match self {
            Outcome::Committed(revision) => Some(*revision),
            Outcome::Refused(_) => None,
        }
    }
}

/// A change as watches report it.
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

/// Whole commits, in order: with them everything up to `revision` has been reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    pub revision: Revision,
    pub changes: Vec<Event>,
}

/// The result of a watch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seen {
    Changes(Events),
    /// No change within the time.
    Quiet,
    /// The history up to this revision is gone, with changes that were not reported yet: ask for the
    /// range again, and watch after its revision.
    Compacted(Revision),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub cluster: String,
    pub revision: Revision,
}

/// An alarm that the registry reports about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Alarm {
    /// The quota is used up: requests that take room are refused.
    NoSpace,
    /// The data of members differ.
    Corrupt,
    Other,
}

/// The facts about a registry for an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// The version of the serving program.
    pub version: String,
    pub identity: Identity,
    /// Bytes on the registry's storage.
    pub bytes: u64,
    /// The part of it in use; a defragmentation frees the rest.
    pub bytes_in_use: u64,
    /// The most bytes; `None` if only the file system bounds them, or the bound is unknown.
    pub quota: Option<u64>,
    pub alarms: Vec<Alarm>,
}
