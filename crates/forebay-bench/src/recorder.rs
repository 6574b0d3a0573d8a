//! Writes a run's result lines as they come, so that an interrupted run leaves its measurements.
//!
//! Invariant R1: the files of `--out` and `--json` are open before anything is measured; a path
//! that cannot be written is the user's error, found at the start.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::args::Parsed;
use crate::error::{Error, Result};
use crate::meter::Latencies;
use crate::record::{End, Finding, Header, Latency, Line, Outcome, Part, Record, Second};
use crate::slices::{Slice, Slices};

/// The destinations of results besides the terminal; `-` is standard output.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sinks {
    /// `--out`: lines, as they are measured.
    pub ndjson: Option<PathBuf>,
    /// `--json`: one document, at the end.
    pub json: Option<PathBuf>,
}

impl Sinks {
    pub fn of(parsed: &Parsed) -> Sinks {
        let [ndjson, json] = ["out", "json"].map(|name| parsed.get(name).map(PathBuf::from));
        Sinks { ndjson, json }
    }

    /// Where text for people goes: to standard error if results take standard output.
    pub fn terminal(&self) -> Box<dyn Write> {
        match [&self.ndjson, &self.json].into_iter().flatten().any(|path| is_output(path)) {
            true => Box::new(io::stderr()),
            false => Box::new(io::stdout()),
        }
    }
}

fn is_output(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Takes the lines of one run.
pub struct Recorder {
    record: Record,
    ndjson: Option<(PathBuf, File)>,
    json: Option<(PathBuf, File)>,
    began: Instant,
}

impl Recorder {
    /// Opens the files (R1) and writes the header.
    pub fn begin(header: Header, sinks: &Sinks) -> Result<Self> {
        let mut recorder = Self {
            record: Record::default(),
            ndjson: create("--out", sinks.ndjson.as_deref())?,
            json: create("--json", sinks.json.as_deref())?,
            began: Instant::now(),
        };
        recorder.put(Line::Header(header))?;
        Ok(recorder)
    }

    /// Keeps a line and writes it at once.
    pub fn put(&mut self, line: Line) -> Result<()> {
        if let Some((path, file)) = &mut self.ndjson {
            let mut text = serde_json::to_string(&line).expect("a line has no maps by non-strings");
            text.push('\n');
            file.write_all(text.as_bytes()).map_err(|e| lost("--out", path, &e))?;
        }
        self.record.add(line);
        Ok(())
    }

    /// Records a sentence in answer to the workload's question.
    pub fn finding(&mut self, text: impl Into<String>) -> Result<()> {
        self.put(Line::Finding(Finding { text: text.into() }))
    }

    /// The measurements so far.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Writes how the run ended, and the document of `--json`; returns the record.
    pub fn finish(mut self, outcome: Outcome) -> Result<Record> {
        let seconds = self.began.elapsed().as_secs_f64();
        self.put(Line::End(End { outcome, seconds }))?;
        let Some((path, mut file)) = self.json.take() else {
            return Ok(self.record);
        };
        let mut text = serde_json::to_string_pretty(&self.record).expect("as in put");
        text.push('\n');
        file.write_all(text.as_bytes()).map_err(|e| lost("--json", &path, &e))?;
        Ok(self.record)
    }
}

fn create(option: &str, path: Option<&Path>) -> Result<Option<(PathBuf, File)>> {
    let Some(path) = path else {
        return Ok(None);
    };
    let file = match is_output(path) {
        true => io::stdout().as_fd().try_clone_to_owned().map(File::from),
        false => File::create(path),
    };
    let file = file.map_err(|e| Error::usage(format!("{option} {}: {e}", path.display())))?;
    Ok(Some((path.to_owned(), file)))
}

fn lost(option: &str, path: &Path, error: &std::io::Error) -> Error {
    Error::failed(format!("{option} {}: results were not written: {error}", path.display()))
}

/// The figures of a histogram that results carry.
pub fn latency(histogram: &Latencies) -> Latency {
    let counts = histogram.counts();
    Latency {
        mean_ns: counts.mean(),
        min_ns: counts.min(),
        p50_ns: counts.quantile(0.5),
        p95_ns: counts.quantile(0.95),
        p99_ns: counts.quantile(0.99),
        p999_ns: counts.quantile(0.999),
        max_ns: counts.max(),
    }
}

/// The phase that a time series belongs to.
#[derive(Debug, Clone, Copy)]
pub struct Course<'a> {
    pub phase: &'a str,
    pub iteration: u32,
    /// The beginning of the series after the beginning of the phase, and its length.
    pub from_seconds: f64,
    pub seconds: f64,
    pub part: Part,
}

impl Recorder {
    /// Writes a time series, slice by slice. The last slice ends with the phase.
    pub fn put_series(&mut self, course: Course<'_>, series: &Slices) -> Result<()> {
        let width = series.width() as f64 / 1e9;
        for (index, slice) in series.iter().enumerate() {
            let at = index as f64 * width;
            let seconds = (course.seconds - at).min(width);
            // An operation that ended just after the phase did is no slice of its own.
            if seconds > 0.0 {
                self.put(Line::Second(second(course, at, seconds, slice)))?;
            }
        }
        Ok(())
    }
}

fn second(course: Course<'_>, at: f64, seconds: f64, slice: &Slice) -> Second {
    let counts = slice.latency.counts();
    let histogram: Vec<(u64, u64, u64)> = counts.buckets().collect();
    Second {
        phase: course.phase.to_owned(),
        iteration: course.iteration,
        part: course.part,
        at_seconds: course.from_seconds + at,
        seconds,
        ops: counts.count(),
        bytes: slice.bytes(),
        p50_ns: within(&histogram, 0.5).min(counts.max()),
        p99_ns: within(&histogram, 0.99).min(counts.max()),
        max_ns: counts.max(),
        histogram,
    }
}

/// The latency that `share` of the operations do not exceed, interpolated inside of its bucket.
fn within(histogram: &[(u64, u64, u64)], share: f64) -> u64 {
    let all: u64 = histogram.iter().map(|bucket| bucket.2).sum();
    let mut left = share * all as f64;
    for (from, to, count) in histogram {
        if left <= *count as f64 {
            return from + ((to - from) as f64 * left / *count as f64) as u64;
        }
        left -= *count as f64;
    }
    histogram.last().map_or(0, |last| last.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slices;

    #[test]
    fn a_percentile_lies_in_the_bucket_that_reaches_it() {
        let buckets = [(0, 100, 50), (100, 200, 49), (1000, 2000, 1)];
        assert_eq!(within(&buckets, 0.5), 100);
        assert_eq!(within(&buckets, 0.25), 50);
        assert_eq!(within(&buckets, 0.99), 200);
        assert_eq!(within(&buckets, 1.0), 2000);
        assert_eq!(within(&[], 0.5), 0);
    }

    /// Lines are on disk while the run goes on, and all of them in the document at the end.
    #[test]
    fn a_series_reaches_both_files() {
        let home = tempfile::tempdir().unwrap();
        let sinks = Sinks {
            ndjson: Some(home.path().join("r.ndjson")),
            json: Some(home.path().join("r.json")),
        };
        let header = crate::environment::header("steady", &[], &[]);
        let mut recorder = Recorder::begin(header, &sinks).unwrap();
        let series = slices::boxed();
        for millis in [0, 999, 1500, 2100] {
            series.record(millis * 1_000_000, 10_000, 4096);
        }
        let course = Course {
            phase: "steady",
            iteration: 0,
            from_seconds: 5.0,
            seconds: 2.25,
            part: Part::Measured,
        };
        recorder.put_series(course, &series).unwrap();
        let lines = std::fs::read_to_string(home.path().join("r.ndjson")).unwrap();
        assert_eq!(lines.lines().count(), 4);
        recorder.finish(Outcome::Complete).unwrap();
        let document = std::fs::read_to_string(home.path().join("r.json")).unwrap();
        let record: Record = serde_json::from_str(&document).unwrap();
        let told: Vec<(f64, f64, u64)> =
            record.seconds.iter().map(|s| (s.at_seconds, s.seconds, s.ops)).collect();
        assert_eq!(told, [(5.0, 1.0, 2), (6.0, 1.0, 1), (7.0, 0.25, 1)]);
        let latencies = record.seconds.iter().map(|s| (s.p99_ns, s.max_ns));
        assert!(latencies.into_iter().all(|(p99, max)| p99 <= 10_000 && max == 10_000));
        assert_eq!(record.end.unwrap().outcome, Outcome::Complete);
    }

    #[test]
    fn a_file_that_cannot_be_made_is_a_usage_error_that_names_the_option() {
        let sinks = Sinks { json: Some("/no/such/place/r.json".into()), ndjson: None };
        let error = Recorder::begin(Header::default(), &sinks).err().unwrap();
        assert!(error.exit_code() == 2 && error.to_string().starts_with("--json /no/such"));
    }
}
