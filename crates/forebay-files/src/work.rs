//! I/O on the shadow of a file, ended even if its thread panics.

use std::sync::Arc;

use crate::Files;
use crate::file::{File, Inner};
use crate::live::Meanwhile;
use forebay_base::lock::MutexGuard;

/// I/O on the shadow in flight, which keeps it from being punched. Not to be dropped under the
/// file's lock.
pub struct AtWork<'a> {
    files: &'a Files,
    file: &'a Arc<File>,
    evictions: Meanwhile,
}

impl Files {
    /// Begins I/O on the shadow, and releases the lock.
    pub fn work_on<'a>(
        &'a self,
        file: &'a Arc<File>,
        mut inner: MutexGuard<'_, Inner>,
        evictions: Meanwhile,
    ) -> AtWork<'a> {
        *inner.live().mine().at_work(evictions) += 1;
        AtWork { files: self, file, evictions }
    }
}

impl AtWork<'_> {
    /// Ends the I/O under the lock that the caller has.
    pub fn end(self, inner: &mut Inner) {
        self.give_back(inner);
        std::mem::forget(self);
    }

    fn give_back(&self, inner: &mut Inner) {
        *inner.live().mine().at_work(self.evictions) -= 1;
        self.file.changed.notify_all();
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        let mut inner = self.file.lock();
        self.give_back(&mut inner);
        self.files.retire(self.file, inner);
    }
}
