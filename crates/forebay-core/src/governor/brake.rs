//! The latency brake: halves the copies in flight when foreground operations are slower than their
//! target, and recovers slowly.
//!
//! It looks at the fastest operation of a moment, as CoDel does: if even that one was too slow,
//! there is a standing queue, and not just one slow operation.

use std::time::Duration;

/// Foreground operations on one side since the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen {
    pub count: u32,
    pub fastest: Duration,
}

/// The targets for the latency of foreground operations while the drain works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Targets {
    pub tier: Duration,
    pub backing: Duration,
}

/// The time until the effect of a halving can be judged.
const JUDGE: Duration = Duration::from_millis(300);

/// From one copy to all of sixteen in about eight seconds.
const RECOVER_PER_SEC: f64 = 2.0;

/// Below one copy the rate is cut. The brake never stops the drain altogether.
const LEAST: f64 = 0.125;

#[derive(Debug, Clone, Copy)]
pub struct Brake {
    /// Copies in flight that are allowed; below 1 the share of the rate.
    allowed: f64,
    judged: Duration,
}

impl Default for Brake {
    fn default() -> Brake {
        Brake { allowed: f64::INFINITY, judged: Duration::ZERO }
    }
}

/// Whether the brake has to yield.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Yields {
    No,
    /// The tier is about to run full, or deadlines have passed: flushing goes before latency.
    Yes,
}

impl Brake {
    pub fn look(
        &mut self,
        (tier, backing): (Seen, Seen),
        targets: Targets,
        dt: Duration,
        depth_max: u32,
        yields: Yields,
    ) {
        self.judged += dt;
        self.allowed = self.allowed.min(f64::from(depth_max));
        let slow = |seen: Seen, target| seen.count > 0 && seen.fastest > target;
        let late = slow(tier, targets.tier) || slow(backing, targets.backing);
        match (yields, late) {
            (Yields::No, true) if self.judged >= JUDGE => {
                self.allowed = (self.allowed / 2.0).max(LEAST);
                self.judged = Duration::ZERO;
            }
            (Yields::No, true) => {}
            (Yields::No, false) => self.recover(RECOVER_PER_SEC, dt),
            (Yields::Yes, _) => self.recover(RECOVER_PER_SEC * 8.0, dt),
        }
        self.allowed = self.allowed.min(f64::from(depth_max));
    }

    fn recover(&mut self, per_sec: f64, dt: Duration) {
        self.allowed += per_sec * dt.as_secs_f64();
    }

    pub fn depth(&self) -> u32 {
        self.allowed.clamp(1.0, 1e6) as u32
    }

    /// The share of the store's rate that is allowed; 1 unless one copy at a time is too much.
    pub fn share(&self) -> f64 {
        self.allowed.min(1.0)
    }

    pub fn is_on(&self, depth_max: u32) -> bool {
        self.allowed < f64::from(depth_max)
    }
}

/// As few copies at once as reach the rate: a foreground operation waits behind each copy. But
/// there are always a few: a disk whose head leaves the programs' data for one copy has to find its
/// way back just as for several.
#[derive(Debug, Clone, Copy)]
pub struct Need(f64);

/// The copies that a paced drain gives up per second to see whether it can do with fewer.
const NEED_LESS_PER_SEC: f64 = 1.0;

const NEED_LEAST: f64 = 3.0;

impl Default for Need {
    fn default() -> Need {
        Need(NEED_LEAST)
    }
}

impl Need {
    pub fn note_paced(&mut self, dt: Duration) {
        self.0 = (self.0 - NEED_LESS_PER_SEC * dt.as_secs_f64()).max(NEED_LEAST);
    }

    /// Notes that the store was the limit.
    pub fn note_short(&mut self, dt: Duration, depth_max: u32) {
        self.0 = (self.0 * (1.0 + 3.0 * dt.as_secs_f64())).min(f64::from(depth_max));
    }

    pub fn depth(&self) -> u32 {
        self.0.ceil() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const TARGETS: Targets =
        Targets { tier: Duration::from_millis(2), backing: Duration::from_millis(75) };

    fn look(brake: &mut Brake, backing_ms: u32, yields: Yields) -> u32 {
        let seen = Seen { count: 3, fastest: backing_ms * MS };
        brake.look((Seen::default(), seen), TARGETS, 100 * MS, 16, yields);
        brake.depth()
    }

    #[test]
    fn the_brake_halves_at_once_and_recovers_slowly() {
        let mut brake = Brake::default();
        assert_eq!(look(&mut brake, 10, Yields::No), 16);
        let down: Vec<u32> = (0..24).map(|_| look(&mut brake, 100, Yields::No)).collect();
        assert_eq!(down.last(), Some(&1));
        assert!(down.windows(2).all(|w| w[1] >= w[0] / 2), "{down:?}");
        assert!((LEAST..1.0).contains(&brake.share()), "it never stops the drain");
        let up: Vec<u32> = (0..90).map(|_| look(&mut brake, 10, Yields::No)).collect();
        assert_eq!((up[20], up[89]), (4, 16));
        assert!(up.windows(2).all(|w| w[1] >= w[0]));
    }

    #[test]
    fn the_brake_yields_to_a_full_tier() {
        let mut brake = Brake::default();
        let mut looks = |n, yields| (0..n).map(|_| look(&mut brake, 100, yields)).last();
        assert_eq!(looks(60, Yields::No), Some(1));
        assert_eq!(looks(12, Yields::Yes), Some(16));
    }
}
