//! Every decision about when to flush, when to slow down and what may pass us by, as functions of
//! what is so now. No clock, no I/O: the governor of a later version replaces [`drain`] alone.

use std::time::Duration;

use crate::config::Tunables;

/// What the drain looks at.
#[derive(Debug, Clone, Copy, Default)]
pub struct Level {
    pub tier_bytes: u64,
    pub used_bytes: u64,
    pub dirty_bytes: u64,
    /// Age of the oldest dirty byte that may be flushed.
    pub oldest_age: Option<Duration>,
    /// Somebody waits for everything to be flushed.
    pub on_demand: bool,
    pub backing_available: bool,
    /// Whether flushing by level had begun.
    pub draining: bool,
}

/// What to flush now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drain {
    /// Nothing is due; look again in a while. The reason is for the status.
    Rest(&'static str),
    /// Files whose oldest dirty byte is at least this old.
    Older(Duration),
    /// The oldest first until the level is below `dirty_low`.
    Level,
    Everything,
}

fn share(bytes: u64, tier: u64) -> f64 {
    bytes as f64 * 100.0 / tier.max(1) as f64
}

pub fn drain(level: Level, t: &Tunables) -> Drain {
    if !level.backing_available {
        return Drain::Rest("backing-away");
    }
    if level.on_demand {
        return Drain::Everything;
    }
    let Some(age) = level.oldest_age else {
        return Drain::Rest("nothing-dirty");
    };
    let marks = t.marks(level.tier_bytes);
    let floor = if level.draining { marks.low } else { marks.high };
    if level.dirty_bytes > floor {
        return Drain::Level;
    }
    // Full of dirty and unevictable bytes: only flushing makes room.
    if share(level.used_bytes, level.tier_bytes) > f64::from(t.used_high) && level.dirty_bytes > 0 {
        return Drain::Level;
    }
    if age >= t.max_age { Drain::Older(t.max_age) } else { Drain::Rest("not-yet-due") }
}

/// How long a writer of `len` bytes waits: nothing below `dirty_hard`; above it a growing share of
/// the time the drain needs for as many bytes, the whole of it when the tier is full. So writers
/// come down to the speed of the drain without a step (S9).
pub fn write_delay(level: Level, t: &Tunables, len: u64, drain_rate: u64) -> Duration {
    let marks = t.marks(level.tier_bytes);
    if level.dirty_bytes <= marks.hard {
        return Duration::ZERO;
    }
    let band = (marks.full - marks.hard) as f64;
    let pressure = ((level.dirty_bytes - marks.hard) as f64 / band).clamp(0.0, 1.0);
    // A drain that was never measured is taken for a slow disk's 50 MB/s.
    let rate = if drain_rate == 0 { 50_000_000 } else { drain_rate };
    Duration::from_secs_f64((len as f64 / rate as f64 * pressure).min(1.0))
}

/// Whether one more program may write past us. Such a writer cannot be slowed down and its shadow
/// cannot be evicted, so room is kept: an eighth of the tier for each of them, from what is free
/// or clean; and a tier below [`PASSTHROUGH_WRITE_TIER_MIN`] never allows it.
pub fn may_write_unseen(level: Level, t: &Tunables, writers: u64) -> bool {
    if level.tier_bytes < PASSTHROUGH_WRITE_TIER_MIN {
        return false;
    }
    if level.dirty_bytes > t.marks(level.tier_bytes).high {
        return false;
    }
    let room = level.tier_bytes.saturating_sub(level.dirty_bytes);
    room / 8 > 0 && (writers + 1).saturating_mul(level.tier_bytes / 64) <= room
}

/// 4 GiB: at the few GB/s of a fast device, about a second of writing.
pub const PASSTHROUGH_WRITE_TIER_MIN: u64 = 4 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    fn level(dirty: u64) -> Level {
        Level {
            tier_bytes: 100,
            used_bytes: dirty,
            dirty_bytes: dirty,
            oldest_age: Some(Duration::from_secs(1)),
            backing_available: true,
            ..Level::default()
        }
    }

    #[test]
    fn the_drain_starts_above_high_and_stops_below_low() {
        let t = Tunables::default();
        assert_eq!(drain(level(50), &t), Drain::Rest("not-yet-due"));
        assert_eq!(drain(level(51), &t), Drain::Level);
        assert_eq!(drain(Level { draining: true, ..level(21) }, &t), Drain::Level);
        assert_eq!(drain(Level { draining: true, ..level(20) }, &t), Drain::Rest("not-yet-due"));
    }

    #[test]
    fn age_and_demand_are_due_whatever_the_level() {
        let t = Tunables::default();
        let old = Level { oldest_age: Some(Duration::from_secs(31)), ..level(1) };
        assert_eq!(drain(old, &t), Drain::Older(t.max_age));
        assert_eq!(drain(Level { on_demand: true, ..level(0) }, &t), Drain::Everything);
        let away = Level { on_demand: true, backing_available: false, ..level(90) };
        assert_eq!(drain(away, &t), Drain::Rest("backing-away"));
    }

    /// S-9: no step at the mark, and never more than the drain's own time.
    #[test]
    fn writers_slow_down_smoothly() {
        let t = Tunables::default();
        let delay = |dirty| write_delay(level(dirty), &t, 1 << 20, 100 << 20);
        assert_eq!(delay(80), Duration::ZERO);
        let steps: Vec<_> = (80..=100).map(delay).collect();
        assert!(steps.windows(2).all(|w| w[0] <= w[1]));
        assert!(steps[1] <= Duration::from_millis(1));
        assert_eq!(*steps.last().unwrap(), Duration::from_millis(10));
    }
}
