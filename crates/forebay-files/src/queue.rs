//! The files with dirty bytes, by age.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;

use crate::core::stamps;
use crate::file::File;

/// Files with dirty bytes, the oldest first. The key is the time with a number behind it, so that
/// two files can have the same age.
#[derive(Default)]
pub struct DirtyQueue {
    pub(super) by_age: BTreeMap<u64, (u64, Arc<File>)>,
}

/// Bits of a place below the time: milliseconds since the epoch take 41.
const SEQUENCE_BITS: u32 = 20;

impl DirtyQueue {
    /// Adds a file whose oldest dirty byte is from `since`; returns its place.
    /// `since` is positive.
    pub(crate) fn push(&mut self, since: u64, file: Arc<File>) -> NonZeroU64 {
        let mut place = since << SEQUENCE_BITS;
        let last = self.by_age.range(place..(since + 1) << SEQUENCE_BITS).next_back();
        if let Some((last, _)) = last {
            place = last + 1;
        }
        self.by_age.insert(place, (since, file));
        NonZeroU64::new(place).expect("since is positive")
    }

    /// Whether `place` is that of a file whose oldest dirty byte is from `since`.
    pub(crate) fn is_of(&self, place: NonZeroU64, since: u64) -> bool {
        self.by_age.get(&place.get()).is_some_and(|(then, _)| *then == since)
    }

    pub(crate) fn remove(&mut self, place: NonZeroU64) {
        self.by_age.remove(&place.get());
    }

    /// Returns all files, oldest first, and since when each is dirty, as far as known [now](stamps::known).
    pub fn oldest_first(&self, now: u64) -> impl Iterator<Item = (u64, &Arc<File>)> {
        let is_beyond = move |entry: &&(u64, Arc<File>)| stamps::is_beyond(entry.0, now);
        let beyond = self.by_age.values().rev().take_while(is_beyond);
        let others = self.by_age.values().take_while(move |entry| !is_beyond(entry));
        beyond.chain(others).map(move |(since, file)| (stamps::known(*since, now), file))
    }

    /// Files dirtied before `until`, oldest first.
    pub fn older(&self, now: u64, until: u64) -> VecDeque<Arc<File>> {
        self.oldest(now, until, usize::MAX)
    }

    /// Returns the first `count` of them.
    pub fn oldest(&self, now: u64, until: u64, count: usize) -> VecDeque<Arc<File>> {
        let due = self.oldest_first(now).take_while(|(since, _)| *since <= until);
        due.take(count).map(|(_, file)| file.clone()).collect()
    }
}
