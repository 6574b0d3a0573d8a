//! Copies that we keep for others.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_backing::{Error, FileKey, Result, Timestamp};

use crate::files::Files;

/// Files of other members that are dirty there, in this tier.
pub struct Copies {
    files: Arc<Files>,
}

/// A file of another member of which we have a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyInfo {
    pub file: FileKey,
    /// The number of the claim that it was made under.
    pub number: u64,
    pub path: PathBuf,
    /// Bytes of it that are newer than the backing store's.
    pub bytes: u64,
    pub mtime: Timestamp,
}

impl Copies {
    pub(crate) fn new(files: Arc<Files>) -> Copies {
        Copies { files }
    }

    /// Takes what [`Partners::keep`](crate::Partners::keep) or `fill` of the home `home` was handed.
    /// Durable on return. `number` is that of the claim.
    ///
    /// # Errors
    ///
    /// ENOSPC without room in the tier; ESTALE if the copies of this home are not what the words build
    /// upon, and have to be filled anew.
    pub fn keep(
        &self,
        home: &str,
        number: u64,
        file: FileKey,
        words: &[u8],
        bytes: &[u8],
    ) -> Result<()> {
        let _ = (home, number, file, words, bytes, &self.files);
        Err(Error::os(libc::ENOSYS, "copies"))
    }

    /// Takes what [`Partners::mark`](crate::Partners::mark) was handed.
    pub fn mark(&self, home: &str, words: &[u8]) -> Result<()> {
        let _ = (home, words);
        Err(Error::os(libc::ENOSYS, "copies"))
    }

    /// The copies that are kept for a home.
    pub fn list(&self, _home: &str) -> Vec<CopyInfo> {
        Vec::new()
    }

    /// The homes that copies are kept for.
    pub fn homes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Drops one copy; there need not be one.
    pub fn drop_copy(&self, _home: &str, _file: FileKey) -> Result<()> {
        Err(Error::os(libc::ENOSYS, "copies"))
    }

    /// Drops all copies of a home.
    pub fn drop_home(&self, _home: &str) -> Result<()> {
        Err(Error::os(libc::ENOSYS, "copies"))
    }
}
