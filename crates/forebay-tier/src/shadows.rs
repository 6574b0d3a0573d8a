//! Whether a shadow file is what its record says, before a byte of it is believed.
//!
//! One comparison for all code that meets shadows of an earlier daemon: recovery, check, salvage,
//! and the first use of a file after a start. A recorded byte beyond the end of the shadow is
//! missing: a clean one is absent and is fetched again, a dirty one is lost, and reported
//! ([`FileState::loss_beyond`]). It is never zero.
//!
//! A crash leaves no damage: a shadow grows before its record is made, and is cut after it, so it
//! is never shorter than its recorded bytes.

use std::io;

use forebay_backing::{FileKind, Timestamp};

use crate::core::id::FileId;
use crate::core::state::{Boot, FileState};
use crate::dir::shadow_name;
use crate::media::{Media, MediaStat};

/// The result of looking at the place of a shadow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// No byte of the shadow counts, whatever is in its place.
    Unneeded,
    /// The shadow has every byte that counts.
    Sound(MediaStat),
    /// The shadow ends before the last byte that counts.
    Short(MediaStat),
    Missing,
    /// Another kind of file has the shadow's name.
    Foreign(FileKind),
}

impl Found {
    /// Judges a shadow; `need` is the end of the last byte that counts.
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

    /// The shadow's length and time of last change; `None` if a needed shadow is missing.
    pub fn shadow(&self, state: &FileState) -> Option<(u64, Timestamp)> {
        match self {
            Found::Unneeded => Some((state.size(), state.mtime())),
            Found::Sound(stat) | Found::Short(stat) => Some((stat.len, stat.mtime)),
            Found::Missing | Found::Foreign(_) => None,
        }
    }

    /// The problem in words, if there is one; `lost` dirty bytes are lost with it.
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

/// Compares the shadow of `state` with it. An error is the medium's, and says nothing about the
/// file.
pub fn look(media: &dyn Media, id: FileId, state: &FileState, boot: Boot) -> io::Result<Found> {
    let Some(need) = state.needs_shadow(boot) else { return Ok(Found::Unneeded) };
    match media.stat(&shadow_name(id)) {
        Ok(stat) => Ok(Found::of(stat, need)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Found::Missing),
        Err(e) => Err(e),
    }
}

/// Renames a foreign file out of a shadow's place. Its owner is unknown, so it is kept.
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
