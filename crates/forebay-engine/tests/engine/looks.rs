//! Files that are written past the daemon are looked at within a budget of the tier's reading (R5),
//! whatever clocks say.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_backing::BackingStore;
use forebay_backing::suite::TempDir;
use forebay_engine::media::DirMedia;
use forebay_engine::{Config, KeepDirty, OpenFile, Past, Progress, Tunables};

use crate::content::{BLOCK, BOOT, Bed, bytes, with};
use crate::losses::file_of;
use crate::media::CrashMedia;
use crate::past_us::shadow_of;
use crate::rng::Rng;
use crate::start::{NEW, patient, read_all, simulated, start, time, within};
use crate::store::MemStore;

/// A file of 1 GiB on a tier that reads one such file a second, with both divided by four thousand.
const BLOCKS: usize = 16;
const FILES: usize = 100;

/// Bytes that are looked at before the tier's pace counts as known.
const KNOWN: u64 = 65 << 20;

enum Opened {
    Past(Past),
    Here,
}

/// Opens a hundred files for writing, and writes a byte of each now and then for as long as `lasts`. Returns
/// how many of them are written past the daemon, and for how much of the time the tier was read for looks.
fn looked_at(lasts: Duration) -> (usize, f64) {
    let bed = Bed::with(CrashMedia::default(), MemStore::new(), BOOT, Tunables::default());
    let first = bed.cached("first", FILES);
    let files: Vec<OpenFile> = (0..FILES).map(|n| bed.cached(&format!("f{n}"), BLOCKS)).collect();
    let ready = |file: &OpenFile| bed.engine.passed.make_ready(file).expect("a tier that works");
    within("they are in the tier", || {
        bed.engine.ops.status().clean_bytes == (FILES * (BLOCKS + 1) * BLOCK) as u64
    });
    let (slow, read, clock) =
        (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)), time());
    let (is_slow, sum) = (slow.clone(), read.clone());
    bed.media.at_shadow_read(move |len| {
        if is_slow.load(Relaxed) && len >= BLOCKS * BLOCK {
            sum.fetch_add(len as u64, Relaxed);
            clock.sleep(Duration::from_secs_f64(len as f64 / (BLOCKS * BLOCK) as f64));
        }
    });
    let past = bed.pass(&first);
    while read.load(Relaxed) < KNOWN {
        past.shadow().write_at(&[(read.load(Relaxed) >> 20) as u8], 0).expect("memory");
        bed.flush(&first);
    }
    past.end().expect("a tier that works");
    bed.flush(&first);
    read.store(0, Relaxed);
    let open = |file: &OpenFile| {
        let past = || bed.engine.passed.write_ready(file, false).expect("room");
        ready(file).then(past).flatten().map_or(Opened::Here, Opened::Past)
    };
    let opened: Vec<Opened> = files.iter().map(open).collect();
    let (began, mut rng) = (time().now(), Rng::new(11));
    let mut want = vec![bytes(BLOCKS); FILES];
    while time().since(began) < lasts {
        for (n, opened) in opened.iter().enumerate() {
            let (at, byte) = (rng.below((BLOCKS * BLOCK) as u64), rng.below(256) as u8);
            match opened {
                Opened::Past(past) => past.shadow().write_at(&[byte], at).expect("memory"),
                Opened::Here => bed.engine.io.write(&files[n], at, &[byte]).expect("room"),
            }
            want[n][at as usize] = byte;
        }
        time().sleep(Duration::from_secs(1));
    }
    let share = read.load(Relaxed) as f64 / (BLOCKS * BLOCK) as f64 / lasts.as_secs_f64();
    slow.store(false, Relaxed);
    let home = |n: usize| file_of(&bed.store, &format!("f{n}")) == want[n];
    (0..FILES).for_each(|n| within("each write is home", || home(n)));
    let past = opened.iter().filter(|opened| matches!(opened, Opened::Past(_))).count();
    (past, share)
}

/// R5: a tenth of the time, however many files are open for writing.
// S-5
#[test]
fn a_hundred_files_with_random_writes_are_looked_at_within_a_tenth_of_the_time() {
    let _time = simulated();
    let (past, share) = looked_at(Duration::from_secs(300));
    println!("{past} files past us, {share:.3} of the time");
    assert!(past > 0 && past < FILES, "{past} files are written past us");
    assert!(share > 0.02 && share <= 0.105, "{share:.3} of the time, for {past} files");
}

/// No clock hides a write: neither a clock that was set back, nor a time that was.
// S-2 S-6
#[test]
fn a_clock_that_is_set_back_hides_no_write() {
    let bed = Bed::new();
    let file = bed.cached("f", 10);
    let past = bed.pass(&file);
    let mut want = bytes(10);
    for (n, byte) in [b'1', b'2', b'3'].into_iter().enumerate() {
        bed.media.set_clock_back();
        past.shadow().write_at(&[byte], (n * BLOCK) as u64).expect("memory");
        want = with(want, n * BLOCK, byte);
        assert_eq!(bed.flush(&file), BLOCK as u64, "while it is open");
        assert!(file_of(&bed.store, "f") == want);
    }
    bed.media.set_clock_back();
    past.shadow().write_at(b"4", 9 * BLOCK as u64).expect("memory");
    past.end().expect("a tier that works");
    assert_eq!(bed.flush(&file), BLOCK as u64, "after its close");
    assert!(file_of(&bed.store, "f") == with(want, 9 * BLOCK, b'4'));
    assert!(!bed.is_dirty());
}

/// Sets the mtime of an open file, as a program does.
fn set_time(file: &File, sec: i64) {
    let at = libc::timespec { tv_sec: sec, tv_nsec: 0 };
    // SAFETY: an open descriptor, and two times.
    assert_eq!(unsafe { libc::futimens(file.as_raw_fd(), [at, at].as_ptr()) }, 0);
}

/// A program writes through its descriptor of the shadow, as the kernel's passthrough does, and
/// sets the file's mtime back; a real file system shows that in the ctime.
// S-2 S-6
#[test]
fn a_time_that_is_set_back_on_the_shadow_hides_no_write() {
    const SEC: i64 = 1_000_000_000;
    let (dir, store) = (TempDir::new(), MemStore::new());
    let (theirs, _) = store.create(Path::new("f"), &NEW).expect("memory");
    theirs.write_at(&bytes(10), 0).expect("memory");
    let media = Arc::new(DirMedia::open(dir.path()).expect("it is there"));
    let config = Config { digests_from: 1, ..Config::default() };
    let engine = start(media, Arc::new(store.clone()), BOOT, config, patient()).expect("new");
    read_all(&engine, Path::new("f")).expect("it is there");
    let file = engine.io.open(Path::new("f"), None).expect("it is there");
    let mut want = bytes(10);
    for closes in [false, true] {
        assert!(engine.passed.make_ready(&file).expect("a tier that works"));
        let past = engine.passed.write_ready(&file, false).expect("room").expect("ready");
        let shadow = File::options().write(true).open(shadow_of(dir.path())).expect("it is there");
        set_time(&shadow, SEC);
        engine.drain.flush_file(&file).expect("a store that works");
        for (n, byte) in [b'a', b'b'].into_iter().enumerate() {
            let at = (n + 2 * usize::from(closes)) * BLOCK;
            shadow.write_all_at(&[byte], at as u64).expect("room");
            set_time(&shadow, SEC);
            want = with(want, at, byte);
            if !closes {
                engine.drain.flush_file(&file).expect("a store that works");
                assert!(file_of(&store, "f") == want, "while it is open");
            }
        }
        drop(shadow);
        past.end().expect("a tier that works");
        engine.drain.flush_file(&file).expect("a store that works");
        assert!(file_of(&store, "f") == want, "after its close");
    }
    drop(file);
    engine.ops.shutdown(KeepDirty::No, &Progress::default(), None);
}
