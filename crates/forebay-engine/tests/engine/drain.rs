//! The governor at work in the engine: what reaches the backing store, when, and how fast.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_engine::governor::law::Preset;
use forebay_engine::{Config, Engine, File, Tunables};

use crate::media::CrashMedia;
use crate::start::{NEW, abandon, counter, start};
use crate::store::MemStore;

const MIB: u64 = 1 << 20;
const TIER: Option<u64> = Some(1 << 30);

fn engine(tunables: Tunables) -> (Arc<Engine>, Arc<File>) {
    engine_of(1 << 30, tunables)
}

fn engine_of(tier_size: u64, tunables: Tunables) -> (Arc<Engine>, Arc<File>) {
    let tunables = Tunables { tier_size: Some(tier_size), ..tunables };
    let config = Config::default();
    let media = Arc::new(CrashMedia::default());
    let engine = start(media, Arc::new(MemStore::new()), "drain", config, tunables).expect("new");
    let (file, _) = engine.create(Path::new("f"), &NEW).expect("an empty store");
    (engine, file)
}

fn write(engine: &Arc<Engine>, file: &Arc<File>, mibs: u64, value: u8) {
    write_at(engine, file, 0..mibs, value);
}

fn write_at(engine: &Arc<Engine>, file: &Arc<File>, mibs: std::ops::Range<u64>, value: u8) {
    let data = vec![value; MIB as usize];
    mibs.for_each(|n| engine.write(file, n * MIB, &data).expect("room"));
}

fn within(limit: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// How long this process was kept from running, as a thread sees it that only sleeps. On a busy
/// machine everything may take that much longer.
struct Stalls {
    done: Arc<AtomicBool>,
    watch: JoinHandle<Duration>,
}

impl Stalls {
    const TICK: Duration = Duration::from_millis(5);

    fn watch() -> Stalls {
        let done = Arc::new(AtomicBool::new(false));
        let end = done.clone();
        let watch = std::thread::spawn(move || {
            let mut sum = Duration::ZERO;
            while !end.load(Relaxed) {
                let began = Instant::now();
                std::thread::sleep(Stalls::TICK);
                sum += began.elapsed().saturating_sub(2 * Stalls::TICK);
            }
            sum
        });
        Stalls { done, watch }
    }

    fn sum(self) -> Duration {
        self.done.store(true, Relaxed);
        self.watch.join().expect("a thread that sleeps")
    }
}

/// Waits until nothing is dirty.
fn clean_after(engine: &Engine, patience: Duration) -> Duration {
    let began = Instant::now();
    while engine.status().dirty_files > 0 {
        assert!(began.elapsed() < patience, "{:?}", engine.status());
        std::thread::sleep(Duration::from_millis(10));
    }
    began.elapsed()
}

#[test]
fn a_hot_set_overwritten_ten_times_within_max_age_is_flushed_at_most_one_and_a_half_times() {
    let max_age = Duration::from_secs(4);
    for _ in 0..10 {
        let (engine, file) = engine(Tunables { max_age, ..Tunables::default() });
        let began = Instant::now();
        for turn in 0..10 {
            write(&engine, &file, 8, turn);
            std::thread::sleep(max_age / 25);
        }
        let took = began.elapsed();
        clean_after(&engine, max_age * 10);
        let flushed = counter(&engine, "flushed_bytes");
        engine.close(&file);
        abandon(engine);
        // Only what ended well before the age says something of it.
        if took < max_age * 6 / 10 {
            assert!((8 * MIB..=12 * MIB).contains(&flushed), "{flushed} of {}", 8 * MIB);
            return;
        }
    }
    panic!("this machine is too busy to overwrite 8 MiB ten times in {max_age:?}");
}

/// One file that is always being flushed and is larger than the tier: its writers must not wait
/// until the flight has landed, since its clean bytes make room.
#[test]
fn clean_bytes_of_a_file_in_flight_make_room() {
    let tunables = Tunables { preset: Preset::Hold, ..Tunables::default() };
    let (engine, file) = engine_of(64 * MIB, tunables);
    write_at(&engine, &file, 0..40, 1);
    engine.flush_file(&file).expect("a store that works");
    write_at(&engine, &file, 40..56, 2);
    engine.drain_by(Some(Instant::now() + Duration::from_secs(8)));
    within(Duration::from_secs(60), "a flight", || engine.status().flushing_bytes > 0);
    let stalls = Stalls::watch();
    let began = Instant::now();
    write_at(&engine, &file, 56..76, 3);
    let took = began.elapsed();
    let limit = Duration::from_secs(2) + stalls.sum();
    assert!(took < limit, "{took:?} of {limit:?} {:?}", engine.status());
    assert!(engine.status().flushing_bytes > 0, "the flight went on meanwhile");
    assert!(counter(&engine, "evicted_bytes") > 0);
    clean_after(&engine, Duration::from_secs(60));
    for (mib, value) in [(0, 1), (39, 1), (40, 2), (55, 2), (56, 3), (75, 3)] {
        let mut found = vec![0; MIB as usize];
        let n = engine.read(&file, mib * MIB, &mut found).expect("the store answers");
        assert!(n == found.len() && found.iter().all(|byte| *byte == value), "MiB {mib}");
    }
    engine.close(&file);
    abandon(engine);
}

/// What the drain waits for while nothing has failed.
///
/// Method: a young file, seen at every look until it is clean; the same held for an order.
#[test]
fn a_young_file_and_a_held_one_are_not_called_failed() {
    let max_age = Duration::from_secs(1);
    let (engine, file) = engine(Tunables { max_age, ..Tunables::default() });
    write(&engine, &file, 2, 1);
    let mut seen = std::collections::BTreeSet::new();
    let began = Instant::now();
    while engine.status().dirty_files > 0 {
        seen.insert(engine.status().limited_by);
        assert!(began.elapsed() < max_age * 10, "{seen:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(seen.contains("settle") && !seen.contains("failed-files"), "{seen:?}");

    let hold = engine.hold(&[], &"f".parse().expect("a pattern"));
    write(&engine, &file, 2, 2);
    let began = Instant::now();
    while engine.status().limited_by != "held-for-last" {
        assert!(began.elapsed() < max_age * 10, "{:?}", engine.status());
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(hold);
    clean_after(&engine, max_age * 10);
    engine.close(&file);
    abandon(engine);
}

#[test]
fn the_cap_holds_and_a_drain_to_a_deadline_is_in_time() {
    let hold = Tunables { preset: Preset::Hold, ..Tunables::default() };
    let (engine, file) = engine(hold.clone());
    let limited_by = |what: &str| {
        within(Duration::from_secs(60), what, || engine.status().limited_by == what);
    };
    write(&engine, &file, 24, 1);
    limited_by("hold");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(counter(&engine, "flushed_bytes"), 0, "hold");
    let stalls = Stalls::watch();
    engine.drain_by(Some(Instant::now() + Duration::from_secs(3)));
    let took = clean_after(&engine, Duration::from_secs(60)).as_secs_f64();
    let late = stalls.sum().as_secs_f64();
    assert!((1.0..3.0 + late).contains(&took), "{took} s, {late} s of them stalled");
    engine.drain_by(None);

    write(&engine, &file, 24, 2);
    limited_by("hold");
    // Another preset, too, so that it shows when the governor has taken the cap into account.
    let (preset, max_age) = (Preset::Age, Duration::from_secs(3600));
    let capped = Tunables { tier_size: TIER, rate_max: 12 * MIB, preset, max_age, ..hold };
    engine.set_tunables(capped).expect("valid");
    limited_by("not-yet-due");
    let stalls = Stalls::watch();
    let began = Instant::now();
    engine.flush_file(&file).expect("a good store");
    let secs = began.elapsed().as_secs_f64();
    let late = stalls.sum().as_secs_f64();
    let told = format!("24 MiB at 12 MiB/s in {secs} s, {late} s of them stalled");
    assert!((1.7..3.0 + late).contains(&secs), "{told}");
    engine.close(&file);
    abandon(engine);
}
