//! Turns the plan of a job into instances and transfers, ordered at the desk. Their ids are made from
//! the job's: ordering again orders nothing new.

use std::collections::BTreeMap;
use std::path::Path;

use forebay_base::{Error, Kind, Result};
use forebay_job::plan::{self, Create, Nodes, Of, Space, Staging};

use super::record::Job;
use crate::clock::now;
use crate::desk::{Asker, Desk, NewInstance, NewTransfer, OfJob};
use crate::records::{
    Backing, Direction, Instance, Life, Mode, Owner, PoolRecord, SpaceWish, Transfer,
    TransferActual, TransferOptions, What, When, keys,
};
use crate::{Book, ledger::Ledger};

/// The checks that only the daemon can make, with the rights of a job's owner.
pub trait Eyes {
    /// Whether files can be staged from a path on this machine.
    fn source(&self, owner: Owner, path: &Path) -> std::io::Result<()>;
    /// The backing store of a cache, as its owner reaches it.
    fn backing(
        &self,
        owner: Owner,
        path: &Path,
        settings: &BTreeMap<String, String>,
    ) -> Result<Backing>;
}

/// Orders for the jobs of one cluster.
pub(super) struct Orders<'a> {
    pub book: &'a Book,
    pub desk: &'a Desk,
    pub eyes: &'a dyn Eyes,
}

/// A transfer of the plan on one node.
pub(super) struct Leg<'j> {
    pub id: String,
    pub staging: &'j Staging,
    pub instance: String,
    pub node: String,
}

fn usage(why: String) -> Error {
    Error::new(Kind::Usage, why)
}

impl Orders<'_> {
    /// Orders an instance of a job on the job's nodes.
    pub fn instance(&self, job: &Job, space: &Space) -> Result<Instance> {
        self.desk.create(&NewInstance {
            name: Some(space.name.clone()),
            mode: space.mode,
            owner: job.owner,
            job: Some(job.key.clone()),
            expires: None,
            nodes: job.nodes.clone(),
            pool: space.pool.clone(),
            bytes: space.bytes_on(job.nodes.len()),
            mountpoint: None,
            backing: self.backing(job.owner, space.backing.as_deref(), &space.settings)?,
            space: (space.mode == Mode::Private)
                .then(|| SpaceWish { fs: space.fs.clone(), ..SpaceWish::default() }),
        })
    }

    /// Orders a named instance, on the node with most room if the plan names none.
    pub fn persistent(&self, owner: Owner, create: &Create) -> Result<Instance> {
        let there: Option<Instance> = self.book.read(&keys::wanted_instance(&create.name))?;
        let nodes = match there {
            Some(there) if create.nodes.is_empty() => there.nodes,
            _ if create.nodes.is_empty() => vec![self.roomiest(create)?],
            _ => create.nodes.clone(),
        };
        self.desk.create(&NewInstance {
            name: Some(create.name.clone()),
            mode: create.mode,
            owner,
            job: None,
            expires: create.expires_after.map(|after| now().saturating_add(after)),
            nodes,
            pool: create.pool.clone(),
            bytes: create.bytes,
            mountpoint: None,
            backing: self.backing(owner, create.backing.as_deref(), &BTreeMap::new())?,
            space: (create.mode == Mode::Private).then(SpaceWish::default),
        })
    }

    /// The backing store of a cache. Each node checks that it sees the same file system there.
    fn backing(
        &self,
        owner: Owner,
        path: Option<&Path>,
        settings: &BTreeMap<String, String>,
    ) -> Result<Option<Backing>> {
        path.map(|path| self.eyes.backing(owner, path, settings)).transpose()
    }

    fn roomiest(&self, create: &Create) -> Result<String> {
        let pools: Vec<(String, PoolRecord)> = self.book.list(keys::POOLS)?;
        let mut best: Option<(u64, String)> = None;
        for (key, record) in pools {
            let Some((node, name)) = key.split_once('/') else { continue };
            let other = create.pool.as_ref().is_some_and(|asked| asked != name);
            if other || !self.takes_new(node)? {
                continue;
            }
            let ledger: Ledger = self.book.read(&keys::ledger(node, name))?.unwrap_or_default();
            let free = ledger.free(record.capacity);
            if best.as_ref().is_none_or(|(most, _)| free > *most) {
                best = Some((free, node.into()));
            }
        }
        let pool = create.pool.as_deref().map_or(String::new(), |pool| format!(" {pool}"));
        let (_, node) = best.ok_or_else(|| {
            Error::new(
                Kind::Unavailable,
                format!("no node that takes new instances has a pool{pool}"),
            )
        })?;
        Ok(node)
    }

    fn takes_new(&self, node: &str) -> Result<bool> {
        let there: Option<crate::records::NodeRecord> = self.book.read(&keys::node(node))?;
        let drained: Option<crate::records::NodeDrain> = self.book.read(&keys::node_drain(node))?;
        Ok(there.is_some() && drained.is_none())
    }

    /// The transfers of one staging of the plan, one for each node that carries it; none if its
    /// instance is gone.
    pub fn legs<'j>(
        &self,
        job: &'j Job,
        staging: &'j Staging,
        number: usize,
    ) -> Result<Vec<Leg<'j>>> {
        let (instance, mut nodes) = match &staging.of {
            Of::Job(name) => (format!("{}-{name}", job.key.name()), job.nodes.clone()),
            Of::Persistent(name) => {
                let there: Option<Instance> = self.book.read(&keys::wanted_instance(name))?;
                (name.clone(), there.map_or(Vec::new(), |there| there.nodes))
            }
        };
        // Files are staged out where the job ran, its first node first.
        if let (Of::Persistent(_), Direction::Out) = (&staging.of, staging.direction) {
            let there = std::mem::replace(&mut nodes, job.nodes.clone());
            nodes.retain(|node| there.contains(node));
        }
        if staging.nodes == Nodes::First {
            nodes.truncate(1);
        }
        let leg = |(at, node): (usize, String)| Leg {
            id: format!("{}-t{number}-n{at}", job.key.name()),
            staging,
            instance: instance.clone(),
            node,
        };
        Ok(nodes.into_iter().enumerate().map(leg).collect())
    }

    /// Orders a transfer with the rights of the job's owner.
    pub fn transfer(&self, job: &Job, leg: &Leg<'_>, when: When) -> Result<Transfer> {
        let staging = leg.staging;
        let root = self.desk.instance(&leg.instance)?.mountpoint.ok_or_else(|| {
            usage(format!("line {}: {} is swap and holds no files", staging.line, leg.instance))
        })?;
        let inside = match staging.inside.as_os_str().is_empty() {
            true => root,
            false => root.join(&staging.inside),
        };
        let outside = plan::at_node(&staging.outside, &leg.node);
        let (source, destination) = match staging.direction {
            Direction::In => (outside, inside),
            Direction::Out => (inside, outside),
        };
        let asked = NewTransfer {
            of_job: Some(OfJob { job: job.key.clone(), id: leg.id.clone() }),
            instance: leg.instance.clone(),
            node: Some(leg.node.clone()),
            direction: staging.direction,
            what: what(staging.what),
            source,
            destination,
            when,
            options: TransferOptions {
                checksum: staging.checksum,
                last: staging.last.clone(),
                ..TransferOptions::default()
            },
        };
        let Owner { uid, gid } = job.owner;
        self.desk
            .transfer(&asked, Asker { uid, gid })
            .map_err(|e| e.context(format!("line {}", staging.line)))
    }

    /// A transfer and its state, if it was ordered.
    pub fn found(&self, leg: &Leg<'_>) -> Result<Option<(Transfer, Option<TransferActual>)>> {
        let wanted: Option<Transfer> = self.book.read(&keys::wanted_transfer(&leg.id))?;
        // A job of another cluster may have the same number.
        let ours = wanted.filter(|wanted| wanted.is_of(&leg.instance, Some(&leg.node)));
        let Some(wanted) = ours else { return Ok(None) };
        Ok(Some((wanted, self.book.read(&keys::actual_transfer(&leg.id))?)))
    }

    /// The instances that exist for a job, whether its plan names them or not.
    pub fn instances_of(&self, job: &Job) -> Result<Vec<Instance>> {
        let mut all = self.desk.instances()?;
        all.retain(|instance| matches!(&instance.life, Life::Job(key) if *key == job.key));
        Ok(all)
    }
}

fn what(what: Option<plan::What>) -> What {
    match what {
        Some(plan::What::File) => What::File,
        Some(plan::What::Directory) => What::Directory,
        Some(plan::What::List) => What::List,
        None => What::Any,
    }
}
