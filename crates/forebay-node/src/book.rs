//! The registry as the node daemon reads and changes it: typed records, and changes that presume what
//! they were decided on.

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

/// Others may change what a decision stood on; so often it is made again.
const TRIES: u32 = 64;

/// The first pause before it is made again; the sixteenth is as long as all others from there.
const PAUSE: Duration = Duration::from_millis(1);

/// Records that cannot be read and were told of; beyond it they are told again.
const TOLD_MAX: usize = 1024;

#[derive(Clone)]
pub struct Book {
    registry: Arc<dyn Registry>,
    /// Keys and revisions of records that could not be read.
    told: Arc<Mutex<BTreeSet<(String, u64)>>>,
}

/// Records below a prefix, by what follows it in their keys.
#[derive(Debug)]
pub struct Listed<T> {
    pub read: Vec<(String, T)>,
    /// What this version does not understand, as far as it is JSON: a newer node has written it. It is
    /// there all the same, and nothing may be done as if it were not.
    pub unread: Vec<(String, Value)>,
}

/// What a change presumes and does. Every record that it reads is presumed to be unchanged when it is
/// committed, so that no decision rests on a stale read.
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

    /// All records below a prefix, by what follows it in their keys.
    pub fn list<T: DeserializeOwned>(&self, prefix: &str) -> Result<Vec<(String, T)>> {
        let (entries, _) = self.registry.range(prefix)?;
        let named = |key: &str| key.strip_prefix(prefix).unwrap_or(key).to_string();
        entries
            .iter()
            .map(|entry| Ok((named(&entry.key), read(&entry.key, &entry.value)?)))
            .collect()
    }

    /// As [`Book::list`]; a record that cannot be read costs only itself, and is told of once.
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

    /// What is not home on all nodes, by `NODE/INSTANCE/WHO`.
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

    /// Makes a change that presumes nothing.
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

    /// Announces something for as long as a lease lasts.
    pub fn put_leased(&self, key: &str, value: &impl Serialize, lease: LeaseId) -> Result<()> {
        let put = Change::Put { key: key.into(), value: written(value), lease: Some(lease) };
        self.registry.commit(&Commit { compares: Vec::new(), changes: vec![put] }).map(|_| ())
    }

    /// What changes below a prefix from now on.
    pub fn watch(&self, prefix: &str) -> Result<Box<dyn Watch>> {
        let now = self.registry.barrier()?;
        self.registry.watch(prefix, now)
    }

    /// Decides and commits, again if what the decision stood on has changed meanwhile. `what` is for
    /// the message if others are always faster.
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

/// Longer from turn to turn, and different for different processes.
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
        // What is read twice is compared once; two that differ let the commit fail.
        if !self.compares.contains(&compare) {
            self.compares.push(compare);
        }
        entry.map(|entry| read(key, &entry.value)).transpose()
    }

    /// Reads what the commit holds also without: it is as if it had come before whatever changes that meanwhile.
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
