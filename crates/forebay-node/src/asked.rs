//! Asks the caches of this node for their unflushed bytes: their daemons know them from moment to
//! moment, and the registry does not.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use forebay_base::{Error, Kind, Result};

use crate::desk::{Held, Known, unknown};
use crate::hands::Unflushed;
use crate::manifest;
use crate::node::Node;
use crate::records::{Instance, Missing, Mode};

/// The time in which all caches together have to answer.
const PATIENCE: Duration = Duration::from_secs(5);

impl Node {
    /// The dirty bytes of these caches. A cache that does not answer has a line, too: it may hold
    /// anything.
    pub fn ask_caches(self: &Arc<Node>, asked: Vec<Instance>) -> Vec<Held> {
        let (say, hear) = channel();
        let mut waiting: BTreeMap<String, Instance> = BTreeMap::new();
        for instance in asked.into_iter().filter(|instance| instance.mode == Mode::Cache) {
            let (node, say, cache) = (self.clone(), say.clone(), instance.clone());
            // Without a thread the cache gives no answer.
            let _ = thread::Builder::new().name("ask".into()).spawn(move || {
                let found = node.glance(&cache);
                let _ = say.send((cache.id, found));
            });
            waiting.insert(instance.id.clone(), instance);
        }
        drop(say);
        let deadline = Instant::now() + PATIENCE;
        let mut held = Vec::new();
        while let Ok((id, found)) =
            hear.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            if let Some(instance) = waiting.remove(&id) {
                held.extend(self.lines_of(&instance, found));
            }
        }
        let late = || Err(Error::new(Kind::TimedOut, "its daemon does not answer"));
        held.extend(waiting.values().flat_map(|instance| self.lines_of(instance, late())));
        held
    }

    /// The mount point of a cache of this node, and its tier.
    pub fn cache_at(&self, instance: &Instance) -> Result<(PathBuf, PathBuf)> {
        let cache = self.cache(instance, &*self.pool_of(instance)?)?;
        Ok((cache.mountpoint, cache.tier))
    }

    /// The dirty bytes and files of a cache of this node, if they are known soon.
    pub fn dirty_of(&self, instance: &Instance) -> Option<(u64, u64)> {
        let found = self.glance(instance).ok()?;
        Some((found.iter().map(|unflushed| unflushed.bytes).sum(), found.len() as u64))
    }

    fn glance(&self, instance: &Instance) -> Result<Vec<Unflushed>> {
        let cache = self.cache(instance, &*self.pool_of(instance)?)?;
        self.hands.glance(&cache)
    }

    fn lines_of(&self, instance: &Instance, found: Result<Vec<Unflushed>>) -> Vec<Held> {
        let lines: Vec<(Known, Missing)> = match found {
            Ok(found) => {
                let missing = manifest::of_cache(instance, &found);
                missing.into_iter().map(|line| (Known::Dirty, line)).collect()
            }
            Err(error) => {
                let why = format!("what is dirty in it is not known: {error}");
                vec![unknown(instance, &why, instance.created)]
            }
        };
        let (node, id) = (self.name(), &instance.id);
        let held =
            |(known, missing)| Held { node: node.into(), instance: id.clone(), known, missing };
        lines.into_iter().map(held).collect()
    }
}
