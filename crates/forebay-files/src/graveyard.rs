//! Files that have lost their last name, kept for requests that had looked it up before.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use forebay_backing::FileKey;
use hashbrown::HashMap;

use crate::file::File;

/// Files that have lost their last name, kept for requests that had looked it up before.
#[derive(Default)]
pub(crate) struct Graveyard {
    /// The files, and since when. They stay while they are open, and for a moment longer.
    pub waiting: HashMap<FileKey, (Instant, Arc<File>)>,
    /// The files that were thrown away with bytes newer than the backing file's, each with the number of its loss.
    pub lost: HashMap<FileKey, u64>,
    /// The keys of `lost`, the oldest loss in front; also some that are in `lost` no more.
    pub lost_order: VecDeque<(u64, FileKey)>,
    pub lost_ever: u64,
}

impl Graveyard {
    /// The number of losses that are remembered: many times as many as a front-end remembers files.
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

    /// Forgets the file that had this key: the store has given the key to another file.
    pub fn give_up(&mut self, key: FileKey) -> Option<Arc<File>> {
        self.lost.remove(&key);
        self.waiting.remove(&key).map(|(_, file)| file)
    }

    pub fn with_key(&self, key: FileKey) -> Option<&Arc<File>> {
        self.waiting.get(&key).map(|(_, file)| file)
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
