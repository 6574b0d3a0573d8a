//! Links between nodes, and between nodes and their registry, cut and mended.

use std::time::Duration;

use forebay_tests::cluster::{Cluster, HOLD, bounded, difference, read, reads};
use forebay_tests::{PATIENCE, eventually, needs_network, proof, within};

use crate::{append, is_honest, random, write};

/// A node does not make up bytes that it cannot ask for; operations that need no other node go on; all
/// works once the link is mended.
#[track_caller]
fn held_elsewhere_fails(cluster: &Cluster, node: usize, name: &str, how: &str) -> Duration {
    let at = cluster.at(node, name);
    let (found, took) = bounded(&format!("{how}: {name}"), move || std::fs::read(at));
    match found {
        Ok(found) => panic!("{how}: n{} has read {} bytes of {name}", node + 1, found.len()),
        Err(why) => assert!(is_honest(&why), "{how}: {why}"),
    }
    took
}

#[test]
fn nodes_that_do_not_reach_each_other_fail_within_bounds_and_go_on_when_they_do() {
    needs_network!();
    let cluster = Cluster::networked(3, 1, HOLD);
    let bytes = random(300_000, 1);
    write(&cluster.at(0, "f"), &bytes);
    write(&cluster.at(1, "own"), b"own");
    assert_eq!(difference(&read(&cluster.at(1, "f")).unwrap(), &bytes), None);
    let mut took = Vec::new();
    type Cut = fn(&Cluster);
    let ways: [(&str, Cut, Cut); 3] = [
        ("both ways", |all| all.cut(0, 1), |all| all.mend(0, 1)),
        ("questions are lost", |all| all.cut_one_way(1, 0), |all| all.mend_one_way(1, 0)),
        ("answers are lost", |all| all.cut_one_way(0, 1), |all| all.mend_one_way(0, 1)),
    ];
    for (how, cut, mend) in ways {
        cut(&cluster);
        took.push(held_elsewhere_fails(&cluster, 1, "f", how));
        append(&cluster.at(1, "own"), b".").unwrap();
        assert_eq!(
            difference(&read(&cluster.at(2, "f")).unwrap(), &bytes),
            None,
            "{how}: the third"
        );
        assert!(cluster.is_alive(1, "n1"), "{how}: both reach the registry");
        mend(&cluster);
        reads(&cluster.at(1, "f"), &bytes);
    }
    reads(&cluster.at(0, "own"), b"own...");
    proof!("opens failed after {took:?}");
}

#[test]
fn a_node_without_its_registry_goes_on_with_what_it_has_claimed() {
    needs_network!();
    let cluster = Cluster::networked(2, 1, HOLD);
    write(&cluster.at(0, "f"), b"claimed");
    write(&cluster.backing.join("unclaimed"), b"on the store");
    within(PATIENCE, "it is claimed", || cluster.claims(1, "n1") > 0);
    cluster.cut_from_registry(0);
    within(PATIENCE, "the others take it for dead", || !cluster.is_alive(1, "n1"));
    for _ in 0..10 {
        append(&cluster.at(0, "f"), b".").unwrap();
    }
    assert_eq!(read(&cluster.at(0, "f")).unwrap(), b"claimed..........");
    let at = cluster.at(0, "unclaimed");
    let (done, _) = bounded("a new claim", move || append(&at, b"?"));
    assert!(is_honest(&done.expect_err("nobody can agree to it")));
    // The home may be asked all the same, or is taken for dead; an older content is never returned.
    match read(&cluster.at(1, "f")) {
        Ok(found) => assert_eq!(found, b"claimed.........."),
        Err(why) => assert!(is_honest(&why), "{why}"),
    }
    let at = cluster.at(1, "f");
    let (wrote, _) = bounded("a write elsewhere", move || append(&at, b"!"));
    cluster.mend_to_registry(0);
    within(PATIENCE, "it is alive again", || cluster.is_alive(1, "n1"));
    append(&cluster.at(0, "f"), b"#").unwrap();
    let want: &[u8] = if wrote.is_ok() { b"claimed..........!#" } else { b"claimed..........#" };
    reads(&cluster.at(1, "f"), want);
    within(PATIENCE, "new claims are made", || append(&cluster.at(0, "unclaimed"), b"+").is_ok());
    reads(&cluster.at(1, "unclaimed"), b"on the store+");
}

#[test]
fn a_node_that_is_cut_off_from_all_comes_back_with_its_bytes() {
    needs_network!();
    let cluster = Cluster::networked(3, 1, HOLD);
    let bytes = random(500_000, 2);
    write(&cluster.at(0, "f"), &bytes);
    std::fs::create_dir(cluster.at(1, "d")).unwrap();
    write(&cluster.at(1, "d/g"), b"before");
    assert_eq!(read(&cluster.at(0, "d/g")).unwrap(), b"before");
    cluster.unplug(0);
    let took = held_elsewhere_fails(&cluster, 1, "f", "unplugged");
    within(PATIENCE, "its lease has run out", || !cluster.is_alive(1, "n1"));
    held_elsewhere_fails(&cluster, 2, "f", "dead");
    // The two other nodes go on, and change files that the first one knows.
    write(&cluster.at(2, "d/g"), b"after, and longer");
    write(&cluster.at(1, "d/new"), b"new");
    append(&cluster.at(0, "f"), b"alone").unwrap();
    cluster.plug_in(0);
    let want = [&bytes[..], b"alone"].concat();
    reads(&cluster.at(1, "f"), &want);
    reads(&cluster.at(2, "f"), &want);
    reads(&cluster.at(0, "d/g"), b"after, and longer");
    reads(&cluster.at(0, "d/new"), b"new");
    within(PATIENCE, "it is alive again", || cluster.is_alive(1, "n1"));
    (0..3).for_each(|node| cluster.flush(node));
    assert_eq!(difference(&cluster.stored("f").unwrap(), &want), None);
    proof!("an open failed after {took:?}");
}

#[test]
fn of_three_members_of_the_registry_two_are_enough() {
    needs_network!();
    let mut cluster = Cluster::networked(2, 3, HOLD);
    write(&cluster.at(0, "f"), b"0");
    write(&cluster.backing.join("unclaimed"), b"on the store");
    for dead in 0..3 {
        cluster.registry.kill(dead);
        // A dead leader is replaced within seconds; no program sees an error meanwhile.
        for node in 0..2 {
            let name = format!("new-{dead}-{node}");
            write(&cluster.at(node, &name), name.as_bytes());
            reads(&cluster.at(1 - node, &name), name.as_bytes());
        }
        append(&cluster.at(1, "f"), b".").unwrap();
        cluster.registry_returns();
    }
    reads(&cluster.at(0, "f"), b"0...");
    cluster.registry.kill(0);
    cluster.registry.kill(2);
    let at = cluster.at(0, "unclaimed");
    let (made, took) = bounded("a new claim with one of three", move || append(&at, b"?"));
    assert!(made.is_err(), "one of three agrees with nobody");
    append(&cluster.at(0, "f"), b"!").unwrap();
    cluster.registry_returns();
    let again = eventually(PATIENCE, || std::fs::write(cluster.at(1, "later"), b"x").is_ok());
    assert!(again, "with all three it goes on");
    reads(&cluster.at(1, "f"), b"0...!");
    proof!("a new claim failed after {took:?}");
}
