//! Jobs that go well.

use std::time::Duration;

use forebay_tests::slurm::Slurm;
use forebay_tests::{PATIENCE, within};

use crate::{Scenario, pfs, put, script, shown};

pub const SCENARIOS: &[Scenario] = &[
    ("a whole life", whole_life),
    ("an array", array),
    ("run again", run_again),
    ("two nodes", two_nodes),
    ("as many nodes as it takes", as_many_nodes),
    ("symbols", symbols),
];

pub const OF_LUA: &[Scenario] = &[
    ("only TMPDIR", only_tmpdir),
    ("two compete", two_compete),
    ("a dependent waits for the data", dependent),
    ("tasks of an array wait", tasks_wait),
];

/// Data in, work, results out; the job finds its variables, and its owner can read a log of it.
fn whole_life(slurm: &Slurm) {
    let dir = pfs(slurm, "life");
    std::fs::create_dir(dir.join("set")).unwrap();
    crate::own(&dir.join("set"));
    let bytes = put(&dir.join("set/a"), 3_000_000, 1);
    let dir = shown(&dir);
    let id = slurm.submit(
        &[],
        &script(
            &[
                "#DW jobdw capacity=24MiB access_mode=striped type=scratch",
                &format!(
                    "#DW stage_in type=directory source={dir}/set destination=$DW_JOB_STRIPED/set"
                ),
                &format!(
                    "#DW stage_out type=directory source=$DW_JOB_STRIPED/res destination={dir}/res"
                ),
            ],
            "mkdir ${DW_JOB_STRIPED}res\ncp ${DW_JOB_STRIPED}set/a ${DW_JOB_STRIPED}res/b\n\
             df --output=size -m $DW_JOB_STRIPED | tail -1\necho variable $DW_JOB_STRIPED",
        ),
    );
    assert_eq!(slurm.finished(&id), "COMPLETED", "{}", slurm.output(&id));
    let home = std::fs::read(format!("{dir}/res/b")).unwrap_or_default();
    assert!(home == bytes, "{} of {} bytes came home", home.len(), bytes.len());
    let out = slurm.output(&id);
    let size: u64 = out.split_whitespace().next().unwrap().parse().unwrap();
    assert!((18..30).contains(&size), "{size} MiB is what the job had");
    assert!(out.contains(&format!("mnt/job-{id}-striped/")), "{out}");
    let log = slurm.job_log(&id);
    for step in ["setup: ", "data-in: ", "pre-run: ", "post-run: ", "data-out: ", "teardown: "] {
        assert!(log.contains(step), "{step} is missing: {log}");
    }
}

/// Each task of an array has an instance of its own, and publishes to its own place.
fn array(slurm: &Slurm) {
    let dir = pfs(slurm, "array");
    let dir = shown(&dir);
    let id = slurm.submit(
        &["--array=1-3"],
        &script(
            &[
                "#DW jobdw capacity=16MiB access_mode=striped type=scratch",
                &format!("#DW stage_out type=file source=$DW_JOB_STRIPED/r destination={dir}/r-%a"),
            ],
            "echo task $SLURM_ARRAY_TASK_ID >${DW_JOB_STRIPED}r",
        ),
    );
    for task in 1..=3 {
        let at = format!("{dir}/r-{task}");
        within(PATIENCE, "a task's result comes home", || {
            std::fs::read_to_string(&at).is_ok_and(|text| text == format!("task {task}\n"))
        });
    }
    within(PATIENCE, "the array ends", || {
        slurm.tool("squeue", &["-h", "-j", &id, "-o", "%A"]).stdout.trim().is_empty()
    });
}

/// A job that is run again has a space of its own for each run.
fn run_again(slurm: &Slurm) {
    let dir = pfs(slurm, "again");
    let at = shown(&dir);
    let id = slurm.submit(
        &["--requeue"],
        &script(
            &[
                "#DW jobdw capacity=16MiB access_mode=striped type=scratch",
                &format!("#DW stage_out type=file source=$DW_JOB_STRIPED/r destination={at}/r"),
            ],
            &format!(
                "ls -1 $DW_JOB_STRIPED\necho run >>${{DW_JOB_STRIPED}}r\n\
                 if [ ! -e {at}/ran ]; then touch {at}/ran; sleep 600; fi\necho second >>${{DW_JOB_STRIPED}}r"
            ),
        ),
    );
    within(PATIENCE, "the first run works", || dir.join("ran").exists());
    slurm.user_tool("scontrol", &["requeue", &id]).ok();
    let text = || std::fs::read_to_string(dir.join("r")).unwrap_or_default();
    // Slurm waits two minutes before it runs a job again.
    within(PATIENCE * 3, "the second run comes home", || text().contains("second"));
    let state = slurm.finished(&id);
    assert_eq!(state, "COMPLETED", "{}", slurm.output(&id));
    assert_eq!(text(), "run\nsecond\n", "the second run began with an empty space");
    assert!(
        slurm.job_log(&id).contains(&format!("job-{id}-r2: data-out")),
        "{}",
        slurm.job_log(&id)
    );
}

/// Private space on each of two nodes; each publishes under its name.
fn two_nodes(slurm: &Slurm) {
    let dir = pfs(slurm, "two");
    let dir = shown(&dir);
    let id = slurm.submit(
        &["-N", "2", "--ntasks=2"],
        &format!(
            "#!/bin/bash\n#DW jobdw capacity=32MiB access_mode=private type=scratch\n\
             #DW stage_out type=directory source=$DW_JOB_PRIVATE/ destination={dir}/%n\n\
             set -eu\n\
             srun -N 2 -n 2 --ntasks-per-node=1 bash -c 'echo $SLURMD_NODENAME >${{DW_JOB_PRIVATE}}name'\n"
        ),
    );
    assert_eq!(slurm.finished(&id), "COMPLETED", "{}", slurm.output(&id));
    let nodes: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let at = entry.unwrap().path();
            let name = std::fs::read_to_string(at.join("name")).unwrap();
            assert_eq!(at.file_name().unwrap().to_str(), Some(name.trim()));
            name
        })
        .collect();
    assert_eq!(nodes.len(), 2, "{nodes:?}");
}

/// Slurm gives the number of nodes only when the job is to run: they share the capacity.
fn as_many_nodes(slurm: &Slurm) {
    within(PATIENCE * 2, "two nodes are idle at once", || {
        let id = slurm.submit(
            &["-N", "1-2"],
            "#!/bin/bash\n#DW jobdw capacity=64MiB access_mode=private type=scratch\n\
             df --output=size -m $DW_JOB_PRIVATE | tail -1\necho $SLURM_NNODES\n",
        );
        assert_eq!(slurm.finished(&id), "COMPLETED", "{}", slurm.output(&id));
        let out = slurm.output(&id);
        let [size, nodes] = [0, 1].map(|at| out.split_whitespace().nth(at).unwrap().parse::<u64>());
        let (size, nodes) = (size.unwrap(), nodes.unwrap());
        assert!((48..80).contains(&(size * nodes)), "{out}");
        nodes == 2
    });
}

/// forebay replaces `%`-symbols: the text that Slurm passes then is not the script.
fn symbols(slurm: &Slurm) {
    let dir = pfs(slurm, "symbols");
    let dir = shown(&dir);
    let id = slurm.submit(
        &["--job-name=my-job"],
        &script(
            &[
                "#DW jobdw capacity=16MiB access_mode=striped type=scratch",
                &format!(
                    "#DW stage_out type=file source=$DW_JOB_STRIPED/r destination={dir}/%x-%u-%j-%n"
                ),
            ],
            "hostname >${DW_JOB_STRIPED}r\necho $SLURMD_NODENAME",
        ),
    );
    assert_eq!(slurm.finished(&id), "COMPLETED", "{}", slurm.output(&id));
    let node = slurm.output(&id);
    let at = format!("{dir}/my-job-nobody-{id}-{}", node.trim());
    assert!(
        std::fs::exists(&at).unwrap(),
        "{at}: {:?}",
        std::fs::read_dir(dir).unwrap().collect::<Vec<_>>()
    );
}

/// A script of `#FB` alone, which only knows TMPDIR.
fn only_tmpdir(slurm: &Slurm) {
    let directives = ["#FB private capacity=16MiB"];
    let body = "f=$(mktemp)\necho $f\necho x >$f\nstat -c %U $TMPDIR";
    let id = slurm.submit(&[], &script(&directives, body));
    assert_eq!(slurm.finished(&id), "COMPLETED", "{}", slurm.output(&id));
    let out = slurm.output(&id);
    assert!(out.contains(&format!("mnt/job-{id}-scratch/tmp.")), "{out}");
    assert!(out.contains("nobody"), "{out}");
}

/// In MiB; compare [`crate::ROOM`].
pub const MORE_THAN_HALF: u64 = 6400;

/// One node is full: a job that needs as much starts on another, and a job that finds no room waits.
fn two_compete(slurm: &Slurm) {
    let wish = format!("#DW jobdw capacity={MORE_THAN_HALF}MiB access_mode=striped type=scratch");
    let one = script(&[&wish], "sleep 25\necho $SLURMD_NODENAME");
    let ids: Vec<String> = (0..2).map(|_| slurm.submit(&["-w", "n1"], &one)).collect();
    let running = |id: &String| slurm.state(id) == "RUNNING";
    within(PATIENCE, "one runs on n1", || ids.iter().any(running));
    let other = slurm.submit(&["--exclude=n3"], &one);
    slurm.until(&other, "JobState=RUNNING");
    let where_ = slurm.field(&other, "NodeList");
    assert_eq!(ids.iter().filter(|id| running(id)).count(), 1, "twice more than half on one node");
    assert_eq!(where_, "n2");
    for id in ids.iter().chain([&other]) {
        assert_eq!(slurm.finished(id), "COMPLETED", "{}", slurm.output(id));
    }
}

/// `afterburstbuffer` starts when the data are staged out, and not before.
fn dependent(slurm: &Slurm) {
    let dir = pfs(slurm, "dependent");
    let at = shown(&dir);
    let first = slurm.submit(
        &[],
        &script(
            &[
                "#DW jobdw capacity=200MiB access_mode=striped type=scratch",
                &format!("#DW stage_out type=file source=$DW_JOB_STRIPED/r destination={at}/r"),
            ],
            "head -c 150M /dev/zero >${DW_JOB_STRIPED}r",
        ),
    );
    let dependency = format!("--dependency=afterburstbuffer:{first}");
    let second = slurm.submit(&[&dependency], &format!("#!/bin/sh\nstat -c %s {at}/r\n"));
    assert_eq!(slurm.finished(&first), "COMPLETED");
    within(Duration::from_secs(60), "the second runs", || {
        slurm.output(&second).contains("157286400")
    });
}

/// Slurm shows waiting tasks as one line: they do not count as forgotten after `unknown-after` (20 s).
fn tasks_wait(slurm: &Slurm) {
    let dir = pfs(slurm, "waiting");
    let dir = shown(&dir);
    let out = format!("#DW stage_out type=file source=$DW_JOB_STRIPED/r destination={dir}/r-%a");
    let id = slurm.submit(
        &["--array=1-3%1"],
        &script(
            &["#DW jobdw capacity=16MiB access_mode=striped type=scratch", &out],
            "[ $SLURM_ARRAY_TASK_ID != 1 ] || sleep 60\necho task >${DW_JOB_STRIPED}r",
        ),
    );
    for task in 1..=3 {
        let at = format!("{dir}/r-{task}");
        within(PATIENCE, "a task's result comes home", || std::fs::exists(&at).unwrap());
    }
    within(PATIENCE, "the array ends", || {
        slurm.tool("squeue", &["-h", "-j", &id, "-o", "%A"]).stdout.trim().is_empty()
    });
}
