//! Bytes that are not home by the records alone: stage-outs that are ordered and not done, and instances on
//! nodes that have no daemon, or are not the node that is asked.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Desk;
use crate::records::{
    Actual, Direction, Instance, Missing, Mode, Transfer, TransferActual, TransferWant, Want, keys,
};

/// How it is known that bytes are not home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Known {
    /// The node has reported them when a transfer or a cache ended without bringing them home.
    Left,
    /// A stage-out is ordered, or under way.
    Ordered,
    /// The cache was asked and has reported them.
    Dirty,
    /// No daemon could be asked.
    Unknown,
}

/// A line that no node has written into the manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub node: String,
    pub instance: String,
    pub known: Known,
    pub missing: Missing,
}

/// A line that a node has written: the part of it that decides whether another line says the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub node: String,
    pub instance: String,
    pub transfer: Option<String>,
}

/// Nodes that have instances or lines of the manifest, and no daemon.
#[derive(Debug, Default)]
pub struct Absent {
    there: BTreeSet<String>,
    heard: BTreeMap<String, u64>,
}

impl Absent {
    pub fn is(&self, node: &str) -> bool {
        !self.there.contains(node)
    }

    /// When the node's daemon was last heard of, as far as it has reported.
    pub fn heard(&self, node: &str) -> Option<u64> {
        self.heard.get(node).copied()
    }
}

impl Desk {
    pub fn absent(&self) -> Result<Absent> {
        let nodes = self.book.list_some::<Value>(keys::NODES)?;
        let heard = self.book.list_some::<u64>(keys::HEARD)?.read;
        let there = nodes.read.into_iter().map(|(node, _)| node).collect();
        Ok(Absent { there, heard: heard.into_iter().collect() })
    }

    /// Stage-outs that are still to be done, and instances that leave or may hold dirty bytes on nodes that
    /// cannot be asked here. Those with lines of their own in the manifest are left out; caches of `me` are
    /// asked.
    pub fn held_by(&self, me: &str, absent: &Absent, lines: &[Told]) -> Result<Vec<Held>> {
        let transfers = self.transfers()?;
        let actual = self.book.list_some::<Actual>(keys::ACTUAL_INSTANCES)?.read;
        let actual: BTreeMap<String, Actual> = actual.into_iter().collect();
        let mut held = Vec::new();
        for instance in self.instances()? {
            for node in &instance.nodes {
                let there = actual.get(&format!("{}/{node}", instance.id));
                // Where nothing is left of the instance, there is nothing to report.
                if there.is_none() && absent.is(node) {
                    continue;
                }
                let since = absent.is(node).then(|| absent.heard(node)).flatten();
                let told: Vec<&Told> =
                    lines.iter().filter(|l| l.node == *node && l.instance == instance.id).collect();
                let mut found = outs(&instance, node, since, &transfers);
                found.retain(|(_, line)| told.iter().all(|told| told.transfer != line.transfer));
                if let (true, true, Some(there)) = (found.is_empty(), told.is_empty(), there) {
                    let since = since.unwrap_or(there.since);
                    found.extend(match absent.is(node) {
                        true => itself(&instance, since),
                        false if node == me => None,
                        false => elsewhere(&instance, node, since),
                    });
                }
                let line = |(known, missing)| {
                    let (node, instance) = (node.clone(), instance.id.clone());
                    Held { node, instance, known, missing }
                };
                held.extend(found.into_iter().map(line));
            }
        }
        Ok(held)
    }
}

/// For a cache, dirty bytes are flushed with or without a transfer.
fn outs(
    instance: &Instance,
    node: &str,
    since: Option<u64>,
    transfers: &[(Transfer, Option<TransferActual>)],
) -> Vec<(Known, Missing)> {
    let open = |(transfer, actual): &&(Transfer, Option<TransferActual>)| {
        let current = actual.as_ref().filter(|actual| actual.attempt == transfer.attempt);
        transfer.direction == Direction::Out
            && transfer.node == node
            && transfer.want == TransferWant::Done
            && transfer.belongs_to(instance)
            && !current.is_some_and(|actual| actual.state.has_ended())
    };
    let line = |(transfer, actual): &(Transfer, Option<TransferActual>)| {
        let counted = actual.as_ref().filter(|told| told.bytes_total > 0);
        let why = match counted {
            Some(_) => "it is still to be staged out",
            None => "it is still to be staged out, and not counted yet",
        };
        let missing = Missing {
            file: transfer.source.display().to_string(),
            bytes: counted.map_or(0, |told| told.bytes_total.saturating_sub(told.bytes)),
            why: why.into(),
            owner: transfer.owner,
            transfer: Some(transfer.id.clone()),
            since: since.unwrap_or(transfer.created),
            expires: None,
        };
        (Known::Ordered, missing)
    };
    match instance.mode {
        Mode::Private => transfers.iter().filter(open).map(line).collect(),
        Mode::Cache | Mode::Swap => Vec::new(),
    }
}

fn itself(instance: &Instance, since: u64) -> Option<(Known, Missing)> {
    let leaves = instance.want != Want::Here;
    let why = match instance.mode {
        Mode::Swap => return None,
        Mode::Cache => "what is dirty in it is not known",
        Mode::Private if leaves => "it is leaving, and whether anything is left is not known",
        Mode::Private => return None,
    };
    Some(unknown(instance, why, since))
}

/// A cache on a present node that is not the node that is asked.
fn elsewhere(instance: &Instance, node: &str, since: u64) -> Option<(Known, Missing)> {
    let id = &instance.id;
    let why = format!(
        "what is dirty in it only node {node} says: run `forebay manifest --here --instance {id}` on {node}"
    );
    (instance.mode == Mode::Cache).then(|| unknown(instance, &why, since))
}

/// The line of an instance whose contents are unknown.
pub(crate) fn unknown(instance: &Instance, why: &str, since: u64) -> (Known, Missing) {
    let missing = Missing {
        file: format!("what {} {} holds", instance.mode.name(), instance.id),
        bytes: 0,
        why: why.into(),
        owner: instance.owner,
        transfer: None,
        since,
        expires: None,
    };
    (Known::Unknown, missing)
}
