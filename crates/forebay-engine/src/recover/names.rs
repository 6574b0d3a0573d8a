//! Names that the backing store has forgotten with the power, made again.

use std::fmt::Display;
use std::path::Path;

use forebay_backing::{Attr, Error, FileKind, New, RenameMode, Result};

use super::{ANEW, Recovery, is_anew, is_none};
use crate::index::Loaded;
use crate::log::{Entry, FileId};
use crate::state::{Former, Owner, Record};

impl Recovery<'_> {
    /// After a power loss the backing store may have forgotten a create or a rename that it had
    /// not synced. The bytes are here, so the name is made again.
    pub(super) fn restore_name(&mut self, id: FileId, state: &mut Record) {
        let Some(path) = state.paths.first().cloned() else { return };
        let found = self.backing.stat(&path);
        if let Ok(attr) = &found
            && attr.key == state.key
        {
            // Changes of names and attributes through us move the ctime, and the record of that
            // may be lost.
            if (attr.size, attr.mtime) == (state.base.size, state.base.mtime) {
                state.base.ctime = attr.ctime;
            }
            return;
        }
        let former = state.former.as_deref().cloned();
        let at_former = former.as_ref().map(|former| self.backing.stat(&former.path));
        if let (Some(former), Some(Ok(attr))) = (&former, &at_former)
            && attr.key == state.key
        {
            // Only what the rename replaced is replaced again, and not if it is newer (S8). Of the
            // same tick of the clock it is not.
            let mode = match &found {
                Ok(there) if !former.there.contains(&there.key) => {
                    return self.blocked.push(id);
                }
                // What is there may have gone on to another name.
                Ok(_) if former.exchanged && !self.stuck => return self.blocked.push(id),
                Ok(_) if former.exchanged => Some(RenameMode::Exchange),
                Ok(there) if there.ctime > state.base.ctime => None,
                // What is there nobody can tell.
                Err(e) if !is_none(e) => return self.give_up(state, &former.path, e),
                _ => Some(RenameMode::Replace),
            };
            return match mode {
                None => self.give_up(state, &former.path, &"another file is there"),
                Some(mode) => self.rename_again(state, &former.path, &path, mode),
            };
        }
        let is_gone = |found: &Result<Attr>| found.as_ref().is_err_and(|e| e.is(libc::ENOENT));
        // Created, closed and opened again it is no newborn, but as young while it is empty there.
        if (state.flags.newborn || state.base.size == 0) && is_gone(&found) {
            self.make_parents(&path, state.owner);
            return self.make_anew(id, state, &path, RenameMode::NoReplace);
        }
        // It replaced a file by a rename, and both its creation and the rename are forgotten: what
        // is there has not changed since before it was made, so it is what was replaced.
        if let Ok(attr) = &found
            && state.flags.newborn
            && at_former.as_ref().is_some_and(is_gone)
            && former.is_some_and(|former| !former.exchanged && former.there.contains(&attr.key))
            && attr.kind == FileKind::File
            && attr.ctime < state.base.ctime
        {
            self.make_anew(id, state, &path, RenameMode::Replace);
        } else if state.flags.newborn && found.is_ok() {
            self.blocked.push(id);
        }
    }

    /// Does a rename again that the backing store has forgotten; of a directory's for each file
    /// that matters.
    fn rename_again(&mut self, state: &mut Record, former: &Path, path: &Path, mode: RenameMode) {
        let rename = || self.backing.rename(former, path, mode);
        let done = rename().or_else(|e| match e.is(libc::ENOENT) {
            true => {
                self.make_parents(path, state.owner);
                rename()
            }
            false => Err(e),
        });
        match done {
            Ok(()) => self.note_ctime(state, path),
            Err(e) => {
                self.report.problems.push(format!(
                    "{}: it goes to {} on the backing store, where it was before a rename: {e}",
                    path.display(),
                    former.display()
                ));
                state.paths.insert(0, former.into());
                state.former = None;
            }
        }
    }

    /// After a rename of ours, which moves the ctime.
    fn note_ctime(&self, state: &mut Record, path: &Path) {
        if let Ok(attr) = self.backing.stat(path)
            && attr.key == state.key
            && (attr.size, attr.mtime) == (state.base.size, state.base.mtime)
        {
            state.base.ctime = attr.ctime;
        }
    }

    /// Makes a file that is forgotten under a name that says whose it is: its own it gets once its
    /// key is on record, or who is killed in between would take it for somebody else's.
    fn make_anew(&mut self, id: FileId, state: &mut Record, path: &Path, mode: RenameMode) {
        let beside = path.with_file_name(format!("{ANEW}{:x}", id.0));
        let new =
            New { mode: state.owner.mode, umask: 0, uid: state.owner.uid, gid: state.owner.gid };
        // One of a recovery that was killed before it could record it.
        if self.backing.stat(&beside).is_ok_and(|attr| attr.size == 0) {
            let _ = self.backing.unlink(&beside);
        }
        match self.backing.create(&beside, &new) {
            Ok((_, attr)) => {
                state.key = attr.key;
                state.base = attr.version();
                let there = match (mode, state.former.take()) {
                    (RenameMode::Replace, Some(former)) => former.there,
                    _ => Vec::new(),
                };
                let path = beside.into();
                state.former = Some(Box::new(Former { path, there, exchanged: false }));
                self.anew.push((id, mode));
            }
            Err(e) => self.report.problems.push(format!("{}: {e}", path.display())),
        }
    }

    pub(super) fn bring_anew_home(&mut self, loaded: &mut Loaded) -> Result<()> {
        let anew = std::mem::take(&mut self.anew);
        if anew.is_empty() {
            return Ok(());
        }
        let recording = |e| Error::io(e, "writing the tier's index");
        for (id, _) in &anew {
            let record = loaded.files[id].clone();
            self.index.append(&Entry::Put(*id, Box::new(record))).map_err(recording)?;
        }
        self.index.sync().map_err(recording)?;
        for (id, mode) in anew {
            let state = loaded.files.get_mut(&id).expect("made anew for it");
            // It stays its former name: the store may forget this rename, too.
            let (beside, path) = match (&state.former, state.paths.first()) {
                (Some(former), Some(path)) => (former.path.clone(), path.clone()),
                _ => continue,
            };
            let rename = |mode| self.backing.rename(&beside, &path, mode);
            let done = match rename(mode) {
                // Some network file systems cannot refuse to replace.
                Err(e) if e.is(libc::EINVAL) && self.backing.stat(&path).is_err() => {
                    rename(RenameMode::Replace)
                }
                done => done,
            };
            match done {
                Ok(()) => self.note_ctime(state, &path),
                Err(e) => self.give_up(state, &beside, &e),
            }
        }
        Ok(())
    }

    /// The bytes stay in the tier, and the next flush finds a conflict (S8).
    fn give_up(&mut self, state: &mut Record, former: &Path, why: &dyn Display) {
        if is_anew(former) {
            let _ = self.backing.unlink(former);
        }
        state.former = None;
        self.report.problems.push(format!("{}: {why}", state.display_path().display()));
    }

    fn make_parents(&self, path: &Path, owner: Owner) {
        let mut parents: Vec<&Path> = path.ancestors().skip(1).collect();
        parents.reverse();
        for parent in parents {
            if !parent.as_os_str().is_empty() && self.backing.stat(parent).is_err() {
                let new = New { mode: 0o755, umask: 0, uid: owner.uid, gid: owner.gid };
                let _ = self.backing.mkdir(parent, &new);
            }
        }
    }

    /// Of a chain of renames the last is made again first.
    pub(super) fn restore_blocked(&mut self, loaded: &mut Loaded) {
        let mut blocked = std::mem::take(&mut self.blocked);
        while !blocked.is_empty() {
            for id in &blocked {
                let state = loaded.files.get_mut(id).expect("kept");
                self.restore_name(*id, state);
                self.changed.push(*id);
            }
            let left = std::mem::take(&mut self.blocked);
            let stuck = left.len() == blocked.len() && !self.exchange_blocked(loaded, &left);
            if stuck && self.stuck {
                break;
            }
            self.stuck = stuck;
            blocked = left;
        }
        for id in blocked {
            let state = loaded.files.get_mut(&id).expect("kept");
            if let Some(former) = state.former.take() {
                self.give_up(state, &former.path, &"another file is there");
            }
        }
    }

    /// Two that changed places by way of a third name have to be exchanged. Returns whether some
    /// were.
    fn exchange_blocked(&mut self, loaded: &Loaded, blocked: &[FileId]) -> bool {
        let way = |id: &FileId| {
            let state = &loaded.files[id];
            Some((state.former.as_ref()?.path.clone(), state.paths.first()?.clone(), state.key))
        };
        let ways: Vec<_> = blocked.iter().filter_map(way).collect();
        let is_at = |path: &Path, key| self.backing.stat(path).is_ok_and(|attr| attr.key == key);
        ways.iter().enumerate().any(|(n, (from, to, key))| {
            ways[..n].iter().any(|(others_from, others_to, others)| {
                (from, to) == (others_to, others_from)
                    && is_at(from, *key)
                    && is_at(to, *others)
                    && self.backing.rename(from, to, RenameMode::Exchange).is_ok()
            })
        })
    }
}
