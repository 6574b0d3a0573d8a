//! Single keys, ranges, limits.

use std::sync::Arc;

use super::Bench;
use crate::limits::{KEY_MAX, PAGE, VALUE_MAX};
use crate::{Commit, Kind};

pub fn what_is_put_is_found(b: &Bench) {
    let made = b.must(&Commit::new().put(b.key("a"), "one"));
    let entry = b.get("a").expect("it was put");
    assert_eq!((entry.key.as_str(), entry.value.as_slice()), (b.key("a").as_str(), &b"one"[..]));
    assert_eq!((entry.revision, entry.lease), (made, None));
    let changed = b.must(&Commit::new().put(b.key("a"), "two"));
    assert!(changed > made, "R1");
    assert_eq!(b.get("a").expect("it is there").revision, changed);
    assert!(b.must(&Commit::new().delete(b.key("a"))) > changed, "R1");
    assert_eq!(b.get("a"), None);
}

pub fn a_missing_key_is_no_error(b: &Bench) {
    assert_eq!(b.get("never"), None);
    assert!(b.range().is_empty());
    b.must(&Commit::new().delete(b.key("never")));
    b.must(&Commit::new().delete_prefix(b.key("nev")));
}

pub fn ranges_are_in_order_and_whole(b: &Bench) {
    let names = ["b", "a/2", "a", "a/10", "\u{e9}", "Z"];
    let puts = names.iter().fold(Commit::new(), |c, name| c.put(b.key(name), *name));
    let made = b.must(&puts);
    let (entries, revision) = b.registry.range(b.place()).expect("it answers");
    let mut sorted: Vec<String> = names.iter().map(|name| b.key(name)).collect();
    sorted.sort();
    assert_eq!(entries.iter().map(|e| e.key.clone()).collect::<Vec<_>>(), sorted);
    assert!(revision >= made && entries.iter().all(|e| e.revision == made));
    let (some, _) = b.registry.range(&b.key("a/")).expect("it answers");
    assert_eq!(some.len(), 2);
    let (all, _) = b.registry.range("").expect("it answers");
    assert!(all.len() >= names.len());
}

pub fn ranges_have_more_than_a_page(b: &Bench) {
    let count = 2 * PAGE + 17;
    let names: Vec<String> = (0..count).map(|i| b.key(&format!("{i:05}"))).collect();
    for names in names.chunks(100) {
        b.must(&names.iter().fold(Commit::new(), |c, name| c.put(name, name.as_str())));
    }
    let found: Vec<String> = b.range().into_iter().map(|e| e.key).collect();
    assert_eq!(found, names);
    b.must(&Commit::new().delete_prefix(b.place()));
    assert!(b.range().is_empty());
}

pub fn values_are_bytes(b: &Bench) {
    let long: Vec<u8> = (0..VALUE_MAX).map(|i| (i * 7 % 256) as u8).collect();
    b.must(&Commit::new().put(b.key("long"), long.clone()).put(b.key("empty"), ""));
    assert_eq!(b.get("long").expect("it was put").value, long);
    assert!(b.get("empty").expect("an empty value is one").value.is_empty());
    b.must(&Commit::new().if_value(b.key("long"), long).delete(b.key("long")));
    assert_eq!(b.get("long"), None);
}

pub fn limits_are_kept(b: &Bench) {
    let usage = |error: crate::Error| assert_eq!(error.kind(), Kind::Usage, "{error}");
    let longest = b.key(&"k".repeat(KEY_MAX - b.place().len()));
    b.must(&Commit::new().put(&longest, "v"));
    assert!(b.registry.get(&longest).expect("it is short enough").0.is_some());
    usage(b.registry.get(&format!("{longest}k")).expect_err("too long"));
    usage(b.registry.get("").expect_err("empty"));
    usage(b.registry.range("/").expect_err("no prefix"));
    usage(b.registry.watch(".", b.revision()).err().expect("no prefix"));
    usage(b.registry.commit(&Commit::new()).expect_err("nothing to do"));
    let large = Commit::new().put(b.key("large"), vec![0; VALUE_MAX + 1]);
    usage(b.registry.commit(&large).expect_err("too large"));
    assert_eq!(b.get("large"), None);
}

pub fn a_barrier_covers_every_commit(b: &Bench) {
    let made = Arc::new(std::sync::Mutex::new(crate::Revision(0)));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let made = Arc::clone(&made);
            scope.spawn(move || {
                for _ in 0..20 {
                    let revision = b.must(&Commit::new().put(b.key(&thread.to_string()), ""));
                    let mut newest = made.lock().expect("no check has failed");
                    *newest = revision.max(*newest);
                }
            });
        }
        for _ in 0..40 {
            let before = *made.lock().expect("no check has failed");
            assert!(b.revision() >= before, "a barrier is as new as what has returned");
        }
    });
    assert!(b.revision() >= *made.lock().expect("no check has failed"));
}

pub fn the_cluster_stays_the_same(b: &Bench) {
    let before = b.registry.cluster().expect("it answers");
    let made = b.must(&Commit::new().put(b.key("a"), ""));
    let after = b.registry.cluster().expect("it answers");
    assert!(!before.cluster.is_empty());
    assert_eq!(before.cluster, after.cluster);
    assert!(before.revision < made && made <= after.revision);
    let health = b.registry.health().expect("it answers");
    assert_eq!(health.identity.cluster, before.cluster);
    assert!(
        health.bytes > 0 && !health.version.is_empty() && health.alarms.is_empty(),
        "{health:?}"
    );
}
