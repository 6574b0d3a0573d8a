//! The files that are not home, for `forebay manifest`: nodes have recorded some in the registry, unfinished
//! transfers have others, and the caches of this node report theirs when asked.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use forebay_base::Result;
use forebay_node::desk::{Absent, Held, Known, Told};
use forebay_node::records::{Instance, Missing, Mode, Want};

use serde_json::Value;

use super::api::{Door, asker, may_see, require_seen};
use super::wire::{CacheDaemon, CacheView, MissingView};
use crate::http::{Client, Liveness, Peer};
use crate::moment::show_day;
use crate::mounts::Mounts;

/// The time limit for a cache's answer.
const PATIENCE: Duration = Duration::from_secs(2);

impl Door {
    pub(super) fn manifest(
        &self,
        peer: Peer,
        query: &[(String, String)],
    ) -> Result<Vec<MissingView>> {
        let only = query.iter().find(|(key, _)| key == "instance").map(|(_, id)| id.as_str());
        let asked = |id: &str| only.is_none_or(|only| only == id);
        let me = self.node.name();
        let mut lines = self.written()?;
        let absent = self.node.desk().absent()?;
        let told: Vec<Told> = lines.iter().map(told).collect();
        lines.extend(self.node.desk().held_by(me, &absent, &told)?.into_iter().map(view));
        lines.retain(|line| asked(&line.instance) && may_see(peer, line.missing.owner));
        let of_caches = self.node.ask_caches(self.caches(peer, &told, asked)?);
        lines.extend(unnamed(&lines, of_caches));
        if let (Some(id), true) = (only, lines.is_empty()) {
            // An instance that is gone may have lines; without any the instance must exist.
            let instance = self.node.desk().instance_for(id, asker(peer))?;
            require_seen(peer, instance.owner, "instance", id)?;
        }
        if query.iter().any(|(key, _)| key == "here") {
            let others = |line: &MissingView| line.node != me && !absent.is(&line.node);
            lines.retain(|line| line.known != Known::Unknown || !others(line));
        }
        lines.iter_mut().for_each(|line| tell_absent(line, &absent));
        Ok(lines)
    }

    /// The view of a cache on this node, if the query asks for it; `None` for a cache that is not mounted.
    pub(super) fn cache_view(
        &self,
        instance: &Instance,
        query: &[(String, String)],
    ) -> Option<CacheView> {
        let me = self.node.name();
        query.iter().find(|(key, _)| key == "cache")?;
        if instance.mode != Mode::Cache || instance.nodes.iter().all(|node| node != me) {
            return None;
        }
        let (at, tier) = self.node.cache_at(instance).ok()?;
        let mounts = Mounts::read().ok()?;
        let mounted = mounts.ours().any(|(mounted, of)| *mounted == at && *of == tier);
        let client = Client::new(&tier);
        if !mounted || client.liveness() == Liveness::Dead {
            return self.dead_cache_view(instance, mounted);
        }
        let status = status_of(client);
        let (dirty_bytes, dirty_files) =
            (status["dirty_bytes"].as_u64(), status["dirty_files"].as_u64());
        Some(CacheView { daemon: CacheDaemon::Serving, dirty_bytes, dirty_files })
    }

    /// The view of a cache whose daemon has died, from its tier; `None` if it is not mounted and not dirty.
    fn dead_cache_view(&self, instance: &Instance, mounted: bool) -> Option<CacheView> {
        let dirty = self.node.dirty_of(instance);
        if !mounted && dirty.is_none_or(|(_, files)| files == 0) {
            return None;
        }
        let (dirty_bytes, dirty_files) = dirty.unzip();
        Some(CacheView { daemon: CacheDaemon::Dead, dirty_bytes, dirty_files })
    }

    /// The lines that nodes have written into the registry.
    fn written(&self) -> Result<Vec<MissingView>> {
        let all: Vec<(String, Missing)> = self.node.book().manifest()?;
        let view = |(key, missing): (String, Missing)| {
            let mut parts = key.split('/').map(String::from);
            let (node, instance) = (parts.next()?, parts.next()?);
            Some(MissingView { node, instance, known: Known::Left, missing })
        };
        Ok(all.into_iter().filter_map(view).collect())
    }

    /// The caches on this node to ask. A cache that leaves has recorded its remaining files itself.
    fn caches(
        &self,
        peer: Peer,
        told: &[Told],
        asked: impl Fn(&str) -> bool,
    ) -> Result<Vec<Instance>> {
        let (mut all, me) = (self.node.desk().instances()?, self.node.name());
        let has_told = |id: &str| {
            told.iter()
                .any(|told| told.node == me && told.instance == id && told.transfer.is_none())
        };
        all.retain(|instance| {
            let here = instance.nodes.iter().any(|node| node == me);
            let is_told = instance.want != Want::Here && has_told(&instance.id);
            here && asked(&instance.id) && may_see(peer, instance.owner) && !is_told
        });
        Ok(all)
    }
}

/// The status of a daemon; null if it does not answer soon.
fn status_of(client: Client) -> Value {
    let (say, hear) = channel();
    let ask = move || say.send(client.get("/v1/status").unwrap_or_default());
    let asked = thread::Builder::new().name("ask".into()).spawn(ask);
    asked.ok().and_then(|_| hear.recv_timeout(PATIENCE).ok()).unwrap_or_default()
}

fn told(line: &MissingView) -> Told {
    let (node, instance) = (line.node.clone(), line.instance.clone());
    Told { node, instance, transfer: line.missing.transfer.clone() }
}

fn view(held: Held) -> MissingView {
    let Held { node, instance, known, missing } = held;
    MissingView { node, instance, known, missing }
}

/// Drops files that `lines` has already: a file that a flush left is dirty, too, and counts once.
fn unnamed(lines: &[MissingView], mut found: Vec<Held>) -> Vec<MissingView> {
    found.retain(|held| {
        lines.iter().all(|line| {
            (&line.node, &line.instance, &line.missing.file)
                != (&held.node, &held.instance, &held.missing.file)
        })
    });
    found.into_iter().map(view).collect()
}

fn tell_absent(line: &mut MissingView, absent: &Absent) {
    if !absent.is(&line.node) {
        return;
    }
    let since = absent.heard(&line.node).map(|at| format!(" since {}", show_day(at)));
    let (why, node) = (&line.missing.why, &line.node);
    line.missing.why =
        format!("{why}; node {node} has not been heard of{}", since.unwrap_or_default());
}
