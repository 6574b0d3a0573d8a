//! Times that programs set, beside flushes that tell the backing store theirs.

use std::path::Path;
use std::sync::Arc;

use forebay_backing::wrap::Verb;
use forebay_backing::{BackingStore, SetAttr, SetTime, Timestamp};
use forebay_engine::Progress;

use crate::hook::Hook;
use crate::media::CrashMedia;
use crate::start::{NEW, abandon, counter, named, patient, start};
use crate::store::MemStore;

/// Method: it is set when the flush has told its own time and not yet looked whether it stayed.
// S-8
#[test]
fn a_time_that_is_set_during_a_flush_stays_and_is_no_conflict() {
    let (path, store) = (Path::new("f"), MemStore::new());
    let (hooked, hook) = Hook::on(store.clone());
    let media = Arc::new(CrashMedia::default());
    let engine = start(media, hooked, "times", Default::default(), patient()).expect("new");
    let (file, _) = engine.create(path, &NEW).expect("an empty store");
    engine.write(&file, 0, &[1; 4096]).expect("room");
    let at = Timestamp { sec: 1_000_000, nsec: 7 };
    let (setter, mut is_set) = (engine.clone(), false);
    hook.set(move |call| {
        if call.verb == Verb::SyncFiles && !std::mem::replace(&mut is_set, true) {
            let attr = setter.stat(path).expect("it is there");
            let set = SetAttr { mtime: Some(SetTime::At(at)), ..SetAttr::default() };
            setter.set_attr(named(path, &attr), &set).expect("a store that works");
        }
    });
    let flush = || {
        let report = engine.flush(&[], &Progress::default());
        assert!(report.failures.is_empty(), "{report:?}");
    };
    flush();
    flush();
    assert_eq!(engine.status().dirty_files, 0);
    assert_eq!(store.stat(path).expect("it is there").mtime, at, "on the backing store");
    assert_eq!(engine.stat(path).expect("it is there").mtime, at);
    engine.write(&file, 0, &[2; 4096]).expect("room");
    flush();
    assert_eq!(counter(&engine, "conflicts"), 0);
    engine.close(&file);
    abandon(engine);
}
