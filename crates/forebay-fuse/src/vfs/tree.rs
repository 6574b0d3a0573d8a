//! The lock between the verbs that turn a node into a path and the rename of a directory.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use forebay_base::lock::{Condvar, Mutex, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard, sleep};

/// How long a rename waits for a moment without readers before it holds new ones back.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long it holds them back at most, and how long it then lets them go on, in turn: a reader that
/// it waits for may hang in the backing store, and the mount must not hang with it.
const TURN: Duration = Duration::from_secs(1);

pub struct Tree {
    lock: RwLock<()>,
    /// The number of renames that hold readers back. It falls only under `holding`.
    held_by: AtomicU32,
    holding: Mutex<()>,
    go: Condvar,
}

impl Default for Tree {
    fn default() -> Tree {
        Tree {
            lock: RwLock::new(Rank::Tree, ()),
            held_by: AtomicU32::new(0),
            holding: Mutex::new(Rank::TreeHeld, ()),
            go: Condvar::new(),
        }
    }
}

impl Tree {
    pub fn shared(&self) -> RwLockReadGuard<'_, ()> {
        if self.held_by.load(SeqCst) > 0 {
            self.stand_back();
        }
        self.lock.read()
    }

    /// Waits until no rename holds readers back; not for ever, however many renames follow each other.
    fn stand_back(&self) {
        let holding = self.holding.lock();
        let held = |_: &mut ()| self.held_by.load(SeqCst) > 0;
        drop(self.go.wait_timeout_while(holding, TURN, held));
    }

    /// Locks the whole tree, or returns `None` if that takes longer than `limit`. Waiting in the lock
    /// itself would make readers wait behind the rename, for as long as one of them hangs.
    pub fn alone(&self, limit: Duration) -> Option<RwLockWriteGuard<'_, ()>> {
        // A reader that is held back must not seem to hang in the backing store itself.
        let turn = TURN.min(limit / 4);
        let began = Instant::now();
        let mut hold = None;
        loop {
            if let Some(guard) = self.lock.try_write() {
                return Some(guard);
            }
            let waited = began.elapsed();
            if waited >= limit {
                return None;
            }
            match (holds_back(waited, turn), &hold) {
                (true, None) => hold = Some(Hold::new(self)),
                (false, Some(_)) => hold = None,
                _ => {}
            }
            sleep(Duration::from_micros(100));
        }
    }
}

/// Whether a rename that has waited so long holds readers back now.
fn holds_back(waited: Duration, turn: Duration) -> bool {
    let turns = waited.checked_sub(PATIENCE).map(|over| over.as_nanos() / turn.as_nanos().max(1));
    turns.is_some_and(|turns| turns % 2 == 0)
}

struct Hold<'a>(&'a Tree);

impl Hold<'_> {
    fn new(tree: &Tree) -> Hold<'_> {
        tree.held_by.fetch_add(1, SeqCst);
        Hold(tree)
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let holding = self.0.holding.lock();
        self.0.held_by.fetch_sub(1, SeqCst);
        drop(holding);
        self.0.go.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread::{scope, yield_now};

    const LONG: Duration = Duration::from_secs(60);

    fn until(what: impl Fn() -> bool) {
        let began = Instant::now();
        while !what() {
            assert!(began.elapsed() < LONG, "nothing happens");
            yield_now();
        }
    }

    /// Each of two readers lets go only when the other has the tree, or is held back: there is
    /// never a moment without one.
    #[test]
    fn a_rename_finds_a_moment_between_readers_that_overlap_without_end() {
        let tree = Tree::default();
        let (entered, stop) = (AtomicU32::new(0), AtomicBool::new(false));
        let (entered, stop, tree) = (&entered, &stop, &tree);
        let stopped = || stop.load(SeqCst);
        let reader = move |first: u32| {
            for n in (first..).step_by(2).take_while(|_| !stopped()) {
                until(|| entered.load(SeqCst) == n || stopped());
                let _inside = tree.shared();
                entered.store(n + 1, SeqCst);
                let held = || tree.held_by.load(SeqCst) > 0;
                until(|| entered.load(SeqCst) > n + 1 || held() || stopped());
            }
        };
        scope(|scope| {
            scope.spawn(move || reader(0));
            scope.spawn(move || reader(1));
            until(|| entered.load(SeqCst) > 1);
            let alone = tree.alone(LONG / 4);
            stop.store(true, SeqCst);
            assert!(alone.is_some(), "after {} readers", entered.load(SeqCst));
        });
        drop(tree.shared());
    }

    #[test]
    fn a_reader_that_hangs_stops_the_rename_and_nobody_else() {
        let tree = Tree::default();
        let hanging = tree.shared();
        assert!(tree.alone(Duration::from_millis(300)).is_none());
        scope(|scope| {
            let rename = scope.spawn(|| tree.alone(LONG).is_some());
            for _ in 0..2 {
                until(|| tree.held_by.load(SeqCst) > 0);
                let reader = scope.spawn(|| drop(tree.shared()));
                reader.join().unwrap();
                assert!(!rename.is_finished());
            }
            drop(hanging);
            assert!(rename.join().unwrap());
        });
        assert_eq!(tree.held_by.load(SeqCst), 0);
    }
}
