//! Jobs that fail: the messages to their owners, and that nothing is left.

use forebay_tests::slurm::{Setup, Slurm};
use forebay_tests::{PATIENCE, eventually, within};

use crate::{Scenario, pfs, put, script, shown};

pub const SCENARIOS: &[Scenario] = &[
    ("a source is missing", source_missing),
    ("a source cannot be read", pre_run_fails),
    ("cancelled while it runs", cancelled),
    ("cancelled in a hurry", cancelled_in_a_hurry),
    ("out of time", out_of_time),
    ("the job fails", job_fails),
    ("mistakes", mistakes),
    ("more nodes than one", more_nodes),
];

const WISH: &str = "#DW jobdw capacity=16MiB access_mode=striped type=scratch";

/// sbatch reports a mistake, with line, caret and nearest word.
fn mistakes(slurm: &Slurm) {
    let refused = slurm.sbatch(&[], &script(&["#DW jobdw capacty=1GB type=scratch"], "true"));
    assert_ne!(refused.code, Some(0));
    for part in ["capacty", "capacity", ":3:", "^"] {
        assert!(refused.stderr.contains(part), "{part}: {refused:?}");
    }
}

/// The job does not start, its reason names line and source, and its room is free again.
fn source_missing(slurm: &Slurm) {
    let dir = pfs(slurm, "missing");
    let source = format!("{}/none", shown(&dir));
    let stage = format!("#DW stage_in type=file source={source} destination=$DW_JOB_STRIPED/x");
    let id = slurm.submit(&[], &script(&[WISH, &stage], "true"));
    slurm.until(&id, "BurstBufferState=complete");
    let show = slurm.show(&id);
    assert!(show.contains("JobState=PENDING"), "{show}");
    for part in ["data_in", "line 4", &source, "No such file"] {
        assert!(show.contains(part), "{part}: {show}");
    }
    slurm.user_tool("scancel", &[&id]).ok();
    assert_eq!(slurm.finished(&id), "CANCELLED");
}

/// A problem that only the node can find: the job is not run, and after some tries held.
fn pre_run_fails(slurm: &Slurm) {
    use std::os::unix::fs::PermissionsExt;
    let dir = pfs(slurm, "unreadable");
    let at = dir.join("shut");
    put(&at, 1000, 1);
    std::fs::set_permissions(&at, PermissionsExt::from_mode(0o000)).unwrap();
    let stage =
        format!("#DW stage_in type=file source={} destination=$DW_JOB_STRIPED/x", shown(&at));
    let id = slurm.submit(&[], &script(&[WISH, &stage], "echo it ran"));
    let told = |show: &str| show.contains("pre_run") && show.contains("ermission denied");
    let mut show = String::new();
    let seen = eventually(PATIENCE, || {
        show = slurm.show(&id);
        told(&show)
    });
    assert!(seen, "{show}\n{}", slurm.job_log(&id));
    slurm.user_tool("scancel", &["--hurry", &id]).ok();
    slurm.finished(&id);
    assert!(!slurm.output(&id).contains("it ran"));
}

/// The stage-outs of a cancelled job are done, since `#DW` means always.
fn cancelled(slurm: &Slurm) {
    let dir = pfs(slurm, "cancelled");
    let at = shown(&dir);
    let out = format!("#DW stage_out type=file source=$DW_JOB_STRIPED/r destination={at}/r");
    let body = format!("echo partial >${{DW_JOB_STRIPED}}r\ntouch {at}/runs\nsleep 600");
    let id = slurm.submit(&[], &script(&[WISH, &out], &body));
    within(PATIENCE, "it runs", || dir.join("runs").exists());
    slurm.user_tool("scancel", &[&id]).ok();
    assert_eq!(slurm.finished(&id), "CANCELLED");
    assert_eq!(std::fs::read_to_string(dir.join("r")).unwrap_or_default(), "partial\n");
}

/// The node is free at once.
fn cancelled_in_a_hurry(slurm: &Slurm) {
    let dir = pfs(slurm, "hurry");
    let at = shown(&dir);
    let out = format!("#DW stage_out type=file source=$DW_JOB_STRIPED/r destination={at}/r");
    let body = format!("echo partial >${{DW_JOB_STRIPED}}r\ntouch {at}/runs\nsleep 600");
    let id = slurm.submit(&[], &script(&[WISH, &out], &body));
    within(PATIENCE, "it runs", || dir.join("runs").exists());
    slurm.user_tool("scancel", &["--hurry", &id]).ok();
    assert_eq!(slurm.finished(&id), "CANCELLED");
}

/// Slurm's smallest limit is a minute.
fn out_of_time(slurm: &Slurm) {
    let dir = pfs(slurm, "late");
    let at = shown(&dir);
    let out = format!("#DW stage_out type=file source=$DW_JOB_STRIPED/r destination={at}/r");
    let body = "echo checkpoint >${DW_JOB_STRIPED}r\nsleep 600";
    let id = slurm.submit(&["--time=1"], &script(&[WISH, &out], body));
    within(PATIENCE * 2, "its time is over", || slurm.state(&id) == "TIMEOUT");
    assert_eq!(slurm.finished(&id), "TIMEOUT");
    assert_eq!(std::fs::read_to_string(dir.join("r")).unwrap_or_default(), "checkpoint\n");
}

/// `#FB` publishes on success, unless it says always; `#DW` always.
fn job_fails(slurm: &Slurm) {
    let dir = pfs(slurm, "fails");
    let at = shown(&dir);
    let always = format!("#DW stage_out type=file source=$DW_JOB_STRIPED/r destination={at}/dw");
    let success = format!("#FB stage_out type=file source=$DW_JOB_STRIPED/r destination={at}/fb");
    let body = "echo half >${DW_JOB_STRIPED}r\nexit 3";
    let id = slurm.submit(&[], &script(&[WISH, &always, &success], body));
    let state = slurm.finished(&id);
    assert_eq!(state, "FAILED", "{}", slurm.output(&id));
    assert_eq!(std::fs::read_to_string(dir.join("dw")).unwrap_or_default(), "half\n");
    let published = dir.join("fb").exists();
    assert!(!published, "{:?}: {}", Setup::Lua, slurm.job_log(&id));
}

/// A job that works on one node only gets one node, where Slurm may choose.
fn more_nodes(slurm: &Slurm) {
    let dir = pfs(slurm, "more");
    let out =
        format!("#DW stage_out type=file source=$DW_JOB_STRIPED/r destination={}/r", shown(&dir));
    let lines = format!("{WISH}\n{out}\necho $SLURM_NNODES >${{DW_JOB_STRIPED}}r\n");
    let script = format!("#!/bin/bash\n{lines}");
    let id = slurm.submit(&["-N", "1-2"], &script);
    assert_eq!(slurm.finished(&id), "COMPLETED", "{}", slurm.show(&id));
    assert_eq!(std::fs::read_to_string(dir.join("r")).unwrap_or_default(), "1\n");
}
