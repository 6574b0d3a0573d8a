//! mdtest's output.

use std::io::Write;

use super::options::{Options, Show};
use super::phase::{ALL, Measured, Phase};
use crate::ior::{Statistics, place};
use crate::units::human_bytes;

/// A line of output. A reader that went away is no reason to stop and leave files behind.
macro_rules! say {
    ($($text:tt)*) => {{
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

pub fn head(options: &Options, args: &[String]) {
    let quoted: Vec<String> = args.iter().map(|arg| format!("'{arg}'")).collect();
    say!("-- started at {} --\n", stamp());
    say!(
        "mdtest-4.1.0+forebay-{} was launched with {} total task(s) on 1 node(s)",
        env!("CARGO_PKG_VERSION"),
        options.tasks
    );
    say!("Command line used: forebay bench mdtest {}", quoted.join(" "));
    say!("Nodemap: {}", "1".repeat(options.tasks));
    for directory in &options.directories {
        say!("{:<20}: {}", "Path", directory.display());
        if let Ok(usage) = place::usage(directory) {
            say!("{:<20}: {}", "FS", usage.line());
        }
    }
    let what = match (options.files, options.dirs) {
        (true, false) => "files",
        (false, true) => "directories",
        _ => "files/directories",
    };
    say!("{} tasks, {} {what}", options.tasks, options.items * options.tasks as u64);
}

pub fn summary(options: &Options, measured: &[Measured]) {
    let iterations = options.iterations;
    if options.show != Show::Time {
        let heading = format!("SUMMARY rate (in ops/sec): (of {iterations} iterations)");
        table(&heading, options, measured, Measured::rate);
    }
    if options.show != Show::Rate {
        let heading = format!("SUMMARY time (in ms/op): (of {iterations} iterations)");
        table(&heading, options, measured, |m| m.seconds * 1e3 / m.items.max(1) as f64);
    }
}

fn table(heading: &str, options: &Options, measured: &[Measured], of: fn(&Measured) -> f64) {
    say!("\n{heading}");
    say!("   Operation                     Max            Min           Mean        Std Dev");
    say!("   ---------                     ---            ---           ----        -------");
    for phase in ALL.into_iter().filter(|phase| shown(options, *phase)) {
        let values = measured.iter().filter(|m| m.phase == phase).map(of);
        let found = Statistics::of(values);
        say!(
            "   {:<22}{:>15.3}{:>15.3}{:>15.3}{:>15.3}",
            phase.name(),
            found.max,
            found.min,
            found.mean,
            found.deviation
        );
    }
}

fn shown(options: &Options, phase: Phase) -> bool {
    match phase {
        Phase::DirectoryCreation
        | Phase::DirectoryStat
        | Phase::DirectoryRename
        | Phase::DirectoryRemoval => options.dirs,
        Phase::FileCreation | Phase::FileStat | Phase::FileRead | Phase::FileRemoval => {
            options.files
        }
        Phase::TreeCreation | Phase::TreeRemoval => true,
    }
}

pub fn interrupted() {
    say!("WARNING: interrupted; the numbers cover what was done until then");
}

/// What mdtest does not tell: the page cache before files were read, and doubts.
pub fn evidence(measured: &[Measured]) {
    let read = measured.iter().filter(|m| m.resident.is_some() && m.bytes > 0);
    let lines: Vec<String> = read
        .map(|m| {
            let share = m.resident.unwrap_or(0.0) * 100.0;
            let name = format!("{} {}", m.phase.name(), m.iteration);
            format!("{name:<20}: {share:.1} % of {} was resident before", human_bytes(m.bytes))
        })
        .collect();
    if !lines.is_empty() {
        say!("\nPage cache: \n{}", lines.join("\n"));
    }
    for m in measured {
        m.warnings.iter().for_each(|w| say!("WARNING: {} {}: {w}", m.phase.name(), m.iteration));
    }
}

pub fn tail() {
    say!("-- finished at {} --", stamp());
}

fn stamp() -> String {
    place::local_time(c"%m/%d/%Y %H:%M:%S")
}
