//! The quota of an admission rule: the room that its files take, and how more is made.

use std::path::Path;
use std::sync::Arc;

use forebay_backing::BackingStore;
use forebay_engine::rules::{Origin, Rule};
use forebay_engine::{Config, Engine, Tunables};

use crate::media::CrashMedia;
use crate::start::{NEW, abandon, counter, patient, start};
use crate::store::MemStore;

const MIB: u64 = 1 << 20;

fn rule(name: &str, path: &str) -> Rule {
    Rule { name: name.into(), path: vec![path.into()], ..Rule::default() }
}

/// Starts an engine with a quota of 3 MiB for `q*`, over a store with files of 1 MiB.
fn engine(names: &[&str]) -> (Arc<Engine>, MemStore) {
    let store = MemStore::new();
    for name in names {
        let (file, _) = store.create(Path::new(name), &NEW).expect("an empty store");
        file.write_at(&content(name, MIB), 0).expect("memory");
    }
    let tunables = Tunables { readahead: 0, tier_size: Some(1 << 30), ..patient() };
    let media = Arc::new(CrashMedia::default());
    let backing = Arc::new(store.clone());
    let engine = start(media, backing, "quota", Config::default(), tunables).expect("new");
    let limited = Rule { quota: Some(3 * MIB), ..rule("limited", "q*") };
    engine.room.add_rule(limited).expect("a sound rule");
    (engine, store)
}

fn content(name: &str, len: u64) -> Vec<u8> {
    vec![name.bytes().last().expect("a name"); len as usize]
}

fn read(engine: &Arc<Engine>, name: &str) {
    let file = engine.io.open(Path::new(name), None).expect("it is there");
    let admission = engine.room.admission_of(&file, Origin::default());
    let mut found = vec![0; MIB as usize];
    let n = engine.io.read_in(&admission, &file, 0, &mut found).expect("the store answers");
    drop(file);
    assert!(n == found.len() && found == content(name, MIB), "{name}");
}

/// Writes some MiB of a file, which is made if it does not exist.
fn write(engine: &Arc<Engine>, name: &str, mibs: std::ops::Range<u64>) {
    let path = Path::new(name);
    let file = engine
        .io
        .open(path, None)
        .or_else(|_| engine.verbs.create(path, &NEW).map(|(file, _)| file));
    let file = file.expect("a store that works");
    let admission = engine.room.admission_of(&file, Origin::default());
    for n in mibs {
        engine.io.write_in(&admission, &file, n * MIB, &content(name, MIB)).expect("room");
    }
    drop(file);
}

fn on_store(store: &MemStore, name: &str) -> Vec<u8> {
    let path = Path::new(name);
    let len = store.stat(path).expect("it is there").size;
    let file = store.open(path, forebay_backing::Access::Read).expect("it is there");
    let mut bytes = vec![0; len as usize];
    file.read_at(&mut bytes, 0).expect("memory");
    bytes
}

fn cached(engine: &Engine, name: &str) -> u64 {
    let files = engine.ops.list(Path::new(name)).unwrap();
    files.iter().map(|file| file.cached_bytes).sum()
}

fn used(engine: &Engine) -> u64 {
    engine.room.rules()[0].used_bytes
}

#[test]
fn what_comes_takes_the_place_of_what_the_rule_has_had_longest() {
    let names = ["other", "q0", "q1", "q2", "q3", "q4", "q5"];
    let (engine, _) = engine(&names);
    for name in names {
        read(&engine, name);
        assert!(used(&engine) <= 3 * MIB, "{name}: {}", used(&engine));
    }
    assert_eq!(counter(&engine, "read_bypass_rule"), 0, "there was always room");
    assert_eq!(cached(&engine, "q5"), MIB);
    assert_eq!(cached(&engine, "q0"), 0);
    assert_eq!(cached(&engine, "other"), MIB, "of another rule, and older than all");
    abandon(engine);
}

#[test]
fn what_has_no_place_beside_dirty_bytes_goes_around() {
    let (engine, store) = engine(&["q9"]);
    write(&engine, "q1", 0..3);
    read(&engine, "q9");
    assert_eq!((cached(&engine, "q9"), counter(&engine, "read_bypass_rule")), (0, 1));
    // A write to a file without dirty bytes goes around at once, without a flush.
    write(&engine, "q2", 0..1);
    assert_eq!(on_store(&store, "q2"), content("q2", MIB));
    assert_eq!((counter(&engine, "write_bypass_rule"), counter(&engine, "flushed_bytes")), (1, 0));
    // An overwrite of bytes in the tier needs no room.
    write(&engine, "q1", 1..2);
    assert_eq!((used(&engine), counter(&engine, "write_bypass_rule")), (3 * MIB, 1));
    // A dirty file is flushed first, so its writes stay in order.
    write(&engine, "q1", 2..4);
    assert_eq!(on_store(&store, "q1"), content("q1", 4 * MIB));
    assert_eq!((counter(&engine, "write_bypass_rule"), engine.ops.status().dirty_bytes), (2, 0));
    // Clean bytes make room now.
    write(&engine, "q3", 0..2);
    assert_eq!(engine.ops.status().dirty_bytes, 2 * MIB);
    assert!(used(&engine) <= 3 * MIB);
    for name in ["q1", "q2", "q3", "q9"] {
        read(&engine, name);
    }
    assert_eq!(counter(&engine, "conflicts"), 0);
    abandon(engine);
}

#[test]
fn pinned_files_give_nothing_and_a_file_larger_than_the_quota_evicts_nothing() {
    let (engine, store) = engine(&["q1", "q2"]);
    engine
        .room
        .add_rule(Rule { quota: Some(MIB), pin: true, ..rule("kept", "p*") })
        .expect("sound");
    for name in ["p1", "p2"] {
        let (file, _) = store.create(Path::new(name), &NEW).expect("a new name");
        file.write_at(&content(name, MIB), 0).expect("memory");
        read(&engine, name);
    }
    assert_eq!((cached(&engine, "p1"), cached(&engine, "p2")), (MIB, 0));
    read(&engine, "q1");
    let (file, _) = engine.verbs.create(Path::new("q-large"), &NEW).expect("a new name");
    let admission = engine.room.admission_of(&file, Origin::default());
    engine.io.write_in(&admission, &file, 0, &content("q-large", 4 * MIB)).expect("it goes around");
    drop(file);
    assert_eq!(on_store(&store, "q-large").len() as u64, 4 * MIB);
    assert_eq!(cached(&engine, "q1"), MIB);
    abandon(engine);
}
