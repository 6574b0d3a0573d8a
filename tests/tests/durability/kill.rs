//! kill -9 of the daemon under load, again and again.
// S-2, S-7

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use forebay_tests::tree::{Times, Tree};
use forebay_tests::{Bed, Rng, Tier, needs_forebay, proof, seed, soak};

use crate::load::{Load, Work, assert_all_there};

fn kill_again_and_again(tier: Tier, flags: &[&str], own_seed: u64) {
    const ROUNDS: usize = 5;
    let seed = seed(own_seed);
    let deadline = soak().map(|time| Instant::now() + time);
    let bed = Bed::new(tier);
    let mut chance = Rng::new(seed);
    let mut rounds = 0;
    let mut writes = 0;
    while rounds < ROUNDS || deadline.is_some_and(|at| Instant::now() < at) {
        let mounted = bed.mount(flags);
        let mut load = Load::start(&bed, 3, seed + rounds as u64, Work::Mixed);
        load.progress(chance.range(50, 400));
        if chance.one_in(2) {
            // At random moments between the parts of a flush, an eviction or a fill.
            mounted.forebay(&["flush", &bed.mnt.to_string_lossy()]);
            mounted.forebay(&["evict", &bed.mnt.to_string_lossy()]);
            load.progress(chance.range(1, 100));
        }
        mounted.kill9();
        let writers = load.stop();
        mounted.crash();

        let mounted = bed.mount(flags);
        let when = format!("seed {seed}, after kill {rounds}");
        assert_all_there(&writers, &bed.mnt, &when);
        for writer in &writers {
            writer.settle(&bed.mnt);
            writes = writes.max(writer.history().writes());
        }
        if chance.one_in(3) {
            mounted.evict();
            assert_all_there(&writers, &bed.mnt, &format!("{when}, from the backing store"));
        }
        let seen = Tree::read(&bed.mnt);
        mounted.umount();
        assert_all_there(&writers, &bed.backing, &format!("{when}, on the backing store"));
        seen.assert_same(&Tree::read(&bed.backing), Times::Compare);
        rounds += 1;
    }
    assert!(writes > 100, "only {writes} writes");
    proof!("{rounds} kills; one writer of three had {writes} acknowledged writes");
}

#[test]
fn acknowledged_bytes_survive_kill_9_with_passthrough() {
    needs_forebay!();
    // Digests from 4 KiB on, so that small files, too, are written past the daemon again once they
    // are complete.
    kill_again_and_again(Tier::Disk, &["--max-age", "300ms", "--digests-from", "4KiB"], 10);
}

#[test]
fn acknowledged_bytes_survive_kill_9_on_the_daemon_path() {
    needs_forebay!();
    kill_again_and_again(Tier::Tmpfs(1024), &["--passthrough", "off", "--max-age", "300ms"], 20);
}

#[test]
fn acknowledged_bytes_survive_kill_9_with_write_through() {
    needs_forebay!();
    kill_again_and_again(Tier::Disk, &["--policy", "write-through"], 30);
}

#[test]
fn acknowledged_bytes_survive_kill_9_on_a_tier_that_is_full() {
    needs_forebay!();
    kill_again_and_again(Tier::Ext4(128), &["--max-age", "300ms", "--tier-size", "24MiB"], 40);
}

/// The dirty bytes of a killed daemon wait in the tier, even if it is killed repeatedly before it
/// can flush, and `recover` flushes them without a mount.
#[test]
fn recover_brings_home_what_a_killed_daemon_left() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mut writers = Vec::new();
    for round in 0..3 {
        let mounted = bed.mount(&["--preset", "hold"]);
        assert_eq!(mounted.status()["recovery"]["clean_shutdown"], round == 0);
        let mut load = Load::start(&bed, 2, 50 + round, Work::Mixed);
        load.progress(100);
        mounted.kill9();
        writers = load.stop();
        mounted.crash();
        let mounted = bed.mount(&["--preset", "hold"]);
        assert_all_there(&writers, &bed.mnt, &format!("after kill {round}"));
        writers.iter().for_each(|writer| writer.settle(&bed.mnt));
        assert!(mounted.number("dirty_bytes") > 0, "nothing was dirty: {:#}", mounted.status());
        mounted.crash();
    }
    let tier = bed.tier.to_string_lossy().into_owned();
    let check = bed.forebay(&["check", &tier, "--json"]).json();
    assert!(check["dirty_bytes"].as_u64() > Some(0), "{check:#}");
    bed.forebay(&["recover", &tier]).ok();
    assert_all_there(&writers, &bed.backing, "after recover");
    let check = bed.forebay(&["check", &tier, "--json"]).ok().json();
    assert_eq!(check["dirty_bytes"], 0, "{check:#}");
    proof!("three kills, then recovered");
}

/// Others undo a change of names soon after it: recovery must not take their change for one that the store has
/// forgotten, and make ours again.
fn undone_by_others_before_a_kill(change: impl Fn(&Bed), undo: impl Fn(&Bed)) {
    let bed = Bed::new(Tier::Disk);
    std::fs::write(bed.backing.join("f"), "precious").expect("the store is writable");
    std::fs::hard_link(bed.backing.join("f"), bed.backing.join("f.bak")).expect("it is free");
    let mounted = bed.mount(&["--preset", "hold"]);
    change(&bed);
    sleep(Duration::from_millis(100));
    undo(&bed);
    mounted.kill9();
    mounted.crash();
    let mounted = bed.mount(&[]);
    let read = |dir: &Path| std::fs::read_to_string(dir.join("f")).expect("others gave it back");
    assert_eq!(read(&bed.mnt), "precious");
    mounted.umount();
    assert_eq!(read(&bed.backing), "precious");
}

// S-1 S-2
#[test]
fn a_removed_name_that_others_give_back_survives_kill_9() {
    needs_forebay!();
    undone_by_others_before_a_kill(
        |bed| std::fs::remove_file(bed.mnt.join("f")).expect("it is there"),
        |bed| {
            std::fs::rename(bed.backing.join("f.bak"), bed.backing.join("f")).expect("it is free")
        },
    );
}

// S-1 S-2
#[test]
fn a_rename_that_others_undo_stays_undone_after_kill_9() {
    needs_forebay!();
    undone_by_others_before_a_kill(
        |bed| std::fs::rename(bed.mnt.join("f"), bed.mnt.join("g")).expect("it is free"),
        |bed| std::fs::rename(bed.backing.join("g"), bed.backing.join("f")).expect("it is free"),
    );
}
