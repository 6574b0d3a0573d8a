//! A long day: writers that check their reads, on a tier too small for them, while it is flushed,
//! evicted, resized and mounted anew. No process is killed.
// S-1, S-9, S-12

use std::time::Instant;

use forebay_tests::tree::{Times, Tree};
use forebay_tests::{Bed, Mounted, Rng, Tier, needs_forebay, proof, seed, soak};

use crate::load::{Load, Work, assert_all_there};

const FLAGS: &[&str] = &["--max-age", "300ms", "--tier-size", "16MiB"];

/// The sizes that a tier is given from time to time, in MiB.
const SMALL: (u64, u64) = (16, 64);

/// Writers are let past the daemon.
const ROOMY: (u64, u64) = (512, 900);

fn one_day(tier: Tier, flags: &[&str], sizes: (u64, u64), own_seed: u64) {
    const ROUNDS: usize = 3;
    let seed = seed(own_seed);
    let deadline = soak().map(|time| Instant::now() + time);
    let bed = Bed::new(tier);
    let mut chance = Rng::new(seed);
    let (mut rounds, mut done) = (0, 0);
    while rounds < ROUNDS || deadline.is_some_and(|at| Instant::now() < at) {
        let mounted = bed.mount(flags);
        let mut load = Load::start(&bed, 3, seed + rounds as u64, Work::Mixed);
        for _ in 0..6 {
            load.progress(chance.range(50, 200));
            disturb(&mounted, sizes, &mut chance);
        }
        let writers = load.stop();
        let when = format!("seed {seed}, round {rounds}");
        assert_all_there(&writers, &bed.mnt, &when);
        writers.iter().for_each(|writer| writer.settle(&bed.mnt));
        let seen = Tree::read(&bed.mnt);
        mounted.umount();
        assert_all_there(&writers, &bed.backing, &format!("{when}, on the backing store"));
        seen.assert_same(&Tree::read(&bed.backing), Times::Compare);
        done = writers.iter().map(|writer| writer.history().acked.len()).sum();
        rounds += 1;
    }
    assert!(done > 1000, "only {done} operations");
    proof!("{rounds} rounds, {done} operations, every byte compared after each");
}

fn disturb(mounted: &Mounted, sizes: (u64, u64), chance: &mut Rng) {
    let at = mounted.path.to_string_lossy();
    let size = format!("tier-size={}MiB", chance.range(sizes.0, sizes.1));
    let commands: &[&[&str]] = &[
        &["flush", "--wait", &at],
        &["evict", &at],
        &["prefetch", &at],
        &["fence", &at],
        &["set", &at, &size],
        &["status", &at],
    ];
    // With writers at work some commands may report that they could not do everything: that is no
    // fault.
    let words = chance.pick(commands);
    let out = mounted.forebay(words);
    assert!(matches!(out.code, Some(0 | 1)), "{out:#?}");
}

#[test]
fn a_long_day_on_a_small_tier_loses_nothing() {
    needs_forebay!();
    one_day(Tier::Ext4(256), FLAGS, SMALL, 500);
}

#[test]
fn a_long_day_with_all_written_past_the_daemon_loses_nothing() {
    needs_forebay!();
    let flags = ["--max-age", "300ms", "--passthrough", "always", "--digests-from", "4KiB"];
    one_day(Tier::Ext4(1024), &flags, ROOMY, 520);
}

#[test]
fn a_long_day_on_the_daemon_path_loses_nothing() {
    needs_forebay!();
    one_day(Tier::Tmpfs(256), &[FLAGS, &["--passthrough", "off"]].concat(), SMALL, 510);
}
