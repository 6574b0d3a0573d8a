//! The load of programs: how many bytes per second they want to write, and how much of it
//! overwrites dirty bytes.

use crate::rng::Rng;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    Steady,
    /// On for the first share of each period.
    Bursts {
        period: f64,
        on: f64,
    },
    /// Rises and falls over the period.
    Swell {
        period: f64,
    },
    /// Rises from nothing to twice the rate over the whole run.
    Rising,
    /// Nothing after this time.
    Ends {
        at: f64,
    },
}

#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub shape: Shape,
    /// Mean bytes per second.
    pub rate: f64,
    pub writers: u32,
    /// Bytes that the overwriting part of the load cycles through; 0 for no overwriting.
    pub hot_bytes: f64,
    /// Reads of the backing store per second.
    pub reads: f64,
}

impl Load {
    pub fn wants(&self, t: f64, whole: f64) -> f64 {
        match self.shape {
            Shape::Steady => self.rate,
            Shape::Bursts { period, on } => match t % period < period * on {
                true => self.rate / on,
                false => 0.0,
            },
            Shape::Swell { period } => {
                self.rate * (1.0 + (t / period * std::f64::consts::TAU).sin())
            }
            Shape::Rising => self.rate * 2.0 * t / whole,
            Shape::Ends { at } => {
                if t < at {
                    self.rate
                } else {
                    0.0
                }
            }
        }
    }

    /// Returns a random load, with a mean rate relative to the store's.
    pub fn any(rng: &mut Rng, service: f64) -> Load {
        let period = 5.0 + rng.below(60) as f64;
        let shape = match rng.below(5) {
            0 => Shape::Steady,
            1 => Shape::Bursts { period, on: 0.1 + rng.below(60) as f64 / 100.0 },
            2 => Shape::Swell { period },
            3 => Shape::Rising,
            _ => Shape::Ends { at: 60.0 + rng.below(60) as f64 },
        };
        let rate = service * (5 + rng.below(145)) as f64 / 100.0;
        let hot = rng.below(3) as f64 * rate * 4.0;
        Load {
            shape,
            rate,
            writers: 1 + rng.below(32) as u32,
            hot_bytes: hot,
            reads: rng.below(3) as f64 * 20.0,
        }
    }
}
