//! The files the engine knows, found by key or by id.
//!
//! There may be millions, so each costs two pointers here: keys and ids are read where they are,
//! in the file.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use forebay_backing::FileKey;
use hashbrown::{DefaultHashBuilder, HashTable};

use crate::core::clock::{Lately, Look};
use crate::core::id::FileId;
use crate::file::File;

#[derive(Default)]
pub(crate) struct Table {
    by_key: HashTable<Arc<File>>,
    by_id: HashTable<Arc<File>>,
    /// Files that can be found by their ids alone, since another file has the key, or the key is
    /// not to find them. They are few.
    aside: HashMap<FileKey, Vec<Arc<File>>>,
    hasher: DefaultHashBuilder,
    /// Files that were removed from the table lately.
    forgotten: Lately<FileKey>,
    /// Files of which a name is being removed: an open of one must make sure that the file stays
    /// readable.
    leaving: Vec<FileKey>,
    /// Files for which that has ended.
    departed: Lately<FileKey>,
}

impl Table {
    pub fn with_key(&self, key: FileKey) -> Option<&Arc<File>> {
        self.by_key.find(self.hasher.hash_one(key), |file| file.key == key)
    }

    pub fn with_id(&self, id: FileId) -> Option<&Arc<File>> {
        self.by_id.find(self.hasher.hash_one(id), |file| file.id == id)
    }

    /// Returns the files that have this key and are not found by it.
    pub fn aside(&self, key: FileKey) -> &[Arc<File>] {
        self.aside.get(&key).map_or(&[], Vec::as_slice)
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<File>> {
        self.by_id.iter()
    }

    pub fn reserve(&mut self, more: usize) {
        let Table { by_key, by_id, hasher, .. } = self;
        by_key.reserve(more, |file| hasher.hash_one(file.key));
        by_id.reserve(more, |file| hasher.hash_one(file.id));
    }

    /// Enters a file whose id is new. The file that had its key before is found by its id alone from now on.
    pub fn insert(&mut self, file: Arc<File>) {
        let Table { by_id, hasher, .. } = self;
        by_id.insert_unique(hasher.hash_one(file.id), file.clone(), |f| hasher.hash_one(f.id));
        self.enter_key(file);
    }

    /// Makes a known file that can be found by its key. The file that had the key is found by its
    /// id alone from now on.
    pub fn enter_key(&mut self, file: Arc<File>) {
        self.leave_aside(&file);
        let Table { by_key, aside, hasher, .. } = self;
        let hash = hasher.hash_one(file.key);
        if let Ok(before) = by_key.find_entry(hash, |known| known.key == file.key) {
            let (before, _) = before.remove();
            if before.id != file.id {
                aside.entry(file.key).or_default().push(before);
            }
        }
        by_key.insert_unique(hash, file, |f| hasher.hash_one(f.key));
    }

    /// Makes a file that can be found by its id alone.
    pub fn forget_key(&mut self, file: &File) {
        if let Some(file) = self.take_key(file) {
            self.aside.entry(file.key).or_default().push(file);
        }
    }

    fn take_key(&mut self, file: &File) -> Option<Arc<File>> {
        let same = |known: &Arc<File>| known.id == file.id;
        let found = self.by_key.find_entry(self.hasher.hash_one(file.key), same).ok()?;
        Some(found.remove().0)
    }

    fn leave_aside(&mut self, file: &File) {
        if let Some(aside) = self.aside.get_mut(&file.key) {
            aside.retain(|known| known.id != file.id);
            if aside.is_empty() {
                self.aside.remove(&file.key);
            }
        }
    }

    pub fn remove(&mut self, file: &File) {
        let same = |known: &Arc<File>| known.id == file.id;
        if let Ok(found) = self.by_id.find_entry(self.hasher.hash_one(file.id), same) {
            found.remove();
        }
        drop(self.take_key(file));
        self.leave_aside(file);
        self.forgotten.note(file.key);
    }

    pub fn begin_to_leave(&mut self, key: FileKey) {
        self.leaving.push(key);
    }

    pub fn end_to_leave(&mut self, key: FileKey) {
        let at = self.leaving.iter().position(|leaving| *leaving == key);
        self.leaving.swap_remove(at.expect("it began"));
        self.departed.note(key);
    }

    pub fn is_leaving(&self, key: FileKey) -> bool {
        self.leaving.contains(&key)
    }

    /// Whether a name of the file may have gone since `since`.
    pub fn departed_since(&self, key: FileKey, since: Look) -> bool {
        self.departed.any_since(since, |gone| *gone == key)
    }

    /// Whether the file may have been removed from the table since `since`.
    pub fn forgotten_since(&self, key: FileKey, since: Look) -> bool {
        self.forgotten.any_since(since, |gone| *gone == key)
    }
}

#[cfg(test)]
mod tests {
    use forebay_backing::{Timestamp, Version};

    use super::*;
    use crate::core::paths::Paths;
    use crate::core::ranges::Ranges;
    use crate::core::state::{Conflict, FileState, Owner, Portrait, Record};

    const KEY: FileKey = FileKey { ino: 7, generation: 1 };

    fn file(id: u64) -> Arc<File> {
        let (size, mtime) = (1, Timestamp::default());
        let portrait = Portrait {
            paths: vec![],
            owner: Owner { mode: 0o644, uid: 0, gid: 0, nlink: 1 },
            size,
            mtime,
            base: Version { key: KEY, size, mtime, ctime: mtime },
            ranges: Ranges::None,
            since: 0,
            flush_open: false,
            conflict: Conflict::None,
        };
        let state = FileState::taken(Paths::default(), &portrait, 1);
        File::new(FileId(id), Record { key: KEY, state }, false)
    }

    fn found(table: &Table) -> (Option<u64>, Vec<u64>) {
        let aside = table.aside(KEY).iter().map(|file| file.id.0).collect();
        (table.with_key(KEY).map(|file| file.id.0), aside)
    }

    /// All ways in which files come to be found by their ids alone, and out of that state.
    #[test]
    fn files_that_are_not_found_by_their_key_are_found_aside() {
        let mut table = Table::default();
        let files = [1, 2, 3].map(file);
        table.insert(files[0].clone());
        assert_eq!(found(&table), (Some(1), vec![]));
        table.insert(files[1].clone());
        assert_eq!(found(&table), (Some(2), vec![1]), "another has its key");
        table.forget_key(&files[1]);
        table.forget_key(&files[1]);
        assert_eq!(found(&table), (None, vec![1, 2]));
        table.enter_key(files[0].clone());
        table.enter_key(files[0].clone());
        assert_eq!(found(&table), (Some(1), vec![2]), "it has its key again");
        table.insert(files[2].clone());
        table.remove(&files[1]);
        table.remove(&files[2]);
        assert_eq!(found(&table), (None, vec![1]));
        table.remove(&files[0]);
        assert_eq!(found(&table), (None, vec![]));
        assert!(table.aside.is_empty() && table.all().next().is_none());
    }
}
