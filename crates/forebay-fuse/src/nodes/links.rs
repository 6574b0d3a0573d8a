//! The names of one node. A file may have 65,000 names. Each has a place, by which a binary search
//! finds it when it is removed.

use std::collections::VecDeque;

use super::Name;

/// The node of a name, and the name's place among those of that node.
#[derive(Debug, Clone, Copy)]
pub struct Link {
    pub id: u64,
    pub place: u64,
}

/// The names in the order in which they were last seen, with places that rise.
#[derive(Debug, Default)]
pub struct Links(VecDeque<(u64, Name)>);

impl Links {
    /// `place` is higher than any before.
    pub fn add(&mut self, place: u64, name: Name) {
        debug_assert!(self.0.back().is_none_or(|(last, _)| *last < place), "places rise");
        self.0.push_back((place, name));
    }

    pub fn remove(&mut self, place: u64) {
        if let Ok(at) = self.0.binary_search_by_key(&place, |(place, _)| *place) {
            self.0.remove(at);
        }
        if self.0.len() < self.0.capacity() / 4 {
            self.0.shrink_to_fit();
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The name seen last.
    pub fn latest(&self) -> Option<&Name> {
        self.0.back().map(|(_, name)| name)
    }

    /// The names, the latest first.
    pub fn iter(&self) -> impl Iterator<Item = &Name> {
        self.0.iter().rev().map(|(_, name)| name)
    }
}
