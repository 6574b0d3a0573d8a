//! Carries out the journal of names on the backing store: names that the store has lost with the
//! power are made again.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use forebay_backing::{Attr, Error, FileKey, New, RenameMode, Result, Timestamp, Version};

use crate::core::id::FileId;
use crate::core::journal::settle::{ANEW, Found, Known, Look, Plan};
use crate::core::journal::{NameOp, Step, Told, settle};
use crate::core::near::Naming;
use crate::core::state::{Boot, Change, Owner, Record};
use crate::recovery::{Recovery, is_none};
use crate::tier::index::Loaded;
use crate::tier::log::Entry;

impl Recovery<'_> {
    /// Makes the store's names those of the journal, and the names on record those of the store.
    pub(super) fn settle_names(&mut self, loaded: &mut Loaded) -> Result<()> {
        let steps = loaded.names.steps();
        let look = self.look_at(&steps)?;
        let meant = meant(loaded, &steps);
        let apart = self.apart(loaded, &steps, &look)?;
        let known = known(loaded, &steps, &meant, &apart);
        self.follow_dirs(&steps, &look, known.end)?;
        let mut plan = settle::settle(&steps, &look, &known);
        let is_done = plan.todo.is_empty() && plan.home.is_empty();
        if !is_done || plan.steps != loaded.names.steps() {
            self.record(&plan.steps)?;
            self.carry_out(&plan.todo);
        }
        if !plan.home.is_empty() {
            self.make_anew(loaded, &mut plan, &meant)?;
            self.record(&plan.steps)?;
            self.carry_out(&plan.home);
            self.clear(&plan.anew);
        }
        let mut keys: BTreeSet<FileKey> =
            plan.steps.iter().flat_map(|step| step.op.keys()).collect();
        if !is_done {
            let look = self.look_at(&plan.steps)?;
            let known = self::known(loaded, &plan.steps, &meant, &apart);
            let again = settle::settle(&plan.steps, &look, &known);
            // For files outside these steps the first look counts.
            plan.wanted.retain(|key, _| !keys.contains(key));
            plan.wanted.extend(again.wanted);
            plan.blocked = again.blocked;
        }
        keys.extend(steps.iter().flat_map(|step| step.op.keys()));
        keys.retain(|key| !apart.contains(key));
        self.rename_records(loaded, &plan, |id, key| keys.contains(&key) && meant.contains(&id));
        let mut changed_at = settle::changed_at(&plan.steps);
        changed_at.retain(|key, _| keys.contains(key));
        self.note_ctimes(loaded, |key| changed_at.get(&key).copied());
        Ok(())
    }

    /// The files of these steps that the journal does not name: those that other members name, and those that are on
    /// the store where the journal does not look, under a name of their record.
    fn apart(&self, loaded: &Loaded, steps: &[Step], look: &Look) -> Result<BTreeSet<FileKey>> {
        let dirty = loaded.files.values().filter(|record| record.is_dirty());
        let dirty: BTreeSet<FileKey> = dirty.map(|record| record.key).collect();
        let is_own = |key: FileKey| match self.owned.of(key) {
            Naming::Own => true,
            Naming::Unclaimed => dirty.contains(&key),
            Naming::Others => false,
        };
        let (own, mut apart): (BTreeSet<_>, BTreeSet<_>) =
            steps.iter().flat_map(|step| step.op.keys()).partition(|key| is_own(*key));
        let seen: BTreeSet<FileKey> = look.values().filter_map(|found| found.key()).collect();
        let unseen = |record: &&Record| own.contains(&record.key) && !seen.contains(&record.key);
        for record in loaded.files.values().filter(unseen) {
            for path in record.paths.iter().filter(|path| !look.contains_key(path)) {
                if self.find(&path)?.key() == Some(record.key) {
                    apart.insert(record.key);
                }
            }
        }
        Ok(apart)
    }

    fn look_at(&self, steps: &[Step]) -> Result<Look> {
        settle::look(steps, |path| self.find(path))
    }

    fn find(&self, path: &Path) -> Result<Found> {
        match self.backing.stat(path) {
            Ok(Attr { key, mtime, ctime, .. }) => {
                Ok(Found::File { key, changed: mtime.min(ctime), ctime })
            }
            Err(e) if is_none(&e) => Ok(Found::Nothing),
            Err(e) if is_refused(&e) => Ok(Found::Hidden),
            Err(e) => Err(e.context("looking at names that the journal speaks of")),
        }
    }

    /// Concludes the rename of a directory that a crash interrupted: the files below it are on
    /// record at the old place.
    fn follow_dirs(&self, steps: &[Step], look: &Look, end: Option<Timestamp>) -> Result<()> {
        for step in steps.iter().filter(|step| step.told == Told::Announced) {
            if let Some(way) = step.op.way()
                && settle::was_made(&step.op, steps, look)
            {
                self.index.conclude(step.n, end, Some(way)).map_err(recording)?;
            }
        }
        Ok(())
    }

    /// Makes lost files again under temporary names: they get their own names once their keys are on record.
    /// If recovery were killed in between, files with their own names would count as another program's.
    fn make_anew(
        &mut self,
        loaded: &mut Loaded,
        plan: &mut Plan,
        meant: &BTreeSet<FileId>,
    ) -> Result<()> {
        let ids: BTreeMap<FileKey, FileId> =
            meant.iter().map(|id| (loaded.files[id].key, *id)).collect();
        let mut made = Vec::new();
        for (beside, key) in &mut plan.anew {
            let id = ids[key];
            let record = loaded.files.get_mut(&id).expect("listed above");
            match self.make_beside(beside, record.owner()) {
                Ok(attr) => {
                    let old = std::mem::replace(key, attr.key);
                    let steps = plan.steps.iter_mut().map(|step| &mut step.op);
                    let ops = steps.chain(&mut plan.home);
                    ops.for_each(|op| op.rekey(old, attr.key));
                    record.key = attr.key;
                    let (owner, base, mtime) = (record.owner(), attr.version(), record.mtime());
                    record.apply(&Change::Followed { owner, base, mtime });
                    made.push(id);
                }
                Err(e) => {
                    self.report.problems.push(format!("{}: {e}", record.display_path().display()));
                    plan.home.retain(|op| op.key() != *key);
                }
            }
        }
        self.changed.extend(&made);
        let put = |id: FileId| Entry::Put(id, Cow::Owned(Box::new(loaded.files[&id].clone())));
        made.into_iter().try_for_each(|id| self.index.append(&put(id)).map(drop)).map_err(recording)
    }

    fn make_beside(&self, beside: &Path, owner: Owner) -> Result<Attr> {
        self.make_parents(beside, owner);
        // An earlier recovery may have left the file: it was killed before it recorded the new key.
        if self.backing.stat(beside).is_ok_and(|attr| attr.size == 0) {
            let _ = self.backing.unlink(beside);
        }
        let new = New { mode: owner.mode, umask: 0, uid: owner.uid, gid: owner.gid };
        Ok(self.backing.create(beside, &new)?.1)
    }

    /// Records the steps: if recovery is killed while names change, the next one finds the files by them.
    fn record(&self, steps: &[Step]) -> Result<()> {
        self.index.set_names(steps.to_vec()).map_err(recording)?;
        self.index.sync().map_err(recording)
    }

    /// Carries the steps out; a step that fails leaves its names as they are.
    fn carry_out(&mut self, todo: &[NameOp]) {
        let mut broken: Vec<&Path> = Vec::new();
        for op in todo {
            if op.paths().any(|path| broken.iter().any(|it| path.starts_with(it))) {
                broken.extend(op.paths());
            } else if let Err(e) = self.make_again(op) {
                broken.extend(op.paths());
                self.report.problems.push(format!("{op}: {e}"));
            }
        }
    }

    /// Removes files that were made anew and could not get their own names.
    fn clear(&self, anew: &[(PathBuf, FileKey)]) {
        for (beside, key) in anew {
            if self.backing.stat(beside).is_ok_and(|attr| attr.key == *key) {
                let _ = self.backing.unlink(beside);
            }
        }
    }

    fn make_again(&self, op: &NameOp) -> Result<()> {
        match op {
            NameOp::Create { .. } => Ok(()),
            NameOp::Link { from, to, key } => {
                self.with_parents(to, || self.backing.link(from, Some(*key), to).map(drop))
            }
            NameOp::Unlink { path, .. } => self.remove(path),
            NameOp::Rename { from, to, over, .. } => self.with_parents(to, || match over {
                Some(_) => self.rename_over(from, to),
                None => self.rename_to_free(from, to),
            }),
            NameOp::Exchange { from, to, .. } => {
                self.backing.rename(from, to, RenameMode::Exchange)
            }
        }
    }

    fn remove(&self, path: &Path) -> Result<()> {
        self.backing.unlink(path).or_else(|e| match e.is(libc::EISDIR) || e.is(libc::EPERM) {
            true => self.backing.rmdir(path),
            false => Err(e),
        })
    }

    fn rename_over(&self, from: &Path, to: &Path) -> Result<()> {
        let is_there = || self.backing.stat(from).is_ok();
        match self.backing.rename(from, to, RenameMode::Replace) {
            // A file does not replace a directory, nor a directory a file.
            Err(e) if e.is(libc::EISDIR) || (e.is(libc::ENOTDIR) && is_there()) => {
                self.remove(to)?;
                self.rename_to_free(from, to)
            }
            done => done,
        }
    }

    fn rename_to_free(&self, from: &Path, to: &Path) -> Result<()> {
        match self.backing.rename(from, to, RenameMode::NoReplace) {
            // Some network file systems cannot refuse to replace a file.
            Err(e) if e.is(libc::EINVAL) && self.backing.stat(to).is_err_and(|e| is_none(&e)) => {
                self.backing.rename(from, to, RenameMode::Replace)
            }
            done => done,
        }
    }

    /// Makes a name, and its parent directories if the store has lost them as well.
    fn with_parents(&self, to: &Path, make: impl Fn() -> Result<()>) -> Result<()> {
        make().or_else(|e| match e.is(libc::ENOENT) {
            true => {
                let nobody = Owner { mode: 0o755, uid: 0, gid: 0, nlink: 1 };
                let owner = to.parent().and_then(|dir| self.owner_near(dir)).unwrap_or(nobody);
                self.make_parents(to, owner);
                make()
            }
            false => Err(e),
        })
    }

    fn owner_near(&self, dir: &Path) -> Option<Owner> {
        dir.ancestors().find_map(|dir| self.backing.stat(dir).ok()).map(|attr| Owner::of(&attr))
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

    /// Gives records the names that their files have on the store. A record keeps a name that another
    /// file has taken, and its next flush finds a conflict (S8). A file without a name is forgotten.
    fn rename_records(
        &mut self,
        loaded: &mut Loaded,
        plan: &Plan,
        is_meant: impl Fn(FileId, FileKey) -> bool,
    ) {
        for (_, path) in &plan.blocked {
            let text = format!("{}: something else is there", path.display());
            self.report.problems.push(text);
        }
        let files = loaded.files.iter_mut().filter(|(id, record)| is_meant(**id, record.key));
        for (id, record) in files {
            let before = record.paths.clone();
            let wanted = plan.wanted.get(&record.key).map_or(&[][..], Vec::as_slice);
            let is_wanted = |path: &Path| wanted.iter().any(|wanted| wanted == path);
            record.paths.keep(|path| is_wanted(path) || !plan.names.contains(path));
            wanted.iter().for_each(|path| record.paths.learn_also(self.index.tree(), path));
            if record.paths != before {
                self.changed.push(*id);
            }
            if record.paths.is_empty() && !before.is_empty() {
                self.nameless.push(*id);
            }
        }
        self.nameless.iter().for_each(|id| drop(loaded.files.remove(id)));
    }

    /// Takes over ctimes: changes of names and attributes through the daemon move the ctime, and
    /// the record of that may be lost. A time that was being set is on record. A ctime after the last change of the
    /// file's names (`changed_at`) is another program's, unless a loss of power has taken later records.
    pub(super) fn note_ctimes(
        &mut self,
        loaded: &mut Loaded,
        changed_at: impl Fn(FileKey) -> Option<Timestamp>,
    ) {
        for (id, record) in &mut loaded.files {
            let until = match self.boot {
                Boot::Kept => changed_at(record.key),
                Boot::Lost => Some(Timestamp::MAX),
            };
            let Some(until) = until else { continue };
            let Some(path) = record.paths.first() else { continue };
            if let Ok(attr) = self.backing.stat(&path)
                && attr.key == record.key
                && attr.size == record.base().size
                && record.is_own_time(attr.mtime)
                && attr.ctime != record.base().ctime
                && attr.ctime <= until
            {
                let base = Version { ctime: attr.ctime, mtime: attr.mtime, ..record.base() };
                // A file that is dirty on the same boot has the time that its shadow has, of a later write maybe.
                let has_own = self.boot == Boot::Kept && record.is_dirty();
                let was_set = attr.mtime != record.base().mtime && !has_own;
                let mtime = if was_set { attr.mtime } else { record.mtime() };
                let owner = record.owner();
                record.apply(&Change::Followed { owner, base, mtime });
                self.changed.push(*id);
            }
        }
    }
}

/// Returns the records that the journal means, one for each key. Where the store's keys have no generations, a file that others
/// have removed may have a record beside that of the file that has its number by now: the journal means the newest
/// file of which it has a name.
fn meant(loaded: &Loaded, steps: &[Step]) -> BTreeSet<FileId> {
    let mut of: BTreeMap<FileKey, Vec<FileId>> = BTreeMap::new();
    loaded.files.iter().for_each(|(id, record)| of.entry(record.key).or_default().push(*id));
    let is_named = |id: &FileId| {
        let Record { key, state } = &loaded.files[id];
        let ops = steps.iter().map(|step| &step.op).filter(|op| op.keys().any(|it| it == *key));
        ops.flat_map(NameOp::paths).any(|path| state.paths.iter().any(|own| own == path))
    };
    let last = |ids: &Vec<FileId>| *ids.last().expect("each key has one");
    let meant = |ids: &Vec<FileId>| match ids.len() {
        1 => last(ids),
        _ => ids.iter().rev().find(|id| is_named(id)).copied().unwrap_or_else(|| last(ids)),
    };
    of.values().map(meant).collect()
}

fn known(
    loaded: &Loaded,
    steps: &[Step],
    meant: &BTreeSet<FileId>,
    apart: &BTreeSet<FileKey>,
) -> Known {
    let is_worth = |id: &FileId, record: &Record| {
        record.is_dirty() && meant.contains(id) && !apart.contains(&record.key)
    };
    let worth = loaded.files.iter().filter(|(id, record)| is_worth(id, record));
    let worth = worth.map(|(id, record)| (record.key, format!("{ANEW}{:x}", id.0))).collect();
    let seen = loaded.files.values().map(|record| record.base().ctime);
    let end = steps.iter().filter_map(|step| step.at).chain(seen).max();
    Known { worth, end, apart: apart.clone() }
}

/// Whether the store does not let the daemon look, and will not later.
fn is_refused(error: &Error) -> bool {
    [libc::EACCES, libc::EPERM, libc::ELOOP, libc::ENAMETOOLONG].iter().any(|it| error.is(*it))
}

fn recording(error: std::io::Error) -> Error {
    Error::io(error, "writing the tier's index")
}
