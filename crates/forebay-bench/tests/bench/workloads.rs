//! The workloads as commands: exit codes, output, traces, and Ctrl-C.

use std::fs;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use forebay_bench::record::{Outcome, Record};

use crate::harness::{bench, finished, names, start};

/// Long runs of each workload, and a file that shows that the part to be interrupted has begun.
const LONG: &[(&str, &str)] = &[
    ("fill data --capacity 8m --time 600s --cache keep", "data"),
    ("steps data --interval 600s --size 1m --cache keep", "data"),
    ("steady data --rate 200 --time 600s --warm-up 0 --size 1m --threads", "data"),
    ("checkpoint data -n 2 -s 1m --compute 600s", "burst0.rank1"),
    ("rates data -s 1m --count 100000000 --threads", "data"),
    ("reread data -s 8m -t 1 --cache keep", "input"),
    ("bfs data --scale 20 --cache keep", "edges"),
    ("ior -w -t 4k -b 1g -Y -F -u -N 2 -o data/f", "f.00000000"),
    ("mdtest -n 1000000 --tasks 2 -F -w 1 -y -d data", "mdtest_tree.0"),
    ("compare data data", "f.00000000"),
];

/// What follows `--out FILE`.
const COMPARED: &str = "-- ior -w -t 4k -b 1g -Y -F -u -o f";

fn interrupt(child: &Child) {
    // SAFETY: a child of this process, which has not been waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
}

/// Waits until the run has made `file`; panics if it ended before.
fn wait_for(directory: &Path, file: &str, child: &mut Child) {
    let begun = || {
        let mut runs = fs::read_dir(directory).unwrap().flatten();
        runs.any(|run| run.path().join(file).exists())
    };
    let deadline = Instant::now() + Duration::from_secs(120);
    while !begun() {
        assert!(Instant::now() < deadline, "{file} did not appear");
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was interrupted");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The run ends within seconds with 130, leaves no file of its own, and its results are whole; also
/// if the signal comes twice at once, as `timeout` sends it to process and group.
#[test]
fn ctrl_c_ends_every_workload_cleanly() {
    for (line, file) in LONG {
        let counts = !["bfs", "compare"].iter().any(|name| line.starts_with(name));
        let mut pause = Duration::from_millis(1200);
        // On a busy machine the part may have begun without an operation yet.
        while interrupted_after(pause, line, file) == 0 && counts {
            pause *= 2;
            assert!(pause < Duration::from_secs(60), "{line}: nothing was done");
        }
    }
}

/// Interrupts a run this long after its file exists; returns the number of recorded operations.
fn interrupted_after(pause: Duration, line: &str, file: &str) -> u64 {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    fs::create_dir(&data).unwrap();
    let compared = if line.starts_with("compare") { COMPARED } else { "" };
    let mut child = start(&format!("{line} --out out.ndjson {compared}"), home.path());
    wait_for(&data, file, &mut child);
    std::thread::sleep(pause);
    let asked = Instant::now();
    interrupt(&child);
    interrupt(&child);
    let run = finished(child.wait_with_output().unwrap()).expect(130);
    // Long before its normal end, and with time for a slow disk to write its dirty bytes.
    assert!(asked.elapsed() < Duration::from_secs(60), "{line}: {:?}", asked.elapsed());
    assert_eq!(names(&data), [""; 0], "{line}");
    assert!(run.out.contains("interrupted"), "{line}: {}", run.out);
    let out = fs::read(home.path().join("out.ndjson")).unwrap();
    let record = Record::read("out", &out[..]).unwrap();
    assert_eq!(record.end.unwrap().outcome, Outcome::Interrupted, "{line}");
    record.phases.iter().map(|phase| phase.ops).sum()
}

#[test]
fn results_become_a_page_and_pictures() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("data")).unwrap();
    let line = "steady data --rate 300 --time 4s --warm-up 1s --size 1m --out run.ndjson";
    let run = bench(line, home.path()).expect(0);
    assert!(run.out.contains("operations a second") && run.out.contains("p99.9"), "{}", run.out);
    let report = bench("report run.ndjson --out made --svg --png", home.path()).expect(0);
    assert!(report.out.contains("Page cache"), "{}", report.out);
    let made = names(&home.path().join("made"));
    for name in ["report.html", "run-throughput.svg", "run-latency.png", "run-heat-steady.png"] {
        assert!(made.iter().any(|other| other == name), "{name} is not in {made:?}");
    }
    let page = fs::read_to_string(home.path().join("made/report.html")).unwrap();
    assert!(page.contains("discarded as warm-up") && page.contains("<svg"));
}

#[test]
fn a_comparison_has_every_round_of_both_targets() {
    let home = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        fs::create_dir(home.path().join(name)).unwrap();
    }
    let line = "compare a b -i 5 --json c.json -- checkpoint -n 1 -s 256k -t 64k --bursts 1 \
                --compute 0";
    bench(line, home.path()).expect(0);
    let text = fs::read_to_string(home.path().join("c.json")).unwrap();
    let record: Record = serde_json::from_str(&text).unwrap();
    assert_eq!(record.header.targets.len(), 2);
    assert!(record.comparisons.iter().all(|c| c.a.len() == 5 && c.confidence > 0.93));
    assert!(record.comparisons.iter().any(|c| c.name == "burst"));
}

#[test]
fn usage_errors_end_with_2_and_name_the_option() {
    let home = tempfile::tempdir().unwrap();
    for (line, says) in [
        ("steady .", "--rate"),
        ("steady . --rate 5 --skw zipf", "--skew"),
        ("fill . --capacity 1m --time 0", "--time"),
        ("bfs . --scale 3", "--scale"),
        ("compare . .  --rounds 1", "--rounds"),
        ("report", "FILE"),
        ("stedy .", "steady"),
    ] {
        let run = bench(line, home.path()).expect(2);
        assert!(run.err.contains(says), "{line}: {}", run.err);
    }
    assert_eq!(names(home.path()), [""; 0]);
}
