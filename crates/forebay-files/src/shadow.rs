//! The shadow file of a file: opened, made, compared with its record, emptied.

use std::io;
use std::path::Path;
use std::sync::Arc;

use forebay_backing::{Attr, Error, Result, Timestamp};

use crate::Files;
use crate::blanks::Blank;
use crate::core::id::FileId;
use crate::core::state::{Boot, Change};
use crate::file::{File, Inner};
use crate::tier::dir as tier;
use crate::tier::media::{MediaFile, Open, is_alone};
use crate::tier::shadows::{Found, look, set_aside};
use crate::tier::taken;

impl Files {
    /// Gives back the room that is reserved beyond the end of a file that is not open any more.
    pub(crate) fn give_back(&self, inner: &mut Inner) {
        let Some(live) = &mut inner.live else { return };
        let reserved = std::mem::take(&mut live.mine().reserved);
        // A writer past the daemon may go on by a mapping.
        if reserved == 0 || live.unseen.is_some() || inner.state.is_unseen() {
            return;
        }
        if let Some(shadow) = &live.shadow
            && let Ok(size) = shadow.size()
            && size < reserved
        {
            let _ = shadow.punch(size, reserved - size);
        }
    }

    /// Takes all bytes out of a shadow. Programs that have mapped it keep them: the file gets
    /// another shadow when it needs one.
    pub fn empty(
        &self,
        file: &File,
        inner: &mut Inner,
        shadow: &dyn MediaFile,
        size: u64,
    ) -> std::io::Result<()> {
        if is_alone(shadow) {
            return shadow.set_len(0).and_then(|()| shadow.set_len(size));
        }
        self.media().remove(&tier::shadow_name(file.id))?;
        inner.live().mine().shadow = None;
        Ok(())
    }

    /// Removes the shadows of files that are gone. One that cannot be removed is left to the next start.
    pub fn empty_trash(&self) {
        let mut trash = std::mem::take(&mut *self.trash.lock());
        trash.extend(self.blanks.lock().clear());
        for id in trash {
            let _ = self.media().remove(&tier::shadow_name(id));
            self.digests.remove(id);
        }
    }

    /// Whether no program has the file's shadow open or mapped past the daemon.
    pub fn is_alone(&self, file: &File, inner: &Inner) -> Result<bool> {
        let open = || self.media().open(&tier::shadow_name(file.id), Open::Existing);
        match inner.in_use().and_then(|live| live.shadow.as_deref()) {
            Some(shadow) => Ok(is_alone(shadow)),
            None => Ok(is_alone(&*self.note_tier(open())?)),
        }
    }

    /// Returns the open shadow file, made if it does not exist.
    pub fn shadow(&self, file: &File, inner: &mut Inner) -> Result<Arc<dyn MediaFile>> {
        let shadow = self.shadow_unwritten(file, inner)?;
        inner.live().mine().blank = false;
        Ok(shadow)
    }

    /// As [`Files::shadow`], for a caller that writes nothing to the shadow file.
    pub fn shadow_unwritten(&self, file: &File, inner: &mut Inner) -> Result<Arc<dyn MediaFile>> {
        if let Some(shadow) = inner.live.as_ref().and_then(|live| live.shadow.clone()) {
            return Ok(shadow);
        }
        let name = tier::shadow_name(file.id);
        // Bytes that count must be there: an empty file in their place would read as zeros. Without
        // such bytes an existing shadow is from before a crash.
        let holds = inner.state.has_bytes();
        let opened = match holds {
            true => self.media().open(&name, Open::Existing),
            false => self.media().open(&name, Open::Fresh),
        };
        let shadow = self.note_tier(opened)?;
        // A shadow is longer than the file if the last append died before it was recorded: programs
        // that are passed through to it would read on.
        let size = inner.state.size();
        let fits = match holds {
            true => inner.state.is_unseen() || self.note_tier(shadow.size())? <= size,
            false => size == 0,
        };
        if !fits && let Err(error) = self.note_tier(shadow.set_len(size)) {
            if !holds {
                let _ = self.media().remove(&name); // No record would name it.
            }
            return Err(error);
        }
        let live = inner.live().mine();
        live.shadow = Some(shadow.clone());
        live.named &= holds; // It may have taken the place of another shadow.
        live.blank = !holds && size == 0;
        Ok(shadow)
    }

    /// Notes a time that was set, and sets it on the shadow: after a crash that is the mtime of a
    /// file with dirty bytes.
    pub fn set_shadow_mtime(&self, file: &Arc<File>, inner: &mut Inner, mtime: Timestamp) {
        inner.clock.note_time();
        let Ok(shadow) = self.shadow(file, inner) else { return };
        let given = inner.unseen().is_some_and(|unseen| unseen.set_id_at.is_some());
        let is_unwritten = given && !inner.is_written_over_set_id();
        let _ = self.note_tier(shadow.set_mtime(mtime));
        if is_unwritten {
            inner.note_set_id();
        }
    }

    /// Compares the shadow that an earlier daemon left of a file with its record, when the file is
    /// used for the first time. Dirty files were compared at the start.
    pub fn prove_shadow(&self, file: &Arc<File>) -> Result<()> {
        self.prove_locked(file, &mut file.lock())
    }

    /// As [`Files::prove_shadow`], under the file's lock.
    ///
    /// # Errors
    ///
    /// EIO if the record was wrong. It is mended then: a caller that has looked at it looks again.
    pub fn prove_locked(&self, file: &Arc<File>, inner: &mut Inner) -> Result<()> {
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
        let (loss, lost) = inner.state.loss_beyond(len);
        if lost > 0 {
            taken::remove(&**self.media(), file.key);
        }
        inner.note_gone(0, u64::MAX);
        // Without this record the next daemon compares again.
        let _ = self.commit_anyway(file, inner, Change::Lost { len, loss });
        self.account(file, inner);
        let path = inner.state.display_path().display().to_string();
        let what = found.problem(file.id, lost).unwrap_or_default();
        self.note_tier(Err(io::Error::other(format!("{path}: {what}"))))
            .map_err(|_| Error::os(libc::EIO, what))
    }
}

impl Files {
    /// Enters a file that was just made on the store, with a shadow if one is ready.
    pub fn insert_new(&self, path: &Path, attr: &Attr) -> Arc<File> {
        let Some(blank) = self.blank_for(attr) else { return self.insert(path, attr) };
        let file = self.insert_with(path, attr, || blank.id);
        match file.id == blank.id {
            true => file.lock().live().give_blank(blank.shadow),
            // Another thread has entered the file.
            false => self.blanks.lock().keep(blank),
        }
        file
    }

    fn blank_for(&self, attr: &Attr) -> Option<Blank> {
        if attr.size > 0 {
            return None;
        }
        let blank = self.blanks.lock().take()?;
        // As old as a file that is made now.
        match blank.shadow.set_mtime(self.time.stamp()) {
            Ok(()) => Some(blank),
            Err(_) => {
                self.trash.lock().push(blank.id);
                None
            }
        }
    }

    /// Keeps the unwritten shadow of a file that is gone.
    pub(crate) fn keep_blank(&self, gone: FileId, shadow: Arc<dyn MediaFile>) {
        let id = self.new_id();
        match self.media().rename(&tier::shadow_name(gone), &tier::shadow_name(id)) {
            Ok(()) => self.blanks.lock().keep(Blank { id, shadow }),
            Err(_) => self.trash.lock().push(gone),
        }
    }

    /// Notes that a new file had to wait for its shadow.
    pub fn note_no_blank(&self) {
        self.blanks.lock().note_missing();
    }

    /// Makes one of the shadows that are missing. Called when no program waits.
    pub fn make_blank(&self) {
        if !self.blanks.lock().wants_more() {
            return;
        }
        let id = self.new_id();
        // Where the tier fails, the program that needs a shadow sees the error.
        if let Ok(shadow) = self.media().open(&tier::shadow_name(id), Open::Fresh) {
            self.blanks.lock().keep(Blank { id, shadow });
        }
    }
}

/// Whether a shadow that was not written through the daemon is empty in every respect, and open nowhere else:
/// a program that can map it may have done so.
pub(crate) fn is_blank(shadow: &dyn MediaFile, maps: bool) -> bool {
    let empty = shadow.stat().is_ok_and(|stat| stat.len == 0 && stat.allocated == 0);
    // Where this is unknown the shadow is not used again: a program with a mapping of it would see
    // the next file.
    empty && (!maps || shadow.is_ours_alone().unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use forebay_backing::{BackingStore, New};

    use super::*;
    use crate::bed::{Bed, bed};
    use crate::blanks::KEPT;

    fn shadows(bed: &Bed) -> usize {
        let dirs = std::fs::read_dir(bed.root.path().join("tier/shadow")).unwrap();
        dirs.map(|dir| std::fs::read_dir(dir.unwrap().path()).unwrap().count()).sum()
    }

    fn make_new(bed: &Bed, path: &str) -> Arc<File> {
        let new = New { mode: 0o644, umask: 0, uid: 0, gid: 0 };
        let path = Path::new(path);
        let (_, attr) = bed.names.alter(|b: &dyn BackingStore| b.create(path, &new)).unwrap();
        bed.files.insert_new(path, &attr)
    }

    /// A program writes to the shadow as soon as its file was made: a crash must find it by the file's record.
    // S-2
    #[test]
    fn a_shadow_that_was_made_ahead_has_the_name_of_its_file() {
        let bed = bed();
        bed.files.note_no_blank();
        bed.files.make_blank();
        assert_eq!(shadows(&bed), 1);
        let file = make_new(&bed, "f");
        let mut inner = file.lock();
        let ahead = inner.live().shadow.clone().expect("one was ready");
        ahead.write_at(b"bytes", 0).unwrap();
        let named = bed.files.media().open(&tier::shadow_name(file.id), Open::Existing).unwrap();
        let mut found = [0; 5];
        assert_eq!((named.read_at(&mut found, 0).unwrap(), &found), (5, b"bytes"));
        drop(inner);
        assert_eq!(shadows(&bed), 1);
    }

    #[test]
    fn as_many_are_made_as_are_missing_and_not_more_than_are_kept() {
        let bed = bed();
        bed.files.make_blank();
        assert_eq!(shadows(&bed), 0, "none is missing");
        for _ in 0..3 * KEPT {
            bed.files.note_no_blank();
        }
        for _ in 0..3 * KEPT {
            bed.files.make_blank();
        }
        assert_eq!(shadows(&bed), KEPT);
        drop(make_new(&bed, "f"));
        (0..3).for_each(|_| bed.files.make_blank());
        assert_eq!(shadows(&bed), KEPT + 1, "one was taken");
        bed.files.empty_trash();
        assert_eq!(shadows(&bed), 1, "the taken one stays");
    }
}
