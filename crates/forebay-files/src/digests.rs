//! What the backing store holds of a file, by digests of its blocks: learnt while bytes pass through us,
//! asked by who copies.
//!
//! - R2: before the store is changed in any way its table is open, and counts for no version; it is closed
//!   once the store was synced and looked at. Unknown means different.

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

/// So many blocks are read to learn what they are: 64 MiB.
const LEARNT_MAX: usize = 4096;

/// So many blocks are made unknown at once.
const UNNOTED_AT_ONCE: usize = 4096;

/// Of so many pages it is asked how much of them is known.
const SAMPLED: u64 = 32;

/// The table of a file that is on its way home, open.
pub struct OpenTable {
    table: Arc<Table>,
    /// It counted for the version of the store that the flight began with.
    counts: AtomicBool,
    base: Version,
    /// Bytes that were compared, and for how long.
    looked: AtomicU64,
    looking: Busy,
    /// Blocks of which it tells what this flight copies. One at a time changes a page.
    noted: Mutex<Vec<(u64, u64)>>,
    /// That could not be written.
    spoilt: AtomicBool,
}

impl OpenTable {
    /// What a block of bytes is, by the key of this tier.
    pub fn digest(&self, block: &[u8]) -> Digest {
        self.table.key().digest(block)
    }

    /// The same of so many zeros.
    pub fn digest_of_zeros(&self, len: u64) -> Digest {
        self.table.key().digest_of_zeros(len)
    }

    /// Whether anything may be known.
    pub fn counts(&self) -> bool {
        self.counts.load(Relaxed)
    }

    /// The store is of another version than what it tells of.
    pub fn distrust(&self) {
        let _one = self.noted.lock();
        self.counts.store(false, Relaxed);
        if self.table.reset().is_err() {
            self.spoilt.store(true, Relaxed);
        }
    }

    /// What the store held of `count` blocks from `first` on when the flight began.
    pub fn held(&self, first: u64, count: u64) -> Vec<Digest> {
        match self.counts() {
            true => self.table.read(first, count),
            false => vec![Digest::UNKNOWN; count as usize],
        }
    }

    /// The first block at or after this one of which anything may be known.
    pub fn next_noted(&self, block: u64) -> Option<u64> {
        self.table.next_noted(block)
    }

    /// While it is compared: several threads may be at it.
    pub fn looking(&self) -> &Busy {
        &self.looking
    }

    /// So many bytes were compared.
    pub fn looked(&self, bytes: u64) {
        self.looked.fetch_add(bytes, Relaxed);
    }

    /// Blocks are about to be copied that are these: the store holds them once the flight has landed.
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

    /// What was noted is not what the store holds: nobody knows what of it was copied.
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
        // A device has one version for ever: others' changes would not be seen.
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

    /// Takes note of bytes that were just fetched from the backing store, since a look at the file.
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
        // Who reads the file meanwhile does not wait for this.
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
        // What cannot be noted is unknown.
        if table.stamp() != Some(base) {
            let _ = table.reset().and_then(|()| table.set_stamp(Some(&base)));
        }
        let _ = table.write(&mut found);
    }

    /// Opens the table of a file that is about to be copied (R2); `None` if it has none. What an earlier
    /// flush has left of the store nobody knows: then the table is `resumed`, and empty.
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
        // Of what the store does not have yet, or will not have, nothing is known.
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

    /// Remembers what a flight has found that compared and copied.
    pub fn note_look(&self, inner: &mut Inner, open: &OpenTable, copied: u64) {
        let looked = open.looked.load(Relaxed);
        if looked > 0 {
            let looks = inner.looks.get_or_insert_default();
            looks.last = Some((self.time.now(), open.looking.total(&self.time)));
            // The last one tells most.
            looks.looked = looks.looked / 2 + looked;
            looks.copied = looks.copied / 2 + copied;
        }
    }

    /// Closes it: the store was synced after the copy, and is this now.
    pub fn close_table(&self, open: &OpenTable, version: &Version) {
        if !open.spoilt.load(Relaxed) {
            // What fails leaves it open.
            let _ = open.table.set_stamp(Some(version));
        }
    }

    /// Closes it: nothing was copied.
    pub fn close_table_unchanged(&self, open: &OpenTable) {
        self.close_table_of_failed(open, &open.base);
    }

    /// Closes it after a flight that failed: the store is synced, and is this now.
    pub fn close_table_of_failed(&self, open: &OpenTable, version: &Version) {
        if open.counts() {
            open.unnote();
            self.close_table(open, version);
        }
    }

    /// The backing file is of another version through a change of names or attributes, and holds the same.
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

    /// The backing file is about to be changed around the tier (R2).
    pub fn forget_digests(&self, file: &File, inner: &mut Inner) {
        if !self.keeps_digests(inner.state.base().size.max(inner.state.size())) {
            return;
        }
        if let Some(live) = &mut inner.live {
            live.mine().digests = None;
        }
        self.digests.remove(file.id);
    }

    /// Finds out what the backing store holds of blocks that nobody has noted, as far as they are clean here,
    /// which means equal. Reads no more than that takes a moment.
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
        // The last one may be longer here than there.
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
        // A flush in between may have found clean what was read before it was written back.
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

    /// Whether nearly all blocks that the backing store holds of a file are known.
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
