//! Swap files, really put in use where the kernel allows it.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::time::Duration;

use forebay_node::space::{Owner, Pool, Settings, SpaceSpec};
use forebay_node::swap::SwapState;
use support::{Kind, MIB, Place, die_at, id};

const LIMIT: Duration = Duration::from_secs(20);

/// Lines of `/proc/swaps` that name a file below.
fn listed(place: &Place) -> usize {
    let dir = place.dir.path().to_str().unwrap();
    let table = fs::read_to_string("/proc/swaps").unwrap_or_default();
    table.lines().filter(|line| line.contains(dir)).count()
}

/// Whether this kernel allows swap at all; otherwise everything up to the system call is run.
fn swap_works(place: &Place, pool: &Pool) -> bool {
    match pool.swap_on(&id("try"), MIB, None) {
        Ok(_) => {
            pool.swap_off(&id("try"), LIMIT).unwrap();
            pool.remove(&id("try")).unwrap();
            true
        }
        Err(e) => {
            assert!(e.to_string().contains("swapon"), "up to the call all is well: {e}");
            assert_eq!(listed(place), 0);
            println!("SKIPPED: {e}");
            false
        }
    }
}

#[test]
fn swap_goes_on_and_off_and_is_found_again() {
    let place = Place::new();
    let pool = place.pool();
    if !swap_works(&place, &pool) {
        return;
    }
    let swap = pool.swap_on(&id("job"), 64 * MIB, Some(5)).unwrap();
    assert_eq!(pool.swap_on(&id("job"), 64 * MIB, Some(5)).unwrap(), swap, "on again is on");
    assert_eq!(listed(&place), 1);
    let table = fs::read_to_string("/proc/swaps").unwrap();
    let path = swap.path.to_str().unwrap();
    let line = table.lines().find(|line| line.starts_with(path)).unwrap();
    assert_eq!(line.split_ascii_whitespace().last(), Some("5"), "{line}");
    let stat = fs::metadata(&swap.path).unwrap();
    assert_eq!(stat.permissions().mode() & 0o7777, 0o600);
    assert!(stat.blocks() * 512 >= 64 * MIB, "no holes");
    let error = pool.remove(&id("job")).unwrap_err();
    assert!(error.is(libc::EBUSY) && error.to_string().contains("is on"), "{error}");
    let error = pool.swap_on(&id("job"), 32 * MIB, Some(5)).unwrap_err().to_string();
    assert!(error.contains("remove it first"), "{error}");
    drop(pool);

    let pool = place.pool();
    assert_eq!(pool.swap_state(&id("job")).unwrap(), SwapState::On(swap));
    pool.swap_off(&id("job"), LIMIT).unwrap();
    pool.swap_off(&id("job"), LIMIT).unwrap();
    assert_eq!((listed(&place), pool.swap_state(&id("job")).unwrap()), (0, SwapState::Off));
    pool.remove(&id("job")).unwrap();
    assert_eq!(pool.swap_state(&id("job")).unwrap(), SwapState::Absent);
    place.assert_empty(&pool);
}

/// A limit of zero is always too short: the caller is told, and the next call completes it.
#[test]
fn swap_that_is_not_off_in_time_is_told_and_keeps_its_record() {
    let place = Place::new();
    let pool = place.pool();
    if !swap_works(&place, &pool) {
        return;
    }
    let mut late = 0;
    for _ in 0..20 {
        pool.swap_on(&id("job"), 256 * MIB, None).unwrap();
        match pool.swap_off(&id("job"), Duration::ZERO) {
            Ok(()) => {}
            Err(e) => {
                late += 1;
                assert_eq!(e.kind(), forebay_base::Kind::TimedOut, "{e}");
                assert!(e.to_string().contains("STILL ON"), "{e}");
                assert_eq!(pool.ids().unwrap(), [id("job")]);
                pool.swap_off(&id("job"), LIMIT).unwrap();
            }
        }
        assert_eq!(listed(&place), 0);
    }
    assert!(late > 0, "no call was ever late");
    println!("late in {late} of 20 rounds");
    pool.remove(&id("job")).unwrap();
    place.assert_empty(&pool);
}

#[test]
fn swap_is_refused_where_it_must_not_be() {
    for (kind, why) in [(Kind::Ext4, "in an image"), (Kind::Tmpfs, "in memory")] {
        let place = Place::new();
        let outer = place.pool();
        let spec = SpaceSpec { owner: Owner::ROOT, ..place.spec("tier", kind, 64) };
        outer.make(&spec).unwrap();
        let inner = Pool::open(&spec.mount_at.join("pool"), Settings::default()).unwrap();
        let error = inner.swap_on(&id("job"), 4 * MIB, None).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("use a pool on"), "{error}");
        assert_eq!(inner.ids().unwrap(), []);
        drop(inner);
        outer.remove(&id("tier")).unwrap();
        place.assert_empty(&outer);
    }
    let place = Place::new();
    let pool = place.pool();
    for (bytes, priority) in [(1, None), (4 * MIB, Some(40_000))] {
        let error = pool.swap_on(&id("job"), bytes, priority).unwrap_err().to_string();
        assert!(error.contains("priority up to"), "{error}");
    }
    let error = pool.swap_on(&id("job"), 1 << 50, None).unwrap_err();
    assert!(error.is(libc::ENOSPC), "{error}");
    place.assert_empty(&pool);
}

/// The process that dies.
#[test]
#[ignore = "started by the others"]
fn dies_here() {
    let dir = PathBuf::from(std::env::var("FOREBAY_TEST_DIR").unwrap());
    let pool = Pool::open(&dir.join("pool"), Settings::default()).unwrap();
    pool.swap_on(&id("job"), 16 * MIB, None).unwrap();
    pool.swap_off(&id("job"), LIMIT).unwrap();
    panic!("no failpoint was passed");
}

#[test]
fn killed_at_any_step_swap_is_known_and_goes_off() {
    for point in ["swap-recorded", "swap-allocated", "swap-header", "swap-on", "swap-off"] {
        for again in ["on", "off"] {
            let place = Place::new();
            let pool = place.pool();
            if !swap_works(&place, &pool) {
                return;
            }
            drop(pool);
            drop(place.pool());
            die_at(point, "dies_here", place.dir.path(), "swap");
            let pool = place.pool();
            let on = ["swap-on", "swap-off"].contains(&point);
            assert_eq!(listed(&place), usize::from(on), "{point}");
            let state = pool.swap_state(&id("job")).unwrap();
            assert_eq!(matches!(state, SwapState::On(_)), on, "{point}: {state:?}");
            if again == "on" {
                pool.swap_on(&id("job"), 16 * MIB, None).unwrap();
                assert_eq!(listed(&place), 1, "{point}");
            }
            pool.swap_off(&id("job"), LIMIT).unwrap();
            assert_eq!(listed(&place), 0, "{point}");
            pool.remove(&id("job")).unwrap();
            place.assert_empty(&pool);
        }
    }
}
