//! The rate cap: one bucket for all threads of a transfer.

use std::time::{Duration, Instant};

use forebay_base::lock::{Mutex, Rank, sleep};

use crate::progress::Control;

/// Bytes that were allowed and not used for this long are lost: after a pause there is no burst.
const BURST: Duration = Duration::from_millis(100);

/// The longest sleep of a thread before it checks for stop and hurry.
const NAP: Duration = Duration::from_millis(50);

/// A piece is at most what may pass in one step, so that no piece makes a burst.
const STEPS_PER_SECOND: u64 = 8;

/// The smallest step: below it system calls cost more than bytes.
const STEP_MIN: u64 = 64 << 10;

pub struct Pace {
    rate: u64,
    /// When the bytes that were allowed so far have passed.
    free_at: Mutex<Instant>,
}

impl Pace {
    /// `rate` is in bytes a second; 0 is no cap.
    pub fn new(rate: u64) -> Pace {
        Pace { rate, free_at: Mutex::new(Rank::TransferNotes, Instant::now()) }
    }

    /// The number of bytes to move at once, at most `len`.
    pub fn step(&self, len: u64) -> u64 {
        match self.rate {
            0 => len,
            rate => len.min((rate / STEPS_PER_SECOND).max(STEP_MIN)),
        }
    }

    /// Waits until `len` bytes may pass.
    pub fn take(&self, len: u64, control: &Control) {
        if self.rate == 0 || control.hurries() {
            return;
        }
        let turn = self.promise(len);
        while let Some(left) = turn.checked_duration_since(Instant::now()) {
            if left.is_zero() || control.stops() || control.hurries() {
                return;
            }
            sleep(left.min(NAP));
        }
    }

    fn promise(&self, len: u64) -> Instant {
        let time = Duration::from_secs_f64(len as f64 / self.rate as f64);
        let mut free_at = self.free_at.lock();
        let now = Instant::now();
        let begin = (*free_at).max(now.checked_sub(BURST).unwrap_or(now));
        *free_at = begin + time;
        *free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_threads_share_one_rate() {
        let (pace, control) = (Pace::new(10 << 20), Control::default());
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..8).for_each(|_| pace.take(128 << 10, &control)));
            }
        });
        // 4 MiB at 10 MiB/s, less the burst.
        let seconds = start.elapsed().as_secs_f64();
        assert!((0.29..0.8).contains(&seconds), "{seconds}");
    }

    #[test]
    fn a_hurry_or_a_stop_ends_the_wait() {
        for press in [Control::hurry, Control::stop] {
            let (pace, control) = (Pace::new(1), Control::default());
            let start = Instant::now();
            std::thread::scope(|scope| {
                scope.spawn(|| pace.take(1 << 20, &control));
                press(&control);
            });
            assert!(start.elapsed() < Duration::from_secs(5));
        }
    }
}
