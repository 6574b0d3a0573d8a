//! A kind of measurement that is made of named parts: its options, and its way from them to a verdict.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::environment::{Choices, Environment};
use crate::guard;
use crate::report::Report;
use crate::run::{Run, Subject};

/// What every kind of measurement takes.
#[derive(Args)]
pub struct Common {
    /// Small sizes and fewer rounds: a few minutes.
    #[arg(long)]
    pub quick: bool,
    /// Rounds per measurement [default: 7, quick: 5]; slow ones do at most 5 (3).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=99))]
    rounds: Option<u64>,
    /// Where results go, one JSON object per line, the first one the conditions.
    #[arg(long, visible_alias = "json", value_name = "FILE")]
    out: Option<PathBuf>,
    /// Where a fragment for docs/PERFORMANCE.md goes.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    #[command(flatten)]
    pub places: crate::Places,
}

impl Common {
    /// Does the work between the conditions, which begin the report, and the report's end; returns whether every
    /// target was reached.
    ///
    /// # Errors
    ///
    /// Those of the work; or a file cannot be written.
    pub fn report(
        &self,
        subject: Subject,
        binary: Option<PathBuf>,
        work: impl FnOnce(&Run, &mut Report) -> Result<()>,
    ) -> Result<bool> {
        guard::install();
        let [disk, tmpfs] = self.places.scratch()?;
        let rounds = self.rounds.map_or(if self.quick { 5 } else { 7 }, |n| n as usize);
        let environment = Environment::observe(&Choices {
            disk: disk.path(),
            tmpfs: tmpfs.path(),
            forebay: binary.as_deref(),
            rounds,
            quick: self.quick,
        });
        let mut report = Report::new(environment, self.out.as_deref())?;
        let run = Run::new((rounds, self.quick), subject, binary, [disk, tmpfs]);
        work(&run, &mut report)?;
        let good = report.conclude();
        if let Some(path) = &self.markdown {
            std::fs::write(path, report.markdown())
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(good)
    }
}

#[derive(Args)]
pub struct Options {
    /// Run only the parts whose names begin so.
    #[arg(long, num_args = 1.., value_name = "NAME")]
    only: Vec<String>,
    /// Print the parts and stop.
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    pub common: Common,
}

/// A part does its work with what all parts of its kind have.
pub struct Part<Work> {
    pub name: &'static str,
    pub about: &'static str,
    pub work: Work,
}

impl Options {
    /// The parts that were asked for; `None` if they were only to be listed, which is done.
    ///
    /// # Errors
    ///
    /// If a name of `--only` fits no part.
    pub fn chosen<'a, Work>(&self, parts: &'a [Part<Work>]) -> Result<Option<Vec<&'a Part<Work>>>> {
        if self.list {
            parts.iter().for_each(|part| println!("{:<14} {}", part.name, part.about));
            return Ok(None);
        }
        for name in &self.only {
            let known = parts.iter().any(|part| part.name.starts_with(name.as_str()));
            let names = parts.iter().map(|part| part.name).collect::<Vec<_>>().join(", ");
            ensure!(known, "--only {name}: no part begins so; there are {names}");
        }
        let wants = |part: &&Part<Work>| {
            let fits = |only: &String| part.name.starts_with(only.as_str());
            self.only.is_empty() || self.only.iter().any(fits)
        };
        Ok(Some(parts.iter().filter(wants).collect()))
    }
}

/// Does the parts one after the other, each for at most `bound`. One that fails is a line of the report.
///
/// # Errors
///
/// If the report cannot be written.
pub fn perform<Work: Copy>(
    parts: &[&Part<Work>],
    bound: Duration,
    report: &mut Report,
    mut work: impl FnMut(Work, &mut Report) -> Result<()>,
) -> Result<()> {
    for part in parts {
        if guard::interrupted() {
            break;
        }
        report.case(part.name, part.about);
        if let Err(error) = guard::bounded(bound, || work(part.work, report)) {
            report.fail(part.name, &format!("{error:#}"))?;
        }
    }
    Ok(())
}

/// A part that needs nothing but a run.
pub type Plain = fn(&Run, &mut Report) -> Result<()>;

/// Runs the chosen parts with the binary; returns whether every target was reached.
///
/// `ready` says what is missing before anything is made.
///
/// # Errors
///
/// If a name of `--only` fits no part, something is missing, or a file cannot be written.
pub fn measure(
    options: &Options,
    parts: &[Part<Plain>],
    bound: Duration,
    ready: fn() -> Result<()>,
) -> Result<bool> {
    let Some(chosen) = options.chosen(parts)? else { return Ok(true) };
    ready()?;
    let binary = options.common.places.binary()?;
    options.common.report(Subject::Forebay, binary, |run, report| {
        perform(&chosen, bound, report, |work, report| work(run, report))
    })
}
