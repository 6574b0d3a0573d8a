//! Files that change owners among the members of a store: taken over from one that is dead, or found to
//! be taken over by who comes back.

use std::path::PathBuf;

use forebay_backing::{Error, FileKey, Result};

use crate::ops::Ops;

/// A file that another member took over while it was dirty here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupersededFile {
    pub file: FileKey,
    pub path: PathBuf,
    pub dirty_bytes: u64,
}

impl Ops {
    /// Makes the copy of a home's file a dirty file of our own, durably, and holds it
    /// ([`Ops::hold_taken`]). One that was adopted before is left as it is.
    ///
    /// # Errors
    ///
    /// ENOENT if there is no copy; EBUSY if the file is dirty here otherwise.
    pub fn adopt(&self, _home: &str, _file: FileKey) -> Result<()> {
        Err(Error::os(libc::ENOSYS, "adopt"))
    }

    /// Drops a file that was adopted, whatever is dirty of it: its home is back.
    pub fn disown(&self, _file: FileKey) -> Result<()> {
        Err(Error::os(libc::ENOSYS, "disown"))
    }

    /// What is flushed of the file stays, to be flushed again: its former home may still write to the
    /// backing file. It is not at rest until [`Ops::settle_taken`].
    pub fn hold_taken(&self, _file: FileKey) -> Result<()> {
        Err(Error::os(libc::ENOSYS, "hold"))
    }

    /// The former home writes no more: flushes again what was flushed meanwhile, and lets go.
    pub fn settle_taken(&self, _file: FileKey) -> Result<()> {
        Err(Error::os(libc::ENOSYS, "settle"))
    }

    /// Another member took the file over while we were away: it is not flushed any more.
    pub fn supersede(&self, _file: FileKey) -> Result<()> {
        Err(Error::os(libc::ENOSYS, "supersede"))
    }

    /// The files that are superseded and wait for a comparison, or for a decision.
    pub fn superseded(&self) -> Vec<SupersededFile> {
        Vec::new()
    }

    /// Compares a superseded file with what it is now, of `size` bytes that `read` reads as
    /// [`Io::read`](crate::Io::read) does. The same: what is here is dropped, and `true`. Else it stays in
    /// conflict, for `resolve`.
    pub fn compare_superseded(
        &self,
        _file: FileKey,
        _size: u64,
        _read: &dyn Fn(u64, &mut [u8]) -> Result<usize>,
    ) -> Result<bool> {
        Err(Error::os(libc::ENOSYS, "supersede"))
    }
}
