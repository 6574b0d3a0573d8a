//! Files whose last name goes while they are open, or while somebody is about to open them. They
//! live on as on a local file system: whoever has found the name can open the file that it named.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use forebay_backing::{Access, Attr, Error, FileKey, Pin, Result};
use hashbrown::HashMap;

use crate::config::WritePolicy;
use crate::engine::Engine;
use crate::file::{File, Inner};
use crate::log::FileId;
use crate::names::Named;
use crate::state::{FileState, Record};

/// Files that have lost their last name, for who had looked it up before.
#[derive(Default)]
pub(crate) struct Graveyard {
    /// Since when. They stay while they are open, and for a moment.
    waiting: HashMap<FileKey, (Instant, Arc<File>)>,
    /// Those that were thrown away with bytes newer than the backing file's, by their number.
    lost: HashMap<FileKey, u64>,
    /// The same, the oldest in front, with some that are not lost any more.
    lost_order: VecDeque<(u64, FileKey)>,
    lost_ever: u64,
}

impl Graveyard {
    /// Many times as many as a front-end holds on to.
    const LOST_KEPT: usize = 1 << 16;

    pub fn holds(&self, file: &Arc<File>) -> bool {
        self.waiting.get(&file.key).is_some_and(|(_, waits)| Arc::ptr_eq(waits, file))
    }

    pub fn note_lost(&mut self, key: FileKey) {
        self.lost_ever += 1;
        self.lost.insert(key, self.lost_ever);
        self.lost_order.push_back((self.lost_ever, key));
        if self.lost_order.len() > Graveyard::LOST_KEPT
            && let Some((n, key)) = self.lost_order.pop_front()
            && self.lost.get(&key) == Some(&n)
        {
            self.lost.remove(&key);
        }
    }

    /// Forgets what had this key: the store has given it to another file.
    fn give_up(&mut self, key: FileKey) -> Option<Arc<File>> {
        self.lost.remove(&key);
        self.waiting.remove(&key).map(|(_, file)| file)
    }

    fn with_key(&self, key: FileKey) -> Option<&Arc<File>> {
        self.waiting.get(&key).map(|(_, file)| file)
    }
}

/// While it lives, a name of the file is being taken away.
pub(crate) struct Leaving<'a> {
    engine: &'a Engine,
    key: FileKey,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.engine.table.write().expect("no panic inside").end_to_leave(self.key);
    }
}

impl Engine {
    /// Announces that a name of the file is about to go. Whoever opens it from here on sees that;
    /// who has opened it before is in the table.
    pub(crate) fn take_name(&self, key: FileKey) -> Leaving<'_> {
        self.table.write().expect("no panic inside").begin_to_leave(key);
        Leaving { engine: self, key }
    }

    /// An open file stays readable without its name: through a descriptor, taken while there is a
    /// name. It also keeps the inode number from being used again. A file that keeps other names,
    /// perhaps unknown to us, must still be flushed; and around the tier is written by descriptor.
    ///
    /// # Errors
    ///
    /// Those of the backing store; ENOENT or ESTALE if the name is gone already.
    pub(crate) fn keep_readable(&self, file: &Arc<File>) -> Result<()> {
        let (open, links) = {
            let mut inner = file.lock();
            (inner.live().opens > 0, inner.state.owner.nlink)
        };
        if !open {
            return Ok(());
        }
        if links > 1 || self.policy() == WritePolicy::WriteAround {
            let _ = self.writable_backing(file);
        }
        self.backing_file(file).map(drop)
    }

    /// Whether a name of the file is going, or has gone since the table's mark `departed`.
    pub(crate) fn is_leaving(&self, key: FileKey, departed: Option<u64>) -> bool {
        let table = self.table.read().expect("no panic inside");
        table.is_leaving(key) || departed.is_some_and(|mark| table.departed.any_since(mark, key))
    }

    /// Takes note of a name by which the file was found when the table's mark was `departed`, if
    /// it cannot have lost it since.
    pub(crate) fn learn_name(&self, file: &File, path: &Path, departed: u64) {
        let mut inner = file.lock();
        if !inner.state.paths.has(path)
            && !inner.live().unlinked
            // Who begins to take it away from here on waits for the lock.
            && !self.is_leaving(file.key, Some(departed))
        {
            inner.state.paths.learn_first(path);
        }
    }

    /// A name that goes while we open it: the bytes must be within reach without it, and what is
    /// written must not be for a name that is gone. `departed` is the table's mark from before we
    /// looked, if the file may have been unknown to who took it away.
    pub(crate) fn hold_if_leaving(
        &self,
        file: Arc<File>,
        departed: Option<u64>,
    ) -> Result<Arc<File>> {
        // Who found it in the table counted it as open after it was looked for.
        let leaving = self.is_leaving(file.key, departed) || file.lock().live().unlinked;
        let Some(error) = leaving.then(|| self.keep_readable(&file).err()).flatten() else {
            return Ok(file);
        };
        let gone = error.is(libc::ENOENT) || error.is(libc::ESTALE);
        if !gone && file.lock().state.is_complete() {
            return Ok(file);
        }
        self.close(&file);
        match gone {
            true => Err(Error::os(libc::ESTALE, "its name has gone").with_source(error)),
            false => Err(error),
        }
    }

    /// One name of the file is gone from the backing store.
    pub(crate) fn lost_name(&self, file: &Arc<File>, path: &Path) -> Result<()> {
        let (links, found) = self.links_left(file);
        let mut inner = file.lock();
        if inner.gone {
            return Ok(()); // Its last handle was closed meanwhile: no trace of it is left.
        }
        inner.state.paths.lose(path);
        inner.state.owner.nlink = links;
        inner.forget_seen();
        if let Some(at) = inner.state.paths.first() {
            let key = file.key;
            drop(inner);
            let _ = self.refresh(Named { path: &at, key, is_dir: false });
            return Ok(());
        }
        if links > 0 && !inner.is_idle() {
            // It lives on under a name that we do not know: its handles go on, and the next open
            // by that name finds it here.
            return match found {
                Some(attr) => self.follow(file, &mut inner, &attr),
                None if inner.recorded => self.put(file, &mut inner),
                None => Ok(()),
            };
        }
        if inner.recorded {
            self.append(&mut inner, &crate::log::Entry::Drop(file.id))?;
            inner.recorded = false;
        }
        inner.live().unlinked = true;
        self.unqueue(&mut inner);
        let mut graves = self.graveyard.lock().expect("no panic inside");
        let before = graves.waiting.insert(file.key, (Instant::now(), file.clone()));
        drop(graves);
        drop(inner);
        self.forget(file);
        self.retire_buried(before.map(|(_, before)| before).filter(|it| !Arc::ptr_eq(it, file)));
        Ok(())
    }

    /// Opens a file whose last name went a moment ago: who looked the name up before may still
    /// have it, as on a local file system. `pin` holds on to it, where something does.
    pub fn open_unlinked(&self, key: FileKey, pin: Option<&dyn Pin>) -> Option<Arc<File>> {
        let buried = || self.graveyard.lock().expect("no panic inside").with_key(key).cloned();
        let is_near = |inner: &Inner| {
            let live = inner.live.as_ref();
            inner.state.is_complete() || live.is_some_and(|live| live.backing.is_some())
        };
        let found = buried();
        let near = found.as_ref().is_some_and(|file| is_near(&file.lock()));
        let open = |pin: &dyn Pin| self.health.call(|| pin.open(Access::Read)).ok();
        let held = pin.filter(|_| !near).and_then(open);
        let held = held.filter(|(_, attr)| attr.key == key && attr.nlink == 0);
        let file = match (found, &held) {
            (Some(file), _) => file,
            // Its name is just going, or nothing of it was cached.
            (None, Some((_, attr))) => self.find(key).or_else(|| self.bury(attr))?,
            (None, None) => return None,
        };
        let mut inner = file.lock();
        // A file's lock comes before the graveyard's: look again whether it is still there.
        let known = buried().or_else(|| self.find(key)).is_some_and(|it| Arc::ptr_eq(&it, &file));
        if !known || inner.gone {
            return None;
        }
        if let Some((backing, _)) = held {
            inner.live().backing.get_or_insert(backing);
        }
        if !is_near(&inner) {
            return None;
        }
        inner.live().opens += 1;
        drop(inner);
        Some(file)
    }

    /// Begins to know a file of which nothing is cached and which has no name. `None` if the
    /// backing file is not all there was of it.
    fn bury(&self, attr: &Attr) -> Option<Arc<File>> {
        let mut graves = self.graveyard.lock().expect("no panic inside");
        if graves.lost.contains_key(&attr.key) {
            return None;
        }
        let (_, file) = graves.waiting.entry(attr.key).or_insert_with(|| {
            let mut state = FileState::absent(Path::new(""), attr);
            state.paths.clear();
            let id = FileId(self.next_id.fetch_add(1, Relaxed));
            let file = File::new(id, Record { key: attr.key, state }, false);
            file.lock().live().unlinked = true;
            (Instant::now(), file)
        });
        Some(file.clone())
    }

    /// Lets go of files that nobody has open and that lost their name a while ago.
    pub(crate) fn sweep_graveyard(&self, older_than: Duration) {
        let old: Vec<Arc<File>> = {
            let graves = self.graveyard.lock().expect("no panic inside");
            let old = graves.waiting.values().filter(|(since, _)| since.elapsed() >= older_than);
            old.map(|(_, file)| file.clone()).collect()
        };
        for file in old {
            // A file's lock comes before the graveyard's. Who is at work on it has it open.
            let Ok(inner) = file.inner.try_lock() else { continue };
            if !inner.is_idle() {
                continue;
            }
            let mut graves = self.graveyard.lock().expect("no panic inside");
            if graves.holds(&file) {
                graves.waiting.remove(&file.key);
                if inner.has_newer_bytes() {
                    graves.note_lost(file.key);
                }
            }
            drop(graves);
            self.retire(&file, inner);
        }
    }

    /// Forgets what waits under the key of a file that was just created.
    pub(crate) fn give_up_buried(&self, attr: &Attr) {
        let before = self.graveyard.lock().expect("no panic inside").with_key(attr.key).cloned();
        if before.is_some_and(|before| before.lock().state.base.ctime >= attr.ctime) {
            return; // It is the same, and its name went already.
        }
        let before = self.graveyard.lock().expect("no panic inside").give_up(attr.key);
        self.retire_buried(before);
    }

    fn retire_buried(&self, file: Option<Arc<File>>) {
        if let Some(file) = file {
            let inner = file.lock();
            self.retire(&file, inner);
        }
    }

    /// How many names the file has after one was removed, and what it is now if that can be seen.
    fn links_left(&self, file: &File) -> (u32, Option<Attr>) {
        let (held, known) = {
            let inner = file.lock();
            let held = inner.live.as_ref().and_then(|l| l.backing.clone().or(l.target.clone()));
            (held, inner.state.owner.nlink)
        };
        let asked = held.and_then(|backing| self.health.call(|| backing.stat()).ok());
        (asked.map_or(known.saturating_sub(1), |attr| attr.nlink), asked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // S-1
    #[test]
    fn what_was_lost_is_known_until_the_key_is_anothers_or_many_more_are() {
        let key = |ino| FileKey { ino, generation: 1 };
        let mut graves = Graveyard::default();
        let lost = |graves: &Graveyard, ino| graves.lost.contains_key(&key(ino));
        graves.note_lost(key(1));
        graves.note_lost(key(2));
        assert!(lost(&graves, 1) && lost(&graves, 2));
        graves.give_up(key(1));
        assert!(!lost(&graves, 1) && lost(&graves, 2));
        graves.note_lost(key(1));
        let kept = Graveyard::LOST_KEPT as u64;
        (3..=kept + 1).for_each(|ino| graves.note_lost(key(ino)));
        assert!(lost(&graves, 1), "its first entry is not its last");
        assert!(!lost(&graves, 2), "the oldest goes");
        assert!(graves.lost.len() <= Graveyard::LOST_KEPT);
    }
}
