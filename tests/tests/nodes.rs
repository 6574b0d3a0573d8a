//! The node daemon from outside: instances, transfers, the ledger, and the state after crashes.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use forebay_tests::etcd::Etcd;
use forebay_tests::images::{self, ImageFs, MountedFs, mounted_at};
use forebay_tests::lives::{self, Cache, Life, Mounted, Swap};
use forebay_tests::node::{Node, open_dir};
use forebay_tests::{fill, is_alive, kill, needs_forebay, needs_tools, proof, text, within};
use serde_json::Value;

const USER: u32 = 47_110;
const OTHER: u32 = 47_111;

fn create(node: &Node, args: &[&str]) -> Value {
    let all = [&["instance", "create"], args, &["--json"]].concat();
    node.forebay(&all).ok().json()
}

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, seed, 0);
    bytes
}

/// Writes a file and gives it to the user.
fn write_as(uid: u32, path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
    std::os::unix::fs::chown(path, Some(uid), Some(uid)).unwrap();
}

// S-21: the capacity of a private instance holds, and its neighbor's room is untouched.
#[test]
fn a_private_instance_is_full_at_its_capacity_and_takes_nothing_of_others() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "setpriv");
    let node = Node::start(512);
    let made = node.as_user(USER, &["instance", "create", "private", "a", "--capacity", "48MiB"]);
    assert_eq!(made.ok().stdout.trim(), text(&node.at("a")));
    create(&node, &["private", "b", "--capacity", "32MiB"]);
    let (a, b) = (node.at("a"), node.at("b"));
    let looked = a.metadata().unwrap();
    assert_eq!((looked.uid(), looked.permissions().mode() & 0o7777), (USER, 0o700));
    let (_, options) = mounted_at(&a).unwrap();
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(text(&a))).unwrap_or(&options).to_string();
    assert!(line.contains("nosuid") && line.contains("nodev"), "{line}");

    let mut written = 0u64;
    let full = loop {
        match std::fs::write(a.join(format!("f{written}")), random(1 << 20, written)) {
            Ok(()) => written += 1,
            Err(e) => break e,
        }
        assert!(written < 200, "nothing bounds it");
    };
    assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
    assert!((48..56).contains(&written), "{written} MiB fitted");
    std::fs::write(b.join("room"), random(24 << 20, 7)).unwrap();
    let shut = node.as_user(OTHER, &["instance", "show", "a", "--json"]).expect(1);
    assert!(shut.stderr.contains("not yours"), "{shut:?}");
    let look = Command::new("setpriv")
        .args(["--reuid", "47111", "--regid", "47111", "--clear-groups", "ls", text(&a)])
        .output()
        .unwrap();
    assert!(!look.status.success(), "another user looks in");
    node.as_user(OTHER, &["instance", "destroy", "a"]).expect(1);
    node.as_user(USER, &["instance", "destroy", "a"]).ok();
    node.forebay(&["instance", "destroy", "b"]).ok();
    node.assert_empty();
    proof!("{written} MiB fitted into 48");
}

// S-21: and so does that of a larger one, which holds XFS where that can be had.
#[test]
fn a_private_instance_of_300_mebibytes_holds_xfs_and_is_full_at_its_capacity() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "mkfs.xfs");
    let node = Node::start(768);
    create(&node, &["private", "a", "--capacity", "300MiB"]);
    let a = node.at("a");
    assert_eq!(mounted_at(&a).unwrap().0, "xfs");
    let bytes = random(4 << 20, 1);
    let (mut written, mut full) = (0u64, None);
    while full.is_none() && written < 400 {
        full = std::fs::write(a.join(format!("f{written}")), &bytes).err();
        written += 4;
    }
    assert_eq!(full.expect("nothing bounds it").raw_os_error(), Some(libc::ENOSPC));
    assert!((300..360).contains(&(written - 4)), "{written} MiB fitted");
    node.forebay(&["instance", "destroy", "a"]).ok();
    node.assert_empty();
    proof!("{} MiB fitted into 300", written - 4);
}

/// The ledger under simultaneous requests. Method: eight ask for a third of the pool each.
#[test]
fn no_room_is_granted_twice_whoever_asks_at_once() {
    needs_forebay!();
    let node = Node::start(96);
    let codes: Vec<Option<i32>> = thread::scope(|scope| {
        let ask = |n: usize| {
            let node = &node;
            scope.spawn(move || {
                let name = format!("i{n}");
                let args = ["instance", "create", "private", &name, "--capacity", "24MiB"];
                node.forebay(&[&args[..], &["--no-wait"]].concat()).code
            })
        };
        let asked: Vec<_> = (0..8).map(ask).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let granted = codes.iter().filter(|code| **code == Some(0)).count();
    let pool = &node.json(&["pools"])[0];
    let bytes = |key: &str| pool[key].as_u64().unwrap();
    assert!(bytes("granted") <= bytes("capacity"), "{pool}");
    assert!(bytes("free") < 24 << 20, "one more would have fitted: {pool}");
    assert!((2..4).contains(&granted), "{codes:?}");
    let refused = node.forebay(&["instance", "create", "private", "more", "--capacity", "90MiB"]);
    assert!(refused.text().contains("are free"), "{refused:?}");
    for instance in node.json(&["instance", "list"]).as_array().unwrap() {
        node.forebay(&["instance", "destroy", instance["id"].as_str().unwrap()]).ok();
    }
    node.assert_empty();
    proof!("{granted} of 8 were granted");
}

// S-22: what was written to a cache instance is on its backing store when the instance is gone.
#[test]
fn a_cache_instance_survives_the_node_daemon_and_goes_when_all_is_home() {
    needs_forebay!();
    let mut node = Node::start(512);
    let proj = node.slow().join("proj");
    open_dir(&proj);
    let args = ["cache", "c", "--backing", text(&proj), "--capacity", "200MiB"];
    create(&node, &[&args[..], &["--set", "max-age=1h"]].concat());
    let bytes = random(8 << 20, 3);
    std::fs::write(node.at("c").join("before"), &bytes).unwrap();
    node.crash();
    // The daemon's socket still exists, without a daemon behind it.
    let away = node.forebay(&["stage", "list"]).expect(3).stderr;
    assert!(
        away.contains("no node daemon at") && away.contains("`forebay node` starts one"),
        "{away}"
    );
    std::fs::write(node.at("c").join("after"), &bytes).unwrap();
    assert!(std::fs::read(proj.join("before")).unwrap().is_empty(), "it waits in the tier");
    node.up();
    // A living cache holds bytes that are not flushed, and so does one whose daemon has died.
    let dirty = |when: &str| {
        let lines = node.forebay(&["manifest", "--instance", "c", "--json"]).expect(1).json();
        let lines = lines.as_array().unwrap();
        let bytes: u64 = lines.iter().filter_map(|line| line["bytes"].as_u64()).sum();
        assert!(lines.iter().all(|line| line["known"] == "dirty"), "{when}: {lines:?}");
        assert_eq!((lines.len(), bytes), (2, 16 << 20), "{when}: {lines:?}");
    };
    dirty("it serves");
    let table = node.forebay(&["manifest"]).expect(1).stdout;
    assert!(table.contains("16.0 MiB in 2 lines are not home"), "{table}");
    let shown = node.json(&["instance", "show", "c"]);
    assert_eq!(shown["cache"]["dirty_bytes"], 16 << 20, "{shown}");
    let unknown = node.forebay(&["manifest", "--instance", "nosuch"]).expect(2);
    assert!(unknown.stderr.contains("no instance nosuch; `forebay instance list`"), "{unknown:?}");
    let pid = node.json(&["status", text(&node.at("c"))])["pid"].as_i64().unwrap();
    kill(pid as i32, libc::SIGKILL);
    within(Duration::from_secs(10), "it is dead", || !is_alive(pid as i32));
    dirty("its daemon has died");
    let shown = node.forebay(&["instance", "show", "c"]).ok().stdout;
    assert!(shown.contains("16.0 MiB dirty in 2 files"), "{shown}");
    within(Duration::from_secs(30), "it is mounted again", || {
        node.json(&["instance", "show", "c"])["cache"]["daemon"] == "serving"
    });
    assert!(node.log().contains("its daemon has died"), "{}", node.log());
    assert_eq!(node.json(&["instance", "list"])[0]["actual"]["n1"]["state"], "ready");
    node.forebay(&["instance", "destroy", "c"]).ok();
    for name in ["before", "after"] {
        assert_eq!(std::fs::read(proj.join(name)).unwrap(), bytes, "{name}");
    }
    node.assert_empty();
}

// S-22: dirty bytes of a cache are never dropped: hurry frees the node, and they go home later.
#[test]
fn what_cannot_go_home_is_in_the_manifest_until_it_can() {
    needs_forebay!();
    let mut node = Node::laid(512);
    let told = node.root.join("told");
    node.key("manifest-max = \"1MiB\"");
    node.key(&format!("over-manifest-command = \"cp /dev/null {}-%n\"", text(&told)));
    node.up();
    let small = MountedFs::tmpfs(&node.slow().join("small"), 16);
    let args = ["cache", "c", "--backing", text(small.path()), "--capacity", "200MiB"];
    create(&node, &[&args[..], &["--set", "max-age=1h"]].concat());
    let bytes = random(10 << 20, 5);
    std::fs::write(node.at("c").join("kept"), &bytes).unwrap();
    // Another program fills the store.
    std::fs::write(small.path().join("filler"), random(12 << 20, 6)).unwrap();
    let args = ["instance", "destroy", "c", "--hurry", "--timeout", "4s"];
    let late = node.forebay(&args).expect(4);
    assert!(late.text().contains("goes on"), "{late:?}");
    assert!(mounted_at(&node.at("c")).is_none(), "the node is free");
    let lines = node.json(&["manifest"]);
    let line = &lines[0];
    assert!(line["file"].as_str().unwrap().contains("kept"), "{lines}");
    assert!(line["bytes"].as_u64().unwrap() > 0 && line["expires"].is_null(), "{lines}");
    node.forebay(&["manifest"]).expect(1);
    let marked = node.root.join("told-n1");
    within(Duration::from_secs(20), "the scheduler is told", || marked.exists());
    std::fs::remove_file(small.path().join("filler")).unwrap();
    within(Duration::from_secs(90), "it goes home by itself", || {
        node.json(&["instance", "list"]) == serde_json::json!([])
    });
    assert_eq!(std::fs::read(small.path().join("kept")).unwrap(), bytes);
    node.forebay(&["manifest"]).ok();
    node.assert_empty();
}

#[test]
fn a_user_cannot_have_an_unreachable_path_mounted() {
    needs_forebay!();
    needs_tools!("setpriv");
    let node = Node::start(256);
    let shut = node.slow().join("shut");
    open_dir(&shut.join("in"));
    std::fs::set_permissions(&shut, PermissionsExt::from_mode(0o700)).unwrap();
    let inside = shut.join("in");
    let args = ["instance", "create", "cache", "c", "--backing", text(&inside)];
    let refused = node.as_user(USER, &[&args[..], &["--capacity", "64MiB"]].concat()).expect(2);
    assert!(refused.stderr.contains("cannot open it"), "{refused:?}");
    let args = ["instance", "create", "private", "p", "--capacity", "8MiB"];
    let elsewhere = [&args[..], &["--mountpoint", "/mnt"]].concat();
    assert!(node.as_user(USER, &elsewhere).expect(2).stderr.contains("only root"));
    node.assert_empty();
}

/// A job's day: data in, work, results out at the end, the instance removed.
// S-23: a stage-out at the end is done before the instance goes.
#[test]
fn data_come_and_go_with_an_instance() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "setpriv");
    let node = Node::start(512);
    let (set, out) = (node.slow().join("set"), node.slow().join("out"));
    open_dir(&set);
    open_dir(&out);
    for n in 0..50 {
        write_as(USER, &set.join(format!("f{n}")), &random(100_000 + n, n as u64));
    }
    node.as_user(USER, &["instance", "create", "private", "w", "--capacity", "100MiB"]).ok();
    let inside = node.at("w");
    node.as_user(USER, &["stage", "in", text(&set), text(&inside.join("set"))]).ok();
    let results = inside.join("results/");
    let home = out.join("results");
    let args = ["stage", "out", text(&results), text(&home), "--at-end"];
    node.as_user(USER, &args).ok();
    // The work of the job.
    std::fs::create_dir(inside.join("results")).unwrap();
    std::os::unix::fs::chown(inside.join("results"), Some(USER), Some(USER)).unwrap();
    for n in 0..50 {
        let read = std::fs::read(inside.join(format!("set/f{n}"))).unwrap();
        assert_eq!(read, random(100_000 + n, n as u64));
        write_as(USER, &inside.join(format!("results/r{n}")), &read);
    }
    node.as_user(USER, &["instance", "destroy", "w"]).ok();
    for n in 0..50 {
        let home = out.join(format!("results/r{n}"));
        assert_eq!(std::fs::read(&home).unwrap(), random(100_000 + n, n as u64));
        assert_eq!(home.metadata().unwrap().uid(), USER, "with the user's rights");
    }
    let listed = node.json(&["stage", "list"]);
    let states: Vec<&str> =
        listed.as_array().unwrap().iter().map(|t| t["actual"]["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["done", "done"], "{listed}");
    node.assert_empty();
}

// S-23: what is left out is told, though everything else is there.
#[test]
fn what_a_transfer_leaves_out_is_told() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "setpriv");
    let node = Node::start(256);
    let set = node.slow().join("set");
    open_dir(&set);
    write_as(USER, &set.join("data"), b"data");
    for n in 0..12 {
        write_as(USER, &set.join(format!(".forebay-stage-{n}")), b"another's");
    }
    node.as_user(USER, &["instance", "create", "private", "w", "--capacity", "32MiB"]).ok();
    let inside = node.at("w").join("set");
    let said = node.as_user(USER, &["stage", "in", text(&set), text(&inside)]).ok();
    assert!(said.text().contains(": left over from a transfer, not copied"), "{said:?}");
    assert!(said.text().contains("2 more were left out"), "{said:?}");
    let listed = node.json(&["stage", "list"]);
    let actual = &listed[0]["actual"];
    assert_eq!((&actual["state"], &actual["noted"]), (&"done".into(), &12.into()), "{listed}");
    assert_eq!(actual["notes"].as_array().unwrap().len(), 10, "{listed}");
    let id = listed[0]["id"].as_str().unwrap();
    let shown = node.as_user(USER, &["stage", "show", id]).ok();
    assert!(shown.text().contains(": left over from a transfer, not copied"), "{shown:?}");
    assert_eq!(std::fs::read_dir(&inside).unwrap().count(), 1);
    node.forebay(&["instance", "destroy", "w"]).ok();
    node.assert_empty();
}

// S-23: what a stage-out leaves holds the instance, is in the manifest, and is taken up again.
#[test]
fn a_stage_out_that_fails_keeps_the_instance_until_it_is_resumed_or_given_up() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "setpriv");
    let mut node = Node::laid(512);
    let told = node.root.join("told");
    node.key("manifest-max = \"1MiB\"");
    node.key(&format!("over-manifest-command = \"cp /dev/null {}-%n\"", text(&told)));
    node.up();
    let out = MountedFs::tmpfs(&node.slow().join("out"), 4);
    std::fs::set_permissions(out.path(), PermissionsExt::from_mode(0o777)).unwrap();
    node.as_user(USER, &["instance", "create", "private", "w", "--capacity", "64MiB"]).ok();
    let big = random(10 << 20, 9);
    write_as(USER, &node.at("w").join("big"), &big);
    let (source, home) = (node.at("w").join("big"), out.path().join("big"));
    let args = ["stage", "out", text(&source), text(&home)];
    let failed = node.as_user(USER, &[&args[..], &["--json"]].concat()).expect(1);
    let id = failed.json()["id"].as_str().unwrap().to_string();
    assert!(!home.exists(), "a file appears whole");
    // Nothing goes on by itself: a user who asks for the removal is told so, and does not wait for
    // ten minutes.
    let asked = Instant::now();
    let waits = node.as_user(USER, &["instance", "destroy", "w"]).expect(4);
    assert!(asked.elapsed() < Duration::from_secs(60), "{:?}", asked.elapsed());
    assert!(waits.stderr.contains("w stays until you say what becomes of what is not home"));
    for way in ["forebay stage resume", "forebay stage revoke", "--hurry"] {
        assert!(waits.stderr.contains(way), "{waits:?}");
    }
    let lines = node.json(&["manifest"]);
    assert_eq!(lines[0]["transfer"], id.as_str(), "{lines}");
    assert_eq!(lines[0]["bytes"], big.len(), "{lines}");
    let table = node.forebay(&["manifest"]).expect(1).stdout;
    let heads: Vec<&str> = table.lines().next().unwrap().split_whitespace().collect();
    assert!(heads.contains(&"OWNER") && table.contains("47110"), "{table}");
    let marked = node.root.join("told-n1");
    within(Duration::from_secs(20), "the scheduler is told", || marked.exists());
    let ill = node.forebay(&["node", "health"]).expect(4);
    assert!(ill.stdout.starts_with("10.0 MiB are not home, 1.0 MiB are allowed"), "{ill:?}");
    // There is room now.
    forebay_tests::tool("mount", &["-o", "remount,size=32m", text(out.path())]).ok();
    node.as_user(USER, &["stage", "resume", &id]).ok();
    within(Duration::from_secs(30), "the instance goes", || {
        node.json(&["instance", "list"]) == serde_json::json!([])
    });
    assert_eq!(std::fs::read(&home).unwrap(), big);
    node.forebay(&["manifest"]).ok();
    node.assert_empty();
}

/// Hurry keeps explicit stage-outs for a stated time (3 s here), then drops them with a record.
#[test]
fn what_was_told_to_hurry_is_kept_for_a_while_and_dropped_with_a_record() {
    needs_forebay!();
    needs_tools!("mkfs.ext4");
    let node = Node::start(512);
    create(&node, &["private", "w", "--capacity", "32MiB"]);
    std::fs::write(node.at("w").join("r"), random(1 << 20, 1)).unwrap();
    let nowhere = node.slow().join("not-there/r");
    let result = node.at("w").join("r");
    let args = ["stage", "out", text(&result), text(&nowhere), "--at-end", "--json"];
    let id = node.forebay(&args).ok().json()["id"].as_str().unwrap().to_string();
    let ordered = node.forebay(&["manifest", "--json"]).expect(1).json();
    let of = |key: &str| ordered[0][key].as_str().unwrap_or_default().to_string();
    assert_eq!((of("known"), of("transfer")), ("ordered".into(), id.clone()), "{ordered}");
    node.forebay(&["instance", "destroy", "w", "--hurry", "--no-wait"]).ok();
    within(Duration::from_secs(20), "the manifest has it", || node.has_left_something());
    assert_eq!(node.json(&["manifest"])[0]["bytes"], 1 << 20);
    within(Duration::from_secs(30), "it is dropped", || {
        node.json(&["instance", "list"]) == serde_json::json!([])
    });
    let told = node.json(&["stage", "show", &id]);
    assert!(told["actual"]["why"].as_str().unwrap().contains("dropped"), "{told}");
    assert!(node.log().contains("dropped"), "{}", node.log());
    node.assert_empty();
}

/// The daemon dies while a transfer runs: the worker goes on, and the next daemon learns how it
/// ended.
#[test]
fn a_transfer_goes_on_without_the_daemon() {
    needs_forebay!();
    needs_tools!("mkfs.ext4");
    let mut node = Node::start(512);
    create(&node, &["private", "w", "--capacity", "200MiB"]);
    let source = node.slow().join("big");
    let bytes = random(96 << 20, 11);
    std::fs::write(&source, &bytes).unwrap();
    let target = node.at("w").join("big");
    let args = ["stage", "in", text(&source), text(&target), "--rate-max", "8MiB/s"];
    let id = node.forebay(&[&args[..], &["--no-wait"]].concat()).ok().stdout.trim().to_string();
    within(Duration::from_secs(20), "it runs", || {
        node.json(&["stage", "show", &id])["actual"]["state"] == "running"
    });
    // At 8 MiB a second it takes about 12 s, as the worker's estimate says.
    let mut told = Value::Null;
    within(Duration::from_secs(10), "it says how long it takes", || {
        told = node.json(&["stage", "show", &id])["progress"].clone();
        told["eta_seconds"].as_f64().is_some_and(|eta| eta > 1.0 && eta < 40.0)
    });
    assert_eq!(told["stage"], "copying", "{told}");
    let listed = node.forebay(&["stage", "list"]).ok().stdout;
    assert!(listed.lines().next().unwrap().contains("ETA"), "{listed}");
    let shown = node.forebay(&["stage", "show", &id]).ok().stdout;
    assert!(shown.contains("MiB/s  "), "{shown}");
    node.crash();
    node.up();
    assert_eq!(node.json(&["stage", "show", &id])["actual"]["state"], "running");
    node.stop();
    node.up();
    node.forebay(&["stage", "wait", &id]).ok();
    assert_eq!(std::fs::read(&target).unwrap(), bytes);
    let told = node.json(&["stage", "show", &id]);
    assert_eq!(told["actual"]["bytes"], bytes.len(), "{told}");
    node.forebay(&["instance", "destroy", "w"]).ok();
    node.assert_empty();
}

/// A mount in use is removed in bounded time, and its user is named.
#[test]
fn a_busy_instance_goes_all_the_same() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "sleep");
    let node = Node::start(256);
    create(&node, &["private", "w", "--capacity", "16MiB"]);
    let mut user = Command::new("sleep").arg("600").current_dir(node.at("w")).spawn().unwrap();
    node.forebay(&["instance", "destroy", "w", "--no-wait"]).ok();
    within(Duration::from_secs(10), "the mount is gone", || mounted_at(&node.at("w")).is_none());
    within(Duration::from_secs(10), "its user is named", || {
        node.log().contains(&format!("sleep (pid {})", user.id()))
    });
    assert!(node.granted() > 0, "the room is in use still, and granted");
    user.kill().unwrap();
    user.wait().unwrap();
    node.assert_empty();
}

#[test]
fn a_drained_node_takes_nothing_new() {
    needs_forebay!();
    // A name of its own: `node drain` also drains mounts of this machine that are members under the
    // node's name.
    let mut node = Node::laid(256);
    node.name = format!("drained-{}", std::process::id());
    node.up();
    for verb in ["drain", "undrain"] {
        let refused = node.forebay(&["node", verb, "nosuch"]).expect(2);
        let there = format!("no node nosuch; there are: {}", node.name);
        assert!(refused.stderr.contains(&there), "{refused:?}");
    }
    node.forebay(&["node", "drain", &node.name]).ok();
    node.forebay(&["node", "health"]).expect(1);
    let args = ["instance", "create", "private", "w", "--capacity", "16MiB"];
    let refused = node.forebay(&args);
    assert!(refused.code != Some(0) && refused.text().contains("undrain"), "{refused:?}");
    node.forebay(&["node", "undrain", &node.name]).ok();
    node.forebay(&args).ok();
    node.forebay(&["instance", "destroy", "w"]).ok();
    node.assert_empty();
}

#[test]
fn a_pool_that_cannot_be_used_makes_its_node_unfit() {
    needs_forebay!();
    let mut node = Node::laid(256);
    let bad = node.root.join("bad");
    node.pool_key(&format!("[[pool]]\nname = \"bad\"\ndir = \"{}\"", text(&bad.join("pool"))));
    node.pool_key("capacity = \"16MiB\"");
    node.up();
    let told = node.forebay(&["node", "health"]).expect(4);
    assert!(told.stdout.starts_with("pool bad cannot be used: "), "{told:?}");
    let json = node.forebay(&["node", "health", "--json"]).expect(4).json();
    let (what, draining) = (&json["troubles"][0]["what"], &json["draining"]);
    assert_eq!((what, draining), (&"pool-fault".into(), &false.into()), "{json}");
    std::fs::create_dir(&bad).unwrap();
    within(Duration::from_secs(30), "it is fit again", || {
        node.forebay(&["node", "health"]).code == Some(0)
    });
    let pools = node.json(&["pools"]);
    assert_eq!(pools.as_array().unwrap().len(), 2, "{pools}");
}

#[test]
fn an_instance_that_expires_goes_by_itself() {
    needs_forebay!();
    let node = Node::start(256);
    let make = ["private", "w", "--capacity", "16MiB", "--expires"];
    create(&node, &[&make[..], &["1h"]].concat());
    let again = [&["instance", "create"], &make[..], &["20s"]].concat();
    let refused = node.forebay(&again).expect(2);
    assert!(refused.stderr.contains("forebay instance extend w"), "{refused:?}");
    assert!(!node.forebay(&["instance", "list"]).ok().stderr.contains("goes by itself"));
    let extended = node.forebay(&["instance", "extend", "w", "--expires", "28s"]).ok();
    assert!(extended.stdout.contains("goes by itself in 2"), "{extended:?}");
    let mut left = None;
    within(Duration::from_secs(60), "its end is warned of", || {
        left = node.json(&["instance", "list"])[0]["ends_in_seconds"].as_u64();
        left.is_some()
    });
    // A quarter of its life, which began some moments before this end was set.
    assert!(left.is_some_and(|left| left < 20), "{left:?}");
    let listed = node.forebay(&["instance", "list"]).ok();
    let is_gone = !listed.stdout.contains("private");
    assert!(is_gone || listed.stderr.contains("w goes by itself in"), "{listed:?}");
    within(Duration::from_secs(30), "it goes", || {
        node.json(&["instance", "list"]) == serde_json::json!([])
    });
    assert_eq!(node.log().matches("w of root (uid 0) expires in").count(), 1, "{}", node.log());
    node.assert_empty();
}

#[test]
fn bad_input_is_told_with_the_remedy_and_loses_nothing() {
    needs_forebay!();
    let node = Node::start(64);
    let cases: [(&[&str], i32, &str); 10] = [
        (&["instance", "create", "private", "job-7", "--capacity", "8MiB"], 2, "are for jobs"),
        (&["instance", "create", "private", "a/b", "--capacity", "1MiB"], 2, "a name begins with"),
        (&["instance", "create", "cache", "c", "--capacity", "8MiB"], 2, "give --backing"),
        (&["instance", "create", "private", "w", "--capacity", "1GiB"], 1, "are free"),
        (
            &["instance", "create", "private", "w", "--capacity", "8MiB", "--pool", "x"],
            2,
            "forebay pools",
        ),
        (
            &["instance", "create", "private", "w", "--capacity", "8MiB", "--node", "n2"],
            1,
            "did you mean n1",
        ),
        (
            &["instance", "create", "private", "w", "--capacity", "8MiB", "--means", "tape"],
            2,
            "it has",
        ),
        (&["instance", "create", "swap", "s", "--capacity", "8MiB"], 2, "offers no swap"),
        (&["instance", "destroy", "nothing"], 2, "no instance nothing"),
        (&["stage", "cancel", "t1"], 2, "no transfer t1"),
    ];
    for (args, code, words) in cases {
        let out = node.forebay(args);
        assert_eq!(out.code, Some(code), "{out:?}");
        assert!(out.stderr.contains(words), "{words}: {out:?}");
    }
    let away = forebay_tests::forebay(&["nodes", "--socket", "/nowhere/node.sock"]).expect(3);
    assert!(away.stderr.contains("forebay node"), "{away:?}");
    node.assert_empty();
}

/// The limits of an ordinary user, on all nodes together; root may have more.
#[test]
fn a_user_has_limits_and_root_has_none() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "setpriv");
    let mut node = Node::laid(256);
    node.key("[limits]\ninstances-per-user = 2\nbytes-per-user = \"64MiB\"");
    node.up();
    let make = |name: &'static str, size: &'static str| {
        ["instance", "create", "private", name, "--capacity", size]
    };
    node.as_user(USER, &make("a", "8MiB")).ok();
    let large = node.as_user(USER, &make("b", "60MiB")).expect(1);
    assert!(large.stderr.contains("are allowed"), "{large:?}");
    node.as_user(USER, &make("b", "8MiB")).ok();
    let third = node.as_user(USER, &make("c", "8MiB")).expect(1);
    assert!(third.stderr.contains("more than 2 instances"), "{third:?}");
    node.as_user(OTHER, &make("c", "8MiB")).ok();
    node.forebay(&make("d", "70MiB")).ok();
    node.as_user(USER, &["instance", "destroy", "a"]).ok();
    node.as_user(USER, &make("e", "8MiB")).ok();
    for id in ["b", "c", "d", "e"] {
        node.forebay(&["instance", "destroy", id]).ok();
    }
    node.assert_empty();
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(String::from).collect()
}

/// Kills at each step of making and removing; the next daemon completes or removes the instance.
#[test]
fn a_daemon_killed_between_any_two_steps_leaves_nothing_behind() {
    needs_forebay!();
    needs_tools!("mkfs.ext4");
    let image = Life {
        mode: "private",
        more: words("--capacity 16MiB --means image"),
        making: &["tend-kept", "space-recorded", "space-formatted", "space-mounted", "tend-made"],
        leaving: &[
            "tend-leaving",
            "remove-marked",
            "remove-renamed",
            "tend-removed",
            "tend-released",
        ],
    };
    let memory = Life {
        mode: "private",
        more: words("--capacity 16MiB --means tmpfs"),
        making: &["space-recorded", "space-mounted", "space-ready", "tend-made"],
        leaving: &["remove-marked", "remove-unmounted", "remove-forgotten", "tend-removed"],
    };
    let steps = [image, memory].map(|life| life.killed_at_each_step(|| Node::laid(256), &Mounted));
    proof!("killed at {steps:?} steps");
}

// S-22: what was acknowledged is home, wherever the daemon dies.
#[test]
fn a_daemon_killed_between_any_two_steps_loses_nothing_of_a_cache() {
    needs_forebay!();
    let base = Node::laid(1);
    let backing = base.slow().join("data");
    let laid = || {
        let _ = std::fs::remove_dir_all(&backing);
        open_dir(&backing);
        Node::laid(256)
    };
    let life = Life {
        mode: "cache",
        more: words(&format!("--capacity 64MiB --set max-age=1h --backing {}", text(&backing))),
        making: &["tend-kept", "tier-recorded", "tier-directory", "tend-made"],
        leaving: &[
            "tend-leaving",
            "remove-marked",
            "remove-renamed",
            "remove-forgotten",
            "sweep-deleted",
            "tend-removed",
            "tend-released",
        ],
    };
    let steps = life.killed_at_each_step(laid, &Cache(backing.clone()));
    proof!("killed at {steps} steps");
}

/// "Never left on" is the first rule: swap is off before the instance is gone, also after a crash.
#[test]
fn a_swap_instance_is_on_while_it_is_wanted_and_off_afterwards() {
    needs_forebay!();
    let mut node = Node::laid(256);
    node.pool_key("swap = true");
    node.up();
    let pools = node.json(&["pools"]);
    if pools[0]["swap"] != true {
        forebay_tests::skip!("no swap here: {}", pools[0]["lacks"]);
    }
    let args = ["instance", "create", "swap", "s", "--capacity", "32MiB"];
    let made = node.forebay(&args);
    if made.text().contains("Operation not permitted") {
        node.forebay(&["instance", "destroy", "s"]).ok();
        forebay_tests::skip!("the kernel permits no swap here");
    }
    made.ok();
    let pool = node.root.join("pool");
    let on = || std::fs::read_to_string("/proc/swaps").unwrap().contains(text(&pool));
    assert!(on(), "it is in use");
    node.crash();
    assert!(on(), "it is in use without the daemon");
    node.up();
    node.forebay(&["instance", "destroy", "s"]).ok();
    let left = std::fs::read_to_string("/proc/swaps").unwrap();
    assert!(!left.contains(text(&node.root)), "{left}");
    node.assert_empty();
    let laid = || {
        let mut node = Node::laid(64);
        node.pool_key("swap = true");
        node
    };
    proof!("killed at {} steps", lives::swap().killed_at_each_step(laid, &Swap));
}

/// Each daemon counts on a capacity that the file system has only once.
#[test]
fn daemons_that_promise_the_same_room_take_nothing_of_each_other() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "unshare");
    let bed = Node::laid(1);
    let image = bed.root.join("tier.img");
    images::make(&image, ImageFs::Ext4, 512);
    let tier = MountedFs::image(&image, &bed.root.join("tier"));
    let mut nodes = [0, 1].map(|_| Node::laid_below(tier.path(), 300));
    nodes.iter_mut().for_each(Node::up);
    let make = |node: &Node, name: &str, size: &str| {
        node.forebay(&["instance", "create", "private", name, "--capacity", size])
    };
    make(&nodes[0], "a", "200MiB").ok();
    let bytes = random(150 << 20, 3);
    std::fs::write(nodes[0].at("a").join("f"), &bytes).unwrap();
    let refused = make(&nodes[1], "b", "250MiB");
    assert!(refused.code != Some(0) && refused.text().contains("no room"), "{refused:?}");
    let left = nodes[1].in_pool();
    assert!(left.is_empty(), "of what was refused there is {left:?}");
    nodes[1].forebay(&["instance", "destroy", "b"]).ok();
    make(&nodes[1], "c", "100MiB").ok();
    // Both fill their instances: neither affects the other.
    std::fs::write(nodes[1].at("c").join("f"), random(99 << 20, 4)).unwrap();
    rustix::fs::sync();
    std::fs::write(nodes[0].at("a").join("g"), random(49 << 20, 5)).unwrap();
    assert!(std::fs::read(nodes[0].at("a").join("f")).unwrap() == bytes);
    for (node, name) in [(0, "a"), (1, "c")] {
        nodes[node].forebay(&["instance", "destroy", name]).ok();
    }
    nodes.iter().for_each(Node::assert_empty);
}

/// Two nodes with mounts of their own and one registry: an instance on both, a node that is away, a
/// registry that is away.
#[test]
fn nodes_share_a_registry_and_do_without_it_for_a_while() {
    needs_forebay!();
    needs_tools!("etcd", "unshare", "mkfs.ext4");
    let bed = Node::laid(1);
    let mut etcd = Etcd::start(&bed.root);
    let mut nodes: Vec<Node> = ["n1", "n2"]
        .map(|name| {
            let mut node = Node::laid(128);
            node.one_of_several(name, &etcd.address());
            node.up();
            node
        })
        .into();
    let args = ["private", "w", "--capacity", "16MiB", "--node", "n1", "--node", "n2"];
    let made = create(&nodes[0], &args);
    let at = made["mountpoint"].as_str().unwrap();
    for node in &nodes {
        assert!(node.mountinfo().contains(at), "{at} is on {}", node.name);
        assert_eq!(made["actual"][&node.name]["state"], "ready", "{made}");
    }
    assert!(mounted_at(Path::new(at)).is_none(), "their mounts are their own");
    let pools = nodes[1].json(&["pools"]);
    assert_eq!(pools.as_array().unwrap().len(), 2, "{pools}");

    let results = Path::new(at).join("results/");
    let args = ["stage", "out", text(&results), "/nowhere", "--instance", "w", "--on", "n2"];
    let id = nodes[0].forebay(&[&args[..], &["--at-end"]].concat()).ok().stdout;
    let ordered = nodes[0].forebay(&["manifest", "--json"]).expect(1).json();
    assert_eq!((&ordered[0]["known"], &ordered[0]["node"]), (&"ordered".into(), &"n2".into()));

    // A cache of another node is not asked here: its place is shown, and not whether it is dirty.
    let proj = nodes[1].slow().join("proj");
    open_dir(&proj);
    let cache = ["instance", "create", "cache", "far", "--backing", text(&proj)];
    nodes[0].forebay(&[&cache[..], &["--capacity", "64MiB", "--node", "n2"]].concat()).ok();
    let asked = nodes[0].forebay(&["manifest", "--instance", "far"]).expect(3).stdout;
    assert!(asked.contains("run `forebay manifest --here --instance far` on n2"), "{asked}");
    assert!(asked.contains("of 1 line nobody could be asked here"), "{asked}");
    nodes[1].forebay(&["manifest", "--instance", "far"]).ok();
    nodes[0].forebay(&["manifest", "--here", "--instance", "far"]).ok();
    nodes[0].forebay(&["instance", "destroy", "far"]).ok();

    // The registry dies: existing instances stay, and a new one fails with the reason.
    etcd.kill();
    let refused = nodes[0].forebay(&["instance", "create", "private", "x", "--capacity", "8MiB"]);
    assert!(refused.code != Some(0) && refused.stderr.contains("etcd"), "{refused:?}");
    assert!(nodes[0].mountinfo().contains(at));
    etcd.up();
    within(Duration::from_secs(60), "the registry answers again", || {
        nodes[0].forebay(&["instance", "list"]).code == Some(0)
    });

    // A node dies: the others know once its lease is over, and its part is removed when it is back.
    nodes[1].crash();
    within(Duration::from_secs(60), "it counts as away", || {
        let all = nodes[0].json(&["nodes"]);
        all.as_array().unwrap().iter().any(|node| node["name"] == "n2" && node["record"].is_null())
    });
    let lines = nodes[0].json(&["manifest"]);
    assert_eq!(lines.as_array().map(Vec::len), Some(1), "{lines}");
    let of = |key: &str| lines[0][key].as_str().unwrap_or_default().to_string();
    assert_eq!((of("node"), of("transfer")), ("n2".into(), id.trim().into()), "{lines}");
    assert!(of("why").contains("node n2 has not been heard of since 2"), "{lines}");
    nodes[0].forebay(&["manifest"]).expect(1);
    nodes[0].forebay(&["stage", "revoke", id.trim()]).ok();
    nodes[0].forebay(&["manifest"]).ok();
    let args = ["instance", "create", "private", "y", "--capacity", "8MiB", "--node", "n2"];
    let refused = nodes[0].forebay(&args).expect(1);
    assert!(refused.stderr.contains("no node daemon of that name"), "{refused:?}");
    let late = nodes[0].forebay(&["instance", "destroy", "w", "--timeout", "3s"]).expect(4);
    assert!(late.stderr.contains("n2"), "{late:?}");
    let leaving = nodes[0].forebay(&["manifest"]).expect(3);
    assert!(leaving.stdout.contains("what private w holds"), "{leaving:?}");
    nodes[1].up();
    within(Duration::from_secs(60), "it goes on both", || {
        nodes[0].json(&["instance", "list"]) == serde_json::json!([])
    });
    let pools = nodes[0].json(&["pools"]);
    for pool in pools.as_array().unwrap() {
        assert_eq!(pool["granted"], 0, "{pools}");
    }
    // The servers are stopped after their clients.
    nodes.iter_mut().for_each(Node::stop);
}
