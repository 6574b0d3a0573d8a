//! Work that is avoided: questions to the backing store, and new shadow files.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forebay_backing::suite::TempDir;
use forebay_backing::wrap::Verb;
use forebay_backing::{BackingStore, DirStore, SetAttr, XattrMode};
use forebay_engine::media::{DirMedia, MediaFile};
use forebay_engine::{Config, Engine, File, Named, OpenFile, Progress, Tunables};
use rustix::fs::XattrFlags;

use crate::hook::Hook;
use crate::media::CrashMedia;
use crate::start::{NEW, PATIENCE, abandon, patient, simulated, start, time};
use crate::store::MemStore;

const SECOND: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(10);

#[test]
fn a_flush_tells_the_attributes_and_they_are_asked_for_again_before_they_expire() {
    let _time = simulated();
    let (store, hook) = Hook::on(MemStore::new());
    let tunables = Tunables { revalidate: Duration::from_secs(3600), ..patient() };
    let engine = start(Arc::new(CrashMedia::default()), store, "a", Config::default(), tunables);
    let engine = engine.expect("new");
    let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("an empty store");
    engine.io.write(&file, 0, &[1; 8192]).expect("room");
    let flushed = time().now();
    engine.drain.flush_file(&file).expect("a store that works");
    let asked = Arc::new(AtomicU64::new(0));
    let count = asked.clone();
    hook.set(move |call| {
        count.fetch_add(u64::from(call.verb == Verb::Stat && !call.paths.is_empty()), Relaxed);
    });

    let attr = engine.verbs.stat_recent(&file, 600 * SECOND).expect("the flush has seen it");
    assert_eq!(attr.size, 8192);
    assert_eq!(asked.load(Relaxed), 0);
    time().sleep(2 * SECOND);
    // Neither old nor expired, however long the flush took.
    let ttl = time().since(flushed) * 5 / 4;
    assert!(engine.verbs.stat_recent(&file, ttl).is_some());
    // Without simulated time passing, in which the answer would expire.
    let deadline = Instant::now() + PATIENCE;
    while engine.verbs.stat_recent(&file, ttl / 2).is_none() {
        assert!(Instant::now() < deadline, "nobody asks again");
        std::thread::sleep(TICK);
    }
    assert_eq!(asked.load(Relaxed), 1, "once");
    drop(file);
    abandon(engine);
}

/// Goal: the first write to a new file asks the store nothing. Method: the known attributes of a
/// file that was just made, and those after a capability was set.
#[test]
fn a_new_file_has_no_capability_until_one_is_set() {
    let dir = TempDir::new();
    let store = Arc::new(DirStore::open(dir.path()).expect("a directory"));
    let engine = start(Arc::new(CrashMedia::default()), store, "a", Config::default(), patient());
    let engine = engine.expect("new");
    let (file, attr) = engine.verbs.create(Path::new("f"), &NEW).expect("an empty store");
    let ttl = 600 * SECOND;
    assert!(engine.verbs.lacks_capability(&file, ttl));
    assert!(!engine.verbs.lacks_capability(&file, Duration::ZERO), "not for longer than told");
    engine.io.write(&file, 0, &[1; 8192]).expect("room");
    assert!(engine.verbs.lacks_capability(&file, ttl), "bytes give none");
    let at = Named { path: Path::new("f"), key: attr.key, is_dir: false };
    let name = OsStr::new("security.capability");
    // `struct vfs_cap_data`: revision 2, effective, CAP_NET_RAW permitted.
    let mut capability = [0; 20];
    capability[..6].copy_from_slice(&[1, 0, 0, 2, 0, 0x20]);
    engine.verbs.set_xattr(at, name, &capability, XattrMode::Any).expect("root may");
    assert!(!engine.verbs.lacks_capability(&file, ttl), "one was set");
    drop(file);
    abandon(engine);
}

/// Goal: a small file costs two questions when it is read first, and one when it is read again.
/// Method: every call to the store, in order.
#[test]
fn what_is_opened_to_be_read_is_opened_on_the_store_in_the_same_call() {
    let (store, hook) = Hook::on(MemStore::new());
    store.create(Path::new("f"), &NEW).expect("memory").0.write_at(&[7; 5000], 0).expect("memory");
    let engine = start(Arc::new(CrashMedia::default()), store, "a", Config::default(), patient());
    let engine = engine.expect("new");
    let calls = Arc::new(Mutex::new(Vec::new()));
    let seen = calls.clone();
    hook.set(move |call| {
        if !matches!(call.verb, Verb::Close | Verb::Statfs) {
            seen.lock().expect("no panic inside").push(call.verb.name());
        }
    });
    let mut key = None;
    for expected in [&["open", "read_at"][..], &["stat"]] {
        let file = engine.io.open_to_read(Path::new("f"), key).expect("it is there");
        let mut bytes = [0; 6000];
        assert_eq!(engine.io.read(&file, 0, &mut bytes).expect("it is there"), 5000);
        assert_eq!(bytes[..5000], [7; 5000]);
        key = Some(file.key);
        drop(file);
        assert_eq!(std::mem::take(&mut *calls.lock().expect("no panic inside")), expected);
    }
    abandon(engine);
}

/// Runs `meanwhile` when a flush of `file` has written to the backing store and is held up.
fn in_flight(engine: &Arc<Engine>, hook: &Hook, file: &Arc<File>, meanwhile: impl FnOnce()) {
    let (arrived, arrives) = mpsc::channel();
    let (go_on, goes_on) = mpsc::channel();
    hook.set(move |call| {
        if call.verb == Verb::SyncFiles {
            arrived.send(()).expect("the test waits");
            let _ = goes_on.recv_timeout(PATIENCE);
        }
    });
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| engine.drain.flush_file(file));
        arrives.recv_timeout(PATIENCE).expect("a flush syncs");
        meanwhile();
        go_on.send(()).expect("the flush waits");
        flush.join().expect("no panic inside").expect("a store that works");
    });
    hook.set(|_| {});
}

/// Makes a file that was flushed and is dirty again.
fn dirty_again(tunables: Tunables) -> (Arc<Engine>, Arc<Hook>, OpenFile) {
    let (store, hook) = Hook::on(MemStore::new());
    let engine = start(Arc::new(CrashMedia::default()), store, "a", Config::default(), tunables);
    let engine = engine.expect("new");
    let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("an empty store");
    engine.io.write(&file, 0, &[1; 8192]).expect("room");
    engine.drain.flush_file(&file).expect("a store that works");
    engine.io.write(&file, 0, &[2; 16384]).expect("room");
    (engine, hook, file)
}

#[test]
fn while_a_flush_is_under_way_attributes_are_asked_for_once() {
    let (engine, hook, file) = dirty_again(patient());
    let ttl = 600 * SECOND;
    let on_store = || engine.names.ask(|store| store.stat(Path::new("f"))).expect("it is there");
    let base = on_store();
    in_flight(&engine, &hook, &file, || {
        // The earlier answer is too old to count.
        assert!(engine.verbs.stat_recent(&file, Duration::ZERO).is_none());
        let asked = engine.verbs.before_asking(&file);
        let told = engine.verbs.stat(Path::new("f")).expect("it is there");
        assert_ne!(on_store().version(), base.version(), "the flush has changed it");
        assert_eq!(engine.verbs.stat_recent(&file, ttl), Some(told), "the answer counts");
        assert_eq!(told.size, 16384);
        engine.verbs.note_no_capability(&file, asked);
        assert!(engine.verbs.lacks_capability(&file, ttl));
        // Size and times are set by the flush.
        engine.io.write(&file, 16384, &[3; 100]).expect("room");
        assert_eq!(engine.verbs.stat_recent(&file, ttl).expect("as before").size, 16484);
    });
    drop(file);
    abandon(engine);
}

#[test]
fn what_was_asked_during_a_flush_is_not_believed_after_a_change_of_attributes() {
    let (engine, hook, file) = dirty_again(patient());
    let chmod = |engine: &Engine, mode| {
        let at = Named { path: Path::new("f"), key: file.key, is_dir: false };
        engine
            .verbs
            .set_attr(at, &SetAttr { mode: Some(mode), ..SetAttr::default() })
            .expect("memory")
    };
    let mode = |engine: &Arc<Engine>| {
        let recent = engine.verbs.stat_recent(&file, 600 * SECOND);
        recent.unwrap_or_else(|| engine.verbs.stat(Path::new("f")).expect("it is there")).mode
            & 0o777
    };
    in_flight(&engine, &hook, &file, || {
        assert_eq!(mode(&engine), 0o644);
        chmod(&engine, 0o600);
        assert_eq!(mode(&engine), 0o600);
        // The store has answered, and before the answer arrives another thread changes the mode.
        let (changer, key) = (engine.clone(), file.key);
        let changed = Arc::new(AtomicU64::new(0));
        let count = changed.clone();
        hook.set_after(move |call| {
            if call.verb == Verb::Stat && count.fetch_add(1, Relaxed) == 0 {
                let set = SetAttr { mode: Some(0o640), ..SetAttr::default() };
                let at = Named { path: Path::new("f"), key, is_dir: false };
                changer.verbs.set_attr(at, &set).expect("memory");
            }
        });
        let late = engine.verbs.stat(Path::new("f")).expect("it is there");
        assert_eq!((late.mode & 0o777, changed.load(Relaxed)), (0o600, 1), "from before");
        assert_eq!(mode(&engine), 0o640);
    });
    assert_eq!(mode(&engine), 0o640);
    hook.set_after(|_| {});
    drop(file);
    abandon(engine);
}

/// Creates a file, has `program` write it past the daemon, and closes it. Returns the mark of its shadow.
fn shadow_of(
    engine: &Arc<Engine>,
    name: &str,
    program: impl FnOnce(&dyn MediaFile),
) -> Option<String> {
    let (file, _) = engine.verbs.create(Path::new(name), &NEW).expect("no such file yet");
    let began = SystemTime::now();
    let past = engine.passed.write(&file, false).expect("room").expect("a new file");
    let shadow = past.shadow();
    let mtime = shadow.stat().expect("a file").mtime;
    let mtime = UNIX_EPOCH + Duration::new(mtime.sec as u64, mtime.nsec);
    // File systems count in ticks.
    assert!(mtime + 2 * TICK >= began, "the shadow of {name} is older than the file");
    let fd = shadow.as_fd().expect("a real file");
    let mut mark = [0; 32];
    let found = rustix::fs::fgetxattr(fd, "user.mark", &mut mark).ok();
    let found = found.map(|len| String::from_utf8_lossy(&mark[..len]).into_owned());
    rustix::fs::fsetxattr(fd, "user.mark", name.as_bytes(), XattrFlags::empty())
        .expect("a file system with attributes");
    program(shadow);
    past.end().expect("it rests");
    drop(file);
    found
}

#[test]
fn only_a_shadow_that_was_never_written_is_given_to_another_file() {
    let (dir, store) = (TempDir::new(), Arc::new(MemStore::new()));
    let media = Arc::new(DirMedia::open(dir.path()).expect("it is there"));
    let engine = start(media, store, "a", Config::default(), patient()).expect("new");
    let mut before = String::new();
    let mut reused = 0;
    for n in 0..100 {
        let name = format!("blank-{n}");
        let mark = shadow_of(&engine, &name, |_| std::thread::sleep(TICK));
        // Now and then housekeeping has removed it before.
        reused += u32::from(mark.is_some());
        assert!(mark.is_none_or(|mark| mark == before), "of another than the last one");
        before = name;
    }
    assert!(reused > 0, "none was given on");
    for n in 0..20 {
        let written = format!("written-{n}");
        shadow_of(&engine, &written, |shadow| {
            // The shadow is empty again, so its time alone shows the write; file systems count in ticks.
            std::thread::sleep(2 * TICK);
            shadow.write_at(b"secret", 0).expect("room");
            shadow.set_len(0).expect("a file of ours");
        });
        assert!(engine.drain.flush(&[], &Progress::default()).failures.is_empty());
        let mark = shadow_of(&engine, &format!("next-{n}"), |_| {});
        assert!(mark.is_none_or(|mark| mark != written), "{written} was written to");
    }
    abandon(engine);
}
