//! The flight of one file to the backing store, from the capture of its dirty bytes to their
//! settling. The invariants W1 to W4 are in [`crate::drain::flush`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use forebay_backing::{Error, Kind, Result};

use crate::copies::Lasting;
use crate::core::counters::add;
use crate::core::portion::{DOUBT_BYTES, FLIGHT_BYTES, Portion};
use crate::core::report::Meter;
use crate::core::spans::{common, sum};
use crate::core::state::Change;
use crate::drain::Drain;
use crate::drain::look::{is_ours, is_still, look_after};
use crate::drain::parcel::{Latch, Made, Outcome, Parcel, Phase, Stop, Take};
use crate::drain::settle::Landed;
use crate::files::file::{Beside, File, Inner, note_seen};
use crate::files::live::Asked;
use crate::tier::media::MediaFile;
use forebay_base::lock::{Mutex, Rank};

/// Up to about this many files, syncing each costs less than syncing the whole tier.
const SYNC_EACH_MAX: usize = 16;

impl Drain {
    /// Captures the dirty bytes. `Ok(None)`: no byte is dirty. EBUSY: another flight is under way (W2).
    pub(crate) fn begin_flight(
        &self,
        file: &Arc<File>,
        take: &Take,
        meter: Option<&Arc<Meter>>,
    ) -> Result<Option<Arc<Parcel>>> {
        let mut inner = file.lock();
        if !inner.state.is_dirty() || inner.in_use().is_some_and(|live| live.unlinked) {
            return Ok(None);
        }
        if inner.live().flight.is_some() {
            return Err(Error::os(libc::EBUSY, "already being flushed"));
        }
        if inner.state.conflict().stands() {
            return Err(Error::new(Kind::Conflict, inner.state.conflict().why()));
        }
        // Without this check a change of the backing file by another program would be a conflict.
        if self.rests_unwritten(&mut inner) {
            return Ok(None);
        }
        let shadow = self.files.shadow(file, &mut inner)?;
        let unseen = match inner.state.is_unseen() {
            true => Some(self.files.note_tier(shadow.stat())?),
            false => None,
        };
        let size = unseen.map_or(inner.state.size(), |stat| stat.len);
        let dirty = inner.state.dirty(size);
        let Portion { captured, data, upto } = match (unseen, take) {
            (Some(_), _) => Portion::whole(dirty.clone()),
            // Little of a file in doubt is copied, most likely.
            (None, _) if inner.doubt().is_some() => Portion::dense(dirty.clone(), DOUBT_BYTES),
            (None, Take::All) => self.portion(&inner, &*shadow, dirty.clone()),
            (None, Take::Runs(runs)) => self.portion(&inner, &*shadow, common(&dirty, runs)),
        };
        inner.live().begin_flight();
        // A flush of a held file is to overwrite what others wrote to the backing file.
        let resumed = inner.state.flush_is_open() || inner.state.is_held();
        let digests = self.files.open_table(file, &mut inner, size, resumed);
        Ok(Some(Arc::new(Parcel {
            file: file.clone(),
            shadow,
            captured,
            data,
            upto,
            found: Mutex::new(Rank::Batch, (0, 0)),
            dirty,
            size,
            mtime: unseen.map_or(inner.state.mtime(), |stat| stat.mtime),
            base: inner.state.base(),
            resumed,
            unseen,
            digests,
            seen: inner.look(),
            target: Mutex::new(Rank::Batch, None),
            pieces: AtomicUsize::new(1),
            stop: Mutex::new(Rank::Batch, None),
            phase: Mutex::new(Rank::Batch, Phase::Copying),
            made: Made::default(),
            copied: AtomicU64::new(0),
            meter: meter.cloned(),
            began_ms: self.files.time().ms(),
        })))
    }

    /// Returns the portion of `wanted` that one flight takes.
    fn portion(&self, inner: &Inner, shadow: &dyn MediaFile, wanted: Vec<(u64, u64)>) -> Portion {
        let has_holes = inner.dirty_charged() < inner.state.dirty_bytes();
        if !has_holes || sum(&wanted) <= FLIGHT_BYTES {
            return Portion::dense(wanted, FLIGHT_BYTES);
        }
        let free_from = match inner.state.flush_is_open() {
            true => u64::MAX,
            false => inner.state.base().size,
        };
        let holes = self.holes.flight_bytes();
        let found = Portion::sparse(&wanted, |at| shadow.next_data(at), free_from, holes);
        // If the shadow file is damaged, the copy finds and reports that.
        self.files.note_tier(found).unwrap_or_else(|_| Portion::dense(wanted, FLIGHT_BYTES))
    }

    /// Step 1 (W4). If the tier cannot sync, the flush goes on: the bytes are safer on the backing
    /// store.
    pub(crate) fn make_durable(&self, parcels: &[(usize, Arc<Parcel>)]) {
        // The tier is synced even where all bytes are known to be durable: they may have been
        // overwritten since.
        let media = self.files.media();
        let together =
            parcels.len() > SYNC_EACH_MAX && self.files.note_tier(media.sync_all()).is_ok();
        for (_, parcel) in parcels {
            let named = parcel.file.lock().live().named;
            let synced = match together {
                true => Ok(()),
                false => self.files.sync_shadow(parcel.file.id, &*parcel.shadow, named),
            };
            let mut inner = parcel.file.lock();
            let synced = self.files.note_shadow_sync(&parcel.file, &mut inner, synced);
            let (dirty, beside) = (&parcel.dirty, Beside::default());
            if synced.is_ok()
                && let Ok(false) = self.files.record_synced(
                    &parcel.file,
                    &mut inner,
                    parcel.size,
                    dirty,
                    &beside,
                    parcel.seen,
                )
            {
                parcel.stop(Error::os(libc::EBUSY, "truncated at the beginning of the flush"));
            }
            if synced.is_err() && inner.state.is_held() {
                // A held file has to be flushed again later, from bytes that are durable here.
                parcel.stop(Error::os(libc::EIO, "the fast tier could not be synced"));
            }
            // Bytes that differ from the store's may be new writes, or old content.
            if inner.state.conflict().stands() {
                parcel.stop(Error::new(Kind::Conflict, inner.state.conflict().why()));
            }
            let mtime = inner.state.mtime();
            let _ =
                self.files.commit_anyway(&parcel.file, &mut inner, Change::FlushBegan { mtime });
        }
        let _ = self.files.note_tier(self.files.index().sync());
    }

    /// Sends partners the bytes of the flush, and that it begins, before the first byte reaches the
    /// backing store: they can finish it if this member dies half way.
    pub(crate) fn tell_partners(self: &Arc<Self>, parcels: &[(usize, Arc<Parcel>)]) {
        if !self.files.copying().is_wanted() {
            return;
        }
        let latch = Arc::new(Latch::new(parcels.len()));
        for (_, parcel) in parcels {
            let (drain, parcel, latch) = (self.clone(), parcel.clone(), latch.clone());
            self.home.errands().run(move || {
                if let Err(error) = drain.outbox.tell(&parcel.file) {
                    parcel.stop(error.context("copying it to partners before its flush"));
                }
                latch.count_down();
            });
        }
        latch.wait(self.files.time(), || false);
    }

    /// Step 3: one sync for the batch.
    pub(crate) fn sync_targets(self: &Arc<Self>, parcels: &[(usize, Arc<Parcel>)]) {
        let ready: Vec<Arc<Parcel>> = parcels
            .iter()
            .map(|(_, parcel)| parcel.clone())
            .filter(|parcel| parcel.is(Phase::Copied) && !parcel.is_stopped())
            .collect();
        if ready.is_empty() {
            return;
        }
        let synced = ready.iter().map(|parcel| parcel.file.key).collect();
        let names = self.files.index().names(|journal| journal.of(&synced));
        let targets: Vec<_> =
            ready.iter().filter_map(|parcel| parcel.target.lock().clone()).collect();
        let drain = self.clone();
        let sync = move || drain.call_home(|| drain.home.backing().sync_files(&targets));
        let limit = self.files.tune(|t| t.backing_timeout);
        let health = self.home.health();
        // A sync may rightly take long: it ends with an answer, or when the store counts as away.
        let outcome =
            self.errand(sync, || health.has_stalled_call(limit * 4) || !health.is_available());
        if let Some(Ok(())) = &outcome {
            let _ = self.files.note_tier(self.files.index().retire(names));
        }
        for parcel in ready {
            match &outcome {
                Some(Ok(())) => {}
                Some(Err(e)) => {
                    parcel.stop(Error::new(e.kind(), format!("syncing the backing store: {e}")))
                }
                None => parcel
                    .stop(Error::new(Kind::TimedOut, "the backing store did not sync in time")),
            }
        }
    }

    /// Runs work that may hang in the store on a thread of its own; `None` if it is given up, as at
    /// the end of the mount.
    pub(crate) fn errand<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
        give_up: impl Fn() -> bool,
    ) -> Option<T> {
        let (latch, done) = (Arc::new(Latch::new(1)), Arc::new(Mutex::new(Rank::Batch, None)));
        let (mine, slot) = (latch.clone(), done.clone());
        self.home.errands().run(move || {
            let value = work();
            *slot.lock() = Some(value);
            mine.count_down();
        });
        latch.wait(self.files.time(), || give_up() || self.files.is_stopping());
        done.lock().take()
    }

    /// Step 4 for all files, in parallel: each asks the backing store for its new version.
    pub(crate) fn end_all(self: &Arc<Self>, parcels: &[(usize, Arc<Parcel>)]) -> Vec<Outcome> {
        let latch = Arc::new(Latch::new(parcels.len()));
        let results: Arc<Mutex<Vec<Option<Outcome>>>> =
            Arc::new(Mutex::new(Rank::Batch, parcels.iter().map(|_| None).collect()));
        for (n, (_, parcel)) in parcels.iter().enumerate() {
            let (drain, parcel, latch, results) =
                (self.clone(), parcel.clone(), latch.clone(), results.clone());
            self.home.errands().run(move || {
                let outcome = drain.end_flight(&parcel);
                results.lock()[n] = Some(outcome);
                latch.count_down();
            });
        }
        let limit = self.files.tune(|t| t.backing_timeout);
        latch.wait(self.files.time(), || self.home.health().has_stalled_call(limit));
        let mut results = results.lock();
        let late = || Outcome::Failed(Error::new(Kind::TimedOut, "the backing store hangs"));
        results.iter_mut().map(|result| result.take().unwrap_or_else(late)).collect()
    }

    /// Step 4.
    fn end_flight(self: &Arc<Self>, parcel: &Arc<Parcel>) -> Outcome {
        if parcel.is(Phase::Abandoned) {
            // The last copy still hangs: it keeps the flight (W2) and cleans up when it returns.
            return Outcome::Failed(Error::new(
                Kind::TimedOut,
                "the backing store did not answer in time",
            ));
        }
        if !parcel.is_stopped() {
            match self.land(parcel) {
                Ok(()) => {
                    // If partners cannot be told now, they are told later.
                    let _ = self.outbox.forget(&parcel.file, Lasting::No);
                    return Outcome::Flushed(parcel.flown());
                }
                Err(error) => parcel.stop(error),
            }
        }
        let Stop::Failed(error) = self.land_stopped(parcel) else { return Outcome::Nothing };
        // If the last name went during the flight, nobody is owed its bytes.
        let inner = parcel.file.lock();
        if inner.gone() || inner.in_use().is_some_and(|live| live.unlinked) {
            return Outcome::Nothing;
        }
        drop(inner);
        if error.is(libc::EBUSY) { Outcome::Disturbed(error) } else { Outcome::Failed(error) }
    }

    fn land(&self, parcel: &Parcel) -> Result<()> {
        let target = parcel.target.lock().clone();
        let target = target.ok_or_else(|| Error::os(libc::EIO, "the copy left no target"))?;
        let file = &parcel.file;
        let look = |times| look_after(&*target, parcel, times);
        let (looked, (found, kept_time), mut inner) = self.look_undisturbed(parcel, look)?;
        let live = inner.live();
        let rewritten = live.flight.as_ref().expect("W2: a flight ends once").written().clone();
        let unlinked = live.unlinked;
        let ours = is_ours(parcel, &mut inner, &found, kept_time);
        if inner.state.is_held() && !ours {
            return Err(Error::os(libc::EBUSY, "its former home wrote to it: it is flushed again"));
        }
        let unsent = !parcel.made.is_any();
        let base = match unsent && !is_still(parcel, &inner, &found) {
            // If all bytes were on the store already, the next look at the version finds others' changes since.
            true => inner.state.base(),
            false => found.version(),
        };
        if !ours && !unlinked && !parcel.is_blind() && !unsent {
            return Err(self.written_by_others(file, &mut inner, base));
        }
        inner.note_base();
        let told = (!kept_time).then_some(found.mtime);
        let landed = Landed { rewritten: &rewritten, looked, base, told };
        self.settle(parcel, &mut inner, &landed)?;
        if let Some(open) = &parcel.digests {
            self.files.note_look(&mut inner, open, parcel.moved());
            // Another program that has written to the file has left unknown content.
            let made = (parcel.target_size(), parcel.mtime) == (found.size, found.mtime);
            if kept_time && (made || base == parcel.base) {
                self.files.close_table(open, &base);
            }
        }
        self.debts.pay(file.id, &parcel.captured, &rewritten);
        inner.note_trouble(None);
        let asked = Asked { at: looked, look: inner.look() };
        note_seen(&mut inner, asked, &found);
        self.files.account(file, &mut inner);
        add(&self.files.counters().flushed_files, 1);
        add(&self.files.counters().flushed_bytes, parcel.moved());
        inner.live().end_flight();
        self.files.drop_unsynced(file, &mut inner, &found);
        self.leave(parcel, inner);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bed::bed;
    use crate::core::ranges::State;
    use crate::core::state::Conflict;

    /// Clean bytes that a sync makes durable beside dirty ones are kept only if they are the
    /// backing store's for all that is known.
    // S-8
    #[test]
    fn nothing_is_kept_beside_a_sync_of_a_file_that_others_may_have_changed() {
        let bed = bed("flight-beside");
        let mut inner = bed.file.lock();
        bed.mark(&mut inner, State::Clean);
        let beside = |inner: &mut Inner| {
            let found = inner.beside(&[(50, 100)]);
            let still = inner.still_clean(&found).len();
            let known = inner.beside(&[(50, 100)]).clean.len();
            (known, still)
        };
        assert_eq!(beside(&mut inner), (1, 1));
        let (base, mtime) = (inner.state.base(), inner.state.mtime());
        bed.change(&mut inner, Change::FlushBegan { mtime });
        assert_eq!(beside(&mut inner), (0, 0), "a flush was broken off");
        inner.live().begin_flight();
        assert_eq!(beside(&mut inner), (1, 1), "it is on");
        let before = inner.beside(&[(50, 100)]);
        inner.live().end_flight();
        bed.change(&mut inner, Change::FlushFailed { base });
        let age = inner.state.age_at(1);
        for (set, back, why) in [
            (Change::InConflict(Conflict::Changed), Change::InConflict(Conflict::None), "conflict"),
            (Change::Unseen { age }, Change::Untouched, "written past us"),
        ] {
            bed.change(&mut inner, set);
            assert_eq!(beside(&mut inner), (0, 0), "{why}");
            assert!(inner.still_clean(&before).is_empty(), "{why} since");
            bed.change(&mut inner, back);
        }
        inner.live().begin_around(crate::files::live::End::IsNothing);
        inner.live().end_around();
        assert!(inner.still_clean(&before).is_empty(), "changed around the tier");
        inner.live().forget_around();
        inner.note_gone(10, 20);
        assert!(inner.still_clean(&before).is_empty(), "fetched again");
        bed.change(&mut inner, Change::Unsynced);
        assert_eq!(beside(&mut inner), (0, 0), "not durable");
        bed.mark(&mut inner, State::Dirty);
    }
}
