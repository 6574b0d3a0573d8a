//! Taken-over files as they were when they were taken: the member that was their home finds by that, when it is
//! back, which of its bytes are old.

use std::sync::Arc;

use forebay_backing::{FileKey, Result};

use crate::core::taken::{Former, Piece, cut};
use crate::files::file::File;
use crate::files::live::Meanwhile;
use crate::ops::Ops;
use crate::tier::media::{MediaFile, torn};
use crate::tier::taken::{self, Making, Taken};

/// Pieces that are told at once: 1 MiB of them, of a GiB of a file.
const TOLD: usize = (1 << 20) / Piece::BYTES;

/// Opens of the file wait while its bytes are read for the note: of more bytes there is none, and the home that comes
/// back keeps what it has aside.
const NOTED_MAX: u64 = 4 << 30;

/// The former homes' view of a file that was taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint {
    pub size: u64,
    pub seed: u64,
}

impl Ops {
    /// Notes what an adopted file is, before anything of it changes here. Without the note a home that comes
    /// back keeps bytes aside that are old, which loses nothing.
    pub(super) fn note_as_taken(&self, file: &Arc<File>, from: &[Former]) {
        let is_long = file.lock().state.dirty_bytes() > NOTED_MAX;
        if from.is_empty() || is_long {
            return;
        }
        if let Err(error) = self.write_as_taken(file, from) {
            taken::remove(&**self.files.media(), file.key);
            tracing::warn!(%error, "a file that is taken over is not noted as it is: its former home may keep old bytes as a conflict");
        }
    }

    fn write_as_taken(&self, file: &Arc<File>, from: &[Former]) -> Result<()> {
        let mut inner = file.lock();
        let size = inner.size();
        let shadow = self.files.shadow(file, &mut inner)?;
        let dirty = inner.state.dirty(size);
        let _work = self.files.work_on(file, inner, Meanwhile::Refused);
        let made = Making::begin(&**self.files.media(), file.key, from, size);
        let mut making = self.files.note_tier(made)?;
        for (start, end) in dirty.into_iter().flat_map(cut) {
            let bytes = self.read_all(&*shadow, (start, end))?;
            self.files.note_tier(making.add(start, &bytes))?;
        }
        self.files.note_tier(making.end())
    }

    /// Reads a stretch of a shadow that must be there.
    pub(super) fn read_all(
        &self,
        shadow: &dyn MediaFile,
        (start, end): (u64, u64),
    ) -> Result<Vec<u8>> {
        let mut bytes = vec![0; (end - start) as usize];
        match self.files.note_tier(shadow.read_at(&mut bytes, start))? == bytes.len() {
            true => Ok(bytes),
            false => self.files.note_tier(Err(torn())),
        }
    }

    /// Reads the note on a file that this member took over from `home`: puts the pieces that end behind `offset` into
    /// `out`, as many as are told at once. Returns `None` if the file was not taken over from that home.
    ///
    /// # Errors
    ///
    /// Those of the tier.
    pub fn as_taken(
        &self,
        key: FileKey,
        home: &Former,
        offset: u64,
        out: &mut Vec<u8>,
    ) -> Result<Option<Fingerprint>> {
        let found = Taken::of(&**self.files.media(), key);
        let Some(taken) = found.filter(|it| it.what.from.contains(home)) else { return Ok(None) };
        self.files.note_tier(taken.pieces(offset, TOLD, out))?;
        Ok(Some(Fingerprint { size: taken.what.size, seed: taken.what.seed }))
    }

    /// Drops the notes on files whose last former home does not need them any more: `is_over` answers for a home.
    pub fn forget_as_taken(&self, is_over: &dyn Fn(&Former) -> bool) {
        let media = &**self.files.media();
        for key in taken::all(media) {
            let last = Taken::of(media, key).and_then(|mut taken| taken.what.from.pop());
            if last.is_none_or(|last| is_over(&last)) {
                taken::remove(media, key);
            }
        }
    }
}
