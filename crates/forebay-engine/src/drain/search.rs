//! The search for names within the scope of an order that only the store knows: others have linked
//! a dirty file there, or have moved the file, or a directory above it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_backing::{DirEntry, Error, FileKey, FileKind};

use crate::core::clock::Look;
use crate::core::report::Progress;
use crate::drain::Drain;
use crate::files::file::File;

struct Search<'a> {
    drain: &'a Drain,
    progress: &'a Progress,
    /// Dirty files without a known name within the scope that are not found yet.
    beside: BTreeMap<FileKey, Arc<File>>,
    found: Vec<Arc<File>>,
    /// Directories that are still to be listed.
    dirs: Vec<PathBuf>,
    /// Whether the store has not told everything.
    is_partial: bool,
}

impl Drain {
    /// Returns the dirty files that the store has at or below `scope` although only other names of them are
    /// known, and those for which that cannot be told. If no dirty file has such names, the store is not asked.
    pub(crate) fn search(&self, scope: &[PathBuf], progress: &Progress) -> Vec<Arc<File>> {
        let mut beside = self.files.dirty_beside(scope);
        // Another file has the key of one that is found by its id alone.
        beside.retain(|file| self.files.has_its_key(file));
        let beside = beside.into_iter().map(|file| (file.key, file));
        let mut search = Search {
            drain: self,
            progress,
            beside: beside.collect(),
            found: Vec::new(),
            dirs: Vec::new(),
            is_partial: false,
        };
        search.look_for_all(scope);
        search.found
    }
}

impl Search<'_> {
    /// Looks for all files. It lists not many more directories than there are files to be found,
    /// unless one of these has unknown names.
    fn look_for_all(&mut self, scope: &[PathBuf]) {
        for path in scope {
            if self.beside.is_empty() {
                return;
            }
            self.look_at(path);
        }
        self.list(self.beside.len());
        let is_nested = |file: &Arc<File>| file.key.may_be_nested();
        if self.is_partial || !self.dirs.is_empty() || self.beside.values().any(is_nested) {
            self.leave_out_known();
            self.list(usize::MAX);
            let is_partial = self.is_partial;
            let rest = std::mem::take(&mut self.beside).into_values();
            // A listing has other inode numbers for entries that are nested mounts.
            self.found.extend(rest.filter(|file| is_partial || is_nested(file)));
        }
    }

    /// Looks at a path. A file that is found is known by that name from here on: its flush goes there.
    fn look_at(&mut self, path: &Path) {
        let seen = Look::now();
        match self.drain.names.ask(|b| b.stat(path)) {
            Ok(attr) if attr.kind == FileKind::Dir => self.dirs.push(path.into()),
            Ok(attr) => {
                if let Err(error) = self.drain.files.tell_apart(path, &attr, seen) {
                    return self.note(&error);
                }
                let is_it = |file: &Arc<File>| self.drain.files.has_its_key(file);
                if let Some(file) = self.beside.remove(&attr.key).filter(is_it) {
                    self.drain.files.learn_name(&file, path, seen);
                    self.found.push(file);
                }
            }
            Err(error) => self.note(&error),
        }
    }

    /// Lists at most `count` directories.
    fn list(&mut self, count: usize) {
        for _ in 0..count {
            if self.beside.is_empty() || self.progress.is_cancelled() {
                return;
            }
            let Some(dir) = self.dirs.pop() else { return };
            match self.drain.names.ask(|b| b.read_dir(&dir)) {
                Ok(entries) => entries.iter().for_each(|entry| self.see(&dir, entry)),
                Err(error) => self.note(&error),
            }
        }
    }

    fn see(&mut self, dir: &Path, entry: &DirEntry) {
        let key = |generation| FileKey { ino: entry.ino, generation };
        match entry.kind {
            FileKind::Dir => self.dirs.push(dir.join(&entry.name)),
            _ if self.beside.range(key(0)..=key(u64::MAX)).next().is_some() => {
                self.look_at(&dir.join(&entry.name));
            }
            _ => {}
        }
    }

    /// Notes an error of the store; a path that does not exist has nothing below it.
    fn note(&mut self, error: &Error) {
        self.is_partial |= !error.is_nowhere();
    }

    /// Leaves out the files whose names are all known. It does not wait for a file whose lock is held.
    fn leave_out_known(&mut self) {
        let (names, progress) = (&self.drain.names, self.progress);
        self.beside.retain(|key, file| {
            let Some(inner) = file.try_lock().filter(|_| !progress.is_cancelled()) else {
                return true;
            };
            let paths: Vec<PathBuf> = inner.state.paths.iter().collect();
            drop(inner);
            let there = paths.iter().filter_map(|path| names.ask(|b| b.stat(path)).ok());
            let links: Vec<u32> =
                there.filter(|attr| attr.key == *key).map(|attr| attr.nlink).collect();
            links.last().is_none_or(|last| links.len() < *last as usize)
        });
    }
}
