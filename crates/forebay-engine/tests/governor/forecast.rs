//! What the governor foretells, and when it had better be silent.

use std::time::Duration;

use forebay_engine::Tunables;
use forebay_engine::governor::{Governor, Sample};

const MB: u64 = 1_000_000;

/// A drain seen at one moment.
struct Seen {
    tenths: u32,
    dirty: u64,
    copied: u64,
    unsettled: u64,
}

fn clean_in(governor: &mut Governor, seen: &Seen) -> Option<Duration> {
    let sample = Sample {
        now: Duration::from_millis(100) * seen.tenths,
        tier_bytes: 4000 * MB,
        dirty_bytes: seen.dirty * MB,
        copied: seen.copied * MB,
        unsettled_bytes: seen.unsettled * MB,
        ..Sample::default()
    };
    governor.tick(&sample, &Tunables::default()).outlook.clean_in
}

/// Copies land in the store's memory at any pace; only what is synced shows how fast the store is.
#[test]
fn the_end_of_a_drain_is_foretold_once_its_first_bytes_are_settled() {
    let mut governor = Governor::default();
    let mut tenths = 0;
    let mut see = |dirty, copied, unsettled| {
        tenths += 1;
        clean_in(&mut governor, &Seen { tenths, dirty, copied, unsettled })
    };
    assert_eq!(see(1000, 0, 0), None);
    for copied in 1..=5 {
        assert_eq!(see(1000, copied * 10, copied * 10), None, "nothing is settled");
    }
    assert!(see(950, 60, 10).is_some(), "the first batch is settled");
    assert!(see(950, 70, 20).is_some(), "and goes on being one");
    let rest = (0..15).map(|_| see(930, 70, 0)).last();
    assert!(rest.is_some());
    assert_eq!(see(1000, 80, 10), None, "it had rested");
    assert!(see(990, 90, 10).is_some());
}
