//! Whether a shadow file is what its record says, before a byte of it is believed.
//!
//! One comparison for all who meet what an earlier daemon left: recovery, check, salvage, and
//! whoever uses a file for the first time after a start. A byte on record that lies beyond the end
//! of the shadow is missing: a clean one is absent and is fetched again, a dirty one is lost, and
//! told ([`FileState::loss_beyond`]). It is never zero.
//!
//! What a crash may leave is no damage: a shadow grows before the record of it is made, and is cut
//! after, so it is never shorter than what counts.

use std::io;

use forebay_backing::{FileKind, Timestamp};

use crate::core::id::FileId;
use crate::core::state::{Boot, FileState};
use crate::dir::shadow_name;
use crate::media::{Media, MediaStat};

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
            Found::Unneeded => Some((state.size(), state.mtime())),
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
