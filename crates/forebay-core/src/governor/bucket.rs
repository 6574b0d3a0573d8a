//! A token bucket: holds a rate over every ten seconds within three percent.
//!
//! A taker may put the bucket into debt once; from a bucket in debt nothing is taken. Unused tokens
//! are kept for a fifth of a second, so that the sync between two batches costs no rate.
//!
//! A bucket that strides lets a tenth of a second's worth go at once, and rests until that is made
//! up for. Copies that are near each other then go out together: evenly spaced, each would send the
//! head of a disk away from the programs' data, and back. Such a bucket holds its rate within four
//! percent.

use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub struct Bucket {
    /// Per second; infinite for no limit.
    rate: f64,
    level: f64,
    at: Duration,
    /// The debt in seconds at which the bucket comes to rest.
    stride_secs: f64,
    resting: bool,
}

/// How long unused tokens are kept, in seconds. Together with [`CHUNK_SECS`] this makes the three
/// percent.
const KEPT_SECS: f64 = 0.2;

/// How far a striding bucket goes into debt, in seconds.
const STRIDE_SECS: f64 = 0.1;

/// The longest time that the bytes of one call may be worth, in seconds.
const CHUNK_SECS: f64 = 0.1;

/// A waiting taker asks again after this long, since the rate may have changed.
const ASK_AGAIN: Duration = Duration::from_millis(100);

impl Bucket {
    pub fn new(rate: f64, now: Duration) -> Bucket {
        Bucket { rate, level: 0.0, at: now, stride_secs: 0.0, resting: false }
    }

    pub fn striding(rate: f64, now: Duration) -> Bucket {
        Bucket { stride_secs: STRIDE_SECS, ..Bucket::new(rate, now) }
    }

    /// Changes the rate from `now` on. A debt stays, but a taker waits for it no longer than for a
    /// debt that was made at the new rate.
    pub fn set_rate(&mut self, rate: f64, now: Duration) {
        self.fill(now);
        if rate != self.rate {
            let debt = rate * (self.stride_secs + CHUNK_SECS);
            let keeps = self.rate.is_finite() && rate.is_finite();
            self.level = if keeps { self.level.max(-debt) } else { 0.0 };
            self.rate = rate;
        }
    }

    fn fill(&mut self, now: Duration) {
        let dt = now.saturating_sub(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.level = if self.rate.is_finite() {
            (self.level + self.rate * dt).min(self.rate * KEPT_SECS)
        } else {
            0.0
        };
    }

    /// Whether tokens can be taken now; else how long to wait before asking again.
    pub fn wait(&mut self, now: Duration) -> Option<Duration> {
        self.fill(now);
        if self.rate.is_infinite() || self.level > 0.0 {
            self.resting = false;
            return None;
        }
        self.resting |= self.level <= -self.rate * self.stride_secs;
        if !self.resting {
            return None;
        }
        let secs = (1.0 - self.level) / self.rate;
        let wait = Duration::try_from_secs_f64(secs).unwrap_or(ASK_AGAIN);
        Some(wait.clamp(Duration::from_micros(100), ASK_AGAIN))
    }

    /// Whether a bucket that does not stride would be closed now.
    pub fn is_in_debt(&self) -> bool {
        self.rate.is_finite() && self.level <= 0.0
    }

    pub fn take(&mut self, amount: f64) {
        if self.rate.is_finite() {
            self.level -= amount;
        }
    }

    /// Puts back tokens that were taken and not used.
    pub fn give_back(&mut self, amount: f64) {
        self.take(-amount);
    }

    /// The bytes that one call should move at most.
    pub fn chunk(&self, largest: u64) -> u64 {
        let bytes = self.rate * CHUNK_SECS;
        if bytes >= largest as f64 { largest } else { (bytes as u64 & !4095).max(4096) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Takes whenever it can, with a pause of `gap_ms` in every second; the time of each take.
    fn run(mut bucket: Bucket, gap_ms: u32, largest: u64) -> Vec<(Duration, u64)> {
        let mut taken = Vec::new();
        for ms in 0..60_000u32 {
            let now = ms * MS;
            while ms % 1000 >= gap_ms && bucket.wait(now).is_none() {
                let chunk = bucket.chunk(largest);
                bucket.take(chunk as f64);
                taken.push((now, chunk));
            }
        }
        taken
    }

    /// The largest deviation from the rate in any ten seconds.
    fn deviation(taken: &[(Duration, u64)], rate: f64) -> f64 {
        let share = |from: u32| {
            let window = from * MS..(from + 10_000) * MS;
            let bytes: u64 = taken.iter().filter(|(at, _)| window.contains(at)).map(|t| t.1).sum();
            (bytes as f64 / (rate * 10.0) - 1.0).abs()
        };
        (0..50_000).step_by(170).map(share).fold(0.0, f64::max)
    }

    #[test]
    fn every_ten_seconds_hold_the_rate_within_three_percent() {
        for rate in [300e3, 5e6, 100e6, 3e9] {
            for gap in [0, 50, 150] {
                let taken = run(Bucket::new(rate, Duration::ZERO), gap, 1 << 20);
                let off = deviation(&taken, rate);
                assert!(off <= 0.03, "{rate} {gap}: {off}");
            }
        }
    }

    #[test]
    fn one_that_strides_holds_the_rate_and_takes_much_at_once() {
        let rate = 5e6;
        let most_at_once = |bucket: Bucket| {
            let taken = run(bucket, 0, 16 << 10);
            let off = deviation(&taken, rate);
            assert!(off <= 0.03, "{off}");
            taken.chunk_by(|a, b| a.0 == b.0).map(<[_]>::len).max()
        };
        assert_eq!(most_at_once(Bucket::new(rate, Duration::ZERO)), Some(1));
        assert_eq!(most_at_once(Bucket::striding(rate, Duration::ZERO)), Some(31));
    }

    #[test]
    fn a_rate_that_rises_frees_waiting_writers() {
        let mut bucket = Bucket::new(1e3, Duration::ZERO);
        bucket.take(1e6);
        assert!(bucket.wait(MS).is_some());
        bucket.set_rate(f64::INFINITY, 2 * MS);
        assert_eq!(bucket.wait(2 * MS), None);
    }
}
