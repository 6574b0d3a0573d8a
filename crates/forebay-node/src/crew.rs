//! Threads that tend instances and transfers: one at a time for each, a bounded number in all, again
//! after a time, and after longer pauses from failure to failure.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank};

/// How many things of one kind (the first word of their keys) have a thread at once. A tending that
/// waits for a slow store does not block the other kinds: transfers take hours, and instances come and
/// go meanwhile.
const AT_ONCE: usize = 16;

/// How many things of a kind each owner always has threads for, however many the other owners have at
/// work.
const EACH: usize = 2;

/// The maximum of one kind, including those.
const AT_MOST: usize = 64;

const FIRST_BACK_OFF: Duration = Duration::from_secs(1);
const LAST_BACK_OFF: Duration = Duration::from_secs(60);

/// The next step for a thing after it was tended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Look again after this time, or when its record changes.
    After(Duration),
    /// The tending failed: look again after a pause that grows.
    BackOff,
}

/// Work for one owner's thing.
pub struct Offer {
    pub key: String,
    pub owner: u32,
    pub version: u64,
    pub work: Work,
}

type Work = Box<dyn FnOnce() -> Next + Send>;

#[derive(Debug)]
struct Slot {
    running: bool,
    /// The thing's owner, if owners count.
    owner: Option<u32>,
    /// The version for which the work was started last.
    version: u64,
    not_before: Instant,
    failures: u32,
}

#[derive(Default)]
struct State {
    slots: BTreeMap<String, Slot>,
    /// How many threads run, by kind.
    running: BTreeMap<String, usize>,
    /// A turn has ended, or a ring has come, since the last wait.
    rang: bool,
}

pub struct Crew {
    state: Mutex<State>,
    bell: Condvar,
}

impl Default for Crew {
    fn default() -> Crew {
        Crew { state: Mutex::new(Rank::Crew, State::default()), bell: Condvar::new() }
    }
}

/// A slot that is given back however the work ends, also by a panic.
struct Turn {
    crew: Arc<Crew>,
    key: String,
    next: Next,
}

impl Crew {
    #[track_caller]
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Starts `work` for `key` if it is due: `version` is new, or the time that its last turn named has
    /// come.
    pub fn offer(
        self: &Arc<Crew>,
        key: &str,
        version: u64,
        work: impl FnOnce() -> Next + Send + 'static,
    ) {
        let mut state = self.lock();
        if state.has_thread(key, None) && state.is_due(key, version) {
            state.begin(key, version, None);
            drop(state);
            self.launch(key.into(), Box::new(work));
        }
    }

    /// Starts the due ones of these offers, all of one kind, as far as there are threads: each time one
    /// of the owner that has the fewest at work. No owner waits behind all that another has ordered.
    pub fn offer_fairly(self: &Arc<Crew>, offers: Vec<Offer>) {
        let mut state = self.lock();
        let mut waiting: BTreeMap<u32, VecDeque<Offer>> = BTreeMap::new();
        for offer in offers {
            if state.is_due(&offer.key, offer.version) {
                waiting.entry(offer.owner).or_default().push_back(offer);
            }
        }
        let mut begun = Vec::new();
        loop {
            waiting.retain(|_, queue| !queue.is_empty());
            let fewest = waiting.iter_mut().min_by_key(|(owner, queue)| {
                queue.front().map(|offer| state.at_work(kind(&offer.key), **owner))
            });
            let Some((&owner, queue)) = fewest else { break };
            match queue.pop_front() {
                Some(offer) if state.has_thread(&offer.key, Some(owner)) => {
                    state.begin(&offer.key, offer.version, Some(owner));
                    begun.push(offer);
                }
                // Nor is there a thread for an owner with more at work.
                _ => break,
            }
        }
        drop(state);
        begun.into_iter().for_each(|offer| self.launch(offer.key, offer.work));
    }

    fn launch(self: &Arc<Crew>, key: String, work: Work) {
        let turn = Turn { crew: self.clone(), key, next: Next::BackOff };
        let thread = thread::Builder::new().name("tend".into());
        // Without a thread the turn ends as failed, and is repeated.
        let _ = thread.spawn(move || turn.end(work()));
    }

    /// Forgets keys that no longer exist.
    pub fn retain(&self, mut there: impl FnMut(&str) -> bool) {
        self.lock().slots.retain(|key, slot| slot.running || there(key));
    }

    pub fn ring(&self) {
        self.lock().rang = true;
        self.bell.notify_all();
    }

    /// Waits until a turn has ended, a ring has come, or a thing is due, at most for `limit`.
    pub fn wait(&self, limit: Duration) {
        let mut state = self.lock();
        let now = Instant::now();
        let waiting = state.slots.values().filter(|slot| !slot.running && slot.not_before > now);
        let next = waiting.map(|slot| slot.not_before - now).min();
        let limit = next.map_or(limit, |next| next.min(limit));
        if !state.rang {
            state = self.bell.wait_timeout_while(state, limit, |state| !state.rang).0;
        }
        state.rang = false;
    }

    /// Whether no thing is being tended.
    pub fn is_idle(&self) -> bool {
        self.lock().running.values().all(|running| *running == 0)
    }
}

impl State {
    fn has_thread(&self, key: &str, owner: Option<u32>) -> bool {
        let kind = kind(key);
        let running = self.running.get(kind).copied().unwrap_or(0);
        let has_few = owner.is_some_and(|owner| self.at_work(kind, owner) < EACH);
        running < if has_few { AT_MOST } else { AT_ONCE }
    }

    fn is_due(&self, key: &str, version: u64) -> bool {
        self.slots.get(key).is_none_or(|slot| {
            !slot.running && (slot.version != version || Instant::now() >= slot.not_before)
        })
    }

    fn begin(&mut self, key: &str, version: u64, owner: Option<u32>) {
        let new =
            || Slot { running: true, owner, version, not_before: Instant::now(), failures: 0 };
        let slot = self.slots.entry(key.into()).or_insert_with(new);
        (slot.running, slot.owner, slot.version) = (true, owner, version);
        *self.running.entry(kind(key).into()).or_default() += 1;
    }

    /// How many things of a kind and an owner are being tended.
    fn at_work(&self, of: &str, owner: u32) -> usize {
        let is_of = |(key, slot): &(&String, &Slot)| {
            slot.running && slot.owner == Some(owner) && kind(key) == of
        };
        self.slots.iter().filter(is_of).count()
    }
}

impl Turn {
    fn end(mut self, next: Next) {
        self.next = next;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // This also runs while unwinding.
        let mut state = self.crew.state.lock_anyway();
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
        state.rang = true;
        drop(state);
        self.crew.bell.notify_all();
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
        let (crew, over) = (Arc::new(Crew::default()), Arc::new(std::sync::Mutex::new(())));
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

    /// One user orders ten times as much as there are threads for, and others order a few things, then
    /// and later.
    #[test]
    fn a_user_with_many_orders_does_not_keep_others_waiting() {
        let (crew, over) = (Arc::new(Crew::default()), Arc::new(std::sync::Mutex::new(())));
        let held = over.lock().unwrap();
        let offer = |owner: u32, n: usize| {
            let over = over.clone();
            let work = Box::new(move || {
                drop(over.lock());
                Next::After(Duration::from_secs(3600))
            });
            Offer { key: format!("transfer {owner}-{n:03}"), owner, version: 1, work }
        };
        let much = || (0..10 * AT_ONCE).map(|n| offer(1, n));
        crew.offer_fairly(much().chain((0..3).map(|n| offer(2, n))).collect());
        let at_work = |owner| crew.lock().at_work("transfer", owner);
        assert_eq!((at_work(1), at_work(2)), (AT_ONCE - 3, 3));
        crew.offer_fairly(much().collect());
        assert_eq!(at_work(1), AT_ONCE - 3, "no more than there are threads for");
        let all = |owner| (0..9).map(move |n| offer(owner, n));
        crew.offer_fairly(much().chain(all(3)).chain(all(4)).collect());
        assert_eq!((at_work(1), at_work(3), at_work(4)), (AT_ONCE - 3, EACH, EACH));
        crew.offer_fairly((5..99).flat_map(all).collect());
        assert_eq!(crew.lock().running["transfer"], AT_MOST);
        drop(held);
        idle(&crew);
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

    /// A second panic while the first unwinds would end the whole process.
    #[test]
    fn a_turn_is_given_back_although_the_lock_is_lost() {
        let crew = Arc::new(Crew::default());
        crew.lock().begin("a", 1, None);
        let other = crew.clone();
        let lost = thread::spawn(move || {
            let _held = other.lock();
            panic!("as the test wishes");
        });
        assert!(lost.join().is_err());
        drop(Turn { crew: crew.clone(), key: "a".into(), next: Next::BackOff });
        assert!(!crew.state.lock_anyway().slots["a"].running);
    }

    #[test]
    fn failures_are_tried_again_later_and_later() {
        let pauses: Vec<u64> = (1..9).map(|n| back_off(n).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    }
}
