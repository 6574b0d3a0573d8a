//! How long a writer waits above the hard mark.
//!
//! Writers are let in at a rate that falls in a straight line: from a little above their earlier
//! rate, at the hard mark, to the drain's rate in the middle between that mark and a full tier, and
//! from there to nothing. So the level finds the place where inflow equals outflow, and a straight
//! line is the gentlest way to it: no step.
//! A writer waits for its own bytes only: a writer of few bytes waits little, and writers that want
//! more than their share get equal shares.

use std::time::Duration;

/// The law as of the last look; the level is taken at the moment of the write.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Gate {
    pub hard_bytes: u64,
    pub full_bytes: u64,
    /// The rate of the drain at full speed, in bytes per second.
    pub drain_rate: f64,
    /// The rate at which programs wrote before they were slowed down, in bytes per second.
    pub free_rate: f64,
}

/// At the hard mark this many times the earlier rate is let in, so that the slowdown is not felt a
/// little above it.
const BEGIN: f64 = 1.25;

/// The longest wait for one write. A tier that runs full all the same makes writers wait for room.
pub const LONGEST: Duration = Duration::from_secs(4);

impl Gate {
    /// The bytes per second that one of `writers` may write.
    pub fn rate(&self, dirty_bytes: u64, writers: u32) -> f64 {
        if dirty_bytes <= self.hard_bytes {
            return f64::INFINITY;
        }
        let band = self.full_bytes.saturating_sub(self.hard_bytes).max(1) as f64;
        let pressure = ((dirty_bytes - self.hard_bytes) as f64 / band).min(1.0);
        let begin = (self.free_rate * BEGIN).max(self.drain_rate * 2.0);
        let rate = match pressure < 0.5 {
            true => begin + (self.drain_rate - begin) * pressure * 2.0,
            false => self.drain_rate * (1.0 - pressure) * 2.0,
        };
        rate / f64::from(writers.max(1))
    }

    /// How long a write of `len` bytes waits, when `writers` of them wait at once.
    pub fn delay(&self, dirty_bytes: u64, len: u64, writers: u32) -> Duration {
        let secs = len as f64 / self.rate(dirty_bytes, writers);
        Duration::try_from_secs_f64(secs).unwrap_or(LONGEST).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GATE: Gate =
        Gate { hard_bytes: 800 << 20, full_bytes: 900 << 20, drain_rate: 100e6, free_rate: 1e9 };

    /// S-9: no step at the mark nor above it.
    #[test]
    fn writers_slow_down_smoothly() {
        let delay = |percent: u64| GATE.delay((800 << 20) + percent * (1 << 20), 1 << 20, 1);
        assert_eq!(delay(0), Duration::ZERO);
        assert!(delay(1) <= Duration::from_millis(1), "faster than they write");
        let steps: Vec<_> = (0..=99).map(delay).collect();
        assert!(steps.windows(2).all(|w| w[0] < w[1]));
        let drain = Duration::from_secs_f64((1 << 20) as f64 / 100e6);
        assert_eq!(delay(50), drain);
        assert_eq!(delay(100), LONGEST);
    }

    #[test]
    fn many_writers_share_what_one_would_get() {
        let level = 850 << 20;
        assert_eq!(GATE.delay(level, 1 << 20, 8), GATE.delay(level, 8 << 20, 1));
        let small = GATE.delay(level, 4096, 8).as_secs_f64();
        let large = GATE.delay(level, 1 << 20, 8).as_secs_f64();
        assert!((large / small - 256.0).abs() < 1.0, "by bytes, not by requests");
    }
}
