//! Checks the records of nodes in a registry, from all of them at one moment.

use std::collections::BTreeSet;

use forebay_registry::Entry;
use serde::de::DeserializeOwned;

use crate::job::{Job, Released};
use crate::ledger::{Ledger, UserUse};
use crate::records::{
    Actual, Instance, Missing, NodeDrain, NodeRecord, PoolRecord, Transfer, TransferActual, keys,
    read,
};

/// Lists records that no part of forebay can use, and room that is granted to nothing, each with its
/// remedy. `entries` is all that the registry holds.
pub fn problems_of(entries: &[Entry]) -> Vec<String> {
    let instances: BTreeSet<&str> =
        entries.iter().filter_map(|entry| entry.key.strip_prefix(keys::WANTED_INSTANCES)).collect();
    let mut problems: Vec<String> = entries.iter().filter_map(damaged).collect();
    problems.extend(entries.iter().filter_map(unleased));
    problems.extend(entries.iter().flat_map(|entry| granted_to_nobody(entry, &instances)));
    problems
}

fn damaged(entry: &Entry) -> Option<String> {
    fn try_as<T: DeserializeOwned>(entry: &Entry) -> Option<String> {
        let error = serde_json::from_slice::<T>(&entry.value).err()?;
        Some(format!(
            "{}: this version cannot read it ({error}), and nodes leave it alone: update them if a newer \
             one wrote it; else it is damaged: restore it from a copy, or delete it",
            entry.key
        ))
    }
    let begins = |prefix: &str| entry.key.starts_with(prefix);
    match () {
        () if begins(keys::NODES) => try_as::<NodeRecord>(entry),
        () if begins(keys::HEARD) => try_as::<u64>(entry),
        () if begins(keys::POOLS) => try_as::<PoolRecord>(entry),
        () if begins(keys::LEDGER) => try_as::<Ledger>(entry),
        () if begins(keys::USERS) => try_as::<UserUse>(entry),
        () if begins(keys::MANIFEST) => try_as::<Vec<Missing>>(entry),
        () if begins(keys::WANTED_INSTANCES) => try_as::<Instance>(entry),
        () if begins(keys::ACTUAL_INSTANCES) => try_as::<Actual>(entry),
        () if begins(keys::WANTED_TRANSFERS) => try_as::<Transfer>(entry),
        () if begins(keys::ACTUAL_TRANSFERS) => try_as::<TransferActual>(entry),
        () if begins(keys::WANTED_NODES) => try_as::<NodeDrain>(entry),
        () if begins(keys::JOBS) => try_as::<Job>(entry),
        () if begins(keys::ACTUAL_JOBS) => try_as::<Released>(entry),
        () => None,
    }
}

/// A node counts as present as long as its record exists.
fn unleased(entry: &Entry) -> Option<String> {
    let node = entry.key.strip_prefix(keys::NODES).filter(|_| entry.lease.is_none())?;
    Some(format!(
        "{}: it hangs on no lease, so node {node} counts as there for ever, and no daemon can have its \
         name: delete it",
        entry.key
    ))
}

/// Grants go with the record of their instance, in one commit.
fn granted_to_nobody(entry: &Entry, instances: &BTreeSet<&str>) -> Vec<String> {
    let claims = if entry.key.starts_with(keys::LEDGER) {
        read::<Ledger>(&entry.key, &entry.value).map(|ledger| ledger.grants)
    } else if entry.key.starts_with(keys::USERS) {
        read::<UserUse>(&entry.key, &entry.value).map(|used| used.instances)
    } else {
        return Vec::new();
    };
    let stray = |(id, bytes): (String, u64)| {
        (!instances.contains(&*id)).then(|| {
            format!(
                "{}: {bytes} bytes are granted to instance {id}, which is not there: if nothing of it is in \
                 the pool, take it out of the record",
                entry.key
            )
        })
    };
    claims.unwrap_or_default().into_iter().filter_map(stray).collect()
}

#[cfg(test)]
mod tests {
    use forebay_registry::{LeaseId, Revision};

    use super::*;

    fn entry(key: &str, value: &str, lease: Option<u64>) -> Entry {
        let lease = lease.map(LeaseId);
        Entry { key: key.into(), value: value.into(), revision: Revision(1), lease }
    }

    const NODE: &str = r#"{"version":"1","pid":1,"boot":"b","since":1}"#;

    #[test]
    fn what_is_damaged_or_nobodys_is_told_with_its_key_and_nothing_else_is() {
        let sound = [
            entry("nodes/n1", NODE, Some(7)),
            entry("heard/n1", "1700000000", None),
            // An instance of a version that this one does not understand: it is reported, and it still
            // owns its grant.
            entry("wanted/instances/w", r#"{"id":"w","new":1}"#, None),
            entry("ledger/n1/flash", r#"{"grants":{"w":8}}"#, None),
            entry("users/1", r#"{"instances":{"w":8}}"#, None),
            entry("stores/s", "whatever", None),
        ];
        let told = problems_of(&sound);
        assert!(told.len() == 1 && told[0].contains("update them if a newer one"), "{told:?}");
        for (damaged, words) in [
            (entry("nodes/n2", NODE, None), "nodes/n2: it hangs on no lease"),
            (entry("heard/n1", "soon", None), "heard/n1: this version cannot read it"),
            (entry("pools/n1/flash", "\u{1}", None), "pools/n1/flash: this version cannot read it"),
            (entry("wanted/transfers/t1", "{}", None), "missing field"),
            (entry("manifest/n1/w/t1", "[{}]", None), "restore it from a copy, or delete it"),
            (
                entry("ledger/n2/flash", r#"{"grants":{"x":9}}"#, None),
                "9 bytes are granted to instance x",
            ),
            (
                entry("users/2", r#"{"instances":{"y":9}}"#, None),
                "users/2: 9 bytes are granted to instance y",
            ),
        ] {
            let mut all = sound[3..].to_vec();
            all.extend(sound[2..3].to_vec());
            all.push(damaged);
            let told = problems_of(&all);
            assert!(told.iter().any(|problem| problem.contains(words)), "{words}: {told:?}");
            assert_eq!(told.len(), 2, "{told:?}");
        }
    }
}
