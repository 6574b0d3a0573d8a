//! Room in the tier: how much there is, making more of it, and waiting for it.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_backing::{Error, Result};

use crate::core::config::Tunables;
use crate::core::counters::add;
use crate::core::evict::{Answer, UNIT_MAX, Unit};
use crate::core::ranges::Mark;
use crate::core::rules::Active;
use crate::core::state::Change;
use crate::failpoint;
use crate::files::file::{File, Inner};
use crate::files::live::Around;
use crate::requester;
use crate::room::{InVain, Room};
use forebay_base::lock::MutexGuard;

/// The number of files with a held lock that an eviction waits for.
const EVICT_BUSY: usize = 4;

/// The share that eviction frees beyond the mark, so that it does not run for every write.
const EVICT_STEP_PERCENT: u64 = 3;

/// After an eviction that could free nothing, a fill tries again when a batch of the drain has
/// landed, or when so much time has passed.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// How long a job tries to make room for one piece.
const INSIST_MAX: Duration = Duration::from_secs(2);

/// Whether a file could not be evicted only because it was in use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tried {
    Idle,
    Busy,
}

/// The patience of a writer that waits for room: as long as the drain makes progress, and a while beyond.
pub(crate) struct Patience<'a> {
    room: &'a Room,
    progress: u64,
    since: Instant,
}

impl<'a> Patience<'a> {
    pub fn new(room: &'a Room) -> Patience<'a> {
        Patience { room, progress: room.progress(), since: room.files.time().now() }
    }

    /// Waits a moment for the drain.
    pub fn wait(&mut self) -> Result<()> {
        // A caller that has been answered need not wait.
        requester::check()?;
        self.room.wait_for_drain();
        let progress = self.room.progress();
        if progress != self.progress {
            (self.progress, self.since) = (progress, self.room.files.time().now());
        }
        match self.room.files.time().since(self.since) > self.room.files.tune(|t| t.backing_timeout)
        {
            true => Err(self.lost()),
            false => Ok(()),
        }
    }

    fn lost(&self) -> Error {
        Error::os(libc::ENOSPC, "the fast tier is full of bytes that cannot be flushed or evicted")
    }
}

/// Returns the mark below which eviction keeps the used bytes of `limit`.
fn used_mark(limit: u64, used_high: u8) -> u64 {
    limit / 100 * u64::from(used_high)
}

/// Whether the file's last open matched this rule.
fn is_of(inner: &Inner, rule: &Arc<Active>) -> bool {
    inner.rule().is_some_and(|active| Arc::ptr_eq(active, rule))
}

impl Room {
    pub(crate) fn progress(&self) -> u64 {
        self.files.landings().progress()
    }

    /// Returns the bytes that may be taken without an eviction and without slowing a writer down.
    pub(crate) fn spare_bytes(&self) -> u64 {
        let limit = self.files.totals().limit();
        let (used_high, hard) = self.files.tune(|t| (t.used_high, t.marks(limit).hard));
        let unused = used_mark(limit, used_high);
        let unused = unused.saturating_sub(self.files.totals().used());
        unused.min(hard.saturating_sub(self.files.totals().dirty()))
    }

    /// Returns the bytes that can be fetched and kept: those below the eviction mark, less those that stay.
    pub(crate) fn room_to_fetch(&self) -> u64 {
        let mark = used_mark(self.files.totals().limit(), self.files.tune(|t| t.used_high));
        let staying: u64 = self.files.all_files().iter().map(|file| file.lock().staying()).sum();
        mark.saturating_sub(staying).saturating_sub(self.files.totals().copies())
    }

    /// Whether a fill of `len` may land, if necessary after an eviction.
    pub(crate) fn has_room_for(&self, len: u64) -> bool {
        self.files.free_bytes() >= len || (!self.is_in_vain() && self.evicted_for(len))
    }

    /// Makes room for bytes that were found to fit: other programs may take the room, and a file in
    /// use gives its bytes up a moment later.
    pub(crate) fn insist(&self, len: u64) -> bool {
        let began = self.files.time().now();
        while !self.evicted_for(len) {
            if self.files.time().since(began) > INSIST_MAX {
                return false;
            }
            self.files.time().sleep(AGAIN_AFTER);
        }
        true
    }

    fn evicted_for(&self, len: u64) -> bool {
        self.evict_bytes(len);
        self.files.free_bytes() >= len
    }

    /// Returns the number of batches of the drain that have landed.
    fn landed(&self) -> u64 {
        self.files.landings().landed()
    }

    /// Whether an eviction freed nothing a moment ago.
    fn is_in_vain(&self) -> bool {
        let last = *self.in_vain.lock();
        last.is_some_and(|last| {
            self.files.time().since(last.at) < AGAIN_AFTER && last.landed == self.landed()
        })
    }

    /// Makes room for `len` bytes of a writer: evicts, and if that is not enough waits for the
    /// drain (S9).
    ///
    /// # Errors
    ///
    /// ENOSPC if the drain copies nothing for as long as a call to the backing store may take.
    pub(crate) fn make_room(&self, len: u64) -> Result<()> {
        let mut patience = Patience::new(self);
        while self.files.free_bytes() < len {
            // Checked before anything is evicted: a write larger than the tier will never fit.
            if len > self.files.totals().limit() {
                return Err(patience.lost());
            }
            if self.evicted_for(len) {
                break;
            }
            patience.wait()?;
        }
        Ok(())
    }

    /// Makes room for a copy of another member's file, without waiting: other members may keep the
    /// copy.
    ///
    /// # Errors
    ///
    /// ENOSPC if there is none.
    pub(crate) fn make_room_for_copy(&self, len: u64) -> Result<()> {
        match self.files.free_bytes() >= len || self.evicted_for(len) {
            true => Ok(()),
            false => Err(Error::os(libc::ENOSPC, "the fast tier has no room for copies of others")),
        }
    }

    /// Handles a medium that says that it is full: its word counts over the sums.
    pub(crate) fn tier_is_full(&self, need: u64) {
        self.files.measure();
        self.evict_bytes(need.max(UNIT_MAX));
    }

    fn wait_for_drain(&self) {
        add(&self.files.counters().writers_slowed, 1);
        let began = self.files.time().now();
        self.files.landings().urge();
        self.files.nudge();
        self.files.landings().wait(self.files.time(), Duration::from_millis(100));
        add(
            &self.files.counters().writers_slowed_us,
            self.files.time().since(began).as_micros() as u64,
        );
    }

    /// Keeps the used share below the mark.
    pub(crate) fn evict_to_mark(&self) {
        self.evict_to(self.files.totals().limit(), self.files.tune(|t| t.used_high));
    }

    /// Evicts the excess over new settings before they are in force: the governor would flush for a
    /// tier that seems too full, although clean bytes are about to go.
    pub(crate) fn evict_for(&self, next: &Tunables) {
        if let Some(limit) = self.files.limit_of(next.tier_size) {
            self.evict_to(limit, next.used_high);
        }
    }

    fn evict_to(&self, limit: u64, used_high: u8) {
        let mark = used_mark(limit, used_high);
        let used = self.files.totals().used();
        if used > mark {
            self.evict_bytes(used - mark + limit / 100 * EVICT_STEP_PERCENT);
        }
    }

    /// Frees at least `bytes` of clean ranges, if the tier has as many. Returns the number freed.
    pub(crate) fn evict_bytes(&self, bytes: u64) -> u64 {
        let _one_at_a_time = self.evicting.lock();
        let landed = self.landed();
        let tried = Cell::new(Tried::Idle);
        let mut busy = Vec::new();
        let mut freed = self.evict_idle(bytes, &mut busy, &tried);
        for file in busy {
            // A writer should not wait for the drain because another thread just looked at the file.
            if freed < bytes {
                freed += self.evict_busy(bytes - freed, &file);
            }
        }
        self.files.empty_trash();
        let nothing_to_take = freed == 0 && tried.get() == Tried::Idle;
        let in_vain = nothing_to_take.then(|| InVain { landed, at: self.files.time().now() });
        *self.in_vain.lock() = in_vain;
        freed
    }

    /// Frees units without waiting for a file's lock. Files whose lock is held are added to `busy`.
    fn evict_idle(&self, bytes: u64, busy: &mut Vec<Arc<File>>, tried: &Cell<Tried>) -> u64 {
        let files = &self.files;
        let hits = |unit: Unit| {
            files.by_id(unit.id()).map_or(0, |file| file.take_hits(files.uses(), unit))
        };
        let mut walk = files.evictor().walk();
        let mut freed = 0;
        while freed < bytes {
            let Some(unit) = files.evictor().offer(&mut walk, hits) else { break };
            let mut settle = |answer| files.evictor().settle(&mut walk, unit, answer);
            let Some(file) = files.by_id(unit.id()) else {
                settle(Answer::Unknown);
                continue;
            };
            let Some(inner) = file.try_lock() else {
                tried.set(Tried::Busy);
                let is_new = busy.iter().all(|known| known.id != file.id);
                if is_new && busy.len() < EVICT_BUSY {
                    busy.push(file.clone());
                }
                settle(Answer::Busy);
                continue;
            };
            let mut guard = Some(inner);
            let answer = self.evict_locked(&file, &mut guard, unit);
            if answer == Answer::Busy {
                tried.set(Tried::Busy);
            }
            freed += settle(answer);
        }
        files.evictor().end(walk);
        freed
    }

    /// Frees clean ranges of one file, waiting for its lock.
    fn evict_busy(&self, bytes: u64, file: &Arc<File>) -> u64 {
        let mut inner = Some(file.lock());
        let units = self.files.evictor().those(|unit| unit.id() == file.id);
        let mut freed = 0;
        for unit in units {
            if freed < bytes {
                let answer = self.evict_locked(file, &mut inner, unit);
                freed += self.files.evictor().settle_in_place(unit, answer);
            }
        }
        freed
    }

    /// Frees clean ranges of the rule's files, the oldest first: `bytes` if there are as many.
    /// Returns the number freed.
    pub(crate) fn evict_own(&self, rule: &Arc<Active>, bytes: u64) -> u64 {
        if !rule.may_give(self.files.time().ms()) {
            return 0;
        }
        let _one_at_a_time = self.evicting.lock();
        let mut freed = 0;
        while freed < bytes {
            let before = freed;
            for unit in self.own_units(rule, bytes - freed) {
                freed += self.evict_own_unit(unit, rule);
            }
            if freed == before {
                break;
            }
        }
        self.files.empty_trash();
        if freed == 0 {
            rule.gave_nothing(self.files.time().ms());
        }
        freed
    }

    /// Returns the first units of the rule's files that have `bytes` clean bytes together, as far
    /// as their locks are free.
    fn own_units(&self, rule: &Arc<Active>, bytes: u64) -> Vec<Unit> {
        let mut clean = 0;
        self.files.evictor().those(|unit| {
            if clean >= bytes {
                return false;
            }
            let Some(file) = self.files.by_id(unit.id()) else { return true };
            let Some(inner) = file.try_lock() else { return false };
            let (start, end) = self.files.grain().range(unit);
            let own = is_of(&inner, rule) && inner.may_evict() && !inner.stays();
            if own {
                clean += inner.state.clean(start, end).iter().map(|(a, b)| b - a).sum::<u64>();
            }
            own
        })
    }

    /// Frees a unit of the rule's files if the file's lock is free.
    fn evict_own_unit(&self, unit: Unit, rule: &Arc<Active>) -> u64 {
        let settle = |answer| self.files.evictor().settle_in_place(unit, answer);
        let Some(file) = self.files.by_id(unit.id()) else { return settle(Answer::Unknown) };
        let Some(inner) = file.try_lock().filter(|inner| is_of(inner, rule)) else {
            return 0;
        };
        let mut guard = Some(inner);
        let answer = self.evict_locked(&file, &mut guard, unit);
        settle(answer)
    }

    /// Evicts a unit; drops the lock if the file is forgotten with it.
    fn evict_locked(
        &self,
        file: &Arc<File>,
        guard: &mut Option<MutexGuard<'_, Inner>>,
        unit: Unit,
    ) -> Answer {
        let Some(inner) = guard else { return Answer::Unknown };
        if inner.stays() || inner.is_passed() {
            return Answer::Refused;
        }
        if !inner.may_evict() {
            return Answer::Busy;
        }
        let (start, end) = self.files.grain().range(unit);
        match self.evict_range(file, inner, start, end) {
            Ok(0) if inner.state.is_dirty() => Answer::Refused,
            // Dirty bytes of the unit become clean later without being announced again.
            Ok(freed) if !inner.state.present(start, end).is_empty() => Answer::Partly(freed),
            Ok(freed) => {
                if inner.is_forgettable() {
                    self.files.erase(file, inner);
                    *guard = None;
                    self.files.forget(file);
                }
                Answer::Evicted(freed)
            }
            Err(_) => Answer::Refused,
        }
    }

    /// Makes the clean bytes of `[start, end)` absent: recorded first, punched after, so that a
    /// crash between leaves bytes that do not count rather than holes that do.
    pub(crate) fn evict_range(
        &self,
        file: &Arc<File>,
        inner: &mut Inner,
        start: u64,
        end: u64,
    ) -> Result<u64> {
        // An unlinked file goes as a whole, and only its live part says so: eviction may have found the
        // file before.
        let leaves = inner.gone() || inner.in_use().is_some_and(|live| live.unlinked);
        if leaves || inner.state.is_held() {
            return Ok(0);
        }
        let clean = inner.state.clean(start, end);
        if clean.is_empty() {
            return Ok(0);
        }
        let freed = clean.iter().map(|(start, end)| end - start).sum();
        self.files.prove_locked(file, inner)?;
        // A program would read zeros where the shadow is punched, and if the file got another shadow it would see
        // no later write.
        if !self.files.is_alone(file, inner)? {
            return Err(Error::os(libc::EBUSY, "a program has it mapped"));
        }
        // After a power loss the record of a flush must not be lost while its bytes are punched.
        // One record, and one sync of it, serves several units.
        let stretch = (8 * self.files.grain().unit()).min(UNIT_MAX);
        let let_go_to = end.checked_next_multiple_of(stretch).unwrap_or(end);
        self.files.let_go_of(file, inner, start / stretch * stretch, let_go_to)?;
        self.files.note_tier(self.files.index().sync_to(inner.settled_seq()))?;
        let marks = clean.iter().copied().map(Mark::absent).collect();
        let age = inner.state.age_at(0);
        self.files.commit(file, inner, Change::Marked { marks, age })?;
        failpoint::pass("evict.logged");
        // Noted before the first punch: if a punch fails, no code below runs.
        inner.note_gone(start, end);
        // If the file is forgotten next, its shadow goes as a whole.
        if !inner.is_forgettable() {
            let shadow = self.files.shadow(file, inner)?;
            for &(start, end) in &clean {
                if let Err(error) = self.files.note_tier(shadow.punch(start, end - start)) {
                    self.files.account(file, inner);
                    return Err(error);
                }
            }
            if inner.state.is_dirty() {
                // After a crash the shadow's mtime is the file's own.
                let _ = shadow.set_mtime(inner.state.mtime());
            }
        }
        failpoint::pass("evict.punched");
        let moved = inner.live().around != Around::None;
        if inner.is_idle() && !moved && !inner.only_descriptor() {
            inner.end_use();
        }
        add(&self.files.counters().evicted_bytes, freed);
        add(&self.files.counters().evicted_units, 1);
        self.files.account(file, inner);
        Ok(freed)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use forebay_backing::New;

    use super::*;
    use crate::Named;
    use crate::bed::bed;
    use crate::tier::dir::shadow_name;

    /// Eviction may have found a file before its last name went: the shadow and its charge must go
    /// all the same.
    // S-9
    #[test]
    fn a_file_that_is_unlinked_while_others_are_evicted_leaves_nothing_behind() {
        let bed = bed("space-unlinked");
        let (engine, path) = (&bed.engine, Path::new("g"));
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let new = New { mode: 0o644, umask: 0, uid: uid.as_raw(), gid: gid.as_raw() };
        let sums = || (engine.files.totals().used(), engine.files.totals().dirty());
        let before = sums();
        for dirty in [false, true] {
            let (open, attr) = engine.verbs.create(path, &new).unwrap();
            let file = open.clone();
            engine.io.write(&file, 0, &[1; 8192]).unwrap();
            engine.drain.flush_file(&file).unwrap();
            if dirty {
                engine.io.write(&file, 0, &[2; 4096]).unwrap();
            }
            drop(open);
            engine.verbs.unlink(Named { path, key: attr.key, is_dir: false }).unwrap();
            let mut inner = file.lock();
            assert_eq!(engine.room.evict_range(&file, &mut inner, 0, u64::MAX).unwrap(), 0);
            engine.files.retire(&file, inner);
            engine.files.sweep_graveyard(Duration::ZERO);
            engine.files.empty_trash();
            assert!(engine.files.media().stat(&shadow_name(file.id)).is_err(), "dirty: {dirty}");
            assert_eq!(sums(), before, "dirty: {dirty}");
        }
    }
}
