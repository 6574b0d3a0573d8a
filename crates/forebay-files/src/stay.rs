//! Files whose bytes are to stay in the tier for a while.

use std::ops::Deref;
use std::sync::Arc;

use crate::Files;
use crate::file::{File, Inner};

/// A file of which nothing is evicted until this is dropped: not under the file's lock.
#[must_use]
pub struct Stay {
    files: Arc<Files>,
    file: Arc<File>,
}

impl Files {
    /// Keeps what the tier has of a file, and what comes, from being evicted.
    pub fn keep_in(self: &Arc<Self>, file: &Arc<File>) -> Stay {
        file.lock().keepers += 1;
        Stay { files: self.clone(), file: file.clone() }
    }
}

impl Inner {
    /// Whether its clean bytes are not evicted: they are pinned, or somebody needs them for a while.
    pub fn stays(&self) -> bool {
        self.is_pinned() || self.keepers > 0
    }

    /// Bytes of it that nobody could evict now.
    pub fn staying(&self) -> u64 {
        let all = self.stays() || self.is_passed();
        if all { self.charged } else { self.dirty_charged() }
    }
}

impl Deref for Stay {
    type Target = Arc<File>;

    fn deref(&self) -> &Arc<File> {
        &self.file
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        let mut inner = self.file.lock();
        inner.keepers -= 1;
        if !inner.gone {
            self.files.retire(&self.file, inner);
        }
    }
}
