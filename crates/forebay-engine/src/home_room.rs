//! Room on the backing store: what is left there once everything is there that is dirty here, and
//! which files may begin where it does not do for all.
//!
//! Invariants:
//! - H1: where not all fits, the oldest files that fit go home whole, and no other is begun: of
//!   five files in five parts nobody has any.
//! - H2: who found no room gives back what he took of it.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use forebay_backing::{BackingFile, Error, Result, StatFs};

use crate::due::Pick;
use crate::engine::Engine;
use crate::file::{File, Inner};
use crate::flight::{Job, Latch};
use crate::log::FileId;

/// For so long the store is believed to have about as much room as it said.
const BELIEVED: Duration = Duration::from_secs(10);

/// For so long after the store refused a file, others of the same owner go one by one: it has quotas
/// that it tells nobody of, and what the next has room for cannot be known.
const DOUBTED: Duration = Duration::from_secs(60);

/// What is known of the store's room.
#[derive(Default)]
pub(crate) struct HomeRoom {
    said: Mutex<Option<Said>>,
    /// Owners of files that were refused lately.
    refused: Mutex<HashMap<u32, Instant>>,
    /// Held by who flushes one of theirs.
    turn: Mutex<()>,
}

#[derive(Clone, Copy)]
struct Said {
    at: Instant,
    free: u64,
    /// Bytes that had been copied there by then.
    copied: u64,
}

/// Who may begin.
pub(crate) enum Room {
    Enough,
    Short(HashSet<FileId>),
}

impl Room {
    pub fn admits(&self, file: &File) -> bool {
        match self {
            Room::Enough => true,
            Room::Short(granted) => {
                let goes_without =
                    |inner: &Inner| inner.growth() == 0 || inner.state.flags.conflict.stands();
                granted.contains(&file.id) || goes_without(&file.lock())
            }
        }
    }
}

impl HomeRoom {
    pub fn was_refused(&self, owner: u32) {
        let mut refused = self.refused.lock().expect("no panic inside");
        refused.retain(|_, at| at.elapsed() < DOUBTED);
        refused.insert(owner, Instant::now());
        *self.said.lock().expect("no panic inside") = None;
    }

    /// Waits until no other of the file's owner is on its way, if one was refused lately.
    pub fn turn_of(&self, file: &File) -> Option<MutexGuard<'_, ()>> {
        self.is_doubted(file).then(|| self.turn.lock().expect("no panic inside"))
    }

    pub fn is_doubted(&self, file: &File) -> bool {
        if self.refused.lock().expect("no panic inside").is_empty() {
            return false;
        }
        let owner = file.owner();
        let refused = self.refused.lock().expect("no panic inside");
        refused.get(&owner).is_some_and(|at| at.elapsed() < DOUBTED)
    }
}

impl Engine {
    /// What the backing store says of its space, less what the dirty files here will take of it.
    pub fn statfs(&self) -> Result<StatFs> {
        let said = self.ask(|b| b.statfs())?;
        let owed = self.owed_growth().div_ceil(u64::from(said.frsize).max(1));
        let less = |blocks: u64| blocks.saturating_sub(owed);
        Ok(StatFs { bfree: less(said.bfree), bavail: less(said.bavail), ..said })
    }

    /// Whether the backing store, as far as it can be asked, will have room for so much more.
    pub(crate) fn has_room_at_home(&self, bytes: u64) -> bool {
        let said = self.ask(|b| b.statfs()).ok();
        let free = said.and_then(|said| self.free_of(&said));
        free.is_none_or(|free| free >= self.owed_growth().saturating_add(bytes))
    }

    /// What of the growth of dirty files has not been copied.
    fn owed_growth(&self) -> u64 {
        let growth = self.space.growth.load(Relaxed);
        growth.saturating_sub(self.drain.unsettled.load(Relaxed))
    }

    /// For us; `None` where the store tells nothing.
    fn free_of(&self, said: &StatFs) -> Option<u64> {
        let blocks = if self.privileged { said.bfree } else { said.bavail };
        (said.blocks > 0).then(|| blocks.saturating_mul(u64::from(said.frsize)))
    }

    /// Who of all that is dirty may begin now. Asks the store only where it may matter.
    pub(crate) fn room_for_flights(self: &Arc<Self>) -> Room {
        let copied = self.drain.copied.load(Relaxed);
        let owed = self.owed_growth();
        let plenty = |said: Said| said.free / 2 > owed + copied.saturating_sub(said.copied);
        let said = *self.drain.room.said.lock().expect("no panic inside");
        if owed == 0 {
            return Room::Enough;
        }
        if said.is_some_and(|said| said.at.elapsed() < BELIEVED && plenty(said)) {
            return Room::Enough;
        }
        let Some(free) = self.free_at_home() else { return Room::Enough };
        let said = Said { at: Instant::now(), free, copied };
        *self.drain.room.said.lock().expect("no panic inside") = Some(said);
        if free >= owed { Room::Enough } else { Room::Short(self.granted(free)) }
    }

    /// Asks on a thread that may hang in the question.
    fn free_at_home(self: &Arc<Self>) -> Option<u64> {
        let latch = Arc::new(Latch { left: Mutex::new(1), zero: Condvar::new() });
        let said: Arc<Mutex<Option<StatFs>>> = Arc::default();
        let (engine, mine, slot) = (self.clone(), latch.clone(), said.clone());
        self.errands.run(move || {
            *slot.lock().expect("no panic inside") =
                engine.health.quietly(|| engine.backing.statfs()).ok();
            mine.count_down();
        });
        let limit = self.tune(|t| t.backing_timeout);
        latch.wait(|| self.health.has_stalled_call(limit) || !self.health.is_available());
        let said = said.lock().expect("no panic inside").take();
        said.and_then(|said| self.free_of(&said))
    }

    /// The oldest files that fit, whole (H1).
    fn granted(&self, mut free: u64) -> HashSet<FileId> {
        // The queue's lock comes after a file's.
        let oldest_first = self.dirty.lock().expect("no panic inside").older(u64::MAX);
        let mut granted = HashSet::new();
        for file in oldest_first {
            let inner = file.lock();
            let growth = inner.growth();
            if growth <= free && !inner.state.flags.conflict.stands() {
                free -= growth;
                granted.insert(file.id);
            }
        }
        granted
    }

    /// Notes that a file was not begun, so that the drain takes others meanwhile.
    pub(crate) fn no_room_for(&self, file: &File) -> Error {
        let mut inner = file.lock();
        let path = inner.state.display_path();
        let error = Error::os(
            libc::ENOSPC,
            format!("the backing store has no room for {} bytes more", inner.growth()),
        );
        crate::engine::add(&self.counters.flush_failures, 1);
        self.pause_after(&mut inner, &error);
        error.context(path.display())
    }

    /// Cuts a file to what it was before a flight that found no room (H2), unless it is longer than
    /// the flight may have made it.
    pub(crate) fn give_room_back(&self, job: &Job, target: &dyn BackingFile) -> Result<()> {
        let reach = job.captured.last().map_or(0, |run| run.1);
        let found = target.stat()?.size;
        match !job.resumed && found > job.base.size && found <= reach {
            true => target.set_len(job.base.size),
            false => Ok(()),
        }
    }
}

/// The places of those that may go together, and of those that go one by one, the oldest first.
pub(crate) fn split(room: &HomeRoom, picks: &[Pick]) -> (Vec<usize>, Vec<usize>) {
    let doubted = |at: &usize| room.is_doubted(&picks[*at].0);
    let (mut alone, together): (Vec<usize>, Vec<usize>) = (0..picks.len()).partition(doubted);
    alone.sort_by_cached_key(|at| picks[*at].0.lock().state.dirty_since);
    (together, alone)
}
