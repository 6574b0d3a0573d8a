//! What a node daemon has done by other processes: mounts of caches, and transfers. They are the
//! binary's to start, and live on when the node daemon does not.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use forebay_base::Result;
use serde::{Deserialize, Serialize};

use crate::records::{Direction, How, Owner, Transfer, TransferOptions, What};

/// A mount of a cache, as it is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    /// Whose rights decide what may be mounted.
    pub owner: Owner,
    pub backing: PathBuf,
    pub mountpoint: PathBuf,
    pub tier: PathBuf,
    pub bytes: u64,
    pub settings: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    Serving,
    /// The mount is there and its daemon is not.
    Dead,
    NotMounted,
}

/// How a mount is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// All that is dirty is flushed first.
    Drain,
    /// What is dirty waits in the tier.
    KeepDirty,
    /// The same for the next mount, which its daemon's death has made needful: if it lives after all, the mount is
    /// left alone.
    Cleared,
}

/// What is not on the backing store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unflushed {
    pub file: String,
    pub bytes: u64,
    /// Of its oldest byte.
    pub age: Duration,
    pub why: String,
}

/// What is to be fetched into a cache, or flushed out of it.
#[derive(Debug, Clone)]
pub struct Order<'a> {
    pub direction: Direction,
    pub what: What,
    /// As it shows in the mount.
    pub path: PathBuf,
    pub options: &'a TransferOptions,
}

/// What a transfer that runs is about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// The totals still grow.
    #[default]
    Counting,
    Copying,
    /// What is copied is being made durable.
    Finishing,
}

/// How far a transfer is, and how it ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Moved {
    pub stage: Stage,
    pub files: u64,
    pub bytes: u64,
    pub files_total: u64,
    pub bytes_total: u64,
    pub bytes_per_second: u64,
    pub files_per_second: f64,
    /// As the one who moves them says: not while it counts, nor while nothing moves.
    pub eta: Option<Duration>,
    pub failures: Vec<Failed>,
    pub failures_count: u64,
    /// What was left out on purpose, or could not be taken along.
    pub notes: Vec<String>,
    pub notes_count: u64,
    pub how: How,
    pub cancelled: bool,
    /// It was to end, and its process does not, not even killed: why.
    pub hangs: Option<String>,
    /// Nothing of it was moved, and trying again would not help: why.
    pub refused: Option<String>,
}

impl Moved {
    pub fn refused(why: impl Into<String>) -> Moved {
        Moved { refused: Some(why.into()), failures_count: 1, ..Moved::default() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    pub path: String,
    pub why: String,
    pub bytes: u64,
}

/// A copy between a private instance and the outside, with its owner's rights.
#[derive(Debug, Clone)]
pub struct Staging<'a> {
    pub transfer: &'a Transfer,
    /// The root of the instance on this node.
    pub root: PathBuf,
    /// Where the process writes what a restarted node daemon must know.
    pub kept: PathBuf,
    /// One that is told to end has so long before it is killed.
    pub patience: Duration,
    /// How far it was when it stood still, if it did: nobody waits for it again before it moves.
    pub still: Option<Moved>,
}

/// What a transfer is told while it runs.
#[derive(Debug, Default)]
pub struct Stop {
    wanted: AtomicBool,
    leaves: AtomicBool,
}

impl Stop {
    /// The transfer is to end where it is.
    pub fn now(&self) {
        self.wanted.store(true, Relaxed);
    }

    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Relaxed)
    }

    /// The node daemon ends, and the transfer goes on.
    pub fn leave(&self) {
        self.leaves.store(true, Relaxed);
    }

    pub fn leaves(&self) -> bool {
        self.leaves.load(Relaxed)
    }
}

/// Each call may be repeated, and goes on with what an earlier one began. What hangs is not waited for:
/// the call fails with [`forebay_base::Kind::TimedOut`], and a later one hears how it ended.
pub trait Hands: Send + Sync {
    fn look(&self, cache: &Cache) -> Result<Look>;

    /// Mounts; what was dirty in the tier is flushed on.
    fn serve(&self, cache: &Cache) -> Result<()>;

    /// Unmounts, also a mount whose daemon died. A mount that is in use is waited for `busy`, then
    /// taken away from who uses it; one whose daemon does not answer is taken away from that. Who that was
    /// comes back.
    fn leave(&self, cache: &Cache, leave: Leave, busy: Duration) -> Result<Vec<String>>;

    /// Brings home what is dirty in a tier that is not mounted. What could not be comes back.
    fn bring_home(&self, cache: &Cache) -> Result<Vec<Unflushed>>;

    /// What is dirty in the tier of a mount that serves, or in one that does not.
    fn unflushed(&self, cache: &Cache) -> Result<Vec<Unflushed>>;

    /// The same, for somebody who only looks: it disturbs nothing that is being done to the cache.
    fn glance(&self, cache: &Cache) -> Result<Vec<Unflushed>> {
        self.unflushed(cache)
    }

    /// Fetches or flushes, until it is done or `stop` says so.
    fn carry(&self, order: &Order<'_>, stop: &Stop, told: &mut dyn FnMut(&Moved)) -> Result<Moved>;

    /// Copies, until it is done or `stop` says so. A process that an earlier node daemon started is
    /// taken over.
    fn stage(
        &self,
        staging: &Staging<'_>,
        stop: &Stop,
        told: &mut dyn FnMut(&Moved),
    ) -> Result<Moved>;

    /// Bytes of a transfer's source, as its owner sees it and as far as they were counted in time.
    fn size_of(&self, staging: &Staging<'_>) -> u64;

    /// Removes what a transfer left of files that are not whole.
    fn clean(&self, staging: &Staging<'_>) -> Result<()>;
}
