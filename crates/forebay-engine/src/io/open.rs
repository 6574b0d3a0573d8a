//! Files that programs open.

use std::path::Path;
use std::sync::Arc;

use forebay_backing::{Access, Attr, BackingFile, Error, FileKey, Result};

use crate::core::clock::{Look, What};
use crate::files::file::{File, Inner, note_seen};
use crate::files::glance::Glance;
use crate::files::live::Asked;
use crate::files::open::OpenFile;
use crate::io::Io;

/// What the backing store told of a file, and the file if it was opened for that.
type Looked = (Attr, Option<Arc<dyn BackingFile>>);

/// What a program will do with the handle that it asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Reads,
    Anything,
}

impl Io {
    /// Finds the file or begins to know it, and opens it.
    pub(crate) fn enter(&self, path: &Path, attr: &Attr) -> OpenFile {
        loop {
            let file = self.files.find(attr.key).unwrap_or_else(|| self.files.insert(path, attr));
            let inner = file.lock();
            let is_known =
                || self.files.find(attr.key).is_some_and(|known| Arc::ptr_eq(&known, &file));
            if !inner.gone() && is_known() {
                return self.files.open(&file, inner);
            }
            drop(inner);
            // It was forgotten between the two looks, or is just being so; begin again.
            std::thread::yield_now();
        }
    }

    /// Takes its key from a file that is gone: somebody else has removed it, and the store has given
    /// its number, which tells no generations, to the file with `attr` that was just created. What
    /// is dirty of the old one is still found by its id.
    fn supersede(&self, attr: &Attr) {
        self.files.give_up_buried(attr);
        let is_older = |file: &Arc<File>| file.lock().state.base().ctime < attr.ctime;
        let Some(old) = self.files.find(attr.key).filter(is_older) else { return };
        self.files.forget_key(&old);
    }

    /// Opens the file at `path`: compares what is cached with the backing store (S1).
    /// `known` is the key the caller last saw at
    /// `path`: what is in the tier under it goes on working while the store is away (S10).
    pub fn open(&self, path: &Path, known: Option<FileKey>) -> Result<OpenFile> {
        self.open_for(path, known, Next::Anything)
    }

    /// As [`Io::open`], for a program that only reads.
    pub fn open_to_read(&self, path: &Path, known: Option<FileKey>) -> Result<OpenFile> {
        self.open_for(path, known, Next::Reads)
    }

    fn open_for(&self, path: &Path, known: Option<FileKey>, next: Next) -> Result<OpenFile> {
        if let Some(file) = known.and_then(|key| self.files.find(key))
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
                let file = self.enter(path, &attr);
                if let Some(backing) = backing {
                    file.lock().live().keep_backing(backing);
                }
                let _ = self.files.prove_shadow(&file);
                let mut seen = before;
                let has_moved = |inner: &Inner| {
                    inner.state.base() != attr.version() && inner.changed(before, What::Base)
                };
                // It may even have been known, flushed and forgotten since we looked.
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

    /// Attributes of `path`. Where a read will need the backing file, it is opened in the same call.
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
        // What cannot be opened says why when it is read.
        self.home.health().call(|| self.home.backing().stat(path)).map(|attr| (attr, None))
    }

    fn open_away(&self, known: Option<FileKey>, error: Error) -> Result<OpenFile> {
        if self.home.health().is_available() {
            return Err(error);
        }
        known.and_then(|key| self.open_cached(key)).ok_or(error)
    }

    /// Opens a file of which something is cached, without asking the backing store.
    pub fn open_cached(&self, key: FileKey) -> Option<OpenFile> {
        let file = self.files.find(key)?;
        let mut inner = Glance::new(self.files.time()).at(&file)?;
        let _ = self.files.prove_locked(&file, &mut inner);
        if inner.gone() {
            return None; // Nothing of it is cached.
        }
        Some(self.files.open(&file, inner))
    }

    /// Whether the file may be believed without asking: nobody else can have a newer byte than a
    /// wholly dirty file has, and a recent look may be good enough.
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

    /// Takes a file that the caller has just created through [`Engine::backing`].
    pub(crate) fn created(&self, path: &Path, attr: &Attr) -> OpenFile {
        self.supersede(attr);
        self.names.note_made(path, attr);
        let file = self.enter(path, attr);
        let mut inner = file.lock();
        inner.live().note_checked(self.files.time().now());
        drop(inner);
        file
    }

    /// A name that goes while we open it: the bytes must be within reach without it, and what is
    /// written must not be for a name that is gone. `seen` is from before we looked, if the file may
    /// have been unknown to who took it away.
    pub(crate) fn hold_if_leaving(&self, file: OpenFile, seen: Option<Look>) -> Result<OpenFile> {
        // Who found it in the table counted it as open after it was looked for.
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
