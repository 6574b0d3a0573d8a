//! A node that is killed, stopped or restarted, and a registry that is away.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use forebay_tests::cluster::{Cluster, HOLD, bounded, difference, read, reads};
use forebay_tests::{PATIENCE, needs_forebay, needs_tools, proof, within};

use crate::{append, is_honest, random, write};

// S-25
#[test]
fn what_a_dead_node_holds_cannot_be_read_until_it_is_back_and_then_all_of_it() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(2, HOLD);
    let bytes = random(3 << 20, 1);
    for dir in ["old", "d"] {
        std::fs::create_dir(cluster.at(0, dir)).unwrap();
    }
    write(&cluster.at(0, "old/home"), b"on the store");
    // While the node claims a directory to make files in it, no other node could tell which files it has.
    cluster.gives_back(0);
    write(&cluster.at(0, "d/f"), &bytes);
    File::open(cluster.at(0, "d/f")).unwrap().sync_all().unwrap();
    assert_eq!(difference(&read(&cluster.at(1, "d/f")).unwrap(), &bytes), None);
    let log = cluster.nodes[1].log().len();
    cluster.nodes[0].crash();
    assert_ne!(cluster.stored("d/f").unwrap(), bytes, "its bytes are with the dead");
    let why = read(&cluster.at(1, "d/f")).expect_err("nobody has its bytes");
    assert!(is_honest(&why), "{why}");
    within(PATIENCE, "its lease has run out", || !cluster.is_alive(1, "n1"));
    let why = read(&cluster.at(1, "d/f")).expect_err("nobody has its bytes");
    assert_eq!(why.raw_os_error(), Some(libc::EIO), "{why}");
    let said = cluster.nodes[1].log_since(log);
    assert!(said.contains("n1"), "the log names the node: {said}");
    // All other files work.
    assert_eq!(read(&cluster.at(1, "old/home")).unwrap(), b"on the store");
    write(&cluster.at(1, "old/other"), b"written meanwhile");
    for _ in 0..3 {
        let why = File::options().write(true).open(cluster.at(1, "d/f")).expect_err("nor written");
        assert_eq!(why.raw_os_error(), Some(libc::EIO), "{why}");
    }
    let epoch = cluster.told(1, "n1")["epoch"].as_u64().unwrap();
    cluster.mount(0, HOLD);
    assert!(cluster.told(1, "n1")["epoch"].as_u64().unwrap() > epoch, "it begins anew");
    assert_eq!(difference(&read(&cluster.at(0, "d/f")).unwrap(), &bytes), None);
    reads(&cluster.at(1, "d/f"), &bytes);
    assert_eq!(read(&cluster.at(0, "old/other")).unwrap(), b"written meanwhile");
    assert!(cluster.dirty(0) >= bytes.len() as u64, "it was not flushed on the way");
    cluster.flush(0);
    assert_eq!(difference(&cluster.stored("d/f").unwrap(), &bytes), None);
}

/// A restarted node knows names by its own operations; later changes of other nodes are not undone.
#[test]
fn a_name_that_was_removed_elsewhere_does_not_come_back_with_the_node_that_made_it() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(2, HOLD);
    std::fs::create_dir(cluster.at(0, "d")).unwrap();
    for name in ["d/empty", "d/written"] {
        write(&cluster.at(0, name), b"");
    }
    write(&cluster.at(0, "d/written"), b"something");
    cluster.gives_back(0);
    cluster.nodes[0].crash();
    within(PATIENCE, "its lease has run out", || !cluster.is_alive(1, "n1"));
    for name in ["d/empty", "d/written"] {
        std::fs::remove_file(cluster.at(1, name)).unwrap();
    }
    std::fs::remove_dir(cluster.at(1, "d")).unwrap();
    cluster.mount(0, HOLD);
    for node in 0..2 {
        assert!(!cluster.at(node, "d").exists(), "it is back on node {node}");
    }
    assert!(!cluster.backing.join("d").exists());
}

/// A program publishes a file under a name that another node's file has; neither was flushed. Whichever node dies
/// finds the names as they were left.
// S-2 S-25
#[test]
fn a_file_that_replaced_another_nodes_is_found_there_though_a_node_is_killed() {
    needs_forebay!();
    needs_tools!("etcd");
    for victim in 0..2 {
        let mut cluster = Cluster::start(2, HOLD);
        for dir in ["d", "old"] {
            std::fs::create_dir(cluster.at(0, dir)).unwrap();
        }
        write(&cluster.at(1, "d/published"), b"to be replaced");
        within(PATIENCE, "it is claimed", || cluster.claims(0, "n2") == 1);
        let bytes = random(10_000, 1);
        write(&cluster.at(0, "d/aside"), &bytes);
        std::fs::rename(cluster.at(0, "d/aside"), cluster.at(0, "d/published")).unwrap();
        write(&cluster.at(0, "old/f"), &bytes);
        std::fs::rename(cluster.at(0, "old"), cluster.at(0, "new")).unwrap();
        cluster.nodes[victim].crash();
        cluster.mount(victim, HOLD);
        for node in 0..2 {
            for name in ["d/published", "new/f"] {
                reads(&cluster.at(node, name), &bytes);
            }
        }
        for node in 0..2 {
            cluster.flush(node);
            assert_eq!(cluster.status(node)["conflicted_files"], 0, "node {node}");
        }
        for name in ["d/published", "new/f"] {
            assert_eq!(difference(&cluster.stored(name).unwrap(), &bytes), None, "{name}");
        }
        for name in ["d/aside", "old"] {
            assert!(!cluster.backing.join(name).exists(), "{name} is back");
        }
    }
}

/// A file made a moment ago has no claim of its own yet: its directory's claim stands for it.
#[test]
fn new_files_of_a_dead_node_are_not_taken_for_empty_ones() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(2, HOLD);
    std::fs::create_dir(cluster.at(0, "d")).unwrap();
    for round in 0..5 {
        let at = cluster.at(0, format!("d/f{round}"));
        write(&at, &random(10_000, round));
        cluster.nodes[0].kill9();
        let at = cluster.at(1, format!("d/f{round}"));
        let found = read(&at);
        let why = found.expect_err("its bytes are with the dead");
        assert!(is_honest(&why), "round {round}: {why}");
        cluster.nodes[0].crash();
        cluster.mount(0, HOLD);
        reads(&at, &random(10_000, round));
    }
}

/// A writer on another node whose home dies gets an error, or goes on and finds every byte.
#[test]
fn a_writer_elsewhere_hears_that_the_home_died_or_loses_nothing() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(2, HOLD);
    let mut want = random(100_000, 1);
    write(&cluster.at(0, "f"), &want);
    let remote = File::options().write(true).open(cluster.at(1, "f")).unwrap();
    remote.write_all_at(b"acknowledged", 0).unwrap();
    cluster.nodes[0].crash();
    cluster.mount(0, HOLD);
    let ((written, synced), took) = bounded("a write through a descriptor of before", move || {
        (remote.write_all_at(b"later", 50_000), remote.sync_all())
    });
    // The daemon's death loses no byte that the home had taken.
    want[..12].copy_from_slice(b"acknowledged");
    if written.is_ok() && synced.is_ok() {
        want[50_000..50_005].copy_from_slice(b"later");
        reads(&cluster.at(0, "f"), &want);
    }
    let found = read(&cluster.at(1, "f")).unwrap();
    assert_eq!(found[..50_000], want[..50_000]);
    assert_eq!(found[50_005..], want[50_005..]);
    proof!("after {took:?}: {written:?}, {synced:?}");
}

/// Bytes that a home loses with its tier's memory, back at once under the same boot or another, are reported at the
/// next fsync.
// S-25
#[test]
fn a_sync_at_another_node_reports_the_loss_in_the_homes_tier() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(2, HOLD);
    for (name, has_lost) in [("kept", false), ("lost", true), ("last", false)] {
        write(&cluster.at(0, name), b"synced by the home");
        File::open(cluster.at(0, name)).unwrap().sync_all().unwrap();
        let open = || File::options().write(true).open(cluster.at(1, name));
        open().unwrap().write_all_at(b"UNSYNCED", 0).unwrap();
        cluster.nodes[0].crash();
        if has_lost {
            // As another mount of the tier's file system does, without a change of the machine's own boot id.
            let boot = "00000000-0000-4000-8000-000000000001";
            cluster.nodes[0].env.push(("FOREBAY_BOOT_ID".into(), boot.into()));
        }
        cluster.mount(0, HOLD);
        let mut opened = None;
        within(PATIENCE, "the home is back", || {
            opened = File::options().write(true).open(cluster.at(1, name)).ok();
            opened.is_some()
        });
        let synced = opened.expect("it was opened").sync_all();
        let why = synced.err().and_then(|error| error.raw_os_error());
        assert_eq!(why, has_lost.then_some(libc::EIO), "{name}");
    }
}

#[test]
fn a_node_that_stands_still_is_waited_for_within_bounds_and_goes_on_afterwards() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(2, HOLD);
    let bytes = random(200_000, 1);
    write(&cluster.at(0, "f"), &bytes);
    write(&cluster.at(1, "own"), b"of the other");
    cluster.nodes[0].pause();
    let at = cluster.at(1, "f");
    let (found, took) = bounded("an open of what a stopped node holds", move || std::fs::read(at));
    let why = found.expect_err("its home stands still");
    assert!(is_honest(&why), "{why}");
    // Operations that do not involve the node go on.
    append(&cluster.at(1, "own"), b", and more").unwrap();
    write(&cluster.at(1, "new"), b"new");
    assert!(cluster.nodes[0].is_running(), "it stood still all that time");
    cluster.nodes[0].resume();
    reads(&cluster.at(1, "f"), &bytes);
    reads(&cluster.at(0, "own"), b"of the other, and more");
    within(PATIENCE, "it is alive again", || cluster.is_alive(1, "n1"));
    // The node's claims stand: it writes on, and the other node sees it.
    append(&cluster.at(0, "f"), b"later").unwrap();
    reads(&cluster.at(1, "f"), &[&bytes[..], b"later"].concat());
    proof!("the open failed after {took:?} with {why}");
}

/// Shorter than the patience: no program sees an error.
#[test]
fn a_short_standstill_is_waited_out() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(2, HOLD);
    let bytes = random(200_000, 1);
    write(&cluster.at(0, "f"), &bytes);
    for _ in 0..3 {
        cluster.nodes[0].pause();
        let at = cluster.at(1, "f");
        let reader = std::thread::spawn(move || std::fs::read(at));
        std::thread::sleep(Duration::from_millis(700));
        assert!(!reader.is_finished(), "it waits for its home");
        cluster.nodes[0].resume();
        let found = reader.join().unwrap().unwrap();
        assert_eq!(difference(&found, &bytes), None);
    }
}

// S-25
#[test]
fn without_the_registry_claimed_files_go_on_and_new_claims_say_why_not() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(2, HOLD);
    for name in ["unclaimed", "other"] {
        write(&cluster.backing.join(name), b"on the store");
    }
    write(&cluster.at(0, "mine"), b"claimed");
    within(PATIENCE, "it is claimed", || cluster.claims(0, "n1") > 0);
    let log = cluster.nodes[0].log().len();
    cluster.registry_dies();
    for n in 0..20 {
        let at = cluster.at(0, "mine");
        let (done, took) = bounded("an append to what is claimed", move || append(&at, b" on"));
        done.unwrap_or_else(|why| panic!("append {n} after {took:?}: {why}"));
    }
    let at = cluster.at(0, "unclaimed");
    let (done, took) = bounded("a new claim", move || append(&at, b"?"));
    let why = done.expect_err("nobody can agree to it");
    assert!(is_honest(&why), "{why}");
    let said = cluster.nodes[0].log_since(log);
    assert!(said.contains("registry"), "the log says what is away: {said}");
    assert_eq!(cluster.stored("unclaimed").unwrap(), b"on the store");
    let made = {
        let at = cluster.at(1, "new");
        bounded("a new file", move || std::fs::write(at, b"new")).0
    };
    assert!(made.is_err(), "a new file is a new claim");
    cluster.registry_returns();
    within(PATIENCE, "new claims are made again", || {
        append(&cluster.at(0, "unclaimed"), b", and more").is_ok()
    });
    let mine = [b"claimed".to_vec(), b" on".repeat(20)].concat();
    reads(&cluster.at(1, "mine"), &mine);
    reads(&cluster.at(1, "unclaimed"), b"on the store, and more");
    within(PATIENCE, "both are alive", || {
        ["n1", "n2"].iter().all(|name| cluster.is_alive(0, name))
    });
    append(&cluster.at(1, "other"), b"!").unwrap();
    reads(&cluster.at(0, "other"), b"on the store!");
    proof!("a new claim failed after {took:?} with {why}");
}

/// The bytes of a node that leaves in order are on the store, and its claims are gone.
#[test]
fn an_unmount_leaves_no_claim_behind() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(2, HOLD);
    for n in 0..20 {
        write(&cluster.at(0, format!("f{n}")), &random(10_000, n));
    }
    cluster.umount(0);
    for n in 0..20 {
        let want = random(10_000, n);
        assert_eq!(cluster.stored(format!("f{n}")).unwrap(), want);
        assert_eq!(difference(&read(&cluster.at(1, format!("f{n}"))).unwrap(), &want), None);
        append(&cluster.at(1, format!("f{n}")), b"!").unwrap();
    }
    assert_eq!(cluster.claims(1, "n1"), 0);
    assert!(!cluster.is_alive(1, "n1"));
}
