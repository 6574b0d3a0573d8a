//! The tests inside the machine; see `main.rs`.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay_tests::images::{MountedFs, mounted_at};
use forebay_tests::lives::{self, Life, Mounted, Swap};
use forebay_tests::node::{Node, open_dir};
use forebay_tests::{Proc, fill, finish, proof, sys, text, tool, uml, within};
use serde_json::Value;

use crate::quota::{self, Project};

const USER: u32 = 47_130;
const OTHER: u32 = 47_131;
const MIB: u64 = 1 << 20;

/// Programs start slowly in such a machine, which shares a processor with all tests.
const PATIENCE: Duration = Duration::from_secs(60);

macro_rules! inside_only {
    () => {
        if !uml::is_inside() {
            forebay_tests::skip!("it is run in a machine of its own, by the test of its name");
        }
    };
}

/// A file system with project quotas, and its error for a used-up quota.
struct Ground {
    name: &'static str,
    device: &'static Path,
    full: i32,
    /// Whether the limit binds root too.
    holds_root: bool,
    mounted: MountedFs,
    /// Projects that an earlier, failed test has left.
    before: Vec<Project>,
}

const DISKS: [Disk; 2] =
    [("ext4", "/dev/ubda", libc::EDQUOT, false), ("xfs", "/dev/ubdb", libc::ENOSPC, true)];

fn mount(device: &str, options: &str) -> MountedFs {
    let at = Path::new("/run").join(device.trim_start_matches("/dev/"));
    MountedFs::device_with(options, Path::new(device), &at).unwrap()
}

type Disk = (&'static str, &'static str, i32, bool);

/// Runs a check on both file systems, one after the other.
fn each(check: impl Fn(&Ground)) {
    DISKS.into_iter().for_each(|disk| on(disk, &check));
}

/// Runs a check; afterwards no project has a limit, or any file.
fn on(disk: Disk, check: impl Fn(&Ground)) {
    let (name, device, full, holds_root) = disk;
    let mounted = mount(device, "prjquota");
    let device = Path::new(device);
    let before = quota::projects(device);
    let ground = Ground { name, device, full, holds_root, mounted, before };
    assert!(quota::is_on(ground.device), "{name}: no quotas to be tested");
    check(&ground);
    ground.assert_nothing_left();
}

fn since(device: &Path, before: &[Project]) -> Vec<Project> {
    let is_new = |project: &Project| before.iter().all(|known| known.id != project.id);
    quota::projects(device).into_iter().filter(is_new).collect()
}

impl Ground {
    fn node(&self, mib: u64) -> Node {
        Node::laid_below(self.mounted.path(), mib)
    }

    fn projects(&self) -> Vec<Project> {
        since(self.device, &self.before)
    }

    fn assert_nothing_left(&self) {
        within(PATIENCE, "no project has a limit or anything in it", || self.projects().is_empty());
    }
}

fn started(mut node: Node) -> Node {
    node.up();
    node
}

fn create(node: &Node, name: &str, mib: u64, more: &[&str]) -> PathBuf {
    let capacity = format!("{mib}MiB");
    let args = ["instance", "create", "private", name, "--capacity", &capacity];
    let made = node.as_user(USER, &[&args[..], more].concat()).ok();
    let means = node.json(&["instance", "show", name])["actual"]["n1"]["means"].clone();
    assert_eq!(means, "project-quota", "{made:?}");
    made.stdout.trim().into()
}

fn destroy(node: &Node, name: &str) {
    node.forebay(&["instance", "destroy", name, "--timeout", "30s"]).ok();
}

fn user(uid: u32, program: &str, args: &[&str]) -> Command {
    let id = uid.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups", program]).args(args);
    command
}

fn as_user(uid: u32, line: &str) -> forebay_tests::Out {
    finish(&mut user(uid, "sh", &["-euc", line]), PATIENCE)
}

/// Writes as a user until an error says that there is no more room; returns the written bytes and the errno.
fn filled(uid: u32, at: &Path) -> (u64, i32) {
    let to = format!("of={}", text(at));
    let said = finish(&mut user(uid, "dd", &["if=/dev/zero", "bs=256K", &to]), PATIENCE);
    let full = match &said.stderr {
        said if said.contains("Disk quota exceeded") => libc::EDQUOT,
        said if said.contains("No space left") => libc::ENOSPC,
        _ => panic!("{}: {said:?}", at.display()),
    };
    (at.metadata().unwrap().len(), full)
}

fn pool_says(node: &Node) -> (Vec<String>, String) {
    let pools = node.json(&["pools"]);
    let words = |key: &str| -> Vec<String> {
        let list = pools[0][key].as_array().unwrap().iter();
        list.map(|word| word.as_str().unwrap().to_string()).collect()
    };
    (words("means"), words("lacks").join("\n"))
}

#[test]
#[ignore = "run in a machine of its own"]
fn a_pool_names_project_quota_and_why_not() {
    inside_only!();
    each(|ground| {
        let node = started(ground.node(64));
        let (means, lacks) = pool_says(&node);
        assert_eq!(means[0], "project-quota", "{}: the best is told first: {lacks}", ground.name);
        assert!(!lacks.contains("project-quota"), "{}: {lacks}", ground.name);
    });
    for (name, device, ..) in DISKS {
        let mounted = mount(device, "defaults");
        let node = started(Node::laid_below(mounted.path(), 64));
        let (means, lacks) = pool_says(&node);
        assert!(!means.contains(&"project-quota".to_string()), "{name}: {means:?}");
        assert!(
            lacks.contains("no project-quota") && lacks.contains("prjquota"),
            "{name}: {lacks}"
        );
        let args = ["instance", "create", "private", "w", "--capacity", "16MiB"];
        let refused = node.forebay(&[&args[..], &["--means", "project-quota"]].concat());
        assert!(refused.code != Some(0) && refused.text().contains("prjquota"), "{refused:?}");
        node.forebay(&["instance", "destroy", "w"]);
        node.assert_empty();
        drop(node);
    }
}

#[test]
#[ignore = "run in a machine of its own"]
fn an_instance_is_made_in_half_a_second() {
    inside_only!();
    each(|ground| {
        let node = started(ground.node(1024));
        let took = |args: &[&str]| {
            let begun = Instant::now();
            node.forebay(args).ok();
            begun.elapsed()
        };
        // The time of a command that asks for nothing is subtracted: programs start slowly here.
        let (mut idle, mut made) = (Duration::MAX, Duration::MAX);
        for _ in 0..3 {
            let make = ["instance", "create", "private", "q", "--capacity", "1000MiB"];
            idle = idle.min(took(&["node", "health"]));
            made = made.min(took(&make));
            destroy(&node, "q");
        }
        let best = made.saturating_sub(idle);
        assert!(best < Duration::from_millis(500), "{}: made in {best:?}", ground.name);
        proof!("{}: 1 GiB made in {best:?}", ground.name);
        node.assert_empty();
    });
}

// S-21
#[test]
#[ignore = "run in a machine of its own"]
fn a_capacity_holds_and_its_neighbor_is_not_touched() {
    inside_only!();
    each(|ground| {
        let node = started(ground.node(256));
        let (a, b) = (create(&node, "a", 64, &[]), create(&node, "b", 32, &[]));
        assert_eq!(a.metadata().unwrap().uid(), USER);
        let shown = rustix::fs::statvfs(&a).unwrap();
        let size = shown.f_blocks * shown.f_frsize;
        assert!((64 * MIB..66 * MIB).contains(&size), "{}: statfs says {size}", ground.name);
        let (written, full) = filled(USER, &a.join("fill"));
        assert_eq!(full, ground.full, "{}", ground.name);
        assert!(
            written >= 64 * MIB,
            "{}: full after {written}, short of its capacity",
            ground.name
        );
        assert!(written <= 66 * MIB, "{}: full after {written}", ground.name);
        let shown = rustix::fs::statvfs(&a).unwrap();
        assert!(shown.f_bavail * shown.f_frsize < MIB, "{}: statfs shows it full", ground.name);
        let (next, _) = filled(USER, &b.join("fill"));
        assert!(next >= 32 * MIB, "{}: the neighbor has its own: {next}", ground.name);
        fs::remove_file(a.join("fill")).unwrap();
        let (again, _) = filled(USER, &a.join("again"));
        assert!(again >= 63 * MIB, "{}: what was deleted is room again: {again}", ground.name);
        let look = as_user(OTHER, &format!("ls {}", text(&a)));
        assert!(look.code != Some(0), "another user looks in");
        ["a", "b"].iter().for_each(|name| destroy(&node, name));
        node.assert_empty();
        proof!("{}: {written} bytes fitted into 64 MiB, then error {full}", ground.name);
    });
}

#[test]
#[ignore = "run in a machine of its own"]
fn the_number_of_files_is_limited() {
    inside_only!();
    each(|ground| {
        let node = started(ground.node(64));
        let at = create(&node, "a", 32, &["--inodes", "500"]);
        let line = "cd $at; n=0; while : >f$n; do n=$((n + 1)); done".replace("$at", text(&at));
        let said = as_user(USER, &line);
        assert!(
            said.text().contains("quota exceeded") || said.text().contains("No space"),
            "{said:?}"
        );
        let made = fs::read_dir(&at).unwrap().count();
        assert_eq!(made, 500, "{}: {said:?}", ground.name);
        destroy(&node, "a");
        node.assert_empty();
    });
}

#[test]
#[ignore = "run in a machine of its own"]
fn what_is_removed_gives_back_its_project_and_limit() {
    inside_only!();
    each(|ground| {
        let node = started(ground.node(64));
        let at = create(&node, "a", 32, &[]);
        as_user(USER, &format!("cd {}; mkdir d; head -c 3M /dev/zero >d/f", text(&at))).ok();
        let [project] = ground.projects()[..] else { panic!("{:?}", ground.projects()) };
        assert!(project.bytes_max >= 32 * MIB && project.bytes >= 3 * MIB, "{project:?}");
        assert!(project.inodes == 3 && project.inodes_max > 0, "{project:?}");
        // A program has a file open: its room stays granted until the close, and its project stays used.
        let open = File::open(at.join("d/f")).unwrap();
        node.forebay(&["instance", "destroy", "a", "--no-wait"]).ok();
        within(PATIENCE, "it is away", || mounted_at(&at).is_none());
        let is_record = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
        within(PATIENCE, "all names are gone", || node.in_pool().iter().all(is_record));
        // Longer than the daemon waits before it looks again.
        std::thread::sleep(Duration::from_secs(2));
        assert!(node.granted() >= 32 * MIB, "{}: granted while a file is open", ground.name);
        let next = create(&node, "b", 8, &[]);
        let ids: Vec<u32> = ground.projects().iter().map(|project| project.id).collect();
        assert!(ids.len() == 2 && ids.contains(&project.id), "{ids:?}: its project is another's");
        drop(open);
        within(PATIENCE, "it is gone", || node.granted() < 32 * MIB);
        within(PATIENCE, "its limit too", || ground.projects().len() == 1);
        assert!(mounted_at(&next).is_some());
        destroy(&node, "b");
        node.assert_empty();
    });
}

#[test]
#[ignore = "run in a machine of its own"]
fn a_daemon_that_is_killed_finds_all_again() {
    inside_only!();
    each(|ground| {
        let mut node = started(ground.node(64));
        let at = create(&node, "a", 16, &[]);
        as_user(USER, &format!("echo kept >{}/kept; chmod 711 {0}", text(&at))).ok();
        // Root may give it to another user; it is the same instance all the same.
        let given = create(&node, "given", 8, &[]);
        chown(&given, Some(OTHER), Some(OTHER)).unwrap();
        let before = ground.projects();
        node.crash();
        let (written, _) = filled(USER, &at.join("meanwhile"));
        assert!(written <= 17 * MIB, "{}: held without the daemon: {written}", ground.name);
        node.up();
        let state = |name: &str| node.json(&["instance", "show", name])["actual"]["n1"].clone();
        for name in ["a", "given"] {
            within(PATIENCE, "it is ready", || state(name)["state"] == "ready");
        }
        assert_eq!(fs::read(at.join("kept")).unwrap(), b"kept\n");
        assert_eq!(at.metadata().unwrap().mode() & 0o7777, 0o711, "what its owner set stays");
        assert_eq!(given.metadata().unwrap().uid(), OTHER);
        let limits = |projects: &[Project]| -> Vec<(u32, u64)> {
            projects.iter().map(|project| (project.id, project.bytes_max)).collect()
        };
        assert_eq!(limits(&before), limits(&ground.projects()));
        ["a", "given"].iter().for_each(|name| destroy(&node, name));
        node.assert_empty();
    });
}

// S-21
#[test]
#[ignore = "run in a machine of its own"]
fn a_daemon_killed_between_any_two_steps_leaves_no_limit_behind() {
    inside_only!();
    let life = Life {
        mode: "private",
        more: ["--capacity", "16MiB", "--means", "project-quota"].map(String::from).to_vec(),
        // Other steps have nothing to do with quotas: see `crash.rs` of the node's crate.
        making: &["space-recorded", "space-project", "space-limited", "space-mounted"],
        leaving: &["remove-marked", "remove-renamed", "sweep-deleted", "sweep-unlimited"],
    };
    each(|ground| {
        let between = |_: &Node| {
            let [project] = ground.projects()[..] else { panic!("{:?}", ground.projects()) };
            assert!(project.bytes_max >= 16 * MIB, "{project:?}");
            assert_eq!(project.inodes, 2, "its directory and its file are in it: {project:?}");
        };
        let steps = life.killed_on_its_way(&mut ground.node(64), &Mounted, between);
        ground.assert_nothing_left();
        // A half-made instance that is not wanted any more.
        let mut node = ground.node(64);
        node.env("FOREBAY_FAILPOINTS", "space-project");
        node.up();
        node.forebay(&["instance", "create", "private", "w", "--capacity", "8MiB", "--no-wait"]);
        node.died();
        node.env("FOREBAY_FAILPOINTS", "");
        node.up();
        destroy(&node, "w");
        node.assert_empty();
        proof!("{}: killed at {steps} steps", ground.name);
    });
}

/// The documented limits of project quotas: they guard against accidents.
#[test]
#[ignore = "run in a machine of its own"]
fn project_quotas_do_not_hold_everybody() {
    inside_only!();
    each(|ground| {
        let node = started(ground.node(256));
        let at = create(&node, "a", 16, &[]);
        let mut file = File::create(at.join("of-root")).unwrap();
        let chunk = vec![1; 24 * MIB as usize];
        let done = file.write_all(&chunk).and_then(|()| file.sync_all());
        match ground.holds_root {
            true => assert_eq!(sys::errno(done), ground.full, "{}: root is held", ground.name),
            false => done.expect("root is not held"),
        }
        drop(file);
        fs::remove_file(at.join("of-root")).unwrap();
        // Its owner gives a file another project, and so takes it out of the limit.
        let line =
            format!("cd {}; : >f; chattr -p 77 f; head -c 24M /dev/zero >f; sync f", text(&at));
        as_user(USER, &line).ok();
        let other = ground.projects().into_iter().find(|project| project.id == 77).unwrap();
        assert!(other.bytes >= 24 * MIB, "{}: {other:?}", ground.name);
        destroy(&node, "a");
        node.assert_empty();
    });
}

#[test]
#[ignore = "run in a machine of its own"]
fn no_project_is_given_twice() {
    inside_only!();
    each(|ground| {
        let mut nodes = [ground.node(256), ground.node(256)];
        for node in &mut nodes {
            node.pool_key(&format!(
                "[[pool]]\nname = \"second\"\ndir = \"{}\"\ncapacity = \"256MiB\"",
                text(&node.root.join("pool2"))
            ));
            node.up();
        }
        // Two daemons with two pools each, all on one file system, and simultaneous requests.
        std::thread::scope(|scope| {
            for number in 0..8 {
                let node = &nodes[number % 2];
                scope.spawn(move || {
                    let (name, pool) = (format!("i{number}"), ["flash", "second"][number / 2 % 2]);
                    let args = ["instance", "create", "private", &name, "--capacity", "8MiB"];
                    node.as_user(USER, &[&args[..], &["--pool", pool]].concat()).ok();
                });
            }
        });
        let projects = ground.projects();
        assert_eq!(projects.len(), 8, "{}: {projects:?}", ground.name);
        for project in &projects {
            assert!(project.bytes_max >= 8 * MIB && project.inodes == 1, "{project:?}");
        }
        for number in 0..8 {
            destroy(&nodes[number % 2], &format!("i{number}"));
        }
        nodes.iter().for_each(Node::assert_empty);
    });
}

/// One on each file system.
#[test]
#[ignore = "run in a machine of its own"]
fn two_pools_of_one_daemon() {
    inside_only!();
    let mounts = DISKS.map(|(_, device, ..)| mount(device, "prjquota"));
    let before = DISKS.map(|(_, device, ..)| quota::projects(Path::new(device)));
    let mut node = Node::laid_below(mounts[0].path(), 128);
    node.pool_key(&format!(
        "[[pool]]\nname = \"x\"\ndir = \"{}\"\ncapacity = \"128MiB\"",
        text(&mounts[1].path().join("pool"))
    ));
    node.up();
    let (a, b) =
        (create(&node, "a", 16, &["--pool", "flash"]), create(&node, "b", 24, &["--pool", "x"]));
    let sizes = [(&a, 16, libc::EDQUOT), (&b, 24, libc::ENOSPC)];
    for (at, mib, errno) in sizes {
        let (written, full) = filled(USER, &at.join("fill"));
        assert!((mib * MIB..(mib + 2) * MIB).contains(&written), "{written} in {mib} MiB");
        assert_eq!(full, errno);
    }
    for ((_, device, ..), before) in DISKS.iter().zip(&before) {
        assert_eq!(since(Path::new(device), before).len(), 1, "{device}");
    }
    ["a", "b"].iter().for_each(|name| destroy(&node, name));
    node.assert_empty();
    let pools: Value = node.json(&["pools"]);
    assert!(pools.as_array().unwrap().iter().all(|pool| pool["granted"] == 0), "{pools}");
}

#[test]
#[ignore = "run in a machine of its own"]
fn any_tree_is_removed() {
    inside_only!();
    each(|ground| {
        let node = started(ground.node(64));
        let at = create(&node, "a", 16, &[]);
        let kept = ground.mounted.path().join("kept");
        open_dir(&kept);
        fs::write(kept.join("file"), "kept").unwrap();
        symlink(&kept, at.join("link")).unwrap();
        symlink("/", at.join("root")).unwrap();
        sys::mkfifo(&at.join("fifo"), 0o600).unwrap();
        std::os::unix::net::UnixListener::bind(at.join("socket")).map(drop).unwrap();
        let line = format!(
            "cd {}; mkdir -p own/deep/er; echo >own/deep/er/f; ln own/deep/er/f hard; chmod 0 own",
            text(&at)
        );
        as_user(USER, &line).ok();
        // A directory of another project, which no user may enter.
        tool("chattr", &["-p", "77", text(&at.join("hard"))]).ok();
        let reader = Proc::spawn(Command::new("cat").arg(at.join("fifo")).stdout(Stdio::null()));
        destroy_busy(&node, &at, reader);
        assert_eq!(fs::read(kept.join("file")).unwrap(), b"kept");
        fs::remove_dir_all(&kept).unwrap();
        node.assert_empty();
    });
}

/// A program that waits at a FIFO has it open: the instance is removed when the program ends.
fn destroy_busy(node: &Node, at: &Path, mut reader: Proc) {
    node.forebay(&["instance", "destroy", "a", "--no-wait"]).ok();
    within(PATIENCE, "it is away", || mounted_at(at).is_none());
    reader.kill();
    within(PATIENCE, "it is gone", || node.json(&["instance", "list"]) == serde_json::json!([]));
}

/// The file system is mounted without the option, in the middle of the test.
#[test]
#[ignore = "run in a machine of its own"]
fn quotas_that_are_off_keep_nothing_from_going() {
    inside_only!();
    for (name, device, ..) in DISKS {
        let mounted = mount(device, "prjquota");
        let before = quota::projects(Path::new(device));
        let mut node = started(Node::laid_below(mounted.path(), 64));
        let at = create(&node, "a", 16, &[]);
        fs::write(at.join("kept"), "kept").unwrap();
        node.stop();
        forebay_tests::images::unmount(&at, false).unwrap();
        drop(mounted);
        let mounted = mount(device, "defaults");
        node.up();
        let said = || node.json(&["instance", "show", "a"])["actual"]["n1"].clone();
        within(PATIENCE, "it says so", || {
            said()["why"].as_str().is_some_and(|why| why.contains("prjquota"))
        });
        assert!(mounted_at(&at).is_none(), "{name}: it shows without a limit: {}", said());
        destroy(&node, "a");
        node.assert_empty();
        drop((node, mounted));
        let mounted = mount(device, "prjquota");
        let left = since(Path::new(device), &before);
        // A limit may be left if it could not be removed; its number is not used again.
        assert!(left.iter().all(|project| project.inodes == 0 && project.bytes == 0), "{left:?}");
        for project in left {
            limit_away(mounted.path(), project.id);
        }
    }
}

fn limit_away(at: &Path, id: u32) {
    let line = format!("limit -p bhard=0 ihard=0 {id}");
    tool("xfs_quota", &["-x", "-f", "-c", &line, text(at)]).ok();
}

#[test]
#[ignore = "run in a machine of its own"]
fn a_limit_is_there_after_a_restart_of_the_machine() {
    inside_only!();
    for (name, device, ..) in DISKS {
        let mounted = mount(device, "prjquota");
        let before = quota::projects(Path::new(device));
        let mut node = started(Node::laid_below(mounted.path(), 64));
        let at = create(&node, "a", 16, &[]);
        as_user(USER, &format!("echo kept >{}/kept", text(&at))).ok();
        node.stop();
        forebay_tests::images::unmount(&at, false).unwrap();
        drop(mounted);
        let mounted = mount(device, "prjquota");
        node.up();
        within(PATIENCE, "it shows again", || mounted_at(&at).is_some());
        assert_eq!(fs::read(at.join("kept")).unwrap(), b"kept\n");
        let (written, _) = filled(USER, &at.join("fill"));
        assert!((15 * MIB..17 * MIB).contains(&written), "{name}: {written}");
        destroy(&node, "a");
        node.assert_empty();
        drop(node);
        within(PATIENCE, "nothing is left", || since(Path::new(device), &before).is_empty());
        drop(mounted);
    }
}

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, seed, 0);
    bytes
}

// S-23
#[test]
#[ignore = "run in a machine of its own"]
fn a_transfer_runs_in_its_group_of_cgroup_v2() {
    inside_only!();
    let mounted = mount(DISKS[0].1, "prjquota");
    let top = Path::new("/sys/fs/cgroup");
    let controllers = fs::read_to_string(top.join("cgroup.controllers")).unwrap();
    assert!(controllers.split_whitespace().any(|name| name == "cpu"), "{controllers}");
    let group = top.join("transfers");
    let mut node = Node::laid_below(mounted.path(), 64);
    node.key(&format!("transfer-cgroup = \"{}\"\ntransfer-weight = 50", text(&group)));
    node.up();
    create(&node, "w", 32, &[]);
    let (from, to) = (node.slow().join("big"), node.at("w").join("big"));
    fs::write(&from, random(4 << 20, 1)).unwrap();
    let args = ["stage", "in", text(&from), text(&to), "--rate-max", "2MiB/s", "--no-wait"];
    let id = node.forebay(&args).ok().stdout.trim().to_string();
    let inside = || fs::read_to_string(group.join("cgroup.procs")).unwrap();
    within(PATIENCE, "its worker is in it", || !inside().is_empty());
    assert_eq!(fs::read_to_string(group.join("cpu.weight")).unwrap().trim(), "50");
    assert!(!inside().lines().any(|pid| pid == node.pid().to_string()), "the daemon is not");
    node.forebay(&["stage", "wait", &id]).ok();
    destroy(&node, "w");
    node.assert_empty();
    node.stop();
    assert!(!group.exists(), "what the daemon made it takes away");
    // A group of the site stays, with the site's settings.
    fs::create_dir(&group).unwrap();
    node.up();
    node.stop();
    assert!(group.exists(), "it is not the daemon's");
    fs::remove_dir(&group).unwrap();
    drop(node);
    // A group of the site that has no share itself.
    let site = Group::new(top, "site");
    fs::write(top.join("cgroup.subtree_control"), "-cpu").unwrap();
    let mut node = Node::laid_below(mounted.path(), 64);
    node.key(&format!("transfer-cgroup = \"{}\"", text(&site.0.join("transfers"))));
    node.up();
    assert!(node.log().contains("cgroup.subtree_control above it"), "{}", node.log());
    node.stop();
}

/// A group of the site, removed when dropped.
struct Group(PathBuf);

impl Group {
    fn new(top: &Path, name: &str) -> Group {
        let at = top.join(name);
        fs::create_dir(&at).unwrap();
        Group(at)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        forebay_tests::eventually(PATIENCE, || fs::remove_dir(&self.0).is_ok());
    }
}

fn swapping(base: &Path, mib: u64) -> Node {
    let mut node = Node::laid_below(base, mib);
    node.pool_key("swap = true");
    node
}

fn swap_on(node: &Node, name: &str, size: &str) -> PathBuf {
    node.forebay(&["instance", "create", "swap", name, "--capacity", size]).ok();
    node.root.join("pool/swap").join(name)
}

#[test]
#[ignore = "run in a machine of its own"]
fn swap_goes_off_wherever_the_daemon_dies() {
    inside_only!();
    on(DISKS[1], |ground| {
        let mut node = swapping(ground.mounted.path(), 64);
        let steps = lives::swap().killed_on_its_way(&mut node, &Swap, |_| ());
        proof!("{}: killed at {steps} steps", ground.name);
    });
}

/// Two jobs on one node: the end of one removes only its own swap. Swap whose pages do not fit into memory
/// stays on, and its room granted, until they do.
#[test]
#[ignore = "run in a machine of its own"]
fn swap_of_one_job_goes_and_another_s_stays() {
    inside_only!();
    // Both file systems behave alike here, and the test is slow.
    on(DISKS[0], |ground| {
        let node = started(swapping(ground.mounted.path(), 600));
        let (one, two) = (swap_on(&node, "one", "32MiB"), swap_on(&node, "two", "500MiB"));
        assert!(Swap::is_on(&one) && Swap::is_on(&two));
        destroy(&node, "one");
        assert!(!Swap::is_on(&one) && Swap::is_on(&two), "{}: only its own", ground.name);
        assert_eq!(node.granted(), 500 * MIB);
        let daemon = node.pid();
        let hog = Hog::larger_than_memory();
        node.forebay(&["instance", "destroy", "two", "--no-wait"]).ok();
        let why = || {
            let shown = node.forebay(&["instance", "show", "two", "--json"]).stdout;
            let shown: Value = serde_json::from_str(&shown).unwrap_or_default();
            shown["actual"]["n1"]["why"].as_str().unwrap_or_default().to_string()
        };
        within(PATIENCE, "it says that it is on", || why().contains("STILL ON"));
        assert!(Swap::is_on(&two), "{}", ground.name);
        assert_eq!(node.granted(), 500 * MIB, "{}: its grant is kept", ground.name);
        assert!(forebay_tests::is_alive(daemon), "{}: the daemon was killed for it", ground.name);
        drop(hog);
        within(PATIENCE, "it goes when it can", || !Swap::is_on(&two));
        within(PATIENCE, "its room is free", || node.granted() == 0);
        node.assert_empty();
    });
}

/// More files in memory than it can hold: they are swapped out like the memory of programs, and written
/// faster.
struct Hog(MountedFs);

impl Hog {
    fn larger_than_memory() -> Hog {
        let hog = Hog(MountedFs::tmpfs(Path::new("/run/hog"), 2000));
        let mut file = File::create(hog.0.path().join("file")).unwrap();
        let chunk = vec![1; 4 << 20];
        let mut written = 0;
        while Hog::swapped() < 200 << 20 {
            file.write_all(&chunk).unwrap();
            written += chunk.len();
            assert!(written < 1200 << 20, "nothing is swapped out");
        }
        hog
    }

    /// The number of bytes in all swap.
    fn swapped() -> u64 {
        let table = fs::read_to_string("/proc/swaps").unwrap();
        let used = table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(3));
        used.filter_map(|used| used.parse::<u64>().ok()).sum::<u64>() << 10
    }
}
