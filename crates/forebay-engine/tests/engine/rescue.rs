//! Saving the contents of a tier to another place leaves the backing store unchanged.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_backing::wrap::{Call, Verb};
use forebay_backing::{Access, BackingStore};
use forebay_engine::{Engine, KeepDirty, Progress, Salvaged, Tier, TierOwner, salvage};

use crate::hook::Hook;
use crate::start::{NEW, patient};
use crate::store::MemStore;

const MIB: usize = 1 << 20;

/// A tier on disk, as a rescue needs it, and its backing store.
struct Bed {
    tier: PathBuf,
    store: MemStore,
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.tier);
    }
}

/// Makes `f`, 3 MiB of ones on the store with a page of twos here, and `long`, which was made longer here.
fn bed(name: &str) -> Bed {
    let tier = std::env::temp_dir().join(format!("forebay-{name}-{}", std::process::id()));
    let store = MemStore::new();
    for path in ["f", "long"] {
        let (file, _) = store.create(Path::new(path), &NEW).expect("memory");
        file.write_at(&vec![1; 3 * MIB], 0).expect("memory");
    }
    let owner = TierOwner { path: "/store".into(), identity: "mem".into() };
    let opened = Tier::open(&tier, &owner).expect("new");
    let engine =
        Engine::start(opened, Arc::new(store.clone()), Default::default(), patient()).expect("new");
    let file = engine.io.open(Path::new("f"), None).expect("it exists");
    engine.io.write(&file, MIB as u64, &[2; 4096]).expect("room");
    drop(file);
    let long = engine.io.open(Path::new("long"), None).expect("it exists");
    engine.io.set_len(&long, 4 * MIB as u64).expect("room");
    drop(long);
    engine.ops.shutdown(KeepDirty::Yes, &Progress::default(), None);
    Bed { tier, store }
}

fn changes(call: &Call<'_>) -> bool {
    call.verb == Verb::WriteAt || !call.verb.repeatable()
}

/// Rescues, and checks that the store was read and not changed.
fn rescued(bed: &Bed) -> (Salvaged, MemStore) {
    let (asked, changed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (hooked, hook) = Hook::on(bed.store.clone());
    let counters = (asked.clone(), changed.clone());
    hook.set(move |call| {
        counters.0.fetch_add(1, Relaxed);
        counters.1.fetch_add(u64::from(changes(call)), Relaxed);
    });
    let target = MemStore::new();
    let done = salvage(&bed.tier, Some(&*hooked), &target, &Progress::default()).expect("a tier");
    assert!(asked.load(Relaxed) > 0, "the rest of the file is there");
    assert_eq!(changed.load(Relaxed), 0, "changes to the store");
    (done, target)
}

// S-4
#[test]
fn a_rescue_reads_the_backing_store_and_changes_nothing_there() {
    let bed = bed("rescue");
    let before = bed.store.snapshot().files();
    let (done, target) = rescued(&bed);
    assert!(done.report.failures.is_empty(), "{done:?}");
    let saved = target.snapshot().files();
    let f = &saved[Path::new("f")];
    assert!(f.len() == 3 * MIB && f[MIB..MIB + 4096].iter().all(|byte| *byte == 2));
    assert!(f[..MIB].iter().chain(&f[MIB + 4096..]).all(|byte| *byte == 1), "the rest is theirs");
    let long = &saved[Path::new("long")];
    assert!(long[..3 * MIB].iter().all(|byte| *byte == 1) && long.len() == 4 * MIB);
    assert_eq!(bed.store.snapshot().files(), before);
}

// S-8
#[test]
fn a_rescue_says_when_the_rest_of_a_file_is_of_another_version() {
    let bed = bed("rescue-changed");
    let theirs = bed.store.open(Path::new("f"), Access::ReadWrite).expect("it exists");
    theirs.write_at(&[7; 4096], 0).expect("memory");
    let (done, target) = rescued(&bed);
    let [failure] = &done.report.failures[..] else { panic!("{done:?}") };
    assert!(failure.path == Path::new("f") && failure.error.contains("changed"), "{failure:?}");
    assert_eq!(target.snapshot().files()[Path::new("f")][MIB], 2, "ours is saved all the same");
}

// S-4
#[test]
fn a_rescue_leaves_holes_for_what_it_cannot_have_and_says_so() {
    let bed = bed("rescue-gone");
    bed.store.unlink(Path::new("f")).expect("it exists");
    let (done, target) = rescued(&bed);
    let [failure] = &done.report.failures[..] else { panic!("{done:?}") };
    assert!(failure.error.contains("holes"), "{failure:?}");
    let f = &target.snapshot().files()[Path::new("f")];
    assert!(f[..MIB].iter().all(|byte| *byte == 0) && f[MIB] == 2);
}
