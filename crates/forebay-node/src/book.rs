//! The registry as the node daemon reads and changes it: typed records, and changes that presume the records on
//! which they were decided.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use forebay_base::lock::{self, Mutex, Rank};
use forebay_base::{Error, Kind, Result};
use forebay_registry::{Change, Commit, Compare, LeaseId, Outcome, Registry, Watch};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::records::{Missing, keys, read, written};

/// How often a decision is made again after others have changed a record on which it stood.
const TRIES: u32 = 64;

/// The first pause before a decision is made again; from the sixteenth on all pauses are equal.
const PAUSE: Duration = Duration::from_millis(1);

/// How many unreadable records are remembered as reported; beyond that they are reported again.
const TOLD_MAX: usize = 1024;

#[derive(Clone)]
pub struct Book {
    registry: Arc<dyn Registry>,
    /// Keys and revisions of records that could not be read.
    told: Arc<Mutex<BTreeSet<(String, u64)>>>,
}

/// Records below a prefix, by the rest of their keys.
#[derive(Debug)]
pub struct Listed<T> {
    pub read: Vec<(String, T)>,
    /// Records that this version does not understand, as far as they are JSON: a newer node has written them.
    /// They exist all the same, and nothing may be done as if they did not.
    pub unread: Vec<(String, Value)>,
}

/// The comparisons and changes of one commit. Every record that the draft reads is presumed to be unchanged at
/// the commit: no decision rests on a stale read.
pub struct Draft<'b> {
    book: &'b Book,
    compares: Vec<Compare>,
    changes: Vec<Change>,
}

impl Book {
    pub fn new(registry: Arc<dyn Registry>) -> Book {
        Book { registry, told: Arc::new(Mutex::new(Rank::NodeNotes, BTreeSet::new())) }
    }

    pub fn registry(&self) -> &Arc<dyn Registry> {
        &self.registry
    }

    pub fn read<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        let (entry, _) = self.registry.get(key)?;
        entry.map(|entry| read(key, &entry.value)).transpose()
    }

    /// All records below a prefix, by the rest of their keys.
    pub fn list<T: DeserializeOwned>(&self, prefix: &str) -> Result<Vec<(String, T)>> {
        let (entries, _) = self.registry.range(prefix)?;
        let named = |key: &str| key.strip_prefix(prefix).unwrap_or(key).to_string();
        entries
            .iter()
            .map(|entry| Ok((named(&entry.key), read(&entry.key, &entry.value)?)))
            .collect()
    }

    /// As [`Book::list`]; a record that cannot be read costs only itself, and is reported once.
    pub fn list_some<T: DeserializeOwned>(&self, prefix: &str) -> Result<Listed<T>> {
        let (entries, _) = self.registry.range(prefix)?;
        let mut listed = Listed { read: Vec::new(), unread: Vec::new() };
        for entry in entries {
            let name = entry.key.strip_prefix(prefix).unwrap_or(&entry.key).to_string();
            match read(&entry.key, &entry.value) {
                Ok(record) => listed.read.push((name, record)),
                Err(error) => {
                    self.tell_once(&entry.key, entry.revision.0, &error);
                    let value = serde_json::from_slice(&entry.value).unwrap_or_default();
                    listed.unread.push((name, value));
                }
            }
        }
        Ok(listed)
    }

    /// The lines of all nodes' manifests, by `NODE/INSTANCE/WHO`.
    pub fn manifest(&self) -> Result<Vec<(String, Missing)>> {
        crate::manifest::lines(self, keys::MANIFEST)
    }

    fn tell_once(&self, key: &str, revision: u64, error: &Error) {
        let mut told = self.told.lock();
        if told.len() >= TOLD_MAX {
            told.clear();
        }
        if told.insert((key.into(), revision)) {
            tracing::warn!("{error}: it is left alone");
        }
    }

    /// Makes a change without comparisons.
    pub fn put(&self, key: &str, value: &impl Serialize) -> Result<()> {
        self.change(key, |draft| {
            draft.put(key, value);
            Ok(())
        })
    }

    pub fn delete(&self, key: &str) -> Result<()> {
        self.change(key, |draft| {
            draft.delete(key);
            Ok(())
        })
    }

    /// Writes a record that lasts as long as a lease.
    pub fn put_leased(&self, key: &str, value: &impl Serialize, lease: LeaseId) -> Result<()> {
        let put = Change::Put { key: key.into(), value: written(value), lease: Some(lease) };
        self.registry.commit(&Commit { compares: Vec::new(), changes: vec![put] }).map(|_| ())
    }

    /// Watches the changes below a prefix from now on.
    pub fn watch(&self, prefix: &str) -> Result<Box<dyn Watch>> {
        let now = self.registry.barrier()?;
        self.registry.watch(prefix, now)
    }

    /// Decides and commits, again if the records of the decision have changed meanwhile. `what` is for the
    /// message if others are always faster.
    pub fn change<R>(
        &self,
        what: &str,
        mut decide: impl FnMut(&mut Draft<'_>) -> Result<R>,
    ) -> Result<R> {
        for turn in 0..TRIES {
            let mut draft = Draft { book: self, compares: Vec::new(), changes: Vec::new() };
            let decided = decide(&mut draft)?;
            let commit = Commit { compares: draft.compares, changes: draft.changes };
            if commit.changes.is_empty() {
                return Ok(decided);
            }
            if let Outcome::Committed(_) = self.registry.commit(&commit)? {
                return Ok(decided);
            }
            lock::sleep(pause(turn));
        }
        let why = format!("registry: {what}: others changed it {TRIES} times; try again");
        Err(Error::new(Kind::Unavailable, why))
    }
}

/// The pause grows from turn to turn, and differs between processes.
fn pause(turn: u32) -> Duration {
    let spread = Duration::from_micros(u64::from(std::process::id() % 1000));
    PAUSE * turn.min(16) + spread
}

impl Draft<'_> {
    pub fn read<T: DeserializeOwned>(&mut self, key: &str) -> Result<Option<T>> {
        let (entry, _) = self.book.registry.get(key)?;
        let compare = match &entry {
            Some(entry) => Compare::Revision(key.into(), entry.revision),
            None => Compare::Absent(key.into()),
        };
        // A record that is read twice is compared once; if the two reads differ, the commit fails.
        if !self.compares.contains(&compare) {
            self.compares.push(compare);
        }
        entry.map(|entry| read(key, &entry.value)).transpose()
    }

    /// Reads a record without a comparison: the commit is right even if the record changes meanwhile, as if the
    /// commit had come first.
    pub fn look<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        self.book.read(key)
    }

    pub fn put(&mut self, key: &str, value: &impl Serialize) {
        self.changes.push(Change::Put { key: key.into(), value: written(value), lease: None });
    }

    pub fn delete(&mut self, key: &str) {
        self.changes.push(Change::Delete { key: key.into() });
    }
}
