//! The names that the kernel knows: node ids, and the path of each.
//!
//! A node id is the backing store's inode number: it stays the same after the kernel has forgotten
//! the node, and after a restart. Nodes that the kernel forgot are kept while there are at most `max`
//! nodes, then dropped oldest first: an NFS server's handle outlives the kernel's inode.
//!
//! Invariants:
//! - N1: a node that the kernel holds is never dropped.
//! - N2: every name in `names` leads to a node that lists it.
//! - N3: `forgotten` lists each node that has a name and that the kernel does not hold, and no other.
//! - N4: a node that has no name and that the kernel does not hold is dropped, with its file's pin.

mod acl;
mod links;
mod reused;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::Arc;

use forebay_backing::{Attr, FileKey, FileKind, Pin};
use forebay_base::lock::{Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};
use hashbrown::{Equivalent, HashMap};

use links::{Link, Links};
use reused::Reused;

pub const ROOT: u64 = 1;

/// The most pins. Each holds a descriptor until the kernel has forgotten the file, which may take long
/// after many removals at once. Pins are for opens in progress, and few of these files have one. The
/// inode number of an open file is kept by the engine's descriptor as well.
const PINS_MAX: usize = 4096;

/// The bit in the node id of a file that another mount serves. The file has another node id while this mount
/// serves it, since the kernel keeps one page cache for each node.
const FAR: u64 = 1 << 61;

/// The server of a file: the engine here, or the file's home on another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Near,
    Far,
}

/// The generation in 32 bits, for which the kernel's file handles have room.
pub fn generation(key: FileKey) -> u64 {
    u64::from((key.generation ^ (key.generation >> 32)) as u32)
}

type Name = (u64, Arc<OsStr>);

/// A [`Name`] to look for.
#[derive(Hash, PartialEq, Eq)]
struct NameRef<'a>(u64, &'a OsStr);

impl Equivalent<Name> for NameRef<'_> {
    fn equivalent(&self, name: &Name) -> bool {
        self.0 == name.0 && *self.1 == *name.1
    }
}

/// A pin, and one of the references by which pins are counted.
type Held = (Arc<dyn Pin>, Arc<()>);

struct Node {
    key: FileKey,
    names: Links,
    lookups: u64,
    is_dir: bool,
    side: Side,
    /// The node's place among the forgotten nodes.
    queued: Option<u64>,
    /// Fingerprint of the file's bytes that are in the kernel's page cache; 0 is none.
    pages: u64,
    /// Keeps the inode number of an unlinked file from being used again while the kernel may
    /// still send requests with that number.
    pin: Option<Held>,
    /// The attributes of a directory, to answer while the backing store is away.
    attr: Option<Box<Attr>>,
    /// The access list as last read; empty if there is none.
    acl: Option<Box<[u8]>>,
}

impl Node {
    fn new(key: FileKey, is_dir: bool, side: Side) -> Node {
        let (queued, pin, attr, acl) = (None, None, None, None);
        let names = Links::default();
        Node { key, names, lookups: 0, is_dir, side, queued, pages: 0, pin, attr, acl }
    }
}

pub struct Nodes {
    table: RwLock<Table>,
    root: FileKey,
    max: usize,
    /// The references to this count the pins.
    pins: Arc<()>,
}

#[derive(Default)]
struct Table {
    nodes: HashMap<u64, Node>,
    names: HashMap<Name, Link>,
    /// Nodes by their place, the longest forgotten first.
    forgotten: BTreeMap<u64, u64>,
    /// The place given last, to a forgotten node or to a name.
    last_place: u64,
    /// Pins that were taken from nodes. They are dropped after the table's lock was released: the
    /// store frees an unlinked file with its last descriptor.
    freed: Vec<Held>,
    /// How often an access list was forgotten.
    acls_forgotten: u64,
    reused: Reused,
}

/// The table, locked to be changed. Drops `freed` after the lock.
struct Changing<'a>(Option<RwLockWriteGuard<'a, Table>>);

impl Deref for Changing<'_> {
    type Target = Table;

    fn deref(&self) -> &Table {
        self.0.as_ref().expect("held until it is dropped")
    }
}

impl DerefMut for Changing<'_> {
    fn deref_mut(&mut self) -> &mut Table {
        self.0.as_mut().expect("held until it is dropped")
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        let freed = std::mem::take(&mut self.freed);
        self.0 = None;
        drop(freed);
    }
}

/// A pin on a file while one of its names is removed.
pub struct Hold<'a> {
    nodes: &'a Nodes,
    id: u64,
    pin: Arc<dyn Pin>,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let mut table = self.nodes.write();
        let table = &mut *table;
        let Some(node) = table.nodes.get_mut(&self.id) else { return };
        let is_ours = node.pin.as_ref().is_some_and(|(pin, _)| Arc::ptr_eq(pin, &self.pin));
        if is_ours && !node.names.is_empty() {
            table.freed.extend(node.pin.take());
        }
    }
}

/// The facts of a child that are known without asking the backing store.
#[derive(Debug, Clone, Copy)]
pub struct Child {
    pub id: u64,
    pub key: FileKey,
    pub is_dir: bool,
}

impl Nodes {
    pub fn new(root: Attr, max: usize) -> Nodes {
        let mut table = Table::default();
        table.nodes.insert(
            ROOT,
            Node {
                key: root.key,
                names: Links::default(),
                lookups: 1,
                is_dir: true,
                side: Side::Near,
                queued: None,
                pages: 0,
                pin: None,
                attr: Some(Box::new(root)),
                acl: None,
            },
        );
        Nodes { table: RwLock::new(Rank::Nodes, table), root: root.key, max, pins: Arc::default() }
    }

    #[track_caller]
    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read()
    }

    #[track_caller]
    fn write(&self) -> Changing<'_> {
        Changing(Some(self.table.write()))
    }

    /// The node id of a file. Id 1 is the root's alone: a store's own inode numbers 0 and 1 get a
    /// high bit.
    pub fn id_of(&self, key: FileKey) -> u64 {
        match key.ino {
            _ if key == self.root => ROOT,
            ino @ 0..=1 => ino | 1 << 60,
            ino => ino,
        }
    }

    /// The node id of a file that is served on `side`.
    pub fn id_at(&self, key: FileKey, side: Side) -> u64 {
        match side {
            Side::Near => self.id_of(key),
            Side::Far => self.id_of(key) ^ FAR,
        }
    }

    /// Whether the node is of a file that another mount serves.
    pub fn is_far(&self, id: u64) -> bool {
        self.read().nodes.get(&id).is_some_and(|node| node.side == Side::Far)
    }

    /// The inode number that programs see: one for each file.
    pub fn ino(&self, id: u64) -> u64 {
        if self.is_far(id) { id ^ FAR } else { id }
    }

    /// The node of a path, as far as its names are known.
    pub fn at(&self, path: &std::path::Path) -> Option<u64> {
        path.iter().try_fold(ROOT, |dir, name| Some(self.child(dir, name)?.id))
    }

    /// Remembers that `name` in `parent` is this file, and that the kernel got `times` references.
    pub fn remember(&self, parent: u64, name: &OsStr, attr: &Attr, times: u64) -> u64 {
        self.remember_at(Side::Near, parent, name, attr, times)
    }

    /// The same for a file that is served on `side`.
    pub fn remember_at(
        &self,
        side: Side,
        parent: u64,
        name: &OsStr,
        attr: &Attr,
        times: u64,
    ) -> u64 {
        let id = self.id_at(attr.key, side);
        if id == ROOT {
            return id;
        }
        let is_dir = attr.kind == FileKind::Dir;
        let mut table = self.write();
        let table = &mut *table;
        if let Some(node) = table.known_as(id, &NameRef(parent, name))
            && (node.key, node.is_dir, node.side) == (attr.key, is_dir, side)
            && times > 0
        {
            node.lookups += times;
            node.attr = is_dir.then(|| Box::new(*attr));
            table.settle(id);
            return id;
        }
        let at: Name = (parent, name.into());
        let place = table.next_place();
        let before = table.names.insert(at.clone(), Link { id, place });
        if let Some(other) = before.filter(|other| other.id != id) {
            table.unname(other);
        }
        let node = table.nodes.entry(id).or_insert_with(|| Node::new(attr.key, is_dir, side));
        if let Some(same) = before.filter(|before| before.id == id) {
            node.names.remove(same.place);
        }
        // On a store without generations a removed directory and a later file may have the same key.
        let is_another = (node.key, node.is_dir, node.side) != (attr.key, is_dir, side);
        if is_another {
            // The number was used again: nothing known of the old file holds for the new one.
            (node.key, node.is_dir, node.side) = (attr.key, is_dir, side);
            (node.pages, node.acl) = (0, None);
            table.freed.extend(node.pin.take());
            table.reused.note(id);
        }
        if is_another || is_dir {
            // A directory has one name: if others moved it on the backing store, its old name is gone.
            for name in std::mem::take(&mut node.names).iter() {
                table.names.remove(name);
            }
        }
        node.names.add(place, at);
        let node = table.nodes.get_mut(&id).expect("entered above");
        node.lookups += times;
        node.attr = is_dir.then(|| Box::new(*attr));
        table.settle(id);
        table.trim(self.max);
        id
    }

    /// Whether an open of the node by this thread may be of the file that had its number before: the thread is to look
    /// the name up again, once.
    pub fn sends_back(&self, id: u64, thread: u32) -> bool {
        self.read().reused.has(id) && self.write().reused.sends_back(id, thread)
    }

    /// Drops `times` references of the kernel.
    pub fn forget(&self, id: u64, times: u64) {
        if id == ROOT {
            return;
        }
        let mut table = self.write();
        if let Some(node) = table.nodes.get_mut(&id) {
            node.lookups = node.lookups.saturating_sub(times);
            table.settle(id);
            table.trim(self.max);
        }
    }

    /// The path of a node; `None` if it has no name any more or is not known.
    pub fn path(&self, id: u64) -> Option<PathBuf> {
        let table = self.read();
        let mut parts: Vec<&OsStr> = Vec::new();
        let mut at = id;
        // There can be no cycle, but a damaged table must not hang the daemon.
        for _ in 0..4096 {
            if at == ROOT {
                let mut path = PathBuf::new();
                parts.iter().rev().for_each(|part| path.push(part));
                return Some(path);
            }
            let (parent, name) = table.nodes.get(&at)?.names.latest()?;
            parts.push(name);
            at = *parent;
        }
        None
    }

    /// At most `count` paths of a file by names other than `than`.
    pub fn others(&self, id: u64, than: (u64, &OsStr), count: usize) -> Vec<PathBuf> {
        let than = NameRef(than.0, than.1);
        let names: Vec<Name> = match self.read().nodes.get(&id) {
            Some(node) => {
                let others = node.names.iter().filter(|name| !than.equivalent(*name));
                others.take(count).cloned().collect()
            }
            None => Vec::new(),
        };
        let path = |(parent, name): Name| self.path(parent).map(|dir| dir.join(&*name));
        names.into_iter().filter_map(path).collect()
    }

    pub fn key(&self, id: u64) -> Option<FileKey> {
        self.read().nodes.get(&id).map(|node| node.key)
    }

    pub fn is_dir(&self, id: u64) -> bool {
        self.read().nodes.get(&id).is_some_and(|node| node.is_dir)
    }

    pub fn parent(&self, id: u64) -> Option<u64> {
        match id {
            ROOT => Some(ROOT),
            _ => self.read().nodes.get(&id)?.names.latest().map(|name| name.0),
        }
    }

    pub fn child(&self, parent: u64, name: &OsStr) -> Option<Child> {
        let table = self.read();
        let id = table.names.get(&NameRef(parent, name))?.id;
        let node = table.nodes.get(&id)?;
        Some(Child { id, key: node.key, is_dir: node.is_dir })
    }

    /// The key of a node that is no directory.
    pub fn file_key(&self, id: u64) -> Option<FileKey> {
        self.read().nodes.get(&id).filter(|node| !node.is_dir).map(|node| node.key)
    }

    /// The keys of a node that is no directory, and of the directory of its latest name.
    pub fn placed(&self, id: u64) -> Option<(FileKey, FileKey)> {
        let table = self.read();
        let node = table.nodes.get(&id).filter(|node| !node.is_dir)?;
        let (parent, _) = node.names.latest()?;
        Some((node.key, table.nodes.get(parent)?.key))
    }

    /// Attributes of a directory as last seen.
    pub fn dir_attr(&self, id: u64) -> Option<Attr> {
        self.read().nodes.get(&id)?.attr.as_deref().copied()
    }

    /// Known names in a directory, for when the backing store cannot be asked.
    pub fn children(&self, parent: u64) -> Vec<(Arc<OsStr>, Child)> {
        let table = self.read();
        let within = table.names.iter().filter(|((dir, _), _)| *dir == parent);
        within
            .filter_map(|((_, name), Link { id, .. })| {
                let node = table.nodes.get(id)?;
                Some((name.clone(), Child { id: *id, key: node.key, is_dir: node.is_dir }))
            })
            .collect()
    }

    /// Whether another pin is allowed, and this file needs one because the kernel knows the file.
    pub fn may_hold(&self, id: u64) -> bool {
        let is_held = |node: &Node| node.lookups > 0;
        Arc::strong_count(&self.pins) <= PINS_MAX && self.read().nodes.get(&id).is_some_and(is_held)
    }

    /// Pins a file that is about to lose a name, until the kernel has forgotten the file. If the file
    /// still has a name when the returned [`Hold`] is dropped, the pin ends then.
    pub fn hold(&self, id: u64, pin: Arc<dyn Pin>) -> Hold<'_> {
        let mut table = self.write();
        let table = &mut *table;
        if let Some(node) = table.nodes.get_mut(&id).filter(|node| node.lookups > 0) {
            table.freed.extend(node.pin.replace((pin.clone(), self.pins.clone())));
        }
        Hold { nodes: self, id, pin }
    }

    /// The pin on the file, if there is one.
    pub fn pin(&self, id: u64) -> Option<Arc<dyn Pin>> {
        Some(self.read().nodes.get(&id)?.pin.as_ref()?.0.clone())
    }

    /// Removes a name.
    pub fn unlink(&self, parent: u64, name: &OsStr) {
        let mut table = self.write();
        if let Some(link) = table.names.remove(&NameRef(parent, name)) {
            table.unname(link);
        }
    }

    pub fn rename(&self, from: (u64, &OsStr), to: (u64, &OsStr), exchange: bool) {
        let mut table = self.write();
        let from: Name = (from.0, from.1.into());
        let to: Name = (to.0, to.1.into());
        let moved = table.names.remove(&from);
        let other = table.names.remove(&to);
        if let Some(link) = moved {
            table.call(link, to);
        }
        match other {
            Some(other) if moved.is_some_and(|moved| moved.id == other.id) => {
                table.forget_name(other);
            }
            Some(other) if exchange => table.call(other, from),
            Some(other) => table.unname(other),
            None => {}
        }
    }

    pub fn pages(&self, id: u64) -> u64 {
        self.read().nodes.get(&id).map_or(0, |node| node.pages)
    }

    pub fn set_pages(&self, id: u64, fingerprint: u64) {
        if let Some(node) = self.write().nodes.get_mut(&id) {
            node.pages = fingerprint;
        }
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.read().nodes.len()
    }
}

impl Table {
    /// Returns the node if `name` is its latest name.
    fn known_as(&mut self, id: u64, name: &NameRef<'_>) -> Option<&mut Node> {
        let node = self.nodes.get_mut(&id)?;
        node.names.latest().is_some_and(|latest| name.equivalent(latest)).then_some(node)
    }

    fn next_place(&mut self) -> u64 {
        self.last_place += 1;
        self.last_place
    }

    fn forget_name(&mut self, link: Link) {
        if let Some(node) = self.nodes.get_mut(&link.id) {
            node.names.remove(link.place);
        }
    }

    /// Takes a name away from its node, after it was removed from `names`.
    fn unname(&mut self, link: Link) {
        if let Some(node) = self.nodes.get_mut(&link.id) {
            node.names.remove(link.place);
            if !node.names.is_empty() {
                self.freed.extend(node.pin.take()); // Another name keeps the number.
            }
            self.settle(link.id);
        }
    }

    /// Gives a node a new name. `link` was its old one, which was removed from `names`.
    fn call(&mut self, link: Link, name: Name) {
        let place = self.next_place();
        if let Some(node) = self.nodes.get_mut(&link.id) {
            node.names.remove(link.place);
            node.names.add(place, name.clone());
            self.names.insert(name, Link { place, ..link });
        }
    }

    /// Brings a node's place in `forgotten`, its pin and its existence in line with N3 and N4.
    fn settle(&mut self, id: u64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let is_forgotten = node.lookups == 0 && !node.names.is_empty();
        match (is_forgotten, node.queued) {
            (true, None) => {
                self.last_place += 1;
                node.queued = Some(self.last_place);
                self.forgotten.insert(self.last_place, id);
            }
            (false, Some(place)) => {
                node.queued = None;
                self.forgotten.remove(&place);
            }
            _ => {}
        }
        if node.lookups == 0 {
            self.freed.extend(node.pin.take());
            if node.names.is_empty() {
                self.nodes.remove(&id);
            }
        }
    }

    /// Drops forgotten nodes while there are too many (N1).
    fn trim(&mut self, max: usize) {
        while self.nodes.len() > max {
            let Some((_, id)) = self.forgotten.pop_first() else { return };
            let node = self.nodes.remove(&id).expect("N3: what is forgotten is there");
            for name in node.names.iter() {
                self.names.remove(name);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use forebay_backing::Timestamp;

    pub fn attr(ino: u64, kind: FileKind) -> Attr {
        let t = Timestamp::default();
        Attr {
            key: FileKey { ino, generation: 7 },
            kind,
            mode: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
        }
    }

    pub fn nodes(max: usize) -> Nodes {
        Nodes::new(attr(2, FileKind::Dir), max)
    }

    #[test]
    fn a_path_follows_renames_of_its_parents() {
        let n = nodes(100);
        n.remember(ROOT, "a".as_ref(), &attr(10, FileKind::Dir), 1);
        n.remember(10, "f".as_ref(), &attr(11, FileKind::File), 1);
        n.rename((ROOT, "a".as_ref()), (ROOT, "b".as_ref()), false);
        assert_eq!(n.path(11).unwrap(), PathBuf::from("b/f"));
        assert!(n.child(ROOT, "a".as_ref()).is_none());
    }

    /// The kernel has one page cache for a node: bytes from another mount must not be in the one of our node.
    #[test]
    fn a_file_that_goes_to_another_home_and_back_is_two_nodes_of_one_number() {
        let n = nodes(100);
        let (name, of) = ("f".as_ref(), attr(11, FileKind::File));
        let near = n.remember(ROOT, name, &of, 1);
        let far = n.remember_at(Side::Far, ROOT, name, &of, 1);
        assert_ne!(near, far);
        assert_eq!((n.ino(near), n.ino(far)), (11, 11));
        assert_eq!((n.key(near), n.key(far)), (Some(of.key), Some(of.key)));
        assert!(n.is_far(far) && !n.is_far(near));
        assert_eq!((n.path(near), n.path(far)), (None, Some("f".into())), "one name, one node");
        assert_eq!(n.remember(ROOT, name, &of, 1), near);
        assert_eq!((n.at("f".as_ref()), n.path(far)), (Some(near), None));
    }

    /// A program's open by the old name of a node's former file must not open the other file.
    // S-25
    #[test]
    fn an_open_of_a_node_that_is_another_files_by_now_is_sent_back_once() {
        let n = nodes(100);
        let mut of = attr(5, FileKind::File);
        let id = n.remember(ROOT, OsStr::new("a"), &of, 1);
        assert!(!n.sends_back(id, 7), "it is the first file's");
        of.key.generation += 1;
        assert_eq!(n.remember(ROOT, OsStr::new("b"), &of, 1), id);
        assert_eq!([7, 7, 8, 7].map(|thread| n.sends_back(id, thread)), [true, false, true, false]);
        assert!(!n.sends_back(id + 1, 7));
    }

    /// A removed file's inode number, and its key on a store without generations, may be used again at once.
    #[test]
    fn a_file_with_the_number_of_a_directory_that_is_gone_is_a_file() {
        for name in ["d", "f"] {
            let n = nodes(100);
            n.remember(ROOT, "d".as_ref(), &attr(10, FileKind::Dir), 1);
            assert_eq!(n.file_key(10), None);
            if name == "f" {
                n.unlink(ROOT, "d".as_ref());
            }
            n.remember(ROOT, name.as_ref(), &attr(10, FileKind::File), 1);
            n.forget(10, 1);
            assert!(n.file_key(10).is_some() && !n.is_dir(10), "by the name {name}");
            assert_eq!(n.path(10), Some(name.into()));
        }
    }

    #[test]
    fn a_hard_link_keeps_its_other_name() {
        let n = nodes(100);
        n.remember(ROOT, "a".as_ref(), &attr(10, FileKind::File), 1);
        n.remember(ROOT, "b".as_ref(), &attr(10, FileKind::File), 1);
        n.unlink(ROOT, "b".as_ref());
        assert_eq!(n.path(10).unwrap(), PathBuf::from("a"));
        n.unlink(ROOT, "a".as_ref());
        assert_eq!(n.path(10), None);
        n.forget(10, 2);
        assert_eq!(n.count(), 1);
    }

    /// Names come, move, change places and go in any order, and each is found.
    // S-1
    #[test]
    fn the_names_of_a_file_are_those_that_it_has() {
        let names: Vec<String> = (0..5).map(|n| format!("n{n}")).collect();
        let mut model: HashMap<&str, u64> = HashMap::new();
        let n = nodes(100);
        let mut random = 7_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % below
        };
        for step in 0..20_000 {
            let (a, b) = (&*names[next(5) as usize], &*names[next(5) as usize]);
            let id = 10 + next(2);
            match next(4) {
                0 | 1 => {
                    n.remember(ROOT, a.as_ref(), &attr(id, FileKind::File), 1);
                    model.insert(a, id);
                }
                2 => {
                    n.unlink(ROOT, a.as_ref());
                    model.remove(a);
                }
                _ if model.contains_key(a) && model.get(a) != model.get(b) => {
                    let exchange = model.contains_key(b) && next(2) == 0;
                    n.rename((ROOT, a.as_ref()), (ROOT, b.as_ref()), exchange);
                    let (moved, other) = (model.remove(a).unwrap(), model.remove(b));
                    model.insert(b, moved);
                    if let (true, Some(other)) = (exchange, other) {
                        model.insert(a, other);
                    }
                }
                _ => {}
            }
            for name in &names {
                let found = n.child(ROOT, name.as_ref()).map(|child| child.id);
                assert_eq!(found, model.get(&**name).copied(), "{step}: {name}");
            }
            for id in [10, 11] {
                let mut has = n.others(id, (ROOT, "".as_ref()), 9);
                has.sort();
                let mut wanted: Vec<PathBuf> = model
                    .iter()
                    .filter(|(_, of)| **of == id)
                    .map(|(name, _)| name.into())
                    .collect();
                wanted.sort();
                assert_eq!(has, wanted, "{step}: {id}");
            }
            assert_invariants(&n);
        }
    }

    struct NoPin;

    impl Pin for NoPin {
        fn open(
            &self,
            _access: forebay_backing::Access,
        ) -> forebay_backing::Result<(Arc<dyn forebay_backing::BackingFile>, Attr)> {
            Err(forebay_backing::Error::os(libc::ENOENT, "nothing"))
        }

        fn xattr_get(&self, _name: &OsStr) -> forebay_backing::Result<Vec<u8>> {
            Err(forebay_backing::Error::os(libc::ENODATA, "nothing"))
        }
    }

    /// Checks the invariants N2 to N4.
    fn assert_invariants(n: &Nodes) {
        let table = n.read();
        let listed: usize = table.nodes.values().map(|node| node.names.iter().count()).sum();
        assert_eq!(table.names.len(), listed, "N2");
        for (name, link) in &table.names {
            let mut of_node = table.nodes[&link.id].names.iter();
            assert!(of_node.any(|known| known == name), "N2: {name:?}");
        }
        for (id, node) in table.nodes.iter().filter(|(id, _)| **id != ROOT) {
            let is_forgotten = node.lookups == 0 && !node.names.is_empty();
            assert_eq!(node.queued.is_some(), is_forgotten, "N3: {id}");
            assert!(node.queued.is_none_or(|place| table.forgotten[&place] == *id), "N3: {id}");
            assert!(node.lookups > 0 || !node.names.is_empty(), "N4: {id}");
            assert!(node.pin.is_none() || node.lookups > 0, "N4: {id}");
        }
        let queued = table.nodes.values().filter(|node| node.queued.is_some()).count();
        assert_eq!(table.forgotten.len(), queued, "N3");
    }

    /// Every order of a file's events: a lookup, a forget, a hold whose removal fails, and a hold with a
    /// removal.
    // S-1
    #[test]
    fn a_removed_file_is_held_as_long_as_the_kernel_knows_it_and_no_longer() {
        let (name, file) = ("f".as_ref(), attr(10, FileKind::File));
        for order in 0..4_u32.pow(7) {
            let n = nodes(100);
            for step in (0..7).map(|at| order / 4_u32.pow(at) % 4) {
                let held = n.read().nodes.get(&10).map_or(0, |node| node.lookups);
                match step {
                    0 => drop(n.remember(ROOT, name, &file, 1)),
                    1 => n.forget(10, held.min(1)),
                    2 => drop(n.hold(10, Arc::new(NoPin))),
                    _ => {
                        let _hold = n.hold(10, Arc::new(NoPin));
                        n.unlink(ROOT, name);
                        let is_known = n.read().nodes.get(&10).is_some_and(|n| n.lookups > 0);
                        assert_eq!(n.pin(10).is_some(), is_known, "{order}");
                    }
                }
                assert_invariants(&n);
            }
            n.unlink(ROOT, name);
            n.forget(10, 100);
            assert_eq!((n.count(), Arc::strong_count(&n.pins)), (1, 1), "{order}");
            assert!(n.read().forgotten.is_empty(), "{order}");
        }
    }

    #[test]
    fn at_most_so_many_removed_files_are_held() {
        let n = nodes(10 * PINS_MAX);
        let mut held = Vec::new();
        for ino in 10..10 + 2 * PINS_MAX as u64 {
            let name = format!("{ino}");
            held.push(n.remember(ROOT, name.as_ref(), &attr(ino, FileKind::File), 1));
            let _hold = n.may_hold(ino).then(|| n.hold(ino, Arc::new(NoPin)));
            n.unlink(ROOT, name.as_ref());
        }
        assert_eq!(Arc::strong_count(&n.pins) - 1, PINS_MAX);
        held.into_iter().for_each(|id| n.forget(id, 1));
        assert_eq!((n.count(), Arc::strong_count(&n.pins)), (1, 1));
    }

    #[test]
    fn forgotten_names_are_dropped_only_beyond_the_limit() {
        let n = nodes(4);
        for ino in 10..20 {
            n.remember(ROOT, format!("{ino}").as_ref(), &attr(ino, FileKind::File), 1);
        }
        assert_eq!(n.count(), 11, "N1: what the kernel holds stays");
        for ino in 10..20 {
            n.forget(ino, 1);
        }
        assert_eq!(n.count(), 4);
        assert_eq!(n.path(19).unwrap(), PathBuf::from("19"));
        assert_eq!(n.path(10), None);
    }
}
