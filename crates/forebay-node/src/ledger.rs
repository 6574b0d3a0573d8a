//! The capacity ledger: the bytes that a pool has granted, by instance.
//!
//! Pure: a [`Ledger`] is read from the registry with its revision, changed here, and written back by a
//! commit that presumes that revision. Two requests that read the same ledger cannot both be granted.
//!
//! - L1: the sum of the grants never passes the capacity that the pool had when they were made.
//! - L2: an instance has at most one grant in a pool; asking again for the same is no second grant.
//! - L3: a grant ends only when nothing of the instance is left on the node.

use std::collections::BTreeMap;

use forebay_base::units::human_size;
use serde::{Deserialize, Serialize};

/// `ledger/NODE/POOL`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    /// Bytes by instance.
    pub grants: BTreeMap<String, u64>,
}

/// The reason for which a pool does not grant.
#[derive(Debug, PartialEq, Eq)]
pub struct Short {
    pub wanted: u64,
    pub free: u64,
}

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} are wanted and {} are free", human_size(self.wanted), human_size(self.free))
    }
}

impl Ledger {
    pub fn granted(&self) -> u64 {
        self.grants.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    pub fn free(&self, capacity: u64) -> u64 {
        capacity.saturating_sub(self.granted())
    }

    /// Grants `bytes` to `id` out of `capacity` (L1, L2).
    pub fn grant(&mut self, id: &str, bytes: u64, capacity: u64) -> Result<(), Short> {
        if self.grants.get(id) == Some(&bytes) {
            return Ok(());
        }
        assert!(!self.grants.contains_key(id), "L2: {id} has another grant already");
        let free = self.free(capacity);
        if bytes > free {
            return Err(Short { wanted: bytes, free });
        }
        self.grants.insert(id.into(), bytes);
        Ok(())
    }

    /// Ends the grant of `id`, which is gone (L3).
    pub fn release(&mut self, id: &str) {
        self.grants.remove(id);
    }
}

/// `bytes` in whole grains, upwards; `None` beyond what can be counted.
pub fn in_grains(bytes: u64, grain: u64) -> Option<u64> {
    bytes.max(1).div_ceil(grain).checked_mul(grain)
}

/// `users/UID`: a user's use on all nodes together, for the limits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserUse {
    /// Bytes by instance, summed over its nodes.
    pub instances: BTreeMap<String, u64>,
}

impl UserUse {
    pub fn bytes(&self) -> u64 {
        self.instances.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_granted_never_passes_the_capacity() {
        let mut ledger = Ledger::default();
        ledger.grant("a", 6, 10).unwrap();
        assert_eq!(ledger.grant("b", 5, 10), Err(Short { wanted: 5, free: 4 }));
        ledger.grant("b", 4, 10).unwrap();
        ledger.grant("a", 6, 10).unwrap();
        assert_eq!((ledger.granted(), ledger.free(10), ledger.free(3)), (10, 0, 0));
        ledger.release("a");
        assert_eq!(ledger.free(10), 6);
        assert_eq!(ledger.grant("c", u64::MAX, 10), Err(Short { wanted: u64::MAX, free: 6 }));
    }

    #[test]
    #[should_panic(expected = "L2")]
    fn an_instance_has_one_grant_in_a_pool() {
        let mut ledger = Ledger::default();
        ledger.grant("a", 6, 100).unwrap();
        let _ = ledger.grant("a", 7, 100);
    }

    #[test]
    fn grains_are_whole_and_at_least_one() {
        assert_eq!(
            [in_grains(0, 4), in_grains(4, 4), in_grains(5, 4)],
            [Some(4), Some(4), Some(8)]
        );
        assert_eq!(in_grains(u64::MAX, 4), None);
    }
}
