//! The directory store, bare and in each wrapper, under the suite.

use std::sync::Arc;
use std::time::Duration;

use super::{CHECKS, TempDir, run};
use crate::wrap::{Fault, FaultRules, Limits, Meter, Retry, RetryPolicy, Throttle};
use crate::{BackingStore, DirStore};

fn dir_store() -> (TempDir, Arc<DirStore>) {
    let dir = TempDir::new();
    let store = Arc::new(DirStore::open(dir.path()).unwrap());
    (dir, store)
}

fn conforms(wrap: impl FnOnce(Arc<dyn BackingStore>) -> Arc<dyn BackingStore>) {
    let (_dir, store) = dir_store();
    assert_eq!(run(&*wrap(store)), CHECKS.len());
}

#[test]
fn the_directory_store_conforms() {
    conforms(|store| store);
}

#[test]
fn a_throttled_store_conforms() {
    let limits = Limits {
        bytes_per_sec: Some(10_000_000_000),
        latency: Duration::ZERO,
        ..Limits::default()
    };
    conforms(|store| Throttle::wrap(store, limits));
}

#[test]
fn a_store_without_faults_conforms() {
    conforms(|store| Fault::with_rules(store, FaultRules::default()).unwrap().0);
}

#[test]
fn a_metered_store_conforms_and_sees_every_operation() {
    let (_dir, store) = dir_store();
    let meter = Meter::wrap(store);
    run(&*meter);
    let seen = meter.layer().summaries();
    let unseen: Vec<&str> = crate::wrap::Verb::ALL
        .iter()
        .map(|verb| verb.name())
        .filter(|name| !seen.contains_key(name))
        .collect();
    assert!(unseen.is_empty(), "the suite never calls {unseen:?}");
}

#[test]
fn a_retried_store_conforms() {
    conforms(|store| Retry::wrap(store, RetryPolicy::default()));
}

#[test]
fn a_stack_of_wrappers_conforms() {
    conforms(|store| {
        let broken = Fault::with_rules(store, FaultRules::default()).unwrap().0;
        let slow = Throttle::wrap(broken, Limits::default());
        Meter::wrap(Retry::wrap(slow, RetryPolicy::default()))
    });
}
