//! The work that a node daemon leaves to other processes: mounts of caches, and transfers. The binary starts them,
//! and they outlive the node daemon.

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
    /// The owner, whose rights decide what may be mounted.
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
    /// The mount exists and its daemon does not.
    Dead,
    NotMounted,
}

/// How a mount is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// All dirty bytes are flushed first.
    Drain,
    /// Dirty bytes wait in the tier.
    KeepDirty,
    /// As `KeepDirty`, for the next mount, which is needed since the cache's daemon has died: if the daemon lives
    /// after all, the mount is left alone.
    Cleared,
}

/// A file whose newest bytes are not on the backing store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unflushed {
    pub file: String,
    pub bytes: u64,
    /// The age of its oldest dirty byte.
    pub age: Duration,
    pub why: String,
}

/// An order to fetch files into a cache, or to flush files out of it.
#[derive(Debug, Clone)]
pub struct Order<'a> {
    pub direction: Direction,
    pub what: What,
    /// The path in the mount.
    pub path: PathBuf,
    pub options: &'a TransferOptions,
}

/// The stage of a running transfer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// The totals still grow.
    #[default]
    Counting,
    Copying,
    /// The copied files are being made durable.
    Finishing,
}

/// The progress of a transfer, and how it ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Moved {
    pub stage: Stage,
    pub files: u64,
    pub bytes: u64,
    pub files_total: u64,
    pub bytes_total: u64,
    pub bytes_per_second: u64,
    pub files_per_second: f64,
    /// As the process that moves the files estimates it: not while it counts, nor while nothing moves.
    pub eta: Option<Duration>,
    pub failures: Vec<Failed>,
    pub failures_count: u64,
    /// Files that were left out on purpose, or attributes that could not be taken along.
    pub notes: Vec<String>,
    pub notes_count: u64,
    pub how: How,
    pub cancelled: bool,
    /// Why the process of a transfer that was to end does not end, not even when killed.
    pub hangs: Option<String>,
    /// Why nothing was moved and a repetition would not help.
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

/// A copy between a private instance and the outside, with the owner's rights.
#[derive(Debug, Clone)]
pub struct Staging<'a> {
    pub transfer: &'a Transfer,
    /// The root of the instance on this node.
    pub root: PathBuf,
    /// The directory in which the process writes what a restarted node daemon must know.
    pub kept: PathBuf,
    /// How long a process that is told to end has before it is killed.
    pub patience: Duration,
    /// The progress at which it stood still, if it did: it is not waited for again before it moves.
    pub still: Option<Moved>,
}

/// The signals to a running transfer.
#[derive(Debug, Default)]
pub struct Stop {
    wanted: AtomicBool,
    leaves: AtomicBool,
}

impl Stop {
    /// Tells the transfer to end where it is.
    pub fn now(&self) {
        self.wanted.store(true, Relaxed);
    }

    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Relaxed)
    }

    /// Tells the call to return: the node daemon ends, and the transfer goes on.
    pub fn leave(&self) {
        self.leaves.store(true, Relaxed);
    }

    pub fn leaves(&self) -> bool {
        self.leaves.load(Relaxed)
    }
}

/// Each call may be repeated, and continues what an earlier one began. A hanging process is not waited for: the
/// call fails with [`forebay_base::Kind::TimedOut`], and a later one returns how it ended.
pub trait Hands: Send + Sync {
    fn look(&self, cache: &Cache) -> Result<Look>;

    /// Mounts the cache; dirty bytes in the tier are flushed on.
    fn serve(&self, cache: &Cache) -> Result<()>;

    /// Unmounts, also a mount whose daemon died. A mount in use is waited for `busy`, then taken away from its
    /// users; one whose daemon does not answer is taken away from the daemon. Returns those users.
    fn leave(&self, cache: &Cache, leave: Leave, busy: Duration) -> Result<Vec<String>>;

    /// Flushes the dirty bytes of a tier that is not mounted. Returns what could not be flushed.
    fn bring_home(&self, cache: &Cache) -> Result<Vec<Unflushed>>;

    /// The dirty files in the tier of a mount that serves, or of one that does not.
    fn unflushed(&self, cache: &Cache) -> Result<Vec<Unflushed>>;

    /// As `unflushed`, for a mere look: it disturbs nothing that is being done to the cache.
    fn glance(&self, cache: &Cache) -> Result<Vec<Unflushed>> {
        self.unflushed(cache)
    }

    /// Fetches or flushes, until that is done or `stop` says to end.
    fn carry(&self, order: &Order<'_>, stop: &Stop, told: &mut dyn FnMut(&Moved)) -> Result<Moved>;

    /// Copies, until that is done or `stop` says to end. Takes over a process that an earlier node daemon started.
    fn stage(
        &self,
        staging: &Staging<'_>,
        stop: &Stop,
        told: &mut dyn FnMut(&Moved),
    ) -> Result<Moved>;

    /// The bytes of a transfer's source, as its owner sees it and as far as they were counted in time.
    fn size_of(&self, staging: &Staging<'_>) -> u64;

    /// Removes partial files that a transfer left.
    fn clean(&self, staging: &Staging<'_>) -> Result<()>;
}
