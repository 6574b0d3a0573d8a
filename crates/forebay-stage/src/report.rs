//! What became of a transfer: counts, failures, what is left.

use std::path::Path;

use forebay_base::lock::{Mutex, MutexGuard, Rank};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::beneath::Side;
use crate::text::Text;

/// Failures, notes and files left are listed up to this many each; all are counted.
pub const LISTED_MAX: usize = 1000;

/// After so many files for which there was no room, the rest is not tried.
const FULL_MAX: u64 = 16;

/// Why a file failed, as far as somebody decides by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The source changed while it was copied.
    Changed,
    /// The source is gone.
    Vanished,
    /// The rights do not suffice.
    Denied,
    NoSpace,
    Quota,
    /// A device or a server failed.
    Io,
    /// Something of another kind, or a file that must stay, has the name.
    InTheWay,
    /// What was read back is not what was written.
    Mismatch,
    /// The name is too long there, or the file too large.
    TooLarge,
    /// To be published last, and something before it failed.
    HeldBack,
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Of the source, from where the transfer begins.
    pub path: Text,
    pub reason: Reason,
    pub text: String,
    /// Its size, if it was counted as a file; a worker of an earlier version tells none.
    #[serde(default)]
    pub bytes: u64,
}

/// A file that is not at the destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    pub path: Text,
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Everything is at the destination, durable.
    Done,
    /// Everything but what failed is.
    Failed,
    /// It was told to stop; the same spec goes on from here.
    Stopped,
    /// The destination is full; the same spec goes on from here.
    Full,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub id: String,
    pub outcome: Outcome,
    /// At the destination: published by this run, or found there as they should be.
    pub files: u64,
    /// Their sizes.
    pub bytes: u64,
    /// Of `files`, those that were there.
    pub kept: u64,
    /// What went through this run, holes and reflinks not counted.
    pub bytes_copied: u64,
    /// Sizes of files that share the blocks of their source.
    #[serde(default)]
    pub bytes_cloned: u64,
    /// Of `bytes_copied`, what never came into this process's memory.
    #[serde(default)]
    pub bytes_in_kernel: u64,
    /// Of `files`, second names of one.
    pub hard_links: u64,
    pub directories: u64,
    /// Whether the source was counted to its end: else more is left than is said.
    pub counted: bool,
    pub seconds: f64,
    pub failed: u64,
    pub failures: Vec<Failure>,
    /// What was left out on purpose, or could not be taken along.
    pub noted: u64,
    pub notes: Vec<String>,
    pub left_files: u64,
    pub left_bytes: u64,
    /// Without those in `failures`.
    pub left: Vec<Left>,
}

/// Why a file did not get through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    Failed(Reason, String),
    /// The transfer stops; the file is left for another run.
    Stopped,
}

pub type Tried<T> = std::result::Result<T, Trouble>;

impl Trouble {
    pub fn new(reason: Reason, text: impl Into<String>) -> Trouble {
        Trouble::Failed(reason, text.into())
    }

    /// An errno of a call that did `what` on `side`.
    pub fn of(side: Side, what: &str, errno: Errno) -> Trouble {
        let reason = match (errno, side) {
            (Errno::NOENT | Errno::STALE, Side::Source) => Reason::Vanished,
            (Errno::LOOP | Errno::NOTDIR, Side::Source) => Reason::Changed,
            (Errno::LOOP | Errno::NOTDIR | Errno::ISDIR | Errno::EXIST | Errno::NOTEMPTY, _) => {
                Reason::InTheWay
            }
            (Errno::ACCESS | Errno::PERM | Errno::ROFS, _) => Reason::Denied,
            (Errno::NOSPC, _) => Reason::NoSpace,
            (Errno::DQUOT, _) => Reason::Quota,
            (Errno::NAMETOOLONG | Errno::FBIG, _) => Reason::TooLarge,
            (Errno::IO | Errno::NOTCONN | Errno::NODEV | Errno::TIMEDOUT, _) => Reason::Io,
            _ => Reason::Other,
        };
        let side = match side {
            Side::Source => "source",
            Side::Destination => "destination",
        };
        let text = std::io::Error::from(errno);
        Trouble::Failed(reason, format!("{side}: {what}: {text}"))
    }
}

/// Shorthand for `map_err`.
pub fn source(what: &'static str) -> impl Fn(Errno) -> Trouble {
    move |errno| Trouble::of(Side::Source, what, errno)
}

pub fn destination(what: &'static str) -> impl Fn(Errno) -> Trouble {
    move |errno| Trouble::of(Side::Destination, what, errno)
}

pub fn opened((side, errno): (Side, Errno)) -> Trouble {
    Trouble::of(side, "opening its directory", errno)
}

#[derive(Default)]
struct Lists {
    failed: u64,
    full: u64,
    failures: Vec<Failure>,
    noted: u64,
    notes: Vec<String>,
    left: Vec<Left>,
}

/// The bounded lists of a transfer that is under way.
pub struct Ledger(Mutex<Lists>);

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger(Mutex::new(Rank::TransferNotes, Lists::default()))
    }
}

/// Whether it makes sense to try the next file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    Perhaps,
    None,
}

impl Ledger {
    #[track_caller]
    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.0.lock()
    }

    pub fn fail(&self, path: &Path, bytes: u64, reason: Reason, text: String) -> Room {
        let mut lists = self.lists();
        lists.failed += 1;
        lists.full += u64::from(matches!(reason, Reason::NoSpace | Reason::Quota));
        if lists.failures.len() < LISTED_MAX {
            lists.failures.push(Failure { path: path.into(), reason, text, bytes });
        }
        if lists.full >= FULL_MAX { Room::None } else { Room::Perhaps }
    }

    pub fn note(&self, text: String) {
        let mut lists = self.lists();
        lists.noted += 1;
        if lists.notes.len() < LISTED_MAX {
            lists.notes.push(text);
        }
    }

    pub fn left(&self, path: &Path, bytes: u64) {
        let mut lists = self.lists();
        if lists.left.len() < LISTED_MAX {
            lists.left.push(Left { path: path.into(), bytes });
        }
    }

    pub fn failed(&self) -> u64 {
        self.lists().failed
    }

    pub fn room(&self) -> Room {
        if self.lists().full >= FULL_MAX { Room::None } else { Room::Perhaps }
    }

    pub fn fill(&self, report: &mut Report) {
        let mut lists = self.lists();
        report.failed = lists.failed;
        report.failures = std::mem::take(&mut lists.failures);
        report.noted = lists.noted;
        report.notes = std::mem::take(&mut lists.notes);
        report.left = std::mem::take(&mut lists.left);
    }
}
