//! Files that are at rest: no byte of them can come back over others' writes, so their claims may go.

use std::path::Path;
use std::sync::Arc;

use forebay_engine::{Config, Engine, OpenFile};

use crate::media::CrashMedia;
use crate::start::{NEW, abandon, patient, start};
use crate::store::MemStore;

/// Starts an engine with a file of which `[0, 100)` is dirty.
fn engine() -> (Arc<Engine>, OpenFile) {
    let (media, store) = (Arc::new(CrashMedia::default()), Arc::new(MemStore::new()));
    let engine = start(media, store, "rest", Config::default(), patient()).expect("a new tier");
    let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("a new name");
    engine.io.write(&file, 0, &[1; 100]).expect("room");
    (engine, file)
}

/// Synced bytes are kept after a flush, and a loss of power would flush them again: over bytes that
/// others have written meanwhile.
// S-6
#[test]
fn a_file_is_at_rest_once_nothing_of_it_can_come_back() {
    let (engine, file) = engine();
    assert!(!engine.files.is_at_rest(file.key), "dirty");
    assert_eq!(engine.files.unsettled().len(), 1);
    engine.io.sync(&file).unwrap();
    engine.drain.flush_file(&file).unwrap();
    assert!(file.lock().state.keeps_within(0, 100), "kept, as it is open and was synced");
    assert_eq!(engine.files.unsettled().len(), 1);
    assert!(engine.files.is_at_rest(file.key));
    assert!(!file.lock().state.keeps_within(0, 100));
    assert!(engine.files.unsettled().is_empty());
    engine.io.write(&file, 10, b"x").unwrap();
    assert!(!engine.files.is_at_rest(file.key));
    drop(file);
    abandon(engine);
}

/// A program that makes a file past the daemon and writes nothing leaves records that wait for the
/// next one to be written; without them the file would come back as written.
// S-25
#[test]
fn what_makes_a_file_rest_is_durable() {
    let (engine, dirty) = engine();
    let (file, _) = engine.verbs.create(Path::new("made"), &NEW).unwrap();
    let past = engine.passed.write(&file, false).unwrap().expect("a new file");
    engine.files.index().sync().unwrap();
    assert!(!engine.files.is_at_rest(file.key), "somebody may write it");
    past.end().unwrap();
    let key = file.key;
    drop((file, dirty));
    let index = engine.files.index();
    assert!(!index.is_synced(index.seq()), "it was recorded that nothing was written");
    assert!(engine.files.is_at_rest(key));
    assert!(index.is_synced(index.seq()));
    abandon(engine);
}

#[test]
fn a_doubted_file_is_compared_at_the_next_open() {
    let (engine, file) = engine();
    engine.drain.flush_file(&file).unwrap();
    let path = file.path().unwrap();
    drop(engine.io.open(&path, Some(file.key)).unwrap());
    assert!(file.lock().live().checked.is_some());
    engine.files.doubt(file.key);
    assert!(file.lock().live().checked.is_none());
    assert_eq!(engine.files.known_below(Path::new("")), [file.key]);
    drop(file);
    abandon(engine);
}
