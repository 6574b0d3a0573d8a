//! Private spaces, tiers of caches and swap files: what a node makes on its flash for an instance.
//!
//! A [`Pool`] is a directory of the flash. It makes a [`Space`] by the best available [`Means`],
//! finds it again after a restart, and removes it; it knows no registry and no ledger.
//!
//! - P1: every call may be repeated. If killed between any two steps, it leaves what the next call
//!   of [`Pool::make`], [`Pool::remove`] or [`Pool::sweep`] completes or removes.
//! - P2: a record exists before anything else of a space and goes after everything else of it: it is
//!   always known what holds room, see [`Pool::leftovers`].
//! - P3: nothing is deleted by a path that a user controls.
//! - P4: a space has its capacity, and no byte of its neighbors' room.

use std::fmt;
use std::path::PathBuf;

use forebay_base::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

mod delete;
mod door;
mod holders;
mod image;
mod loopdev;
mod make;
mod mount;
mod pool;
mod probe;
mod quota;
mod record;
mod removal;
mod spec;
mod sweep;
mod tier;

pub use door::Door;
pub use holders::{Holder, How};
pub use make::{LOST, room};
pub use pool::{Enforce, Pool, Settings};
pub(crate) use probe::Ground;
pub use probe::Offer;
pub(crate) use record::{Record, Stage, What, open_file};
pub use removal::Removal;
pub use spec::{Choice, Fs, Id, Owner, SpaceSpec};
pub use sweep::{Leftover, Swept, Why};

/// How a space's capacity is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Means {
    /// A directory with a project limit: guards against accidents only, since its owner can change a
    /// file's project.
    ProjectQuota,
    /// A file system of its own in a file of the pool, fully allocated.
    Image,
    /// A file system of its own in memory.
    Tmpfs,
    /// A directory without a limit; only where the pool has `enforce = false`.
    Directory,
}

impl Means {
    pub const ALL: [Means; 4] = [Means::ProjectQuota, Means::Image, Means::Tmpfs, Means::Directory];
}

impl fmt::Display for Means {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Means::ProjectQuota => "project-quota",
            Means::Image => "image",
            Means::Tmpfs => "tmpfs",
            Means::Directory => "directory",
        })
    }
}

/// A space that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Space {
    pub id: Id,
    pub at: PathBuf,
    pub means: Means,
    pub capacity: u64,
    /// The room that it takes of the pool (for a tmpfs, of memory): the capacity, and the overhead
    /// of a file system of its own.
    pub room: u64,
}

/// How far a space is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Only its record exists.
    Recorded,
    /// Its bytes exist: an image with a file system, or a directory.
    Made,
    /// It is mounted, but not yet recorded as ready.
    Mounted,
}

/// The state of an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Absent,
    /// The next [`Pool::make`] completes it, [`Pool::remove`] removes it.
    HalfMade(Step),
    Ready(Space),
    /// It was ready, and its contents were in memory and are gone: [`Pool::remove`] removes the
    /// rest.
    Lost,
    /// [`Pool::remove`] and [`Pool::sweep`] go on with the removal.
    Removing,
}

/// The use of a space; `None` where nothing counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    pub bytes: u64,
    pub used: Option<u64>,
    pub inodes: Option<u64>,
    pub used_inodes: Option<u64>,
}

pub(crate) fn usage_error(message: impl Into<String>) -> Error {
    Error::new(Kind::Usage, message)
}

/// An error of the system, with the action that failed.
pub(crate) fn failed<E: Into<std::io::Error>>(what: impl fmt::Display) -> impl FnOnce(E) -> Error {
    move |e| Error::io(e.into(), what.to_string())
}

/// Runs `work` in a thread of its own; `None` if it takes longer than `limit`. The thread then runs
/// on by itself.
pub(crate) fn within<T: Send + 'static>(
    limit: std::time::Duration,
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>> {
    let (done, wait) = std::sync::mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            let _ = done.send(work());
        })
        .map_err(failed(format_args!("cannot start a thread ({name})")))?;
    Ok(wait.recv_timeout(limit).ok())
}
