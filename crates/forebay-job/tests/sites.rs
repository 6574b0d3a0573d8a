//! Scripts as sites have them, word for word, and the plans that they give.

use forebay_job::plan::{Direction, Mode, Nodes, Of, On, Plan, What};
use forebay_job::{Job, Read, Severity, read};

const GB: u64 = 1_000_000_000;

fn on(nodes: u32, script: &str) -> Read {
    read(script, &Job { nodes: Some(nodes), ..Job::default() })
}

fn sound(nodes: u32, script: &str) -> Plan {
    let read = on(nodes, script);
    assert!(!read.has_errors(), "{:?}", read.problems);
    read.plan
}

fn errors(read: &Read) -> Vec<String> {
    let errors = read.problems.iter().filter(|problem| problem.severity == Severity::Error);
    errors.map(|problem| problem.summary()).collect()
}

#[test]
fn striped_on_one_node_with_both_stagings() {
    let plan = sound(
        1,
        "#!/bin/bash -l\n\
         #SBATCH -q regular\n\
         #SBATCH -N 1\n\
         #SBATCH -C haswell\n\
         #DW jobdw capacity=10GB access_mode=striped type=scratch\n\
         #DW stage_in source=/global/cscratch1/sd/username/path/to/filename destination=$DW_JOB_STRIPED/filename type=file\n\
         #DW stage_in source=/global/cscratch1/sd/username/dir destination=$DW_JOB_STRIPED type=directory\n\
         #DW stage_out source=$DW_JOB_STRIPED/dirname destination=/global/cscratch1/sd/username/dirname type=directory\n\
         srun a.out INSERT_YOUR_CODE_OPTIONS_HERE\n",
    );
    let space = &plan.instances[0];
    assert_eq!((space.mode, space.bytes, space.name.as_str()), (Mode::Private, 10 * GB, "striped"));
    assert_eq!(space.variables, ["DW_JOB_STRIPED"]);
    let places: Vec<(&str, &str, Option<What>)> = plan
        .transfers
        .iter()
        .map(|t| (t.inside.to_str().unwrap(), t.outside.to_str().unwrap(), t.what))
        .collect();
    assert_eq!(
        places,
        [
            ("filename", "/global/cscratch1/sd/username/path/to/filename", Some(What::File)),
            ("", "/global/cscratch1/sd/username/dir", Some(What::Directory)),
            ("dirname", "/global/cscratch1/sd/username/dirname", Some(What::Directory)),
        ]
    );
    assert!(plan.transfers.iter().all(|t| t.on == On::Always && t.nodes == Nodes::First));
    assert_eq!(plan.transfers[2].direction, Direction::Out);
}

#[test]
fn a_variable_in_braces_with_a_name_right_behind_it() {
    let plan = sound(
        1,
        "#!/bin/bash\n#DW jobdw capacity=10GB access_mode=striped type=scratch\n\
         #DW stage_out type=file source=${DW_JOB_STRIPED}result.h5 destination=/pfs/run/result.h5\n\
         ./simulate --output ${DW_JOB_STRIPED}result.h5\n",
    );
    let out = &plan.transfers[0];
    assert_eq!(
        (out.inside.to_str(), out.of.clone()),
        (Some("result.h5"), Of::Job("striped".into()))
    );
}

#[test]
fn a_persistent_instance_is_made_alone_and_used_later() {
    let made = sound(
        1,
        "#!/bin/bash\n#BB create_persistent name=alpha capacity=32GB access=striped type=scratch\n",
    );
    assert!(made.is_lone());
    assert_eq!((made.creates[0].bytes, made.creates[0].mode), (32 * GB, Mode::Private));
    let used = sound(
        4,
        "#!/bin/bash\n#SBATCH --nodes=4\n#DW persistentdw name=alpha\n\
         #DW stage_in type=directory source=/pfs/set destination=$DW_PERSISTENT_STRIPED_alpha/set\n\
         ls $DW_PERSISTENT_STRIPED_alpha\n",
    );
    assert!(!used.is_lone());
    assert_eq!(used.uses[0].variables, ["DW_PERSISTENT_STRIPED_alpha", "DW_PERSISTENT_alpha"]);
    assert_eq!(used.transfers[0].of, Of::Persistent("alpha".into()));
    let gone = sound(1, "#!/bin/bash\n#BB destroy_persistent name=alpha hurry\n");
    assert!(gone.is_lone() && gone.destroys[0].hurry);
}

#[test]
fn striped_and_private_on_two_nodes_is_refused_with_alternatives() {
    let script = "#!/bin/bash\n#SBATCH -N 2\n\
                  #DW jobdw type=scratch access_mode=striped,private capacity=100GB\nsrun hostname\n";
    let refused = errors(&read(script, &Job::default()));
    assert_eq!(refused.len(), 1);
    for part in ["line 3", "2 nodes", "access_mode=private", "#FB private", "persistentdw"] {
        assert!(refused[0].contains(part), "{part}: {refused:?}");
    }
    let one = on(1, &script.replace("-N 2", "-N 1"));
    let spaces: Vec<(&str, u64)> =
        one.plan.instances.iter().map(|s| (s.name.as_str(), s.bytes)).collect();
    assert_eq!(spaces, [("striped", 100 * GB), ("private", 100 * GB)]);
    assert!(
        one.problems.iter().any(|p| p.severity == Severity::Remark && p.text.contains("each with"))
    );
}

#[test]
fn variables_that_an_unquoted_heredoc_replaced_are_recognized() {
    // `sbatch <<EOF` replaces $DW_JOB_STRIPED by nothing where it is not set.
    let script = "#!/bin/bash\n#SBATCH -N 1\n#DW jobdw capacity=10GB access_mode=striped type=scratch\n\
                  #DW stage_in type=file source=/pfs/in.dat destination=/in.dat\n\
                  #DW stage_out type=directory source=/out destination=/pfs/out\n\
                  #DW stage_out type=directory source= destination=/pfs/all\n\
                  ./a.out /in.dat /out\n";
    let refused = errors(&read(script, &Job::default()));
    assert_eq!(refused.len(), 3, "{refused:?}");
    assert!(refused.iter().all(|line| line.contains("quote EOF") && line.contains("<<'EOF'")));
    // A plain mistake is reported as a mistake, too.
    let plain = errors(&read(&script.replace("./a.out", "./a.out $HOME"), &Job::default()));
    assert!(plain[0].contains("write destination=$DW_JOB_STRIPED/in.dat"), "{plain:?}");
}

#[test]
fn nnf_on_two_nodes_has_a_space_on_each() {
    let plan = sound(
        2,
        "#!/bin/bash\n#DW jobdw type=xfs capacity=50GiB name=my-space\n\
         #DW copy_in source=/lus/global/in destination=$DW_JOB_my_space/in\n\
         #DW copy_out source=$DW_JOB_my_space/out destination=/lus/global/out/%n\n\
         srun ./a.out $DW_JOB_my_space\n",
    );
    let space = &plan.instances[0];
    assert_eq!((space.bytes, space.fs.as_deref()), (50 << 30, Some("xfs")));
    assert_eq!(space.variables, ["DW_JOB_my_space"]);
    assert!(plan.transfers.iter().all(|t| t.nodes == Nodes::All));
}

#[test]
fn a_script_that_only_wants_tmpdir() {
    let plan = sound(2, "#!/bin/sh\n#FB private capacity=10GiB\nmktemp\n");
    assert_eq!(plan.instances[0].variables, ["FB_JOB_SCRATCH", "TMPDIR"]);
    assert_eq!(plan.bytes_per_node(), 10 << 30);
    let several = "#FB private capacity=1GiB name=a-b\n#FB private capacity=1GiB name=c\n";
    let plan = sound(1, several);
    assert_eq!(plan.instances[0].variables, ["FB_JOB_A_B", "TMPDIR"]);
    assert_eq!(plan.instances[1].variables, ["FB_JOB_C"]);
    let plan = sound(1, &several.replace("name=c", "name=c tmpdir=yes"));
    assert_eq!(plan.instances[1].variables, ["FB_JOB_C", "TMPDIR"]);
    let plan = sound(1, "#FB private capacity=1GiB tmpdir=no\n");
    assert_eq!(plan.instances[0].variables, ["FB_JOB_SCRATCH"]);
}

#[test]
fn capacity_of_datawarp_is_that_of_all_nodes() {
    let script = "#DW jobdw capacity=10GB access_mode=private\n";
    for (nodes, bytes) in [(1, 10 * GB), (3, 3_333_333_334), (4, 2_500_000_000)] {
        assert_eq!(sound(nodes, script).instances[0].bytes, bytes, "{nodes}");
    }
    assert_eq!(sound(4, "#FB private capacity=10GB\n").instances[0].bytes, 10 * GB);
    let unknown = read(script, &Job::default());
    assert!(unknown.problems[0].text.contains("of all nodes together"), "{:?}", unknown.problems);
}

#[test]
fn caches_are_read_on_several_nodes_and_written_on_one() {
    let script = "#DW jobdw type=cache access_mode=striped pfs=/pfs/project/%u capacity=1TiB\n";
    let job = Job { nodes: Some(1), user: Some("ann"), ..Job::default() };
    let cache = &read(script, &job).plan.instances[0];
    assert_eq!(cache.backing.as_deref().unwrap().to_str(), Some("/pfs/project/ann"));
    assert_eq!(
        (cache.mode, cache.variables.clone()),
        (Mode::Cache, vec!["DW_JOB_STRIPED_CACHE".into()])
    );
    assert_eq!(errors(&on(2, script)).len(), 1);
    let plan = sound(2, &script.replace("striped", "ldbalance"));
    assert_eq!(plan.instances[0].variables, ["DW_JOB_LDBAL_CACHE"]);
    assert_eq!(plan.instances[0].settings["read-only"], "true");
    let own = "#FB cache backing=/pfs/p capacity=1GiB set=max-age=30s,read-only=true\n\
               #FB stage_in source=/pfs/p/set destination=$FB_JOB_CACHE/set\n";
    assert_eq!(sound(2, own).instances[0].settings["max-age"], "30s");
    let elsewhere = errors(&on(1, &own.replace("/pfs/p/set", "/pfs/q/set")));
    assert!(elsewhere[0].contains("write source=/pfs/p/set"), "{elsewhere:?}");
}

#[test]
fn symbols_are_replaced_as_far_as_they_are_known() {
    let script = "#SBATCH --array=0-9\n#FB private capacity=1GiB\n\
                  #FB stage_out source=$FB_JOB_SCRATCH/%j destination=/pfs/%u/%x/%A/%a/100%%/%n\n";
    let out = |job: &Job<'_>| read(script, job).plan.transfers[0].outside.display().to_string();
    assert_eq!(out(&Job::default()), "/pfs/%u/%x/%A/%a/100%%/%n");
    let job = Job {
        nodes: Some(2),
        id: Some("18"),
        user: Some("ann"),
        name: Some("50%n"),
        array: Some(("17", "1")),
        ..Job::default()
    };
    assert_eq!(out(&job), "/pfs/ann/50%%n/17/1/100%%/%n");
    let plan = read(script, &job).plan;
    assert_eq!(plan.transfers[0].inside.to_str(), Some("18"));
    let at = forebay_job::plan::at_node(&plan.transfers[0].outside, "n7");
    assert_eq!(at.to_str(), Some("/pfs/ann/50%n/17/1/100%/n7"));
    for (job, symbol) in [
        (Job { user: None, ..job }, "%u"),
        (Job { name: None, ..job }, "%x"),
        (Job { array: None, ..job }, "%a"),
    ] {
        let unknown = errors(&read(script, &job));
        assert!(unknown.len() == 1 && unknown[0].contains(symbol), "{unknown:?}");
    }
    let sly = read(script, &Job { name: Some("../../etc"), ..job });
    assert!(errors(&sly)[0].contains("no name of a file"), "{:?}", sly.problems);
    let dots = read(script, &Job { name: Some(".."), ..job });
    assert!(errors(&dots)[0].contains(".. is in a path"), "{:?}", dots.problems);
}

#[test]
fn what_slurm_itself_reads_is_not_ours() {
    let read = on(
        1,
        "#BB_LUA pool=flash capacity=1GB\n#BB_LUA jobdw capacity=1GB\n#DW capacity=1GB pool=b\n",
    );
    assert!(read.problems.is_empty(), "{:?}", read.problems);
    assert_eq!((read.pool.as_deref(), read.plan.instances.len()), (Some("flash"), 1));
    let job = Job { directive: Some("FLASH"), nodes: Some(1), ..Job::default() };
    let own = forebay_job::read("#FLASH pool=flash capacity=1GB\n#FLASH swap 1GiB\n", &job);
    assert_eq!((own.pool.as_deref(), own.plan.instances.len()), (Some("flash"), 1));
}

#[test]
fn a_continued_directive_is_one() {
    let plan = sound(
        1,
        "#DW jobdw \\\n#DW   type=scratch \\\n#DW   access_mode=striped(MFS=10GB,client_cache=yes) \\\n\
         #DW   capacity=10GB pool=wlm_pool\necho\n",
    );
    assert_eq!(plan.instances[0].pool.as_deref(), Some("wlm_pool"));
}

#[test]
fn the_nodes_of_the_script_count_unless_told_otherwise() {
    let script = "#SBATCH --nodes=2\n#DW jobdw capacity=10GB\n";
    assert!(read(script, &Job::default()).has_errors());
    assert!(!on(1, script).has_errors());
    let open = read("#DW jobdw capacity=10GB\n", &Job::default());
    assert!(!open.has_errors() && !open.nodes_known);
    assert_eq!((open.plan.nodes_max, open.problems[0].severity), (Some(1), Severity::Warning));
    let least = Job { nodes_least: Some(1), ..Job::default() };
    let more = read("#SBATCH --nodes=1\n#DW jobdw capacity=10GB\n", &least);
    assert_eq!((more.nodes_known, more.problems[0].severity), (false, Severity::Warning));
}

/// The plan is made before the scheduler has chosen.
#[test]
fn a_capacity_for_all_nodes_is_parted_among_those_that_the_job_gets() {
    let plan = sound(
        2,
        "#DW jobdw capacity=10GB access_mode=private\n#DW jobdw type=xfs name=a capacity=3GB\n",
    );
    let on = |nodes| plan.instances.iter().map(|space| space.bytes_on(nodes)).collect::<Vec<_>>();
    assert_eq!(on(2), [5 * GB, 3 * GB]);
    assert_eq!(on(3), [10 * GB / 3 + 1, 3 * GB]);
    assert_eq!(plan.nodes_max, None);
}

#[test]
fn tasks_of_an_array_that_share_a_destination_are_told() {
    let script = "#SBATCH --array=1-4 -N1\n#DW jobdw capacity=1GB\n\
                  #DW stage_out type=directory source=$DW_JOB_STRIPED/out destination=/pfs/out\n";
    let told = |script: &str| read(script, &Job::default()).problems.len();
    assert_eq!(told(script), 1);
    assert_eq!(told(&script.replace("/pfs/out", "/pfs/out/%a")), 0);
    assert_eq!(told(&script.replace("/pfs/out", "/pfs/out/%j")), 0);
    assert_eq!(told(&script.replace("/pfs/out", "/pfs/out/%%a")), 1);
}
