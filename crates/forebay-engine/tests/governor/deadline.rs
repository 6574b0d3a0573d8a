//! `drain-by` finishes a little before its time, without haste.

use std::time::Duration;

use forebay_engine::Tunables;
use forebay_engine::governor::law::Preset;
use forebay_engine::governor::{Governor, Sample, Term};

use crate::checks::variation;
use crate::disk::Disk;
use crate::load::{Load, Shape};
use crate::world::World;

#[test]
fn a_drain_to_a_deadline_ends_just_before_it_at_an_even_rate() {
    for (dirty, by) in [(2e9, 100.0), (1e9, 300.0), (4e9, 120.0)] {
        let tunables = Tunables {
            preset: Preset::Hold,
            max_age: Duration::from_secs(3600),
            ..Tunables::default()
        };
        let load = Load {
            shape: Shape::Ends { at: 10.0 },
            rate: dirty / 10.0,
            writers: 1,
            hot_bytes: 0.0,
            reads: 5.0,
        };
        let mut world = World::new(Disk::plain(), load, 10e9, tunables);
        world.drain_by = Some(by);
        let ticks = world.run(by + 10.0);
        let clean = ticks.iter().skip(150).find(|tick| tick.dirty < 1.0).expect("an end").t;
        assert!((by * 0.85..by).contains(&clean), "clean at {clean:.1} of {by}");
        let under_way: Vec<_> = ticks.iter().filter(|t| t.t > 15.0 && t.t < by * 0.8).collect();
        assert!(under_way.iter().all(|tick| tick.decision.term == Term::Deadline));
        let told: Vec<f64> = under_way.iter().map(|tick| tick.decision.rate).collect();
        assert!(variation(&told) < 0.15, "an even rate: {}", variation(&told));
    }
}

#[test]
fn the_outlook_says_when_it_is_full_and_when_it_is_clean() {
    let tunables = Tunables { preset: Preset::Hold, ..Tunables::default() };
    let load = Load { shape: Shape::Steady, rate: 50e6, writers: 1, hot_bytes: 0.0, reads: 0.0 };
    let ticks = World::new(Disk::plain(), load, 10e9, tunables).run(100.0);
    let at = |secs: usize| ticks[secs * 10].decision.outlook;
    let full = at(60).full_in.expect("it rises").as_secs_f64();
    assert!((full - (9e9 / 50e6 - 60.0)).abs() < 3.0, "{full}");
    assert_eq!(at(60).clean_in, None);
}

/// The mean of arrivals takes a while to fall; the tier does not fill meanwhile.
#[test]
fn nothing_fills_what_nobody_writes_to() {
    let tunables = Tunables { preset: Preset::Hold, ..Tunables::default() };
    let mut governor = Governor::default();
    // The load writes for three seconds, 100 MB each.
    let mut outlook = |tick: u32| {
        let arrived = 10_000_000 * u64::from(tick.min(30));
        let now = Duration::from_millis(100) * tick;
        let sample =
            Sample { now, arrived, dirty_bytes: arrived, tier_bytes: 1 << 30, ..Sample::default() };
        governor.tick(&sample, &tunables).outlook
    };
    let all: Vec<_> = (0..45).map(&mut outlook).collect();
    assert!(all[30].full_in.is_some(), "{:?}", all[30]);
    assert!(all[44].arrival_rate > 1e6, "the mean still shows it: {:?}", all[44]);
    assert_eq!(all[44].full_in, None);
}
