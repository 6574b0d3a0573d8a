//! Opening files for programs.

use std::path::Path;
use std::sync::Arc;

use forebay_backing::{Access, Attr, BackingFile, Error, FileKey, Result};

use crate::core::clock::{Look, What};
use crate::files::file::{File, Inner, note_seen};
use crate::files::glance::Glance;
use crate::files::live::Asked;
use crate::files::open::OpenFile;
use crate::io::Io;

/// The backing store's attributes of a file, and the file if it was opened for that.
type Looked = (Attr, Option<Arc<dyn BackingFile>>);

/// The use that a program will make of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Reads,
    Anything,
}

impl Io {
    /// Finds the file in the table, or adds it, and opens it.
    pub(crate) fn enter(&self, path: &Path, attr: &Attr) -> OpenFile {
        self.enter_by(attr, || self.files.insert(path, attr))
    }

    fn enter_by(&self, attr: &Attr, insert: impl Fn() -> Arc<File>) -> OpenFile {
        loop {
            let file = self.files.find(attr.key).unwrap_or_else(&insert);
            let inner = file.lock();
            if !inner.gone() && self.files.has_its_key(&file) {
                return self.files.open(&file, inner);
            }
            drop(inner);
            // The file was forgotten between the two looks, or is just being forgotten: begin again.
            std::thread::yield_now();
        }
    }

    /// Makes way for the just created file with this key, if the store has given it the inode number of
    /// a file that another program has removed. Files that were known before have ids below `next`.
    fn supersede(&self, key: FileKey, next: u64) {
        self.files.give_up_buried(key, next);
        // Another thread may have found the new file on the store already.
        let Some(old) = self.files.find(key).filter(|file| file.id.0 < next) else { return };
        self.files.supersede(&old);
    }

    /// Opens the file at `path`: compares its cached bytes with the backing store (S1). `known` is
    /// the key that the caller last saw at `path`: the file's bytes in the tier can be used while
    /// the store is away (S10).
    pub fn open(&self, path: &Path, known: Option<FileKey>) -> Result<OpenFile> {
        self.open_for(path, known, Next::Anything)
    }

    /// Like [`Io::open`], for a program that only reads.
    pub fn open_to_read(&self, path: &Path, known: Option<FileKey>) -> Result<OpenFile> {
        self.open_for(path, known, Next::Reads)
    }

    fn open_for(&self, path: &Path, known: Option<FileKey>, next: Next) -> Result<OpenFile> {
        if let Some(file) = known.and_then(|key| self.files.find(key))
            && self.files.is_known_by(&file, path)
            && self.files.prove_shadow(&file).is_ok()
            && self.is_fresh(&file)
        {
            let mut inner = file.lock();
            if !inner.gone() && !inner.live().unlinked {
                return self.hold_if_leaving(self.files.open(&file, inner), None);
            }
        }
        let asked = Asked::at(self.files.time().now());
        let before = asked.look;
        match self.look_at(path, known, next) {
            Ok((mut attr, backing)) => {
                self.files.tell_apart(path, &attr, before)?;
                let file = self.enter(path, &attr);
                if let Some(backing) = backing {
                    file.lock().live().keep_backing(backing);
                }
                let _ = self.files.prove_shadow(&file);
                let mut seen = before;
                let has_moved = |inner: &Inner| {
                    inner.state.base() != attr.version() && inner.changed(before, What::Base)
                };
                // The file may even have been known, flushed and forgotten since the look.
                if has_moved(&file.lock()) || self.files.was_forgotten(file.key, before) {
                    seen = Look::now();
                    match self.home.health().call(|| self.home.backing().stat(path)) {
                        Ok(again) if again.key == file.key => attr = again,
                        _ => {
                            drop(file);
                            return self.open_for(path, None, next);
                        }
                    }
                }
                self.files.learn_name(&file, path, before);
                if self.files.revalidate(&file, &attr, seen) {
                    let _ = self.drain.flush_file(&file);
                    self.files.revalidate(&file, &attr, seen);
                }
                note_seen(&mut file.lock(), Asked { look: seen, ..asked }, &attr);
                self.hold_if_leaving(file, Some(before))
            }
            Err(error) => self.open_away(known, error),
        }
    }

    /// Returns attributes of `path`. Where a read will need the backing file, the same call opens it.
    fn look_at(&self, path: &Path, known: Option<FileKey>, next: Next) -> Result<Looked> {
        let is_complete = |file: Arc<File>| {
            let inner = file.lock();
            inner.recorded() && inner.state.is_complete()
        };
        let is_complete = || known.and_then(|key| self.files.find(key)).is_some_and(is_complete);
        if next == Next::Reads && !is_complete() {
            let opened =
                self.home.health().call(|| self.home.backing().open_seen(path, Access::Read));
            if let Ok((backing, attr)) = opened {
                return Ok((attr, Some(backing)));
            }
        }
        // If the file cannot be opened, a later read reports why.
        self.home.health().call(|| self.home.backing().stat(path)).map(|attr| (attr, None))
    }

    fn open_away(&self, known: Option<FileKey>, error: Error) -> Result<OpenFile> {
        if self.home.health().is_available() {
            return Err(error);
        }
        known.and_then(|key| self.open_cached(key)).ok_or(error)
    }

    /// Opens a file with cached bytes without asking the backing store.
    pub fn open_cached(&self, key: FileKey) -> Option<OpenFile> {
        let file = self.files.find(key)?;
        let mut inner = Glance::new(self.files.time()).at(&file)?;
        let _ = self.files.prove_locked(&file, &mut inner);
        if inner.gone() {
            return None; // No byte of it is cached.
        }
        Some(self.files.open(&file, inner))
    }

    /// Whether the file may be used without asking the store: no other program can have a newer
    /// byte than a wholly dirty file has, and a recent look may be good enough.
    fn is_fresh(&self, file: &File) -> bool {
        let ttl = self.files.tune(|t| t.revalidate);
        let inner = file.lock();
        (inner.state.is_wholly_dirty() && inner.doubt().is_none())
            || (inner.state.has_bytes()
                && inner
                    .in_use()
                    .and_then(|live| live.checked)
                    .is_some_and(|at| self.files.time().since(at) < ttl))
    }

    /// Opens a file that the caller has just created on the backing store; `next` was the id of the
    /// next new file before that.
    pub(crate) fn created(&self, path: &Path, attr: &Attr, next: u64) -> OpenFile {
        self.supersede(attr.key, next);
        self.names.note_made(path, attr);
        let file = self.enter_by(attr, || self.files.insert_new(path, attr));
        let mut inner = file.lock();
        inner.live().note_checked(self.files.time().now());
        drop(inner);
        file
    }

    /// Handles a name that is unlinked while its file is being opened: the bytes must stay readable
    /// without the name, and writes must not be for a name that is gone. `seen` is from before the
    /// look, if the file may have been unknown to the thread that removed the name.
    pub(crate) fn hold_if_leaving(&self, file: OpenFile, seen: Option<Look>) -> Result<OpenFile> {
        // A thread that found the file in the table counted it as open after it was looked up.
        let leaving = self.files.is_leaving(file.key, seen) || file.lock().live().unlinked;
        let Some(error) = leaving.then(|| self.files.keep_readable(&file).err()).flatten() else {
            return Ok(file);
        };
        let gone = error.is(libc::ENOENT) || error.is(libc::ESTALE);
        if !gone && file.lock().state.is_complete() {
            return Ok(file);
        }
        match gone {
            true => Err(Error::os(libc::ESTALE, "its name has gone").with_source(error)),
            false => Err(error),
        }
    }
}
