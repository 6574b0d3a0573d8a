//! Times and modes that programs set, beside flushes, which set times on the backing store, and
//! opens that have asked for them.

use std::path::Path;
use std::sync::{Arc, Mutex};

use forebay_backing::wrap::Verb;
use forebay_backing::{BackingStore, SetAttr, SetTime, Timestamp};
use forebay_engine::{Engine, OpenFile, Progress};

use crate::hook::Hook;
use crate::media::CrashMedia;
use crate::start::{NEW, abandon, counter, named, patient, start};
use crate::store::MemStore;

const AT: Timestamp = Timestamp { sec: 1_000_000, nsec: 7 };

fn time() -> SetAttr {
    SetAttr { mtime: Some(SetTime::At(AT)), ..SetAttr::default() }
}

/// Starts an engine over a store with hooked calls, and opens a file `f` of 4096 bytes.
fn bed() -> (Arc<Engine>, MemStore, Arc<Hook>, OpenFile) {
    let store = MemStore::new();
    let (hooked, hook) = Hook::on(store.clone());
    let media = Arc::new(CrashMedia::default());
    let engine = start(media, hooked, "times", Default::default(), patient()).expect("new");
    let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("an empty store");
    engine.io.write(&file, 0, &[1; 4096]).expect("room");
    (engine, store, hook, file)
}

/// Calls `act` once, at the first call with this verb.
fn at_first(hook: &Hook, verb: Verb, act: impl FnOnce() + Send + 'static) {
    let mut act = Some(act);
    hook.set(move |call| {
        if call.verb == verb
            && let Some(act) = act.take()
        {
            act();
        }
    });
}

fn flush(engine: &Arc<Engine>) {
    let report = engine.drain.flush(&[], &Progress::default());
    assert!(report.failures.is_empty(), "{report:?}");
}

/// Method: the time is set when the flush has set its own and not yet checked whether it stayed.
// S-8
#[test]
fn a_time_that_is_set_during_a_flush_stays_and_is_no_conflict() {
    let (path, (engine, store, hook, file)) = (Path::new("f"), bed());
    let setter = engine.clone();
    at_first(&hook, Verb::SyncFiles, move || {
        let attr = setter.verbs.stat(path).expect("it is there");
        setter.verbs.set_attr(named(path, &attr), &time()).expect("a store that works");
    });
    flush(&engine);
    flush(&engine);
    assert_eq!(engine.ops.status().dirty_files, 0);
    assert_eq!(store.stat(path).expect("it is there").mtime, AT, "on the backing store");
    assert_eq!(engine.verbs.stat(path).expect("it is there").mtime, AT);
    engine.io.write(&file, 0, &[2; 4096]).expect("room");
    flush(&engine);
    assert_eq!(counter(&engine, "conflicts"), 0);
    drop(file);
    abandon(engine);
}

/// The same by a descriptor, as for a file whose name the front-end has forgotten.
// S-8
#[test]
fn a_time_that_is_set_by_descriptor_during_a_flush_stays_and_is_no_conflict() {
    let (path, (engine, store, hook, file)) = (Path::new("f"), bed());
    let (setter, open) = (engine.clone(), file.clone());
    at_first(&hook, Verb::SyncFiles, move || {
        setter.verbs.set_attr_open(&open, &time()).expect("a store that works");
    });
    flush(&engine);
    flush(&engine);
    assert_eq!((counter(&engine, "conflicts"), engine.ops.status().dirty_files), (0, 0));
    assert_eq!(store.stat(path).expect("it is there").mtime, AT);
    drop(file);
    abandon(engine);
}

/// The same while a time is set, and written bytes are flushed before that is known here.
// S-8
#[test]
fn a_time_that_is_set_before_a_flush_of_a_file_opened_meanwhile_is_no_conflict() {
    let (path, (engine, store, hook, file)) = (Path::new("f"), bed());
    flush(&engine);
    drop(file);
    assert!(engine.ops.evict(&[path.into()], &Progress::default()).failures.is_empty());
    let attr = engine.verbs.stat(path).expect("it is there");
    let opened = Arc::new(Mutex::new(None));
    let (opener, slot) = (engine.clone(), opened.clone());
    hook.set_after(move |call| {
        let mut slot = slot.lock().expect("no panic inside");
        if call.verb == Verb::SetAttr && slot.is_none() {
            let file = opener.io.open(path, None).expect("it is there");
            opener.io.write(&file, 0, &[2; 4096]).expect("room");
            opener.drain.flush_file(&file).expect("a store that works");
            *slot = Some(file);
        }
    });
    engine.verbs.set_attr(named(path, &attr), &time()).expect("a store that works");
    let file = opened.lock().expect("no panic inside").take().expect("it was opened");
    assert!(store.stat(path).expect("it is there").mtime > AT, "the write is younger");
    engine.io.write(&file, 0, &[3; 4096]).expect("room");
    flush(&engine);
    assert_eq!((counter(&engine, "conflicts"), engine.ops.status().dirty_files), (0, 0));
    hook.set_after(|_| {});
    drop(file);
    abandon(engine);
}

/// The file is not known when its mode is about to be changed; then a program opens it.
// S-8
#[test]
fn a_mode_that_is_set_while_the_file_is_opened_is_no_conflict() {
    let (path, (engine, store, hook, file)) = (Path::new("f"), bed());
    flush(&engine);
    drop(file);
    assert!(engine.ops.evict(&[path.into()], &Progress::default()).failures.is_empty());
    let attr = engine.verbs.stat(path).expect("it is there");
    let opened = Arc::new(Mutex::new(None));
    let (opener, slot) = (engine.clone(), opened.clone());
    at_first(&hook, Verb::SetAttr, move || {
        let file = opener.io.open(path, None).expect("it is there");
        opener.io.write(&file, 0, &[2; 4096]).expect("room");
        *slot.lock().expect("no panic inside") = Some(file);
    });
    let set = SetAttr { mode: Some(0o4755), ..SetAttr::default() };
    engine.verbs.set_attr(named(path, &attr), &set).expect("a store that works");
    let file = opened.lock().expect("no panic inside").take().expect("it was opened");
    assert!(engine.verbs.has_set_id(&file), "a write would not take it away");
    flush(&engine);
    assert_eq!(counter(&engine, "conflicts"), 0);
    assert_eq!(store.stat(path).expect("it is there").mode & 0o7777, 0o4755);
    drop(file);
    abandon(engine);
}
