//! What changes of names tell the journal of names, and the syncs of the store that retire them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use forebay_backing::{Attr, Result, Timestamp};

use crate::core::journal::{Journal, NameOp, OPEN_LIMIT, OPEN_MAX, Told};
use crate::core::paths::{Moving, Way};
use crate::files::file::File;
use crate::files::names::{Named, Names};

/// What stores say that do not sync directories, or not for us.
const UNSYNCABLE: [i32; 6] =
    [libc::EINVAL, libc::ENOSYS, libc::EOPNOTSUPP, libc::EACCES, libc::EPERM, libc::EROFS];

impl Names {
    /// Whether, after a loss of power, the log may say that bytes of the file are to be flushed.
    fn may_come_back(&self, file: &File) -> bool {
        let inner = file.lock();
        inner.state.durable_size().is_some() || !self.files.index.is_synced(inner.settled_seq)
    }

    /// Announces a change of names of these files, or of directories that have some below.
    pub(crate) fn announce<'a>(
        &self,
        op: NameOp,
        files: impl IntoIterator<Item = &'a Arc<File>>,
        dirs: &Moving,
    ) -> Result<u64> {
        let n = self.files.note_tier(self.files.index.name(op, Told::Announced, None))?;
        // Else a loss of power could bring back the record of a file that is gone, or under a name
        // that it has lost.
        let below = || dirs.has_durable() || !self.files.index.has_settled();
        if (!dirs.is_empty() && below()) || files.into_iter().any(|file| self.may_come_back(file)) {
            self.files.note_tier(self.files.index.sync())?;
        }
        Ok(n)
    }

    /// A change of the names of these files has been made, or of directories by `way`: who syncs a
    /// file syncs that.
    pub(crate) fn conclude<'a>(
        &self,
        n: u64,
        at: Option<Timestamp>,
        files: impl Iterator<Item = &'a Arc<File>>,
        way: Option<Way<'_>>,
    ) -> Result<()> {
        let seq = self.files.note_tier(self.files.index.conclude(n, at, way))?;
        for file in files {
            if let Some(live) = &mut file.lock().live {
                live.logged_seq = Some(seq);
            }
        }
        Ok(())
    }

    /// The store has refused an announced change.
    pub(crate) fn not_made(&self, announced: Option<u64>) -> Result<()> {
        announced.map_or(Ok(()), |n| self.files.note_tier(self.files.index.failed(n)))
    }

    /// Syncs the names on the store in which changes of the journal are not known to be durable. A
    /// directory that cannot be synced is as durable as its store makes it.
    pub(crate) fn sync_names(&self) -> Result<()> {
        let (changes, dirs) = self.files.index.names(Journal::all);
        if changes.is_empty() || self.files.config.read_only {
            return Ok(());
        }
        dirs.iter().try_for_each(|dir| self.sync_nearest(dir))?;
        self.files.note_tier(self.files.index.retire(changes))
    }

    /// Syncs a directory, or if it is gone the one that it was in.
    fn sync_nearest(&self, dir: &Path) -> Result<()> {
        for dir in dir.ancestors() {
            match self.home.health().quietly(|| self.home.backing().sync_dir(dir)) {
                Err(e) if e.is(libc::ENOENT) || e.is(libc::ENOTDIR) => {}
                Err(e) if UNSYNCABLE.iter().any(|it| e.is(*it)) => return Ok(()),
                done => return done,
            }
        }
        Ok(())
    }

    /// The same in the background, if nobody is at it.
    pub(crate) fn sync_names_soon(self: &Arc<Self>) {
        if self.syncing.swap(true, Relaxed) {
            return;
        }
        let names = self.clone();
        self.home.errands().run(move || {
            if let Err(e) = names.sync_names() {
                tracing::debug!(error = %e, "names on the backing store could not be synced");
            }
            names.syncing.store(false, Relaxed);
        });
    }

    /// Whether somebody syncs the names on the store.
    pub(crate) fn are_syncing(&self) -> bool {
        self.syncing.load(Relaxed)
    }

    /// Whether so many changes are open that their names have to be synced.
    pub(crate) fn owes_names(&self) -> bool {
        self.files.index.names(Journal::len) >= OPEN_MAX
    }

    /// Takes note of a change of names that has been made. The journal knows it also where the tier
    /// fails, and records it later.
    pub(crate) fn note_name(&self, op: NameOp, at: Option<Timestamp>) {
        let _ = self.files.note_tier(self.files.index.name(op, Told::Done, at));
        if self.files.index.names(Journal::len) >= OPEN_LIMIT {
            let _ = self.sync_names();
        }
    }

    /// Takes note of a file, directory or anything else that a front-end has made on the store.
    pub fn note_made(&self, path: &Path, attr: &Attr) {
        self.note_name(NameOp::Create { path: path.into(), key: attr.key }, Some(attr.ctime));
    }

    /// Takes note of a directory that a front-end has removed.
    pub fn note_removed(&self, at: Named<'_>) {
        self.note_name(unlinked(at), None);
    }
}

pub(crate) fn unlinked(at: Named<'_>) -> NameOp {
    NameOp::Unlink { path: at.path.into(), key: at.key }
}
