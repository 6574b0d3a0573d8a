//! Whether a shadow file is what its record says, before a byte of it is believed.
//!
//! One comparison for all who meet what an earlier daemon left: recovery, check, salvage, and
//! whoever uses a file for the first time after a start. A byte on record that lies beyond the end
//! of the shadow is missing: a clean one is absent and is fetched again, a dirty one is lost, and
//! told ([`FileState::lose_beyond`]). It is never zero.
//!
//! What a crash may leave is no damage: a shadow grows before the record of it is made, and is cut
//! after, so it is never shorter than what counts.

use std::io;
use std::sync::Arc;

use forebay_backing::{Error, FileKind, Result, Timestamp};

use crate::engine::Engine;
use crate::file::{File, Inner};
use crate::log::FileId;
use crate::media::{Media, MediaStat};
use crate::state::{Boot, FileState};
use crate::tier::shadow_name;

/// What lies where a record says that a shadow is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Whatever it is, no byte in it counts.
    Unneeded,
    /// It has every byte that counts.
    Sound(MediaStat),
    /// It ends before the last byte that counts.
    Short(MediaStat),
    Missing,
    /// Something else has its name.
    Foreign(FileKind),
}

/// Compares the shadow of `state` with it. An error says nothing of the file, but of the medium.
pub fn look(media: &dyn Media, id: FileId, state: &FileState, boot: Boot) -> io::Result<Found> {
    let Some(need) = state.needs_shadow(boot) else { return Ok(Found::Unneeded) };
    match media.stat(&shadow_name(id)) {
        Ok(stat) => Ok(Found::of(stat, need)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Found::Missing),
        Err(e) => Err(e),
    }
}

/// Takes what is no shadow out of a shadow's place. Nobody knows whose it is: it is kept.
pub fn set_aside(media: &dyn Media, id: FileId) -> io::Result<()> {
    let name = shadow_name(id);
    media.rename(&name, &format!("{name}.not-a-shadow"))
}

impl Found {
    /// `need` is where the last byte that counts ends.
    pub fn of(stat: MediaStat, need: u64) -> Found {
        match stat.kind {
            FileKind::File if stat.len < need => Found::Short(stat),
            FileKind::File => Found::Sound(stat),
            kind => Found::Foreign(kind),
        }
    }

    pub fn is_sound(&self) -> bool {
        matches!(self, Found::Unneeded | Found::Sound(_))
    }

    /// The shadow's length and time of last change; `None` if there is none where one has to be.
    pub fn shadow(&self, state: &FileState) -> Option<(u64, Timestamp)> {
        match self {
            Found::Unneeded => Some((state.size, state.mtime)),
            Found::Sound(stat) | Found::Short(stat) => Some((stat.len, stat.mtime)),
            Found::Missing | Found::Foreign(_) => None,
        }
    }

    /// What is wrong, in words, if `lost` dirty bytes went with it.
    pub fn problem(&self, id: FileId, lost: u64) -> Option<String> {
        let what = match self {
            Found::Unneeded | Found::Sound(_) => return None,
            Found::Short(stat) => format!("has only {} bytes", stat.len),
            Found::Missing => "is missing".into(),
            Found::Foreign(kind) => format!("is {}", in_words(*kind)),
        };
        let gone = match lost {
            0 => "the rest is on the backing store".into(),
            lost => format!("{lost} dirty bytes are lost"),
        };
        Some(format!("{gone}: the shadow file {} {what}", shadow_name(id)))
    }
}

fn in_words(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "a file",
        FileKind::Dir => "a directory",
        FileKind::Symlink => "a symbolic link",
        FileKind::Fifo => "a FIFO",
        FileKind::Socket => "a socket",
        FileKind::Char | FileKind::Block => "a device",
    }
}

impl Engine {
    /// Compares the shadow that an earlier daemon left of a file with its record, when the file is
    /// used for the first time. What is dirty was compared at the start.
    pub(crate) fn prove_shadow(&self, file: &Arc<File>) -> Result<()> {
        self.prove_locked(file, &mut file.lock())
    }

    /// The same under the file's lock.
    ///
    /// # Errors
    ///
    /// EIO if the record was wrong, which it is no more: who has looked at it looks again.
    pub(crate) fn prove_locked(&self, file: &Arc<File>, inner: &mut Inner) -> Result<()> {
        if inner.proven {
            return Ok(());
        }
        let found = look(&**self.media(), file.id, &inner.state, Boot::Kept);
        let found = self.note_tier(found)?;
        inner.proven = true;
        let len = match found {
            Found::Unneeded | Found::Sound(_) => return Ok(()),
            Found::Short(stat) => stat.len,
            Found::Missing => 0,
            Found::Foreign(_) => {
                self.note_tier(set_aside(&**self.media(), file.id))?;
                0
            }
        };
        let lost = inner.state.lose_beyond(len);
        inner.live().thrown.note(0, u64::MAX);
        // Without this record the next daemon looks again.
        let _ = self.put(file, inner);
        self.account(file, inner);
        let path = inner.state.display_path().display().to_string();
        let what = found.problem(file.id, lost).unwrap_or_default();
        self.note_tier(Err(io::Error::other(format!("{path}: {what}"))))
            .map_err(|_| Error::os(libc::EIO, what))
    }
}
