//! A file that grows past the daemon and is synced again and again: one flush of the device each
//! time, and a seal that says so.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use forebay_engine::media::{Media, MediaFile};
use forebay_engine::{OpenFile, Past, Progress, salvage_on};

use crate::content::shadow_in;
use crate::losses::{BOOT, Bed, file_of, open};
use crate::media::{CrashMedia, Disk, Fault, Lie, Sealless};
use crate::rng::Rng;
use crate::start::{NEW, abandon, read_all};
use crate::store::MemStore;

/// A file that a program appends to, past the daemon.
struct Grown {
    bed: Bed,
    file: OpenFile,
    past: Past,
    bytes: Vec<u8>,
    /// The number of bytes that were synced.
    synced: usize,
}

impl Grown {
    /// Makes a file that was synced once: its name and its record are durable.
    fn new() -> Grown {
        let bed = Bed::new();
        let (file, _) = bed.engine.verbs.create(Path::new("f"), &NEW).expect("no such file yet");
        let past = bed.engine.passed.write(&file, false).expect("room").expect("a new file");
        let mut grown = Grown { bed, file, past, bytes: Vec::new(), synced: 0 };
        grown.append(100);
        grown.sync();
        grown
    }

    fn append(&mut self, len: usize) {
        let bytes: Vec<u8> = (0..len).map(|n| (self.bytes.len() + n) as u8 | 1).collect();
        write_apart(self.past.shadow(), &bytes, self.bytes.len() as u64);
        self.bytes.extend(bytes);
    }

    fn sync(&mut self) {
        self.bed.engine.io.sync(&self.file).expect("a tier that works");
        self.synced = self.bytes.len();
    }

    fn cut_to(&mut self, len: usize) {
        self.bed.engine.io.set_len(&self.file, len as u64).expect("memory");
        self.bytes.truncate(len);
        self.synced = self.synced.min(len);
    }

    /// Checks that after any cut of the power all synced bytes are there, and no byte that was not written.
    fn survives(&self) {
        let images = judge(&self.bed, |found| {
            assert!(found.len() >= self.synced, "{} of {} bytes", found.len(), self.synced);
            assert!(found == &self.bytes[..found.len()], "bytes that nobody wrote");
        });
        assert!(images > 1, "nothing was unsynced");
    }
}

/// Writes in pieces, of which a cut of the power may leave any.
fn write_apart(shadow: &dyn MediaFile, bytes: &[u8], offset: u64) {
    for (n, piece) in bytes.chunks(PIECE).enumerate() {
        shadow.write_at(piece, offset + (n * PIECE) as u64).expect("memory");
    }
}

const PIECE: usize = 2500;

/// Checks the file on the store after any cut of the power and a flush. Returns the number of images.
fn judge(bed: &Bed, is_right: impl Fn(&[u8])) -> usize {
    let (disk, tree) = (bed.media.snapshot(), bed.store.snapshot());
    judge_disk(&disk, &MemStore::on(tree), is_right)
}

fn judge_disk(disk: &Disk, store: &MemStore, is_right: impl Fn(&[u8])) -> usize {
    let images = disk.crash_images(&mut Rng::new(7), 60);
    for image in images.iter().cloned() {
        let store = MemStore::on(store.snapshot());
        let engine = open(&CrashMedia::on(image), &store, "after the cut");
        let report = engine.drain.flush(&[], &Default::default());
        let problems = engine.recovery().problems.clone();
        abandon(engine);
        assert!(report.failures.is_empty() && problems.is_empty(), "{report:?} {problems:?}");
        is_right(&file_of(&store, "f"));
    }
    images.len()
}

// S-3
#[test]
fn a_file_that_grows_past_us_needs_one_flush_for_each_sync() {
    let mut grown = Grown::new();
    let (before, seals) = (grown.bed.media.syncs(), grown.bed.media.seals());
    let lens = [200, 4096, 1, 512, 8000, 3484];
    for len in lens.into_iter().cycle().take(30) {
        grown.append(len);
        grown.sync();
        grown.survives();
    }
    let after = grown.bed.media.syncs();
    assert_eq!((after.0 - before.0, after.1 - before.1), (0, 30), "of the log, and of the bytes");
    assert_eq!(grown.bed.media.seals() - seals, 30);
    // Unsynced bytes are no part of it.
    grown.append(5000);
    grown.survives();
}

/// If a seal may become durable before its bytes, none is made.
// S-3
#[test]
fn without_seals_each_sync_has_its_record_flushed() {
    for how in [Sealless::All, Sealless::Each] {
        let mut grown = Grown::new();
        grown.bed.media.forbid_seals(how);
        let before = grown.bed.media.syncs();
        for _ in 0..5 {
            grown.append(300);
            grown.sync();
        }
        let after = grown.bed.media.syncs();
        assert_eq!((after.0 - before.0, after.1 - before.1), (5, 5));
        assert_eq!(grown.bed.media.seals(), 0);
        grown.append(5);
        grown.survives();
    }
}

/// A seal covers bytes that were cut off since, and others have taken their place.
// S-3 S-4
#[test]
fn a_seal_says_nothing_of_what_came_after_a_cut() {
    for cut in [50, 100, 1000, 4000] {
        let mut grown = Grown::new();
        grown.append(7000);
        grown.sync();
        grown.cut_to(cut);
        grown.append(9000);
        grown.survives();
        grown.sync();
        grown.append(100);
        grown.survives();
    }
}

/// Returns how many images of a moment between seal and sync have bytes that were not written, and
/// how many have none.
fn judge_within_a_sync(lie: Option<Lie>) -> (u64, u64) {
    let mut grown = Grown::new();
    grown.append(6000);
    let (media, store) = (grown.bed.media.clone(), grown.bed.store.clone());
    let (bytes, found) = (grown.bytes.clone(), Arc::new([const { AtomicU64::new(0) }; 2]));
    let (moment, seen) = (media.clone(), found.clone());
    media.at_shadow_sync(move || {
        judge_disk(&moment.snapshot(), &MemStore::on(store.snapshot()), |found| {
            let is_right = found == &bytes[..found.len()];
            seen[usize::from(is_right)].fetch_add(1, Relaxed);
        });
    });
    if let Some(lie) = lie {
        media.set_lie(lie);
    }
    grown.sync();
    (found[0].load(Relaxed), found[1].load(Relaxed))
}

/// The file system may commit the seal before the sync has ended: for another file's sync, or by itself (Z1).
// S-3 S-4
#[test]
fn a_seal_is_written_behind_its_bytes() {
    let (wrong, right) = judge_within_a_sync(None);
    assert!(wrong == 0 && right > 1, "{wrong} images with bytes that nobody wrote of {right}");
    let (wrong, _) = judge_within_a_sync(Some(Lie::Bytes));
    assert!(wrong > 0, "the bytes were not written out, and nothing was found missing");
}

/// A program cuts the file while another's sync of it is under way.
// S-3 S-4
#[test]
fn a_cut_within_a_sync_is_on_record_before_the_bytes_go() {
    let mut grown = Grown::new();
    grown.append(6000);
    let (engine, file) = (grown.bed.engine.clone(), grown.file.clone());
    let (media, store, cut) =
        (grown.bed.media.clone(), grown.bed.store.clone(), AtomicBool::new(false));
    let (before, seen) = (grown.bytes.clone(), Arc::new(AtomicBool::new(false)));
    let looked = seen.clone();
    grown.bed.media.at_shadow_sync(move || {
        if cut.swap(true, Relaxed) {
            return;
        }
        engine.io.set_len(&file, 3000).expect("memory");
        write_apart(&*shadow_in(&media), &[0xee; 5000], 3000);
        let now = [&before[..3000], &[0xee; 5000][..]].concat();
        let images = judge_disk(&media.snapshot(), &MemStore::on(store.snapshot()), |found| {
            assert!(found.len() >= 100, "what was synced before is there");
            let is = |bytes: &[u8]| found.len() <= bytes.len() && found == &bytes[..found.len()];
            assert!(is(&before) || is(&now), "{} bytes that nobody wrote", found.len());
        });
        looked.store(images > 1, Relaxed);
    });
    grown.bed.engine.io.sync(&grown.file).expect("a tier that works");
    assert!(seen.load(Relaxed), "it was sealed, and looked at");
    assert!(grown.bed.media.seals() > 0);
}

/// A record about the file between its seal and the record of the sync may be in the log without the latter.
// S-3
#[test]
fn what_is_recorded_within_a_sync_does_not_take_its_seal_away() {
    let mut grown = Grown::new();
    grown.append(6000);
    let (other, _) = grown.bed.engine.verbs.create(Path::new("o"), &NEW).expect("a new name");
    let (engine, came) = (grown.bed.engine.clone(), AtomicBool::new(false));
    grown.bed.media.at_shadow_sync(move || {
        if !came.swap(true, Relaxed) {
            let pinned = engine.ops.pin(&["f".into()], &Default::default());
            assert!(pinned.failures.is_empty(), "{pinned:?}");
            // This makes the record of the pin durable.
            engine.io.write(&other, 0, &[1; 10]).expect("room");
            engine.io.sync(&other).expect("a tier that works");
        }
    });
    grown.sync();
    grown.append(10);
    grown.survives();
}

/// The numbers of lost records are used again: a seal from before the loss covers no record after it.
// S-3 S-4
#[test]
fn a_seal_of_before_a_loss_does_not_count_after_it() {
    let mut grown = Grown::new();
    // Records of another file, which the loss takes.
    let (other, _) = grown.bed.engine.verbs.create(Path::new("o"), &NEW).expect("a new name");
    (0..50).for_each(|n| grown.bed.engine.io.write(&other, n * 8192, &[1; 10]).expect("room"));
    grown.append(6000);
    grown.sync();
    let (disk, store) = (grown.bed.media.snapshot(), grown.bed.store.clone());
    // The least that a cut may leave.
    let image = disk.crash_images(&mut Rng::new(7), 1).swap_remove(0);
    let media = CrashMedia::on(image);
    media.forbid_seals(Sealless::All);
    let engine = open(&media, &store, "second");
    let file = engine.io.open(Path::new("f"), None).expect("it is there");
    assert_eq!(engine.verbs.stat(Path::new("f")).expect("there").size, 6100);
    engine.io.set_len(&file, 0).expect("memory");
    engine.io.sync(&file).expect("a tier that works");
    let past = engine.passed.write(&file, false).expect("room").expect("an empty file");
    past.shadow().write_at(&[0xee; 300], 0).expect("memory");
    engine.io.sync(&file).expect("a tier that works");
    write_apart(past.shadow(), &[0xee; 9000], 300);
    judge_disk(&media.snapshot(), &MemStore::on(store.snapshot()), |found| {
        assert!(found.len() >= 300 && found.iter().all(|byte| *byte == 0xee));
    });
}

/// A sync that fails leaves a seal of bytes that are there, or none.
// S-3 S-4
#[test]
fn a_sync_that_fails_seals_nothing_that_is_not_there() {
    for n in 1..6 {
        let mut grown = Grown::new();
        grown.append(6000);
        grown.bed.media.set_fault(Some(Fault { n, count: 1, errno: libc::EIO }));
        let failed = grown.bed.engine.io.sync(&grown.file).is_err();
        grown.bed.media.set_fault(None);
        let least = if failed { grown.synced } else { grown.bytes.len() };
        for image in grown.bed.media.snapshot().crash_images(&mut Rng::new(7), 60) {
            let store = MemStore::on(grown.bed.store.snapshot());
            let engine = open(&CrashMedia::on(image), &store, "after the cut");
            let problems = engine.recovery().problems.clone();
            let found = read_all(&engine, Path::new("f")).expect("it is there");
            abandon(engine);
            assert!(problems.is_empty(), "operation {n}: {problems:?}");
            assert!(found.len() >= least, "operation {n}: {} of {least} bytes", found.len());
            assert!(found == grown.bytes[..found.len()], "operation {n}: nobody wrote that");
        }
    }
}

/// A reader of the tier believes a shadow's seal, too; on the boot that wrote the seal it changes nothing.
// S-11
#[test]
fn a_process_that_dies_leaves_its_file_as_it_is() {
    let mut grown = Grown::new();
    grown.append(6000);
    grown.sync();
    grown.append(50);
    let (disk, store) = (grown.bed.media.snapshot(), grown.bed.store.clone());
    let engine = open(&CrashMedia::on(disk.process_crash_image()), &store, BOOT);
    assert_eq!(engine.verbs.stat(Path::new("f")).expect("there").size, 6150);
    abandon(engine);
}

/// The index is lost with the power: the last synced bytes are saved all the same, and reported as in doubt.
// S-3
#[test]
fn a_rescue_without_the_index_saves_what_a_seal_speaks_of() {
    let mut grown = Grown::new();
    grown.append(6000);
    grown.sync();
    grown.append(3000);
    let images = grown.bed.media.snapshot().crash_images(&mut Rng::new(7), 60);
    let mut by_seal = 0;
    for image in images {
        let media = CrashMedia::on(image);
        media.remove("index.redb").expect("it was there");
        let target = MemStore::new();
        let done = salvage_on(&media, None, &target, &Progress::default()).expect("a tier");
        let found = file_of(&target, "f");
        assert!(found.len() >= grown.synced, "{} bytes: {done:?}", found.len());
        assert!(found == grown.bytes[..found.len()], "bytes that nobody wrote");
        let in_doubt = |text: &String| text.starts_with("f: ") && text.contains("100..6100");
        by_seal += usize::from(done.found.problems.iter().any(in_doubt));
    }
    assert!(by_seal > 0, "each image had the record of the sync");
}
