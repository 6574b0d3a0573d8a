//! The level term: rises with the fourth power of the level between the low and the high mark, with
//! a slow integral that brings the level back to three quarters of the way. It asks for little while
//! the level is low: bytes that stay may still be overwritten, and ages are the age term's concern.
//!
//! With the band `b` between the marks and the service rate `m`, the level around a resting place
//! `s` obeys `x'' + 4 s^3 (m/b) x' + k (m/b) x = 0` for an integral gain `k m`. The gain is a
//! sixteenth of `m/b`: where the integral works, damping is more than two, so that no load makes
//! the level oscillate, whatever the size of the tier or the speed of the store, since the gain
//! follows both.

use std::time::Duration;

use super::law::{ByLevel, Integral};

/// The level where the integral rests.
const REST: f64 = 0.75;

/// How many times slower than the part that follows the level the integral is.
const SLOWER: f64 = 16.0;

/// From here on up to the high mark the rate rises beyond the measured service rate, which may be
/// an underestimate: at the high mark there is no limit.
const STEEP_FROM: f64 = 0.9;

/// A level within the marks.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// 0 at the low mark, 1 at the high one.
    pub share: f64,
    pub band_bytes: f64,
    pub service: f64,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Occupancy {
    integral: f64,
    stepping: bool,
}

/// Whether the drain kept to the ordered rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obeyed {
    Yes,
    No,
}

impl Occupancy {
    /// The rate in bytes per second; infinite where only the store limits it.
    pub fn rate(&mut self, how: ByLevel, place: Place, dt: Duration, obeyed: Obeyed) -> f64 {
        match how {
            ByLevel::Off => 0.0,
            ByLevel::Step => self.step(place.share),
            ByLevel::Rising(how) => {
                self.integrate(how, place, dt, obeyed);
                self.by_place(how, place)
            }
        }
    }

    /// Bytes per second that the integral adds now.
    pub fn integral(&self) -> f64 {
        self.integral
    }

    fn step(&mut self, share: f64) -> f64 {
        self.stepping = share > if self.stepping { 0.0 } else { 1.0 };
        if self.stepping { f64::INFINITY } else { 0.0 }
    }

    fn integrate(&mut self, how: Integral, place: Place, dt: Duration, obeyed: Obeyed) {
        let error = place.share - REST;
        let gain = place.service / (SLOWER * place.band_bytes.max(1.0));
        // A step longer than the integral's own time would jump over the goal.
        let step = (gain * dt.as_secs_f64()).min(0.1) * place.service * error;
        match how {
            Integral::Unbounded => self.integral += step,
            Integral::Bounded => {
                if obeyed == Obeyed::Yes || error < 0.0 {
                    self.integral += step;
                }
                self.integral = self.integral.clamp(0.0, place.service / 2.0);
            }
        }
    }

    fn by_place(&self, how: Integral, place: Place) -> f64 {
        let share = place.share;
        if share >= 1.0 {
            return f64::INFINITY;
        }
        // The integral of a bounded law fades out towards the low mark: nothing is flushed below.
        let fade = match how {
            Integral::Bounded => (share * 10.0).clamp(0.0, 1.0),
            Integral::Unbounded => 1.0,
        };
        let rate = place.service * share.max(0.0).powi(4) + self.integral * fade;
        let steep = ((share - STEEP_FROM) / (1.0 - STEEP_FROM)).clamp(0.0, 0.99);
        (rate / (1.0 - steep)).max(0.0)
    }
}
