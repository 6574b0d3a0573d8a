//! A cache of directories that were resolved a moment ago, so that work on many files of one directory does not
//! resolve its path for each of them.
//!
//! A directory is used again for at most [`TRUST`], the time for which the kernel above believes its names, too, and
//! only while it exists. A move or removal of a directory through this store calls [`Parents::forget`]. Where other
//! machines move directories, too, none is used again ([`Parents::trust_nobody`]): a file of the old directory would
//! be taken for that of the new one.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::lock::{Rank, RwLock};
use rustix::fs::{AtFlags, StatxFlags};

use super::Sys;

const TRUST: Duration = Duration::from_secs(1);

/// The most directories in the cache; each holds a descriptor.
const COUNT_MAX: usize = 64;

#[derive(Debug)]
pub struct Parents {
    known: RwLock<Known>,
    trusts_nobody: bool,
}

impl Default for Parents {
    fn default() -> Parents {
        let known = RwLock::new(Rank::Parents, Known::default());
        Parents { known, trusts_nobody: false }
    }
}

#[derive(Debug, Default)]
struct Known {
    dirs: HashMap<OsString, (Instant, Arc<OwnedFd>)>,
    /// Rises with every [`Parents::forget`].
    forgets: u64,
}

impl Parents {
    /// From here on each directory is resolved whenever it is needed.
    pub fn trust_nobody(&mut self) {
        self.trusts_nobody = true;
    }

    /// The directory at `path`, opened by `open` unless it is known.
    pub fn get(&self, path: &Path, open: impl FnOnce() -> Sys<OwnedFd>) -> Sys<Arc<OwnedFd>> {
        if self.trusts_nobody {
            return open().map(Arc::new);
        }
        if let Some(known) = self.find(path) {
            return Ok(known);
        }
        let (began, forgets) = (Instant::now(), self.known.read().forgets);
        let opened = Arc::new(open()?);
        let mut known = self.known.write();
        // A directory that was opened before the move may be the moved one, by its old name.
        if known.forgets == forgets {
            if known.dirs.len() >= COUNT_MAX {
                known.dirs.clear();
            }
            known.dirs.insert(path.into(), (began, opened.clone()));
        }
        Ok(opened)
    }

    /// Whether the directory was in the cache a moment ago.
    pub fn knows(&self, path: &Path) -> bool {
        let known = self.known.read();
        known.dirs.get(path.as_os_str()).is_some_and(|(since, _)| since.elapsed() < TRUST)
    }

    fn find(&self, path: &Path) -> Option<Arc<OwnedFd>> {
        let dir = {
            let known = self.known.read();
            let (since, dir) = known.dirs.get(path.as_os_str())?;
            (since.elapsed() < TRUST).then(|| dir.clone())?
        };
        exists(&dir).then_some(dir)
    }

    /// Forgets the directories at or below `path`: other directories have their paths from now on.
    pub fn forget(&self, path: &Path) {
        let mut known = self.known.write();
        known.forgets += 1;
        known.dirs.retain(|at, _| !Path::new(at).starts_with(path));
    }
}

/// Whether the directory was not removed; another may have its name then. Only this machine's knowledge is asked:
/// otherwise the client of a remote file system would ask its server after each change of the directory, which
/// outdates its knowledge. A directory that another machine has removed answers operations in it with ESTALE.
fn exists(dir: &OwnedFd) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::from_bits_retain(libc::AT_STATX_DONT_SYNC as u32);
    rustix::fs::statx(dir, "", flags, StatxFlags::NLINK).is_ok_and(|stat| stat.stx_nlink > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_was_removed_is_not_used_again() {
        let top = crate::suite::TempDir::new();
        let (path, parents) = (top.path().join("d"), Parents::default());
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
        let open = || rustix::fs::open(&path, flags, rustix::fs::Mode::empty());
        let inode = || {
            let dir = parents.get(Path::new("d"), open).expect("it is there");
            rustix::fs::fstat(&*dir).expect("it is open").st_ino
        };
        std::fs::create_dir(&path).expect("room");
        let first = inode();
        // Holds the inode's number in use.
        let _held = open().expect("it is there");
        std::fs::remove_dir(&path).and_then(|()| std::fs::create_dir(&path)).expect("room");
        assert_ne!(inode(), first);
    }

    fn open() -> Sys<OwnedFd> {
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY;
        rustix::fs::open(std::env::temp_dir(), flags, rustix::fs::Mode::empty())
    }

    #[test]
    fn a_directory_that_is_moved_while_it_is_opened_is_not_remembered_by_its_old_name() {
        let parents = Parents::default();
        let (dir, other) = (Path::new("d"), Path::new("other"));
        let moved = || {
            let opened = open();
            parents.forget(dir);
            opened
        };
        parents.get(dir, moved).expect("it exists");
        assert!(!parents.knows(dir), "who makes another by its name works in that one");
        parents.get(dir, open).expect("it exists");
        parents.forget(other);
        assert!(parents.knows(dir), "another one was moved");
    }
}
