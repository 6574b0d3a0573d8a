//! What the kernel of most machines that run tests has not: project quotas, cgroup v2, swap. A machine of
//! the suite's own is booted once (see `forebay_tests::uml`), runs the tests of [`inside`] there, and each
//! test here says what became of one of them. `FOREBAY_TEST_INSIDE=NAME` runs only those of this name there.

mod inside;
mod quota;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use forebay_tests::images::{self, ImageFs};
use forebay_tests::uml::{self, Job, Report};
use forebay_tests::{binary, say, text, tool};

/// All tests inside together; a machine that is busy needs several times as long as one that is not.
const SECONDS: u64 = 300;

const MIB: u64 = 1536;

macro_rules! told {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            tell(stringify!($name));
        }
    )*};
}

told! {
    a_pool_names_project_quota_and_why_not
    an_instance_is_made_in_half_a_second
    a_capacity_holds_and_its_neighbor_is_not_touched
    the_number_of_files_is_limited
    what_is_removed_gives_back_its_project_and_limit
    a_daemon_that_is_killed_finds_all_again
    a_daemon_killed_between_any_two_steps_leaves_no_limit_behind
    who_is_not_held_by_a_limit
    no_project_is_given_twice
    two_pools_of_one_daemon
    any_tree_is_removed
    quotas_that_are_off_keep_nothing_from_going
    a_limit_is_there_after_a_restart_of_the_machine
    a_transfer_runs_in_its_group_of_cgroup_v2
    swap_goes_off_wherever_the_daemon_dies
    swap_of_one_job_goes_and_another_s_stays
}

/// What the machine said, or why there is none.
fn report() -> &'static Result<Report, String> {
    static REPORT: OnceLock<Result<Report, String>> = OnceLock::new();
    REPORT.get_or_init(|| {
        let bed = Dir::new();
        let disks = vec![bed.0.join("ext4"), bed.0.join("xfs")];
        let flags = ["-q", "-F", "-O", "quota,project", "-E", "quotatype=prjquota"];
        for disk in &disks {
            std::fs::File::create(disk).unwrap().set_len(MIB << 20).unwrap();
        }
        tool("mkfs.ext4", &[&flags[..], &[text(&disks[0])]].concat()).ok();
        images::make(&disks[1], ImageFs::Xfs, MIB);
        let own = std::env::current_exe().unwrap();
        let only = std::env::var("FOREBAY_TEST_INSIDE").unwrap_or_default();
        let which = format!("inside::{only}");
        let words = [&which, "--ignored", "--nocapture", "--test-threads", "1"].map(String::from);
        let env = [("FOREBAY_BIN".to_string(), text(binary()).to_string())];
        let modules =
            ["fs/quota/quota_tree", "fs/quota/quota_v2", "fs/fuse/fuse", "drivers/block/loop"];
        let job = Job {
            program: text(&own).into(),
            args: words.to_vec(),
            env: BTreeMap::from(env),
            modules: modules.map(String::from).to_vec(),
            seconds: SECONDS,
        };
        let report = uml::run(env!("CARGO_BIN_EXE_guest"), &bed.0, &disks, job);
        if let Ok(report) = &report {
            say(&format!("inside: {}\n{}{}", report.ended, report.err, report.out));
        }
        report
    })
}

/// Fails as the test of this name inside did, or was not there.
fn tell(name: &str) {
    forebay_tests::needs_forebay!();
    forebay_tests::needs_tools!("mkfs.ext4", "mkfs.xfs", "setpriv", "chattr", "unshare");
    match report() {
        Err(why) => forebay_tests::skip!("{why}"),
        Ok(report) => {
            let line = format!("test inside::{name} ... ok");
            let passed = report.out.lines().any(|said| said.trim_end() == line);
            assert!(passed, "{}\n{}\n{}", report.ended, report.out, report.err);
        }
    }
}

/// Gone with all that is in it.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        let base = std::env::var_os("FOREBAY_TEST_DIR").map_or("/var/tmp".into(), PathBuf::from);
        let dir = base.join(format!("fbt-{}-machine", std::process::id()));
        std::fs::create_dir_all(&dir).expect("the test directory is writable");
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(Path::new(&self.0));
    }
}
