//! The names that a program which goes through a directory will ask for next.
//!
//! A program that looks up names of one directory in order (`git status`, `rsync`, `tar c`) will probably go
//! on: the next names are asked for together, the further ahead the longer that was right. Directories on the
//! way are listed, and their first names asked for.

use std::ffi::{OsStr, OsString};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_backing::FileKind;

use super::{Answers, Memory, Recalled};

/// A program that passes over fewer names than this still goes in order.
const NEAR: usize = 4;

/// The number of names asked for ahead after the first step in order; each further step doubles it.
const WINDOW: usize = 8;

/// The number of steps from which on it is doubled no more: 256 names.
const RUN_MAX: u32 = 6;

/// The depth to which directories are entered ahead.
const DEPTH_MAX: u32 = 8;

/// The entries that a list may have for each name that is looked up: reading a list costs about a question
/// for each hundred.
const LISTED_PER_LOOKUP: usize = 64;

/// The bytes that an entry adds to a directory's size, at least on most file systems.
const ENTRY_BYTES: u64 = 32;

/// The way in which a directory is gone through.
#[derive(Default)]
pub struct Walk {
    /// Whether a thread lists the directory.
    pub is_asked: bool,
    lookups: usize,
    since: Option<Instant>,
    last: Option<OsString>,
    /// Steps in order so far.
    run: u32,
    /// The name from which on more names are asked for ahead.
    next: Option<OsString>,
}

/// What to do before a name is looked for.
#[derive(Debug, PartialEq, Eq)]
pub enum Wanted {
    Nothing,
    /// List the directory: its list shows of many names that they do not exist.
    List,
    Ahead(Ahead),
}

/// Names and directories to ask for; other threads wait for the answers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    pub names: Vec<PathBuf>,
    pub dirs: Vec<PathBuf>,
}

impl Answers {
    /// Notes that a name is looked up. Waits for a listing of the directory under way, up to `patience`.
    pub fn step(&self, dir: &Path, name: &OsStr, patience: Duration) -> Wanted {
        let until = Instant::now() + patience;
        let mut memory = self.memory();
        while memory.dirs.get(dir).is_some_and(|known| known.walk.is_asked) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Wanted::Nothing;
            }
            memory = self.came.wait_timeout(memory, left).0;
        }
        memory.step(dir, name)
    }

    /// The names to ask for after the listing of a directory whose first names may be wanted.
    pub fn first(&self, dir: &Path) -> Ahead {
        let mut memory = self.memory();
        let run = memory.dirs.get(dir).map_or(0, |known| known.walk.run);
        if run == 0 || memory.list(dir).is_none() {
            return Ahead::default();
        }
        // No program has looked for one of them yet: directories below count as one step less.
        let mut going = Going { ahead: Ahead::default(), left: window(run), run, of_dirs: run - 1 };
        memory.go_on(dir, None, &mut going, 0);
        going.ahead
    }

    /// Picks the names in a directory whose attributes are not known; they count as asked for from now on.
    pub fn unknown<'a>(&self, dir: &Path, names: impl Iterator<Item = &'a OsStr>) -> Vec<PathBuf> {
        let mut memory = self.memory();
        let paths = names.map(|name| dir.join(name));
        paths.filter(|path| memory.begin(path)).collect()
    }

    /// Ends the question about a name.
    pub fn ends(&self, path: &Path) {
        let mut memory = self.memory();
        if let Some(name) = memory.names.get_mut(path) {
            name.is_asked = false;
        }
        drop(memory);
        self.came.notify_all();
    }

    /// Ends the listing of a directory.
    pub fn ends_list(&self, dir: &Path) {
        let mut memory = self.memory();
        if let Some(known) = memory.dirs.get_mut(dir) {
            known.walk.is_asked = false;
        }
        drop(memory);
        self.came.notify_all();
    }
}

impl Memory {
    fn step(&mut self, dir: &Path, name: &OsStr) -> Wanted {
        let believed = self.times.entry;
        let is_listed = self.list(dir).is_some();
        let size = match self.recall(dir) {
            Recalled::There(told) => Some(told.attr().size),
            _ => None,
        };
        let known = self.dir(dir);
        known.since = Instant::now();
        let walk = &mut known.walk;
        if walk.since.is_none_or(|since| since.elapsed() > believed * 2) {
            (walk.lookups, walk.since) = (0, Some(Instant::now()));
        }
        walk.lookups += 1;
        if !is_listed {
            let guess = size.map_or(0, |bytes| (bytes / ENTRY_BYTES) as usize);
            let count = known.list.as_ref().map_or(guess, |list| list.names.len());
            if walk.lookups > 1 && count <= walk.lookups * LISTED_PER_LOOKUP {
                return Wanted::List;
            }
            walk.last = Some(name.to_os_string());
            return Wanted::Nothing;
        }
        let Some(list) = &known.list else { return Wanted::Nothing };
        walk.run = match &walk.last {
            None => walk.run,
            Some(last) if last == name => walk.run,
            Some(last) if **last < *name => {
                let between = (Excluded(last.as_os_str()), Included(name));
                let steps = list.names.range::<OsStr, _>(between).take(NEAR + 1).count();
                if steps <= NEAR { walk.run + 1 } else { 0 }
            }
            Some(_) => 0,
        };
        walk.run = walk.run.min(RUN_MAX);
        walk.last = Some(name.to_os_string());
        let (run, window) = (walk.run, window(walk.run));
        let is_dir = list.names.get(name).is_some_and(|(kind, _)| *kind == FileKind::Dir);
        let is_due = is_dir || walk.next.as_ref().is_none_or(|next| *name >= **next);
        if window == 0 {
            walk.next = None;
        }
        if window == 0 || !is_due {
            return Wanted::Nothing;
        }
        let after = list.names.range::<OsStr, _>((Excluded(name), Unbounded));
        walk.next = after.map(|(name, _)| name.clone()).nth(window / 2);
        let mut going = Going { ahead: Ahead::default(), left: window, run, of_dirs: run };
        if is_dir {
            self.go_into(dir.join(name), &mut going, 0);
        }
        self.go_on(dir, Some(name), &mut going, 0);
        Wanted::Ahead(going.ahead)
    }

    /// Adds the names after `name` in a directory that is listed, with those in directories on the way.
    fn go_on(&mut self, dir: &Path, name: Option<&OsStr>, going: &mut Going, depth: u32) {
        let Some(list) = self.dirs.get(dir).and_then(|known| known.list.as_ref()) else { return };
        let from = name.map_or(Unbounded, Excluded);
        let range = list.names.range::<OsStr, _>((from, Unbounded)).take(going.left);
        let next: Vec<(PathBuf, FileKind)> =
            range.map(|(name, (kind, _))| (dir.join(name), *kind)).collect();
        for (path, kind) in next {
            if going.left == 0 {
                return;
            }
            going.left -= 1;
            if self.begin(&path) {
                going.ahead.names.push(path.clone());
            }
            if kind == FileKind::Dir && depth < DEPTH_MAX {
                self.go_into(path, going, depth + 1);
            }
        }
    }

    fn go_into(&mut self, dir: PathBuf, going: &mut Going, depth: u32) {
        if self.list(&dir).is_some() {
            let walk = &mut self.dir(&dir).walk;
            walk.run = walk.run.max(going.run);
            return self.go_on(&dir, None, going, depth);
        }
        if self.begin_list(&dir, going.of_dirs) {
            going.ahead.dirs.push(dir);
        }
    }

    /// Whether a name has to be asked for: then the caller does so.
    fn begin(&mut self, path: &Path) -> bool {
        let is_known = !matches!(self.recall(path), Recalled::Unknown);
        let name = self.name(path);
        if is_known || name.is_asked {
            return false;
        }
        (name.is_asked, name.since) = (true, Instant::now());
        true
    }

    /// Whether a directory has to be listed: then the caller does so. Walks of it begin with `run` steps.
    fn begin_list(&mut self, path: &Path, run: u32) -> bool {
        let known = self.dir(path);
        if known.walk.is_asked {
            known.walk.run = known.walk.run.max(run);
            return false;
        }
        known.walk = Walk { is_asked: true, run, ..Walk::default() };
        known.since = Instant::now();
        true
    }
}

/// A look ahead that is being put together.
struct Going {
    ahead: Ahead,
    /// The number of names that may still be added.
    left: usize,
    /// The steps with which a walk begins in a directory that is listed.
    run: u32,
    /// The steps with which a walk begins in a directory that is not listed.
    of_dirs: u32,
}

fn window(run: u32) -> usize {
    if run == 0 { 0 } else { WINDOW << (run - 1) }
}
