//! Digests of the blocks that the backing store holds: a side file for each shadow of some size.
//!
//! ```text
//! digests/key      what all digests of the tier are made with
//! digests/ID       header, then pages of 4096 bytes with 255 digests each
//! ```
//!
//! A table is valid for the one version of the backing file that its header names. It is valid for none
//! while it is *open*: from before the backing file is changed until that file was synced and its version
//! read (R2). The table need not be synced for that: after a loss of power the tier draws another key,
//! and every old table is void. Header and pages are checked with the key; a page that fails the check is
//! unknown.

use std::io;
use std::sync::Arc;

use forebay_backing::{FileKey, Timestamp, Version};

use crate::core::digest::{Digest, Key};
use crate::core::id::FileId;
use crate::core::state::Boot;
use crate::media::{Media, MediaFile, Open};

pub const DIR: &str = "digests";

const KEY: &str = "digests/key";

const KEY_ASIDE: &str = "digests/key.new";

const PAGE: usize = 4096;

/// A checksum and the page's number stand in front of the digests.
const PAGE_HEAD: usize = 16;

/// Digests in a page.
const IN_PAGE: u64 = ((PAGE - PAGE_HEAD) / Digest::BYTES) as u64;

const MAGIC: &[u8; 8] = b"fbdigest";

const HEADER: usize = 80;

/// The tables of digests of a tier.
pub struct Digests {
    media: Arc<dyn Media>,
    key: Arc<Key>,
}

/// The digests of the blocks of one backing file.
pub struct Table {
    file: Arc<dyn MediaFile>,
    key: Arc<Key>,
}

pub fn name(id: FileId) -> String {
    format!("{DIR}/{:x}", id.0)
}

impl Digests {
    /// The tables that are still valid after this start.
    pub fn open(media: Arc<dyn Media>, boot: Boot) -> io::Result<Digests> {
        media.make_dir(DIR)?;
        let known = if boot == Boot::Kept { read_key(&*media)? } else { None };
        let key = match known {
            Some(key) => key,
            None => draw_key(&*media)?,
        };
        Ok(Digests { media, key: Arc::new(key) })
    }

    /// The valid tables of a tier that is only read; `None` if none is valid.
    pub fn existing_of(media: Arc<dyn Media>, boot: Boot) -> Option<Digests> {
        let known = if boot == Boot::Kept { read_key(&*media).ok().flatten() } else { None };
        known.map(|key| Digests { media, key: Arc::new(key) })
    }

    #[cfg(test)]
    fn key(&self) -> &Arc<Key> {
        &self.key
    }

    /// The table of a file; a new, empty one if the file has none.
    pub fn table(&self, id: FileId) -> io::Result<Table> {
        let file = self.media.open(&name(id), Open::Keep)?;
        Ok(Table { file, key: self.key.clone() })
    }

    /// The table of a file, if the file has one.
    pub fn existing(&self, id: FileId) -> Option<Table> {
        let file = self.media.open(&name(id), Open::Existing).ok()?;
        Some(Table { file, key: self.key.clone() })
    }

    pub fn remove(&self, id: FileId) {
        let _ = self.media.remove(&name(id));
    }

    /// The files that have a table.
    pub fn all(media: &dyn Media) -> Vec<FileId> {
        let names = media.list(DIR).unwrap_or_default();
        names.iter().filter_map(|name| u64::from_str_radix(name, 16).ok()).map(FileId).collect()
    }
}

fn read_key(media: &dyn Media) -> io::Result<Option<Key>> {
    let file = match media.open(KEY, Open::Existing) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = [0; Key::BYTES + 4];
    if file.read_at(&mut bytes, 0)? < bytes.len() {
        return Ok(None);
    }
    let (key, crc) = bytes.split_first_chunk().expect("it is longer");
    Ok((crc32fast::hash(key).to_le_bytes() == crc).then(|| Key::of(*key)))
}

/// The key is durable before a table is made with it: an old key that comes back after a loss of power
/// would make old tables valid.
fn draw_key(media: &dyn Media) -> io::Result<Key> {
    let mut bytes = [0; Key::BYTES];
    fill_at_random(&mut bytes)?;
    let file = media.open(KEY_ASIDE, Open::Fresh)?;
    file.write_at(&[&bytes[..], &crc32fast::hash(&bytes).to_le_bytes()].concat(), 0)?;
    file.sync_data()?;
    media.rename(KEY_ASIDE, KEY)?;
    media.sync_dir(DIR)?;
    media.sync_dir("")?;
    Ok(Key::of(bytes))
}

pub(crate) fn fill_at_random(bytes: &mut [u8]) -> io::Result<()> {
    use std::io::Read;
    std::fs::File::open("/dev/urandom")?.read_exact(bytes)
}

impl Table {
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The version of the backing file that the table is valid for.
    pub fn stamp(&self) -> Option<Version> {
        let mut bytes = [0; HEADER];
        let read = self.file.read_at(&mut bytes, 0).ok()?;
        let whole = read == HEADER && bytes[..8] == *MAGIC;
        if !whole || word(&bytes, 8) != self.key.check(&bytes[16..]) || word(&bytes, 16) != 1 {
            return None;
        }
        let time =
            |at| Timestamp { sec: word(&bytes, at) as i64, nsec: word(&bytes, at + 8) as u32 };
        Some(Version {
            key: FileKey { ino: word(&bytes, 24), generation: word(&bytes, 32) },
            size: word(&bytes, 40),
            mtime: time(48),
            ctime: time(64),
        })
    }

    /// From here on the table is valid for `version`, or for none.
    pub fn set_stamp(&self, version: Option<&Version>) -> io::Result<()> {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(MAGIC);
        let mut put = |at: usize, value: u64| {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        };
        if let Some(Version { key, size, mtime, ctime }) = version {
            put(16, 1);
            put(24, key.ino);
            put(32, key.generation);
            put(40, *size);
            for (at, time) in [(48, mtime), (64, ctime)] {
                let Timestamp { sec, nsec } = *time;
                put(at, sec as u64);
                put(at + 8, nsec.into());
            }
        }
        let check = self.key.check(&bytes[16..]);
        bytes[8..16].copy_from_slice(&check.to_le_bytes());
        self.file.write_at(&bytes, 0)
    }

    /// Empties the table.
    pub fn reset(&self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.set_stamp(None)
    }

    /// The digests of `count` blocks from `first` on.
    pub fn read(&self, first: u64, count: u64) -> Vec<Digest> {
        let mut found = Vec::with_capacity(count as usize);
        let mut at = first;
        while at < first + count {
            let page = self.page(at / IN_PAGE);
            let until = ((at / IN_PAGE + 1) * IN_PAGE).min(first + count);
            match page {
                Some(page) => found.extend((at..until).map(|block| page.get(block))),
                None => found.extend((at..until).map(|_| Digest::UNKNOWN)),
            }
            at = until;
        }
        found
    }

    /// Looks at `count` pages, taken evenly from those of `blocks` blocks. Returns the number of known
    /// digests, and of all digests of these pages.
    pub fn sample(&self, blocks: u64, count: u64) -> (u64, u64) {
        let pages = blocks.div_ceil(IN_PAGE);
        let step = pages.div_ceil(count).max(1);
        let mut sums = (0, 0);
        for page in (0..pages).step_by(step as usize) {
            let first = page * IN_PAGE;
            let digests = self.read(first, IN_PAGE.min(blocks - first));
            sums.0 += digests.iter().filter(|digest| digest.is_known()).count() as u64;
            sums.1 += digests.len() as u64;
        }
        sums
    }

    /// The first `count` of the `blocks` blocks whose digests are not known.
    pub fn unknown(&self, blocks: u64, count: usize) -> Vec<u64> {
        let firsts = (0..blocks).step_by(IN_PAGE as usize);
        let of_page = |first: u64| {
            let digests = self.read(first, IN_PAGE.min(blocks - first));
            let unknown = digests.into_iter().enumerate().filter(|(_, digest)| !digest.is_known());
            unknown.map(move |(n, _)| first + n as u64).collect::<Vec<_>>()
        };
        firsts.flat_map(of_page).take(count).collect()
    }

    /// The first block at or after `block` whose digest may be known; `None` if there is none.
    pub fn next_noted(&self, block: u64) -> Option<u64> {
        let page = offset(block / IN_PAGE);
        let Ok(found) = self.file.next_data(page) else { return Some(block) };
        let (start, _) = found?;
        Some((start / PAGE as u64 - 1).saturating_mul(IN_PAGE).max(block))
    }

    /// Writes digests into the table. `found` is in any order.
    pub fn write(&self, found: &mut [(u64, Digest)]) -> io::Result<()> {
        // A block that is in `found` twice becomes unknown.
        found.sort_by_key(|(block, digest)| (*block, !digest.is_known()));
        for of_page in found.chunk_by(|a, b| a.0 / IN_PAGE == b.0 / IN_PAGE) {
            let number = of_page[0].0 / IN_PAGE;
            let mut page = self.page(number).unwrap_or_else(|| Page::blank(number));
            of_page.iter().for_each(|(block, digest)| page.set(*block, *digest));
            self.put(page)?;
        }
        Ok(())
    }

    /// Forgets the digests from this block on.
    pub fn forget_from(&self, block: u64) -> io::Result<()> {
        let number = block / IN_PAGE;
        if let Some(mut page) = self.page(number) {
            (block..(number + 1) * IN_PAGE).for_each(|block| page.set(block, Digest::UNKNOWN));
            self.put(page)?;
        }
        let end = offset(number + 1);
        if self.file.stat()?.len > end { self.file.set_len(end) } else { Ok(()) }
    }

    fn page(&self, number: u64) -> Option<Page> {
        let mut bytes = Box::new([0; PAGE]);
        let read = self.file.read_at(&mut bytes[..], offset(number)).ok()?;
        let check = self.key.check(&bytes[8..]);
        let sound = read == PAGE && word(&bytes[..], 0) == check && word(&bytes[..], 8) == number;
        sound.then_some(Page { bytes, number })
    }

    fn put(&self, mut page: Page) -> io::Result<()> {
        let check = self.key.check(&page.bytes[8..]);
        page.bytes[..8].copy_from_slice(&check.to_le_bytes());
        self.file.write_at(&page.bytes[..], offset(page.number))
    }
}

fn offset(page: u64) -> u64 {
    (page + 1) * PAGE as u64
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// A page of a table: the digests of consecutive blocks.
struct Page {
    bytes: Box<[u8; PAGE]>,
    number: u64,
}

impl Page {
    fn blank(number: u64) -> Page {
        let mut bytes = Box::new([0; PAGE]);
        bytes[8..16].copy_from_slice(&number.to_le_bytes());
        Page { bytes, number }
    }

    fn at(block: u64) -> usize {
        PAGE_HEAD + (block % IN_PAGE) as usize * Digest::BYTES
    }

    fn get(&self, block: u64) -> Digest {
        let at = Page::at(block);
        Digest::from_bytes(self.bytes[at..at + Digest::BYTES].try_into().expect("so many"))
    }

    fn set(&mut self, block: u64, digest: Digest) {
        let at = Page::at(block);
        self.bytes[at..at + Digest::BYTES].copy_from_slice(&digest.to_bytes());
    }
}

#[cfg(test)]
mod tests {
    use forebay_backing::suite::TempDir;

    use super::*;
    use crate::media::DirMedia;

    fn version(size: u64) -> Version {
        let time = Timestamp { sec: -5, nsec: 7 };
        let key = FileKey { ino: 3, generation: u64::MAX };
        Version { key, size, mtime: time, ctime: Timestamp { sec: 1 << 40, nsec: 999_999_999 } }
    }

    fn tier() -> (TempDir, Arc<dyn Media>) {
        let dir = TempDir::new();
        let media = Arc::new(DirMedia::open(dir.path()).unwrap());
        (dir, media)
    }

    #[test]
    fn a_table_counts_for_one_version_and_tells_what_was_put_in() {
        let (_dir, media) = tier();
        let digests = Digests::open(media.clone(), Boot::Kept).unwrap();
        let digest = |n: u8| digests.key().digest(&[n]);
        let table = digests.table(FileId(5)).unwrap();
        assert_eq!(table.stamp(), None, "it is new");
        let last = 3 * IN_PAGE + 9;
        table.write(&mut [(last, digest(3)), (0, digest(1)), (IN_PAGE, digest(2))]).unwrap();
        table.set_stamp(Some(&version(77))).unwrap();
        let again = digests.existing(FileId(5)).unwrap();
        assert_eq!(again.stamp(), Some(version(77)));
        let found = again.read(0, last + 2);
        let known: Vec<_> = found.iter().enumerate().filter(|(_, it)| it.is_known()).collect();
        let at = |n: u64| n as usize;
        assert_eq!(known, [(0, &digest(1)), (at(IN_PAGE), &digest(2)), (at(last), &digest(3))]);
        again.write(&mut [(0, digest(4)), (0, Digest::UNKNOWN)]).unwrap();
        assert_eq!(again.read(0, 1), [Digest::UNKNOWN], "two copies of one block");
        again.forget_from(IN_PAGE).unwrap();
        assert!(again.read(0, last + 2).iter().all(|it| !it.is_known()));
        again.set_stamp(None).unwrap();
        assert_eq!(table.stamp(), None);
        assert!(digests.existing(FileId(6)).is_none());
    }

    /// A loss of power may leave any page of a table old.
    // S-4
    #[test]
    fn no_table_counts_after_a_loss_of_power_and_no_damaged_page_of_one() {
        let (dir, media) = tier();
        let digests = Digests::open(media.clone(), Boot::Kept).unwrap();
        let table = digests.table(FileId(5)).unwrap();
        let digest = digests.key().digest(b"x");
        table.write(&mut [(0, digest), (IN_PAGE, digest)]).unwrap();
        table.set_stamp(Some(&version(1))).unwrap();
        let kept = Digests::open(media.clone(), Boot::Kept).unwrap();
        assert_eq!(kept.existing(FileId(5)).unwrap().stamp(), Some(version(1)), "the same key");
        use std::os::unix::fs::FileExt;
        let path = dir.path().join(name(FileId(5)));
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(b"!", offset(0) + PAGE as u64 - 1).unwrap();
        assert_eq!(table.read(0, 1), [Digest::UNKNOWN], "damaged");
        assert_eq!(table.read(IN_PAGE, 1), [digest]);
        let lost = Digests::open(media, Boot::Lost).unwrap();
        let table = lost.existing(FileId(5)).unwrap();
        assert_eq!((table.stamp(), table.read(IN_PAGE, 1)), (None, vec![Digest::UNKNOWN]));
    }
}
