//! The names that the journal knows. A name is in a directory, wherever that directory is, and means a file.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use forebay_backing::{FileKey, Timestamp};

use crate::journal::{NameOp, Step, Told};

/// The number of a file or directory, whatever its names are.
pub type Node = usize;

pub const ROOT: Node = 0;

/// A name in a directory.
pub type Entry = (Node, OsString);

/// The names and their files at one moment.
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

    /// Returns the path of a name; `None` if its directory has no place.
    pub fn path(&self, entry: &Entry) -> Option<PathBuf> {
        let (mut names, mut dir) = (vec![&entry.1], entry.0);
        while dir != ROOT {
            let (above, name) = self.at(dir).next()?;
            // Renames by other programs during the look may show a directory inside itself.
            if names.len() > self.names.len() {
                return None;
            }
            names.push(name);
            dir = *above;
        }
        Some(names.into_iter().rev().collect())
    }
}

/// The history of the names that the changes of a journal tell.
#[derive(Debug)]
pub struct Past {
    /// The key of each node; `None` for a directory that is known only from the paths of names below it.
    keys: Vec<Option<FileKey>>,
    nodes: HashMap<FileKey, Node>,
    /// Every name with every file that it ever meant.
    pub ever: BTreeSet<(Entry, Node)>,
    /// The same pairs in the order of the changes.
    pub told: Vec<(Entry, Node)>,
    /// The names and their files in the end.
    pub last: World,
    pub created: Vec<Node>,
    /// The files that had several names at one moment.
    pub linked: BTreeSet<Node>,
    /// The time of the last change of each file's names, if known.
    at: HashMap<Node, Option<Timestamp>>,
}

impl Past {
    /// Returns the history that these steps tell. A step that is still announced counts as not made.
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

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn at(&self, node: Node) -> Option<Timestamp> {
        self.at.get(&node).copied().flatten()
    }

    /// Returns every name that was ever known in a directory.
    pub fn below(&self, dir: Node) -> impl Iterator<Item = &Entry> {
        let names = self.ever.range(((dir, OsString::new()), 0)..).map(|(entry, _)| entry);
        names.take_while(move |entry| entry.0 == dir)
    }

    /// Whether the node is known as a directory: a name in it was known.
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
        if let NameOp::Create { key, .. } = op {
            self.created.push(self.nodes[key]);
        }
        for node in op.keys().map(|key| self.nodes[&key]) {
            if self.last.at(node).nth(1).is_some() {
                self.linked.insert(node);
            }
            let before = self.at.get(&node).copied().flatten();
            self.at.insert(node, step.at.map(|at| before.map_or(at, |before| before.max(at))));
        }
    }

    /// Gives a name its last file. A directory has at most one name, and loses its old one.
    fn believe(&mut self, path: &Path, key: Option<FileKey>) {
        let entry = self.entry(path);
        let node = key.map(|key| self.meet(&entry, key));
        if let Some(dir) = node.filter(|node| self.is_dir(*node)) {
            let old: Vec<Entry> = self.last.at(dir).cloned().collect();
            old.iter().for_each(|old| self.last.set(old, None));
        }
        self.last.set(&entry, node);
    }

    /// Returns the node of a key that the name has, or may have had. An unknown key goes to the directory that has
    /// the name, if there is one: only names below that directory were known, or recovery has made it anew under
    /// another key.
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

    /// Notes that a name has meant a file.
    fn tell(&mut self, entry: &Entry, node: Node) {
        self.told.push((entry.clone(), node));
        self.ever.insert((entry.clone(), node));
    }
}
