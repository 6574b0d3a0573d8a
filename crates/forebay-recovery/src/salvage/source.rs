//! The backing store as the source of a rescue.
//!
//! A rescue spares the store, or does not trust it. [`Source`] keeps the store to itself and offers
//! no call that changes it.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_backing::{Access, BackingFile, BackingStore, Error, FileKey, Result, Version};

pub struct Source<'a>(&'a dyn BackingStore);

/// A file of the store, to be read.
pub struct Theirs {
    file: Arc<dyn BackingFile>,
    pub version: Version,
}

impl<'a> Source<'a> {
    pub fn of(store: &'a dyn BackingStore) -> Source<'a> {
        Source(store)
    }

    /// Opens the file with this key, by the first of `names` that leads to it.
    ///
    /// # Errors
    ///
    /// ESTALE if the names lead to other files; else the store's error for the last one.
    pub fn open(&self, names: impl Iterator<Item = PathBuf>, key: FileKey) -> Result<Theirs> {
        let mut why = Error::os(libc::ENOENT, "it has no name");
        for name in names {
            match self.0.open_seen(&name, Access::Read) {
                Ok((file, attr)) if attr.key == key => {
                    return Ok(Theirs { file, version: attr.version() });
                }
                Ok(_) => why = Error::os(libc::ESTALE, format!("{} was replaced", name.display())),
                Err(error) => why = error,
            }
        }
        Err(why)
    }
}

impl Theirs {
    /// Fills `buf` with the bytes from `at` on.
    ///
    /// # Errors
    ///
    /// EIO if the file ends before.
    pub fn read(&self, buf: &mut [u8], at: u64) -> Result<()> {
        match self.file.read_at(buf, at)? == buf.len() {
            true => Ok(()),
            false => Err(Error::os(libc::EIO, "the file there is shorter now")),
        }
    }
}
