//! While a node is drained, the mounts on its machine that are members under the node's name leave, too.
//!
//! They are asked through their control sockets, as `forebay umount` asks. A mount that is in use is asked again.
//! The mounts of instances stay: they go with their jobs. Only mounts of the node daemon's own user are asked: the
//! daemon of another user's mount need not be trusted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_base::lock::sleep;
use forebay_base::{Error, Kind, Result};
use forebay_node::{Book, Node, TIERS};
use serde_json::json;

use super::wire::Staying;
use crate::cmd::watch::read_job;
use crate::http::{Client, Peer};
use crate::mounts::{Mounts, Place};
use crate::units::{human_secs, human_size};
use crate::wire::{Job, JobKind, JobState, Leave};

/// The pause before a mount that stays is asked again, and between looks for mounts where none is known.
const AGAIN: Duration = Duration::from_secs(10);

/// The pause between two looks at a mount that leaves.
const LOOK: Duration = Duration::from_secs(1);

/// The pause between two looks whether the node is drained, if the registry reports no change.
const AT_REST: Duration = Duration::from_secs(60);

/// The registry's keys under which drained nodes report their mounts.
const KEYS: &str = "actual/nodes/";

/// Checks, for as long as the process lives, whether the node is drained.
pub fn tend(node: Arc<Node>) -> Result<()> {
    let members = Members { node, asked: BTreeMap::new(), told: None };
    let thread = thread::Builder::new().name("members".into());
    thread.spawn(move || members.run()).map(drop).map_err(|e| Error::io(e, "a thread for members"))
}

/// The mounts that have yet to leave, by node. Only root sees which programs and files keep them.
pub fn staying(book: &Book, peer: Peer) -> Result<BTreeMap<String, Vec<Staying>>> {
    let mut all: BTreeMap<String, Vec<Staying>> = book.list(KEYS)?.into_iter().collect();
    if peer.uid != 0 {
        let mounts = all.values_mut().flatten();
        mounts.for_each(|mount| mount.why = "has yet to leave".into());
    }
    Ok(all)
}

struct Members {
    node: Arc<Node>,
    /// By tier.
    asked: BTreeMap<PathBuf, Asked>,
    /// The list that the registry has; not known at first.
    told: Option<Vec<Staying>>,
}

/// The answer of a mount that was asked to leave.
enum Asked {
    /// The mount leaves: its job.
    Leaves(u64),
    Refused {
        at: Instant,
        why: String,
    },
}

impl Members {
    fn run(mut self) {
        loop {
            if let Err(error) = self.follow() {
                tracing::warn!(%error, "whether the node is drained is not known");
            }
            sleep(AGAIN);
        }
    }

    fn follow(&mut self) -> Result<()> {
        let key = forebay_node::records::keys::node_drain(self.node.name());
        let mut watch = self.node.book().watch(&key)?;
        loop {
            let pause = self.turn()?;
            watch.next(pause)?;
        }
    }

    /// Does what is due, and returns the time until the next look.
    fn turn(&mut self) -> Result<Duration> {
        if self.node.drain()?.is_none() {
            self.call_off();
            self.tell(Vec::new())?;
            return Ok(AT_REST);
        }
        let staying = self.ask_all()?;
        self.tell(staying)?;
        let is_under_way = self.asked.values().any(|asked| matches!(asked, Asked::Leaves(_)));
        Ok(if is_under_way { LOOK } else { AGAIN })
    }

    fn tell(&mut self, staying: Vec<Staying>) -> Result<()> {
        if self.told.as_ref() == Some(&staying) {
            return Ok(());
        }
        let key = format!("{KEYS}{}", self.node.name());
        match staying.is_empty() {
            true => self.node.book().delete(&key)?,
            false => self.node.book().put(&key, &staying)?,
        }
        self.told = Some(staying);
        Ok(())
    }

    /// Cancels the unmounts that were begun: a mount stays, if it is not too late.
    fn call_off(&mut self) {
        for (tier, asked) in std::mem::take(&mut self.asked) {
            let client = Client::new(&tier);
            if let Asked::Leaves(id) = asked
                && let Err(error) = unmount(&client, id).and_then(|_| client.delete(&url(id)))
            {
                tracing::debug!(%error, tier = %tier.display(), "a mount was not told to stay");
            }
        }
    }

    fn ask_all(&mut self) -> Result<Vec<Staying>> {
        let mounts = Mounts::read()?;
        let mut tiers = BTreeSet::new();
        let mut staying = Vec::new();
        for Place { mountpoint, tier, .. } in mounts.of_user(rustix::process::geteuid().as_raw()) {
            if self.is_of_instance(&tier) || !tiers.insert(tier.clone()) {
                continue;
            }
            match self.ask(&mountpoint, &tier) {
                Ok(Some(why)) => {
                    staying.push(Staying { mountpoint: mountpoint.display().to_string(), why });
                }
                Ok(None) => {}
                // The owner or the progress of the mount is unknown; it is listed all the same.
                Err(error) => {
                    let why = error.to_string();
                    staying.push(Staying { mountpoint: mountpoint.display().to_string(), why });
                }
            }
        }
        self.see_off(&tiers);
        Ok(staying)
    }

    /// Reads the result of mounts that have left: their daemons wait until it was read.
    fn see_off(&mut self, mounted: &BTreeSet<PathBuf>) {
        for (tier, asked) in &self.asked {
            if let Asked::Leaves(id) = asked
                && !mounted.contains(tier)
            {
                // The daemon may have ended.
                let _ = Client::new(tier).get(&url(*id));
            }
        }
        self.asked.retain(|tier, _| mounted.contains(tier));
    }

    fn is_of_instance(&self, tier: &Path) -> bool {
        self.node.config().pools.iter().any(|pool| tier.starts_with(pool.dir.join(TIERS)))
    }

    /// Asks a mount to leave if it is a member under the node's name; returns why it has not left yet.
    fn ask(&mut self, mountpoint: &Path, tier: &Path) -> Result<Option<String>> {
        let client = Client::new(tier);
        if client.get("/v1/status")?["cluster"]["member"] != self.node.name() {
            return Ok(None);
        }
        match self.asked.get(tier) {
            Some(Asked::Refused { at, why }) if at.elapsed() < AGAIN => {
                return Ok(Some(why.clone()));
            }
            Some(Asked::Leaves(id)) => {
                let job = match unmount(&client, *id) {
                    // Another daemon has taken its place, and is asked the next time.
                    Err(error) if error.kind() != Kind::Unreachable => {
                        self.asked.remove(tier);
                        return Err(error);
                    }
                    job => job?,
                };
                if job.state == JobState::Running {
                    return Ok(Some(progress(&job)));
                }
                if !job.is_gone() {
                    let why = reason(mountpoint, &job);
                    let refused = Asked::Refused { at: Instant::now(), why: why.clone() };
                    self.asked.insert(tier.into(), refused);
                    return Ok(Some(why));
                }
                return Ok(Some("unmounted, and ends".into()));
            }
            _ => {}
        }
        tracing::info!(at = %mountpoint.display(), "the node is drained: its member leaves");
        let answer = client.post("/v1/umount", &json!(Leave::default()))?;
        let id = answer["id"].as_u64().unwrap_or(0);
        self.asked.insert(tier.into(), Asked::Leaves(id));
        Ok(Some("leaves".into()))
    }
}

/// The unmount with this number; an error if a restarted daemon has another job of that number.
fn unmount(client: &Client, id: u64) -> Result<Job> {
    let job = read_job(client, &url(id))?;
    match job.kind {
        JobKind::Umount => Ok(job),
        _ => Err(Error::new(Kind::Unavailable, "its daemon was started anew before it had left")),
    }
}

fn url(id: u64) -> String {
    format!("/v1/jobs/{id}")
}

fn progress(job: &Job) -> String {
    let left = job.total_bytes.saturating_sub(job.done_bytes);
    let eta = job.eta_secs.map(|secs| format!(", {} to go", human_secs(secs)));
    format!("leaves: {} to flush{}", human_size(left), eta.unwrap_or_default())
}

/// The reason why a mount stays, without its mount point, which is shown beside it.
fn reason(mountpoint: &Path, job: &Job) -> String {
    let failed = job.report.iter().flat_map(|report| &report.failures).next();
    let error = job.error.clone().unwrap_or_else(|| "it did not leave".into());
    let error = error.strip_prefix(&format!("{} is ", mountpoint.display())).unwrap_or(&error);
    match failed {
        Some(failure) => format!("{error}; {}: {}", failure.path, failure.error),
        None => error.into(),
    }
}
