//! Open files.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use crate::Files;
use crate::file::{File, Inner};
use forebay_base::lock::MutexGuard;

/// A file that is open until this is dropped. Not to be dropped under the file's lock.
#[must_use]
pub struct OpenFile {
    files: Arc<Files>,
    file: Arc<File>,
    /// The number of failed syncs of the backing file that this opener knows of.
    told: AtomicU64,
}

impl Files {
    /// Opens a file that is not gone, and releases its lock.
    pub fn open(self: &Arc<Self>, file: &Arc<File>, mut inner: MutexGuard<'_, Inner>) -> OpenFile {
        let live = inner.live().mine();
        live.opens += 1;
        let told = AtomicU64::new(live.failed_syncs);
        drop(inner);
        OpenFile { files: self.clone(), file: file.clone(), told }
    }

    /// Notes that a sync of the backing file has failed: bytes that were written around the tier
    /// may be lost, whichever opener wrote them.
    pub fn note_failed_sync(&self, file: &File) {
        file.lock().live().mine().failed_syncs += 1;
    }
}

impl OpenFile {
    /// Whether a sync of the backing file has failed since this opener was last told. Each opener
    /// is told once, as by the kernel's `errseq_t`.
    pub fn hears_of_failed_sync(&self) -> bool {
        let mut inner = self.file.lock();
        let failed = inner.live().mine().failed_syncs;
        drop(inner);
        self.told.swap(failed, SeqCst) < failed
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
        let OpenFile { files, file, .. } = self;
        let mut inner = file.lock();
        let live = inner.live().mine();
        live.opens -= 1;
        if live.opens == 0 {
            live.backing = None;
            if !inner.only_descriptor() {
                inner.live().mine().target = None;
            }
            files.give_back(&mut inner);
            // No program can sync the file any more. If this record is lost with the power, it is made anew.
            let _ = files.let_go_of(file, &mut inner, 0, u64::MAX);
        }
        files.retire(file, inner);
    }
}
