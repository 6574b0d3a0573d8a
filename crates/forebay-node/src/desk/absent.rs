//! What is on nodes whose daemon is not there: nobody says whether it is home.

use std::collections::{BTreeMap, BTreeSet};

use forebay_base::Result;
use serde_json::Value;

use super::Desk;
use crate::records::{
    Actual, Direction, Instance, Missing, Mode, Transfer, TransferActual, TransferWant, Want, keys,
};

/// A line that only the records of a node that is not there make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub node: String,
    pub instance: String,
    pub missing: Missing,
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

    /// When its daemon was heard of last, as far as it has told.
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

    /// Stage-outs that are still to be done on absent nodes, and instances there that leave or may hold
    /// dirty bytes. What has lines of its own in the manifest is not in it.
    pub fn held_by(&self, absent: &Absent, lines: &[(String, String)]) -> Result<Vec<Held>> {
        let transfers = self.transfers()?;
        let actual = self.book.list_some::<Actual>(keys::ACTUAL_INSTANCES)?.read;
        let actual: BTreeMap<String, Actual> = actual.into_iter().collect();
        let mut held = Vec::new();
        for instance in self.instances()? {
            for node in instance.nodes.iter().filter(|node| absent.is(node)) {
                // Where nothing is left of it, nothing is told.
                let Some(there) = actual.get(&format!("{}/{node}", instance.id)) else { continue };
                let since = absent.heard(node).unwrap_or(there.since);
                let mut found = outs(&instance, node, since, &transfers);
                let told = lines.iter().any(|(n, i)| n == node && *i == instance.id);
                if found.is_empty() && !told {
                    found.extend(itself(&instance, since));
                }
                let line =
                    |missing| Held { node: node.clone(), instance: instance.id.clone(), missing };
                held.extend(found.into_iter().map(line));
            }
        }
        Ok(held)
    }
}

/// Of a cache, what is dirty goes home with or without a transfer.
fn outs(
    instance: &Instance,
    node: &str,
    since: u64,
    transfers: &[(Transfer, Option<TransferActual>)],
) -> Vec<Missing> {
    let open = |(transfer, actual): &&(Transfer, Option<TransferActual>)| {
        let current = actual.as_ref().filter(|actual| actual.attempt == transfer.attempt);
        transfer.direction == Direction::Out
            && transfer.node == node
            && transfer.want == TransferWant::Done
            && transfer.belongs_to(instance)
            && !current.is_some_and(|actual| actual.state.has_ended())
    };
    let line = |(transfer, actual): &(Transfer, Option<TransferActual>)| Missing {
        file: transfer.source.display().to_string(),
        bytes: actual.as_ref().map_or(0, |told| told.bytes_total.saturating_sub(told.bytes)),
        why: "it is still to be staged out".into(),
        owner: transfer.owner,
        transfer: Some(transfer.id.clone()),
        since,
        expires: None,
    };
    match instance.mode {
        Mode::Private => transfers.iter().filter(open).map(line).collect(),
        Mode::Cache | Mode::Swap => Vec::new(),
    }
}

fn itself(instance: &Instance, since: u64) -> Option<Missing> {
    let leaves = instance.want != Want::Here;
    let why = match instance.mode {
        Mode::Swap => return None,
        Mode::Cache => "what is dirty in it is not known",
        Mode::Private if leaves => "it is leaving, and whether anything is left is not known",
        Mode::Private => return None,
    };
    Some(Missing {
        file: format!("what {} {} holds", instance.mode.name(), instance.id),
        bytes: 0,
        why: why.into(),
        owner: instance.owner,
        transfer: None,
        since,
        expires: None,
    })
}
