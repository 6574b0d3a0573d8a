//! The reports and exit codes of commands.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use forebay_tests::node::Node;
use forebay_tests::{
    Bed, PATIENCE, Proc, Tier, binary, eventually, finish, forebay, is_alive, kill, needs_forebay,
    proof, sample, text, within,
};

/// The end of a flush in the background is not seen by the user.
#[test]
fn a_flush_in_the_background_says_at_once_what_is_not_there() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--preset", "hold"]);
    fs::write(mounted.at("there"), [7; 5000]).unwrap();
    let (there, typo) = (mounted.at("there"), mounted.at("typo"));
    let none = mounted.forebay(&["flush", text(&typo)]).expect(1);
    assert!(none.stderr.contains("typo: missing: there is no such file"), "{none:#?}");
    assert!(!none.stdout.contains("job"), "no job is begun for nothing: {none:#?}");
    let some = mounted.forebay(&["flush", "--json", text(&typo), text(&there)]).expect(1).json();
    assert_eq!(some["failures"][0]["state"], "missing", "{some:#}");
    let id = some["id"].as_u64().expect("what is there is flushed").to_string();
    mounted.forebay(&["jobs", "wait", &id, text(&mounted.path)]).expect(1);
    assert_eq!(fs::read(bed.backing.join("there")).unwrap(), [7; 5000]);
    mounted.forebay(&["flush", text(&there)]).ok();
    mounted.umount();
}

/// The message of an interrupted command counts parts of files, and uses the right pace.
#[test]
fn what_an_interrupt_ends_is_told_with_what_was_done() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    sample::file(&bed.backing.join("big"), 1, 60 << 20);
    let mounted = bed.mount(&["--throttle", "10MB,1ms", "--preset", "hold"]);
    let (big, said) = (mounted.at("big"), bed.root.join("said"));
    let mut fetch = Command::new(binary());
    fetch.args(["prefetch", text(&big)]).stderr(fs::File::create(&said).unwrap());
    let mut fetch = Proc::spawn(&mut fetch);
    within(PATIENCE, "a part of it is there", || mounted.cached("big") > 12 << 20);
    kill(fetch.pid(), libc::SIGINT);
    let ended = fetch.wait(PATIENCE).and_then(|status| status.code());
    let said = fs::read_to_string(&said).unwrap();
    assert_eq!(ended, Some(130), "{said}");
    let (_, told) = said.split_once("interrupted: fetched and verified ").expect(&said);
    let mib: f64 = told.split_once(" MiB, 0 files as a whole; ").expect(&said).0.parse().unwrap();
    let cached = mounted.cached("big") as f64 / f64::from(1 << 20);
    assert!(mib >= 4.0 && mib <= cached + 0.1, "{mib} MiB of {cached} that are cached: {said}");
    proof!("{mib} MiB of {cached:.1}");
    mounted.umount();
}

/// What the drain was copying when the command began counts, and an unmount flushes in two parts.
// S-5
#[test]
fn a_flush_and_an_unmount_tell_of_all_that_was_dirty() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--throttle", "10MB,1ms", "--max-age", "1s"]);
    let dirty_in_flight = |name: &str| {
        sample::file(&mounted.at(name), 1, 20 << 20);
        within(PATIENCE, "it is being copied", || mounted.number("flushing_bytes") > 8 << 20);
        mounted.number("dirty_bytes")
    };
    let least = dirty_in_flight("one") - (10 << 20);
    let flush = mounted.forebay(&["flush", "--wait", "--json", text(&bed.mnt)]).ok().json();
    let told = &flush["report"]["bytes"];
    assert!(told.as_u64() >= Some(least), "not {least}: {flush:#}");
    let least = dirty_in_flight("two") - (10 << 20);
    let gone = bed.forebay(&["umount", "--json", text(&bed.mnt)]).ok().json();
    assert!(gone["done_bytes"].as_u64() >= Some(least), "not {least}: {gone:#}");
    assert_eq!(gone["done_bytes"], gone["total_bytes"]);
    assert_eq!(gone["report"]["bytes"], gone["done_bytes"]);
}

/// A user may not know that a directory is in memory; a second mount does not say it again.
#[test]
fn a_new_tier_in_memory_is_told_of_once() {
    needs_forebay!();
    let bed = Bed::new(Tier::Tmpfs(64));
    for told in [true, false] {
        let out = bed.try_mount(&[]).ok();
        assert_eq!(out.stderr.contains("is in memory"), told, "{out:#?}");
        bed.mounted().umount();
    }
}

/// Other files on the tier's file system leave the tier little room, and go again.
#[test]
fn a_tier_that_other_files_leave_no_room_says_so() {
    needs_forebay!();
    let bed = Bed::new(Tier::Tmpfs(64));
    let mounted = bed.mount(&[]);
    let status = || mounted.forebay(&["status", text(&bed.mnt)]).ok().stdout;
    assert!(!status().contains("SHORT"), "{}", status());
    let other = bed.root.join("fast/other");
    sample::file(&other, 1, 62 << 20);
    within(PATIENCE, "it is noticed", || mounted.number("tier_short_bytes") > 0);
    assert!(status().contains("since other files fill its file system"), "{}", status());
    fs::remove_file(other).unwrap();
    within(PATIENCE, "there is room again", || mounted.number("tier_short_bytes") == 0);
    mounted.umount();
}

#[test]
fn a_dead_mount_that_is_cleared_is_told_in_json_as_an_unmount_is() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--preset", "hold"]);
    fs::write(mounted.at("f"), [7; 5000]).unwrap();
    mounted.kill9();
    let told = mounted.try_umount(&["--json"]).expect(4).json();
    assert_eq!((&told["daemon"], &told["kind"]), (&"dead".into(), &"umount".into()), "{told:#}");
    assert_eq!((&told["exit_code"], &told["dirty"]), (&4.into(), &true.into()), "{told:#}");
    assert_eq!(told["mountpoint"], text(&bed.mnt), "{told:#}");
    assert_eq!(told["tier"], text(&bed.tier), "{told:#}");
    let left = &told["report"];
    assert_eq!(left["left_dirty_files"], 1, "{told:#}");
    assert_eq!(left["left_dirty_bytes"], 5000, "{told:#}");
    let mounted = bed.mount(&["--preset", "hold"]);
    let ended = mounted.try_umount(&["--json", "--keep-dirty"]).ok().json();
    for key in ["kind", "exit_code"] {
        assert!(!ended[key].is_null() && !told[key].is_null(), "{key}: {ended:#}");
    }
    assert_eq!(ended["report"]["left_dirty_bytes"], 5000, "{ended:#}");
}

#[test]
fn a_read_only_mount_is_no_stranger() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&[]);
    let (other, tier) = (bed.dir("other"), bed.root.join("fast/other"));
    let mount = |flags: &[&str]| {
        let line = ["mount", text(&bed.backing), text(&other), "--tier", text(&tier)];
        let said = forebay(&[&line[..], flags].concat()).ok().stderr;
        forebay(&["umount", text(&other)]).ok();
        said
    };
    assert!(mount(&[]).contains("strangers"), "two that write are told of each other");
    assert!(!mount(&["--read-only"]).contains("strangers"));
    mounted.umount();
}

#[test]
fn a_registry_that_does_not_answer_is_told_with_what_to_look_at() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let out = bed.try_mount(&["--registry", "etcd://127.0.0.1:1/x"]).expect(1);
    for words in ["etcd://127.0.0.1:1/x: no answer", "`forebay registry check ADDRESS` tries it"] {
        assert!(out.stderr.contains(words), "{out:#?}");
    }
}

#[test]
fn a_job_script_that_is_not_there_is_wrong_usage() {
    needs_forebay!();
    let out = forebay(&["job", "check", "/nowhere/job.sh"]).expect(2);
    assert!(out.stderr.contains("script /nowhere/job.sh: No such file"), "{out:#?}");
}

/// Pasted as one block: the next line finds the daemon.
#[test]
fn a_node_daemon_in_the_background_serves_when_the_command_returns() {
    needs_forebay!();
    let node = Node::laid(64);
    let config = node.config();
    // Started by a user whose umask hides new files from others.
    let mut command = Command::new("sh");
    command.args(["-c", "umask 077; exec \"$@\"", "sh", text(binary())]);
    command.args(["node", "--detach", "--config", text(&config)]);
    let out = finish(&mut command, PATIENCE).ok();
    let mode = node.root.join("run").metadata().expect("the daemon makes it").permissions().mode();
    assert_eq!(mode & 0o005, 0o005, "users must pass the socket's directory: {mode:o}");
    let pools = node.forebay(&["pools"]);
    let (_, pid) = out.stdout.split_once("(pid ").expect("it says which process it is");
    let pid: i32 = pid.split_once(')').unwrap().0.parse().unwrap();
    assert!(pools.ok().stdout.contains("flash"));
    let log = node.root.join("state/node.log");
    assert!(out.stdout.contains(text(&log)), "{out:#?}");
    assert!(fs::read_to_string(&log).unwrap().contains("serving"));
    // A daemon that cannot serve says why, and leaves nothing behind.
    let second = finish(&mut command, PATIENCE);
    assert!(second.code != Some(0) && !second.stderr.is_empty(), "{second:#?}");
    kill(pid, libc::SIGTERM);
    assert!(eventually(Duration::from_secs(30), || !is_alive(pid)), "it stops");
}

/// A script that asks for JSON always gets a document.
#[test]
fn an_error_is_a_document_where_json_is_asked_for() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&[]);
    let mnt = text(&mounted.path).to_string();
    let unmounted = text(&bed.backing).to_string();
    let cases: [(&[&str], i32); 6] = [
        (&["status", &unmounted, "--json"], 3),
        (&["umount", &unmounted, "--json"], 3),
        (&["get", &mnt, "no-such-key", "--json"], 2),
        (&["jobs", "wait", "999", &mnt, "--json"], 2),
        (&["rules", "remove", &mnt, "none", "--json"], 2),
        (&["check", text(&bed.tier), "--json"], 2),
    ];
    for (words, code) in cases {
        let out = forebay(words);
        assert_eq!(out.code, Some(code), "{words:?}: {out:#?}");
        let told = out.json();
        assert_eq!(told["exit_code"], code, "{words:?}: {told:#}");
        let why = told["error"].as_str().unwrap_or_default();
        assert!(!why.is_empty() && out.stderr.contains(why), "{words:?}: {out:#?}");
    }
    mounted.umount();
}

/// The drain after a SIGTERM is the daemon's own. A command that unmounts meanwhile reports how it
/// ended.
#[test]
fn umount_beside_a_daemon_that_ends_says_how_it_ended() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--preset", "hold", "--throttle", "4MB,1ms"]);
    sample::file(&mounted.at("f"), 1, 4_000_000);
    kill(mounted.pid, libc::SIGTERM);
    let out = forebay(&["umount", "--json", text(&bed.mnt)]).expect(0).json();
    assert_eq!(out["mountpoint"], text(&bed.mnt), "{out:#}");
    assert_eq!(out["exit_code"], 0, "{out:#}");
    assert_eq!(fs::read(bed.backing.join("f")).unwrap().len(), 4_000_000);
    within(PATIENCE, "the daemon ends", || !is_alive(mounted.pid));
}

#[test]
fn a_rule_that_can_match_nothing_or_matches_everything_is_asked_about() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&[]);
    let mnt = text(&mounted.path).to_string();
    let add = |words: &[&str]| mounted.forebay(&[&["rules", "add", &mnt], words].concat());
    let whole = format!("{mnt}/scratch/**");
    let out = add(&["scratch", "deny", "--path", &whole]).expect(2);
    assert!(out.stderr.contains("write 'scratch/**'"), "{out:#?}");
    let out = add(&["rest", "deny"]).expect(2);
    assert!(out.stderr.contains("keeps every file out"), "{out:#?}");
    let out = add(&["rest", "deny", "--all", "--path", "x"]).expect(2);
    assert!(out.stderr.contains("it has conditions"), "{out:#?}");
    let out = add(&["group", "deny", "--cgroup", "no/such.slice"]).ok();
    assert!(out.stderr.contains("no control group no/such.slice"), "{out:#?}");
    add(&["rest", "deny", "--all"]).ok();
    let rules = mounted.forebay(&["rules", "list", "--json", &mnt]).ok().json();
    assert_eq!(rules.as_array().map(Vec::len), Some(2), "{rules:#}");
    mounted.umount();
}

/// The command that waits for a flush says in plain words that nobody flushes any more.
#[test]
fn a_daemon_that_is_killed_under_a_flush_is_told_as_such() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--preset", "hold", "--throttle", "1MB,1ms"]);
    sample::file(&mounted.at("f"), 1, 12_000_000);
    let said = bed.root.join("said");
    let mut flush = Command::new(binary());
    flush.args(["flush", "--wait", text(&bed.mnt)]).stderr(fs::File::create(&said).unwrap());
    let mut flush = Proc::spawn(&mut flush);
    within(PATIENCE, "the flush is under way", || mounted.number("flushing_bytes") > 0);
    mounted.kill9();
    let ended = flush.wait(PATIENCE).and_then(|status| status.code());
    let said = fs::read_to_string(&said).unwrap();
    assert_eq!(ended, Some(3), "{said}");
    let safe = format!("what is dirty is safe in the tier {}", text(&bed.tier));
    assert!(said.contains("the daemon died") && said.contains(&safe), "{said}");
    assert!(!said.contains("os error"), "{said}");
}

/// A new file without a byte is dirty by its name alone.
#[test]
fn what_a_detach_waits_for_is_never_no_bytes() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--preset", "hold"]);
    let file = fs::File::options().create(true).append(true).open(mounted.at("f")).unwrap();
    file.set_len(0).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(7)).unwrap();
    drop(file);
    let out = mounted.forebay(&["detach", text(&bed.mnt)]).ok();
    assert!(out.stdout.starts_with("waits for 1 file without dirty bytes "), "{out:#?}");
    mounted.umount();
    proof!("{}", out.stdout.lines().next().unwrap_or_default());
}
