//! A fast tier in memory that can lose power.
//!
//! Every file keeps what is durable and, in order, what was done to it since its last sync; every
//! directory keeps the changes of its entries since its last sync. An image of a power cut keeps,
//! drops or tears (at 512 bytes) each unsynced write on its own. Changes that a file system puts
//! into its journal (sizes, holes; entries of one directory) survive up to some point in their
//! order.
//!
//! What was written out the device has, and may lose until it is flushed: by the sync of any file, or of a directory. Then
//! writes in the place of durable bytes last; others need the journal of their own file as well. Who finds a seal finds all that
//! was written out before it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};

use forebay_backing::{FileKind, Timestamp};
use forebay_engine::media::{Media, MediaFile, MediaStat, Open, Space};

use crate::bytes::Bytes;
use crate::rng::Rng;

const SECTOR: u64 = 512;

/// With at most this many unsynced changes, all images are tried, else random ones.
const ENUMERATE_MAX: usize = 6;

/// A sync that does nothing and claims to have done it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// Of the log of copies that are kept for others.
    Copies,
    Log,
    Shadow,
    Dir,
    /// What a shadow is sealed for was not written out.
    Bytes,
    /// What of the log a seal presumes was not written out.
    Records,
}

/// What one operation is, for faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Open,
    Read,
    Write,
    Sync,
    Other,
}

/// The `n`-th operation from now (1 is the next) and `count - 1` after it fail.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    pub n: u64,
    pub count: u64,
    pub errno: i32,
}

pub type Hook = Box<dyn FnMut(u64, &Disk) + Send>;

/// Names and files: what is there, and what of it would survive.
#[derive(Clone, Default)]
pub struct Disk {
    nodes: BTreeMap<u64, Node>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    name_ops: BTreeMap<String, Vec<NameOp>>,
    dirs: BTreeSet<String>,
    next: u64,
    /// Changes of files so far.
    time: u64,
}

#[derive(Clone, Default)]
struct Node {
    durable: Bytes,
    cached: Bytes,
    mtime: Timestamp,
    ctime: Timestamp,
    /// Each with its time.
    ops: Vec<(u64, FileOp)>,
    seal: Option<Arc<[u8]>>,
    durable_seal: Option<Arc<[u8]>>,
}

#[derive(Clone)]
enum FileOp {
    Write(u64, Arc<[u8]>),
    /// One that the device was flushed with.
    Flushed(u64, Arc<[u8]>),
    SetLen(u64),
    Punch(u64, u64),
    /// The device has the writes before, and keeps them if anything that goes into the journal later is kept.
    WrittenOut,
    Seal(Arc<[u8]>),
}

#[derive(Clone)]
enum NameOp {
    Set(String, u64),
    Remove(String),
}

/// What becomes of who asks whether a file is his alone.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub enum Leases {
    #[default]
    Granted,
    /// A security module forbids them.
    Forbidden,
    /// The file system has none.
    Unknown,
}

/// Where no seal counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Sealless {
    /// On the whole medium.
    All,
    /// Of its files, which say so when they are to get one.
    Each,
}

#[derive(Default)]
struct Inner {
    disk: Disk,
    leases: Leases,
    /// Operations that change something.
    changes: u64,
    ops: u64,
    fault: Option<Fault>,
    faults_given: u64,
    failed_syncs: u64,
    hook: Option<Hook>,
    at_shadow_read: Option<Arc<dyn Fn(usize) + Send + Sync>>,
    at_shadow_write: Option<Arc<dyn Fn(u64) + Send + Sync>>,
    at_shadow_sync: Option<Arc<dyn Fn() + Send + Sync>>,
    after_shadow_sync: Option<Arc<dyn Fn() + Send + Sync>>,
    lie: Option<Lie>,
    lies_told: u64,
    /// Syncs of the log's files and of shadows.
    log_syncs: u64,
    shadow_syncs: u64,
    seals: u64,
    sealless: Option<Sealless>,
    clock: u32,
    hours_back: i64,
}

#[derive(Clone, Default)]
pub struct CrashMedia(Arc<Mutex<Inner>>);

struct CrashFile {
    media: CrashMedia,
    ino: u64,
    name: String,
}

impl CrashMedia {
    pub fn on(disk: Disk) -> CrashMedia {
        CrashMedia(Arc::new(Mutex::new(Inner { disk, ..Inner::default() })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no panic inside")
    }

    /// A consistent copy of everything, durable or not.
    pub fn snapshot(&self) -> Disk {
        self.lock().disk.clone()
    }

    /// The same unless somebody is at it.
    pub fn try_snapshot(&self) -> Option<Disk> {
        self.0.try_lock().ok().map(|inner| inner.disk.clone())
    }

    /// Calls `hook` before every change, with the number of changes so far.
    pub fn set_hook(&self, hook: Option<Hook>) {
        let old = std::mem::replace(&mut self.lock().hook, hook);
        drop(old);
    }

    /// Calls `act` with the length of every read of a shadow file, before it, without a lock of ours.
    pub fn at_shadow_read(&self, act: impl Fn(usize) + Send + Sync + 'static) {
        self.lock().at_shadow_read = Some(Arc::new(act));
    }

    /// Calls `act` with the place of every write to a shadow file, before it, without a lock of ours.
    pub fn at_shadow_write(&self, act: impl Fn(u64) + Send + Sync + 'static) {
        self.lock().at_shadow_write = Some(Arc::new(act));
    }

    /// Calls `act` at the beginning of every sync of a shadow file, without a lock of ours.
    pub fn at_shadow_sync(&self, act: impl Fn() + Send + Sync + 'static) {
        self.lock().at_shadow_sync = Some(Arc::new(act));
    }

    /// Calls `act` at the end of every sync of a shadow file, likewise.
    pub fn after_shadow_sync(&self, act: impl Fn() + Send + Sync + 'static) {
        self.lock().after_shadow_sync = Some(Arc::new(act));
    }

    pub fn set_lie(&self, lie: Lie) {
        self.lock().lie = Some(lie);
    }

    pub fn set_leases(&self, leases: Leases) {
        self.lock().leases = leases;
    }

    pub fn lies_told(&self) -> u64 {
        self.lock().lies_told
    }

    /// How often the log was synced so far, and how often anything else.
    pub fn syncs(&self) -> (u64, u64) {
        let inner = self.lock();
        (inner.log_syncs, inner.shadow_syncs)
    }

    /// How many seals were set so far.
    pub fn seals(&self) -> u64 {
        self.lock().seals
    }

    /// It keeps none from here on.
    pub fn forbid_seals(&self, how: Sealless) {
        self.lock().sealless = Some(how);
    }

    /// The clock that its times come from is set back by an hour.
    pub fn set_clock_back(&self) {
        self.lock().hours_back += 1;
    }

    pub fn set_fault(&self, fault: Option<Fault>) {
        let mut inner = self.lock();
        inner.fault = fault;
        inner.ops = 0;
    }

    /// The machine needs the memory of what counts as written.
    pub fn lose_memory(&self) {
        self.lock().disk.nodes.values_mut().for_each(Node::lose_memory);
    }

    /// Bytes of a write that began earlier reach the only shadow that is as long: its times have moved.
    pub fn arrive_late(&self, bytes: &[u8], offset: u64) {
        let mut inner = self.lock();
        let is_shadow = |(name, _): &(&String, &u64)| name.starts_with("shadow");
        let shadows: Vec<u64> = inner.disk.names.iter().filter(is_shadow).map(|it| *it.1).collect();
        let node = |ino: &u64| inner.disk.nodes[ino].cached.len() > offset;
        let inos: Vec<u64> = shadows.into_iter().filter(node).collect();
        let &[ino] = &inos[..] else { panic!("which of {inos:?}?") };
        let node = inner.disk.node(ino);
        let times = (node.mtime, node.ctime);
        inner.disk.change(ino, FileOp::Write(offset, bytes.into()), times.0);
        let node = inner.disk.node(ino);
        (node.mtime, node.ctime) = times;
    }

    /// Operations since the fault was set.
    pub fn ops(&self) -> u64 {
        self.lock().ops
    }

    /// A sync of something else fails, and the device has lost what it had of the log.
    pub fn fail_another_sync(&self) {
        let mut inner = self.lock();
        inner.failed_syncs += 1;
        let Disk { names, nodes, .. } = &mut inner.disk;
        let logs = names.iter().filter(|(name, _)| name.starts_with("log/"));
        logs.for_each(|(_, ino)| nodes.get_mut(ino).expect("it has a name").lose_out());
    }

    pub fn faults_given(&self) -> u64 {
        self.lock().faults_given
    }
}

impl Disk {
    /// What is left when the process dies and the machine lives.
    pub fn process_crash_image(&self) -> Disk {
        self.clone()
    }

    /// Every image of a power cut if there are few, else `count` random ones and the two extremes.
    pub fn crash_images(&self, rng: &mut Rng, count: usize) -> Vec<Disk> {
        let unsynced = self.unsynced();
        if unsynced <= ENUMERATE_MAX {
            return (0..1u64 << unsynced).map(|bits| self.image_of(bits)).collect();
        }
        let mut images = vec![self.crash_image(&mut |_| 0), self.crash_image(&mut |n| n - 1)];
        images.extend((0..count).map(|_| {
            // From "hardly anything arrived" to "almost everything did".
            let share = [5, 50, 95][rng.below(3) as usize];
            let mut rng = rng.fork();
            self.crash_image(&mut |n| if rng.below(100) < share { n - 1 } else { rng.below(n) })
        }));
        images
    }

    fn image_of(&self, bits: u64) -> Disk {
        let mut at = 0;
        self.crash_image(&mut |n| {
            at += 1;
            if bits >> (at - 1) & 1 == 1 { n - 1 } else { 0 }
        })
    }

    fn unsynced(&self) -> usize {
        let may_go =
            |op: &&(u64, FileOp)| !matches!(op.1, FileOp::WrittenOut | FileOp::Flushed(..));
        let of = |node: &Node| node.ops.iter().filter(may_go).count();
        let files: usize = self.nodes.values().map(of).sum();
        let names: usize = self.name_ops.values().map(Vec::len).sum();
        files + names
    }

    /// `choose(n)` picks a number below `n`: 0 keeps the least, `n - 1` the most.
    fn crash_image(&self, choose: &mut dyn FnMut(u64) -> u64) -> Disk {
        let (dirs, next, time) = (self.dirs.clone(), self.next, self.time);
        let mut image = Disk { dirs, next, time, ..Disk::default() };
        let mut names = self.durable_names.clone();
        for ops in self.name_ops.values().filter(|ops| !ops.is_empty()) {
            let keep = choose(ops.len() as u64 + 1) as usize;
            ops[..keep].iter().for_each(|op| op.apply(&mut names));
        }
        let inos: BTreeSet<u64> = names.values().copied().collect();
        let journals: Vec<(u64, usize)> =
            inos.into_iter().map(|ino| (ino, self.nodes[&ino].journal(choose))).collect();
        let sealed = journals.iter().map(|(ino, kept)| self.nodes[ino].sealed_at(*kept));
        let sealed = sealed.max().unwrap_or(0);
        for (ino, journaled) in &journals {
            let mut node = self.nodes[ino].clone();
            node.flush(sealed);
            let (bytes, seal) = node.survivor(*journaled, choose);
            let (mtime, ctime, durable_seal) = (node.mtime, node.ctime, seal.clone());
            let (durable, cached, ops) = (bytes.clone(), bytes, Vec::new());
            let node = Node { durable, cached, mtime, ctime, ops, seal, durable_seal };
            image.nodes.insert(*ino, node);
        }
        image.durable_names = names.clone();
        image.names = names;
        image
    }

    fn change_name(&mut self, name: &str, to: Option<u64>) {
        let op = match to {
            Some(ino) => NameOp::Set(name.to_string(), ino),
            None => NameOp::Remove(name.to_string()),
        };
        op.apply(&mut self.names);
        self.name_ops.entry(dir_of(name)).or_default().push(op);
    }

    fn change(&mut self, ino: u64, op: FileOp, mtime: Timestamp) {
        self.time += 1;
        let time = self.time;
        self.node(ino).change(time, op, mtime);
    }

    /// The device keeps what it has.
    fn flush(&mut self) {
        let now = self.time + 1;
        self.nodes.values_mut().for_each(|node| node.flush(now));
    }

    /// The sync of a file fails. The device may have lost what it had of the others.
    fn fail_sync(&mut self, ino: u64) {
        self.node(ino).fail_sync();
        let others = self.nodes.iter_mut().filter(|(other, _)| **other != ino);
        others.for_each(|(_, node)| node.lose_out());
    }

    /// The names of a file are durable, and all that was done in their directories.
    fn sync_names_of(&mut self, ino: u64) {
        let names = self.names.iter().filter(|(_, of)| **of == ino);
        let dirs: Vec<String> = names.map(|(name, _)| dir_of(name)).collect();
        dirs.iter().for_each(|dir| self.sync_dir(dir));
    }

    fn sync_dir(&mut self, dir: &str) {
        let ops = self.name_ops.remove(dir).unwrap_or_default();
        ops.iter().for_each(|op| op.apply(&mut self.durable_names));
    }

    fn node(&mut self, ino: u64) -> &mut Node {
        self.nodes.get_mut(&ino).expect("nodes are never freed")
    }
}

impl NameOp {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            NameOp::Set(name, ino) => drop(names.insert(name.clone(), *ino)),
            NameOp::Remove(name) => drop(names.remove(name)),
        }
    }
}

impl Node {
    fn change(&mut self, time: u64, op: FileOp, mtime: Timestamp) {
        op.apply(&mut self.cached);
        if let FileOp::Seal(seal) = &op {
            self.seal = Some(seal.clone());
        }
        self.ops.push((time, op));
        (self.mtime, self.ctime) = (mtime, mtime);
    }

    fn sync(&mut self) {
        self.ops.drain(..).for_each(|(_, op)| op.apply(&mut self.durable));
        self.durable_seal = self.seal.clone();
    }

    /// How many of its changes are behind the last that was written out before then.
    fn out_before(&self, time: u64) -> usize {
        let is_out = |(at, op): &(u64, FileOp)| *at < time && matches!(op, FileOp::WrittenOut);
        self.ops.iter().rposition(is_out).unwrap_or(0)
    }

    /// The device keeps what it had at that time, where this is all that it takes.
    fn flush(&mut self, time: u64) {
        let moves = |(_, op): &(u64, FileOp)| matches!(op, FileOp::SetLen(_) | FileOp::Punch(..));
        let moved = self.ops.iter().position(moves).unwrap_or(self.ops.len());
        let end = self.out_before(time).min(moved);
        for (_, op) in &mut self.ops[..end] {
            if let FileOp::Write(offset, data) = op
                && is_filled(&self.durable, *offset, data.len() as u64)
            {
                *op = FileOp::Flushed(*offset, data.clone());
            }
        }
    }

    /// The device has lost what was not flushed; it counts as written, and is read as long as nobody needs its memory.
    fn lose_out(&mut self) {
        let (mut at, out) = (0.., self.out_before(u64::MAX));
        let is_lost = |op: &FileOp| matches!(op, FileOp::Write(..));
        self.ops.retain(|(_, op)| at.next().is_some_and(|n| n >= out) || !is_lost(op));
    }

    /// What could not be written counts as written from then on, and is read as long as nobody needs its
    /// memory: Linux does so.
    fn fail_sync(&mut self) {
        let (mut at, out) = (0.., self.out_before(u64::MAX));
        let is_lost = |op: &FileOp| matches!(op, FileOp::Write(..));
        self.ops.retain(|(_, op)| at.next().is_some_and(|n| n < out) || !is_lost(op));
    }

    fn lose_memory(&mut self) {
        self.cached = self.durable.clone();
        self.ops.iter().for_each(|(_, op)| op.apply(&mut self.cached));
    }

    fn journaled(&self) -> impl Iterator<Item = (usize, &(u64, FileOp))> {
        let is_journaled =
            |op: &FileOp| matches!(op, FileOp::SetLen(_) | FileOp::Punch(..) | FileOp::Seal(_));
        self.ops.iter().enumerate().filter(move |(_, (_, op))| is_journaled(op))
    }

    /// How many changes the journal has.
    fn journal(&self, choose: &mut dyn FnMut(u64) -> u64) -> usize {
        let journaled = self.journaled().count() as u64;
        if journaled > 0 { choose(journaled + 1) as usize } else { 0 }
    }

    /// When the last seal was made among so many changes; 0 if there is none.
    fn sealed_at(&self, journaled: usize) -> u64 {
        let kept = self.journaled().take(journaled);
        let seals = kept.filter(|(_, (_, op))| matches!(op, FileOp::Seal(_)));
        seals.map(|(_, (at, _))| *at).max().unwrap_or(0)
    }

    fn survivor(
        &self,
        mut journal_left: usize,
        choose: &mut dyn FnMut(u64) -> u64,
    ) -> (Bytes, Option<Arc<[u8]>>) {
        let (mut bytes, mut seal) = (self.durable.clone(), self.durable_seal.clone());
        let kept = self.flushed(journal_left);
        for (at, (_, op)) in self.ops.iter().enumerate() {
            match op {
                FileOp::WrittenOut => {}
                FileOp::Flushed(..) => op.apply(&mut bytes),
                FileOp::Write(..) if at < kept => op.apply(&mut bytes),
                // Dropped, whole, or torn.
                FileOp::Write(offset, data) => match choose(3) {
                    0 => {}
                    2 => op.apply(&mut bytes),
                    _ => tear(&mut bytes, *offset, data, choose),
                },
                _ if journal_left > 0 => {
                    journal_left -= 1;
                    op.apply(&mut bytes);
                    if let FileOp::Seal(kept) = op {
                        seal = Some(kept.clone());
                    }
                }
                _ => {}
            }
        }
        (bytes, seal)
    }

    /// The writes before this are on the disk if the journal has so many changes.
    fn flushed(&self, journaled: usize) -> usize {
        let Some(last) = journaled.checked_sub(1) else { return 0 };
        let (end, _) = self.journaled().nth(last).expect("chosen");
        let is_out = |(_, op): &(u64, FileOp)| matches!(op, FileOp::WrittenOut);
        self.ops[..end].iter().rposition(is_out).unwrap_or(0)
    }
}

/// Whether there is no hole, and no end.
fn is_filled(bytes: &Bytes, offset: u64, len: u64) -> bool {
    bytes.next_data(offset).is_some_and(|(start, end)| start == offset && offset + len <= end)
}

fn tear(bytes: &mut Bytes, offset: u64, data: &[u8], choose: &mut dyn FnMut(u64) -> u64) {
    let end = offset + data.len() as u64;
    let mut at = offset;
    while at < end {
        let next = ((at / SECTOR + 1) * SECTOR).min(end);
        if choose(2) == 1 {
            bytes.write(&data[(at - offset) as usize..(next - offset) as usize], at);
        }
        at = next;
    }
}

impl FileOp {
    fn apply(&self, bytes: &mut Bytes) {
        match self {
            FileOp::Write(offset, data) | FileOp::Flushed(offset, data) => {
                bytes.write(data, *offset);
            }
            FileOp::SetLen(len) => bytes.set_len(*len),
            FileOp::Punch(offset, len) => bytes.punch(*offset, *len),
            FileOp::WrittenOut | FileOp::Seal(_) => {}
        }
    }
}

impl Inner {
    /// Counts an operation; fails it if it is the one.
    fn begin(&mut self, verb: Verb) -> io::Result<()> {
        if !matches!(verb, Verb::Open | Verb::Read) {
            let changes = self.changes;
            self.changes += 1;
            if let Some(mut hook) = self.hook.take() {
                hook(changes, &self.disk);
                self.hook = Some(hook);
            }
        }
        self.ops += 1;
        if let Some(fault) = self.fault
            && self.ops >= fault.n
            && self.ops < fault.n.saturating_add(fault.count)
        {
            self.faults_given += 1;
            self.failed_syncs += u64::from(verb == Verb::Sync);
            return Err(io::Error::from_raw_os_error(fault.errno));
        }
        Ok(())
    }

    fn lies(&mut self, lie: Lie) -> bool {
        let lies = self.lie == Some(lie);
        self.lies_told += u64::from(lies);
        lies
    }

    fn now(&mut self) -> Timestamp {
        self.clock += 1;
        Timestamp { sec: 1_700_000_000 - 3600 * self.hours_back, nsec: self.clock }
    }
}

impl Media for CrashMedia {
    fn grants_leases(&self) -> bool {
        self.lock().leases != Leases::Unknown
    }

    fn keeps_seals(&self) -> bool {
        self.lock().sealless != Some(Sealless::All)
    }

    fn seal_of(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let mut inner = self.lock();
        inner.begin(Verb::Read)?;
        let ino = *inner.disk.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(inner.disk.node(ino).seal.as_ref().map(|seal| seal.to_vec()))
    }

    fn open(&self, name: &str, how: Open) -> io::Result<Arc<dyn MediaFile>> {
        let mut inner = self.lock();
        let found = inner.disk.names.get(name).copied();
        let changes = how == Open::Fresh || (how == Open::Keep && found.is_none());
        inner.begin(if changes { Verb::Other } else { Verb::Open })?;
        let mtime = inner.now();
        let ino = match (found, how) {
            (None, Open::Existing) => return Err(io::Error::from_raw_os_error(libc::ENOENT)),
            (Some(ino), Open::Fresh) => {
                inner.disk.change(ino, FileOp::SetLen(0), mtime);
                ino
            }
            (Some(ino), _) => ino,
            (None, _) => {
                inner.disk.next += 1;
                let ino = inner.disk.next;
                inner.disk.nodes.insert(ino, Node { mtime, ctime: mtime, ..Node::default() });
                inner.disk.change_name(name, Some(ino));
                ino
            }
        };
        Ok(Arc::new(CrashFile { media: self.clone(), ino, name: name.to_string() }))
    }

    fn stat(&self, name: &str) -> io::Result<MediaStat> {
        let mut inner = self.lock();
        inner.begin(Verb::Read)?;
        let ino = *inner.disk.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(inner.disk.node(ino).stat())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut inner = self.lock();
        inner.begin(Verb::Other)?;
        if !inner.disk.names.contains_key(name) {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        inner.disk.change_name(name, None);
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.lock();
        inner.begin(Verb::Other)?;
        let ino = *inner.disk.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        inner.disk.change_name(to, Some(ino));
        inner.disk.change_name(from, None);
        Ok(())
    }

    fn make_dir(&self, name: &str) -> io::Result<()> {
        self.lock().disk.dirs.insert(name.to_string());
        Ok(())
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let mut inner = self.lock();
        inner.begin(Verb::Read)?;
        let disk = &inner.disk;
        // Recovery lists many directories, each of few among all names.
        let prefix = if dir.is_empty() { String::new() } else { format!("{dir}/") };
        let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
        let inside = |name: &&String| name.starts_with(&prefix);
        let base = |name: &String| {
            let base = &name[prefix.len()..];
            (!base.contains('/')).then(|| base.to_string())
        };
        let names = disk.names.range::<str, _>(from).map(|(name, _)| name).take_while(inside);
        let dirs = disk.dirs.range::<str, _>(from).take_while(inside);
        Ok(names.filter_map(base).chain(dirs.filter_map(base)).collect())
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let mut inner = self.lock();
        let begun = inner.begin(Verb::Sync);
        if begun.is_err() {
            inner.disk.nodes.values_mut().for_each(Node::lose_out);
            return begun;
        }
        if inner.lies(Lie::Dir) {
            return Ok(());
        }
        inner.disk.sync_dir(dir);
        inner.disk.flush();
        Ok(())
    }

    fn sync_all(&self) -> io::Result<()> {
        let mut inner = self.lock();
        let begun = inner.begin(Verb::Sync);
        let disk = &mut inner.disk;
        if begun.is_err() {
            disk.nodes.values_mut().for_each(Node::fail_sync);
            disk.nodes.values_mut().for_each(Node::lose_out);
            return begun;
        }
        disk.name_ops.clear();
        disk.durable_names = disk.names.clone();
        disk.nodes.values_mut().for_each(Node::sync);
        Ok(())
    }

    fn failed_syncs(&self) -> u64 {
        self.lock().failed_syncs
    }

    fn space(&self) -> io::Result<Space> {
        Ok(Space { total: 1 << 40, available: 1 << 40 })
    }
}

impl Node {
    fn stat(&self) -> MediaStat {
        MediaStat {
            len: self.cached.len(),
            allocated: self.cached.allocated(),
            mtime: self.mtime,
            ctime: self.ctime,
            kind: FileKind::File,
        }
    }
}

impl CrashFile {
    fn change(&self, op: FileOp) -> io::Result<()> {
        let mut inner = self.media.lock();
        inner.begin(Verb::Write)?;
        let mtime = inner.now();
        inner.disk.change(self.ino, op, mtime);
        Ok(())
    }

    fn is_log(&self) -> bool {
        self.name.starts_with("log/")
    }

    fn sync(&self, with_names: bool) -> io::Result<()> {
        let act = self.media.lock().at_shadow_sync.clone();
        if let Some(act) = act.filter(|_| self.name.starts_with("shadow")) {
            act();
        }
        let mut inner = self.media.lock();
        let begun = inner.begin(Verb::Sync);
        if begun.is_err() {
            inner.disk.fail_sync(self.ino);
            return begun;
        }
        let lie = match self.name.split('/').next() {
            Some("log") => Lie::Log,
            Some("copies") => Lie::Copies,
            _ => Lie::Shadow,
        };
        if self.name.contains('/') && inner.lies(lie) {
            return Ok(());
        }
        match lie {
            Lie::Log => inner.log_syncs += 1,
            _ => inner.shadow_syncs += 1,
        }
        inner.disk.node(self.ino).sync();
        inner.disk.flush();
        if with_names && !inner.lies(Lie::Dir) {
            inner.disk.sync_names_of(self.ino);
        }
        let act = inner.after_shadow_sync.clone();
        drop(inner);
        if let Some(act) = act.filter(|_| self.name.starts_with("shadow")) {
            act();
        }
        Ok(())
    }
}

impl MediaFile for CrashFile {
    fn is_ours_alone(&self) -> io::Result<bool> {
        match self.media.lock().leases {
            Leases::Granted => Ok(true),
            Leases::Forbidden => Err(io::Error::from_raw_os_error(libc::EACCES)),
            Leases::Unknown => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let act = self.media.lock().at_shadow_read.clone();
        if let Some(act) = act.filter(|_| self.name.starts_with("shadow")) {
            act(buf.len());
        }
        let mut inner = self.media.lock();
        inner.begin(Verb::Read)?;
        Ok(inner.disk.node(self.ino).cached.read(buf, offset))
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let act = self.media.lock().at_shadow_write.clone();
        if let Some(act) = act.filter(|_| self.name.starts_with("shadow")) {
            act(offset);
        }
        self.change(FileOp::Write(offset, buf.into()))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(FileOp::SetLen(len))
    }

    fn stat(&self) -> io::Result<MediaStat> {
        Ok(self.media.lock().disk.node(self.ino).stat())
    }

    fn set_mtime(&self, mtime: Timestamp) -> io::Result<()> {
        let mut inner = self.media.lock();
        let ctime = inner.now();
        let node = inner.disk.node(self.ino);
        (node.mtime, node.ctime) = (mtime, ctime);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync(false)
    }

    fn sync_sealed(&self) -> io::Result<()> {
        self.sync(true)
    }

    fn is_flushed_by_others(&self) -> bool {
        self.media.lock().sealless.is_none()
    }

    fn write_out(&self, _end: u64) -> io::Result<()> {
        let mut inner = self.media.lock();
        let lies = match self.is_log() {
            true => inner.lies(Lie::Log) || inner.lies(Lie::Records),
            false => inner.lies(Lie::Bytes),
        };
        if lies {
            return Ok(());
        }
        let begun = inner.begin(Verb::Sync);
        match &begun {
            Ok(()) => {
                let (ino, mtime) = (self.ino, inner.disk.node(self.ino).mtime);
                let ctime = inner.disk.node(ino).ctime;
                inner.disk.change(ino, FileOp::WrittenOut, mtime);
                inner.disk.node(ino).ctime = ctime;
            }
            Err(_) => inner.disk.node(self.ino).fail_sync(),
        }
        begun
    }

    fn seal(&self, seal: &[u8]) -> io::Result<()> {
        let mut inner = self.media.lock();
        if inner.sealless.is_some() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        inner.begin(Verb::Write)?;
        inner.seals += 1;
        let ctime = inner.now();
        let mtime = inner.disk.node(self.ino).mtime;
        inner.disk.change(self.ino, FileOp::Seal(seal.into()), mtime);
        inner.disk.node(self.ino).ctime = ctime;
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.change(FileOp::Punch(offset, len))
    }

    fn reserve(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Ok(())
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<(u64, u64)>> {
        Ok(self.media.lock().disk.node(self.ino).cached.next_data(offset))
    }
}

fn dir_of(name: &str) -> String {
    name.rsplit_once('/').map_or("", |(dir, _)| dir).to_string()
}

/// Few unsynced changes: each combination is an image of its own, and none is impossible.
#[test]
fn a_power_cut_has_every_outcome() {
    let media = CrashMedia::default();
    let file = media.open("a", Open::Keep).unwrap();
    file.write_at(&[1; 1024], 0).unwrap();
    file.sync_data().unwrap();
    media.sync_dir("").unwrap();
    file.write_at(&[2; 1024], 0).unwrap();
    media.open("b", Open::Keep).unwrap();
    let images = media.snapshot().crash_images(&mut Rng::new(1), 0);
    let seen: BTreeSet<(u8, usize)> = images
        .into_iter()
        .map(|disk| {
            let media = CrashMedia::on(disk);
            let mut byte = [0];
            media.open("a", Open::Existing).unwrap().read_at(&mut byte, 0).unwrap();
            (byte[0], media.list("").unwrap().len())
        })
        .collect();
    assert_eq!(seen, BTreeSet::from([(1, 1), (1, 2), (2, 1), (2, 2)]));
}
