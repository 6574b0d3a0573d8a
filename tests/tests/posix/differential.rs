//! Random operations on a plain directory and on the mount: every result, errno and byte equal.

use std::time::Instant;

use forebay_tests::ops::Pair;
use forebay_tests::tree::{Times, Tree};
use forebay_tests::{Bed, Mounted, Rng, Tier, is_root, proof, seed, skip, soak};

/// Disturbances of the mount between operations, which programs must not notice.
#[derive(Clone, Copy, PartialEq)]
enum Disturb {
    No,
    /// Flushes, evicts, drops caches, unmounts and mounts again.
    Yes,
}

fn run(tier: Tier, flags: &[&str], own_seed: u64, disturb: Disturb) {
    if !is_root() {
        skip!("needs root");
    }
    let deadline = soak().map(|time| Instant::now() + time);
    let mut seed = seed(own_seed);
    loop {
        run_seed(tier, flags, seed, disturb);
        seed = seed.wrapping_add(1000);
        if deadline.is_none_or(|at| Instant::now() > at) {
            return;
        }
    }
}

fn run_seed(tier: Tier, flags: &[&str], seed: u64, disturb: Disturb) {
    const STEPS: usize = 2200;
    let bed = Bed::new(tier);
    let plain = bed.dir("plain");
    let mut mounted = bed.mount(flags);
    let mut pair = Pair::new(&plain, &bed.mnt, seed);
    let mut chance = Rng::new(seed ^ 0xd157);
    let mut disturbed = 0;
    forebay_tests::say(&format!("  seed {seed} with {tier:?} {flags:?}"));
    for _ in 0..STEPS {
        pair.step();
        if disturb == Disturb::Yes && chance.one_in(60) {
            mounted = disturb_once(&bed, mounted, flags, &mut pair, &mut chance);
            disturbed += 1;
        }
    }
    pair.close_all();
    pair.stamp();
    let (want, seen) = (Tree::read(&plain), Tree::read(&bed.mnt));
    want.assert_same(&seen, Times::Compare);
    mounted.umount();
    want.assert_same(&Tree::read(&bed.backing), Times::Compare);
    for op in ["open", "pwrite", "mmap", "fallocate", "rename", "link", "truncate", "setxattr"] {
        assert!(pair.succeeded.contains(op), "{op} never succeeded: the sequence is too tame");
    }
    assert!(pair.failed_alike > 100, "only {} errors", pair.failed_alike);
    proof!(
        "seed {seed}: {STEPS} operations, {disturbed} disturbances, {} errors alike, {} names equal",
        pair.failed_alike,
        want.entries.len()
    );
}

fn disturb_once(
    bed: &Bed,
    mounted: Mounted,
    flags: &[&str],
    pair: &mut Pair,
    chance: &mut Rng,
) -> Mounted {
    let what = *chance.pick(&["flush", "flush", "evict", "evict", "caches", "remount"]);
    pair.note(what);
    match what {
        "flush" => mounted.flush(),
        "evict" => mounted.evict(),
        "caches" => forebay_tests::drop_caches(),
        _ => {
            pair.close_all();
            mounted.umount();
            return bed.mount(flags);
        }
    }
    mounted
}

#[test]
fn random_operations_do_what_they_do_on_a_plain_directory() {
    run(Tier::Disk, &[], 1, Disturb::No);
}

#[test]
fn random_operations_do_so_while_the_tier_flushes_and_evicts() {
    run(Tier::Disk, &["--max-age", "200ms"], 2, Disturb::Yes);
}

#[test]
fn random_operations_do_so_without_passthrough() {
    run(Tier::Tmpfs(512), &["--passthrough", "off", "--max-age", "200ms"], 3, Disturb::Yes);
}

/// The mount's own changes are always visible at once, however long the kernel may cache earlier
/// answers.
// S-1
#[test]
fn random_operations_do_so_where_the_kernel_believes_what_it_was_told_for_an_hour() {
    run(Tier::Disk, &["--attr-ttl", "1h", "--entry-ttl", "1h"], 7, Disturb::No);
}

#[test]
fn random_operations_do_so_with_passthrough_always() {
    let flags = ["--passthrough", "always", "--digests-from", "4KiB"];
    run(Tier::Xfs(768), &flags, 4, Disturb::Yes);
}

#[test]
fn random_operations_do_so_with_write_through() {
    run(Tier::Disk, &["--policy", "write-through"], 5, Disturb::Yes);
}

#[test]
fn random_operations_do_so_with_write_around() {
    run(Tier::Disk, &["--policy", "write-around"], 6, Disturb::Yes);
}
