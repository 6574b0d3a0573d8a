//! The result of a transfer: counts, failures, files left.

use std::path::Path;

use forebay_base::lock::{Mutex, MutexGuard, Rank};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::beneath::Side;
use crate::text::Text;

/// Up to this many failures, notes and files left are listed each; all are counted.
pub const LISTED_MAX: usize = 1000;

/// After this number of files for which there was no room, the transfer stops.
const FULL_MAX: u64 = 16;

/// Why a file failed, as far as a caller's decision depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The source changed while it was copied.
    Changed,
    /// The source is gone.
    Vanished,
    /// The worker lacks the rights.
    Denied,
    NoSpace,
    Quota,
    /// A device or a server failed.
    Io,
    /// A file of another type, or a file that must stay, has the name.
    InTheWay,
    /// The data read back differs from the data written.
    Mismatch,
    /// The name is too long at the destination, or the file too large.
    TooLarge,
    /// The file comes last, and an earlier one failed.
    HeldBack,
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The path at the source, relative to the top of the transfer.
    pub path: Text,
    pub reason: Reason,
    pub text: String,
    /// The file's size, if it was counted as a file; 0 from a worker of an earlier version.
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
    /// Everything but the failed files is.
    Failed,
    /// The transfer was told to stop; the same spec goes on from here.
    Stopped,
    /// The destination is full; the same spec goes on from here.
    Full,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub id: String,
    pub outcome: Outcome,
    /// Files at the destination: published by this run, or found there as they should be.
    pub files: u64,
    /// Their sizes.
    pub bytes: u64,
    /// The part of `files` that was there already.
    pub kept: u64,
    /// Bytes that this run read and wrote, without holes and reflinks.
    pub bytes_copied: u64,
    /// Sizes of files that share the blocks of their source.
    #[serde(default)]
    pub bytes_cloned: u64,
    /// The part of `bytes_copied` that was never in this process's memory.
    #[serde(default)]
    pub bytes_in_kernel: u64,
    /// The part of `files` that are further names of a file.
    pub hard_links: u64,
    pub directories: u64,
    /// Whether the whole source was counted: otherwise more is left than the report says.
    pub counted: bool,
    pub seconds: f64,
    pub failed: u64,
    pub failures: Vec<Failure>,
    /// Files and attributes that were left out on purpose, or could not be copied.
    pub noted: u64,
    pub notes: Vec<String>,
    pub left_files: u64,
    pub left_bytes: u64,
    /// Files left, without those in `failures`.
    pub left: Vec<Left>,
}

/// Why a file was not published.
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

    /// The trouble for an errno of a call that did `what` on `side`.
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

/// The bounded lists of a running transfer.
pub struct Ledger(Mutex<Lists>);

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger(Mutex::new(Rank::TransferNotes, Lists::default()))
    }
}

/// Whether there may be room for the next file.
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
