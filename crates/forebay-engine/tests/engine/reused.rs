//! A store without times of birth gives the inode number of a file that others have removed to a
//! file that they make: both have the same key.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_backing::{Access, Attr, BackingStore, RenameMode};
use forebay_engine::{Config, Engine, Keep, OpenFile, Progress};

use crate::losses::file_of;
use crate::media::CrashMedia;
use crate::start::{NEW, abandon, counter, patient, read_all, start};
use crate::store::MemStore;

const OURS: &[u8] = b"dirty here";
const THEIRS: &[u8] = b"another file altogether";

struct Bed {
    media: CrashMedia,
    store: MemStore,
    engine: Arc<Engine>,
    /// The file as it was made.
    removed: Attr,
}

fn path(name: &str) -> &Path {
    Path::new(name)
}

fn serve(media: &CrashMedia, store: &MemStore) -> Arc<Engine> {
    let backing = Arc::new(store.clone());
    let media = Arc::new(media.clone());
    start(media, backing, "reused", Config::default(), patient()).expect("a sound tier")
}

impl Bed {
    /// Returns a bed where every byte of `f` is dirty.
    fn new() -> Bed {
        Bed::on(MemStore::without_generations())
    }

    fn on(store: MemStore) -> Bed {
        let media = CrashMedia::default();
        store.mkdir(path("d"), &NEW).expect("memory");
        let (_, removed) = store.create(path("f"), &NEW).expect("memory");
        let engine = serve(&media, &store);
        let file = engine.io.open(path("f"), None).expect("it is there");
        engine.io.write(&file, 0, OURS).expect("room");
        drop(file);
        Bed { media, store, engine, removed }
    }

    /// Others remove `f` and make `name`.
    fn reuse(&self, name: &str) {
        self.store.free(path("f"));
        let (theirs, attr) = self.store.create(path(name), &NEW).expect("memory");
        theirs.write_at(THEIRS, 0).expect("memory");
        assert_eq!(attr.key, self.removed.key, "the same number");
    }

    fn open(&self, name: &str) -> OpenFile {
        self.engine.io.open(path(name), None).expect("it is there")
    }

    fn read(&self, name: &str) -> Vec<u8> {
        read_all(&self.engine, path(name)).expect("it is there")
    }

    fn flush(&self, scope: &[PathBuf]) {
        let report = self.engine.drain.flush(scope, &Progress::default());
        assert!(report.failures.is_empty(), "{:?}", report.failures);
    }
}

/// The first look at the new file.
#[derive(Debug, Clone, Copy)]
enum First {
    Open,
    OpenByKey,
    Stat,
    Recall,
    Order,
}

impl First {
    fn look(self, bed: &Bed) {
        let Bed { engine, removed, .. } = bed;
        let name = path("d/g");
        match self {
            First::Open => drop(bed.open("d/g")),
            First::OpenByKey => {
                drop(engine.io.open_to_read(name, Some(removed.key)).expect("it is there"));
            }
            First::Stat => {
                assert_eq!(engine.verbs.stat(name).expect("it is there").size, THEIRS.len() as u64);
            }
            First::Recall => {
                let told = engine.verbs.foresee(name).expect("it is there");
                let known = engine.verbs.recall(name, &told);
                assert!(known.is_none_or(|attr| attr.size == THEIRS.len() as u64));
                drop(engine.verbs.stat(name));
            }
            First::Order => bed.flush(&[PathBuf::from("d")]),
        }
    }
}

// S-1 S-8
#[test]
fn a_file_that_others_made_shows_no_bytes_of_the_one_that_they_removed() {
    for first in [First::Open, First::OpenByKey, First::Stat, First::Recall, First::Order] {
        shows_what_it_is(first, MemStore::without_generations());
        shows_what_it_is(first, MemStore::of_seconds());
    }
}

fn shows_what_it_is(first: First, store: MemStore) {
    let bed = Bed::on(store);
    bed.reuse("d/g");
    first.look(&bed);
    assert_eq!(bed.engine.ops.status().conflicted_files, 1, "{first:?}");
    assert!(bed.read("d/g") == THEIRS, "{first:?}: {:?}", bed.read("d/g"));
    let file = bed.open("d/g");
    bed.engine.io.write(&file, 0, b"A").expect("room");
    bed.engine.drain.flush_file(&file).expect("it is nobody else's");
    assert!(file_of(&bed.store, "d/g") == b"Another file altogether", "{first:?}");
    assert_eq!(bed.engine.ops.status().dirty_files, 1, "{first:?}: the removed one");
    bed.engine.ops.resolve(path("f"), Keep::Ours).expect("all of it is here");
    assert!(file_of(&bed.store, "f") == OURS, "{first:?}");
    assert!(file_of(&bed.store, "d/g").starts_with(b"Another"), "{first:?}");
    assert_eq!(bed.engine.ops.status().conflicted_files, 0);
    drop(file);
    abandon(bed.engine);
}

// S-1 S-8
#[test]
fn a_death_leaves_both_files_what_they_are() {
    let bed = Bed::new();
    bed.reuse("g");
    bed.engine.io.write(&bed.open("g"), 0, b"A").expect("room");
    let media = CrashMedia::on(bed.media.snapshot().process_crash_image());
    let store = MemStore::on(bed.store.snapshot());
    abandon(bed.engine);
    let engine = serve(&media, &store);
    let status = engine.ops.status();
    assert_eq!((status.conflicted_files, status.dirty_files), (1, 2));
    assert!(read_all(&engine, path("g")).expect("it is there") == b"Another file altogether");
    engine.ops.resolve(path("f"), Keep::Both).expect("all of it is here");
    let report = engine.drain.flush(&[], &Progress::default());
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert!(file_of(&store, "g") == b"Another file altogether");
    assert!(file_of(&store, "f.forebay-ours-1") == OURS);
    abandon(engine);
}

/// The removed file was made through the mount: the journal of names has its key, which the other file has by now.
// S-1
#[test]
fn a_death_makes_no_file_of_the_journal_of_another() {
    let (media, store) = (CrashMedia::default(), MemStore::without_generations());
    let engine = serve(&media, &store);
    let (file, removed) = engine.verbs.create(path("f"), &NEW).expect("memory");
    engine.io.write(&file, 0, OURS).expect("room");
    drop(file);
    let bed = Bed { media, store, engine, removed };
    bed.reuse("g");
    bed.engine.io.write(&bed.open("g"), 0, b"A").expect("room");
    let media = CrashMedia::on(bed.media.snapshot().process_crash_image());
    let store = MemStore::on(bed.store.snapshot());
    abandon(bed.engine);
    let engine = serve(&media, &store);
    assert!(read_all(&engine, path("g")).expect("it is there") == b"Another file altogether");
    engine.drain.flush(&[], &Progress::default());
    assert!(file_of(&store, "g") == b"Another file altogether");
    abandon(engine);
}

// S-1
#[test]
fn clean_bytes_of_a_removed_file_are_let_go() {
    for is_open in [false, true] {
        let bed = Bed::new();
        let held = is_open.then(|| bed.open("f"));
        bed.flush(&[]);
        assert!(bed.engine.ops.status().clean_bytes > 0, "cached");
        bed.reuse("g");
        assert!(bed.read("g") == THEIRS);
        if let Some(held) = held {
            let mut now = [0; OURS.len()];
            bed.engine.io.read(&held, 0, &mut now).expect("it is open");
            assert!(now == OURS, "a program that has it open goes on");
        }
        bed.engine.ops.evict(&[], &Progress::default());
        let status = bed.engine.ops.status();
        assert_eq!((status.clean_bytes, status.conflicted_files), (0, 0), "{is_open}");
        abandon(bed.engine);
    }
}

/// Others give the file another name, and may write to it.
#[derive(Debug, Clone, Copy)]
enum Other {
    Link,
    Rename,
    LinkAndWrite,
}

// S-1 S-8
#[test]
fn a_file_that_others_linked_or_renamed_is_the_same() {
    for other in [Other::Link, Other::Rename, Other::LinkAndWrite] {
        let bed = Bed::new();
        let (f, g) = (path("f"), path("g"));
        match other {
            Other::Rename => bed.store.rename(f, g, RenameMode::NoReplace).expect("memory"),
            Other::Link | Other::LinkAndWrite => drop(bed.store.link(f, None, g).expect("memory")),
        }
        if matches!(other, Other::LinkAndWrite) {
            let theirs = bed.store.open(g, Access::ReadWrite).expect("memory");
            theirs.write_at(THEIRS, 0).expect("memory");
        }
        assert_eq!(bed.engine.verbs.stat(g).expect("it is there").size, OURS.len() as u64);
        assert!(bed.read("g") == OURS, "{other:?}");
        let report = bed.engine.drain.flush(&[], &Progress::default());
        assert_eq!(report.failures.len(), 1, "{other:?}: its version is another");
        assert_eq!(counter(&bed.engine, "conflicts"), 1, "{other:?}");
        bed.engine.ops.resolve(g, Keep::Ours).expect("nobody else writes");
        assert!(file_of(&bed.store, "g") == OURS, "{other:?}");
        abandon(bed.engine);
    }
}
