//! Detaching the tier under running programs, and attaching it again.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use forebay_backing::{Access, BackingStore};
use forebay_engine::{Attachment, Config, Engine, KeepDirty, OpenFile, Progress, Tunables};

use crate::media::CrashMedia;
use crate::start::{NEW, PATIENCE, abandon, counter, patient, simulated, start, time, within};
use crate::store::MemStore;

const MIB: u64 = 1 << 20;

/// Starts an engine over a store with a file `old` of 4 MiB.
fn engine(tunables: Tunables) -> (Arc<Engine>, Arc<CrashMedia>, MemStore) {
    let (media, store) = (Arc::new(CrashMedia::default()), MemStore::new());
    let (file, _) = store.create(Path::new("old"), &NEW).expect("an empty store");
    file.write_at(&vec![1; 4 * MIB as usize], 0).expect("memory");
    let engine = again(&media, &store, tunables, Attachment::Attached);
    (engine, media, store)
}

fn again(
    media: &Arc<CrashMedia>,
    store: &MemStore,
    tunables: Tunables,
    attachment: Attachment,
) -> Arc<Engine> {
    let tunables = Tunables { tier_size: Some(1 << 30), ..tunables };
    let config = Config { attachment, ..Config::default() };
    let media = Arc::new((**media).clone());
    start(media, Arc::new(store.clone()), "attach", config, tunables).expect("a sound tier")
}

fn new_file(engine: &Arc<Engine>, name: &str, mibs: u64) -> OpenFile {
    let (file, _) = engine.verbs.create(Path::new(name), &NEW).expect("a new name");
    for n in 0..mibs {
        engine.io.write(&file, n * MIB, &vec![2; MIB as usize]).expect("room");
    }
    file
}

fn bytes(engine: &Arc<Engine>, name: &str) -> Vec<u8> {
    crate::start::read_all(engine, Path::new(name)).expect("it is there")
}

fn on_store(store: &MemStore, name: &str) -> Vec<u8> {
    let len = store.stat(Path::new(name)).expect("it is there").size;
    let mut bytes = vec![0; len as usize];
    let file = store.open(Path::new(name), Access::Read).expect("it is there");
    file.read_at(&mut bytes, 0).expect("memory");
    bytes
}

fn detach(engine: &Arc<Engine>, keep: KeepDirty) {
    let report = engine.ops.detach(keep, &Progress::default());
    assert!(report.failures.is_empty() && !report.cancelled, "{report:?}");
}

#[test]
fn a_detached_tier_holds_nothing_and_takes_nothing() {
    let (engine, _, store) = engine(patient());
    bytes(&engine, "old");
    engine.ops.set_pinned(&["old".into()], true);
    let file = new_file(&engine, "new", 3);
    assert!(engine.ops.status().used_bytes >= 7 * MIB);
    detach(&engine, KeepDirty::No);
    assert_eq!((engine.ops.status().used_bytes, engine.ops.status().dirty_files), (0, 0));
    assert_eq!(on_store(&store, "new"), vec![2; 3 * MIB as usize]);
    // The old handle goes on like a new one, and its writes reach the store at once.
    engine.io.write(&file, MIB, &[3; 100]).expect("the store takes it");
    assert_eq!(on_store(&store, "new")[MIB as usize..][..100], [3; 100]);
    engine.io.set_len(&file, 2 * MIB).expect("the store takes it");
    assert_eq!(on_store(&store, "new").len() as u64, 2 * MIB);
    engine.io.sync(&file).expect("the store syncs");
    assert_eq!(bytes(&engine, "new"), on_store(&store, "new"));
    assert_eq!(bytes(&engine, "old"), vec![1; 4 * MIB as usize]);
    let fetched = engine.ops.prefetch(&["old".into()], &Progress::default());
    assert!(fetched.failures[0].error.contains("attach"), "{fetched:?}");
    assert_eq!(engine.ops.status().used_bytes, 0);
    assert!(counter(&engine, "read_bypass_detached") > 0);
    assert!(counter(&engine, "write_bypass_detached") > 0);
    // Attached again: read bytes stay in the tier, and writes wait there.
    engine.ops.attach();
    engine.io.write(&file, 0, &[4; 100]).expect("room");
    assert_eq!(on_store(&store, "new")[..100], [2; 100]);
    bytes(&engine, "old");
    assert!(engine.ops.status().used_bytes >= 4 * MIB && engine.ops.status().dirty_bytes > 0);
    drop(file);
    engine.drain.flush(&[], &Progress::default());
    assert_eq!(on_store(&store, "new")[..100], [4; 100]);
    assert_eq!(counter(&engine, "conflicts"), 0);
    abandon(engine);
}

/// The drain would flush these bytes at once: they are old, and the level is above its mark.
#[test]
fn kept_dirty_bytes_stay_through_a_restart_and_are_the_newest() {
    let _time = simulated();
    let eager = Tunables { max_age: Duration::from_millis(100), ..Tunables::default() };
    let (first, media, store) = engine(patient());
    bytes(&first, "old");
    let file = new_file(&first, "new", 8);
    detach(&first, KeepDirty::Yes);
    first.ops.set_tunables(Tunables { tier_size: Some(12 * MIB), ..eager.clone() }).expect("valid");
    assert_eq!(first.ops.status().used_bytes, 8 * MIB, "the clean ones are gone");
    // A write of the kept file goes to the tier; one of another file goes around it.
    first.io.write(&file, 0, &[5; 10]).expect("over what is there");
    first.io.sync(&file).expect("the tier syncs");
    let other = new_file(&first, "other", 1);
    assert_eq!(on_store(&store, "other"), vec![2; MIB as usize]);
    drop(other);
    first.io.closing(&file, &Default::default()).expect("nothing to wait for");
    drop(file);
    time().sleep(Duration::from_millis(800));
    within("the drain says why it rests", || first.ops.status().limited_by == "detached");
    assert_eq!(counter(&first, "flushed_bytes"), 0);
    assert_eq!(on_store(&store, "new").len(), 0);

    // The process ends abruptly: the next one finds the medium as it is.
    let image = Arc::new(CrashMedia::on(media.snapshot()));
    abandon(first);
    let second = again(&image, &store, eager, Attachment::DetachedKeepDirty);
    let mut want = vec![2; 8 * MIB as usize];
    want[..10].fill(5);
    assert!(bytes(&second, "new") == want);
    time().sleep(Duration::from_millis(500));
    assert_eq!(counter(&second, "flushed_bytes"), 0);
    second.ops.attach();
    within("all is clean", || second.ops.status().dirty_files == 0);
    assert!(on_store(&store, "new") == want);
    abandon(second);
}

/// Readers and writers that never rest neither keep a detach from ending nor bring bytes into the
/// tier afterwards.
#[test]
fn a_detach_ends_under_load_and_nothing_comes_in_behind_it() {
    let (engine, _, store) = engine(Tunables::default());
    let file = new_file(&engine, "busy", 4);
    let (done, turns) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                let turn = turns.fetch_add(1, Relaxed) + 1;
                let place = turn % 1000 * 4096;
                engine.io.write(&file, place, &vec![turn as u8; 4096]).expect("a way");
                let mut found = [0; 4096];
                engine.io.read(&file, place, &mut found).expect("a way");
                assert_eq!(found, [turn as u8; 4096], "turn {turn}");
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    assert_eq!(bytes(&engine, "old"), vec![1; 4 * MIB as usize]);
                }
            });
        }
        for round in 0..5 {
            std::thread::sleep(Duration::from_millis(50));
            let began = Instant::now();
            detach(&engine, KeepDirty::No);
            assert!(began.elapsed() < PATIENCE, "round {round}");
            let seen = turns.load(Relaxed);
            while turns.load(Relaxed) < seen + 50 {
                std::thread::sleep(Duration::from_millis(1));
            }
            // One write may have been on its way into the tier. Bytes that were being fetched are
            // thrown away again.
            within("nothing comes in", || engine.ops.status().used_bytes <= 4096);
            engine.ops.attach();
        }
        done.store(true, Relaxed);
    });
    drop(file);
    let now = bytes(&engine, "busy");
    engine.drain.flush(&[], &Progress::default());
    assert!(on_store(&store, "busy") == now);
    assert_eq!(counter(&engine, "conflicts"), 0);
    abandon(engine);
}

#[test]
fn what_cannot_be_flushed_or_closed_leaves_all_as_it_was() {
    let (engine, _, store) = engine(patient());
    let path = Path::new("ours");
    let file = new_file(&engine, "ours", 1);
    engine.drain.flush_file(&file).expect("a store that works");
    engine.io.write(&file, 0, &[6; 10]).expect("room");
    drop(file);
    let theirs = store.open(path, Access::ReadWrite).expect("it is there");
    theirs.write_at(&[7; 20], 0).expect("memory");
    let report = engine.ops.detach(KeepDirty::No, &Progress::default());
    assert_eq!(report.failures[0].state, "conflict", "{report:?}");
    assert_eq!(engine.files.attachment(), Attachment::Attached);
    engine.ops.resolve(path, forebay_engine::Keep::Ours).expect("ours");
    bytes(&engine, "ours");

    let file = engine.io.open(path, None).expect("it is there");
    let past = engine.passed.read(&file).expect("the tier works").expect("read past us");
    let progress = Progress::default();
    std::thread::scope(|scope| {
        let detach = scope.spawn(|| engine.ops.detach(KeepDirty::No, &progress));
        within("all is flushed", || engine.ops.status().dirty_files == 0);
        std::thread::sleep(Duration::from_millis(300));
        assert!(!detach.is_finished() && engine.files.files_past_us() == 1);
        progress.cancel();
        let report = detach.join().expect("no panic");
        assert!(report.cancelled && report.failures[0].error.contains("past the daemon"));
    });
    assert_eq!(engine.files.attachment(), Attachment::Attached);
    drop(past);
    drop(file);
    detach(&engine, KeepDirty::No);
    assert_eq!(
        (engine.ops.status().used_bytes, engine.files.attachment()),
        (0, Attachment::Detached)
    );
    abandon(engine);
}
