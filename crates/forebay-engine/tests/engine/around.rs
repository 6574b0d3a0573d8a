//! Reading around the tier while others write around it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_backing::wrap::Verb;
use forebay_engine::{Config, Tunables, WritePolicy};

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
    let (file, _) = engine.create(Path::new("f"), &NEW).expect("no such file yet");
    engine.write(&file, 0, &[b'A'; 2 * BLOCK]).expect("a store that works");
    let (writer, target) = (engine.clone(), file.clone());
    let reads = Arc::new(AtomicU64::new(0));
    let seen = reads.clone();
    hook.set(move |call| {
        if call.verb == Verb::ReadAt {
            seen.fetch_add(1, Relaxed);
            writer.write(&target, BLOCK as u64, &[b'B'; BLOCK]).expect("a store that works");
        }
    });
    let mut buf = [0; BLOCK];
    for _ in 0..20 {
        assert_eq!(engine.read(&file, 0, &mut buf).expect("no error of anybody"), BLOCK);
        assert_eq!(buf, [b'A'; BLOCK]);
    }
    assert_eq!(reads.load(Relaxed), 20, "each at the first try");
    hook.set(|_| {});
    engine.close(&file);
    drop(file);
    abandon(engine);
}
