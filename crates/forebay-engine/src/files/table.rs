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
use crate::files::file::File;

#[derive(Default)]
pub(crate) struct Table {
    by_key: HashTable<Arc<File>>,
    by_id: HashTable<Arc<File>>,
    /// Few: those that are found by their ids alone, since another one has the key, or nobody is to find
    /// them by it.
    aside: HashMap<FileKey, Vec<Arc<File>>>,
    hasher: DefaultHashBuilder,
    /// What was taken out.
    forgotten: Lately<FileKey>,
    /// Files a name of which is being taken away: who opens one of them must see to it that he can
    /// read it later.
    leaving: Vec<FileKey>,
    /// Those with which that has ended.
    departed: Lately<FileKey>,
}

impl Table {
    pub fn with_key(&self, key: FileKey) -> Option<&Arc<File>> {
        self.by_key.find(self.hasher.hash_one(key), |file| file.key == key)
    }

    pub fn with_id(&self, id: FileId) -> Option<&Arc<File>> {
        self.by_id.find(self.hasher.hash_one(id), |file| file.id == id)
    }

    /// Those that have this key and are not found by it.
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

    /// Enters a file whose id is new. Whoever had its key before is found by id alone from now on.
    pub fn insert(&mut self, file: Arc<File>) {
        let Table { by_id, hasher, .. } = self;
        by_id.insert_unique(hasher.hash_one(file.id), file.clone(), |f| hasher.hash_one(f.id));
        self.enter_key(file);
    }

    /// Makes a file that is known to be found by its key. Whoever had that is found by id alone from now on.
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

    /// Leaves a file to be found by its id alone.
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

    /// Whether a name of the file may have gone since then.
    pub fn departed_since(&self, key: FileKey, since: Look) -> bool {
        self.departed.any_since(since, |gone| *gone == key)
    }

    /// Whether the file may have been taken out since then.
    pub fn forgotten_since(&self, key: FileKey, since: Look) -> bool {
        self.forgotten.any_since(since, |gone| *gone == key)
    }
}
