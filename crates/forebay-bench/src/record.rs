//! The result format: newline-delimited JSON, one header and then a line for each thing measured.
//!
//! Defines the lines and reads them back; [`crate::recorder`] writes them and
//! [`crate::environment`] fills the header. Holds no workload's arithmetic.
//!
//! Invariants:
//! - F1: the first line is a header whose `format` is [`FORMAT`].
//! - F2: a file of a newer [`VERSION`] is refused, never guessed at; a kind of line that this
//!   version does not know is skipped, since kinds may be added without a new version.
//! - F3: every name of a quantity ends in its unit (`_ns`, `_bytes`, `_seconds`, `_per_second`);
//!   shares are between 0 and 1.
//! - F4: a file cut off at any byte reads back as the lines before the cut.

use std::collections::BTreeMap;
use std::io::BufRead;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The value of `format` in every header.
pub const FORMAT: &str = "forebay-bench";

/// Raised when an old reader would misread a new file; not when something is added.
pub const VERSION: u32 = 1;

/// One line of a result file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub enum Line {
    Header(Header),
    Phase(Phase),
    Second(Second),
    Scale(ScalePoint),
    Fill(FillPoint),
    Comparison(Comparison),
    Finding(Finding),
    End(End),
    /// A kind added later (F2).
    #[serde(other, skip_serializing)]
    Unknown,
}

/// The conditions of the measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Header {
    pub format: String,
    pub version: u32,
    /// Name and version of the program.
    pub tool: String,
    /// `ior`, `mdtest`, `steady`, ...
    pub workload: String,
    /// Every word of the command line.
    pub command: Vec<String>,
    /// Start, RFC 3339, UTC.
    pub began: String,
    pub host: Host,
    pub targets: Vec<Place>,
    /// The action on the page cache, as `--cache` names it.
    pub cache: String,
    /// The way of moving bytes: `posix`, `direct`, `mmap`, `uring`, `null`.
    pub backend: String,
    /// Every setting in force, defaults included.
    pub settings: BTreeMap<String, String>,
}

/// The state of the machine at the start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    pub kernel: String,
    pub cpu: String,
    pub cpus: u32,
    pub memory_bytes: u64,
    /// Unused memory, and memory of the page cache.
    pub free_bytes: u64,
    pub cached_bytes: u64,
}

/// The storage of the files.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Place {
    pub path: String,
    pub file_system: String,
    /// Device or other source in the mount table.
    pub source: String,
    pub mount_options: String,
    /// The model of the disk, if there is one that reports it.
    pub model: String,
    /// `None` if no disk known to the kernel is behind the path.
    pub rotational: Option<bool>,
    pub size_bytes: u64,
    pub free_bytes: u64,
}

/// The kind of access of a phase.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    Write,
    Read,
    /// Reads and writes.
    #[default]
    Mixed,
    /// Names and attributes only.
    Metadata,
    /// No input or output: waiting, computing, checking.
    None,
}

/// A stretch of work with one beginning and one end over all tasks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Phase {
    /// `write`, `read`, `pass 2`, ... Together with `iteration` it names the phase in other lines.
    pub name: String,
    pub iteration: u32,
    pub access: Access,
    pub tasks: u32,
    pub bytes: u64,
    pub ops: u64,
    /// The time from the first task's start to the last one's end.
    pub seconds: f64,
    /// Parts of `seconds`, each from its first start to its last end, where measured separately.
    pub open_seconds: Option<f64>,
    pub io_seconds: Option<f64>,
    pub close_seconds: Option<f64>,
    pub block_bytes: Option<u64>,
    pub transfer_bytes: Option<u64>,
    pub latency: Option<Latency>,
    /// The share of the bytes read that was in the page cache before the phase began.
    pub resident_share: Option<f64>,
    /// Reasons to doubt the figures, with remedies.
    pub warnings: Vec<String>,
    /// Figures of this workload alone, by name with unit (F3).
    pub figures: BTreeMap<String, f64>,
}

/// Distribution of the latency of single operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    pub mean_ns: f64,
    pub min_ns: u64,
    pub p50_ns: u64,
    pub p95_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    pub max_ns: u64,
}

/// Whether a slice of time counts in the phase's figures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    #[default]
    Measured,
    /// Discarded.
    WarmUp,
}

/// One slice of a phase's time series: a second, or `seconds` of a long phase.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Second {
    pub phase: String,
    pub iteration: u32,
    pub part: Part,
    /// The beginning of the slice, after the beginning of the phase.
    pub at_seconds: f64,
    /// Length of the slice.
    pub seconds: f64,
    pub ops: u64,
    pub bytes: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
    /// Latencies in this slice as `[from_ns, to_ns, count]`, empty buckets left out.
    pub histogram: Vec<(u64, u64, u64)>,
}

/// Throughput with a number of clients at work.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScalePoint {
    pub clients: u32,
    pub seconds: f64,
    pub ops: u64,
    pub bytes: u64,
    pub ops_per_second: f64,
    pub bytes_per_second: f64,
    pub latency: Latency,
    /// The point beyond which clients add waiting, not throughput.
    pub knee: bool,
}

/// Throughput at a share of the capacity in use.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FillPoint {
    /// Bytes of the test in use, as a share of the capacity under test.
    pub share: f64,
    pub filled_bytes: u64,
    pub bytes_per_second: f64,
    pub ops_per_second: f64,
    /// Standard deviation over mean of the slices that were counted.
    pub variation: f64,
    /// Seconds before those slices, discarded because throughput was still moving.
    pub discarded_seconds: f64,
    /// False when throughput was still moving as the time was up.
    pub steady: bool,
    /// Throughput over that of the first point.
    pub ratio_to_first: f64,
    /// The latency over the whole step, including the discarded seconds.
    pub latency: Latency,
}

/// One quantity of two targets, measured in turn.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Comparison {
    pub name: String,
    pub unit: String,
    pub better: Better,
    /// One value per round, in order.
    pub a: Vec<f64>,
    pub b: Vec<f64>,
    pub median_a: f64,
    pub median_b: f64,
    /// B over A: median of the rounds' ratios, and the interval it lies in.
    pub ratio: f64,
    pub ratio_low: f64,
    pub ratio_high: f64,
    /// The confidence of the interval, 0 to 1.
    pub confidence: f64,
    /// The difference of the noisier target, A or B, from itself from round to round.
    pub noise_share: f64,
    pub verdict: Verdict,
}

/// The direction that is better.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    #[default]
    Higher,
    Lower,
}

/// The verdict that a comparison allows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The interval includes 1, or the ratio is nearer to 1 than the noise.
    #[default]
    NoDifference,
    ABetter,
    BBetter,
}

/// A sentence in answer to the workload's question.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Finding {
    pub text: String,
}

/// How the run ended; absent when it was killed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct End {
    pub outcome: Outcome,
    pub seconds: f64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Complete,
    Interrupted,
    #[default]
    Failed,
}

/// A whole run, sorted by kind of line.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    pub header: Header,
    pub phases: Vec<Phase>,
    pub seconds: Vec<Second>,
    pub scale: Vec<ScalePoint>,
    pub fill: Vec<FillPoint>,
    pub comparisons: Vec<Comparison>,
    pub findings: Vec<Finding>,
    pub end: Option<End>,
}

impl Record {
    /// Puts a line in its place.
    pub fn add(&mut self, line: Line) {
        match line {
            Line::Header(header) => self.header = header,
            Line::Phase(phase) => self.phases.push(phase),
            Line::Second(second) => self.seconds.push(second),
            Line::Scale(point) => self.scale.push(point),
            Line::Fill(point) => self.fill.push(point),
            Line::Comparison(comparison) => self.comparisons.push(comparison),
            Line::Finding(finding) => self.findings.push(finding),
            Line::End(end) => self.end = Some(end),
            Line::Unknown => {}
        }
    }

    /// Reads a result file. `name` is used in messages.
    pub fn read(name: &str, input: impl BufRead) -> Result<Self> {
        let mut record = Self::default();
        let mut lines = input.lines().enumerate().peekable();
        while let Some((index, line)) = lines.next() {
            let line = line.map_err(|e| Error::failed(format!("{name}: {e}")))?;
            let last = lines.peek().is_none();
            match parse_line(name, index, &line)? {
                Some(line) => record.add(line),
                None if last => {}
                None => return Err(damaged(name, index)),
            }
        }
        if record.header.format.is_empty() {
            return Err(Error::usage(format!("{name}: is empty, not a result file")));
        }
        Ok(record)
    }
}

/// Parses a line; `None` for an incomplete one, which only the last may be (F4).
fn parse_line(name: &str, index: usize, text: &str) -> Result<Option<Line>> {
    let value: serde_json::Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(_) if index == 0 => return Err(not_ours(name)),
        Err(_) => return Ok(None),
    };
    if index == 0 {
        check_header(name, &value)?;
    }
    let line = serde_json::from_value(value)
        .map_err(|e| Error::usage(format!("{name}, line {}: {e}", index + 1)))?;
    Ok(Some(line))
}

/// Checks F1 and F2, before the rest of the header is read: a newer one may have another form.
fn check_header(name: &str, value: &serde_json::Value) -> Result<()> {
    if value["format"] != FORMAT || value["line"] != "header" {
        return Err(not_ours(name));
    }
    match value["version"].as_u64() {
        Some(version) if version <= u64::from(VERSION) => Ok(()),
        Some(version) => Err(Error::usage(format!(
            "{name}: is of version {version} of the result format; this program reads up to \
             {VERSION}: use the forebay that wrote it ({}), or a newer one",
            value["tool"].as_str().unwrap_or("not named")
        ))),
        None => Err(not_ours(name)),
    }
}

fn not_ours(name: &str) -> Error {
    Error::usage(format!(
        "{name}: is not a result file of forebay bench (those are written by --out FILE.ndjson)"
    ))
}

fn damaged(name: &str, index: usize) -> Error {
    Error::usage(format!(
        "{name}, line {}: is not JSON, and lines follow it: the file is damaged",
        index + 1
    ))
}

#[cfg(test)]
mod tests;
