//! Findings and the three ways to show them: table, NDJSON, markdown.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::environment::{Environment, load_average};
use crate::stat::{Samples, Summary};

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    fn met_by(self, value: f64) -> bool {
        match self {
            Target::AtLeast(bound) => value >= bound,
            Target::AtMost(bound) => value <= bound,
        }
    }

    /// `reached 0.97 (target at least 0.95)` or `MISSED 0.80 (...)`.
    fn verdict(self, value: f64) -> String {
        let word = if self.met_by(value) { "reached" } else { "MISSED" };
        let (kind, bound) = match self {
            Target::AtLeast(bound) => ("at least", bound),
            Target::AtMost(bound) => ("at most", bound),
        };
        format!("{word} {} (target {kind} {})", number(value), number(bound))
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    pub who: String,
    #[serde(flatten)]
    pub summary: Summary,
}

#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub with: Measured,
    /// Subject over `with`, formed per round.
    pub ratio: Summary,
    pub target: Option<Target>,
}

/// One measured value: the subject's result, the others' results, and the targets.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    pub case: String,
    /// The conditions: cache state, file, size.
    pub state: String,
    pub unit: &'static str,
    pub subject: Measured,
    pub target: Option<Target>,
    pub comparisons: Vec<Comparison>,
    /// The load of the whole machine, over the last minute, when the finding was made.
    pub load_average: f64,
}

impl Finding {
    /// The subject is contestant 0 of `samples`, named `names[0]`.
    pub fn new(
        case: &str,
        state: &str,
        unit: &'static str,
        names: &[String],
        samples: &Samples,
    ) -> Finding {
        let measured =
            |index: usize| Measured { who: names[index].clone(), summary: samples.summary(index) };
        let compare = |index| Comparison {
            with: measured(index),
            ratio: samples.ratio(0, index),
            target: None,
        };
        Finding {
            case: case.into(),
            state: state.into(),
            unit,
            subject: measured(0),
            target: None,
            comparisons: (1..names.len()).map(compare).collect(),
            load_average: load_average(),
        }
    }

    /// A finding without contestants.
    pub fn alone(
        case: &str,
        state: &str,
        unit: &'static str,
        who: &str,
        values: &[f64],
    ) -> Finding {
        let mut samples = Samples::new(1);
        values.iter().for_each(|value| samples.add(0, *value));
        Finding::new(case, state, unit, &[who.to_owned()], &samples)
    }

    /// Compares with a bound that is computed, not measured.
    pub fn against(mut self, who: &str, bound: f64, target: Option<Target>) -> Finding {
        let of = self.subject.summary;
        let ratio = Summary {
            min: of.min / bound,
            median: of.median / bound,
            max: of.max / bound,
            rounds: of.rounds,
        };
        let with = Measured { who: who.into(), summary: Summary::of(&[bound]) };
        self.comparisons.push(Comparison { with, ratio, target });
        self
    }

    /// Sets the target of the subject itself.
    pub fn target(mut self, target: Target) -> Finding {
        self.target = Some(target);
        self
    }

    /// Sets the target of the ratio to `who`; nothing if `who` did not take part.
    pub fn ratio_target(mut self, who: &str, target: Target) -> Finding {
        let asked = self.comparisons.iter_mut().find(|comparison| comparison.with.who == who);
        if let Some(comparison) = asked {
            comparison.target = Some(target);
        }
        self
    }

    /// Every target with the value reached.
    fn judged(&self) -> Vec<(Target, f64)> {
        let own = self.target.map(|target| (target, self.subject.summary.median));
        let ratios = self.comparisons.iter();
        let ratios = ratios.filter_map(|one| Some((one.target?, one.ratio.median)));
        own.into_iter().chain(ratios).collect()
    }
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Line<'a> {
    Header(&'a Environment),
    Finding(&'a Finding),
    /// A case that did not run, or ended early.
    Skipped {
        case: &'a str,
        why: &'a str,
    },
    Failed {
        case: &'a str,
        why: &'a str,
    },
}

/// Collects findings, shows each as it comes, writes the files.
pub struct Report {
    environment: Environment,
    findings: Vec<Finding>,
    skipped: Vec<(String, String)>,
    failed: Vec<(String, String)>,
    ndjson: Option<File>,
}

impl Report {
    pub fn new(environment: Environment, ndjson: Option<&Path>) -> Result<Report> {
        let create = |path: &Path| {
            File::create(path).with_context(|| format!("cannot write {}", path.display()))
        };
        let ndjson = ndjson.map(create).transpose()?;
        print!("{}", environment.text());
        let mut report =
            Report { environment, findings: vec![], skipped: vec![], failed: vec![], ndjson };
        let header = serde_json::to_string(&Line::Header(&report.environment))?;
        report.line(&header)?;
        Ok(report)
    }

    pub fn case(&self, name: &str, about: &str) {
        println!("\n== {name}: {about}");
    }

    pub fn add(&mut self, finding: Finding) -> Result<()> {
        print!("{}", rows(&finding));
        let line = serde_json::to_string(&Line::Finding(&finding))?;
        self.line(&line)?;
        self.findings.push(finding);
        Ok(())
    }

    pub fn skip(&mut self, case: &str, why: &str) -> Result<()> {
        println!("SKIPPED: {case}: {why}");
        let line = serde_json::to_string(&Line::Skipped { case, why })?;
        self.skipped.push((case.into(), why.into()));
        self.line(&line)
    }

    pub fn fail(&mut self, case: &str, why: &str) -> Result<()> {
        println!("FAILED: {case}: {why}");
        let line = serde_json::to_string(&Line::Failed { case, why })?;
        self.failed.push((case.into(), why.into()));
        self.line(&line)
    }

    fn line(&mut self, line: &str) -> Result<()> {
        match &mut self.ndjson {
            Some(file) => writeln!(file, "{line}").context("cannot write the results file"),
            None => Ok(()),
        }
    }

    /// Prints the overall result; true if every target was met and nothing failed.
    pub fn conclude(&self) -> bool {
        let judged: Vec<_> = self.findings.iter().flat_map(Finding::judged).collect();
        let missed = judged.iter().filter(|(target, value)| !target.met_by(*value)).count();
        println!(
            "\n{} targets: {} reached, {missed} missed; {} cases skipped, {} failed",
            judged.len(),
            judged.len() - missed,
            self.skipped.len(),
            self.failed.len()
        );
        let busy_above = self.environment.cpus as f64 + 1.0;
        let busy = self.findings.iter().filter(|one| one.load_average > busy_above).count();
        if busy > 0 {
            println!(
                "The machine was busy (load above {busy_above:.0}) for {busy} of {} findings: \
                 trust ratios, and those only with narrow spreads.",
                self.findings.len()
            );
        }
        for finding in &self.findings {
            for (target, value) in finding.judged() {
                if !target.met_by(value) {
                    println!("  {}: {}", finding.case, target.verdict(value));
                }
            }
        }
        missed == 0 && self.failed.is_empty()
    }

    /// The fragment for docs/PERFORMANCE.md.
    pub fn markdown(&self) -> String {
        let mut text = self.environment.markdown();
        text.push_str(
            "\n| case | conditions | reached | compared with | ratio (min - max) | target |\n",
        );
        text.push_str("|---|---|---|---|---|---|\n");
        for finding in &self.findings {
            text.push_str(&markdown_rows(finding));
        }
        for (case, why) in self.skipped.iter().chain(&self.failed) {
            let _ = writeln!(text, "| {case} | not measured: {why} | | | | |");
        }
        text
    }
}

fn rows(finding: &Finding) -> String {
    let mut text = String::new();
    let own = finding.target.map(|target| target.verdict(finding.subject.summary.median));
    let _ = writeln!(text, "{}  ({})", finding.case, finding.state);
    let _ = writeln!(
        text,
        "    {:<14} {:>11} {:<8} {:<20} {}",
        finding.subject.who,
        number(finding.subject.summary.median),
        finding.unit,
        spread(finding.subject.summary),
        own.unwrap_or_default()
    );
    for comparison in &finding.comparisons {
        let _ = writeln!(
            text,
            "    {:<14} {:>11} {:<8} {:<20} ratio {} {}  {}",
            comparison.with.who,
            number(comparison.with.summary.median),
            finding.unit,
            spread(comparison.with.summary),
            number(comparison.ratio.median),
            spread(comparison.ratio),
            comparison.target.map(|t| t.verdict(comparison.ratio.median)).unwrap_or_default()
        );
    }
    text
}

fn markdown_rows(finding: &Finding) -> String {
    let mut text = String::new();
    let reached = format!("{} {}", number(finding.subject.summary.median), finding.unit);
    let own = finding.target.map(|target| target.verdict(finding.subject.summary.median));
    if finding.comparisons.is_empty() || own.is_some() {
        let own = own.unwrap_or_default();
        let _ = writeln!(text, "| {} | {} | {reached} | | | {own} |", finding.case, finding.state);
    }
    for comparison in &finding.comparisons {
        let verdict = comparison.target.map(|t| t.verdict(comparison.ratio.median));
        let _ = writeln!(
            text,
            "| {} | {} | {reached} | {} {} | {} ({} - {}) | {} |",
            finding.case,
            finding.state,
            comparison.with.who,
            number(comparison.with.summary.median),
            number(comparison.ratio.median),
            number(comparison.ratio.min),
            number(comparison.ratio.max),
            verdict.unwrap_or_default()
        );
    }
    text
}

fn spread(summary: Summary) -> String {
    if summary.rounds == 1 {
        return String::new();
    }
    format!("[{} .. {}]", number(summary.min), number(summary.max))
}

/// Three significant digits for small numbers, none after the point for large ones.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_says_target_and_reached() {
        assert_eq!(Target::AtLeast(0.95).verdict(0.97), "reached 0.97 (target at least 0.95)");
        assert_eq!(Target::AtMost(1.25).verdict(1.5), "MISSED 1.50 (target at most 1.25)");
    }

    #[test]
    fn only_asked_ratios_are_judged() {
        let names = ["forebay".to_owned(), "native".to_owned(), "other".to_owned()];
        let mut samples = Samples::new(3);
        (0..3).for_each(|who| samples.add(who, 1.0));
        let finding = Finding::new("case", "warm", "MB/s", &names, &samples)
            .ratio_target("native", Target::AtLeast(0.9))
            .ratio_target("absent", Target::AtLeast(0.9));
        assert_eq!(finding.judged(), vec![(Target::AtLeast(0.9), 1.0)]);
    }
}
