//! The node daemon with stores that do not answer, and with users who try to see what they should not.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_tests::images::{self, ImageFs, MountedFs, mounted_at};
use forebay_tests::node::{Node, open_dir};
use forebay_tests::{
    Bed, Faults, Mounted, Tier, fill, is_alive, kill, needs_forebay, needs_tools, proof, text,
    within,
};
use serde_json::Value;

const USER: u32 = 47_120;
const OTHER: u32 = 47_121;

/// A store that stops answering: a mount of forebay whose own store can be stalled. Once a call has
/// reached it, not even SIGKILL ends the process that waits for the answer.
struct Hanging {
    faults: Faults,
    mounted: Option<Mounted>,
    bed: Bed,
}

impl Hanging {
    fn new() -> Hanging {
        let bed = Bed::new(Tier::Disk);
        let faults = Faults::none(&bed);
        open_dir(&bed.backing);
        let flags = ["--fault", faults.path(), "--backing-timeout", "1h", "--attr-ttl", "0s"];
        let mounted = Some(bed.mount(&flags));
        Hanging { faults, mounted, bed }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.bed.mnt.join(name)
    }
}

/// A file system on which every writer waits; thawed when dropped.
struct Frozen<'a>(&'a MountedFs);

impl Frozen<'_> {
    fn freeze(fs: &MountedFs) -> Frozen<'_> {
        forebay_tests::tool("fsfreeze", &["--freeze", text(fs.path())]).ok();
        Frozen(fs)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        forebay_tests::tool("fsfreeze", &["--unfreeze", text(self.0.path())]).ok();
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.faults.clear();
        // Waiting processes are answered first.
        std::thread::sleep(Duration::from_millis(300));
        drop(self.mounted.take());
    }
}

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, seed, 0);
    bytes
}

fn run_as(uid: u32, args: &[&str]) -> bool {
    let id = uid.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]).args(args);
    command.output().unwrap().status.success()
}

fn nothing_listed(node: &Node) -> bool {
    node.json(&["instance", "list"]) == serde_json::json!([])
}

// S-22: a user's cache opens nothing to others that only directories above its backing store closed.
#[test]
fn a_user_s_cache_is_closed_to_others() {
    needs_forebay!();
    needs_tools!("setpriv");
    let node = Node::start(256);
    let shut = node.slow().join("shut");
    let data = shut.join("data");
    open_dir(&data);
    std::fs::write(data.join("secret"), "the user's").unwrap();
    std::os::unix::fs::chown(&shut, Some(USER), Some(USER)).unwrap();
    std::fs::set_permissions(&shut, PermissionsExt::from_mode(0o700)).unwrap();
    let args = ["instance", "create", "cache", "c", "--backing", text(&data)];
    let made = node.as_user(USER, &[&args[..], &["--capacity", "64MiB"]].concat()).ok();
    let at = PathBuf::from(made.stdout.trim());
    let secret = at.join("secret");
    assert!(run_as(USER, &["cat", text(&secret)]), "the user may read it");
    assert!(run_as(USER, &["ls", text(at.parent().unwrap())]));
    assert!(!run_as(OTHER, &["cat", text(&secret)]), "another user reads it");
    assert!(!run_as(OTHER, &["ls", text(&at)]), "another user looks in");
    // Nor can the user, who may pass through, put another object in the place where root mounts.
    let above = at.parent().unwrap();
    assert!(!run_as(USER, &["chmod", "755", text(above)]));
    assert!(!run_as(USER, &["touch", text(&above.join("x"))]));
    node.as_user(USER, &["instance", "destroy", "c"]).ok();
    assert!(!node.at("c").exists(), "its directories go with it");
    node.assert_empty();
}

/// The pid of the worker, which a transfer's status has once it has begun.
fn worker_of(node: &Node, transfer: &str) -> i32 {
    let status = node.root.join(format!("state/transfers/{transfer}.jsonl"));
    let mut pid = None;
    within(Duration::from_secs(20), "the worker says so", || {
        let said = std::fs::read_to_string(&status).unwrap_or_default();
        let lines = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        pid = lines.filter_map(|line| line["started"]["pid"].as_i64()).next_back();
        pid.is_some()
    });
    pid.unwrap() as i32
}

fn state_of(node: &Node, transfer: &str) -> String {
    let shown = node.json(&["stage", "show", transfer]);
    shown["actual"]["state"].as_str().unwrap_or("none").to_string()
}

fn begin(node: &Node, from: &Path, to: &Path, more: &[&str]) -> String {
    let args = [&["stage", "out", text(from), text(to), "--no-wait"], more].concat();
    let id = node.as_user(USER, &args).ok().stdout.trim().to_string();
    within(Duration::from_secs(20), "it runs", || state_of(node, &id) == "running");
    id
}

// S-23: a worker that was stopped is killed, and what it left is in the manifest.
#[test]
fn hurry_waits_for_no_worker_that_was_stopped() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "setpriv");
    let mut node = Node::laid(512);
    node.key("manifest-max = \"1TiB\"");
    node.up();
    let home = node.slow().join("home");
    open_dir(&home);
    node.as_user(USER, &["instance", "create", "private", "w", "--capacity", "64MiB"]).ok();
    let results = node.at("w").join("r");
    std::fs::write(&results, random(32 << 20, 5)).unwrap();
    std::os::unix::fs::chown(&results, Some(USER), Some(USER)).unwrap();
    let id = begin(&node, &results, &home.join("r"), &["--rate-max", "1MiB/s"]);
    let worker = worker_of(&node, &id);
    kill(worker, libc::SIGSTOP);
    node.forebay(&["instance", "destroy", "w", "--hurry", "--no-wait"]).ok();
    // The daemon's patience is a second here.
    within(Duration::from_secs(20), "the manifest has it", || node.has_left_something());
    assert!(!is_alive(worker), "it was not killed");
    within(Duration::from_secs(20), "it says so", || state_of(&node, &id) == "cancelled");
    within(Duration::from_secs(40), "it is dropped in its time", || nothing_listed(&node));
    node.assert_empty();
}

// S-23: one that nothing ends holds neither the instance nor the daemon, and is not doubled.
#[test]
fn hurry_waits_for_no_worker_that_hangs_in_the_kernel() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "setpriv");
    let mut node = Node::laid(512);
    node.long_after_hurry();
    node.up();
    let store = Hanging::new();
    node.as_user(USER, &["instance", "create", "private", "w", "--capacity", "32MiB"]).ok();
    let (results, bytes) = (node.at("w").join("r"), random(4 << 20, 6));
    std::fs::write(&results, &bytes).unwrap();
    std::os::unix::fs::chown(&results, Some(USER), Some(USER)).unwrap();
    store.faults.stalled();
    let id = begin(&node, &results, &store.at("r"), &[]);
    let worker = worker_of(&node, &id);
    node.forebay(&["instance", "destroy", "w", "--hurry", "--no-wait"]).ok();
    within(Duration::from_secs(30), "the manifest has it", || node.has_left_something());
    let lines = node.json(&["manifest"]);
    assert!(lines[0]["why"].as_str().unwrap().contains("does not answer"), "{lines}");
    let hangs = is_alive(worker);
    assert!(hangs, "nothing hung: the store does not do what the test is about");
    // The job's user cannot look into an instance that is only kept.
    within(Duration::from_secs(10), "it is shut", || !run_as(USER, &["ls", text(&node.at("w"))]));
    // The next worker waits until the first has ended: two never work on one transfer.
    let mut resume = std::thread::scope(|scope| {
        let (node, id) = (&node, &id);
        let resumed = scope.spawn(move || node.as_user(USER, &["stage", "resume", id]));
        std::thread::sleep(Duration::from_secs(6));
        assert_eq!(worker_of(node, id), worker, "another worker was started beside it");
        store.faults.clear();
        resumed.join().unwrap()
    });
    resume.stdout.clear();
    resume.ok();
    assert!(std::fs::read(store.at("r")).unwrap() == bytes);
    within(Duration::from_secs(30), "the instance goes", || nothing_listed(&node));
    node.assert_empty();
    proof!("worker {worker} hung and was left to the kernel");
}

/// More instances than the daemon has threads for them, all on a store that hangs.
#[test]
fn a_store_that_hangs_stops_neither_other_instances_nor_answers() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "setpriv", "fsfreeze");
    const CACHES: usize = 18;
    let mut node = Node::laid(2048);
    node.up();
    let image = node.root.join("slow.img");
    images::make(&image, ImageFs::Ext4, 256);
    let slow = MountedFs::image(&image, &node.slow());
    let names: Vec<String> = (0..CACHES).map(|n| format!("h{n:02}")).collect();
    for name in &names {
        let backing = node.slow().join(name);
        open_dir(&backing);
        let args = ["instance", "create", "cache", name, "--backing", text(&backing)];
        let more = ["--capacity", "64MiB", "--set", "preset=hold", "--set", "backing-timeout=1h"];
        node.forebay(&[&args[..], &more].concat()).ok();
        std::fs::write(node.at(name).join("dirty"), random(100_000, 1)).unwrap();
    }
    let frozen = Frozen::freeze(&slow);
    for name in &names {
        node.forebay(&["instance", "destroy", name, "--no-wait"]).ok();
    }
    // All threads for instances wait by now.
    std::thread::sleep(Duration::from_secs(3));
    let asked = Instant::now();
    node.forebay(&["instance", "create", "private", "p", "--capacity", "16MiB"]).ok();
    let made = asked.elapsed();
    assert!(made < Duration::from_secs(65), "{made:?}");
    // A request about a store that hangs gets an error, and no other request waits for that.
    let store = Hanging::new();
    store.faults.stalled();
    let elsewhere = store.at("elsewhere");
    let args = ["instance", "create", "cache", "x", "--backing", text(&elsewhere)];
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let refused = node.as_user(USER, &[&args[..], &["--capacity", "1MiB"]].concat());
                assert!(refused.code != Some(0), "{refused:?}");
                assert!(refused.stderr.contains("does not answer"), "{refused:?}");
            });
        }
        std::thread::sleep(Duration::from_secs(1));
        let asked = Instant::now();
        node.forebay(&["node", "health"]).ok();
        assert!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
    });
    let asked = Instant::now();
    assert_eq!(node.json(&["instance", "list"]).as_array().unwrap().len(), CACHES + 1);
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    store.faults.clear();
    drop(frozen);
    node.forebay(&["instance", "destroy", "p"]).ok();
    within(Duration::from_secs(180), "what was dirty goes home", || nothing_listed(&node));
    for name in &names {
        let home = node.slow().join(name).join("dirty");
        assert!(std::fs::read(home).unwrap() == random(100_000, 1), "{name}");
    }
    node.assert_empty();
    proof!("{CACHES} instances hung; one more was made in {made:?}");
}

// S-22: a mount whose daemon does not answer goes in bounded time, and its dirty bytes go home.
#[test]
fn a_cache_goes_though_its_daemon_was_stopped() {
    needs_forebay!();
    let node = Node::start(512);
    let proj = node.slow().join("proj");
    open_dir(&proj);
    let args = ["instance", "create", "cache", "c", "--backing", text(&proj)];
    node.forebay(&[&args[..], &["--capacity", "64MiB", "--set", "max-age=1h"]].concat()).ok();
    let bytes = random(3 << 20, 4);
    let (dirty, home) = (node.at("c").join("dirty"), proj.join("dirty"));
    std::fs::write(&dirty, &bytes).unwrap();
    let status = forebay_tests::forebay(&["status", text(&node.at("c")), "--json"]).ok().json();
    let daemon = status["pid"].as_i64().unwrap() as i32;
    let out = ["stage", "out", text(&dirty), text(&home)];
    let id = node.forebay(&[&out[..], &["--at-end"]].concat()).ok().stdout;
    kill(daemon, libc::SIGSTOP);
    let asked = Instant::now();
    node.forebay(&["instance", "destroy", "c", "--no-wait"]).ok();
    within(Duration::from_secs(240), "its mount is gone", || mounted_at(&node.at("c")).is_none());
    let took = asked.elapsed();
    within(Duration::from_secs(60), "it is home, and the instance gone", || nothing_listed(&node));
    assert!(std::fs::read(&home).unwrap() == bytes);
    let named = format!("taken away from its own daemon (pid {daemon}), which did not answer");
    assert!(node.log().contains(&named), "{}", node.log());
    let told = node.json(&["stage", "show", id.trim()]);
    assert!(told["actual"]["why"].as_str().unwrap().contains("does not answer"), "{told}");
    assert!(!is_alive(daemon), "it was left stopped");
    node.assert_empty();
    proof!("the mount was ended after {took:?}");
}

// S-22: a tier that cannot be looked at is not gone, and neither is what is dirty in it.
#[test]
fn a_tier_that_cannot_be_looked_at_keeps_its_grant_and_its_bytes() {
    needs_forebay!();
    let node = Node::start(512);
    let small = MountedFs::tmpfs(&node.slow().join("small"), 16);
    let args = ["cache", "c", "--backing", text(small.path()), "--capacity", "200MiB"];
    let make = [&["instance", "create"], &args[..], &["--set", "max-age=1h"]].concat();
    node.forebay(&make).ok();
    let bytes = random(8 << 20, 8);
    std::fs::write(node.at("c").join("kept"), &bytes).unwrap();
    std::fs::write(small.path().join("filler"), random(15 << 20, 2)).unwrap();
    node.forebay(&["instance", "destroy", "c", "--hurry", "--no-wait"]).ok();
    within(Duration::from_secs(30), "it waits", || node.has_left_something());
    // The mount over the tier answers every access with an error: its daemon is dead.
    let bed = Bed::new(Tier::Disk);
    let dead = bed.mount(&[]);
    kill(dead.pid, libc::SIGKILL);
    within(Duration::from_secs(10), "it is dead", || bed.mnt.metadata().is_err());
    let tier = node.root.join("pool/tiers/c");
    rustix::mount::mount_bind(&bed.mnt, &tier).unwrap();
    let blind = tier.try_exists();
    std::fs::remove_file(small.path().join("filler")).unwrap();
    within(Duration::from_secs(60), "it says so", || {
        let shown = node.json(&["instance", "list"]);
        let why = shown[0]["actual"]["n1"]["why"].as_str().unwrap_or_default().to_string();
        why.contains("tiers/c")
    });
    let granted = node.granted();
    images::unmount(&tier, true).unwrap();
    drop(dead);
    assert!(blind.is_err(), "the look at it succeeds: {blind:?}");
    assert!(granted > 0, "its room was given away");
    within(Duration::from_secs(90), "it goes home", || nothing_listed(&node));
    assert!(std::fs::read(small.path().join("kept")).unwrap() == bytes);
    assert!(mounted_at(&node.at("c")).is_none());
    node.assert_empty();
}
