//! Files on a tier in memory that programs may have mapped past the daemon: a store into a mapping
//! moves no time there.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay_backing::wrap::Verb;
use forebay_backing::{Access, BackingStore};
use forebay_engine::media::DirMedia;
use forebay_engine::{Config, Engine, KeepDirty, OpenFile, Past, Progress};

use crate::content::{BLOCK, BOOT, bytes, with};
use crate::hook::Hook;
use crate::losses::file_of;
use crate::past_us::shadow_of;
use crate::start::{NEW, counter, patient, read_all, start};
use crate::store::MemStore;

/// A tier in memory, with a file that a program has open past the daemon, and may map.
struct InMemory {
    dir: PathBuf,
    store: MemStore,
    hook: Arc<Hook>,
    engine: Arc<Engine>,
    file: OpenFile,
    past: Past,
}

impl InMemory {
    fn begin(name: &str) -> Option<InMemory> {
        let place = Path::new("/dev/shm");
        if !place.is_dir() {
            println!("SKIPPED: no file system in memory");
            return None;
        }
        let dir = place.join(format!("forebay-content-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("room");
        let store = MemStore::new();
        let (theirs, _) = store.create(Path::new("f"), &NEW).expect("memory");
        theirs.write_at(&bytes(10), 0).expect("memory");
        let config = Config { digests_from: 1, ..Config::default() };
        let media = Arc::new(DirMedia::open(&dir).expect("it is there"));
        let (hooked, hook) = Hook::on(store.clone());
        let engine = start(media, hooked, BOOT, config, patient()).expect("new");
        read_all(&engine, Path::new("f")).expect("it is there");
        let file = engine.io.open(Path::new("f"), None).expect("it is there");
        assert!(engine.passed.make_ready(&file).expect("memory"));
        let past = engine.passed.write_ready(&file, true).expect("room").expect("ready");
        Some(InMemory { dir, store, hook, engine, file, past })
    }
}

/// A mapping is stored to after the file was closed and looked at; on a tier in memory that moves no time.
// S-2 S-12
#[test]
fn what_a_mapping_stores_after_a_look_is_found_on_a_tier_in_memory() {
    let Some(InMemory { dir, store, engine, file, past, .. }) = InMemory::begin("stored") else {
        return;
    };
    let mut mapping = Mapping::of(&shadow_of(&dir), 10 * BLOCK);
    mapping.store(7, b'1');
    past.end().expect("a tier that works");
    engine.drain.flush_file(&file).expect("a store that works");
    assert_eq!(file_of(&store, "f")[7], b'1', "looked at while it is mapped");
    assert_eq!(engine.ops.status().dirty_files, 1, "it may go on");
    mapping.store(7, b'2');
    drop(mapping);
    drop(file);
    let report = engine.ops.shutdown(KeepDirty::No, &Progress::default(), None);
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert!(file_of(&store, "f") == with(bytes(10), 7, b'2'));
    std::fs::remove_dir_all(&dir).expect("ours");
}

/// On such a tier nothing proves that a mapping was not written. Changes by others are compared
/// before the next program has the file.
// S-1
#[test]
fn what_others_change_is_seen_though_it_may_have_been_mapped_in_memory() {
    let Some(InMemory { dir, store, engine, file, past, .. }) = InMemory::begin("open") else {
        return;
    };
    let theirs = store.open(Path::new("f"), Access::ReadWrite).expect("it is there");
    past.end().expect("a tier that works");
    drop(file);
    assert_eq!(engine.ops.status().dirty_files, 1, "nobody has looked");
    theirs.write_at(b"theirs", 0).expect("memory");
    assert!(read_all(&engine, Path::new("f")).expect("it is there").starts_with(b"theirs"));
    assert_eq!((counter(&engine, "conflicts"), engine.ops.status().dirty_files), (0, 0));
    drop(engine);
    std::fs::remove_dir_all(&dir).expect("ours");
}

/// The same holds while a program has the file open, and if others write during a look that finds
/// nothing: their time is not set back.
// S-1 S-8
#[test]
fn what_others_change_during_a_look_that_finds_nothing_is_theirs() {
    for is_open in [true, false] {
        let Some(InMemory { dir, store, hook, engine, file, past }) = InMemory::begin("look")
        else {
            return;
        };
        let theirs = store.open(Path::new("f"), Access::ReadWrite).expect("it is there");
        let past = if is_open { Some(past) } else { past.end().map(|()| None).expect("it works") };
        let came = AtomicBool::new(is_open);
        if is_open {
            theirs.write_at(b"theirs", 0).expect("memory");
        }
        let other = theirs.clone();
        hook.set(move |call| {
            if call.verb == Verb::SyncFiles && !came.swap(true, Relaxed) {
                other.write_at(b"theirs", 0).expect("memory");
            }
        });
        engine.drain.flush_file(&file).expect("nobody wrote here");
        let time = theirs.stat().expect("memory").mtime;
        drop((past, file));
        let seen = read_all(&engine, Path::new("f")).expect("it is there");
        assert!(seen.starts_with(b"theirs"), "open: {is_open}");
        assert_eq!(theirs.stat().expect("memory").mtime, time, "open: {is_open}");
        assert_eq!(counter(&engine, "conflicts"), 0, "open: {is_open}");
        drop(engine);
        std::fs::remove_dir_all(&dir).expect("ours");
    }
}

/// The same if the file was open past the daemon before, and nothing has looked at it since.
// S-8
#[test]
fn a_second_writer_who_writes_nothing_is_in_no_conflict_with_others() {
    for writes in [false, true] {
        let Some(InMemory { dir, store, engine, file, past, .. }) = InMemory::begin("second")
        else {
            return;
        };
        past.end().expect("a tier that works");
        let past = engine.passed.write(&file, false).expect("room").expect("complete");
        if writes {
            past.shadow().write_at(b"ours", 5 * BLOCK as u64).expect("room");
        }
        let theirs = store.open(Path::new("f"), Access::ReadWrite).expect("it is there");
        theirs.write_at(b"theirs", 0).expect("memory");
        let flushed = engine.drain.flush_file(&file);
        let count = u64::from(writes);
        assert_eq!((flushed.is_err(), counter(&engine, "conflicts")), (writes, count), "{writes}");
        assert!(file_of(&store, "f").starts_with(b"theirs"), "{writes}");
        drop((past, file));
        drop(engine);
        std::fs::remove_dir_all(&dir).expect("ours");
    }
}

/// A flush that finds others' change and nothing of ours says nothing of what a mapping stores after it; nor does
/// an open beside it.
// S-1 S-5 S-8
#[test]
fn what_a_mapping_stores_after_others_changed_the_file_is_a_conflict_and_what_it_does_not_is_none()
{
    for stores in [false, true] {
        let Some(InMemory { dir, store, engine, file, past, .. }) = InMemory::begin("late") else {
            return;
        };
        let mut mapping = Mapping::of(&shadow_of(&dir), 10 * BLOCK);
        let theirs = store.open(Path::new("f"), Access::ReadWrite).expect("it is there");
        theirs.write_at(b"theirs", 0).expect("memory");
        drop(engine.io.open(Path::new("f"), None).expect("it is there"));
        assert_eq!(counter(&engine, "conflicts"), 0, "at the open");
        engine.drain.flush_file(&file).expect("nobody wrote here");
        if stores {
            mapping.store(5 * BLOCK, b'1');
        }
        let flushed = engine.drain.flush_file(&file);
        let count = u64::from(stores);
        assert_eq!((flushed.is_err(), counter(&engine, "conflicts")), (stores, count), "{stores}");
        drop((mapping, past, file));
        let seen = read_all(&engine, Path::new("f")).expect("it is there");
        assert_eq!(seen.starts_with(b"theirs"), !stores);
        drop(engine);
        std::fs::remove_dir_all(&dir).expect("ours");
    }
}

/// A shared mapping of a file.
struct Mapping(*mut u8, usize);

impl Mapping {
    fn of(path: &Path, len: usize) -> Mapping {
        use std::os::fd::AsRawFd;
        let file = std::fs::OpenOptions::new().read(true).write(true).open(path).expect("there");
        let (prot, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping of an open file, as long as the file.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), len, prot, shared, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Mapping(at.cast(), len)
    }

    fn store(&mut self, at: usize, byte: u8) {
        assert!(at < self.1);
        // SAFETY: within the mapping.
        unsafe { self.0.add(at).write_volatile(byte) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by mmap, and not used any more.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}
