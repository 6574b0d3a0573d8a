//! A simulated backing store: its copies per second by the number of copies in flight, the time of
//! a foreground operation meanwhile, and its bad hours.

use crate::rng::Rng;

#[derive(Debug, Clone, Copy)]
pub struct Disk {
    /// Bytes per second at full depth.
    pub rate: f64,
    /// Copies in flight at which half of that rate is reached.
    pub half_depth: f64,
    /// The latency of an operation without a queue, in seconds.
    pub latency: f64,
    /// The time of a sync, in seconds.
    pub sync: f64,
    /// Begin and end of a time of trouble, and the factor of its speed; 0 is an outage.
    pub trouble: Option<(f64, f64, f64)>,
}

impl Disk {
    /// Returns one disk of 100 MB/s.
    pub fn plain() -> Disk {
        Disk { rate: 100e6, half_depth: 0.2, latency: 0.005, sync: 0.05, trouble: None }
    }

    pub fn any(rng: &mut Rng) -> Disk {
        let rate = [2e6, 30e6, 100e6, 500e6, 2e9][rng.below(5) as usize];
        let half_depth = [0.1, 1.0, 4.0][rng.below(3) as usize];
        let latency = [0.0003, 0.005, 0.02][rng.below(3) as usize];
        let from = 40.0 + rng.below(80) as f64;
        let trouble = match rng.below(4) {
            0 => Some((from, from + 5.0 + rng.below(30) as f64, rng.below(3) as f64 / 4.0)),
            _ => None,
        };
        Disk { rate, half_depth, latency, sync: latency * 4.0 + 0.02, trouble }
    }

    fn state(&self, t: f64) -> f64 {
        match self.trouble {
            Some((from, until, factor)) if (from..until).contains(&t) => factor,
            _ => 1.0,
        }
    }

    pub fn is_there(&self, t: f64) -> bool {
        self.state(t) > 0.0
    }

    pub fn rate(&self, depth: u32, t: f64) -> f64 {
        let depth = f64::from(depth);
        self.rate * self.state(t) * depth / (depth + self.half_depth)
            * (1.0 + self.half_depth / 16.0)
    }

    /// Returns the fastest of some foreground operations, while the drain keeps `depth` copies of 1
    /// MiB in flight for a share of the time.
    pub fn fastest(&self, depth: u32, share: f64, t: f64) -> f64 {
        let queue = f64::from(depth) * f64::from(1 << 20) / self.rate(depth, t).max(1.0);
        self.latency + if share > 0.9 { queue } else { 0.0 }
    }

    /// Returns the mean of the same.
    pub fn mean(&self, depth: u32, share: f64, t: f64) -> f64 {
        let queue = f64::from(depth) * f64::from(1 << 20) / self.rate(depth, t).max(1.0);
        self.latency + queue * share
    }
}
