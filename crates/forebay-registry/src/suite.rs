//! The conformance suite: the behaviour that every registry must have.
//!
//! Each check has keys of its own, so that checks do not disturb each other, and panics with the
//! expectation that failed. Other clients may use the registry meanwhile.

mod commits;
mod keys;
mod leases;
mod watches;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::{Commit, Entry, Outcome, Registry, Revision, Seen, Watch};

type Check = (&'static str, fn(&Bench));

macro_rules! checks {
    ($($module:ident: $($name:ident)*;)*) => {
        &[$($((concat!(stringify!($module), "-", stringify!($name)), $module::$name as fn(&Bench)),)*)*]
    };
}

const CHECKS: &[Check] = checks! {
    keys:
        what_is_put_is_found
        a_missing_key_is_no_error
        ranges_are_in_order_and_whole
        ranges_have_more_than_a_page
        values_are_bytes
        limits_are_kept
        a_barrier_covers_every_commit
        the_cluster_stays_the_same;
    commits:
        all_compares_must_hold
        a_refusal_is_of_a_revision
        changes_of_a_commit_have_one_revision
        a_prefix_is_deleted_whole
        a_full_commit_is_taken
        one_of_many_wins
        no_update_is_lost
        a_pair_of_keys_is_never_seen_torn;
    watches:
        changes_come_in_order
        a_watch_begins_after_its_revision
        a_prefix_is_kept_to
        a_quiet_watch_waits_its_time
        nothing_is_missed_or_doubled_among_writers
        a_watch_behind_a_compaction_is_told_and_one_ahead_misses_nothing
        the_newest_commit_is_not_compacted;
    leases:
        keys_vanish_when_a_lease_is_given_up
        keys_vanish_when_a_lease_is_dropped
        a_kept_lease_outlives_its_time
        a_put_without_the_lease_keeps_the_key
        a_lease_that_is_no_more_is_refused
        a_time_that_cannot_be_is_refused;
};

/// The time that a certain event may take on a busy machine.
pub const SOON: Duration = Duration::from_secs(20);

/// A registry under test, and a part of it for one check.
pub struct Bench {
    pub registry: Arc<dyn Registry>,
    place: String,
}

impl Bench {
    /// A bench with a part of the registry that was never used.
    pub fn new(registry: Arc<dyn Registry>) -> Bench {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let place = format!("suite/{}-{}/", std::process::id(), NEXT.fetch_add(1, Relaxed));
        Bench { registry, place }
    }

    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.place)
    }

    pub fn get(&self, name: &str) -> Option<Entry> {
        self.registry.get(&self.key(name)).expect("the registry answers").0
    }

    pub fn range(&self) -> Vec<Entry> {
        self.registry.range(&self.place).expect("the registry answers").0
    }

    pub fn commit(&self, commit: &Commit) -> Outcome {
        self.registry.commit(commit).expect("the registry answers")
    }

    /// Makes a commit that must not be refused.
    pub fn must(&self, commit: &Commit) -> Revision {
        let outcome = self.commit(commit);
        outcome.committed().unwrap_or_else(|| panic!("{commit:?} was refused: {outcome:?}"))
    }

    pub fn watch(&self, after: Revision) -> Box<dyn Watch> {
        self.registry.watch(&self.place, after).expect("a watch can begin")
    }

    pub fn revision(&self) -> Revision {
        self.registry.barrier().expect("the registry answers")
    }

    pub fn place(&self) -> &str {
        &self.place
    }
}

/// Runs every check on `registry`.
///
/// # Panics
///
/// If a check fails; its name is printed before.
pub fn run(registry: &Arc<dyn Registry>) {
    for (name, check) in CHECKS {
        eprintln!("{name}");
        check(&Bench::new(Arc::clone(registry)));
    }
    assert!(CHECKS.len() > 20, "checks were run");
}

/// Waits until `done` holds.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < SOON, "not within {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Collects the events of a watch until there are `count`, and no more come.
pub fn events(watch: &mut dyn Watch, count: usize) -> Vec<crate::Event> {
    let began = Instant::now();
    let mut all = Vec::new();
    while all.len() < count && began.elapsed() < SOON {
        match watch.next(Duration::from_millis(200)).expect("the watch goes on") {
            Seen::Changes(events) => {
                let last = events.changes.last().expect("changes are not empty");
                assert!(last.revision() <= events.revision, "R4: told up to its revision");
                all.extend(events.changes);
            }
            Seen::Quiet => {}
            Seen::Compacted(upto) => panic!("the history reaches back, but {upto} is compacted"),
        }
    }
    let more = watch.next(Duration::from_millis(100)).expect("the watch goes on");
    assert_eq!(more, Seen::Quiet, "R4: {count} events, each once");
    assert_eq!(all.len(), count, "R4: none is missed");
    all
}
