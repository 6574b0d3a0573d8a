//! The core under every delay, loss and death that a seed comes up with.
//!
//! Three members with a model of a mount each, a registry whose answers are lost, late or overtaken, watches
//! that lag or are torn, a network that loses, and members that are cut off, stopped and killed. Programs on
//! all of them open, read, write, create, change and rename. `World` checks that a read sees what was
//! acknowledged before its open, that a write comes on top of the newest one, that nobody writes below a
//! directory that another renames, that every answer comes within the patience, and that in the end all bytes
//! are home and nothing is claimed.
//!
//! `FOREBAY_SEED=N cargo test -p forebay-cluster sim -- --nocapture` runs one seed again and says what happens;
//! `FOREBAY_SEEDS=N` runs the first N.

mod registry;
mod world;

use super::rules::{Rule, Rules};
use world::{Counts, World};

const SEEDS: u64 = 20_000;

const THREADS: u64 = 2;

fn run(seed: u64, rules: Rules) -> (Result<(), String>, Counts) {
    let mut world = World::new(seed, rules);
    let result = world.run();
    (result, world.counts.clone())
}

#[test]
fn no_seed_breaks_a_promise() {
    if let Ok(seed) = std::env::var("FOREBAY_SEED") {
        let seed = seed.parse().expect("FOREBAY_SEED is a number");
        let mut world = World::new(seed, Rules::default());
        world.trace = true;
        let result = world.run();
        println!("{:?}", world.counts);
        return result.unwrap();
    }
    let seeds = std::env::var("FOREBAY_SEEDS").ok();
    let seeds = seeds.map_or(SEEDS, |n| n.parse().expect("FOREBAY_SEEDS is a number"));
    let part = |first: u64| {
        let mut all = Counts::default();
        for seed in (first..seeds).step_by(THREADS as usize) {
            let (result, counts) = run(seed, Rules::default());
            if let Err(error) = result {
                panic!("seed {seed}: {error} (again with FOREBAY_SEED={seed})");
            }
            all.add(&counts);
        }
        all
    };
    let mut all = Counts::default();
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..THREADS).map(|first| scope.spawn(move || part(first))).collect();
        for part in parts {
            all.add(&part.join().expect("no seed fails"));
        }
    });
    println!("{all:?}");
    all.all_happened();
}

/// How many seeds each may take. `LookAfterCreators` and `LookAfterChange` have tests of their own beside this.
const RULES: [(Rule, u64); 13] = [
    (Rule::BarrierBeforeOpen, 500),
    (Rule::AskCreators, 500),
    (Rule::GateStopsClaims, 5000),
    (Rule::BeganBeforeHolds, 20_000),
    (Rule::ForgetOnGiven, 500),
    (Rule::RecallBelowGate, 2000),
    (Rule::ClaimBeforeWrite, 500),
    (Rule::ReachOwnClaim, 20_000),
    (Rule::ReleaseBeforeGiveBack, 500),
    (Rule::WritersWaitDuringRelease, 5000),
    (Rule::MakingKeepsCreates, 5000),
    (Rule::ReadersWaitDuringGiveBack, 20_000),
    (Rule::EpochStands, 20_000),
];

#[test]
fn each_rule_switched_off_does_damage() {
    let mut harmless = Vec::new();
    for (rule, seeds) in RULES {
        let found = (0..seeds).find_map(|seed| {
            let error = run(seed, Rules::without(rule)).0.err()?;
            let is_damage = !error.contains("given back") && !error.contains("hangs");
            if !is_damage {
                return None;
            }
            run(seed, Rules::default()).0.is_ok().then_some((seed, error))
        });
        match found {
            Some((seed, error)) => println!("{rule:?}: seed {seed}: {error}"),
            None => harmless.push(rule),
        }
    }
    assert!(harmless.is_empty(), "no seed needs {harmless:?}");
}
