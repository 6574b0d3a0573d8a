//! An operator's decisions about a dead node.

use std::fs::File;

use forebay_tests::cluster::{Cluster, HOLD, read, reads};
use forebay_tests::{PATIENCE, kill, needs_forebay, needs_tools, text, within};
use serde_json::Value;

use crate::takeover::{COPIED, has_partner};
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
    assert!(out.stdout.contains("n1: 293.0 KiB in 3 files, the oldest "), "{out:#?}");
    let files = cluster.forebay(1, &["member", "missing", mnt, "--json"]).ok().json();
    for file in files.as_array().unwrap() {
        assert_eq!((&file["bytes"], &file["said_by"]), (&100_000.into(), &"n1".into()), "{file}");
        assert!(file["age_secs"].as_f64() >= Some(0.0), "{file}");
    }
    let alive = cluster.forebay(1, &["member", "give-up", mnt, "n1", "--confirm", "n1"]);
    assert_eq!(alive.code, Some(2), "nobody gives up what a living node has: {alive:#?}");
    assert!(alive.stderr.contains("is alive"), "{alive:#?}");
    cluster.nodes[0].crash();
    within(PATIENCE, "its lease has run out", || !cluster.is_alive(1, "n1"));
    let out = cluster.forebay(1, &["member", "missing", mnt, "--json"]);
    assert_eq!(out.code, Some(1), "{out:#?}");
    assert_eq!(out.json().as_array().unwrap().len(), 3);
    assert!(out.json()[0]["bytes"].is_null(), "nobody can say: {out:#?}");
    let told = cluster.forebay(1, &["member", "missing", mnt]).expect(1).stdout;
    assert!(told.contains("n1: 3 files, of unknown size"), "{told}");
    assert!(read(&cluster.at(1, "d/a")).is_err());
    for wrong in [&["n1"][..], &["n1", "--confirm", "n2"], &["n9", "--confirm", "n9"]] {
        let out = cluster.forebay(1, &[&["member", "give-up", mnt], wrong].concat());
        assert_eq!(out.code, Some(2), "{wrong:?}: {out:#?}");
    }
    let out = cluster.forebay(1, &["member", "remove", mnt, "n1"]);
    assert!(out.code == Some(2) && out.stderr.contains("3 files"), "{out:#?}");
    // Given up by path: the other files stay.
    cluster.forebay(1, &["member", "give-up", mnt, "n1", "d", "--confirm", "n1"]).ok();
    reads(&cluster.at(1, "d/a"), b"on the store");
    reads(&cluster.at(1, "d/b"), b"on the store");
    assert!(read(&cluster.at(1, "c")).is_err(), "that was not given up");
    write(&cluster.at(1, "d/a"), b"written since");
    // The node comes back: given-up files are kept aside, the rest is its own as before.
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

/// What was given up is in conflict where it comes back, while another node is the home of the files. Method: one
/// file was written since, one replaced by another, and one removed.
// S-8 S-25
#[test]
fn a_conflict_is_settled_past_no_other_node() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(2, HOLD);
    let names = ["written", "replaced", "removed", "beside"];
    names.iter().for_each(|name| write(&cluster.at(0, name), b"old, and longer"));
    cluster.nodes[0].crash();
    within(PATIENCE, "its lease has run out", || !cluster.is_alive(1, "n1"));
    let mnt = text(&cluster.nodes[1].mnt).to_string();
    cluster.forebay(1, &["member", "give-up", &mnt, "n1", "--confirm", "n1"]).ok();
    write(&cluster.at(1, "written"), b"new");
    write(&cluster.at(1, "beside"), b"new");
    write(&cluster.at(1, "other"), b"new");
    std::fs::rename(cluster.at(1, "other"), cluster.at(1, "replaced")).unwrap();
    std::fs::remove_file(cluster.at(1, "removed")).unwrap();
    cluster.mount(0, HOLD);
    let conflicts = |cluster: &Cluster| cluster.status(0)["conflicted_files"].as_u64();
    within(PATIENCE, "all are kept aside", || conflicts(&cluster) == Some(4));
    let settle = |cluster: &Cluster, name: &str, keep: &str| {
        cluster.forebay(0, &["resolve", text(&cluster.at(0, name)), "--keep", keep])
    };
    for name in ["written", "replaced"] {
        let out = settle(&cluster, name, "ours");
        assert_eq!(out.code, Some(2), "{name}: {out:#?}");
        assert!(out.stderr.contains("n2"), "{name}: the home is named: {out:#?}");
        assert_ne!(cluster.stored(name).unwrap(), b"old, and longer", "{name}");
        (0..2).for_each(|node| reads(&cluster.at(node, name), b"new"));
    }
    assert_eq!(conflicts(&cluster), Some(4), "nothing has begun");
    // What changes no file of another node needs no leave.
    settle(&cluster, "removed", "ours").ok();
    settle(&cluster, "beside", "both").ok();
    for node in 0..2 {
        reads(&cluster.at(node, "removed"), b"old, and longer");
        reads(&cluster.at(node, "beside.forebay-ours-1"), b"old, and longer");
        reads(&cluster.at(node, "beside"), b"new");
    }
    cluster.gives_back(1);
    for name in ["written", "replaced"] {
        assert_eq!(cluster.stored(name).unwrap(), b"new", "{name}");
        settle(&cluster, name, "ours").ok();
        assert_eq!(cluster.stored(name).unwrap(), b"old, and longer", "{name}");
        (0..2).for_each(|node| reads(&cluster.at(node, name), b"old, and longer"));
        write(&cluster.at(1, name), b"later");
        (0..2).for_each(|node| reads(&cluster.at(node, name), b"later"));
    }
    for node in [1, 0] {
        cluster.flush(node);
        assert_eq!(cluster.status(node)["conflicted_files"], 0, "n{}", node + 1);
        cluster.umount(node);
    }
}

#[test]
fn the_files_of_a_dead_node_are_told_by_a_copy_holder() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(2, COPIED);
    has_partner(&cluster, 0);
    for (name, bytes) in [("a", 5000), ("b", 70_000)] {
        write(&cluster.at(0, name), &random(bytes, 1));
        File::open(cluster.at(0, name)).unwrap().sync_all().unwrap();
    }
    let missing = |more: &str| {
        let mnt = text(&cluster.nodes[1].mnt);
        cluster.forebay(1, &["member", "missing", mnt, more])
    };
    let of = |file: &Value| (file["said_by"].clone(), file["bytes"].clone());
    let told = missing("--json").ok().json();
    assert_eq!(
        (of(&told[0]), of(&told[1])),
        (("n1".into(), 5000.into()), ("n1".into(), 70_000.into()))
    );
    // n1 is not asked any more once it does not answer; n2 has copies, and later the files themselves.
    cluster.nodes[0].pause();
    let told = missing("--json").ok().json();
    assert_eq!(
        (of(&told[0]), of(&told[1])),
        (("n2".into(), 5000.into()), ("n2".into(), 70_000.into()))
    );
    assert!(told[0]["age_secs"].as_f64().is_some_and(|age| age < 3600.0), "{told}");
    let page = missing("--member=n2").text() + &missing("--member=n1").text();
    assert!(page.contains("73.2 KiB in 2 files"), "{page}");
    cluster.nodes[0].resume();
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
    // The node's flash is gone for good: another node takes its name.
    std::fs::remove_dir_all(&cluster.nodes[0].tier).unwrap();
    cluster.mount(0, HOLD);
    write(&cluster.at(0, "f"), b"anew");
    reads(&cluster.at(1, "f"), b"anew");
}

fn copies_of(cluster: &Cluster, at: usize, name: &str) -> Value {
    let mnt = text(&cluster.nodes[at].mnt);
    let files = cluster.forebay(at, &["ls", "--json", mnt]).ok().json();
    let files = files.as_array().cloned().unwrap_or_default();
    let file = files.into_iter().find(|file| file["path"] == name);
    file.unwrap_or_else(|| panic!("no {name}"))["copies"].clone()
}

#[test]
fn ls_says_how_many_members_have_what_was_acknowledged_of_each_file() {
    needs_forebay!();
    needs_tools!("etcd");
    let cluster = Cluster::start(2, COPIED);
    has_partner(&cluster, 0);
    let synced = |name: &str| {
        write(&cluster.at(0, name), b"acknowledged");
        File::open(cluster.at(0, name)).unwrap().sync_all().unwrap();
    };
    synced("a");
    synced("home");
    assert_eq!(copies_of(&cluster, 0, "a"), serde_json::json!({ "members": 1, "wanted": 1 }));
    let page = cluster.forebay(0, &["ls", "-l", text(&cluster.nodes[0].mnt)]).ok().stdout;
    assert!(page.lines().any(|line| line.contains("1 of 1") && line.ends_with(" a")), "{page}");
    // The partner is gone, and the next fsync removes it.
    kill(cluster.nodes[1].pid(), libc::SIGKILL);
    synced("b");
    for name in ["a", "b"] {
        within(PATIENCE, "no copy is told of", || copies_of(&cluster, 0, name)["members"] == 0);
    }
    // Flushed files need no copies.
    cluster.flush(0);
    within(PATIENCE, "it is clean", || copies_of(&cluster, 0, "home").is_null());
}
