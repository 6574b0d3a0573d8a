//! Shadow files for files that are made next: no program waits for a shadow to be made.
//!
//! A file that is created, closed and not written leaves its shadow for the next one: on ext4 each
//! removal makes the files made in the next minutes slower. In place of a shadow that was written, a new
//! one is made when the file is closed.
//!
//! A blank has its name from the start, by the id that its file will have. One that a crash leaves behind
//! has no record, and goes at the next start.

use std::sync::Arc;

use crate::core::id::FileId;
use crate::tier::media::MediaFile;

/// The most shadows in the stock; each is an open descriptor.
pub(crate) const KEPT: usize = 8;

/// The stock of empty shadow files, each with the id of the file that it is for.
#[derive(Default)]
pub(crate) struct Blanks {
    ready: Vec<Blank>,
    /// The number of shadows that are missing: new files took them, or found none.
    missing: usize,
}

pub(crate) struct Blank {
    pub id: FileId,
    pub shadow: Arc<dyn MediaFile>,
}

impl Blanks {
    pub fn take(&mut self) -> Option<Blank> {
        let blank = self.ready.pop()?;
        self.note_missing();
        Some(blank)
    }

    pub fn keep(&mut self, blank: Blank) {
        self.ready.push(blank);
        self.missing = self.missing.saturating_sub(1);
    }

    pub fn note_missing(&mut self) {
        self.missing = KEPT.min(self.missing + 1);
    }

    pub fn wants_more(&self) -> bool {
        self.missing > 0 && self.ready.len() < KEPT
    }

    /// Empties the stock, and returns the ids of the shadows, which are to be removed.
    pub fn clear(&mut self) -> impl Iterator<Item = FileId> {
        std::mem::take(self).ready.into_iter().map(|blank| blank.id)
    }
}
