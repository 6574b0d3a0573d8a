//! Locks that programs on several nodes have of one file.

use std::fs::File;
use std::time::{Duration, Instant};

use forebay_tests::cluster::{Cluster, HOLD, Locker, Member, read};
use forebay_tests::{PATIENCE, needs_forebay, needs_ring, needs_tools, proof, sys, within};

use crate::quota::metrics;
use crate::write;

const EAGAIN: &str = "errno 11";
const EINTR: &str = "errno 4";
const EIO: &str = "errno 5";
const ETIMEDOUT: &str = "errno 110";

/// A locker that has not answered for this long counts as waiting.
const QUIET: Duration = Duration::from_millis(500);

/// A notification must come sooner than a waiting program would ask again by itself.
const TOLD: Duration = Duration::from_millis(700);

/// After this time a member that does not renew its lease is dead to the others.
const DEAD: Duration = Duration::from_secs(25);

fn locker(cluster: &Cluster, node: usize, name: &str, how: &str) -> Locker {
    Locker::start(env!("CARGO_BIN_EXE_locker"), &cluster.at(node, name), how)
}

/// A cluster with a file whose home is its first node.
fn cluster(nodes: usize) -> Cluster {
    with_file(Cluster::start(nodes, HOLD))
}

fn with_file(cluster: Cluster) -> Cluster {
    let nodes = cluster.nodes.len();
    write(&cluster.at(0, "f"), b"0");
    within(PATIENCE, "the file is claimed", || cluster.claims(nodes - 1, "n1") > 0);
    for node in 1..nodes {
        within(PATIENCE, "it is seen", || read(&cluster.at(node, "f")).is_ok_and(|b| b == b"0"));
    }
    cluster
}

/// Two programs on each node.
fn lockers(cluster: &Cluster, name: &str) -> Vec<Locker> {
    let nodes = (0..cluster.nodes.len()).flat_map(|node| [node, node]);
    nodes.map(|node| locker(cluster, node, name, "rw")).collect()
}

/// With `--locks node` the kernel keeps the locks: they hold between the node's programs, and no others.
#[test]
fn locks_that_are_the_nodes_hold_among_its_programs_and_no_close_asks_for_them() {
    needs_forebay!();
    needs_tools!("etcd");
    let flags: Vec<&str> = HOLD.iter().copied().chain(["--locks", "node"]).collect();
    for (flags, are_nodes) in [(flags.as_slice(), true), (HOLD, false)] {
        let cluster = with_file(Cluster::start(2, flags));
        let mut all = lockers(&cluster, "f");
        for (takes, gives) in [("fcntl w 0 0", "fcntl u 0 0"), ("flock ex nb", "flock un")] {
            assert_eq!(all[0].ask(takes), "ok");
            assert_eq!(all[1].ask(takes), EAGAIN, "{takes}: of the same node");
            let elsewhere = if are_nodes { "ok" } else { EAGAIN };
            assert_eq!(all[2].ask(takes), elsewhere, "{takes}: of another node");
            all.iter_mut().for_each(|locker| assert_eq!(locker.ask(gives), "ok"));
        }
        write(&cluster.at(0, "g"), b"0");
        let before = flushes(&cluster.nodes[0]);
        (0..20).for_each(|_| assert_eq!(read(&cluster.at(0, "g")).unwrap(), b"0"));
        assert_eq!(flushes(&cluster.nodes[0]) - before, if are_nodes { 0 } else { 20 });
    }
}

/// The number of closes that a node's daemon was asked about.
fn flushes(node: &Member) -> u64 {
    let page = metrics(node);
    let count = "forebay_operation_duration_seconds_count";
    let mut lines = page.lines().filter(|line| line.starts_with(count));
    // A counter that is still zero has no line.
    let Some(line) = lines.find(|line| line.contains("\"flush\"")) else { return 0 };
    line.rsplit(' ').next().and_then(|count| count.parse().ok()).expect("a number")
}

#[test]
fn a_counter_under_a_lock_loses_nothing_whichever_nodes_count() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = cluster(3);
    let mut lockers = lockers(&cluster, "f");
    let each = 40;
    // The purpose of the locks: without them some additions are lost.
    lockers.iter_mut().for_each(|locker| locker.tell(&format!("add {} none", each * 5)));
    lockers.iter().for_each(|locker| assert_eq!(locker.answer(), "ok"));
    let without: u64 = lockers[0].ask("read").parse().unwrap();
    let all = each * 5 * lockers.len() as u64;
    assert!(without < all, "they count at the same time: {without} of {all}");
    let mut expected = without;
    for how in ["flock", "fcntl", "ofd"] {
        let began = Instant::now();
        lockers.iter_mut().for_each(|locker| locker.tell(&format!("add {each} {how}")));
        for locker in &lockers {
            assert_eq!(locker.says(PATIENCE * 4).as_deref(), Some("ok"), "{how}");
        }
        expected += each * lockers.len() as u64;
        for locker in &mut lockers {
            assert_eq!(locker.ask("read"), expected.to_string(), "{how}");
        }
        proof!("{expected} counted by {how} in {:?}", began.elapsed());
    }
    drop(lockers);
    // No claim is left that would keep the file at its home.
    cluster.gives_back(0);
    let stored = String::from_utf8(cluster.stored("f").unwrap()).unwrap();
    assert_eq!(stored.trim(), expected.to_string());
}

#[test]
fn readers_share_what_a_writer_has_alone() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = cluster(3);
    let mut all: Vec<Locker> = (0..3).map(|node| locker(&cluster, node, "f", "rw")).collect();
    for locker in &mut all {
        assert_eq!(locker.ask("flock sh"), "ok");
    }
    assert_eq!(all[1].ask("flock ex nb"), EAGAIN);
    // A lock that was to be converted is released by flock, on one node and on several.
    assert_eq!(all[0].ask("flock un"), "ok");
    assert_eq!(all[2].ask("flock ex nb"), "ok");
    for at in [0, 1] {
        assert_eq!(all[at].ask("flock sh nb"), EAGAIN);
        assert_eq!(all[at].ask("fcntl w 0 0"), if at == 0 { "ok" } else { EAGAIN }, "another kind");
    }
    assert_eq!(all[2].ask("flock un"), "ok");
    assert_eq!(all[1].ask("flock sh nb"), "ok");
}

#[test]
fn record_locks_exclude_by_range_and_say_who_has_them() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = cluster(2);
    let (mut a, mut b) = (locker(&cluster, 0, "f", "rw"), locker(&cluster, 1, "f", "rw"));
    assert_eq!(b.ask("fcntl w 0 100"), "ok");
    assert_eq!(a.ask("fcntl w 50 10"), EAGAIN);
    assert_eq!(a.ask("fcntl r 99 1"), EAGAIN);
    assert_eq!(a.ask("fcntl r 100 0"), "ok");
    // A process of another node has no pid here.
    assert_eq!(a.ask("test w 10 10"), "w 0 100 0");
    assert_eq!(b.ask("test w 0 0"), "r 100 0 0");
    assert_eq!(b.ask("test r 0 0"), "free");
    let mut beside = locker(&cluster, 0, "f", "ro");
    assert_eq!(beside.ask("test r 100 1"), "free");
    assert_eq!(beside.ask("fcntl r 100 1"), "ok");
    let mut other = locker(&cluster, 0, "f", "rw");
    assert_eq!(other.ask("test w 200 1"), format!("r 100 0 {}", a.pid()));
    assert_eq!(b.ask("fcntl u 40 20"), "ok");
    assert_eq!(a.ask("fcntl w 40 20"), "ok");
    assert_eq!(b.ask("fcntl r 40 1"), EAGAIN);
    // The parts on both sides are still locked.
    for at in [0, 39, 60, 99] {
        assert_eq!(a.ask(&format!("fcntl r {at} 1")), EAGAIN, "byte {at}");
    }
    // Any close of the file by its process releases all its locks.
    assert_eq!(b.ask("open ro"), "ok");
    assert_eq!(b.ask("close"), "ok");
    assert_eq!(a.ask("fcntl w 0 0"), EAGAIN, "the reader beside has byte 100");
    assert_eq!(a.ask("fcntl w 0 100"), "ok");
}

/// A waiting program is woken, on whichever nodes it and the holder are.
#[test]
fn a_waiter_is_woken_when_the_lock_is_given_back() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = cluster(3);
    let mut woken = 0;
    for (holder, waiter) in [(0, 1), (1, 0), (1, 2), (2, 2)] {
        for kind in ["flock", "fcntl", "ofd"] {
            for end in ["unlock", "close", "kill"] {
                let mut has = locker(&cluster, holder, "f", "rw");
                let mut waits = locker(&cluster, waiter, "f", "rw");
                let (take, give, wait) = match kind {
                    "flock" => ("flock ex", "flock un".to_string(), "flock ex".to_string()),
                    _ => (
                        if kind == "fcntl" { "fcntl w 5 5 wait" } else { "ofd w 5 5 wait" },
                        format!("{kind} u 0 0"),
                        format!("{kind} r 0 0 wait"),
                    ),
                };
                let which = format!("{kind}, {end}, from {holder} to {waiter}");
                assert_eq!(has.ask(take), "ok", "{which}");
                waits.tell(&wait);
                assert_eq!(waits.says(QUIET), None, "{which}: it waits");
                let began = Instant::now();
                match end {
                    "unlock" => assert_eq!(has.ask(&give), "ok"),
                    "close" => assert_eq!(has.ask("close"), "ok"),
                    _ => has.kill(),
                }
                assert_eq!(waits.answer(), "ok", "{which}");
                let took = began.elapsed();
                assert!(took < PATIENCE, "{which}: {took:?}");
                woken += u32::from(took < TOLD);
            }
        }
    }
    proof!("{woken} of 36 were told at once");
    assert!(woken >= 30, "who waits is told, and does not only ask again: {woken} of 36");
}

/// Waiting nodes get the lock in turn.
#[test]
fn the_first_waiter_is_granted_first() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = cluster(3);
    let mut has = locker(&cluster, 0, "f", "rw");
    assert_eq!(has.ask("fcntl w 0 1"), "ok");
    let mut waits: Vec<Locker> = [2, 1, 0, 2].map(|at| locker(&cluster, at, "f", "rw")).into();
    for waiter in &mut waits {
        waiter.tell("fcntl w 0 1 wait");
        assert_eq!(waiter.says(QUIET), None);
    }
    assert_eq!(has.ask("fcntl u 0 1"), "ok");
    for at in 0..waits.len() {
        assert_eq!(waits[at].answer(), "ok", "waiter {at}");
        for later in &waits[at + 1..] {
            assert_eq!(later.says(QUIET / 5), None, "before waiter {at} has given it back");
        }
        assert_eq!(waits[at].ask("fcntl u 0 1"), "ok");
    }
}

#[test]
fn a_signal_ends_a_wait() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = cluster(2);
    for (holder, waiter) in [(0, 1), (1, 0), (1, 1)] {
        for wait in ["flock ex", "fcntl w 0 0 wait"] {
            let mut has = locker(&cluster, holder, "f", "rw");
            let mut waits = locker(&cluster, waiter, "f", "rw");
            assert_eq!(has.ask(wait), "ok");
            for _ in 0..3 {
                waits.tell(wait);
                assert_eq!(waits.says(QUIET / 2), None, "it waits");
                waits.signal();
                assert_eq!(waits.says(PATIENCE / 2).as_deref(), Some(EINTR));
            }
            // A program that is killed while it waits is gone, and so is its wait.
            waits.tell(wait);
            assert_eq!(waits.says(QUIET / 2), None, "it waits");
            waits.kill();
            let mut next = locker(&cluster, waiter, "f", "rw");
            next.tell(wait);
            assert_eq!(next.says(QUIET / 2), None, "it waits");
            has.kill();
            assert_eq!(next.answer(), "ok", "nobody was granted it who had given up");
        }
    }
}

#[test]
fn flock_needs_no_right_to_write_and_fcntl_does() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = cluster(2);
    let (mut a, mut b) = (locker(&cluster, 0, "f", "ro"), locker(&cluster, 1, "f", "ro"));
    for _ in 0..2 {
        assert_eq!(b.ask("flock ex"), "ok");
        assert_eq!(a.ask("flock sh nb"), EAGAIN);
        assert_eq!(b.ask("flock un"), "ok");
        assert_eq!(a.ask("flock ex"), "ok");
        assert_eq!(b.ask("flock sh nb"), EAGAIN);
        assert_eq!(a.ask("flock un"), "ok");
    }
    assert_eq!(b.ask("fcntl w 0 0"), "errno 9");
    assert_eq!(b.ask("fcntl r 0 0"), "ok");
}

/// An unclaimed file: the first node that locks it has its claim as long as a program holds a lock.
#[test]
fn a_lock_takes_the_claim_and_holds_it() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = cluster(3);
    cluster.gives_back(0);
    let (mut b, mut c) = (locker(&cluster, 1, "f", "ro"), locker(&cluster, 2, "f", "ro"));
    assert_eq!(b.ask("test r 0 0"), "free");
    assert_eq!(cluster.claims(0, "n2"), 0, "who only looks claims nothing");
    assert_eq!(b.ask("flock sh"), "ok");
    within(PATIENCE, "the lock takes the claim", || cluster.claims(0, "n2") == 1);
    assert_eq!(c.ask("flock ex nb"), EAGAIN);
    assert_eq!(c.ask("flock sh nb"), "ok");
    drop(b);
    std::thread::sleep(Duration::from_secs(6));
    assert_eq!(cluster.claims(0, "n2"), 1, "another node's program has a lock there");
    let mut a = locker(&cluster, 0, "f", "ro");
    assert_eq!(a.ask("flock ex nb"), EAGAIN);
    drop(c);
    within(PATIENCE, "the lock is given back", || a.ask("flock ex nb") == "ok");
    drop(a);
    within(PATIENCE, "and the claim after it", || cluster.claims(0, "n2") == 0);
}

#[test]
fn a_dead_nodes_locks_are_given_back() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = cluster(3);
    let (mut b, mut c) = (locker(&cluster, 1, "f", "rw"), locker(&cluster, 2, "f", "rw"));
    let mut a = locker(&cluster, 0, "f", "rw");
    assert_eq!(b.ask("flock ex"), "ok");
    c.tell("flock ex");
    assert_eq!(c.says(QUIET), None);
    cluster.nodes[1].kill9();
    let began = Instant::now();
    assert_eq!(c.says(DEAD).as_deref(), Some("ok"), "woken by the death of the holder's daemon");
    proof!("woken {:?} after the daemon was killed", began.elapsed());
    assert_eq!(a.ask("flock sh nb"), EAGAIN);
    b.kill();
    // The restart of a daemon before its lease has run out is noticed at once.
    cluster.nodes[1].crash();
    cluster.mount(1, HOLD);
    let mut b = locker(&cluster, 1, "f", "rw");
    assert_eq!(c.ask("flock un"), "ok");
    assert_eq!(b.ask("flock ex"), "ok");
    a.tell("flock ex");
    assert_eq!(a.says(QUIET), None);
    cluster.nodes[1].crash();
    cluster.mount(1, HOLD);
    assert_eq!(a.says(Duration::from_secs(5)).as_deref(), Some("ok"));
}

/// A killed home forgets all locks. A holder still has its lock when the home is back.
#[test]
fn a_home_that_begins_anew_is_given_its_locks_again_before_others_get_any() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = cluster(3);
    let (mut b, mut c) = (locker(&cluster, 1, "f", "ro"), locker(&cluster, 2, "f", "ro"));
    let mut reader = locker(&cluster, 1, "f", "ro");
    assert_eq!(b.ask("flock ex"), "ok");
    assert_eq!(reader.ask("fcntl r 10 10"), "ok");
    c.tell("flock ex");
    assert_eq!(c.says(QUIET), None);
    for round in 0..3 {
        cluster.nodes[0].crash();
        cluster.mount(0, HOLD);
        let mut a = locker(&cluster, 0, "f", "rw");
        let began = Instant::now();
        assert_eq!(a.ask("flock sh nb"), EAGAIN, "round {round}");
        assert_eq!(a.ask("fcntl w 0 0"), EAGAIN, "round {round}");
        assert_eq!(a.ask("fcntl w 0 10"), "ok", "round {round}");
        let took = began.elapsed();
        assert!(took < Duration::from_secs(5), "all others had reclaimed theirs: {took:?}");
        assert_eq!(c.says(QUIET), None, "it waits on");
        assert!(cluster.nodes[1].log().contains("locks were reclaimed"));
    }
    assert_eq!(b.ask("read"), EIO, "as for all who have a file open at a home that died");
    assert_eq!(b.ask("read"), "0");
    assert_eq!(b.ask("flock un"), "ok");
    assert_eq!(c.answer(), "ok");
    assert_eq!(reader.ask("fcntl u 0 0"), "ok");
    assert_eq!(locker(&cluster, 0, "f", "rw").ask("fcntl w 0 0"), "ok");
}

/// A node that does not learn of its home's restart loses its locks there, and its programs are told.
#[test]
fn a_lock_that_was_not_reclaimed_in_time_is_lost_and_its_program_hears_of_it() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = cluster(3);
    let (mut b, mut c) = (locker(&cluster, 1, "f", "rw"), locker(&cluster, 2, "f", "rw"));
    assert_eq!(b.ask("fcntl w 0 10"), "ok");
    // The node stands still for so long that the others take it for dead.
    cluster.nodes[1].pause();
    c.tell("fcntl w 0 10 wait");
    assert_eq!(c.says(QUIET), None);
    assert_eq!(c.says(DEAD).as_deref(), Some("ok"));
    cluster.nodes[1].resume();
    within(PATIENCE, "it hears of it", || b.ask("read") == EIO);
    assert_eq!(b.ask("fcntl w 20 10"), EIO);
    let log = cluster.nodes[1].log();
    let said = log.lines().find(|line| line.contains("a lock is lost"));
    let said = said.expect("the log says so");
    assert!(said.contains(&b.pid().to_string()) && said.contains("file"), "{said}");
    assert_eq!(c.ask("fcntl u 0 10"), "ok");
    // Another open file of the same program is not affected.
    assert_eq!(b.ask("open rw"), "ok");
    assert_eq!(b.ask("fcntl w 0 10"), "ok");
    assert_eq!(c.ask("fcntl w 0 10"), EAGAIN);
}

#[test]
fn locks_of_a_home_that_is_away_fail_within_the_patience() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = cluster(3);
    let (mut b, mut c) = (locker(&cluster, 1, "f", "rw"), locker(&cluster, 2, "f", "rw"));
    let mut other = locker(&cluster, 2, "f", "rw");
    assert_eq!(b.ask("fcntl w 0 10"), "ok");
    c.tell("fcntl w 0 10 wait");
    assert_eq!(c.says(QUIET), None);
    cluster.nodes[0].kill9();
    let is_away = |said: &str| said == EIO || said == ETIMEDOUT;
    let began = Instant::now();
    let log = cluster.nodes[2].log().len();
    let said = other.says_of("fcntl w 20 10", Duration::from_secs(15));
    assert!(is_away(&said), "{said}");
    let said = c.says(Duration::from_secs(15)).expect("the wait ends");
    assert!(is_away(&said), "{said}");
    proof!("both failed within {:?}", began.elapsed());
    assert!(cluster.nodes[2].log_since(log).contains("a lock was not taken"));
    // Releasing a lock is not held up by that.
    assert_eq!(b.ask("fcntl u 0 10"), "ok");
    cluster.nodes[0].crash();
    cluster.mount(0, HOLD);
    let mut a = locker(&cluster, 0, "f", "rw");
    within(PATIENCE, "the lock is free", || a.ask("fcntl w 0 0") == "ok");
}

/// A home that stood still is told later that a lock was released, and only once.
#[test]
fn what_a_home_did_not_hear_it_is_told_when_it_is_back() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = cluster(3);
    let (mut b, mut c) = (locker(&cluster, 1, "f", "rw"), locker(&cluster, 2, "f", "rw"));
    let mut beside = locker(&cluster, 1, "f", "rw");
    assert_eq!(b.ask("fcntl w 0 10"), "ok");
    assert_eq!(b.ask("fcntl w 20 10"), "ok");
    cluster.nodes[0].pause();
    assert_eq!(b.says_of("fcntl u 0 10", Duration::from_secs(15)), "ok");
    let said = beside.says_of("fcntl w 40 10", Duration::from_secs(15));
    assert!(said == ETIMEDOUT || said == EIO, "{said}");
    cluster.nodes[0].resume();
    within(PATIENCE, "the lock is free", || c.ask("fcntl w 0 10") == "ok");
    assert_eq!(c.ask("fcntl w 20 10"), EAGAIN, "the other one is held still");
    within(PATIENCE, "nobody has what was not granted", || c.ask("fcntl w 40 10") == "ok");
    assert_eq!(b.ask("fcntl w 0 10"), EAGAIN);
    assert_eq!(c.ask("fcntl u 0 0"), "ok");
    assert_eq!(b.ask("fcntl w 0 10"), "ok", "and can be taken again");
}

/// The home's daemon is killed again and again while programs on the other nodes exclude each other.
#[test]
fn programs_exclude_each_other_while_the_home_is_killed_and_begins_anew() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = cluster(3);
    let mark = cluster.root.join("mark");
    for how in ["flock", "fcntl", "ofd"] {
        let nodes = [1, 1, 2, 2];
        let mut lockers: Vec<Locker> =
            nodes.iter().map(|at| locker(&cluster, *at, "f", "rw")).collect();
        let began = Instant::now();
        let command = format!("guard 100 {how} {} 20", mark.display());
        lockers.iter_mut().for_each(|locker| locker.tell(&command));
        let mut has = locker(&cluster, 1, "f", "rw");
        let (take, give) = match how {
            "flock" => ("flock ex".to_string(), "flock un".to_string()),
            _ => (format!("{how} w 0 1 wait"), format!("{how} u 0 1")),
        };
        for kill in 0..3 {
            // Another locker holds the lock all the while.
            assert_eq!(has.says_of(&take, PATIENCE), "ok", "{how}, kill {kill}");
            let marked = File::options().write(true).create_new(true).open(&mark);
            assert!(marked.is_ok(), "{how}, kill {kill}: somebody else has it, too");
            cluster.nodes[0].crash();
            cluster.mount(0, HOLD);
            std::thread::sleep(Duration::from_millis(300));
            std::fs::remove_file(&mark).expect("it is there still");
            assert_eq!(has.ask(&give), "ok", "{how}, kill {kill}");
            std::thread::sleep(Duration::from_millis(300));
        }
        let halfway = began.elapsed();
        let mut failed = 0;
        for locker in &lockers {
            let said = locker.says(PATIENCE * 3).expect("it comes to an end");
            failed += said.parse::<u64>().unwrap_or_else(|_| panic!("{how}: {said}"));
        }
        let took = began.elapsed();
        let after = took - halfway;
        assert!(after > QUIET, "the kills were meanwhile: {halfway:?} of {took:?}");
        proof!("{how}: 400 times alone in {took:?}, 3 kills, {failed} calls failed");
    }
    let log = [1, 2].map(|at| cluster.nodes[at].log()).concat();
    assert!(log.contains("locks were reclaimed"), "a lock was held when the home was killed");
    assert!(!log.contains("a lock is lost"), "{log}");
}

/// Over io_uring a wait keeps an entry of the ring, and interrupts come over /dev/fuse all the same.
#[test]
fn many_wait_over_io_uring_and_all_else_goes_on() {
    needs_tools!("etcd");
    let switch = needs_ring!();
    switch.set("Y");
    let flags: Vec<&str> = HOLD.iter().copied().chain(["--transport", "io-uring"]).collect();
    let cluster = Cluster::start(2, &flags);
    drop(switch);
    let cluster = with_file(cluster);
    let mut has = locker(&cluster, 0, "f", "rw");
    assert_eq!(has.ask("flock ex"), "ok");
    let mut waits: Vec<Locker> = (0..24).map(|at| locker(&cluster, at % 2, "f", "rw")).collect();
    for waiter in &mut waits {
        waiter.tell("flock ex");
    }
    for waiter in &waits {
        assert_eq!(waiter.says(QUIET / 10), None, "it waits");
    }
    for at in 0..2 {
        write(&cluster.at(at, format!("beside{at}")), b"goes on");
        assert_eq!(read(&cluster.at(at, format!("beside{at}"))).unwrap(), b"goes on");
    }
    for waiter in &waits[..8] {
        waiter.signal();
        assert_eq!(waiter.says(PATIENCE).as_deref(), Some(EINTR));
    }
    assert_eq!(has.ask("flock un"), "ok");
    let mut left: Vec<Locker> = waits.drain(8..).collect();
    let began = Instant::now();
    while !left.is_empty() {
        assert!(began.elapsed() < PATIENCE, "{} wait for nobody", left.len());
        let granted =
            left.iter().position(|waiter| waiter.says(Duration::from_millis(5)).is_some());
        if let Some(at) = granted {
            assert_eq!(left[at].ask("flock un"), "ok");
            left.remove(at);
        }
    }
    proof!("16 had their turn in {:?}", began.elapsed());
}

/// As many programs as may wait at once do, and are all woken; more get an error.
#[test]
fn so_many_wait_at_once_and_no_more() {
    needs_forebay!();
    needs_tools!("etcd");
    const WAITS: usize = 400;
    let cluster = cluster(2);
    let mut has = locker(&cluster, 0, "f", "rw");
    assert_eq!(has.ask("ofd w 0 1"), "ok");
    let (send, came) = std::sync::mpsc::channel();
    for _ in 0..WAITS + 40 {
        let (path, send) = (cluster.at(1, "f"), send.clone());
        std::thread::spawn(move || {
            let file = sys::open(&path, libc::O_RDONLY, 0)?;
            let locked = sys::ofd_lock_wait(&file, libc::F_RDLCK, 0, 1);
            send.send(locked.map_err(|why| why.raw_os_error())).map_err(std::io::Error::other)
        });
    }
    for _ in 0..40 {
        assert_eq!(came.recv_timeout(PATIENCE), Ok(Err(Some(libc::ENOLCK))));
    }
    assert!(came.recv_timeout(QUIET).is_err(), "all others wait");
    assert_eq!(std::fs::metadata(cluster.at(1, "f")).unwrap().len(), 1, "all else goes on");
    assert_eq!(has.ask("ofd u 0 1"), "ok");
    for _ in 0..WAITS {
        assert_eq!(came.recv_timeout(PATIENCE), Ok(Ok(())));
    }
}
