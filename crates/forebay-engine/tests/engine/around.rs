//! Reading around the tier while others write around it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_backing::wrap::Verb;
use forebay_engine::{Allocate, Config, Tunables, WritePolicy};

use crate::hook::Hook;
use crate::media::CrashMedia;
use crate::start::{NEW, abandon, start};
use crate::store::MemStore;

const BLOCK: usize = 4096;

// S-1 S-14
#[test]
fn who_reads_around_is_not_disturbed_by_writes_around_of_other_ranges() {
    let store = MemStore::new();
    let (backing, hook) = Hook::on(store);
    // No room for a byte: all reads go around.
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

/// The shadow is as long as the file was when it was opened; the end of what grew is a hole.
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
    // A hole that is made in the tier, beyond the end of the shadow.
    engine.ops.evict(&[], &Default::default());
    engine.io.set_len(&file, 200 * BLOCK as u64).expect("a store that works");
    let back = Tunables { policy: WritePolicy::WriteBack, ..engine.files.tunables() };
    engine.ops.set_tunables(back).expect("valid");
    engine.io.allocate(&file, Allocate::Zero, 150 * BLOCK as u64, 50 * BLOCK as u64).expect("room");
    assert_eq!(engine.io.read(&file, 190 * BLOCK as u64, &mut buf[..BLOCK]).expect("zeros"), BLOCK);
    drop(file);
    abandon(engine);
}
