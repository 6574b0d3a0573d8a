//! Tests of kernel features that most test machines lack: project quotas, cgroup v2, swap. Two machines of the
//! suite's own are booted once, side by side (see `forebay_tests::uml`), each runs its share of the tests of
//! [`inside`], and each test here reports the result of one of them. `FOREBAY_TEST_INSIDE=NAME` runs only the
//! tests of this name there.

mod inside;
mod quota;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use forebay_tests::images::{self, ImageFs};
use forebay_tests::uml::{self, Job, Report};
use forebay_tests::{binary, say, text, tool};

/// All tests of one machine together take two minutes; a machine that shares its processors needs several times as
/// long.
const SECONDS: u64 = 900;

const MIB: u64 = 1536;

macro_rules! told {
    ($($machine:ident: $($name:ident)*;)*) => {
        /// The tests of each machine.
        const SHARES: &[&[&str]] = &[$(&[$(stringify!($name)),*]),*];

        $($(
            #[test]
            fn $name() {
                tell(stringify!($name));
            }
        )*)*
    };
}

told! {
    one:
        a_capacity_holds_and_its_neighbor_is_not_touched
        a_daemon_killed_between_any_two_steps_leaves_no_limit_behind
        a_daemon_that_is_killed_finds_all_again
        a_limit_is_there_after_a_restart_of_the_machine
        a_pool_names_project_quota_and_why_not
        a_transfer_runs_in_its_group_of_cgroup_v2
        an_instance_is_made_in_half_a_second
        any_tree_is_removed;
    other:
        no_project_is_given_twice
        quotas_that_are_off_keep_nothing_from_going
        swap_goes_off_wherever_the_daemon_dies
        swap_of_one_job_goes_and_another_s_stays
        the_number_of_files_is_limited
        two_pools_of_one_daemon
        what_is_removed_gives_back_its_project_and_limit
        project_quotas_do_not_hold_everybody;
}

/// The report of each machine, or the reason why there is none.
fn reports() -> &'static [Result<Report, String>] {
    static REPORTS: OnceLock<Vec<Result<Report, String>>> = OnceLock::new();
    REPORTS.get_or_init(|| {
        std::thread::scope(|scope| {
            let running: Vec<_> =
                (0..SHARES.len()).map(|one| scope.spawn(move || run(one))).collect();
            running.into_iter().map(|one| one.join().expect("the machine is run")).collect()
        })
    })
}

/// Runs one machine's share of the tests in it.
fn run(number: usize) -> Result<Report, String> {
    let bed = Dir::new(number);
    let disks = vec![bed.0.join("ext4"), bed.0.join("xfs")];
    let flags = ["-q", "-F", "-O", "quota,project", "-E", "quotatype=prjquota"];
    for disk in &disks {
        std::fs::File::create(disk).unwrap().set_len(MIB << 20).unwrap();
    }
    tool("mkfs.ext4", &[&flags[..], &[text(&disks[0])]].concat()).ok();
    images::make(&disks[1], ImageFs::Xfs, MIB);
    let own = std::env::current_exe().unwrap();
    let only = std::env::var("FOREBAY_TEST_INSIDE").unwrap_or_default();
    let share = SHARES[number].iter().filter(|name| name.contains(&only));
    let mut words =
        ["--exact", "--ignored", "--nocapture", "--test-threads", "1"].map(String::from).to_vec();
    words.extend(share.map(|name| format!("inside::{name}")));
    if words.len() == 5 {
        return Err("none of its tests is asked for".into());
    }
    let env = [("FOREBAY_BIN".to_string(), text(binary()).to_string())];
    let modules =
        ["fs/quota/quota_tree", "fs/quota/quota_v2", "fs/fuse/fuse", "drivers/block/loop"];
    let job = Job {
        program: text(&own).into(),
        args: words,
        env: BTreeMap::from(env),
        modules: modules.map(String::from).to_vec(),
        seconds: SECONDS,
    };
    let report = uml::run(env!("CARGO_BIN_EXE_guest"), &bed.0, &disks, job);
    if let Ok(report) = &report {
        say(&format!("inside: {}\n{}{}", report.ended, report.err, report.out));
    }
    report
}

/// Fails if the test of this name inside failed, or was not run.
fn tell(name: &str) {
    forebay_tests::needs_forebay!();
    forebay_tests::needs_tools!("mkfs.ext4", "mkfs.xfs", "setpriv", "chattr", "unshare");
    let machine = SHARES.iter().position(|share| share.contains(&name)).expect("it is in a share");
    match &reports()[machine] {
        Err(why) => forebay_tests::skip!("{why}"),
        Ok(report) => {
            let line = format!("test inside::{name} ... ok");
            let passed = report.out.lines().any(|said| said.trim_end() == line);
            assert!(passed, "{}\n{}\n{}", report.ended, report.out, report.err);
        }
    }
}

/// A directory, removed with its contents when dropped.
struct Dir(PathBuf);

impl Dir {
    fn new(number: usize) -> Dir {
        let base = std::env::var_os("FOREBAY_TEST_DIR").map_or("/var/tmp".into(), PathBuf::from);
        let dir = base.join(format!("fbt-{}-machine-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("the test directory is writable");
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(Path::new(&self.0));
    }
}
