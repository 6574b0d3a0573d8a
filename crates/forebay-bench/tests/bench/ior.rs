//! `forebay bench ior` from the outside: its files, its output, its refusals and its traces.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::harness::{bench, finished, names, start};

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a scratch directory")
}

/// The lines that scripts for IOR look for, in their order.
#[test]
fn output_has_iors_form() {
    let home = scratch();
    let run = bench("ior -t 64k -b 1m -s 2 -N 2 -i 2 -o f", home.path()).expect(0);
    let marks = [
        "IOR-",
        "Began               : ",
        "Command line        : forebay bench ior -t 64k -b 1m -s 2 -N 2 -i 2 -o f",
        "Machine             : Linux",
        "TestID              : 0",
        "Path                : f",
        "FS                  : ",
        "\nOptions: \n",
        "api                 : POSIX",
        "access              : single-shared-file",
        "ordering in a file  : sequential",
        "ordering inter file : no tasks offsets",
        "tasks               : 2",
        "xfersize            : 65536 bytes",
        "blocksize           : 1 MiB",
        "aggregate filesize  : 4 MiB",
        "\nResults: \n",
        "access    bw(MiB/s)  IOPS       Latency(s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   \
         close(s)   total(s)   iter",
        "\nwrite     ",
        "\nread      ",
        "\nremove    -          -",
        "\nMax Write: ",
        "\nMax Read:  ",
        "\nSummary of all tests:\nOperation   Max(MiB)   Min(MiB)",
        "\nwrite ",
        "\nread ",
        "\nFinished            : ",
    ];
    let mut rest = run.out.as_str();
    for mark in marks {
        let at = rest.find(mark).unwrap_or_else(|| panic!("{mark:?} is missing in\n{}", run.out));
        rest = &rest[at + mark.len()..];
    }
    for access in ["write", "read"] {
        let rows = run.rows(access);
        assert_eq!(rows.len(), 2);
        assert!(rows.iter().all(|row| row.len() == 11), "{rows:?}");
        assert_eq!((rows[0][4].as_str(), rows[0][5].as_str()), ("1024.00", "64.00"));
    }
    assert!(names(home.path()).is_empty(), "the file is removed");
}

#[test]
fn numbers_agree_with_each_other() {
    let home = scratch();
    let run = bench("ior -t 64k -b 4m -N 2 -o f -O summaryFormat=JSON", home.path()).expect(0);
    let json: serde_json::Value = serde_json::from_str(body(&run.out)).expect("JSON");
    let write = &json["tests"][0]["Results"][0][0];
    assert_eq!(write["access"], "write");
    let number = |name: &str| write[name].as_f64().expect(name);
    assert!((number("bwMiB") * number("totalTime") - 8.0).abs() < 0.01);
    assert!((number("iops") * number("wrRdTime") - 128.0).abs() < 0.1);
    assert!(number("totalTime") >= number("wrRdTime"));
    assert!(write["latencyNs"]["p50"].as_u64() <= write["latencyNs"]["max"].as_u64());
    let row = &json["summary"][0];
    assert_eq!((row["operation"].as_str(), row["xsizeMiB"].as_f64()), (Some("write"), Some(8.0)));
    assert_eq!(json["tests"][0]["Parameters"]["blockSize"], 4 << 20);
    let read = &json["tests"][0]["Results"][0][1];
    assert!(read["residentShare"].as_f64().is_some());
}

/// The document without the lines of the test runner around it.
fn body(out: &str) -> &str {
    let start = out.find("{\n").expect("a document");
    &out[start..]
}

#[test]
fn csv_has_iors_columns() {
    let home = scratch();
    let line = "ior -t 64k -b 1m -o f -i 2 -O summaryFormat=CSV,summaryFile=r.csv";
    bench(line, home.path()).expect(0);
    let text = std::fs::read_to_string(home.path().join("r.csv")).expect("the summary file");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        "access,bw(MiB/s),IOPS,Latency,block(KiB),xfer(KiB),open(s),wr/rd(s),close(s),total(s),\
         numTasks,iter"
    );
    assert_eq!(lines.len(), 5);
    assert!(lines[1..].iter().all(|line| line.split(',').count() == 12));
    assert!(lines[4].starts_with("read,") && lines[4].ends_with(",1,1"));
}

/// Every way to move bytes and every kind of contents: written by one run, verified by another, and
/// after that through another interface.
#[test]
fn what_is_written_verifies() {
    let home = scratch();
    for (api, contents) in [
        ("POSIX", "timestamp"),
        ("MMAP", "offset"),
        ("URING", "incompressible"),
        ("POSIX", "random"),
    ] {
        let sizes = "-t 4k -b 64k -s 3 -N 3 -G 42 -o f";
        let write = format!("ior -w -W -k -a {api} -l {contents} {sizes}");
        let run = bench(&write, home.path());
        if run.code == 1 && run.err.contains("io_uring is not to be had") {
            println!("SKIPPED: {}", run.err);
            continue;
        }
        let run = run.expect(0);
        assert!(run.out.contains("Verifying contents"), "{}", run.out);
        for extra in ["", "-C", "-Z -X 3", "-ZZ", "--threads"] {
            let read = format!("ior -r -R -k -l {contents} {sizes} {extra}");
            bench(&read, home.path()).expect(0);
        }
    }
}

#[test]
fn what_is_written_and_read_alike_verifies() {
    let home = scratch();
    for flags in [
        "-F",
        "-F -C",
        "-F -u",
        "-F -m -i 2",
        "-F -z",
        "-z",
        "-z -C",
        "-zz",
        "-Y -e -g",
        "-F -C -Q 2",
    ] {
        let line = format!("ior -w -r -W -R -t 4k -b 32k -s 2 -N 3 -o f {flags}");
        let run = bench(&line, home.path()).expect(0);
        assert!(!run.out.contains("Incorrect data"), "{flags}");
        assert!(names(home.path()).is_empty(), "{flags}: {:?}", names(home.path()));
    }
}

#[test]
fn a_flipped_byte_is_found_with_file_offset_and_values() {
    let home = scratch();
    let sizes = "-t 4k -b 16k -s 2 -N 2 -F -G 7 -o f";
    bench(&format!("ior -w -k {sizes}"), home.path()).expect(0);
    let path = home.path().join("f.00000001");
    let file = std::fs::File::options().read(true).write(true).open(&path).expect("kept");
    let mut byte = [0];
    file.read_exact_at(&mut byte, 20_000).expect("long enough");
    file.write_all_at(&[byte[0] ^ 1], 20_000).expect("writable");
    let run = bench(&format!("ior -r -R -K {sizes}"), home.path()).expect(1);
    let told = format!(
        "task 1: f.00000001: offset 20000: expected {:#04x}, found {:#04x}",
        byte[0],
        byte[0] ^ 1
    );
    assert!(run.err.contains(&told), "{told} is missing in\n{}", run.err);
    assert!(run.out.contains("Incorrect data on read (1 errors found)"), "{}", run.out);
    assert!(path.exists(), "-K keeps a file with errors");
}

/// The line of a tutorial's second step: the signature is found in the file.
#[test]
fn a_kept_file_verifies_without_its_signature() {
    let home = scratch();
    for contents in ["timestamp", "offset"] {
        let sizes = format!("-t 4k -b 16k -N 2 -l {contents} -o f");
        bench(&format!("ior -w -k {sizes}"), home.path()).expect(0);
        bench(&format!("ior -R -k {sizes}"), home.path()).expect(0);
        let other = if contents == "offset" { "timestamp" } else { "offset" };
        bench(&format!("ior -R -k {sizes} -l {other}"), home.path()).expect(1);
    }
    std::fs::write(home.path().join("f"), [7; 32768]).expect("writable");
    let run = bench("ior -R -k -t 4k -b 16k -N 2 -o f", home.path()).expect(2);
    assert!(run.err.contains("-G"), "{}", run.err);
}

/// As IOR's manual prints it, with settings that only MPI-IO or HDF5 know.
#[test]
fn the_script_of_iors_manual_runs() {
    let home = scratch();
    let script = "IOR START\n    api=POSIX\n    testFile=testFile\n    hintsFileName=hintsFile\n\
        repetitions=2\n multiFile=0\n interTestDelay=0\n readFile=1\n writeFile=1\n\
        filePerProc=0\n checkWrite=0\n checkRead=0\n keepFile=1\n quitOnError=0\n\
        outlierThreshold=0\n setAlignment=1\n singleXferAttempt=0\n individualDataSets=0\n\
        verbose=0\n collective=0\n preallocate=0\n useFileView=0\n keepFileWithError=0\n\
        setTimeStampSignature=0\n useSharedFilePointer=0\n useStridedDatatype=0\n\
        uniqueDir=0\n fsync=0\n storeFileOffset=0\n maxTimeDuration=60\n\
        deadlineForStonewalling=0\n useExistingTestFile=0\n useO_DIRECT=0\n showHints=0\n\
        showHelp=0\nRUN\n    # additional tests are optional\n checkRead=1\nRUN\nIOR STOP\n";
    std::fs::write(home.path().join("manual.ior"), script).expect("writable");
    let run = bench("ior -f manual.ior", home.path()).expect(0);
    assert_eq!((run.rows("write").len(), run.rows("read").len()), (2, 2), "{}", run.out);
    assert_eq!(run.out.matches("has no effect").count(), 1, "{}", run.out);
    assert!(run.out.contains("hintsFileName has no effect"), "{}", run.out);
}

/// Nothing is written, the option is named, and the code is 2.
#[test]
fn bad_input_ends_before_anything_is_written() {
    let home = scratch();
    for (line, word) in [
        ("-t 2m -b 1m -o f", "-t"),
        ("-t 3k -b 10k -o f", "-b"),
        ("-b 900t -t 1m -o f", "-b"),
        ("-o missing/f", "-o"),
        ("-o .", "-o"),
        ("-r -o f", "-r"),
        ("-R -o f", "does not exist"),
        ("-R -l random -o f", "-G"),
        ("-W -r -o f", "-W"),
        ("-C -Z -o f", "-C"),
        ("-o f --blokSize=1m", "--blockSize"),
        ("-o f -L", "-L"),
        ("-o f -a HDF5", "-a"),
        ("-o f -M 999t", "-M"),
        ("--target null -M 999t", "-M"),
        ("-o f --out missing/r.ndjson", "--out"),
        ("-o f -f missing.ior", "-f"),
        ("-o f --posix.odirect -t 100 -b 1000", "-t"),
    ] {
        let run = bench(&format!("ior {line}"), home.path()).expect(2);
        assert!(run.err.contains(word), "{line}: {}", run.err);
        assert!(names(home.path()).is_empty(), "{line} left {:?}", names(home.path()));
    }
}

#[test]
fn a_deadline_stops_and_the_wear_out_evens_out() {
    let home = scratch();
    let line = "ior -w -r -t 4k -b 1t -N 2 -F -D 1 -O stoneWallingWearOut=1 -k -o f \
                -O stoneWallingStatusFile=status";
    let began = Instant::now();
    let run = bench(&line.replace("-w -r", "-w"), home.path()).expect(0);
    // The whole work would take hours.
    assert!(began.elapsed() < Duration::from_secs(300));
    let sizes: Vec<u64> = ["f.00000000", "f.00000001"]
        .map(|name| std::fs::metadata(home.path().join(name)).expect("kept").len())
        .into();
    assert!(sizes[0] > 0 && sizes[0] == sizes[1], "{sizes:?}");
    let summary = run.out.lines().rfind(|line| line.starts_with("write")).expect("a summary");
    assert!(!summary.contains(" NA "), "{summary}");
    let status = std::fs::read_to_string(home.path().join("status")).expect("the status file");
    assert_eq!(status.trim().parse::<u64>().expect("a number") * 4096, sizes[0]);
    let read = "ior -r -t 4k -b 1t -N 2 -F -k -o f -O stoneWallingStatusFile=status";
    bench(read, home.path()).expect(0);
}

#[test]
fn a_script_runs_its_tests() {
    let home = scratch();
    let script = "IOR START\n blockSize=64k\n transferSize=4k\n testFile=f\nRUN\n filePerProc=1\n \
                  numTasks=2\nRUN\nIOR STOP\n";
    std::fs::write(home.path().join("s.ior"), script).expect("the script");
    let run = bench("ior -f s.ior", home.path()).expect(0);
    assert_eq!(run.out.matches("Results: ").count(), 2);
    assert!(run.out.contains("access              : file-per-process"));
    assert_eq!(run.out.matches("Max Write").count(), 2);
}

/// Checks up to five times: another process may drop the caches of the machine, and the kernel need
/// not follow advice for pages that it is using, though not always.
#[track_caller]
fn unless_dropped(mut look: impl FnMut() -> Result<(), String>) {
    let mut found = look();
    for _ in 1..5 {
        if found.is_err() {
            found = look();
        }
    }
    found.unwrap_or_else(|why| panic!("{why}"));
}

/// A read of just-written bytes comes from the cache, which must be reported; after fadvise it does
/// not.
#[test]
fn cached_reads_are_told_and_policies_are_checked() {
    let program = std::env::current_exe().expect("a path");
    let home = tempfile::tempdir_in(program.parent().expect("a directory")).expect("scratch");
    let run = bench("ior -t 64k -b 4m -o f", home.path()).expect(0);
    if run.out.contains("lives in memory") {
        println!("SKIPPED: the build directory is on a file system that lives in memory");
        return;
    }
    unless_dropped(|| {
        let run = bench("ior -t 64k -b 4m -o f", home.path()).expect(0);
        let told = [
            "read: 100 % of what was read was in the page cache",
            "100.0 % of 4 MiB was resident before",
        ];
        if told.iter().all(|told| run.out.contains(told)) { Ok(()) } else { Err(run.out) }
    });
    unless_dropped(|| {
        let run = bench("ior -e -t 64k -b 4m -o f --cache fadvise", home.path()).expect(0);
        let gone = run.out.contains("0.0 % of 4 MiB was resident before")
            && !run.out.contains("of what was read was in the page cache");
        if gone { Ok(()) } else { Err(run.out) }
    });
    bench("ior -w -e -k -t 64k -b 4m -o f", home.path()).expect(0);
    let direct = bench("ior -r -t 64k -b 4m -o f --posix.odirect", home.path());
    assert!(!direct.out.contains("of what was read was in the page cache"), "{}", direct.out);
    let run = bench("ior -w -e -t 64k -b 4m -o f --device-limit 1k", home.path()).expect(0);
    assert!(run.out.contains("more than the device can do"), "{}", run.out);
}

/// If the first half of a file is in the cache, a phase that reads only that half was served by the
/// cache entirely, and one that reads the other half not at all.
#[test]
fn the_share_is_that_of_what_was_read_not_of_the_file() {
    let program = std::env::current_exe().expect("a path");
    let home = tempfile::tempdir_in(program.parent().expect("a directory")).expect("scratch");
    let run = bench("ior -w -e -k -t 64k -b 16m -o f", home.path()).expect(0);
    if run.out.contains("lives in memory") {
        println!("SKIPPED: the build directory is on a file system that lives in memory");
        return;
    }
    let half = 8 << 20;
    for (warm, share) in [(0, "100.0"), (half, "0.0")] {
        let told = format!("{share} % of 8 MiB was resident before");
        unless_dropped(|| {
            let path = home.path().join("f");
            forebay_bench::cache::advise_away(&path).expect("a file");
            let file = std::fs::File::open(&path).expect("kept");
            file.read_exact_at(&mut vec![0; half as usize], warm).expect("long enough");
            let run = bench("ior -r -k -t 64k -b 8m -o f", home.path()).expect(0);
            let missing = format!("{told} is missing in\n{}", run.out);
            if run.out.contains(&told) { Ok(()) } else { Err(missing) }
        });
    }
    bench("ior -r -k -t 64k -b 16m -o f", home.path()).expect(0);
    let direct = bench("ior -r -k -t 64k -b 16m -o f --posix.odirect", home.path());
    if direct.code == 0 {
        assert!(direct.out.contains("was resident before, and was passed by"), "{}", direct.out);
    }
}

#[test]
fn an_interruption_removes_the_file_and_shows_what_was_measured() {
    let home = scratch();
    let mut child = start("ior -w -D 300 -t 4k -b 1t -N 2 -F -Y -o f", home.path());
    wait_until(|| names(home.path()).len() == 2 && size(home.path()) > 0);
    signal(child.id(), libc::SIGINT);
    let late = Instant::now() + Duration::from_secs(120);
    while child.try_wait().expect("our child").is_none() {
        assert!(Instant::now() < late, "the run did not end after Ctrl-C");
        std::thread::sleep(Duration::from_millis(20));
    }
    let run = finished(child.wait_with_output().expect("its output")).expect(130);
    assert_eq!(run.rows("write").len(), 1, "{}", run.out);
    assert!(run.out.contains("WARNING: interrupted"), "{}", run.out);
    assert!(names(home.path()).is_empty(), "{:?}", names(home.path()));
}

fn size(home: &Path) -> u64 {
    std::fs::metadata(home.join("f.00000000")).map_or(0, |found| found.len())
}

fn wait_until(condition: impl Fn() -> bool) {
    let late = Instant::now() + Duration::from_secs(120);
    while !condition() {
        assert!(Instant::now() < late, "waited in vain");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn signal(pid: u32, signal: i32) {
    // SAFETY: a child of this process, not yet waited for.
    unsafe { libc::kill(pid.cast_signed(), signal) };
}

#[test]
fn a_task_that_dies_ends_the_run_and_is_named() {
    let home = scratch();
    let child = start("ior -w -D 300 -t 4k -b 1t -N 2 -F -Y -o f", home.path());
    wait_until(|| names(home.path()).len() == 2 && size(home.path()) > 0);
    let victim = children(child.id()).pop().expect("two tasks");
    signal(victim, libc::SIGKILL);
    let run = finished(child.wait_with_output().expect("its output")).expect(1);
    assert!(run.err.contains("died of signal 9"), "{}", run.err);
    assert!(names(home.path()).is_empty(), "{:?}", names(home.path()));
}

/// Children of any thread of the process; the benchmark may run on a thread of the test runner.
fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("a live process");
    let lists =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn results_are_recorded_for_the_report() {
    let home = scratch();
    let line = "ior -t 64k -b 1m -i 2 -o f --out r.ndjson --json r.json \
                -O saveRankPerformanceDetailsCSV=ranks.csv,savePerOpDataCSV=ops";
    bench(line, home.path()).expect(0);
    let text = std::fs::read_to_string(home.path().join("r.ndjson")).expect("lines");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let phases = lines.iter().filter(|line| line["line"] == "phase").count();
    assert_eq!(phases, 4, "{text}");
    let ranks = std::fs::read_to_string(home.path().join("ranks.csv")).expect("ranks");
    assert_eq!(ranks.lines().count(), 5);
    let ops = std::fs::read_to_string(home.path().join("ops-write-0-00000.csv")).expect("ops");
    assert_eq!(ops.lines().count(), 17);
}

#[test]
fn a_dry_run_touches_nothing() {
    let home = scratch();
    let run = bench("ior --dryRun -N 2 -o f", home.path()).expect(0);
    assert!(run.out.contains("aggregate filesize  : 2 MiB"));
    assert!(names(home.path()).is_empty());
}
