//! Neighbours: the other mounts that an engine may ask for bytes of the store.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use forebay_backing::{FileKey, Version};

/// Other mounts of the same store, each of which reads a part of it for all.
pub trait Neighbours: Send + Sync {
    /// Fills `buf` with the bytes from `offset` on that the store had in this version of the file at
    /// `path`. `false` if the caller has to ask the store: the part is this mount's own, or no neighbour
    /// answers in time.
    fn read(&self, version: &Version, path: &Path, offset: u64, buf: &mut [u8]) -> bool;
}

/// The neighbours of one mount, if it has any.
#[derive(Clone, Default)]
pub struct Near(pub Option<Arc<dyn Neighbours>>);

impl fmt::Debug for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Near").field(&self.0.is_some()).finish()
    }
}

/// The standing of a file's names, where other members mount the store, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// This mount names the file.
    Own,
    /// Nobody has claimed the file: with bytes that the store lacks it is one that this mount has just made.
    Unclaimed,
    Others,
}

/// The files that this mount may name, where other members mount the store, too. Without a function: all.
#[derive(Clone, Default)]
pub struct Owned(pub Option<Arc<dyn Fn(FileKey) -> Naming + Send + Sync>>);

impl Owned {
    pub fn of(&self, file: FileKey) -> Naming {
        self.0.as_ref().map_or(Naming::Own, |of| of(file))
    }
}

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owned").field(&self.0.is_some()).finish()
    }
}
