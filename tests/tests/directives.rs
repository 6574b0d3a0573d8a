//! `forebay job check` and `forebay job process`, from outside.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_tests::node::Node;
use forebay_tests::{binary, forebay, needs_forebay, needs_tools, proof, text};
use serde_json::Value;

const USER: u32 = 47_110;

/// A script and the files that it stages, removed when dropped.
struct Site {
    dir: PathBuf,
}

impl Site {
    fn new() -> Site {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let base = std::env::var_os("FOREBAY_TEST_DIR").map_or("/var/tmp".into(), PathBuf::from);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = base.join(format!("fbt-{}-d{id}", std::process::id()));
        std::fs::create_dir_all(dir.join("in")).expect("the test directory is writable");
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o755)).unwrap();
        for name in ["a", "b", "c"] {
            std::fs::write(dir.join("in").join(name), vec![0; 2 << 20]).unwrap();
        }
        Site { dir }
    }

    fn script(&self, lines: &str) -> PathBuf {
        let script = self.dir.join("job.sh");
        let lines = lines.replace("DIR", text(&self.dir));
        std::fs::write(&script, format!("#!/bin/bash\n{lines}\n./a.out\n")).unwrap();
        script
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn problems(report: &Value) -> Vec<(String, u64, String)> {
    let all = report["problems"].as_array().expect("an array");
    all.iter()
        .map(|problem| {
            let word = |key: &str| problem[key].as_str().unwrap().to_string();
            (word("severity"), problem["line"].as_u64().unwrap(), word("text"))
        })
        .collect()
}

#[test]
fn check_shows_what_a_script_would_get_and_changes_nothing() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "setpriv");
    let (node, site) = (Node::start(512), Site::new());
    let script = site.script(
        "#SBATCH -N 1\n#DW jobdw capacity=50MB access_mode=striped type=scratch\n\
         #DW stage_in type=directory source=DIR/in destination=$DW_JOB_STRIPED/in\n\
         #DW stage_out type=directory source=$DW_JOB_STRIPED/out destination=DIR/out\n\
         #DW persistentdw name=nobody",
    );
    let before = node.json(&["pools"]);
    let out = node.as_user(USER, &["job", "check", text(&script), "--json"]).ok();
    let report = out.json();
    let granted = &report["granted"][0];
    let bytes = granted["bytes"].as_u64().unwrap();
    let grain = before[0]["grain"].as_u64().unwrap();
    assert!(bytes >= 50_000_000 && bytes.is_multiple_of(grain), "{granted}");
    assert_eq!((granted["pool"].as_str(), granted["free_on"].as_u64()), (Some("flash"), Some(1)));
    let counted = &report["transfers"][0]["counted"];
    assert_eq!((counted["files"].as_u64(), counted["bytes"].as_u64()), (Some(3), Some(6 << 20)));
    assert_eq!(report["hooks"][0]["setting"], "OtherTimeout");
    let at = node.at("job-%j-striped");
    assert_eq!(report["variables"]["DW_JOB_STRIPED"], format!("{}/", at.display()));
    let told = problems(&report);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].0 == "warning" && told[0].2.contains("no instance nobody"), "{told:?}");

    let shown = node.as_user(USER, &["job", "check", text(&script)]).ok().stdout;
    for part in ["striped", "flash", "6.0 MiB", "OtherTimeout=300", "500 files/s (assumed)"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert_eq!(node.json(&["pools"]), before);
    node.assert_empty();
    assert!(!site.dir.join("out").exists());
}

#[test]
fn check_finds_what_text_alone_does_not_tell() {
    needs_forebay!();
    needs_tools!("mkfs.ext4", "setpriv");
    let (node, site) = (Node::start(256), Site::new());
    let closed = site.dir.join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).unwrap();
    let script = site.script(
        "#FB private capacity=4MiB name=a\n#FB private capacity=1GiB name=b\n\
         #FB private capacity=1MiB name=c pool=flsh\n\
         #FB stage_in source=DIR/in destination=$FB_JOB_A/in nodes=first\n\
         #FB stage_in source=DIR/none destination=$FB_JOB_A/none\n\
         #FB stage_in source=DIR/closed destination=$FB_JOB_A/closed\n\
         #FB stage_in source=DIR/in destination=$FB_JOB_A/file type=file",
    );
    let out = node.as_user(USER, &["job", "check", text(&script), "--json"]).expect(2);
    let told = problems(&out.json());
    for (line, why) in [
        (2, "6.0 MiB are staged into a, which holds 4.0 MiB"),
        (3, "are wanted and pool flash has 256.0 MiB in all"),
        (4, "there is no pool flsh"),
        (6, "none: No such file"),
        (7, "closed: Permission denied"),
        (8, "in is a directory"),
    ] {
        let found = told
            .iter()
            .any(|(severity, at, text)| severity == "error" && *at == line && text.contains(why));
        assert!(found, "{line}: {why}: {told:?}");
    }
    assert_eq!(told.iter().filter(|(severity, ..)| severity == "error").count(), 6, "{told:?}");
}

#[test]
fn what_would_not_end_in_time_names_the_setting_to_change() {
    needs_forebay!();
    let site = Site::new();
    let script = site.script(
        "#SBATCH -N 1\n#FB private capacity=1GiB\n\
         #FB stage_in source=DIR/in destination=$FB_JOB_SCRATCH/in",
    );
    let conf = site.dir.join("burst_buffer.conf");
    std::fs::write(&conf, "OtherTimeout=10\n").unwrap();
    let check = |rate: &str| {
        let mut command = Command::new(binary());
        command.env("SLURM_CONF", site.dir.join("slurm.conf"));
        command.env("FOREBAY_NODE_SOCKET", site.dir.join("nobody.sock"));
        command.args(["job", "check", text(&script), "--json", "--rate", rate]);
        let out = command.output().expect("the binary runs");
        serde_json::from_slice::<Value>(&out.stdout).expect("JSON")
    };
    let slow = check("100kB/s");
    let told = problems(&slow);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].2.contains("pre-run 10 s"), "{told:?}");
    assert!(slow["problems"][0]["remedy"].as_str().unwrap().contains("OtherTimeout="));
    assert_eq!(slow["limits_of"], text(&conf));
    assert!(slow["nodes_silent"].as_str().unwrap().contains("nobody.sock"));
    assert!(problems(&check("1GB/s")).is_empty());
}

#[test]
fn process_prints_facts_advice_and_one_status_line() {
    needs_forebay!();
    let site = Site::new();
    let run = |lines: &str, more: &[&str]| {
        let script = site.script(lines);
        let out = forebay(&[&["job", "process", "--script", text(&script)], more].concat());
        let lines: Vec<String> = out.stdout.lines().map(String::from).collect();
        (out.code, lines)
    };
    let (code, lines) = run(
        "#DW jobdw capacity=10GB access_mode=private pool=flash\n#DW persistentdw name=set\n#DW swap 1GiB",
        &["--nodes", "4"],
    );
    assert_eq!(code, Some(0));
    assert_eq!(lines.last().map(String::as_str), Some("forebay: ok"));
    for fact in
        ["bytes_per_node=3573741824", "pool=flash", "persistent=set", "swap=yes", "directives=3"]
    {
        assert!(lines.iter().any(|line| line == fact), "{fact}: {lines:?}");
    }
    let (code, lines) = run("#BB create_persistent name=a capacity=1GB", &[]);
    assert_eq!((code, lines.contains(&"lone=yes".into())), (Some(0), true));
    let (code, lines) = run("#DW jobdw capcity=10GB\n#FB frob", &[]);
    assert_eq!(code, Some(2));
    assert_eq!(
        lines.last().unwrap(),
        "forebay: error line 2: capcity is no word of jobdw; did you mean capacity? (and 1 more)"
    );
    assert!(lines.contains(&"|     #DW jobdw capcity=10GB".into()), "{lines:?}");
    assert!(lines.contains(&"|               ^^^^^^^".into()), "{lines:?}");
    let (code, lines) = run("#FLASH capacity=1GB pool=$(reboot)", &["--directive", "FLASH"]);
    assert_eq!((code, lines), (Some(0), vec!["directives=1".into(), "forebay: ok".into()]));
    let out = forebay(&["job", "process", "--script", "/nonexistent/job.sh"]);
    assert_eq!(out.code, Some(1));
    assert!(out.stdout.starts_with("forebay: error script /nonexistent/job.sh"), "{out:?}");
}

/// The command runs inside slurmctld's locks: it uses no file but the script, no socket, no process,
/// no name service.
#[test]
fn process_looks_at_nothing_but_the_script() {
    needs_forebay!();
    needs_tools!("strace");
    let site = Site::new();
    let script = site.script(
        "#FB private capacity=1GiB\n#FB stage_in source=DIR/in destination=$FB_JOB_SCRATCH/%u\n\
         #FB cache backing=DIR/in capacity=1GiB set=max-age=30s\n#FB frob",
    );
    let log = site.dir.join("calls");
    let args = ["-f", "-qq", "-e", "trace=%file,%network,%process", "-o", text(&log)];
    let called = [text(binary()), "job", "process", "--script", text(&script)];
    // The loader would look for libraries where cargo says.
    let mut command = Command::new("strace");
    let status = command.args(args).args(called).env_remove("LD_LIBRARY_PATH").output();
    assert_eq!(status.expect("strace runs").status.code(), Some(2));
    let calls = std::fs::read_to_string(&log).unwrap();
    let ours = |line: &&str| !of_the_loader(line) && !line.contains("exited with");
    let left: Vec<&str> = calls.lines().filter(ours).collect();
    let opened: Vec<&&str> = left.iter().filter(|line| line.contains("job.sh")).collect();
    assert_eq!(opened.len(), 2, "its own start, and the script once: {left:?}");
    assert_eq!(left.len(), 2, "{left:?}");
    proof!("{} calls, of which 1 opens the script", calls.lines().count());
}

/// Whether the line is one of the calls that every program makes when it starts.
fn of_the_loader(line: &str) -> bool {
    let places =
        ["\"/etc/ld.so", "\"/lib", "\"/usr/lib", "\"/proc/self/", "\"/sys/fs/cgroup", "\"\""];
    let starts = ["exit_group(", "arch_prctl(", "rt_sig", "set_tid_address("];
    let call = line.split_once(' ').map_or(line, |(_, call)| call.trim_start());
    places.iter().any(|place| line.contains(place))
        || starts.iter().any(|start| call.starts_with(start))
}

#[test]
fn scripts_of_the_manual_pass_the_command_too() {
    needs_forebay!();
    let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/DIRECTIVES.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let blocks = manual.split("\n```\n").filter(|block| block.starts_with("#!/bin/bash"));
    let site = Site::new();
    let mut passed = 0;
    for block in blocks {
        let script = site.script(block);
        let out = forebay(&["job", "process", "--script", text(&script)]);
        assert_eq!(out.code, Some(0), "{block}\n{}", out.stdout);
        passed += 1;
    }
    assert!(passed >= 9, "{passed}");
}
