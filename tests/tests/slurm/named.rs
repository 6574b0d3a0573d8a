//! Named instances: made once, used by jobs.

use forebay_tests::slurm::Slurm;
use forebay_tests::{PATIENCE, within};

use crate::{Scenario, pfs, put, script, shown};

pub const OF_LUA: &[Scenario] =
    &[("a named instance, by hand", by_hand), ("a named instance on two of three nodes", on_two)];
pub const OF_DATAWARP: &[Scenario] = &[("a named instance, by #BB", by_directive)];

const MAKE: &str = "#BB create_persistent name=alpha capacity=32MB access=striped type=scratch";

/// burst_buffer/lua runs nothing for a script of #BB lines alone; the remedy of the message works, and a job that
/// uses the instance is sent to its node.
fn by_hand(slurm: &Slurm) {
    let refused = slurm.sbatch(&[], &script(&[MAKE], "true"));
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains("forebay instance create"), "{refused:?}");
    let node = slurm.hosts[1].node.as_ref().unwrap();
    let (uid, _) = forebay_tests::user_ids(forebay_tests::slurm::USER).unwrap();
    node.as_user(uid, &["instance", "create", "private", "alpha", "--capacity", "32MB"]).ok();
    let known = slurm.spool().join("persistent.json");
    within(PATIENCE, "the spool has it", || {
        std::fs::read_to_string(&known).is_ok_and(|text| text.contains("alpha"))
    });
    used(slurm, "n2");
    node.as_user(uid, &["instance", "destroy", "alpha"]).ok();
}

/// The job runs on a node of the instance that has room, and never elsewhere.
fn on_two(slurm: &Slurm) {
    let node = slurm.hosts[0].node.as_ref().unwrap();
    let (uid, _) = forebay_tests::user_ids(forebay_tests::slurm::USER).unwrap();
    let make = ["instance", "create", "private", "beta", "--capacity", "32MB"];
    node.as_user(uid, &[&make[..], &["--node", "n1", "--node", "n2"]].concat()).ok();
    let known = slurm.spool().join("persistent.json");
    within(PATIENCE, "the spool has it", || {
        std::fs::read_to_string(&known).is_ok_and(|text| text.contains("beta"))
    });
    let uses = script(&["#FB use name=beta"], "echo $SLURM_JOB_NODELIST");
    for (args, node) in [(["--exclude=n1", "-N1"], "n2"), (["--exclude=n2", "-N1"], "n1")] {
        let id = slurm.submit(&args, &uses);
        assert_eq!(slurm.finished(&id), "COMPLETED", "{}", slurm.show(&id));
        assert_eq!(slurm.output(&id).trim(), node);
    }
    node.as_user(uid, &["instance", "destroy", "beta"]).ok();
}

/// A lone create_persistent, a job that uses the instance, and its removal.
fn by_directive(slurm: &Slurm) {
    let id = slurm.submit(&[], &script(&[MAKE], "true"));
    assert_eq!(slurm.finished(&id), "COMPLETED", "{}", slurm.show(&id));
    let list = || slurm.controller.json(&["instance", "list"]).to_string();
    within(PATIENCE, "it is made", || list().contains("\"alpha\""));
    // One of the two is this version's command. Slurm abandons a command that is slow on a busy machine.
    let asked = [&["show", "bbstat", "dw", "sessions"][..], &["show", "dwstat", "sessions"]];
    within(PATIENCE, "it is in the table", || {
        asked.iter().any(|asked| slurm.tool("scontrol", asked).text().contains("alpha"))
    });
    let shown = slurm.controller.json(&["instance", "show", "alpha"]);
    let node = shown["nodes"][0].as_str().unwrap().to_string();
    used(slurm, &node);
    let end = slurm.submit(&[], &script(&["#BB destroy_persistent name=alpha"], "true"));
    assert_eq!(slurm.finished(&end), "COMPLETED", "{}", slurm.show(&end));
    within(PATIENCE, "it is gone", || !list().contains("\"alpha\""));
}

/// One job fills the instance, the next one finds the bytes.
fn used(slurm: &Slurm, node: &str) {
    let dir = pfs(slurm, "named");
    let bytes = put(&dir.join("set"), 50_000, 3);
    let at = shown(&dir);
    let uses = "#DW persistentdw name=alpha";
    let fill = format!(
        "#DW stage_in type=file source={at}/set destination=$DW_PERSISTENT_STRIPED_alpha/set"
    );
    let body = "ls -l $DW_PERSISTENT_STRIPED_alpha\necho $SLURMD_NODENAME";
    let first = slurm.submit(&[], &script(&[uses, &fill], body));
    assert_eq!(slurm.finished(&first), "COMPLETED", "{}", slurm.show(&first));
    assert!(slurm.output(&first).trim().ends_with(node), "{}", slurm.output(&first));
    let body = format!("cmp ${{DW_PERSISTENT_STRIPED_alpha}}set {at}/set && echo same");
    let second = slurm.submit(&[], &script(&[uses], &body));
    assert_eq!(slurm.finished(&second), "COMPLETED", "{}", slurm.show(&second));
    assert!(slurm.output(&second).contains("same"));
    assert_eq!(std::fs::read(dir.join("set")).unwrap(), bytes);
}
