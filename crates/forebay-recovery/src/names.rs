//! What the journal of names says, carried out on the backing store: names that it has forgotten
//! with the power are made again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use forebay_backing::{Attr, Error, FileKey, New, RenameMode, Result, Timestamp, Version};

use crate::core::id::FileId;
use crate::core::journal::settle::{Found, Known, Look, Plan};
use crate::core::journal::{NameOp, Step, Told, follow, settle};
use crate::core::paths::Tree;
use crate::core::state::{Boot, Change, Owner, Record};
use crate::recovery::{ANEW, Recovery, is_none};
use crate::tier::index::Loaded;
use crate::tier::log::Entry;

/// What names mean on the store.
type Names = BTreeMap<PathBuf, Option<FileKey>>;

impl Recovery<'_> {
    /// Makes the store's names those of the journal, and the names on record those of the store.
    pub(super) fn settle_names(&mut self, loaded: &mut Loaded) -> Result<()> {
        let mut steps = loaded.names.steps();
        let all = steps.len();
        steps.retain(|step| step.op.keys().all(|key| self.owned.is_own(key)));
        if steps.len() < all {
            self.index.set_names(steps.clone()).map_err(recording)?;
        }
        let look = self.look_at(settle::paths(&steps))?;
        let known = known(loaded, &steps);
        let counted = settle::that_count(&steps, &look, known.end);
        self.follow_dirs(&steps, &look, known.end)?;
        let mut plan = settle::settle(&counted, &look, &known);
        plan.gone.extend(settle::not_made(&steps, &look));
        let mut names: Names = look.iter().map(|(path, it)| (path.clone(), it.key())).collect();
        if !plan.todo.is_empty() || counted != steps {
            self.record(loaded, &plan, plan.first_journal(), known.end)?;
            self.carry_out(&plan.todo, &mut names);
        }
        if !plan.home.is_empty() {
            self.make_anew(loaded, &mut plan);
            names.extend(plan.anew.iter().map(|(path, key)| (path.clone(), Some(*key))));
            self.record(loaded, &plan, plan.journal(), known.end)?;
            self.carry_out(&plan.home, &mut names);
            self.clear(&plan, &mut names);
        }
        self.rename_records(loaded, &plan, &names);
        let mut mentioned: BTreeSet<FileKey> =
            counted.iter().flat_map(|step| step.op.keys()).collect();
        mentioned.extend(plan.wanted.keys());
        self.note_ctimes(loaded, |key| mentioned.contains(&key));
        Ok(())
    }

    fn look_at(&self, paths: BTreeSet<PathBuf>) -> Result<Look> {
        let found = |path: &Path| match self.backing.stat(path) {
            Ok(Attr { key, mtime, ctime, .. }) => {
                Ok(Found::File { key, changed: mtime.min(ctime), ctime })
            }
            Err(e) if is_none(&e) => Ok(Found::Nothing),
            Err(e) if is_refused(&e) => Ok(Found::Hidden),
            Err(e) => Err(e.context("looking at names that the journal speaks of")),
        };
        paths.into_iter().map(|path| Ok((path.clone(), found(&path)?))).collect()
    }

    /// A directory was being renamed when we died: what is below it is on record where it was.
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

    /// Makes files that are forgotten under names that say whose they are: their own they get once
    /// their keys are on record, or who is killed in between would take them for somebody else's.
    fn make_anew(&mut self, loaded: &mut Loaded, plan: &mut Plan) {
        let ids: BTreeMap<FileKey, FileId> =
            loaded.files.iter().map(|(id, record)| (record.key, *id)).collect();
        for (beside, key) in std::mem::take(&mut plan.anew) {
            let id = ids[&key];
            let record = loaded.files.get_mut(&id).expect("listed above");
            match self.make_beside(&beside, record.owner()) {
                Ok(attr) => {
                    record.key = attr.key;
                    let (owner, base, mtime) = (record.owner(), attr.version(), record.mtime());
                    record.apply(&Change::Followed { owner, base, mtime });
                    self.changed.push(id);
                    plan.rekey(key, attr.key);
                    plan.anew.push((beside, attr.key));
                }
                Err(e) => {
                    self.report.problems.push(format!("{}: {e}", record.display_path().display()));
                    plan.home.retain(|op| op.key() != key);
                }
            }
        }
    }

    fn make_beside(&self, beside: &Path, owner: Owner) -> Result<Attr> {
        self.make_parents(beside, owner);
        // One of a recovery that was killed before it could record it.
        if self.backing.stat(beside).is_ok_and(|attr| attr.size == 0) {
            let _ = self.backing.unlink(beside);
        }
        let new = New { mode: owner.mode, umask: 0, uid: owner.uid, gid: owner.gid };
        Ok(self.backing.create(beside, &new)?.1)
    }

    /// Puts on record what is about to be done: a recovery that is killed is gone on with.
    fn record(
        &self,
        loaded: &Loaded,
        plan: &Plan,
        todo: Vec<NameOp>,
        end: Option<Timestamp>,
    ) -> Result<()> {
        let anew: BTreeSet<FileKey> = plan.anew.iter().map(|(_, key)| *key).collect();
        for (id, record) in loaded.files.iter().filter(|(_, record)| anew.contains(&record.key)) {
            let entry = Entry::Put(*id, Box::new(record.clone()));
            self.index.append(&entry).map_err(recording)?;
        }
        let step = |op| Step { n: 0, op, told: Told::Done, at: end };
        let mut steps: Vec<Step> =
            plan.made.iter().cloned().chain(todo.into_iter().map(step)).collect();
        steps.iter_mut().zip(0..).for_each(|(step, n)| step.n = n);
        self.index.set_names(steps).map_err(recording)?;
        self.index.sync().map_err(recording)
    }

    /// Does what is to be done; what cannot be leaves its names as they are. `names` follow.
    fn carry_out(&mut self, todo: &[NameOp], names: &mut Names) {
        let mut broken: Vec<PathBuf> = Vec::new();
        for op in todo {
            let is_broken = op.paths().any(|path| broken.iter().any(|it| path.starts_with(it)));
            let done = if is_broken { None } else { Some(self.make_again(op)) };
            if let Some(Ok(())) = done {
                follow(names, op);
                continue;
            }
            broken.extend(op.paths().map(Path::to_path_buf));
            if let Some(Err(e)) = done {
                self.report.problems.push(format!("{op}: {e}"));
            }
        }
    }

    /// Removes files that were made anew and could not be brought home.
    fn clear(&self, plan: &Plan, names: &mut Names) {
        for (beside, key) in &plan.anew {
            if names.get(beside) == Some(&Some(*key)) {
                let _ = self.backing.unlink(beside);
                names.remove(beside);
            }
        }
    }

    fn make_again(&self, op: &NameOp) -> Result<()> {
        match op {
            NameOp::Create { .. } => Ok(()),
            NameOp::Link { from, to, key } => {
                self.with_parents(to, || self.backing.link(from, Some(*key), to).map(drop))
            }
            NameOp::Unlink { path, .. } => self.backing.unlink(path).or_else(|e| match e.kind() {
                _ if e.is(libc::EISDIR) || e.is(libc::EPERM) => self.backing.rmdir(path),
                _ => Err(e),
            }),
            NameOp::Rename { from, to, over, .. } => self.with_parents(to, || match over {
                Some(_) => self.backing.rename(from, to, RenameMode::Replace),
                None => self.rename_to_free(from, to),
            }),
            NameOp::Exchange { from, to, .. } => {
                self.backing.rename(from, to, RenameMode::Exchange)
            }
        }
    }

    fn rename_to_free(&self, from: &Path, to: &Path) -> Result<()> {
        match self.backing.rename(from, to, RenameMode::NoReplace) {
            // Some network file systems cannot refuse to replace.
            Err(e) if e.is(libc::EINVAL) && self.backing.stat(to).is_err_and(|e| is_none(&e)) => {
                self.backing.rename(from, to, RenameMode::Replace)
            }
            done => done,
        }
    }

    /// A directory may be forgotten as well.
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

    /// Files on record have the names that they have on the store; those whose names something else
    /// has keep them, and the next flush finds a conflict (S8). What has none any more is forgotten.
    fn rename_records(&mut self, loaded: &mut Loaded, plan: &Plan, names: &Names) {
        for (_, path) in &plan.blocked {
            let text = format!("{}: something else is there", path.display());
            self.report.problems.push(text);
        }
        let mut at: BTreeMap<FileKey, Vec<&PathBuf>> = BTreeMap::new();
        names.iter().for_each(|(path, key)| {
            key.iter().for_each(|key| at.entry(*key).or_default().push(path));
        });
        let mut concerned: BTreeSet<FileKey> =
            at.keys().chain(plan.wanted.keys()).copied().collect();
        concerned.extend(plan.gone.iter().map(|(key, _)| *key));
        for (id, record) in &mut loaded.files {
            if !concerned.contains(&record.key) {
                continue;
            }
            let before = record.paths.clone();
            let at = at.get(&record.key).map_or(&[][..], Vec::as_slice);
            rename(self.index.tree(), record, plan, at);
            if record.paths != before {
                self.changed.push(*id);
            }
            if record.paths.is_empty() && !before.is_empty() {
                self.nameless.push(*id);
            }
        }
        self.nameless.iter().for_each(|id| drop(loaded.files.remove(id)));
    }

    /// Changes of names and attributes through us move the ctime, and the record of that may be lost. A time that was
    /// set is on record before.
    pub(super) fn note_ctimes(&mut self, loaded: &mut Loaded, of: impl Fn(FileKey) -> bool) {
        for (id, record) in &mut loaded.files {
            if self.boot == Boot::Kept && !of(record.key) {
                continue;
            }
            let Some(path) = record.paths.first() else { continue };
            if let Ok(attr) = self.backing.stat(&path)
                && attr.key == record.key
                && attr.size == record.base().size
                && record.is_own_time(attr.mtime)
                && attr.ctime != record.base().ctime
            {
                let base = Version { ctime: attr.ctime, mtime: attr.mtime, ..record.base() };
                let (owner, mtime) = (record.owner(), record.mtime());
                record.apply(&Change::Followed { owner, base, mtime });
                self.changed.push(*id);
            }
        }
    }
}

/// Gives a record the names that the file has, which is found `at` some.
fn rename(tree: &Tree, record: &mut Record, plan: &Plan, at: &[&PathBuf]) {
    let key = record.key;
    let wanted: Vec<&PathBuf> = plan.wanted.get(&key).into_iter().flatten().collect();
    let is_home = at.iter().any(|path| wanted.contains(path));
    let is_blocked = plan.blocked.iter().any(|(blocked, _)| *blocked == key);
    let is_found = !at.is_empty() && (!is_blocked || is_home);
    let has = if is_found { at } else { &wanted };
    let is_gone = |path: &Path| plan.gone.contains(&(key, path.to_path_buf()));
    record.paths.keep(|path| !is_gone(path) || has.iter().any(|has| **has == *path));
    has.iter().for_each(|path| record.paths.learn_also(tree, path));
}

fn known(loaded: &Loaded, steps: &[Step]) -> Known {
    let dirty = loaded.files.iter().filter(|(_, record)| record.is_dirty());
    let worth = dirty.map(|(id, record)| (record.key, format!("{ANEW}{:x}", id.0))).collect();
    let seen = loaded.files.values().map(|record| record.base().ctime);
    let end = steps.iter().filter_map(|step| step.at).chain(seen).max();
    Known { worth, end }
}

/// The store does not let us look, and will not later.
fn is_refused(error: &Error) -> bool {
    [libc::EACCES, libc::EPERM, libc::ELOOP, libc::ENAMETOOLONG].iter().any(|it| error.is(*it))
}

fn recording(error: std::io::Error) -> Error {
    Error::io(error, "writing the tier's index")
}
