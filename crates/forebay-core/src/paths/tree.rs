//! The tree of the directories that names of cached files are in.
//!
//! A directory is a node: its number, and its place, which is a directory and a name in it. Names of
//! files hold on to their directory's node, and nodes to the one above. So the rename of a directory
//! changes the place of one node, whatever is below it.
//!
//! Invariants:
//! - P1: a node lives as long as a name or a node below it does, and no longer.
//! - P2: at a place there is at most one node. A node whose place another node takes is below that
//!   node from then on, under an empty name, which its path leaves out: the names below both stay
//!   known together.
//! - P3: no node is above itself.
//! - P4: a directory knows which files have names in it. All entries of one change are made at once: a
//!   reader that lists a directory meanwhile misses no name that stays below it.
//! - P5: a directory knows how many names below it are of files with durable bytes.
//!
//! Places change under the lock of the log alone, once the log says so ([`Tree::plan`],
//! [`Tree::apply`]).

use std::ffi::{OsStr, OsString};
use std::hash::BuildHasher;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Weak};

use hashbrown::{DefaultHashBuilder, HashMap, HashSet, HashTable};
use serde::{Deserialize, Serialize};

use crate::clock::{Last, Look};
use crate::id::FileId;
use forebay_base::lock::{Mutex, MutexGuard, Rank};

/// The number of a directory, never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DirId(pub u64);

const ROOT: DirId = DirId(0);

/// The place of a directory, on record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    pub id: DirId,
    pub parent: DirId,
    pub name: Vec<u8>,
}

pub struct Dir {
    id: DirId,
    /// `None`: the root.
    place: Mutex<Option<Place>>,
    /// Renames of the directory that are under way.
    moving: AtomicU32,
    /// The moment when a rename ended last.
    moved: Last,
    /// The log's position after the record of the last rename.
    moved_at: AtomicU64,
    /// The last file of the log that states the places of the directory and all above it; see
    /// [`Dir::untold`].
    told_in: AtomicU64,
    /// The store has a row with some place of the directory.
    stored: AtomicBool,
    /// The number of names below of files with durable bytes (P5). Changes under the lock of the
    /// nodes.
    durable: AtomicU64,
    shared: Arc<Shared>,
}

#[derive(Clone)]
struct Place {
    parent: Arc<Dir>,
    name: Box<OsStr>,
}

impl Place {
    /// The place of a node that has given way to `dir` (P2).
    fn aside(dir: &Arc<Dir>) -> Place {
        Place { parent: dir.clone(), name: OsStr::new("").into() }
    }
}

/// The remains of a node that has ended.
struct End {
    id: DirId,
    parent: DirId,
    name: Box<OsStr>,
    stored: bool,
}

impl Drop for Dir {
    fn drop(&mut self) {
        let place = self.place.get_mut();
        if let Some(Place { parent, name }) = place {
            let (id, stored) = (self.id, *self.stored.get_mut());
            let end = End { id, parent: parent.id, name: std::mem::take(name), stored };
            self.shared.ends.lock().push(end);
        }
    }
}

impl Dir {
    pub fn id(&self) -> DirId {
        self.id
    }

    fn place(&self) -> Option<Place> {
        self.place.lock().clone()
    }

    pub fn placed(&self) -> Option<Placed> {
        let Place { parent, name } = self.place()?;
        Some(Placed { id: self.id, parent: parent.id, name: name.as_bytes().to_vec() })
    }

    /// The path of `name` in the directory.
    pub fn join(&self, name: &OsStr) -> PathBuf {
        // Built from the end, so that it is put together once.
        let mut path: Vec<u8> = name.as_bytes().iter().rev().copied().collect();
        self.climb(|_, name| {
            if !name.is_empty() {
                path.push(b'/');
                path.extend(name.as_bytes().iter().rev());
            }
        });
        path.reverse();
        PathBuf::from(OsString::from_vec(path))
    }

    /// Whether the directory's path is `path`.
    pub fn is_at(&self, path: &Path) -> bool {
        let mut names = path.components().rev();
        let mut same = true;
        self.climb(|_, name| {
            same =
                same && (name.is_empty() || names.next().is_some_and(|it| it.as_os_str() == name));
        });
        same && names.next().is_none()
    }

    /// Visits the directory and all above it, without the root.
    fn climb(&self, mut each: impl FnMut(&Dir, &OsStr)) {
        let mut step = |dir: &Dir| {
            let place = dir.place.lock();
            let Place { parent, name } = place.as_ref()?;
            each(dir, name);
            Some(parent.clone())
        };
        let mut next = step(self);
        while let Some(dir) = next {
            next = step(&dir);
        }
    }

    /// Adds to the numbers of names of files with durable bytes, for the directory and all above it.
    fn weigh(&self, names: i64) {
        self.climb(|dir, _| _ = dir.durable.fetch_add(names as u64, Release));
    }

    fn is_below(&self, above: &Dir) -> bool {
        let mut below = self.id == above.id;
        self.climb(|dir, _| below = below || dir.id == above.id);
        below
    }

    /// Whether the directory, or one above it, is being renamed.
    pub fn is_moving(&self) -> bool {
        let mut moving = false;
        self.climb(|dir, _| moving = moving || dir.moving.load(Acquire) > 0);
        moving
    }

    /// Whether a rename of the directory, or of one above it, was or is under way since then.
    pub fn moved_since(&self, since: Look) -> bool {
        // In this order: the end of a rename that ends in between is seen.
        let moved = |dir: &Dir| dir.moving.load(Acquire) > 0 || dir.moved.is_since(since);
        let mut any = false;
        self.climb(|dir, _| any = any || moved(dir));
        any
    }

    /// The log's position after the last rename of the directory or of one above it; 0 if there was
    /// none.
    pub fn moved_at(&self) -> u64 {
        let mut last = 0;
        self.climb(|dir, _| last = last.max(dir.moved_at.load(Relaxed)));
        last
    }

    /// The directory and those above it whose places this file of the log has not stated.
    pub fn untold(self: &Arc<Self>, log: u64) -> Vec<Arc<Dir>> {
        self.up_to(|dir| dir.told_in.load(Relaxed) == log)
    }

    pub fn told(&self, log: u64) {
        self.told_in.store(log, Relaxed);
    }

    pub fn above(&self) -> Option<Arc<Dir>> {
        let place = self.place.lock();
        place.as_ref().map(|place| place.parent.clone())
    }

    /// The directory and those above it that have no row in the store.
    pub fn unstored(self: &Arc<Self>) -> Vec<Arc<Dir>> {
        self.up_to(|dir| dir.stored.load(Relaxed))
    }

    pub fn stored(&self) {
        self.stored.store(true, Relaxed);
    }

    fn up_to(self: &Arc<Self>, end: impl Fn(&Dir) -> bool) -> Vec<Arc<Dir>> {
        let (mut found, mut dir) = (Vec::new(), self.clone());
        while !end(&dir)
            && let Some(parent) = dir.above()
        {
            found.push(std::mem::replace(&mut dir, parent));
        }
        found
    }
}

impl std::fmt::Debug for Dir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{:?}", self.id.0, self.join(OsStr::new("")))
    }
}

/// The ways to rename directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way<'a> {
    To { from: &'a Path, to: &'a Path },
    Exchange { one: &'a Path, two: &'a Path },
}

impl<'a> Way<'a> {
    fn ends(self) -> [&'a Path; 2] {
        match self {
            Way::To { from, to } => [from, to],
            Way::Exchange { one, two } => [one, two],
        }
    }
}

/// The changes of nodes by a rename.
#[derive(Default)]
pub struct Plan(Vec<(Arc<Dir>, Place)>);

impl Plan {
    pub fn dirs(&self) -> impl Iterator<Item = &Arc<Dir>> {
        self.0.iter().map(|(dir, _)| dir)
    }

    /// The places that the log has to state: those of the rename, and those above that this file of
    /// the log lacks.
    pub fn places(&self, log: u64) -> Vec<Placed> {
        let above = self.0.iter().flat_map(|(_, place)| place.parent.untold(log));
        let above = above.filter_map(|dir| dir.placed());
        let moved = self.0.iter().map(|(dir, place)| Placed {
            id: dir.id,
            parent: place.parent.id,
            name: place.name.as_bytes().to_vec(),
        });
        above.chain(moved).collect()
    }

    /// Notes that this file of the log has stated the places.
    pub fn told(&self, log: u64) {
        for (dir, place) in &self.0 {
            place.parent.untold(log).iter().for_each(|above| above.told(log));
            dir.told(log);
        }
    }
}

/// Renames of directories, from before the store is asked until their places have followed.
#[derive(Default)]
pub struct Moving(Vec<Arc<Dir>>);

impl Drop for Moving {
    fn drop(&mut self) {
        for dir in &self.0 {
            dir.moved.note();
            dir.moving.fetch_sub(1, Release);
        }
    }
}

impl Moving {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a file below the directories has durable bytes.
    pub fn has_durable(&self) -> bool {
        self.0.iter().any(|dir| dir.durable.load(Acquire) > 0)
    }
}

pub struct Tree {
    root: Arc<Dir>,
    shared: Arc<Shared>,
}

struct Shared {
    nodes: Mutex<Nodes>,
    ends: Mutex<Vec<End>>,
}

struct Nodes {
    by_place: HashTable<Known>,
    inside: HashMap<DirId, Inside>,
    hasher: DefaultHashBuilder,
    next: u64,
    /// Directories that have rows in the store and have ended.
    ended: Vec<DirId>,
}

struct Known {
    parent: DirId,
    name: Box<OsStr>,
    id: DirId,
    dir: Weak<Dir>,
}

/// The contents of a directory.
#[derive(Default)]
struct Inside {
    files: HashTable<Entry>,
    dirs: HashSet<DirId>,
    /// The directories that have given way to this one (P2).
    aside: Vec<DirId>,
}

/// A name of a file in a directory. A hash of the name is enough: the caller looks at the file.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry {
    name: u32,
    /// The file's id in halves, since there may be millions.
    file: [u32; 2],
}

impl Entry {
    fn new(name: u32, FileId(id): FileId) -> Entry {
        Entry { name, file: [(id >> 32) as u32, id as u32] }
    }

    fn file(self) -> FileId {
        FileId(u64::from(self.file[0]) << 32 | u64::from(self.file[1]))
    }

    fn hash(self) -> u64 {
        spread(self.name)
    }
}

/// Spreads a hash of half a word over a whole word.
fn spread(name: u32) -> u64 {
    u64::from(name).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

impl Default for Tree {
    fn default() -> Tree {
        let nodes = Nodes {
            by_place: HashTable::new(),
            inside: HashMap::new(),
            hasher: DefaultHashBuilder::default(),
            next: ROOT.0 + 1,
            ended: Vec::new(),
        };
        let shared = Arc::new(Shared {
            nodes: Mutex::new(Rank::Dirs, nodes),
            ends: Mutex::new(Rank::DirEnds, Vec::new()),
        });
        Tree { root: Arc::new(node(ROOT, None, &shared)), shared }
    }
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tree")
    }
}

fn node(id: DirId, place: Option<Place>, shared: &Arc<Shared>) -> Dir {
    Dir {
        id,
        place: Mutex::new(Rank::Dir, place),
        moving: AtomicU32::new(0),
        moved: Last::default(),
        moved_at: AtomicU64::new(0),
        told_in: AtomicU64::new(0),
        stored: AtomicBool::new(false),
        durable: AtomicU64::new(0),
        shared: shared.clone(),
    }
}

impl Tree {
    /// The directory with this path, if a name below it is known.
    pub fn find(&self, path: &Path) -> Option<Arc<Dir>> {
        let nodes = self.lock();
        names(path).try_fold(self.root.clone(), |dir, name| nodes.at(dir.id, name))
    }

    /// The directory with this path; a new node if there is none.
    pub fn dir(&self, path: &Path) -> Arc<Dir> {
        let mut nodes = self.lock();
        names(path).fold(self.root.clone(), |dir, name| {
            nodes.at(dir.id, name).unwrap_or_else(|| {
                let id = DirId(nodes.next);
                nodes.next += 1;
                let place = Place { parent: dir.clone(), name: name.into() };
                let made = Arc::new(node(id, Some(place), &self.shared));
                nodes.enter(&made, dir.id, name);
                made
            })
        })
    }

    /// Begins to rename the known directories at both ends of `way`.
    pub fn begin(&self, way: Way<'_>) -> Moving {
        let dirs: Vec<_> = way.ends().into_iter().filter_map(|path| self.find(path)).collect();
        for dir in &dirs {
            dir.moving.fetch_add(1, Relaxed);
        }
        Moving(dirs)
    }

    /// The changes of nodes by a rename; none, if none of them is known, or if a node would be below
    /// itself (P3), which no store does. The log's lock is held until the plan is applied.
    pub fn plan(&self, way: Way<'_>) -> Plan {
        let to = |from: &Path, to: &Path| Some((self.find(from)?, self.place_at(to)));
        let moves: Vec<_> = match way {
            Way::To { from, to: at } => to(from, at).into_iter().collect(),
            Way::Exchange { one, two } => to(one, two).into_iter().chain(to(two, one)).collect(),
        };
        if moves.iter().any(|(dir, place)| place.parent.is_below(dir)) {
            return Plan::default();
        }
        let aside = match (way, moves.first()) {
            (Way::To { to, .. }, Some((dir, _))) => {
                let over = self.find(to).filter(|over| over.id != dir.id);
                over.map(|over| (over, Place::aside(dir)))
            }
            _ => None,
        };
        Plan(moves.into_iter().chain(aside).collect())
    }

    fn place_at(&self, path: &Path) -> Place {
        let parent = self.dir(path.parent().unwrap_or(Path::new("")));
        Place { parent, name: path.file_name().unwrap_or_default().into() }
    }

    /// Applies a plan. `seq` is the log's position after the record of it.
    pub fn apply(&self, plan: &Plan, seq: u64) {
        let mut nodes = self.lock();
        for (dir, _) in &plan.0 {
            if let Some(Place { parent, name }) = dir.place() {
                nodes.leave(dir.id, parent.id, &name);
            }
        }
        for (dir, place) in &plan.0 {
            dir.moved_at.fetch_max(seq, Relaxed);
            self.put(&mut nodes, dir, place.clone());
        }
    }

    /// Puts a node at a place. A node that is there gives way (P2).
    fn put(&self, nodes: &mut Nodes, dir: &Arc<Dir>, place: Place) {
        let (parent, name) = (place.parent.id, place.name.clone());
        place_at(dir, place);
        if let Some(over) = nodes.at(parent, &name) {
            place_at(&over, Place::aside(dir));
            nodes.leave(over.id, parent, &name);
            nodes.enter(&over, dir.id, OsStr::new(""));
        }
        nodes.enter(dir, parent, &name);
    }

    /// Takes the nodes that had rows in the store and have ended.
    pub fn take_ended(&self) -> Vec<DirId> {
        std::mem::take(&mut self.lock().ended)
    }

    pub fn next_id(&self) -> u64 {
        self.lock().next
    }

    /// The files with names at or below this path. A file may have lost its name since, and a name may
    /// only share the hash of the path's last: the caller looks at each file.
    pub fn at_or_below(&self, path: &Path) -> Vec<FileId> {
        let nodes = self.lock();
        let mut dirs = nodes.with_aside(vec![ROOT]);
        let mut found = Vec::new();
        let mut names = names(path).peekable();
        while let Some(name) = names.next() {
            if names.peek().is_none() {
                let hash = nodes.hash(name);
                dirs.iter().for_each(|dir| nodes.files_named(*dir, hash, &mut found));
            }
            let next = dirs.iter().filter_map(|dir| nodes.known(*dir, name)).map(|it| it.id);
            dirs = nodes.with_aside(next.collect());
        }
        nodes.files_below(dirs, &mut found);
        found
    }

    fn lock(&self) -> MutexGuard<'_, Nodes> {
        self.shared.lock()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Nodes> {
        let mut nodes = self.nodes.lock();
        let ends = std::mem::take(&mut *self.ends.lock());
        for End { id, parent, name, stored } in ends {
            nodes.leave(id, parent, &name);
            nodes.ended.extend(stored.then_some(id));
        }
        nodes
    }
}

/// Moves a node; the number of its durable names moves along (P5).
fn place_at(dir: &Dir, place: Place) {
    let durable = dir.durable.load(Relaxed) as i64;
    let parent = place.parent.clone();
    let before = dir.place.lock().replace(place);
    if let Some(before) = before {
        before.parent.weigh(-durable);
    }
    parent.weigh(durable);
}

/// Replaces the names of a file in their directories.
pub fn enter<'a>(
    file: FileId,
    weight: Weight,
    before: impl Iterator<Item = (&'a Arc<Dir>, &'a OsStr)> + Clone,
    now: impl Iterator<Item = (&'a Arc<Dir>, &'a OsStr)> + Clone,
) {
    let Some((any, _)) = before.clone().chain(now.clone()).next() else { return };
    let mut nodes = any.shared.lock();
    let names = i64::from(weight == Weight::Durable);
    for (dir, name) in before {
        nodes.leave_file(dir.id, name, file);
        dir.weigh(-names);
    }
    for (dir, name) in now {
        nodes.enter_file(dir.id, name, file);
        dir.weigh(names);
    }
}

/// Sets whether the file with names in these directories has durable bytes.
pub fn weigh<'a>(weight: Weight, mut dirs: impl Iterator<Item = &'a Arc<Dir>>) {
    let Some(first) = dirs.next() else { return };
    let _nodes = first.shared.lock();
    let names = if weight == Weight::Durable { 1 } else { -1 };
    std::iter::once(first).chain(dirs).for_each(|dir| dir.weigh(names));
}

/// Whether a file has bytes that survive a loss of power.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Weight {
    #[default]
    None,
    Durable,
}

impl Nodes {
    fn at(&self, parent: DirId, name: &OsStr) -> Option<Arc<Dir>> {
        self.known(parent, name)?.dir.upgrade()
    }

    fn known(&self, parent: DirId, name: &OsStr) -> Option<&Known> {
        let is_it = |known: &Known| known.parent == parent && *known.name == *name;
        self.by_place.find(self.hasher.hash_one((parent, name)), is_it)
    }

    fn hash(&self, name: &OsStr) -> u32 {
        self.hasher.hash_one(name) as u32
    }

    fn enter_file(&mut self, dir: DirId, name: &OsStr, file: FileId) {
        let entry = Entry::new(self.hash(name), file);
        let files = &mut self.inside.entry(dir).or_default().files;
        if files.find(entry.hash(), |it| *it == entry).is_none() {
            files.insert_unique(entry.hash(), entry, |it| it.hash());
        }
    }

    fn leave_file(&mut self, dir: DirId, name: &OsStr, file: FileId) {
        let entry = Entry::new(self.hash(name), file);
        let Some(inside) = self.inside.get_mut(&dir) else { return };
        if let Ok(found) = inside.files.find_entry(entry.hash(), |it| *it == entry) {
            found.remove();
        }
        self.tidy(dir);
    }

    /// Frees the room of removed entries.
    fn tidy(&mut self, dir: DirId) {
        let Some(Inside { files, dirs, .. }) = self.inside.get_mut(&dir) else { return };
        if files.is_empty() && dirs.is_empty() {
            self.inside.remove(&dir);
        } else if files.len() * 4 < files.capacity() {
            files.shrink_to(files.len() * 2, |it| it.hash());
        }
    }

    /// These directories, and those that have given way to them.
    fn with_aside(&self, mut dirs: Vec<DirId>) -> Vec<DirId> {
        let mut next = 0;
        while let Some(dir) = dirs.get(next) {
            next += 1;
            dirs.extend(self.inside.get(dir).map_or(&[][..], |inside| &inside.aside).to_vec());
        }
        dirs
    }

    fn files_named(&self, dir: DirId, name: u32, found: &mut Vec<FileId>) {
        let Some(inside) = self.inside.get(&dir) else { return };
        let named = inside.files.iter_hash(spread(name)).filter(|it| it.name == name);
        found.extend(named.map(|it| it.file()));
    }

    fn files_below(&self, mut dirs: Vec<DirId>, found: &mut Vec<FileId>) {
        while let Some(dir) = dirs.pop() {
            let Some(inside) = self.inside.get(&dir) else { continue };
            found.extend(inside.files.iter().map(|it| it.file()));
            dirs.extend(&inside.dirs);
        }
    }

    /// Enters a node at a place without a living node, or beside others if it has given way.
    fn enter(&mut self, dir: &Arc<Dir>, parent: DirId, name: &OsStr) {
        let inside = self.inside.entry(parent).or_default();
        inside.dirs.insert(dir.id);
        if name.is_empty() {
            return inside.aside.push(dir.id);
        }
        let Nodes { by_place, hasher, .. } = self;
        let is_it = |known: &Known| known.parent == parent && *known.name == *name;
        let hash = hasher.hash_one((parent, name));
        if let Ok(before) = by_place.find_entry(hash, is_it) {
            before.remove();
        }
        let known = Known { parent, name: name.into(), id: dir.id, dir: Arc::downgrade(dir) };
        by_place.insert_unique(hash, known, |it| hasher.hash_one((it.parent, &*it.name)));
    }

    fn leave(&mut self, id: DirId, parent: DirId, name: &OsStr) {
        if let Some(inside) = self.inside.get_mut(&parent) {
            inside.dirs.remove(&id);
            inside.aside.retain(|aside| *aside != id);
            self.tidy(parent);
        }
        let is_it =
            |known: &Known| known.id == id && known.parent == parent && *known.name == *name;
        if let Ok(found) = self.by_place.find_entry(self.hasher.hash_one((parent, name)), is_it) {
            found.remove();
        }
    }
}

fn names(path: &Path) -> impl Iterator<Item = &OsStr> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        _ => None,
    })
}

/// Places as they are on record, from which a tree is made.
#[derive(Debug, Default, Clone)]
pub struct Places {
    at: HashMap<DirId, (DirId, Box<OsStr>)>,
    /// Directories that the store has rows of.
    stored: Vec<DirId>,
    /// Directories whose places the log has stated since.
    told: Vec<DirId>,
    pub next: u64,
}

impl Places {
    pub fn store_says(&mut self, placed: Placed) {
        self.stored.push(placed.id);
        self.set(placed);
    }

    pub fn log_says(&mut self, placed: Placed) {
        self.told.push(placed.id);
        self.set(placed);
    }

    fn set(&mut self, Placed { id, parent, name }: Placed) {
        self.next = self.next.max(id.0 + 1);
        self.at.insert(id, (parent, OsString::from_vec(name).into()));
    }
}

/// The tree as it is made from recorded places.
pub struct Grown {
    pub tree: Arc<Tree>,
    places: Places,
    made: HashMap<DirId, Arc<Dir>>,
}

impl Grown {
    pub fn of(places: Places) -> Grown {
        let tree = Tree::default();
        let next = places.next.max(ROOT.0 + 1);
        tree.lock().next = next;
        let made = HashMap::from_iter([(ROOT, tree.root.clone())]);
        Grown { tree: Arc::new(tree), places, made }
    }

    /// The node with this number, if its place is known.
    pub fn dir(&mut self, id: DirId) -> Option<Arc<Dir>> {
        let mut way = Vec::new();
        let mut at = id;
        while !self.made.contains_key(&at) {
            // Damage may have made a circle.
            if way.len() > self.places.at.len() {
                return None;
            }
            way.push(at);
            at = self.places.at.get(&at)?.0;
        }
        let mut nodes = self.tree.lock();
        for id in way.into_iter().rev() {
            let (parent, name) = &self.places.at[&id];
            let parent = self.made[parent].clone();
            // Of two directories at one place the first is found (P2).
            let there = nodes.at(parent.id, name).filter(|_| !name.is_empty());
            let (parent, name) = there.map_or((parent, &**name), |there| (there, OsStr::new("")));
            let place = Place { parent: parent.clone(), name: name.into() };
            let dir = Arc::new(node(id, Some(place), &self.tree.shared));
            nodes.enter(&dir, parent.id, name);
            self.made.insert(id, dir);
        }
        Some(self.made[&id].clone())
    }

    /// The nodes whose rows differ from the log.
    pub fn finish(self) -> Vec<Arc<Dir>> {
        for id in &self.places.stored {
            match self.made.get(id) {
                Some(dir) => dir.stored(),
                None => self.tree.lock().ended.push(*id),
            }
        }
        self.places.told.iter().filter_map(|id| self.made.get(id).cloned()).collect()
    }
}
