//! Broken scripts from a seed: no panic, and every reported place is in its line.

use std::collections::HashSet;
use std::time::Instant;

use forebay_job::{DIRECTIVES_MAX, Job, PROBLEMS_MAX, Read, WORDS_MAX, read};

const SEED: u64 = 0x5eed_f0e5_0b0a_7001;
const SCRIPTS: usize = 20_000;

/// SplitMix64: the same scripts on every run.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn pick<'p>(&mut self, pieces: &[&'p str]) -> &'p str {
        pieces[self.below(pieces.len())]
    }
}

const STARTS: &[&str] =
    &["#DW ", "#BB ", "#FB ", "#BB_LUA ", "#SBATCH ", "#DW", "# ", "", "#FB\t", "#"];
const VERBS: &[&str] = &[
    "jobdw",
    "persistentdw",
    "swap",
    "stage_in",
    "stage_out",
    "copy_in",
    "copy_out",
    "container",
    "create_persistent",
    "destroy_persistent",
    "private",
    "cache",
    "use",
    "create",
    "destroy",
    "jobwd",
    "",
];
const PIECES: &[&str] = &[
    " ",
    " ",
    " ",
    "capacity=",
    "access_mode=",
    "type=",
    "source=",
    "destination=",
    "name=",
    "nodes=",
    "pool=",
    "pfs=",
    "set=",
    "on=",
    "last=",
    "expires=",
    "mode=",
    "backing=",
    "requires=",
    "striped",
    "private",
    "cache",
    "xfs",
    "lustre",
    "list",
    "file",
    "directory",
    "(",
    ")",
    ",",
    "=",
    "$",
    "${",
    "}",
    "$DW_JOB_STRIPED",
    "$DW_JOB_PRIVATE",
    "${FB_JOB_SCRATCH}",
    "$DW_PERSISTENT_STRIPED_a",
    "/",
    "/a/b",
    "..",
    "%",
    "%n",
    "%a",
    "%%",
    "%q",
    "10GB",
    "1.5TiB",
    "99999999999999999999",
    ".",
    "0",
    "2nodes",
    "-",
    "'",
    "\"",
    "\\",
    "\t",
    "\r",
    "\0",
    "\u{7f}",
    "\u{202e}",
    "\u{e4}",
    "\u{1f600}",
    "~",
    "a",
    "b-c",
    "hurry",
    "checksum",
    "--nodes=2",
    "-N",
    "--array=1-3",
];

const KEYS: &[&str] = &[
    " capacity=",
    " access_mode=",
    " type=",
    " source=",
    " destination=",
    " name=",
    " nodes=",
    " pool=",
    " pfs=",
    " set=",
    " on=",
    " last=",
    " expires=",
    " mode=",
    " backing=",
    " requires=",
    " tmpdir=",
    " fs=",
    " ",
];
const SOUND: &str = "#FB private capacity=1GiB\n#DW jobdw capacity=1GB access_mode=private\n";

fn script(dice: &mut Dice) -> String {
    let mut script = [SOUND, ""][dice.below(2)].to_string();
    for _ in 0..1 + dice.below(6) {
        script.push_str(dice.pick(STARTS));
        script.push_str(dice.pick(VERBS));
        for _ in 0..dice.below(8) {
            script.push_str(dice.pick(KEYS));
            for _ in 0..dice.below(4) {
                script.push_str(dice.pick(PIECES));
            }
        }
        script.push('\n');
    }
    script
}

fn require_places(script: &str, read: &Read) {
    let lines: Vec<&str> = script.split('\n').collect();
    for problem in &read.problems {
        let line = lines[problem.line as usize - 1];
        let end = problem.column + problem.length - 1;
        let characters = line.chars().count() as u32;
        assert!(
            problem.column >= 1 && problem.length >= 1 && end <= characters,
            "{script:?}: {problem:?}"
        );
        let shown = problem.shown("job.sh", script);
        assert!(shown.contains('^'), "{script:?}: {problem:?}");
        assert!(!shown.replace('\n', "").contains(char::is_control), "{shown:?}");
    }
    assert!(read.problems.is_sorted_by_key(|problem| problem.line), "{:?}", read.problems);
}

#[test]
fn no_script_panics_and_every_place_is_in_its_line() {
    let mut dice = Dice(SEED);
    let mut told = HashSet::new();
    let mut sound = 0;
    for _ in 0..SCRIPTS {
        let script = script(&mut dice);
        let nodes = [None, Some(1), Some(3)][dice.below(3)];
        let job = Job { nodes, user: Some("ann"), ..Job::default() };
        let found = read(&script, &job);
        require_places(&script, &found);
        sound += usize::from(found.directives > 0 && !found.has_errors());
        told.extend(found.problems.into_iter().map(|problem| problem.remedy));
    }
    assert!(told.len() > 150, "only {} kinds of advice were reached", told.len());
    assert!(sound > 100, "only {sound} scripts were sound");
}

/// Paths of a plan never lead out of their instance, and outside paths are never relative.
#[test]
fn no_plan_leads_out_of_its_instance() {
    let mut dice = Dice(SEED ^ 1);
    let mut transfers = 0;
    for _ in 0..SCRIPTS {
        let mut script = "#FB private capacity=1GiB\n".to_string();
        let (verb, first, second) = match dice.below(2) {
            0 => ("stage_in", "destination", "source"),
            _ => ("stage_out", "source", "destination"),
        };
        let mut path = |from: &str| {
            let pieces = ["/", "/", "a", "..", ".", "%%", "%n", "%x", "//", "b"];
            (0..dice.below(7)).fold(from.to_string(), |path, _| path + dice.pick(&pieces))
        };
        let (inside, outside) = (path("$FB_JOB_SCRATCH"), path("/"));
        script.push_str(&format!("#FB {verb} {first}={inside} {second}={outside}\n"));
        let job = Job { nodes: Some(1), id: Some("7"), name: Some("x..%n"), ..Job::default() };
        for transfer in read(&script, &job).plan.transfers {
            transfers += 1;
            let plain =
                |path: &std::path::Path| path.components().all(|part| part.as_os_str() != "..");
            assert!(transfer.inside.is_relative() && plain(&transfer.inside), "{script}");
            assert!(transfer.outside.is_absolute() && plain(&transfer.outside), "{script}");
        }
    }
    assert!(transfers > 1_000, "{transfers}");
}

/// Garbage of several kinds, each far larger than a script may be: twice as much takes about twice as
/// long, where a quadratic reader would take minutes.
#[test]
fn the_work_is_linear() {
    let kinds: [(&str, &str); 7] = [
        ("", "#FB private capcity=1GiB nmae=x\n"),
        ("#DW jobdw ", "capcity=1GB "),
        ("#FB private capacity=1GiB\n#FB stage_out source=$FB_JOB_SCRATCH/a destination=/", "%%$a"),
        ("#FB stage_out source=", "$"),
        ("#FB stage_out source=$FB_JOB_SCRATCH/x destination=/x ", "last=a "),
        ("#DW jobdw capacity=1GB access_mode=striped(", "MFS=1,"),
        ("#!/bin/sh\necho\n", "#DW jobdw capacity=1GB\n"),
    ];
    for (head, piece) in kinds {
        let time = |bytes: usize| {
            let script = format!("{head}{}\n", piece.repeat(bytes / piece.len()));
            let begin = Instant::now();
            let found = read(&script, &Job::default());
            assert!(found.problems.len() <= PROBLEMS_MAX);
            let shown: usize = found.problems.iter().map(|p| p.shown("f", &script).len()).sum();
            assert!(shown < PROBLEMS_MAX * 2_000, "{shown}");
            begin.elapsed()
        };
        let (small, large) = (time(1 << 19), time(4 << 20));
        // Eight times as much; the minimum is for a machine that is busy with other work.
        let bound = small * 40 + std::time::Duration::from_millis(800);
        assert!(large < bound, "{piece:?}: {small:?} and {large:?}");
    }
}

#[test]
fn what_is_too_much_is_said_and_not_read() {
    let many = "#FB use name=a\n".repeat(DIRECTIVES_MAX + 1);
    let found = read(&many, &Job::default());
    assert!(found.problems.iter().any(|p| p.text.contains("more than 256 directives")));
    let long = format!("#FB private capacity=1GiB{}\n", " x=1".repeat(WORDS_MAX + 1));
    let found = read(&long, &Job::default());
    assert!(found.problems.iter().any(|p| p.text.contains("more than 64 words")));
    let lines = "#FB stage_out source=$FB_JOB_X/a destination=b on=c\n".repeat(200);
    let found = read(&lines, &Job::default());
    assert_eq!(found.problems.len(), PROBLEMS_MAX);
    assert!(found.left_out > 0);
}
