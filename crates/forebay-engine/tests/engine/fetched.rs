//! Bytes that were fetched, and are not in the tier yet.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use forebay_backing::{Access, BackingStore};
use forebay_engine::{Admission, Allocate, Cached, Came};
use forebay_engine::{Config, Engine, File, OpenFile, Progress, Tunables};

use crate::media::CrashMedia;
use crate::rng::Rng;
use crate::start::{NEW, PATIENCE, abandon, patient, start, within};
use crate::store::MemStore;

const KIB: usize = 1 << 10;
const LEN: usize = 256 * KIB;

/// An engine whose first fill has come from the store, and waits before it is put into the tier.
struct Stopped {
    engine: Arc<Engine>,
    store: Arc<MemStore>,
    file: OpenFile,
    /// The store's content.
    bytes: Vec<u8>,
    reader: JoinHandle<Vec<u8>>,
    go: mpsc::Sender<()>,
}

fn read(engine: &Arc<Engine>, file: &Arc<File>) -> Vec<u8> {
    read_at(engine, file, 0)
}

fn read_at(engine: &Arc<Engine>, file: &Arc<File>, at: u64) -> Vec<u8> {
    let mut buf = vec![0; LEN];
    let n = engine.io.read(file, at, &mut buf).expect("a good store");
    buf.truncate(n);
    buf
}

fn stopped(name: &str) -> Stopped {
    stopped_at(name, LEN, 0)
}

/// A store with a file of `len` bytes, and what is in it.
fn stored(len: usize) -> (Arc<MemStore>, Vec<u8>) {
    let store = Arc::new(MemStore::new());
    let mut rng = Rng::new(7);
    let bytes: Vec<u8> = (0..len / 8).flat_map(|_| rng.next().to_le_bytes()).collect();
    let before = start(
        Arc::new(CrashMedia::default()),
        store.clone(),
        "before",
        Config::default(),
        patient(),
    );
    let before = before.expect("new");
    let (file, _) = before.verbs.create(Path::new("f"), &NEW).expect("an empty store");
    before.io.write(&file, 0, &bytes).expect("room");
    assert_eq!(before.drain.flush(&[], &Progress::default()).failures.len(), 0);
    drop(file);
    abandon(before);
    (store, bytes)
}

/// Makes a file of `len` bytes, of which [`LEN`] are read `at` an offset.
fn stopped_at(name: &str, len: usize, at: u64) -> Stopped {
    let (store, bytes) = stored(len);
    let media = CrashMedia::default();
    let tunables = Tunables { readahead: 0, ..patient() };
    let engine = start(Arc::new(media.clone()), store.clone(), name, Config::default(), tunables);
    let engine = engine.expect("new");
    let file = engine.io.open(Path::new("f"), None).expect("it is there");
    let ((landing, lands), (go, goes)) = (mpsc::channel(), mpsc::channel());
    let (first, goes) = (AtomicBool::new(true), Mutex::new(goes));
    media.at_shadow_write(move |_| {
        if first.swap(false, Relaxed) {
            landing.send(()).expect("the test waits");
            goes.lock().expect("one waits").recv().expect("the test says so");
        }
    });
    let reader = {
        let (engine, file) = (engine.clone(), file.clone());
        spawn(move || read_at(&engine, &file, at))
    };
    lands.recv_timeout(PATIENCE).expect("what was fetched is put into the tier");
    Stopped { engine, store, file, bytes, reader, go }
}

impl Stopped {
    fn beside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Arc<Engine>, &Arc<File>) -> T + Send + 'static,
    ) -> mpsc::Receiver<T> {
        let (engine, file) = (self.engine.clone(), self.file.clone());
        let (done, end) = mpsc::channel();
        spawn(move || done.send(work(&engine, &file)));
        end
    }

    /// Returns the file's content on the store once all has ended.
    fn end(self) -> Vec<u8> {
        drop(self.file);
        assert_eq!(self.engine.drain.flush(&[], &Progress::default()).failures.len(), 0);
        abandon(self.engine);
        self.store.snapshot().files().remove(Path::new("f")).expect("it is there")
    }
}

/// A fetched range reaches the tier without delaying the readers that wait for it.
#[test]
fn a_waiting_reader_has_a_range_before_the_tier_has_it() {
    let stopped = stopped("early");
    let end = stopped.beside(read);
    assert!(end.recv_timeout(PATIENCE).expect("it does not wait for the tier") == stopped.bytes);
    assert!(!stopped.reader.is_finished(), "it was not stopped");
    assert_eq!(stopped.engine.ops.stats().counters["fills"], 1);
    stopped.go.send(()).expect("it waits");
    let bytes = stopped.bytes.clone();
    assert!(stopped.end() == bytes);
}

/// Without this wait fetched bytes would overwrite those that were written since.
// S-2
#[test]
fn a_write_waits_for_fetched_bytes_that_are_put_there() {
    let stopped = stopped("writes");
    let at = LEN - 10 * KIB;
    let end = stopped.beside(move |engine, file| engine.io.write(file, at as u64, &[9; KIB]));
    let early = end.recv_timeout(Duration::from_millis(200));
    assert!(early.is_err(), "the write did not wait");
    stopped.go.send(()).expect("it waits");
    end.recv_timeout(PATIENCE).expect("it goes on").expect("room");
    let mut want = stopped.bytes.clone();
    want[at..at + KIB].fill(9);
    assert!(read(&stopped.engine, &stopped.file) == want);
    assert!(stopped.end() == want);
}

/// Without this wait bytes behind the new end would show when the file grows.
// S-2
#[test]
fn a_cut_waits_for_fetched_bytes_that_are_put_there() {
    let stopped = stopped("cuts");
    let end = stopped.beside(|engine, file| {
        engine.io.set_len(file, KIB as u64)?;
        engine.io.set_len(file, LEN as u64)
    });
    let early = end.recv_timeout(Duration::from_millis(200));
    assert!(early.is_err(), "the cut did not wait");
    stopped.go.send(()).expect("it waits");
    end.recv_timeout(PATIENCE).expect("it goes on").expect("room");
    let mut want = stopped.bytes.clone();
    want[KIB..].fill(0);
    assert!(read(&stopped.engine, &stopped.file) == want);
    assert!(stopped.end() == want);
}

/// Others have made the file shorter, and an open has seen that, while bytes that were fetched
/// before are put into the tier: those behind the new end must not show when the file grows.
// S-1 S-2
#[test]
fn what_lands_behind_an_end_that_others_have_moved_is_cut_off() {
    for grows in [Grows::ByWrite, Grows::ByLength] {
        let stopped = stopped("moved");
        let short = 64 * KIB;
        let theirs = stopped.store.open(Path::new("f"), Access::ReadWrite).expect("it is there");
        theirs.set_len(short as u64).expect("memory");
        let seen = stopped.engine.io.open(Path::new("f"), None).expect("it is there");
        assert_eq!(stopped.engine.verbs.stat_open(&seen).size, short as u64, "the open compares");
        drop(seen);
        let at = LEN - 10 * KIB;
        let end = stopped.beside(move |engine, file| match grows {
            Grows::ByWrite => engine.io.write(file, at as u64, &[9; 10 * KIB]).map(|_| ()),
            Grows::ByLength => engine.io.set_len(file, LEN as u64).map(|_| ()),
        });
        let early = end.recv_timeout(Duration::from_millis(200));
        assert!(early.is_err(), "who makes it grow did not wait");
        stopped.go.send(()).expect("it waits");
        end.recv_timeout(PATIENCE).expect("it goes on").expect("room");
        let mut want = stopped.bytes.clone();
        want[short..].fill(0);
        if let Grows::ByWrite = grows {
            want[at..].fill(9);
        }
        assert!(read(&stopped.engine, &stopped.file) == want);
        assert!(stopped.end() == want);
    }
}

#[derive(Clone, Copy)]
enum Grows {
    ByWrite,
    ByLength,
}

/// A write past the daemon would not wait for bytes that are put behind the end, so no program may
/// write so before.
// S-1 S-2
#[test]
fn nobody_goes_past_the_daemon_where_fetched_bytes_are_put() {
    const MIB: usize = KIB * KIB;
    let stopped = stopped_at("past", 2 * MIB, MIB as u64);
    let theirs = stopped.store.open(Path::new("f"), Access::ReadWrite).expect("it is there");
    theirs.set_len(LEN as u64).expect("memory");
    drop(stopped.engine.io.open(Path::new("f"), None).expect("it is there"));
    let (engine, file) = (stopped.engine.clone(), stopped.file.clone());
    assert!(read(&engine, &file) == stopped.bytes[..LEN]);
    assert_eq!(engine.ops.status().clean_bytes, LEN as u64, "all of it is here");
    assert!(engine.passed.write(&file, false).expect("a good tier").is_none());
    assert!(engine.passed.read(&file).expect("a good tier").is_none());
    stopped.go.send(()).expect("it waits");
    within("it has landed", || engine.passed.write(&file, false).expect("a good tier").is_some());
    drop((engine, file));
    let bytes = stopped.bytes.clone();
    assert!(stopped.end() == bytes[..LEN]);
}

/// With one worker each piece would find room, since earlier pieces of the same file make it.
// S-9
#[test]
fn a_file_larger_than_the_tier_is_said_not_to_fit() {
    const MIB: u64 = 1 << 20;
    let store = Arc::new(MemStore::new());
    let (large, _) = store.create(Path::new("large"), &NEW).expect("an empty store");
    let piece = [7; MIB as usize];
    (0..24).for_each(|i| large.write_at(&piece, i * MIB).expect("room"));
    let tunables = Tunables { fill_depth: 1, tier_size: Some(16 * MIB), ..patient() };
    let media = Arc::new(CrashMedia::default());
    let engine = start(media, store, "larger", Config::default(), tunables).expect("new");
    let report = engine.ops.pin(&["large".into()], &Progress::default());
    let [failure] = &report.failures[..] else { panic!("one failure: {report:?}") };
    let both = "24.0 MiB do not fit into the fast tier, which has 16.0 MiB";
    assert!(failure.error.contains(both), "{failure:?}");
    assert_eq!(engine.ops.status().used_bytes, 0, "nothing was fetched to find that out");
    assert_eq!((report.files, engine.ops.status().pinned_files), (0, 0));
    abandon(engine);
}

/// A read without the store returns bytes of the tier only if it has the whole range, and appends
/// them to the buffer.
#[test]
fn a_partly_cached_range_is_not_appended_to_the_buffer() {
    let stopped = stopped_at("onto", 4 * LEN, 0);
    stopped.go.send(()).expect("it waits for that");
    let Stopped { engine, file, bytes, reader, .. } = stopped;
    reader.join().expect("no panic inside");
    let read = |offset: usize, len| {
        let (mut out, admission) = (b"head".to_vec(), Admission::default());
        let read = engine.io.read_cached_onto(&admission, &file, (offset as u64, len), &mut out)?;
        assert_eq!(out.len() - 4, read.expect("a good tier"));
        Some(out)
    };
    let with_head = |part: &[u8]| Some([b"head", part].concat());
    assert!(read(10, 1000) == with_head(&bytes[10..1010]));
    assert_eq!(read(2 * LEN, 2 * LEN), None, "it is on the store");
    assert_eq!(read(10, 4 * LEN), None, "some of it is");
    assert_eq!(read(4 * LEN, 100), with_head(&[]), "there it ends");
    engine.io.write(&file, 4 * LEN as u64 - 10, &[7; 20]).expect("room");
    assert_eq!(read(4 * LEN, 100), with_head(&[7; 10]));
    drop(file);
    abandon(engine);
}

const MIB: usize = 1 << 20;

/// An engine that has fetched a file ahead of a reader, who has read two of its four megabytes: the window is twice that.
fn ahead(name: &str) -> (Arc<Engine>, Arc<MemStore>, OpenFile, Vec<u8>) {
    let (store, bytes) = stored(4 * MIB);
    let media = Arc::new(CrashMedia::default());
    let tunables = Tunables { readahead: 4 * MIB as u64, ..patient() };
    let engine = start(media, store.clone(), name, Config::default(), tunables).expect("new");
    let file = engine.io.open(Path::new("f"), None).expect("it is there");
    for at in (0..2 * MIB).step_by(LEN) {
        assert!(read_at(&engine, &file, at as u64) == bytes[at..at + LEN]);
    }
    within("all of it is fetched", || engine.verbs.facts(&file).complete);
    (engine, store, file, bytes)
}

/// Returns bytes of the tier, and the number of parts in which they came if they are still in their buffers.
fn cached(engine: &Arc<Engine>, file: &Arc<File>, at: usize, len: usize) -> (Vec<u8>, usize) {
    let (mut buf, admission) = (vec![0; len], Admission::default());
    let read = engine.io.read_cached(&admission, file, at as u64, &mut buf);
    match read.expect("it is in the tier").expect("a good tier") {
        Cached::Here(n) => (buf[..n].to_vec(), 0),
        Cached::Came(parts) => (parts.iter().flat_map(Came::bytes).copied().collect(), parts.len()),
    }
}

#[test]
fn a_follower_gets_bytes_once_in_the_buffers_that_they_came_in() {
    let (engine, _, file, bytes) = ahead("follows");
    for (at, parts) in [(MIB, 1), (2 * MIB + MIB / 2, 2), (MIB, 0), (3 * MIB + MIB / 2, 1)] {
        let (read, came) = cached(&engine, &file, at, MIB);
        assert!(read == bytes[at..bytes.len().min(at + MIB)], "at {at}");
        assert_eq!(came, parts, "at {at}");
    }
    drop(file);
    abandon(engine);
}

/// The buffers of fetched bytes are not the file: what was changed since is read from the tier.
// S-1
#[test]
fn what_was_changed_since_it_was_fetched_is_not_read_from_the_buffer_that_it_came_in() {
    type Step = fn(&Arc<Engine>, &Arc<MemStore>, &Arc<File>, &mut [u8]);
    let steps: [(&str, Step); 4] = [
        ("written", |engine, _, file, bytes| {
            engine.io.write(file, 2 * MIB as u64 + 10, b"newer").expect("room");
            bytes[2 * MIB + 10..][..5].copy_from_slice(b"newer");
        }),
        ("cut", |engine, _, file, bytes| {
            engine.io.set_len(file, 2 * MIB as u64).expect("it may be cut");
            engine.io.set_len(file, 4 * MIB as u64).expect("it may grow");
            bytes[2 * MIB..].fill(0);
        }),
        ("zeroed", |engine, _, file, bytes| {
            let zero = Allocate::Zero;
            engine.io.allocate(file, zero, 2 * MIB as u64, LEN as u64).expect("room");
            bytes[2 * MIB..][..LEN].fill(0);
        }),
        ("changed by others", |engine, store, file, bytes| {
            let theirs = store.open(Path::new("f"), Access::ReadWrite).expect("it is there");
            theirs.write_at(b"theirs", 2 * MIB as u64).expect("a good store");
            bytes[2 * MIB..][..6].copy_from_slice(b"theirs");
            drop(engine.io.open(Path::new("f"), None).expect("it is there"));
            let mut buf = vec![0; 4 * MIB];
            engine.io.read(file, 0, &mut buf).expect("a good store");
        }),
    ];
    for (what, step) in steps {
        let (engine, store, file, mut bytes) = ahead("changed");
        step(&engine, &store, &file, &mut bytes);
        let (read, _) = cached(&engine, &file, 2 * MIB, LEN);
        assert!(read == bytes[2 * MIB..][..LEN], "{what}");
        drop(file);
        abandon(engine);
    }
}
