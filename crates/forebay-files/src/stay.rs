//! Files whose bytes stay in the tier for a while.

use std::ops::Deref;
use std::sync::Arc;

use crate::Files;
use crate::file::{File, Inner};

/// A file of which no byte is evicted until this is dropped. Not to be dropped under the file's lock.
#[must_use]
pub struct Stay {
    files: Arc<Files>,
    file: Arc<File>,
}

impl Files {
    /// Keeps the present and future bytes of a file in the tier from being evicted.
    pub fn keep_in(self: &Arc<Self>, file: &Arc<File>) -> Stay {
        file.lock().keepers += 1;
        Stay { files: self.clone(), file: file.clone() }
    }
}

impl Inner {
    /// Whether clean bytes are not evicted: they are pinned, or kept for a while.
    pub fn stays(&self) -> bool {
        self.is_pinned() || self.keepers > 0
    }

    /// Returns the file's bytes that cannot be evicted now.
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
