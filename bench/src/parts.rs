//! A kind of measurement that is made of named parts: its options, and its way from them to a verdict.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::environment::{Choices, Environment};
use crate::guard;
use crate::report::Report;
use crate::run::{Run, Subject};

#[derive(Args)]
pub struct Options {
    /// Small sizes and fewer rounds: a few minutes.
    #[arg(long)]
    quick: bool,
    /// Run only the parts whose names begin so.
    #[arg(long, num_args = 1.., value_name = "NAME")]
    only: Vec<String>,
    /// Rounds per measurement [default: 7, quick: 5]; slow parts do at most 5 (3).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=99))]
    rounds: Option<u64>,
    /// Print the parts and stop.
    #[arg(long)]
    list: bool,
    /// Where results go, one JSON object per line, the first one the conditions.
    #[arg(long, visible_alias = "json", value_name = "FILE")]
    out: Option<PathBuf>,
    /// Where a fragment for docs/PERFORMANCE.md goes.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    #[command(flatten)]
    places: crate::Places,
}

pub struct Part {
    pub name: &'static str,
    pub about: &'static str,
    pub work: fn(&Run, &mut Report) -> Result<()>,
}

/// Runs the chosen parts, each for at most `bound`; returns whether every target was reached.
///
/// `ready` says what is missing before anything is made.
///
/// # Errors
///
/// If a name of `--only` fits no part, something is missing, or a file cannot be written. A part that fails is a line of the report.
pub fn measure(
    options: &Options,
    parts: &[Part],
    bound: Duration,
    ready: fn() -> Result<()>,
) -> Result<bool> {
    if options.list {
        parts.iter().for_each(|part| println!("{:<14} {}", part.name, part.about));
        return Ok(true);
    }
    for name in &options.only {
        let known = parts.iter().any(|part| part.name.starts_with(name.as_str()));
        let names = parts.iter().map(|part| part.name).collect::<Vec<_>>().join(", ");
        ensure!(known, "--only {name}: no part begins so; there are {names}");
    }
    ready()?;
    guard::install();
    let [disk, tmpfs] = options.places.scratch()?;
    let rounds = options.rounds.map_or(if options.quick { 5 } else { 7 }, |n| n as usize);
    let binary = options.places.binary()?;
    let environment = Environment::observe(&Choices {
        disk: disk.path(),
        tmpfs: tmpfs.path(),
        forebay: binary.as_deref(),
        rounds,
        quick: options.quick,
    });
    let mut report = Report::new(environment, options.out.as_deref())?;
    let run = Run::new((rounds, options.quick), Subject::Forebay, binary, [disk, tmpfs]);
    let wants = |name: &str| {
        options.only.is_empty() || options.only.iter().any(|only| name.starts_with(only.as_str()))
    };
    for part in parts.iter().filter(|part| wants(part.name)) {
        if guard::interrupted() {
            break;
        }
        report.case(part.name, part.about);
        if let Err(error) = guard::bounded(bound, || (part.work)(&run, &mut report)) {
            report.fail(part.name, &format!("{error:#}"))?;
        }
    }
    let good = report.conclude();
    if let Some(path) = &options.markdown {
        std::fs::write(path, report.markdown())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(good)
}
