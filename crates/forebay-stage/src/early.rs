//! Uses the tree that an earlier run made beside its place, if another program has made a directory there since: the
//! tree is merged into that directory, file by file, without being copied again.
//!
//! A file gets a second, temporary name in its final directory, and goes on from there as a copy does. Its name in
//! the tree beside stays until the tree is removed: after any interruption the next run finds the file again. Files
//! that cannot get a second name, as across a mount below, are copied.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use rustix::fs::{self, AtFlags, FileType, Stat};
use rustix::io::Errno;

use crate::beneath::{Pair, find, look, open_dir};
use crate::directories::reopen;
use crate::file::unchanged;
use crate::journal::{Begun, Key, Version, pieces_name, temp_name};
use crate::publish::Ready;
use crate::queue::FileTask;
use crate::report::{Tried, destination};
use crate::transfer::Engine;

impl Engine<'_> {
    /// The path in the tree beside of the file for `to`.
    fn early(&self, to: &Path) -> Option<PathBuf> {
        let tree = self.early.get()?;
        let mut names = to.iter();
        names.next()?;
        Some(Path::new(tree).join(names.as_path()))
    }

    /// The directory in the tree beside that has the file for `to`, and the file's whole path.
    fn early_dir(&self, to: &Path) -> Option<(OwnedFd, PathBuf)> {
        let path = self.early(to)?;
        let dir = open_dir(self.base.dst.as_fd(), path.parent()?).ok()?;
        Some((dir, path))
    }

    /// Makes a directory of the tree beside accessible: it may have its source's mode, which may keep even its owner
    /// out. A directory that stays closed counts as missing.
    pub fn open_early(&self, to: &Path) {
        if let Some((dir, path)) = self.early_dir(to)
            && let Some(name) = path.file_name()
            && let Ok(Some(there)) = find(&dir, name)
            && FileType::from_raw_mode(there.st_mode) == FileType::Directory
        {
            _ = reopen(&dir, name, &there);
        }
    }

    /// Passes a file of the tree beside on to publishing, if its source has not changed. Returns whether it did.
    pub fn take_early(
        &self,
        task: &FileTask,
        pair: &Pair,
        src: &OwnedFd,
        stat: &Stat,
        own: &AtomicU64,
    ) -> Tried<bool> {
        let Some((dir, path)) = self.early_dir(&task.to()) else { return Ok(false) };
        let (early, version) = (Key::of(&path), Version::of_source(stat));
        let made = match self.journal.published(early) {
            Some((source, made)) if source == version => made,
            _ => return Ok(false),
        };
        let name = path.file_name().unwrap_or_default();
        if !is_there(&dir, name, made) {
            return Ok(false);
        }
        unchanged(pair, &task.name, src, version)?;
        let key = Key::of(&task.to());
        let (since, temp) = (self.sync.since(), temp_name(&self.spec.id, key));
        self.remove_left(&pair.dst, key);
        if !second_name(&dir, name, &pair.dst, &temp) {
            return Ok(false);
        }
        self.mover(own).passed(stat.st_size as u64);
        let lost = self.journal.lost(early).to_vec();
        self.note_lost(&task.from(), &lost);
        let versions = (version, made);
        self.queue.ready(Ready { task: task.clone(), temp, key, versions, since, lost });
        Ok(true)
    }

    /// Moves the pieces of an unfinished large file over from the tree beside.
    pub fn take_begun(
        &self,
        task: &FileTask,
        pair: &Pair,
        version: Version,
    ) -> Tried<Option<Begun>> {
        let Some((dir, path)) = self.early_dir(&task.to()) else { return Ok(None) };
        let (early, key) = (Key::of(&path), Key::of(&task.to()));
        let Some(begun) = self.journal.begun(early).filter(|begun| begun.source == version) else {
            return Ok(None);
        };
        let from = pieces_name(&self.spec.id, early, begun.nonce);
        if !matches!(find(&dir, &from), Ok(Some(_))) {
            return Ok(None);
        }
        // The journal is written before the move: a run that finds these lines alone comes here again.
        let mut written = self.journal.begin(key, version, begun.nonce);
        for piece in &begun.pieces {
            written = written.and_then(|()| self.journal.piece(key, begun.nonce, *piece));
        }
        written.map_err(destination("writing the transfer's journal"))?;
        let to = pieces_name(&self.spec.id, key, begun.nonce);
        let moved = fs::renameat(&dir, &from, &pair.dst, &to);
        Ok(moved.is_ok().then(|| begun.clone()))
    }
}

/// Whether a name still belongs to the file that was published under it.
fn is_there(dir: &OwnedFd, name: &OsStr, made: Version) -> bool {
    look(dir, name).is_ok_and(|there| {
        let is_file = FileType::from_raw_mode(there.st_mode) == FileType::RegularFile;
        is_file && Version::of_destination(&there) == made
    })
}

/// Gives a file a second name. Without hard links it loses the first, and is copied again if this run is cut short.
fn second_name(dir: &OwnedFd, name: &OsStr, to: &OwnedFd, new: &OsStr) -> bool {
    match fs::linkat(dir, name, to, new, AtFlags::empty()) {
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK) => {
            fs::renameat(dir, name, to, new).is_ok()
        }
        linked => linked.is_ok(),
    }
}
