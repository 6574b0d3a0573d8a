//! Entries in the journal of names for changes of names, and the syncs of the store that retire them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_backing::{Attr, Result, Timestamp};

use crate::core::journal::{Journal, NameOp, OPEN_LIMIT, OPEN_MAX, Told};
use crate::core::paths::{Moving, Way};
use crate::file::File;
use crate::names::{Named, Names};

/// Files get the time of the kernel's last tick.
const TICK: Duration = Duration::from_millis(10);

/// Errors of stores that do not sync directories, or not for this user.
const UNSYNCABLE: [i32; 6] =
    [libc::EINVAL, libc::ENOSYS, libc::EOPNOTSUPP, libc::EACCES, libc::EPERM, libc::EROFS];

/// Errors of stores for a directory that does not exist any more, or is no directory now.
const GONE: [i32; 3] = [libc::ENOENT, libc::ENOTDIR, libc::ELOOP];

impl Names {
    /// Whether, after a loss of power, the log may say that bytes of the file are to be flushed.
    fn may_come_back(&self, file: &File) -> bool {
        let inner = file.lock();
        inner.may_last() || !self.files.index.is_synced(inner.settled_seq)
    }

    /// Announces a change of names of these files, or of directories that have files below.
    pub fn announce<'a>(
        &self,
        op: NameOp,
        files: impl IntoIterator<Item = &'a Arc<File>>,
        dirs: &Moving,
    ) -> Result<u64> {
        let n = self.files.note_tier(self.files.index.name(op, Told::Announced, None))?;
        // Without this sync a loss of power could bring back the record of a file that is gone, or
        // has lost that name.
        let below = || dirs.has_durable() || !self.files.index.has_settled();
        if (!dirs.is_empty() && below()) || files.into_iter().any(|file| self.may_come_back(file)) {
            self.files.note_tier(self.files.index.sync())?;
        }
        Ok(n)
    }

    /// Concludes a change of the names of these files, or of directories by `way`: a sync of such a
    /// file syncs the conclusion.
    pub fn conclude<'a>(
        &self,
        n: u64,
        at: Option<Timestamp>,
        files: impl Iterator<Item = &'a Arc<File>>,
        way: Option<Way<'_>>,
    ) -> Result<()> {
        let seq = self.files.note_tier(self.files.index.conclude(n, at, way))?;
        for file in files {
            if let Some(live) = &mut file.lock().live {
                live.needs_logged(live.logged_seq.max(Some(seq)));
            }
        }
        Ok(())
    }

    /// Records that the store has refused an announced change.
    pub fn not_made(&self, announced: Option<u64>) -> Result<()> {
        announced.map_or(Ok(()), |n| self.files.note_tier(self.files.index.failed(n)))
    }

    /// Syncs the directories on the store with changes of the journal that are not known to be
    /// durable. A directory that cannot be synced is as durable as its store makes it; if its sync
    /// fails, its own changes stay open, and no others.
    pub fn sync_names(&self) -> Result<()> {
        let dirs = self.files.index.names(Journal::by_dir);
        if dirs.is_empty() || self.files.config.read_only {
            return Ok(());
        }
        let (mut failed, mut stay) = (BTreeMap::new(), HashSet::<u64>::new());
        // Parents come first: a change below a directory that is not durable is not durable, either.
        for (dir, changes) in &dirs {
            let is_lost = dir.ancestors().any(|above| failed.contains_key(above));
            let synced = if is_lost { Ok(()) } else { self.sync_nearest(dir) };
            if is_lost || synced.is_err() {
                stay.extend(changes);
            }
            if let Err(error) = synced {
                failed.insert(dir.as_path(), error);
            }
        }
        let first = failed.into_iter().next();
        let failed = first.map(|(dir, error)| error.context(format!("syncing {}", dir.display())));
        let mut durable: BTreeSet<u64> = dirs.into_values().flatten().collect();
        durable.retain(|n| !stay.contains(n));
        let durable = self.files.index.names(|journal| journal.without_needed(durable));
        self.files.note_tier(self.files.index.retire(durable))?;
        failed.map_or(Ok(()), Err)
    }

    /// Syncs a directory, or if it is gone, or a link by now, the nearest one above it.
    fn sync_nearest(&self, dir: &Path) -> Result<()> {
        for dir in dir.ancestors() {
            match self.home.health().quietly(|| self.home.backing().sync_dir(dir)) {
                Err(e) if GONE.iter().any(|it| e.is(*it)) => {}
                Err(e) if UNSYNCABLE.iter().any(|it| e.is(*it)) => return Ok(()),
                done => return done,
            }
        }
        Ok(())
    }

    /// Syncs changed names as `sync_names` does, in the background, unless a sync is under way.
    pub fn sync_names_soon(self: &Arc<Self>) {
        if self.syncing.swap(true, Relaxed) {
            return;
        }
        let names = self.clone();
        self.home.errands().run(move || {
            names.sync_names_told();
            names.syncing.store(false, Relaxed);
        });
    }

    fn sync_names_told(&self) {
        if let Err(e) = self.sync_names() {
            match self.owes_names() {
                true => {
                    tracing::warn!(error = %e, "many names on the backing store wait to be synced")
                }
                false => {
                    tracing::debug!(error = %e, "names on the backing store could not be synced")
                }
            }
        }
    }

    /// Whether the names on the store are being synced.
    pub fn are_syncing(&self) -> bool {
        self.syncing.load(Relaxed)
    }

    /// Whether so many changes are open that their names have to be synced.
    pub fn owes_names(&self) -> bool {
        self.files.index.names(Journal::len) >= OPEN_MAX
    }

    /// Notes a change of names that has been made. The journal knows it even where the tier fails,
    /// and records it later.
    pub fn note_name(&self, op: NameOp, at: Option<Timestamp>) {
        let at = Some(at.unwrap_or_else(|| self.by_our_clock()));
        let _ = self.files.note_tier(self.files.index.name(op, Told::Done, at));
        // One of the threads that make changes syncs, and the others go on: the sync may not help.
        if self.files.index.names(Journal::len) >= OPEN_LIMIT && !self.syncing.swap(true, Relaxed) {
            self.sync_names_told();
            self.syncing.store(false, Relaxed);
        }
    }

    /// Returns a moment of the store's clock when a change was over, where the store has told none.
    /// Recovery leaves a file alone that others change later than that.
    fn by_our_clock(&self) -> Timestamp {
        self.files.time().stamp().plus(self.home.backing().clocks_differ())
    }

    /// Returns a moment of the store's clock before a removal that is made next. Recovery removes no file that was
    /// changed later: others have given it the name again.
    pub fn before_removal(&self) -> Timestamp {
        self.files.time().stamp().minus(self.home.backing().clocks_differ() + TICK)
    }

    /// Notes a file, directory or other inode that a front-end has made on the store.
    pub fn note_made(&self, path: &Path, attr: &Attr) {
        self.note_name(NameOp::Create { path: path.into(), key: attr.key }, Some(attr.ctime));
    }

    /// Notes that a front-end has removed a directory.
    pub fn note_removed(&self, at: Named<'_>) {
        self.note_name(unlinked(at), None);
    }
}

/// Returns the change that removes a name.
pub fn unlinked(at: Named<'_>) -> NameOp {
    NameOp::Unlink { path: at.path.into(), key: at.key }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use forebay_backing::wrap::fault::{Fault, FaultRule, FaultRules};
    use forebay_backing::{BackingStore, New, RenameMode};

    use super::*;
    use crate::bed::bed_on;
    use crate::core::journal::Moved;

    /// One directory of the store says nothing about the others, and a directory that was moved
    /// away and replaced by a link counts as gone.
    // S-3
    #[test]
    fn a_directory_that_cannot_be_synced_keeps_its_own_changes_alone() {
        let fail = Some(String::from("EIO").try_into().unwrap());
        let (op, path) = (String::from("sync_dir"), String::from("bad"));
        let rule = FaultRule { op, path, fail, ..FaultRule::default() };
        let bed = bed_on(|store| {
            let rules = FaultRules { rules: vec![rule], ..FaultRules::default() };
            Fault::with_rules(store, rules).unwrap().0
        });
        let names = &bed.names;
        let new = New { mode: 0o755, umask: 0, uid: 0, gid: 0 };
        for dir in ["bad", "bad/below", "good", "moved", "moved/below"] {
            let made = names.alter(|b: &dyn BackingStore| b.mkdir(Path::new(dir), &new)).unwrap();
            names.note_made(Path::new(dir), &made);
        }
        for path in ["bad/f", "bad/below/f", "good/f", "moved/below/f"] {
            bed.make(path);
        }
        // The next sync would take this file for one that the store has forgotten, if its last name
        // were forgotten here.
        let key = bed.make("bad/goes").1.key;
        for (from, to) in [("bad/goes", "good/goes"), ("good/goes", "good/gone")] {
            let (from, to) = (Path::new(from), Path::new(to));
            names.alter(|b: &dyn BackingStore| b.rename(from, to, RenameMode::Replace)).unwrap();
            let (from, to, moved) = (from.into(), to.into(), Moved::File);
            names.note_name(NameOp::Rename { from, to, key, over: None, moved }, None);
        }
        let (moved, aside) = (bed.root.path().join("backing/moved"), bed.root.path().join("aside"));
        std::fs::rename(&moved, &aside).unwrap();
        std::os::unix::fs::symlink(&aside, &moved).unwrap();
        let error = names.sync_names().expect_err("the store cannot sync all of it");
        assert!(error.is(libc::EIO) && error.to_string().contains("bad"), "{error}");
        let left = names.files.index.names(Journal::by_dir);
        let left: Vec<PathBuf> = left.into_keys().collect();
        assert_eq!(left, [Path::new("bad"), Path::new("bad/below"), Path::new("good")]);
        let of = names.files.index.names(|journal| journal.of(&[key].into()));
        assert_eq!(of.len(), 3, "all that was done with one file");
    }
}
