//! mdtest's output.

use std::fmt::Write as _;

use super::options::{Options, Show};
use super::phase::{ALL, Measured, Phase};
use crate::ior::{Statistics, place};
use crate::units::human_bytes;

/// A line of a text; writing to a string cannot fail.
macro_rules! line {
    ($out:expr, $($text:tt)*) => {{
        let _ = writeln!($out, $($text)*);
    }};
}

pub fn head(options: &Options, args: &[String]) -> String {
    let mut out = String::new();
    let quoted: Vec<String> = args.iter().map(|arg| format!("'{arg}'")).collect();
    line!(out, "-- started at {} --\n", stamp());
    line!(
        out,
        "mdtest-4.1.0+forebay-{} was launched with {} total task(s) on 1 node(s)",
        env!("CARGO_PKG_VERSION"),
        options.tasks
    );
    line!(out, "Command line used: forebay bench mdtest {}", quoted.join(" "));
    line!(out, "Nodemap: {}", "1".repeat(options.tasks));
    for directory in &options.directories {
        line!(out, "{:<20}: {}", "Path", directory.display());
        if let Ok(usage) = place::usage(directory) {
            line!(out, "{:<20}: {}", "FS", usage.line());
        }
    }
    let what = match (options.files, options.dirs) {
        (true, false) => "files",
        (false, true) => "directories",
        _ => "files/directories",
    };
    line!(out, "{} tasks, {} {what}", options.tasks, options.items * options.tasks as u64);
    out
}

pub fn summary(options: &Options, measured: &[Measured]) -> String {
    let mut out = String::new();
    let iterations = options.iterations;
    if options.show != Show::Time {
        let heading = format!("SUMMARY rate (in ops/sec): (of {iterations} iterations)");
        table(&mut out, &heading, (options, measured), Measured::rate);
    }
    if options.show != Show::Rate {
        let heading = format!("SUMMARY time (in ms/op): (of {iterations} iterations)");
        let time = |m: &Measured| m.seconds * 1e3 / m.items.max(1) as f64;
        table(&mut out, &heading, (options, measured), time);
    }
    out
}

fn table(
    out: &mut String,
    heading: &str,
    (options, measured): (&Options, &[Measured]),
    of: fn(&Measured) -> f64,
) {
    line!(out, "\n{heading}");
    line!(out, "   Operation                     Max            Min           Mean        Std Dev");
    line!(out, "   ---------                     ---            ---           ----        -------");
    for phase in ALL.into_iter().filter(|phase| shown(options, *phase)) {
        let values = measured.iter().filter(|m| m.phase == phase).map(of);
        let found = Statistics::of_sample(values);
        line!(
            out,
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

/// The results that mdtest does not show: the page cache before files were read, and doubts.
pub fn evidence(measured: &[Measured]) -> String {
    let mut out = String::new();
    let read = measured.iter().filter(|m| m.resident.is_some() && m.bytes > 0);
    let lines: Vec<String> = read
        .map(|m| {
            let share = m.resident.unwrap_or(0.0) * 100.0;
            let name = format!("{} {}", m.phase.name(), m.iteration);
            format!("{name:<20}: {share:.1} % of {} was resident before", human_bytes(m.bytes))
        })
        .collect();
    if !lines.is_empty() {
        line!(out, "\nPage cache: \n{}", lines.join("\n"));
    }
    for m in measured {
        for warning in &m.warnings {
            line!(out, "WARNING: {} {}: {warning}", m.phase.name(), m.iteration);
        }
    }
    out
}

pub const INTERRUPTED: &str = "WARNING: interrupted; the numbers cover what was done until then\n";

pub fn tail() -> String {
    format!("-- finished at {} --\n", stamp())
}

fn stamp() -> String {
    place::local_time(c"%m/%d/%Y %H:%M:%S")
}
