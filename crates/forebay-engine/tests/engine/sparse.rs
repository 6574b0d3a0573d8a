//! Holes take no room.

use std::path::Path;
use std::sync::Arc;

use forebay_backing::BackingStore;
use forebay_engine::{Config, Progress, Tunables};

use crate::media::CrashMedia;
use crate::start::{NEW, abandon, patient, start};
use crate::store::MemStore;

const MIB: u64 = 1 << 20;

/// A tier of 64 MiB with a dirty file of 4 GiB, of which it holds nine MiB; closed.
#[test]
fn a_closed_sparse_file_takes_what_is_in_it() {
    let store = MemStore::new();
    let (theirs, _) = store.create(Path::new("f"), &NEW).expect("memory");
    theirs.write_at(&vec![1; 8 * MIB as usize], 0).expect("memory");
    let media = CrashMedia::default();
    let tunables = || Tunables { tier_size: Some(64 * MIB), ..patient() };
    let start = |media: CrashMedia| {
        let backing = Arc::new(store.clone());
        start(Arc::new(media), backing, "sparse", Config::default(), tunables()).expect("starts")
    };
    let engine = start(media.clone());
    let file = engine.open(Path::new("f"), None).expect("it exists");
    let mut all = vec![0; 8 * MIB as usize];
    assert_eq!(engine.read(&file, 0, &mut all).expect("it is there"), all.len());
    engine.set_len(&file, 4096 * MIB).expect("a hole");
    engine.write(&file, 4095 * MIB, &vec![2; MIB as usize]).expect("room");
    engine.close(&file);
    assert!(engine.status().used_bytes <= 9 * MIB, "open");

    let evicted = engine.evict(&[], &Progress::default());
    assert_eq!(evicted.bytes, 8 * MIB, "{evicted:?}");
    assert_eq!(engine.status().used_bytes, MIB, "evicted from");

    let image = media.snapshot().process_crash_image();
    abandon(engine);
    let engine = start(CrashMedia::on(image));
    let status = engine.status();
    assert_eq!((status.used_bytes, status.dirty_bytes), (MIB, MIB), "at start");
    let (other, _) = engine.create(Path::new("g"), &NEW).expect("a new name");
    engine.write(&other, 0, &[3; 4096]).expect("there is room");
    engine.close(&other);
    abandon(engine);
}
