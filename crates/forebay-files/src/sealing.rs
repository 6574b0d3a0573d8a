//! Syncs of files that are written past the daemon: one flush of the device makes the bytes
//! durable, and with them a seal that says so ([`crate::core::seal`]).

use std::io;
use std::sync::Arc;

use forebay_backing::Result;

use crate::Files;
use crate::core::clock::{Look, What};
use crate::core::counters::add;
use crate::core::seal::Seal;
use crate::failpoint;
use crate::file::{File, Inner};
use crate::tier::log::Out;
use crate::tier::media::MediaFile;

impl Files {
    /// Whether a sync of `len` bytes can do with a seal: that of a file that grows past the daemon,
    /// also its first sync.
    pub fn may_seal(&self, inner: &Inner, len: u64) -> bool {
        let Some(live) = &inner.live else { return false };
        let grows = inner.state.durable_size().unwrap_or(0) < len;
        // A seal moves the shadow's ctime: in these two cases that would look like a write.
        let told = inner.doubt().is_none();
        let plain = inner.unseen().is_none_or(|unseen| unseen.set_id_at.is_none());
        let known = inner.recorded && !live.unlinked && !inner.state.is_unsynced();
        inner.state.is_unseen() && grows && told && plain && known && self.media().keeps_seals()
    }

    /// Syncs the first `len` bytes, if the size has not changed since `seen`, with a seal that says
    /// so. Without a seal no byte is synced.
    pub fn sync_sealing(
        &self,
        file: &Arc<File>,
        shadow: &dyn MediaFile,
        len: u64,
        seen: Look,
    ) -> io::Result<Option<Seal>> {
        let skips = failpoint::skips_sync("shadow");
        // Z4: the log that the seal needs is written before it.
        let wanted = self.wanted_of_log(&mut file.lock());
        let out = wanted.and_then(|wanted| self.index.hand_out(wanted)).filter(|_| !skips);
        // Z1: the seal is written behind the bytes.
        if !skips {
            shadow.write_out(len)?;
        }
        let mut inner = file.lock();
        let seal = match self.stays(&mut inner, wanted, out) {
            true => self.seal(&mut inner, shadow, len, seen),
            false => None,
        };
        drop(inner);
        if seal.is_some() && !skips {
            self.sync_with_log(shadow, out)?;
        }
        Ok(seal)
    }

    /// Returns up to where the log has what a seal of the file presumes: the file's records, and for
    /// its first seal everything that was announced before the file may last ([`Inner::begin_seal`]).
    fn wanted_of_log(&self, inner: &mut Inner) -> Option<u64> {
        let logged = inner.live().logged_seq?;
        Some(if inner.state.durable_size().is_some() { logged } else { self.index.seq() })
    }

    /// Whether a loss of power that leaves a seal made now also leaves everything that it presumes.
    fn stays(&self, inner: &mut Inner, wanted: Option<u64>, out: Option<Out>) -> bool {
        let needed = inner.live().logged_seq.max(wanted);
        let out = out.filter(|out| self.index.stands(*out));
        let stays = |seq: u64| self.index.is_synced(seq) || out.is_some_and(|out| seq <= out.seq);
        wanted.is_some() && needed.is_some_and(stays)
    }

    /// Syncs a shadow that has a seal, and with the same flush the part of the log that was handed
    /// to the device before.
    fn sync_with_log(&self, shadow: &dyn MediaFile, out: Option<Out>) -> io::Result<()> {
        shadow.sync_sealed()?;
        out.map_or(Ok(()), |out| self.index.flushed(out))
    }

    /// Returns the seal that the shadow has then, or none.
    fn seal(
        &self,
        inner: &mut Inner,
        shadow: &dyn MediaFile,
        len: u64,
        seen: Look,
    ) -> Option<Seal> {
        // Under the lock: a truncate comes before, and has changed the size, or after, and finds the seal.
        if inner.changed(seen, What::Size) || !self.may_seal(inner, len) {
            return None;
        }
        let live = inner.live();
        if let Some(seal) = live.seal.filter(|seal| seal.len >= len)
            && self.is_latest(inner, seal)
        {
            return Some(seal);
        }
        let seal = self.index.seal(len);
        shadow.seal(&seal.to_bytes()).ok()?;
        inner.live().mine().seal = Some(seal);
        Some(seal)
    }

    /// Records with `record` the ranges that a sync has made durable. The shadow itself says what
    /// is sealed: that record need not be synced.
    pub fn record_sealed(
        &self,
        inner: &mut Inner,
        seal: Option<Seal>,
        record: impl FnOnce(&mut Inner) -> Result<bool>,
    ) -> Result<bool> {
        let live = inner.live();
        let (last, logged) = (live.last_seq, live.logged_seq);
        let recorded = record(inner)?;
        // After the record: a compaction that begins now knows the record.
        let counts = |seal: Seal| last <= seal.seq && self.index.is_within_log(seal);
        if recorded && seal.is_some_and(counts) {
            inner.live().mine().logged_seq = logged;
            add(&self.counters().sealed_syncs, 1);
        }
        Ok(recorded)
    }

    /// Whether the log, if everything from here on is lost, will have no record of the file behind
    /// the seal (Z2).
    fn is_latest(&self, inner: &Inner, seal: Seal) -> bool {
        let last = inner.live.as_ref().map_or(u64::MAX, |live| live.last_seq);
        last <= seal.seq && self.index.is_within_log(seal)
    }

    /// Returns up to where a loss of power may leave the shadow sealed, with a seal that counts (Z3).
    pub fn sealed_to(&self, inner: &Inner) -> Option<u64> {
        let live = inner.live.as_ref()?;
        let seal = live.seal?;
        let is_over = live.last_seq > seal.seq && self.index.is_synced(live.last_seq);
        (!is_over).then_some(seal.len)
    }
}

#[cfg(test)]
mod tests {
    use crate::bed::bed;
    use crate::core::id::FileId;
    use crate::core::state::Change;
    use crate::file::Inner;

    /// Whether a sync of a sealed file needs its record to be synced, if another file is recorded,
    /// and the index compacted, between the look at the seal and the record of the sync: the store
    /// may have more of the file than the seal knows.
    fn needs_its_record(compacts: bool) -> bool {
        let bed = bed();
        let (files, file, other) = (&bed.files, bed.make("f").0, bed.make("other").0);
        let _open = files.open(&file, file.lock());
        bed.dirty(&file, 100);
        let (id, state) = (file.id, files.state_of(file.id));
        let mut inner = file.lock();
        files.index.sync().expect("a tier that works");
        let seal = files.index.seal(100);
        let meanwhile = || {
            bed.dirty(&other, 10);
            let state_of = |it: FileId| if it == id { state.clone() } else { files.state_of(it) };
            let compact = || files.index.compact(files.next_id(), &state_of);
            if compacts { compact() } else { Ok(()) }
        };
        let record = |inner: &mut Inner| {
            let done = std::thread::scope(|scope| scope.spawn(meanwhile).join());
            done.expect("no panic inside").expect("a tier that works");
            let synced = Change::Synced { size: 100, ranges: (&[(0, 100)]).into() };
            files.commit(&file, inner, synced).map(|()| true)
        };
        assert!(files.record_sealed(&mut inner, Some(seal), record).expect("a tier that works"));
        let logged = inner.live().logged_seq.expect("it was made here");
        drop(inner);
        !files.index.is_synced(logged)
    }

    // S-3
    #[test]
    fn a_compaction_before_the_record_of_a_sync_takes_its_seal_away() {
        assert!(needs_its_record(true));
        assert!(!needs_its_record(false), "the seal says it");
    }
}
