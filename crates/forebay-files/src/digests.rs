//! Digests of the blocks that the backing store holds of a file: noted while bytes pass through the
//! daemon, read by copies.
//!
//! - R2: before the store is changed in any way the file's table is opened, and counts for no version; it
//!   is closed once the store was synced and looked at. An unknown digest means that the block differs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use forebay_backing::{Result, Sizes, Version};

use crate::Files;
use crate::core::clock::{Look, What};
use crate::core::digest::{BLOCK, Digest, parts};
use crate::file::{File, Inner};
use crate::live::{Around, Meanwhile};
use crate::pace::Busy;
use crate::tier::digests::Table;
use forebay_base::lock::{Mutex, Rank};

/// The most blocks that are read to learn their digests: 64 MiB.
const LEARNT_MAX: usize = 4096;

/// Blocks that are made unknown at once.
const UNNOTED_AT_ONCE: usize = 4096;

/// The number of pages that are sampled to see how much is known.
const SAMPLED: u64 = 32;

/// The open table of a file that is being flushed.
pub struct OpenTable {
    table: Arc<Table>,
    /// Whether the table counted for the store's version at the beginning of the flight.
    counts: AtomicBool,
    base: Version,
    /// Bytes that were compared, and the time that took.
    looked: AtomicU64,
    looking: Busy,
    /// Blocks whose digests this flight has noted. Its lock lets one thread at a time change a page.
    noted: Mutex<Vec<(u64, u64)>>,
    /// Whether the table could not be written.
    spoilt: AtomicBool,
}

impl OpenTable {
    /// Returns the digest of a block of bytes, by the key of this tier.
    pub fn digest(&self, block: &[u8]) -> Digest {
        self.table.key().digest(block)
    }

    /// Returns the digest of `len` zeros, by the key of this tier.
    pub fn digest_of_zeros(&self, len: u64) -> Digest {
        self.table.key().digest_of_zeros(len)
    }

    /// Whether any digest may be known.
    pub fn counts(&self) -> bool {
        self.counts.load(Relaxed)
    }

    /// Empties the table: the store has another version than the table.
    pub fn distrust(&self) {
        let _one = self.noted.lock();
        self.counts.store(false, Relaxed);
        if self.table.reset().is_err() {
            self.spoilt.store(true, Relaxed);
        }
    }

    /// Returns the digests that the store had of `count` blocks from `first` on at the beginning of the flight.
    pub fn held(&self, first: u64, count: u64) -> Vec<Digest> {
        match self.counts() {
            true => self.table.read(first, count),
            false => vec![Digest::UNKNOWN; count as usize],
        }
    }

    /// Returns the first block at or after `block` whose digest may be known.
    pub fn next_noted(&self, block: u64) -> Option<u64> {
        self.table.next_noted(block)
    }

    /// Returns the time spent comparing: several threads may do so at once.
    pub fn looking(&self) -> &Busy {
        &self.looking
    }

    /// Notes that `bytes` were compared.
    pub fn looked(&self, bytes: u64) {
        self.looked.fetch_add(bytes, Relaxed);
    }

    /// Notes the digests of blocks that are about to be copied: the store holds them once the
    /// flight has landed.
    pub fn note(&self, found: Vec<(u64, Digest)>) {
        let mut noted = self.noted.lock();
        for (block, _) in &found {
            match noted.last_mut() {
                Some(last) if last.1 == *block => last.1 += 1,
                _ => noted.push((*block, block + 1)),
            }
        }
        self.write(found);
    }

    fn write(&self, mut found: Vec<(u64, Digest)>) {
        if self.table.write(&mut found).is_err() {
            self.spoilt.store(true, Relaxed);
        }
    }

    /// Makes the noted blocks unknown: it is not known which of them were copied.
    fn unnote(&self) {
        for (start, end) in std::mem::take(&mut *self.noted.lock()) {
            for from in (start..end).step_by(UNNOTED_AT_ONCE) {
                let to = end.min(from + UNNOTED_AT_ONCE as u64);
                self.write((from..to).map(|block| (block, Digest::UNKNOWN)).collect());
            }
        }
    }
}

impl Files {
    fn keeps_digests(&self, size: u64) -> bool {
        // A device has the same version for ever: changes by others would not be seen.
        let versioned = self.home.backing().sizes() != Sizes::Fixed;
        size >= self.config.digests_from && versioned && !self.config.read_only
    }

    fn table_of(&self, file: &File, inner: &mut Inner) -> Option<Arc<Table>> {
        if let Some(table) = &inner.live().digests {
            return Some(table.clone());
        }
        let table = Arc::new(self.digests.table(file.id).ok()?);
        inner.live().mine().digests = Some(table.clone());
        Some(table)
    }

    /// Notes the digests of bytes that were just fetched from the backing store, if nothing changed
    /// since `seen`.
    pub fn note_fetched(&self, file: &File, seen: Look, start: u64, bytes: &[u8]) {
        let still = |inner: &mut Inner| {
            let same = !inner.changed(seen, What::Base) && !inner.state.flush_is_open();
            let live = inner.live();
            same && live.flight.is_none() && live.around == Around::None && !live.stale
        };
        let mut inner = file.lock();
        let base = inner.state.base();
        if !self.keeps_digests(base.size) || !still(&mut inner) {
            return;
        }
        let Some(table) = self.table_of(file, &mut inner) else { return };
        drop(inner);
        // Readers of the file need not wait for the computation.
        let whole = parts(start, start + bytes.len() as u64, base.size).filter(|part| part.whole);
        let digest = |part: crate::core::digest::Part| {
            let block = &bytes[(part.start - start) as usize..(part.end - start) as usize];
            (part.block, table.key().digest(block))
        };
        let mut found: Vec<_> = whole.map(digest).collect();
        let mut inner = file.lock();
        let is_same = inner.live().digests.as_ref().is_some_and(|now| Arc::ptr_eq(now, &table));
        if !is_same || !still(&mut inner) {
            return;
        }
        // A digest that cannot be noted is unknown.
        if table.stamp() != Some(base) {
            let _ = table.reset().and_then(|()| table.set_stamp(Some(&base)));
        }
        let _ = table.write(&mut found);
    }

    /// Opens the table of a file that is about to be copied (R2); `None` if it has none. If an earlier
    /// flush was broken off (`resumed`), the store's content is unknown: then the table is empty.
    pub fn open_table(
        &self,
        file: &File,
        inner: &mut Inner,
        size: u64,
        resumed: bool,
    ) -> Option<OpenTable> {
        let base = inner.state.base();
        if !self.keeps_digests(size.max(base.size)) {
            return None;
        }
        let table = self.table_of(file, inner)?;
        let counts = !resumed && table.stamp() == Some(base);
        // Blocks that the store does not have yet, or will not have, are unknown.
        let cut = base.size.min(size);
        let opened = match counts {
            true if size == base.size => table.set_stamp(None),
            true => table.set_stamp(None).and_then(|()| table.forget_from(cut / BLOCK)),
            false => table.reset(),
        };
        if opened.is_err() {
            self.digests.remove(file.id);
            inner.live().mine().digests = None;
            return None;
        }
        let (looked, looking) = (AtomicU64::new(0), Busy::default());
        let noted = Mutex::new(Rank::Batch, Vec::new());
        Some(OpenTable {
            table,
            counts: AtomicBool::new(counts),
            base,
            looked,
            looking,
            noted,
            spoilt: AtomicBool::new(false),
        })
    }

    /// Remembers the results of a flight that compared and copied.
    pub fn note_look(&self, inner: &mut Inner, open: &OpenTable, copied: u64) {
        let looked = open.looked.load(Relaxed);
        if looked > 0 {
            let looks = inner.looks.get_or_insert_default();
            looks.last = Some((self.time.now(), open.looking.total(&self.time)));
            // Later looks count more.
            looks.looked = looks.looked / 2 + looked;
            looks.copied = looks.copied / 2 + copied;
        }
    }

    /// Closes the table: the store was synced after the copy, and has this version now.
    pub fn close_table(&self, open: &OpenTable, version: &Version) {
        if !open.spoilt.load(Relaxed) {
            // If this fails the table stays open.
            let _ = open.table.set_stamp(Some(version));
        }
    }

    /// Closes the table of a flight that copied nothing.
    pub fn close_table_unchanged(&self, open: &OpenTable) {
        self.close_table_of_failed(open, &open.base);
    }

    /// Closes the table after a flight that failed: the store is synced, and has this version now.
    pub fn close_table_of_failed(&self, open: &OpenTable, version: &Version) {
        if open.counts() {
            open.unnote();
            self.close_table(open, version);
        }
    }

    /// Takes over a new version of the backing file with the same content, after a change of names
    /// or attributes.
    pub(crate) fn follow_digests(&self, file: &File, inner: &Inner, from: &Version, to: &Version) {
        if from == to || from.size != to.size || !inner.recorded || !self.keeps_digests(to.size) {
            return;
        }
        if let Some(table) = self.digests.existing(file.id)
            && table.stamp() == Some(*from)
        {
            let _ = table.set_stamp(Some(to));
        }
    }

    /// Drops the digests of a backing file that is about to be changed around the tier (R2).
    pub fn forget_digests(&self, file: &File, inner: &mut Inner) {
        if !self.keeps_digests(inner.state.base().size.max(inner.state.size())) {
            return;
        }
        if let Some(live) = &mut inner.live {
            live.mine().digests = None;
        }
        self.digests.remove(file.id);
    }

    /// Learns the digests of blocks that were not noted, as far as they are clean here, which means
    /// equal to the store's. Reads only as much as takes a moment.
    pub fn learn_content(&self, file: &Arc<File>) -> Result<()> {
        let mut inner = file.lock();
        let (base, size) = (inner.state.base(), inner.state.size().min(inner.state.base().size));
        let quiet = |inner: &mut Inner| {
            let broken_off = inner.state.flush_is_open();
            let live = inner.live();
            !broken_off && live.flight.is_none() && live.around == Around::None && !live.stale
        };
        if !self.keeps_digests(size) || !quiet(&mut inner) {
            return Ok(());
        }
        let Some(table) = self.table_of(file, &mut inner) else { return Ok(()) };
        if table.stamp() != Some(base)
            && table.reset().and_then(|()| table.set_stamp(Some(&base))).is_err()
        {
            return Ok(());
        }
        let shadow = self.shadow(file, &mut inner)?;
        let part = |block: u64| (block * BLOCK, ((block + 1) * BLOCK).min(size));
        let is_clean = |inner: &Inner, (start, end): (u64, u64)| {
            let clean = inner.state.clean(start, end);
            clean.iter().map(|(a, b)| b - a).sum::<u64>() == end - start
        };
        let mut blocks = table.unknown(size.div_ceil(BLOCK), LEARNT_MAX);
        // The last block may be longer here than on the store.
        blocks.retain(|block| is_clean(&inner, part(*block)));
        let seen = inner.clock.look();
        let work = self.work_on(file, inner, Meanwhile::Refused);
        let mut found = Vec::with_capacity(blocks.len());
        let mut buf = vec![0; BLOCK as usize];
        for block in blocks {
            let (start, end) = part(block);
            let bytes = &mut buf[..(end - start) as usize];
            if self.note_tier(shadow.read_at(bytes, start))? == bytes.len() {
                found.push((block, table.key().digest(bytes)));
            }
        }
        let mut inner = file.lock();
        work.end(&mut inner);
        // After a flush meanwhile, blocks may be clean that were read before they were flushed.
        let same =
            !inner.changed(seen, What::Base) && quiet(&mut inner) && table.stamp() == Some(base);
        if same {
            found.retain(|(block, _)| {
                let (start, end) = part(*block);
                is_clean(&inner, (start, end)) && !inner.changed(seen, What::Bytes(start, end))
            });
            let _ = table.write(&mut found);
        }
        Ok(())
    }

    /// Whether the digests of nearly all blocks that the backing store holds of a file are known.
    pub fn knows_content(&self, file: &File, inner: &mut Inner) -> bool {
        let (size, base) = (inner.state.size(), inner.state.base());
        if !self.keeps_digests(size) {
            return false;
        }
        let Some(table) = self.table_of(file, inner) else { return false };
        if table.stamp() != Some(base) {
            return false;
        }
        let (known, all) = table.sample(size.div_ceil(BLOCK), SAMPLED);
        known * 8 >= all * 7
    }
}
