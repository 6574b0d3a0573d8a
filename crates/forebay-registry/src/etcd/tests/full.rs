//! An etcd whose quota is used up: which operations work, which do not, and the remedy.

use serde_json::json;

use super::server::{Server, start};
use super::*;

const QUOTA: u64 = 4_000_000;

/// etcd's shortest lease, with its default timing.
const TTL: Duration = Duration::from_secs(2);

/// Puts the same key again and again, so that most of the data is history, until etcd accepts no
/// more. It looks at its size ten times a second.
fn fill(b: &Bench) -> Error {
    let large = Commit::new().put(b.key("large"), vec![b'v'; limits::VALUE_MAX]);
    let tried = (0..400).find_map(|_| b.registry.commit(&large).err());
    tried.expect("the quota holds")
}

fn assert_full(error: &Error) {
    assert!(error.is(libc::ENOSPC) && error.to_string().contains("etcdctl defrag"), "{error}");
}

fn is_alarmed(b: &Bench) -> bool {
    b.registry.health().is_ok_and(|health| health.alarms == [Alarm::NoSpace])
}

#[test]
fn at_the_quota_what_takes_no_room_goes_on_and_commits_do_after_the_remedy() {
    let Some(server) = start(&["--quota-backend-bytes", &QUOTA.to_string()]) else { return };
    let b = bench(server.open(""));
    let health = b.registry.health().expect("it answers");
    assert_eq!((health.quota, health.alarms.len()), (Some(QUOTA), 0));
    let kept = b.registry.lease(TTL).expect("a lease is granted");
    let other = b.registry.lease(TTL).expect("a lease is granted");
    let made = b.must(
        &Commit::new()
            .put_leased(b.key("kept"), "", kept.id())
            .put_leased(b.key("other"), "", other.id())
            .put(b.key("small"), ""),
    );
    assert_full(&fill(&b));
    eventually("the alarm is raised", || is_alarmed(&b));

    // No commit is accepted, not even one that only deletes: its mark takes room.
    assert_full(&b.registry.commit(&Commit::new().put(b.key("a"), "")).expect_err("full"));
    assert_full(&b.registry.commit(&Commit::new().delete(b.key("small"))).expect_err("full"));
    assert_full(&b.registry.lease(TTL).err().expect("no lease is granted"));
    assert_eq!(b.get("a"), None);
    // Reading goes on, and so do the renewals of leases.
    assert!(b.get("small").is_some(), "nothing was deleted");
    std::thread::sleep(TTL * 2);
    assert_eq!(b.get("kept").map(|entry| entry.revision), Some(made), "R5");
    assert!(!kept.is_gone() && !kept.remaining().is_zero(), "R5");
    // Leases can be given up, and watches report it.
    let mut watch = b.watch(b.revision());
    other.give_up().expect("it can be given up");
    assert_eq!(b.get("other"), None);
    let told = suite::events(&mut *watch, 1);
    assert!(matches!(&told[0], Event::Deleted { key, .. } if *key == b.key("other")), "{told:?}");
    assert!(is_alarmed(&b), "nothing of that has made room");

    remedy(&server, &b);
    let after = b.must(&Commit::new().put(b.key("a"), "").delete(b.key("small")));
    assert_eq!(suite::events(&mut *watch, 2)[0].revision(), after);
    assert_eq!(b.get("kept").map(|entry| entry.revision), Some(made), "R5");
    b.registry.lease(TTL).expect("a lease is granted").give_up().expect("it can be given up");
}

/// The remedy of the error text: compact, defragment, disarm the alarm.
fn remedy(server: &Server, b: &Bench) {
    b.registry.compact(b.revision()).expect("it answers");
    // etcd gives compacted room back by and by.
    eventually("the defragmentation makes room", || {
        server.admin("/v3/maintenance/defragment", &json!({}));
        b.registry.health().is_ok_and(|health| health.bytes < QUOTA / 2)
    });
    assert!(is_alarmed(b), "it does not see by itself that there is room");
    let alarms = server.admin("/v3/maintenance/alarm", &json!({}));
    let member = alarms["alarms"][0]["memberID"].clone();
    let disarm = json!({ "action": "DEACTIVATE", "memberID": member, "alarm": "NOSPACE" });
    server.admin("/v3/maintenance/alarm", &disarm);
    assert_eq!(b.registry.health().expect("it answers").alarms, []);
}
