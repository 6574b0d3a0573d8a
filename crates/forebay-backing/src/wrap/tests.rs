//! The effects of each layer on the calls through it.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::fault::{Failure, Moment};
use super::{
    Clock, DISK_BYTES, Fault, FaultHandle, FaultRule, FaultRules, Limits, Meter, Retry,
    RetryPolicy, Seeks, Throttle, Wrapped,
};
use crate::suite::TempDir;
use crate::{Access, BackingFile, BackingStore, DirStore, Error, Kind, New};

const MS: Duration = Duration::from_millis(1);

/// Time that passes only by sleeping.
#[derive(Clone, Default)]
struct FakeClock(Arc<Mutex<Duration>>);

impl Clock for FakeClock {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn sleep_until(&self, time: Duration) {
        let mut now = self.0.lock().unwrap();
        *now = time.max(*now);
    }
}

fn new() -> New {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    New { mode: 0o644, umask: 0, uid: uid.as_raw(), gid: gid.as_raw() }
}

fn dir_store() -> (TempDir, Arc<DirStore>) {
    let dir = TempDir::new();
    let store = Arc::new(DirStore::open(dir.path()).unwrap());
    (dir, store)
}

fn file(store: &dyn BackingStore, name: &str) -> Arc<dyn BackingFile> {
    store.create(Path::new(name), &new()).unwrap().0
}

mod throttle {
    use super::*;

    /// Runs `work` on a throttled store and returns the time it pretended to take.
    fn pretended(limits: Limits, work: impl FnOnce(&dyn BackingStore)) -> Duration {
        let (_dir, store) = dir_store();
        let clock = FakeClock::default();
        work(&*Throttle::with_clock(store, limits, clock.clone()));
        clock.now()
    }

    #[test]
    fn every_call_takes_its_latency() {
        let limits = Limits { bytes_per_sec: None, latency: 5 * MS, ..Limits::default() };
        let took = pretended(limits, |store| {
            let file = file(store, "f");
            file.write_at(b"data", 0).unwrap();
            file.sync().unwrap();
            store.sync_files(&[file]).unwrap();
            store.stat(Path::new("f")).unwrap();
            store.stat(Path::new("none")).unwrap_err();
        });
        assert_eq!(took, 6 * 5 * MS);
    }

    #[test]
    fn bytes_that_move_take_their_time() {
        let limits = Limits { bytes_per_sec: Some(1_000_000), latency: MS, ..Limits::default() };
        let took = pretended(limits, |store| {
            let file = file(store, "f");
            file.write_at(&[1; 10_000], 0).unwrap();
            // Only the 4000 bytes up to the end move.
            file.read_at(&mut [0; 10_000], 6_000).unwrap();
        });
        assert_eq!(took, 3 * MS + 10 * MS + 4 * MS);
    }

    /// Writes pages of one file in this order on a disk of 100 MB/s and 5 ms a seek.
    fn on_a_disk(pages: impl Iterator<Item = u64>) -> Duration {
        let limits = Limits {
            bytes_per_sec: Some(100_000_000),
            latency: 5 * MS,
            seeks: Seeks::Head { disk_bytes: DISK_BYTES },
        };
        pretended(limits, |store| {
            let file = file(store, "f");
            for page in pages {
                file.write_at(&[1; 4096], page * 4096).unwrap();
            }
        })
    }

    #[test]
    fn a_disk_makes_order_matter() {
        let stream = on_a_disk(0..100);
        assert!(stream < 16 * MS, "one seek and 4 ms of bytes: {stream:?}");
        let far = |n: u64| (n * 37 % 100) * 10_000;
        let jumping = on_a_disk((0..100).map(far));
        let mut sorted: Vec<u64> = (0..100).map(far).collect();
        sorted.sort_unstable();
        let sorted = on_a_disk(sorted.into_iter());
        assert!(sorted * 2 < jumping && sorted > 5 * stream, "{sorted:?} {jumping:?}");
        let near = on_a_disk((0..100).map(|n| n * 8));
        assert!(near * 3 < jumping, "{near:?} {jumping:?}");
    }

    #[test]
    fn two_files_lie_apart_and_seeks_do_not_overlap() {
        let limits = Limits {
            bytes_per_sec: None,
            latency: 6 * MS,
            seeks: Seeks::Head { disk_bytes: DISK_BYTES },
        };
        let took = pretended(limits, |store| {
            let files = [file(store, "a"), file(store, "b")];
            for n in 0..50 {
                files.iter().for_each(|file| file.write_at(&[1; 512], n * 512).unwrap());
            }
        });
        assert!(took > 99 * MS, "each file's turn costs a seek: {took:?}");
    }

    #[test]
    fn latencies_overlap_and_bandwidth_is_shared() {
        const THREADS: u32 = 8;
        let (_dir, store) = dir_store();
        file(&*store, "f").write_at(&[1; 10_000], 0).unwrap();
        let limits =
            Limits { bytes_per_sec: Some(1_000_000), latency: 100 * MS, ..Limits::default() };
        let slow = Throttle::wrap(store, limits);
        let file = slow.open(Path::new("f"), Access::Read).unwrap();
        let together = || {
            let start = Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| file.read_at(&mut [0; 10_000], 0).unwrap());
                }
            });
            let took = start.elapsed();
            assert!(took >= 100 * MS + THREADS * 10 * MS, "{took:?}");
            took
        };
        // The best of many tries, since a busy machine delays any single one.
        let one_after_the_other = THREADS * 100 * MS;
        assert!((0..20).any(|_| together() < one_after_the_other));
    }

    #[test]
    fn sleeps_are_precise() {
        let (_dir, store) = dir_store();
        let slow = Throttle::wrap(
            store,
            Limits { bytes_per_sec: None, latency: 2 * MS, ..Limits::default() },
        );
        let late = || {
            let start = Instant::now();
            slow.stat(Path::new("")).unwrap();
            start.elapsed().checked_sub(2 * MS).expect("never early")
        };
        // The best of many tries, since a busy machine delays any single one.
        assert!((0..2000).any(|_| late() < MS));
    }

    #[test]
    fn the_descriptor_does_not_lead_around_it() {
        let (_dir, store) = dir_store();
        assert!(file(&*Throttle::wrap(store.clone(), Limits::default()), "a").as_fd().is_none());
        assert!(file(&*Meter::wrap(store), "b").as_fd().is_some());
    }
}

mod fault {
    use super::*;

    fn rule(op: &str, fail: Option<Failure>) -> FaultRule {
        FaultRule { op: op.to_owned(), fail, ..FaultRule::default() }
    }

    fn with(rule: FaultRule) -> (TempDir, Arc<Wrapped<Fault>>, FaultHandle) {
        let (dir, store) = dir_store();
        let rules = FaultRules { seed: 0, rules: vec![rule] };
        let (store, handle) = Fault::with_rules(store, rules).unwrap();
        (dir, store, handle)
    }

    #[test]
    fn an_injected_error_is_seen_counted_and_without_effect() {
        let (_dir, store, handle) = with(rule("write_at", Some(Failure::Errno(libc::ENOSPC))));
        let file = file(&*store, "f");
        let error = file.write_at(b"x", 0).unwrap_err();
        assert!(error.is(libc::ENOSPC) && error.to_string().contains('f'), "{error}");
        assert_eq!(file.stat().unwrap().size, 0);
        assert_eq!((handle.counts().injected, handle.counts().by_op["write_at"]), (1, 1));
        handle.clear();
        file.write_at(b"x", 0).unwrap();
        assert_eq!(handle.counts().injected, 1);
    }

    #[test]
    fn a_store_that_is_gone_answers_nothing() {
        let (_dir, store, _handle) = with(rule("any", Some(Failure::Gone)));
        for error in [
            store.stat(Path::new("")).unwrap_err(),
            store.identity().unwrap_err(),
            store.read_dir(Path::new("")).unwrap_err(),
            store.sync_files(&[]).unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::Unavailable, "{error}");
        }
    }

    #[test]
    fn a_late_failure_takes_effect_first() {
        let failure = rule("mkdir", Some(Failure::Errno(libc::ETIMEDOUT)));
        let (_dir, store, _handle) = with(FaultRule { moment: Moment::After, ..failure });
        assert!(store.mkdir(Path::new("d"), &new()).unwrap_err().is(libc::ETIMEDOUT));
        store.stat(Path::new("d")).unwrap();
    }

    #[test]
    fn a_batch_fails_for_one_of_its_files_and_a_rename_for_either_name() {
        let (_dir, store, handle) = with(rule("stat", None));
        let (good, bad) = (file(&*store, "good"), file(&*store, "bad"));
        let failure = rule("any", Some(Failure::Errno(libc::EIO)));
        let rules = vec![FaultRule { path: "bad*".to_owned(), ..failure }];
        handle.set_rules(FaultRules { seed: 0, rules }).unwrap();
        store.sync_files(std::slice::from_ref(&good)).unwrap();
        assert!(store.sync_files(&[good, bad]).unwrap_err().is(libc::EIO));
        let mode = crate::RenameMode::Replace;
        let error = store.rename(Path::new("good"), Path::new("bad2"), mode).unwrap_err();
        assert!(error.is(libc::EIO));
    }

    #[test]
    fn a_stall_lasts_its_time_or_until_the_rules_change() {
        let stalled = |ms| FaultRule { stall_ms: ms, ..rule("stat", None) };
        let (_dir, store, handle) = with(stalled(30));
        let start = Instant::now();
        store.stat(Path::new("")).unwrap();
        assert!(start.elapsed() >= 30 * MS);

        let for_ever = FaultRules { seed: 0, rules: vec![stalled(3_600_000)] };
        handle.set_rules(for_ever).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| store.stat(Path::new("")));
            while handle.counts().injected < 2 {
                std::thread::yield_now();
            }
            handle.clear();
            waiting.join().unwrap().unwrap();
        });
    }

    #[test]
    fn the_rules_file_is_read_again_when_it_changes() {
        let (dir, rules_dir) = (TempDir::new(), TempDir::new());
        let path = rules_dir.path().join("rules.json");
        let write = |text: &str| {
            std::fs::write(path.with_extension("new"), text).unwrap();
            std::fs::rename(path.with_extension("new"), &path).unwrap();
        };
        let open = || {
            let store = Arc::new(DirStore::open(dir.path()).unwrap());
            Fault::with_file(store, &path)
        };
        assert_eq!(open().err().map(|e: Error| e.kind()), Some(Kind::Usage), "no file");
        write("{\"rules\": [");
        assert_eq!(open().err().map(|e| e.kind()), Some(Kind::Usage), "half a file");

        write(r#"{"rules": []}"#);
        let (store, handle) = open().unwrap();
        let stat = || store.stat(Path::new("")).map(|attr| attr.kind);
        stat().unwrap();
        write(r#"{"rules": [{"op": "stat", "fail": "EIO"}]}"#);
        assert!(stat().unwrap_err().is(libc::EIO));
        write("nonsense");
        assert!(stat().unwrap_err().is(libc::EIO), "nonsense leaves the rules as they were");
        std::fs::remove_file(&path).unwrap();
        stat().unwrap();
        assert_eq!(handle.counts().injected, 2);
    }
}

mod retry {
    use super::*;

    type Stack = Arc<Wrapped<Retry>>;

    /// A store whose `op` fails `count` times, below one that retries twice.
    fn failing(op: &str, fail: &str, count: u64) -> (TempDir, Stack, FaultHandle, FakeClock) {
        let (dir, store) = dir_store();
        file(&*store, "f").write_at(b"data", 0).unwrap();
        let rule =
            format!(r#"{{"rules": [{{"op": "{op}", "fail": "{fail}", "count": {count}}}]}}"#);
        let rules = serde_json::from_str(&rule).unwrap();
        let (store, faults) = Fault::with_rules(store, rules).unwrap();
        let policy = RetryPolicy { attempts: 3, pause: 10 * MS, pause_max: 15 * MS };
        let clock = FakeClock::default();
        (dir, Retry::with_clock(store, policy, clock.clone()), faults, clock)
    }

    fn open(store: &Stack) -> Arc<dyn BackingFile> {
        store.open(Path::new("f"), Access::ReadWrite).unwrap()
    }

    #[test]
    fn what_passes_is_tried_again_after_growing_pauses() {
        let (_dir, store, faults, clock) = failing("read_at", "gone", 2);
        let mut buf = [0; 4];
        assert_eq!(open(&store).read_at(&mut buf, 0).unwrap(), 4);
        assert_eq!(&buf, b"data");
        assert_eq!((store.layer().retries(), faults.counts().injected), (2, 2));
        assert_eq!(clock.now(), 25 * MS, "10 ms, then 20 cut to 15");
    }

    #[test]
    fn the_layer_gives_up_in_the_end() {
        let (_dir, store, faults, _clock) = failing("write_at", "EAGAIN", 3);
        assert!(open(&store).write_at(b"x", 0).unwrap_err().is(libc::EAGAIN));
        assert_eq!((store.layer().gave_up(), faults.counts().injected), (1, 3));
        open(&store).write_at(b"x", 0).unwrap();
    }

    #[test]
    fn a_sync_and_a_change_of_names_are_tried_once() {
        let (_dir, store, faults, _clock) = failing("sync", "EINTR", 1);
        open(&store).sync().unwrap_err();
        let (_dir2, store2, faults2, _clock2) = failing("unlink", "gone", 1);
        store2.unlink(Path::new("f")).unwrap_err();
        assert_eq!((store.layer().retries(), store2.layer().retries()), (0, 0));
        assert_eq!((faults.counts().injected, faults2.counts().injected), (1, 1));
    }

    #[test]
    fn a_full_disk_is_not_waited_for() {
        let (_dir, store, faults, clock) = failing("write_at", "ENOSPC", 1);
        open(&store).write_at(b"x", 0).unwrap_err();
        assert_eq!((faults.counts().injected, clock.now()), (1, Duration::ZERO));
    }
}

mod meter {
    use super::*;

    #[test]
    fn calls_bytes_and_errors_are_counted_by_operation() {
        let (_dir, store) = dir_store();
        let meter = Meter::wrap(store);
        let file = file(&*meter, "f");
        file.write_at(&[1; 100], 0).unwrap();
        file.read_at(&mut [0; 1000], 40).unwrap();
        meter.stat(Path::new("none")).unwrap_err();
        meter.stat(Path::new("f")).unwrap();
        meter.sync_files(&[file]).unwrap();
        let seen = meter.layer().summaries();
        let of = |op: &str| (seen[op].count, seen[op].bytes, seen[op].errors);
        assert_eq!(of("write_at"), (1, 100, 0));
        assert_eq!(of("read_at"), (1, 60, 0));
        assert_eq!(of("stat"), (2, 0, 1));
        assert_eq!(of("sync_files"), (1, 0, 0));
        assert!(!seen.contains_key("unlink"));
    }
}
