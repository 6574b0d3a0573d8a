//! Flush as a job: listed, waited for, cancelled, continued after a restart; fence, order of
//! publication, a deadline, an accurate estimate.
// S-5, S-7, S-18, S-19

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use forebay_tests::{
    Bed, Faults, Mounted, PATIENCE, Tier, images, is_alive, kill, needs_forebay, proof, sample,
    text, within,
};
use serde_json::Value;

const KEEP: [&str; 4] = ["--max-age", "1h", "--passthrough", "read"];

/// Only ordered files are flushed, however long the order takes to arrive.
fn slow(throttle: &str) -> Vec<&str> {
    [&KEEP[..], &["--preset", "hold", "--throttle", throttle]].concat()
}

fn start(mounted: &Mounted, flags: &[&str]) -> u64 {
    let out = mounted.forebay(&[&["flush", "--json", text(&mounted.path)], flags].concat());
    out.ok().json()["id"].as_u64().expect("a job has a number")
}

fn jobs(mounted: &Mounted) -> Vec<Value> {
    let list = mounted.forebay(&["jobs", "--json", text(&mounted.path)]).ok().json();
    list.as_array().expect("a list").clone()
}

fn job(mounted: &Mounted, id: u64) -> Value {
    jobs(mounted).into_iter().find(|job| job["id"] == id).expect("the job is listed")
}

fn wait(mounted: &Mounted, id: u64) -> forebay_tests::Out {
    mounted.forebay(&["jobs", "wait", &id.to_string(), text(&mounted.path), "--json"])
}

#[test]
fn several_jobs_are_listed_waited_for_and_cancelled() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&slow("3MB/s,1ms"));
    for dir in ["a", "b"] {
        (0..4).for_each(|i| drop(sample::file(&mounted.at(format!("{dir}/{i}")), i, 3 << 20)));
    }
    let path = |dir: &str| text(&mounted.at(dir)).to_string();
    let flush = |dir: &str| {
        let out = mounted.forebay(&["flush", "--background", "--json", &path(dir)]).ok().json();
        out["id"].as_u64().unwrap()
    };
    let (a, b) = (flush("a"), flush("b"));
    assert!(a != b, "numbers of their own");
    let shown = mounted.forebay(&["jobs", text(&mounted.path)]).ok().stdout;
    assert!(shown.contains("running") && shown.contains("12.0 MiB"), "{shown}");
    mounted.forebay(&["jobs", "cancel", &b.to_string(), text(&mounted.path)]).ok();
    let ended = wait(&mounted, b).expect(130).json();
    assert_eq!(ended["state"], "cancelled", "{ended:#}");
    let ended = wait(&mounted, a).ok().json();
    assert_eq!((&ended["report"]["files"], &ended["state"]), (&4.into(), &"done".into()));
    (0..4).for_each(|i| {
        let name = format!("a/{i}");
        assert_eq!(
            fs::read(bed.backing.join(&name)).unwrap(),
            fs::read(mounted.at(&name)).unwrap()
        );
    });
    assert!(mounted.number("dirty_bytes") > 0, "what was cancelled stays dirty");
    assert_eq!(wait(&mounted, 999).code, Some(2), "an unknown job");
    mounted.umount();
    proof!("one of two jobs was cancelled");
}

#[test]
fn a_job_goes_on_with_the_next_daemon() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    // So slow that the daemon dies long before the job is done.
    let mounted = bed.mount(&slow("1MB/s,1ms"));
    (0..8).for_each(|i| drop(sample::file(&mounted.at(format!("f{i}")), i, 2 << 20)));
    let id = start(&mounted, &["--last", "f3"]);
    within(PATIENCE, "it has begun", || job(&mounted, id)["done_bytes"] != 0);
    mounted.crash();
    let mounted = bed.mount(&KEEP);
    let ended = wait(&mounted, id).ok().json();
    assert_eq!((&ended["resumed"], &ended["last"]), (&true.into(), &"f3".into()), "{ended:#}");
    assert_eq!(mounted.number("dirty_bytes"), 0);
    (0..8).for_each(|i| {
        let name = format!("f{i}");
        assert_eq!(
            fs::read(bed.backing.join(&name)).unwrap(),
            fs::read(mounted.at(&name)).unwrap()
        );
    });
    // Once more: the end is remembered, and the job is not repeated.
    mounted.umount();
    let mounted = bed.mount(&KEEP);
    assert_eq!(job(&mounted, id)["state"], "done");
    assert!(start(&mounted, &[]) > id);
    mounted.umount();
    proof!("job {id} outlived two daemons");
}

#[test]
fn an_unmount_that_keeps_dirty_bytes_keeps_the_job_too() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&slow("400KB/s,1ms"));
    (0..8).for_each(|i| drop(sample::file(&mounted.at(format!("f{i}")), i, 1 << 20)));
    let id = start(&mounted, &[]);
    mounted.umount_with(&["--keep-dirty"]).ok();
    mounted.assert_gone();
    let mounted = bed.mount(&KEEP);
    assert_eq!(wait(&mounted, id).ok().json()["resumed"], true);
    assert_eq!(mounted.number("dirty_bytes"), 0);
    mounted.umount();
    proof!("resumed after an orderly end");
}

#[test]
fn what_comes_last_is_published_after_all_others_or_not_at_all() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let faults = Faults::none(&bed);
    let mounted = bed.mount(&[&slow("1500KB/s,1ms")[..], &["--fault", faults.path()]].concat());
    let config = |key: &str| mounted.at(".forebay/config").join(key);
    (0..6).for_each(|i| drop(sample::file(&mounted.at(format!("ckpt/part{i}")), i, 1 << 20)));
    let manifest = sample::file(&mounted.at("ckpt/MANIFEST"), 99, 3000);
    let id = start(&mounted, &["--last", "MANIFEST"]);
    // Now every file is due, so that only the order holds the manifest back.
    fs::write(config("preset"), "governor").unwrap();
    fs::write(config("max-age"), "100ms").unwrap();
    let published = || fs::read(bed.backing.join("ckpt/MANIFEST")).is_ok_and(|m| m == manifest);
    let parts = || {
        let same = |i| {
            let name = format!("ckpt/part{i}");
            fs::read(bed.backing.join(&name)).ok() == fs::read(mounted.at(&name)).ok()
        };
        (0..6).all(same)
    };
    let mut looks = 0;
    within(PATIENCE, "the manifest is published", || {
        looks += 1;
        published()
    });
    assert!(parts(), "the manifest came last");
    wait(&mounted, id).ok();
    assert!(looks > 10, "the manifest waited");

    // Now only the order flushes, however long that takes.
    fs::write(config("preset"), "hold").unwrap();
    sample::file(&mounted.at("ckpt/part0"), 7, 1 << 20);
    let next = sample::file(&mounted.at("ckpt/MANIFEST"), 98, 3000);
    faults.set(serde_json::json!([{ "op": "write_at", "path": "ckpt/part0", "fail": "EIO" }]));
    let args = ["flush", "--wait", "--json", "--last", "MANIFEST", text(&mounted.path)];
    let out = mounted.forebay(&args).expect(1).json();
    let failures = out["report"]["failures"].as_array().unwrap();
    let states: Vec<&str> = failures.iter().map(|f| f["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["failed", "held-back"], "{out:#}");
    assert!(published(), "still the old one");
    faults.clear();
    mounted.forebay(&args).ok();
    assert_eq!(fs::read(bed.backing.join("ckpt/MANIFEST")).unwrap(), next);
    mounted.umount();
    proof!("a manifest was held back {looks} looks long, and with a failure");
}

#[test]
fn what_comes_last_does_so_in_an_unmount_and_in_a_recovery() {
    needs_forebay!();
    let mut looks = [0, 0];
    for (recovers, looks) in [false, true].into_iter().zip(&mut looks) {
        let bed = Bed::new(Tier::Disk);
        let mounted = bed.mount(&slow("1500KB/s,1ms"));
        let parts: Vec<Vec<u8>> = (0..6)
            .map(|i| sample::file(&mounted.at(format!("ckpt/part{i}")), i, 1 << 20))
            .collect();
        // The first file by name and by age.
        let manifest = sample::file(&mounted.at("ckpt/0-manifest"), 99, 3000);
        start(&mounted, &["--last", "*-manifest"]);
        let is_there = |name: &str, bytes: &[u8]| {
            fs::read(bed.backing.join("ckpt").join(name)).is_ok_and(|found| found == bytes)
        };
        let mut watched = |end: &mut dyn FnMut() -> bool| {
            while !is_there("0-manifest", &manifest) && !end() {
                *looks += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
            (0..6).all(|i| is_there(&format!("part{i}"), &parts[i]))
        };
        let mounted = match recovers {
            true => {
                mounted.crash();
                None
            }
            false => Some(mounted),
        };
        let in_order = std::thread::scope(|scope| {
            let ending = scope.spawn(|| match &mounted {
                Some(mounted) => mounted.umount_with(&[]).code,
                None => {
                    let args = ["recover", text(&bed.tier), "--throttle", "2MB/s,1ms"];
                    bed.forebay(&args).code
                }
            });
            let in_order = watched(&mut || ending.is_finished());
            assert_eq!(ending.join().unwrap(), Some(0));
            in_order
        });
        assert!(in_order, "the manifest came first; recovery: {recovers}");
        assert!(is_there("0-manifest", &manifest));
    }
    assert!(looks.iter().all(|looks| *looks > 10), "the manifests waited: {looks:?}");
    proof!("manifests waited {looks:?} looks long");
}

#[test]
fn what_comes_last_stays_back_at_an_end_that_could_not_flush_all() {
    needs_forebay!();
    for from_outside in [false, true] {
        let bed = Bed::new(Tier::Disk);
        let faults = Faults::none(&bed);
        let mounted = bed.mount(&[&slow("4MB/s,1ms")[..], &["--fault", faults.path()]].concat());
        (0..3).for_each(|i| drop(sample::file(&mounted.at(format!("ckpt/part{i}")), i, 1 << 20)));
        sample::file(&mounted.at("ckpt/0-manifest"), 99, 3000);
        faults.set(serde_json::json!([{ "op": "write_at", "path": "ckpt/part1", "fail": "EIO" }]));
        start(&mounted, &["--last", "*-manifest"]);
        match from_outside {
            true => within(PATIENCE, "nothing is open", || {
                images::unmount(&mounted.path, false).is_ok()
            }),
            false => kill(mounted.pid, libc::SIGTERM),
        }
        within(PATIENCE, "the daemon ends", || !is_alive(mounted.pid));
        let len = |name: &str| fs::metadata(bed.backing.join(name)).unwrap().len();
        assert_eq!(
            (len("ckpt/part2"), len("ckpt/part1")),
            (1 << 20, 0),
            "it flushed what it could"
        );
        assert_eq!(len("ckpt/0-manifest"), 0, "published without a part; outside: {from_outside}");
        faults.clear();
        bed.forebay(&["recover", text(&bed.tier)]).ok();
        assert_eq!(len("ckpt/0-manifest"), 3000);
    }
    proof!("a manifest waited for the next time, twice");
}

/// Goal: the files that an order puts last are held back from the moment that the order is
/// accepted. Method: the job's thread hangs in the store before it reaches the order, and the
/// daemon is told to end.
#[test]
fn what_comes_last_is_held_back_by_an_order_that_has_not_begun() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let faults = Faults::none(&bed);
    let mounted = bed.mount(&[&slow("4MB/s,1ms")[..], &["--fault", faults.path()]].concat());
    (0..3).for_each(|i| drop(sample::file(&mounted.at(format!("ckpt/part{i}")), i, 1 << 20)));
    sample::file(&mounted.at("ckpt/0-manifest"), 99, 3000);
    fs::create_dir(mounted.at("empty")).unwrap();
    faults.set(serde_json::json!([
        { "op": "write_at", "path": "ckpt/part1", "fail": "EIO" },
        { "op": "stat", "path": "empty", "stall_ms": 10_000 },
    ]));
    let (empty, ckpt) = (mounted.at("empty"), mounted.at("ckpt"));
    mounted.forebay(&["flush", "--last", "*-manifest", text(&empty), text(&ckpt)]).ok();
    kill(mounted.pid, libc::SIGTERM);
    within(PATIENCE, "the daemon ends", || !is_alive(mounted.pid));
    let len = |name: &str| fs::metadata(bed.backing.join(name)).unwrap().len();
    assert_eq!((len("ckpt/part2"), len("ckpt/part1")), (1 << 20, 0), "it flushed what it could");
    assert_eq!(len("ckpt/0-manifest"), 0, "published without a part");
    faults.clear();
    bed.forebay(&["recover", text(&bed.tier)]).ok();
    assert_eq!(len("ckpt/0-manifest"), 3000);
    proof!("a manifest waited for the next time");
}

#[test]
fn a_fence_waits_for_what_was_dirty_and_not_for_what_follows() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&slow("20MB/s,1ms"));
    let size = 4 << 20;
    let before = sample::file(&mounted.at("before"), 1, size);
    sample::file(&mounted.at("busy"), 2, size);
    let stop = AtomicBool::new(false);
    let rounds = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_on(&mounted.at("busy"), size, &stop));
        mounted.forebay(&["fence", text(&mounted.path)]).ok();
        assert_eq!(fs::read(bed.backing.join("before")).unwrap(), before);
        assert_eq!(fs::metadata(bed.backing.join("busy")).unwrap().len(), size as u64);
        mounted.forebay(&["wait", "--durable", text(&mounted.at("busy"))]).ok();
        stop.store(true, Relaxed);
        writer.join().unwrap()
    });
    assert_eq!(mounted.forebay(&["wait", text(&mounted.path)]).code, Some(2), "for what?");
    mounted.umount();
    assert_eq!(fs::read(bed.backing.join("before")).unwrap(), before);
    proof!("{rounds} writes went on meanwhile");
}

fn write_on(path: &Path, size: usize, stop: &AtomicBool) -> u64 {
    let file = fs::File::options().write(true).open(path).unwrap();
    let mut rounds = 0;
    while !stop.load(Relaxed) {
        file.write_all_at(&[rounds as u8; 65536], rounds * 65536 % size as u64).unwrap();
        rounds += 1;
    }
    rounds
}

#[test]
fn a_deadline_is_kept_and_the_time_is_used() {
    needs_forebay!();
    // Only waiting takes time: the sync of a shared disk is not under forebay's control. Held, so
    // that nothing is flushed before it is asked for.
    let mut bed = Bed::new(Tier::Tmpfs(256));
    bed.backing_in_memory(256);
    let mounted = bed.mount(&[&KEEP[..], &["--preset", "hold"]].concat());
    (0..16).for_each(|i| drop(sample::file(&mounted.at(format!("f{i}")), i, 1 << 20)));
    let args = ["flush", "--wait", "--drain-by", "6s", "--json", text(&mounted.path)];
    let out = mounted.forebay(&args).ok().json();
    let took = out["elapsed_secs"].as_f64().expect("a job tells its time");
    assert_eq!(mounted.number("dirty_bytes"), 0);
    assert!((2.0..12.0).contains(&took), "{took} s: {out:#}");
    assert_eq!(bed.forebay(&["flush", "--drain-by", "10"]).code, Some(2), "no unit");
    mounted.umount();
    proof!("16 MiB by a deadline of 6 s in {took:.1} s");
}

#[test]
fn the_estimate_is_within_a_fifth_from_the_second_quarter_on() {
    needs_forebay!();
    // Only the throttle takes time: the duration of a sync of a shared disk is unpredictable.
    let mut bed = Bed::new(Tier::Tmpfs(256));
    bed.backing_in_memory(256);
    // Held, since files that are on their way when the job begins do not count for its pace.
    let mounted = bed.mount(&slow("6MB/s,2ms"));
    // Large and small files mixed.
    (0..6).for_each(|i| drop(sample::file(&mounted.at(format!("large{i}")), i, 12 << 20)));
    (0..40).for_each(|i| drop(sample::file(&mounted.at(format!("n{i}")), i, 10_000)));
    let id = start(&mounted, &[]);
    // By the job's own clock: the duration of a query is no error of the estimate.
    let clock = |job: &Value| job["elapsed_secs"].as_f64().expect("a job tells its time");
    let mut told: Vec<(f64, f64)> = Vec::new();
    let took = loop {
        let job = job(&mounted, id);
        if job["state"] != "running" {
            break clock(&job);
        }
        told.extend(job["eta_secs"].as_f64().map(|eta| (clock(&job), eta)));
        std::thread::sleep(Duration::from_millis(100));
    };
    let later: Vec<_> =
        told.iter().filter(|(at, _)| (took * 0.25..took * 0.9).contains(at)).collect();
    assert!(later.len() >= 10, "{took} s, {told:?}");
    // Half a second is within the resolution: the pace is updated five times a second.
    let off = |(at, eta): &(f64, f64)| ((at + eta - took).abs() - 0.5) / (took - at);
    let worst = later.iter().map(|told| off(told)).fold(0.0, f64::max);
    assert!(worst <= 0.2, "off by {worst}: {took} s, {told:?}");
    assert_eq!(images::mounted_at(&bed.mnt).map(|_| ()), Some(()));
    mounted.umount();
    proof!("{} estimates over {took:.0} s, the worst off by {:.0} %", later.len(), worst * 100.0);
}
