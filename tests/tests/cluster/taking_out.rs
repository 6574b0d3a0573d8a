//! Taking a node out of the cluster, from any node.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use forebay_tests::cluster::{Cluster, HOLD, reads};
use forebay_tests::node::Node;
use forebay_tests::{
    PATIENCE, Proc, binary, images, is_alive, kill, needs_forebay, needs_tools, proof, text, within,
};

use crate::{random, write};

/// Slow enough for a drain to be under way while a test looks at it.
const SLOW: &[&str] = &["--preset", "hold", "--throttle", "1MB,1ms"];

#[test]
fn a_member_is_taken_out_from_another_node_and_is_one_again_when_mounted() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(2, HOLD);
    let (at_0, pid) = (text(&cluster.nodes[0].mnt).to_string(), cluster.nodes[1].pid());
    let bytes = random(300_000, 1);
    (0..3).for_each(|n| write(&cluster.at(1, format!("f{n}")), &bytes));
    assert!(cluster.dirty(1) >= 900_000, "nothing goes home by itself");
    let out = cluster.forebay(0, &["member", "drain", &at_0, "n2"]).ok();
    assert!(out.stdout.contains("3 files") && out.stdout.contains("drained"), "{out:#?}");
    // When the command returns, all is done: the next mount finds the tier free.
    assert!(images::mounted_at(&cluster.nodes[1].mnt).is_none(), "it is unmounted");
    within(PATIENCE, "its daemon ends", || !is_alive(pid));
    (0..3).for_each(|n| assert_eq!(cluster.stored(format!("f{n}")).unwrap(), bytes));
    let told = cluster.told(0, "n2");
    assert_eq!((&told["alive"], &told["claims"]), (&false.into(), &0.into()), "{told:#}");
    let again = cluster.forebay(0, &["member", "drain", &at_0, "n2"]).ok();
    assert!(again.stdout.contains("has left before"), "{again:#?}");
    cluster.mount(1, HOLD);
    write(&cluster.at(1, "g"), b"a member as before");
    reads(&cluster.at(0, "g"), b"a member as before");
    // For the node's own mount the command is like umount.
    let at_1 = text(&cluster.nodes[1].mnt).to_string();
    let out = cluster.forebay(1, &["member", "drain", &at_1, "n2", "--json"]).ok();
    assert_eq!(
        (&out.json()["kind"], &out.json()["report"]["files"]),
        (&"umount".into(), &1.into())
    );
    assert!(images::mounted_at(&cluster.nodes[1].mnt).is_none());
    proof!("n2 left twice, with {} bytes home", 3 * bytes.len());
}

#[test]
fn a_member_that_is_in_use_or_away_is_not_taken_out() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(2, HOLD);
    let at_0 = text(&cluster.nodes[0].mnt).to_string();
    write(&cluster.at(1, "f"), b"acknowledged");
    let user = File::open(cluster.at(1, "f")).unwrap();
    let out = cluster.forebay(0, &["member", "drain", &at_0, "n2"]).expect(1);
    let by = format!("in use by {} (", std::process::id());
    assert!(out.stderr.contains(&by) && out.stderr.contains("n2"), "{out:#?}");
    write(&cluster.at(1, "g"), b"still mounted");
    reads(&cluster.at(0, "g"), b"still mounted");
    drop(user);
    let out = cluster.forebay(0, &["member", "drain", &at_0, "n9"]).expect(2);
    assert!(out.stderr.contains("n1, n2"), "it names those there are: {out:#?}");
    cluster.nodes[1].crash();
    within(PATIENCE, "its lease has run out", || !cluster.is_alive(0, "n2"));
    let out = cluster.forebay(0, &["member", "drain", &at_0, "n2"]).expect(2);
    assert!(out.stderr.contains("mount its tier again"), "it names the remedy: {out:#?}");
    cluster.mount(1, HOLD);
    reads(&cluster.at(1, "f"), b"acknowledged");
    reads(&cluster.at(0, "g"), b"still mounted");
}

#[test]
fn what_others_have_open_at_a_member_that_leaves_is_told_to_stay_with_it() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(2, HOLD);
    let at_0 = text(&cluster.nodes[0].mnt).to_string();
    write(&cluster.at(1, "f"), b"of n2");
    let writer = File::options().write(true).open(cluster.at(0, "f")).unwrap();
    writer.write_all_at(b"OF", 0).unwrap();
    let out = cluster.forebay(0, &["member", "drain", &at_0, "n2"]).expect(4);
    assert!(out.stderr.contains("unmounted, but it still holds 1 file"), "{out:#?}");
    assert_eq!(cluster.stored("f").unwrap(), b"OF n2", "all was flushed");
    assert!(images::mounted_at(&cluster.nodes[1].mnt).is_none(), "it has left");
    let out = cluster.forebay(0, &["member", "drain", &at_0, "n2"]).expect(2);
    assert!(out.stderr.contains("is away, and still holds 1 file"), "{out:#?}");
    // Other nodes know that the rest of the directory is unclaimed.
    assert_eq!(cluster.told(0, "n2")["creates"], 0);
    write(&cluster.backing.join("g"), b"on the store");
    reads(&cluster.at(0, "g"), b"on the store");
    drop(writer);
    cluster.mount(1, HOLD);
    reads(&cluster.at(0, "f"), b"OF n2");
}

#[test]
fn a_drain_of_another_member_is_called_off_by_time_and_by_ctrl_c() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::laid(2);
    cluster.mount(0, HOLD);
    cluster.mount(1, SLOW);
    let at_0 = text(&cluster.nodes[0].mnt).to_string();
    write(&cluster.at(1, "large"), &random(40 << 20, 2));
    let out = cluster.forebay(0, &["member", "drain", &at_0, "n2", "--timeout", "1s"]).expect(4);
    assert!(out.stderr.contains("the time is up"), "{out:#?}");
    let mut command = Command::new(binary());
    let mut drain = Proc::spawn(command.args(["member", "drain", &at_0, "n2", "--json"]));
    let running = |node: usize, kind: &str| {
        let jobs = cluster.forebay(node, &["jobs", text(&cluster.nodes[node].mnt), "--json"]);
        let jobs = jobs.ok().json().as_array().cloned().unwrap_or_default();
        jobs.into_iter().find(|job| job["kind"] == kind && job["state"] == "running")
    };
    // The job on this node shows the progress of the other node's.
    within(PATIENCE, "its progress is told", || {
        running(0, "member-drain").is_some_and(|job| {
            job["total_bytes"].as_u64() > Some(20 << 20) && job["done_bytes"].as_u64() > Some(0)
        })
    });
    assert!(running(1, "umount").is_some());
    kill(drain.pid(), libc::SIGINT);
    let ended = drain.wait(PATIENCE).expect("the command ends");
    assert_eq!(ended.code(), Some(130));
    within(PATIENCE, "the job there is cancelled", || running(1, "umount").is_none());
    write(&cluster.at(1, "g"), b"still mounted");
    reads(&cluster.at(0, "g"), b"still mounted");
    cluster.umount_dirty(1);
}

#[test]
fn a_drained_node_s_members_leave_and_stay_while_they_are_in_use() {
    needs_forebay!();
    needs_tools!("etcd");
    let mut cluster = Cluster::start(1, HOLD);
    let mut node = Node::laid(64);
    node.name = format!("drained-{}-{}", std::process::id(), line!());
    node.up();
    let flags = ["--registry", &cluster.registry.address(), "--node", &node.name];
    let mut member = cluster.stranger("drained", &flags);
    member.mount(None, SLOW);
    let staying = || {
        let all = node.json(&["nodes"]);
        let mine = all.as_array().unwrap().iter().find(|one| one["name"] == node.name.as_str());
        mine.expect("the node is listed")["mounts"].clone()
    };
    let why = || staying()[0]["why"].as_str().unwrap_or_default().to_string();
    write(&member.at("large"), &random(20 << 20, 3));
    // The drain is cancelled while the node flushes.
    node.forebay(&["node", "drain", &node.name]).ok();
    within(PATIENCE, "its flush is told", || why().contains("to flush"));
    node.forebay(&["node", "undrain", &node.name]).ok();
    within(PATIENCE, "nothing is to leave", || staying().as_array().unwrap().is_empty());
    write(&member.at("g"), b"still mounted");
    member.umount_dirty(None);
    // The mount is in use, until its file is closed.
    member.mount(None, HOLD);
    let user = File::open(member.at("g")).unwrap();
    node.forebay(&["node", "drain", &node.name]).ok();
    within(PATIENCE, "its user is told", || {
        why().contains(&format!("in use by {} (", std::process::id()))
    });
    let told = node.forebay(&["nodes"]).ok().stdout;
    assert!(told.contains(&format!("{}: in use by", text(&member.mnt))), "{told}");
    write(&member.at("h"), b"still mounted");
    drop(user);
    within(PATIENCE, "it has left", || images::mounted_at(&member.mnt).is_none());
    within(PATIENCE, "nothing is left", || staying().as_array().unwrap().is_empty());
    within(PATIENCE, "its daemon ends", || !is_alive(member.pid()));
    assert_eq!(cluster.stored("large").unwrap(), random(20 << 20, 3));
    assert_eq!(cluster.stored("h").unwrap(), b"still mounted");
    let told = node.forebay(&["umount", text(&member.mnt)]).expect(3).stderr;
    let undrain = format!("`forebay node undrain {}`", node.name);
    assert!(told.contains("is drained") && told.contains(&undrain), "{told}");
    // The member with another name was not drained.
    write(&cluster.at(0, "i"), b"not drained");
    node.forebay(&["node", "undrain", &node.name]).ok();
    member.mount(None, HOLD);
    reads(&member.at("i"), b"not drained");
    member.umount(None);
    cluster.umount(0);
}
