//! Daemons that die while jobs are in each of their states.

use std::time::Duration;

use forebay_tests::slurm::{Setup, Slurm};
use forebay_tests::{PATIENCE, eventually, kill, needs_slurm, proof, stop, within};

use crate::{pfs, put, script, shown};

const WISH: &str = "#DW jobdw capacity=16MiB access_mode=striped type=scratch";

fn in_and_out(slurm: &Slurm, name: &str, seconds: u32) -> (String, std::path::PathBuf) {
    let dir = pfs(slurm, name);
    put(&dir.join("in"), 100_000, 4);
    let at = shown(&dir);
    let stage_in = format!("#DW stage_in type=file source={at}/in destination=$DW_JOB_STRIPED/in");
    let out = format!("#DW stage_out type=file source=$DW_JOB_STRIPED/in destination={at}/out");
    let body = format!("touch {at}/runs\nsleep {seconds}");
    (slurm.submit(&["-w", "n1"], &script(&[WISH, &stage_in, &out], &body)), dir)
}

fn came_home(dir: &std::path::Path) {
    let read = |name| std::fs::read(dir.join(name)).unwrap_or_default();
    assert!(read("in") == read("out"), "{} of 100000 bytes", read("out").len());
}

/// Method: one node daemon dies while its job is about to run, while it runs, and while its data are
/// staged out; the next one takes the job up as it finds it.
#[test]
fn the_node_daemon_may_die_in_each_state_of_a_job() {
    needs_slurm!();
    let mut slurm = Slurm::start(Setup::Lua, 1, 512);
    let mut seen = Vec::new();
    for state in ["pre-run", "running", "staging-out"] {
        let (id, dir) = in_and_out(&slurm, state, 3);
        if state == "pre-run" {
            // The job is held in that state until the daemon is killed.
            stop(slurm.hosts[0].node().pid());
        }
        if state == "staging-out" {
            within(PATIENCE, "it runs", || dir.join("runs").exists());
            slurm.until(&id, "BurstBufferState=running");
            within(PATIENCE, "its run is over", || slurm.state(&id) != "RUNNING");
        } else {
            slurm.until(&id, &format!("BurstBufferState={state}"));
        }
        slurm.hosts[0].node().crash();
        seen.push(slurm.field(&id, "BurstBufferState"));
        slurm.hosts[0].node().up();
        assert_eq!(slurm.finished(&id), "COMPLETED", "{state}: {}", slurm.output(&id));
        came_home(&dir);
    }
    slurm.assert_empty();
    proof!("killed in {seen:?}");
}

/// Method: slurmctld dies while one job is staging in (the controller's node daemon is stopped, so its
/// hook waits), one runs, and one is staging out (its node's daemon is stopped).
#[test]
fn slurmctld_may_die_in_each_state_of_a_job() {
    if std::env::var_os("FOREBAY_SOAK").is_none() {
        // 22.05 saves its burst buffers every half minute only: minutes of waiting.
        return forebay_tests::say("SKIPPED: the death of slurmctld: see ./run torture slurm");
    }
    needs_slurm!();
    let mut slurm = Slurm::start(Setup::Lua, 2, 512);
    let (running, ran) = in_and_out(&slurm, "running", 80);
    slurm.until(&running, "BurstBufferState=running");
    let controller = slurm.controller.pid();
    stop(controller);
    let (staging, staged) = in_and_out(&slurm, "staging", 0);
    slurm.until(&staging, "BurstBufferState=staging-in");
    slurm.saved();
    let seen =
        [slurm.field(&running, "BurstBufferState"), slurm.field(&staging, "BurstBufferState")];
    slurm.crash();
    kill(controller, libc::SIGCONT);
    slurm.up();
    assert_eq!(slurm.finished(&running), "COMPLETED", "{}", slurm.output(&running));
    came_home(&ran);
    // Up to 22.05 Slurm may wait for ever for a stage-in that died with it (docs/SLURM.md).
    let over = eventually(Duration::from_secs(100), || slurm.state(&staging) == "COMPLETED");
    match over {
        true => came_home(&staged),
        false => {
            slurm.user_tool("scancel", &["--hurry", &staging]).ok();
        }
    }
    slurm.finished(&staging);
    slurm.assert_empty();
    proof!("killed in {seen:?}; the one that staged in went on: {over}");
}

/// Method: slurmctld dies while a job is staging out, held there by a stopped node daemon.
#[test]
fn slurmctld_may_die_while_data_go_home() {
    if std::env::var_os("FOREBAY_SOAK").is_none() {
        // 22.05 saves its burst buffers every half minute only: minutes of waiting.
        return forebay_tests::say("SKIPPED: the death of slurmctld: see ./run torture slurm");
    }
    needs_slurm!();
    let mut slurm = Slurm::start(Setup::Lua, 1, 512);
    let (id, dir) = in_and_out(&slurm, "home", 40);
    within(PATIENCE, "it runs", || dir.join("runs").exists());
    slurm.saved();
    within(PATIENCE, "its run is over", || slurm.state(&id) != "RUNNING");
    stop(slurm.hosts[0].node().pid());
    let state = slurm.field(&id, "BurstBufferState");
    slurm.crash();
    let node = slurm.hosts[0].node().pid();
    kill(node, libc::SIGCONT);
    slurm.up();
    assert_eq!(slurm.finished(&id), "COMPLETED", "{}", slurm.output(&id));
    came_home(&dir);
    slurm.assert_empty();
    proof!("killed in {state}");
}
