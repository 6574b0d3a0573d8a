//! Commits and their compares.

use super::Bench;
use crate::limits::{CHANGES_MAX, COMPARES_MAX};
use crate::{Commit, Outcome};

/// Every compare, alone and beside one that holds.
pub fn all_compares_must_hold(b: &Bench) {
    b.must(&Commit::new().put(b.key("there"), "v"));
    let there = b.get("there").expect("it was put");
    let (key, missing) = (b.key("there"), b.key("missing"));
    b.must(&Commit::new().put(b.key("other"), ""));
    let mut old = there.clone();
    old.revision.0 -= 1;
    let mut gone = there.clone();
    gone.key.clone_from(&missing);
    let hold = [
        Commit::new().if_absent(&missing),
        Commit::new().if_present(&key),
        Commit::new().if_unchanged(&there),
        Commit::new().if_value(&key, "v"),
        Commit::new().if_as_found(&missing, None),
        Commit::new().if_as_found(&key, Some(&there)),
    ];
    let fail = [
        Commit::new().if_absent(&key),
        Commit::new().if_present(&missing),
        Commit::new().if_unchanged(&old),
        Commit::new().if_unchanged(&gone),
        Commit::new().if_value(&key, "w"),
        Commit::new().if_value(&missing, ""),
    ];
    for (i, commit) in hold.iter().enumerate() {
        b.must(&commit.clone().put(b.key(&format!("held-{i}")), ""));
    }
    for (i, commit) in fail.iter().enumerate() {
        let name = format!("failed-{i}");
        let commits = [commit.clone().if_present(&key), Commit::new().if_present(&key)];
        let [first, mut second] = commits;
        second.compares.extend(commit.compares.clone());
        for commit in [first, second] {
            let outcome = b.commit(&commit.put(b.key(&name), ""));
            assert_eq!(outcome.committed(), None, "R2: {i}");
            assert_eq!(b.get(&name), None, "R2: {i}");
        }
    }
    assert_eq!(b.range().len(), 2 + hold.len());
}

pub fn a_refusal_is_of_a_revision(b: &Bench) {
    let made = b.must(&Commit::new().put(b.key("a"), "1"));
    let commit = Commit::new().if_absent(b.key("b")).if_absent(b.key("a")).put(b.key("b"), "2");
    let Outcome::Refused(revision) = b.commit(&commit) else { panic!("R2: a is there") };
    assert!(revision >= made);
    assert_eq!(b.get("b"), None);
}

pub fn changes_of_a_commit_have_one_revision(b: &Bench) {
    b.must(&Commit::new().put(b.key("c"), ""));
    let made = b.must(&Commit::new().put(b.key("a"), "").put(b.key("b"), "").delete(b.key("c")));
    let entries = b.range();
    assert_eq!(entries.len(), 2);
    assert!(entries.iter().all(|entry| entry.revision == made), "R1");
}

pub fn a_prefix_is_deleted_whole(b: &Bench) {
    let put = |c: Commit, name: &str| c.put(b.key(name), "");
    b.must(&["p/1", "p/2", "p/", "p", "q"].into_iter().fold(Commit::new(), put));
    b.must(&Commit::new().delete_prefix(b.key("p/")).put(b.key("r"), ""));
    let names: Vec<String> = b.range().into_iter().map(|entry| entry.key).collect();
    assert_eq!(names, [b.key("p"), b.key("q"), b.key("r")]);
}

pub fn a_full_commit_is_taken(b: &Bench) {
    let absent = |c: Commit, i: usize| c.if_absent(b.key(&format!("{i}")));
    let put = |c: Commit, i: usize| c.put(b.key(&format!("{i}")), "");
    let full = (0..CHANGES_MAX).fold((0..COMPARES_MAX).fold(Commit::new(), absent), put);
    b.must(&full);
    assert_eq!(b.commit(&full).committed(), None, "R2: all are there");
}

pub fn one_of_many_wins(b: &Bench) {
    for round in 0..10 {
        let key = b.key(&round.to_string());
        let wins: usize = std::thread::scope(|scope| {
            let race = |thread: usize| {
                let commit = Commit::new().if_absent(&key).put(&key, thread.to_string());
                scope.spawn(move || usize::from(b.commit(&commit).committed().is_some()))
            };
            let racers: Vec<_> = (0..8).map(race).collect();
            racers.into_iter().map(|racer| racer.join().expect("no racer fails")).sum()
        });
        assert_eq!(wins, 1, "R2: exactly one");
    }
}

pub fn no_update_is_lost(b: &Bench) {
    const THREADS: u64 = 8;
    const EACH: u64 = 25;
    let refused: u64 = std::thread::scope(|scope| {
        let count = || (0..EACH).map(|_| increment(b)).sum::<u64>();
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(count)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no thread fails")).sum()
    });
    assert_eq!(b.get("n").map(|e| number(&e.value)), Some(THREADS * EACH), "R2");
    eprintln!("  {} increments, {refused} refused", THREADS * EACH);
}

/// Adds one; returns how often another client was faster.
fn increment(b: &Bench) -> u64 {
    let key = b.key("n");
    let mut found = b.get("n");
    let mut refused = 0;
    loop {
        let next = found.as_ref().map_or(0, |e| number(&e.value)) + 1;
        let commit = Commit::new().if_as_found(&key, found.as_ref()).put(&key, next.to_string());
        match b.commit(&commit) {
            Outcome::Committed(_) => return refused,
            Outcome::Refused(_) => found = b.get("n"),
        }
        refused += 1;
    }
}

fn number(value: &[u8]) -> u64 {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).expect("a number was put")
}

/// R2 for readers: a range shows one revision.
pub fn a_pair_of_keys_is_never_seen_torn(b: &Bench) {
    let write = |i: u64| {
        b.must(&Commit::new().put(b.key("a"), i.to_string()).put(b.key("b"), i.to_string()));
    };
    write(0);
    std::thread::scope(|scope| {
        scope.spawn(move || (1..60).for_each(write));
        for _ in 0..60 {
            let pair = b.range();
            assert_eq!(pair[0].value, pair[1].value, "R2");
            assert_eq!(pair[0].revision, pair[1].revision, "R1");
        }
    });
}
