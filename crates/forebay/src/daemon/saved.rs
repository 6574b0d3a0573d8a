//! What a restart of the daemon must not forget, in `run/` of the tier: the list of jobs, so that it
//! neither ends an unfinished one nor forgets how another ended, and whether the tier is detached.
//! Files are replaced as a whole, by a rename; they need not survive a loss of power, after which
//! the tier is attached and the drain finds what is dirty by itself.

use std::io;
use std::path::{Path, PathBuf};

use forebay_backing::{Error, Result};
use forebay_engine::Attachment;
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
    if let Err(error) = replace(path, saved) {
        tracing::warn!(%error, path = %path.display(), "the list of jobs was not stored");
    }
}

fn replace(path: &Path, saved: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(saved).expect("wire types hold strings and numbers");
    let new = path.with_extension("json.new");
    std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path))
}

fn attachment_path(tier: &Path) -> PathBuf {
    tier.join("run").join("attachment.json")
}

/// How an earlier daemon left the tier; attached if it does not say.
pub fn load_attachment(tier: &Path) -> Attachment {
    let path = attachment_path(tier);
    let read = std::fs::read(&path).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
    read.unwrap_or_else(|error| {
        if error.kind() != io::ErrorKind::NotFound {
            tracing::warn!(%error, path = %path.display(), "taking the tier for attached");
        }
        Attachment::Attached
    })
}

pub fn store_attachment(tier: &Path, attachment: Attachment) -> Result<()> {
    let path = attachment_path(tier);
    replace(&path, &attachment).map_err(|e| Error::io(e, path.display().to_string()))
}
