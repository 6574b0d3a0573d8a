//! Complete files that may be written past the daemon. A later flush finds the written blocks by
//! content.
//!
//! - R1: before a clean file is written past the daemon all of its shadow is durable, and so is the
//!   record of that, with its length. From then on a loss of power leaves each block as it was or
//!   newer, also blocks that were synced by calls which the daemon does not see.
//! - R4: nothing was written if the time of the shadow's last change is that of a look from before the
//!   first writer, except by a mapping on a tier in memory, which moves no time. All other bytes that
//!   were, or may have been, written are dirty as a whole until they are compared with the store's.
//! - R5: comparing all files once within the longest rest between two looks takes a tenth of the
//!   time; beyond that only files of which much was copied before are made ready.

use std::sync::Arc;
use std::time::Duration;

use forebay_backing::Result;

use crate::core::clock::What;
use crate::core::ranges::{Mark, State};
use crate::core::state::Change;
use crate::files::Files;
use crate::files::file::{File, Inner};
use crate::files::live::{Around, Meanwhile, Readiness};
use crate::files::totals::Totals;
use crate::room::Room;
use crate::tier::media::MediaFile;
use forebay_base::lock::MutexGuard;

/// The most unsynced bytes that are synced while a program waits.
const UNSYNCED_MAX: u64 = 64 << 20;

/// How long a program waits for another thread that makes the file ready: then the daemon serves it.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) struct Ready {
    files: Arc<Files>,
    room: Arc<Room>,
}

/// The right to make a file ready: not to be dropped under its lock.
struct Turn<'a>(&'a File);

impl<'a> Turn<'a> {
    /// Takes the turn; `None` if another thread has it.
    fn take(file: &'a File, inner: &mut Inner) -> Option<Turn<'a>> {
        inner.live().begin_readying().then(|| Turn(file))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lock().live().end_readying();
        self.0.changed().notify_all();
    }
}

impl Ready {
    pub fn new(files: Arc<Files>, room: Arc<Room>) -> Ready {
        Ready { files, room }
    }

    /// Makes a complete file ready (R1), if it may be. One thread at a time does so, or the record
    /// of the second would not be durable yet when the first opens the file. The caller must hold
    /// nothing that other threads need: the tier may take its time.
    pub fn make(&self, file: &Arc<File>) -> Result<bool> {
        let sought = |inner: &mut Inner| inner.live().readiness == Readiness::Sought;
        let (mut inner, _) =
            self.files.time().wait_while(file.changed(), file.lock(), PATIENCE, sought);
        if self.is_ready(&mut inner) {
            return Ok(self.may_be_compared(&mut inner));
        }
        match Turn::take(file, &mut inner) {
            Some(_turn) => self.make_alone(file, inner),
            None => Ok(false),
        }
    }

    fn make_alone<'a>(
        &self,
        file: &'a Arc<File>,
        mut inner: MutexGuard<'a, Inner>,
    ) -> Result<bool> {
        let may = |inner: &mut Inner| self.may_be_ready(inner) && self.may_be_compared(inner);
        if !may(&mut inner) {
            return Ok(false);
        }
        if !self.files.knows_content(file, &mut inner) {
            drop(inner);
            self.files.learn_content(file)?;
            inner = file.lock();
            if !may(&mut inner) || !self.files.knows_content(file, &mut inner) {
                return Ok(false);
            }
        }
        let shadow = self.files.shadow(file, &mut inner)?;
        if !self.has_place(file, &mut inner, &*shadow)? {
            return Ok(false);
        }
        // An open does not wait for a large fill to reach the device: the sync of the fill begins now.
        if !self.files.media().is_memory() && shadow.unsynced() > UNSYNCED_MAX {
            shadow.begin_sync();
            return Ok(false);
        }
        self.set_time(&inner, &*shadow)?;
        let (size, named) = (inner.state.size(), inner.live().named);
        let dirty = inner.state.unsynced(size);
        let clean = inner.state.in_state(State::Clean, 0, size);
        let seen = inner.look();
        let work = self.files.work_on(file, inner, Meanwhile::Refused);
        let synced = self.files.sync_shadow(file.id, &*shadow, named);
        let mut inner = file.lock();
        let synced = self.files.note_shadow_sync(file, &mut inner, synced);
        work.end(&mut inner);
        synced?;
        if inner.changed(seen, What::Size) || !self.may_be_ready(&mut inner) {
            return Ok(false);
        }
        // Bytes that were thrown away meanwhile and fetched again were not synced.
        let went = |&&(start, end): &&(u64, u64)| !inner.changed(seen, What::Bytes(start, end));
        let still = clean.iter().filter(went);
        let still = still.flat_map(|&(a, b)| inner.state.in_state(State::Clean, a, b));
        let marks: Vec<Mark> = still.map(|run| Mark::of(run, State::Kept)).collect();
        let (age, ranges) = (inner.state.age_at(0), inner.state.still_dirty(&dirty));
        let marked = Change::Marked { marks: marks.into(), age };
        self.files.commit(file, &mut inner, marked)?;
        self.files.commit(file, &mut inner, Change::Synced { size, ranges: ranges.into() })?;
        let now = self.files.time().now();
        inner.live().keep_from(now);
        drop(inner);
        self.files.note_tier(self.files.index().sync())?;
        let mut inner = file.lock();
        inner.live().note_ready();
        Ok(self.is_ready(&mut inner))
    }

    /// Whether all bytes of a file, and the record of that, are durable.
    pub fn is_ready(&self, inner: &mut Inner) -> bool {
        let outlasts = inner.state.outlasts_power() && self.may_be_ready(inner);
        let live = inner.live();
        let synced = live.logged_seq.is_none_or(|seq| self.files.index().is_synced(seq));
        outlasts && live.readiness == Readiness::Known && synced
    }

    fn may_be_ready(&self, inner: &mut Inner) -> bool {
        let state = &inner.state;
        let sound = state.tracked().is_some() && state.is_complete() && !inner.state.is_unsynced();
        let ours = !state.conflict().stands() && !state.is_held() && inner.recorded();
        let copied = self.files.copying().is_wanted();
        let passes = self.files.may_pass(inner);
        let broken_off = inner.state.flush_is_open() && inner.live().flight.is_none();
        let live = inner.live();
        let here = !live.stale && live.around == Around::None && !live.unlinked;
        sound && ours && here && passes && !copied && !broken_off
    }

    /// Whether the whole file can be written without asking for room: holes get room here, and
    /// where an overwrite takes new room as much is free.
    fn has_place(
        &self,
        file: &Arc<File>,
        inner: &mut Inner,
        shadow: &dyn MediaFile,
    ) -> Result<bool> {
        let (stat, size) = (self.files.note_tier(shadow.stat())?, inner.state.size());
        let spare = self.room.spare_bytes();
        if self.files.media().copies_on_write() && spare < size {
            return Ok(false);
        }
        let holes = size.saturating_sub(stat.allocated);
        if holes == 0 {
            return Ok(true);
        }
        // A file that is mostly holes keeps them: they are worth more than the speed.
        if holes > spare || holes > stat.allocated || shadow.reserve(0, size).is_err() {
            return Ok(false);
        }
        self.files.account(file, inner);
        Ok(true)
    }

    /// Whether the file's bytes may be compared once in `max-age` besides those of other files (R5).
    fn may_be_compared(&self, inner: &mut Inner) -> bool {
        let rest = Totals::rest_max(self.files.tune(|t| t.max_age));
        let budget = self.files.totals().looks().bytes_within(self.files.time(), rest);
        let looks = inner.looks();
        let worth = looks.looked > 0 && looks.copied.saturating_mul(4) >= looks.looked;
        if !worth && looks.rests(self.files.time().now()) {
            return false;
        }
        worth || self.files.totals().doubted().saturating_add(inner.state.size()) <= budget
    }

    /// Sets the shadow's mtime to the file's, while its bytes are the file's.
    pub fn set_time(&self, inner: &Inner, shadow: &dyn MediaFile) -> Result<()> {
        let mtime = inner.state.mtime();
        // Setting the same time again would count as a change.
        match self.files.note_tier(shadow.stat())?.mtime == mtime {
            true => Ok(()),
            false => self.files.note_tier(shadow.set_mtime(mtime)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use crate::files::unseen::Looks;

    /// A program that appends a line to a large file now and then must not cause a comparison of
    /// all of it each time.
    #[test]
    fn after_a_long_look_a_file_rests_for_ten_times_as_long() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let after = |took| Looks { last: Some((now, took)), ..Looks::default() };
        let long = after(second);
        assert!(long.rests(now + 9 * second) && !long.rests(now + 11 * second));
        assert!(!after(second / 20).rests(now), "a short one is no matter");
        let open_long = Looks { written_for: 10 * second, ..long };
        assert!(!open_long.rests(now + second), "it has paid for the look");
        let max_age = 30 * second;
        let recent = |looks: &Looks, at| looks.is_recent(now + at, max_age / 2, max_age);
        assert!(recent(&long, 14 * second) && !recent(&long, 16 * second), "half of max-age");
        let longer = after(2 * second);
        assert!(recent(&longer, 19 * second) && !recent(&longer, 21 * second), "ten times");
        let longest = after(10 * second);
        assert!(recent(&longest, 29 * second) && !recent(&longest, 31 * second), "max-age");
    }
}
