//! Making what was written survive the loss of power: the shadow first, then its record.

use std::sync::Arc;

use forebay_backing::{Error, Result};

use crate::copies::Telling;
use crate::core::clock::What;
use crate::core::config::WritePolicy;
use crate::core::counters::add;
use crate::core::rules::Admission;
use crate::failpoint;
use crate::files::file::{Beside, File, Inner, Meanwhile};
use crate::io::Io;
use crate::tier::media::MediaFile;

/// A sync that the size changes under is tried so often before it keeps everybody else out.
const SYNC_TRIES: u32 = 8;

impl Io {
    /// Makes every byte written so far survive the loss of power (S3): the shadow first, then the
    /// record that says so.
    pub fn sync(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        self.sync_in(&Admission::default(), file)
    }

    /// As [`Io::sync`], for a handle with rules of its own.
    pub fn sync_in(self: &Arc<Self>, admission: &Admission, file: &Arc<File>) -> Result<()> {
        match self.sync_way(admission) {
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
        // Partners make it durable while we do.
        let telling = self.outbox.begin(file);
        let synced = self.sync_here(file);
        failpoint::pass("sync.marked");
        let told = telling.map_or_else(|| self.outbox.tell(file), Telling::end);
        synced.and(told)
    }

    /// Makes it durable in the tier.
    fn sync_here(self: &Arc<Self>, file: &Arc<File>) -> Result<()> {
        // A truncation that falls into a sync makes it say nothing; where the size changes all the
        // time it has to wait. So does an eviction, once.
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
        // What was recorded since of others is theirs to sync.
        let logged = {
            let inner = file.lock();
            let logged = inner.live.as_ref().and_then(|live| live.logged_seq);
            logged.map(|seq| seq.max(inner.state.paths.moved_at()))
        };
        self.files.note_tier(
            logged.map_or_else(|| self.files.index().sync(), |seq| self.files.index().sync_to(seq)),
        )
    }

    /// One sync; `false` if the size changed meanwhile, or what it was for is gone, so that it proves
    /// nothing.
    pub(crate) fn try_sync(
        self: &Arc<Self>,
        file: &Arc<File>,
        evictions: Meanwhile,
    ) -> Result<bool> {
        let mut inner = file.lock();
        if !inner.state.is_dirty() {
            // It was flushed: the record that says so must not be lost, or recovery would take an
            // older durable state for the newest.
            let seq = inner.settled_seq;
            drop(inner);
            return self.files.note_tier(self.files.index().sync_to(seq)).map(|()| true);
        }
        refuse_after_failure(&inner)?;
        let shadow = self.files.shadow(file, &mut inner)?;
        let size = inner.size();
        let ranges = inner.state.unsynced(size);
        let beside = inner.beside(&ranges);
        let live = inner.live();
        live.synced_to = live.written_to;
        live.synced_at = Some(self.files.time().now());
        let named = live.named;
        let seen = inner.clock.look();
        let work = self.files.work_on(file, inner, evictions);
        let synced = self.sync_shadow(file, &*shadow, named);
        failpoint::pass("sync.shadow");
        let mut inner = file.lock();
        let synced = self.note_shadow_sync(&mut inner, synced);
        // What was flushed, evicted and written again since is not what was synced.
        let went = |&(start, end): &(u64, u64)| inner.changed(seen, What::Bytes(start, end));
        let gone = evictions == Meanwhile::Allowed && ranges.iter().any(went);
        let recorded = match synced {
            Ok(()) if gone => Ok(false),
            Ok(()) => self.files.record_synced(file, &mut inner, size, &ranges, &beside, seen),
            Err(error) => Err(error),
        };
        drop(inner);
        drop(work);
        recorded
    }

    /// One sync while nothing of the file changes.
    fn sync_alone(&self, file: &Arc<File>) -> Result<()> {
        let mut inner = file.lock();
        if !inner.state.is_dirty() {
            return self.files.note_tier(self.files.index().sync_to(inner.settled_seq));
        }
        refuse_after_failure(&inner)?;
        let shadow = self.files.shadow(file, &mut inner)?;
        let size = inner.size();
        let ranges = inner.state.unsynced(size);
        let (named, seen) = (inner.live().named, inner.clock.look());
        let synced = self.sync_shadow(file, &*shadow, named);
        self.note_shadow_sync(&mut inner, synced)?;
        let beside = Beside::default();
        self.files.record_synced(file, &mut inner, size, &ranges, &beside, seen).map(drop)
    }

    fn sync_shadow(&self, file: &File, shadow: &dyn MediaFile, named: bool) -> std::io::Result<()> {
        if failpoint::skips_sync("shadow") {
            return Ok(());
        }
        shadow.sync_data()?;
        if named {
            Ok(())
        } else {
            self.files.media().sync_dir(&crate::tier::dir::shadow_dir(file.id))
        }
    }

    /// Not before its end: another sync of the file must not take the name for durable.
    fn note_shadow_sync(&self, inner: &mut Inner, synced: std::io::Result<()>) -> Result<()> {
        match &synced {
            Ok(()) => inner.live().named = true,
            Err(_) => inner.sync_failed = true,
        }
        self.files.note_tier(synced)
    }
}

/// The kernel tells of a page that it could not write once, and counts it as written from then on (`errseq_t`): a
/// sync that succeeds after one that failed, whoever asked for that one, says nothing. Dirty bytes of such a file are
/// durable once they are on the store.
fn refuse_after_failure(inner: &Inner) -> Result<()> {
    let why = "the fast tier has failed to sync this file: it is not durable until it is flushed ('forebay flush')";
    if inner.sync_failed { Err(Error::os(libc::EIO, why)) } else { Ok(()) }
}
