//! Listing directories.

use std::sync::Arc;

use forebay_backing::{Attr, DirEntry, Error, FileKey, FileKind, Result};
use forebay_base::lock::{Mutex, Rank};

use super::{Handle, Listing, Vfs};
use crate::control;
use crate::control::Control;
use crate::nodes::ROOT;

impl Vfs {
    pub fn opendir(&self, id: u64) -> Result<u64> {
        Ok(self.keep(Handle::Dir { id, list: Mutex::new(Rank::Listing, None) }))
    }

    /// The entries of an open directory, read anew if `rewind`.
    pub fn list(&self, handle: u64, rewind: bool) -> Result<(u64, Arc<Listing>)> {
        let found = self.handle(handle)?;
        let Handle::Dir { id, list } = &*found else {
            return Err(Error::os(libc::ENOTDIR, "readdir"));
        };
        let known = list.lock().clone();
        if let Some(known) = known.filter(|_| !rewind) {
            return Ok((*id, known));
        }
        let entries = Arc::new(Listing::new(self.read_dir(*id)?));
        *list.lock() = Some(entries.clone());
        Ok((*id, entries))
    }

    pub(super) fn read_dir(&self, id: u64) -> Result<Vec<DirEntry>> {
        let dots = |name: &str| DirEntry { name: name.into(), kind: FileKind::Dir, ino: id };
        let mut entries = vec![dots("."), dots("..")];
        if Control::owns(id) {
            let list = self.control.list(id).into_iter();
            entries.extend(list.map(|(name, ino, kind)| DirEntry { name: name.into(), kind, ino }));
            return Ok(entries);
        }
        let _tree = self.tree();
        let path = self.path(id)?;
        let listed = match self.cluster() {
            Some(_) => self.engine.names.ask(|b| b.read_dir(&path)),
            None => self.foresight.list(&path),
        };
        match listed {
            Ok(found) => entries.extend(found),
            Err(e) if self.engine.health.is_available() => return Err(e),
            Err(_) => entries.extend(self.list_away(id)),
        }
        entries.retain(|entry| id != ROOT || entry.name != control::NAME);
        Ok(entries)
    }

    /// The inode number that programs see for a directory entry.
    pub fn shown_ino(&self, ino: u64) -> u64 {
        self.nodes.shown(FileKey { ino, generation: u64::MAX })
    }

    /// The inode number that programs see for a file.
    pub fn shown(&self, attr: &Attr) -> u64 {
        self.nodes.shown(attr.key)
    }

    pub fn fsyncdir(&self, handle: u64) -> Result<()> {
        let found = self.handle(handle)?;
        let Handle::Dir { id, .. } = &*found else { return Ok(()) };
        if Control::owns(*id) {
            return Ok(());
        }
        let _tree = self.tree();
        match self.path(*id) {
            Ok(path) => self.engine.verbs.sync_dir(&path),
            // A removed directory has no entries that could be lost.
            Err(_) if self.nodes.parent(*id).is_none() => self.removed_dir(*id).map(drop),
            Err(error) => Err(error),
        }
    }
}
