//! Compares the dirty blocks of a file with digests, and copies those that the backing store does not hold.
//!
//! - R3: a block is read once, and that buffer is compared, copied and noted: a write of a program
//!   in the meantime is found by the next look. Nothing is cloned or spliced from a shadow file.

use forebay_backing::{BackingFile, Result};

use crate::core::clock::What;
use crate::core::digest::{BLOCK, Digest, parts};
use crate::core::ranges::Ranges;
use crate::core::state::{Change, Settled};
use crate::drain::Drain;
use crate::drain::ages::may_have_changed;
use crate::drain::parcel::Parcel;
use crate::drain::put::given_up;
use crate::files::digests::OpenTable;
use crate::files::file::Inner;

/// Bytes read at once.
const LOOK: u64 = 1 << 20;

/// The unit in which a block is data or a hole.
const GRAIN: u64 = 4096;

/// Blocks of a hole that are compared at once.
const HOLE_BLOCKS: u64 = 4096;

/// Longer holes are noted only where they replace known digests.
const HOLE_NOTED_MAX: u64 = 1 << 18;

/// How a stretch of a file is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The store holds the stretch already.
    Stays,
    Goes,
    /// The stretch is a hole, to be made on the store.
    Hole,
}

impl Drain {
    /// Copies the blocks of `[start, end)` that differ, and notes the digests that the store holds then.
    pub(super) fn copy_different(
        &self,
        parcel: &Parcel,
        open: &OpenTable,
        target: &dyn BackingFile,
        (start, end): (u64, u64),
    ) -> Result<()> {
        let mut buf = vec![0; LOOK.min(end - start) as usize];
        let mut at = start;
        while at < end {
            if !parcel.is_wanted() {
                return Err(given_up());
            }
            let data = self.files.note_tier(parcel.next_data(at))?;
            // A block with any data in it is read.
            let hole_end = match data.filter(|(from, _)| *from < end) {
                Some((from, _)) => (from / BLOCK * BLOCK).max(at),
                None => end,
            };
            if hole_end > at {
                self.compare_hole(parcel, open, target, (at, hole_end))?;
                at = hole_end;
                continue;
            }
            let upto = end.min((at / LOOK + 1) * LOOK);
            let n =
                self.compare_data(parcel, open, target, &mut buf[..(upto - at) as usize], at)?;
            if n < upto - at {
                return self.may_be_cut(parcel);
            }
            at = upto;
        }
        Ok(())
    }

    /// Compares and copies data; returns how many bytes the shadow had.
    fn compare_data(
        &self,
        parcel: &Parcel,
        open: &OpenTable,
        target: &dyn BackingFile,
        buf: &mut [u8],
        at: u64,
    ) -> Result<u64> {
        // Holes are looked up before the read: bytes written into a hole later are not zeros, or
        // are found by the next look.
        let data = self.data_within(parcel, at, at + buf.len() as u64)?;
        let (time, looks) = (self.files.time(), self.files.totals().looks());
        let counts = open.counts();
        let at_it = counts.then(|| (open.looking().begin(time), looks.busy().begin(time)));
        let n = self.files.note_tier(parcel.shadow.read_at(buf, at))? as u64;
        let bytes = &buf[..n as usize];
        let of = |start: u64, end: u64| &bytes[(start - at) as usize..(end - at) as usize];
        let parts: Vec<_> = parts(at, at + n, parcel.size).collect();
        let Some(first) = parts.first().map(|part| part.block) else { return Ok(n) };
        let held = open.held(first, parts.len() as u64);
        let mut noted: Vec<(u64, Digest)> = Vec::new();
        let mut ways: Vec<(u64, u64, Way)> = Vec::new();
        for (part, held) in parts.iter().zip(held) {
            let digest = match part.whole {
                true => open.digest(of(part.start, part.end)),
                false => Digest::UNKNOWN,
            };
            if digest.is_known() && digest == held {
                add_way(&mut ways, part.start, part.end, Way::Stays);
                continue;
            }
            noted.push((part.block, digest));
            let mut from = part.start;
            while from < part.end {
                let to = part.end.min((from / GRAIN + 1) * GRAIN);
                let is_hole = !data.iter().any(|&(a, b)| a < to && from < b)
                    && of(from, to).iter().all(|byte| *byte == 0);
                add_way(&mut ways, from, to, if is_hole { Way::Hole } else { Way::Goes });
                from = to;
            }
        }
        drop(at_it);
        if counts {
            open.looked(n);
            looks.note(n);
            self.files.landings().note_looked(n);
        }
        if !noted.is_empty() {
            open.note(noted);
        }
        for (start, end, way) in ways {
            match way {
                Way::Stays => {}
                Way::Goes => self.send_all(parcel, target, of(start, end), start)?,
                Way::Hole => self.copy_hole(parcel, target, start, end)?,
            }
        }
        Ok(n)
    }

    /// Whether nothing is to be flushed of a file that is written past the daemon: its times tell that no program
    /// has written to it.
    pub(super) fn rests_unwritten(&self, inner: &mut Inner) -> bool {
        if !inner.state.is_unseen() || inner.state.flush_is_open() {
            return false;
        }
        if let Some(now) = self.files.untouched(inner) {
            self.files.rests_untouched(inner, now);
            return true;
        }
        // A look has found that all bytes are what the store held.
        let stores = inner.unseen().is_some_and(|unseen| self.files.stores_unseen(unseen));
        inner.live().stale && !stores && !may_have_changed(inner, self.files.time().now())
    }

    /// For a file whose backing file others have changed: whether only they have changed it. The
    /// file may have been written past the daemon, but its mtime has not moved and all its bytes
    /// are what the store held before: then it is clean, and of a version that is gone.
    pub(super) fn only_theirs(&self, parcel: &Parcel) -> bool {
        let Some(open) = parcel.digests.as_ref().filter(|open| open.counts()) else { return false };
        // The shadow at the beginning of the flight, if the file is written past the daemon.
        let seen = parcel.unseen;
        let unmoved = |inner: &Inner| {
            let still = match inner.unseen() {
                Some(_) => seen.is_some() && inner.shadow_stat() == seen,
                None => inner.state.mtime() == inner.state.base().mtime,
            };
            still && inner.is_unmoved()
        };
        if !unmoved(&parcel.file.lock()) || !self.is_held(parcel, open).unwrap_or(false) {
            return false;
        }
        let mut inner = parcel.file.lock();
        let flight = inner.live().flight.as_ref().expect("W2: a flight ends once");
        let written = *flight.written() != Ranges::None;
        if written || !unmoved(&inner) || inner.changed(parcel.seen, What::Size) {
            return false;
        }
        let base = inner.state.base();
        if let Some(seen) = seen.filter(|_| inner.state.is_unseen()) {
            // A program that has the file open may have the old bytes until it writes.
            inner.live().outdate();
            self.files.rests_untouched(&mut inner, seen);
            self.files.close_table_unchanged(open);
            let failed = Change::FlushFailed { base };
            return self.files.commit(&parcel.file, &mut inner, failed).is_ok();
        }
        let settled = Settled {
            copied: (&parcel.dirty).into(),
            base,
            size: inner.state.size(),
            mtime: base.mtime,
            keep: false,
            lasts: false,
            since: parcel.began_ms,
        };
        if self.files.commit(&parcel.file, &mut inner, Change::Settled(settled)).is_err() {
            return false;
        }
        inner.doubt_it(None);
        self.files.unqueue(&mut inner);
        self.files.account(&parcel.file, &mut inner);
        true
    }

    /// Whether all dirty bytes are what the store held when the flight began.
    fn is_held(&self, parcel: &Parcel, open: &OpenTable) -> Result<bool> {
        let mut buf = vec![0; LOOK as usize];
        for &(start, end) in &parcel.dirty {
            let mut at = start;
            while at < end {
                let upto = end.min((at / LOOK + 1) * LOOK);
                let bytes = &mut buf[..(upto - at) as usize];
                if self.files.note_tier(parcel.shadow.read_at(bytes, at))? < bytes.len() {
                    return Ok(false);
                }
                let parts: Vec<_> = parts(at, upto, parcel.size).collect();
                let held = open.held(at / BLOCK, parts.len() as u64);
                let same = parts.iter().zip(held).all(|(part, held)| {
                    let block = &bytes[(part.start - at) as usize..(part.end - at) as usize];
                    part.whole && open.digest(block) == held
                });
                if !same {
                    return Ok(false);
                }
                at = upto;
            }
        }
        Ok(true)
    }

    fn data_within(&self, parcel: &Parcel, start: u64, end: u64) -> Result<Vec<(u64, u64)>> {
        let (mut found, mut at) = (Vec::new(), start);
        while at < end {
            let next = self.files.note_tier(parcel.next_data(at))?;
            let Some((from, to)) = next.filter(|next| next.0 < end) else { break };
            found.push((from, to));
            at = to.max(at + 1);
        }
        Ok(found)
    }

    fn send_all(
        &self,
        parcel: &Parcel,
        target: &dyn BackingFile,
        bytes: &[u8],
        start: u64,
    ) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let chunk = self.valve.chunk(LOOK) as usize;
            let part = &bytes[done..bytes.len().min(done + chunk)];
            let _pass = self.pass(parcel, part.len() as u64)?;
            self.send(parcel, target, part, start + done as u64)?;
            done += part.len();
        }
        Ok(())
    }

    /// Makes holes where the store holds anything but zeros.
    fn compare_hole(
        &self,
        parcel: &Parcel,
        open: &OpenTable,
        target: &dyn BackingFile,
        (start, end): (u64, u64),
    ) -> Result<()> {
        let long = (end - start).div_ceil(BLOCK) > HOLE_NOTED_MAX;
        if !open.counts() && long {
            return self.copy_hole(parcel, target, start, end);
        }
        let zeros = open.digest_of_zeros(BLOCK);
        // The holes are made at the end, each in full length: the pace of that sizes later flights.
        let mut ways = Vec::new();
        let mut at = start;
        while at < end {
            // Most of a long hole may have no page of digests.
            let noted = if long { open.next_noted(at / BLOCK).unwrap_or(u64::MAX) } else { 0 };
            let from = noted.saturating_mul(BLOCK).min(end);
            if from > at {
                add_way(&mut ways, at, from, Way::Hole);
                at = from;
                continue;
            }
            let upto = end.min((at / BLOCK + HOLE_BLOCKS) * BLOCK);
            let parts: Vec<_> = parts(at, upto, parcel.size).collect();
            let held = open.held(at / BLOCK, parts.len() as u64);
            let mut noted = Vec::new();
            for (part, held) in parts.iter().zip(held) {
                let digest = match (part.whole, part.end - part.start) {
                    (false, _) => Digest::UNKNOWN,
                    (true, BLOCK) => zeros,
                    (true, len) => open.digest_of_zeros(len),
                };
                if digest.is_known() && digest == held {
                    continue;
                }
                if held.is_known() || !long {
                    noted.push((part.block, digest));
                }
                add_way(&mut ways, part.start, part.end, Way::Hole);
            }
            if !noted.is_empty() {
                open.note(noted);
            }
            at = upto;
        }
        ways.iter().try_for_each(|&(start, end, _)| self.copy_hole(parcel, target, start, end))
    }
}

fn add_way(ways: &mut Vec<(u64, u64, Way)>, start: u64, end: u64, way: Way) {
    match ways.last_mut() {
        Some(last) if last.1 == start && last.2 == way => last.1 = end,
        _ => ways.push((start, end, way)),
    }
}
