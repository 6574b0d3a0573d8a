//! What is thought of a shadow once a sync of it has failed.
//!
//! The kernel tells of a page that it could not write once for each descriptor, and counts it as written from then on
//! (`errseq_t`, `Documentation/core-api/errseq.rst`). A sync that succeeds beside one that fails, or after it, says nothing.

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
    /// Makes what is in a shadow durable, and its name, unless that is `named` already.
    pub fn sync_shadow(&self, id: FileId, shadow: &dyn MediaFile, named: bool) -> io::Result<()> {
        match named {
            _ if failpoint::skips_sync("shadow") => Ok(()),
            true => shadow.sync_data(),
            false => self.media().sync_new(shadow, &shadow_dir(id)),
        }
    }

    /// Takes note of how a sync ended; before the end of the work on the file, or another would take its name for durable.
    ///
    /// # Errors
    ///
    /// Its own, and EIO if an earlier one has failed.
    pub fn note_shadow_sync(
        &self,
        file: &Arc<File>,
        inner: &mut Inner,
        synced: io::Result<()>,
    ) -> Result<()> {
        match &synced {
            Ok(()) => inner.live().mine().named = true,
            // On record: the kernel will not tell of it again, whoever asks after a restart.
            Err(_) if !inner.state.is_unsynced() => {
                let _ = self.commit_anyway(file, inner, Change::Unsynced);
            }
            Err(_) => {}
        }
        // Of what was written past us nobody else knows what it was.
        if inner.state.is_unsynced() && (inner.state.is_unseen() || inner.doubt().is_some()) {
            self.declare_unsynced(file, inner);
        }
        self.note_tier(synced)?;
        refuse_after_failure(inner)
    }
}

/// Whether syncs of a shadow may be believed: once one has failed what is dirty of the file is durable when it is on the
/// store.
pub fn refuse_after_failure(inner: &Inner) -> Result<()> {
    let why = "the fast tier has failed to sync this file: it is not durable until it is flushed";
    if inner.state.is_unsynced() && inner.state.is_dirty() {
        Err(Error::os(libc::EIO, why))
    } else {
        Ok(())
    }
}
