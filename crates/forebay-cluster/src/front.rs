//! The interface between a member and its own mount: the front-end implements it.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use forebay_backing::{FileKey, Result};
use serde_json::Value;

use crate::core::{Access, Ends, Holder, Process, Revision, taken_from};
use crate::keys::TakenFrom;
use crate::member::{Change, Changing, Member, Opening};
use crate::words::{Answer, Question};

/// A guard that lasts until it is dropped: a claim that a writer needs, or a change under way.
pub type Guard = Box<dyn Any + Send + Sync>;

/// The place where an operation is done.
pub enum Place {
    /// Here, until the guard is dropped.
    Here(Option<Guard>),
    /// At this member, which the caller has to ask.
    There(String),
}

/// The questions of a mount to the members of its store. A [`Member`] implements it; its methods of the same names
/// say more.
pub trait Cluster: Send + Sync {
    fn holder(&self, file: FileKey) -> Holder;
    /// Checks that this member is the file's home for certain; returns a registry revision at which the member had the
    /// file.
    fn vouches(&self, file: FileKey) -> Option<Revision>;
    fn is_written(&self, file: FileKey) -> bool;
    fn open(&self, file: FileKey, dir: FileKey, path: &Path, how: Access) -> Result<Place>;
    /// Whether it matters in which directory a file is opened.
    fn needs_dir(&self) -> bool;
    fn create(&self, dir: FileKey, path: &Path) -> Result<Guard>;
    fn created(&self, file: FileKey, dir: FileKey, path: &Path) -> Guard;
    fn change(&self, files: &[(FileKey, FileKey)], below: Option<&Path>) -> Result<Place>;
    /// Whether a directory's rename, for which [`Cluster::change`] gave this guard, may still be made: to be asked
    /// right before the rename.
    fn may_rename(&self, change: &Guard) -> bool;
    /// Also returns the member to ask to make the rename on the store: the home of the replaced file.
    fn replace(
        &self,
        file: (FileKey, FileKey),
        over: (FileKey, FileKey),
        at: &Path,
    ) -> Result<(Place, Option<String>)>;
    fn ask(
        &self,
        home: &str,
        question: &Question,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Answer>;
    fn wait_fit(&self) -> Result<()>;
    fn is_fit(&self) -> bool;
    fn has_heirs(&self, home: &str) -> bool;
    /// The name of this member.
    fn name(&self) -> &str;
    /// How often a member has begun, as far as this member has heard.
    fn epoch(&self, member: &str) -> Option<u64>;
    /// The newest process of another member.
    fn process(&self, member: &str) -> Option<Process>;
    /// The newest registry revision that this member has heard of.
    fn revision(&self) -> Revision;
    /// The ends of a file's claims that the mount is still to be told of by [`Front::forget`].
    fn ends(&self, file: FileKey) -> Option<Ends>;
    /// The life of this member before this one, if another member took its place.
    fn taken_life(&self) -> Option<u64>;
    /// The former homes that this member has taken a file of its own from, the first one first.
    fn taken_from(&self, file: FileKey) -> Vec<TakenFrom>;
    /// The other members that are alive.
    fn others(&self) -> Vec<String>;
    /// Files that this member holds.
    fn held(&self) -> Vec<FileKey>;
}

fn place(changing: Changing) -> (Place, Option<String>) {
    match changing {
        Changing::Here(change) => (Place::Here(Some(Box::new(change))), None),
        Changing::There(home) => (Place::There(home), None),
        Changing::Through(home, change) => (Place::Here(Some(Box::new(change))), Some(home)),
    }
}

impl Cluster for Arc<Member> {
    fn holder(&self, file: FileKey) -> Holder {
        Member::holder(self, file)
    }

    fn vouches(&self, file: FileKey) -> Option<Revision> {
        Member::vouches(self, file)
    }

    fn is_written(&self, file: FileKey) -> bool {
        Member::is_written(self, file)
    }

    fn open(&self, file: FileKey, dir: FileKey, path: &Path, how: Access) -> Result<Place> {
        Ok(match Member::open(self, file, dir, path, how)? {
            Opening::Here(held) => Place::Here(held.map(|held| Box::new(held) as Guard)),
            Opening::There(home) => Place::There(home),
        })
    }

    fn needs_dir(&self) -> bool {
        Member::needs_dir(self)
    }

    fn create(&self, dir: FileKey, path: &Path) -> Result<Guard> {
        Ok(Box::new(Member::create(self, dir, path)?))
    }

    fn created(&self, file: FileKey, dir: FileKey, path: &Path) -> Guard {
        Box::new(Member::created(self, file, dir, path))
    }

    fn change(&self, files: &[(FileKey, FileKey)], below: Option<&Path>) -> Result<Place> {
        Ok(place(Member::change(self, files, below)?).0)
    }

    fn may_rename(&self, change: &Guard) -> bool {
        (**change).downcast_ref::<Change>().is_none_or(Change::may_rename)
    }

    fn replace(
        &self,
        file: (FileKey, FileKey),
        over: (FileKey, FileKey),
        at: &Path,
    ) -> Result<(Place, Option<String>)> {
        Ok(place(Member::replace(self, file, over, at)?))
    }

    fn ask(
        &self,
        home: &str,
        question: &Question,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Answer> {
        Member::ask(self, home, question, bytes, out)
    }

    fn wait_fit(&self) -> Result<()> {
        Member::wait_fit(self)
    }

    fn is_fit(&self) -> bool {
        Member::is_fit(self)
    }

    fn has_heirs(&self, home: &str) -> bool {
        Member::has_heirs(self, home)
    }

    fn name(&self) -> &str {
        Member::name(self)
    }

    fn epoch(&self, member: &str) -> Option<u64> {
        self.epoch_of(member)
    }

    fn process(&self, member: &str) -> Option<Process> {
        self.process_of(member)
    }

    fn revision(&self) -> Revision {
        Member::revision(self)
    }

    fn ends(&self, file: FileKey) -> Option<Ends> {
        Member::ends(self, file)
    }

    fn taken_life(&self) -> Option<u64> {
        self.taken_life
    }

    fn taken_from(&self, file: FileKey) -> Vec<TakenFrom> {
        taken_from(&self.core.lock(), file)
    }

    fn others(&self) -> Vec<String> {
        Member::others(self)
    }

    fn held(&self) -> Vec<FileKey> {
        Member::held(self)
    }
}

/// The home that sends a message about its copies.
#[derive(Debug, Clone, Copy)]
pub struct Home<'a> {
    pub name: &'a str,
    /// The epoch of the home's process.
    pub epoch: u64,
    /// The fill by which the home believes this member to have the copies; 0 for the fill of an earlier process.
    pub fill: u64,
}

/// How far a home believes the member to be to which it sends a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// The member has, or is sent, everything that the copy builds upon.
    Owes,
    /// The member is being filled, and gets the copy beside the fill.
    Beside,
}

/// Copies that are kept for one home.
#[derive(Debug, Clone, Default)]
pub struct Kept {
    /// Each file with the number of the claim that it was made under.
    pub files: Vec<(FileKey, u64)>,
    /// These are all copies: their fill has ended, and nothing was lost since.
    pub is_whole: bool,
}

/// The handling of copies of newer bytes by the mount behind a member: copies that it keeps for others, and its own
/// that others keep. All methods may wait for the tier or the store.
pub trait Keeper: Send + Sync {
    /// Keeps a copy of a file of a home's, made under the claim with this number; durable when this returns.
    /// `words` are those of the home's engine.
    ///
    /// # Errors
    ///
    /// ENOSPC if the tier has no room; ESTALE if the kept copy is not what the words build upon.
    fn keep(
        &self,
        home: Home<'_>,
        told: Told,
        number: u64,
        file: FileKey,
        words: &[u8],
        bytes: &[u8],
    ) -> Result<()>;

    /// Takes a message of a home about all its copies here.
    ///
    /// # Errors
    ///
    /// As [`Keeper::keep`].
    fn mark(&self, home: Home<'_>, words: &[u8]) -> Result<()>;

    /// A fill is about to begin: the copies kept for the home go, and those of an older fill are refused from now on.
    ///
    /// # Errors
    ///
    /// If the tier fails; ESTALE if a newer fill was announced.
    fn begin_fill(&self, home: Home<'_>) -> Result<()>;

    /// Waits for copies of `home` that are being written, and lists the copies kept.
    fn copies_of(&self, home: &str) -> Kept;

    /// Makes a copy a file of this mount's own, durably here and with its partners, that is neither served nor
    /// flushed yet. A file that was adopted already is left as it is.
    ///
    /// # Errors
    ///
    /// If the tier fails, or has no such copy.
    fn adopt(&self, home: &str, file: FileKey) -> Result<()>;

    /// From now on an adopted file is served and flushed, and stays newer than the store until [`Keeper::settle`].
    ///
    /// # Errors
    ///
    /// If the tier fails.
    fn take(&self, file: FileKey) -> Result<()>;

    /// Drops an adopted file: its home has come back.
    ///
    /// # Errors
    ///
    /// If the tier fails, or a flush of the file does not end: to be tried again.
    fn disown(&self, file: FileKey) -> Result<()>;

    fn drop_copies(&self, home: &str);

    /// The former home of an adopted file no longer writes to the store: where the store differs from what was
    /// flushed here, the file is flushed again.
    ///
    /// # Errors
    ///
    /// If the store does not answer: to be tried again.
    fn settle(&self, file: FileKey) -> Result<()>;

    /// Sends all newer bytes to a partner, until `stop` returns true.
    ///
    /// # Errors
    ///
    /// If the partner does not take them; EINTR if the fill was stopped.
    fn fill(&self, partner: &str, stop: &dyn Fn() -> bool) -> Result<()>;

    /// While suspended nothing is flushed or served: another member may have taken this one's place.
    fn suspend(&self, is_suspended: bool);

    /// Another member has taken this one's place: it grants the locks that this mount had granted, and programs with
    /// a lock here hear of that.
    fn superseded(&self);

    /// Waits a while until no call to the store is under way; returns whether that is so.
    fn is_idle(&self) -> bool;
}

/// The daemon of a member, as other members see it.
pub trait Desk: Send + Sync {
    /// Answers a request to its control socket: the HTTP status, and the answer. Serves only the requests that
    /// members may make.
    fn answer(&self, method: &str, path: &str, body: Value) -> (u16, Value);
}

/// The mount behind a member. Its callers are threads of the member, which hold none of the member's locks.
pub trait Front: Keeper {
    /// Flushes a file's newer bytes and says whether its claim can go: nothing is dirty, no program has the file open
    /// for writing or mapped past the daemon, no flight is under way. May take as long as the flush does.
    fn release(&self, file: FileKey) -> bool;

    /// Whether the claim can go as things are: as [`Front::release`], without a flush.
    fn is_free(&self, file: FileKey) -> bool;

    /// Forgets everything that is known of the file from the store: the next open asks the store, forced; the kernel's
    /// pages, attributes and names of the file are given up. Homes that had the file by claims with these `ends` have
    /// flushed it, or were lost. News of a later claim ([`Cluster::vouches`]) stays valid.
    fn forget(&self, file: FileKey, ends: &Ends);

    /// Another member claimed a new file before this member could: programs that have it open here hear of that.
    fn lost(&self, file: FileKey);

    /// Files at or below a path that the engine knows.
    fn below(&self, path: &Path) -> Vec<FileKey>;

    /// Serves a program of another member, given by name and epoch: `Open` to `Fence` of [`Question`]. `bytes` came
    /// with the question; bytes that go with the answer are put into `out`.
    fn answer(
        &self,
        from: (&str, u64),
        question: Question,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Answer;

    /// A member is dead, or began anew: the files that it has open here are closed.
    fn ended(&self, member: &str);
}
