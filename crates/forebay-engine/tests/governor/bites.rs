//! The checks find faults: each law that is known to be wrong fails the check that is for it.

use std::time::Duration;

use forebay_engine::Tunables;
use forebay_engine::governor::law::{ByAge, ByLevel, Integral, Law, Preset, Switch};

use crate::checks;
use crate::disk::Disk;
use crate::load::{Load, Shape};
use crate::world::World;

fn load(shape: Shape, rate: f64) -> Load {
    Load { shape, rate, writers: 4, hot_bytes: 0.0, reads: 20.0 }
}

fn governor() -> Law {
    Preset::Governor.law()
}

/// A store that is almost unavailable for two minutes, under a load that then ends.
const TROUBLE: (Option<(f64, f64, f64)>, f64, f64) = (Some((30.0, 150.0, 0.02)), 80e6, 200.0);

/// Writers that want more than the store can take, for ten minutes.
const OVERLOAD: (Option<(f64, f64, f64)>, f64, f64) = (None, 150e6, 600.0);

fn after((trouble, rate, at): (Option<(f64, f64, f64)>, f64, f64), law: Law) -> checks::Found {
    let disk = Disk { trouble, ..Disk::plain() };
    let tunables = Tunables { max_age: Duration::from_secs(3600), ..Tunables::default() };
    let low = tunables.marks(8e9 as u64).low as f64;
    let load = load(Shape::Ends { at }, rate);
    let ticks = World::new(disk, load, 8e9, tunables).under(law).run(at + 300.0);
    checks::winds_not_up(&ticks, low, disk.rate)
}

#[test]
fn an_integral_without_bounds_winds_up() {
    let level = ByLevel::Rising(Integral::Unbounded);
    let naive = Law { level, age: ByAge::Off, idle: Switch::Off, ..governor() };
    let bounded = Law { level: governor().level, ..naive };
    assert_eq!(after(TROUBLE, bounded), Ok(()));
    assert_eq!(after(OVERLOAD, bounded), Ok(()));
    after(OVERLOAD, naive).expect_err("it is still emptying the tier");
}

#[test]
fn a_threshold_does_not_come_to_rest() {
    let rest = |preset: Preset| {
        let tunables = Tunables { preset, ..Tunables::default() };
        let load = load(Shape::Steady, 50e6);
        checks::comes_to_rest(&World::new(Disk::plain(), load, 3e9, tunables).run(600.0), 3e9)
    };
    assert_eq!(rest(Preset::Governor), Ok(()));
    rest(Preset::Threshold).expect_err("all or nothing");
}

#[test]
fn without_the_age_term_data_grows_old() {
    let age = |age| {
        let tunables = Tunables::default();
        let max_age = tunables.max_age;
        let load = load(Shape::Steady, 20e6);
        let world = World::new(Disk::plain(), load, 40e9, tunables);
        checks::keeps_max_age(&world.under(Law { age, ..governor() }).run(200.0), max_age)
    };
    assert_eq!(age(ByAge::MaxAge), Ok(()));
    age(ByAge::Off).expect_err("nothing else is due at so low a level");
}

#[test]
fn without_the_brake_reads_wait_behind_the_drain() {
    let waits = |brake| {
        let disk = Disk { half_depth: 0.1, ..Disk::plain() };
        let tunables = Tunables { max_age: Duration::from_secs(120), ..Tunables::default() };
        let load = load(Shape::Bursts { period: 60.0, on: 0.1 }, 40e6);
        let ticks =
            World::new(disk, load, 6e9, tunables).under(Law { brake, ..governor() }).run(400.0);
        checks::percentile(ticks.iter().map(|tick| tick.latency).collect(), 99.0)
    };
    let (with, without) = (waits(Switch::On), waits(Switch::Off));
    assert!(with < without * 0.7, "{with} {without}");
}

/// A gate that is shut at the mark, as a bypass at the store's speed would be, is a step.
#[test]
fn a_gate_without_a_slope_is_a_step() {
    let tunables = |hard: u8, full| Tunables {
        dirty_hard: forebay_engine::Watermark::Share(hard),
        used_high: full,
        ..Tunables::default()
    };
    let steps = |tunables| {
        let load = load(Shape::Steady, 250e6);
        checks::settles_without_a_step(&World::new(Disk::plain(), load, 6e9, tunables).run(240.0))
    };
    assert_eq!(steps(tunables(80, 90)), Ok(()));
    steps(tunables(90, 90)).expect_err("no room between the marks");
}
