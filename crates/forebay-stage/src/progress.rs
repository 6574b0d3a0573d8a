//! The progress of a transfer, and the two orders to a running one.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The rates are those of about this many last seconds.
const MEMORY_SECONDS: f64 = 10.0;

/// The orders to stop and to hurry; neither can be taken back.
#[derive(Debug, Default)]
pub struct Control {
    stop: AtomicBool,
    hurry: AtomicBool,
}

impl Control {
    pub const fn new() -> Control {
        Control { stop: AtomicBool::new(false), hurry: AtomicBool::new(false) }
    }

    /// Makes the transfer end soon, and leave its remains for another run.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Lifts the rate cap.
    pub fn hurry(&self) {
        self.hurry.store(true, Ordering::Relaxed);
    }

    pub fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub fn hurries(&self) -> bool {
        self.hurry.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Names are still being counted, ahead of copying: the totals grow.
    Counting,
    Copying,
    /// Everything is copied; names and attributes are being made durable.
    Finishing,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    pub phase: Phase,
    pub files_total: u64,
    pub bytes_total: u64,
    pub files_done: u64,
    /// The sizes of the finished files plus the copied bytes of the others.
    pub bytes_done: u64,
    pub files_failed: u64,
    pub seconds: f64,
    pub bytes_per_second: f64,
    pub files_per_second: f64,
    /// `None` while counting, and while nothing moves.
    pub eta_seconds: Option<f64>,
}

/// Counters that all threads add to.
#[derive(Debug, Default)]
pub struct Tally {
    pub counted: AtomicBool,
    pub finishing: AtomicBool,
    pub files_total: AtomicU64,
    pub bytes_total: AtomicU64,
    pub files_done: AtomicU64,
    /// The sizes of files that are at the destination.
    pub bytes_published: AtomicU64,
    /// Progress within files, and of whole files.
    pub bytes_done: AtomicU64,
    /// Bytes that were read and written.
    pub bytes_copied: AtomicU64,
    /// The part of `bytes_copied` that `copy_file_range` moved.
    pub bytes_in_kernel: AtomicU64,
    /// Bytes that share the blocks of their source.
    pub bytes_cloned: AtomicU64,
    /// Files that failed, and their sizes.
    pub files_failed: AtomicU64,
    pub bytes_failed: AtomicU64,
    pub kept: AtomicU64,
    pub hard_links: AtomicU64,
    pub directories: AtomicU64,
}

pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

pub fn subtract(counter: &AtomicU64, n: u64) {
    counter.fetch_sub(n, Ordering::Relaxed);
}

pub fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Tally {
    /// Counts a file that is in its place, copied or found there.
    pub fn published(&self, bytes: u64) {
        add(&self.files_done, 1);
        add(&self.bytes_published, bytes);
    }

    /// Counts a file that was found in its place.
    pub fn keep(&self, bytes: u64) {
        add(&self.kept, 1);
        add(&self.bytes_done, bytes);
        self.published(bytes);
    }

    /// Adds the bytes that another run of the same transfer has moved.
    pub fn add_moved(&self, other: &Tally) {
        let of = |tally: &Tally| {
            [&tally.bytes_copied, &tally.bytes_in_kernel, &tally.bytes_cloned].map(get)
        };
        let [copied, in_kernel, cloned] = of(other);
        add(&self.bytes_copied, copied);
        add(&self.bytes_in_kernel, in_kernel);
        add(&self.bytes_cloned, cloned);
    }

    fn phase(&self) -> Phase {
        let set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        match (set(&self.counted), set(&self.finishing)) {
            (_, true) => Phase::Finishing,
            (true, false) => Phase::Copying,
            (false, false) => Phase::Counting,
        }
    }
}

/// Turns counters into rates, from one look to the next.
pub struct Meter {
    start: Instant,
    last: Instant,
    bytes: u64,
    files: u64,
    bytes_per_second: f64,
    files_per_second: f64,
}

impl Meter {
    pub fn new() -> Meter {
        let now = Instant::now();
        let rates = (0.0, 0.0);
        Meter {
            start: now,
            last: now,
            bytes: 0,
            files: 0,
            bytes_per_second: rates.0,
            files_per_second: rates.1,
        }
    }

    pub fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    pub fn look(&mut self, tally: &Tally) -> Progress {
        let now = Instant::now();
        let (bytes, files) = (get(&tally.bytes_done), get(&tally.files_done));
        self.measure(now, bytes, files);
        let mut progress = Progress {
            phase: tally.phase(),
            files_total: get(&tally.files_total),
            bytes_total: get(&tally.bytes_total),
            files_done: files,
            bytes_done: bytes,
            files_failed: get(&tally.files_failed),
            seconds: self.seconds(),
            bytes_per_second: self.bytes_per_second,
            files_per_second: self.files_per_second,
            eta_seconds: None,
        };
        progress.eta_seconds = eta(&progress, get(&tally.bytes_failed));
        progress
    }

    /// Updates the rates. The first look counts fully, later ones by the time since the last.
    fn measure(&mut self, now: Instant, bytes: u64, files: u64) {
        let passed = now.duration_since(self.last).max(Duration::from_millis(1)).as_secs_f64();
        let share = match self.last == self.start {
            true => 1.0,
            false => 1.0 - (-passed / MEMORY_SECONDS).exp(),
        };
        let rate = |old: f64, then: u64, now: u64| {
            old + share * (now.saturating_sub(then) as f64 / passed - old)
        };
        self.bytes_per_second = rate(self.bytes_per_second, self.bytes, bytes);
        self.files_per_second = rate(self.files_per_second, self.files, files);
        (self.last, self.bytes, self.files) = (now, bytes, files);
    }
}

/// The time that the slower of bytes and files still takes.
fn eta(progress: &Progress, bytes_failed: u64) -> Option<f64> {
    if progress.phase == Phase::Counting {
        return None;
    }
    let time = |left: u64, rate: f64| match left {
        0 => Some(0.0),
        _ => (rate > 0.0).then(|| left as f64 / rate),
    };
    let bytes = progress.bytes_total.saturating_sub(progress.bytes_done + bytes_failed);
    let ended = progress.files_done + progress.files_failed;
    let files = progress.files_total.saturating_sub(ended);
    let files = match (bytes, progress.files_per_second > 0.0) {
        // While one large file is copied, there is no rate of files.
        (1.., false) => Some(0.0),
        _ => time(files, progress.files_per_second),
    };
    Some(time(bytes, progress.bytes_per_second)?.max(files?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_eta_is_what_the_last_seconds_promise() {
        let tally = Tally::default();
        add(&tally.files_total, 100);
        add(&tally.bytes_total, 100 << 20);
        let mut meter = Meter::new();
        let start = meter.start;
        assert_eq!(meter.look(&tally).eta_seconds, None);
        tally.counted.store(true, Ordering::Relaxed);
        for second in 1..=60 {
            meter.measure(start + Duration::from_secs(second), second << 20, second);
        }
        add(&tally.files_done, 60);
        add(&tally.bytes_done, 60 << 20);
        let mut progress = meter.look(&tally);
        progress.bytes_per_second = meter.bytes_per_second;
        assert_eq!((progress.phase, progress.files_done), (Phase::Copying, 60));
        let eta = progress.eta_seconds.expect("it moves");
        assert!((30.0..50.0).contains(&eta), "{eta}");
    }
}
