//! Files of the backing store are closed once they are not needed any more, and the close may hang.

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use forebay_backing::BackingStore;
use forebay_backing::wrap::fault::{Fault, FaultHandle, FaultRule, FaultRules};
use forebay_engine::{Config, Engine, KeepDirty, Progress, Tunables};

use crate::media::CrashMedia;
use crate::start::{NEW, PATIENCE, abandon, patient, read_all, start, within};
use crate::store::MemStore;

const HOUR_MS: u64 = 3_600_000;

/// Starts an engine on a store with the files `slow` and `other`, of which `slow` hangs in its close.
fn bed(name: &str) -> (Arc<Engine>, FaultHandle) {
    let store = MemStore::new();
    for path in ["slow", "other"] {
        let (file, _) = store.create(Path::new(path), &NEW).expect("an empty store");
        file.write_at(&[7; 100_000], 0).expect("room");
    }
    let (op, path) = ("close".to_string(), "slow".to_string());
    let rule = FaultRule { op, path, stall_ms: HOUR_MS, ..FaultRule::default() };
    let rules = FaultRules { rules: vec![rule], ..FaultRules::default() };
    let (store, faults) = Fault::with_rules(Arc::new(store), rules).expect("sound rules");
    let tunables = Tunables { backing_timeout: Duration::from_millis(500), ..patient() };
    let media = Arc::new(CrashMedia::default());
    let engine = start(media, store, name, Config::default(), tunables).expect("new");
    (engine, faults)
}

/// Runs `work` in a thread that is left behind if it hangs.
#[track_caller]
fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, end) = mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    end.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what} hangs"))
}

/// Method: the last handle of a file that was fetched is closed, and with it the store's file.
// S-10
#[test]
fn a_store_that_hangs_in_close_takes_nothing_with_it() {
    let (engine, faults) = bed("closing");
    let key = |path| engine.names.ask(|b| b.stat(Path::new(path))).expect("it is there").key;
    let keys = ["slow", "other"].map(|path| (path, key(path)));
    read_all(&engine, Path::new("other")).expect("it is there");
    let hung = engine.clone();
    let read = in_time("closing it", move || read_all(&hung, Path::new("slow")));
    assert_eq!(read.expect("it is there"), [7; 100_000]);
    within("the close hangs", || faults.counts().by_op.get("close") == Some(&1));

    within("the store counts as away", || !engine.health.is_available());
    let asked = engine.clone();
    let status = in_time("the status", move || asked.ops.status());
    assert_eq!((status.files, status.busy_files), (2, 0), "{status:?}");
    for path in ["other", "slow"] {
        let known = engine.ops.list(Path::new(path)).expect("nobody holds it");
        assert_eq!(known.len(), 1, "{path}");
    }
    // Cached files are served, the hanging one too.
    for (path, key) in keys {
        let cached = engine.clone();
        let served = in_time("opening it", move || {
            let file = cached.io.open(Path::new(path), Some(key)).expect("it is in the tier");
            let mut bytes = vec![0; 100_000];
            let n = cached.io.read(&file, 0, &mut bytes).expect("it is in the tier");
            drop(file);
            (n, bytes)
        });
        assert_eq!(served, (100_000, vec![7; 100_000]), "{path}");
    }

    faults.clear();
    within("the store is back", || engine.health.is_available());
    read_all(&engine, Path::new("slow")).expect("it is back");
    abandon(engine);
}

/// A flush closes the files that it has written; no caller waits for that without end, and no byte
/// of the file is lost.
// S-5 S-10
#[test]
fn a_flush_and_a_shutdown_end_though_a_close_hangs() {
    let (engine, faults) = bed("closing-flush");
    let file = engine.io.open(Path::new("slow"), None).expect("it is there");
    engine.io.write(&file, 0, &[8; 4096]).expect("room");
    let (flushing, flushed) = (engine.clone(), file.clone());
    in_time("the flush", move || flushing.drain.flush_file(&flushed))
        .expect("all but the close is well");
    within("the close hangs", || faults.counts().by_op.get("close") == Some(&1));
    let writing = engine.clone();
    in_time("writing", move || {
        writing.io.write(&file, 4096, &[9; 4096]).expect("room");
        drop(file);
    });
    let ending = engine.clone();
    in_time("the end", move || ending.ops.shutdown(KeepDirty::Yes, &Progress::default(), None));
    assert!(faults.counts().by_op["close"] >= 1);
    faults.clear();
}

/// Method: the first read of a file of many pieces hangs, and the prefetch is cancelled then.
// S-9
#[test]
fn a_prefetch_that_is_cancelled_leaves_nothing_open() {
    let store = MemStore::new();
    let (large, _) = store.create(Path::new("large"), &NEW).expect("an empty store");
    large.set_len(64 << 20).expect("room");
    let rule = FaultRule { op: "read_at".into(), stall_ms: HOUR_MS, ..FaultRule::default() };
    let rules = FaultRules { rules: vec![rule], ..FaultRules::default() };
    let (store, faults) = Fault::with_rules(Arc::new(store), rules).expect("sound rules");
    let tunables = Tunables { fill_depth: 2, ..patient() };
    let media = Arc::new(CrashMedia::default());
    let engine = start(media, store, "cancelled", Config::default(), tunables).expect("new");
    let progress = Arc::new(Progress::default());
    let (fetching, cancelled) = (engine.clone(), progress.clone());
    let scope = [Path::new("large").to_path_buf()];
    let prefetch = std::thread::spawn(move || fetching.ops.prefetch(&scope, &cancelled));
    within("it reads", || faults.counts().by_op.contains_key("read_at"));
    assert_eq!(engine.ops.status().open_files, 1);
    progress.cancel();
    let rule = FaultRule { op: "close".into(), ..FaultRule::default() };
    let counted = FaultRules { rules: vec![rule], ..FaultRules::default() };
    faults.set_rules(counted).expect("sound rules");
    let report = prefetch.join().expect("no panic inside");
    assert!(report.cancelled && report.files == 0, "{report:?}");
    assert_eq!(engine.ops.status().open_files, 0);
    within("the store's file is closed", || faults.counts().by_op.contains_key("close"));
    abandon(engine);
}
