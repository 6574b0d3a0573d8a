//! The operator's view of a store's members.

use std::collections::BTreeMap;

use forebay_base::Result;
use forebay_registry::Health;
use serde::{Deserialize, Serialize};

use super::Member;
use super::join::parse;
use crate::keys;

/// All members of a store, as the registry has them now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overview {
    pub store: String,
    pub registry: String,
    /// The member that was asked.
    pub member: String,
    pub revision: u64,
    /// The revision of the newest key of the store: a member that has heard of less lags.
    #[serde(default)]
    pub newest: u64,
    /// The registry's storage in bytes, and the limit at which it takes no more.
    pub registry_bytes: u64,
    pub registry_quota: Option<u64>,
    /// The member that renames a directory just now: meanwhile nothing is claimed.
    pub gate: Option<String>,
    pub members: Vec<Seen>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    pub name: String,
    pub address: String,
    pub epoch: u64,
    /// The member's process renews its lease.
    pub alive: bool,
    /// Files of which the member may hold newer bytes than the backing store.
    pub claims: u64,
    /// Directories in which the member makes files.
    pub creates: u64,
    /// 1 while the member opens unclaimed files without asking the registry.
    #[serde(default)]
    pub grants: u64,
    /// How many other members are to have the member's acknowledged bytes.
    pub copies: u8,
    /// The members that have these bytes.
    pub in_sync: Vec<String>,
    /// The member that has taken this member's place, or is about to.
    pub taken: Option<keys::Taken>,
}

impl Seen {
    /// Whether the member is away and holds nothing: it has left, and no other waits for it.
    pub fn has_left(&self) -> bool {
        !self.alive && self.claims + self.creates == 0
    }
}

impl Member {
    /// The revision up to which this member has followed the registry: never waits.
    pub fn followed(&self) -> u64 {
        self.reached.0.lock().0
    }

    /// How many files the member has claimed, and how many read grants it has: never waits.
    pub fn counts(&self) -> (usize, usize) {
        let core = self.core.lock();
        (core.held().len(), core.grants())
    }

    /// # Errors
    ///
    /// If the registry does not answer.
    pub fn registry_health(&self) -> Result<Health> {
        self.registry.health()
    }

    /// # Errors
    ///
    /// If the registry does not answer.
    pub fn overview(&self) -> Result<Overview> {
        let prefix = format!("stores/{}/", self.store);
        let health = self.registry.health()?;
        let (entries, revision) = self.registry.range(&prefix)?;
        let mut members: BTreeMap<String, Seen> = BTreeMap::new();
        let mut gate = None;
        for entry in &entries {
            let rest = entry.key.strip_prefix(&prefix).unwrap_or_default();
            if let Some(name) = rest.strip_prefix("members/")
                && let Some(found) = parse::<keys::Member>(entry)
            {
                let keys::Member { address, epoch, copies, taken, .. } = found;
                let (name, in_sync) = (name.to_string(), Vec::new());
                let (alive, claims, creates, grants) = (false, 0, 0, 0);
                let key = name.clone();
                let seen = Seen {
                    name,
                    address,
                    epoch,
                    alive,
                    claims,
                    creates,
                    grants,
                    copies,
                    in_sync,
                    taken,
                };
                members.insert(key, seen);
            } else if rest == "gate" {
                gate = parse::<keys::Gate>(entry).map(|gate| gate.by);
            }
        }
        for entry in &entries {
            let rest = entry.key.strip_prefix(&prefix).unwrap_or_default();
            let (kind, rest) = rest.split_once('/').unwrap_or_default();
            let claimed = || parse::<keys::Claim>(entry).map(|claim| claim.member);
            match kind {
                "partners" => {
                    let partners = parse::<keys::Partners>(entry).map(|found| found.in_sync);
                    _ = members.get_mut(rest).map(|seen| {
                        seen.in_sync = partners.unwrap_or_default();
                    });
                }
                "alive" => _ = members.get_mut(rest).map(|seen| seen.alive = true),
                "claims" => {
                    let seen = claimed().and_then(|member| members.get_mut(&member));
                    _ = seen.map(|seen| seen.claims += 1);
                }
                "creates" | "grants" => {
                    let member = rest.rsplit_once('/').map_or(rest, |(_, member)| member);
                    _ = members.get_mut(member).map(|seen| match kind {
                        "creates" => seen.creates += 1,
                        _ => seen.grants += 1,
                    });
                }
                _ => {}
            }
        }
        Ok(Overview {
            store: self.store.clone(),
            registry: self.registry.address().into(),
            member: self.name.clone(),
            revision: revision.0,
            newest: entries.iter().map(|entry| entry.revision.0).max().unwrap_or_default(),
            registry_bytes: health.bytes,
            registry_quota: health.quota,
            gate,
            members: members.into_values().collect(),
        })
    }
}
