//! The names of files' extended attributes, believed as long as other attributes.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_backing::FileKey;

use super::{Answers, KEYS, Memory, Moment, Said};

/// How long a program that asked for a missing attribute is taken to go on.
const GOES_ON: Duration = Duration::from_secs(10);

/// The most files of one directory that are asked about at once.
const WINDOW: usize = 256;

/// The most names of a directory that are kept since their extended attributes are not known.
const BARE_MAX: usize = 1024;

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

    /// Notes whether an extended attribute that the store was asked for is missing.
    pub fn note_absence(&self, is_absent: bool) {
        self.memory().absences.0 = is_absent.then(Instant::now);
    }

    /// Whether the next extended attribute to be asked for will be missing, too.
    pub fn foresees_absence(&self) -> bool {
        self.memory().absences.0.is_some_and(|at| at.elapsed() < GOES_ON)
    }

    /// Notes that a directory's file system has no access lists: the store has said it of a file in it.
    pub fn hear_no_acls(&self, dir: &Path, asked: Moment) {
        self.memory().dir(dir).without_acls = Some((asked, Instant::now()));
    }

    /// Whether the store has said that of a file in it, no longer ago than attributes are believed.
    pub fn has_no_acls(&self, dir: &Path) -> bool {
        let memory = self.memory();
        let said = memory.dirs.get(dir).and_then(|known| Some((known.floor, known.without_acls?)));
        said.is_some_and(|(floor, (asked, at))| {
            asked >= floor.max(memory.floor) && at.elapsed() < memory.times.attr
        })
    }

    /// Files of a directory that were told of without their extended attributes; they count as asked for from
    /// now on.
    pub fn without_xattrs(&self, dir: &Path) -> Vec<PathBuf> {
        let mut memory = self.memory();
        let Some(known) = memory.dirs.get_mut(dir) else { return Vec::new() };
        let last = known.bare.len().saturating_sub(WINDOW);
        let paths: Vec<PathBuf> = known.bare.drain(last..).map(|name| dir.join(name)).collect();
        let begin = |path: &PathBuf| {
            let is_known = memory.xattrs(path).is_some();
            let Some(name) = memory.names.get_mut(path) else { return false };
            let is_told = matches!(name.said, Some(Said::There(..)));
            let begins = !is_known && is_told && !name.is_asked;
            name.is_asked |= begins;
            begins
        };
        paths.into_iter().filter(begin).collect()
    }
}

impl Memory {
    /// Notes a name that was told of, unless its extended attributes are known.
    pub(super) fn note_bare(&mut self, path: &Path) {
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return };
        let is_complete = self.xattrs(path).is_some();
        let Some(known) = self.dirs.get_mut(dir).filter(|_| !is_complete) else { return };
        if known.bare.len() == BARE_MAX {
            known.bare.pop_front();
        }
        known.bare.push_back(name.to_os_string());
    }

    fn xattrs(&self, path: &Path) -> Option<&[OsString]> {
        let xattrs = self.names.get(path)?.xattrs.as_ref()?;
        let changed = self.keys[xattrs.key.ino as usize % KEYS];
        let is_young = xattrs.at.elapsed() < self.times.attr.min(self.times.entry);
        (changed < xattrs.asked && is_young).then_some(&xattrs.names)
    }
}
