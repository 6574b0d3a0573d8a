//! Whom else an engine may ask for bytes of the store.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use forebay_backing::{FileKey, Version};

/// Other mounts of the same store, of which each reads a part of it for all.
pub trait Neighbours: Send + Sync {
    /// Fills `buf` with what the file at `path` has from `offset` on as the store had it in this version.
    /// `false` if the store is to be asked: the part is this mount's own, or nobody answers in time.
    fn read(&self, version: &Version, path: &Path, offset: u64, buf: &mut [u8]) -> bool;
}

/// Those of one mount, if it has any.
#[derive(Clone, Default)]
pub struct Near(pub Option<Arc<dyn Neighbours>>);

impl fmt::Debug for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Near").field(&self.0.is_some()).finish()
    }
}

/// Which files are this mount's to name, where others mount the store, too. Without it all are.
#[derive(Clone, Default)]
pub struct Owned(pub Option<Arc<dyn Fn(FileKey) -> bool + Send + Sync>>);

impl Owned {
    pub fn is_own(&self, file: FileKey) -> bool {
        self.0.as_ref().is_none_or(|is_own| is_own(file))
    }
}

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owned").field(&self.0.is_some()).finish()
    }
}
