//! A read-only list of the bytes in an unused tier that are not on the backing store, for an
//! operator who has to decide what a dead node's flash is worth.

use std::path::{Path, PathBuf};

use forebay_backing::{Error, Result};
use serde::Serialize;

use crate::tier::dir as tier;
use crate::tier::index;
use crate::tier::media::Media;
use crate::tier::shadows;
use crate::tier::shelf::Found;
use crate::tier::witness::Witness;
use crate::time::Time;

/// A file with bytes that the backing store lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unflushed {
    pub path: PathBuf,
    pub dirty_bytes: u64,
    /// When the oldest of them was written, in milliseconds since the epoch; 0 if that is not known.
    pub since_ms: u64,
    /// The home whose copy it is; `None`: it is the tier's own file.
    pub home: Option<String>,
}

/// Lists the files of the tier `dir`, and of the copies that it keeps for others, with bytes that the
/// backing store lacks: as a mount would find them, in the order of homes and paths. Changes nothing.
///
/// # Errors
///
/// If `dir` is no tier, or the tier is in use or cannot be read.
pub fn manifest(dir: &Path) -> Result<Vec<Unflushed>> {
    let tier = tier::open_existing(dir)?;
    manifest_on(&tier.media)
        .map_err(|e| Error::io(e, format!("reading the tier {}", dir.display())))
}

/// The same for a tier on any medium.
///
/// # Errors
///
/// If it cannot be read.
pub fn manifest_on(media: &dyn Media) -> std::io::Result<Vec<Unflushed>> {
    let now = Witness::here(media);
    let loaded = index::load_read_only(media, &now)?;
    let boot = loaded.boot(&now);
    let is_ours = |id, file| loaded.files.get(&id).is_some_and(|it| it.key == file);
    let found = Found::read(media, boot, &is_ours)?;
    let mut list = Vec::new();
    for (id, mut record) in loaded.files {
        let shadow = shadows::look(media, id, &record, boot)?.shadow(&record);
        // Kept bytes may count as newer after a loss of power, and bytes that were never synced are gone.
        record.recover(boot, shadow, Time::default().ms());
        if record.is_dirty() {
            list.push(Unflushed {
                path: record.display_path(),
                dirty_bytes: record.dirty_bytes(),
                since_ms: record.dirty_since(),
                home: None,
            });
        }
    }
    for (home, portrait) in found.copies() {
        list.push(Unflushed {
            path: portrait.first_path(),
            dirty_bytes: portrait.ranges.bytes(|_| true),
            since_ms: portrait.since,
            home: Some(home.into()),
        });
    }
    list.sort_by(|a, b| (&a.home, &a.path).cmp(&(&b.home, &b.path)));
    Ok(list)
}
