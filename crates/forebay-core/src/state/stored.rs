//! The state of a file as index and log hold it: docs/FORMAT.md.

use std::borrow::Cow;

use forebay_backing::{Timestamp, Version};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Bytes, Conflict, FileState, MaybeSize, Owner};
use crate::paths::Paths;
use crate::ranges::Ranges;

#[derive(Serialize, Deserialize)]
struct Stored<'a> {
    paths: Cow<'a, Paths>,
    /// What few files have, the least significant byte of each number first: the number of the claim that a held
    /// file was taken over under (8 bytes), and the mtime that the backing file is being given (seconds in 8
    /// bytes, and nanoseconds in 4). Format 2 had another meaning here, for files that are not held.
    rare: Vec<Vec<u8>>,
    owner: Owner,
    size: u64,
    mtime: Timestamp,
    base: Version,
    ranges: Cow<'a, Ranges>,
    durable_size: MaybeSize,
    dirty_since: u64,
    unseen: bool,
    meta_dirty: bool,
    flush_open: bool,
    /// Format 2 had another flag here: the takeover of such a tier clears this one.
    held: bool,
    /// The bits below. Where older formats had a flag it is the first bit.
    marks: u8,
    conflict: Conflict,
}

const PINNED: u8 = 1;
const UNSYNCED: u8 = 2;

impl Serialize for FileState {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let stored = Stored {
            paths: Cow::Borrowed(&self.paths),
            rare: rare(self.held_under(), self.setting),
            owner: self.owner,
            size: self.size,
            mtime: self.mtime,
            base: self.base,
            ranges: Cow::Borrowed(self.ranges()),
            durable_size: self.durable_size,
            dirty_since: self.dirty_since,
            unseen: self.is_unseen(),
            meta_dirty: self.meta_dirty,
            flush_open: self.flush_open,
            held: self.is_held(),
            marks: u8::from(self.pinned) * PINNED + u8::from(self.unsynced) * UNSYNCED,
            conflict: self.conflict,
        };
        stored.serialize(s)
    }
}

impl<'d> Deserialize<'d> for FileState {
    fn deserialize<D: Deserializer<'d>>(d: D) -> Result<FileState, D::Error> {
        let stored = Stored::deserialize(d)?;
        let ranges = stored.ranges.into_owned();
        let claim = stored.rare.first().and_then(|claim| claim.as_slice().try_into().ok());
        Ok(FileState {
            paths: stored.paths.into_owned(),
            owner: stored.owner,
            size: stored.size,
            mtime: stored.mtime,
            base: stored.base,
            setting: stored.rare.get(1).and_then(|bytes| timestamp(bytes)),
            bytes: match stored.unseen {
                true => Bytes::Unseen(Box::new(ranges)),
                false => Bytes::Tracked(ranges),
            },
            durable_size: stored.durable_size,
            dirty_since: stored.dirty_since,
            meta_dirty: stored.meta_dirty,
            flush_open: stored.flush_open,
            pinned: stored.marks & PINNED != 0,
            unsynced: stored.marks & UNSYNCED != 0,
            conflict: stored.conflict,
            held: stored.held.then_some(claim.map_or(0, u64::from_le_bytes)),
        })
    }
}

fn rare(claim: Option<u64>, setting: Option<Timestamp>) -> Vec<Vec<u8>> {
    let claim = claim.map_or(Vec::new(), |claim| claim.to_le_bytes().to_vec());
    let time = |at: Timestamp| [&at.sec.to_le_bytes()[..], &at.nsec.to_le_bytes()].concat();
    match (claim, setting) {
        (claim, Some(setting)) => vec![claim, time(setting)],
        (claim, None) if claim.is_empty() => Vec::new(),
        (claim, None) => vec![claim],
    }
}

fn timestamp(bytes: &[u8]) -> Option<Timestamp> {
    let (sec, nsec) = bytes.split_at_checked(8)?;
    let (sec, nsec) = (sec.try_into().ok()?, nsec.try_into().ok()?);
    Some(Timestamp { sec: i64::from_le_bytes(sec), nsec: u32::from_le_bytes(nsec) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_few_files_have_is_read_as_it_was_written() {
        let time = Timestamp { sec: -7, nsec: 999_999_999 };
        for claim in [None, Some(5)] {
            for setting in [None, Some(time)] {
                let rare = rare(claim, setting);
                let found = rare.first().and_then(|bytes| bytes.as_slice().try_into().ok());
                assert_eq!(found.map(u64::from_le_bytes), claim);
                assert_eq!(rare.get(1).and_then(|bytes| timestamp(bytes)), setting);
            }
        }
    }
}
