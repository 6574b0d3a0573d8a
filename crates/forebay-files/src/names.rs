//! Names on the store, and the journal of their changes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use forebay_backing::{Attr, BackingStore, FileKey, Result, Timestamp};

use crate::Files;
use crate::core::clock::{Look, What};
use crate::core::state::{Change, Owner};
use crate::file::{File, Inner};
use crate::home::Home;
use crate::requester;
use forebay_base::lock::MutexGuard;

/// How often the store is asked anew about a file that is changed all the time.
const ASKED_MAX: usize = 8;

/// A name that is about to change or go: its path, the key of its file, and whether that is a directory.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    pub path: &'a Path,
    pub key: FileKey,
    pub is_dir: bool,
}

/// Changes of names on the store, and their effect on known files.
pub struct Names {
    pub(super) home: Arc<Home>,
    pub(super) files: Arc<Files>,
    /// Whether the names on the store are being synced.
    pub(super) syncing: AtomicBool,
}

impl Names {
    /// Creates the part; the journal is that of the index of `files`.
    pub fn new(home: Arc<Home>, files: Arc<Files>) -> Names {
        Names { home, files, syncing: AtomicBool::new(false) }
    }
}

impl Names {
    /// Handles a name of the file that is gone from the backing store.
    pub fn lost_name(&self, file: &Arc<File>, path: &Path) -> Result<()> {
        let (links, found) = self.files.links_left(file);
        let mut inner = file.lock();
        if inner.gone {
            return Ok(()); // The last handle was closed meanwhile: no trace of the file is left.
        }
        inner.rename(file.id, |paths| paths.lose(path));
        inner.note_links(links);
        inner.forget_seen();
        if let Some(at) = inner.state.paths.first() {
            let key = file.key;
            drop(inner);
            let _ = self.refresh(Named { path: &at, key, is_dir: false });
            return Ok(());
        }
        if links > 0 && !inner.is_idle() {
            // The file lives on under an unknown name: its handles go on, and the next open by that
            // name finds it here.
            return match found {
                Some(attr) => self.follow(file, &mut inner, &attr),
                None if inner.recorded => self.files.put(file, &mut inner),
                None => Ok(()),
            };
        }
        self.files.drop_record(file, &mut inner)?;
        inner.live().mine().unlinked = true;
        self.files.unqueue(&mut inner);
        let mut graves = self.files.graveyard.lock();
        let before = graves.waiting.insert(file.key, (self.files.time.now(), file.clone()));
        drop(graves);
        drop(inner);
        self.files.forget(file);
        self.files
            .retire_buried(before.map(|(_, before)| before).filter(|it| !Arc::ptr_eq(it, file)));
        Ok(())
    }

    /// Calls the backing store, for anything but cached bytes. Each call goes through
    /// [`crate::home::health::Health::call`].
    pub fn ask<T>(&self, call: impl FnOnce(&dyn BackingStore) -> Result<T>) -> Result<T> {
        self.home.health().call(|| call(self.home.backing()))
    }

    /// As [`Names::ask`], for a change, unless the request has been answered meanwhile. If the call
    /// itself hangs, the change may still happen (S10).
    pub fn alter<T>(&self, call: impl FnOnce(&dyn BackingStore) -> Result<T>) -> Result<T> {
        requester::check()?;
        self.ask(call)
    }

    /// Does [`Inner::overlay`], and looks the shadow up where it is not open.
    pub fn overlay_with(&self, file: &File, inner: &Inner, attr: &mut Attr) {
        let name = || crate::tier::dir::shadow_name(file.id);
        inner.overlay(attr, || self.files.media().stat(&name()).ok());
    }

    /// Takes over the ctime after a change through the daemon: the cached bytes are still good.
    pub fn refresh(&self, at: Named<'_>) -> Option<Attr> {
        let file = self.files.find(at.key)?;
        let ask = || self.ask(|b| b.stat(at.path));
        let (since, attr) = (Look::now(), ask().ok()?);
        let (attr, mut inner) = self.newest(&file, attr, since, ask);
        let _ = self.follow(&file, &mut inner, &attr);
        self.files.retire(&file, inner);
        Some(attr)
    }

    /// Locks a file that a change through the daemon, begun after `since`, has left as `attr`. If another one has
    /// ended since, its answer may be the newer one, though it came first: the store is asked again.
    pub fn newest<'a>(
        &self,
        file: &'a Arc<File>,
        attr: Attr,
        since: Look,
        ask: impl Fn() -> Result<Attr>,
    ) -> (Attr, MutexGuard<'a, Inner>) {
        let (mut attr, mut since) = (attr, since);
        for _ in 0..ASKED_MAX {
            let inner = file.lock();
            if !inner.changed(since, What::Base) {
                return (attr, inner);
            }
            drop(inner);
            since = Look::now();
            match ask() {
                Ok(found) if found.key == file.key => attr = found,
                _ => break,
            }
        }
        (attr, file.lock())
    }

    /// Called when another mount has changed names or attributes of the file, or its bytes if none are
    /// dirty here: attributes of a dirty file are taken over from the store, and the next open asks it.
    pub fn doubt(&self, key: FileKey) {
        let Some(file) = self.files.find(key) else { return };
        let dirty = {
            let inner = file.lock();
            inner.state.is_dirty().then(|| inner.state.paths.first()).flatten()
        };
        if let Some(path) = dirty {
            self.refresh(Named { path: &path, key, is_dir: false });
        }
        self.files.doubt(key);
    }

    /// Takes over attributes that changed through the daemon, if size and mtime show that the bytes did
    /// not change as well. Earlier changes by others must have been seen: the new ctime is the daemon's.
    pub fn follow(&self, file: &Arc<File>, inner: &mut Inner, attr: &Attr) -> Result<()> {
        self.follow_set(file, inner, attr, None)
    }

    /// Sets the mtime of a dirty file: the flush of its bytes sets it on the store.
    pub fn set_time(&self, file: &Arc<File>, inner: &mut Inner, mtime: Timestamp) -> Result<()> {
        self.files.set_shadow_mtime(file, inner, mtime);
        let set = Change::Followed { owner: inner.state.owner(), base: inner.state.base(), mtime };
        if !inner.recorded {
            inner.apply(&set);
            return Ok(());
        }
        self.files.put_as(file, inner, |state| state.apply(&set))
    }

    /// Records that the store is about to be given a time, or has refused it: if recovery after a crash finds that
    /// time there, it is known to be the daemon's.
    pub fn set_ahead(
        &self,
        file: &File,
        inner: &mut Inner,
        mtime: Option<Timestamp>,
    ) -> Result<()> {
        inner.clock.note_time();
        self.files.commit_if_known(file, inner, Change::Setting(mtime))
    }

    /// Like [`Names::follow`], where the time was `set` too.
    pub fn follow_set(
        &self,
        file: &Arc<File>,
        inner: &mut Inner,
        attr: &Attr,
        set: Option<Timestamp>,
    ) -> Result<()> {
        inner.live().mine().checked = Some(self.files.time.now());
        inner.clock.note_base();
        inner.forget_seen();
        let before = inner.state.base();
        let (mut base, mut mtime) = (before, inner.state.mtime());
        if let Some(set) = set {
            (base.mtime, mtime) = (attr.mtime, attr.mtime);
            if inner.state.is_dirty() {
                mtime = set;
                self.files.set_shadow_mtime(file, inner, set);
            }
        }
        let same = (attr.size, attr.mtime, attr.key) == (base.size, base.mtime, base.key);
        if same {
            base.ctime = attr.ctime;
        }
        self.files.follow_digests(file, inner, &before, &base);
        let followed = Change::Followed { owner: Owner::of(attr), base, mtime };
        if !inner.recorded {
            inner.apply(&followed);
            return Ok(());
        }
        // The names may have changed as well.
        let put = self.files.put_as(file, inner, |state| state.apply(&followed));
        if put.is_err() {
            inner.apply(&followed);
        }
        put
    }
}
