//! The demonstrations that people run first work as they say.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use forebay_tests::{Bed, Tier, binary, finish, needs_forebay, needs_tools, text};

/// A demonstration takes some ten seconds.
const LONGEST: Duration = Duration::from_secs(240);

#[test]
fn a_job_s_day_ends_with_every_byte_on_the_slow_side() {
    needs_forebay!();
    needs_tools!("sh", "mkfs.ext4", "sha256sum", "cmp");
    let bed = Bed::new(Tier::Disk);
    let work = bed.root.join("demo");
    std::fs::create_dir(&work).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/jobs.sh");
    let mut demo = Command::new("sh");
    demo.arg(script).env("FOREBAY", binary()).env("FOREBAY_DEMO_DIR", &work);
    let out = finish(&mut demo, LONGEST).ok();
    let said = |words: &str| assert!(out.stdout.contains(words), "no {words:?} in {out:#?}");
    said("the job begins behind part 0");
    said("40 results and 40 checkpoints are on the slow side, whole");
    said("everything is home");
    // The job was killed in the middle, and continued from its last checkpoint.
    let words = |head: &str| -> Vec<u32> {
        let lines = out.stdout.lines().filter_map(|line| line.trim().strip_prefix(head));
        lines.map(|rest| rest.trim().parse().unwrap()).collect()
    };
    let (killed, begun) = (words("killed behind part "), words("the job begins behind part "));
    assert!(killed.len() == 1 && (1..40).contains(&killed[0]), "{out:#?}");
    assert!(begun == [0, killed[0]], "{begun:?} {killed:?}");
    let mut pools = out.stdout.lines().filter(|line| line.starts_with("demo  flash"));
    let last = pools.next_back().unwrap_or_default();
    assert!(last.contains("600.0 MiB      0 B  600.0 MiB"), "something is granted: {last}");
    let left = std::fs::read_dir(&work).unwrap().count();
    assert_eq!(left, 0, "the demonstration leaves something in {}", text(&work));
}
