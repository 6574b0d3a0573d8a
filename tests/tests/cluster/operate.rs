//! What an operator decides of a dead node.

use std::fs::File;

use forebay_tests::cluster::{Cluster, HOLD, read, reads};
use forebay_tests::{PATIENCE, needs_forebay, needs_tools, text, within};

use crate::{random, write};

#[test]
fn what_a_dead_node_has_is_listed_and_given_up_by_name_only() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(2, HOLD);
    std::fs::create_dir(cluster.at(0, "d")).unwrap();
    for name in ["d/a", "d/b", "c"] {
        write(&cluster.at(0, name), b"on the store");
    }
    cluster.gives_back(0);
    let newer = random(100_000, 1);
    for name in ["d/a", "d/b", "c"] {
        write(&cluster.at(0, name), &newer);
        File::open(cluster.at(0, name)).unwrap().sync_all().unwrap();
    }
    let mnt = cluster.nodes[1].mnt.clone();
    let mnt = text(&mnt);
    let out = cluster.forebay(1, &["member", "missing", mnt]);
    assert_eq!(out.code, Some(0), "its member is alive: {out:#?}");
    assert!(out.stdout.contains("d/a") && out.stdout.contains("n1"), "{out:#?}");
    let alive = cluster.forebay(1, &["member", "give-up", mnt, "n1", "--confirm", "n1"]);
    assert_eq!(alive.code, Some(2), "nobody gives up what a living node has: {alive:#?}");
    assert!(alive.stderr.contains("is alive"), "{alive:#?}");
    cluster.nodes[0].crash();
    within(PATIENCE, "its lease has run out", || !cluster.is_alive(1, "n1"));
    let out = cluster.forebay(1, &["member", "missing", mnt, "--json"]);
    assert_eq!(out.code, Some(1), "{out:#?}");
    assert_eq!(out.json().as_array().unwrap().len(), 3);
    assert!(read(&cluster.at(1, "d/a")).is_err());
    for wrong in [&["n1"][..], &["n1", "--confirm", "n2"], &["n9", "--confirm", "n9"]] {
        let out = cluster.forebay(1, &[&["member", "give-up", mnt], wrong].concat());
        assert_eq!(out.code, Some(2), "{wrong:?}: {out:#?}");
    }
    let out = cluster.forebay(1, &["member", "remove", mnt, "n1"]);
    assert!(out.code == Some(2) && out.stderr.contains("3 files"), "{out:#?}");
    // By path: the others stay.
    cluster.forebay(1, &["member", "give-up", mnt, "n1", "d", "--confirm", "n1"]).ok();
    reads(&cluster.at(1, "d/a"), b"on the store");
    reads(&cluster.at(1, "d/b"), b"on the store");
    assert!(read(&cluster.at(1, "c")).is_err(), "that was not given up");
    write(&cluster.at(1, "d/a"), b"written since");
    // It comes back: what was given up is kept aside, the rest is its own as ever.
    cluster.mount(0, HOLD);
    reads(&cluster.at(0, "c"), &newer);
    reads(&cluster.at(1, "c"), &newer);
    reads(&cluster.at(0, "d/a"), b"written since");
    reads(&cluster.at(0, "d/b"), b"on the store");
    within(PATIENCE, "both are kept aside", || cluster.status(0)["conflicted_files"] == 2);
    let kept = cluster.at(0, "d/b");
    cluster.forebay(0, &["resolve", text(&kept), "--keep", "theirs"]).ok();
    reads(&cluster.at(0, "d/b"), b"on the store");
}

#[test]
fn a_dead_node_is_taken_out_and_its_name_is_free() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(2, HOLD);
    write(&cluster.at(0, "f"), b"only there");
    within(PATIENCE, "the new file has a claim of its own", || cluster.claims(1, "n1") == 1);
    cluster.nodes[0].crash();
    within(PATIENCE, "its lease has run out", || !cluster.is_alive(1, "n1"));
    let mnt = cluster.nodes[1].mnt.clone();
    let mnt = text(&mnt);
    let two = &["member", "stopped", mnt, "n1", "--confirm", "n1", "--confirm", "n2"];
    assert_eq!(cluster.forebay(1, two).code, Some(2), "one is said to have stopped");
    cluster.forebay(1, &["member", "stopped", mnt, "n1", "--confirm", "n1"]).ok();
    let given = cluster.forebay(1, &["member", "give-up", mnt, "n1", "--confirm", "n1"]).ok();
    assert!(given.stdout.contains("1 file"), "{given:#?}");
    cluster.forebay(1, &["member", "remove", mnt, "n1"]).ok();
    let told = cluster.forebay(1, &["status", "--cluster", mnt]).ok();
    assert!(!told.stdout.contains("n1"), "{told:#?}");
    // Its flash is gone for good: another takes its name.
    std::fs::remove_dir_all(&cluster.nodes[0].tier).unwrap();
    cluster.mount(0, HOLD);
    write(&cluster.at(0, "f"), b"anew");
    reads(&cluster.at(1, "f"), b"anew");
}
