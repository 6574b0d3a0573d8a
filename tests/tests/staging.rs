//! `forebay stage` as people use it: the effect of each option, the refusals of orders, and the state
//! after a store fails.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use forebay_tests::node::{Node, open_dir};
use forebay_tests::{
    Bed, Faults, Tier, eventually, fill, needs_forebay, needs_tools, proof, text, within,
};
use serde_json::{Value, json};

const USER: u32 = 47_130;

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

/// A node with a private instance `w` of the user, and a directory of the user outside.
fn with_space(mib: u64) -> (Node, PathBuf) {
    let node = Node::start(512);
    let capacity = format!("{mib}MiB");
    node.as_user(USER, &["instance", "create", "private", "w", "--capacity", &capacity]).ok();
    let home = node.slow().join("home");
    open_dir(&home);
    (node, home)
}

fn state_of(node: &Node, transfer: &str) -> String {
    let shown = node.json(&["stage", "show", transfer]);
    shown["actual"]["state"].as_str().unwrap_or("none").to_string()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

// S-23: a list, a node by name, and what comes last.
#[test]
fn options_do_what_they_say() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "setpriv");
    let (node, home) = with_space(64);
    let set = node.slow().join("set");
    open_dir(&set.join("deep"));
    for name in ["a", "b", "deep/c", "unlisted"] {
        write_as(USER, &set.join(name), name.as_bytes());
    }
    write_as(USER, &set.join("list"), b"# two of them\na\ndeep/c renamed\n");
    let (list, inside) = (set.join("list"), node.at("w").join("in"));
    open_dir(&inside);
    let args = ["stage", "in", text(&list), text(&inside), "--type", "list"];
    node.as_user(USER, &[&args[..], &["--on", "n1"]].concat()).ok();
    assert_eq!(names(&inside), ["a", "renamed"]);
    assert_eq!(std::fs::read(inside.join("renamed")).unwrap(), b"deep/c");

    // The files put last are held back as long as an earlier file fails.
    write_as(USER, &inside.join("MANIFEST"), b"all is there");
    let locked = inside.join("renamed");
    std::fs::set_permissions(&locked, PermissionsExt::from_mode(0o000)).unwrap();
    std::os::unix::fs::chown(&locked, Some(0), Some(0)).unwrap();
    let out = home.join("out");
    let args = ["stage", "out", text(&inside), text(&out), "--last", "MANIFEST", "--json"];
    let failed = node.as_user(USER, &args).expect(1).json();
    assert_eq!(names(&out), ["a"]);
    let lines = node.json(&["manifest"]);
    let held = lines.as_array().unwrap().iter().find(|line| line["file"] == "MANIFEST").unwrap();
    assert!(held["why"].as_str().unwrap().contains("comes last"), "{lines}");
    assert_eq!(held["bytes"], 12, "{lines}");
    std::os::unix::fs::chown(&locked, Some(USER), Some(USER)).unwrap();
    std::fs::set_permissions(&locked, PermissionsExt::from_mode(0o600)).unwrap();
    node.as_user(USER, &["stage", "resume", failed["id"].as_str().unwrap()]).ok();
    assert_eq!(names(&out), ["MANIFEST", "a", "renamed"]);
    node.forebay(&["manifest"]).ok();
    node.forebay(&["instance", "destroy", "w"]).ok();
    node.assert_empty();
}

// S-23: what is revoked is not done at the end and holds nothing.
#[test]
fn what_is_revoked_stays_where_it_is() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "setpriv");
    let (node, home) = with_space(32);
    let results = node.at("w").join("r");
    write_as(USER, &results, b"result");
    let to = home.join("r");
    let args = ["stage", "out", text(&results), text(&to), "--at-end"];
    let id = node.as_user(USER, &args).ok().stdout.trim().to_string();
    let said = node.as_user(USER, &["stage", "revoke", &id]).ok().stdout;
    assert!(said.contains("is revoked"), "{said}");
    within(Duration::from_secs(20), "it is told", || state_of(&node, &id) == "cancelled");
    let shown = node.as_user(USER, &["stage", "show", &id]).ok();
    assert!(shown.stderr.contains("revoked"), "{shown:?}");
    node.as_user(USER, &["instance", "destroy", "w", "--timeout", "60s"]).ok();
    assert_eq!(names(&home), [""; 0]);
    node.forebay(&["manifest"]).ok();
    node.assert_empty();
}

// S-23: one that runs ends where it is, is in the manifest, and is taken up again.
#[test]
fn one_that_is_cancelled_leaves_nothing_half_and_goes_on_when_it_is_resumed() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "setpriv");
    let (node, home) = with_space(64);
    let (results, bytes) = (node.at("w").join("r"), random(24 << 20, 3));
    write_as(USER, &results, &bytes);
    let to = home.join("r");
    let args = ["stage", "out", text(&results), text(&to), "--rate-max", "4MiB/s", "--no-wait"];
    let id = node.as_user(USER, &args).ok().stdout.trim().to_string();
    within(Duration::from_secs(20), "it copies", || {
        node.json(&["stage", "show", &id])["progress"]["bytes"].as_u64().unwrap_or(0) > 0
    });
    node.as_user(USER, &["stage", "revoke", &id]).expect(2);
    let said = node.as_user(USER, &["stage", "cancel", &id]).ok().stdout;
    assert!(said.contains("ends where it is"), "{said}");
    within(Duration::from_secs(20), "it has ended", || state_of(&node, &id) == "cancelled");
    assert_eq!(names(&home), [""; 0], "what is not whole is removed");
    let lines = node.json(&["manifest"]);
    assert_eq!(
        (&lines[0]["transfer"], &lines[0]["bytes"]),
        (&id.as_str().into(), &bytes.len().into())
    );
    node.as_user(USER, &["stage", "cancel", &id]).expect(2);
    node.as_user(USER, &["stage", "resume", &id]).ok();
    assert!(std::fs::read(&to).unwrap() == bytes);
    node.forebay(&["instance", "destroy", "w"]).ok();
    node.assert_empty();
}

/// A call to the store fails: the file is in the manifest with its size, and is staged out afterwards.
// S-23
#[test]
fn a_store_that_fails_a_write_or_a_sync_costs_nothing_but_time() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "setpriv");
    let (node, _) = with_space(64);
    let (results, bytes) = (node.at("w").join("r"), random(3 << 20, 4));
    write_as(USER, &results, &bytes);
    for (policy, op) in [("write-around", "write_at"), ("write-around", "sync")] {
        let bed = Bed::new(Tier::Disk);
        let faults = Faults::none(&bed);
        open_dir(&bed.backing);
        let flags = ["--fault", faults.path(), "--policy", policy, "--attr-ttl", "0s"];
        let _mounted = bed.mount(&[&flags[..], &["--passthrough", "off"]].concat());
        // For the copied file, not for the transfer's journal beside it.
        faults.set(json!([{ "op": op, "path": ".forebay-stage-*-*", "fail": "EIO" }]));
        let to = bed.mnt.join("r");
        let args = ["stage", "out", text(&results), text(&to), "--json"];
        let failed = node.as_user(USER, &args).expect(1).json();
        assert_eq!(failed["actual"]["state"], "failed", "{op}: {failed}");
        assert!(!to.exists(), "{op}: under its own name a file is whole");
        let lines = node.json(&["manifest"]);
        assert_eq!(lines[0]["bytes"], bytes.len(), "{op}: {lines}");
        let why = lines[0]["why"].as_str().unwrap().to_string();
        assert!(
            why.contains("destination: ") && why.contains("nput/output error"),
            "{op}: {lines}"
        );
        faults.clear();
        let id = failed["id"].as_str().unwrap().to_string();
        node.as_user(USER, &["stage", "resume", &id]).ok();
        assert!(std::fs::read(&to).unwrap() == bytes, "{op}");
        node.forebay(&["manifest"]).ok();
        proof!("{op}: {why}");
    }
    node.forebay(&["instance", "destroy", "w"]).ok();
    node.assert_empty();
}

/// A control group, removed when dropped; the kernel refuses while a process is in it.
struct Group(PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A group for transfers on this machine: of v1's `cpu`, or of v2.
fn group() -> Option<(Group, &'static str, &'static str)> {
    let name = format!("fbt-{}-transfers", std::process::id());
    for (top, file, share) in
        [("/sys/fs/cgroup/cpu", "cpu.shares", "512"), ("/sys/fs/cgroup", "cpu.weight", "50")]
    {
        let group = Group(Path::new(top).join(&name));
        let made = std::fs::create_dir(&group.0).is_ok() && group.0.join(file).exists();
        if made {
            return Some((group, file, share));
        }
    }
    None
}

// S-23: transfers have their share of the processors.
#[test]
fn a_transfer_runs_in_the_group_of_transfers() {
    needs_forebay!();
    needs_tools!("mkfs.ext4");
    let Some((group, file, share)) = group() else {
        forebay_tests::skip!("no cgroup can be made here");
    };
    std::fs::remove_dir(&group.0).unwrap();
    let mut node = Node::laid(256);
    node.key(&format!("transfer-cgroup = \"{}\"\ntransfer-weight = 50", text(&group.0)));
    node.up();
    node.forebay(&["instance", "create", "private", "w", "--capacity", "32MiB"]).ok();
    let (from, to) = (node.slow().join("big"), node.at("w").join("big"));
    std::fs::write(&from, random(8 << 20, 1)).unwrap();
    let args = ["stage", "in", text(&from), text(&to), "--rate-max", "2MiB/s", "--no-wait"];
    let id = node.forebay(&args).ok().stdout.trim().to_string();
    let inside = || std::fs::read_to_string(group.0.join("cgroup.procs")).unwrap();
    within(Duration::from_secs(20), "its worker is in it", || !inside().is_empty());
    assert_eq!(std::fs::read_to_string(group.0.join(file)).unwrap().trim(), share);
    assert!(!inside().lines().any(|pid| pid == node.pid().to_string()), "the daemon is not");
    node.forebay(&["stage", "wait", &id]).ok();
    // A missing group stops no transfer.
    within(Duration::from_secs(10), "it is empty", || std::fs::remove_dir(&group.0).is_ok());
    std::fs::remove_file(&to).unwrap();
    node.forebay(&args[..4]).ok();
    node.forebay(&["instance", "destroy", "w"]).ok();
    node.assert_empty();
}

/// The user is not there any more when the problem would show later.
#[test]
fn what_cannot_be_is_refused_when_it_is_ordered() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "setpriv");
    let (node, home) = with_space(32);
    let (inside, outside) = (node.at("w").join("r"), home.join("r"));
    write_as(USER, &inside, b"result");
    let copy = ["stage", "out", text(&inside), text(&outside), "--at-end"];
    let make = ["instance", "create", "private", "x", "--capacity", "8MiB"];
    let cases: [(&[&str], &[&str], &str); 14] = [
        (&copy, &["--threads", "0"], "1..=256"),
        (&copy, &["--threads", "300"], "1..=256"),
        (&copy, &["--threads", "many"], "--threads"),
        (&copy, &["--on", "n2"], "is not on node n2; it is on n1"),
        (&copy, &["--last", ""], "--last \"\": a pattern needs a name"),
        (&copy, &["--type", "tape"], "possible values: file, directory, list"),
        (&copy, &["--rate-max", "0MB/s"], "none for no cap"),
        (&make, &["--fs", "ntfs"], "possible values: ext4, xfs"),
        (&make, &["--inodes", "lots"], "--inodes"),
        (&make, &["--permissions", "rwx"], "an octal number up to 0777"),
        (&make, &["--permissions", "4755"], "an octal number up to 0777"),
        (&make, &["--expires", "0s"], "would have expired already"),
        (&make, &["--expires=-1d"], "--expires"),
        (&["instance", "extend", "w"], &["--expires", "soon"], "never"),
    ];
    for (args, more, words) in cases {
        let refused = node.as_user(USER, &[args, more].concat()).expect(2);
        assert!(refused.stderr.contains(words), "{words}: {refused:?}");
    }
    assert_eq!(node.json(&["stage", "list"]), Value::Array(Vec::new()));
    // The permissions of the instance's root are the given ones.
    node.as_user(USER, &[&make[..], &["--permissions", "0750"]].concat()).ok();
    let mode = node.at("x").metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode, 0o750);
    for id in ["w", "x"] {
        node.forebay(&["instance", "destroy", id]).ok();
    }
    node.assert_empty();
}

/// A process in a mount namespace of its own, with other accounts than this machine.
struct Elsewhere(Child);

impl Elsewhere {
    fn with_accounts(dir: &Path, passwd: &str, shadow: &str) -> Elsewhere {
        let add = |name: &str, line: &str| {
            let there = std::fs::read_to_string(Path::new("/etc").join(name)).unwrap();
            let file = dir.join(name);
            std::fs::write(&file, format!("{there}{line}\n")).unwrap();
            format!("mount --bind {} /etc/{name}", text(&file))
        };
        let (passwd, shadow) = (add("passwd", passwd), add("shadow", shadow));
        let script = format!("{passwd} && {shadow} && exec sleep 600");
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        Elsewhere(unshare.spawn().unwrap())
    }

    fn see(&self, path: &Path) -> PathBuf {
        Path::new("/proc")
            .join(self.0.id().to_string())
            .join("root")
            .join(path.strip_prefix("/").unwrap())
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// S-23: what no later try would heal ends, is in the manifest, and can be taken up when it is mended.
#[test]
fn a_stage_out_of_an_expired_account_has_failed_and_does_not_wait_for_ever() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "setpriv", "unshare", "nsenter");
    let mut node = Node::laid(256);
    let line = |days: &str| format!("fbtold:!:19000:0:99999:7::{days}:");
    let account = format!("fbtold:x:{USER}:{USER}::/:/bin/sh");
    let elsewhere = Elsewhere::with_accounts(&node.root, &account, &line("10"));
    let shadow = elsewhere.see(Path::new("/etc/shadow"));
    let mounted = || std::fs::read_to_string(&shadow).is_ok_and(|text| text.contains("fbtold"));
    assert!(eventually(Duration::from_secs(10), mounted), "its accounts are this machine's");
    node.among_mounts_of(elsewhere.0.id() as i32);
    node.up();
    node.as_user(USER, &["instance", "create", "private", "w", "--capacity", "32MiB"]).ok();
    let home = node.slow().join("home");
    open_dir(&home);
    let results = node.at("w").join("r");
    write_as(USER, &elsewhere.see(&results), b"result");
    let to = home.join("r");
    let args = ["stage", "out", text(&results), text(&to)];
    let failed = node.as_user(USER, &args).expect(1);
    assert!(failed.stderr.contains("has expired: extend it (chage -E)"), "{failed:?}");
    let lines = node.json(&["manifest"]);
    assert_eq!(lines[0]["bytes"], 6, "{lines}");
    assert!(lines[0]["why"].as_str().unwrap().contains("has expired"), "{lines}");
    let waits = node.forebay(&["instance", "destroy", "w", "--timeout", "3s"]).expect(4);
    assert!(waits.stderr.contains("forebay stage resume"), "{waits:?}");
    // The account is extended.
    let there = std::fs::read_to_string(&shadow).unwrap().replace(&line("10"), &line(""));
    std::fs::write(node.root.join("shadow"), there).unwrap();
    node.as_user(USER, &["stage", "resume", lines[0]["transfer"].as_str().unwrap()]).ok();
    assert_eq!(std::fs::read(&to).unwrap(), b"result");
    within(Duration::from_secs(30), "the instance goes", || {
        node.json(&["instance", "list"]) == Value::Array(Vec::new())
    });
    node.stop();
}
