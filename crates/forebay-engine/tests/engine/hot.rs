//! Large files of which a part is used, as databases have them: which bytes stay in the tier, and
//! which are fetched.

use std::path::Path;
use std::sync::Arc;

use forebay_backing::{BackingStore, New as Made};
use forebay_engine::{Config, Engine, File, OpenFile, Tunables};

use crate::media::CrashMedia;
use crate::rng::Rng;
use crate::start::{NEW, abandon, counter, patient, simulated, start, time};
use crate::store::MemStore;

const PAGE: u64 = 16 << 10;
const MIB: u64 = 1 << 20;

fn table(mibs: u64, tier_size: u64) -> (Arc<Engine>, OpenFile) {
    let store = MemStore::new();
    let made: &Made = &NEW;
    let (file, _) = store.create(Path::new("table"), made).expect("an empty store");
    let bytes = vec![7; MIB as usize];
    (0..mibs).for_each(|mib| {
        file.write_at(&bytes, mib * MIB).expect("memory");
    });
    let tunables = Tunables { tier_size: Some(tier_size), ..patient() };
    let media = Arc::new(CrashMedia::default());
    let engine = start(media, Arc::new(store), "hot", Config::default(), tunables).expect("new");
    let file = engine.io.open(Path::new("table"), None).expect("it is there");
    (engine, file)
}

fn read(engine: &Arc<Engine>, file: &Arc<File>, page: u64) {
    let mut found = [0; PAGE as usize];
    let n = engine.io.read(file, page * PAGE, &mut found).expect("a store that works");
    assert!(n == found.len() && found.iter().all(|byte| *byte == 7));
}

/// A quarter of the tier is used all the time; four times the tier now and then.
#[test]
fn what_of_a_large_file_is_used_stays() {
    let (engine, file) = table(64, 16 * MIB);
    let (mut rng, mut hot_fills, mut hot_reads) = (Rng::new(3), 0, 0);
    for n in 0..24_000 {
        if n % 3 == 0 {
            read(&engine, &file, 256 + rng.below(15 * 256));
            continue;
        }
        let before = counter(&engine, "fills");
        read(&engine, &file, rng.below(256));
        if n > 4000 {
            hot_fills += counter(&engine, "fills") - before;
            hot_reads += 1;
        }
    }
    assert!(counter(&engine, "evicted_bytes") > 64 * MIB, "the tier was too large");
    assert!(hot_fills * 50 < hot_reads, "{hot_fills} fills for {hot_reads} reads");
    drop(file);
    abandon(engine);
}

/// A few pages in order are no stream, many are.
#[test]
fn neighbors_fetch_nothing_ahead_and_streams_do() {
    let _time = simulated();
    let (engine, file) = table(64, 1 << 30);
    let mut rng = Rng::new(5);
    for n in 0..40 {
        let page = n * 96 + 10 + rng.below(40);
        (page..page + 3).for_each(|page| read(&engine, &file, page));
    }
    time().sleep(std::time::Duration::from_millis(50));
    assert_eq!(counter(&engine, "fill_bytes"), 40 * 3 * PAGE);
    engine.ops.evict(&[], &Default::default());
    let before = counter(&engine, "fill_bytes");
    (0..100).for_each(|n| read(&engine, &file, 100 + 4 * n));
    time().sleep(std::time::Duration::from_millis(50));
    assert_eq!(counter(&engine, "fill_bytes") - before, 100 * PAGE, "each fourth");
    engine.ops.evict(&[], &Default::default());
    let before = counter(&engine, "fills");
    (1000..1512).for_each(|page| read(&engine, &file, page));
    let fills = counter(&engine, "fills") - before;
    assert!(fills < 100, "{fills} fills for 8 MiB in order");
    drop(file);
    abandon(engine);
}

/// However bytes came to be dirty, once a flush has made them clean they make room.
#[test]
fn what_was_written_behind_others_makes_room() {
    let (engine, _) = table(1, 1 << 30);
    let whole = vec![7; MIB as usize];
    let (apart, _) = engine.verbs.create(Path::new("apart"), &NEW).expect("no such file yet");
    engine.io.write(&apart, MIB / 2, &whole[..PAGE as usize]).expect("room");
    engine.io.write(&apart, 0, &whole[..MIB as usize / 2]).expect("room");
    let (sized, _) = engine.verbs.create(Path::new("sized"), &NEW).expect("no such file yet");
    engine.io.set_len(&sized, MIB).expect("a tier that works");
    engine.io.write(&sized, 0, &whole).expect("room");
    for file in [&apart, &sized] {
        engine.drain.flush_file(file).expect("a store that works");
    }
    let tiny = Tunables { tier_size: Some(4096), ..engine.files.tunables() };
    engine.ops.set_tunables(tiny).expect("valid");
    assert_eq!(engine.ops.status().used_bytes, 0);
    for file in [apart, sized] {
        drop(file);
    }
    abandon(engine);
}
