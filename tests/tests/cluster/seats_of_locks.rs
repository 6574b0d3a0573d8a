//! The node that holds a lock in unusual cases: a home that is taken for dead and lives, a file whose name is gone.

use std::thread::sleep;
use std::time::Duration;

use forebay_tests::cluster::{Cluster, HOLD, Locker, read};
use forebay_tests::{PATIENCE, needs_forebay, needs_tools, within};

use crate::write;

const EAGAIN: &str = "errno 11";

fn locker(cluster: &Cluster, node: usize, name: &str, how: &str) -> Locker {
    Locker::start(env!("CARGO_BIN_EXE_locker"), &cluster.at(node, name), how)
}

/// A program asks for a lock when the home has stood still for some time, and gets an error when the home counts as
/// dead. The home wakes, reads the request, and must not keep a lock without a holder.
#[test]
fn a_lock_that_was_asked_of_a_home_taken_for_dead_is_nobodys_afterwards() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(3, HOLD);
    write(&cluster.at(0, "f"), b"0");
    for node in [1, 2] {
        within(PATIENCE, "it is seen", || read(&cluster.at(node, "f")).is_ok_and(|b| b == b"0"));
    }
    let mut asks = locker(&cluster, 1, "f", "rw");
    let mut other = locker(&cluster, 2, "f", "rw");
    cluster.nodes[0].pause();
    // The home's lease is 10 s, and the program waits 5 s.
    sleep(Duration::from_secs(7));
    assert!(cluster.is_alive(1, "n1"), "it counts as alive when it is asked");
    let said = asks.says_of("fcntl w 0 10", Duration::from_secs(15));
    assert!(said.starts_with("errno"), "{said}");
    within(PATIENCE, "it counts as dead", || !cluster.is_alive(1, "n1"));
    asks.kill();
    cluster.nodes[0].resume();
    within(PATIENCE, "the lock is free", || other.ask("fcntl w 0 10") == "ok");
}

/// The node whose program has removed the file is not the only one that has it open.
#[test]
fn a_file_whose_name_is_gone_has_one_home_for_its_locks() {
    needs_forebay!();
    needs_tools!("etcd");
    let late = ["--preset", "hold", "--entry-ttl", "60s", "--attr-ttl", "60s"];
    let cluster = Cluster::start(2, &late);
    for name in ["removed", "renamed"] {
        write(&cluster.at(0, name), b"on the store");
        cluster.gives_back(0);
        let mut one = locker(&cluster, 0, name, "ro");
        let mut other = locker(&cluster, 1, name, "ro");
        if name == "renamed" {
            std::fs::hard_link(cluster.backing.join(name), cluster.backing.join("kept")).unwrap();
        }
        std::fs::remove_file(cluster.at(0, name)).unwrap();
        assert_eq!(one.ask("flock ex nb"), "ok", "{name}");
        assert_eq!(other.ask("flock ex nb"), EAGAIN, "{name}: the other has it");
        assert_eq!(one.ask("flock un"), "ok");
        within(PATIENCE, "it is given back", || other.ask("flock ex nb") == "ok");
        assert_eq!(one.ask("flock ex nb"), EAGAIN, "{name}: and the other way round");
        drop((one, other));
        within(PATIENCE, "its claim is given back", || {
            cluster.claims(0, "n1") + cluster.claims(0, "n2") == 0
        });
    }
}
