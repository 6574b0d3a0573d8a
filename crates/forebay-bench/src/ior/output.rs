//! IOR's output: the text that scripts read, or JSON, or CSV; on standard output or in
//! `summaryFile`.
//!
//! Results that IOR does not have (cache residency, plausibility) are in a section of their own
//! between the `Max` lines and the summary, which scripts for IOR do not read.

mod json;
mod table;

pub use table::options;

use std::io::Write;
use std::path::Path;

use serde_json::Value;

use super::measure::Measured;
use super::params::{Format, Params};
use super::run::Ran;
use super::{layout, place};
use crate::io::Direction;
use crate::{Error, Result};

/// Writes results as they come, except JSON, which is written at the end.
pub struct Output {
    format: Format,
    sink: Box<dyn Write>,
    /// The document under construction, in JSON only.
    document: serde_json::Map<String, Value>,
    tests: Vec<Value>,
    results: Vec<Value>,
    current: Vec<Value>,
    /// When the test at hand began.
    started: String,
    verbose: u64,
}

impl Output {
    /// Opens the sink and writes the head.
    pub fn new(params: &Params, command: &str) -> Result<Self> {
        let sink: Box<dyn Write> = match &params.summary_file {
            Some(path) => Box::new(create("-O summaryFile", path)?),
            None => params.sinks().terminal(),
        };
        let mut output = Self::into_sink(params, sink);
        output.head(command);
        Ok(output)
    }

    /// An output for runs whose record alone is wanted.
    pub fn nowhere(params: &Params) -> Self {
        Self::into_sink(params, Box::new(std::io::sink()))
    }

    fn into_sink(params: &Params, sink: Box<dyn Write>) -> Self {
        Self {
            format: params.summary_format,
            sink,
            document: serde_json::Map::new(),
            tests: Vec::new(),
            results: Vec::new(),
            current: Vec::new(),
            started: String::new(),
            verbose: params.verbose,
        }
    }

    fn head(&mut self, command: &str) {
        let pairs = [
            ("Began", place::now_text()),
            ("Command line", command.to_owned()),
            ("Machine", place::machine()),
        ];
        match self.format {
            Format::Default => {
                self.line(concat!(
                    "IOR-4.1.0+forebay-",
                    env!("CARGO_PKG_VERSION"),
                    ": Coordinated Test of Parallel I/O (without MPI)"
                ));
                pairs.iter().for_each(|(key, value)| self.pair(key, value));
            }
            Format::Json => {
                self.document.insert("Version".into(), "4.1.0+forebay".into());
                let pairs = pairs.map(|(key, value)| (key.to_owned(), Value::from(value)));
                self.document.extend(pairs);
            }
            Format::Csv => self.line(table::CSV_HEAD),
        }
    }

    pub fn test_start(&mut self, params: &Params, id: usize, signature: u32) {
        self.verbose = params.verbose;
        self.results.clear();
        self.started = place::now_text();
        if self.format != Format::Default {
            return;
        }
        self.pair("TestID", &id.to_string());
        let started = self.started.clone();
        self.pair("StartTime", &started);
        let path = layout::file(params, 0, 0);
        self.pair("Path", &path.display().to_string());
        if let Ok(usage) = place::usage(&path) {
            self.pair("FS", &usage.line());
        }
        if self.verbose > 0 {
            self.pair("Participating tasks ", &params.tasks.to_string());
            self.line(&format!("Using Time Stamp {signature} ({signature:#x}) for Data Signature"));
        }
        self.line("\nOptions: ");
        for (key, value) in table::options(params) {
            self.pair(&key, &value);
        }
        if !params.dry_run {
            self.line("\nResults: \n");
            self.line(table::HEAD);
            self.line(table::RULE);
        }
    }

    pub fn repetition_start(&mut self) {
        self.current.clear();
    }

    pub fn repetition_end(&mut self) {
        self.results.push(Value::Array(std::mem::take(&mut self.current)));
    }

    /// The line IOR prints before each phase when it is verbose.
    pub fn commencing(&mut self, direction: Direction) {
        if self.verbose > 0 {
            let name = if direction == Direction::Write { "write" } else { "read" };
            let now = place::now_text();
            self.note(&format!("Commencing {name} performance test: {now}"));
        }
    }

    pub fn phase(&mut self, params: &Params, measured: &Measured) {
        match self.format {
            Format::Default => self.line(&table::row(params, measured)),
            Format::Csv => self.line(&table::csv_row(params, measured)),
            Format::Json => self.current.push(json::phase(params, measured)),
        }
    }

    pub fn removed(&mut self, seconds: f64, repetition: usize) {
        match self.format {
            Format::Default => self.line(&table::removed(seconds, repetition)),
            Format::Csv => (),
            Format::Json => self.current.push(json::removed(seconds)),
        }
    }

    /// The outcome of a comparison; each difference goes to standard error.
    pub fn verification(&mut self, access: &str, errors: u64, complaints: &[String]) {
        complaints.iter().for_each(|line| eprintln!("forebay bench ior: {line}"));
        if errors > 0 {
            self.warn(&format!("Incorrect data on {access} ({errors} errors found)."));
        }
    }

    pub fn warn(&mut self, text: &str) {
        self.note(&format!("WARNING: {text}"));
    }

    /// Writes a line among the results in text, and on standard error where it would break a
    /// format.
    pub fn note(&mut self, text: &str) {
        match self.format {
            Format::Default => self.line(text),
            Format::Json | Format::Csv => eprintln!("{text}"),
        }
    }

    pub fn test_end(&mut self, ran: &Ran) {
        match self.format {
            Format::Default => self.test_end_text(ran),
            Format::Json => {
                let results = std::mem::take(&mut self.results);
                self.tests.push(json::test(ran, &self.started, results));
            }
            Format::Csv => table::warnings(&ran.phases).iter().for_each(|text| self.warn(text)),
        }
    }

    fn test_end_text(&mut self, ran: &Ran) {
        table::maxima(&ran.phases).iter().for_each(|line| self.line(line));
        let told = ran.phases.iter().filter_map(|phase| table::evidence(&ran.params, phase));
        let evidence: Vec<(String, String)> = told.collect();
        if !evidence.is_empty() {
            self.line("\nPage cache: ");
            evidence.iter().for_each(|(key, value)| self.pair(key, value));
        }
        table::warnings(&ran.phases).iter().for_each(|text| self.warn(text));
    }

    /// The summary of all tests and the last line.
    pub fn finish(mut self, tests: &[Ran]) -> Result<()> {
        match self.format {
            Format::Default => {
                self.line(&format!("\nSummary of all tests:\n{}", table::SUMMARY_HEAD));
                for row in tests.iter().flat_map(table::summary) {
                    self.line(&row);
                }
                self.pair("Finished", &place::now_text());
            }
            Format::Json => {
                let mut document = std::mem::take(&mut self.document);
                document.insert("tests".into(), std::mem::take(&mut self.tests).into());
                document.insert("summary".into(), tests.iter().flat_map(json::summary).collect());
                document.insert("Finished".into(), place::now_text().into());
                let text = serde_json::to_string_pretty(&document).expect("no odd keys");
                self.line(&text);
            }
            Format::Csv => (),
        }
        self.sink.flush().map_err(|error| Error::failed(format!("cannot write results: {error}")))
    }

    fn pair(&mut self, key: &str, value: &str) {
        self.line(&format!("{key:<20}: {value}"));
    }

    fn line(&mut self, text: &str) {
        // A reader that went away (`| head`) is no reason to stop measuring and leave files behind.
        let _ = writeln!(self.sink, "{text}");
        let _ = self.sink.flush();
    }
}

fn create(option: &str, path: &Path) -> Result<std::fs::File> {
    std::fs::File::create(path)
        .map_err(|error| Error::usage(format!("{option}={}: {error}", path.display())))
}
