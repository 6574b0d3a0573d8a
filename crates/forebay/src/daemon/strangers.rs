//! Other mounts of the same directory on this machine. Each takes the other's writes for changes by a
//! stranger (S8), so the user who mounts is told of them.

use std::path::Path;

use forebay_engine::{Tier, TierOwner};

use super::Places;
use crate::mounts::Mounts;

/// A note for each other mount whose backing store is this mount's, holds it, or is in it. Only tiers of
/// this user are read: other users' cannot make the daemon wait, or pretend to be such a mount.
pub fn notes(places: &Places) -> Vec<String> {
    let (Ok(mounts), Ok(ours)) = (Mounts::read(), Tier::owner(&places.tier)) else {
        return Vec::new();
    };
    let others = mounts.ours().filter(|(_, tier)| *tier != places.tier);
    let found = others.filter_map(|(at, tier)| {
        let theirs = Tier::owner(tier).ok()?;
        relation(&ours, &theirs).map(|relation| note(relation, &theirs.path, at))
    });
    found.collect()
}

fn relation(ours: &TierOwner, theirs: &TierOwner) -> Option<&'static str> {
    if ours.identity == theirs.identity {
        return Some("is mounted");
    }
    match (ours.path.starts_with(&theirs.path), theirs.path.starts_with(&ours.path)) {
        (true, _) => Some("holds this one and is mounted"),
        (_, true) => Some("is a part of this one and is mounted"),
        _ => None,
    }
}

fn note(relation: &str, backing: &Path, at: &Path) -> String {
    format!(
        "{} {relation} at {} with a tier of its own, and the two are strangers to each other: write to \
         a file in one of them alone, or it becomes a conflict",
        backing.display(),
        at.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_that_are_one_or_overlap_are_related_and_no_others() {
        let store =
            |path: &str, identity: &str| TierOwner { path: path.into(), identity: identity.into() };
        let ours = store("/slow/a", "1");
        for (theirs, expected) in [
            (store("/elsewhere", "1"), Some("is mounted")),
            (store("/slow", "2"), Some("holds this one and is mounted")),
            (store("/slow/a/b", "3"), Some("is a part of this one and is mounted")),
            (store("/slow/ab", "4"), None),
        ] {
            assert_eq!(relation(&ours, &theirs), expected, "{theirs:?}");
        }
    }
}
