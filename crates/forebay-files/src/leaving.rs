//! Files whose last name goes while they are open or being opened. They live on as on a local file
//! system: a request that has found the name can open the file that it named.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_backing::{Access, Attr, FileKey, Pin};

use crate::Files;
use crate::core::clock::Look;
use crate::core::id::FileId;
use crate::core::paths::Paths;
use crate::core::state::{FileState, Record};
use crate::file::{File, Inner};
use crate::open::OpenFile;

/// Marks a file of which a name is being removed, until it is dropped.
pub struct Leaving<'a> {
    files: &'a Files,
    key: FileKey,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.files.table.write().end_to_leave(self.key);
    }
}

impl Files {
    /// Announces that a name of the file is about to go. An open from here on sees that; an earlier
    /// one is in the table.
    pub fn take_name(&self, key: FileKey) -> Leaving<'_> {
        self.table.write().begin_to_leave(key);
        Leaving { files: self, key }
    }

    /// Whether a name of the file is going, or has gone since `since`.
    pub fn is_leaving(&self, key: FileKey, since: Option<Look>) -> bool {
        let table = self.table.read();
        table.is_leaving(key) || since.is_some_and(|since| table.departed_since(key, since))
    }

    /// Notes the name by which the file was found after `seen`, if the file cannot have lost it since.
    pub fn learn_name(&self, file: &File, path: &Path, seen: Look) {
        let mut inner = file.lock();
        if !inner.state.paths.is_first(path)
            && !inner.live().unlinked
            // A thread that begins to remove the name from here on waits for the lock.
            && !self.is_leaving(file.key, Some(seen))
        {
            inner.rename(file.id, |paths| paths.learn_first(self.tree(), path));
        }
    }

    /// Opens a file whose last name went a moment ago: a request that looked the name up before may
    /// still have it, as on a local file system. `pin` holds on to the file, where a front-end has one.
    pub fn open_unlinked(
        self: &Arc<Self>,
        key: FileKey,
        pin: Option<&dyn Pin>,
    ) -> Option<OpenFile> {
        let buried = || self.graveyard.lock().with_key(key).cloned();
        let is_near = |inner: &Inner| {
            let live = inner.live.as_ref();
            inner.state.is_complete() || live.is_some_and(|live| live.backing.is_some())
        };
        let found = buried();
        let near = found.as_ref().is_some_and(|file| is_near(&file.lock()));
        let open = |pin: &dyn Pin| self.home.health().call(|| pin.open(Access::Read)).ok();
        let held = pin.filter(|_| !near).and_then(open);
        let held = held.filter(|(_, attr)| attr.key == key && attr.nlink == 0);
        let file = match (found, &held) {
            (Some(file), _) => file,
            // The name is just going, or no byte of the file was cached.
            (None, Some((_, attr))) => self.find(key).or_else(|| self.bury(attr))?,
            (None, None) => return None,
        };
        let mut inner = file.lock();
        // A file's lock comes before the graveyard's: check again whether the file is still there.
        let known = buried().or_else(|| self.find(key)).is_some_and(|it| Arc::ptr_eq(&it, &file));
        if !known || inner.gone {
            return None;
        }
        if let Some((backing, _)) = held {
            inner.live().mine().backing.get_or_insert(backing);
        }
        if !is_near(&inner) {
            return None;
        }
        Some(self.open(&file, inner))
    }

    /// Enters a file without cached bytes and without a name. `None` if the file had bytes that the
    /// backing file lacks.
    fn bury(&self, attr: &Attr) -> Option<Arc<File>> {
        let state = FileState::absent(Paths::default(), attr);
        let id = FileId(self.next_id.fetch_add(1, Relaxed));
        let file = File::new(id, Record { key: attr.key, state }, false);
        file.lock().live().mine().unlinked = true;
        let since = self.time.now();
        let mut graves = self.graveyard.lock();
        if graves.lost.contains_key(&attr.key) {
            return None;
        }
        let (_, file) = graves.waiting.entry(attr.key).or_insert((since, file));
        Some(file.clone())
    }

    /// Drops files that are not open and lost their name a while ago.
    pub fn sweep_graveyard(&self, older_than: Duration) {
        let old: Vec<Arc<File>> = {
            let graves = self.graveyard.lock();
            let old =
                graves.waiting.values().filter(|(since, _)| self.time.since(*since) >= older_than);
            old.map(|(_, file)| file.clone()).collect()
        };
        for file in old {
            // A file's lock comes before the graveyard's. A file whose lock is held is in use.
            let Some(inner) = file.try_lock() else { continue };
            if !inner.is_idle() {
                continue;
            }
            let mut graves = self.graveyard.lock();
            if graves.holds(&file) {
                graves.waiting.remove(&file.key);
                if inner.state.is_dirty() {
                    graves.note_lost(file.key);
                }
            }
            drop(graves);
            self.retire(&file, inner);
        }
    }

    /// Drops the file that waits under the key of a file that was just created. Files that were known
    /// before have ids below `next`.
    pub fn give_up_buried(&self, key: FileKey, next: u64) {
        let mut graves = self.graveyard.lock();
        if graves.with_key(key).is_some_and(|file| file.id.0 >= next) {
            return; // It is the same file, and its name has gone already.
        }
        let before = graves.give_up(key);
        drop(graves);
        self.retire_buried(before);
    }

    pub(crate) fn retire_buried(&self, file: Option<Arc<File>>) {
        if let Some(file) = file {
            let inner = file.lock();
            self.retire(&file, inner);
        }
    }

    /// Returns the number of names that the file has after one was removed, and its attributes if
    /// they can be read.
    pub(crate) fn links_left(&self, file: &File) -> (u32, Option<Attr>) {
        let (held, known) = {
            let inner = file.lock();
            let held = inner.live.as_ref().and_then(|l| l.backing.clone().or(l.target.clone()));
            (held, inner.state.owner().nlink)
        };
        let asked = held.and_then(|backing| self.home.health().call(|| backing.stat()).ok());
        (asked.map_or(known.saturating_sub(1), |attr| attr.nlink), asked)
    }
}

#[cfg(test)]
#[cfg(debug_assertions)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use crate::bed::bed;
    use crate::changing::Changing;
    use crate::core::clock::What;
    use forebay_threads::explored::{explore, point, spawn};

    use super::*;

    /// A name that was found before it went is not learnt after it: without the check whether it is
    /// leaving ([`Files::learn_name`]) it would be.
    #[test]
    fn a_name_that_goes_is_not_learnt_under_any_schedule() {
        let bed = bed();
        let (files, file) = (bed.files.clone(), bed.make("f").0);
        explore(move || {
            let name = Path::new("g");
            let seen = Look::now();
            let (theirs, known) = (files.clone(), file.clone());
            let learns = spawn(move || theirs.learn_name(&known, name, seen));
            let going = files.take_name(file.key);
            // The store removes the name here.
            point();
            file.lock().rename(file.id, |paths| paths.lose(name));
            drop(going);
            learns.join().unwrap();
            assert!(!file.lock().state.paths.has(name), "a name that nobody finds");
        });
    }

    /// Two threads that find a file on the store enter it once: without the look under the table's
    /// lock ([`Files::insert`]) each would enter its own.
    #[test]
    fn a_file_is_made_known_once_under_any_schedule() {
        let bed = bed();
        let (files, attr) = (bed.files.clone(), bed.make("f").1);
        explore(move || {
            let key = FileKey { ino: files.next_id.load(Relaxed) | 1 << 60, generation: 1 };
            let attr = Attr { key, ..attr };
            let made = [(); 2].map(|()| {
                let files = files.clone();
                spawn(move || {
                    let known = files.find(key);
                    known.unwrap_or_else(|| files.insert(Path::new("h"), &attr))
                })
            });
            let [one, two] = made.map(|made| made.join().unwrap());
            assert!(Arc::ptr_eq(&one, &two), "two files with one key");
            files.forget(&one);
        });
    }

    /// An answer of the store from before or during a change by the daemon does not count after it:
    /// without `begin_change` and `end_change` ([`Changing`]) it would.
    #[test]
    fn an_answer_from_before_a_change_is_not_taken_under_any_schedule() {
        let bed = bed();
        let file = bed.make("f").0;
        explore(move || {
            let (store, known) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(1)));
            let (asked, learnt, looks) = (store.clone(), known.clone(), file.clone());
            let looker = spawn(move || {
                let seen = looks.lock().clock.look();
                let said = asked.load(Relaxed);
                let inner = looks.lock();
                if seen.is_quiet() && !inner.changed(seen, What::Home) {
                    learnt.store(said, Relaxed);
                }
            });
            let changing = Changing::begin([file.clone()]);
            point();
            store.store(2, Relaxed);
            point();
            known.store(2, Relaxed);
            drop(changing);
            looker.join().unwrap();
            assert_eq!(known.load(Relaxed), 2, "what was so before the change");
        });
    }
}
