//! Somebody waits for a flush at any time: what is due for other reasons goes out all the same.

use std::time::Duration;

use forebay_engine::Tunables;
use forebay_engine::governor::brake::Seen;
use forebay_engine::governor::law::Preset;
use forebay_engine::governor::{Governor, Sample, Term, Urgent};

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
