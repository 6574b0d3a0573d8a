//! Other programs move, link or replace a file on the store while bytes of it are dirty here.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_backing::wrap::{Call, Layer, Verb, Wrapped};
use forebay_backing::{Attr, BackingStore, Error, RenameMode, Result};
use forebay_engine::{Config, Engine, OpenFile, Progress};

use crate::media::CrashMedia;
use crate::start::{NEW, abandon, named, patient, read_all, start};
use crate::store::MemStore;

const OURS: &[u8] = b"acknowledged";
const THEIRS: &[u8] = b"theirs";

/// Counts the questions about names. A directory called `unreadable` cannot be listed.
#[derive(Default)]
struct Asked {
    stats: AtomicU64,
    lists: AtomicU64,
}

impl Layer for Asked {
    const PASSES_FD: bool = false;

    fn before(&self, call: &Call<'_>) -> Result<()> {
        match call.verb {
            Verb::Stat => drop(self.stats.fetch_add(1, Relaxed)),
            Verb::ReadDir => drop(self.lists.fetch_add(1, Relaxed)),
            _ => {}
        }
        match call.verb == Verb::ReadDir && call.paths[0].ends_with("unreadable") {
            true => Err(Error::os(libc::EIO, "it cannot be listed")),
            false => Ok(()),
        }
    }
}

struct Bed {
    store: MemStore,
    asked: Arc<Asked>,
    engine: Arc<Engine>,
}

impl Bed {
    /// Starts on a store with these directories, and `f` in the first of them.
    fn new(dirs: &[&str]) -> Bed {
        let store = MemStore::new();
        for dir in dirs {
            store.mkdir(Path::new(dir), &NEW).expect("no such name yet");
        }
        let asked = Arc::new(Asked::default());
        let layered = Wrapped::new(Arc::new(store.clone()), asked.clone());
        let media = Arc::new(CrashMedia::default());
        let engine = start(media, layered, "beside", Config::default(), patient()).expect("new");
        let bed = Bed { store, asked, engine };
        bed.put(&format!("{}/f", dirs[0]), THEIRS);
        bed
    }

    fn put(&self, path: &str, bytes: &[u8]) {
        let (file, _) = self.store.create(Path::new(path), &NEW).expect("no such name yet");
        file.write_at(bytes, 0).expect("memory");
    }

    fn open(&self, path: &str) -> OpenFile {
        self.engine.io.open(Path::new(path), None).expect("it is there")
    }

    fn write(&self, path: &str) -> Attr {
        self.engine.io.write(&self.open(path), 0, OURS).expect("room");
        self.engine.verbs.stat(Path::new(path)).expect("it is there")
    }

    fn link(&self, from: &str, to: &str) {
        self.store.link(Path::new(from), None, Path::new(to)).expect("no such name yet");
    }

    fn rename(&self, from: &str, to: &str) {
        self.store
            .rename(Path::new(from), Path::new(to), RenameMode::Replace)
            .expect("it is there");
    }

    fn replace_by(&self, from: &str, over: &str, attr: &Attr) -> Result<()> {
        let (from, over) = (Path::new(from), Path::new(over));
        let moved = self.engine.verbs.stat(from)?;
        let goes = Some(named(over, attr));
        self.engine.verbs.rename(named(from, &moved), over, goes, RenameMode::Replace)
    }

    /// Flushes the files at or below the path, without a failure. Returns their number.
    fn flush(&self, path: &str) -> u64 {
        let report = self.engine.drain.flush(&[PathBuf::from(path)], &Progress::default());
        assert!(report.failures.is_empty(), "{path}: {report:?}");
        report.files
    }

    /// Returns the content of a file on the store.
    fn there(&self, path: &str) -> Option<Vec<u8>> {
        self.store.snapshot().files().remove(Path::new(path))
    }

    /// Returns the number of questions about names since the last call.
    fn asked(&self) -> [u64; 2] {
        [&self.asked.stats, &self.asked.lists].map(|count| count.swap(0, Relaxed))
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        abandon(self.engine.clone());
    }
}

/// Another program has rotated the file away. Method: its name is to go in each way, whether or not
/// another file has it by then.
// S-7
#[test]
fn a_name_that_is_another_files_by_now_takes_no_dirty_bytes_along() {
    let ways: [fn(&Bed, &Attr) -> Result<()>; 2] = [
        |bed, attr| bed.engine.verbs.unlink(named(Path::new("d/f"), attr)),
        |bed, attr| bed.replace_by("d/n", "d/f", attr),
    ];
    for (way, replaced) in ways.into_iter().flat_map(|way| [(way, true), (way, false)]) {
        let bed = Bed::new(&["d"]);
        bed.put("d/n", b"new");
        let attr = bed.write("d/f");
        bed.rename("d/f", "d/f.1");
        if replaced {
            bed.put("d/f", THEIRS);
        }
        let error = way(&bed, &attr).expect_err("it is not that file's name");
        assert!(error.is(libc::ESTALE), "{error}");
        assert_eq!(bed.there("d/f"), replaced.then(|| THEIRS.to_vec()));
        assert!(bed.there("d/n").is_some(), "nothing was renamed");
        assert_eq!(read_all(&bed.engine, Path::new("d/f.1")).expect("it is there"), OURS);
        assert_eq!(bed.engine.ops.status().dirty_files, 1);
    }
}

// S-7
#[test]
fn what_is_written_to_an_open_file_after_others_have_moved_it_is_kept() {
    let bed = Bed::new(&["d"]);
    let file = bed.open("d/f");
    let attr = bed.engine.verbs.stat_open(&file);
    bed.rename("d/f", "d/f.1");
    bed.put("d/f", THEIRS);
    let error = bed.engine.verbs.unlink(named(Path::new("d/f"), &attr)).expect_err("not its name");
    assert!(error.is(libc::ESTALE), "{error}");
    bed.engine.io.write(&file, 0, OURS).expect("room");
    drop(file);
    assert_eq!(read_all(&bed.engine, Path::new("d/f.1")).expect("it is there"), OURS);
    assert_eq!(bed.engine.ops.status().dirty_files, 1);
}

/// The file's first name does not exist any more, and is not the one that goes.
// S-7
#[test]
fn an_open_file_stays_readable_without_a_name_whatever_became_of_another() {
    let bed = Bed::new(&["d"]);
    bed.link("d/f", "d/g");
    let (file, attr) = (bed.open("d/g"), bed.store.stat(Path::new("d/f")).expect("it is there"));
    bed.rename("d/g", "d/h");
    bed.engine.verbs.unlink(named(Path::new("d/f"), &attr)).expect("it is its name");
    let mut bytes = [0; THEIRS.len()];
    bed.engine.io.read(&file, 0, &mut bytes).expect("it is open");
    assert_eq!(bytes, THEIRS);
    drop(file);
}

// S-5
#[test]
fn a_flush_of_one_name_brings_home_what_was_written_by_another() {
    for scope in ["e/g", "e"] {
        let bed = Bed::new(&["d", "e"]);
        bed.link("d/f", "e/g");
        bed.write("d/f");
        assert_eq!(bed.flush(scope), 1, "{scope}");
        assert_eq!(bed.there("e/g").as_deref(), Some(OURS));
    }
}

/// Others have linked or moved the file; its new name is given, and the directory of it.
// S-5
#[test]
fn a_named_file_is_listed_and_purged_by_a_name_that_only_the_store_knows() {
    let ways: [fn(&Bed); 2] = [|bed| bed.link("d/f", "e/g"), |bed| bed.rename("d/f", "e/g")];
    for way in ways {
        let bed = Bed::new(&["d", "e"]);
        let (scope, ops) = ([PathBuf::from("e/g")], &bed.engine.ops);
        bed.write("d/f");
        way(&bed);
        let list = |path| ops.list(path).expect("no lock is held").len();
        assert_eq!(list(Path::new("e")), 0, "what is below a directory is taken as known");
        assert_eq!(list(&scope[0]), 1);
        assert_eq!(ops.purge(&scope).files, 1);
        assert_eq!(ops.status().dirty_files, 0);
        assert_eq!(bed.there("e/g").as_deref(), Some(THEIRS), "nothing was flushed");
    }
}

/// The file was cached by another name, and no open has told of the new one.
// S-5
#[test]
fn a_file_is_evicted_by_a_name_that_only_the_store_knows() {
    let bed = Bed::new(&["d", "e"]);
    bed.write("d/f");
    bed.flush("d/f");
    bed.link("d/f", "e/g");
    let evicted = bed.engine.ops.evict(&[PathBuf::from("e/g")], &Progress::default());
    assert_eq!((evicted.files, evicted.failures.len()), (1, 0), "{evicted:?}");
}

// S-5
#[test]
fn a_flush_of_a_new_name_finds_the_file_that_had_it_given_by_us() {
    let bed = Bed::new(&["d"]);
    let attr = bed.store.stat(Path::new("d/f")).expect("it is there");
    bed.engine.verbs.link(named(Path::new("d/f"), &attr), Path::new("d/g")).expect("it is free");
    bed.write("d/g");
    assert_eq!(bed.flush("d/f"), 1);
    assert_eq!(bed.there("d/f").as_deref(), Some(OURS));
}

// S-5
#[test]
fn a_flush_finds_what_is_in_a_directory_that_others_have_moved() {
    for scope in ["e/f", "e"] {
        let bed = Bed::new(&["d"]);
        bed.write("d/f");
        bed.rename("d", "e");
        assert_eq!(bed.flush(scope), 1, "{scope}");
        assert_eq!(bed.there("e/f").as_deref(), Some(OURS));
    }
}

/// A file that cannot be looked for counts as being in the scope.
// S-5
#[test]
fn a_flush_of_what_cannot_be_listed_leaves_out_nothing_that_might_be_in_it() {
    let bed = Bed::new(&["d", "e", "e/unreadable"]);
    bed.link("d/f", "e/unreadable/g");
    bed.put("d/n", THEIRS);
    bed.write("d/f");
    bed.write("d/n");
    assert_eq!(bed.flush("e"), 1, "all names of the other one are known");
    assert_eq!(bed.there("e/unreadable/g").as_deref(), Some(OURS));
    assert_eq!(bed.engine.ops.status().dirty_files, 1);
}

/// Method: `e` has 20 directories; a search there costs as many questions as files are dirty
/// outside, unless one of these has an unknown name.
// S-5
#[test]
fn a_flush_asks_for_names_only_while_something_dirty_might_have_others() {
    let below: Vec<String> = (0..20).map(|n| format!("e/{n}")).collect();
    let dirs = ["d", "e"].into_iter().chain(below.iter().map(String::as_str));
    let bed = Bed::new(&dirs.collect::<Vec<_>>());
    bed.put("d/n", THEIRS);
    bed.put("e/7/n", THEIRS);
    bed.link("d/f", "e/0/g");
    bed.write("e/7/n");
    bed.asked();
    assert_eq!(bed.flush("e"), 1);
    let [_, lists] = bed.asked();
    assert_eq!(lists, 0, "all that is dirty is known to be there");
    bed.write("d/n");
    bed.asked();
    assert_eq!(bed.flush("e"), 0);
    let [stats, lists] = bed.asked();
    assert!((stats, lists) == (2, 1), "{stats} and {lists}: its one name is known");
    bed.write("d/f");
    assert_eq!(bed.flush("e"), 1);
    assert_eq!(bed.there("e/0/g").as_deref(), Some(OURS));
}
