//! Holes take no room, and delay nothing.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_backing::BackingStore;
use forebay_engine::{Config, Progress, Tunables};

use crate::bytes::Bytes;
use crate::media::CrashMedia;
use crate::start::{NEW, abandon, patient, start, within};
use crate::store::MemStore;

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

/// Far more flights than needed, and far fewer than one for each 128 MiB of a hole.
const FLIGHTS_MAX: u64 = 200;

/// A tier of 64 MiB with a closed dirty file of 4 GiB, of which it holds nine MiB.
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
    let file = engine.io.open(Path::new("f"), None).expect("it exists");
    let mut all = vec![0; 8 * MIB as usize];
    assert_eq!(engine.io.read(&file, 0, &mut all).expect("it is there"), all.len());
    engine.io.set_len(&file, 4096 * MIB).expect("a hole");
    engine.io.write(&file, 4095 * MIB, &vec![2; MIB as usize]).expect("room");
    drop(file);
    assert!(engine.ops.status().used_bytes <= 9 * MIB, "open");

    let evicted = engine.ops.evict(&[], &Progress::default());
    assert_eq!(evicted.bytes, 8 * MIB, "{evicted:?}");
    assert_eq!(engine.ops.status().used_bytes, MIB, "evicted from");

    let image = media.snapshot().process_crash_image();
    abandon(engine);
    let engine = start(CrashMedia::on(image));
    let status = engine.ops.status();
    assert_eq!((status.used_bytes, status.dirty_bytes), (MIB, MIB), "at start");
    let (other, _) = engine.verbs.create(Path::new("g"), &NEW).expect("a new name");
    engine.io.write(&other, 0, &[3; 4096]).expect("there is room");
    drop(other);
    abandon(engine);
}

/// Nor does a hole keep the drain from other files' bytes, which are younger.
#[test]
fn a_hole_of_terabytes_is_drained_in_few_flights() {
    let store = MemStore::new();
    let tunables = Tunables { max_age: Duration::from_secs(2), ..Tunables::default() };
    let (media, backing) = (Arc::new(CrashMedia::default()), Arc::new(store.clone()));
    let engine = start(media, backing, "hole", Config::default(), tunables).expect("new");
    let (hole, _) = engine.verbs.create(Path::new("hole"), &NEW).expect("an empty store");
    engine.io.set_len(&hole, 8 * TIB).expect("a hole");
    engine.io.write(&hole, 5 * TIB, &[1; 4096]).expect("room");
    drop(hole);
    for n in 0..5 {
        let (file, _) = engine.verbs.create(Path::new(&n.to_string()), &NEW).expect("a new name");
        engine.io.write(&file, 0, &vec![2; 2 * MIB as usize]).expect("room");
        drop(file);
    }
    within("all is clean", || engine.ops.status().dirty_files == 0);
    let tree = store.snapshot();
    assert!(tree.syncs < FLIGHTS_MAX, "{}", tree.syncs);
    let mut expected = Bytes::default();
    expected.set_len(8 * TIB);
    expected.write(&[1; 4096], 5 * TIB);
    assert!(tree.bytes(Path::new("hole")) == expected);
    abandon(engine);
}

/// A file of terabytes that was cut and made long again, with a few writes here and there: the old
/// bytes of the backing file are gone, whether a hole or data took their place.
///
/// Method: more data than one flight takes, and beside it older data; the expected content comes
/// from the same changes of bytes in memory.
#[test]
fn a_sparse_file_over_an_old_one_is_flushed_in_few_flights_and_byte_for_byte() {
    let path = Path::new("f");
    let (store, mut expected) = (MemStore::new(), Bytes::default());
    let (theirs, _) = store.create(path, &NEW).expect("memory");
    let old = [0, MIB, 9 * MIB, TIB, 2 * TIB - 5000, 4 * TIB - 2 * MIB];
    for at in old {
        theirs.write_at(&vec![7; 2 * MIB as usize], at).expect("memory");
        expected.write(&vec![7; 2 * MIB as usize], at);
    }
    let (media, backing) = (Arc::new(CrashMedia::default()), Arc::new(store.clone()));
    let engine = start(media, backing, "over", Config::default(), patient()).expect("starts");
    let file = engine.io.open(path, None).expect("it exists");
    for len in [MIB + 5, 3 * TIB + 9, 2 * TIB, 8 * TIB] {
        engine.io.set_len(&file, len).expect("a size");
        expected.set_len(len);
    }
    let mut written = 0;
    let new =
        [(10 * MIB, 70), (TIB + 3, 1), (2 * TIB - 4096, 60), (4 * TIB - MIB, 2), (7 * TIB, 50)];
    for (at, mibs) in new {
        let data = vec![mibs as u8; (mibs * MIB) as usize];
        engine.io.write(&file, at, &data).expect("room");
        expected.write(&data, at);
        written += mibs * MIB;
    }
    let dirty = || engine.drain.dirty_ages().last().map_or(0, |ages| ages.bytes);
    within("its age is seen", || dirty() >= written);
    assert!(dirty() < 2 * written, "{} of {written}", dirty());

    let before = store.snapshot().syncs;
    let report = engine.drain.flush(&[], &Progress::default());
    assert!(report.failures.is_empty() && report.files == 1, "{report:?}");
    assert!(report.bytes < 2 * written, "{report:?}");
    assert_eq!(engine.ops.status().dirty_files, 0);
    let tree = store.snapshot();
    assert!(tree.syncs - before < FLIGHTS_MAX, "{} flights", tree.syncs - before);
    assert!(tree.bytes(path) == expected);
    for at in old.into_iter().chain(new.map(|(at, _)| at)) {
        let (mut here, mut there) = ([0; 8192], [1; 8192]);
        engine.io.read(&file, at, &mut here).expect("it is there");
        expected.read(&mut there, at);
        assert!(here == there, "at {at}");
    }
    drop(file);
    abandon(engine);
}
