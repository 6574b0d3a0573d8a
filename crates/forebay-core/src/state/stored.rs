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
    /// The number of the claim that a held file was taken over under, 8 bytes, the least significant first.
    /// Format 2 had another meaning here, for files that are not held.
    claim: Vec<Vec<u8>>,
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
            claim: self.held_under().iter().map(|claim| claim.to_le_bytes().to_vec()).collect(),
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
        let claim = stored.claim.first();
        let claim =
            claim.and_then(|claim| Some(u64::from_le_bytes(claim.as_slice().try_into().ok()?)));
        Ok(FileState {
            paths: stored.paths.into_owned(),
            owner: stored.owner,
            size: stored.size,
            mtime: stored.mtime,
            base: stored.base,
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
            held: stored.held.then_some(claim.unwrap_or(0)),
        })
    }
}
