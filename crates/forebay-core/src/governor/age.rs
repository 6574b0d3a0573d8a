//! The age term: the lowest steady rate at which no byte passes its deadline.

use std::time::Duration;

/// Dirty bytes that are about equally old.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cohort {
    /// The age of the oldest byte, since it became dirty.
    pub age: Duration,
    /// The age of the youngest byte.
    pub youngest: Duration,
    pub bytes: u64,
}

/// The rate that the deadlines demand.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Demand {
    /// Bytes per second.
    pub rate: f64,
    /// The rate is for bytes of at least this age.
    pub from_age: Duration,
}

/// Deadlines this far ahead count; later bytes stay for absorption. A share of the age, in parts.
const WINDOW_PARTS: u32 = 4;

/// If deadlines behind the window would keep the store this busy, they cannot wait to come closer.
const START_EARLY: f64 = 0.5;

/// How far ahead of its deadline a byte may be flushed.
pub fn window(max_age: Duration) -> Duration {
    max_age / WINDOW_PARTS
}

/// Bytes that are rewritten all the time wait no longer than until this age.
pub fn no_wait_age(max_age: Duration) -> Duration {
    max_age.saturating_sub(window(max_age) / 2)
}

/// Whether so many of the `hot` bytes, which wait until that age, come due at once that the store
/// would be busy with them: they have to be reckoned with from now on. Oldest first.
pub fn is_too_much_at_once(hot: &[Cohort], max_age: Duration, service: f64) -> bool {
    let span = max_age.saturating_sub(no_wait_age(max_age));
    let most = START_EARLY * service * span.as_secs_f64();
    (0..hot.len()).any(|first| {
        let together = hot[first..].iter().take_while(|last| hot[first].age - last.age <= span);
        together.map(|cohort| cohort.bytes as f64).sum::<f64>() >= most
    })
}

/// How much earlier than needed the age term aims.
fn early(max_age: Duration) -> Duration {
    (max_age / 8).clamp(Duration::from_millis(1), Duration::from_secs(1))
}

/// The age at which bytes are to be picked, so that they are synced before `max_age` if a sync
/// takes `margin`.
fn aim(max_age: Duration, margin: Duration) -> Duration {
    max_age.saturating_sub(margin.min(max_age / 3)).saturating_sub(early(max_age))
}

/// Whether bytes of this age show that the pace did not suffice.
pub fn is_late(age: Duration, max_age: Duration, margin: Duration) -> bool {
    age > aim(max_age, margin) + early(max_age) / 2
}

/// The least rate that brings every cohort out before `max_age`, less `margin` for a batch to be
/// synced: the largest of "all bytes up to this old, over the time left to the youngest of them",
/// as the oldest go first. `cohorts` come oldest first; `service` is what the backing store can do.
pub fn demand(cohorts: &[Cohort], max_age: Duration, margin: Duration, service: f64) -> Demand {
    let early = early(max_age);
    let deadline = aim(max_age, margin);
    let mut demand = Demand::default();
    let mut bytes = 0.0;
    for cohort in cohorts {
        bytes += cohort.bytes as f64;
        // Delays are not made up for in an instant.
        let left = deadline.saturating_sub(cohort.youngest).max(early / 8);
        let rate = bytes / left.as_secs_f64();
        let due = left <= window(max_age) || rate >= START_EARLY * service;
        if due && (rate > demand.rate || demand.rate == 0.0) {
            demand = Demand { rate, from_age: cohort.age };
        }
    }
    demand
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);
    const MB: u64 = 1_000_000;

    fn cohort(age: u32, mb: u64) -> Cohort {
        Cohort { age: age * S, youngest: (age * S).saturating_sub(S), bytes: mb * MB }
    }

    #[test]
    fn a_steady_stream_is_drained_at_its_own_rate_when_it_is_due() {
        let stream: Vec<Cohort> = (0..=39).rev().map(|age| cohort(age, 10)).collect();
        let rate = demand(&stream, 40 * S, Duration::ZERO, 1e9).rate;
        assert!((9e6..=12e6).contains(&rate), "{rate}");
        let young: Vec<Cohort> = (0..=28).rev().map(|age| cohort(age, 10)).collect();
        assert_eq!(demand(&young, 40 * S, Duration::ZERO, 1e9), Demand::default());
    }

    #[test]
    fn what_is_hot_counts_where_the_store_could_not_take_it_in_time() {
        // A store of 100 MB/s, busy for half of 5 s.
        let too_much = |hot: &[Cohort]| is_too_much_at_once(hot, 40 * S, 100e6);
        assert!(too_much(&[cohort(9, 1), cohort(8, 130), cohort(5, 130)]));
        assert!(!too_much(&[cohort(20, 130), cohort(14, 130), cohort(8, 130)]));
        assert!(!too_much(&[]));
    }

    #[test]
    fn a_burst_that_takes_long_is_begun_in_time() {
        let burst = [cohort(1, 3000)];
        assert_eq!(demand(&burst, 40 * S, Duration::ZERO, 200e6).rate, 0.0);
        let slow = demand(&burst, 40 * S, Duration::ZERO, 100e6);
        assert!((76e6..78e6).contains(&slow.rate), "{slow:?}");
        let late = demand(&[cohort(100, 3000)], 40 * S, Duration::ZERO, 100e6);
        assert_eq!(late.rate, 24000e6);
    }
}
