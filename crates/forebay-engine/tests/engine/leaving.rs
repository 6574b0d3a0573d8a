//! Files that are opened while their last name goes: as on a local file system, a program that has
//! found the name reads the file that it named.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_backing::wrap::{Verb, Wrapped};
use forebay_backing::{Access, Attr, BackingStore, RenameMode};
use forebay_engine::{Config, Engine, File, OpenFile, Progress, Tunables, WritePolicy};

use crate::hook::Hook;
use crate::media::CrashMedia;
use crate::start::{NEW, abandon, named, patient, simulated, start, time, within};
use crate::store::MemStore;

const LEN: usize = 30_000;

struct Bed {
    store: Arc<Wrapped<Hook>>,
    hook: Arc<Hook>,
    engine: Arc<Engine>,
    /// The attributes of "old", of which no byte is cached.
    attr: Attr,
}

/// The way in which the name "old" goes.
#[derive(Clone, Copy)]
enum Way {
    Unlink,
    /// Replaced by a file that is not known.
    Replace,
    /// Replaced by a file with cached bytes.
    ReplaceByCached,
}

const WAYS: [Way; 3] = [Way::Unlink, Way::Replace, Way::ReplaceByCached];

impl Bed {
    fn new(policy: WritePolicy) -> Bed {
        let (store, hook) = Hook::on(MemStore::new());
        for (name, value) in [("old", b'o'), ("new", b'n')] {
            let (file, _) = store.create(Path::new(name), &NEW).expect("memory");
            file.write_at(&[value; LEN], 0).expect("memory");
        }
        let tunables = Tunables { policy, ..patient() };
        let media = Arc::new(CrashMedia::default());
        let engine = start(media, store.clone(), "leaving", Config::default(), tunables);
        let attr = store.stat(Path::new("old")).expect("it is there");
        Bed { store, hook, engine: engine.expect("a new tier"), attr }
    }

    fn prepare(&self, way: Way) {
        if matches!(way, Way::ReplaceByCached) {
            let file = self.engine.io.open(Path::new("new"), None).expect("it is there");
            self.engine.io.read(&file, 0, &mut [0; 4096]).expect("memory");
            drop(file);
        }
    }

    fn engine_takes_name(engine: &Arc<Engine>, way: Way, attr: &Attr) {
        let (old, new) = (Path::new("old"), Path::new("new"));
        match way {
            Way::Unlink => engine.verbs.unlink(named(old, attr)).expect("memory"),
            Way::Replace | Way::ReplaceByCached => {
                let from = engine.verbs.stat(new).expect("it is there");
                let over = Some(named(old, attr));
                engine
                    .verbs
                    .rename(named(new, &from), old, over, RenameMode::Replace)
                    .expect("memory");
            }
        }
    }

    /// Acts between the next opener's look and its next step.
    fn after_the_next_look(&self, act: impl Fn(&Arc<Engine>) + Send + 'static) {
        let engine = self.engine.clone();
        let once = AtomicBool::new(false);
        self.hook.set_after(move |call| {
            if call.verb == Verb::Stat && !once.swap(true, SeqCst) {
                act(&engine);
            }
        });
    }

    /// Opens "old" while `act` is just about to unlink or rename it on the store.
    fn opened_in_the_middle_of(&self, act: impl FnOnce(&Arc<Engine>)) -> OpenFile {
        let opened = Arc::new(Mutex::new(None));
        let (engine, out) = (self.engine.clone(), opened.clone());
        self.hook.set(move |call| {
            let taken = matches!(call.verb, Verb::Unlink | Verb::Rename);
            if taken && out.lock().unwrap().is_none() {
                *out.lock().unwrap() = Some(engine.io.open(Path::new("old"), None));
            }
        });
        act(&self.engine);
        self.hook.set(|_| ());
        opened.lock().unwrap().take().expect("the hook saw it").expect("it was there")
    }

    fn rename_old(engine: &Arc<Engine>, attr: &Attr) {
        let (from, to) = (Path::new("old"), Path::new("moved"));
        engine.verbs.rename(named(from, attr), to, None, RenameMode::Replace).expect("memory");
    }

    fn flushes_all(&self) {
        let report = self.engine.drain.flush(&[], &Progress::default());
        assert!(report.failures.is_empty(), "{report:?}");
        assert_eq!(self.engine.ops.status().dirty_files, 0);
    }

    fn starts_with_mine(&self, name: &str) {
        let mut bytes = [0; 4];
        let theirs = self.store.open(Path::new(name), Access::Read).expect("it is there");
        theirs.read_at(&mut bytes, 0).expect("memory");
        assert_eq!(&bytes, b"mine");
    }

    fn assert_reads_old(&self, file: &Arc<File>) {
        let mut bytes = vec![0; LEN];
        let read = self.engine.io.read(file, 0, &mut bytes).expect("it is open");
        assert_eq!(read, LEN);
        assert!(bytes.iter().all(|byte| *byte == b'o'), "another file's bytes");
    }
}

// S-1
#[test]
fn a_file_opened_just_before_its_name_goes_is_readable() {
    for way in WAYS {
        let bed = Bed::new(WritePolicy::WriteBack);
        bed.prepare(way);
        let file =
            bed.opened_in_the_middle_of(|engine| Bed::engine_takes_name(engine, way, &bed.attr));
        bed.assert_reads_old(&file);
        bed.engine.io.write(&file, 0, b"mine").expect("room");
        drop(file);
        bed.flushes_all();
        abandon(bed.engine);
    }
}

// S-1
#[test]
fn a_file_whose_name_goes_while_it_is_opened_is_opened_by_what_holds_it() {
    for (way, policy) in WAYS.into_iter().flat_map(|way| {
        [WritePolicy::WriteBack, WritePolicy::WriteAround].map(|policy| (way, policy))
    }) {
        let bed = Bed::new(policy);
        bed.prepare(way);
        let pin = bed.store.pin(Path::new("old")).expect("memory").expect("memory can");
        let attr = bed.attr;
        bed.after_the_next_look(move |engine| Bed::engine_takes_name(engine, way, &attr));
        let error = match bed.engine.io.open(Path::new("old"), None) {
            Ok(file) => panic!("opened without its bytes within reach: {:?}", file.key),
            Err(error) => error,
        };
        assert!(error.is(libc::ESTALE), "{error}");
        assert!(
            bed.engine.files.open_unlinked(bed.attr.key, None).is_none(),
            "nothing of it is cached"
        );
        let open =
            || bed.engine.files.open_unlinked(bed.attr.key, Some(&*pin)).expect("it is held");
        let (file, again) = (open(), open());
        assert!(Arc::ptr_eq(&file, &again), "two of one file");
        bed.assert_reads_old(&file);
        bed.engine.io.write(&file, 0, b"mine").expect("room");
        let mut bytes = [0; 4];
        bed.engine.io.read(&again, 0, &mut bytes).expect("it is open");
        assert_eq!(&bytes, b"mine");
        drop(file);
        drop(again);
        abandon(bed.engine);
    }
}

// S-1
#[test]
fn a_file_renamed_while_it_is_opened_is_opened_readable_or_not_at_all() {
    let bed = Bed::new(WritePolicy::WriteBack);
    let attr = bed.attr;
    bed.after_the_next_look(move |engine| Bed::rename_old(engine, &attr));
    let error = bed.engine.io.open(Path::new("old"), None).err().expect("it has another name");
    assert!(error.is(libc::ESTALE), "{error}");
    let file = bed.engine.io.open(Path::new("moved"), None).expect("it is there");
    bed.assert_reads_old(&file);
    drop(file);
    abandon(bed.engine);
}

// S-1
#[test]
fn what_holds_a_file_opens_none_that_still_has_a_name() {
    let bed = Bed::new(WritePolicy::WriteBack);
    let pin = bed.store.pin(Path::new("old")).expect("memory").expect("memory can");
    assert!(bed.engine.files.open_unlinked(bed.attr.key, Some(&*pin)).is_none());
    let file = bed.engine.io.open(Path::new("old"), None).expect("it is there");
    bed.assert_reads_old(&file);
    bed.engine.io.write(&file, 0, b"mine").expect("room");
    let known = file.clone();
    drop(file);
    bed.engine.drain.flush_file(&known).expect("memory");
    bed.starts_with_mine("old");
    abandon(bed.engine);
}

// S-1
#[test]
fn an_empty_file_whose_name_goes_while_it_is_opened_is_in_conflict_with_nobody() {
    let bed = Bed::new(WritePolicy::WriteBack);
    let (_, attr) = bed.store.create(Path::new("lock"), &NEW).expect("memory");
    let pin = bed.store.pin(Path::new("lock")).expect("memory").expect("memory can");
    bed.after_the_next_look(move |engine| {
        engine.verbs.unlink(named(Path::new("lock"), &attr)).expect("memory");
    });
    let file = match bed.engine.io.open(Path::new("lock"), None) {
        Ok(file) => file,
        Err(_) => bed.engine.files.open_unlinked(attr.key, Some(&*pin)).expect("it is held"),
    };
    bed.engine.io.write(&file, 0, b"1234").expect("room");
    drop(file);
    bed.flushes_all();
    abandon(bed.engine);
}

/// As by /proc/self/fd, long after the name went.
// S-1
#[test]
fn an_open_file_without_a_name_can_be_opened_again() {
    let _time = simulated();
    let bed = Bed::new(WritePolicy::WriteBack);
    let pin = bed.store.pin(Path::new("old")).expect("memory").expect("memory can");
    let file = bed.engine.io.open(Path::new("old"), None).expect("it is there");
    bed.assert_reads_old(&file);
    bed.engine.io.write(&file, 0, b"mine").expect("room");
    bed.engine.verbs.unlink(named(Path::new("old"), &bed.attr)).expect("memory");
    time().sleep(3 * GRACE / 2);
    let again = bed.engine.files.open_unlinked(bed.attr.key, Some(&*pin)).expect("it is open");
    let mut bytes = [0; 4];
    bed.engine.io.read(&again, 0, &mut bytes).expect("it is open");
    assert_eq!(&bytes, b"mine");
    drop(file);
    drop(again);
    within("nothing of it is left in the tier", || bed.engine.ops.status().used_bytes == 0);
    let opened = bed.engine.files.open_unlinked(bed.attr.key, Some(&*pin));
    assert!(opened.is_none(), "the backing file's bytes are older than those that are gone");
    abandon(bed.engine);
}

/// How long a file that is not open is kept after its last name went.
const GRACE: Duration = Duration::from_secs(1);

// S-1
#[test]
fn a_file_opened_just_before_it_changes_places_is_what_it_was() {
    let bed = Bed::new(WritePolicy::WriteBack);
    let (old, new) = (Path::new("old"), Path::new("new"));
    let from = bed.engine.verbs.stat(new).expect("it is there");
    let over = Some(named(old, &bed.attr));
    let file = bed.opened_in_the_middle_of(|engine| {
        engine.verbs.rename(named(new, &from), old, over, RenameMode::Exchange).expect("memory");
    });
    bed.assert_reads_old(&file);
    bed.engine.io.write(&file, 0, b"mine").expect("room");
    drop(file);
    bed.flushes_all();
    bed.starts_with_mine("new");
    abandon(bed.engine);
}

/// A name that was found just before the file lost it is not one of its names.
// S-1
#[test]
fn a_cached_file_renamed_while_it_is_opened_keeps_its_new_name_alone() {
    for known in [false, true] {
        let bed = Bed::new(WritePolicy::WriteBack);
        let file = bed.engine.io.open(Path::new("old"), None).expect("it is there");
        bed.assert_reads_old(&file);
        let attr = bed.attr;
        bed.after_the_next_look(move |engine| Bed::rename_old(engine, &attr));
        if let Ok(again) = bed.engine.io.open(Path::new("old"), known.then_some(bed.attr.key)) {
            bed.assert_reads_old(&again);
            drop(again);
        }
        bed.engine.io.write(&file, 0, b"mine").expect("room");
        drop(file);
        bed.flushes_all();
        bed.starts_with_mine("moved");
        abandon(bed.engine);
    }
}

/// No byte of the file is cached when the rename begins, so the file itself does not know of the rename.
// S-8
#[test]
fn a_flush_in_the_middle_of_a_rename_finds_no_conflict() {
    let _time = simulated();
    let bed = Bed::new(WritePolicy::WriteBack);
    let opened = Arc::new(Mutex::new(None));
    let (engine, out) = (bed.engine.clone(), opened.clone());
    bed.hook.set(move |call| {
        if call.verb == Verb::Rename {
            let file = engine.io.open(Path::new("old"), None).expect("it is there");
            engine.io.write(&file, 0, b"mine").expect("room");
            *out.lock().unwrap() = Some(file);
        }
    });
    let (engine, flushed) = (bed.engine.clone(), Arc::new(AtomicBool::new(false)));
    let did = flushed.clone();
    bed.hook.set_after(move |call| {
        if call.verb == Verb::Rename {
            engine.drain.flush(&[], &Progress::default());
            did.store(true, SeqCst);
        }
    });
    Bed::rename_old(&bed.engine, &bed.attr);
    assert!(flushed.load(SeqCst));
    assert_eq!(bed.engine.ops.status().conflicted_files, 0);
    drop(opened.lock().unwrap().take().expect("the hook saw it"));
    bed.flushes_all();
    bed.starts_with_mine("moved");
    abandon(bed.engine);
}

/// Only a limited number of names of a file are on record; the bytes are not lost with the last of those.
// S-5
#[test]
fn dirty_bytes_outlive_all_the_names_that_are_known() {
    const NAMES: usize = 100;
    let store = MemStore::new();
    let media = Arc::new(CrashMedia::default());
    let engine = start(media, Arc::new(store.clone()), "names", Config::default(), patient());
    let engine = engine.expect("new");
    let name = |n: usize| format!("n{n:03}");
    let (file, attr) = engine.verbs.create(Path::new(&name(0)), &NEW).expect("an empty store");
    engine.io.write(&file, 0, &[7; LEN]).expect("room");
    drop(file);
    for n in 1..NAMES {
        engine
            .verbs
            .link(named(Path::new(&name(0)), &attr), Path::new(&name(n)))
            .expect("it is there");
    }
    for n in 0..NAMES - 1 {
        engine.verbs.unlink(named(Path::new(&name(n)), &attr)).expect("it is there");
    }
    let left = store.stat(Path::new(&name(NAMES - 1))).expect("its last name");
    assert_eq!((left.key, left.nlink), (attr.key, 1));
    engine.drain.flush(&[], &Progress::default());
    let mut bytes = vec![0; LEN + 1];
    let last = store.open(Path::new(&name(NAMES - 1)), Access::Read).expect("its last name");
    assert_eq!(last.read_at(&mut bytes, 0).expect("a sound store"), LEN);
    assert_eq!(bytes[..LEN], [7; LEN]);
    abandon(engine);
}
