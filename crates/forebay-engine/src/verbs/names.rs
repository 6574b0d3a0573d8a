//! Changes of names and attributes: made on the backing store at once, and followed here.
//!
//! Every change of names goes into the journal of names ([`crate::core::journal`]): a change of a
//! file with a record before the store is asked, so that after a crash in the middle recovery can
//! ask the store whether it happened; any other change once it was made.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_backing::{Attr, Error, FileKey, New, RenameMode, Result, Timestamp};

use crate::core::clock::Look;
use crate::core::journal::{Moved, NameOp};
use crate::core::paths::Moving;
use crate::failpoint;
use crate::files::changing::Changing;
use crate::files::file::{File, note_new};
use crate::files::journaled::unlinked;
use crate::files::names::Named;
use crate::files::open::OpenFile;
use crate::verbs::Verbs;

impl Verbs {
    /// Creates a file on the backing store and opens it.
    pub fn create(&self, path: &Path, new: &New) -> Result<(OpenFile, Attr)> {
        self.files.refuse_read_only()?;
        let (asked, next) = (self.files.time().now(), self.files.next_id());
        let (_, attr) = self.names.alter(|b| b.create(path, new))?;
        let file = self.io.created(path, &attr, next);
        note_new(&mut file.lock(), asked, &attr);
        Ok((file, attr))
    }

    /// Makes another name for a file.
    pub fn link(&self, from: Named<'_>, to: &Path) -> Result<Attr> {
        self.files.refuse_read_only()?;
        let file = self.files.find(from.key);
        file.iter().for_each(|file| self.compare(file, from));
        let _changing = Changing::begin(file);
        let since = Look::now();
        let mut attr = self.names.alter(|b| b.link(from.path, Some(from.key), to))?;
        let op = NameOp::Link { from: from.path.into(), to: to.into(), key: from.key };
        self.names.note_name(op, Some(attr.ctime));
        if let Some(file) = self.files.find(from.key) {
            let ask = || self.names.ask(|b| b.stat(to));
            let (newest, mut inner) = self.names.newest(&file, attr, since, ask);
            attr = newest;
            inner.rename(file.id, |paths| paths.learn_also(self.files.tree(), to));
            self.names.follow(&file, &mut inner, &attr)?;
            self.names.overlay_with(&file, &inner, &mut attr);
            drop(inner);
            self.outbox.tell_if_copied(&file)?;
        }
        Ok(attr)
    }

    /// Adds other names of a file that a front-end has seen.
    pub fn learn_names(&self, key: FileKey, names: impl IntoIterator<Item = PathBuf>) {
        let Some(file) = self.files.find(key) else { return };
        let mut inner = file.lock();
        let tree = self.files.tree();
        inner.rename(file.id, |paths| {
            names.into_iter().for_each(|name| paths.learn_also(tree, &name));
        });
    }

    /// Removes a name. Dirty bytes go with the last name; if a file has other names that are not
    /// known here, its bytes are flushed first.
    pub fn unlink(self: &Arc<Self>, at: Named<'_>) -> Result<()> {
        self.files.refuse_read_only()?;
        let _leaving = self.files.take_name(at.key);
        let Some(file) = self.files.find(at.key) else {
            let before = self.names.before_removal();
            self.names.alter(|b| b.unlink(at.path))?;
            self.names.note_name(unlinked(at), Some(before));
            // A program may have opened the file meanwhile.
            return self
                .files
                .find(at.key)
                .map_or(Ok(()), |file| self.names.lost_name(&file, at.path));
        };
        self.part_with(&file, at)?;
        let _changing = Changing::begin([file.clone()]);
        let (recorded, other) = {
            let inner = file.lock();
            let other = inner.state.paths.iter().find(|path| *path != at.path);
            (inner.recorded(), other)
        };
        let announced = match recorded {
            true => Some(self.names.announce(unlinked(at), [&file], &Moving::default())?),
            false => None,
        };
        failpoint::pass("unlink.intent");
        let before = self.names.before_removal();
        let done = self.names.alter(|b| b.unlink(at.path));
        failpoint::pass("unlink.done");
        if done.is_err() {
            return self.names.not_made(announced).and(done);
        }
        let left = self.left_at(&file, other.as_deref(), before);
        match announced {
            // The journal entry ends before the file's record goes.
            Some(n) => self.names.conclude(n, Some(left), std::iter::once(&file), None)?,
            None => self.names.note_name(unlinked(at), Some(left)),
        }
        // A file that was closed and opened anew meanwhile has another entry in the table.
        let file = self.files.find(at.key).unwrap_or(file);
        self.names.lost_name(&file, at.path)?;
        self.outbox.tell_if_copied(&file)
    }

    /// Returns the time of the last change that is not another program's, of a file that has just lost a name: its
    /// ctime, asked by another name or through a descriptor. Flights and writes around the tier move the ctime, and hold
    /// the backing file open; without them it is that of the last known version, or `before` the removal.
    fn left_at(&self, file: &File, other: Option<&Path>, before: Timestamp) -> Timestamp {
        let (held, known) = {
            let inner = file.lock();
            (inner.in_use().and_then(|live| live.held().cloned()), inner.state.base().ctime)
        };
        let found = match (held, other) {
            (Some(held), _) => self.names.ask(|_| held.stat()).ok(),
            (None, Some(other)) => self.names.ask(|b| b.stat(other)).ok(),
            (None, None) => None,
        };
        let found = found.filter(|found| found.key == file.key);
        found.map_or(known.max(before), |found| found.ctime)
    }

    /// Prepares for the loss of a name: a program that has the file open can read it later, and
    /// dirty bytes of a file with unknown names are flushed.
    ///
    /// # Errors
    ///
    /// ESTALE if the file is dirty or open, and others have taken the name from it: the caller looks again.
    fn part_with(self: &Arc<Self>, file: &Arc<File>, at: Named<'_>) -> Result<()> {
        self.forget_lost_names(file, at)?;
        self.rescue_links(file, at)?;
        self.compare_others(file, at);
        let is_gone = |error: &Error| error.is(libc::ENOENT) || error.is(libc::ESTALE);
        let mut kept = self.files.keep_readable(file);
        if kept.as_ref().is_err_and(is_gone) {
            // The file may have been looked for by another of its names.
            self.prove_name(file, at)?;
            kept = self.files.keep_readable(file);
        }
        match kept {
            Err(error) if error.is(libc::EMFILE) || is_gone(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Forgets other names that the file has no more on the store, up to the first that it has: it
    /// is not kept for a name that others have taken from it.
    fn forget_lost_names(&self, file: &Arc<File>, at: Named<'_>) -> Result<()> {
        let (others, is_known) = {
            let inner = file.lock();
            let paths = &inner.state.paths;
            (paths.iter().filter(|path| path != at.path).collect::<Vec<_>>(), paths.has(at.path))
        };
        let is_lost = |path: &&PathBuf| match self.names.ask(|b| b.stat(path)) {
            Ok(attr) => attr.key != at.key,
            Err(error) => error.is(libc::ENOENT) || error.is(libc::ENOTDIR),
        };
        let lost: Vec<&PathBuf> = others.iter().take_while(is_lost).collect();
        if lost.is_empty() {
            return Ok(());
        }
        // A record keeps one name at least.
        if !is_known {
            self.prove_name(file, at)?;
        }
        let mut inner = file.lock();
        inner.rename(file.id, |paths| paths.keep(|path| !lost.iter().any(|lost| *lost == path)));
        if inner.recorded() { self.files.put(file, &mut inner) } else { Ok(()) }
    }

    /// Flushes a dirty file with unknown names before a known one goes.
    fn rescue_links(self: &Arc<Self>, file: &Arc<File>, at: Named<'_>) -> Result<()> {
        if !file.lock().state.is_dirty() {
            return Ok(());
        }
        let links = self.prove_name(file, at)?;
        let others = {
            let mut inner = file.lock();
            inner.note_links(links);
            inner.state.paths.iter().filter(|path| path != at.path).count()
        };
        if links > 1 && others == 0 { self.drain.flush_file(file) } else { Ok(()) }
    }

    /// Returns the number of the file's names, if `at` is one of them, and makes that one the file's first.
    fn prove_name(&self, file: &File, at: Named<'_>) -> Result<u32> {
        let taken = || {
            let what = format!("{} is not the name of that file any more", at.path.display());
            Err(Error::os(libc::ESTALE, what))
        };
        match self.names.ask(|b| b.stat(at.path)) {
            Ok(attr) if attr.key == at.key => {
                let tree = self.files.tree();
                file.lock().rename(file.id, |paths| paths.learn_first(tree, at.path));
                Ok(attr.nlink)
            }
            Ok(_) => taken(),
            Err(error) if error.is(libc::ENOENT) => taken(),
            Err(error) => Err(error),
        }
    }

    /// Does [`Verbs::compare`] for a file that one of its names is about to leave, if others stay.
    fn compare_others(&self, file: &Arc<File>, at: Named<'_>) {
        if file.lock().state.paths.len() > 1 {
            self.compare(file, at);
        }
    }

    /// Renames `from` to `to`, replacing `over` if that file has the name `to`.
    pub fn rename(
        self: &Arc<Self>,
        from: Named<'_>,
        to: &Path,
        over: Option<Named<'_>>,
        mode: RenameMode,
    ) -> Result<()> {
        let make = || self.names.alter(|b| b.rename(from.path, to, mode));
        self.rename_by(from, to, over, mode, make)
    }

    /// As [`Verbs::rename`], where `make` makes the rename on the store, in one step and of these files,
    /// or returns an error if the rename was not made.
    pub fn rename_by(
        self: &Arc<Self>,
        from: Named<'_>,
        to: &Path,
        over: Option<Named<'_>>,
        mode: RenameMode,
        make: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.files.refuse_read_only()?;
        let exchange = mode == RenameMode::Exchange;
        let moved = self.cached(from);
        let back = over.filter(|_| exchange).and_then(|over| self.cached(over));
        // Both are names of one file: POSIX says that nothing happens.
        if over.is_some_and(|over| over.key == from.key) {
            return self.names.alter(|b| b.rename(from.path, to, mode));
        }
        let _leaving =
            (self.files.take_name(from.key), over.map(|over| self.files.take_name(over.key)));
        let lost = over.filter(|_| !exchange);
        let replaced = lost.and_then(|over| self.files.find(over.key));
        if let (Some(file), Some(over)) = (&replaced, lost) {
            self.make_way(file, over, moved.as_ref())?;
        }
        moved.iter().for_each(|file| self.compare(file, from));
        if let (Some(file), Some(over)) = (&back, over) {
            self.compare(file, over);
        }
        let op = match (exchange, over) {
            (true, Some(over)) => exchanged(from, over),
            _ => renamed(from, to, over),
        };
        let _changing = Changing::begin([&moved, &back, &replaced].into_iter().flatten().cloned());
        let way = op.way();
        let moves_dirs = way.is_some();
        let dirs = way.map(|way| self.files.tree().begin(way)).unwrap_or_default();
        let files = || moved.iter().chain(&back).chain(&replaced);
        let is_known = files().next().is_some() || !dirs.is_empty();
        if moves_dirs {
            self.outbox.tell_names_below(from.path, to)?;
            if exchange {
                self.outbox.tell_names_below(to, from.path)?;
            }
        }
        for (file, to) in
            moved.iter().map(|it| (it, to)).chain(back.iter().map(|it| (it, from.path)))
        {
            self.outbox.tell_name(file, Some(to))?;
        }
        let mut announced = None;
        if is_known {
            announced = Some(self.names.announce(op.clone(), files(), &dirs)?);
            failpoint::pass("rename.intent");
        }
        let done = make();
        if done.is_err() {
            self.names.not_made(announced)?;
            let dirs = moves_dirs.then_some([from.path, to]);
            self.tell_renamed(moved.iter().chain(&back), dirs)?;
            return done;
        }
        if is_known {
            failpoint::pass("rename.done");
        }
        self.follow_rename(moved.as_ref(), from.path, to)?;
        self.follow_rename(back.as_ref(), to, from.path)?;
        // Files are looked up once more: a file that was closed and opened anew meanwhile has
        // another entry in the table, or the file was not known before.
        let anew = |key: FileKey, known: &Option<Arc<File>>| {
            let is_known = |anew: &Arc<File>| known.iter().any(|file| file.id == anew.id);
            self.files.find(key).filter(|anew| !is_known(anew))
        };
        // These files may have their new names already.
        self.follow_rename(anew(from.key, &moved).as_ref(), from.path, to)?;
        if let (true, Some(over)) = (exchange, over) {
            self.follow_rename(anew(over.key, &back).as_ref(), to, from.path)?;
            self.names.refresh(Named { path: from.path, ..over });
        }
        let known = self.names.refresh(Named { path: to, ..from });
        let asked = || announced.and_then(|_| self.names.ask(|b| b.stat(to)).ok());
        let at = known.or_else(asked).filter(|attr| attr.key == from.key).map(|attr| attr.ctime);
        match announced {
            Some(n) => self.names.conclude(n, at, moved.iter().chain(&back), way)?,
            None => self.names.note_name(op, at),
        }
        // Not before: the replaced file's bytes count until another file is on record for the name.
        if let Some(file) = lost.and_then(|over| self.files.find(over.key)).or(replaced) {
            self.names.lost_name(&file, to)?;
            self.outbox.tell_if_copied(&file)?;
        }
        self.tell_renamed(moved.iter().chain(&back), moves_dirs.then_some([from.path, to]))
    }

    /// Tells partners the names that count now, before the rename is answered.
    fn tell_renamed<'a>(
        &self,
        mut files: impl Iterator<Item = &'a Arc<File>>,
        dirs: Option<[&Path; 2]>,
    ) -> Result<()> {
        files.try_for_each(|file| self.outbox.tell_name(file, None))?;
        dirs.into_iter().flatten().try_for_each(|dir| self.outbox.tell_below(dir))
    }

    fn cached(&self, at: Named<'_>) -> Option<Arc<File>> {
        self.files.find(at.key).filter(|_| !at.is_dir)
    }

    /// Prepares for a file to take the name of another one. If that one has durable bytes the new one is made
    /// durable first: otherwise, after a loss of power, the store may have forgotten the new file, and those bytes
    /// would be gone for its sake (S3).
    fn make_way(
        self: &Arc<Self>,
        old: &Arc<File>,
        at: Named<'_>,
        new: Option<&Arc<File>>,
    ) -> Result<()> {
        self.part_with(old, at)?;
        let lasts = old.lock().may_last();
        let is_new = |new: &&Arc<File>| {
            let inner = new.lock();
            inner.state.is_dirty() && !inner.may_last()
        };
        new.filter(|_| lasts).filter(is_new).map_or(Ok(()), |new| self.io.sync_here(new))
    }

    /// Gives a file its new path.
    fn follow_rename(&self, file: Option<&Arc<File>>, from: &Path, to: &Path) -> Result<()> {
        let Some(file) = file else { return Ok(()) };
        let mut inner = file.lock();
        let tree = self.files.tree();
        inner.rename(file.id, |paths| {
            paths.change(tree, |path| (path == from).then(|| to.to_path_buf()));
            // Another program may have renamed the file before: `from` was none of the known names.
            paths.learn_first(tree, to);
        });
        if inner.recorded() { self.files.put(file, &mut inner) } else { Ok(()) }
    }
}

fn renamed(from: Named<'_>, to: &Path, over: Option<Named<'_>>) -> NameOp {
    NameOp::Rename {
        from: from.path.into(),
        to: to.into(),
        key: from.key,
        over: over.map(|over| over.key),
        moved: moved_by(from.is_dir),
    }
}

fn exchanged(from: Named<'_>, over: Named<'_>) -> NameOp {
    NameOp::Exchange {
        from: from.path.into(),
        to: over.path.into(),
        key: from.key,
        with: over.key,
        moved: moved_by(from.is_dir || over.is_dir),
    }
}

fn moved_by(is_dir: bool) -> Moved {
    if is_dir { Moved::Dir } else { Moved::File }
}

#[cfg(test)]
mod tests {
    use crate::bed::bed;
    use crate::core::report::Progress;

    use super::*;

    /// A file is not kept for a name that others have changed on the store, by whichever way its
    /// present name goes; it is kept for one that it has.
    // S-7 S-25
    #[test]
    fn a_file_is_not_kept_for_a_name_that_others_have_changed() {
        for (how, is_linked) in
            [("unlink", false), ("rename", false), ("unlink", true), ("rename", true)]
        {
            let bed = bed(&format!("names-lost-{how}-{is_linked}"));
            let engine = &bed.engine;
            let stored = |name: &str| bed.root.join("backing").join(name);
            let key = bed.file.key;
            std::fs::rename(stored("f"), stored("g")).unwrap();
            engine.verbs.learn_names(key, ["g".into()]);
            if is_linked {
                std::fs::hard_link(stored("g"), stored("h")).unwrap();
                engine.verbs.learn_names(key, ["h".into()]);
            }
            let gone = Named { path: Path::new("g"), key, is_dir: false };
            match how {
                "unlink" => engine.verbs.unlink(gone).unwrap(),
                _ => {
                    std::fs::write(stored("other"), b"other").unwrap();
                    let from = Path::new("other");
                    let other = engine.names.ask(|b| b.stat(from)).unwrap().key;
                    let from = Named { path: from, key: other, is_dir: false };
                    let mode = RenameMode::Replace;
                    engine.verbs.rename(from, gone.path, Some(gone), mode).unwrap();
                }
            }
            assert_eq!(engine.files.find(key).is_some(), is_linked, "{how}");
            let report = engine.drain.flush(&[], &Progress::default());
            assert!(report.failures.is_empty(), "{how}: {:?}", report.failures);
            let ours = std::fs::read(stored("h")).ok();
            assert_eq!(ours, is_linked.then(|| vec![1; 100]), "{how}");
        }
    }

    /// The announcement of a directory's rename is durable before the store is asked if a file
    /// below could come back under its old name; if none could, it costs no sync of the log.
    // S-3
    #[test]
    fn a_directory_waits_for_the_log_only_with_something_durable_below() {
        let bed = bed("names-announced");
        let engine = &bed.engine;
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let new = New { mode: 0o755, umask: 0, uid: uid.as_raw(), gid: gid.as_raw() };
        for path in ["a", "a/b", "c"] {
            engine.names.alter(|b| b.mkdir(Path::new(path), &new)).unwrap();
        }
        let (file, _) = engine.verbs.create(Path::new("a/b/f"), &new).unwrap();
        let rename = |from: &str, to: &str| {
            let (from, to) = (Path::new(from), Path::new(to));
            let key = engine.names.ask(|b| b.stat(from)).unwrap().key;
            let before = engine.files.index().seq();
            let named = Named { path: from, key, is_dir: true };
            engine.verbs.rename(named, to, None, RenameMode::NoReplace).unwrap();
            assert!(engine.files.index().seq() > before + 1, "it was announced and concluded");
            engine.files.index().is_synced(before + 1)
        };
        engine.io.write(&file, 0, &[1; 100]).unwrap();
        let (other, _) = engine.verbs.create(Path::new("a/g"), &new).unwrap();
        engine.io.write(&other, 0, &[2; 100]).unwrap();
        assert!(!rename("a", "d"), "never synced");
        engine.io.sync(&file).unwrap();
        assert!(rename("d/b", "c/e"), "durable");
        assert!(!rename("d", "a"), "what was durable has left it");
        assert!(rename("c", "d"), "durable further below");
        drop((file, other));
        assert_eq!(engine.drain.flush(&[], &Progress::default()).failures.len(), 0);
        assert!(!rename("d", "c"), "flushed, and on record as that");
    }
}
