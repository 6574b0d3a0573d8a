//! A caller waits for a flush at any time: bytes that are due for other reasons are flushed all the same.

use std::time::Duration;

use forebay_engine::Tunables;
use forebay_engine::governor::age::Cohort;
use forebay_engine::governor::brake::Seen;
use forebay_engine::governor::law::Preset;
use forebay_engine::governor::{Busy, Governor, Sample, Term, Urgent};

use crate::checks;
use crate::disk::Disk;
use crate::load::{Load, Shape};
use crate::world::World;

fn load(shape: Shape, rate: f64) -> Load {
    Load { shape, rate, writers: 4, hot_bytes: 0.0, reads: 20.0 }
}

fn world(load: Load, tier: f64) -> World {
    let mut world = World::new(Disk::plain(), load, tier, Tunables::default());
    world.demands = 3;
    world
}

#[test]
fn writers_that_fill_the_tier_are_let_in_at_the_drains_speed() {
    let ticks = world(load(Shape::Steady, 250e6), 6e9).run(240.0);
    assert_eq!(checks::settles_without_a_step(&ticks), Ok(()));
    assert!(ticks.iter().any(|tick| tick.decision.term == Term::Hard));
}

#[test]
fn nothing_gets_older_than_max_age() {
    let ticks = world(load(Shape::Steady, 20e6), 40e9).run(200.0);
    assert_eq!(checks::keeps_max_age(&ticks, Tunables::default().max_age), Ok(()));
    assert!(ticks.iter().any(|tick| tick.decision.term == Term::Age));
    assert!(ticks.iter().any(|tick| tick.decision.term == Term::Demand), "before it is due");
}

#[test]
fn a_flush_goes_on_alone_where_nothing_else_is_due() {
    let tunables = Tunables { preset: Preset::Hold, ..Tunables::default() };
    let sample = |dirty_bytes, urgent| Sample {
        tier_bytes: 1000,
        dirty_bytes,
        urgent,
        demands: 1,
        ..Sample::default()
    };
    let term = |sample: Sample| Governor::default().tick(&sample, &tunables).term;
    assert_eq!(term(sample(700, Urgent::No)), Term::Demand);
    assert_eq!(term(sample(700, Urgent::Yes)), Term::Hard, "a writer waits for room");
    assert_eq!(term(sample(850, Urgent::No)), Term::Hard, "above the mark");
}

#[test]
fn a_store_that_rests_under_programs_at_work_is_no_opportunity() {
    let term = |operations_per_tick: u32| {
        let mut governor = Governor::default();
        let tick = |n: u32, governor: &mut Governor| {
            let sample = Sample {
                now: Duration::from_millis(100) * n,
                tier_bytes: 1 << 30,
                dirty_bytes: 1 << 20,
                settled_bytes: 1 << 20,
                tier: Seen { count: operations_per_tick, fastest: Duration::from_micros(5) },
                idle_for: Duration::from_secs(60),
                ..Sample::default()
            };
            governor.tick(&sample, &Tunables::default()).term
        };
        (0..30).map(|n| tick(n, &mut governor)).last()
    };
    assert_eq!(term(5), Some(Term::Idle));
    assert_eq!(term(20), Some(Term::None));
}

#[test]
fn a_late_drain_takes_as_many_copies_at_once_as_it_needs() {
    let tunables = Tunables::default();
    let late =
        [Cohort { age: tunables.max_age * 2, youngest: tunables.max_age * 2, bytes: 64 << 20 }];
    let mut governor = Governor::default();
    let mut depth_after = |from: u32, busy: Busy| {
        let tick = |n: u32| Sample {
            now: Duration::from_millis(100) * n,
            tier_bytes: 1 << 30,
            dirty_bytes: 64 << 20,
            cohorts: &late,
            copied: u64::from(n) << 20,
            busy,
            ..Sample::default()
        };
        let decided = (from..from + 20).map(|n| governor.tick(&tick(n), &tunables));
        let last = decided.last().expect("twenty");
        assert_eq!(last.term, Term::Age);
        last.depth
    };
    assert_eq!(depth_after(0, Busy::Paced), 3, "the pace is what holds it up");
    assert_eq!(depth_after(20, Busy::Store), tunables.flush_depth, "the store is");
}

/// Bytes that are being flushed cannot be taken once more, so nothing else is asked for in their place.
#[test]
fn what_is_on_its_way_raises_the_pace_and_nothing_else() {
    let tunables = Tunables::default();
    let late =
        [Cohort { age: tunables.max_age * 2, youngest: tunables.max_age * 2, bytes: 64 << 20 }];
    let on_its_way = |flying| Sample {
        tier_bytes: 1 << 30,
        dirty_bytes: 64 << 20,
        flying,
        idle_for: Duration::ZERO,
        ..Sample::default()
    };
    let rests = Governor::default().tick(&on_its_way(&[]), &tunables);
    assert_eq!((rests.rate, rests.pace), (0.0, 0.0));
    let flies = Governor::default().tick(&on_its_way(&late), &tunables);
    assert_eq!((flies.rate, flies.term, flies.from_age), (0.0, rests.term, rests.from_age));
    assert!(flies.pace > (64 << 20) as f64, "all of it in less than a second: {flies:?}");
    let hold = Tunables { preset: Preset::Hold, ..tunables };
    assert_eq!(Governor::default().tick(&on_its_way(&late), &hold).pace, 0.0);
}
