//! The inputs and effects of a core.

use std::path::PathBuf;
use std::time::Duration;

use forebay_backing::FileKey;
use forebay_registry::{Commit, Entry, Event, LeaseId, Outcome, Revision};

use super::End;

/// Stands in a commit for the lease of this member's process: keys on it go when the process dies.
pub const OWN_LEASE: LeaseId = LeaseId(u64::MAX);

/// Stands for a lease that runs out some minutes after it was taken, whichever processes live.
pub const GIVEN_LEASE: LeaseId = LeaseId(u64::MAX - 1);

/// The number of a question, by which its answer is known.
pub type Ticket = u64;

/// An operation that a program is about to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Opens a file, which lies in `dir`.
    Open { file: FileKey, dir: FileKey, path: PathBuf, how: Access },
    /// Makes files in a directory: answered [`Way::Here`] when this member may.
    Create { dir: FileKey, path: PathBuf },
    /// Changes names or attributes of these files (one file, or a renamed file and the one that it replaces), or, with
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
    /// As `Write`, for a program of another member. Answered once the claim has come: the acknowledged writes are
    /// owed under the claim, also by a process that finds the claim later.
    Serve,
}

impl Access {
    pub fn writes(self) -> bool {
        self != Access::Read
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// This member does the operation itself.
    Here,
    /// The file's home does the operation.
    There {
        home: String,
    },
    /// To [`Ask::Replace`]: this member does it, and has `home`, the home of the replaced file, make the rename on
    /// the store.
    Through {
        home: String,
    },
    Fails(Why),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// The member that holds the file is dead, and no other has its bytes.
    HomeDead(String),
    /// Another member holds the file and did not give it back.
    Busy(String),
    /// The registry did not answer in time.
    NoRegistry,
    /// This member's epoch was taken.
    Superseded,
}

#[derive(Debug, Clone)]
pub enum Input {
    Ask(Ticket, Ask),
    /// The asker of this ticket no longer waits.
    GaveUp(Ticket),
    /// A file was made in a directory, after [`Ask::Create`] was answered.
    Created {
        file: FileKey,
        dir: FileKey,
        path: PathBuf,
    },
    /// The creation that was granted by this ticket, in this directory, is done or has failed.
    Made(FileKey, Ticket),
    /// A file that was opened with [`Access::Write`] or [`Access::Serve`] and answered [`Way::Here`] is closed.
    Closed(FileKey),
    /// The change that [`Ask::Change`] or [`Ask::Replace`] was granted, by [`Way::Here`] or [`Way::Through`], is
    /// done.
    Changed(Ticket),
    /// The result of [`Effect::Release`]. Free: the file is flushed, and no program has it open for writing or
    /// mapped.
    Released {
        file: FileKey,
        is_free: bool,
    },
    Committed(Ticket, Result<Outcome, ()>),
    /// The registry's answer: no commit that has returned is newer.
    Barrier(Ticket, Result<Revision, ()>),
    /// All changes up to a revision, in order.
    Seen(Revision, Vec<Event>),
    /// The watch was torn: all keys of the store as of a revision.
    Snapshot(Revision, Vec<Entry>),
    /// The result of [`Effect::FindBelow`].
    Below(Ticket, Vec<FileKey>),
    /// A question of a peer, and the ticket by which it is answered.
    Asked(Ticket, Peer),
    /// The answer of a peer; `Err`: the peer cannot be reached.
    Answered(Ticket, Result<Reply, ()>),
    /// A caller waits for the claim of a new file.
    Hurry,
    /// This member's lease stands until this time: the core's clock, read *before* the lease's remaining time was
    /// asked for, plus that time. (A process that is stopped in between must not believe in its lease after it.)
    Lease(Duration),
    /// Everything that hung on this member's lease is gone, whatever time it had left; another lease may follow.
    LeaseGone,
    /// A member in [`Keepers`] did not take a copy, or is about to be left. [`Effect::Struck`] answers.
    CopyFailed {
        ticket: Ticket,
        partner: String,
    },
    /// The partner of [`Effect::Fill`] has dropped its old copies, and takes those of this fill.
    FillBegun {
        partner: String,
        fill: u64,
    },
    /// The result of [`Effect::Fill`].
    Filled {
        partner: String,
        fill: u64,
        ok: bool,
    },
    /// The answer to [`Effect::Unfilled`], if the partner says that it no longer has anything of this member.
    Dismissed {
        partner: String,
        fill: u64,
    },
    /// The result of [`Effect::ListCopies`]: each file with the number of the claim it was made under, and whether
    /// these are all copies that were sent here.
    Copies {
        member: String,
        files: Vec<(FileKey, u64)>,
        is_whole: bool,
    },
    /// The result of [`Effect::Adopt`].
    Adopted {
        file: FileKey,
        ok: bool,
    },
    /// Comes before [`Input::Began`]: a file that stands as [`Standing::Adopted`].
    FoundAdopted {
        file: FileKey,
    },
    /// The result of [`Effect::DropCopies`]: no copy is left, nor under way.
    Dropped {
        member: String,
    },
    /// The result of [`Effect::Settle`].
    Settled {
        file: FileKey,
        ok: bool,
    },
    /// Comes after [`Effect::Superseded`]: no call to the store is outstanding, and none begins any more.
    Fenced,
    /// All files with bytes newer than the store's were given as [`Input::Created`]: from here on the questions of
    /// others are answered.
    Began,
    /// How old a barrier may be that opens for reading still believe.
    Trust(Duration),
    Tick,
}

/// A question between cores; the carrier adds the asker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// Whether the member holds a file that the asker found in `dir`.
    Holds {
        file: FileKey,
        dir: FileKey,
    },
    Recall {
        file: FileKey,
    },
    RecallBelow {
        path: PathBuf,
    },
    Changed {
        file: FileKey,
    },
    /// Answered once the mirror has reached the revision, or lags.
    Reached {
        revision: Revision,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    Done,
    Holds(bool),
    Given(bool),
    /// The revision that the mirror has reached.
    Reached(Revision),
}

#[derive(Debug, Clone)]
pub enum Effect {
    /// The answer to the asker of the ticket.
    Answer(Ticket, Way),
    Commit(Ticket, Commit),
    Barrier(Ticket),
    Send {
        ticket: Ticket,
        to: String,
        question: Peer,
    },
    Reply(Ticket, Reply),
    /// Say whether the file is free: nothing of it is newer than the store's, and no program has it open for writing
    /// or mapped. With `flush` its newer bytes are flushed first. New writers are kept waiting here meanwhile.
    Release {
        file: FileKey,
        flush: bool,
    },
    /// Nothing known of the file from the store is valid any more: the next open asks the store, forced, and the
    /// kernel's pages and attributes go. With `end`, claims have ended by which other members were the file's homes.
    Forget {
        file: FileKey,
        end: Option<End>,
    },
    /// List the files at or below the path that this member's engine knows: answered by [`Input::Below`].
    FindBelow {
        ticket: Ticket,
        path: PathBuf,
    },
    /// Another process has this member's epoch: this one flushes, serves and acknowledges nothing from here on.
    /// [`Input::Fenced`] when it has stopped.
    Superseded,
    /// The partner is to drop its copies of this member's bytes and to remember this fill's number; then all durable
    /// bytes that are newer than the store's go to it. Answered by [`Input::FillBegun`] between the two, and by
    /// [`Input::Filled`].
    Fill {
        partner: String,
        fill: u64,
    },
    /// The partner's copies of this member's bytes are of no use any more: a fill that is under way ends, and the
    /// partner drops all. [`Input::Dismissed`] if it has; otherwise it is asked again later.
    Unfilled {
        partner: String,
        fill: u64,
    },
    /// `ok`: the partner no longer counts, and bytes that it did not take may be acknowledged. Otherwise they may
    /// not.
    Struck {
        ticket: Ticket,
        ok: bool,
    },
    /// This member has taken another over: list the copies of that member's files here. Answered by
    /// [`Input::Copies`], once no copy is being written any more.
    ListCopies {
        member: String,
    },
    /// Make the copy a file of this tier, durable here and with all in [`Keepers::required`], but neither
    /// serve nor flush it. Harmless when repeated. Answered by [`Input::Adopted`].
    Adopt {
        member: String,
        file: FileKey,
    },
    /// The claim of an adopted file is this member's: from here on the file is served and flushed, and stays newer
    /// than the store (copied, not evicted, not at rest) until [`Effect::Settle`]. The claims of former homes have
    /// ended with it.
    Taken {
        file: FileKey,
        end: End,
    },
    /// The claim of an adopted file stays another's: drop what was adopted.
    Disown {
        file: FileKey,
    },
    /// Copies of that member's files are of no use any more. Answered by [`Input::Dropped`].
    DropCopies {
        member: String,
    },
    /// No other member writes to this taken file any more: where the store differs from what was flushed, flush
    /// again; from here on the file may come to rest. Answered by [`Input::Settled`].
    Settle {
        file: FileKey,
    },
    /// Another member has claimed a new file that this one had made and not claimed yet: programs here must not go on
    /// as if it had not. Bytes that were written to it here end as a conflict.
    Lost {
        file: FileKey,
    },
    /// The lease has run out, and others may have taken this member over: nothing is served, flushed or acknowledged
    /// before [`Effect::Resume`]. [`Core::fit`](super::Core::fit) says what is checked.
    Suspend,
    Resume,
}

/// Whether this member may serve, flush and acknowledge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fitness {
    Fit,
    /// The member's lease has run out, and it has partners that may have taken it over. It may go on later.
    CutOff,
    Superseded,
}

/// A partner, and the number that everything sent to it carries beside this member's epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keeper {
    pub member: String,
    pub fill: u64,
}

/// The receivers of copies. To be asked for *after* the bytes to send are durable here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keepers {
    /// Each of these must have the bytes before they are acknowledged.
    pub required: Vec<Keeper>,
    /// Each of these, too, though they do not count yet: a partner could be named without the bytes that were sent
    /// beside its fill, before the sending failed. A failure ([`Input::CopyFailed`]) ends the fill; nothing is waited
    /// for then.
    pub filling: Vec<Keeper>,
    /// These get nothing, but must be struck off before anything is acknowledged: [`Input::CopyFailed`] at once.
    pub leaving: Vec<String>,
    pub wanted: u8,
    /// There are members of another failure domain, alive or not.
    pub has_others: bool,
}

/// The standing of a file with bytes newer than the store's that is found in the tier at a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The file is this member's own, as before: [`Input::Created`].
    Own,
    /// This member's own, taken over from another: [`Input::Created`], and as after [`Effect::Taken`].
    Taken,
    /// New and not claimed yet, and others may have taken it over and given it back. This member's own if the store
    /// still has the version on which it is based ([`Input::Created`]); superseded otherwise.
    New,
    /// Adopted in a take-over that goes on: neither served nor flushed. [`Input::FoundAdopted`];
    /// [`Effect::Adopt`] comes again if it is needed.
    Adopted,
    /// Another member took the file over: not served, not flushed, not claimed; compared with what the file is now.
    Superseded,
}

/// The holder of newer bytes of a file, as far as this member has heard: at most as old as the watch lags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    Nobody,
    Here,
    There(String),
    /// The member that holds the file is dead.
    Dead(String),
}
