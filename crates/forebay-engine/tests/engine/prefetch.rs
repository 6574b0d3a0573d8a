//! Fetching files on request that do not fit, and files that other programs would evict to make room.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_backing::BackingStore;
use forebay_backing::wrap::fault::{Fault, FaultHandle, FaultRule, FaultRules};
use forebay_engine::{Config, Engine, Progress, Report, Tunables};

use crate::media::CrashMedia;
use crate::start::{NEW, abandon, counter, patient, read_all, start, within};
use crate::store::MemStore;

const MIB: u64 = 1 << 20;

/// The size of each file.
const EACH: u64 = 8 * MIB;

/// Three and a half files fit below the eviction mark.
const TIER: u64 = 32 * MIB;

fn store(names: &[&str]) -> MemStore {
    let store = MemStore::new();
    for (name, fill) in names.iter().zip(1..) {
        let (file, _) = store.create(Path::new(name), &NEW).expect("an empty store");
        file.write_at(&vec![fill; EACH as usize], 0).expect("memory");
    }
    store
}

fn engine(store: Arc<dyn BackingStore>) -> Arc<Engine> {
    let media = Arc::new(CrashMedia::default());
    let tunables = Tunables { tier_size: Some(TIER), fill_depth: 4, ..patient() };
    start(media, store, "prefetch", Config::default(), tunables).expect("a new tier")
}

/// Starts an engine on a store that does not return the bytes of `b` before the faults are cleared.
fn without_b(names: &[&str]) -> (Arc<Engine>, FaultHandle) {
    let rule = FaultRule {
        op: "read_at".into(),
        path: "b".into(),
        stall_ms: 3_600_000,
        ..FaultRule::default()
    };
    let rules = FaultRules { rules: vec![rule], ..FaultRules::default() };
    let (store, faults) = Fault::with_rules(Arc::new(store(names)), rules).expect("sound rules");
    (engine(store), faults)
}

fn everything() -> Vec<PathBuf> {
    vec![PathBuf::new()]
}

fn whole(engine: &Engine) -> Vec<String> {
    let files = engine.ops.list(Path::new("")).expect("the root is known");
    let whole = files.into_iter().filter(|file| file.cached_bytes == EACH);
    whole.map(|file| file.path.display().to_string()).collect()
}

fn failed(report: &Report) -> Vec<String> {
    report.failures.iter().map(|failure| failure.path.display().to_string()).collect()
}

// S-9
#[test]
fn what_a_prefetch_says_it_has_fetched_is_there_and_the_rest_is_refused() {
    let engine = engine(Arc::new(store(&["a", "b", "c", "d", "e", "f"])));
    for round in 1..=2 {
        let report = engine.ops.prefetch(&everything(), &Progress::default());
        assert_eq!((report.files, report.bytes), (3, 3 * EACH), "round {round}: {report:?}");
        assert_eq!(whole(&engine), ["a", "b", "c"], "round {round}");
        assert_eq!(failed(&report), ["d", "e", "f"], "round {round}");
        assert!(report.failures[0].error.contains("do not fit"), "{report:?}");
        assert_eq!(counter(&engine, "fill_bytes"), 3 * EACH, "nothing is fetched in vain");
    }
    // Fetched bytes may be evicted from now on.
    let (file, _) = engine.verbs.create(Path::new("new"), &NEW).expect("a new name");
    for at in 0..TIER / MIB / 2 {
        engine.io.write(&file, at * MIB, &vec![9; MIB as usize]).expect("room");
    }
    drop(file);
    // Dirty bytes stay, so less fits.
    let report = engine.ops.prefetch(&everything(), &Progress::default());
    assert_eq!(report.files, 2, "what is dirty, and one more: {report:?}");
    abandon(engine);
}

/// Method: the store does not return the second file, while a program reads as much as the tier holds.
// S-9
#[test]
fn what_a_prefetch_has_fetched_stays_until_it_ends() {
    let (engine, faults) = without_b(&["a", "b", "w", "x", "y", "z"]);
    let scope = ["a", "b"].map(PathBuf::from);
    let fetching = engine.clone();
    let job = std::thread::spawn(move || fetching.ops.prefetch(&scope, &Progress::default()));
    within("the first is there", || whole(&engine) == ["a"]);
    within("the second is asked for", || faults.counts().by_op.contains_key("read_at"));
    for name in ["w", "x", "y", "z"] {
        read_all(&engine, Path::new(name)).expect("the store has it");
    }
    assert!(counter(&engine, "evicted_bytes") > 0, "there was no room for all");
    assert!(whole(&engine).contains(&"a".into()), "{:?}", whole(&engine));
    let by_hand = engine.ops.evict(&["a".into()], &Progress::default());
    assert!(by_hand.failures[0].error.contains("a job fetches it"), "{by_hand:?}");
    faults.clear();
    let report = job.join().expect("no panic inside");
    assert_eq!((report.files, report.failures.len()), (2, 0), "{report:?}");
    assert!(["a", "b"].iter().all(|name| whole(&engine).contains(&name.to_string())));
    let by_hand = engine.ops.evict(&["a".into()], &Progress::default());
    assert_eq!(by_hand.bytes, EACH, "nothing keeps it any more: {by_hand:?}");
    abandon(engine);
}

/// Method: fetched bytes are thrown away while the job waits for the store.
#[test]
fn what_is_no_longer_there_at_the_end_is_not_reported_as_fetched() {
    let (engine, faults) = without_b(&["a", "b"]);
    let fetching = engine.clone();
    let job =
        std::thread::spawn(move || fetching.ops.prefetch(&everything(), &Progress::default()));
    within("the first is there", || whole(&engine) == ["a"]);
    engine.ops.purge(&["a".into()]);
    faults.clear();
    let report = job.join().expect("no panic inside");
    assert_eq!(report.files, 1, "{report:?}");
    assert_eq!(failed(&report), ["a"], "{report:?}");
    abandon(engine);
}
