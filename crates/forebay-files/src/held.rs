//! Files of the store that are held open for known files.

use std::sync::Arc;
use std::time::Duration;

use forebay_backing::{Access, BackingFile, Error, Result};

use crate::Files;
use crate::core::config::WritePolicy;
use crate::file::File;

/// How long a file that is being renamed is looked for.
pub(crate) const RENAMES_MAX: Duration = Duration::from_millis(500);

impl Files {
    /// Returns the backing file for writing, kept while the file is open.
    pub fn writable_backing(&self, file: &Arc<File>) -> Result<Arc<dyn BackingFile>> {
        if let Some(target) = file.lock().live().target.clone() {
            return Ok(target);
        }
        let target = self.open_home(file, Access::ReadWrite)?;
        let mut inner = file.lock();
        let live = inner.live().mine();
        if live.is_open() {
            live.target.get_or_insert(target.clone());
        }
        Ok(target)
    }

    /// Returns the backing file, opened for reading and kept while the file is open.
    pub fn backing_file(&self, file: &Arc<File>) -> Result<Arc<dyn BackingFile>> {
        if let Some(backing) = file.lock().live().backing.clone() {
            return Ok(backing);
        }
        let backing = self.open_home(file, Access::Read)?;
        let mut inner = file.lock();
        if inner.live().is_open() || !inner.live().fills.is_empty() {
            inner.live().mine().backing = Some(backing.clone());
        }
        Ok(backing)
    }

    /// Opens the file on the backing store by its name, or by its new one if it is being renamed.
    ///
    /// # Errors
    ///
    /// ESTALE if another file has its name, ENOENT if no file has.
    pub(crate) fn open_home(&self, file: &File, access: Access) -> Result<Arc<dyn BackingFile>> {
        let began = self.time.now();
        loop {
            let look = || {
                let inner = file.lock();
                // In this order: a change that has ended before is seen in the path.
                (inner.clock.look(), inner.state.paths.first())
            };
            let before = look();
            let path = before.1.clone();
            let path = path.ok_or_else(|| Error::os(libc::ESTALE, "the file was unlinked"))?;
            let error =
                match self.home.health().call(|| self.home.backing().open_seen(&path, access)) {
                    Ok((backing, attr)) if attr.key == file.key => return Ok(backing),
                    Ok(_) => Error::os(libc::ESTALE, format!("{} was replaced", path.display())),
                    Err(error) if error.is(libc::ENOENT) => error,
                    Err(error) => return Err(error),
                };
            let inner = file.lock();
            let moved = inner.moved_since(before.0);
            let settled = !moved && inner.state.paths.first() == before.1;
            drop(inner);
            if settled || self.time.since(began) > RENAMES_MAX {
                return Err(error);
            }
            self.time.sleep(Duration::from_millis(1));
        }
    }

    /// Keeps an open file readable without its name: through a descriptor, taken while the file has a
    /// name. It also keeps the inode number from being used again. A file that keeps other names,
    /// perhaps unknown ones, must still be flushed; and around the tier it is written by descriptor.
    ///
    /// # Errors
    ///
    /// Those of the backing store; ENOENT or ESTALE if the name is gone already.
    pub fn keep_readable(&self, file: &Arc<File>) -> Result<()> {
        let (open, links) = {
            let mut inner = file.lock();
            (inner.live().is_open(), inner.state.owner().nlink)
        };
        if !open {
            return Ok(());
        }
        if links > 1 || self.policy() == WritePolicy::WriteAround {
            let _ = self.writable_backing(file);
        }
        self.backing_file(file).map(drop)
    }
}
