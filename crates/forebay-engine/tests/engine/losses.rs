//! Ways in which an acknowledged byte could be lost, or another program's byte overwritten, one by one.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay_backing::wrap::{Fault, FaultRule, FaultRules, Verb};
use forebay_backing::{Access, BackingStore, Kind, RenameMode};
use forebay_engine::{
    Admission, Config, Engine, File, KeepDirty, OpenFile, PERISHABLE, Progress, Report, Tunables,
    WritePolicy,
};

use crate::hook::Hook;
use crate::media::{self, CrashMedia};
use crate::rng::Rng;
use crate::start::{NEW, abandon, counter, patient, start};
use crate::store::MemStore;

pub const KIB: usize = 1 << 10;
pub const BOOT: &str = "losses";

pub struct Bed {
    pub media: CrashMedia,
    pub store: MemStore,
    pub engine: Arc<Engine>,
}

impl Bed {
    pub fn new() -> Bed {
        let (media, store) = (CrashMedia::default(), MemStore::new());
        let engine = open(&media, &store, BOOT);
        Bed { media, store, engine }
    }

    /// Makes a file of 64 KiB of `value`, open, and flushed after it was synced.
    pub fn flushed(&self, name: &str, value: u8) -> OpenFile {
        let (file, _) = self.engine.verbs.create(Path::new(name), &NEW).expect("no such file yet");
        self.engine.io.write(&file, 0, &[value; 64 * KIB]).expect("room");
        self.engine.io.sync(&file).expect("a tier that works");
        self.engine.drain.flush_file(&file).expect("a store that works");
        file
    }

    /// Another program overwrites a file of 64 KiB on the backing store.
    pub fn others_write(&self, name: &str, value: u8) {
        let theirs = self.store.open(Path::new(name), Access::ReadWrite).expect("it is there");
        theirs.write_at(&[value; 64 * KIB], 0).expect("memory");
    }

    pub fn is_on_store(&self, name: &str) -> Vec<u8> {
        self.store.snapshot().files().remove(Path::new(name)).expect("it is there")
    }

    /// The tier loses its power, the backing store does not; `check` looks at the backing store
    /// after the restart has flushed everything. Returns the number of images of the tier.
    pub fn cut_the_power(self, check: impl Fn(&MemStore)) -> usize {
        self.cut_and_flush(|store, _| check(store))
    }

    /// The same, where `check` also gets the report of the flush.
    pub fn cut_and_flush(self, check: impl Fn(&MemStore, &Report)) -> usize {
        let (disk, tree) = (self.media.snapshot(), self.store.snapshot());
        abandon(self.engine);
        let images = disk.crash_images(&mut Rng::new(7), 40);
        for image in images.iter().cloned() {
            let store = MemStore::on(tree.clone());
            let engine = open(&CrashMedia::on(image), &store, "after the cut");
            let report = engine.drain.flush(&[], &Progress::default());
            abandon(engine);
            check(&store, &report);
        }
        images.len()
    }
}

pub fn open(media: &CrashMedia, store: &MemStore, boot: &str) -> Arc<Engine> {
    let backing = Arc::new(store.clone());
    let tunables = Tunables { preset: patient().preset, ..Tunables::default() };
    start(Arc::new(media.clone()), backing, boot, Config::default(), tunables)
        .expect("a sound tier")
}

pub fn file_of(store: &MemStore, name: &str) -> Vec<u8> {
    store.snapshot().files().remove(Path::new(name)).expect("it is there")
}

fn write_around(engine: &Engine) {
    let tunables = Tunables { policy: WritePolicy::WriteAround, ..engine.files.tunables() };
    engine.ops.set_tunables(tunables).expect("valid");
}

// S-3 S-14
#[test]
fn a_cut_does_not_flush_old_bytes_over_what_went_around() {
    let bed = Bed::new();
    let file = bed.flushed("f", b'A');
    write_around(&bed.engine);
    bed.engine.io.write(&file, 0, &[b'B'; 64 * KIB]).expect("a store that works");
    bed.engine.io.sync(&file).expect("a store that works");
    assert_eq!(bed.is_on_store("f"), [b'B'; 64 * KIB], "it went around");
    let images = bed.cut_and_flush(|store, report| {
        assert!(file_of(store, "f") == [b'B'; 64 * KIB], "synced bytes were overwritten");
        assert!(report.failures.is_empty(), "nobody else wrote to it: {:?}", report.failures);
    });
    assert!(images > 1, "nothing was unsynced");
}

// S-3 S-14
#[test]
fn a_cut_does_not_shorten_a_file_that_grew_around() {
    let bed = Bed::new();
    let file = bed.flushed("f", b'A');
    write_around(&bed.engine);
    bed.engine.io.write(&file, 64 * KIB as u64, &[b'B'; 64 * KIB]).expect("a store that works");
    bed.engine.io.sync(&file).expect("a store that works");
    bed.cut_the_power(|store| {
        let found = file_of(store, "f");
        assert_eq!(found.len(), 128 * KIB);
        assert!(found[64 * KIB..].iter().all(|byte| *byte == b'B'));
    });
}

// S-4 S-8
#[test]
fn a_cut_does_not_flush_holes_over_what_somebody_else_wrote() {
    let bed = Bed::new();
    let file = bed.flushed("f", b'A');
    drop(file);
    bed.others_write("f", b'T');
    let file = bed.engine.io.open(Path::new("f"), None).expect("it is there");
    let mut seen = [0; 64 * KIB];
    bed.engine.io.read(&file, 0, &mut seen).expect("a store that works");
    assert_eq!(seen, [b'T'; 64 * KIB]);
    let images = bed.cut_the_power(|store| {
        assert!(file_of(store, "f") == [b'T'; 64 * KIB], "their bytes were overwritten");
    });
    assert!(images > 1, "nothing was unsynced");
}

/// Bytes that a sync finds dirty may be flushed, evicted and written again before it ends: it has
/// made none of them durable. Nor has it if the eviction stops half-way.
// S-3 S-4
#[test]
fn a_cut_does_not_flush_holes_that_were_punched_during_a_sync() {
    assert_eq!(evict_during_a_sync(None), 2 * 64 * KIB as u64, "a sync does not stand against it");
    let evicted: Vec<u64> = (1..12).map(|n| evict_during_a_sync(Some(n))).collect();
    assert!(evicted.contains(&0) && evicted.iter().any(|bytes| *bytes > 0), "{evicted:?}");
}

/// The tier's `fault`-th operation of the eviction fails. Returns the bytes evicted.
fn evict_during_a_sync(fault: Option<u64>) -> u64 {
    let bed = Bed::new();
    let (theirs, _) = bed.store.create(Path::new("f"), &NEW).expect("an empty store");
    theirs.write_at(&[b'S'; 192 * KIB], 0).expect("memory");
    let file = bed.engine.io.open(Path::new("f"), None).expect("it is there");
    let write = |engine: &Arc<Engine>, file: &Arc<File>, value| {
        for at in [0, 128 * KIB as u64] {
            engine.io.write(file, at, &[value; 64 * KIB]).expect("room");
        }
    };
    write(&bed.engine, &file, b'A');
    let (engine, media, synced) = (bed.engine.clone(), bed.media.clone(), file.clone());
    let begun = AtomicBool::new(false);
    bed.media.after_shadow_sync(move || {
        if begun.swap(true, Relaxed) {
            return;
        }
        engine.drain.flush_file(&synced).expect("a store that works");
        let roomy = engine.files.tunables();
        let tiny = Tunables { tier_size: Some(4096), ..roomy.clone() };
        media.set_fault(fault.map(|n| media::Fault { n, count: 1, errno: libc::EIO }));
        engine.ops.set_tunables(tiny).expect("valid");
        media.set_fault(None);
        engine.ops.set_tunables(roomy).expect("valid");
        write(&engine, &synced, b'B');
    });
    let synced = bed.engine.io.sync(&file);
    assert!(fault.is_some() || synced.is_ok(), "{synced:?}");
    let evicted = counter(&bed.engine, "evicted_bytes");
    bed.cut_the_power(|store| {
        let found = file_of(store, "f");
        assert_eq!(found.len(), 192 * KIB);
        for (at, byte) in found.iter().enumerate() {
            let theirs = (64 * KIB..128 * KIB).contains(&at);
            let sound = if theirs { *byte == b'S' } else { b"AB".contains(byte) };
            assert!(sound, "a hole was flushed at {at}, fault {fault:?}");
        }
    });
    drop(file);
    evicted
}

// S-7
#[test]
fn a_file_that_lost_its_last_known_name_is_flushed_through_its_descriptor() {
    let bed = Bed::new();
    let file = bed.flushed("f", b'A');
    drop(file);
    bed.store.link(Path::new("f"), None, Path::new("g")).expect("memory");
    let attr = bed.engine.verbs.stat(Path::new("f")).expect("it is there");
    let file = bed.engine.io.open(Path::new("f"), None).expect("it is there");
    bed.engine
        .verbs
        .unlink(crate::start::named(Path::new("f"), &attr))
        .expect("a store that works");
    bed.engine.io.write(&file, 0, &[b'X'; 64 * KIB]).expect("room");
    bed.engine.io.closing(&file, &Admission::default()).expect("a store that works");
    drop(file);
    assert!(bed.is_on_store("g") == [b'X'; 64 * KIB], "nobody could find it again");
    assert_eq!(bed.engine.ops.status().dirty_files, 0);
    abandon(bed.engine);
}

// S-5
#[test]
fn a_flush_of_a_file_that_is_mostly_hole_flushes_all_of_it() {
    let bed = Bed::new();
    let (file, _) = bed.engine.verbs.create(Path::new("f"), &NEW).expect("no such file yet");
    let at = 590 << 20;
    bed.engine.io.set_len(&file, 600 << 20).expect("room");
    bed.engine.io.write(&file, at, &[7; 4 * KIB]).expect("room");
    bed.engine.drain.flush_file(&file).expect("a store that works");
    assert_eq!(bed.engine.ops.status().dirty_files, 0);
    let mut found = [0; 4 * KIB];
    let backing = bed.store.open(Path::new("f"), Access::Read).expect("it is there");
    backing.read_at(&mut found, at).expect("memory");
    assert_eq!(found, [7; 4 * KIB]);
    drop(file);
    abandon(bed.engine);
}

// S-8 S-14
#[test]
fn what_goes_around_never_goes_into_another_file() {
    let bed = Bed::new();
    let file = bed.flushed("f", b'A');
    let (theirs, _) = bed.store.create(Path::new("theirs"), &NEW).expect("memory");
    theirs.write_at(&[b'T'; 64 * KIB], 0).expect("memory");
    bed.store.rename(Path::new("theirs"), Path::new("f"), RenameMode::Replace).expect("memory");
    write_around(&bed.engine);
    let error = bed.engine.io.write(&file, 0, b"mine").expect_err("its backing file is gone");
    assert!(error.is(libc::ESTALE), "{error}");
    assert!(bed.is_on_store("f") == [b'T'; 64 * KIB], "it went into another file");
    drop(file);
    abandon(bed.engine);
}

fn failing(op: &str, skip: u64) -> FaultRules {
    let fail = Some(String::from("ENOSPC").try_into().expect("an error's name"));
    let rule = FaultRule { op: op.into(), fail, skip, ..FaultRule::default() };
    FaultRules { seed: 1, rules: vec![rule] }
}

/// Both handles have written around the tier. One sync of the store stands for both, and the store
/// reports its failure once.
// S-14
#[test]
fn each_handle_hears_once_that_a_sync_around_the_tier_has_failed() {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let (faulty, faults) =
        Fault::with_rules(Arc::new(store.clone()), FaultRules::default()).expect("no rules");
    let around = Tunables { policy: WritePolicy::WriteAround, ..patient() };
    let engine = start(Arc::new(media), faulty, BOOT, Config::default(), around);
    let engine = engine.expect("a new tier");
    let (one, _) = engine.verbs.create(Path::new("f"), &NEW).expect("no such file yet");
    let two = engine.io.open(Path::new("f"), None).expect("it is there");
    engine.io.write(&one, 0, &[b'A'; 4 * KIB]).expect("a store that works");
    engine.io.write(&two, 4096, &[b'B'; 4 * KIB]).expect("a store that works");
    faults.set_rules(failing("sync", 0)).expect("sound rules");
    let sync = |file: &OpenFile| engine.io.sync_in(&Admission::default(), file);
    sync(&one).expect_err("the store cannot sync");
    faults.clear();
    let late = engine.io.open(Path::new("f"), None).expect("it is there");
    sync(&late).expect("it was opened after the failure");
    let error = sync(&two).expect_err("its bytes may be lost");
    assert!(error.is(libc::EIO), "{error}");
    for file in [&one, &two, &late] {
        sync(file).expect("each was told");
    }
    drop((one, two, late));
    abandon(engine);
}

// S-8
#[test]
fn a_flush_that_failed_leaves_conflicts_to_be_found() {
    // Before any byte was written, and when only the times were missing.
    for op in ["write_at", "set_times"] {
        let (media, store) = (CrashMedia::default(), MemStore::new());
        let (faulty, faults) =
            Fault::with_rules(Arc::new(store.clone()), FaultRules::default()).expect("no rules");
        let engine = start(Arc::new(media), faulty, BOOT, Config::default(), patient());
        let engine = engine.expect("a new tier");
        let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("no such file yet");
        engine.io.write(&file, 0, &[b'A'; 64 * KIB]).expect("room");
        faults.set_rules(failing(op, 0)).expect("sound rules");
        engine.drain.flush_file(&file).expect_err("the store is full");
        faults.clear();
        // Without a change by others the file is flushed as if no flush had failed.
        engine.drain.flush_file(&file).expect("a store that works");
        assert_eq!(engine.ops.status().dirty_files, 0, "{op}");
        engine.io.write(&file, 0, &[b'B'; 64 * KIB]).expect("room");
        faults.set_rules(failing(op, 0)).expect("sound rules");
        engine.drain.flush_file(&file).expect_err("the store is full");
        faults.clear();
        let theirs = store.open(Path::new("f"), Access::ReadWrite).expect("it is there");
        theirs.write_at(&[b'T'; 64 * KIB], 0).expect("memory");
        let error = engine.drain.flush_file(&file).expect_err("somebody else wrote to it");
        assert_eq!(error.kind(), Kind::Conflict, "{op}: {error}");
        assert!(file_of(&store, "f") == [b'T'; 64 * KIB], "{op}: their bytes were overwritten");
        drop(file);
        abandon(engine);
    }
}

// S-3 S-4
#[test]
fn a_shutdown_beside_a_writer_past_us_is_not_clean() {
    let bed = Bed::new();
    let (other, _) = bed.engine.verbs.create(Path::new("g"), &NEW).expect("no such file yet");
    bed.engine.io.write(&other, 0, &[b'C'; 64 * KIB]).expect("room");
    drop(other);
    let (file, _) = bed.engine.verbs.create(Path::new("f"), &NEW).expect("no such file yet");
    let past = bed.engine.passed.write(&file, false).expect("room").expect("a new file");
    let shadow = past.shadow();
    shadow.write_at(&[b'A'; 64 * KIB], 0).expect("memory");
    let report = bed.engine.ops.shutdown(KeepDirty::Yes, &Progress::default(), None);
    assert_eq!(report.failures.len(), 0, "{:?}", report.failures);
    for part in 1..4 {
        shadow.write_at(&[b'B'; 64 * KIB], (part * 64 * KIB) as u64).expect("memory");
    }
    let images = bed.cut_the_power(|store| {
        let found = file_of(store, "f");
        assert!(
            found.len() >= 64 * KIB && found[..64 * KIB] == [b'A'; 64 * KIB],
            "{}",
            found.len()
        );
        assert!(found[64 * KIB..].iter().all(|byte| *byte == b'B'), "torn bytes were flushed");
        assert!(file_of(store, "g") == [b'C'; 64 * KIB], "what nobody writes has outlasted it");
    });
    assert!(images > 1, "nothing was unsynced");
}

/// A tier that cannot make dirty bytes durable says so, and the report of the unmount has it.
// S-12
#[test]
fn what_a_shutdown_could_not_make_durable_is_told() {
    let bed = Bed::new();
    let (file, _) = bed.engine.verbs.create(Path::new("f"), &NEW).expect("no such file yet");
    bed.engine.io.write(&file, 0, &[b'A'; 64 * KIB]).expect("room");
    drop(file);
    bed.media.set_fault(Some(media::Fault { n: 1, count: u64::MAX, errno: libc::EIO }));
    let report = bed.engine.ops.shutdown(KeepDirty::Yes, &Progress::default(), None);
    bed.media.set_fault(None);
    let told: Vec<_> = report.failures.iter().map(|it| (&*it.path, it.state)).collect();
    assert_eq!(told, [(Path::new("f"), PERISHABLE)]);
}

/// A truncation that fails half-way in the tier, during a flush of the bytes that it cuts off. A
/// later write behind a gap leaves zeros in it, which the flush has not copied.
// S-6 S-7
#[test]
fn a_truncation_that_fails_during_a_flush_is_none_that_never_was() {
    let faults: u64 = (1..8).map(truncate_during_a_flush).map(u64::from).sum();
    assert!(faults > 1, "{faults} truncations failed");
}

/// Returns whether the tier's `n`-th operation of the truncation failed.
fn truncate_during_a_flush(n: u64) -> bool {
    let (media, store) = (CrashMedia::default(), MemStore::new());
    let (hooked, hook) = Hook::on(store.clone());
    let engine = start(Arc::new(media.clone()), hooked, BOOT, Config::default(), patient());
    let engine = engine.expect("a new tier");
    let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("no such file yet");
    engine.io.write(&file, 0, &[b'A'; 128 * KIB]).expect("room");
    engine.io.sync(&file).expect("a tier that works");
    let (writer, written, failed) =
        (engine.clone(), file.clone(), Arc::new(AtomicBool::new(false)));
    let (came, has_failed) = (AtomicBool::new(false), failed.clone());
    hook.set_after(move |call| {
        if call.verb == Verb::WriteAt && !came.swap(true, Relaxed) {
            media.set_fault(Some(media::Fault { n, count: 1, errno: libc::EIO }));
            let cut = writer.io.set_len(&written, 64 * KIB as u64);
            media.set_fault(None);
            has_failed.store(cut.is_err(), Relaxed);
            writer.io.write(&written, 96 * KIB as u64, &[b'B'; 64 * KIB]).expect("room");
        }
    });
    let _ = engine.drain.flush_file(&file);
    let mut here = vec![0; 160 * KIB];
    assert_eq!(engine.io.read(&file, 0, &mut here).expect("it is in the tier"), here.len());
    engine.drain.flush_file(&file).expect("a store that works");
    assert!(file_of(&store, "f") == here, "operation {n}: the store has something else");
    drop(file);
    abandon(engine);
    failed.load(Relaxed)
}
