//! The names of one file, as far as they are known.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::{SmallVec, smallvec};

/// Every name known of a file, the most trusted first. Empty once the last one was unlinked. Nearly
/// every file has one name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paths(SmallVec<[Box<Path>; 1]>);

impl Paths {
    /// So many names of a file are known here at most; the record holds all of them, and each change
    /// of one writes it. A file with more is found by these, and by its others when they are looked
    /// up; before the last that is known goes, its bytes go to the backing store.
    pub const MAX: usize = 64;

    pub fn of(path: &Path) -> Paths {
        Paths(smallvec![path.into()])
    }

    pub fn first(&self) -> Option<PathBuf> {
        self.iter().next()
    }

    pub fn iter(&self) -> impl Iterator<Item = PathBuf> {
        self.0.iter().map(|path| path.to_path_buf())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn has(&self, path: &Path) -> bool {
        self.0.iter().any(|known| **known == *path)
    }

    /// Whether one of them is `dir`, or below it.
    pub fn any_within(&self, dir: &Path) -> bool {
        self.0.iter().any(|path| path.starts_with(dir))
    }

    /// Takes in a name that is less trusted than those that are known.
    pub fn learn_also(&mut self, name: &Path) {
        if !self.has(name) && self.0.len() < Paths::MAX {
            self.0.push(name.into());
        }
    }

    /// Takes in the name by which it was just found.
    pub fn learn_first(&mut self, name: &Path) {
        if !self.has(name) {
            self.0.truncate(Paths::MAX - 1);
            self.0.insert(0, name.into());
        }
    }

    pub fn lose(&mut self, name: &Path) {
        self.0.retain(|known| **known != *name);
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes away those that are not to be kept.
    pub fn keep(&mut self, is_kept: impl Fn(&Path) -> bool) {
        self.0.retain(|known| is_kept(known));
    }

    /// Puts another in the place of each name for which there is one.
    pub fn change(&mut self, other: impl Fn(&Path) -> Option<PathBuf>) {
        for known in &mut self.0 {
            if let Some(other) = other(known) {
                *known = other.into();
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
}

/// As a list of raw bytes: names need not be UTF-8.
impl Serialize for Paths {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let raw: Vec<&[u8]> = self.0.iter().map(|path| path.as_os_str().as_bytes()).collect();
        raw.serialize(s)
    }
}

impl<'d> Deserialize<'d> for Paths {
    fn deserialize<D: Deserializer<'d>>(d: D) -> Result<Paths, D::Error> {
        let raw = Vec::<Vec<u8>>::deserialize(d)?;
        let path = |bytes| PathBuf::from(OsString::from_vec(bytes)).into_boxed_path();
        Ok(Paths(raw.into_iter().map(path).collect()))
    }
}
