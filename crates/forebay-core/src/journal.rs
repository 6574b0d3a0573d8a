//! The journal of names: the changes of names on the backing store that a loss of power may still
//! undo, in order.
//!
//! A store that loses power forgets all changes of names from some moment on; a fast tier that loses
//! power forgets the end of its log. The rest of the journal tells which changes have to be made
//! again ([`settle`]). A change is retired once it is covered by a sync of the store that began
//! after the store had answered the change.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::fmt::{Display, Formatter};
use std::path::{Path, PathBuf};

use forebay_backing::{FileKey, Timestamp};
use serde::{Deserialize, Serialize};

use crate::paths::{Placed, Way};

mod past;
pub mod settle;

/// The number of open changes at which the names on the store are synced.
pub const OPEN_MAX: usize = 8192;

/// The number of open changes at which a thread that makes one more syncs the names itself.
pub const OPEN_LIMIT: usize = 8 * OPEN_MAX;

/// The kind of object that a rename moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moved {
    File,
    /// A directory, with every name below it.
    Dir,
}

/// A change of names on the backing store, with the files that its names meant before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameOp {
    /// A file of any kind was made under a free name.
    Create {
        #[serde(with = "raw")]
        path: PathBuf,
        key: FileKey,
    },
    Link {
        #[serde(with = "raw")]
        from: PathBuf,
        #[serde(with = "raw")]
        to: PathBuf,
        key: FileKey,
    },
    Unlink {
        #[serde(with = "raw")]
        path: PathBuf,
        key: FileKey,
    },
    Rename {
        #[serde(with = "raw")]
        from: PathBuf,
        #[serde(with = "raw")]
        to: PathBuf,
        key: FileKey,
        over: Option<FileKey>,
        moved: Moved,
    },
    Exchange {
        #[serde(with = "raw")]
        from: PathBuf,
        #[serde(with = "raw")]
        to: PathBuf,
        key: FileKey,
        with: FileKey,
        moved: Moved,
    },
}

/// The progress of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Told {
    /// The store may have been asked for the change; its result is not on record.
    Announced,
    Done,
}

/// One change of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub n: u64,
    pub op: NameOp,
    pub told: Told,
    /// A time on the store's clock at which the change had been made, if known.
    pub at: Option<Timestamp>,
}

/// A record of the log about the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameRecord {
    Step(Step),
    Done {
        n: u64,
        at: Option<Timestamp>,
        /// The new places of directories.
        places: Vec<Placed>,
    },
    /// The change was not made.
    Failed {
        n: u64,
    },
    /// These changes are durable on the store.
    Retired {
        ns: Vec<u64>,
    },
    /// All open changes, at the beginning of a file of the log.
    All(Vec<Step>),
}

/// The open changes.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    open: BTreeMap<u64, Step>,
    next: u64,
}

impl NameOp {
    pub fn key(&self) -> FileKey {
        match self {
            NameOp::Create { key, .. }
            | NameOp::Link { key, .. }
            | NameOp::Unlink { key, .. }
            | NameOp::Rename { key, .. }
            | NameOp::Exchange { key, .. } => *key,
        }
    }

    /// Returns the keys of all files in the change.
    pub fn keys(&self) -> impl Iterator<Item = FileKey> {
        let other = match self {
            NameOp::Rename { over, .. } => *over,
            NameOp::Exchange { with, .. } => Some(*with),
            _ => None,
        };
        std::iter::once(self.key()).chain(other)
    }

    /// Returns all names in the change.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let (one, two) = match self {
            NameOp::Create { path, .. } | NameOp::Unlink { path, .. } => (path, None),
            NameOp::Link { from, to, .. }
            | NameOp::Rename { from, to, .. }
            | NameOp::Exchange { from, to, .. } => (from, Some(to)),
        };
        std::iter::once(one).chain(two).map(PathBuf::as_path)
    }

    /// Returns how the change moves directories, if it moves any.
    pub fn way(&self) -> Option<Way<'_>> {
        match self {
            NameOp::Rename { from, to, moved: Moved::Dir, .. } => Some(Way::To { from, to }),
            NameOp::Exchange { from, to, moved: Moved::Dir, .. } => {
                Some(Way::Exchange { one: from, two: to })
            }
            _ => None,
        }
    }

    /// Returns the names with their files before the change.
    fn presumes(&self) -> Vec<(&Path, Option<FileKey>)> {
        match self {
            NameOp::Create { path, .. } => vec![(path, None)],
            NameOp::Link { from, to, key } => vec![(from, Some(*key)), (to, None)],
            NameOp::Unlink { path, key } => vec![(path, Some(*key))],
            NameOp::Rename { from, to, key, over, .. } => vec![(from, Some(*key)), (to, *over)],
            NameOp::Exchange { from, to, key, with, .. } => {
                vec![(from, Some(*key)), (to, Some(*with))]
            }
        }
    }

    /// Returns the names with their files after the change.
    fn gives(&self) -> Vec<(&Path, Option<FileKey>)> {
        match self {
            NameOp::Create { path, key } | NameOp::Link { to: path, key, .. } => {
                vec![(path, Some(*key))]
            }
            NameOp::Unlink { path, .. } => vec![(path, None)],
            NameOp::Rename { from, to, key, .. } => vec![(from, None), (to, Some(*key))],
            NameOp::Exchange { from, to, key, with, .. } => {
                vec![(from, Some(*with)), (to, Some(*key))]
            }
        }
    }

    /// Replaces the key of a file.
    pub fn rekey(&mut self, old: FileKey, new: FileKey) {
        let (one, other) = match self {
            NameOp::Create { key, .. } | NameOp::Link { key, .. } | NameOp::Unlink { key, .. } => {
                (key, None)
            }
            NameOp::Rename { key, over, .. } => (key, over.as_mut()),
            NameOp::Exchange { key, with, .. } => (key, Some(with)),
        };
        for key in std::iter::once(one).chain(other).filter(|key| **key == old) {
            *key = new;
        }
    }
}

impl Display for NameOp {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            NameOp::Create { path, .. } => write!(f, "{}: making it again", path.display()),
            NameOp::Unlink { path, .. } => write!(f, "{}: removing it again", path.display()),
            NameOp::Link { from, to, .. } => {
                write!(f, "{}: making it a link to {} again", to.display(), from.display())
            }
            NameOp::Rename { from, to, .. } => {
                write!(f, "{}: renaming it to {} again", from.display(), to.display())
            }
            NameOp::Exchange { from, to, .. } => {
                write!(f, "{}: exchanging it with {} again", from.display(), to.display())
            }
        }
    }
}

impl Journal {
    /// Applies a record of the log.
    pub fn apply(&mut self, record: NameRecord) {
        match record {
            NameRecord::Step(step) => self.insert(step),
            NameRecord::Done { n, at, places: _ } => {
                if let Some(step) = self.open.get_mut(&n) {
                    (step.told, step.at) = (Told::Done, at);
                }
            }
            NameRecord::Failed { n } => drop(self.open.remove(&n)),
            NameRecord::Retired { ns } => ns.iter().for_each(|n| drop(self.open.remove(n))),
            NameRecord::All(steps) => {
                self.open.clear();
                steps.into_iter().for_each(|step| self.insert(step));
            }
        }
    }

    fn insert(&mut self, step: Step) {
        self.next = self.next.max(step.n + 1);
        self.open.insert(step.n, step);
    }

    /// Returns the next step of the journal, which the caller applies.
    pub fn step(&self, op: NameOp, told: Told, at: Option<Timestamp>) -> Step {
        Step { n: self.next, op, told, at }
    }

    pub fn len(&self) -> usize {
        self.open.len()
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub fn steps(&self) -> Vec<Step> {
        self.open.values().cloned().collect()
    }

    /// Returns the changes that a sync of these files covers if it begins now, without those that the rest of the
    /// journal needs.
    pub fn of(&self, keys: &HashSet<FileKey>) -> Vec<u64> {
        let is_of = |op: &NameOp| match op {
            NameOp::Exchange { key, with, .. } => keys.contains(key) || keys.contains(with),
            op => keys.contains(&op.key()),
        };
        let covered = self.done().filter(|step| is_of(&step.op)).map(|step| step.n);
        self.without_needed(covered.collect())
    }

    /// Returns the changes of `durable` that may be forgotten although the others stay.
    pub fn without_needed(&self, durable: BTreeSet<u64>) -> Vec<u64> {
        if durable.len() == self.open.len() || durable.is_empty() {
            return durable.into_iter().collect();
        }
        let before = settle::before_any(self.open.values(), |n| !durable.contains(&n));
        durable.into_iter().filter(|n| before.contains(n)).collect()
    }

    /// Returns the changes that a sync of the names covers if it begins now, by the directories in which the names
    /// are now. A change is durable when all of its directories are.
    pub fn by_dir(&self) -> BTreeMap<PathBuf, Vec<u64>> {
        let mut dirs: BTreeMap<PathBuf, Vec<u64>> = BTreeMap::new();
        for step in self.done() {
            if let NameOp::Rename { from, to, moved: Moved::Dir, .. } = &step.op {
                let below: Vec<_> =
                    dirs.keys().filter(|dir| dir.starts_with(from)).cloned().collect();
                for dir in below {
                    let changes = dirs.remove(&dir).expect("it is a key");
                    let to = rebased(&dir, from, to).expect("it is below");
                    dirs.entry(to).or_default().extend(changes);
                }
            }
            for dir in step.op.paths().filter_map(Path::parent) {
                dirs.entry(dir.to_path_buf()).or_default().push(step.n);
            }
        }
        dirs
    }

    fn done(&self) -> impl Iterator<Item = &Step> {
        self.open.values().filter(|step| step.told == Told::Done)
    }
}

/// Returns `path` with its beginning `from` replaced by `to`.
pub fn rebased(path: &Path, from: &Path, to: &Path) -> Option<PathBuf> {
    let rest = path.strip_prefix(from).ok()?;
    Some(if rest.as_os_str().is_empty() { to.to_path_buf() } else { to.join(rest) })
}

/// Paths as bytes: names need not be UTF-8.
mod raw {
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(path: &Path, s: S) -> Result<S::Ok, S::Error> {
        path.as_os_str().as_bytes().serialize(s)
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(d: D) -> Result<PathBuf, D::Error> {
        Ok(PathBuf::from(OsString::from_vec(Vec::<u8>::deserialize(d)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal(ops: Vec<(NameOp, Told)>) -> Journal {
        let mut journal = Journal::default();
        for (op, told) in ops {
            let step = journal.step(op, told, None);
            journal.apply(NameRecord::Step(step));
        }
        journal
    }

    fn key(ino: u64) -> FileKey {
        FileKey { ino, generation: 1 }
    }

    fn create(path: &str, ino: u64) -> NameOp {
        NameOp::Create { path: path.into(), key: key(ino) }
    }

    fn renamed(from: &str, to: &str, ino: u64, over: Option<u64>) -> NameOp {
        let (from, to, over) = (from.into(), to.into(), over.map(key));
        NameOp::Rename { from, to, key: key(ino), over, moved: Moved::File }
    }

    /// Without the rename over `f` the link would say that the first file has that name.
    // S-3
    #[test]
    fn a_change_that_the_rest_of_the_journal_needs_stays() {
        let (from, to) = ("f".into(), "f.old".into());
        let linked = NameOp::Link { from, to, key: key(1) };
        let ops =
            [linked, renamed("new", "f", 2, Some(1)), renamed("f", "g", 2, None), create("h", 3)];
        let mut journal = journal(ops.map(|op| (op, Told::Done)).into());
        assert_eq!(journal.of(&[key(2)].into()), [0; 0]);
        assert_eq!(journal.of(&[key(3)].into()), [3]);
        assert_eq!(journal.of(&[key(1), key(2)].into()), [0, 1, 2]);
        let (from, to, moved) = ("g".into(), "h".into(), Moved::File);
        let exchanged = NameOp::Exchange { from, to, key: key(2), with: key(3), moved };
        let step = journal.step(exchanged, Told::Done, None);
        journal.apply(NameRecord::Step(step));
        assert_eq!(journal.of(&[key(3)].into()), [3], "it comes before all that stay");
    }

    /// A sync covers the changes that were answered before it began.
    // S-3
    #[test]
    fn a_change_is_retired_by_a_sync_that_began_after_it() {
        let moved = Moved::Dir;
        let (from, to) = ("d".into(), "e".into());
        let renamed = NameOp::Rename { from, to, key: key(9), over: None, moved };
        let mut journal = journal(vec![
            (create("d/x", 1), Told::Done),
            (create("y", 2), Told::Done),
            (renamed, Told::Done),
            (NameOp::Unlink { path: "y".into(), key: key(2) }, Told::Announced),
        ]);
        assert_eq!(journal.of(&[key(2)].into()), [1], "not what is under way");
        let dirs = journal.by_dir();
        let here = [("".into(), vec![1, 2, 2]), ("e".into(), vec![0])];
        assert_eq!(dirs, here.into(), "where the names are by now");
        let ns = dirs.into_values().flatten().collect();
        journal.apply(NameRecord::Done { n: 3, at: None, places: Vec::new() });
        journal.apply(NameRecord::Retired { ns });
        assert_eq!(journal.steps().len(), 1);
        let step = journal.step(create("z", 3), Told::Done, None);
        assert_eq!(step.n, 4, "no number is used again");
        journal.apply(NameRecord::Failed { n: 3 });
        assert!(journal.is_empty());
    }
}
