//! One line of a script, and the messages about it.

use forebay_job::{Job, Severity, read};

struct Case {
    line: &'static str,
    /// The place of the first problem: the characters above the caret.
    under: &'static str,
    says: &'static str,
    remedy: &'static str,
}

const fn case(
    line: &'static str,
    under: &'static str,
    says: &'static str,
    remedy: &'static str,
) -> Case {
    Case { line, under, says, remedy }
}

const ERRORS: &[Case] = &[
    // Words.
    case("#DW jobwd capacity=1GB", "jobwd", "no directive of #DW", "did you mean jobdw?"),
    case("#DW frobnicate", "frobnicate", "no directive", "#DW has jobdw, persistentdw"),
    case("#BB jobdw capacity=1GB", "jobdw", "no directive of #BB", "write #DW jobdw"),
    case("#FB jobdw capacity=1GB", "jobdw", "no directive of #FB", "write #DW jobdw"),
    case("#DW jobdw capcity=1GB", "capcity", "no word of jobdw", "did you mean capacity?"),
    case("#DW jobdw capacity=1GB frob=1", "frob", "no word of jobdw", "jobdw takes capacity="),
    case("#DW jobdw capacity=1GB capacity=2GB", "capacity", "twice", "once"),
    case("#DW jobdw capacity", "capacity", "no value", "write capacity=VALUE"),
    case("#DW jobdw capacity=", "capacity=", "is empty", "value"),
    case("#DW jobdw", "jobdw", "needs capacity=", "write capacity=100GiB"),
    case("#BB destroy_persistent name=a hurry=yes", "hurry", "takes no value", "hurry alone"),
    case("#FB use name='a b", "'a b", "no second '", "close"),
    case("#BB_LUA pol=flash", "pol", "not known", "did you mean pool?"),
    // Sizes.
    case("#DW jobdw capacity=10XB", "10XB", "unit is not known", "KiB, MiB"),
    case("#DW jobdw capacity=2nodes", "2nodes", "in nodes", "write the bytes"),
    case("#DW jobdw capacity=0", "0", "nothing", "write a number"),
    case("#DW jobdw capacity=lots", "lots", "no size", "write a number"),
    case("#FB private capacity=10", "10", "no unit", "write for example 10GiB"),
    case("#DW swap", "swap", "needs a size", "write swap 2GiB"),
    case("#DW swap 0", "0", "nothing", "write a number"),
    case("#DW swap many", "many", "no size", "write a number"),
    // Choices.
    case(
        "#DW jobdw capacity=1GB access_mode=stripd",
        "stripd",
        "not known",
        "did you mean striped?",
    ),
    case("#DW jobdw capacity=1GB access_mode=striped,striped", "striped", "twice", "once"),
    case(
        "#DW jobdw capacity=1GB access_mode=ldbalance",
        "ldbalance",
        "of a cache",
        "striped or private",
    ),
    case(
        "#DW jobdw capacity=1GB access_mode=striped(clnt_cache=1)",
        "(clnt_cache=1)",
        "not known",
        "did you mean client_cache?",
    ),
    case("#DW jobdw capacity=1GB access_mode=striped(MFS=1", "(MFS=1", "not closed", "MODE(WORD"),
    case(
        "#DW jobdw capacity=1GB access=private access_mode=private",
        "access=private",
        "the same",
        "leave",
    ),
    case("#DW jobdw capacity=1GB type=scrtch", "scrtch", "not known", "did you mean scratch?"),
    case("#DW jobdw capacity=1GB type=zfs", "zfs", "not known", "did you mean xfs?"),
    case("#DW jobdw capacity=1GB type=cache", "jobdw", "needs pfs=", "write pfs="),
    case("#DW jobdw capacity=1GB pfs=/pfs", "pfs=/pfs", "this is scratch", "type=cache"),
    case("#DW jobdw capacity=1GB type=cache pfs=pfs", "pfs", "no absolute path", "from / on"),
    case(
        "#DW jobdw capacity=1GB type=cache access_mode=private pfs=/a",
        "private",
        "not private",
        "striped",
    ),
    case("#FB private capacity=1GiB fs=btrfs", "btrfs", "not known", "ext4|xfs"),
    case("#FB private capacity=1GiB tmpdir=maybe", "maybe", "not known", "yes|no"),
    case("#FB private capacity=1GiB pool=a/b", "a/b", "no name of a pool", "forebay pools"),
    case("#FB private capacity=1GiB name=a/b", "/", "no name", "letters"),
    case("#FB private capacity=1GiB name=9a", "9", "begins with 9", "letter"),
    case(
        "#FB private capacity=1GiB name=abcdefghijklmnopqrstuvwxyzabcdefg",
        "abcdefghijklmnopqrstuvwxyzabcdefg",
        "too long",
        "32",
    ),
    case("#FB cache capacity=1GiB", "cache", "needs backing=", "write backing="),
    case("#FB cache capacity=1GiB backing=/a set=x", "x", "no value", "KEY=VALUE"),
    case("#FB cache capacity=1GiB backing=/a set=a=1,a=2", "a=2", "twice", "once"),
    case("#FB use name=job-7", "job-7", "for jobs", "another"),
    // Persistent instances.
    case(
        "#DW create_persistent name=a capacity=1GB",
        "create_persistent",
        "Slurm refuses",
        "write #BB",
    ),
    case("#DW destroy_persistent name=a", "destroy_persistent", "Slurm refuses", "write #BB"),
    case("#BB create_persistent capacity=1GB", "create_persistent", "needs name=", "name=NAME"),
    case("#BB create_persistent name=1a capacity=1GB", "1", "begins with 1", "letter"),
    case("#FB create name=a mode=swap capacity=1GiB", "swap", "others would share", "#FB swap"),
    case("#FB create name=a capacity=1GiB", "create", "needs mode=", "mode=private"),
    case(
        "#FB create name=a mode=private capacity=1GiB nodes=n[1-2]",
        "n[1-2]",
        "brackets",
        "n1,n2",
    ),
    case("#FB create name=a mode=private capacity=1GiB nodes=a,a", "a,a", "twice", "once"),
    case("#FB create name=a mode=private capacity=1GiB expires=14", "14", "no time", "unit"),
    case(
        "#FB create name=a mode=private capacity=1GiB backing=/a",
        "backing=/a",
        "of a cache",
        "leave",
    ),
    case("#DW persistentdw", "persistentdw", "needs name=", "name=NAME"),
    // NNF.
    case("#DW jobdw type=xfs capacity=1GiB", "jobdw", "needs name=", "name=scratch"),
    case("#DW jobdw name=a capacity=1GiB", "jobdw", "needs type=", "type=xfs"),
    case(
        "#DW jobdw type=xfs name=a capacity=1GiB requires=copy-offload",
        "copy-offload",
        "not there",
        "forebay stage",
    ),
    case(
        "#DW jobdw type=xfs name=a capacity=1GiB requires=copyoffload",
        "copyoffload",
        "not known",
        "did you mean copy-offload?",
    ),
    case(
        "#DW jobdw type=xfs name=a capacity=1GiB access_mode=private",
        "access_mode=private",
        "DataWarp's",
        "leave",
    ),
    case("#DW container name=a profile=b", "container", "no nodes here", "script"),
];

/// Directives that follow `#FB private capacity=1GiB`, on one node.
const STAGES: &[Case] = &[
    case(
        "#FB stage_in source=/a destination=$FB_JOB_SCRATC/a",
        "$FB_JOB_SCRATC",
        "no variable",
        "did you mean $FB_JOB_SCRATCH?",
    ),
    case(
        "#FB stage_in source=/a destination=$FB_JOB_SCRATCHa",
        "$FB_JOB_SCRATCHa",
        "no variable",
        "write $FB_JOB_SCRATCH/a or ${FB_JOB_SCRATCH}a",
    ),
    case(
        "#FB stage_in source=/a destination=${FB_JOB_SCRATCH}a",
        "${FB_JOB_SCRATCH}",
        "slash is missing",
        "write $FB_JOB_SCRATCH/a",
    ),
    case(
        "#FB stage_in source=/a destination=$DW_JOB_STRIPED/a",
        "$DW_JOB_STRIPED",
        "no variable",
        "#DW jobdw access_mode=striped",
    ),
    case(
        "#FB stage_in source=/a destination=$DW_PERSISTENT_STRIPED_b/a",
        "$DW_PERSISTENT_STRIPED_b",
        "no variable",
        "#DW persistentdw name=b",
    ),
    case("#FB stage_in source=/a destination=$HOME/a", "$HOME", "not replaced", "write the value"),
    case(
        "#FB stage_in source=/home/$USER/a destination=$FB_JOB_SCRATCH/a",
        "$",
        "$USER is not replaced",
        "write %u",
    ),
    case(
        "#FB stage_in source=~/a destination=$FB_JOB_SCRATCH/a",
        "~/a",
        "no absolute path",
        "~ is of the shell",
    ),
    case(
        "#FB stage_in source=a destination=$FB_JOB_SCRATCH/a",
        "a",
        "no absolute path",
        "from / on",
    ),
    case(
        "#FB stage_in source=/a/../b destination=$FB_JOB_SCRATCH/a",
        "/a/../b",
        ".. is in a path",
        "without",
    ),
    case(
        "#FB stage_in source=/a destination=$FB_JOB_SCRATCH/../a",
        "$FB_JOB_SCRATCH/../a",
        ".. is in a path",
        "without",
    ),
    case(
        "#FB stage_in source=/a\u{7}b destination=$FB_JOB_SCRATCH/a",
        "\u{7}",
        "character",
        "remove",
    ),
    case(
        "#FB stage_in source=/a%q destination=$FB_JOB_SCRATCH/a",
        "%q",
        "stands for nothing",
        "%j",
    ),
    case("#FB stage_in source=/a% destination=$FB_JOB_SCRATCH/a", "%", "alone", "%%"),
    case(
        "#FB stage_in source=/a destination=$FB_JOB_SCRATCH/%n",
        "%n",
        "means nothing",
        "stage-outs",
    ),
    case(
        "#FB stage_in source=/a%n destination=$FB_JOB_SCRATCH/a",
        "%n",
        "means nothing",
        "stage-outs",
    ),
    case(
        "#FB stage_in source=/a/ destination=$FB_JOB_SCRATCH/a type=file",
        "/a/",
        "directory",
        "type=directory",
    ),
    case(
        "#FB stage_in source=/a destination=$FB_JOB_SCRATCH/a type=fil",
        "fil",
        "not known",
        "did you mean file?",
    ),
    case(
        "#FB stage_in source=/a destination=$FB_JOB_SCRATCH/a nodes=al",
        "al",
        "not known",
        "did you mean all?",
    ),
    case(
        "#FB stage_in source=/a",
        "stage_in",
        "needs destination=",
        "destination=$FB_JOB_SCRATCH/path",
    ),
    case(
        "#FB stage_in source=$FB_JOB_SCRATCH/a destination=/a",
        "/a",
        "wrong way round",
        "exchange",
    ),
    case(
        "#FB stage_in source=$FB_JOB_SCRATCH/a destination=$FB_JOB_SCRATCH/b",
        "$FB_JOB_SCRATCH/a",
        "both sides",
        "whole path",
    ),
    case("#FB stage_in source=/a destination=/b", "/b", "in no instance", "quote EOF"),
    case("#FB stage_out source= destination=/b", "source=", "empty", "quote EOF"),
    case("#FB stage_out source=$FB_JOB_SCRATCH/a destination=", "destination=", "empty", "/a/path"),
    case(
        "#FB stage_out source=$FB_JOB_SCRATCH/a destination=/b on=sucess",
        "sucess",
        "not known",
        "did you mean success?",
    ),
    case(
        "#FB stage_out source=$FB_JOB_SCRATCH/a destination=/b last=/",
        "/",
        "no pattern",
        "pattern",
    ),
];

fn marked(line: &str, column: u32, length: u32) -> String {
    line.chars().skip(column as usize - 1).take(length as usize).collect()
}

fn check(case: &Case, script: &str, number: u32, job: &Job<'_>) {
    let read = read(script, job);
    let first = read
        .problems
        .iter()
        .find(|problem| problem.severity == Severity::Error)
        .unwrap_or_else(|| panic!("{}: no error: {:?}", case.line, read.problems));
    assert_eq!(first.line, number, "{}: {first:?}", case.line);
    let under = marked(case.line, first.column, first.length);
    assert_eq!(under, case.under, "{}: {first:?}", case.line);
    assert!(first.text.contains(case.says), "{}: {}", case.line, first.text);
    assert!(first.remedy.contains(case.remedy), "{}: {}", case.line, first.remedy);
}

#[test]
fn every_mistake_is_told_with_its_place_and_what_to_write() {
    for case in ERRORS {
        check(case, &format!("#!/bin/sh\n{}\necho $HOME\n", case.line), 2, &Job::default());
    }
}

#[test]
fn every_mistake_of_a_transfer_is_told() {
    let job = Job { nodes: Some(1), ..Job::default() };
    for case in STAGES {
        check(case, &format!("#FB private capacity=1GiB\n{}\necho $HOME\n", case.line), 2, &job);
    }
}

#[test]
fn on_several_nodes_more_is_refused() {
    let job = Job { nodes: Some(2), ..Job::default() };
    for (lines, says, remedy) in [
        ("#DW jobdw capacity=1GB", "striped is one namespace", "#FB private"),
        ("#DW jobdw capacity=1GB type=cache pfs=/a", "on one node only", "ldbalance"),
        ("#DW jobdw capacity=1GiB type=lustre name=a", "lustre is one namespace", "type=xfs"),
        ("#FB cache capacity=1GiB backing=/a", "on one node only", "read-only"),
        (
            "#DW jobdw capacity=1GB access_mode=private\n\
             #DW stage_in type=file source=/a destination=$DW_JOB_PRIVATE/a",
            "#DW stage_in fills no space",
            "nodes=all",
        ),
        (
            "#DW jobdw capacity=1GB access_mode=private\n\
             #DW stage_out type=file source=$DW_JOB_PRIVATE/a destination=/out/",
            "files of several nodes would meet",
            "destination=/out/%n",
        ),
        (
            "#FB use name=set\n#FB stage_out source=$FB_PERSISTENT_SET/a destination=/a/%n type=file\n\
             #FB private capacity=1GiB\n#FB stage_out source=$FB_JOB_SCRATCH/a destination=/b type=file",
            "files of several nodes would meet",
            "destination=/b/%n",
        ),
    ] {
        let read = read(lines, &job);
        let errors: Vec<_> =
            read.problems.iter().filter(|p| p.severity == Severity::Error).collect();
        assert_eq!(errors.len(), 1, "{lines}: {errors:?}");
        assert!(errors[0].text.contains(says) && errors[0].text.contains("2 nodes"), "{errors:?}");
        assert!(errors[0].remedy.contains(remedy), "{errors:?}");
        let one = forebay_job::read(lines, &Job { nodes: Some(1), ..Job::default() });
        assert!(!one.has_errors(), "{lines}: {:?}", one.problems);
        assert_eq!(one.plan.nodes_max, Some(1), "{lines}: the job must get no more");
    }
}

#[test]
fn what_does_nothing_here_is_taken_with_a_warning() {
    let job = Job { nodes: Some(1), ..Job::default() };
    for (line, says) in [
        ("#DW jobdw capacity=1GB optimization_strategy=interference", "optimization_strategy does"),
        (
            "#DW jobdw capacity=1GB access_mode=striped(MFS=1GB,client_cache=yes)",
            "MFS does nothing",
        ),
        (
            "#DW jobdw capacity=1GB access_mode=private(write_window_length=1)",
            "write_window_length",
        ),
        ("#DW jobdw type=xfs name=a capacity=1GiB profile=fast", "profile does nothing"),
        ("#DW jobdw type=raw name=a capacity=1GiB", "no block device"),
        ("#DW jobdw capacity=100", "without a unit is bytes"),
        ("#DW jobdw capacity=0.5TB", "refuses 0"),
    ] {
        let read = read(line, &job);
        assert!(!read.has_errors(), "{line}: {:?}", read.problems);
        let first = &read.problems[0];
        assert_eq!(first.severity, Severity::Warning, "{line}: {first:?}");
        assert!(first.text.contains(says), "{line}: {first:?}");
        assert_eq!(read.plan.instances.len(), 1);
    }
}

#[test]
fn what_is_good_to_know_is_remarked() {
    let job = Job { nodes: Some(1), ..Job::default() };
    for (line, says) in [
        ("#DW jobdw capacity=3.5TB", "it counts 3 bytes"),
        ("#DW swap 2GB\n#SBATCH --exclusive", "Slurm itself reads 2GB as 2 GiB"),
        ("#DW swap 2", "all programs of a node"),
        ("#BB destroy_persistent name=a hurry", "not home yet"),
    ] {
        let read = read(line, &job);
        let all: Vec<_> = read.problems.iter().map(|p| (p.severity, p.text.as_str())).collect();
        assert_eq!(all.len(), 1, "{line}: {all:?}");
        assert!(all[0].0 == Severity::Remark && all[0].1.contains(says), "{line}: {all:?}");
    }
    assert!(read("#FB private capacity=3.5TB", &job).problems.is_empty());
}

#[test]
fn all_mistakes_are_told_by_line() {
    let script = "#FB private capacity=x\n#FB stage_out source=/a destination=b on=c\n#FB frob\n\
                  #DW swap x\n#FB stage_in source=/a destination=$FB_JOB_SCRATCH/a nodes=x\n";
    let read = read(script, &Job::default());
    let errors = read.problems.iter().filter(|problem| problem.severity == Severity::Error);
    let lines: Vec<u32> = errors.map(|problem| problem.line).collect();
    assert_eq!(lines, [1, 2, 2, 3, 4, 5]);
}

#[test]
fn two_instances_of_one_name_or_variable_are_refused() {
    for (lines, says) in [
        ("#FB private capacity=1GiB\n#FB private capacity=1GiB", "instance scratch already"),
        ("#FB private capacity=1GiB name=a-b\n#FB private capacity=1GiB name=a_b", "FB_JOB_A_B"),
        ("#DW jobdw capacity=1GB\n#DW jobdw capacity=1GB", "instance striped already"),
        ("#DW persistentdw name=a\n#DW persistentdw name=a", "used twice"),
        (
            "#FB private capacity=1GiB name=a tmpdir=yes\n#FB private capacity=1GiB name=b tmpdir=yes",
            "TMPDIR already",
        ),
        (
            "#BB create_persistent name=a capacity=1GB\n#FB create name=a mode=private capacity=1GiB",
            "created twice",
        ),
        ("#FB destroy name=a\n#BB destroy_persistent name=a", "destroyed twice"),
    ] {
        let read = read(lines, &Job { nodes: Some(1), ..Job::default() });
        let errors: Vec<_> =
            read.problems.iter().filter(|p| p.severity == Severity::Error).collect();
        assert_eq!(errors.len(), 1, "{lines}: {errors:?}");
        assert!(errors[0].text.contains(says) && errors[0].line == 2, "{errors:?}");
    }
}
