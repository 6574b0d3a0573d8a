//! Making written bytes survive the loss of power: the shadow file first, then its record.

use std::sync::Arc;

use forebay_backing::{Error, Result};

use crate::copies::Telling;
use crate::core::clock::What;
use crate::core::config::WritePolicy;
use crate::core::counters::add;
use crate::core::rules::Admission;
use crate::failpoint;
use crate::files::file::{Beside, File, Inner};
use crate::files::live::Meanwhile;
use crate::files::open::OpenFile;
use crate::files::syncing::refuse_after_failure;
use crate::io::Io;
use forebay_base::lock::MutexGuard;

/// Tries of a sync under which the size changes, before it keeps every other thread out.
const SYNC_TRIES: u32 = 8;

impl Io {
    /// Makes every byte written so far survive the loss of power (S3): the shadow file first, then
    /// the record that says so.
    pub fn sync(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        self.sync_by(&Admission::default(), file)
    }

    /// Like [`Io::sync`], for a handle with rules of its own.
    ///
    /// # Errors
    ///
    /// EIO also if an earlier sync on the backing store has failed for another handle: bytes of this
    /// handle that were written around the tier may be lost with it. Each handle gets the error once.
    pub fn sync_in(self: &Arc<Self>, admission: &Admission, file: &OpenFile) -> Result<()> {
        let synced = self.sync_by(admission, file);
        match file.hears_of_failed_sync() && synced.is_ok() {
            true => {
                Err(Error::os(libc::EIO, "an earlier sync of it on the backing store has failed"))
            }
            false => synced,
        }
    }

    fn sync_by(self: &Arc<Self>, admission: &Admission, file: &Arc<File>) -> Result<()> {
        match self.sync_way(admission) {
            // Once the tier has failed to make the bytes durable, only the store can.
            WritePolicy::WriteBack if file.lock().state.is_unsynced() => {
                self.sync_around(file)?;
                self.drain.flush_file(file)?;
                return self.sync_settled(file.lock());
            }
            WritePolicy::WriteBack => self.sync_around(file)?,
            WritePolicy::WriteThrough => {
                self.sync_around(file)?;
                return self.drain.flush_file(file);
            }
            WritePolicy::WriteAround => {
                self.drain.flush_file(file)?;
                return self.sync_target(file);
            }
        }
        add(&self.files.counters().syncs, 1);
        // Partners make the bytes durable at the same time.
        let telling = self.outbox.begin(file);
        let synced = self.sync_here(file);
        failpoint::pass("sync.marked");
        let told = telling.map_or_else(|| self.outbox.tell(file), Telling::end);
        synced.and(told).and_then(|()| self.outbox.has_enough(file))
    }

    /// Makes the file durable in the tier.
    pub(crate) fn sync_here(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        // A truncate during a sync voids the sync; where the size changes all the time the truncate
        // has to wait. The same holds for an eviction, once.
        let mut evictions = Meanwhile::Allowed;
        let mut synced = false;
        for _ in 0..SYNC_TRIES {
            synced = self.try_sync(file, evictions)?;
            if synced {
                break;
            }
            evictions = Meanwhile::Refused;
        }
        if !synced {
            self.sync_alone(file)?;
        }
        // Records of other files that came since are left to their own syncs.
        let logged = {
            let inner = file.lock();
            let logged = inner.in_use().and_then(|live| live.logged_seq);
            logged.map(|seq| seq.max(inner.state.paths.moved_at()))
        };
        self.files.note_tier(
            logged.map_or_else(|| self.files.index().sync(), |seq| self.files.index().sync_to(seq)),
        )
    }

    /// Makes one sync; `false` if it proves nothing, since the size changed meanwhile or synced
    /// bytes are gone.
    pub(crate) fn try_sync(
        self: &Arc<Self>,
        file: &Arc<File>,
        evictions: Meanwhile,
    ) -> Result<bool> {
        let mut inner = file.lock();
        if !inner.state.is_dirty() {
            return self.sync_settled(inner).map(|()| true);
        }
        refuse_after_failure(&inner)?;
        let shadow = self.files.shadow(file, &mut inner)?;
        let size = inner.size();
        let ranges = inner.state.unsynced(size);
        let beside = inner.beside(&ranges);
        let live = inner.live();
        live.note_syncing(self.files.time().now());
        let named = live.named;
        let seen = inner.look();
        let seals = self.files.may_seal(&inner, size);
        if seals {
            inner.begin_seal();
        }
        let work = self.files.work_on(file, inner, evictions);
        let sealed = match seals {
            true => self.files.sync_sealing(file, &*shadow, size, seen),
            false => Ok(None),
        };
        let synced = match sealed {
            Ok(None) => self.files.sync_shadow(file.id, &*shadow, named).map(|()| None),
            sealed => sealed,
        };
        failpoint::pass("sync.shadow");
        let mut inner = file.lock();
        let seal = synced.as_ref().ok().copied().flatten();
        let synced = self.files.note_shadow_sync(file, &mut inner, synced.map(drop));
        // Bytes that were flushed, evicted and written again since are not the synced ones.
        let went = |&(start, end): &(u64, u64)| inner.changed(seen, What::Bytes(start, end));
        let gone = evictions == Meanwhile::Allowed && ranges.iter().any(went);
        let record =
            |inner: &mut _| self.files.record_synced(file, inner, size, &ranges, &beside, seen);
        let recorded = match synced {
            Ok(()) if gone => Ok(false),
            Ok(()) => self.files.record_sealed(&mut inner, seal, record),
            Err(error) => Err(error),
        };
        drop(inner);
        drop(work);
        recorded
    }

    /// Makes one sync while the file's lock keeps every change out.
    fn sync_alone(&self, file: &Arc<File>) -> Result<()> {
        let mut inner = file.lock();
        if !inner.state.is_dirty() {
            return self.sync_settled(inner);
        }
        refuse_after_failure(&inner)?;
        let shadow = self.files.shadow(file, &mut inner)?;
        let size = inner.size();
        let ranges = inner.state.unsynced(size);
        let (named, seen) = (inner.live().named, inner.look());
        let synced = self.files.sync_shadow(file.id, &*shadow, named);
        self.files.note_shadow_sync(file, &mut inner, synced)?;
        let beside = Beside::default();
        self.files.record_synced(file, &mut inner, size, &ranges, &beside, seen).map(drop)
    }

    /// Syncs the record that the file was flushed: without it recovery would take an older durable
    /// state for the newest.
    fn sync_settled(&self, inner: MutexGuard<'_, Inner>) -> Result<()> {
        let seq = inner.settled_seq();
        drop(inner);
        self.files.note_tier(self.files.index().sync_to(seq))
    }
}
