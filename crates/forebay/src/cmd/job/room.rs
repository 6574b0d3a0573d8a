//! How much room the nodes' pools would grant for a job's instances, if a node daemon answers.

use forebay_base::Result;
use forebay_job::plan::Space;
use forebay_node::desk::{NewInstance, would_grant};
use forebay_node::job::choose_pool;
use forebay_node::records::{Instance, Owner, SpaceWish};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::node::client::NodeClient;
use crate::node::wire::{InstanceView, PoolView, TransferView};
use crate::units::human_size;

/// The directory of instances' mount points, if no node daemon names another.
const MOUNT_ROOT: &str = "/run/forebay/mnt";

/// The node daemon's answer.
pub struct Nodes {
    pub mount_root: PathBuf,
    pub pools: Vec<PoolView>,
    /// Named instances that the caller may see.
    pub named: Vec<String>,
    /// The mount points of instances.
    pub shown: BTreeMap<String, PathBuf>,
    /// Transfers that the caller may see.
    pub transfers: Vec<TransferView>,
    /// Why there was no answer.
    pub silent: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Granted {
    pub pool: String,
    /// The room on each node.
    pub bytes: u64,
    /// The number of nodes that have this room free now.
    pub free_on: usize,
    /// The number of nodes that are large enough for this room.
    pub could_on: usize,
}

fn place_of(instance: Instance) -> Option<(String, PathBuf)> {
    instance.mountpoint.map(|at| (instance.id, at))
}

impl Nodes {
    pub fn ask(client: &NodeClient) -> Nodes {
        let silent = |error: &forebay_base::Error| Nodes {
            mount_root: MOUNT_ROOT.into(),
            pools: Vec::new(),
            named: Vec::new(),
            shown: BTreeMap::new(),
            transfers: Vec::new(),
            silent: Some(error.to_string()),
        };
        let asked = || -> Result<Nodes> {
            let health: serde_json::Value = client.get("/v1/node")?;
            let instances: Vec<InstanceView> = client.get("/v1/instances")?;
            Ok(Nodes {
                mount_root: health["mount_root"].as_str().unwrap_or(MOUNT_ROOT).into(),
                pools: client.get("/v1/pools")?,
                named: instances.iter().map(|view| view.wanted.id.clone()).collect(),
                shown: instances.into_iter().filter_map(|view| place_of(view.wanted)).collect(),
                transfers: client.get("/v1/transfers")?,
                silent: None,
            })
        };
        asked().unwrap_or_else(|error| silent(&error))
    }

    /// The room that a pool grants for an instance. An error says why no node could have the instance.
    pub fn granted(&self, space: &Space, nodes: u32) -> std::result::Result<Granted, String> {
        let names = self.pools.iter().map(|view| view.name.as_str());
        let pool = choose_pool(names, space.pool.as_deref())?;
        let asked = asked(space);
        let (mut bytes, mut free_on, mut could_on, mut why) = (0, 0, 0, None);
        for view in self.pools.iter().filter(|view| view.name == pool) {
            match would_grant(&space.name, &asked, &view.node, &pool, &view.record) {
                Ok(grant) if grant > view.record.capacity => {
                    let has = human_size(view.record.capacity);
                    let text = format!(
                        "{} are wanted and pool {pool} has {has} in all",
                        human_size(grant)
                    );
                    why = Some(text);
                }
                Ok(grant) => {
                    bytes = bytes.max(grant);
                    could_on += 1;
                    free_on += usize::from(grant <= view.free);
                }
                Err(error) => why = Some(error.to_string()),
            }
        }
        match why {
            Some(why) if could_on < nodes as usize => Err(why),
            None if could_on < nodes as usize => {
                Err(format!("the job has {nodes} nodes, and {could_on} have a pool {pool}"))
            }
            _ => Ok(Granted { pool, bytes, free_on, could_on }),
        }
    }
}

fn asked(space: &Space) -> NewInstance {
    let wish = space.fs.clone().map(|fs| SpaceWish { fs: Some(fs), ..SpaceWish::default() });
    NewInstance {
        name: Some(space.name.clone()),
        mode: space.mode,
        owner: Owner { uid: 0, gid: 0 },
        job: None,
        expires: None,
        nodes: Vec::new(),
        pool: space.pool.clone(),
        bytes: space.bytes,
        mountpoint: None,
        backing: None,
        space: wish,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_node::records::PoolRecord;

    fn pool(node: &str, name: &str, capacity: u64, free: u64) -> PoolView {
        let record = PoolRecord {
            capacity,
            grain: 1 << 30,
            means: vec!["tmpfs".into()],
            systems: Vec::new(),
            lacks: Vec::new(),
            swap: false,
            leftover_bytes: 0,
            fault: None,
        };
        PoolView { node: node.into(), name: name.into(), record, granted: capacity - free, free }
    }

    fn nodes(pools: Vec<PoolView>) -> Nodes {
        Nodes {
            mount_root: "/m".into(),
            pools,
            named: Vec::new(),
            shown: BTreeMap::new(),
            transfers: Vec::new(),
            silent: None,
        }
    }

    fn space(line: &str) -> Space {
        let job = forebay_job::Job { nodes: Some(1), ..Default::default() };
        forebay_job::read(line, &job).plan.instances.remove(0)
    }

    #[test]
    fn sizes_are_rounded_to_the_pools_grain() {
        let there =
            nodes(vec![pool("n1", "p", 8 << 30, 8 << 30), pool("n2", "p", 8 << 30, 1 << 30)]);
        let granted = there.granted(&space("#FB private capacity=1500MiB"), 1).unwrap();
        assert_eq!((granted.bytes, granted.free_on, granted.could_on), (2 << 30, 1, 2));
    }

    #[test]
    fn what_no_node_could_have_is_told() {
        let there =
            nodes(vec![pool("n1", "p", 8 << 30, 8 << 30), pool("n2", "q", 8 << 30, 1 << 30)]);
        for (line, nodes, why) in [
            ("#FB private capacity=1GiB", 1, "several pools are there: write pool=p|q"),
            ("#FB private capacity=1GiB pool=r", 1, "no pool r: write pool=p|q"),
            ("#FB private capacity=9GiB pool=p", 1, "8.0 GiB in all"),
            ("#FB private capacity=1GiB pool=p", 2, "the job has 2 nodes, and 1 have a pool p"),
            ("#FB swap 1GiB pool=p", 1, "offers no swap"),
        ] {
            let error = there.granted(&space(line), nodes).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
    }
}
