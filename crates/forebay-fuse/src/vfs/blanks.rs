//! Blanks: ranges of zeros in the kernel's pages of files that other members serve. The file ended before such a
//! range when the page was read.
//!
//! A program here may have such a page mapped, and change it. The kernel then brings home all of the page, as far
//! as it takes the file to be long by then. Bytes that the file has got there since would be overwritten with zeros
//! that no program has stored.
//!
//! Blanks are noted only while a program has the file open for writing: a reader that follows a growing file reads
//! its last page again and again. A writer's open has the kernel drop pages that it has read, or is reading, before
//! the writer can map one.

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::{Arc, Weak};

use forebay_backing::FileKey;
use forebay_base::lock::{Mutex, MutexGuard, Rank};

/// The blanks of all open files.
pub struct Blanks(Arc<Table>);

impl Default for Blanks {
    fn default() -> Blanks {
        Blanks(Arc::new(Mutex::new(Rank::Blanks, HashMap::new())))
    }
}

type Table = Mutex<HashMap<FileKey, Weak<Blank>>>;

/// The blanks of one file.
pub struct Blank(Mutex<Known>);

#[derive(Default)]
struct Known {
    writers: usize,
    /// The beginning and the end of each range of zeros. The ranges do not meet.
    ranges: BTreeMap<u64, u64>,
}

impl Default for Blank {
    fn default() -> Blank {
        Blank(Mutex::new(Rank::Blanks, Known::default()))
    }
}

/// An open handle's share in the blanks. Without any the kernel has no page mapped, and drops all at the next open.
pub struct Share {
    all: Arc<Table>,
    key: FileKey,
    writes: bool,
    of: Option<Arc<Blank>>,
}

impl Blanks {
    pub fn open(&self, key: FileKey, writes: bool) -> Share {
        let mut all = self.0.lock();
        let known = all.get(&key).and_then(Weak::upgrade);
        let of = known.unwrap_or_else(|| {
            let new = Arc::default();
            all.insert(key, Arc::downgrade(&new));
            new
        });
        drop(all);
        of.known().writers += usize::from(writes);
        Share { all: self.0.clone(), key, writes, of: Some(of) }
    }
}

impl Deref for Share {
    type Target = Blank;

    fn deref(&self) -> &Blank {
        self.of.as_ref().expect("held until it is dropped")
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.writes {
            self.leaves();
        }
        let mut all = self.all.lock();
        self.of = None;
        if all.get(&self.key).is_some_and(|of| of.strong_count() == 0) {
            all.remove(&self.key);
        }
    }
}

/// The parts of the ranges that lie in `[start, end)`, in order.
fn within(ranges: &BTreeMap<u64, u64>, start: u64, end: u64) -> Vec<(u64, u64)> {
    let meets = ranges.range(..end).rev().take_while(|(_, stop)| **stop > start);
    let mut found: Vec<_> = meets.map(|(from, to)| (start.max(*from), end.min(*to))).collect();
    found.reverse();
    found
}

fn take_out(ranges: &mut BTreeMap<u64, u64>, start: u64, end: u64) {
    for (from, to) in within(ranges, start, end) {
        let (first, mut rest) = (*ranges.range(..=from).next_back().expect("it meets").0, None);
        let stop = ranges.remove(&first).expect("just found");
        if stop > to {
            rest = Some((to, stop));
        }
        if first < from {
            ranges.insert(first, from);
        }
        ranges.extend(rest);
    }
}

impl Blank {
    #[track_caller]
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock()
    }

    /// Called when a writer has closed the file and has no page of it mapped.
    fn leaves(&self) {
        let mut known = self.known();
        known.writers -= 1;
        if known.writers == 0 {
            known.ranges.clear();
        }
    }

    /// Notes a read of pages by the kernel: it asked for `asked` bytes, and `came` bytes came.
    pub fn was_read(&self, offset: u64, came: usize, asked: usize) {
        let (middle, end) = (offset + came as u64, offset + asked as u64);
        let Known { writers, ranges } = &mut *self.known();
        if *writers == 0 || (ranges.is_empty() && middle == end) {
            return;
        }
        take_out(ranges, offset, end);
        if middle < end {
            ranges.insert(middle, end);
        }
    }

    /// The bytes of these pages that are to be brought home: all but zeros within blanks.
    pub fn stored(&self, offset: u64, data: &[u8]) -> Vec<(u64, u64)> {
        let mut parts: Vec<(u64, u64)> = Vec::new();
        let mut add = |start, end| match parts.last_mut() {
            _ if start >= end => {}
            Some(last) if last.1 == start => last.1 = end,
            _ => parts.push((start, end)),
        };
        let (mut next, end) = (offset, offset + data.len() as u64);
        for (start, stop) in within(&self.known().ranges, offset, end) {
            add(next, start);
            let zeros = &data[(start - offset) as usize..(stop - offset) as usize];
            let is_stored = |byte: &u8| *byte != 0;
            if let (Some(first), Some(last)) =
                (zeros.iter().position(is_stored), zeros.iter().rposition(is_stored))
            {
                add(start + first as u64, start + last as u64 + 1);
            }
            next = stop;
        }
        add(next, end);
        parts
    }

    /// Notes that these bytes are brought home: zeros there count as stored from now on.
    pub fn is_home(&self, start: u64, end: u64) {
        take_out(&mut self.known().ranges, start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: FileKey = FileKey { ino: 7, generation: 1 };
    const PAGE: usize = 4096;

    /// A page with these bytes at these places.
    fn page(stored: &[(usize, u8)]) -> Vec<u8> {
        let mut page = vec![0; PAGE];
        stored.iter().for_each(|(at, byte)| page[*at] = *byte);
        page
    }

    #[test]
    fn zeros_behind_the_end_that_nobody_stored_stay_away() {
        let blank = Blanks::default().open(KEY, true);
        assert_eq!(blank.stored(0, &page(&[])), [(0, 4096)], "all of it was the file's");
        blank.was_read(0, 100, PAGE);
        assert_eq!(blank.stored(0, &page(&[(5, 1)])), [(0, 100)]);
        assert_eq!(blank.stored(0, &page(&[])[..50]), [(0, 50)], "cut off by the kernel");
        assert_eq!(blank.stored(4096, &page(&[])), [(4096, 8192)], "another page");
    }

    /// The file got longer here: bytes stored behind its former end count, and so do later zeros over them.
    #[test]
    fn what_somebody_stored_behind_the_former_end_comes_home() {
        let blank = Blanks::default().open(KEY, true);
        blank.was_read(0, 100, PAGE);
        let stored = page(&[(100, 1), (200, 2), (210, 3)]);
        assert_eq!(blank.stored(0, &stored), [(0, 211)]);
        let apart = page(&[(200, 2), (210, 3)]);
        assert_eq!(blank.stored(0, &apart), [(0, 100), (200, 211)]);
        blank.is_home(200, 211);
        assert_eq!(blank.stored(0, &page(&[])), [(0, 100), (200, 211)]);
    }

    #[test]
    fn pages_that_are_read_anew_are_what_came() {
        let blank = Blanks::default().open(KEY, true);
        blank.was_read(4096, 100, 3 * PAGE);
        assert_eq!(blank.stored(4096, &page(&[])), [(4096, 4196)]);
        assert_eq!(blank.stored(8192, &page(&[])), []);
        blank.was_read(8192, PAGE, PAGE);
        assert_eq!(blank.stored(8192, &page(&[])), [(8192, 12_288)]);
        assert_eq!(blank.stored(12_288, &page(&[])), []);
        blank.was_read(0, 3 * PAGE, 3 * PAGE);
        blank.was_read(12_288, 1, PAGE);
        assert_eq!(blank.known().ranges, BTreeMap::from([(12_289, 16_384)]));
    }

    #[test]
    fn a_blank_is_known_as_long_as_somebody_has_the_file_open() {
        let all = Blanks::default();
        let one = all.open(KEY, true);
        one.was_read(0, 100, PAGE);
        let other = all.open(KEY, true);
        drop(one);
        assert_eq!(other.stored(0, &page(&[])), [(0, 100)]);
        drop(other);
        assert!(all.0.lock().is_empty());
        assert_eq!(all.open(KEY, true).stored(0, &page(&[])), [(0, 4096)]);
    }

    /// Otherwise a blank of each of its last pages would be kept while the file is open.
    #[test]
    fn a_follower_of_a_growing_file_leaves_no_blanks() {
        let all = Blanks::default();
        let follower = all.open(KEY, false);
        let follows = |from: u64| {
            (from..from + 1000).for_each(|n| follower.was_read(n << 12, 100, PAGE));
            follower.known().ranges.len()
        };
        assert_eq!(follows(0), 0);
        let writer = all.open(KEY, true);
        assert_eq!(follows(1000), 1000, "the writer may have any of them mapped");
        assert_eq!(writer.stored(1000 << 12, &page(&[])), [(1000 << 12, (1000 << 12) + 100)]);
        drop(writer);
        assert_eq!(follows(2000), 0);
        assert_eq!(follower.known().ranges.len(), 0, "nor what was there before");
    }
}
