//! The command for people and scripts: exit codes, messages, JSON.
// S-5, S-12

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_tests::images::{self, MountedFs};
use forebay_tests::{
    Bed, Faults, Out, PATIENCE, Proc, Tier, binary, drop_caches, eventually, finish, forebay,
    is_alive, is_root, kill, needs_forebay, plain, proof, sample, skip, sys, text, tool, user_ids,
    while_busy, within,
};
use serde_json::Value;

const SUBCOMMANDS: &[&str] = &[
    "mount", "umount", "status", "stats", "ls", "flush", "evict", "prefetch", "pin", "unpin",
    "purge", "resolve", "run", "check", "recover", "config", "set", "get", "jobs", "fence", "wait",
    "top", "bench", "rules", "registry",
];

#[test]
fn every_subcommand_explains_itself_with_examples() {
    if plain::on() {
        skip!("plain mode has no forebay");
    }
    let all = forebay(&["--help"]).ok().stdout;
    for name in SUBCOMMANDS {
        assert!(all.contains(name), "{name} is not in --help");
        let help = forebay(&[name, "--help"]).ok().stdout;
        assert!(help.contains("Examples:") && help.contains("forebay "), "{name}: {help}");
    }
    assert!(forebay(&["--version"]).ok().stdout.starts_with("forebay "));
    proof!("{} subcommands", SUBCOMMANDS.len());
}

#[test]
fn completions_end_quietly_when_nobody_reads_on() {
    if plain::on() {
        skip!("plain mode has no forebay");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = format!("trap '' PIPE; {} completions {shell} | :", text(binary()));
        let out = finish(Command::new("bash").args(["-c", &script]), PATIENCE).ok();
        assert_eq!(out.stderr, "", "{shell}");
    }
}

#[test]
fn a_flush_does_not_fail_over_files_that_are_replaced_meanwhile() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--preset", "hold"]);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for k in 0..3 {
            let (mounted, done) = (&mounted, &done);
            scope.spawn(move || {
                for i in (0..20).cycle() {
                    if done.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                    fs::write(mounted.at(format!("new-{k}")), [7; 50_000]).unwrap();
                    let name = mounted.at(format!("f-{k}-{i}"));
                    fs::rename(mounted.at(format!("new-{k}")), name).unwrap();
                }
            });
        }
        let outs: Vec<Out> =
            (0..40).map(|_| mounted.forebay(&["flush", "--wait", text(&mounted.path)])).collect();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        for out in outs {
            out.ok();
        }
    });
    mounted.umount();
}

/// A lock or a pipe that the shell has open is released when the shell closes it.
#[test]
fn a_daemon_in_the_background_holds_no_descriptor_of_the_command() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let lock = bed.root.join("lock");
    let mount = r#"exec 3>"$0" 200>>"$0"; exec "$@""#;
    let mut command = Command::new("bash");
    command.args(["-c", mount, text(&lock), text(binary()), "mount"]);
    command.args([&bed.backing, &bed.mnt]).arg("--tier").arg(&bed.tier);
    finish(&mut command, PATIENCE).ok();
    let mounted = bed.mounted();
    for entry in fs::read_dir(format!("/proc/{}/fd", mounted.pid)).unwrap() {
        let entry = entry.unwrap().path();
        assert!(fs::read_link(&entry).ok() != Some(lock.clone()), "{}", entry.display());
    }
    mounted.umount();
}

/// Each row: the flags of a mount, and the contents of the message: the name of the wrong flag, and
/// what to write instead.
#[test]
fn bad_input_is_rejected_with_name_reason_and_remedy() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let config = bed.root.join("bad.toml");
    fs::write(&config, "max-agee = \"10s\"\n").unwrap();
    let table: &[(&[&str], &[&str])] = &[
        (&["--tier-size", "10"], &["tier-size", "10", "unit", "10GiB"]),
        (&["--tier-size", "ten"], &["tier-size", "ten"]),
        (&["--max-age", "30"], &["max-age", "unit", "30s"]),
        (&["--max-age=-1s"], &["max-age", "-1s"]),
        (&["--policy", "writeback"], &["policy", "writeback", "write-back"]),
        (&["--passthrough", "maybe"], &["passthrough", "maybe", "auto"]),
        (&["--dirty-high", "150%"], &["dirty-high", "100%"]),
        (
            &["--dirty-low", "60%", "--dirty-high", "50%"],
            &["dirty-low", "60%", "dirty-high", "50%", "raise"],
        ),
        (&["--flush-depth", "0"], &["flush-depth", "1", "64"]),
        (&["--threads", "many"], &["threads", "many"]),
        (&["--backing-timeout", "1ms"], &["backing-timeout", "100ms"]),
        (&["--max-agee", "3s"], &["max-agee", "max-age"]),
        (
            &["--config", "/nonexistent.toml"],
            &["/nonexistent.toml", "No such file", "FOREBAY_CONFIG"],
        ),
        (&["--tier-size", "0B"], &["tier-size 0 is too small", "16MiB"]),
        (&["--peer-listen", "0.0.0.0:0"], &["peer-listen needs registry", "alone"]),
        (&["--cluster-key", "/nowhere"], &["cluster-key needs registry"]),
        (&["--config", text(&config)], &["bad.toml", "1", "max-agee", "max-age"]),
        (&["--throttle", "fast"], &["throttle", "fast"]),
    ];
    for (flags, words) in table {
        let out = bed.try_mount(flags);
        assert_eq!(out.code, Some(2), "{flags:?}: {out:#?}");
        for word in *words {
            assert!(out.stderr.contains(word), "{flags:?}: {word:?} is not in {}", out.stderr);
        }
        assert!(!out.stderr.contains("panicked"), "{}", out.stderr);
        assert_eq!(images::mounted_at(&bed.mnt), None);
    }
    assert_eq!(forebay(&["frobnicate"]).code, Some(2));
    assert_eq!(forebay(&[]).code, Some(2));
    assert_eq!(forebay(&["mount"]).code, Some(2));
    proof!("{} kinds of bad input", table.len());
}

#[test]
fn bad_places_are_refused() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    sample::file(&bed.dir("full").join("x"), 1, 10);
    let at = |name: &str| text(&bed.root.join(name)).to_string();
    fs::create_dir(bed.backing.join("inner")).unwrap();
    let table = [
        ("none", "mnt", "fast/tier", "none"),
        ("backing", "none", "fast/tier", "none"),
        ("backing", "full", "fast/tier", "not empty"),
        ("backing", "mnt", "backing/inner/tier", "inside"),
        ("backing", "backing/inner", "fast/tier", "inside"),
        ("backing/inner", "mnt", "backing", "inside"),
        ("backing", "mnt", "nowhere/at/all", "nowhere"),
        ("backing", "full/x", "fast/tier", "not a directory"),
    ];
    for (backing, mnt, tier, word) in table {
        let out = forebay(&["mount", &at(backing), &at(mnt), "--tier", &at(tier)]);
        assert_eq!(out.code, Some(2), "{out:#?}");
        assert!(out.stderr.contains(word), "{word:?} is not in {}", out.stderr);
    }
    let mounted = bed.mount(&[]);
    let nested = fs::create_dir(mounted.at("below")).map(|()| at("mnt/below")).unwrap();
    for (backing, mnt) in
        [(at("full"), nested.clone()), (at("full"), at("mnt")), (nested, at("full"))]
    {
        let out = forebay(&["mount", &backing, &mnt, "--tier", &at("other-tier")]);
        assert_eq!(out.code, Some(2), "{out:#?}");
        assert!(out.stderr.contains("forebay mount"), "{}", out.stderr);
    }
    mounted.umount();
    proof!("{} bad places", table.len() + 3);
}

#[test]
fn exit_codes_tell_that_no_daemon_is_there() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    // A directory without a mount, and a mount whose daemon is dead.
    assert_eq!(bed.forebay(&["umount", text(&bed.mnt)]).code, Some(3));
    assert_eq!(bed.forebay(&["status", text(&bed.mnt)]).code, Some(3));
    let mounted = bed.mount(&[]);
    fs::write(mounted.at("f"), b"dirty").unwrap();
    mounted.kill9();
    for args in [&["status"][..], &["stats"], &["flush", "--wait"], &["ls"], &["evict"]] {
        let args = [args, &[text(&bed.mnt)]].concat();
        let out = bed.forebay(&args);
        assert_eq!(out.code, Some(3), "{out:#?}");
        assert!(!out.stderr.is_empty());
    }
    // The dead mount is removed, and the exit code does not claim that nothing is dirty.
    let out = bed.forebay(&["umount", text(&bed.mnt)]);
    assert!(out.code.is_some_and(|code| code != 2), "{out:#?}");
    assert_eq!(images::mounted_at(&bed.mnt), None, "{out:#?}");
    let mounted = bed.mount(&[]);
    assert_eq!(fs::read(mounted.at("f")).unwrap(), b"dirty");
    mounted.umount();
    proof!("a dead daemon is exit 3");
}

#[test]
fn json_is_json_and_says_what_people_are_told() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    sample::file(&bed.backing.join("old"), 1, 100_000);
    let mounted = bed.mount(&["--preset", "hold"]);
    fs::read(mounted.at("old")).unwrap();
    fs::write(mounted.at("new"), vec![7; 50_000]).unwrap();
    mounted.hear_closes();
    let status = mounted.status();
    for field in [
        "pid",
        "tier_bytes",
        "used_bytes",
        "clean_bytes",
        "dirty_bytes",
        "files",
        "dirty_files",
        "failed_files",
        "conflicted_files",
        "pinned_files",
    ] {
        assert!(status[field].is_u64(), "{field} in {status:#}");
    }
    assert_eq!(status["mountpoint"], text(&bed.mnt));
    assert_eq!(status["dirty_files"], 1);
    assert!(status["dirty_bytes"].as_u64() >= Some(50_000));
    assert!(status["oldest_dirty_age_secs"].is_number());
    // The exit code covers every mount of the machine, those of other tests too.
    let all = mounted.forebay(&["status", "--json"]).json();
    assert!(all.as_array().unwrap().iter().any(|m| m["mountpoint"] == text(&bed.mnt)), "{all:#}");
    let stats = mounted.forebay(&["stats", "--json", text(&bed.mnt)]).ok().json();
    assert!(stats["counters"].is_object() && stats["backing"].is_object(), "{stats:#}");
    let list = mounted.forebay(&["ls", "--json", text(&bed.mnt)]).ok().json();
    let names: Vec<_> =
        list.as_array().unwrap().iter().map(|f| f["path"].as_str().unwrap()).collect();
    assert_eq!(names, ["new", "old"], "{list:#}");
    let long = mounted.forebay(&["ls", "-l", text(&bed.mnt)]).ok().stdout;
    assert!(long.contains("dirty") && long.contains("new"), "{long}");
    let text_status = mounted.forebay(&["status", text(&bed.mnt)]).ok().stdout;
    assert!(text_status.contains(text(&bed.mnt)) && text_status.contains("dirty"), "{text_status}");
    let job = mounted.forebay(&["flush", "--wait", "--json", text(&bed.mnt)]).ok().json();
    assert!(job.to_string().contains("50000"), "{job:#}");
    let config = mounted.forebay(&["config", "show", "--json"]).ok().json();
    assert_eq!(config["max-age"]["value"], "30s", "{config:#}");
    mounted.umount();
    proof!("status, stats, ls, flush and config");
}

#[test]
fn flush_wait_means_on_the_backing_store() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--preset", "hold"]);
    for i in 0..20 {
        sample::file(&mounted.at(format!("d{}/f{i}", i % 3)), i, 30_000);
    }
    mounted.hear_closes();
    assert!(mounted.number("dirty_bytes") >= 600_000);
    mounted.forebay(&["flush", "--wait", text(&mounted.at("d1"))]).ok();
    for i in (0..20).filter(|i| i % 3 == 1) {
        let now = fs::read(bed.backing.join(format!("d1/f{i}"))).unwrap();
        assert!(now == forebay_tests::Rng::new(i).bytes(30_000), "f{i}");
    }
    assert!(mounted.number("dirty_bytes") > 0, "the rest waits");
    mounted.flush();
    assert_eq!(mounted.number("dirty_bytes"), 0);
    mounted
        .forebay(&["flush", "--wait", "/nonexistent/path"])
        .code
        .map(|c| assert_ne!(c, 0))
        .unwrap();
    mounted.umount();
    proof!("flushed by directory and as a whole");
}

/// By a name that the kernel does not use, by one that only the store knows, and in a directory that another client
/// has moved.
// S-5
#[test]
fn flush_wait_finds_what_was_written_by_another_name() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    for name in ["d1/x", "d2/other", "d3/f", "x"] {
        sample::file(&bed.backing.join(name), 1, 30);
    }
    fs::hard_link(bed.backing.join("d1/x"), bed.backing.join("d2/y")).unwrap();
    let mounted = bed.mount(&["--preset", "hold"]);
    fs::hard_link(mounted.at("x"), mounted.at("y")).unwrap();
    for name in ["x", "d1/x", "d3/f"] {
        fs::write(mounted.at(name), b"new").unwrap();
    }
    mounted.hear_closes();
    fs::rename(bed.backing.join("d3"), bed.backing.join("d4")).unwrap();
    let commands: [(&[&str], &str, &str); 3] = [
        (&["flush", "--wait"], "x", "x"),
        (&["fence"], "d2", "d2/y"),
        (&["wait", "--durable"], "d4/f", "d4/f"),
    ];
    for (command, named, name) in commands {
        mounted.forebay(&[command, &[text(&mounted.at(named))]].concat()).ok();
        assert_eq!(fs::read(bed.backing.join(name)).unwrap(), b"new", "{command:?} {named}");
    }
    assert_eq!(mounted.number("dirty_bytes"), 0);
    mounted.umount();
    proof!("{} commands", commands.len());
}

#[test]
fn files_are_fetched_pinned_evicted_and_purged() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    for i in 0..10 {
        sample::file(&bed.backing.join(format!("set/f{i}")), i, 100_000);
    }
    let mounted = bed.mount(&["--preset", "hold"]);
    let set = mounted.at("set");
    let out = mounted.forebay(&["prefetch", text(&set)]).ok();
    assert!(out.text().contains("10"), "the count is told: {out:#?}");
    assert!(mounted.number("clean_bytes") >= 1_000_000);
    mounted.forebay(&["pin", text(&set.join("f1"))]).ok();
    mounted.evict();
    let stays = 100_000..200_000;
    assert!(stays.contains(&mounted.number("clean_bytes")), "only the pinned one stays");
    mounted.forebay(&["unpin", text(&set.join("f1"))]).ok();
    mounted.evict();
    assert_eq!(mounted.number("clean_bytes"), 0);

    fs::write(set.join("f2"), b"dirty, to be lost").unwrap();
    mounted.hear_closes();
    let refused = mounted.forebay(&["purge", text(&set)]);
    assert_ne!(refused.code, Some(0), "not without asking: {refused:#?}");
    assert!(refused.text().contains("f2"), "what would be lost is named: {refused:#?}");
    assert_eq!(fs::read(set.join("f2")).unwrap(), b"dirty, to be lost");
    mounted.forebay(&["purge", "--yes", text(&set)]).ok();
    assert_eq!(mounted.number("dirty_bytes"), 0);
    mounted.umount();
    assert_ne!(fs::read(bed.backing.join("set/f2")).unwrap(), b"dirty, to be lost");
    proof!("prefetched, pinned, evicted, purged");
}

// S-9
#[test]
fn a_pin_that_fails_pins_nothing_that_takes_the_room_of_writers() {
    needs_forebay!();
    const MB: usize = 1_000_000;
    let bed = Bed::new(Tier::Disk);
    let big = sample::file(&bed.backing.join("big"), 1, 100 * MB);
    for i in 0..20 {
        sample::file(&bed.backing.join(format!("many/f{i}")), i, 5 * MB);
    }
    sample::file(&bed.backing.join("mixed/good"), 2, 2 * MB);
    sample::file(&bed.backing.join("both/large"), 4, 100 * MB);
    sample::file(&bed.backing.join("both/small"), 5, 2 * MB);
    let faults = Faults::none(&bed);
    let flags = ["--tier-size", "64MiB", "--max-age", "1h", "--backing-timeout", "5s"];
    let mounted = bed.mount(&[&flags[..], &["--fault", faults.path()]].concat());
    let pin = |name: &str| mounted.forebay(&["pin", text(&mounted.at(name))]);
    pin("many/f7").ok();
    for name in ["big", "many", "both"] {
        let used = mounted.number("used_bytes");
        let out = pin(name).expect(1);
        assert!(
            out.stderr.contains("MiB do not fit into the fast tier, which has 64.0 MiB"),
            "{out:#?}"
        );
        assert_eq!(
            mounted.number("used_bytes"),
            used,
            "{name}: refused before anything is fetched"
        );
        assert_eq!(mounted.number("pinned_files"), 1, "{name}: that of before");
        assert!(out.stderr.contains("nothing of it was pinned"), "{out:#?}");
        // Several fetches at once may exceed the size a little, for a moment.
        within(PATIENCE, "it holds what it may", || mounted.number("used_bytes") <= 64 << 20);
        // Twice the size of the tier: each write finds room.
        for round in 0..4 {
            fs::write(mounted.at("new"), vec![round; 32 * MB]).expect("there is room");
        }
    }
    assert!(fs::read(mounted.at("big")).unwrap() == big);

    // A file that cannot be fetched does not prevent others from being pinned.
    sample::file(&bed.backing.join("mixed/bad"), 3, 2 * MB);
    mounted.forebay(&["prefetch", text(&mounted.at("mixed/good"))]).ok();
    faults.fail("read_at", "EIO");
    let out = pin("mixed").expect(1);
    assert!(out.stderr.contains("only what was fetched is pinned"), "{out:#?}");
    faults.clear();
    mounted.evict();
    let list = mounted.forebay(&["ls", "--json", text(&mounted.path)]).ok().json();
    let is_pinned = |file: &&Value| file["pinned"] == true;
    let mut pinned: Vec<_> = list
        .as_array()
        .unwrap()
        .iter()
        .filter(is_pinned)
        .map(|file| file["path"].clone())
        .collect();
    pinned.sort_by_key(ToString::to_string);
    assert_eq!(pinned, ["many/f7", "mixed/good"], "{list:#}");
    mounted.umount();
    proof!("two that do not fit, one that cannot be read");
}

#[test]
fn run_mounts_for_one_command_and_passes_its_exit_code_on() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    sample::file(&bed.backing.join("in"), 1, 100_000);
    let places = ["--backing", text(&bed.backing), "--tier", text(&bed.tier)];
    let script = "cd \"$FOREBAY_MOUNTPOINT\" && cat in in > out && test -d .forebay && exit 7";
    let out = bed.forebay(&[&["run"][..], &places, &["--", "sh", "-c", script]].concat());
    assert_eq!(out.code, Some(7), "{out:#?}");
    let want = fs::read(bed.backing.join("in")).unwrap().repeat(2);
    assert!(fs::read(bed.backing.join("out")).unwrap() == want);
    let at = ["--mountpoint", text(&bed.mnt)];
    let out = bed.forebay(&[&["run"][..], &places, &at, &["--", "true"]].concat());
    assert_eq!(out.code, Some(0), "{out:#?}");
    assert_eq!(images::mounted_at(&bed.mnt), None);

    // A failed drain has exit code 4 and a remedy.
    let faults = Faults::none(&bed);
    faults.fail("write_at", "ENOSPC");
    let extra = ["--fault", faults.path()];
    let out = bed.forebay(&[&["run"][..], &places, &extra, &["--", "cp", "in", "again"]].concat());
    assert_eq!(out.code, Some(4), "{out:#?}");
    assert!(out.stderr.contains("recover"), "{}", out.stderr);
    bed.forebay(&["recover", text(&bed.tier)]).ok();
    assert!(fs::read(bed.backing.join("again")).unwrap() == want[..100_000]);
    proof!("exit 7 passed on, exit 4 recovered");
}

// S-12
#[test]
fn run_waits_for_what_the_command_leaves_behind() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let err = bed.root.join("err");
    let said = || fs::read_to_string(&err).unwrap();
    let start = |script: &str| {
        let mut command = Command::new(binary());
        command.args(["run", "--backing", text(&bed.backing), "--tier", text(&bed.tier)]);
        command.args(["--mountpoint", text(&bed.mnt), "--", "sh", "-c", script]);
        Proc::spawn(command.current_dir(&bed.backing).stderr(fs::File::create(&err).unwrap()))
    };
    let code = |run: &mut Proc| run.wait(PATIENCE).and_then(|status| status.code());

    // The child ends when the test says so; the bytes it writes then arrive.
    let go = bed.root.join("go");
    let wait = format!("for i in $(seq 600); do test -e {} && break; sleep 0.1; done", text(&go));
    let mut run = start(&format!("echo early > early; ({wait}; echo late > late) & exit 7"));
    within(PATIENCE, "it tells whom it waits for", || said().contains("in use by"));
    assert!(said().contains("(sh, works in it)") && run.running(), "{}", said());
    assert_eq!(fs::read(bed.backing.join("early")).unwrap(), b"early\n");
    let other = bed.dir("other");
    let refused =
        bed.forebay(&["mount", text(&bed.backing), text(&other), "--tier", text(&bed.tier)]);
    assert!(refused.expect(2).stderr.contains(&format!("`forebay umount {}`", text(&bed.mnt))));
    fs::write(&go, "").unwrap();
    assert_eq!(code(&mut run), Some(7), "{}", said());
    assert_eq!(fs::read(bed.backing.join("late")).unwrap(), b"late\n");
    assert_eq!(images::mounted_at(&bed.mnt), None);

    // A child that never ends is left alone when the user does not want to wait.
    let pid = bed.root.join("pid");
    let mut run = start(&format!("echo x > left; sleep 120 & echo $! > {}; exit 3", text(&pid)));
    within(PATIENCE, "it tells whom it waits for", || said().contains("(sleep, works in it)"));
    kill(run.pid(), libc::SIGINT);
    let ended = code(&mut run);
    kill(fs::read_to_string(&pid).unwrap().trim().parse().unwrap(), libc::SIGKILL);
    assert_eq!(ended, Some(3), "{}", said());
    assert_eq!(fs::read(bed.backing.join("left")).unwrap(), b"x\n");
    assert_eq!(images::mounted_at(&bed.mnt), None);
    assert_eq!(code(&mut start("true")), Some(0), "the tier is free: {}", said());
    proof!("one that ended, and one that did not");
}

#[test]
fn the_control_directory_shows_and_sets() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--preset", "age", "--max-age", "1h"]);
    let at = |name: &str| mounted.at(".forebay").join(name);
    fs::write(mounted.at("f"), vec![1; 10_000]).unwrap();
    let status = fs::read_to_string(at("status")).unwrap();
    assert!(status.contains("dirty_bytes"), "{status}");
    assert!(fs::read_to_string(at("stats")).unwrap().len() > 100);
    assert_eq!(fs::read_to_string(at("config/max-age")).unwrap().trim(), "1h");
    let shell = |script: &str| {
        finish(Command::new("sh").args(["-c", script]).current_dir(&bed.mnt), PATIENCE)
    };
    shell("echo 100ms > .forebay/config/max-age").ok();
    assert_eq!(fs::read_to_string(at("config/max-age")).unwrap().trim(), "100ms");
    within(PATIENCE, "the new age works", || mounted.number("dirty_bytes") == 0);
    assert_ne!(shell("echo nonsense > .forebay/config/max-age").code, Some(0));
    assert_ne!(shell("echo x > .forebay/config/nothing").code, Some(0));
    assert_ne!(shell("rm -rf .forebay/status").code, Some(0));
    assert_ne!(shell("mkdir .forebay/d").code, Some(0));
    assert_ne!(shell("mv f .forebay/f").code, Some(0));
    mounted.umount();
    assert!(!bed.backing.join(".forebay").exists(), "nothing of it reaches the backing store");
    proof!("read and set");
}

#[test]
fn a_read_only_mount_refuses_every_change() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let bytes = sample::file(&bed.backing.join("f"), 1, 100_000);
    let mounted = bed.mount(&["--read-only"]);
    let f = mounted.at("f");
    assert!(fs::read(&f).unwrap() == bytes);
    assert_eq!(sys::errno(fs::write(&f, b"x")), libc::EROFS);
    assert_eq!(sys::errno(fs::write(mounted.at("new"), b"x")), libc::EROFS);
    assert_eq!(sys::errno(fs::remove_file(&f)), libc::EROFS);
    assert_eq!(sys::errno(fs::rename(&f, mounted.at("g"))), libc::EROFS);
    assert_eq!(sys::errno(fs::create_dir(mounted.at("d"))), libc::EROFS);
    assert_eq!(sys::errno(fs::set_permissions(&f, fs::Permissions::from_mode(0o600))), libc::EROFS);
    assert_eq!(sys::errno(sys::utimens(&f, (1, 1), (1, 1))), libc::EROFS);
    assert_eq!(sys::errno(sys::set_xattr(&f, "user.x", b"1", 0)), libc::EROFS);
    mounted.umount();
    assert!(fs::read(bed.backing.join("f")).unwrap() == bytes);
    proof!("eight changes refused");
}

#[test]
fn a_backing_store_that_is_mounted_read_only_is_served_read_only_or_not_at_all() {
    needs_forebay!();
    let mut bed = Bed::new(Tier::Disk);
    let bytes = sample::file(&bed.backing.join("f"), 1, 100_000);
    let bound = bed.dir("bound");
    let _bind = MountedFs::bind(&bed.backing, &bound);
    tool("mount", &["-o", "remount,bind,ro", text(&bound)]).ok();
    bed.backing = bound;
    let out = bed.try_mount(&[]).expect(2);
    assert!(out.stderr.contains("give --read-only"), "{out:#?}");
    let mounted = bed.mount(&["--read-only"]);
    assert!(fs::read(mounted.at("f")).unwrap() == bytes);
    mounted.umount();
    proof!("refused, and served with --read-only");
}

#[test]
fn umount_waits_for_the_drain_and_refuses_while_in_use() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    const LEN: usize = 25_000_000;
    let mounted = bed.mount(&["--preset", "hold", "--throttle", "10MB,1ms"]);
    sample::file(&mounted.at("f"), 1, 5_000_000);
    let held = fs::File::open(mounted.at("f")).unwrap();
    let out = mounted.try_umount(&[]);
    assert_ne!(out.code, Some(0), "a file is open: {out:#?}");
    assert!(out.stderr.contains("in use") || out.stderr.contains("busy"), "{out:#?}");
    drop(held);
    // Two seconds of copying and more: far beyond the given time.
    sample::file(&mounted.at("g"), 2, LEN);
    let late = mounted.umount_with(&["--timeout", "10ms"]);
    assert_eq!(late.code, Some(4), "{late:#?}");
    assert!(fs::read(mounted.at("g")).unwrap() == forebay_tests::Rng::new(2).bytes(LEN));
    mounted.umount();
    assert!(fs::read(bed.backing.join("g")).unwrap() == forebay_tests::Rng::new(2).bytes(LEN));
    proof!("refused in use, refused in time, then drained");
}

/// Method: all bytes are on their way under a cap at which that takes weeks.
// S-10 S-12
#[test]
fn a_low_rate_max_keeps_nobody_who_wants_to_go() {
    needs_forebay!();
    const LEN: usize = 20_000_000;
    const SOON: Duration = Duration::from_secs(20);
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--rate-max", "10B/s", "--max-age", "1s", "--settle", "0s"]);
    let at = text(&mounted.path);
    let bytes = sample::file(&mounted.at("f"), 1, LEN);
    within(PATIENCE, "it is on its way", || mounted.number("flushing_bytes") > 0);
    let spawn = |args: &[&str]| {
        let err = fs::File::create(bed.root.join("err")).unwrap();
        Proc::spawn(Command::new(binary()).args(args).stderr(err))
    };
    let said = || fs::read_to_string(bed.root.join("err")).unwrap();
    let runs = |kind: &str| {
        let jobs = mounted.forebay(&["jobs", "--json", at]).ok().json();
        let is_it = |job: &Value| job["kind"] == kind && job["state"] == "running";
        jobs.as_array().unwrap().iter().any(is_it)
    };

    let began = Instant::now();
    let late = mounted.umount_with(&["--timeout", "2s"]).expect(4);
    assert!(began.elapsed() < SOON, "{:?}: {late:#?}", began.elapsed());
    assert!(late.stderr.contains("the time is up: still mounted"), "{late:#?}");

    let mut waits = spawn(&["flush", "--wait", at]);
    within(PATIENCE, "it waits", || runs("flush"));
    kill(waits.pid(), libc::SIGINT);
    assert_eq!(waits.wait(PATIENCE).and_then(|status| status.code()), Some(130), "{}", said());
    assert!(!runs("flush") && !said().contains("still waiting"), "{}", said());

    // One unmount waits for all bytes, one waits for that one, and one does not wait.
    let mut drains = spawn(&["umount", at]);
    within(PATIENCE, "it drains", || runs("umount"));
    let began = Instant::now();
    let behind = mounted.try_umount(&["--timeout", "2s"]).expect(4);
    assert!(began.elapsed() < SOON, "{:?}: {behind:#?}", began.elapsed());
    let began = Instant::now();
    let kept = mounted.umount_with(&["--keep-dirty"]).ok();
    assert!(began.elapsed() < SOON, "{:?}: {kept:#?}", began.elapsed());
    assert!(kept.stdout.contains("stay dirty"), "{kept:#?}");
    assert_eq!(drains.wait(PATIENCE).and_then(|status| status.code()), Some(4), "{}", said());
    assert!(said().contains("--keep-dirty: nothing is lost"), "{}", said());
    mounted.assert_gone();
    bed.mount(&[]).umount();
    assert!(fs::read(bed.backing.join("f")).unwrap() == bytes);
    proof!("late, interrupted, behind another, and gone");
}

/// `umount` of the system, `fusermount3 -u` and SIGTERM: no byte is lost by any of them.
#[test]
fn whoever_unmounts_the_bytes_are_flushed() {
    needs_forebay!();
    for (round, way) in ["umount", "sigterm"].into_iter().enumerate() {
        let bed = Bed::new(Tier::Disk);
        let mounted = bed.mount(&["--preset", "hold"]);
        let bytes = sample::file(&mounted.at("f"), round as u64, 2_000_000);
        match way {
            "umount" => {
                while_busy(|| forebay_tests::tool("umount", &[text(&bed.mnt)])).ok();
            }
            _ => kill(mounted.pid, libc::SIGTERM),
        }
        within(PATIENCE, "the daemon drains and ends", || !is_alive(mounted.pid));
        assert_eq!(images::mounted_at(&bed.mnt), None, "{way}");
        assert!(fs::read(bed.backing.join("f")).unwrap() == bytes, "{way}");
        proof!("{way}");
    }
}

#[test]
fn the_tier_is_closed_to_other_users() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&[]);
    sample::file(&mounted.at("secret"), 1, 100_000);
    fs::set_permissions(mounted.at("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let nobody = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).args(args);
        finish(&mut command, PATIENCE)
    };
    assert_ne!(nobody(&["ls", text(&bed.tier)]).code, Some(0));
    assert_ne!(nobody(&["cat", text(&mounted.at("secret"))]).code, Some(0));
    assert_eq!(fs::metadata(&bed.tier).unwrap().mode() & 0o777, 0o700);
    nobody(&["ls", text(&bed.mnt)]).ok();
    // A file that a user may not look at cannot be controlled by that user either.
    assert_ne!(
        nobody(&[text(forebay_tests::binary()), "purge", "--yes", text(&mounted.at("secret"))])
            .code,
        Some(0)
    );
    mounted.umount();
    proof!("0700");
}

/// A mount through fusermount3, without passthrough, for the user alone.
#[test]
fn an_ordinary_user_mounts_for_himself() {
    needs_forebay!();
    let Some((uid, gid)) = user_ids("nobody") else { skip!("no user nobody") };
    if !sys::on_path("fusermount3") {
        skip!("fusermount3 is not installed");
    }
    let device = OpenDevice::new();
    let bed = Bed::new(Tier::Disk);
    let bin = bed.root.join("forebay");
    fs::copy(forebay_tests::binary(), &bin).unwrap();
    for dir in [&bed.backing, &bed.mnt, &bed.root.join("fast")] {
        std::os::unix::fs::chown(dir, Some(uid), Some(gid)).unwrap();
    }
    let user = |args: &[&str]| -> Out {
        let mut command = Command::new("setpriv");
        command.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}"));
        command.args(["--clear-groups", "--inh-caps=-all"]).args(args).current_dir("/");
        finish(command.env("HOME", "/nonexistent"), PATIENCE)
    };
    let (backing, mnt, tier) = (text(&bed.backing), text(&bed.mnt), text(&bed.tier));
    // Without the device nothing can be mounted: the command says so before it makes anything.
    device.set_mode(0o600);
    // Another test may have forked while the copy was open for writing.
    eventually(PATIENCE, || !user(&[text(&bin), "--version"]).stderr.contains("Text file busy"));
    let refused = user(&[text(&bin), "mount", backing, mnt, "--tier", tier]).expect(2);
    assert!(refused.stderr.contains("chmod 0666 /dev/fuse"), "{refused:#?}");
    assert!(!bed.tier.exists(), "no tier is left behind");
    device.set_mode(0o666);
    user(&[text(&bin), "mount", backing, mnt, "--tier", tier]).ok();
    let _cleanup = Cleanup(bed.mnt.clone());
    let script = format!("cd {mnt} && echo mine > f && mkdir d && cp f d/g && cat d/g");
    assert_eq!(user(&["sh", "-c", &script]).ok().stdout, "mine\n");
    assert!(fs::read_dir(&bed.mnt).is_err(), "not even root looks into a user's mount");
    let status = user(&[text(&bin), "status", "--json", mnt]).ok().stdout;
    assert!(status.contains("\"pid\""), "{status}");
    while_busy(|| user(&[text(&bin), "umount", mnt])).ok();
    assert_eq!(images::mounted_at(&bed.mnt), None);
    assert_eq!(fs::read(bed.backing.join("d/g")).unwrap(), b"mine\n");
    assert_eq!(fs::metadata(bed.backing.join("f")).unwrap().uid(), uid);
    proof!("user {uid} mounted, wrote and unmounted");
}

/// Lets every user open /dev/fuse, as udev does where it runs; small machines have no udev.
struct OpenDevice(fs::Permissions);

impl OpenDevice {
    fn new() -> OpenDevice {
        let before = fs::metadata("/dev/fuse").expect("/dev/fuse").permissions();
        fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).expect("chmod");
        OpenDevice(before)
    }

    fn set_mode(&self, mode: u32) {
        fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(mode)).expect("chmod");
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        let _ = fs::set_permissions("/dev/fuse", self.0.clone());
    }
}

struct Cleanup(std::path::PathBuf);

impl Drop for Cleanup {
    fn drop(&mut self) {
        let _ = images::unmount(&self.0, true);
    }
}

/// The path on the backing store decides what a command covers, also below a bind mount of the
/// mount.
#[test]
fn commands_find_the_mount_from_any_path() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--preset", "hold"]);
    sample::file(&mounted.at("a/b/f"), 1, 1000);
    std::os::unix::fs::symlink(mounted.at("a"), bed.root.join("link")).unwrap();
    let list = |path: &Path| mounted.forebay(&["ls", text(path)]);
    assert_eq!(list(&mounted.at("a/b")).ok().stdout.trim(), "a/b/f");
    assert_eq!(list(&bed.root.join("link/b/f")).ok().stdout.trim(), "a/b/f");
    let mut here = Command::new(forebay_tests::binary());
    let out = finish(here.args(["ls", "../b"]).current_dir(mounted.at("a/b")), PATIENCE);
    assert_eq!(out.ok().stdout.trim(), "a/b/f");
    assert_eq!(list(&bed.root).code, Some(3));
    mounted.umount();
    proof!("by path, link and relative");
}

#[test]
fn sudden_changes_of_the_kernels_caches_change_nothing() {
    if !is_root() {
        skip!("needs root");
    }
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&[]);
    let open = fs::File::create(mounted.at("open")).unwrap();
    for i in 0..300 {
        sample::file(&mounted.at(format!("d{}/f{i}", i % 9)), i, 2000);
        if i % 60 == 0 {
            drop_caches();
        }
    }
    use std::os::unix::fs::FileExt;
    open.write_all_at(b"still open", 0).unwrap();
    drop_caches();
    for i in 0..300 {
        let now = fs::read(mounted.at(format!("d{}/f{i}", i % 9))).unwrap();
        assert!(now == forebay_tests::Rng::new(i).bytes(2000), "f{i}");
    }
    assert_eq!(fs::read(mounted.at("open")).unwrap(), b"still open");
    drop(open);
    mounted.umount();
    proof!("300 files over six drops of the caches");
}

/// Bind mounts of a mount keep it busy; a lazy unmount by root loses no bytes.
#[test]
fn a_lazy_unmount_by_root_flushes_in_the_end() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--preset", "hold"]);
    let bytes = sample::file(&mounted.at("f"), 1, 1_000_000);
    let second = MountedFs::bind(&bed.mnt, &bed.dir("second"));
    let open = fs::File::options().read(true).write(true).open(second.path().join("f")).unwrap();
    for at in [&*bed.mnt, second.path()] {
        images::unmount(at, true).unwrap();
    }
    use std::os::unix::fs::FileExt;
    open.write_all_at(b"late", 10).unwrap();
    drop(open);
    let ended = eventually(PATIENCE, || !is_alive(mounted.pid));
    assert!(ended, "the daemon ends with the last descriptor");
    let now = fs::read(bed.backing.join("f")).unwrap();
    assert!(now[14..] == bytes[14..] && &now[10..14] == b"late");
    proof!("flushed after a lazy unmount");
}
