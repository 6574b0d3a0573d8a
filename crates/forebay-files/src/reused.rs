//! Files whose inode number the store has given to another file, on stores whose keys have no
//! generations. There a key does not tell a file that others have made from one that they have
//! removed; its names, its size and its time do.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_backing::{Attr, Result};

use crate::Files;
use crate::core::clock::Look;
use crate::file::{File, Inner};
use forebay_base::lock::MutexGuard;

impl Files {
    /// Whether the known file is one that has the name `path`, as far as can be told without the store.
    pub fn is_known_by(&self, file: &File, path: &Path) -> bool {
        file.key.generation != 0 || file.lock().state.paths.has(path)
    }

    /// Returns the known file with the key of the file that the store has at `path`, with `attr`, if
    /// it may be another one: the store has to be asked. `seen` is from before `attr` was asked for.
    pub fn may_be_another(&self, path: &Path, attr: &Attr, seen: Look) -> Option<Arc<File>> {
        let key = Some(attr.key).filter(|key| key.generation == 0)?;
        let file = self.find(key)?;
        let inner = file.lock();
        let (base, paths) = (inner.state.base(), &inner.state.paths);
        // A rename or a link by others leaves size and mtime.
        let differs = (base.size, base.mtime) != (attr.size, attr.mtime);
        // The known names or the known version may be out of date.
        let changes =
            inner.changes_home() || paths.moved_since(seen) || self.is_leaving(key, Some(seen));
        let may_be = differs && !changes && !paths.is_empty() && !paths.has(path);
        drop(inner);
        may_be.then_some(file)
    }

    /// Makes way for the file that the store has at `path`, with `attr`, if it is another than the
    /// known one with its key. `seen` is from before `attr` was asked for.
    ///
    /// # Errors
    ///
    /// Those of the store, which is asked about the names of the known file.
    pub fn tell_apart(&self, path: &Path, attr: &Attr, seen: Look) -> Result<()> {
        let doubted = || self.may_be_another(path, attr, seen);
        // Others may have linked the file to `path`, and written to it.
        if let Some(file) = doubted()
            && !self.has_a_name(&file)?
            && doubted().is_some_and(|still| Arc::ptr_eq(&still, &file))
        {
            self.supersede(&file);
        }
        Ok(())
    }

    /// Takes the key from a file that others have removed, and whose inode number another file has.
    /// Dirty bytes are a conflict, and are found by the file's id and names; clean ones are let go.
    pub fn supersede(&self, file: &Arc<File>) {
        let mut inner = file.lock();
        if !inner.state.is_dirty() {
            // Where the tier fails, a clean file's record may stay: an open compares it.
            let _ = self.give_way(file, inner);
        // A thread that removes its last name through this mount throws the bytes away itself.
        } else if !self.is_leaving(file.key, None) {
            self.declare_conflict(file, &mut inner, "the backing file was deleted");
        }
        self.forget_key(file);
    }

    /// Lets go of a file that is clean here, for another one with its key. A program that has the
    /// file open goes on with its old bytes. Ends the caller's lock.
    ///
    /// # Errors
    ///
    /// Those of the tier.
    pub fn give_way(&self, known: &Arc<File>, mut inner: MutexGuard<'_, Inner>) -> Result<()> {
        if inner.is_idle() {
            self.erase(known, &mut inner);
            drop(inner);
            self.forget(known);
            return Ok(());
        }
        self.drop_record(known, &mut inner)?;
        inner.live().outdate();
        drop(inner);
        self.forget_key(known);
        Ok(())
    }

    /// Whether the store has the file at one of its known names.
    fn has_a_name(&self, file: &File) -> Result<bool> {
        let names: Vec<PathBuf> = file.lock().state.paths.iter().collect();
        for name in names {
            match self.home.health().call(|| self.home.backing().stat(&name)) {
                Ok(attr) if attr.key == file.key => return Ok(true),
                Ok(_) => {}
                Err(error) if error.is_nowhere() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}
