//! Making, moving and removing names.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_backing::{Error, FileKey, FileKind, New, RenameMode, Result};
use forebay_base::lock::RwLockWriteGuard;
use forebay_cluster::front::Place;
use forebay_cluster::words::NameChange;
use forebay_engine::rules::Origin;
use forebay_engine::{DatedAttr, Named};

use super::answers::Became;
use super::homes::{Looks, moved};
use super::look::Purpose;
use super::members::{Settled, Through};
use super::{Entry, Looked, Make, Vfs};
use crate::control;
use crate::nodes::Hold;

/// The number of other names that the engine is told when a name goes: one is enough to find the file
/// by, if others do not remove that on the store.
const TAUGHT: usize = 4;

/// How long the gate of a directory's rename stands while requests here still have the tree.
const GATED: Duration = Duration::from_secs(1);

impl Vfs {
    /// Creates a directory, symbolic link, FIFO, socket, device or plain file without opening it.
    pub fn make(&self, parent: u64, name: &OsStr, new: New, what: &Make) -> Result<Entry> {
        self.engine.files.refuse_read_only()?;
        let _tree = self.tree();
        let path = self.below(parent, name)?;
        let asked = self.engine.verbs.asking();
        let mut change = self.foresight.answers.changing(&[&path], &[]);
        let attr = self.engine.names.alter(|b| match what {
            Make::Dir => b.mkdir(&path, &new),
            Make::Link(target) => b.symlink(&path, target, &new),
            Make::Node(kind, rdev) => b.mknod(&path, &new, *kind, *rdev),
        })?;
        let told = DatedAttr::by(asked, attr);
        change.became(&path, Became::Made(told));
        drop(change);
        self.engine.names.note_made(&path, &attr);
        Ok(self.entry(parent, name, attr, told.at()))
    }

    /// The file that `name` in `parent` names now: from memory, else by asking the store. Where other members
    /// change names, too, memory does not count.
    pub(super) fn named(&self, parent: u64, name: &OsStr, path: &Path) -> Result<(FileKey, bool)> {
        if self.cluster().is_none()
            && let Some(child) = self.nodes.child(parent, name)
        {
            return Ok((child.key, child.is_dir));
        }
        let (attr, _) = self.attr_told(path)?;
        Ok((attr.key, attr.kind == FileKind::Dir))
    }

    /// Checks that a name which is about to go still names the file that its home was asked about: another
    /// member may have put a file of its own there meanwhile.
    ///
    /// # Errors
    ///
    /// ESTALE if it does not: the caller looks again.
    fn is_as_named(&self, at: (u64, &OsStr), path: &Path, asked: Option<FileKey>) -> Result<()> {
        if self.cluster().is_none() {
            return Ok(());
        }
        let now = match self.named(at.0, at.1, path) {
            Ok((key, _)) => Some(key),
            Err(e) if e.is(libc::ENOENT) => None,
            Err(e) => return Err(e),
        };
        if now == asked { Ok(()) } else { Err(moved()) }
    }

    /// Removes a name.
    pub fn unlink(&self, parent: u64, name: &OsStr) -> Result<()> {
        self.persist(|| self.unlink_once(parent, name))
    }

    /// Tries again when the changes of other members have overtaken an attempt.
    fn persist<T>(&self, attempt: impl Fn() -> Result<T>) -> Result<T> {
        let mut looks = Looks::begin();
        loop {
            match attempt() {
                Err(error)
                    if error.is(libc::ESTALE) && self.cluster().is_some() && looks.again() => {}
                done => return done,
            }
        }
    }

    fn unlink_once(&self, parent: u64, name: &OsStr) -> Result<()> {
        let _tree = self.tree();
        let path = self.below(parent, name)?;
        let (key, is_dir) = self.named(parent, name, &path)?;
        let files = self.in_dir(key, is_dir, parent);
        let change = || NameChange::Unlink { file: key, path: path.clone() };
        let Settled::Here(_change) = self.settle(&files, None, change)? else {
            self.nodes.unlink(parent, name);
            return Ok(());
        };
        let _alone = self.alone_with([key])?;
        self.is_as_named((parent, name), &path, Some(key))?;
        self.teach_names(key, (parent, name));
        let _hold = self.hold(key, &path);
        let mut change = self.foresight.answers.changing(&[&path], &[key]);
        self.engine.verbs.unlink(Named { path: &path, key, is_dir })?;
        change.became(&path, Became::Gone);
        self.nodes.unlink(parent, name);
        Ok(())
    }

    /// Holds a file while a name of it is removed: the kernel may still send requests with the file's
    /// number for a while.
    #[must_use]
    pub(super) fn hold(&self, key: FileKey, path: &Path) -> Option<Hold<'_>> {
        let id = self.nodes.id_of(key).filter(|id| self.nodes.may_hold(*id))?;
        // If there is no descriptor for the pin, the name can go all the same.
        let pin = self.engine.names.ask(|b| b.pin(path)).ok().flatten()?;
        Some(self.nodes.hold(id, pin))
    }

    /// Tells the engine of a file's other names, if there are any, before a name goes.
    pub(super) fn teach_names(&self, key: FileKey, going: (u64, &OsStr)) {
        let id = self.nodes.id_of(key);
        let others = id.map_or(Vec::new(), |id| self.nodes.others(id, going, TAUGHT));
        if !others.is_empty() {
            self.engine.verbs.learn_names(key, others);
        }
    }

    pub fn rmdir(&self, parent: u64, name: &OsStr) -> Result<()> {
        self.engine.files.refuse_read_only()?;
        let _tree = self.tree();
        let path = self.below(parent, name)?;
        let (key, _) = self.named(parent, name, &path)?;
        // A program in the removed directory would otherwise be in another one that gets its number.
        let _hold = self.hold(key, &path);
        let mut change = self.foresight.answers.changing(&[&path], &[key]);
        self.engine.names.alter(|b| b.rmdir(&path))?;
        self.foresight.answers.forget_below(&path);
        change.became(&path, Became::DirGone);
        self.engine.names.note_removed(Named { path: &path, key, is_dir: true });
        self.nodes.unlink(parent, name);
        Ok(())
    }

    pub fn rename(&self, from: (u64, &OsStr), to: (u64, &OsStr), mode: RenameMode) -> Result<()> {
        self.persist(|| self.rename_once(from, to, mode))
    }

    fn rename_once(&self, from: (u64, &OsStr), to: (u64, &OsStr), mode: RenameMode) -> Result<()> {
        let exchange = mode == RenameMode::Exchange;
        let is_dir = |at: (u64, &OsStr)| self.nodes.child(at.0, at.1).is_some_and(|c| c.is_dir);
        let moves_dir = is_dir(from) || (exchange && is_dir(to));
        let gate = || self.settle_dir(from, to, exchange, exchange && is_dir(to));
        let (below, _shared, _alone) = match moves_dir {
            false => (None, Some(self.tree()), None),
            true if self.cluster().is_none() => (None, None, Some(self.tree_alone()?)),
            true => {
                let (below, alone) = self.gated_alone(gate)?;
                (Some(below), None, Some(alone))
            }
        };
        let old = self.below(from.0, from.1)?;
        let new = self.below(to.0, to.1)?;
        if below.as_ref().is_some_and(|(asked, _)| *asked != (old.clone(), new.clone())) {
            return Err(Error::os(libc::EBUSY, "a directory above was renamed meanwhile"));
        }
        let (key, is_dir) = self.named(from.0, from.1, &old)?;
        let over = match self.named(to.0, to.1, &new) {
            Ok(found) => Some(found),
            Err(e) if e.is(libc::ENOENT) => None,
            Err(e) => return Err(e),
        };
        let makes_way = exchange && over.is_some_and(|(_, is_dir)| is_dir);
        if !moves_dir && (is_dir || makes_way) {
            // The kernel knows a file where another member has put a directory: it looks the name up again.
            return Err(moved());
        }
        let mut files = self.in_dir(key, is_dir, from.0);
        files.extend(over.iter().flat_map(|(key, is_dir)| self.in_dir(*key, *is_dir, to.0)));
        let change = || NameChange::Rename {
            file: key,
            from: old.clone(),
            to: new.clone(),
            over: over.map(|(key, _)| key),
            flags: match mode {
                RenameMode::Replace => 0,
                RenameMode::NoReplace => libc::RENAME_NOREPLACE,
                RenameMode::Exchange => libc::RENAME_EXCHANGE,
            },
        };
        let (settled, through) = match &files[..] {
            _ if moves_dir => (Settled::Here(None), None),
            &[file, goes] if mode == RenameMode::Replace && file.0 != goes.0 => {
                self.settle_replace(file, goes, &new, change)?
            }
            _ => (self.settle(&files, None, change)?, None),
        };
        let Settled::Here(_change) = settled else {
            if over.is_none_or(|(over, _)| over != key) {
                self.nodes.rename(from, to, exchange);
            }
            return Ok(());
        };
        // Not earlier: a member that is making files in a directory answers questions about a file there only once it
        // is made.
        let _entering = match moves_dir {
            true => Vec::new(),
            false => self.entering(&old, &new, exchange)?,
        };
        // If a file is replaced through its home, that home keeps other changes of its names away.
        let goes = over.filter(|_| through.is_none()).map(|(over, _)| over);
        let _alone = self.alone_with([Some(key), goes].into_iter().flatten())?;
        self.is_as_named(to, &new, over.map(|(key, _)| key))?;
        let mut _hold = None;
        if let Some((key, is_dir)) = over {
            if !is_dir {
                self.teach_names(key, to);
            }
            _hold = self.hold(key, &new);
        }
        let over = over.map(|(key, is_dir)| Named { path: &new, key, is_dir });
        let named = Named { path: &old, key, is_dir };
        let keys: Vec<FileKey> =
            [Some(key), over.map(|over| over.key)].into_iter().flatten().collect();
        let moved = self.foresight.answers.kind(&old);
        let mut change = self.foresight.answers.changing(&[&old, &new], &keys);
        let through = through.map(|home| Through { home, by: None });
        let gate = below.as_ref().map(|(_, gate)| gate);
        let renamed = self.rename_on_store(named, &new, over, mode, through, gate);
        if moves_dir {
            self.foresight.answers.forget_below(&old);
            self.foresight.answers.forget_below(&new);
        }
        renamed?;
        // A directory that moves takes a link of the directory above along.
        if !exchange && !moves_dir && !is_dir && over.is_none_or(|over| over.key != key) {
            change.became(&old, Became::Gone);
            if let Some((kind, ino)) = moved {
                change.became(&new, Became::Moved(kind, ino));
            }
        }
        drop(change);
        // Two names of one file: POSIX says that nothing happens.
        if over.is_none_or(|over| over.key != key) {
            self.nodes.rename(from, to, exchange);
        }
        Ok(())
    }

    pub fn link(&self, id: u64, parent: u64, name: &OsStr) -> Result<Entry> {
        control::refuse(id)?;
        let _tree = self.tree();
        let from = self.path(id)?;
        let to = self.below(parent, name)?;
        let key = self.nodes.key(id).ok_or_else(|| Error::os(libc::ESTALE, "link"))?;
        let change = || NameChange::Link { file: key, path: from.clone(), to: to.clone() };
        let files: Vec<_> = self.nodes.placed(id).into_iter().collect();
        let _change = match self.settle(&files, None, change)? {
            Settled::Here(change) => change,
            Settled::Done(attrs) => {
                let attr = self.changed_there(&to, attrs)?;
                let purpose = Purpose::Lookup(Origin::default());
                return match self.found(parent, name, (attr, Instant::now()), purpose)? {
                    Looked::There(found) => Ok(found),
                    Looked::Nowhere(_) | Looked::Bare => Err(moved()),
                };
            }
        };
        if self.is_far(id) {
            // The kernel would take the new name for one of the node that it knows.
            return Err(moved());
        }
        let _entering = self.entering(&from, &to, false)?;
        let asked = self.engine.verbs.asking();
        let mut change = self.foresight.answers.changing(&[&to], &[key]);
        let attr = self.engine.verbs.link(Named { path: &from, key, is_dir: false }, &to)?;
        let told = DatedAttr::by(asked, attr);
        change.became(&to, Became::Named(told));
        drop(change);
        Ok(self.entry(parent, name, attr, told.at()))
    }

    /// The file that other members may have to be asked about, with its directory; none for a directory.
    fn in_dir(&self, key: FileKey, is_dir: bool, parent: u64) -> Vec<(FileKey, FileKey)> {
        let dir = self.nodes.key(parent).filter(|_| !is_dir);
        dir.map(|dir| (key, dir)).into_iter().collect()
    }

    /// Puts the gate of a directory's rename, which asks the other members before any request here has to wait, and
    /// then locks the tree. A request that has the tree may wait for a member that waits for the gate to go: after
    /// [`GATED`] the gate is taken away until the tree was free once.
    ///
    /// # Errors
    ///
    /// EBUSY after the backing store's timeout; otherwise as `gate`.
    fn gated_alone<T>(
        &self,
        gate: impl Fn() -> Result<T>,
    ) -> Result<(T, RwLockWriteGuard<'_, ()>)> {
        let began = Instant::now();
        loop {
            let gated = gate()?;
            if let Some(alone) = self.tree.alone(GATED) {
                return Ok((gated, alone));
            }
            drop(gated);
            let limit = self.engine.files.tunables().backing_timeout;
            drop(self.tree_alone_within(limit.saturating_sub(began.elapsed()))?);
        }
    }

    /// To be called before a directory is renamed: no other member may hold files below. Returns the paths.
    fn settle_dir(
        &self,
        from: (u64, &OsStr),
        to: (u64, &OsStr),
        exchange: bool,
        moves_other: bool,
    ) -> Result<((PathBuf, PathBuf), Settled)> {
        let (old, new, files) = {
            let _tree = self.tree();
            let (old, new) = (self.below(from.0, from.1)?, self.below(to.0, to.1)?);
            let (_, is_dir) = self.named(from.0, from.1, &old)?;
            if exchange && (is_dir || moves_other) {
                let why = "directories of a store with several members are not exchanged";
                return Err(Error::os(libc::EOPNOTSUPP, why));
            }
            let other = |at: (u64, &OsStr)| self.nodes.child(at.0, at.1);
            let child = if is_dir { other(to) } else { other(from) };
            let parent = if is_dir { to.0 } else { from.0 };
            let file = child.map(|child| self.in_dir(child.key, child.is_dir, parent));
            (old, new, (is_dir, file.unwrap_or_default()))
        };
        let (is_dir, files) = files;
        let below = if is_dir { &old } else { &new };
        // No other member makes the rename of a directory.
        let cluster = self.cluster().ok_or_else(moved)?;
        match cluster.change(&files, Some(below))? {
            Place::Here(guard) => Ok(((old, new), Settled::Here(guard))),
            Place::There(home) => {
                let why =
                    format!("member {home} holds a file that the directory is exchanged with");
                Err(Error::os(libc::EBUSY, why))
            }
        }
    }

    pub fn readlink(&self, id: u64) -> Result<PathBuf> {
        let _tree = self.tree();
        let path = self.path(id)?;
        self.engine.names.ask(|b| b.read_link(&path))
    }
}
