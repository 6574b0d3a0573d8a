//! One line with the progress of a long operation: redrawn in place on a terminal, otherwise a new line
//! every few seconds.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use forebay_bench::prose::{clipped, columns_of_stderr};
use forebay_engine::Progress;

use crate::units::{human_rate, human_secs, human_size};
use crate::wire::Job;

const REDRAW_EVERY: Duration = Duration::from_millis(100);
const LINE_EVERY: Duration = Duration::from_secs(5);

/// The rate shown is that of this window: long enough to be calm, short enough to be up to date.
const RATE_WINDOW: Duration = Duration::from_secs(8);

/// The bar takes the room that the words leave, between these widths, or is left out.
const BAR_MOST: usize = 24;
const BAR_LEAST: usize = 6;

/// The progress of an operation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sample {
    pub total_bytes: u64,
    pub done_bytes: u64,
    pub total_files: u64,
    pub done_files: u64,
    pub failed_files: u64,
    /// `None`: the pace is computed from the samples' bytes.
    pub told: Option<Told>,
}

/// The pace as the worker of the operation reports it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Told {
    pub bytes_per_second: u64,
    pub files_per_second: f64,
    pub eta_seconds: Option<f64>,
    /// The totals still grow.
    pub counting: bool,
}

impl Told {
    /// The pace as text, such as `64.0 MiB/s, 12 files/s, ETA 16 s`.
    pub fn text(&self) -> String {
        let (bytes, files) = (self.bytes_per_second as f64, self.files_per_second);
        let parts = [
            self.counting.then(|| "counting".to_string()),
            (bytes >= 1.0).then(|| human_rate(bytes)),
            (files >= 0.1).then(|| format!("{files:.1} files/s")),
            self.eta_seconds.map(|secs| format!("ETA {}", human_secs(secs))),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join("  ")
    }
}

pub struct Line {
    label: String,
    terminal: bool,
    shown: Option<Instant>,
    started: Instant,
    window: VecDeque<(Instant, u64)>,
}

impl Line {
    pub fn new(label: &str) -> Line {
        let terminal = io::stderr().is_terminal();
        let started = Instant::now();
        Line { label: label.into(), terminal, shown: None, started, window: VecDeque::new() }
    }

    pub fn update(&mut self, sample: Sample) {
        let now = Instant::now();
        self.window.push_back((now, sample.done_bytes));
        while self.window.len() > 2 && now - self.window[0].0 > RATE_WINDOW {
            self.window.pop_front();
        }
        let pause = if self.terminal { REDRAW_EVERY } else { LINE_EVERY };
        // Without a terminal, an operation that ends within the first pause prints nothing.
        let last = self.shown.unwrap_or(self.started);
        if now - last < pause {
            return;
        }
        self.shown = Some(now);
        // A line as wide as the terminal would scroll.
        let text = render(&self.label, sample, self.rate(), columns_of_stderr() - 1);
        let mut stderr = io::stderr().lock();
        // Standard error may be closed.
        let _ = match self.terminal {
            true => write!(stderr, "\r\x1b[K{text}"),
            false => writeln!(stderr, "{text}"),
        };
        let _ = stderr.flush();
    }

    /// Removes the line, so that the result stands alone.
    pub fn clear(&mut self) {
        if self.terminal && self.shown.take().is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    fn rate(&self) -> f64 {
        let (Some(first), Some(last)) = (self.window.front(), self.window.back()) else {
            return 0.0;
        };
        let secs = (last.0 - first.0).as_secs_f64();
        if secs > 0.0 { last.1.saturating_sub(first.1) as f64 / secs } else { 0.0 }
    }
}

impl From<&Job> for Sample {
    fn from(job: &Job) -> Sample {
        Sample {
            total_bytes: job.total_bytes,
            done_bytes: job.done_bytes,
            total_files: job.total_files,
            done_files: job.done_files,
            failed_files: job.failed_files,
            told: None,
        }
    }
}

impl From<&Progress> for Sample {
    fn from(progress: &Progress) -> Sample {
        Sample {
            total_bytes: progress.total_bytes.load(Relaxed),
            done_bytes: progress.done_bytes.load(Relaxed),
            total_files: progress.total_files.load(Relaxed),
            done_files: progress.done_files.load(Relaxed),
            failed_files: progress.failed_files.load(Relaxed),
            told: None,
        }
    }
}

/// The line, in at most `columns`: with too few, the bar gets shorter, then the words fewer.
fn render(label: &str, s: Sample, rate: f64, columns: usize) -> String {
    // Without bytes, as with empty files, the files are the measure.
    let (done, total) = match s.total_bytes {
        0 => (s.done_files, s.total_files),
        total => (s.done_bytes.min(total), total),
    };
    let percent = (done * 100).checked_div(total).unwrap_or(0).min(100);
    let tells = [words(s, rate), pace(s, rate), String::new()];
    let fits = |tell: &&String| label.len() + " 100 %".len() + tell.len() <= columns;
    let tell = tells.iter().find(fits).unwrap_or(&tells[2]);
    let room = columns.saturating_sub(label.len() + "  [] 100 %".len() + tell.len());
    let cells = room.min(BAR_MOST);
    let bar = match cells {
        BAR_LEAST.. => {
            let full = (cells as u64 * done).checked_div(total).unwrap_or(0) as usize;
            let full = full.min(cells);
            format!(" [{}{}]", "#".repeat(full), "-".repeat(cells - full))
        }
        _ => String::new(),
    };
    clipped(&format!("{label}{bar} {percent:3} %{tell}"), columns)
}

fn words(s: Sample, rate: f64) -> String {
    let (done, total) = (human_size(s.done_bytes), human_size(s.total_bytes));
    let mut text = format!("  {done} of {total}, {} of {} files", s.done_files, s.total_files);
    if s.failed_files > 0 {
        text += &format!(", {} failed", s.failed_files);
    }
    text + &pace(s, rate)
}

fn pace(s: Sample, rate: f64) -> String {
    if let Some(told) = s.told.map(|told| told.text()) {
        return if told.is_empty() { told } else { format!("  {told}") };
    }
    if rate < 1.0 {
        return String::new();
    }
    let left = s.total_bytes.saturating_sub(s.done_bytes) as f64 / rate;
    format!("  {}  ETA {}", human_rate(rate), human_secs(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While the totals grow, bytes over rate would give a wrong estimate.
    #[test]
    fn the_estimate_comes_from_the_worker() {
        let told = Told {
            bytes_per_second: 1 << 20,
            files_per_second: 40.0,
            eta_seconds: Some(90.0),
            counting: false,
        };
        let sample = Sample { total_bytes: 2 << 20, done_bytes: 1 << 20, ..Sample::default() };
        let line = |told| render("stage", Sample { told: Some(told), ..sample }, 5e9, 120);
        assert!(
            line(told).ends_with("  1.0 MiB/s  40.0 files/s  ETA 1 min 30 s"),
            "{}",
            line(told)
        );
        let counting = line(Told { counting: true, eta_seconds: None, ..told });
        assert!(counting.contains("counting") && !counting.contains("ETA"), "{counting}");
    }

    #[test]
    fn the_line_tells_bytes_files_rate_and_eta() {
        let sample = Sample {
            total_bytes: 2 << 30,
            done_bytes: 1 << 30,
            total_files: 4,
            done_files: 2,
            failed_files: 1,
            told: None,
        };
        let rate = (64 << 20) as f64;
        assert_eq!(
            render("flush", sample, rate, 120),
            "flush [############------------]  50 %  1.0 GiB of 2.0 GiB, 2 of 4 files, 1 failed  \
             64.0 MiB/s  ETA 16 s"
        );
        let nothing = render("flush", Sample::default(), 0.0, 79);
        assert!(nothing.contains("  0 %"), "{nothing}");
        for columns in 1..120 {
            let line = render("flush", sample, rate, columns);
            assert!(line.len() <= columns, "{columns}: {line}");
            assert!(columns < 20 || line.contains("50 %"), "{columns}: {line}");
            assert!(columns < 40 || line.contains("ETA 16 s"), "{columns}: {line}");
            assert!(columns < 79 || line.contains("2 of 4 files"), "{columns}: {line}");
        }
    }
}
