//! How long a job will still take: the remaining work, at the pace of the later half of its time.
//!
//! Half of the time is long enough to even out the steps in which work gets done (a batch is
//! copied, then synced), and leaves out the beginning, which may have been different. Pure code.

use std::collections::VecDeque;
use std::time::Duration;

/// The cost of a file beside its bytes, in seconds: opening it, its times, its record. If all
/// files are alike, the estimate does not depend on this.
const FILE_SECS: f64 = 0.001;

/// A shorter window would show single steps.
const WINDOW_MIN: Duration = Duration::from_secs(5);

/// Beyond this number, points are thinned out.
const POINTS_MAX: usize = 512;

/// The progress of a job at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Point {
    /// The time since the job began.
    pub at: Duration,
    pub bytes: u64,
    pub files: u64,
}

#[derive(Debug, Default)]
pub struct Pace {
    points: VecDeque<Point>,
    spacing: Duration,
}

/// The remaining work.
#[derive(Debug, Clone, Copy)]
pub struct Left {
    pub bytes: u64,
    pub files: u64,
}

impl Pace {
    pub fn note(&mut self, mut point: Point) {
        if let Some(last) = self.points.back() {
            point.bytes = point.bytes.max(last.bytes);
            point.files = point.files.max(last.files);
        }
        // The newest point always stays; the others are at least `spacing` apart.
        if let [.., a, b] = *self.points.make_contiguous()
            && b.at - a.at < self.spacing
        {
            self.points.pop_back();
        }
        self.points.push_back(point);
        if self.points.len() > POINTS_MAX {
            let mut n = 0;
            self.points.retain(|_| {
                n += 1;
                n % 2 == 1
            });
            self.spacing = point.at / (POINTS_MAX as u32 / 2);
        }
    }

    /// The rate in bytes per second.
    pub fn rate(&self) -> f64 {
        self.window().map_or(0.0, |(a, b)| (b.bytes - a.bytes) as f64 / secs(a, b))
    }

    pub fn eta(&self, left: Left) -> Option<Duration> {
        let (a, b) = self.window()?;
        let (bytes, files) = ((b.bytes - a.bytes) as f64, (b.files - a.files) as f64);
        let per_file = FILE_SECS.min(secs(a, b) / files.max(1.0));
        // In a window without bytes the files take the time.
        let (per_byte, per_file) = match bytes > 0.0 {
            true => ((secs(a, b) - per_file * files) / bytes, per_file),
            false => (0.0, secs(a, b) / files),
        };
        let secs = left.bytes as f64 * per_byte + left.files as f64 * per_file;
        (bytes + files > 0.0 && secs < 1e9).then(|| Duration::from_secs_f64(secs))
    }

    fn window(&self) -> Option<(Point, Point)> {
        let last = *self.points.back()?;
        let from = last.at.saturating_sub(WINDOW_MIN.max(last.at / 2));
        // The job begins at zero, even if no point was noted then.
        let first = match from {
            Duration::ZERO => Point::default(),
            _ => *self.points.iter().rev().find(|point| point.at <= from)?,
        };
        (last.at > first.at).then_some((first, last))
    }
}

fn secs(a: Point, b: Point) -> f64 {
    (b.at - a.at).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: u64 = 10 << 30;

    /// Runs a job whose bytes move as `moved` says. From the second quarter of its time on, each estimate
    /// must be within 20 % of the truth, except in the `last` seconds.
    fn check(name: &str, total: Duration, last: f64, moved: impl Fn(f64) -> f64) {
        let mut pace = Pace::default();
        let step = Duration::from_millis(200);
        let mut at = step;
        while at < total {
            let bytes = (moved(at.as_secs_f64()) * TOTAL as f64) as u64;
            pace.note(Point { at, bytes, files: 0 });
            let truth = (total - at).as_secs_f64();
            if at > total / 4 && truth > last {
                let eta = pace.eta(Left { bytes: TOTAL - bytes, files: 0 }).unwrap().as_secs_f64();
                let off = (eta - truth).abs() / truth;
                assert!(off <= 0.2, "{name}: at {at:?} {eta} for {truth}");
            }
            at += step;
        }
    }

    #[test]
    fn the_estimate_is_within_a_fifth_from_the_second_quarter_on() {
        let total = Duration::from_secs(100);
        check("even", total, 1.0, |t| t / 100.0);
        // Each batch is copied at twice the pace, then synced for as long: no estimate sees into a batch.
        check("batches", total, 6.0, |t| {
            let (n, part) = ((t / 2.0).floor(), (t / 2.0).fract());
            (n + (part * 2.0).min(1.0)) / 50.0
        });
        // The page cache takes the first twentieth at once.
        check("quick start", total, 1.0, |t| {
            if t < 1.0 { t * 0.05 } else { 0.05 + (t - 1.0) / 99.0 * 0.95 }
        });
    }

    #[test]
    fn a_long_job_is_thinned_out_and_a_stalled_one_has_no_estimate() {
        let mut pace = Pace::default();
        for n in 1..100_000_u64 {
            pace.note(Point { at: Duration::from_millis(200 * n), bytes: n << 20, files: n });
        }
        assert!(pace.points.len() <= POINTS_MAX);
        let rate = pace.rate() / f64::from(5 << 20);
        assert!((0.99..1.01).contains(&rate), "{rate}");
        let mut pace = Pace::default();
        for n in 1..100 {
            pace.note(Point { at: Duration::from_secs(n), bytes: 0, files: 0 });
        }
        assert_eq!(pace.eta(Left { bytes: 1, files: 1 }), None);
    }
}
