//! The requests of the node daemon's door, their answers, and which users get them.
//!
//! - D1: the kernel says which user asks; only root and the owner may see or change an owner's things.
//! - D2: a path is looked at with the rights of the user who asks, or of the instance's owner.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_base::{Error, Kind, Result};
use forebay_node::desk::{self, Asker};
use forebay_node::ledger::Ledger;
use forebay_node::now;
use forebay_node::records::{
    Actual, Backing, Direction, Instance, Mode, NodeDrain, NodeRecord, Owner, PoolRecord,
    SpaceWish, Transfer, TransferActual, TransferWant, Want, What, When, keys,
};
use forebay_node::{Node, file_system_of};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::wire::{
    Destroy, Extend, InstanceView, NewInstance, NewTransfer, NodeView, PoolView, Progress,
    TransferView,
};
use super::{asker, jobs, members};
use crate::http::{Peer, Reply, Request};

pub struct Door {
    pub node: Arc<Node>,
}

impl Door {
    pub fn answer(&self, request: Request) -> Reply {
        match self.route(request) {
            Ok(body) => Reply::new(200, body),
            Err(error) => {
                let body = json!({
                    "error": error.to_string(),
                    "exit_code": error.exit_code(),
                    "errno": error.errno(),
                });
                Reply::new(error.http_status(), body)
            }
        }
    }

    fn route(&self, request: Request) -> Result<Value> {
        let peer = request.peer.ok_or_else(|| Error::os(libc::EPERM, "nobody is known to ask"))?;
        let desk = self.node.desk();
        let parts: Vec<&str> = request.path.trim_matches('/').split('/').collect();
        match (request.method.as_str(), parts.as_slice()) {
            ("GET", ["v1", "node"]) => self.health(),
            ("GET", ["v1", "nodes"]) => answer(self.nodes(peer)?),
            ("GET", ["v1", "pools"]) => answer(self.pools()?),
            ("POST", ["v1", "nodes", name, drain @ ("drain" | "undrain")]) => {
                let drain = (*drain == "drain").then(|| NodeDrain { since: now(), by: peer.uid });
                desk.drain_node(name, asker(peer), drain).map(|()| json!({}))
            }
            ("GET", ["v1", "instances"]) => answer(self.instances(peer)?),
            ("POST", ["v1", "instances"]) => {
                let asked = self.new_instance(peer, body(request.body)?)?;
                answer(self.view(desk.create(&asked)?)?)
            }
            ("GET", ["v1", "instances", id]) => {
                let instance = desk.instance_for(id, asker(peer))?;
                require_seen(peer, instance.owner, "instance", id)?;
                let cache = self.cache_view(&instance, &request.query);
                answer(InstanceView { cache, ..self.view(instance)? })
            }
            ("POST", ["v1", "instances", id, "destroy"]) => {
                let Destroy { hurry } = body(request.body)?;
                let want = if hurry { Want::GoneInHurry } else { Want::Gone };
                answer(self.view(desk.destroy(id, asker(peer), want)?)?)
            }
            ("POST", ["v1", "instances", id, "extend"]) => {
                let Extend { expires } = body(request.body)?;
                answer(self.view(desk.extend(id, asker(peer), expires)?)?)
            }
            ("GET", ["v1", "transfers"]) => answer(self.transfers(peer)?),
            ("POST", ["v1", "transfers"]) => {
                let asked = self.new_transfer(peer, body(request.body)?)?;
                answer(self.transfer_view(desk.transfer(&asked, asker(peer))?, None))
            }
            ("GET", ["v1", "transfers", id]) => {
                let (wanted, actual) = desk.transfer_of(id)?;
                require_seen(peer, wanted.owner, "transfer", id)?;
                answer(self.transfer_view(wanted, actual))
            }
            ("POST", ["v1", "transfers", id, "cancel"]) => {
                answer(desk.call_off(id, asker(peer), TransferWant::Cancelled)?)
            }
            ("POST", ["v1", "transfers", id, "revoke"]) => {
                answer(desk.call_off(id, asker(peer), TransferWant::Revoked)?)
            }
            ("POST", ["v1", "transfers", id, "resume"]) => answer(desk.resume(id, asker(peer))?),
            ("POST", ["v1", "transfers", id, "activate"]) => {
                answer(desk.activate(id, asker(peer))?)
            }
            ("GET", ["v1", "manifest"]) => answer(self.manifest(peer, &request.query)?),
            (method, ["v1", rest @ ..]) if jobs::is_ours(rest) => {
                jobs::route(self, peer, method, rest, request.body)
            }
            _ => {
                let what = format!("{} {}: no such request", request.method, request.path);
                Err(Error::new(Kind::Usage, what))
            }
        }
    }

    /// For a scheduler's health check: whether the node is fit, and if not, why.
    fn health(&self) -> Result<Value> {
        let draining = self.node.drain()?.is_some();
        Ok(json!({
            "name": self.node.name(),
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "draining": draining,
            "troubles": self.node.troubles()?,
            "mount_root": self.node.config().mount_root,
        }))
    }

    fn nodes(&self, peer: Peer) -> Result<Vec<NodeView>> {
        let book = self.node.book();
        let there: BTreeMap<String, NodeRecord> = book.list(keys::NODES)?.into_iter().collect();
        let drained: Vec<(String, NodeDrain)> = book.list("wanted/nodes/")?;
        let instances = self.node.desk().instances()?;
        let staying = members::staying(book, peer)?;
        let pools: Vec<(String, PoolRecord)> = book.list(keys::POOLS)?;
        // A node whose daemon is away has recorded its pools before, and may still have instances.
        let of_pools =
            pools.iter().filter_map(|(key, _)| key.split_once('/')).map(|(node, _)| node);
        let mut names: Vec<&str> = there.keys().map(String::as_str).chain(of_pools).collect();
        names.sort_unstable();
        names.dedup();
        let view = |name: &str| NodeView {
            name: name.into(),
            record: there.get(name).cloned(),
            draining: drained.iter().any(|(drained, _)| drained == name),
            instances: instances.iter().filter(|i| i.nodes.iter().any(|n| n == name)).count()
                as u64,
            mounts: staying.get(name).cloned().unwrap_or_default(),
        };
        Ok(names.into_iter().map(view).collect())
    }

    fn pools(&self) -> Result<Vec<PoolView>> {
        let book = self.node.book();
        let pools: Vec<(String, PoolRecord)> = book.list(keys::POOLS)?;
        let ledgers: BTreeMap<String, Ledger> = book.list(keys::LEDGER)?.into_iter().collect();
        let view = |(key, record): (String, PoolRecord)| {
            let granted = ledgers.get(&key).map_or(0, Ledger::granted);
            let (node, name) = key.split_once('/')?;
            let (node, name) = (node.to_string(), name.to_string());
            let free = record.capacity.saturating_sub(granted);
            Some(PoolView { node, name, record, granted, free })
        };
        Ok(pools.into_iter().filter_map(view).collect())
    }

    /// Lists the instances that the user may see (D1).
    fn instances(&self, peer: Peer) -> Result<Vec<InstanceView>> {
        let all = self.node.desk().instances()?;
        let seen = all.into_iter().filter(|instance| may_see(peer, instance.owner));
        seen.map(|instance| self.view(instance)).collect()
    }

    pub(super) fn view(&self, wanted: Instance) -> Result<InstanceView> {
        let actual = self.node.desk().actual(&wanted.id)?;
        let actual: BTreeMap<String, Actual> = actual.into_iter().collect();
        let ends_in_seconds = wanted.ends_soon(self.node.desk().time());
        Ok(InstanceView { wanted, ends_in_seconds, actual, cache: None })
    }

    fn transfers(&self, peer: Peer) -> Result<Vec<TransferView>> {
        let all = self.node.desk().transfers()?;
        let seen = all.into_iter().filter(|(transfer, _)| may_see(peer, transfer.owner));
        Ok(seen.map(|(wanted, actual)| self.transfer_view(wanted, actual)).collect())
    }

    pub(super) fn transfer_view(
        &self,
        wanted: Transfer,
        actual: Option<TransferActual>,
    ) -> TransferView {
        let progress = self.node.live(&wanted.id).map(|moved| Progress {
            files: moved.files,
            bytes: moved.bytes,
            files_total: moved.files_total,
            bytes_total: moved.bytes_total,
            bytes_per_second: moved.bytes_per_second,
            failures: moved.failures_count,
            stage: Some(moved.stage),
            files_per_second: moved.files_per_second,
            eta_seconds: moved.eta.map(|eta| eta.as_secs_f64()),
        });
        TransferView { wanted, actual, progress }
    }

    fn new_instance(&self, peer: Peer, asked: NewInstance) -> Result<desk::NewInstance> {
        let owner = owner(peer, asked.uid, asked.gid)?;
        if peer.uid != 0 && asked.mountpoint.is_some() {
            let root = self.node.config().mount_root.display();
            return Err(usage(format!(
                "only root chooses a mount point: yours will be below {root}"
            )));
        }
        if peer.uid != 0 && asked.job.is_some() {
            return Err(usage("instances of jobs are made by the scheduler: give a name instead"));
        }
        let backing = match (&asked.backing, asked.mode) {
            (Some(path), Mode::Cache) => Some(self.backing(path, owner, asked.settings)?),
            (Some(path), _) => {
                let mode = asked.mode.name();
                return Err(usage(format!(
                    "{}: --backing is for a cache, not {mode}",
                    path.display()
                )));
            }
            (None, _) => None,
        };
        if let Some(at) = &asked.mountpoint {
            require_plain(at)?;
        }
        let wish = SpaceWish {
            means: asked.means,
            fs: asked.fs,
            inodes: asked.inodes,
            mode: asked.permissions,
        };
        let space = (asked.mode == Mode::Private).then_some(wish);
        let nodes = match asked.nodes.is_empty() {
            true => vec![self.node.name().to_string()],
            false => asked.nodes,
        };
        Ok(desk::NewInstance {
            name: asked.name,
            mode: asked.mode,
            owner,
            job: asked.job,
            expires: asked.expires,
            nodes,
            pool: asked.pool,
            bytes: asked.bytes,
            mountpoint: asked.mountpoint,
            backing,
            space,
        })
    }

    /// Reaches a cache's backing store with the rights of its owner (D2).
    pub(super) fn backing(
        &self,
        path: &Path,
        owner: Owner,
        settings: BTreeMap<String, String>,
    ) -> Result<Backing> {
        forebay_node::require_mounted(path, &self.node.config().backing_mounts)?;
        let reached = asker::reach(path, owner.uid, owner.gid)?;
        check_settings(&settings)?;
        Ok(Backing { on: file_system_of(&reached.path)?, path: reached.path, settings })
    }

    fn new_transfer(&self, peer: Peer, asked: NewTransfer) -> Result<desk::NewTransfer> {
        let instance = match &asked.instance {
            Some(instance) => self.node.desk().instance_for(instance, asker(peer))?,
            None => self.instance_at(peer, &asked)?,
        };
        // This comes before any look with the owner's rights (D2).
        require_seen(peer, instance.owner, "instance", &instance.id)?;
        let what = match asked.what {
            Some(what) => what,
            None => self.what_is(&asked, &instance)?,
        };
        let destination = into_directory(&asked, what, instance.owner);
        Ok(desk::NewTransfer {
            of_job: None,
            instance: instance.id,
            node: asked.node,
            direction: asked.direction,
            what,
            source: asked.source,
            destination,
            when: asked.when,
            options: asked.options,
        })
    }

    /// The instance that the transfer's inner path is in.
    fn instance_at(&self, peer: Peer, asked: &NewTransfer) -> Result<Instance> {
        let inside = match asked.direction {
            Direction::In => &asked.destination,
            Direction::Out => &asked.source,
        };
        let all = self.node.desk().instances()?;
        let holds = |instance: &Instance| {
            let shows = instance.mountpoint.as_ref();
            may_see(peer, instance.owner) && shows.is_some_and(|at| inside.starts_with(at))
        };
        all.into_iter().find(holds).ok_or_else(|| {
            usage(format!(
                "{}: is in no instance of yours; `forebay instance list` shows where they are",
                inside.display()
            ))
        })
    }

    /// The type of a source, if it exists now (D2). A source that will exist only at the end counts as a
    /// directory if its path ends in a slash.
    fn what_is(&self, asked: &NewTransfer, instance: &Instance) -> Result<What> {
        let path = asked.source.clone();
        let slash = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let owner = instance.owner;
        let look = move || std::fs::metadata(path);
        let found = asker::as_user(owner.uid, owner.gid, &asked.source, look);
        match found {
            Ok(found) if found.is_dir() => Ok(What::Directory),
            Ok(_) => Ok(What::File),
            Err(_) if asked.direction == Direction::Out && slash => Ok(What::Directory),
            Err(e) => {
                let what = asked.source.display().to_string();
                // Only the source of a transfer at the end may come into being later.
                let hint = match asked.when {
                    When::AtEnd => "; say what it will be with --type file|directory|list",
                    When::Now => "",
                };
                Err(usage(format!("{what}: {e}{hint}")))
            }
        }
    }
}

/// The destination. A file that is copied to a directory keeps its name there, as with cp (D2).
fn into_directory(asked: &NewTransfer, what: What, owner: Owner) -> PathBuf {
    let (path, name) = (asked.destination.clone(), asked.source.file_name());
    let (What::File, Some(name)) = (what, name) else { return path };
    let looked = path.clone();
    let look = move || std::fs::metadata(looked);
    let found = asker::as_user(owner.uid, owner.gid, &path, look);
    match found.is_ok_and(|found| found.is_dir()) {
        true => path.join(name),
        false => path,
    }
}

pub(super) fn usage(why: impl Into<String>) -> Error {
    Error::new(Kind::Usage, why)
}

pub(super) fn asker(peer: Peer) -> Asker {
    Asker { uid: peer.uid, gid: peer.gid }
}

/// Whether a user may see an owner's things (D1).
pub(super) fn may_see(peer: Peer, owner: Owner) -> bool {
    peer.uid == 0 || peer.uid == owner.uid
}

pub(super) fn require_seen(peer: Peer, owner: Owner, what: &str, id: &str) -> Result<()> {
    match may_see(peer, owner) {
        true => Ok(()),
        false => Err(Error::os(libc::EPERM, format!("{what} {id} is not yours"))),
    }
}

fn owner(peer: Peer, uid: Option<u32>, gid: Option<u32>) -> Result<Owner> {
    match (peer.uid, uid, gid) {
        (_, None, None) => Ok(Owner { uid: peer.uid, gid: peer.gid }),
        (0, Some(uid), Some(gid)) => Ok(Owner { uid, gid }),
        (0, ..) => Err(usage("give both a user and a group")),
        _ => Err(Error::os(libc::EPERM, "only root makes instances for others")),
    }
}

fn require_plain(at: &Path) -> Result<()> {
    let plain: PathBuf = at.components().collect();
    let up = at.components().any(|part| part.as_os_str() == "..");
    match at.is_absolute() && !up && plain.as_os_str() == at.as_os_str() {
        true => Ok(()),
        false => Err(usage(format!("mount point {}: give a plain absolute path", at.display()))),
    }
}

/// Refuses settings that an ordinary user may not give to a mount of root's.
fn check_settings(settings: &BTreeMap<String, String>) -> Result<()> {
    settings.iter().try_for_each(|(name, value)| super::settings::check(name, value).map_err(usage))
}

pub(super) fn body<T: DeserializeOwned>(body: Value) -> Result<T> {
    serde_json::from_value(body).map_err(|e| usage(format!("body: {e}")))
}

pub(super) fn answer(value: impl Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|e| Error::new(Kind::Corrupt, e.to_string()))
}
