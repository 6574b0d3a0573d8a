//! Reading around the tier while others write around it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use forebay_backing::Result;
use forebay_backing::wrap::{Call, Layer, Verb, Wrapped};
use forebay_engine::{Admission, Admit, Allocate, Config, Engine, File, Tunables, WritePolicy};

use crate::hook::Hook;
use crate::media::CrashMedia;
use crate::start::{NEW, abandon, start};
use crate::store::MemStore;

const BLOCK: usize = 4096;

// S-1 S-14
#[test]
fn a_read_around_is_not_disturbed_by_writes_around_of_other_ranges() {
    let store = MemStore::new();
    let (backing, hook) = Hook::on(store);
    // The tier has no room for a byte: all reads go around it.
    let tunables =
        Tunables { policy: WritePolicy::WriteAround, tier_size: Some(1), ..Tunables::default() };
    let media = Arc::new(CrashMedia::default());
    let engine = start(media, backing, "around", Config::default(), tunables).expect("a new tier");
    let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("no such file yet");
    engine.io.write(&file, 0, &[b'A'; 2 * BLOCK]).expect("a store that works");
    let (writer, target) = (engine.clone(), file.clone());
    let reads = Arc::new(AtomicU64::new(0));
    let seen = reads.clone();
    hook.set(move |call| {
        if call.verb == Verb::ReadAt {
            seen.fetch_add(1, Relaxed);
            writer.io.write(&target, BLOCK as u64, &[b'B'; BLOCK]).expect("a store that works");
        }
    });
    let mut buf = [0; BLOCK];
    for _ in 0..20 {
        assert_eq!(engine.io.read(&file, 0, &mut buf).expect("no error of anybody"), BLOCK);
        assert_eq!(buf, [b'A'; BLOCK]);
    }
    assert_eq!(reads.load(Relaxed), 20, "each at the first try");
    hook.set(|_| {});
    drop(file);
    abandon(engine);
}

/// The shadow is as long as the file was when it was opened; the file's later growth is a hole.
// S-1 S-14
#[test]
fn what_grew_around_the_tier_reads_as_zeros() {
    let tunables = Tunables { policy: WritePolicy::WriteAround, ..Tunables::default() };
    let (media, store) = (Arc::new(CrashMedia::default()), Arc::new(MemStore::new()));
    let engine = start(media, store, "grew", Config::default(), tunables).expect("a new tier");
    let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("no such file yet");
    engine.io.write(&file, 0, &[b'A'; BLOCK]).expect("a store that works");
    let mut buf = vec![1; 100 * BLOCK];
    assert_eq!(engine.io.read(&file, 0, &mut buf).expect("it is there"), BLOCK);
    engine.io.set_len(&file, 100 * BLOCK as u64).expect("a store that works");
    for turn in ["fetched", "from the tier"] {
        buf.fill(1);
        assert_eq!(engine.io.read(&file, 0, &mut buf).expect(turn), buf.len());
        assert!(buf[..BLOCK] == [b'A'; BLOCK] && buf[BLOCK..].iter().all(|byte| *byte == 0));
    }
    assert_eq!(engine.ops.stats().counters["tier_errors"], 0);
    // A hole made in the tier, beyond the end of the shadow.
    engine.ops.evict(&[], &Default::default());
    engine.io.set_len(&file, 200 * BLOCK as u64).expect("a store that works");
    let back = Tunables { policy: WritePolicy::WriteBack, ..engine.files.tunables() };
    engine.ops.set_tunables(back).expect("valid");
    engine.io.allocate(&file, Allocate::Zero, 150 * BLOCK as u64, 50 * BLOCK as u64).expect("room");
    assert_eq!(engine.io.read(&file, 190 * BLOCK as u64, &mut buf[..BLOCK]).expect("zeros"), BLOCK);
    drop(file);
    abandon(engine);
}

type Change = fn(&Engine, &Arc<File>);

/// Asks for another change while a change of the file is on its way to the store around the tier.
/// Returns the file's content afterwards.
fn beside(change: Change, verb: Verb, other: Change) -> Vec<u8> {
    beside_of(change, verb, other).0
}

/// Also returns up to where the store was asked for zeros.
fn beside_of(change: Change, verb: Verb, other: Change) -> (Vec<u8>, u64) {
    let store = MemStore::new();
    let (backing, hook) = Hook::on(store.clone());
    let tunables = Tunables { policy: WritePolicy::WriteAround, ..Tunables::default() };
    let media = Arc::new(CrashMedia::default());
    let engine = start(media, backing, "beside", Config::default(), tunables).expect("a new tier");
    let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("no such file yet");
    engine.io.write(&file, 0, b"old text").expect("a store that works");
    let (asks, target, mut came) = (engine.clone(), file.clone(), None);
    let others = Arc::new(Mutex::new(None));
    let begun = others.clone();
    hook.set(move |call| {
        if call.verb != verb || came.replace(()).is_some() {
            return;
        }
        let (engine, file) = (asks.clone(), target.clone());
        let thread = thread::spawn(move || other(&engine, &file));
        // The other change gets as far as it can: it may wait for the one under way.
        let began = Instant::now();
        while !thread.is_finished() && began.elapsed() < Duration::from_millis(300) {
            thread::sleep(Duration::from_millis(1));
        }
        *begun.lock().expect("no panic inside") = Some(thread);
    });
    change(&engine, &file);
    let thread = others.lock().expect("no panic inside").take().expect("they met");
    thread.join().expect("no error of anybody");
    hook.set(|_| {});
    let size = engine.verbs.facts(&file).size;
    let stored = store.snapshot();
    let bytes = stored.files().remove(Path::new("f")).expect("it is there");
    assert_eq!(size, bytes.len() as u64);
    drop(file);
    abandon(engine);
    (bytes, stored.zeroed_to)
}

fn overwrites(engine: &Engine, file: &Arc<File>) {
    engine
        .io
        .overwrite_in(&Admission::default(), file, 0, b"OLD TEXT, more")
        .expect("a store that works");
}

fn cuts(engine: &Engine, file: &Arc<File>) {
    engine.io.set_len(file, 3).expect("a store that works");
}

fn appends(engine: &Engine, file: &Arc<File>) {
    engine.io.append_in(&Admission::default(), file, b", more").expect("a store that works");
}

// S-14
#[test]
fn what_is_cut_at_the_end_makes_no_file_longer_that_is_truncated_meanwhile() {
    assert_eq!(beside(overwrites, Verb::WriteAt, cuts), b"OLD");
    assert_eq!(beside(cuts, Verb::SetLen, overwrites), b"OLD");
}

// S-14
#[test]
fn what_is_appended_around_the_tier_is_at_the_end() {
    assert_eq!(beside(appends, Verb::WriteAt, cuts), b"old");
    assert_eq!(beside(cuts, Verb::SetLen, appends), b"old, more");
    assert_eq!(beside(appends, Verb::WriteAt, appends), b"old text, more, more");
}

fn zeroes(engine: &Engine, file: &Arc<File>) {
    engine.io.allocate(file, Allocate::Zero, 1, 100).expect("a store that works");
}

// S-14
#[test]
fn what_is_zeroed_around_the_tier_ends_where_the_file_does_by_then() {
    let (bytes, zeroed_to) = beside_of(cuts, Verb::SetLen, zeroes);
    assert_eq!(bytes, b"o\0\0");
    assert_eq!(zeroed_to, 3, "a store may write the zeros that it is asked for");
    assert_eq!(beside(zeroes, Verb::Punch, cuts), b"o\0\0");
    assert_eq!(beside(zeroes, Verb::Punch, appends), b"o\0\0\0\0\0\0\0, more");
}

/// A store whose writes take a while.
struct Slow;

impl Layer for Slow {
    const PASSES_FD: bool = false;

    fn before(&self, call: &Call<'_>) -> Result<()> {
        if call.verb == Verb::WriteAt {
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

fn writes(engine: &Engine, file: &Arc<File>) {
    engine.io.write(file, 0, b"new").expect("a store that works");
}

/// Writes as a program whose writes a rule keeps out of the tier.
fn denied(engine: &Engine, file: &Arc<File>) {
    let admission = Admission { write: Admit::Deny, ..Admission::default() };
    engine.io.write_in(&admission, file, 0, b"new").expect("a store that works");
}

/// Returns how long `other` takes while programs change the file without a pause.
fn behind(policy: WritePolicy, stream: Change, other: Change) -> Duration {
    let backing = Wrapped::new(Arc::new(MemStore::new()), Arc::new(Slow));
    let tunables = Tunables { policy, ..Tunables::default() };
    let media = Arc::new(CrashMedia::default());
    let engine = start(media, backing, "behind", Config::default(), tunables).expect("a new tier");
    let (file, _) = engine.verbs.create(Path::new("f"), &NEW).expect("no such file yet");
    let ends = AtomicBool::new(false);
    let took = thread::scope(|scope| {
        let (engine, file, ends) = (&*engine, &file, &ends);
        for turn in 0..4 {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(5) * turn);
                while !ends.load(Relaxed) {
                    stream(engine, file);
                }
            });
        }
        thread::sleep(Duration::from_millis(100));
        let others = scope.spawn(|| {
            let began = Instant::now();
            other(engine, file);
            began.elapsed()
        });
        let took = others.join();
        ends.store(true, Relaxed);
        took.expect("it gets its turn")
    });
    drop(file);
    abandon(engine);
    took
}

/// Changes that depend on the file's end and those that do not never keep each other out for ever,
/// and together they do not keep out a write to the tier.
// S-14
#[test]
fn changes_around_the_tier_have_their_turns_whatever_others_do() {
    use WritePolicy::{WriteAround, WriteBack};
    let [resized, written] = [(writes as Change, cuts as Change), (appends, writes)]
        .map(|(stream, other)| behind(WriteAround, stream, other));
    let cached = behind(WriteBack, denied, writes);
    let longest = resized.max(written).max(cached);
    assert!(longest < Duration::from_secs(3), "{resized:?}, {written:?}, {cached:?}");
}
