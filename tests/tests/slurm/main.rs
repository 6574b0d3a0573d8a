//! A real Slurm over real node daemons: the whole life of jobs, under both of its burst buffer plug-ins.
//!
//! Slurm takes seconds for each step, so the scenarios of a file run beside each other in one cluster;
//! those that kill daemons have a cluster of their own. `FOREBAY_SCENARIO=WORDS` runs the scenarios
//! whose names contain the words.

mod crashes;
mod failures;
mod life;
mod lua;
mod named;
mod sites;

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use forebay_tests::node::open_dir;
use forebay_tests::slurm::{Setup, Slurm, USER};
use forebay_tests::{fill, needs_slurm, proof, text, user_ids};

/// Room per node, in MiB: a site's 10 GB fit, and two times [`life::MORE_THAN_HALF`] do not.
const ROOM: u64 = 12 << 10;

type Scenario = (&'static str, fn(&Slurm));

/// Under burst_buffer/lua.
#[test]
fn jobs_live_with_burst_buffer_lua() {
    needs_slurm!();
    let slurm = Slurm::start(Setup::Lua, 3, ROOM);
    let all = [life::SCENARIOS, life::OF_LUA, sites::SCENARIOS, failures::SCENARIOS, named::OF_LUA];
    run(&slurm, &all.concat());
}

/// Under burst_buffer/datawarp, through `dw_wlm_cli`.
#[test]
fn jobs_live_with_burst_buffer_datawarp() {
    needs_slurm!();
    let slurm = Slurm::start(Setup::DataWarp, 2, ROOM);
    let all = [life::SCENARIOS, sites::SCENARIOS, failures::SCENARIOS, named::OF_DATAWARP];
    run(&slurm, &all.concat());
}

/// Runs all scenarios at once; then no trace of any may be left.
fn run(slurm: &Slurm, scenarios: &[Scenario]) {
    let words = std::env::var("FOREBAY_SCENARIO").unwrap_or_default();
    let chosen: Vec<&Scenario> =
        scenarios.iter().filter(|(name, _)| name.contains(&words)).collect();
    assert!(!chosen.is_empty(), "no scenario is called {words}");
    let failed: Vec<&str> = std::thread::scope(|scope| {
        let start = |scenario: &&Scenario| {
            let (name, scenario) = **scenario;
            let thread = std::thread::Builder::new().name(name.into());
            (name, thread.spawn_scoped(scope, move || scenario(slurm)).unwrap())
        };
        let running: Vec<_> = chosen.iter().map(start).collect();
        running
            .into_iter()
            .filter_map(|(name, thread)| thread.join().is_err().then_some(name))
            .collect()
    });
    assert!(failed.is_empty(), "scenarios failed: {failed:?}");
    slurm.assert_empty();
    proof!("{} scenarios, and nothing is left", chosen.len());
}

/// Makes a directory of the parallel file system that belongs to the user.
fn pfs(slurm: &Slurm, name: &str) -> PathBuf {
    let at = slurm.out().join("pfs").join(name);
    open_dir(&at);
    own(&at);
    at
}

fn own(at: &Path) {
    let (uid, gid) = user_ids(USER).unwrap();
    chown(at, Some(uid), Some(gid)).unwrap();
}

/// Writes a file of the user's, and returns its bytes.
fn put(at: &Path, len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, seed, 0);
    std::fs::write(at, &bytes).unwrap();
    own(at);
    bytes
}

/// A script of one node and one processor.
fn script(directives: &[&str], body: &str) -> String {
    format!("#!/bin/bash\n#SBATCH -n 1\n{}\nset -eu\n{body}\n", directives.join("\n"))
}

fn shown(at: &Path) -> &str {
    text(at)
}
