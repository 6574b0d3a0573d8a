//! The list of jobs in the tier, so that a restart of the daemon neither ends an unfinished one nor
//! forgets how another ended. Replaced as a whole, by a rename; it need not survive a loss of
//! power, after which the drain finds what is dirty by itself.

use std::io;
use std::path::{Path, PathBuf};

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
    /// Absent while it is unfinished.
    pub ended: Option<Job>,
}

pub fn path(tier: &Path) -> PathBuf {
    tier.join("run").join("jobs.json")
}

/// What an earlier daemon left; nothing if there was none.
pub fn load(path: &Path) -> Saved {
    let read = std::fs::read(path).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
    read.unwrap_or_else(|error| {
        if error.kind() != io::ErrorKind::NotFound {
            tracing::warn!(%error, path = %path.display(), "the list of jobs is lost");
        }
        Saved::default()
    })
}

pub fn store(path: &Path, saved: &Saved) {
    let text = serde_json::to_vec(saved).expect("wire types hold strings and numbers");
    let new = path.with_extension("json.new");
    let stored = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
    if let Err(error) = stored {
        tracing::warn!(%error, path = %path.display(), "the list of jobs was not stored");
    }
}
