//! The content of a medium, and what a power cut leaves of it.
//!
//! Every file has its durable content and, in order, its changes since its last sync; every
//! directory has the changes of its entries since its last sync. An image of a power cut keeps,
//! drops or tears (at 512 bytes) each unsynced write independently. Changes that a file system puts
//! into its journal (sizes, holes; entries of one directory) survive up to some point in their
//! order.
//!
//! Bytes that were written out are on the device, which may lose them until it is flushed: by the sync of any
//! file, or of a directory. After a flush, writes in the place of durable bytes last; others need the journal
//! of their own file as well. If a seal is found, all bytes that were written out before it are found.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forebay_backing::{FileKind, Timestamp};
use forebay_engine::media::{Media, MediaStat, Open};

use super::CrashMedia;
use crate::bytes::Bytes;
use crate::rng::Rng;

const SECTOR: u64 = 512;

/// With at most this many unsynced changes, all images are tried, otherwise random ones.
const ENUMERATE_MAX: usize = 6;

/// Names and files: their present state, and the part that would survive.
#[derive(Clone, Default)]
pub struct Disk {
    pub(super) nodes: BTreeMap<u64, Node>,
    pub(super) names: BTreeMap<String, u64>,
    pub(super) durable_names: BTreeMap<String, u64>,
    pub(super) name_ops: BTreeMap<String, Vec<NameOp>>,
    pub(super) dirs: BTreeSet<String>,
    next: u64,
    /// The number of changes of files so far.
    time: u64,
}

#[derive(Clone, Default)]
pub(super) struct Node {
    durable: Bytes,
    pub(super) cached: Bytes,
    pub(super) mtime: Timestamp,
    pub(super) ctime: Timestamp,
    /// The changes, each with its time.
    ops: Vec<(u64, FileOp)>,
    pub(super) seal: Option<Arc<[u8]>>,
    durable_seal: Option<Arc<[u8]>>,
}

#[derive(Clone)]
pub(super) enum FileOp {
    Write(u64, Arc<[u8]>),
    /// A write that a flush of the device has made durable.
    Flushed(u64, Arc<[u8]>),
    SetLen(u64),
    Punch(u64, u64),
    /// The device has the earlier writes, and keeps them if any later entry of the journal is kept.
    WrittenOut,
    Seal(Arc<[u8]>),
}

#[derive(Clone)]
pub(super) enum NameOp {
    Set(String, u64),
    Remove(String),
}

impl Disk {
    /// Returns the state after the process dies and the machine lives.
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

    /// Makes a new file.
    pub(super) fn make(&mut self, name: &str, mtime: Timestamp) -> u64 {
        self.next += 1;
        let node = Node { mtime, ctime: mtime, ..Node::default() };
        self.nodes.insert(self.next, node);
        self.change_name(name, Some(self.next));
        self.next
    }

    pub(super) fn change_name(&mut self, name: &str, to: Option<u64>) {
        let op = match to {
            Some(ino) => NameOp::Set(name.to_string(), ino),
            None => NameOp::Remove(name.to_string()),
        };
        op.apply(&mut self.names);
        self.name_ops.entry(dir_of(name)).or_default().push(op);
    }

    pub(super) fn change(&mut self, ino: u64, op: FileOp, mtime: Timestamp) {
        self.time += 1;
        let time = self.time;
        self.node(ino).change(time, op, mtime);
    }

    /// Makes the device keep everything that it has.
    pub(super) fn flush(&mut self) {
        let now = self.time + 1;
        self.nodes.values_mut().for_each(|node| node.flush(now));
    }

    /// Makes the sync of a file fail. The device may have lost its unflushed bytes of other files.
    pub(super) fn fail_sync(&mut self, ino: u64) {
        self.node(ino).fail_sync();
        let others = self.nodes.iter_mut().filter(|(other, _)| **other != ino);
        others.for_each(|(_, node)| node.lose_out());
    }

    /// Makes the names of a file durable, and all other changes in their directories.
    pub(super) fn sync_names_of(&mut self, ino: u64) {
        let names = self.names.iter().filter(|(_, of)| **of == ino);
        let dirs: Vec<String> = names.map(|(name, _)| dir_of(name)).collect();
        dirs.iter().for_each(|dir| self.sync_dir(dir));
    }

    pub(super) fn sync_dir(&mut self, dir: &str) {
        let ops = self.name_ops.remove(dir).unwrap_or_default();
        ops.iter().for_each(|op| op.apply(&mut self.durable_names));
    }

    pub(super) fn node(&mut self, ino: u64) -> &mut Node {
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

    pub(super) fn sync(&mut self) {
        self.ops.drain(..).for_each(|(_, op)| op.apply(&mut self.durable));
        self.durable_seal = self.seal.clone();
    }

    /// Returns the number of changes up to the last write-out before that time.
    fn out_before(&self, time: u64) -> usize {
        let is_out = |(at, op): &(u64, FileOp)| *at < time && matches!(op, FileOp::WrittenOut);
        self.ops.iter().rposition(is_out).unwrap_or(0)
    }

    /// Makes the device keep the bytes that it had at that time, if they need nothing else.
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

    /// Makes the device lose unflushed bytes; they count as written, and are read until the memory is needed.
    pub(super) fn lose_out(&mut self) {
        let (mut at, out) = (0.., self.out_before(u64::MAX));
        let is_lost = |op: &FileOp| matches!(op, FileOp::Write(..));
        self.ops.retain(|(_, op)| at.next().is_some_and(|n| n >= out) || !is_lost(op));
    }

    /// Makes unwritten bytes count as written from then on; they are read until the memory is
    /// needed: Linux does so.
    pub(super) fn fail_sync(&mut self) {
        let (mut at, out) = (0.., self.out_before(u64::MAX));
        let is_lost = |op: &FileOp| matches!(op, FileOp::Write(..));
        self.ops.retain(|(_, op)| at.next().is_some_and(|n| n < out) || !is_lost(op));
    }

    pub(super) fn lose_memory(&mut self) {
        self.cached = self.durable.clone();
        self.ops.iter().for_each(|(_, op)| op.apply(&mut self.cached));
    }

    fn journaled(&self) -> impl Iterator<Item = (usize, &(u64, FileOp))> {
        let is_journaled =
            |op: &FileOp| matches!(op, FileOp::SetLen(_) | FileOp::Punch(..) | FileOp::Seal(_));
        self.ops.iter().enumerate().filter(move |(_, (_, op))| is_journaled(op))
    }

    /// Picks how many changes are in the journal.
    fn journal(&self, choose: &mut dyn FnMut(u64) -> u64) -> usize {
        let journaled = self.journaled().count() as u64;
        if journaled > 0 { choose(journaled + 1) as usize } else { 0 }
    }

    /// Returns the time of the last seal among this many journaled changes; 0 if there is none.
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

    /// Returns how many of the first changes are on the disk if the journal has this many.
    fn flushed(&self, journaled: usize) -> usize {
        let Some(last) = journaled.checked_sub(1) else { return 0 };
        let (end, _) = self.journaled().nth(last).expect("chosen");
        let is_out = |(_, op): &(u64, FileOp)| matches!(op, FileOp::WrittenOut);
        self.ops[..end].iter().rposition(is_out).unwrap_or(0)
    }
}

/// Whether the range has no hole and does not reach beyond the end.
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

impl Node {
    pub(super) fn stat(&self) -> MediaStat {
        MediaStat {
            len: self.cached.len(),
            allocated: self.cached.allocated(),
            mtime: self.mtime,
            ctime: self.ctime,
            kind: FileKind::File,
        }
    }
}

fn dir_of(name: &str) -> String {
    name.rsplit_once('/').map_or("", |(dir, _)| dir).to_string()
}

/// With few unsynced changes each combination is an image of its own, and none is impossible.
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
