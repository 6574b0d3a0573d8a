//! Members that this one takes over when they are dead; and what it has taken, until nobody else can write
//! to it any more.

use forebay_backing::FileKey;
use forebay_registry::{Commit, Entry};

use super::{Core, Standing};
use crate::keys;

/// The commit by which a process begins to be a member, and its epoch. `prefix` is that of the store's keys;
/// `before` and `partners` are the member's keys as found. What a take-over has not claimed yet is the member's
/// again; who is in sync stays so, unless there was one.
pub fn entering(
    prefix: &str,
    mut me: keys::Member,
    before: Option<&Entry>,
    partners: Option<&Entry>,
) -> (Commit, u64) {
    let known = before.and_then(|entry| serde_json::from_slice::<keys::Member>(&entry.value).ok());
    me.epoch = known.as_ref().map_or(1, |known| known.epoch + 1);
    me.taken = None;
    let (key, epoch) = (format!("{prefix}members/{}", me.node), me.epoch);
    let mut commit = Commit::new().if_as_found(&key, before).put(&key, super::json(&me));
    let found = partners.and_then(|entry| {
        Some((entry, serde_json::from_slice::<keys::Partners>(&entry.value).ok()?))
    });
    if let (Some((entry, mut partners)), Some(known)) = (found, known)
        && known.taken.is_none()
        && partners.epoch == known.epoch
    {
        partners.epoch = epoch;
        commit = commit.if_unchanged(entry).put(&entry.key, super::json(&partners));
    }
    (commit, epoch)
}

impl Core {
    /// Whether a copy, sent by a process of `home` under its epoch in a fill, is taken.
    pub fn accepts_copies_of(&self, _home: &str, _epoch: u64, _fill: u64) -> bool {
        false
    }

    /// A fill begins. `true`: drop all copies of `home`, then say that they are dropped.
    pub fn fill_begins(&mut self, _home: &str, _epoch: u64, _fill: u64) -> bool {
        false
    }

    /// Whether copies of `home` that are found at a start may still be needed.
    pub fn keeps_for(&self, _home: &str) -> bool {
        false
    }

    /// What a file that is found at a start is to this member; `dir` as in [`Input::Created`](super::Input).
    pub fn standing(&self, _file: FileKey, _dir: FileKey) -> Standing {
        Standing::Own
    }
}
