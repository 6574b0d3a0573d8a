//! Which extended attributes files have, as lately as that is told of their other attributes.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_backing::FileKey;

use super::{Answers, KEYS, Memory, Moment, Said};

/// So long whoever asked for what is not there is taken to go on.
const GOES_ON: Duration = Duration::from_secs(10);

/// So many files of one directory are asked about at once.
const WINDOW: usize = 256;

/// The names of a file's extended attributes.
pub struct Xattrs {
    names: Box<[OsString]>,
    key: FileKey,
    asked: Moment,
    at: Instant,
}

/// Whether programs ask for extended attributes that are not there, as `ls -l` does of each file.
#[derive(Default)]
pub struct Absences(Option<Instant>);

impl Answers {
    /// Whether a file has this extended attribute; `None` if that is not known.
    pub fn has_xattr(&self, path: &Path, name: &OsStr) -> Option<bool> {
        Some(self.memory().xattrs(path)?.iter().any(|known| known == name))
    }

    pub fn xattrs(&self, path: &Path) -> Option<Vec<OsString>> {
        self.memory().xattrs(path).map(<[OsString]>::to_vec)
    }

    pub fn hear_xattrs(&self, path: &Path, asked: Moment, key: FileKey, names: Vec<OsString>) {
        let mut memory = self.memory();
        let floor = memory.floor;
        let name = memory.name(path);
        if asked >= name.floor && asked >= floor {
            let (names, at) = (names.into(), Instant::now());
            name.since = at;
            name.xattrs = Some(Xattrs { names, key, asked, at });
        }
    }

    /// The store was asked for one extended attribute, which is there or not.
    pub fn note_absence(&self, is_absent: bool) {
        self.memory().absences.0 = is_absent.then(Instant::now);
    }

    /// Whether the next to be asked for will not be there, either.
    pub fn foresees_absence(&self) -> bool {
        self.memory().absences.0.is_some_and(|at| at.elapsed() < GOES_ON)
    }

    /// Other files of a directory that were told of, but not their extended attributes; they count as being
    /// asked for.
    pub fn without_xattrs(&self, dir: &Path) -> Vec<PathBuf> {
        let mut memory = self.memory();
        let Some(list) = memory.list(dir) else { return Vec::new() };
        let paths: Vec<PathBuf> = list.names.keys().map(|name| dir.join(name)).collect();
        let mut without = Vec::new();
        for path in paths {
            let is_known = memory.xattrs(&path).is_some();
            let Some(name) = memory.names.get_mut(&path) else { continue };
            let is_told = matches!(name.said, Some(Said::There(..)));
            if !is_known && is_told && !name.is_asked {
                name.is_asked = true;
                without.push(path);
            }
            if without.len() == WINDOW {
                break;
            }
        }
        without
    }
}

impl Memory {
    fn xattrs(&self, path: &Path) -> Option<&[OsString]> {
        let xattrs = self.names.get(path)?.xattrs.as_ref()?;
        let changed = self.keys[xattrs.key.ino as usize % KEYS];
        let is_young = xattrs.at.elapsed() < self.times.attr.min(self.times.entry);
        (changed < xattrs.asked && is_young).then_some(&xattrs.names)
    }
}
