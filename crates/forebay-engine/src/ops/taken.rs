//! Files that change owners among the members of a store: taken over from a dead member, or found
//! to be taken over by a member that comes back.
//!
//! A file that was taken over is *held*. Its former home may have been stopped in the middle of a
//! flush, and bytes of that flush may arrive later. So flushed bytes of a held file are kept,
//! another version of its backing file is no conflict, and once the former home is known to have
//! stopped the whole file is flushed again.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_backing::{Error, FileKey, Result};

use crate::copies::Lasting;
use crate::core::id::FileId;
use crate::core::paths::Paths;
use crate::core::state::{Change, Conflict, FileState, Portrait, Record};
use crate::core::taken::{Former, Piece, Pieces, covers};
use crate::failpoint;
use crate::files::file::File;
use crate::files::live::Meanwhile;
use crate::ops::Ops;
use crate::ops::as_taken::Fingerprint;
use crate::tier::dir::shadow_name;
use crate::tier::media::{Open, torn};

/// Bytes that are compared at once.
const CHUNK: usize = 1 << 20;

/// A file that another member took over while it was dirty here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SupersededFile {
    pub file: FileKey,
    pub path: PathBuf,
    pub dirty_bytes: u64,
}

fn is_none(error: &Error) -> bool {
    error.is(libc::ENOENT) || error.is(libc::ENOTDIR)
}

impl Ops {
    /// Makes the copy of a home's file a file of this member, durably here and at this member's partners. The
    /// file is not flushed, and not found by its name, until [`Ops::hold_taken`]: its home may be back. A file
    /// that was adopted before is left as it is, unless its home has made a newer copy since: then that counts.
    ///
    /// # Errors
    ///
    /// ENOENT if there is no copy; EBUSY if the file is dirty here otherwise; those of partners:
    /// then the file is durable here alone.
    pub fn adopt(&self, home: &str, file: FileKey) -> Result<()> {
        let is_newer =
            |taken: &Arc<File>| self.copies.id(home, file).is_some_and(|id| id != taken.id);
        while let Some(old) = self.adopted(file).filter(is_newer) {
            self.drop_taken(&old)?;
        }
        let taken = match self.adopted(file) {
            Some(taken) => {
                self.copies.drop_copy(home, file)?;
                taken
            }
            None => self.adopt_copy(home, file)?,
        };
        self.outbox.tell(&taken)?;
        failpoint::pass("adopt.done");
        Ok(())
    }

    fn adopt_copy(&self, home: &str, file: FileKey) -> Result<Arc<File>> {
        if let Some(known) = self.files.find(file)
            && known.lock().state.is_dirty()
        {
            return Err(Error::os(libc::EBUSY, "the file is dirty here already"));
        }
        let missing = || Error::os(libc::ENOENT, format!("there is no copy of it from {home}"));
        let names = self.copies.paths(home, file).ok_or_else(missing)?;
        let names = self.right_name_first(file, names);
        let take = |id, claim, portrait: &Portrait| self.take(id, (file, claim), &names, portrait);
        self.copies.give(home, file, take)?.ok_or_else(missing)
    }

    /// Returns the file that was adopted under this key, found by its name already or not: the last
    /// one, if an older one is left.
    fn adopted(&self, key: FileKey) -> Option<Arc<File>> {
        let is_held = |file: &Arc<File>| file.lock().state.is_held();
        self.aside(key).or_else(|| self.files.find(key).filter(is_held))
    }

    /// Returns the file that was adopted under this key and cannot be found by its name yet.
    fn aside(&self, key: FileKey) -> Option<Arc<File>> {
        self.in_conflict(key, Conflict::Adopted)
    }

    fn in_conflict(&self, key: FileKey, conflict: Conflict) -> Option<Arc<File>> {
        let is_it = |file: &Arc<File>| file.lock().state.conflict() == conflict;
        self.files.all_with_key(key).into_iter().find(is_it)
    }

    /// Returns the number of the claim under which a file was taken over, if the takeover may not
    /// be complete yet.
    pub fn adopted_under(&self, key: FileKey) -> Option<u64> {
        let is_it = |file: &Arc<File>| file.lock().state.conflict().stands();
        let file = self.aside(key).or_else(|| self.files.find(key).filter(is_it))?;
        file.lock().state.held_under()
    }

    /// Moves the right name to the front: the file may have lost some of the names, or may not have
    /// got them yet.
    fn right_name_first(&self, file: FileKey, mut names: Vec<PathBuf>) -> Vec<PathBuf> {
        let is_its =
            |name: &PathBuf| self.names.ask(|b| b.stat(name)).is_ok_and(|attr| attr.key == file);
        if let Some(at) = names.iter().position(is_its) {
            let right = names.remove(at);
            names.insert(0, right);
        }
        names
    }

    /// Makes the shadow file `id`, which has the bytes of a copy, the shadow of a file of this member.
    fn take(
        &self,
        id: FileId,
        (key, claim): (FileKey, u64),
        names: &[PathBuf],
        portrait: &Portrait,
    ) -> Result<Arc<File>> {
        let shadow = self.files.media().open(&shadow_name(id), Open::Existing);
        let shadow = shadow.and_then(|shadow| {
            if shadow.size()? != portrait.size {
                shadow.set_len(portrait.size)?;
                shadow.sync_data()?;
            }
            shadow.set_mtime(portrait.mtime)
        });
        self.files.note_tier(shadow)?;
        if let Some(known) = self.files.find(key) {
            self.files.give_way(&known, known.lock())?;
        }
        let mut paths = Paths::default();
        for name in names {
            paths.learn_also(self.files.tree(), name);
        }
        let state = FileState::taken(paths, portrait, claim);
        let file = self.files.insert_as(id, Record { key, state });
        let mut inner = file.lock();
        let put = self.files.put(&file, &mut inner);
        let put = put.and_then(|()| self.files.note_tier(self.files.index().sync()));
        if let Err(error) = put {
            inner.leave();
            drop(inner);
            self.files.forget(&file);
            return Err(error);
        }
        let present = inner.state.present(0, inner.state.size());
        self.files.admit(&file, present);
        self.files.account(&file, &mut inner);
        let aside = inner.state.conflict().is_aside();
        drop(inner);
        if aside {
            self.files.forget_key(&file);
        }
        Ok(file)
    }

    /// Drops a file that was adopted, with its dirty bytes: its home is back.
    ///
    /// # Errors
    ///
    /// Those of the tier, and of a flush of the file that does not end. Then the file is as before,
    /// and the call may be repeated.
    pub fn disown(&self, file: FileKey) -> Result<()> {
        while let Some(taken) = self.adopted(file) {
            self.drop_taken(&taken)?;
        }
        Ok(())
    }

    /// Drops one file of this tier that was adopted. The store is not asked: its file of that name is not this member's.
    fn drop_taken(&self, file: &Arc<File>) -> Result<()> {
        self.drain.wait_for_flight(file)?;
        let mut inner = self.outbox.wait_for_round(file);
        if inner.is_unused() {
            self.files.drop_record(file, &mut inner)?;
            self.files.erase(file, &mut inner);
            drop(inner);
            self.files.forget(file);
            return self.files.note_tier(self.files.index().sync());
        }
        self.files.disclaim(file, inner)?;
        self.files.note_tier(self.files.index().sync())
    }

    /// Makes the file this member's own: an adopted one is found by its name from here on, and
    /// flushed. Flushed bytes are kept, to be flushed again: the former home may still write to the
    /// backing file. The file stays held until [`Ops::settle_taken`]. Durable on return. `from`: the
    /// homes that the file was taken from, which may ask for it as it was then ([`Ops::as_taken`]).
    pub fn hold_taken(&self, key: FileKey, from: &[Former]) -> Result<()> {
        let Some(file) = self.adopted(key).or_else(|| self.files.find(key)) else { return Ok(()) };
        if file.lock().state.conflict() == Conflict::Adopted {
            self.note_as_taken(&file, from);
        }
        {
            let mut inner = file.lock();
            if !inner.state.is_held() {
                self.files.commit(&file, &mut inner, Change::Held(true))?;
            }
            if inner.state.conflict() == Conflict::Adopted {
                self.files.commit(&file, &mut inner, Change::InConflict(Conflict::None))?;
            }
        }
        self.files.note_tier(self.files.index().sync())?;
        match self.files.find(key) {
            Some(known) if Arc::ptr_eq(&known, &file) => return Ok(()),
            Some(known) => self.files.give_way(&known, known.lock())?,
            None => {}
        }
        self.files.know_key(&file);
        self.files.nudge();
        Ok(())
    }

    /// Settles a held file once its former home writes no more: flushes again the bytes that were
    /// flushed meanwhile, and the other dirty ones, and ends the hold.
    ///
    /// # Errors
    ///
    /// Those of a flush; then the file stays held.
    pub fn settle_taken(&self, file: FileKey) -> Result<()> {
        let Some(file) = self.files.find(file) else { return Ok(()) };
        self.drain.wait_for_flight(&file)?;
        let found = match self.attr_now(&file).transpose() {
            // The flush reports that.
            Err(e) if is_none(&e) => None,
            found => found?,
        };
        {
            let mut inner = file.lock();
            if !inner.state.is_held() {
                return Ok(());
            }
            // All bytes are flushed again, not only if the version differs: a write of the former
            // home between this member's copy and its setting of the times cannot be seen. If
            // another file has the name, the flush finds that.
            let now_ms = self.files.time().ms();
            let base = inner.state.base();
            let base = found.filter(|it| it.key == file.key).map_or(base, |it| it.version());
            let size = inner.state.size();
            let kept = inner.state.clean(0, size);
            let age = inner.state.age_at(now_ms);
            inner.note_base();
            self.files.commit(&file, &mut inner, Change::Again { base, age })?;
            for (start, end) in kept {
                inner.touch(start, end, now_ms);
            }
            self.files.account(&file, &mut inner);
        }
        self.drain.flush_file(&file)?;
        let mut inner = file.lock();
        self.files.commit(&file, &mut inner, Change::Held(false))?;
        self.files.let_go(&file, &mut inner)?;
        self.files.retire(&file, inner);
        self.files.note_tier(self.files.index().sync())?;
        // If partners cannot be told now, they are told later.
        let _ = self.outbox.forget(&file, Lasting::No);
        Ok(())
    }

    /// Handles a file that another member took over while this one was away: it is not flushed any
    /// more, and an open by its name finds the other member's file. An adopted file that was never
    /// completed is dropped. Durable on return.
    pub fn supersede(&self, file: FileKey) -> Result<()> {
        let Some(file) = self.adopted(file).or_else(|| self.files.find(file)) else {
            return Ok(());
        };
        if file.lock().state.conflict() == Conflict::Adopted {
            // The takeover was never completed.
            return self.drop_taken(&file);
        }
        let mut inner = file.lock();
        if inner.state.is_held() {
            self.files.commit(&file, &mut inner, Change::Held(false))?;
        }
        self.files.let_go(&file, &mut inner)?;
        if !inner.state.is_dirty() {
            self.files.retire(&file, inner);
            return self.files.note_tier(self.files.index().sync());
        }
        let path = inner.state.display_path();
        tracing::warn!(path = %path.display(), "another member took this file over while it was dirty here: it is not flushed");
        let superseded = Change::InConflict(Conflict::Superseded);
        self.files.commit(&file, &mut inner, superseded)?;
        drop(inner);
        self.files.forget_key(&file);
        self.files.note_tier(self.files.index().sync())
    }

    /// Returns the superseded files that wait for a comparison, or for a decision.
    pub fn superseded(&self) -> Vec<SupersededFile> {
        let files = self.files.all_files();
        let superseded = files.iter().filter_map(|file| {
            let inner = file.lock();
            let state = &inner.state;
            (state.conflict() == Conflict::Superseded).then(|| SupersededFile {
                file: file.key,
                path: state.display_path(),
                dirty_bytes: state.dirty_bytes(),
            })
        });
        superseded.collect()
    }

    /// Compares a superseded file with its present content on the other member, of `size` bytes
    /// that `read` reads like [`Io::read`](crate::Io::read). If they are equal, the file here is
    /// dropped, and `true` is returned. Else it stays in conflict, for `resolve`.
    ///
    /// # Errors
    ///
    /// Those of `read`, and of the tier; ENOENT if no such file is superseded.
    pub fn compare_superseded(
        &self,
        file: FileKey,
        size: u64,
        read: &dyn Fn(u64, &mut [u8]) -> Result<usize>,
    ) -> Result<bool> {
        let found = self.in_conflict(file, Conflict::Superseded);
        let found = found.ok_or_else(|| Error::os(libc::ENOENT, "no such file is superseded"))?;
        let is_same = self.is_same(&found, size, read)?;
        self.drop_if(is_same, &found)
    }

    /// Drops a superseded file that is the same elsewhere. Returns whether it is.
    fn drop_if(&self, is_same: bool, superseded: &Arc<File>) -> Result<bool> {
        if is_same {
            let now = self.attr_now(superseded);
            let inner = superseded.lock();
            // It may have been resolved meanwhile, and hold what programs have written since.
            if inner.state.conflict() != Conflict::Superseded {
                return Err(Error::os(libc::ENOENT, "it is superseded no more"));
            }
            self.purge_locked(superseded, inner, now)?;
            self.files.note_tier(self.files.index().sync())?;
        }
        Ok(is_same)
    }

    /// Compares a superseded file with what another member took over. If all dirty bytes here are among these, and
    /// the size is the same, the file here is dropped, and `true` is returned.
    ///
    /// # Errors
    ///
    /// Those of `pieces`, and of the tier; ENOENT if no such file is superseded.
    pub fn compare_as_taken(
        &self,
        key: FileKey,
        taken: Fingerprint,
        pieces: &mut Pieces<'_>,
    ) -> Result<bool> {
        let found = self.in_conflict(key, Conflict::Superseded);
        let found = found.ok_or_else(|| Error::os(libc::ENOENT, "no such file is superseded"))?;
        let is_same = self.is_as_taken(&found, taken, pieces)?;
        self.drop_if(is_same, &found)
    }

    fn is_as_taken(
        &self,
        file: &Arc<File>,
        taken: Fingerprint,
        pieces: &mut Pieces<'_>,
    ) -> Result<bool> {
        let mut inner = file.lock();
        if inner.size() != taken.size {
            return Ok(false);
        }
        let shadow = self.files.shadow(file, &mut inner)?;
        let (dirty, state) = (inner.state.dirty(taken.size), inner.state.clone());
        let _work = self.files.work_on(file, inner, Meanwhile::Refused);
        covers(&dirty, pieces, &mut |piece: &Piece| {
            // A byte that is not here is not known to be the one that was taken.
            if piece.end > taken.size || !state.covers(piece.start, piece.end) {
                return Ok(false);
            }
            let bytes = self.read_all(&*shadow, (piece.start, piece.end))?;
            Ok(Piece::of(piece.start, &bytes, taken.seed) == *piece)
        })
    }

    fn is_same(
        &self,
        file: &Arc<File>,
        size: u64,
        read: &dyn Fn(u64, &mut [u8]) -> Result<usize>,
    ) -> Result<bool> {
        let mut inner = file.lock();
        if inner.size() != size {
            return Ok(false);
        }
        let shadow = self.files.shadow(file, &mut inner)?;
        let dirty = inner.state.dirty(size);
        let _work = self.files.work_on(file, inner, Meanwhile::Refused);
        let (mut ours, mut theirs) = (vec![0; CHUNK], vec![0; CHUNK]);
        for (start, end) in dirty {
            let mut at = start;
            while at < end {
                let want = ((end - at) as usize).min(CHUNK);
                if self.files.note_tier(shadow.read_at(&mut ours[..want], at))? < want {
                    return self.files.note_tier(Err(torn()));
                }
                let n = read(at, &mut theirs[..want])?;
                if n < want || ours[..want] != theirs[..want] {
                    return Ok(false);
                }
                at += want as u64;
            }
        }
        Ok(true)
    }
}
