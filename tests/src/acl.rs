//! Access control lists as the kernel takes them in an extended attribute.

use crate::rng::Rng;

pub const ACCESS: &str = "system.posix_acl_access";
pub const DEFAULT: &str = "system.posix_acl_default";

/// An entry: its user or group, and the rights (4 reads, 2 writes, 1 executes).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Entry {
    Owner(u16),
    User(u32, u16),
    Group(u16),
    Named(u32, u16),
    Mask(u16),
    Other(u16),
}

pub fn encode(entries: &[Entry]) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let mut entries = entries.to_vec();
    entries.sort_unstable();
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for entry in entries {
        let (tag, may, id) = match entry {
            Entry::Owner(may) => (1u16, may, NOBODY),
            Entry::User(id, may) => (2, may, id),
            Entry::Group(may) => (4, may, NOBODY),
            Entry::Named(id, may) => (8, may, id),
            Entry::Mask(may) => (16, may, NOBODY),
            Entry::Other(may) => (32, may, NOBODY),
        };
        bytes.extend(tag.to_le_bytes());
        bytes.extend(may.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// A list that names some of these users and groups.
pub fn random(rng: &mut Rng, users: &[u32], groups: &[u32]) -> Vec<Entry> {
    let may = |rng: &mut Rng| rng.below(8).max(rng.below(8)) as u16;
    let mut list = vec![Entry::Owner(may(rng)), Entry::Group(may(rng)), Entry::Other(may(rng))];
    for id in users {
        list.extend(rng.one_in(2).then(|| Entry::User(*id, may(rng))));
    }
    for id in groups {
        list.extend(rng.one_in(2).then(|| Entry::Named(*id, may(rng))));
    }
    if list.len() > 3 {
        list.push(Entry::Mask(may(rng)));
    }
    list
}
