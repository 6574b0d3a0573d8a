//! What in a tier that nobody uses is not on the backing store: a read-only listing, for who has to
//! decide what a dead node's flash is worth.

use std::path::{Path, PathBuf};

use forebay_backing::{Error, Result};
use serde::Serialize;

/// A file with bytes that the backing store has not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unflushed {
    pub path: PathBuf,
    pub dirty_bytes: u64,
    /// When the oldest of them was written, in milliseconds since the epoch; 0 if nobody knows.
    pub since_ms: u64,
    /// Whose copy it is; `None`: it is the tier's own file.
    pub home: Option<String>,
}

/// Lists what in the tier `dir`, and in the copies that it keeps for others, is not on the backing store.
/// Changes nothing.
///
/// # Errors
///
/// If the tier is in use, is none, or cannot be read.
pub fn manifest(_dir: &Path) -> Result<Vec<Unflushed>> {
    Err(Error::os(libc::ENOSYS, "manifest"))
}
