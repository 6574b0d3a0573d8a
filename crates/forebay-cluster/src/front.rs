//! What a member asks of its own mount: the front-end implements it.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use forebay_backing::{FileKey, Result};
use serde_json::Value;

use crate::core::{Access, Ends, Holder, Process, Revision};
use crate::member::{Change, Changing, Member, Opening};
use crate::words::{Answer, Question};

/// What lasts until it is dropped: a claim that a writer needs, or a change under way.
pub type Guard = Box<dyn Any + Send + Sync>;

/// Where something is done.
pub enum Place {
    /// Here, until the guard is dropped.
    Here(Option<Guard>),
    /// At this member, which is to be asked.
    There(String),
}

/// What a mount asks of the members of its store. A [`Member`] answers in earnest; its methods of the same
/// names say more.
pub trait Cluster: Send + Sync {
    fn holder(&self, file: FileKey) -> Holder;
    /// Whether this member is its home for certain, and how far the registry was when it had the file already.
    fn vouches(&self, file: FileKey) -> Option<Revision>;
    fn is_written(&self, file: FileKey) -> bool;
    fn open(&self, file: FileKey, dir: FileKey, path: &Path, how: Access) -> Result<Place>;
    /// Whether it counts in which directory a file is opened.
    fn needs_dir(&self) -> bool;
    fn create(&self, dir: FileKey, path: &Path) -> Result<Guard>;
    fn created(&self, file: FileKey, dir: FileKey, path: &Path) -> Guard;
    fn change(&self, files: &[(FileKey, FileKey)], below: Option<&Path>) -> Result<Place>;
    /// Whether a directory's rename, for which [`Cluster::change`] gave this guard, may still be made: to be asked right
    /// before.
    fn may_rename(&self, change: &Guard) -> bool;
    /// Also names the member, whose file is replaced, that is to be asked to make the rename on the store.
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
    /// This member.
    fn name(&self) -> &str;
    /// How often a member has begun, as far as this one has heard.
    fn epoch(&self, member: &str) -> Option<u64>;
    /// The newest process of another one.
    fn process(&self, member: &str) -> Option<Process>;
    /// How far the registry was that this member has heard of.
    fn revision(&self) -> Revision;
    /// How claims of a file have ended of which the mount is still to be told by [`Front::forget`].
    fn ends(&self, file: FileKey) -> Option<Ends>;
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

    fn others(&self) -> Vec<String> {
        Member::others(self)
    }

    fn held(&self) -> Vec<FileKey> {
        Member::held(self)
    }
}

/// A home that says something of its copies: its process, and the fill by which it believes this member to have them;
/// 0 is that of an earlier process.
#[derive(Debug, Clone, Copy)]
pub struct Home<'a> {
    pub name: &'a str,
    pub epoch: u64,
    pub fill: u64,
}

/// What a home believes of who it tells of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// It has, or is sent, all that this builds upon.
    Owes,
    /// It is being filled, and is told beside.
    Beside,
}

/// Copies that are kept for one home.
#[derive(Debug, Clone, Default)]
pub struct Kept {
    /// Each with the number of the claim that it was made under.
    pub files: Vec<(FileKey, u64)>,
    /// These are all: its fill has ended, and nothing was lost since.
    pub is_whole: bool,
}

/// What the mount behind a member does with copies of newer bytes: those that it keeps for others, and its
/// own that others keep. All may wait for the tier or the store.
pub trait Keeper: Send + Sync {
    /// Keeps a copy of a file of a home's, made under the claim with this number; durable when this returns.
    /// `words` are those of the home's engine.
    ///
    /// # Errors
    ///
    /// ENOSPC if the tier has no room; ESTALE if what is kept is not what the words build upon.
    fn keep(
        &self,
        home: Home<'_>,
        told: Told,
        number: u64,
        file: FileKey,
        words: &[u8],
        bytes: &[u8],
    ) -> Result<()>;

    /// Takes what a home says of all its copies here.
    ///
    /// # Errors
    ///
    /// As [`Keeper::keep`].
    fn mark(&self, home: Home<'_>, words: &[u8]) -> Result<()>;

    /// A fill is about to begin: what is kept of the home goes, and what belongs to an older fill is refused from now
    /// on.
    ///
    /// # Errors
    ///
    /// If the tier fails; ESTALE if a newer fill was announced.
    fn begin_fill(&self, home: Home<'_>) -> Result<()>;

    /// Waits for copies of `home` that are being written, and lists what is kept.
    fn copies_of(&self, home: &str) -> Kept;

    /// Makes a copy a file of this mount's own, durably here and with its partners, that is neither served nor
    /// brought home yet. What is made so already is left as it is.
    ///
    /// # Errors
    ///
    /// If the tier fails, or has no such copy.
    fn adopt(&self, home: &str, file: FileKey) -> Result<()>;

    /// From now on an adopted file is served and brought home, and stays newer than the store until
    /// [`Keeper::settle`].
    ///
    /// # Errors
    ///
    /// If the tier fails.
    fn take(&self, file: FileKey) -> Result<()>;

    /// Drops what was adopted: its home has come back.
    ///
    /// # Errors
    ///
    /// If the tier fails, or a flush of it does not end: to be tried again.
    fn disown(&self, file: FileKey) -> Result<()>;

    fn drop_copies(&self, home: &str);

    /// The former home of an adopted file writes nothing to the store any more: what differs there from what
    /// was flushed here is flushed again.
    ///
    /// # Errors
    ///
    /// If the store does not answer: to be tried again.
    fn settle(&self, file: FileKey) -> Result<()>;

    /// Sends all newer bytes to a partner, until `stop` says so.
    ///
    /// # Errors
    ///
    /// If it does not take them; EINTR if it was stopped.
    fn fill(&self, partner: &str, stop: &dyn Fn() -> bool) -> Result<()>;

    /// While suspended nothing is brought home, and nothing is served: another may have taken this member's
    /// place.
    fn suspend(&self, is_suspended: bool);

    /// Another has: it grants the locks that this mount had granted, and who has one here hears of it.
    fn superseded(&self);

    /// Waits a while until no call to the store is under way; whether that is so.
    fn is_idle(&self) -> bool;
}

/// The daemon behind a member, as other members see it.
pub trait Desk: Send + Sync {
    /// Answers a request to its control socket: the HTTP status, and the answer. Only what members may ask.
    fn answer(&self, method: &str, path: &str, body: Value) -> (u16, Value);
}

/// The mount behind a member. Calls come from threads of the member's own, which hold none of its locks.
pub trait Front: Keeper {
    /// Brings a file's newer bytes home and says whether its claim can go: nothing is dirty, nobody has
    /// it open for writing or mapped past the daemon, no flight is under way. May take as long as the
    /// flush does.
    fn release(&self, file: FileKey) -> bool;

    /// Whether it can go as it is: as [`Front::release`], without bringing anything home.
    fn is_free(&self, file: FileKey) -> bool;

    /// What is known of the file from the store holds no longer: the next open asks the store, forced;
    /// the kernel's pages, attributes and names of it are given up. Homes that had it by claims with these `ends` have
    /// brought it to the store, or were lost; what was heard of a later one ([`Cluster::vouches`]) holds.
    fn forget(&self, file: FileKey, ends: &Ends);

    /// A new file was claimed by another before this member could: who has it open here hears of it.
    fn lost(&self, file: FileKey);

    /// Files at or below a path that the engine knows.
    fn below(&self, path: &Path) -> Vec<FileKey>;

    /// Serves a program of another member, of which this is the name and the epoch: `Open` to `Fence` of [`Question`].
    /// `bytes` came with the question; what goes with the answer is put into `out`.
    fn answer(
        &self,
        from: (&str, u64),
        question: Question,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Answer;

    /// A member is dead, or began anew: what it has open here is closed.
    fn ended(&self, member: &str);
}
