//! The stream of changes.

use std::time::{Duration, Instant};

use super::{Bench, events};
use crate::{Commit, Event, Revision, Seen};

pub fn changes_come_in_order(b: &Bench) {
    let mut watch = b.watch(b.revision());
    let first = b.must(&Commit::new().put(b.key("b"), "1").put(b.key("a"), "2"));
    let second = b.must(&Commit::new().delete(b.key("b")).put(b.key("c"), "3"));
    let seen = events(&mut *watch, 4);
    let told: Vec<(&str, Revision)> = seen.iter().map(|e| (e.key(), e.revision())).collect();
    let (x, y, z) = (b.key("a"), b.key("b"), b.key("c"));
    assert_eq!(told, [(&*y, first), (&*x, first), (&*y, second), (&*z, second)]);
    assert!(matches!(&seen[2], Event::Deleted { .. }));
    let Event::Put(entry) = &seen[3] else { panic!("it was put") };
    assert_eq!(Some(entry), b.get("c").as_ref());
}

pub fn a_watch_begins_after_its_revision(b: &Bench) {
    let revisions: Vec<Revision> =
        (0..5).map(|i| b.must(&Commit::new().put(b.key(&i.to_string()), ""))).collect();
    for (i, after) in revisions.iter().enumerate() {
        let told = events(&mut *b.watch(*after), 4 - i);
        assert!(told.iter().all(|event| event.revision() > *after), "R4");
    }
}

pub fn a_prefix_is_kept_to(b: &Bench) {
    let after = b.revision();
    let mut watch = b.registry.watch(&b.key("in/"), after).expect("a watch can begin");
    for name in ["in/a", "in", "inn/a", "out", "in/b"] {
        b.must(&Commit::new().put(b.key(name), ""));
    }
    b.must(&Commit::new().delete_prefix(b.key("in")));
    let keys: Vec<String> = events(&mut *watch, 4).iter().map(|e| e.key().to_string()).collect();
    assert_eq!(keys, [b.key("in/a"), b.key("in/b"), b.key("in/a"), b.key("in/b")]);
    let mut whole = b.registry.watch("", after).expect("a watch can begin");
    assert!(matches!(whole.next(super::SOON).expect("it goes on"), Seen::Changes(_)));
}

pub fn a_quiet_watch_waits_its_time(b: &Bench) {
    let mut watch = b.watch(b.revision());
    let began = Instant::now();
    assert_eq!(watch.next(Duration::from_millis(300)).expect("it goes on"), Seen::Quiet);
    assert!(began.elapsed() >= Duration::from_millis(300), "it waited {:?}", began.elapsed());
    std::thread::scope(|scope| {
        let told = scope.spawn(move || watch.next(super::SOON).expect("it goes on"));
        b.must(&Commit::new().put(b.key("a"), ""));
        assert!(matches!(told.join().expect("it does not fail"), Seen::Changes(_)));
    });
}

/// R4: watches that begin at different times see one and the same history.
pub fn nothing_is_missed_or_doubled_among_writers(b: &Bench) {
    const THREADS: usize = 4;
    const EACH: usize = 30;
    let after = b.revision();
    let mut early = b.watch(after);
    let seen = std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for i in 0..EACH {
                    b.must(&Commit::new().put(b.key(&format!("{thread}")), i.to_string()));
                }
            });
        }
        events(&mut *early, THREADS * EACH)
    });
    assert!(seen.is_sorted_by_key(Event::revision), "R4");
    assert_eq!(events(&mut *b.watch(after), THREADS * EACH), seen, "R4");
    for thread in 0..THREADS {
        let key = b.key(&thread.to_string());
        let values: Vec<String> = seen.iter().filter(|e| e.key() == key).map(value).collect();
        assert_eq!(values, (0..EACH).map(|i| i.to_string()).collect::<Vec<_>>(), "R4");
    }
}

/// R4.
pub fn a_watch_behind_a_compaction_is_told_and_one_ahead_misses_nothing(b: &Bench) {
    let made: Vec<Revision> =
        (0..5).map(|i| b.must(&Commit::new().put(b.key("a"), i.to_string()))).collect();
    let mut told = b.watch(made[4]);
    let mut ahead = b.watch(made[2]);
    // Compacting the same history again is no error, and brings nothing back.
    for upto in [made[2], made[2], made[0], Revision(0)] {
        b.registry.compact(upto).expect("it answers");
        let mut behind = b.watch(made[1]);
        for _ in 0..2 {
            let seen = behind.next(super::SOON).expect("it answers");
            assert_eq!(seen, Seen::Compacted(made[2]), "R4: also when it is asked again");
        }
        let rest = events(&mut *b.watch(made[2]), 2);
        assert_eq!(rest.iter().map(Event::revision).collect::<Vec<_>>(), made[3..], "R4");
    }
    let last = b.must(&Commit::new().put(b.key("b"), ""));
    let revisions: Vec<Revision> = events(&mut *ahead, 3).iter().map(Event::revision).collect();
    assert_eq!(revisions, [made[3], made[4], last], "R4: it goes on");
    assert_eq!(events(&mut *told, 1)[0].revision(), last, "R4: it goes on");
    assert_eq!(b.range().len(), 2, "only the history is shorter");
}

/// Also if all possible revisions are to be dropped.
pub fn the_newest_commit_is_not_compacted(b: &Bench) {
    let first = b.must(&Commit::new().put(b.key("a"), "1"));
    let newest = b.must(&Commit::new().put(b.key("a"), "2"));
    b.registry.compact(Revision(u64::MAX)).expect("it answers");
    let mut behind = b.watch(Revision(first.0 - 1));
    let Seen::Compacted(upto) = behind.next(super::SOON).expect("it answers") else {
        panic!("R4: what was put first is gone")
    };
    assert!(first <= upto && upto < b.revision(), "{first}, {upto}, {newest}");
    assert_eq!(b.get("a").map(|entry| entry.revision), Some(newest));
}

fn value(event: &Event) -> String {
    let Event::Put(entry) = event else { panic!("nothing was deleted") };
    String::from_utf8(entry.value.clone()).expect("text was put")
}
