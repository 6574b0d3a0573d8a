//! What a member asks of its own mount: the front-end implements it.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;

use forebay_backing::{FileKey, Result};

use crate::core::{Access, Holder};
use crate::member::{Changing, Member, Opening};
use crate::words::{Answer, Question};

/// What lasts until it is dropped: a claim that a writer needs, or a change under way.
pub type Guard = Box<dyn Any + Send + Sync>;

/// Where something is done.
pub enum Place {
    /// Here, until the guard is dropped.
    Here(Option<Guard>),
    /// At this member, which is to be asked.
    There(String),
    /// Here, until the guard is dropped; but this member, whose file is replaced, is asked to make the rename
    /// on the store.
    Through(String, Guard),
}

/// What a mount asks of the members of its store. A [`Member`] answers in earnest; its methods of the same
/// names say more.
pub trait Cluster: Send + Sync {
    fn holder(&self, file: FileKey) -> Holder;
    fn open(&self, file: FileKey, dir: FileKey, path: &Path, how: Access) -> Result<Place>;
    fn create(&self, dir: FileKey, path: &Path) -> Result<Guard>;
    fn created(&self, file: FileKey, dir: FileKey, path: &Path) -> Guard;
    fn change(&self, files: &[(FileKey, FileKey)], below: Option<&Path>) -> Result<Place>;
    fn replace(
        &self,
        file: (FileKey, FileKey),
        over: (FileKey, FileKey),
        at: &Path,
    ) -> Result<Place>;
    fn ask(
        &self,
        home: &str,
        question: &Question,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Answer>;
}

fn place(changing: Changing) -> Place {
    match changing {
        Changing::Here(change) => Place::Here(Some(Box::new(change))),
        Changing::There(home) => Place::There(home),
        Changing::Through(home, change) => Place::Through(home, Box::new(change)),
    }
}

impl Cluster for Arc<Member> {
    fn holder(&self, file: FileKey) -> Holder {
        Member::holder(self, file)
    }

    fn open(&self, file: FileKey, dir: FileKey, path: &Path, how: Access) -> Result<Place> {
        Ok(match Member::open(self, file, dir, path, how)? {
            Opening::Here(held) => Place::Here(held.map(|held| Box::new(held) as Guard)),
            Opening::There(home) => Place::There(home),
        })
    }

    fn create(&self, dir: FileKey, path: &Path) -> Result<Guard> {
        Ok(Box::new(Member::create(self, dir, path)?))
    }

    fn created(&self, file: FileKey, dir: FileKey, path: &Path) -> Guard {
        Box::new(Member::created(self, file, dir, path))
    }

    fn change(&self, files: &[(FileKey, FileKey)], below: Option<&Path>) -> Result<Place> {
        Ok(place(Member::change(self, files, below)?))
    }

    fn replace(
        &self,
        file: (FileKey, FileKey),
        over: (FileKey, FileKey),
        at: &Path,
    ) -> Result<Place> {
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
}

/// The mount behind a member. Calls come from threads of the member's own, which hold none of its locks.
pub trait Front: Send + Sync {
    /// Brings a file's newer bytes home and says whether its claim can go: nothing is dirty, nobody has
    /// it open for writing or mapped past the daemon, no flight is under way. May take as long as the
    /// flush does.
    fn release(&self, file: FileKey) -> bool;

    /// Whether it can go as it is: as [`Front::release`], without bringing anything home.
    fn is_free(&self, file: FileKey) -> bool;

    /// What is known of the file from the store holds no longer: the next open asks the store, forced;
    /// the kernel's pages, attributes and names of it are given up.
    fn forget(&self, file: FileKey);

    /// Files at or below a path that the engine knows.
    fn below(&self, path: &Path) -> Vec<FileKey>;

    /// Serves a program of another member: `Open` to `Name` of [`Question`]. `bytes` came with the
    /// question; what goes with the answer is put into `out`.
    fn answer(&self, from: &str, question: Question, bytes: &[u8], out: &mut Vec<u8>) -> Answer;

    /// A member is dead, or began anew: what it has open here is closed.
    fn ended(&self, member: &str);
}
