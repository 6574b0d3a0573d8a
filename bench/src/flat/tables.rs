//! The fragment for docs/PERFORMANCE.md: a table of presets, one of databases, and sentences.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

#[derive(Default)]
pub struct Sheet {
    notes: Vec<String>,
    presets: Vec<String>,
    databases: Vec<String>,
    facts: Vec<String>,
    records: Vec<PathBuf>,
}

const PRESETS: &str = "| preset | op/s | variation of seconds | lowest second / mean | p50 ms | \
    p99 ms | p99.9 ms | uncached p50 ms | uncached p99 ms |\n|---|---|---|---|---|---|---|---|---|\n";

const DATABASES: &str = "| database | on | transactions/s | variation of intervals | \
    lowest interval / mean | 95 % below, ms | MiB to the store (left dirty) |\n\
    |---|---|---|---|---|---|---|\n";

impl Sheet {
    pub fn note(&mut self, text: &str) {
        self.notes.push(text.to_owned());
    }

    pub fn preset(&mut self, cells: &[String]) {
        self.presets.push(row(cells));
    }

    pub fn database(&mut self, cells: &[String]) {
        self.databases.push(row(cells));
    }

    pub fn fact(&mut self, text: String) {
        self.facts.push(text);
    }

    pub fn record(&mut self, path: PathBuf) {
        self.records.push(path);
    }

    /// Writes `flat.md` and has the pictures drawn.
    pub fn finish(&self, out: &Path, forebay: &Path, conditions: &str) -> Result<()> {
        let mut text = format!("{conditions}\n");
        self.notes.iter().for_each(|note| {
            let _ = writeln!(text, "Load: {note}.\n");
        });
        for (head, rows) in [(PRESETS, &self.presets), (DATABASES, &self.databases)] {
            if !rows.is_empty() {
                let _ = writeln!(text, "{head}{}", rows.concat());
            }
        }
        self.facts.iter().for_each(|fact| {
            let _ = writeln!(text, "- {fact}");
        });
        let path = out.join("flat.md");
        std::fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
        print!("\n{text}");
        self.draw(out, forebay)
    }

    fn draw(&self, out: &Path, forebay: &Path) -> Result<()> {
        if self.records.is_empty() {
            return Ok(());
        }
        let drawn = Command::new(forebay)
            .args(["bench", "report", "--svg", "--out"])
            .arg(out)
            .args(&self.records)
            .output()?;
        let told = String::from_utf8_lossy(&drawn.stderr);
        ensure!(drawn.status.success(), "forebay bench report: {told}");
        Ok(())
    }
}

fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}
