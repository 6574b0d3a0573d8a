//! Files that somebody has open.

use std::ops::Deref;
use std::sync::Arc;

use crate::Files;
use crate::file::{File, Inner};
use forebay_base::lock::MutexGuard;

/// A file that is open, until this is dropped: not under the file's lock.
#[must_use]
pub struct OpenFile {
    files: Arc<Files>,
    file: Arc<File>,
}

impl Files {
    /// Opens a file that is not gone, and lets its lock go.
    pub fn open(self: &Arc<Self>, file: &Arc<File>, mut inner: MutexGuard<'_, Inner>) -> OpenFile {
        inner.live().mine().opens += 1;
        drop(inner);
        OpenFile { files: self.clone(), file: file.clone() }
    }
}

impl Deref for OpenFile {
    type Target = Arc<File>;

    fn deref(&self) -> &Arc<File> {
        &self.file
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let OpenFile { files, file } = self;
        let mut inner = file.lock();
        let live = inner.live().mine();
        live.opens -= 1;
        if live.opens == 0 {
            live.backing = None;
            if !inner.only_descriptor() {
                inner.live().mine().target = None;
            }
            files.give_back(&mut inner);
            // Nobody syncs it any more. Lost with the power, the record is made anew.
            let _ = files.let_go_of(file, &mut inner, 0, u64::MAX);
        }
        files.retire(file, inner);
    }
}
