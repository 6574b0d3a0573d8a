//! The treatment of a shadow file after a sync of it has failed.
//!
//! The kernel reports a page that it could not write once for each descriptor, and counts it as
//! written from then on (`errseq_t`, `Documentation/core-api/errseq.rst`). A sync that succeeds
//! beside a failed one, or after it, proves nothing.

use std::io;
use std::sync::Arc;

use forebay_backing::{Error, Result};

use crate::Files;
use crate::core::id::FileId;
use crate::core::state::Change;
use crate::failpoint;
use crate::file::{File, Inner};
use crate::tier::dir::shadow_dir;
use crate::tier::media::MediaFile;

impl Files {
    /// Makes the bytes of a shadow durable, and its name, unless the name is so already (`named`).
    pub fn sync_shadow(&self, id: FileId, shadow: &dyn MediaFile, named: bool) -> io::Result<()> {
        match named {
            _ if failpoint::skips_sync("shadow") => Ok(()),
            true => shadow.sync_data(),
            false => self.media().sync_new(shadow, &shadow_dir(id)),
        }
    }

    /// Notes the result of a sync; before the end of the work on the file, or another thread would
    /// take the name for durable.
    ///
    /// # Errors
    ///
    /// The sync's own, and EIO if an earlier sync has failed.
    pub fn note_shadow_sync(
        &self,
        file: &Arc<File>,
        inner: &mut Inner,
        synced: io::Result<()>,
    ) -> Result<()> {
        match &synced {
            Ok(()) => inner.live().mine().named = true,
            // On record: the kernel will not report the error again, not even after a restart.
            Err(_) if !inner.state.is_unsynced() => {
                let _ = self.commit_anyway(file, inner, Change::Unsynced);
            }
            Err(_) => {}
        }
        // The content of writes past the daemon is known nowhere else.
        if inner.state.is_unsynced() && (inner.state.is_unseen() || inner.doubt().is_some()) {
            self.declare_unsynced(file, inner);
        }
        self.note_tier(synced)?;
        refuse_after_failure(inner)
    }
}

/// Refuses to trust syncs of a shadow once one has failed: then dirty bytes are durable when they
/// are on the store.
pub fn refuse_after_failure(inner: &Inner) -> Result<()> {
    let why = "the fast tier has failed to sync this file: it is not durable until it is flushed";
    if inner.state.is_unsynced() && inner.state.is_dirty() {
        Err(Error::os(libc::EIO, why))
    } else {
        Ok(())
    }
}
