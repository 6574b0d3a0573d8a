//! What every name of the journal meant, before the first change and after each.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use forebay_backing::FileKey;

use crate::journal::{Moved, NameOp, rebased};

/// What names mean, as far as is known.
pub type World = BTreeMap<PathBuf, Option<FileKey>>;

/// A name that a change gave another meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delta {
    pub path: PathBuf,
    pub to: Option<FileKey>,
}

/// What one change did.
#[derive(Debug, Default)]
pub struct Passage {
    /// What it presumes, where a change that is not in the journal has come before it.
    pub before: Vec<Delta>,
    pub made: Vec<Delta>,
}

impl Passage {
    pub fn deltas(&self) -> impl Iterator<Item = &Delta> {
        self.before.iter().chain(&self.made)
    }
}

pub struct Timeline {
    first: World,
    /// Of each change.
    pub passages: Vec<Passage>,
    last: World,
}

impl Timeline {
    pub fn of(ops: &[NameOp]) -> Timeline {
        let first = first_world(ops);
        let mut now = first.clone();
        let passages = ops.iter().map(|op| pass(&mut now, op)).collect();
        Timeline { first, passages, last: now }
    }

    pub fn at_first(&self, path: &Path) -> Option<FileKey> {
        self.first.get(path).copied().flatten()
    }

    /// Every name that meant something known at some time.
    pub fn paths(&self) -> BTreeSet<&Path> {
        let changed = self.deltas().map(|delta| delta.path.as_path());
        self.first.keys().map(PathBuf::as_path).chain(changed).collect()
    }

    /// Everything that each name ever meant.
    pub fn meanings(&self) -> HashMap<&Path, BTreeSet<Option<FileKey>>> {
        let mut meant: HashMap<&Path, BTreeSet<Option<FileKey>>> = HashMap::new();
        for path in self.paths() {
            meant.entry(path).or_default().insert(self.at_first(path));
        }
        for delta in self.deltas() {
            meant.entry(&delta.path).or_default().insert(delta.to);
        }
        meant
    }

    /// The names that each file has at the end.
    pub fn names(&self) -> BTreeMap<FileKey, Vec<PathBuf>> {
        let mut names: BTreeMap<FileKey, Vec<PathBuf>> = BTreeMap::new();
        for (path, key) in &self.last {
            key.iter().for_each(|key| names.entry(*key).or_default().push(path.clone()));
        }
        names
    }

    fn deltas(&self) -> impl Iterator<Item = &Delta> {
        self.passages.iter().flat_map(Passage::deltas)
    }
}

/// What the names meant before the first change: what each change presumes of a name that no
/// earlier one has given its meaning.
fn first_world(ops: &[NameOp]) -> World {
    let (mut first, mut known) = (World::new(), World::new());
    let mut trees: Vec<&NameOp> = Vec::new();
    for op in ops {
        for (path, key) in op.presumes() {
            if known.contains_key(path) {
                continue;
            }
            if let Some(origin) = origin(path, &trees) {
                first.entry(origin).or_insert(key);
            }
            known.insert(path.to_path_buf(), key);
        }
        change(&mut known, op);
        // What else was below a directory that comes is there now: nobody has said what.
        let came: &[&PathBuf] = match op {
            NameOp::Rename { to, moved: Moved::Dir, .. } => &[to],
            NameOp::Exchange { from, to, moved: Moved::Dir, .. } => &[from, to],
            _ => continue,
        };
        known.retain(|path, key| {
            key.is_some() || !came.iter().any(|dir| path.starts_with(dir) && path != *dir)
        });
        trees.push(op);
    }
    first
}

/// What a name was called before directories were renamed; `None` if there was none.
fn origin(path: &Path, trees: &[&NameOp]) -> Option<PathBuf> {
    let mut path = path.to_path_buf();
    for op in trees.iter().rev() {
        path = match op {
            NameOp::Rename { from, to, .. } => match rebased(&path, to, from) {
                Some(before) => before,
                None if path.starts_with(from) => return None,
                None => path,
            },
            NameOp::Exchange { from, to, .. } => {
                let before = rebased(&path, to, from).or_else(|| rebased(&path, from, to));
                before.unwrap_or(path)
            }
            _ => path,
        };
    }
    Some(path)
}

fn pass(now: &mut World, op: &NameOp) -> Passage {
    let mut passage = Passage::default();
    for (path, key) in op.presumes() {
        if now.get(path).copied().flatten() != key {
            passage.before.push(set(now, path, key));
        }
    }
    passage.made = change(now, op);
    passage
}

/// What a change makes of a world.
pub fn follow(now: &mut World, op: &NameOp) {
    change(now, op);
}

fn change(now: &mut World, op: &NameOp) -> Vec<Delta> {
    match op {
        NameOp::Create { path, key } => vec![set(now, path, Some(*key))],
        NameOp::Link { to, key, .. } => vec![set(now, to, Some(*key))],
        NameOp::Unlink { path, .. } => vec![set(now, path, None)],
        NameOp::Rename { from, to, key, .. } => {
            let mut deltas = Vec::new();
            let below = take_below(now, from, &mut deltas);
            take_below(now, to, &mut deltas);
            deltas.push(set(now, from, None));
            deltas.push(set(now, to, Some(*key)));
            put_below(now, below, from, to, &mut deltas);
            deltas
        }
        NameOp::Exchange { from, to, key, with, .. } => {
            let mut deltas = Vec::new();
            let one = take_below(now, from, &mut deltas);
            let two = take_below(now, to, &mut deltas);
            deltas.push(set(now, from, Some(*with)));
            deltas.push(set(now, to, Some(*key)));
            put_below(now, one, from, to, &mut deltas);
            put_below(now, two, to, from, &mut deltas);
            deltas
        }
    }
}

fn set(now: &mut World, path: &Path, to: Option<FileKey>) -> Delta {
    now.insert(path.to_path_buf(), to);
    Delta { path: path.to_path_buf(), to }
}

/// Takes away what is below a name.
fn take_below(now: &mut World, dir: &Path, deltas: &mut Vec<Delta>) -> Vec<(PathBuf, FileKey)> {
    let inside = now.range::<Path, _>((std::ops::Bound::Excluded(dir), std::ops::Bound::Unbounded));
    let inside = inside.take_while(|(path, _)| path.starts_with(dir));
    let taken: Vec<(PathBuf, FileKey)> =
        inside.filter_map(|(path, key)| Some((path.clone(), (*key)?))).collect();
    deltas.extend(taken.iter().map(|(path, _)| set(now, path, None)));
    taken
}

fn put_below(
    now: &mut World,
    taken: Vec<(PathBuf, FileKey)>,
    from: &Path,
    to: &Path,
    deltas: &mut Vec<Delta>,
) {
    for (path, key) in taken {
        let path = rebased(&path, from, to).expect("it was below");
        deltas.push(set(now, &path, Some(key)));
    }
}
