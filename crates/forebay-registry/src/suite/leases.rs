//! Leases, whose keys vanish with them.

use std::time::{Duration, Instant};

use super::{Bench, events, eventually};
use crate::{Commit, Event, Kind, LEASE_MIN, LeaseId};

/// etcd's shortest lease, with its default timing.
const TTL: Duration = Duration::from_secs(2);

pub fn keys_vanish_when_a_lease_is_given_up(b: &Bench) {
    let lease = b.registry.lease(TTL).expect("a lease is granted");
    let after = b.must(
        &Commit::new()
            .put_leased(b.key("a"), "1", lease.id())
            .put_leased(b.key("b"), "2", lease.id())
            .put(b.key("c"), "3"),
    );
    assert_eq!(b.get("a").expect("it was put").lease, Some(lease.id()));
    let mut watch = b.watch(after);
    lease.give_up().expect("it can be given up");
    assert_eq!(b.range().len(), 1, "they are gone when it returns");
    let told = events(&mut *watch, 2);
    assert!(told.iter().all(|event| matches!(event, Event::Deleted { .. })));
    assert_eq!(told[0].revision(), told[1].revision(), "R5: in one commit");
}

pub fn keys_vanish_when_a_lease_is_dropped(b: &Bench) {
    let lease = b.registry.lease(TTL).expect("a lease is granted");
    b.must(&Commit::new().put_leased(b.key("a"), "", lease.id()));
    drop(lease);
    assert_eq!(b.get("a"), None);
}

pub fn a_kept_lease_outlives_its_time(b: &Bench) {
    let lease = b.registry.lease(TTL).expect("a lease is granted");
    b.must(&Commit::new().put_leased(b.key("a"), "", lease.id()));
    let began = Instant::now();
    while began.elapsed() < TTL * 5 / 2 {
        assert!(b.get("a").is_some(), "it is kept");
        // A starved machine may renew late; then `remaining` says so, and the key may still stand.
        assert!(!lease.is_gone());
        std::thread::sleep(Duration::from_millis(50));
    }
    eventually("it is renewed", || lease.remaining() > TTL / 3);
    lease.give_up().expect("it can be given up");
}

pub fn a_put_without_the_lease_keeps_the_key(b: &Bench) {
    let lease = b.registry.lease(TTL).expect("a lease is granted");
    b.must(&Commit::new().put_leased(b.key("a"), "1", lease.id()));
    b.must(&Commit::new().put(b.key("a"), "2"));
    assert_eq!(b.get("a").expect("it is there").lease, None);
    lease.give_up().expect("it can be given up");
    assert!(b.get("a").is_some());
}

pub fn a_lease_that_is_no_more_is_refused(b: &Bench) {
    let lease = b.registry.lease(TTL).expect("a lease is granted");
    let id = lease.id();
    lease.give_up().expect("it can be given up");
    for id in [id, LeaseId(u64::MAX >> 1)] {
        let commit = Commit::new().put_leased(b.key("a"), "", id).put(b.key("b"), "");
        let error = b.registry.commit(&commit).expect_err("the lease is no more");
        assert_eq!(error.kind(), Kind::Lapsed, "{error}");
        assert!(error.to_string().contains(&id.to_string()), "{error}");
    }
    assert!(b.range().is_empty(), "R2");
}

pub fn a_time_that_cannot_be_is_refused(b: &Bench) {
    for ttl in [Duration::ZERO, LEASE_MIN / 2, Duration::from_secs(1 << 30)] {
        let error = b.registry.lease(ttl).err().expect("nobody can keep that");
        assert_eq!(error.kind(), Kind::Usage, "{error}");
    }
}
