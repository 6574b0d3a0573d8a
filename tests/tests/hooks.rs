//! The hooks of a scheduler, called as Slurm calls them, on one node: steps repeated, in the wrong order,
//! and with daemons that die between them. `slurm/` tests Slurm itself.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_tests::node::{Node, open_dir};
use forebay_tests::{Out, fill, needs_forebay, needs_tools, proof, text, within};
use serde_json::Value;

const USER: u32 = 47_110;
const OTHER: u32 = 47_111;

/// A node that is its scheduler's machine, too.
struct Site {
    node: Node,
}

impl Site {
    fn new(keys: &str) -> Site {
        let mut site = Site::laid(keys);
        site.node.up();
        site
    }

    fn laid(keys: &str) -> Site {
        let mut node = Node::laid(256);
        let root = node.root.clone();
        let at = |name: &str| text(&root.join(name)).to_string();
        node.key(&format!(
            "[scheduler]\ncluster = \"demo\"\nuser = \"daemon\"\nspool = \"{}\"\nlogs = \"{}\"\n\
             release-patience = \"1s\"\n{keys}",
            at("spool"),
            at("logs")
        ));
        node.env("FOREBAY_SPOOL", &at("spool"));
        node.env("SLURM_CONF", &at("none/slurm.conf"));
        // A Slurm whose commands fail at once.
        let bin = node.root.join("bin");
        std::fs::create_dir(&bin).unwrap();
        node.env("PATH", &format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", text(&bin)));
        let pfs = node.slow().join("pfs");
        open_dir(&pfs);
        let site = Site { node };
        ["squeue", "scontrol"].iter().for_each(|name| site.plays(name, "exit 1"));
        site
    }

    /// Replaces a command of Slurm by a script.
    fn plays(&self, name: &str, body: &str) {
        use std::os::unix::fs::PermissionsExt;
        let bin = self.node.root.join("bin");
        std::fs::write(bin.join("new"), format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(bin.join("new"), PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::rename(bin.join("new"), bin.join(name)).unwrap();
    }

    fn pfs(&self) -> PathBuf {
        self.node.slow().join("pfs")
    }

    /// Writes a job script of these directives.
    fn script(&self, name: &str, directives: &[&str]) -> PathBuf {
        let pfs = self.pfs();
        let lines = directives.iter().map(|line| line.replace("PFS", text(&pfs)) + "\n");
        let path = self.node.root.join(name);
        let body = format!("#!/bin/sh\n#SBATCH -N 1\n{}exec true\n", lines.collect::<String>());
        std::fs::write(&path, body).unwrap();
        path
    }

    fn hook(&self, step: &str, job: &str, args: &[&str]) -> Out {
        let out = self.node.forebay(&[&["job", step, "--job", job], args].concat());
        let last = out.stdout.lines().last().unwrap_or_default();
        assert!(last.starts_with("forebay: "), "no status line: {out:?}");
        out
    }

    #[track_caller]
    fn done(&self, step: &str, job: &str, args: &[&str]) -> String {
        let out = self.hook(step, job, args).ok();
        let last = out.stdout.lines().last().unwrap_or_default();
        assert!(last.starts_with("forebay: ok"), "{step}: {out:?}\n{}", self.node.log());
        out.stdout
    }

    #[track_caller]
    fn refused(&self, step: &str, job: &str, args: &[&str], why: &str) {
        let out = self.hook(step, job, args);
        let last = out.stdout.lines().last().unwrap_or_default();
        assert!(last.starts_with("forebay: error") && last.contains(why), "{step}: {out:?}");
        assert_ne!(out.code, Some(0));
    }

    fn setup(&self, job: &str, script: &Path) -> String {
        self.done("setup", job, &owned(script))
    }

    /// Goes through all steps until the job could run.
    fn start(&self, job: &str, script: &Path) -> PathBuf {
        self.setup(job, script);
        self.done("data-in", job, &[]);
        self.done("pre-run", job, &["--nodes", "n1"]);
        self.shown(job)
    }

    /// The path in the first variable of a job.
    fn shown(&self, job: &str) -> PathBuf {
        let file = self.node.root.join("paths");
        self.done("paths", job, &["--file", text(&file)]);
        let lines = std::fs::read_to_string(file).unwrap();
        let (_, value) = lines.lines().next().unwrap().split_once('=').unwrap();
        value.into()
    }

    fn end(&self, job: &str, code: &str) {
        self.done("epilog", job, &[]);
        self.done("post-run", job, &["--exit-code", code]);
    }

    fn plan_of(&self, job: &str) -> Value {
        self.node.json(&["job", "status", "--job", job])[0]["plan"].clone()
    }

    fn jobs(&self) -> Value {
        self.node.json(&["job", "status"])
    }

    /// Fails unless all traces of jobs are gone.
    fn assert_empty(&self) {
        self.node.assert_empty();
        within(Duration::from_secs(20), "the records of jobs are gone", || {
            self.jobs() == serde_json::json!([])
        });
        within(Duration::from_secs(20), "the spool of jobs is empty", || {
            std::fs::read_dir(self.node.root.join("spool/jobs")).unwrap().count() == 0
        });
    }
}

fn owned(script: &Path) -> [&str; 8] {
    ["--uid", "47110", "--gid", "47110", "--nodes", "1", "--script", text(script)]
}

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, seed, 0);
    bytes
}

fn write_as_user(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, bytes).unwrap();
    for at in [path, path.parent().unwrap()] {
        std::os::unix::fs::chown(at, Some(USER), Some(USER)).unwrap();
    }
}

const STRIPED: [&str; 3] = [
    "#DW jobdw type=scratch capacity=32MiB access_mode=striped",
    "#DW stage_in type=directory source=PFS/in destination=$DW_JOB_STRIPED/in",
    "#DW stage_out type=directory source=$DW_JOB_STRIPED/out destination=PFS/out",
];

// S-24: every step may come twice, and the daemon may die between any two.
#[test]
fn a_job_lives_through_steps_that_are_repeated_and_daemons_that_die() {
    needs_forebay!();
    needs_tools!("mkfs.ext4");
    let mut site = Site::new("");
    let bytes = random(3 << 20, 1);
    write_as_user(&site.pfs().join("in/data"), &bytes);
    write_as_user(&site.pfs().join("in/.forebay-stage-in"), b"left out");
    let script = site.script("job.sh", &STRIPED);
    let again = |site: &mut Site, step: &str, args: &[&str]| {
        site.done(step, "17", args);
        site.node.crash();
        site.node.up();
        site.done(step, "17", args);
    };
    again(&mut site, "setup", &owned(&script));
    again(&mut site, "data-in", &[]);
    again(&mut site, "pre-run", &["--nodes", "n1"]);
    let at = site.shown("17");
    assert!(
        text(&at).ends_with("/job-17-striped/"),
        "scripts write ${{DW_JOB_STRIPED}}name: {at:?}"
    );
    assert_eq!(std::fs::read(at.join("in/data")).unwrap(), bytes);
    write_as_user(&at.join("out/result"), &bytes);
    write_as_user(&at.join("out/.forebay-stage-out"), b"left out");
    again(&mut site, "epilog", &[]);
    again(&mut site, "post-run", &["--exit-code", "0"]);
    again(&mut site, "data-out", &[]);
    assert_eq!(std::fs::read(site.pfs().join("out/result")).unwrap(), bytes);
    again(&mut site, "teardown", &[]);
    site.assert_empty();
    let log = std::fs::read_to_string(site.node.root.join("logs/demo-17.log")).unwrap();
    assert!(log.contains("pre-run: ready") && log.contains("nothing is left of it"), "{log}");
    for (step, name) in [("pre-run: ready", "in"), ("data-out: its data are home", "out")] {
        let noted = format!("1 note, the first: .forebay-stage-{name}: left over from a transfer");
        assert!(log.lines().any(|l| l.contains(step) && l.contains(&noted)), "{log}");
    }
    site.done("teardown", "17", &[]);
    proof!("six steps were taken twice, with six crashes between them");
}

// S-24: the daemon may die within a step.
#[test]
fn a_daemon_that_dies_within_a_step_of_a_job_leaves_what_the_next_one_takes_up() {
    needs_forebay!();
    needs_tools!("mkfs.ext4");
    let mut site = Site::new("");
    write_as_user(&site.pfs().join("in/data"), b"in");
    let script = site.script("job.sh", &STRIPED);
    let setup = owned(&script);
    let steps: [(&str, &[&str], &str); 5] = [
        ("setup", &setup, "job-recorded"),
        ("pre-run", &["--nodes", "n1"], "job-instances"),
        ("pre-run", &["--nodes", "n1"], "job-outs"),
        ("post-run", &["--exit-code", "0"], "job-ended"),
        ("teardown", &[], "job-given-up"),
    ];
    for (step, args, point) in steps {
        site.node.stop();
        site.node.env("FOREBAY_FAILPOINTS", point);
        site.node.up();
        site.refused(step, "8", &[args, &["--limit", "4s"]].concat(), "not done within");
        site.node.died();
        site.node.env("FOREBAY_FAILPOINTS", "");
        site.node.up();
        match point {
            "job-outs" => {
                site.done(step, "8", args);
                write_as_user(&site.shown("8").join("out/result"), b"result");
                site.done("epilog", "8", &[]);
            }
            "job-ended" => {
                site.done(step, "8", args);
                site.done("data-out", "8", &[]);
            }
            "job-recorded" => {
                site.done(step, "8", args);
                site.done("data-in", "8", &[]);
            }
            "job-given-up" => site.done(step, "8", args).truncate(0),
            _ => {}
        }
    }
    assert_eq!(std::fs::read(site.pfs().join("out/result")).unwrap(), b"result");
    site.assert_empty();
    // A hurried stage-out stays hurried, whether the teardown is repeated or not.
    site.start("9", &script);
    site.node.stop();
    site.node.env("FOREBAY_FAILPOINTS", "job-given-up");
    site.node.up();
    site.refused("teardown", "9", &["--hurry", "--limit", "2s"], "not done within");
    site.node.died();
    site.node.env("FOREBAY_FAILPOINTS", "");
    site.node.up();
    within(Duration::from_secs(20), "the instance goes", || {
        site.node.json(&["instance", "list"]) == serde_json::json!([])
    });
    site.done("teardown", "9", &["--hurry"]);
    site.assert_empty();
    proof!("killed at {} points", steps.len() + 1);
}

// S-24: a hook that the scheduler killed may have left a step behind that goes on.
#[test]
fn a_teardown_that_overtakes_a_pre_run_leaves_nothing() {
    needs_forebay!();
    needs_tools!("mkfs.ext4");
    let site = Site::new("");
    let script = site.script("job.sh", &["#FB private capacity=8MiB"]);
    for turn in 0..8u64 {
        let job = (100 + turn).to_string();
        site.setup(&job, &script);
        std::thread::scope(|scope| {
            scope.spawn(|| site.hook("pre-run", &job, &["--nodes", "n1", "--limit", "3s"]));
            std::thread::sleep(Duration::from_millis(8 * turn));
            site.done("teardown", &job, &[]);
        });
    }
    site.assert_empty();
}

// S-24: what a job that never ran would have published is not published, and each run has instances of
// its own.
#[test]
fn a_job_that_is_run_again_publishes_for_the_run_that_ran() {
    needs_forebay!();
    needs_tools!("mkfs.ext4");
    let site = Site::new("");
    write_as_user(&site.pfs().join("in/data"), b"in");
    let script = site.script("job.sh", &STRIPED);
    // Slurm tears down after a failed pre-run, and sets up again.
    site.setup("5", &script);
    site.refused("pre-run", "5", &["--nodes", "n9", "--limit", "1s"], "node n9");
    site.done("teardown", "5", &["--hurry"]);
    let at = site.start("5", &script);
    assert!(text(&at).ends_with("/job-5-r2-striped/"), "{at:?}");
    write_as_user(&at.join("out/second"), b"second");
    site.end("5", "0");
    site.done("data-out", "5", &[]);
    site.done("teardown", "5", &[]);
    assert_eq!(std::fs::read(site.pfs().join("out/second")).unwrap(), b"second");
    site.assert_empty();
}

// S-24: a scheduler may give a job more nodes than its plan is good for: it does not run there.
#[test]
fn a_job_that_gets_more_nodes_than_it_can_use_is_refused_before_it_runs() {
    needs_forebay!();
    needs_tools!("mkfs.ext4");
    let site = Site::new("");
    write_as_user(&site.pfs().join("in/data"), b"in");
    let script = site.script("job.sh", &STRIPED);
    site.plays("squeue", "echo '6|1|6|N/A|ann'");
    site.done("setup", "6", &["--uid", "47110", "--gid", "47110", "--script", text(&script)]);
    let two = ["--nodes", "n1,n2", "--limit", "2s"];
    site.refused("pre-run", "6", &two, "it got 2 nodes (n1,n2)");
    site.refused("pre-run", "6", &two, "submit with --nodes=1");
    assert_eq!(site.node.json(&["instance", "list"]), serde_json::json!([]));
    site.done("pre-run", "6", &["--nodes", "n1"]);
    write_as_user(&site.shown("6").join("out/result"), b"result");
    site.end("6", "0");
    site.done("data-out", "6", &[]);
    assert_eq!(std::fs::read(site.pfs().join("out/result")).unwrap(), b"result");
    site.done("teardown", "6", &[]);
    site.assert_empty();
}

// S-24: what Slurm hands over may lack directives: the plan is made of the whole script, or not at all.
#[test]
fn a_script_that_slurm_does_not_tell_at_once_is_asked_for_again() {
    needs_forebay!();
    let site = Site::new("");
    let directives = [
        "#FB private capacity=8MiB",
        "#FB stage_out type=file source=$FB_JOB_SCRATCH/r destination=PFS/r on=always",
    ];
    let whole = site.script("whole.sh", &directives);
    let given = std::fs::File::open(site.script("given.sh", &directives[..1])).unwrap();
    let given = format!("/proc/{}/fd/{}", std::process::id(), given.as_raw_fd());
    let set_up = [&owned(Path::new(&given))[..], &["--limit", "4s"]].concat();
    let stagings = |job: &str| site.plan_of(job)["transfers"].as_array().map_or(0, Vec::len);

    site.plays("squeue", "echo 1 1; echo 2 1; echo 3 0");
    site.refused("setup", "1", &set_up, "scontrol");
    let twice = site.node.root.join("asked");
    let once = format!("[ -e {0} ] || {{ touch {0}; exit 1; }}", text(&twice));
    site.plays("scontrol", &format!("{once}; exec cat {}", text(&whole)));
    site.done("setup", "2", &set_up);
    assert_eq!(stagings("2"), 1, "the plan has what stands in the script alone");
    site.plays("scontrol", "exit 1");
    site.done("setup", "3", &set_up);
    assert_eq!(stagings("3"), 0, "it is no batch job, and has no other script");
    ["2", "3"].iter().for_each(|job| drop(site.done("teardown", job, &[])));
    site.assert_empty();
}

// S-24: stage-outs of #FB wait for success; nobody's data are dropped because the exit code is unknown.
#[test]
fn what_is_to_be_published_on_success_is_not_when_the_job_failed() {
    needs_forebay!();
    needs_tools!("mkfs.ext4");
    let site = Site::new("");
    let directives = [
        "#FB private capacity=32MiB",
        "#FB stage_out type=directory source=$FB_JOB_SCRATCH/out destination=PFS/%j",
        "#FB stage_out type=file source=$FB_JOB_SCRATCH/log destination=PFS/%j.log on=always",
    ];
    let script = site.script("job.sh", &directives);
    let run = |job: &str| {
        let at = site.start(job, &script);
        write_as_user(&at.join("out/r"), b"r");
        std::fs::write(at.join("log"), b"log").unwrap();
        std::os::unix::fs::chown(at.join("log"), Some(USER), Some(USER)).unwrap();
    };
    run("1");
    site.end("1", "3");
    site.done("data-out", "1", &[]);
    site.done("teardown", "1", &[]);
    assert!(!site.pfs().join("1").exists(), "the job failed");
    assert_eq!(std::fs::read(site.pfs().join("1.log")).unwrap(), b"log");
    run("2");
    site.end("2", "0");
    site.done("data-out", "2", &[]);
    site.done("teardown", "2", &[]);
    assert_eq!(std::fs::read(site.pfs().join("2/r")).unwrap(), b"r");
    // Torn down without an exit code: certain stage-outs are done, the rest is held and listed.
    run("3");
    site.done("teardown", "3", &[]);
    within(Duration::from_secs(10), "what is held is in the manifest", || {
        site.node.has_left_something()
    });
    within(Duration::from_secs(10), "the log is home", || site.pfs().join("3.log").exists());
    assert!(!site.pfs().join("3").exists());
    std::thread::sleep(Duration::from_secs(4));
    let held = site.node.json(&["manifest"])[0]["transfer"].as_str().unwrap().to_string();
    site.node.forebay(&["stage", "resume", &held]).ok();
    within(Duration::from_secs(10), "it is home", || site.pfs().join("3/r").exists());
    site.assert_empty();
}

// S-24: a program that was told to end has not succeeded, whatever its exit code.
#[test]
fn a_job_that_was_cancelled_or_out_of_time_has_not_succeeded_whatever_it_says() {
    needs_forebay!();
    needs_tools!("mkfs.ext4");
    let site = Site::new("");
    let directives = [
        "#FB private capacity=8MiB",
        "#FB stage_out type=file source=$FB_JOB_SCRATCH/r destination=PFS/r",
    ];
    let script = site.script("job.sh", &directives);
    let none = "echo Slurm accounting storage is disabled >&2; exit 1";
    for (job, squeue, sacct, published) in [
        ("1", "0 CD 5:00", none, true),
        ("2", "0 CA 5:00", none, false),
        ("3", "0 TO INVALID", none, false),
        ("4", "0 SO 5:00", none, true),
        ("5", "0 SO 5:00", "printf '5|COMPLETED\\n6|FAILED\\n'", true),
        ("6", "0 SO 5:00", "echo '6|CANCELLED by 47110'", false),
    ] {
        write_as_user(&site.start(job, &script).join("r"), b"r");
        site.plays("squeue", &format!("echo {job} {squeue}"));
        site.plays("sacct", sacct);
        site.done("epilog", job, &[]);
        site.done("post-run", job, &[]);
        site.done("data-out", job, &[]);
        site.done("teardown", job, &[]);
        assert_eq!(std::fs::remove_file(site.pfs().join("r")).is_ok(), published, "{squeue}");
    }
    // Whether it ended in its last moment is unknown: the rest is held.
    write_as_user(&site.start("7", &script).join("r"), b"r");
    site.plays("squeue", "echo 7 0 SO INVALID");
    site.plays("sacct", none);
    site.done("epilog", "7", &[]);
    site.done("post-run", "7", &[]);
    site.refused("data-out", "7", &[], "cancelled");
    site.done("post-run", "7", &["--exit-code", "1"]);
    site.done("data-out", "7", &[]);
    site.done("teardown", "7", &[]);
    site.assert_empty();
}

// S-24: what was held because nobody knew how the job ended goes home when somebody does.
#[test]
fn an_exit_code_that_is_known_later_settles_what_was_held() {
    needs_forebay!();
    needs_tools!("mkfs.ext4");
    let site = Site::new("");
    let script = site.script(
        "job.sh",
        &[
            "#FB private capacity=32MiB",
            "#FB stage_out type=directory source=$FB_JOB_SCRATCH/out destination=PFS/%j",
        ],
    );
    for (job, code) in [("1", "0"), ("2", "7")] {
        write_as_user(&site.start(job, &script).join("out/r"), b"r");
        site.done("epilog", job, &[]);
        site.done("post-run", job, &["--limit", "4s"]);
        site.refused("data-out", job, &[], "cancelled");
        assert!(!site.pfs().join(job).exists());
        site.done("post-run", job, &["--exit-code", code]);
        site.done("data-out", job, &[]);
        site.done("teardown", job, &[]);
        assert_eq!(site.pfs().join(job).join("r").exists(), code == "0", "{job}");
    }
    site.assert_empty();
}

// S-24: only the scheduler takes steps; a job's owner sees it and nobody else does.
#[test]
fn a_user_takes_no_steps_of_jobs_and_sees_only_own_jobs() {
    needs_forebay!();
    needs_tools!("setpriv");
    let site = Site::new("");
    let script = site.script("job.sh", &["#DW swap 1GiB", "#FB private capacity=8MiB"]);
    let directives = ["#FB private capacity=8MiB"];
    let fine = site.script("fine.sh", &directives);
    site.refused("setup", "1", &owned(&script), "1");
    site.setup("7", &fine);
    let as_user = |uid: u32, args: &[&str]| site.node.as_user(uid, args);
    for step in ["data-in", "teardown", "post-run"] {
        let out = as_user(USER, &["job", step, "--job", "7", "--limit", "2s"]);
        assert!(out.text().contains("forebay: error only the scheduler's user"), "{out:?}");
    }
    assert!(as_user(USER, &["job", "status"]).ok().stdout.contains("job 7"));
    assert!(!as_user(OTHER, &["job", "status"]).ok().stdout.contains("job 7"));
    as_user(OTHER, &["job", "status", "--job", "7"]).expect(2);
    // The scheduler's user has this role, and no other.
    let daemon = as_user(1, &["job", "teardown", "--job", "7"]);
    assert!(daemon.stdout.contains("forebay: ok"), "{daemon:?}");
    as_user(1, &["node", "drain", "n1"]).expect(1);
    site.assert_empty();
}

// S-24: room that is not there is waited for, and what cannot ever be had is refused at once.
#[test]
fn two_jobs_that_compete_for_room_run_one_after_the_other() {
    needs_forebay!();
    needs_tools!("mkfs.ext4");
    let site = Site::new("");
    let script = site.script("big.sh", &["#FB private capacity=150MiB"]);
    site.start("1", &script);
    site.setup("2", &script);
    site.refused("pre-run", "2", &["--nodes", "n1", "--limit", "1s"], "are free");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| site.done("pre-run", "2", &["--nodes", "n1", "--limit", "60s"]));
        std::thread::sleep(Duration::from_millis(500));
        site.done("teardown", "1", &[]);
        waits.join().unwrap();
    });
    site.done("teardown", "2", &[]);
    let huge = site.script("huge.sh", &["#FB private capacity=4TiB"]);
    site.refused("setup", "3", &owned(&huge), "on the largest");
    site.done("teardown", "3", &[]);
    site.assert_empty();
}

// S-24: what is missing is told before the job runs, in its owner's words.
#[test]
fn a_source_that_is_missing_is_told_with_its_line() {
    needs_forebay!();
    let site = Site::new("");
    let script = site.script("job.sh", &STRIPED);
    site.setup("9", &script);
    site.refused("data-in", "9", &[], "line 4: stage_in source");
    site.done("teardown", "9", &[]);
    let broken =
        site.script("bad.sh", &["#DW jobdw type=scratch capacty=1GiB access_mode=striped"]);
    site.refused("setup", "10", &owned(&broken), "capacity");
    site.refused("pre-run", "11", &["--nodes", "n1"], "was not set up");
    site.assert_empty();
}

// S-24: what runs inside the scheduler needs no daemon.
#[test]
fn pools_and_paths_are_told_while_the_daemon_is_away() {
    needs_forebay!();
    let mut site = Site::new("");
    let script = site.script("job.sh", &["#FB private capacity=8MiB"]);
    site.setup("4", &script);
    within(Duration::from_secs(10), "the pools are in the spool", || {
        site.node.forebay(&["job", "pools"]).stdout.contains("flash")
    });
    site.node.crash();
    let began = Instant::now();
    let pools = site.node.forebay(&["job", "pools"]).ok().stdout;
    let pools: Value = serde_json::from_str(pools.lines().next().unwrap()).unwrap();
    assert_eq!(pools["pools"][0]["quantity"], 256);
    assert!(text(&site.shown("4")).ends_with("/job-4-scratch"));
    let waited = site.hook("teardown", "4", &["--limit", "1s"]);
    assert!(waited.stdout.contains("forebay: error not done within"), "{waited:?}");
    std::fs::remove_dir_all(site.node.root.join("spool")).unwrap();
    let none = site.node.forebay(&["job", "pools"]).ok().stdout;
    assert!(none.starts_with("{\"pools\":[]}"), "{none}");
    proof!("told in {:?} without a daemon", began.elapsed());
    site.node.up();
    site.done("teardown", "4", &[]);
    site.assert_empty();
}

// S-24: a job that the scheduler has forgotten is ended; no answer of the scheduler ends none.
#[test]
fn jobs_that_the_scheduler_does_not_know_are_ended_and_silence_ends_none() {
    needs_forebay!();
    needs_tools!("mkfs.ext4");
    let mut site = Site::laid("unknown-after = \"2s\"\n");
    let asked = site.node.root.join("asked");
    let mark = format!("echo x >> {}", text(&asked));
    site.plays("squeue", &format!("{mark}; exit 1"));
    site.node.up();
    write_as_user(&site.pfs().join("in/data"), b"in");
    let script = site.script("job.sh", &STRIPED);
    let at = site.start("31", &script);
    write_as_user(&at.join("out/result"), b"result");
    let times = || std::fs::read_to_string(&asked).unwrap_or_default().lines().count();
    within(Duration::from_secs(30), "the scheduler is asked", || times() >= 3);
    assert_eq!(site.jobs()[0]["phase"], "ready", "no answer ends nothing");
    let alone = |says: &str| format!("case \"$*\" in *--jobs*) {says};; *) echo 30;; esac");
    for (says, known) in [
        ("echo 30; echo 31".into(), "it is known"),
        ("echo 30; case \"$*\" in *--array*) echo 31; esac".into(), "as a task of an array"),
        (alone("echo 31"), "who asks for it alone is told of it"),
        (alone("exit 1"), "who asks for it alone is told nothing"),
    ] {
        site.plays("squeue", &format!("{mark}; {says}"));
        // Longer than it takes to end a job that is not known.
        let (began, before) = (Instant::now(), times());
        let is_asked = || began.elapsed() > Duration::from_secs(4) && times() >= before + 2;
        within(Duration::from_secs(30), "the scheduler is asked", is_asked);
        assert_eq!(site.jobs()[0]["phase"], "ready", "{known}");
    }
    site.plays("squeue", &alone("echo 'Invalid job id specified' >&2; exit 1"));
    within(Duration::from_secs(30), "the job is ended", || site.jobs() == serde_json::json!([]));
    // `#DW` always publishes.
    assert_eq!(std::fs::read(site.pfs().join("out/result")).unwrap(), b"result");
    site.assert_empty();
}

// S-24: named instances that a job makes outlive it, and others use and fill them.
#[test]
fn a_persistent_instance_is_made_used_and_removed_by_three_jobs() {
    needs_forebay!();
    needs_tools!("mkfs.ext4");
    let site = Site::new("");
    write_as_user(&site.pfs().join("set/a"), b"a");
    let make = ["#BB create_persistent name=alpha capacity=32MiB access=striped type=scratch"];
    let fill = [
        "#DW persistentdw name=alpha",
        "#DW stage_in type=directory source=PFS/set destination=$DW_PERSISTENT_STRIPED_alpha/set",
        "#DW stage_out type=file source=$DW_PERSISTENT_STRIPED_alpha/new destination=PFS/new",
    ];
    site.setup("1", &site.script("make.sh", &make));
    site.done("teardown", "1", &[]);
    let script = site.script("fill.sh", &fill);
    let at = site.start("2", &script);
    assert!(text(&at).ends_with("/alpha/"), "{at:?}");
    assert_eq!(std::fs::read(at.join("set/a")).unwrap(), b"a");
    write_as_user(&at.join("new"), b"new");
    site.end("2", "0");
    site.done("data-out", "2", &[]);
    site.done("teardown", "2", &[]);
    assert_eq!(std::fs::read(site.pfs().join("new")).unwrap(), b"new");
    assert!(at.join("set/a").exists(), "it outlives the job");
    // Its owner gives the instance up while a job is to stage out of it: the removal waits for that.
    let script = site.script("again.sh", &[fill[0], &fill[2].replace("PFS/new", "PFS/newer")]);
    site.start("4", &script);
    write_as_user(&at.join("new"), b"newer");
    let destroy = site.script("destroy.sh", &["#BB destroy_persistent name=alpha"]);
    site.setup("3", &destroy);
    std::thread::sleep(Duration::from_secs(3));
    assert!(at.join("new").exists(), "a job stages out of it");
    site.setup("3", &destroy);
    site.end("4", "0");
    site.done("data-out", "4", &[]);
    assert_eq!(std::fs::read(site.pfs().join("newer")).unwrap(), b"newer");
    for job in ["3", "4"] {
        site.done("teardown", job, &[]);
    }
    within(Duration::from_secs(20), "it is gone", || !at.join("new").exists());
    site.setup("5", &destroy);
    site.done("teardown", "5", &[]);
    site.assert_empty();
}

// S-24: what is another's is not staged, root has no jobs, and no instance is called as a job.
#[test]
fn the_scheduler_acts_for_users_within_what_is_theirs() {
    needs_forebay!();
    let site = Site::new("");
    let fine = site.script("fine.sh", &["#FB private capacity=8MiB"]);
    let root = ["--uid", "0", "--gid", "0", "--nodes", "1", "--script", text(&fine)];
    site.refused("setup", "1", &root, "root has no jobs");
    let named = ["instance", "create", "private", "4711", "--capacity", "8MiB"];
    let out = site.node.as_user(USER, &named).expect(2);
    assert!(out.stderr.contains("begins with a letter"), "{out:?}");
    let mine = ["instance", "create", "private", "alpha", "--capacity", "8MiB"];
    site.node.as_user(OTHER, &mine).ok();
    let steal = [
        "#DW persistentdw name=alpha",
        "#DW stage_out type=file source=$DW_PERSISTENT_STRIPED_alpha/x destination=PFS/x",
    ];
    site.setup("2", &site.script("steal.sh", &steal));
    site.refused("data-in", "2", &[], "line 4: alpha is not yours");
    site.done("teardown", "2", &[]);
    site.node.forebay(&["instance", "destroy", "alpha"]).ok();
    site.assert_empty();
}
