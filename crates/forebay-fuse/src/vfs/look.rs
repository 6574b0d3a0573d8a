//! Looking names and attributes up, also while the backing store is away: the `_cached` verbs
//! never ask it (S10).

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use forebay_backing::{Attr, DirEntry, Error, FileKey, FileKind, Result};
use forebay_engine::rules::Origin;
use forebay_engine::{File, Glance};

use super::homes::FORESEEN;
use super::open::Opens;
use super::{Entry, Handle, Listing, Looked, Opened, Recalled, Vfs};
use crate::control;
use crate::control::Control;
use crate::flags::OpenFlags;
use crate::nodes::{ROOT, Side};

/// The purpose of a lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A lookup by this thread of a program.
    Lookup(Origin),
    Listing,
}

/// The answer about a path, as of a moment.
pub(super) enum Said {
    There(Attr, Instant),
    Nowhere(Instant),
}

impl Said {
    fn attr(self, path: &Path) -> Result<(Attr, Instant)> {
        match self {
            Said::There(attr, as_of) => Ok((attr, as_of)),
            Said::Nowhere(_) => Err(Error::os(libc::ENOENT, format!("stat {}", path.display()))),
        }
    }
}

impl Vfs {
    pub fn lookup(&self, parent: u64, name: &OsStr, who: Origin) -> Result<Looked> {
        self.look_up(parent, name, Purpose::Lookup(who))
    }

    /// As [`Vfs::lookup`], for a listing.
    pub fn lookup_listed(&self, parent: u64, name: &OsStr) -> Result<Looked> {
        self.look_up(parent, name, Purpose::Listing)
    }

    fn look_up(&self, parent: u64, name: &OsStr, purpose: Purpose) -> Result<Looked> {
        if Control::owns(parent) {
            return self.control_entry(self.control.lookup(parent, name)?).map(Looked::There);
        }
        match name.as_encoded_bytes() {
            b"." => return self.again(parent).map(Looked::There),
            b".." => {
                let above = self.nodes.parent(parent);
                let above = above.ok_or_else(|| Error::os(libc::ESTALE, ".."))?;
                return self.again(above).map(Looked::There);
            }
            _ if parent == ROOT && name == control::NAME => {
                return self.control_entry(self.control.root()).map(Looked::There);
            }
            _ => {}
        }
        let _tree = self.tree();
        let dir = self.path(parent)?;
        if purpose != Purpose::Listing && self.cluster().is_none() {
            self.foresight.step(&dir, name);
        }
        match self.said(&dir.join(name), purpose) {
            Ok(Said::There(attr, as_of)) => self.found(parent, name, (attr, as_of), purpose),
            Ok(Said::Nowhere(as_of)) => Ok(Looked::Nowhere(as_of)),
            Err(error) => self.lookup_away(parent, name, error).map(Looked::There),
        }
    }

    /// The store's answer about a path, new or remembered. Where other members change names, too, a
    /// remembered answer counts for a listing only, and only if it was asked for that.
    pub(super) fn said(&self, path: &Path, purpose: Purpose) -> Result<Said> {
        let is_shared = self.cluster().is_some();
        if !is_shared || purpose == Purpose::Listing {
            match self.foresight.recall(path) {
                Recalled::There(told) if !is_shared || told.at().elapsed() < FORESEEN => {
                    if let Some(attr) = self.engine.verbs.recall(path, &told) {
                        return Ok(Said::There(attr, told.at()));
                    }
                }
                Recalled::Nowhere(as_of) if !is_shared => return Ok(Said::Nowhere(as_of)),
                _ => {}
            }
        }
        let (asked, at) = (self.foresight.answers.moment(), Instant::now());
        let looked = self.engine.verbs.look(path);
        self.foresight.took(at.elapsed());
        match looked {
            Ok((attr, told)) => {
                self.foresight.answers.hear(path, asked, Recalled::There(told));
                Ok(Said::There(attr, told.at()))
            }
            Err(error) if error.is(libc::ENOENT) => {
                self.foresight.answers.hear(path, asked, Recalled::Nowhere(at));
                Ok(Said::Nowhere(at))
            }
            Err(error) => Err(error),
        }
    }

    /// The attributes at `path`, and the moment as of which the store has told them.
    ///
    /// # Errors
    ///
    /// The store's errors; ENOENT if no file has the path.
    pub(super) fn attr_told(&self, path: &Path) -> Result<(Attr, Instant)> {
        self.said(path, Purpose::Lookup(Origin::default()))?.attr(path)
    }

    pub(super) fn control_entry(&self, id: u64) -> Result<Entry> {
        if id == ROOT {
            return self.again(ROOT);
        }
        Ok(Entry { id, attr: self.control.attr(id)?, as_of: Instant::now() })
    }

    /// Looks up a node that the kernel has by number only, from an exported handle.
    pub(super) fn again(&self, id: u64) -> Result<Entry> {
        let _tree = self.tree();
        let path = self.path(id)?;
        let as_of = Instant::now();
        let mut attr = self.engine.verbs.stat(&path)?;
        let side = if self.is_far(id) { Side::Far } else { Side::Near };
        if self.nodes.id_at(attr.key, side) != Some(id) {
            return Err(Error::os(libc::ESTALE, "the file was replaced"));
        }
        if side == Side::Far {
            attr = self.getattr_there(id)?;
        }
        if id != ROOT
            && let (Some(parent), Some(name)) = (self.nodes.parent(id), path.file_name())
        {
            self.nodes.remember_at(side, parent, name, &attr, 1);
        }
        Ok(Entry { id, attr, as_of })
    }

    pub(super) fn lookup_away(&self, parent: u64, name: &OsStr, error: Error) -> Result<Entry> {
        match self.engine.health.is_available() {
            true => Err(error),
            false => self.lookup_cached(parent, name),
        }
    }

    /// Looks up a name while the backing store is away (S10): this and the other `_cached` verbs never
    /// ask the store.
    pub fn lookup_cached(&self, parent: u64, name: &OsStr) -> Result<Entry> {
        let away = || Error::os(libc::EIO, "the backing store is away");
        let child = self.nodes.child(parent, name).ok_or_else(away)?;
        let attr = self.attr_away(child.id, child.key)?;
        Ok(self.entry(parent, name, attr, Instant::now()))
    }

    pub(super) fn attr_away(&self, id: u64, key: FileKey) -> Result<Attr> {
        if self.home_of(key).is_some() {
            return Err(Error::os(libc::EIO, "another member has its newest bytes"));
        }
        let known = self.nodes.dir_attr(id).or_else(|| self.engine.verbs.stat_cached(key));
        known.ok_or_else(|| Error::os(libc::EIO, "the backing store is away"))
    }

    pub fn getattr_cached(&self, id: u64) -> Result<Attr> {
        let key = self.nodes.key(id).ok_or_else(|| Error::os(libc::ESTALE, "a node"))?;
        self.attr_away(id, key)
    }

    pub fn getattr(&self, id: u64) -> Result<Attr> {
        self.getattr_as_of(id).map(|(attr, _)| attr)
    }

    /// The attributes, and the moment as of which the store has told them.
    pub fn getattr_as_of(&self, id: u64) -> Result<(Attr, Instant)> {
        let now = Instant::now();
        let as_of_now = |attr| (attr, now);
        if Control::owns(id) {
            return self.control.attr(id).map(as_of_now);
        }
        let _tree = self.tree();
        let is_far = self.is_far(id);
        let open = if is_far { None } else { self.open_file(id) };
        // A program that has the file open here sees its old attributes.
        let served_there =
            || self.nodes.file_key(id).is_some_and(|key| self.home_of(key).is_some());
        if is_far || (open.is_none() && served_there()) {
            return self.getattr_there(id).map(as_of_now);
        }
        let recent = |file: &Arc<File>| self.engine.verbs.stat_recent(file, self.attr_ttl);
        if let Some(attr) = open.as_ref().and_then(recent) {
            return Ok((attr, now));
        }
        let Some(path) = self.nodes.path(id) else {
            return match open {
                Some(file) => Ok((self.engine.verbs.stat_open(&file), now)),
                None => self.removed_dir(id).map(as_of_now),
            };
        };
        let as_opened = |file: Arc<File>| (self.engine.verbs.stat_open(&file), now);
        let error = match self.attr_told(&path) {
            Ok((attr, as_of)) if self.nodes.id_of(attr.key) == Some(id) => {
                return Ok((attr, as_of));
            }
            Err(error) if !self.engine.health.is_available() => {
                let key = self.nodes.key(id).ok_or(error)?;
                return self.attr_away(id, key).map(as_of_now);
            }
            Err(error) if !error.is(libc::ENOENT) => error,
            // Others have replaced or removed the file on the store: a program that has it open keeps the old one.
            Ok(_) | Err(_) => self.replaced(&path),
        };
        open.map(as_opened).ok_or(error)
    }

    /// The attributes of a directory that was removed while in use.
    pub(super) fn removed_dir(&self, id: u64) -> Result<Attr> {
        let known = self.nodes.dir_attr(id);
        let attr = known.ok_or_else(|| Error::os(libc::ESTALE, "a name that is gone"))?;
        Ok(Attr { nlink: 0, ..attr })
    }

    pub(super) fn list_away(&self, id: u64) -> Vec<DirEntry> {
        let known = self.nodes.children(id).into_iter();
        known
            .filter(|(_, child)| self.attr_away(child.id, child.key).is_ok())
            .map(|(name, child)| DirEntry {
                name: OsString::from(&*name),
                kind: if child.is_dir { FileKind::Dir } else { FileKind::File },
                ino: child.key.ino,
            })
            .collect()
    }

    pub fn list_cached(&self, handle: u64) -> Result<(u64, Arc<Listing>)> {
        match &*self.handle(handle)? {
            Handle::Dir { id, .. } => Ok((*id, Arc::new(Listing::new(self.list_away(*id))))),
            _ => Err(Error::os(libc::ENOTDIR, "readdir")),
        }
    }

    pub fn open_cached(&self, id: u64, flags: OpenFlags, who: Origin) -> Result<Opened> {
        let away = || Error::os(libc::EIO, "the backing store is away");
        if flags.changes() {
            return Err(away());
        }
        let key = self.nodes.key(id).ok_or_else(away)?;
        if self.cluster().is_some() && (self.is_far(id) || !self.is_held(key)) {
            return Err(away()); // Another member may have newer bytes.
        }
        let file = self.engine.io.open_cached(key).ok_or_else(away)?;
        let admission = self.engine.room.admission_of(&file, who);
        // This answers in place of a thread that hangs, and waits for no lock which that thread may hold.
        let Some(open) = Glance::new(&self.engine.config().time).lock(&self.open) else {
            return Err(away());
        };
        let wish =
            Opens { flags: OpenFlags::READ, fresh: false, ready: false, admission, held: None };
        self.open_under(open, id, file, wish)
    }

    pub fn forget(&self, id: u64, times: u64) {
        if !Control::owns(id) {
            self.nodes.forget(id, times);
        }
    }
}
