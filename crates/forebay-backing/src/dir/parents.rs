//! Directories that were resolved a moment ago, so that work on many files of one directory does
//! not resolve its path for each of them.
//!
//! A directory is used again for at most [`TRUST`], the time for which the kernel above believes
//! its names, too, and only while it exists. What moves or removes one through us says so with
//! [`Parents::forget`].

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use super::Sys;
use super::root::stat_fd;

const TRUST: Duration = Duration::from_secs(1);

/// Each holds a descriptor.
const COUNT_MAX: usize = 64;

#[derive(Debug, Default)]
pub struct Parents {
    known: RwLock<HashMap<OsString, (Instant, Arc<OwnedFd>)>>,
}

impl Parents {
    /// The directory at `path`, opened by `open` unless it is known.
    pub fn get(&self, path: &Path, open: impl FnOnce() -> Sys<OwnedFd>) -> Sys<Arc<OwnedFd>> {
        if let Some(known) = self.find(path) {
            return Ok(known);
        }
        let began = Instant::now();
        let opened = Arc::new(open()?);
        let mut known = self.known.write().expect("no panic inside");
        if known.len() >= COUNT_MAX {
            known.clear();
        }
        known.insert(path.into(), (began, opened.clone()));
        Ok(opened)
    }

    /// Whether it was there a moment ago.
    pub fn knows(&self, path: &Path) -> bool {
        let known = self.known.read().expect("no panic inside");
        known.get(path.as_os_str()).is_some_and(|(since, _)| since.elapsed() < TRUST)
    }

    fn find(&self, path: &Path) -> Option<Arc<OwnedFd>> {
        let dir = {
            let known = self.known.read().expect("no panic inside");
            let (since, dir) = known.get(path.as_os_str())?;
            (since.elapsed() < TRUST).then(|| dir.clone())?
        };
        // Somebody else may have removed it, and made another by its name.
        stat_fd(&*dir).is_ok_and(|stat| stat.stx_nlink > 0).then_some(dir)
    }

    /// What lies at or below `path` is another directory from now on.
    pub fn forget(&self, path: &Path) {
        self.known
            .write()
            .expect("no panic inside")
            .retain(|at, _| !Path::new(at).starts_with(path));
    }
}
