//! Unclaimed files are read without asking the registry, and that never shows old bytes.

use std::fs::{create_dir, hard_link, rename};
use std::time::Duration;

use forebay_tests::cluster::{Cluster, HOLD, bounded, read, reads};
use forebay_tests::{PATIENCE, needs_forebay, needs_network, needs_tools, proof, within};

use crate::{is_honest, write};

/// The lease of a member's process: a writer waits no longer than that for its read grant, and a moment.
const LEASE: Duration = Duration::from_secs(10);
const MOMENT: Duration = Duration::from_secs(4);

/// Two nodes, a directory `d` with files on the store, and another one.
fn laid() -> Cluster {
    lay(Cluster::laid(2))
}

fn lay(mut cluster: Cluster) -> Cluster {
    for dir in ["d", "x"] {
        create_dir(cluster.backing.join(dir)).unwrap();
        for n in 0..30 {
            write(&cluster.backing.join(format!("{dir}/f{n}")), b"old");
        }
    }
    for node in 0..cluster.nodes.len() {
        if !cluster.nodes[node].is_running() {
            cluster.mount(node, HOLD);
        }
    }
    cluster
}

fn grants(cluster: &Cluster, of: usize) -> u64 {
    cluster.told(of, &format!("n{}", of + 1))["grants"].as_u64().expect("a number")
}

/// Reads a file until the node has a read grant.
#[track_caller]
fn has_grant(cluster: &Cluster, node: usize, name: &str) {
    within(PATIENCE, "a node that reads has a grant", || {
        for _ in 0..5 {
            read(&cluster.at(node, name)).unwrap();
        }
        grants(cluster, node) == 1
    });
    // The watch has reported the grant, too.
    std::thread::sleep(Duration::from_millis(20));
}

// S-25
#[test]
fn files_that_nobody_has_claimed_are_opened_without_asking_the_registry() {
    needs_forebay!();
    needs_tools!("etcd", "curl");
    let cluster = laid();
    let counted = |opens: u32, dir: &str| {
        let before = cluster.registry.reads(None);
        for n in 0..opens {
            assert_eq!(read(&cluster.at(1, format!("{dir}/f{}", n % 30))).unwrap(), b"old");
        }
        cluster.registry.reads(None) - before
    };
    let asked = counted(2, "d");
    assert!(asked >= 2, "what is not granted yet is asked for: {asked} reads for 2 opens");
    has_grant(&cluster, 1, "d/f0");
    let under = counted(1000, "d") + counted(1000, "x");
    assert!(under < 20, "2000 opens under a grant made {under} reads of the registry");
    proof!("reads of the registry: {asked} for 2 opens without, {under} for 2000 under a grant");
}

/// A grant survives other nodes' writes: its holder is told of them, and confirms.
#[test]
fn a_node_reads_without_asking_the_registry_while_another_writes() {
    needs_forebay!();
    needs_tools!("etcd", "curl");
    let cluster = laid();
    has_grant(&cluster, 1, "d/f0");
    let before = cluster.registry.reads(None);
    let mut reads = 0;
    for n in 0..40 {
        // The writer's own open asks: the file is unclaimed.
        write(&cluster.at(0, format!("x/f{}", n % 30)), format!("new {n}").as_bytes());
        let seen = read(&cluster.at(1, format!("x/f{}", n % 30))).unwrap();
        assert_eq!(seen, format!("new {n}").as_bytes(), "an open that begins after the write");
        for n in 0..20 {
            assert_eq!(read(&cluster.at(1, format!("d/f{n}"))).unwrap(), b"old");
            reads += 1;
        }
    }
    let asked = cluster.registry.reads(None) - before;
    assert_eq!(grants(&cluster, 1), 1, "it is not given up");
    assert!(asked < 250, "{reads} reads beside 40 writes asked the registry {asked} times");
    proof!("{reads} reads and 40 writes asked the registry {asked} times");
}

fn one_per_round(rounds: usize) -> Cluster {
    let cluster = Cluster::laid(2);
    create_dir(cluster.backing.join("x")).unwrap();
    for round in 0..rounds {
        create_dir(cluster.backing.join(format!("d{round}"))).unwrap();
        for name in ["f", "rest"] {
            write(&cluster.backing.join(format!("d{round}/{name}")), b"old");
        }
        write(&cluster.backing.join(format!("x/f{round}")), b"old");
    }
    let mut cluster = cluster;
    (0..2).for_each(|node| cluster.mount(node, HOLD));
    cluster
}

// S-25
#[test]
fn what_another_node_writes_renames_or_links_is_seen_under_a_grant() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = one_per_round(12);
    for round in 0..12 {
        let new = format!("written {round}").into_bytes();
        let at = format!("d{round}/f");
        assert_eq!(read(&cluster.at(1, &at)).unwrap(), b"old");
        has_grant(&cluster, 1, &format!("d{round}/rest"));
        let from = format!("x/f{round}");
        let (seen, what) = match round % 4 {
            0 => {
                write(&cluster.at(0, &at), &new);
                (at, "a file that is known")
            }
            1 => {
                write(&cluster.at(0, format!("d{round}/new")), &new);
                (format!("d{round}/new"), "a new file")
            }
            2 => {
                write(&cluster.at(0, &from), &new);
                rename(cluster.at(0, &from), cluster.at(0, &at)).unwrap();
                // Cached names are at most this old.
                std::thread::sleep(Duration::from_millis(150));
                (at, "a file that was renamed over one that is known")
            }
            _ => {
                write(&cluster.at(0, &from), &new);
                hard_link(cluster.at(0, &from), cluster.at(0, format!("d{round}/l"))).unwrap();
                (format!("d{round}/l"), "a second name")
            }
        };
        // An open that begins after the change sees it, without a second look.
        assert_eq!(read(&cluster.at(1, &seen)).unwrap(), new, "round {round}: {what}");
    }
}

/// A file with names in two directories, written by one name and read by the other.
#[test]
fn a_file_with_names_in_two_directories_is_seen_under_a_grant_of_either() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = one_per_round(4);
    for round in 0..4 {
        let (one, other) = (format!("d{round}/two"), format!("x/two{round}"));
        write(&cluster.backing.join(&one), b"old");
        hard_link(cluster.backing.join(&one), cluster.backing.join(&other)).unwrap();
        assert_eq!(read(&cluster.at(1, &one)).unwrap(), b"old");
        has_grant(&cluster, 1, &format!("d{round}/rest"));
        let new = format!("through the other name {round}").into_bytes();
        write(&cluster.at(0, &other), &new);
        assert_eq!(read(&cluster.at(1, &one)).unwrap(), new, "round {round}");
    }
}

/// A writer waits for the grant of a dead or stopped node as long as its lease stands.
#[test]
fn a_writer_waits_for_the_grant_of_a_dead_or_stopped_node_no_longer_than_its_lease() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = laid();
    has_grant(&cluster, 1, "d/f1");
    cluster.nodes[1].pause();
    let at = cluster.at(0, "d/f1");
    let (done, stopped) =
        bounded("a write beside a stopped node", move || std::fs::write(at, b"new"));
    done.expect("it waits for the lease, and goes on");
    assert!(stopped < LEASE + MOMENT, "{stopped:?}");
    assert!(stopped > Duration::from_secs(3), "it did wait for somebody: {stopped:?}");
    cluster.nodes[1].resume();
    assert_eq!(read(&cluster.at(1, "d/f1")).unwrap(), b"new", "the first open after it");
    within(PATIENCE, "it is alive again", || cluster.is_alive(0, "n2"));
    has_grant(&cluster, 1, "x/f1");
    cluster.nodes[1].kill9();
    let at = cluster.at(0, "x/made");
    let (done, killed) =
        bounded("a new file beside a dead node", move || std::fs::write(at, b"new"));
    done.expect("it waits for the lease, and goes on");
    assert!(killed < LEASE + MOMENT, "{killed:?}");
    cluster.nodes[1].crash();
    proof!("a writer waited {stopped:?} for a stopped node, {killed:?} for a dead one");
}

/// A node that is cut off from the registry relies on its grant while its lease stands, and not a moment longer.
#[test]
fn a_node_that_is_cut_off_believes_in_its_grant_no_longer_than_the_others_do() {
    needs_network!();
    let cluster = lay(Cluster::networked(2, 1, HOLD));
    has_grant(&cluster, 1, "d/f1");
    cluster.cut_from_registry(1);
    let begun = std::time::Instant::now();
    assert_eq!(read(&cluster.at(1, "d/f1")).unwrap(), b"old", "its lease stands");
    let at = cluster.at(0, "d/f1");
    let (done, took) = bounded("a write beside who is cut off", move || std::fs::write(at, b"new"));
    done.expect("it waits for the lease, and goes on");
    assert!(took < LEASE + MOMENT, "{took:?}");
    match read(&cluster.at(1, "d/f1")) {
        Ok(found) => assert_eq!(found, b"new", "{:?} after the cut", begun.elapsed()),
        Err(why) => assert!(is_honest(&why), "{why}"),
    }
    cluster.mend_to_registry(1);
    reads(&cluster.at(1, "d/f1"), b"new");
    proof!("the writer waited {took:?}");
}

/// Two nodes reach the registry, but not each other: the reader gives its grant up when it learns that it does not
/// answer.
#[test]
fn a_writer_does_not_wait_for_a_lease_where_only_the_link_to_a_reader_is_cut() {
    needs_network!();
    let cluster = lay(Cluster::networked(2, 1, HOLD));
    has_grant(&cluster, 1, "d/f1");
    cluster.cut(0, 1);
    let at = cluster.at(0, "d/f1");
    let (done, took) = bounded("a write beside a cut link", move || std::fs::write(at, b"new"));
    done.expect("it waits for the grant to go, and goes on");
    assert!(took < LEASE - MOMENT, "{took:?}");
    assert!(cluster.is_alive(0, "n2"), "nobody's lease has run out");
    cluster.mend(0, 1);
    reads(&cluster.at(1, "d/f1"), b"new");
    proof!("the writer waited {took:?}");
}
