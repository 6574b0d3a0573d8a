//! What goes into a core and comes out of it.

use std::path::PathBuf;
use std::time::Duration;

use forebay_backing::FileKey;
use forebay_registry::{Commit, Entry, Event, LeaseId, Outcome, Revision};

use super::End;

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
    /// The same for a program of another member, answered once the claim is there: what is acknowledged to that one is
    /// owed under it, also by a process that finds it later.
    Serve,
}

impl Access {
    pub fn writes(self) -> bool {
        self != Access::Read
    }
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
    /// What [`Ask::Create`] with this ticket was answered [`Way::Here`] for, in this directory, is made, or failed.
    Made(FileKey, Ticket),
    /// What was opened with [`Access::Write`] or [`Access::Serve`] and answered [`Way::Here`] is closed.
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
    /// Somebody waits for the claim of a new file.
    Hurry,
    /// Until then this member's lease stands: the core's clock, read *before* the lease was asked for what
    /// remains of it, and that. (A process that is stopped in between must not believe in its lease after it.)
    Lease(Duration),
    /// What hung on this member's lease is gone, whatever time that had left; another lease may follow.
    LeaseGone,
    /// Somebody in [`Keepers`] did not take a copy, or is about to be left. [`Effect::Struck`] answers.
    CopyFailed {
        ticket: Ticket,
        partner: String,
    },
    /// The partner of [`Effect::Fill`] has dropped what it had, and takes what belongs to this fill.
    FillBegun {
        partner: String,
        fill: u64,
    },
    /// What [`Effect::Fill`] came to.
    Filled {
        partner: String,
        fill: u64,
        ok: bool,
    },
    /// What [`Effect::Unfilled`] came to, if the partner says that it has nothing of this member any more.
    Dismissed {
        partner: String,
        fill: u64,
    },
    /// What [`Effect::ListCopies`] came to: each file with the number of the claim it was made under, and whether
    /// these are all that were sent here.
    Copies {
        member: String,
        files: Vec<(FileKey, u64)>,
        is_whole: bool,
    },
    /// What [`Effect::Adopt`] came to.
    Adopted {
        file: FileKey,
        ok: bool,
    },
    /// Before [`Input::Began`]: a file that stands as [`Standing::Adopted`].
    FoundAdopted {
        file: FileKey,
    },
    /// What [`Effect::DropCopies`] came to: none is left, nor under way.
    Dropped {
        member: String,
    },
    /// What [`Effect::Settle`] came to.
    Settled {
        file: FileKey,
        ok: bool,
    },
    /// After [`Effect::Superseded`]: no call to the store is outstanding, and none begins any more.
    Fenced,
    /// All files with bytes newer than the store's were given as [`Input::Created`]: what others ask is
    /// answered from here on.
    Began,
    /// Whoever opens a file to read it believes what was so no longer ago than this.
    Trust(Duration),
    Tick,
}

/// Between cores, of which the carrier adds who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// Of a file that the asker found in `dir`.
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
    /// Answered once the mirror has reached the revision, or is late.
    Reached {
        revision: Revision,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    Done,
    Holds(bool),
    Given(bool),
    /// So far the mirror has come.
    Reached(Revision),
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
    /// kernel's pages and attributes go. Claims of it may have ended by which others were its homes.
    Forget {
        file: FileKey,
        end: Option<End>,
    },
    /// Which files at or below the path this member's engine knows: answered by [`Input::Below`].
    FindBelow {
        ticket: Ticket,
        path: PathBuf,
    },
    /// This member's epoch is another's: it flushes, serves and acknowledges nothing from here on.
    /// [`Input::Fenced`] when it has stopped.
    Superseded,
    /// The partner is to drop what it has of this member and to remember this fill's number; then all durable
    /// bytes that are newer than the store's go to it. Answered by [`Input::FillBegun`] between the two, and by
    /// [`Input::Filled`].
    Fill {
        partner: String,
        fill: u64,
    },
    /// What the partner has of this member is of no use any more: a fill that is under way ends, and the
    /// partner drops all. [`Input::Dismissed`] if it has; else it is asked again later.
    Unfilled {
        partner: String,
        fill: u64,
    },
    /// `ok`: the partner counts no more, what it did not take may be acknowledged. Otherwise it may not.
    Struck {
        ticket: Ticket,
        ok: bool,
    },
    /// This member has taken another over: what copies of it are here. Answered by [`Input::Copies`], once
    /// none is being written any more.
    ListCopies {
        member: String,
    },
    /// Make the copy a file of this tier, durable here and with all in [`Keepers::required`], but neither
    /// serve nor flush it. Harmless when repeated. Answered by [`Input::Adopted`].
    Adopt {
        member: String,
        file: FileKey,
        number: u64,
    },
    /// The claim of an adopted file is this member's: it is served and flushed from here on, and stays newer
    /// than the store (copied, not evicted, not at rest) until [`Effect::Settle`]. With it those of former homes have
    /// ended.
    Taken {
        file: FileKey,
        end: End,
    },
    /// The claim of an adopted file stays another's: drop what was adopted.
    Disown {
        file: FileKey,
    },
    /// Copies of that member are of no use any more. Answered by [`Input::Dropped`].
    DropCopies {
        member: String,
    },
    /// Nobody else writes to this taken file any more: where the store differs from what was flushed, flush
    /// again; from here on it may come to rest. Answered by [`Input::Settled`].
    Settle {
        file: FileKey,
    },
    /// Another has claimed a new file of this member's, which it had not claimed yet: nobody here may go on with
    /// it as if it had not. What was written to it here ends as a conflict.
    Lost {
        file: FileKey,
    },
    /// The lease has run out, and others may have taken this member over: nothing is served, flushed or
    /// acknowledged before [`Effect::Resume`]. See [`Core::fit`](super::Core::fit) for what is checked.
    Suspend,
    Resume,
}

/// Whether this member may serve, flush and acknowledge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fitness {
    Fit,
    /// Its lease has run out, and it has partners who may have taken it over. It may go on later.
    CutOff,
    Superseded,
}

/// A partner, and the number that everything sent to it carries beside this member's epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keeper {
    pub member: String,
    pub fill: u64,
}

/// To whom copies go. To be asked for *after* what is sent is durable here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keepers {
    /// Each must have it before it is acknowledged.
    pub required: Vec<Keeper>,
    /// So must each of these, which do not count yet: one could be named, without what was sent beside its
    /// fill, before that failed. A failure ([`Input::CopyFailed`]) ends the fill; nothing is waited for then.
    pub filling: Vec<Keeper>,
    /// Gets nothing, but must be struck off before anything is acknowledged: [`Input::CopyFailed`] at once.
    pub leaving: Vec<String>,
    pub wanted: u8,
    /// There are members of another failure domain, alive or not.
    pub has_others: bool,
}

/// What a file with bytes newer than the store's, which is found in the tier at a start, is to this member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Its own, as ever: [`Input::Created`].
    Own,
    /// Its own, taken over from another: [`Input::Created`], and as after [`Effect::Taken`].
    Taken,
    /// New and not claimed yet. Its own if the store still has the version that it is based on
    /// ([`Input::Created`]); superseded otherwise.
    New,
    /// Adopted in a take-over that goes on: neither served nor flushed. [`Input::FoundAdopted`];
    /// [`Effect::Adopt`] comes again if it is needed.
    Adopted,
    /// Another took it over: not served, not flushed, not claimed; compared with what the file is now.
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
