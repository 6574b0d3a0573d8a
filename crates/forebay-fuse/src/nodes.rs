//! The names that the kernel knows: node ids, and the path of each.
//!
//! A node id is the backing store's inode number: it stays the same after the kernel has forgotten
//! the node, and after a restart. If the store gives the number of a removed file to another one while
//! the kernel holds the old node, the new file's node gets an id of its own: a request by that id may be
//! on its way. Nodes that the kernel forgot are kept while there are at most `max` nodes, then dropped
//! oldest first: an NFS server's handle outlives the kernel's inode.
//!
//! Invariants:
//! - N1: a node that the kernel holds is never dropped.
//! - N2: every name in `names` leads to a node that lists it.
//! - N3: `forgotten` lists each node that has a name and that the kernel does not hold, and no other.
//! - N4: a node that has no name and that the kernel does not hold is dropped, with its file's pin.
//! - N5: an id never goes to another file while the kernel holds its node.

mod acl;
mod links;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::Arc;

use forebay_backing::{Attr, FileKey, FileKind, Pin};
use forebay_base::lock::{Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};
use hashbrown::{Equivalent, HashMap};

use links::{Link, Links};

pub const ROOT: u64 = 1;

/// The most pins. Each holds a descriptor until the kernel has forgotten the file, which may take long
/// after many removals at once. Pins are for opens in progress, and few of these files have one. The
/// inode number of an open file is kept by the engine's descriptor as well.
const PINS_MAX: usize = 4096;

/// The bit in the node id of a file that another mount serves. The file has another node id while this mount
/// serves it, since the kernel keeps one page cache for each node.
const FAR: u64 = 1 << 61;

/// Ids from here on are those of nodes whose own number another node had.
const EXTRA: u64 = 1 << 62;

/// The server of a file: the engine here, or the file's home on another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

/// The properties that a node keeps as long as it lives. On a store without generations a removed directory and a later
/// file may have the same key.
type Identity = (FileKey, bool, Side);

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
    fn is(&self, (key, is_dir, side): Identity) -> bool {
        (self.key, self.is_dir, self.side) == (key, is_dir, side)
    }

    fn new((key, is_dir, side): Identity) -> Node {
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
    /// The ids from [`EXTRA`] on that are in use.
    extra: HashMap<(FileKey, Side), u64>,
    last_extra: u64,
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

    /// The inode number that programs see for a file of the store. Number 1 is the root's alone: a store's own inode
    /// numbers 0 and 1 get a high bit.
    pub fn shown(&self, key: FileKey) -> u64 {
        if key == self.root { ROOT } else { shown(key.ino) }
    }

    /// The id of the node of a file that is served here; `None` if there is none.
    pub fn id_of(&self, key: FileKey) -> Option<u64> {
        self.id_at(key, Side::Near)
    }

    /// The id of the node of a file that is served on `side`; `None` if there is none.
    pub fn id_at(&self, key: FileKey, side: Side) -> Option<u64> {
        if key == self.root {
            return Some(ROOT);
        }
        let table = self.read();
        let id = table.id_at(key, side);
        table.nodes.get(&id).is_some_and(|node| node.key == key).then_some(id)
    }

    /// Whether the node is of a file that another mount serves.
    pub fn is_far(&self, id: u64) -> bool {
        self.read().nodes.get(&id).is_some_and(|node| node.side == Side::Far)
    }

    /// The node of a path, as far as its names are known.
    pub fn at(&self, path: &std::path::Path) -> Option<u64> {
        path.iter().try_fold(ROOT, |dir, name| Some(self.child(dir, name)?.id))
    }

    /// Remembers that `name` in `parent` is this file, and that the kernel got `times` references.
    pub fn remember(&self, parent: u64, name: &OsStr, attr: &Attr, times: u64) -> u64 {
        self.remember_at(Side::Near, parent, name, attr, times)
    }

    /// As [`Nodes::remember`], for a file that is served on `side`.
    pub fn remember_at(
        &self,
        side: Side,
        parent: u64,
        name: &OsStr,
        attr: &Attr,
        times: u64,
    ) -> u64 {
        if attr.key == self.root {
            return ROOT;
        }
        let is_dir = attr.kind == FileKind::Dir;
        let is = (attr.key, is_dir, side);
        let mut table = self.write();
        let table = &mut *table;
        let id = table.id_for(is);
        if let Some(node) = table.known_as(id, &NameRef(parent, name))
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
        let node = table.nodes.entry(id).or_insert_with(|| Node::new(is));
        if let Some(same) = before.filter(|before| before.id == id) {
            node.names.remove(same.place);
        }
        if is_dir {
            // A directory has one name: if others moved it on the backing store, its old name is gone.
            for name in std::mem::take(&mut node.names).iter() {
                table.names.remove(name);
            }
        }
        node.names.add(place, at);
        node.lookups += times;
        node.attr = is_dir.then(|| Box::new(*attr));
        table.settle(id);
        table.trim(self.max);
        id
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
    /// The id of a file's node, whether or not there is one.
    fn id_at(&self, key: FileKey, side: Side) -> u64 {
        let extra = if self.extra.is_empty() { None } else { self.extra.get(&(key, side)) };
        extra.copied().unwrap_or(match side {
            Side::Near => shown(key.ino),
            Side::Far => shown(key.ino) ^ FAR,
        })
    }

    /// The id of a node that is about to be made or used (N5).
    fn id_for(&mut self, is: Identity) -> u64 {
        let (key, _, side) = is;
        loop {
            let id = self.id_at(key, side);
            if self.nodes.get(&id).is_none_or(|node| node.is(is)) {
                return id;
            }
            // The number was used again: the old file is gone.
            self.unname_all(id);
            if self.nodes.contains_key(&id) {
                return self.extra_for(key, side);
            }
        }
    }

    fn extra_for(&mut self, key: FileKey, side: Side) -> u64 {
        while self.nodes.contains_key(&(EXTRA + self.last_extra)) {
            self.last_extra += 1;
        }
        let id = EXTRA + self.last_extra;
        self.last_extra += 1;
        self.extra.insert((key, side), id);
        id
    }

    fn unname_all(&mut self, id: u64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        for name in std::mem::take(&mut node.names).iter() {
            self.names.remove(name);
        }
        self.settle(id);
    }

    /// Drops a node. Its names go with it.
    fn drop_node(&mut self, id: u64) {
        let Some(node) = self.nodes.remove(&id) else { return };
        for name in node.names.iter() {
            self.names.remove(name);
        }
        let of = (node.key, node.side);
        if !self.extra.is_empty() && self.extra.get(&of) == Some(&id) {
            self.extra.remove(&of);
        }
    }

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
                self.drop_node(id);
            }
        }
    }

    /// Drops forgotten nodes while there are too many (N1).
    fn trim(&mut self, max: usize) {
        while self.nodes.len() > max {
            let Some((_, id)) = self.forgotten.pop_first() else { return };
            self.drop_node(id);
        }
    }
}

fn shown(ino: u64) -> u64 {
    if ino <= ROOT { ino | 1 << 60 } else { ino }
}
