//! `forebay-perf daily`: people's daily work: databases, logs, archives, checkouts, listings.
//!
//! The parts of `resident` work on files in the tier, beside a directory of the same file system and an empty
//! passthrough daemon. Those of `slow` work on a store that answers late: each contestant has a store of its
//! own, an empty daemon that delays every request of the kernel by 5 ms, as a remote server would. forebay and
//! rclone run on top of theirs; *store* is the same work on such a store itself, with everything that the kernel
//! caches of it.

mod resident;
mod slow;

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::parts::{self, Options, Part, Plain};

const PARTS: [Part<Plain>; 11] = [
    Part {
        name: "rewrite",
        about: "writes with a sync, and appends, to a file that was there before",
        work: resident::rewrite,
    },
    Part {
        name: "partial",
        about: "4 KiB writes into a file that is not in the tier",
        work: resident::partial,
    },
    Part {
        name: "small-tier",
        about: "4 KiB writes into a new file, with a tier of 1 and 2 GiB",
        work: resident::small_tier,
    },
    Part { name: "open", about: "open, read, close of small cached files", work: resident::open },
    Part { name: "sqlite", about: "commits with either journal", work: resident::sqlite },
    Part { name: "untar", about: "small files from an archive, and rm -r", work: resident::untar },
    Part {
        name: "changed",
        about: "flush of a large file of which 1 % changed",
        work: resident::changed,
    },
    Part { name: "cold", about: "small files of a slow store, read first", work: slow::cold },
    Part { name: "list", about: "ls -l of a directory of a slow store", work: slow::list },
    Part { name: "git", about: "git status and clone on a slow store", work: slow::git },
    Part { name: "archive", about: "tar x and rm -r on a slow store", work: slow::archive },
];

/// The time bound of one part.
const BOUND: Duration = Duration::from_secs(1800);

/// Returns whether every target was reached.
pub fn measure(options: &Options) -> Result<bool> {
    parts::measure(options, &PARTS, BOUND, || Ok(()))
}

/// Runs a program to its end; returns the seconds it took.
fn seconds(command: &mut Command) -> Result<f64> {
    let begun = Instant::now();
    tell(command)?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Runs a program to its end; returns its output.
fn tell(command: &mut Command) -> Result<Vec<u8>> {
    let what = format!("{command:?}");
    let output = command.stdin(std::process::Stdio::null()).output().context(what.clone())?;
    ensure!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}

/// Whether a program is installed; a measurement that needs it reports its absence.
fn there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}
