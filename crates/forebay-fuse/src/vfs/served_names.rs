//! Changes of names and attributes that other members ask for, of files that this mount is the home of.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use forebay_backing::{Attr, Error, FileKey, RenameMode, Result, SetAttr, SetTime, XattrMode};
use forebay_cluster::core::Access;
use forebay_cluster::front::{Guard, Place};
use forebay_cluster::words::{Answer, Asker, Attrs, By, NameChange, NewSize, Set};
use forebay_engine::Named;

use super::Vfs;
use super::homes::{moved, words_of};
use super::members::Through;
use super::privilege::mode_with_owner;
use crate::verbs::rename_mode;

/// A change of attributes, as a member is asked for it.
pub(super) fn set_of(set: &SetAttr) -> Set {
    let time = |time| match time {
        SetTime::At(at) => Some(at),
        SetTime::Now => None,
    };
    let &SetAttr { mode, uid, gid, atime, mtime } = set;
    Set { mode, uid, gid, atime: atime.map(time), mtime: mtime.map(time) }
}

fn asked_of(set: &Set) -> SetAttr {
    let time = |at: Option<_>| at.map_or(SetTime::Now, SetTime::At);
    let &Set { mode, uid, gid, atime, mtime } = set;
    SetAttr { mode, uid, gid, atime: atime.map(time), mtime: mtime.map(time) }
}

fn file_at(path: &Path, key: FileKey) -> Named<'_> {
    Named { path, key, is_dir: false }
}

/// Whether a name is gone, or another file's.
pub(super) fn has_no_name(error: &Error) -> bool {
    error.is(libc::ENOENT) || error.is(libc::ESTALE)
}

impl Vfs {
    /// Makes a change for another member.
    pub(super) fn change_for(&self, change: NameChange, by: By) -> Result<Answer> {
        self.engine.files.refuse_read_only()?;
        let _held = self.hold_claims(&change)?;
        // The revision of the claim that is held now: the file may have been given back since the question, and
        // claimed anew.
        let cluster = self.cluster().ok_or_else(moved)?;
        let as_of = cluster.vouches(change.file()).unwrap_or_else(|| cluster.revision());
        let attrs = self.changed_for(change, by)?;
        Ok(Answer::Changed { attrs, as_of })
    }

    fn changed_for(&self, change: NameChange, by: By) -> Result<Option<Attrs>> {
        match &change {
            NameChange::SetAttr { file, path, is_open, set, size, asker } => {
                self.is_home(&[Some(*file)])?;
                let name = self.name_for(*file, path, *is_open)?;
                let attr = self.set_for(asker, *file, (path, name), (set, *size))?;
                Ok(Some(words_of(&attr)))
            }
            NameChange::SetXattr { file, path, name, value, flags, asker } => {
                let mode = xattr_mode(*flags);
                self.change_xattr_for((*file, path), name, asker, |at, name| {
                    self.engine.verbs.set_xattr(at, name, value, mode)
                })
            }
            NameChange::RemoveXattr { file, path, name, asker } => {
                self.change_xattr_for((*file, path), name, asker, |at, name| {
                    self.engine.verbs.remove_xattr(at, name)
                })
            }
            NameChange::Link { file, path, to } => self.link_for(*file, path, to).map(Some),
            NameChange::Unlink { file, path } => self.unlink_for(*file, path),
            NameChange::Replace { file, from, to, over, .. } => {
                self.is_home(&[Some(*over)])?;
                // The asker has entered the directory, too, but may have given up since.
                let _entering = self.entering(from, to, false)?;
                let _alone = self.alone_with([*over])?;
                self.rename_for(*file, from, to, Some(*over), RenameMode::Replace, None)?;
                Ok(None)
            }
            NameChange::Rename { file, from, to, over, flags } => {
                self.is_home(&[Some(*file), *over])?;
                let mode = rename_mode(*flags)?;
                let (_held, through) = self.hold_replaced(*file, from, to, *over, mode)?;
                let _entering = self.entering(from, to, mode == RenameMode::Exchange)?;
                let goes = over.filter(|_| through.is_none());
                let _alone = self.alone_with([Some(*file), goes].into_iter().flatten())?;
                let through = through.map(|home| Through { home, by: Some(by) });
                self.rename_for(*file, from, to, *over, mode, through)?;
                Ok(None)
            }
        }
    }

    /// Changes attributes of a file that was asked for by this path, and has this name.
    fn set_for(
        &self,
        asker: &Asker,
        file: FileKey,
        (path, name): (&Path, Option<PathBuf>),
        (set, size): (&Set, Option<NewSize>),
    ) -> Result<Attr> {
        let opened = match (&name, size) {
            (Some(_), None) => None,
            _ => Some(self.known_at(file, path)?),
        };
        let before = match &opened {
            Some(opened) => self.engine.verbs.stat_open(opened),
            None => self.newest(file, name.as_deref().unwrap_or(path))?,
        };
        self.allows_set(asker, &before, path, (set, size))?;
        if let (Some(opened), Some(NewSize { size, .. })) = (&opened, size) {
            self.resize_for(opened, size)?;
            if asker.uid != 0 && self.engine.verbs.has_set_id(opened) {
                self.strip_for_member(file, name.as_deref());
            }
        }
        let sets = *set != Set::default();
        let mut set = asked_of(set);
        if (set.uid.is_some() || set.gid.is_some()) && set.mode.is_none() {
            set.mode = mode_with_owner(&before, asker);
        }
        let changed = match (&name, &opened) {
            (_, Some(opened)) if !sets => self.engine.verbs.stat_open(opened),
            (Some(name), _) => {
                let done = self.engine.verbs.set_attr(file_at(name, file), &set);
                // The name has gone just now: the asker asks again.
                done.map_err(|error| if has_no_name(&error) { moved() } else { error })?
            }
            (None, Some(opened)) => self.engine.verbs.set_attr_open(opened, &set)?,
            (None, None) => return Err(moved()),
        };
        if set.mode.is_some() {
            self.nodes.forget_acl_of(file);
        }
        if sets {
            self.tell_attributes_of(file);
        }
        let now = name.and_then(|name| self.engine.verbs.stat(&name).ok());
        Ok(now.filter(|now| now.key == file).unwrap_or(changed))
    }

    /// The name by which attributes are changed for another member: the one that was asked for, if it is still the
    /// file's. A member that has the file open need not know the file's present name, nor need there be one.
    fn name_for(&self, file: FileKey, path: &Path, is_open: bool) -> Result<Option<PathBuf>> {
        match self.is_still(file, path) {
            Ok(()) => return Ok(Some(path.into())),
            Err(error) if !is_open || !has_no_name(&error) => return Err(error),
            Err(_) => {}
        }
        let own = self.engine.files.find(file).and_then(|file| file.path());
        Ok(own.filter(|own| self.is_still(file, own).is_ok()).map(|own| own.to_path_buf()))
    }

    fn change_xattr_for(
        &self,
        (file, path): (FileKey, &Path),
        name: &[u8],
        asker: &Asker,
        change: impl FnOnce(Named<'_>, &OsStr) -> Result<()>,
    ) -> Result<Option<Attrs>> {
        self.is_home(&[Some(file)])?;
        self.is_still(file, path)?;
        let name = OsStr::from_bytes(name);
        self.allows_xattr(asker, file, path, name)?;
        change(file_at(path, file), name)?;
        self.xattr_changed(file, name);
        Ok(None)
    }

    fn link_for(&self, file: FileKey, path: &Path, to: &Path) -> Result<Attrs> {
        self.is_home(&[Some(file)])?;
        let _entering = self.entering(path, to, false)?;
        self.is_still(file, path)?;
        let attr = self.engine.verbs.link(file_at(path, file), to)?;
        if let Some((dir, name)) = self.name_at(to) {
            self.nodes.remember(dir, name, &attr, 0);
        }
        self.name_changed(to);
        self.tell_attributes_of(file);
        Ok(words_of(&attr))
    }

    fn unlink_for(&self, file: FileKey, path: &Path) -> Result<Option<Attrs>> {
        self.is_home(&[Some(file)])?;
        let _alone = self.alone_with([file])?;
        self.is_still(file, path)?;
        let at = self.name_at(path);
        if let Some(at) = at {
            self.teach_names(file, at);
        }
        let _hold = self.hold(file, path);
        self.engine.verbs.unlink(file_at(path, file))?;
        if let Some((dir, name)) = at {
            self.nodes.unlink(dir, name);
        }
        self.name_changed(path);
        self.tell_attributes_of(file);
        Ok(None)
    }

    /// Holds the claims of the files that are changed, until the change is made.
    fn hold_claims(&self, change: &NameChange) -> Result<Vec<Guard>> {
        let files = match change {
            NameChange::SetAttr { file, path, .. }
            | NameChange::SetXattr { file, path, .. }
            | NameChange::RemoveXattr { file, path, .. }
            | NameChange::Link { file, path, .. }
            | NameChange::Unlink { file, path } => vec![(*file, path)],
            NameChange::Rename { file, from, to, over, .. } => {
                let over = over.map(|over| (over, to));
                [Some((*file, from)), over].into_iter().flatten().collect()
            }
            NameChange::Replace { to, over, .. } => vec![(*over, to)],
        };
        let cluster = self.cluster().ok_or_else(moved)?;
        let mut held = Vec::new();
        for (file, path) in files.into_iter().filter(|(file, _)| self.is_held(*file)) {
            match cluster.open(file, self.dir_of(path)?, path, Access::Serve)? {
                Place::Here(guard) => held.extend(guard),
                Place::There(_) => return Err(moved()),
            }
        }
        Ok(held)
    }

    /// To be called before a file is renamed over another here. Returns the home of the replaced file if it is not
    /// this member: that home makes the rename on the store, and asks no other member.
    fn hold_replaced(
        &self,
        file: FileKey,
        from: &Path,
        to: &Path,
        over: Option<FileKey>,
        mode: RenameMode,
    ) -> Result<(Option<Guard>, Option<String>)> {
        let replaces = |over: &FileKey| mode == RenameMode::Replace && *over != file;
        let Some(over) = over.filter(replaces) else { return Ok((None, None)) };
        let cluster = self.cluster().ok_or_else(moved)?;
        let dirs = (self.dir_of(from)?, self.dir_of(to)?);
        match cluster.replace((file, dirs.0), (over, dirs.1), to)? {
            (Place::Here(guard), through) => Ok((guard, through)),
            (Place::There(_), _) => Err(moved()),
        }
    }

    fn rename_for(
        &self,
        file: FileKey,
        from: &Path,
        to: &Path,
        over: Option<FileKey>,
        mode: RenameMode,
        through: Option<Through>,
    ) -> Result<()> {
        self.is_still(file, from)?;
        match (over, self.engine.names.ask(|b| b.stat(to))) {
            (Some(over), Ok(attr)) if attr.key == over => {}
            (None, Err(error)) if error.is(libc::ENOENT) => {}
            (_, Err(error)) if !error.is(libc::ENOENT) => return Err(error),
            _ => return Err(moved()),
        }
        let (old, new) = (self.name_at(from), self.name_at(to));
        let mut _hold = None;
        if let (Some(over), Some(new)) = (over, new) {
            self.teach_names(over, new);
            _hold = self.hold(over, to);
        }
        let over = over.map(|key| file_at(to, key));
        self.rename_on_store(file_at(from, file), to, over, mode, through, None)?;
        let exchange = mode == RenameMode::Exchange;
        if over.is_none_or(|over| over.key != file) {
            match (old, new) {
                (Some(old), Some(new)) => self.nodes.rename(old, new, exchange),
                (Some((dir, name)), None) | (None, Some((dir, name))) => {
                    self.nodes.unlink(dir, name);
                }
                (None, None) => {}
            }
        }
        for path in [from, to] {
            self.name_changed(path);
        }
        self.tell_attributes_of(file);
        Ok(())
    }

    /// Checks that one of the files is held here for certain: otherwise the asker has to look again.
    fn is_home(&self, files: &[Option<FileKey>]) -> Result<()> {
        let vouches = |file: &FileKey| self.cluster().is_some_and(|it| it.vouches(*file).is_some());
        match files.iter().flatten().any(vouches) {
            true => Ok(()),
            false => Err(moved()),
        }
    }

    /// Checks that the path still names the file: the file may have been renamed, or its directory.
    fn is_still(&self, file: FileKey, path: &Path) -> Result<()> {
        match self.engine.names.ask(|b| b.stat(path))?.key == file {
            true => Ok(()),
            false => Err(moved()),
        }
    }

    fn xattr_changed(&self, file: FileKey, name: &OsStr) {
        if let Some(id) = self.nodes.id_of(file) {
            self.acl_may_differ(id, name);
            self.tell_attributes(id);
        }
    }

    fn name_at<'a>(&self, path: &'a Path) -> Option<(u64, &'a OsStr)> {
        Some((self.nodes.at(path.parent()?)?, path.file_name()?))
    }

    /// Called after a name was changed. The kernel is not told of the name itself: it would wait for a program that
    /// is changing the directory, and a daemon that is killed in that wait takes the programs with it that wait for
    /// its answers. Names are at most `entry-ttl` old here, as elsewhere.
    fn name_changed(&self, path: &Path) {
        self.foresight.answers.doubt(path);
        if let Some((dir, _)) = self.name_at(path) {
            self.tell_attributes(dir);
        }
    }
}

pub(super) fn xattr_mode(flags: i32) -> XattrMode {
    match flags {
        libc::XATTR_CREATE => XattrMode::Create,
        libc::XATTR_REPLACE => XattrMode::Replace,
        _ => XattrMode::Any,
    }
}
