//! Admission rules through a mount: by user, group, control group, size and process, and pinning.
// S-13

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_tests::{
    Bed, Mounted, PATIENCE, Proc, Tier, drop_caches, finish, needs_forebay, proof, sample, say,
    skip, text, within,
};

const MIB: usize = 1 << 20;

/// Nothing is flushed before a command asks for it.
const HOLD: &[&str] = &["--preset", "hold", "--max-age", "1h"];

fn add(mounted: &Mounted, rule: &[&str]) {
    mounted.forebay(&[&["rules", "add", text(&mounted.path)], rule].concat()).ok();
}

fn list(mounted: &Mounted) -> serde_json::Value {
    mounted.forebay(&["rules", "list", text(&mounted.path), "--json"]).ok().json()
}

/// The rule that would apply to an open by the process.
fn meets(mounted: &Mounted, name: &str, pid: i32) -> serde_json::Value {
    let (path, pid) = (mounted.at(name), pid.to_string());
    mounted.forebay(&["rules", "test", text(&path), "--pid", &pid, "--json"]).ok().json()
}

fn run(command: &mut Command) {
    finish(command, PATIENCE).ok();
}

/// Makes a directory in which every user may make files.
fn open_to_all(bed: &Bed) {
    fs::set_permissions(&bed.backing, fs::Permissions::from_mode(0o777)).unwrap();
}

#[test]
fn a_user_and_a_group_are_kept_out_and_nobody_else() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    open_to_all(&bed);
    for name in ["of-user", "of-group", "of-other"] {
        sample::file(&bed.backing.join(name), 1, MIB);
    }
    let mounted = bed.mount(HOLD);
    add(&mounted, &["user", "deny", "--uid", "1234"]);
    add(&mounted, &["group", "deny", "--gid", "5678"]);
    for (uid, gid, name, kept) in [
        (1234, 1234, "of-user", 0),
        (1235, 5678, "of-group", 0),
        (1235, 1235, "of-other", MIB as u64),
    ] {
        run(Command::new("cat").arg(mounted.at(name)).uid(uid).gid(gid));
        mounted.keeps_of(name, kept);
        let made = mounted.at(format!("made-{name}"));
        run(Command::new("cp").arg(mounted.at(name)).arg(&made).uid(uid).gid(gid));
        let behind = fs::metadata(bed.backing.join(format!("made-{name}"))).unwrap().len();
        assert_eq!(behind, if kept == 0 { MIB as u64 } else { 0 }, "write of {name}");
    }
    mounted.umount();
    proof!("three users");
}

/// The mount point of version 2 of control groups.
fn cgroup2() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let found = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
    found.split(' ').nth(1).map(PathBuf::from)
}

/// A control group that is removed when dropped.
struct Group(PathBuf);

impl Group {
    fn make(root: &Path, name: &str) -> Option<Group> {
        let at = root.join(name);
        fs::create_dir(&at).ok()?;
        Some(Group(at))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_control_group_is_kept_out_with_those_below_it() {
    needs_forebay!();
    let Some(root) = cgroup2() else { skip!("no cgroup2 is mounted") };
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let name = format!("fbt-{}", std::process::id());
    let Some(above) = Group::make(&root.join(own), &name) else {
        skip!("{} is not writable", root.display())
    };
    let below = Group::make(&above.0, "below").unwrap();
    let bed = Bed::new(Tier::Disk);
    for name in ["above", "below", "beside"] {
        sample::file(&bed.backing.join(name), 1, MIB);
    }
    let mounted = bed.mount(HOLD);
    let group = Path::new(own).join(&name);
    add(&mounted, &["group", "deny", "--cgroup", text(&group)]);
    for (name, group, kept) in
        [("above", Some(&above), 0), ("below", Some(&below), 0), ("beside", None, MIB as u64)]
    {
        let join = group.map_or("/dev/null".into(), |group| group.0.join("cgroup.procs"));
        let script = "echo $$ > \"$0\" && exec cat \"$1\"";
        run(Command::new("sh").args(["-c", script]).arg(&join).arg(mounted.at(name)));
        mounted.keeps_of(name, kept);
    }
    mounted.umount();
    proof!("two groups");
}

#[test]
fn a_size_is_that_of_the_open() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    sample::file(&bed.backing.join("large"), 1, 2 * MIB);
    sample::file(&bed.backing.join("middle"), 2, MIB);
    sample::file(&bed.backing.join("small"), 3, 1000);
    let mounted = bed.mount(HOLD);
    add(&mounted, &["large", "deny", "--size-min", "2MiB"]);
    add(&mounted, &["small", "deny-writes", "--size-max", "1000B"]);
    for (name, kept) in [("large", 0), ("middle", MIB as u64), ("small", 1000)] {
        fs::read(mounted.at(name)).unwrap();
        mounted.keeps_of(name, kept);
    }
    // The file is small when it is opened, and counts as small until it is closed.
    let file = File::options().write(true).open(mounted.at("small")).unwrap();
    file.write_all_at(&vec![7; MIB], 0).unwrap();
    assert_eq!(fs::read(bed.backing.join("small")).unwrap(), vec![7; MIB]);
    drop(file);
    let file = File::options().write(true).open(mounted.at("small")).unwrap();
    file.write_all_at(b"later", 0).unwrap();
    assert_eq!(fs::read(bed.backing.join("small")).unwrap(), vec![7; MIB]);
    drop(file);
    mounted.umount();
    assert!(fs::read(bed.backing.join("small")).unwrap().starts_with(b"later"));
    proof!("three sizes");
}

#[test]
fn files_that_a_rule_pins_outlast_a_scan_and_an_evict() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    for n in 0..4 {
        sample::file(&bed.backing.join(format!("kept/{n}")), n, MIB);
    }
    for n in 0..8 {
        sample::file(&bed.backing.join(format!("scan/{n}")), n, 4 * MIB);
    }
    let mounted = bed.mount(&["--preset", "hold", "--tier-size", "16MiB"]);
    add(&mounted, &["kept", "allow", "--path", "kept/**", "--pin"]);
    let read = |dir: &str, count: usize| {
        for n in 0..count {
            fs::read(mounted.at(format!("{dir}/{n}"))).unwrap();
        }
    };
    read("kept", 4);
    read("scan", 8);
    within(PATIENCE, "the scan evicts", || {
        let stats = mounted.forebay(&["stats", "--json", text(&mounted.path)]).ok().json();
        stats["counters"]["evicted_bytes"].as_u64() >= Some(16 * MIB as u64)
    });
    mounted.keeps_of("kept", 4 * MIB as u64);
    let named = mounted.at("kept/0");
    let out = mounted.forebay(&["evict", text(&named)]).expect(1);
    assert!(out.text().contains("a rule pins it"), "{}", out.text());
    // With room to spare, since otherwise the tier evicts bytes that are not pinned any more.
    mounted.forebay(&["set", text(&mounted.path), "tier-size=64MiB"]).ok();
    mounted.forebay(&["rules", "remove", text(&mounted.path), "kept"]).ok();
    mounted.forebay(&["evict", text(&named)]).ok();
    mounted.keeps_of("kept", 3 * MIB as u64);
    mounted.umount();
    proof!("four files");
}

/// Cached bytes read by a denied reader must not make the tier fetch the next ones.
#[test]
fn a_denied_reader_reads_nothing_ahead() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let want = sample::file(&bed.backing.join("f"), 1, 4 * MIB);
    let mounted = bed.mount(&["--passthrough", "off", "--readahead", "0"]);
    // Without the kernel's own read-ahead, which could go on after the check.
    let file = File::open(mounted.at("f")).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    file.read_exact_at(&mut vec![0; MIB], 0).unwrap();
    drop(file);
    add(&mounted, &["out", "deny-reads", "--path", "f"]);
    mounted.forebay(&["set", text(&mounted.path), "readahead=16MiB"]).ok();
    let before = mounted.cached("f");
    assert!((MIB as u64..4 * MIB as u64).contains(&before), "{before}");
    drop_caches();
    assert!(fs::read(mounted.at("f")).unwrap() == want);
    let stats = mounted.forebay(&["stats", "--json", text(&mounted.path)]).ok().json();
    assert_eq!(stats["counters"]["readahead_fills"], 0);
    assert!(stats["counters"]["read_bypass_rule"].as_u64() > Some(0));
    mounted.keeps_of("f", before);
    mounted.umount();
    proof!("{before} bytes of {}", want.len());
}

/// Starts processes until one gets the pid `pid`; `None` if that cannot be arranged here.
fn again(pid: i32) -> Option<Proc> {
    for _ in 0..200 {
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).ok()?;
        let child = Proc::spawn(Command::new("sleep").arg("600"));
        if child.pid() == pid {
            return Some(child);
        }
    }
    None
}

#[test]
fn a_process_is_followed_through_its_children_and_not_to_the_next_of_its_number() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    for name in ["f", "by-child"] {
        sample::file(&bed.backing.join(name), 1, MIB);
    }
    let mounted = bed.mount(HOLD);
    let trigger = bed.root.join("go");
    let script =
        "while [ ! -e \"$0\" ]; do sleep 0.05; done; cat \"$1\" > /dev/null; exec sleep 600";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(&trigger).arg(mounted.at("by-child"));
    let mut parent = Proc::spawn(&mut command);
    let pid = parent.pid();
    add(&mounted, &["job", "deny", "--pid", &pid.to_string()]);
    assert_eq!(meets(&mounted, "f", pid)["name"], "job");
    assert!(meets(&mounted, "f", std::process::id() as i32).is_null());
    fs::write(&trigger, b"").unwrap();
    within(PATIENCE, "the child has read", || {
        list(&mounted)[0]["requests"]["read"]["bytes"].as_u64() >= Some(MIB as u64)
    });
    mounted.keeps_of("by-child", 0);
    drop_caches();
    fs::read(mounted.at("by-child")).unwrap();
    mounted.keeps_of("by-child", MIB as u64);
    // Its only child ends when its input ends: no process of the job is left.
    parent.kill();
    let reused = again(pid);
    if reused.is_none() {
        say("SKIPPED: a number that is used again: /proc/sys/kernel/ns_last_pid does not serve");
    }
    within(PATIENCE, "the rule to go with its process", || {
        list(&mounted).as_array().unwrap().is_empty()
    });
    drop(reused);
    mounted.umount();
    proof!("a process and its child");
}

#[test]
fn changes_of_size_follow_the_rule_too() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    for name in ["x.log", "d/x.log"] {
        sample::file(&bed.backing.join(name), 1, 10);
    }
    let mounted = bed.mount(HOLD);
    add(&mounted, &["logs", "deny", "--path", "/x.log"]);
    let behind = |name: &str| fs::metadata(bed.backing.join(name)).unwrap().len();
    let open = |name: &str| File::options().write(true).open(mounted.at(name)).unwrap();
    let file = open("x.log");
    file.set_len(8192).unwrap();
    assert_eq!(behind("x.log"), 8192, "through the descriptor");
    file.write_all_at(&[7; 100], 8192).unwrap();
    assert_eq!(behind("x.log"), 8292, "and what is written after");
    drop(file);
    run(Command::new("truncate").args(["-s", "5"]).arg(mounted.at("x.log")));
    assert_eq!(behind("x.log"), 5, "by name");
    // The leading slash is the root of the mount.
    open("d/x.log").set_len(8192).unwrap();
    assert_eq!(behind("d/x.log"), 10, "another one, which the tier takes");
    mounted.umount();
    assert_eq!(behind("d/x.log"), 8192);
    proof!("three changes of size went around the tier and one did not");
}
