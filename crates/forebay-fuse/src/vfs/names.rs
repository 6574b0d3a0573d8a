//! Making, moving and removing names.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use forebay_backing::{Error, FileKey, FileKind, New, RenameMode, Result};
use forebay_engine::Named;

use super::{Entry, Make, Vfs};
use crate::control;
use crate::nodes::Hold;

/// So many other names the engine is told of when one goes: one is enough to find the file by, if
/// nobody takes it away behind our back.
const TAUGHT: usize = 4;

impl Vfs {
    /// Creates a directory, symbolic link, FIFO, socket, device or plain file without opening it.
    pub fn make(&self, parent: u64, name: &OsStr, new: New, what: &Make) -> Result<Entry> {
        self.refuse_read_only()?;
        let _tree = self.tree();
        let path = self.below(parent, name)?;
        let attr = self.engine.names.alter(|b| match what {
            Make::Dir => b.mkdir(&path, &new),
            Make::Link(target) => b.symlink(&path, target, &new),
            Make::Node(kind, rdev) => b.mknod(&path, &new, *kind, *rdev),
        })?;
        self.engine.names.note_made(&path, &attr);
        Ok(self.entry(parent, name, attr))
    }

    /// What `name` in `parent` names now: from memory, else by asking.
    pub(super) fn named(&self, parent: u64, name: &OsStr, path: &Path) -> Result<(FileKey, bool)> {
        if let Some(child) = self.nodes.child(parent, name) {
            return Ok((child.key, child.is_dir));
        }
        let attr = self.engine.names.ask(|b| b.stat(path))?;
        Ok((attr.key, attr.kind == FileKind::Dir))
    }

    pub fn unlink(&self, parent: u64, name: &OsStr) -> Result<()> {
        let _tree = self.tree();
        let path = self.below(parent, name)?;
        let (key, is_dir) = self.named(parent, name, &path)?;
        self.teach_names(key, (parent, name));
        let _hold = self.hold(key, &path);
        self.engine.verbs.unlink(Named { path: &path, key, is_dir })?;
        self.nodes.unlink(parent, name);
        Ok(())
    }

    /// Before a name goes, until it has gone: the kernel may speak of the file by its number for a
    /// while.
    #[must_use]
    pub(super) fn hold(&self, key: FileKey, path: &Path) -> Option<Hold<'_>> {
        let id = self.nodes.id_of(key);
        if !self.nodes.may_hold(id) {
            return None;
        }
        // Without a descriptor for it the name can go all the same.
        let pin = self.engine.names.ask(|b| b.pin(path)).ok().flatten()?;
        Some(self.nodes.hold(id, pin))
    }

    /// Before a name goes, the engine must know others, if there are any.
    pub(super) fn teach_names(&self, key: FileKey, going: (u64, &OsStr)) {
        let others = self.nodes.others(self.nodes.id_of(key), going, TAUGHT);
        if !others.is_empty() {
            self.engine.verbs.learn_names(key, others);
        }
    }

    pub fn rmdir(&self, parent: u64, name: &OsStr) -> Result<()> {
        self.refuse_read_only()?;
        let _tree = self.tree();
        let path = self.below(parent, name)?;
        let (key, _) = self.named(parent, name, &path)?;
        // Who works in it would otherwise be in another directory soon.
        let _hold = self.hold(key, &path);
        self.engine.names.alter(|b| b.rmdir(&path))?;
        self.engine.names.note_removed(Named { path: &path, key, is_dir: true });
        self.nodes.unlink(parent, name);
        Ok(())
    }

    pub fn rename(&self, from: (u64, &OsStr), to: (u64, &OsStr), mode: RenameMode) -> Result<()> {
        let exchange = mode == RenameMode::Exchange;
        let is_dir = |at: (u64, &OsStr)| self.nodes.child(at.0, at.1).is_some_and(|c| c.is_dir);
        let (_shared, _alone) = match is_dir(from) || (exchange && is_dir(to)) {
            true => (None, Some(self.tree_alone()?)),
            false => (Some(self.tree()), None),
        };
        let old = self.below(from.0, from.1)?;
        let new = self.below(to.0, to.1)?;
        let (key, is_dir) = self.named(from.0, from.1, &old)?;
        let over = match self.named(to.0, to.1, &new) {
            Ok(found) => Some(found),
            Err(e) if e.is(libc::ENOENT) => None,
            Err(e) => return Err(e),
        };
        let mut _hold = None;
        if let Some((key, is_dir)) = over {
            if !is_dir {
                self.teach_names(key, to);
            }
            _hold = self.hold(key, &new);
        }
        let over = over.map(|(key, is_dir)| Named { path: &new, key, is_dir });
        self.engine.verbs.rename(Named { path: &old, key, is_dir }, &new, over, mode)?;
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
        let attr = self.engine.verbs.link(Named { path: &from, key, is_dir: false }, &to)?;
        Ok(self.entry(parent, name, attr))
    }

    pub fn readlink(&self, id: u64) -> Result<PathBuf> {
        let _tree = self.tree();
        let path = self.path(id)?;
        self.engine.names.ask(|b| b.read_link(&path))
    }
}
