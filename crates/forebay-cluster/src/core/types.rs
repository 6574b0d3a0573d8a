//! What goes into a core and comes out of it.

use std::path::PathBuf;
use std::time::Duration;

use forebay_backing::FileKey;
use forebay_registry::{Commit, Entry, Event, LeaseId, Outcome, Revision};

/// Stands in a commit for the lease of this member's process: its keys go when it dies.
pub const OWN_LEASE: LeaseId = LeaseId(u64::MAX);

/// Stands for a lease that runs out some minutes after it was taken, whoever lives.
pub const GIVEN_LEASE: LeaseId = LeaseId(u64::MAX - 1);

/// Numbers what was asked, so that its answer is known.
pub type Ticket = u64;

/// What a program is about to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Opens a file, which lies in `dir`.
    Open { file: FileKey, dir: FileKey, path: PathBuf, how: Access },
    /// Makes files in a directory: answered [`Way::Here`] when this member may.
    Create { dir: FileKey, path: PathBuf },
    /// Changes names or attributes of these files (one, or what is renamed and what it replaces), or, with
    /// `below`, renames a directory.
    Change { files: Vec<FileKey>, dirs: Vec<FileKey>, below: Option<PathBuf> },
    /// Renames the first of two files over the second, which is at `at` and loses that name. Each is given
    /// with its directory.
    Replace { files: [FileKey; 2], dirs: [FileKey; 2], at: PathBuf },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    /// Held until [`Input::Closed`].
    Write,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// This member does it itself.
    Here,
    /// Its home does.
    There {
        home: String,
    },
    /// To [`Ask::Replace`]: this member does it, and has `home`, whose file is replaced, make the rename on
    /// the store.
    Through {
        home: String,
    },
    Fails(Why),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// The member that holds it is dead, and nobody has its bytes.
    HomeDead(String),
    /// It is held elsewhere and was not given back.
    Busy(String),
    /// The registry did not answer in time.
    NoRegistry,
    /// This member's epoch was taken.
    Superseded,
}

#[derive(Debug, Clone)]
pub enum Input {
    Ask(Ticket, Ask),
    /// Who asked no longer waits.
    GaveUp(Ticket),
    /// A file was made in a directory, after [`Ask::Create`] was answered.
    Created {
        file: FileKey,
        dir: FileKey,
        path: PathBuf,
    },
    /// What [`Ask::Create`] was answered [`Way::Here`] for is made, or failed.
    Made(FileKey),
    /// What was opened with [`Access::Write`] and answered [`Way::Here`] is closed.
    Closed(FileKey),
    /// What [`Ask::Change`] was answered [`Way::Here`] for, or [`Ask::Replace`] that or [`Way::Through`], is
    /// done.
    Changed(Ticket),
    /// What [`Effect::Release`] came to: it is flushed, nobody has it open for writing or mapped.
    Released {
        file: FileKey,
        is_free: bool,
    },
    Committed(Ticket, Result<Outcome, ()>),
    /// The registry said that no commit that has returned is newer.
    Barrier(Ticket, Result<Revision, ()>),
    /// All changes up to a revision, in order.
    Seen(Revision, Vec<Event>),
    /// The watch was torn: all keys of the store as of a revision.
    Snapshot(Revision, Vec<Entry>),
    /// What [`Effect::FindBelow`] came to.
    Below(Ticket, Vec<FileKey>),
    /// What a peer asks, and by which ticket it is answered.
    Asked(Ticket, Peer),
    /// What a peer answered; `Err`: it cannot be reached.
    Answered(Ticket, Result<Reply, ()>),
    /// So long this member's lease stands still.
    Lease(Duration),
    /// All files with bytes newer than the store's were given as [`Input::Created`]: what others ask is
    /// answered from here on.
    Began,
    Tick,
}

/// Between cores, of which the carrier adds who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    Holds { file: FileKey },
    Recall { file: FileKey },
    RecallBelow { path: PathBuf },
    Changed { file: FileKey },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    Done,
    Holds(bool),
    Given(bool),
}

#[derive(Debug, Clone)]
pub enum Effect {
    /// To who asked.
    Answer(Ticket, Way),
    Commit(Ticket, Commit),
    Barrier(Ticket),
    Send {
        ticket: Ticket,
        to: String,
        question: Peer,
    },
    Reply(Ticket, Reply),
    /// Say whether the file is free: nothing of it is newer than the store's, nobody has it open for
    /// writing or mapped. With `flush` its newer bytes are brought home first. New writers are kept waiting
    /// here meanwhile.
    Release {
        file: FileKey,
        flush: bool,
    },
    /// Nothing that is known of the file from the store holds: the next open asks it, forced, and the
    /// kernel's pages and attributes go.
    Forget {
        file: FileKey,
    },
    /// Which files at or below the path this member's engine knows: answered by [`Input::Below`].
    FindBelow {
        ticket: Ticket,
        path: PathBuf,
    },
    /// This member's epoch is another's: it flushes, serves and acknowledges nothing from here on.
    Superseded,
}

/// Who holds newer bytes of a file, as far as this member has heard: at most as old as the watch lags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    Nobody,
    Here,
    There(String),
    /// Its member is dead.
    Dead(String),
}
