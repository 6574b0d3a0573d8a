//! Room in the tier: how much there is, making more of it, and waiting for it.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use forebay_backing::{Error, Result};

use crate::config::Tunables;
use crate::engine::{Engine, add, is_alone, now_ms};
use crate::evict::{Answer, UNIT_MAX, Unit};
use crate::failpoint;
use crate::file::{File, Inner};
use crate::log::Mark;
use crate::policy::Level;
use crate::ranges::State;
use crate::rules::Active;

/// So many files whose lock was held are waited for.
const EVICT_BUSY: usize = 4;

/// What eviction frees beyond the mark, so that it does not run for every write.
const EVICT_STEP_PERCENT: u64 = 3;

/// After everything was offered and nothing could go, it is offered again for a fill when a batch of
/// the drain has landed, or when so much time has passed.
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// An eviction that freed nothing.
#[derive(Clone, Copy)]
pub(crate) struct InVain {
    /// Batches that had landed by then.
    landed: u64,
    at: Instant,
}

/// Whether a file stood against an eviction only for being at work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tried {
    Idle,
    Busy,
}

/// A writer's wait for room: as long as the drain makes progress, and a while beyond.
pub(crate) struct Patience<'a> {
    engine: &'a Engine,
    copied: u64,
    since: Instant,
}

impl<'a> Patience<'a> {
    pub fn new(engine: &'a Engine) -> Patience<'a> {
        Patience { engine, copied: engine.copied(), since: Instant::now() }
    }

    /// Waits a moment for the drain.
    pub fn wait(&mut self) -> Result<()> {
        self.engine.wait_for_drain();
        let copied = self.engine.copied();
        if copied != self.copied {
            (self.copied, self.since) = (copied, Instant::now());
        }
        match self.since.elapsed() > self.engine.tune(|t| t.backing_timeout) {
            true => Err(self.lost()),
            false => Ok(()),
        }
    }

    fn lost(&self) -> Error {
        Error::os(libc::ENOSPC, "the fast tier is full of bytes that cannot be flushed or evicted")
    }
}

impl Engine {
    fn copied(&self) -> u64 {
        self.drain.copied.load(Relaxed)
    }

    /// Measures what the tier may hold: what was asked for, or what its file system has, less 5 %
    /// for the index and for others.
    pub(crate) fn measure(&self) {
        if let Some(limit) = self.limit_of(self.tune(|t| t.tier_size)) {
            self.space.limit.store(limit, Relaxed);
        }
    }

    fn limit_of(&self, asked: Option<u64>) -> Option<u64> {
        let used = self.space.used.load(Relaxed);
        let space = self.media().space().ok()?;
        let possible = (space.available + used) / 100 * 95;
        Some(asked.map_or(possible, |asked| asked.min(possible)).max(1))
    }

    pub(crate) fn level(&self) -> Level {
        let oldest = {
            let queue = self.dirty.lock().expect("no panic inside");
            queue.by_age.first_key_value().map(|(_, (since, _))| *since)
        };
        let age = |since| Duration::from_millis(now_ms().saturating_sub(since));
        Level {
            tier_bytes: self.space.limit.load(Relaxed),
            used_bytes: self.space.used.load(Relaxed),
            dirty_bytes: self.space.dirty.load(Relaxed),
            arriving_bytes: self.space.pace.arriving(),
            oldest_age: oldest.map(age),
            backing_available: self.health.is_available(),
        }
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.space.limit.load(Relaxed).saturating_sub(self.space.used.load(Relaxed))
    }

    /// What may be taken without anything being evicted or any writer slowed down for it.
    pub(crate) fn spare_bytes(&self) -> u64 {
        let limit = self.space.limit.load(Relaxed);
        let (used_high, hard) = self.tune(|t| (t.used_high, t.marks(limit).hard));
        let unused = limit / 100 * u64::from(used_high);
        let unused = unused.saturating_sub(self.space.used.load(Relaxed));
        unused.min(hard.saturating_sub(self.space.dirty.load(Relaxed)))
    }

    /// Whether a fill of `len` may land, evicting others for it.
    pub(crate) fn has_room_for(&self, len: u64) -> bool {
        self.free_bytes() >= len || (!self.is_in_vain() && self.evicted_for(len))
    }

    fn evicted_for(&self, len: u64) -> bool {
        self.evict_bytes(len);
        self.free_bytes() >= len
    }

    /// Batches of the drain that have landed.
    fn landed(&self) -> u64 {
        *self.drain.settled.0.lock().expect("no panic inside")
    }

    /// Whether nothing could go a moment ago.
    fn is_in_vain(&self) -> bool {
        let last = *self.space.in_vain.lock().expect("no panic inside");
        last.is_some_and(|last| last.at.elapsed() < AGAIN_AFTER && last.landed == self.landed())
    }

    /// Makes room for `len` bytes of a writer: evicts, and if that is not enough waits for the
    /// drain (S9).
    ///
    /// # Errors
    ///
    /// ENOSPC if the drain copies nothing for as long as a call to the backing store may take.
    pub(crate) fn make_room(&self, len: u64) -> Result<()> {
        let mut patience = Patience::new(self);
        while self.free_bytes() < len {
            // Before anybody has to make way for what will never fit.
            if len > self.space.limit.load(Relaxed) {
                return Err(patience.lost());
            }
            if self.evicted_for(len) {
                break;
            }
            patience.wait()?;
        }
        Ok(())
    }

    /// The medium itself said that it is full: believe it over our sums.
    pub(crate) fn tier_is_full(&self, need: u64) {
        self.measure();
        self.evict_bytes(need.max(UNIT_MAX));
    }

    fn wait_for_drain(&self) {
        add(&self.counters.writers_slowed, 1);
        let began = Instant::now();
        self.drain.urgent.store(true, Relaxed);
        self.nudge();
        let settled = self.drain.settled.0.lock().expect("no panic inside");
        let _ = self.drain.settled.1.wait_timeout(settled, Duration::from_millis(100));
        add(&self.counters.writers_slowed_us, began.elapsed().as_micros() as u64);
    }

    /// Keeps the used share below the mark.
    pub(crate) fn evict_to_mark(&self) {
        self.evict_to(self.space.limit.load(Relaxed), self.tune(|t| t.used_high));
    }

    /// Evicts what is too much for new settings before they are in force: the governor flushes for
    /// a tier that is too full, which one whose clean bytes are just about to go is not.
    pub(crate) fn evict_for(&self, next: &Tunables) {
        if let Some(limit) = self.limit_of(next.tier_size) {
            self.evict_to(limit, next.used_high);
        }
    }

    fn evict_to(&self, limit: u64, used_high: u8) {
        let mark = limit / 100 * u64::from(used_high);
        let used = self.space.used.load(Relaxed);
        if used > mark {
            self.evict_bytes(used - mark + limit / 100 * EVICT_STEP_PERCENT);
        }
    }

    /// Frees at least `bytes` of clean ranges if there are so many. Returns what was freed.
    pub(crate) fn evict_bytes(&self, bytes: u64) -> u64 {
        let landed = self.landed();
        let tried = Cell::new(Tried::Idle);
        let mut busy = Vec::new();
        let mut freed = self.evict_idle(bytes, &mut busy, &tried);
        for file in busy {
            // A writer is not to wait for the drain because somebody just looked at the file.
            if freed < bytes {
                freed += self.evict_busy(bytes - freed, &file);
            }
        }
        self.empty_trash();
        let nothing_to_take = freed == 0 && tried.get() == Tried::Idle;
        let in_vain = nothing_to_take.then(|| InVain { landed, at: Instant::now() });
        *self.space.in_vain.lock().expect("no panic inside") = in_vain;
        freed
    }

    /// Frees what can be freed without waiting for a file's lock. `busy` takes some whose lock
    /// somebody has.
    fn evict_idle(&self, bytes: u64, busy: &mut Vec<Arc<File>>, tried: &Cell<Tried>) -> u64 {
        let mut evictor = self.evictor.lock().expect("no panic inside");
        evictor.run(
            bytes,
            |unit| self.by_id(unit.id()).map_or(0, |file| file.take_hits(&self.uses, unit)),
            |unit| {
                let Some(file) = self.by_id(unit.id()) else { return Answer::Unknown };
                match file.inner.try_lock() {
                    Ok(inner) => {
                        let answer = self.evict_locked(&file, &mut Some(inner), unit);
                        if answer == Answer::Busy {
                            tried.set(Tried::Busy);
                        }
                        answer
                    }
                    Err(_) => {
                        tried.set(Tried::Busy);
                        let is_new = busy.iter().all(|known| known.id != file.id);
                        if is_new && busy.len() < EVICT_BUSY {
                            busy.push(file.clone());
                        }
                        Answer::Busy
                    }
                }
            },
        )
    }

    /// Frees clean ranges of one file, waiting for its lock.
    fn evict_busy(&self, bytes: u64, file: &Arc<File>) -> u64 {
        // It comes before the evictor's.
        let mut inner = Some(file.lock());
        let mut evictor = self.evictor.lock().expect("no panic inside");
        evictor.run_only(bytes, |unit| {
            (unit.id() == file.id).then(|| self.evict_locked(file, &mut inner, unit))
        })
    }

    /// Frees clean ranges of the rule's files, what came first before what came later: `bytes` if
    /// there are so many. Returns what was freed.
    pub(crate) fn evict_own(&self, rule: &Arc<Active>, bytes: u64) -> u64 {
        if !rule.may_give(now_ms()) {
            return 0;
        }
        let mut evictor = self.evictor.lock().expect("no panic inside");
        let freed = evictor.run_only(bytes, |unit| self.evict_own_unit(unit, rule));
        drop(evictor);
        self.empty_trash();
        if freed == 0 {
            rule.gave_nothing(now_ms());
        }
        freed
    }

    /// Frees a unit of the rule's files if nobody has the file's lock; `None` for all others.
    fn evict_own_unit(&self, unit: Unit, rule: &Arc<Active>) -> Option<Answer> {
        let Some(file) = self.by_id(unit.id()) else { return Some(Answer::Unknown) };
        let inner = file.inner.try_lock().ok()?;
        let own = inner.rule.as_ref().is_some_and(|active| Arc::ptr_eq(active, rule));
        own.then(|| self.evict_locked(&file, &mut Some(inner), unit))
    }

    /// Lets go of the lock when the file is forgotten with the unit.
    fn evict_locked(
        &self,
        file: &Arc<File>,
        guard: &mut Option<MutexGuard<'_, Inner>>,
        unit: Unit,
    ) -> Answer {
        let Some(inner) = guard else { return Answer::Unknown };
        if inner.is_pinned() || inner.is_passed() {
            return Answer::Refused;
        }
        if !inner.may_evict() {
            return Answer::Busy;
        }
        let (start, end) = self.grain.range(unit);
        match self.evict_range(file, inner, start, end) {
            Ok(0) if inner.state.is_dirty() => Answer::Refused,
            // What is dirty of it now will be clean without being announced again.
            Ok(freed) if inner.state.ranges.within(start, end).next().is_some() => {
                Answer::Partly(freed)
            }
            Ok(freed) => {
                if inner.is_forgettable() {
                    self.discard(file, inner);
                    *guard = None;
                    self.forget(file);
                }
                Answer::Evicted(freed)
            }
            Err(_) => Answer::Refused,
        }
    }

    /// Bytes that were kept are clean and no more: whoever is about to take them out of the tier, or
    /// to change the backing file beneath them, first makes everything up to `settled_seq` durable.
    pub(crate) fn let_go_of(
        &self,
        file: &File,
        inner: &mut Inner,
        start: u64,
        end: u64,
    ) -> Result<()> {
        let durable_size = inner.state.durable_size;
        let kept = inner.state.let_go(start, end);
        if kept.is_empty() {
            return Ok(());
        }
        // One record for all: of some alone the log would know what is not so here.
        if let Err(error) = self.put(file, inner) {
            inner.state.durable_size = durable_size;
            for run in &kept {
                inner.state.ranges.set(run.start, run.end, run.state);
            }
            return Err(error);
        }
        inner.settled_seq = self.index.seq();
        Ok(())
    }

    /// The same with all of the file, durably.
    pub(crate) fn let_go(&self, file: &File, inner: &mut Inner) -> Result<()> {
        self.let_go_of(file, inner, 0, u64::MAX)?;
        self.note_tier(self.index.sync_to(inner.settled_seq))
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
        // It goes as a whole, and only its live part says so: whoever evicts may have found it
        // before.
        if inner.gone || inner.live.as_ref().is_some_and(|live| live.unlinked) {
            return Ok(0);
        }
        let clean: Vec<(u64, u64)> = inner
            .state
            .ranges
            .within(start, end)
            .filter(|run| !run.state.is_dirty())
            .map(|run| (run.start, run.end))
            .collect();
        if clean.is_empty() {
            return Ok(0);
        }
        let freed = clean.iter().map(|(start, end)| end - start).sum();
        self.prove_locked(file, inner)?;
        // A shadow that goes as a whole stays for who has mapped it.
        let kept = inner.state.is_dirty() || inner.state.flags.pinned || !inner.is_idle();
        let whole = !kept && freed == inner.state.ranges.bytes(|_| true);
        if !whole && !is_alone(&*self.shadow(file, inner)?) {
            return Ok(0);
        }
        // After a power loss the record of a flush must not be lost while its bytes are punched. One
        // record, and one sync of it, serves several units.
        let stretch = (8 * self.grain.unit()).min(UNIT_MAX);
        let let_go_to = end.checked_next_multiple_of(stretch).unwrap_or(end);
        self.let_go_of(file, inner, start / stretch * stretch, let_go_to)?;
        self.note_tier(self.index.sync_to(inner.settled_seq))?;
        for &(start, end) in &clean {
            inner.state.ranges.clear(start, end);
        }
        let marks: Vec<Mark> =
            clean.iter().map(|&(start, end)| Mark { start, end, state: None }).collect();
        if let Err(error) = self.record(file, inner, &marks) {
            for &(start, end) in &clean {
                inner.state.ranges.set(start, end, State::Clean);
            }
            return Err(error);
        }
        failpoint::pass("evict.logged");
        // Before the first is punched: it may be the last.
        inner.live().thrown.note(start, end);
        // Of a file that is forgotten next the shadow goes as a whole.
        if !inner.is_forgettable() {
            let shadow = self.shadow(file, inner)?;
            for &(start, end) in &clean {
                if let Err(error) = self.note_tier(shadow.punch(start, end - start)) {
                    self.account(file, inner);
                    return Err(error);
                }
            }
            if inner.state.is_dirty() {
                // After a crash the shadow's is the file's own.
                let _ = shadow.set_mtime(inner.state.mtime);
            }
        }
        failpoint::pass("evict.punched");
        let moved = inner.live().moved;
        if inner.is_idle() && !moved && !inner.only_descriptor() {
            inner.live = None;
        }
        add(&self.counters.evicted_bytes, freed);
        add(&self.counters.evicted_units, 1);
        self.account(file, inner);
        Ok(freed)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use forebay_backing::New;

    use super::*;
    use crate::Named;
    use crate::debts::tests::bed;
    use crate::tier::shadow_name;

    /// Who evicts may have found a file before its last name went: its shadow and what it is charged
    /// for must go all the same.
    // S-9
    #[test]
    fn a_file_that_is_unlinked_while_others_are_evicted_leaves_nothing_behind() {
        let bed = bed("space-unlinked");
        let (engine, path) = (&bed.engine, Path::new("g"));
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let new = New { mode: 0o644, umask: 0, uid: uid.as_raw(), gid: gid.as_raw() };
        let sums = || (engine.space.used.load(Relaxed), engine.space.dirty.load(Relaxed));
        let before = sums();
        for dirty in [false, true] {
            let (file, attr) = engine.create(path, &new).unwrap();
            engine.write(&file, 0, &[1; 8192]).unwrap();
            engine.flush_file(&file).unwrap();
            if dirty {
                engine.write(&file, 0, &[2; 4096]).unwrap();
            }
            engine.close(&file);
            engine.unlink(Named { path, key: attr.key, is_dir: false }).unwrap();
            let mut inner = file.lock();
            assert_eq!(engine.evict_range(&file, &mut inner, 0, u64::MAX).unwrap(), 0);
            engine.retire(&file, inner);
            engine.sweep_graveyard(Duration::ZERO);
            engine.empty_trash();
            assert!(engine.media().stat(&shadow_name(file.id)).is_err(), "dirty: {dirty}");
            assert_eq!(sums(), before, "dirty: {dirty}");
        }
    }
}
