//! The recent activity of a file: bytes that count half after some seconds, in one word, without a
//! lock. Two threads at the same moment may lose each other's bytes; a ranking can bear that.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const HALF_LIFE_SECS: f64 = 8.0;

const BYTES_BITS: u32 = 40;

const BYTES_MAX: u64 = (1 << BYTES_BITS) - 1;

/// The seconds of the last change in the high bits, bytes in the low ones.
#[derive(Debug, Default)]
pub struct Heat(AtomicU64);

impl Heat {
    pub fn add(&self, bytes: u64, now_secs: u64) {
        let heat = self.at(now_secs).saturating_add(bytes).min(BYTES_MAX);
        self.0.store(now_secs << BYTES_BITS | heat, Relaxed);
    }

    /// Bytes per second lately.
    pub fn rate(&self, now_secs: u64) -> u64 {
        // A steady rate has this much heat for each byte per second.
        (self.at(now_secs) as f64 * std::f64::consts::LN_2 / HALF_LIFE_SECS) as u64
    }

    fn at(&self, now_secs: u64) -> u64 {
        let word = self.0.load(Relaxed);
        let (then, heat) = (word >> BYTES_BITS, word & BYTES_MAX);
        // The seconds wrap after half a year.
        let age = (now_secs & (u64::MAX >> BYTES_BITS)).saturating_sub(then);
        if age == 0 { heat } else { (heat as f64 * (-(age as f64) / HALF_LIFE_SECS).exp2()) as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_rate_is_told_and_then_forgotten() {
        let heat = Heat::default();
        (0..60).for_each(|now| heat.add(1_000_000, now));
        let rate = heat.rate(59);
        assert!((900_000..1_100_000).contains(&rate), "{rate}");
        assert!((440_000..560_000).contains(&heat.rate(67)), "{}", heat.rate(67));
        assert_eq!(heat.rate(1000), 0);
    }
}
