//! Threads that tend instances and transfers: one at a time for each, a bounded number in all, again
//! after a time, and later from failure to failure.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Who waits for a slow store does not keep the others from being tended. Things of a kind, the first
/// word of their keys, have so many threads of their own: transfers take hours, and instances come and
/// go meanwhile.
const AT_ONCE: usize = 16;

const FIRST_BACK_OFF: Duration = Duration::from_secs(1);
const LAST_BACK_OFF: Duration = Duration::from_secs(60);

/// What is to be done about a thing after it was tended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Look again after this time, or when what is wanted changes.
    After(Duration),
    /// It failed: look again after a while that grows.
    BackOff,
}

#[derive(Debug)]
struct Slot {
    running: bool,
    /// What it was started for last.
    version: u64,
    not_before: Instant,
    failures: u32,
}

#[derive(Default)]
struct State {
    slots: BTreeMap<String, Slot>,
    /// By kind.
    running: BTreeMap<String, usize>,
    /// Something has ended, or was rung for, since it was last waited for.
    rang: bool,
}

#[derive(Default)]
pub struct Crew {
    state: Mutex<State>,
    bell: Condvar,
}

/// A slot that is given back however the work ends, a panic included.
struct Turn {
    crew: Arc<Crew>,
    key: String,
    next: Next,
}

impl Crew {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts `work` for `key` if it is its time: `version` is new, or the time that its last turn named
    /// has come.
    pub fn offer(
        self: &Arc<Crew>,
        key: &str,
        version: u64,
        work: impl FnOnce() -> Next + Send + 'static,
    ) {
        let mut state = self.lock();
        if state.running.get(kind(key)).is_some_and(|running| *running >= AT_ONCE) {
            return;
        }
        let now = Instant::now();
        let slot = state.slots.entry(key.into()).or_insert_with(|| Slot {
            running: false,
            version: !version,
            not_before: now,
            failures: 0,
        });
        if slot.running || (slot.version == version && now < slot.not_before) {
            return;
        }
        (slot.running, slot.version) = (true, version);
        *state.running.entry(kind(key).into()).or_default() += 1;
        drop(state);
        let turn = Turn { crew: self.clone(), key: key.into(), next: Next::BackOff };
        let thread = thread::Builder::new().name("tend".into());
        // Without a thread the turn ends as failed, and comes again.
        let _ = thread.spawn(move || turn.end(work()));
    }

    /// Drops what is known of keys that are not there any more.
    pub fn retain(&self, mut there: impl FnMut(&str) -> bool) {
        self.lock().slots.retain(|key, slot| slot.running || there(key));
    }

    pub fn ring(&self) {
        self.lock().rang = true;
        self.bell.notify_all();
    }

    /// Waits until something ended or rang, or somebody's time comes, at most for `limit`.
    pub fn wait(&self, limit: Duration) {
        let mut state = self.lock();
        let now = Instant::now();
        let waiting = state.slots.values().filter(|slot| !slot.running && slot.not_before > now);
        let next = waiting.map(|slot| slot.not_before - now).min();
        let limit = next.map_or(limit, |next| next.min(limit));
        if !state.rang {
            let waited = self.bell.wait_timeout_while(state, limit, |state| !state.rang);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.rang = false;
    }

    /// Whether nothing is being tended.
    pub fn is_idle(&self) -> bool {
        self.lock().running.values().all(|running| *running == 0)
    }
}

impl Turn {
    fn end(mut self, next: Next) {
        self.next = next;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.crew.lock();
        if let Some(running) = state.running.get_mut(kind(&self.key)) {
            *running -= 1;
        }
        if let Some(slot) = state.slots.get_mut(&self.key) {
            slot.running = false;
            let pause = match self.next {
                Next::After(pause) => {
                    slot.failures = 0;
                    pause
                }
                Next::BackOff => {
                    slot.failures += 1;
                    back_off(slot.failures)
                }
            };
            slot.not_before = Instant::now() + pause;
        }
        drop(state);
        self.crew.ring();
    }
}

fn kind(key: &str) -> &str {
    key.split_once(' ').map_or(key, |(kind, _)| kind)
}

fn back_off(failures: u32) -> Duration {
    FIRST_BACK_OFF.saturating_mul(1 << (failures - 1).min(6)).min(LAST_BACK_OFF)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use super::*;

    fn idle(crew: &Crew) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !crew.is_idle() {
            assert!(Instant::now() < deadline, "it never ends");
            crew.wait(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_thing_is_tended_by_one_at_a_time_and_again_when_it_changes() {
        let (crew, turns) = (Arc::new(Crew::default()), Arc::new(AtomicU32::new(0)));
        let offer = |version| {
            let turns = turns.clone();
            crew.offer("a", version, move || {
                turns.fetch_add(1, SeqCst);
                thread::sleep(Duration::from_millis(20));
                Next::After(Duration::from_secs(3600))
            });
        };
        offer(1);
        offer(2);
        idle(&crew);
        assert_eq!(turns.load(SeqCst), 1, "while it is tended nobody else begins");
        offer(1);
        idle(&crew);
        assert_eq!(turns.load(SeqCst), 1, "its time has not come");
        offer(2);
        idle(&crew);
        assert_eq!(turns.load(SeqCst), 2);
    }

    #[test]
    fn transfers_that_take_long_do_not_keep_instances_from_being_tended() {
        let (crew, over) = (Arc::new(Crew::default()), Arc::new(Mutex::new(())));
        let held = over.lock().unwrap();
        for n in 0..2 * AT_ONCE {
            let over = over.clone();
            crew.offer(&format!("transfer {n}"), 1, move || {
                drop(over.lock());
                Next::BackOff
            });
        }
        let (begun, tended) = std::sync::mpsc::channel();
        crew.offer("instance a", 1, move || {
            begun.send(()).unwrap();
            Next::BackOff
        });
        let waited = tended.recv_timeout(Duration::from_secs(20));
        let running = crew.lock().running["transfer"];
        drop(held);
        idle(&crew);
        assert_eq!((waited, running), (Ok(()), AT_ONCE));
    }

    #[test]
    fn a_panic_gives_the_turn_back_and_counts_as_a_failure() {
        let crew = Arc::new(Crew::default());
        crew.offer("a", 1, || panic!("as the test wishes"));
        idle(&crew);
        let state = crew.lock();
        let slot = &state.slots["a"];
        assert!(!slot.running && slot.failures == 1 && slot.not_before > Instant::now());
    }

    #[test]
    fn failures_are_tried_again_later_and_later() {
        let pauses: Vec<u64> = (1..9).map(|n| back_off(n).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    }
}
