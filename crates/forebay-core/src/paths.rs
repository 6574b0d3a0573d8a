//! The names of one file, as far as they are known.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::{SmallVec, smallvec};

use crate::clock::Look;
use crate::id::FileId;

mod tree;

pub use tree::{Dir, DirId, Grown, Moving, Placed, Places, Plan, Tree, Way, Weight};

/// Every name known of a file, the most trusted first. Empty once the last one was unlinked. Nearly
/// every file has one name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paths(SmallVec<[Name; 1]>);

#[derive(Debug, Clone)]
enum Name {
    In {
        dir: Arc<Dir>,
        name: Box<OsStr>,
    },
    /// As it was read: a path, or [`IN`] with the number of a directory and the name in it.
    Read(Box<[u8]>),
}

/// With this, which no path has, a name on record begins that is in a directory with a number.
const IN: u8 = 0;

impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        match (self, other) {
            (Name::In { dir, name }, Name::In { dir: other, name: known }) => {
                Arc::ptr_eq(dir, other) && name == known
            }
            (Name::Read(bytes), Name::Read(other)) => bytes == other,
            _ => false,
        }
    }
}

impl Eq for Name {}

impl Name {
    fn of(tree: &Tree, path: &Path) -> Name {
        let dir = tree.dir(path.parent().unwrap_or(Path::new("")));
        Name::In { dir, name: path.file_name().unwrap_or_default().into() }
    }

    fn path(&self) -> PathBuf {
        match self {
            Name::In { dir, name } => dir.join(name),
            Name::Read(bytes) => match numbered(bytes) {
                // Nobody knows where that is.
                Some((dir, name)) => Path::new(&format!("(directory {:x})", dir.0)).join(name),
                None => OsStr::from_bytes(bytes).into(),
            },
        }
    }

    fn is(&self, path: &Path) -> bool {
        match self {
            Name::In { dir, name } => {
                path.file_name().unwrap_or_default() == &**name
                    && dir.is_at(path.parent().unwrap_or(Path::new("")))
            }
            Name::Read(_) => self.path() == path,
        }
    }

    fn dir(&self) -> Option<&Arc<Dir>> {
        match self {
            Name::In { dir, .. } => Some(dir),
            Name::Read(_) => None,
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Name::In { dir, name } => {
                [&[IN][..], &dir.id().0.to_le_bytes(), name.as_bytes()].concat()
            }
            Name::Read(bytes) => bytes.to_vec(),
        }
    }
}

fn numbered(bytes: &[u8]) -> Option<(DirId, &OsStr)> {
    let (number, name) = bytes.strip_prefix(&[IN])?.split_first_chunk()?;
    Some((DirId(u64::from_le_bytes(*number)), OsStr::from_bytes(name)))
}

impl Paths {
    /// So many names of a file are known here at most; the record holds all of them, and each change
    /// of one writes it. A file with more is found by these, and by its others when they are looked
    /// up; before the last that is known goes, its bytes go to the backing store.
    pub const MAX: usize = 64;

    /// Their directories know from here on that they are this file's.
    pub fn enter(&self, file: FileId) {
        tree::enter(file, Weight::None, [].into_iter(), self.entries());
    }

    /// It has none of them any more.
    pub fn leave(&self, file: FileId, weight: Weight) {
        tree::enter(file, weight, self.entries(), [].into_iter());
    }

    /// Their directories know from here on whether something of the file is durable.
    pub fn weigh(&self, weight: Weight) {
        tree::weigh(weight, self.dirs());
    }

    /// Changes the names of a file, where their directories know of it.
    pub fn change_of(&mut self, file: FileId, weight: Weight, change: impl FnOnce(&mut Paths)) {
        let before = self.clone();
        change(self);
        if *self != before {
            tree::enter(file, weight, before.entries(), self.entries());
        }
    }

    fn entries(&self) -> impl Iterator<Item = (&Arc<Dir>, &OsStr)> + Clone {
        self.0.iter().filter_map(|name| match name {
            Name::In { dir, name } => Some((dir, &**name)),
            Name::Read(_) => None,
        })
    }

    pub fn of(tree: &Tree, path: &Path) -> Paths {
        Paths(smallvec![Name::of(tree, path)])
    }

    pub fn first(&self) -> Option<PathBuf> {
        self.iter().next()
    }

    pub fn iter(&self) -> impl Iterator<Item = PathBuf> {
        self.0.iter().map(Name::path)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn has(&self, path: &Path) -> bool {
        self.0.iter().any(|name| name.is(path))
    }

    /// Whether it is the one that is trusted most.
    pub fn is_first(&self, path: &Path) -> bool {
        self.0.first().is_some_and(|name| name.is(path))
    }

    /// Whether one of them is `dir`, or below it.
    pub fn any_within(&self, dir: &Path) -> bool {
        self.iter().any(|path| path.starts_with(dir))
    }

    /// Takes in a name that is less trusted than those that are known.
    pub fn learn_also(&mut self, tree: &Tree, path: &Path) {
        if !self.has(path) && self.0.len() < Paths::MAX {
            self.0.push(Name::of(tree, path));
        }
    }

    /// Takes in the name by which it was just found: of those that are known it is the one that is sure.
    pub fn learn_first(&mut self, tree: &Tree, path: &Path) {
        match self.0.iter().position(|name| name.is(path)) {
            Some(at) => self.0[..=at].rotate_right(1),
            None => {
                self.0.truncate(Paths::MAX - 1);
                self.0.insert(0, Name::of(tree, path));
            }
        }
    }

    pub fn lose(&mut self, path: &Path) {
        self.0.retain(|name| !name.is(path));
    }

    /// Takes away those that are not to be kept.
    pub fn keep(&mut self, is_kept: impl Fn(&Path) -> bool) {
        self.0.retain(|name| is_kept(&name.path()));
    }

    /// Puts another in the place of each name for which there is one.
    pub fn change(&mut self, tree: &Tree, other: impl Fn(&Path) -> Option<PathBuf>) {
        for name in &mut self.0 {
            if let Some(other) = other(&name.path()) {
                *name = Name::of(tree, &other);
            }
        }
        // One that was found by its new name meanwhile has that already.
        let mut at = 1;
        while at < self.0.len() {
            match self.0[..at].contains(&self.0[at]) {
                true => drop(self.0.remove(at)),
                false => at += 1,
            }
        }
    }

    /// Whether a directory that one of them is in is being renamed.
    pub fn is_moving(&self) -> bool {
        self.dirs().any(|dir| dir.is_moving())
    }

    /// Whether a rename of one was or is under way since then.
    pub fn moved_since(&self, since: Look) -> bool {
        self.dirs().any(|dir| dir.moved_since(since))
    }

    /// The log's position after the last rename of a directory that one of them is in; 0 if there was
    /// none.
    pub fn moved_at(&self) -> u64 {
        self.dirs().map(|dir| dir.moved_at()).max().unwrap_or(0)
    }

    pub fn dirs(&self) -> impl Iterator<Item = &Arc<Dir>> {
        self.0.iter().filter_map(Name::dir)
    }

    /// Finds the directories of names that were read. Those of which nobody knows where they are
    /// stay as they are, if there is no other.
    pub fn settle(&mut self, grown: &mut Grown) {
        for name in &mut self.0 {
            let Name::Read(bytes) = name else { continue };
            match numbered(bytes) {
                Some((dir, leaf)) => {
                    if let Some(dir) = grown.dir(dir) {
                        *name = Name::In { dir, name: leaf.into() };
                    }
                }
                None => *name = Name::of(&grown.tree, Path::new(OsStr::from_bytes(bytes))),
            }
        }
        if self.dirs().next().is_some() {
            self.0.retain(|name| name.dir().is_some());
        }
    }
}

/// As a list of raw bytes: names need not be UTF-8.
impl Serialize for Paths {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.0.iter().map(Name::to_bytes))
    }
}

impl<'d> Deserialize<'d> for Paths {
    fn deserialize<D: Deserializer<'d>>(d: D) -> Result<Paths, D::Error> {
        let raw = Vec::<Vec<u8>>::deserialize(d)?;
        Ok(Paths(raw.into_iter().map(|bytes| Name::Read(bytes.into())).collect()))
    }
}
