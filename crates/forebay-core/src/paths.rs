//! The names of one file, as far as they are known.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::{SmallVec, smallvec};

use crate::clock::Look;
use crate::id::FileId;

mod tree;

pub use tree::{Dir, DirId, Grown, Moving, Placed, Places, Plan, Tree, Way, Weight};

/// Every known name of a file, the most trusted first. Empty once the last name was unlinked. Nearly
/// every file has one name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paths(SmallVec<[Name; 1]>);

#[derive(Debug, Clone)]
enum Name {
    In {
        dir: Arc<Dir>,
        name: Box<OsStr>,
    },
    /// A name as it is on record: the number of a directory, and the name in it.
    Read {
        dir: DirId,
        name: Box<OsStr>,
    },
}

/// The first byte of a recorded name.
const IN: u8 = 0;

impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        match (self, other) {
            (Name::In { dir, name }, Name::In { dir: other, name: known }) => {
                Arc::ptr_eq(dir, other) && name == known
            }
            (Name::Read { dir, name }, Name::Read { dir: other, name: known }) => {
                dir == other && name == known
            }
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

    fn read(bytes: &[u8]) -> Option<Name> {
        let (number, name) = bytes.strip_prefix(&[IN])?.split_first_chunk()?;
        let dir = DirId(u64::from_le_bytes(*number));
        Some(Name::Read { dir, name: OsStr::from_bytes(name).into() })
    }

    fn path(&self) -> PathBuf {
        match self {
            Name::In { dir, name } => dir.join(name),
            // The place of the directory is unknown.
            Name::Read { dir, name } => {
                Path::new(&format!("(directory {:x})", dir.0)).join(&**name)
            }
        }
    }

    fn is(&self, path: &Path) -> bool {
        match self {
            Name::In { dir, name } => {
                path.file_name().unwrap_or_default() == &**name
                    && dir.is_at(path.parent().unwrap_or(Path::new("")))
            }
            Name::Read { .. } => self.path() == path,
        }
    }

    fn dir(&self) -> Option<&Arc<Dir>> {
        match self {
            Name::In { dir, .. } => Some(dir),
            Name::Read { .. } => None,
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let (dir, name) = match self {
            Name::In { dir, name } => (dir.id(), name),
            Name::Read { dir, name } => (*dir, name),
        };
        [&[IN][..], &dir.0.to_le_bytes(), name.as_bytes()].concat()
    }
}

impl Paths {
    /// The most names of a file that are known here; the record holds all of them, and each change of
    /// one writes it. A file with more names is found by these, and by the others when they are looked
    /// up; before the last known name is removed, the file's bytes go to the backing store.
    pub const MAX: usize = 64;

    /// Enters the file's names in their directories.
    pub fn enter(&self, file: FileId) {
        tree::enter(file, Weight::None, [].into_iter(), self.entries());
    }

    /// Removes the file's names from their directories.
    pub fn leave(&self, file: FileId, weight: Weight) {
        tree::enter(file, weight, self.entries(), [].into_iter());
    }

    /// Tells the directories whether the file has durable bytes from here on.
    pub fn weigh(&self, weight: Weight) {
        tree::weigh(weight, self.dirs());
    }

    /// Changes the names of a file, and updates their directories.
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
            Name::Read { .. } => None,
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

    /// Whether `path` is the most trusted name.
    pub fn is_first(&self, path: &Path) -> bool {
        self.0.first().is_some_and(|name| name.is(path))
    }

    /// Whether a name is `dir`, or below it.
    pub fn any_within(&self, dir: &Path) -> bool {
        self.iter().any(|path| path.starts_with(dir))
    }

    /// Adds a name that is less trusted than the known ones.
    pub fn learn_also(&mut self, tree: &Tree, path: &Path) {
        if !self.has(path) && self.0.len() < Paths::MAX {
            self.0.push(Name::of(tree, path));
        }
    }

    /// Moves the name by which the file was just found to the front: of the known names this one is
    /// sure.
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

    /// Removes the names that are not to be kept.
    pub fn keep(&mut self, is_kept: impl Fn(&Path) -> bool) {
        self.0.retain(|name| is_kept(&name.path()));
    }

    /// Replaces each name for which `other` gives one.
    pub fn change(&mut self, tree: &Tree, other: impl Fn(&Path) -> Option<PathBuf>) {
        for name in &mut self.0 {
            if let Some(other) = other(&name.path()) {
                *name = Name::of(tree, &other);
            }
        }
        // A file that was found by its new name meanwhile has that name already.
        let mut at = 1;
        while at < self.0.len() {
            match self.0[..at].contains(&self.0[at]) {
                true => drop(self.0.remove(at)),
                false => at += 1,
            }
        }
    }

    /// Whether a directory above a name is being renamed.
    pub fn is_moving(&self) -> bool {
        self.dirs().any(|dir| dir.is_moving())
    }

    /// Whether a rename of a directory above a name was or is under way since then.
    pub fn moved_since(&self, since: Look) -> bool {
        self.dirs().any(|dir| dir.moved_since(since))
    }

    /// The log's position after the last rename of a directory above a name; 0 if there was none.
    pub fn moved_at(&self) -> u64 {
        self.dirs().map(|dir| dir.moved_at()).max().unwrap_or(0)
    }

    pub fn dirs(&self) -> impl Iterator<Item = &Arc<Dir>> {
        self.0.iter().filter_map(Name::dir)
    }

    /// Finds the directories of recorded names. A name whose directory's place is unknown stays as it
    /// is, if the file has no other.
    pub fn settle(&mut self, grown: &mut Grown) {
        for name in &mut self.0 {
            if let Name::Read { dir, name: leaf } = name
                && let Some(dir) = grown.dir(*dir)
            {
                *name = Name::In { dir, name: std::mem::take(leaf) };
            }
        }
        if self.dirs().next().is_some() {
            self.0.retain(|name| name.dir().is_some());
        }
    }
}

/// Serialized as a list of raw bytes: names need not be UTF-8.
impl Serialize for Paths {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(self.0.iter().map(Name::to_bytes))
    }
}

impl<'d> Deserialize<'d> for Paths {
    fn deserialize<D: Deserializer<'d>>(d: D) -> Result<Paths, D::Error> {
        let raw = Vec::<Vec<u8>>::deserialize(d)?;
        let names = raw.iter().map(|bytes| Name::read(bytes));
        let names: Option<_> = names.collect();
        names.map(Paths).ok_or_else(|| D::Error::custom("a name in no directory"))
    }
}
