//! A run on a terminal: findings, tables, and sparklines of its course.

use std::fmt::Write;

use super::table::{self, Table};
use crate::record::{Outcome, Part, Record, Second};
use crate::spark::spark;
use crate::units::{human_count, human_rate};

/// Cells of a sparkline.
const SPARK: usize = 60;

/// The results, for the end of a run and for `report`.
pub fn results(record: &Record) -> String {
    let mut out = String::new();
    for table in table::of(record) {
        // The page has these; here the phases' own table says the same in fewer columns.
        if table.title != "As IOR prints it" {
            let _ = writeln!(out, "{}", aligned(&table));
        }
    }
    courses(&mut out, record);
    for warning in table::warnings(record) {
        let _ = writeln!(out, "warning: {warning}");
    }
    for finding in &record.findings {
        let _ = writeln!(out, "{}", finding.text);
    }
    if record.end.is_some_and(|end| end.outcome == Outcome::Interrupted) {
        let _ = writeln!(out, "interrupted: the figures are of the part that ran");
    }
    out
}

/// The conditions of the run.
pub fn facts(record: &Record) -> String {
    let facts = table::facts(record);
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    facts.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect()
}

/// The first column to the left, the others to the right.
fn aligned(table: &Table) -> String {
    let head: Vec<String> = table.head.iter().map(|text| (*text).to_owned()).collect();
    let lines: Vec<&Vec<String>> = std::iter::once(&head).chain(&table.rows).collect();
    let width = |column: usize| lines.iter().map(|l| l[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut out = String::new();
    for line in lines {
        for (column, (text, width)) in line.iter().zip(&widths).enumerate() {
            let _ = match column {
                0 => write!(out, "{text:width$}"),
                _ => write!(out, "  {text:>width$}"),
            };
        }
        out.truncate(out.trim_end_matches(' ').len());
        out.push('\n');
    }
    out
}

/// A sparkline per phase that lasted for some slices.
fn courses(out: &mut String, record: &Record) {
    let mut phases: Vec<(&str, u32)> = Vec::new();
    for slice in &record.seconds {
        if phases.last() != Some(&(slice.phase.as_str(), slice.iteration)) {
            phases.push((&slice.phase, slice.iteration));
        }
    }
    let mut drawn = false;
    for (phase, iteration) in phases {
        let slices = || {
            let same = |s: &&Second| s.phase == phase && s.iteration == iteration;
            record.seconds.iter().filter(same).filter(|s| s.part == Part::Measured)
        };
        let by_bytes = slices().any(|s| s.bytes > 0);
        let width = slices().map(|s| s.seconds).fold(0.0, f64::max);
        // The incomplete slice at the end has no meaningful rate.
        let rates: Vec<f64> = slices()
            .filter(|s| s.seconds >= width / 2.0)
            .map(|s| if by_bytes { s.bytes } else { s.ops } as f64 / s.seconds)
            .collect();
        if rates.len() > 2 {
            let _ =
                writeln!(out, "{phase:12} {} {}", spark(&rates, SPARK), extremes(&rates, by_bytes));
            drawn = true;
        }
    }
    if drawn {
        out.push('\n');
    }
}

/// The extremes beside a sparkline: that of a long phase averages, and would hide a stall.
fn extremes(rates: &[f64], by_bytes: bool) -> String {
    let (least, most) =
        rates.iter().fold((f64::INFINITY, 0.0f64), |(l, m), v| (l.min(*v), m.max(*v)));
    let text = |rate| match by_bytes {
        true => human_rate(rate),
        false => format!("{} ops/s", human_count(rate)),
    };
    format!("{} to {}", text(least), text(most))
}
