use std::fs;
use std::path::Path;

use super::*;
use crate::record::{Access, Part};

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn workload(name: &str) -> &'static Workload {
    WORKLOADS.iter().find(|workload| workload.name == name).unwrap()
}

/// Small and quick settings of each, which still have every phase.
const SMALL: &[(&str, &str)] = &[
    ("fill", "--capacity 3m --time 1.2s -n 2 --steps 1/3,1 --cache keep"),
    ("steps", "--interval 150ms --size 1m --max 3 --cache keep"),
    ("steady", "--rate 500 --time 2s --warm-up 500ms --size 1m --reads 50 --skew zipf --api POSIX"),
    ("checkpoint", "-n 2 -s 1m -t 64k --bursts 2 --compute 10ms --layout strided"),
    ("reread", "-s 4m -n 2"),
    ("bfs", "--scale 13 --memory 600k -n 2 --roots 2 --cache keep --read 8k"),
    ("rates", "-s 2m --count 100 -n 2"),
];

fn run_in(dir: &Path, name: &str, options: &str) -> Result<Record> {
    let mut args = vec![dir.display().to_string()];
    args.extend(words(options));
    record(workload(name), &args)
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().count() == 0
}

/// L2, and that figures are consistent: bytes, operations, time series and percentiles agree.
#[test]
fn every_workload_runs_leaves_nothing_and_adds_up() {
    for (name, options) in SMALL {
        let dir = tempfile::tempdir().unwrap();
        let record = run_in(dir.path(), name, options).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(is_empty(dir.path()), "{name}");
        assert!(!record.findings.is_empty() || *name == "rates", "{name}");
        assert!(!record.phases.is_empty(), "{name}");
        for phase in record.phases.iter().filter(|phase| phase.latency.is_some()) {
            let told = format!("{name} {}: {phase:?}", phase.name);
            assert!(phase.ops > 0 && phase.bytes > 0 && phase.seconds > 0.0, "{told}");
            let found = phase.latency.unwrap();
            assert!(found.min_ns <= found.p50_ns && found.p50_ns <= found.p99_ns, "{told}");
            assert!(found.p99_ns <= found.p999_ns && found.p999_ns <= found.max_ns, "{told}");
            assert!(found.max_ns as f64 <= phase.seconds * 1e9 * 1.01, "{told}");
            let slices = record.seconds.iter().filter(|s| {
                s.phase == phase.name && s.iteration == phase.iteration && s.part == Part::Measured
            });
            let (ops, max) = slices.fold((0, 0), |(n, max), s| (n + s.ops, s.max_ns.max(max)));
            assert!(max <= found.max_ns, "{max} of {told}");
            assert!(ops <= phase.ops && ops * 10 >= phase.ops * 9, "{ops} of {told}");
            if phase.access == Access::Read {
                assert!(phase.resident_share.is_some(), "{told}");
            }
        }
    }
}

#[test]
fn every_workload_measures_the_tool_itself() {
    for (name, options) in SMALL {
        let options = options.replace("--cache keep", "");
        let args = words(&format!("--target null {options}"));
        let record = record(workload(name), &args).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(record.header.backend, "DUMMY");
        assert!(record.phases.iter().any(|phase| phase.ops > 0), "{name}");
    }
}

/// L1: each is refused with exit code 2, by name, and the directory stays empty.
#[test]
fn what_cannot_work_is_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    for (name, options, says) in [
        ("fill", "", "--capacity"),
        ("fill", "--capacity 1000t", "make it smaller"),
        (
            "fill",
            "--capacity 8",
            "--capacity 8B: the first step, 1/3 of it, has not even one transfer of 16KiB",
        ),
        ("fill", "--capacity 1m --steps 1,1", "--steps"),
        ("steps", "--transfer 3k", "--transfer"),
        ("steps", "--transfer 1000 --size 1000000", "--transfer 1000 is not a multiple of 512"),
        ("rates", "--block 100 --size 100m --cache direct", "--block 100 is not"),
        ("checkpoint", "-s 16777215t -t 1t -n 4096", "--transfer"),
        ("checkpoint", "-s 16777215t -t 1g -n 4096", "make it smaller"),
        ("steps", "--op append", "--op"),
        ("steps", "--op read --fsync", "--fsync"),
        ("steady", "", "--rate"),
        ("steady", "--rate -1", "--rate"),
        ("steady", "--rate 5 --skew zip", "--skew"),
        ("steady", "--rate 5 --reads 101", "--reads"),
        ("steady", "--rate 5 --cache maybe", "--cache"),
        ("checkpoint", "--layout spiral", "--layout"),
        ("checkpoint", "--ranks 0", "--ranks"),
        ("reread", "-t 0", "--transfer"),
        ("rates", "--tasks none", "--tasks"),
        ("rates", "--api MMAP", "--api"),
        ("rates", "--depth 4", "--depth"),
        ("bfs", "--depth 4", "--depth 4: a thread has one read at a time; raise --tasks"),
        ("bfs", "--api URING", "--api URING: a thread has one read at a time; raise --tasks"),
        ("steady", "--rate 5 --depth 4", "raise --clients"),
        ("steady", "--rate 5 --api URING --depth 4", "raise --clients"),
        ("rates", "--json /no/such/dir/x", "--json"),
        ("rates", "another", "one directory"),
    ] {
        let error = run_in(dir.path(), name, options).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{name} {options}: {error}");
        assert!(error.to_string().contains(says), "{name} {options}: {error}");
        assert!(is_empty(dir.path()), "{name} {options}");
    }
    for (args, says) in
        [("", "no DIR"), ("/no/such/dir", "/no/such/dir"), ("/etc/passwd", "not a directory")]
    {
        let error = record(workload("rates"), &words(args)).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains(says), "{error}");
    }
}

#[test]
fn every_help_names_its_options_and_has_examples() {
    for workload in WORKLOADS {
        let help = Base::options((workload.spec)()).parse(&words("--help")).unwrap();
        let text = help.help_wanted().unwrap().to_owned();
        for needed in ["Examples:", "--cache", "--json", "--out", "--target"] {
            assert!(text.contains(needed), "{} lacks {needed}", workload.name);
        }
        let line = format!("forebay bench {} ", workload.name);
        let examples = text.lines().filter(|l| l.trim_start().starts_with(&line));
        for example in examples {
            let args: Vec<String> = words(example).split_off(3);
            // Quotes are the shell's business.
            if !example.contains('\'') {
                Base::options((workload.spec)()).parse(&args).unwrap();
            }
        }
    }
}

/// The warm-up is recorded as such and not counted; the achieved rate is the one asked for.
#[test]
fn steady_discards_its_warm_up_and_keeps_its_rate() {
    let dir = tempfile::tempdir().unwrap();
    let record =
        run_in(dir.path(), "steady", "--rate 400 --time 3s --warm-up 1s --size 1m").unwrap();
    let phase = record.phases.iter().find(|phase| phase.name == "steady").unwrap();
    let figure = |name: &str| phase.figures[name];
    let achieved = figure("achieved_ops_per_second");
    // A machine that stands still near the end leaves some operations undone, and reports them.
    let rate = achieved + figure("not_begun_ops") / phase.seconds;
    assert!((rate - 400.0).abs() < 80.0 && achieved > 100.0, "{rate}, {achieved} of them done");
    let warm: u64 = record.seconds.iter().filter(|s| s.part == Part::WarmUp).map(|s| s.ops).sum();
    assert!((200..700).contains(&warm), "{warm}");
    assert!(record.findings[0].text.contains("discarded as warm-up"));
}

/// The file was just written, so its reads come from memory: this is reported for a mixed load as
/// for any other.
#[test]
fn cached_reads_of_a_mixed_load_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let options = "--rate 500 --time 1s --warm-up 0 --size 1m --reads 50";
    let record = run_in(dir.path(), "steady", options).unwrap();
    let phase = record.phases.iter().find(|phase| phase.name == "steady").unwrap();
    assert_eq!(phase.access, Access::Mixed);
    let told = phase.warnings.join("\n");
    assert!(told.contains("in the page cache") || told.contains("lives in memory"), "{phase:?}");
}

/// A figure above the stated rate of the device is flagged by every workload that moves bytes.
#[test]
fn more_than_the_device_can_do_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let record = run_in(dir.path(), "rates", "-s 1m --count 10 --device-limit 1k/s").unwrap();
    assert_eq!(record.header.settings["device-limit"], "1.0 KiB/s");
    for phase in &record.phases {
        assert!(phase.warnings.iter().any(|w| w.contains("than the device can do")), "{phase:?}");
    }
}

/// A rate that no machine can keep is reported as such, not averaged away.
#[test]
fn steady_says_when_the_rate_was_too_high() {
    let args = words("--target null --rate 9e8 --time 1s --warm-up 0 -n 1 --size 1m");
    let record = record(workload("steady"), &args).unwrap();
    let phase = &record.phases[0];
    assert!(phase.figures["not_begun_ops"] > 1e6, "{:?}", phase.figures);
    assert!(record.findings[1].text.contains("too high"));
    assert!(phase.latency.unwrap().p50_ns > 1_000_000, "a queue that grows shows in the latency");
}

/// Contents reach the disk: the file is as long as the reported bytes, and the command saw it.
#[test]
fn checkpoint_runs_the_durable_command_on_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let out = tempfile::tempdir().unwrap();
    let list = out.path().join("sizes");
    let mut args = vec![dir.path().display().to_string()];
    args.extend(words(
        "-n 3 -s 1m -t 256k --bursts 2 --compute 0 --layout segmented --durable-cmd",
    ));
    args.push(format!("sleep 0.2; stat -c %s \"$FOREBAY_BENCH_DIR\"/* > {}", list.display()));
    let record = record(workload("checkpoint"), &args).unwrap();
    assert_eq!(fs::read_to_string(list).unwrap(), "3145728\n3145728\n");
    let last = record.phases.last().unwrap();
    assert!(last.figures["after_last_burst_seconds"] >= 0.2);
    assert_eq!(last.bytes, 6 << 20);
    assert!(is_empty(dir.path()));
    let failing = [&args[..args.len() - 1], &["exit 7".to_owned()]].concat();
    let error = super::record(workload("checkpoint"), &failing).unwrap_err();
    assert_eq!(error.exit_code(), 1, "{error}");
    assert!(is_empty(dir.path()));
}

#[test]
fn the_second_cached_pass_finds_its_input_in_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    if crate::honest::Memory::of(dir.path()) == crate::honest::Memory::Yes {
        println!("SKIPPED: the temporary directory is in memory");
        return;
    }
    let shares = || {
        let record = run_in(dir.path(), "reread", "-s 8m").unwrap();
        ["cached 1", "cached 2"].map(|name| {
            let phase = record.phases.iter().find(|phase| phase.name == name).unwrap();
            phase.resident_share.unwrap()
        })
    };
    let mut found = Vec::new();
    // Another process may drop the caches of the machine, though not always.
    for _ in 0..5 {
        let [first, second] = shares();
        assert!(first < 0.5, "{first}");
        if second > 0.9 {
            return;
        }
        found.push(second);
    }
    panic!("of the second pass: {found:?}");
}

#[test]
fn keep_leaves_the_files() {
    let dir = tempfile::tempdir().unwrap();
    run_in(dir.path(), "rates", "-s 1m --count 10 --keep").unwrap();
    let kept = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::metadata(kept.join("data")).unwrap().len(), 1 << 20);
}
