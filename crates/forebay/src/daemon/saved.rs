//! The state that outlasts a restart of the daemon, in `run/` of the tier: the list of jobs, so that
//! unfinished jobs go on and the results of ended ones stay, whether the tier is detached, and the newest
//! identity of the registry that was seen.
//! Files are replaced as a whole, by a rename. They need not survive a loss of power, after which the
//! tier is attached and the drain finds the dirty bytes by itself.

use std::io;

use forebay_backing::{Error, Result};
use forebay_base::folder::{Durable, Folder};
use forebay_engine::Attachment;
use forebay_registry::Identity;
use serde::{Deserialize, Serialize};

use crate::wire::{Job, NewJob};

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Saved {
    pub last_id: u64,
    pub jobs: Vec<SavedJob>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SavedJob {
    pub id: u64,
    pub asked: NewJob,
    pub started_unix_secs: f64,
    /// Absent while the job is unfinished.
    pub ended: Option<Job>,
}

pub const JOBS: &str = "jobs.json";
const ATTACHMENT: &str = "attachment.json";
pub const REGISTRY: &str = "registry.json";
const SORTED: &str = "sorted.json";

/// The line of this member in which its files had their standing last.
#[derive(Serialize, Deserialize)]
struct Sorted {
    /// The registry's cluster, and the answer of [`Contents::memory`](forebay_engine::Contents::memory): a tier that
    /// has lost bytes since may have forgotten what it gave back.
    place: String,
    line: u64,
}

/// The jobs that an earlier daemon left; none if there was no daemon.
pub fn load(run: &Folder) -> Saved {
    let read = run.read(JOBS).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
    read.unwrap_or_else(|error| {
        if error.kind() != io::ErrorKind::NotFound {
            let path = run.path().join(JOBS);
            tracing::warn!(%error, path = %path.display(), "the list of jobs is lost");
        }
        Saved::default()
    })
}

pub fn store(run: &Folder, saved: &Saved) {
    if let Err(error) = replace(run, JOBS, saved) {
        let path = run.path().join(JOBS);
        tracing::warn!(%error, path = %path.display(), "the list of jobs was not stored");
    }
}

fn replace(run: &Folder, name: &str, saved: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(saved).expect("wire types hold strings and numbers");
    run.replace(name, &text, Durable::No)
}

/// The state in which an earlier daemon left the tier; attached if no state is stored.
pub fn load_attachment(run: &Folder) -> Attachment {
    let read = run.read(ATTACHMENT).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
    read.unwrap_or_else(|error| {
        if error.kind() != io::ErrorKind::NotFound {
            let path = run.path().join(ATTACHMENT);
            tracing::warn!(%error, path = %path.display(), "taking the tier for attached");
        }
        Attachment::Attached
    })
}

pub fn store_attachment(run: &Folder, attachment: Attachment) -> Result<()> {
    replace(run, ATTACHMENT, &attachment)
        .map_err(|e| Error::io(e, run.path().join(ATTACHMENT).display().to_string()))
}

/// The newest identity of the registry that a mount with this tier has seen; `None` if it is not known.
pub fn load_registry(run: &Folder) -> Option<Identity> {
    let read = run.read(REGISTRY).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
    read.inspect_err(|error: &io::Error| {
        if error.kind() != io::ErrorKind::NotFound {
            let path = run.path().join(REGISTRY);
            tracing::warn!(%error, path = %path.display(), "what was seen of the registry is lost");
        }
    })
    .ok()
}

pub fn store_registry(run: &Folder, seen: &Identity) {
    if let Err(error) = replace(run, REGISTRY, seen) {
        let path = run.path().join(REGISTRY);
        tracing::debug!(%error, path = %path.display(), "what was seen of the registry was not stored");
    }
}

/// The line in which the tier's files had their standing last; `None` if it is not known.
pub fn load_sorted(run: &Folder, place: &str) -> Option<u64> {
    let sorted: Sorted = serde_json::from_slice(&run.read(SORTED).ok()?).ok()?;
    (sorted.place == place).then_some(sorted.line)
}

pub fn store_sorted(run: &Folder, place: &str, line: u64) {
    let sorted = Sorted { place: place.into(), line };
    if let Err(error) = replace(run, SORTED, &sorted) {
        let path = run.path().join(SORTED);
        tracing::warn!(%error, path = %path.display(), "which files are this member's own was not noted: a kill in the middle of a flush may leave a conflict for nothing");
    }
}
