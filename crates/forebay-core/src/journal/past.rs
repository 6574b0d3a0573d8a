//! What the journal knows of names: each is in a directory, wherever that is, and means a file.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use forebay_backing::{FileKey, Timestamp};

use crate::journal::{NameOp, Step, Told};

/// A file or a directory, whatever its names are.
pub type Node = usize;

pub const ROOT: Node = 0;

/// A name in a directory.
pub type Entry = (Node, OsString);

/// What names mean at one moment.
#[derive(Debug, Clone, Default)]
pub struct World {
    names: BTreeMap<Entry, Node>,
    at: BTreeMap<Node, BTreeSet<Entry>>,
}

impl World {
    pub fn get(&self, entry: &Entry) -> Option<Node> {
        self.names.get(entry).copied()
    }

    pub fn names(&self) -> impl Iterator<Item = (&Entry, Node)> {
        self.names.iter().map(|(entry, node)| (entry, *node))
    }

    /// The names of a file.
    pub fn at(&self, node: Node) -> impl Iterator<Item = &Entry> {
        self.at.get(&node).into_iter().flatten()
    }

    pub fn has(&self, node: Node) -> bool {
        self.at(node).next().is_some()
    }

    pub fn has_below(&self, dir: Node) -> bool {
        let below = self.names.range((dir, OsString::new())..).next();
        below.is_some_and(|((above, _), _)| *above == dir)
    }

    pub fn set(&mut self, entry: &Entry, to: Option<Node>) {
        let before = match to {
            Some(node) => self.names.insert(entry.clone(), node),
            None => self.names.remove(entry),
        };
        if let Some(at) = before.and_then(|before| self.at.get_mut(&before)) {
            at.remove(entry);
        }
        if let Some(node) = to {
            self.at.entry(node).or_default().insert(entry.clone());
        }
    }

    /// `None` if its directory has no place.
    pub fn path(&self, entry: &Entry) -> Option<PathBuf> {
        let (mut names, mut dir) = (vec![&entry.1], entry.0);
        while dir != ROOT {
            let (above, name) = self.at(dir).next()?;
            // What others do may look to us as if a directory were in itself.
            if names.len() > self.names.len() {
                return None;
            }
            names.push(name);
            dir = *above;
        }
        Some(names.into_iter().rev().collect())
    }
}

/// All that the changes of a journal tell.
#[derive(Debug)]
pub struct Past {
    /// Of each node; none of a directory of which no change speaks.
    keys: Vec<Option<FileKey>>,
    nodes: HashMap<FileKey, Node>,
    /// Everything that each name ever meant.
    pub ever: BTreeSet<(Entry, Node)>,
    /// The same in order.
    pub told: Vec<(Entry, Node)>,
    /// What the names mean in the end.
    pub last: World,
    pub created: Vec<Node>,
    pub linked: BTreeSet<Node>,
    /// When each file's names were changed last, if that is known.
    at: HashMap<Node, Option<Timestamp>>,
}

impl Past {
    /// What is still announced has not been made.
    pub fn of(steps: &[Step]) -> Past {
        let mut past = Past {
            keys: vec![None],
            nodes: HashMap::new(),
            ever: BTreeSet::new(),
            told: Vec::new(),
            last: World::default(),
            created: Vec::new(),
            linked: BTreeSet::new(),
            at: HashMap::new(),
        };
        steps.iter().for_each(|step| past.take_in(step));
        past
    }

    /// The directories and files that have keys.
    pub fn keyed(&self) -> impl Iterator<Item = (Node, FileKey)> {
        self.keys.iter().enumerate().filter_map(|(node, key)| Some((node, (*key)?)))
    }

    pub fn key(&self, node: Node) -> Option<FileKey> {
        self.keys.get(node).copied().flatten()
    }

    pub fn node(&self, key: FileKey) -> Option<Node> {
        self.nodes.get(&key).copied()
    }

    /// How many nodes there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn at(&self, node: Node) -> Option<Timestamp> {
        self.at.get(&node).copied().flatten()
    }

    /// Every name that was known in a directory.
    pub fn below(&self, dir: Node) -> impl Iterator<Item = &Entry> {
        let names = self.ever.range(((dir, OsString::new()), 0)..).map(|(entry, _)| entry);
        names.take_while(move |entry| entry.0 == dir)
    }

    /// Whether a name in it was ever known.
    pub fn is_dir(&self, node: Node) -> bool {
        self.below(node).next().is_some()
    }

    fn take_in(&mut self, step: &Step) {
        let op = &step.op;
        let presumed = op.presumes().into_iter().filter(|(_, key)| key.is_some());
        presumed.for_each(|(path, key)| self.believe(path, key));
        for (path, key) in op.gives() {
            match (step.told, key) {
                (Told::Done, key) => self.believe(path, key),
                (Told::Announced, Some(key)) => {
                    let entry = self.entry(path);
                    self.meet(&entry, key);
                }
                (Told::Announced, None) => {}
            }
        }
        let node = self.nodes[&op.key()];
        match op {
            NameOp::Create { .. } => self.created.push(node),
            NameOp::Link { .. } => drop(self.linked.insert(node)),
            _ => {}
        }
        self.at.extend(op.keys().map(|key| (self.nodes[&key], step.at)));
    }

    /// A name means that. A directory has one at most.
    fn believe(&mut self, path: &Path, key: Option<FileKey>) {
        let entry = self.entry(path);
        let node = key.map(|key| self.meet(&entry, key));
        if let Some(dir) = node.filter(|node| self.is_dir(*node)) {
            let old: Vec<Entry> = self.last.at(dir).cloned().collect();
            old.iter().for_each(|old| self.last.set(old, None));
        }
        self.last.set(&entry, node);
    }

    /// The file with this key, that this name has, or may have had. A directory of which only names below are
    /// known is one that it gets its key from, and so is one that has another key by now: recovery has made it
    /// anew.
    fn meet(&mut self, entry: &Entry, key: FileKey) -> Node {
        let dir = self.last.get(entry).filter(|node| self.is_dir(*node));
        let node = self.nodes.get(&key).copied().or(dir).unwrap_or(self.keys.len());
        self.keys.resize(self.keys.len().max(node + 1), None);
        self.keys[node] = Some(key);
        self.nodes.insert(key, node);
        self.tell(entry, node);
        node
    }

    fn entry(&mut self, path: &Path) -> Entry {
        let mut dir = ROOT;
        for name in path.parent().into_iter().flat_map(Path::iter) {
            let entry = (dir, name.to_owned());
            dir = self.last.get(&entry).unwrap_or(self.keys.len());
            if dir == self.keys.len() {
                self.keys.push(None);
                self.last.set(&entry, Some(dir));
                self.tell(&entry, dir);
            }
        }
        (dir, path.file_name().unwrap_or_default().to_owned())
    }

    /// A name has meant that.
    fn tell(&mut self, entry: &Entry, node: Node) {
        self.told.push((entry.clone(), node));
        self.ever.insert((entry.clone(), node));
    }
}
