//! The first sync of a file that is written past the daemon: one flush of the device, for its bytes
//! and for the log.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use forebay_backing::wrap::Verb;
use forebay_backing::{BackingStore, RenameMode};
use forebay_engine::{Config, Engine, File, Named, OpenFile, Past};

use crate::hook::Hook;
use crate::losses::{BOOT, open};
use crate::media::{CrashMedia, Fault, Lie, Sealless};
use crate::rng::Rng;
use crate::start::{NEW, abandon, patient, start};
use crate::store::{MemStore, Tree};

type Contents = BTreeMap<String, Vec<u8>>;

/// An engine, and the files that were synced past it.
struct Firsts {
    media: CrashMedia,
    store: MemStore,
    hook: Arc<Hook>,
    engine: Arc<Engine>,
    open: Vec<(OpenFile, Past)>,
    synced: Contents,
}

impl Firsts {
    /// Starts an engine whose log was synced once: the space ahead of its records is filled.
    fn new() -> Firsts {
        let first = Firsts::with_new_log();
        drop(first.seen("laid"));
        first
    }

    fn with_new_log() -> Firsts {
        let (media, store) = (CrashMedia::default(), MemStore::new());
        let (backing, hook) = Hook::on(store.clone());
        let tier = Arc::new(media.clone());
        let engine = start(tier, backing, BOOT, Config::default(), patient()).expect("a new tier");
        Firsts { media, store, hook, engine, open: Vec::new(), synced: Contents::new() }
    }

    /// Makes a file that is written past the daemon, and not synced yet.
    fn write(&mut self, name: &str) -> Arc<File> {
        let (file, _) = self.engine.verbs.create(Path::new(name), &NEW).expect("a new name");
        let past = self.engine.passed.write(&file, false).expect("room").expect("a new file");
        for (n, piece) in bytes_of(name).chunks(2500).enumerate() {
            past.shadow().write_at(piece, n as u64 * 2500).expect("memory");
        }
        let known = file.clone();
        self.open.push((file, past));
        known
    }

    /// Makes a file that the daemon has written and synced, and with it the log.
    fn seen(&self, name: &str) -> OpenFile {
        let (file, _) = self.engine.verbs.create(Path::new(name), &NEW).expect("a new name");
        self.engine.io.write(&file, 0, &[1; 10]).expect("room");
        let before = self.media.syncs().0;
        self.engine.io.sync(&file).expect("a tier that works");
        assert_eq!(self.media.syncs().0 - before, 1);
        file
    }

    /// Makes such a file that was flushed since; the log has the record of that, not synced.
    fn settled(&self, name: &str) -> OpenFile {
        let file = self.seen(name);
        self.engine.drain.flush_file(&file).expect("a store that works");
        file
    }

    fn sync(&mut self, name: &str, file: &Arc<File>) {
        self.engine.io.sync(file).expect("a tier that works");
        self.synced.insert(name.into(), bytes_of(name));
    }

    /// Whether after any cut of the power all synced bytes are there, also on a store that has lost
    /// its power too.
    fn survives(&self) -> Result<usize, String> {
        let tree = self.store.snapshot();
        let forgotten = tree.forgetting(tree.unsynced_names());
        let both = [tree, forgotten].map(|tree| judge(&self.media, &tree, &self.synced, &[]));
        let [with, without] = both;
        Ok(with? + without?)
    }
}

fn bytes_of(name: &str) -> Vec<u8> {
    (0..6000).map(|n| (n as u8).wrapping_add(name.len() as u8) | 1).collect()
}

/// Checks that each image of the tier has all of `there`, and nothing of `gone`. Returns the number of images.
fn judge(
    media: &CrashMedia,
    tree: &Tree,
    there: &Contents,
    gone: &[&str],
) -> Result<usize, String> {
    let images = media.snapshot().crash_images(&mut Rng::new(7), 40);
    for image in images.iter().cloned() {
        let store = MemStore::on(tree.clone());
        let engine = open(&CrashMedia::on(image), &store, "after the cut");
        let report = engine.drain.flush(&[], &Default::default());
        let problems = engine.recovery().problems.clone();
        abandon(engine);
        if !report.failures.is_empty() || !problems.is_empty() {
            return Err(format!("{report:?} {problems:?}"));
        }
        let files = store.snapshot().files();
        for (name, bytes) in there {
            match files.get(Path::new(name)) {
                Some(found) if found == bytes => {}
                found => return Err(format!("{name}: {:?} bytes", found.map(Vec::len))),
            }
        }
        if let Some(name) = gone.iter().find(|name| files.contains_key(Path::new(name))) {
            return Err(format!("{name} has come back"));
        }
    }
    Ok(images.len())
}

// S-3
#[test]
fn a_new_file_needs_one_flush_for_its_first_sync() {
    let mut first = Firsts::new();
    for n in 0..12 {
        let name = format!("f{n}");
        let file = first.write(&name);
        let (before, seals) = (first.media.syncs(), first.media.seals());
        first.sync(&name, &file);
        let after = first.media.syncs();
        let flushes = (after.0 - before.0, after.1 - before.1);
        assert_eq!(
            (flushes, first.media.seals() - seals),
            ((0, 1), 1),
            "of the log, and of {name}"
        );
        let images = first.survives().expect("what was synced is there");
        assert!(images > 2, "nothing was unsynced");
    }
}

/// The sync of the directory, which many programs make right after, finds the file's name durable;
/// after another change of names it syncs the log.
// S-3
#[test]
fn the_directory_of_a_new_file_needs_no_flush_of_the_log() {
    let mut first = Firsts::new();
    let file = first.write("f");
    first.sync("f", &file);
    let logged = |first: &Firsts| {
        let before = first.media.syncs().0;
        first.engine.verbs.sync_dir(Path::new("")).expect("memory");
        first.media.syncs().0 - before
    };
    assert_eq!(logged(&first), 0);
    first.survives().expect("what was synced is there");
    drop(first.engine.verbs.create(Path::new("g"), &NEW).expect("a new name"));
    assert_eq!((logged(&first), logged(&first)), (1, 0), "a name has changed");
}

/// Earlier records of the log become durable with it.
// S-3
#[test]
fn a_first_sync_makes_the_log_durable() {
    let mut first = Firsts::new();
    let settled = first.settled("o");
    let file = first.write("f");
    first.sync("f", &file);
    let before = first.media.syncs();
    first.engine.io.sync(&settled).expect("a tier that works");
    assert_eq!(first.media.syncs(), before, "the record of its flush");
}

/// If the log that the seal presumes is not on the device, the file is lost with the power.
// S-3
#[test]
fn the_log_is_written_before_the_first_seal() {
    for lie in [Lie::Records, Lie::Log] {
        let mut first = Firsts::new();
        first.media.set_lie(lie);
        let file = first.write("f");
        first.sync("f", &file);
        assert!(first.media.lies_told() > 0, "{lie:?}: nothing was left out");
        first.survives().expect_err("it was left out unnoticed");
    }
}

/// The zeros ahead of the log's records have to be durable: otherwise the sync of the log is more
/// than a flush of the device.
// S-3
#[test]
fn a_log_that_is_not_filled_yet_has_a_sync_of_its_own() {
    let mut first = Firsts::with_new_log();
    for (name, flushes) in [("f", (1, 1)), ("g", (0, 1))] {
        let file = first.write(name);
        let before = first.media.syncs();
        first.sync(name, &file);
        let after = first.media.syncs();
        assert_eq!((after.0 - before.0, after.1 - before.1), flushes, "{name}");
        first.survives().expect("what was synced is there");
    }
}

/// On a medium where a flush for one file is none for another, each is synced.
// S-3
#[test]
fn without_seals_the_log_has_a_sync_of_its_own() {
    for how in [Sealless::All, Sealless::Each] {
        let mut first = Firsts::new();
        first.media.forbid_seals(how);
        let file = first.write("f");
        let before = first.media.syncs();
        first.sync("f", &file);
        let after = first.media.syncs();
        assert_eq!((after.0 - before.0, after.1 - before.1, first.media.seals()), (1, 1, 0));
        first.survives().expect("what was synced is there");
    }
}

/// The file system may commit the seal before the sync has ended: then the log that the seal
/// presumes is there, or the seal is not.
// S-3 S-4
#[test]
fn a_first_seal_is_written_behind_the_log() {
    let mut first = Firsts::new();
    let file = first.write("f");
    let (media, tree, seen) =
        (first.media.clone(), first.store.snapshot(), Arc::new(AtomicU64::new(0)));
    let looked = seen.clone();
    first.media.at_shadow_sync(move || {
        let images = media.snapshot().crash_images(&mut Rng::new(7), 60);
        for image in images {
            let store = MemStore::on(tree.clone());
            let engine = open(&CrashMedia::on(image), &store, "after the cut");
            let report = engine.drain.flush(&[], &Default::default());
            let problems = engine.recovery().problems.clone();
            abandon(engine);
            assert!(report.failures.is_empty() && problems.is_empty(), "{report:?} {problems:?}");
            let found = store.snapshot().files().remove(Path::new("f")).unwrap_or_default();
            let whole = bytes_of("f");
            assert!(found.is_empty() || found == whole, "{} bytes that nobody wrote", found.len());
            looked.fetch_add(1 + 1000 * u64::from(found == whole), Relaxed);
        }
    });
    first.sync("f", &file);
    let (none, whole) = (seen.load(Relaxed) % 1000, seen.load(Relaxed) / 1000);
    assert!(whole > 0 && none > whole, "{whole} of {none} images have it");
}

/// Other threads that need a durable log do not take it for durable before the flush.
// S-3
#[test]
fn the_log_counts_as_synced_after_the_flush_alone() {
    let mut first = Firsts::new();
    let settled = first.settled("o");
    let file = first.write("f");
    let (engine, media, came) = (first.engine.clone(), first.media.clone(), AtomicBool::new(false));
    let seen = Arc::new(AtomicU64::new(0));
    let synced = seen.clone();
    first.media.at_shadow_sync(move || {
        if !came.swap(true, Relaxed) {
            let before = media.syncs().0;
            engine.io.sync(&settled).expect("a tier that works");
            synced.store(media.syncs().0 - before, Relaxed);
        }
    });
    first.sync("f", &file);
    assert_eq!(seen.load(Relaxed), 1, "it was on its way alone");
    first.survives().expect("what was synced is there");
}

/// A device that could not be flushed may have lost the part of the log that it had: that part is
/// written again before any caller is told that it is durable.
// S-3
#[test]
fn after_a_flush_that_failed_the_log_is_written_again() {
    let mut failures = 0;
    for n in 1..8 {
        let mut first = Firsts::new();
        let other = first.write("other");
        let file = first.write("f");
        first.media.set_fault(Some(Fault { n, count: 1, errno: libc::EIO }));
        let failed = first.engine.io.sync(&file).is_err();
        first.media.set_fault(None);
        failures += u64::from(failed);
        if !failed {
            first.synced.insert("f".into(), bytes_of("f"));
        }
        first.sync("other", &other);
        first.survives().unwrap_or_else(|e| panic!("operation {n}: {e}"));
        let third = first.write("third");
        first.sync("third", &third);
        first.survives().unwrap_or_else(|e| panic!("operation {n}, once more: {e}"));
    }
    assert!(failures > 1, "of the bytes, and of the flush");
}

/// Another sync fails while the first sync of a file is under way: the log is written to the device once more.
// S-3
#[test]
fn what_another_failed_sync_has_taken_from_the_log_is_written_again() {
    let mut first = Firsts::new();
    let file = first.write("f");
    let (media, came) = (first.media.clone(), AtomicBool::new(false));
    first.media.at_shadow_sync(move || {
        if !came.swap(true, Relaxed) {
            media.fail_another_sync();
        }
    });
    let before = first.media.syncs().0;
    first.sync("f", &file);
    assert!(first.media.seals() > 0 && first.media.syncs().0 > before);
    first.survives().expect("what was synced is there");
}

/// The way in which a name goes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Unlink,
    Rename,
    /// By a rename of a directory above it.
    Above,
}

const WAYS: [Way; 3] = [Way::Unlink, Way::Rename, Way::Above];

impl Way {
    /// Takes the name `d/f` away. Returns the file's new name, if it has one.
    fn go(self, engine: &Arc<Engine>, file: &File) -> Option<&'static str> {
        let at = Named { path: Path::new("d/f"), key: file.key, is_dir: false };
        let rename = |from, to| {
            let mode = RenameMode::NoReplace;
            engine.verbs.rename(from, Path::new(to), None, mode).expect("it is there");
        };
        match self {
            Way::Unlink => engine.verbs.unlink(at).expect("it is there"),
            Way::Rename => rename(at, "d/g"),
            Way::Above => {
                let key = engine.names.ask(|b| b.stat(Path::new("d"))).expect("it is there").key;
                rename(Named { path: Path::new("d"), key, is_dir: true }, "e");
            }
        }
        match self {
            Way::Unlink => None,
            Way::Rename => Some("d/g"),
            Way::Above => Some("e/f"),
        }
    }
}

/// Makes `d/f`, which was not synced; its directory is durable on the store.
fn named_in_a_directory() -> (Firsts, Arc<File>) {
    let mut first = Firsts::new();
    first.engine.names.ask(|b| b.mkdir(Path::new("d"), &NEW_DIR)).expect("memory");
    first.store.sync_dir(Path::new("")).expect("memory");
    let file = first.write("d/f");
    (first, file)
}

/// A change of a name that is announced before its file is sealed is durable with the seal: the
/// file is not found by its old name, whether its records were durable before or not.
// S-3
#[test]
fn a_name_that_is_about_to_go_before_the_first_sync_does_not_come_back() {
    for (way, recorded) in WAYS.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let (first, file) = named_in_a_directory();
        if recorded {
            drop(first.seen("o"));
        }
        let (engine, known) = (first.engine.clone(), file.clone());
        first.hook.set(move |call| {
            if matches!(call.verb, Verb::Unlink | Verb::Rename) {
                engine.io.sync(&known).expect("a tier that works");
            }
        });
        let there = way.go(&first.engine, &file).map(|name| (name.into(), bytes_of("d/f")));
        assert!(first.media.seals() > 0);
        judge(&first.media, &first.store.snapshot(), &Contents::from_iter(there), &["d/f"])
            .unwrap_or_else(|e| panic!("{way:?}, recorded: {recorded}: {e}"));
    }
}

/// A change that is announced after the seal is durable before the store is asked, though the sync
/// has not ended.
// S-3
#[test]
fn a_name_that_goes_within_the_first_sync_does_not_come_back() {
    for way in WAYS {
        let (mut first, file) = named_in_a_directory();
        let (engine, known, came) = (first.engine.clone(), file.clone(), AtomicBool::new(false));
        let (media, store) = (first.media.clone(), first.store.clone());
        let (judged, says) = std::sync::mpsc::channel();
        first.media.at_shadow_sync(move || {
            if !came.swap(true, Relaxed) {
                way.go(&engine, &known);
                let judgement = judge(&media, &store.snapshot(), &Contents::new(), &["d/f"]);
                judged.send(judgement).expect("somebody waits for it");
            }
        });
        first.sync("d/f", &file);
        assert!(first.media.seals() > 0);
        let images = says.recv().expect("it was sealed");
        let images = images.unwrap_or_else(|e| panic!("{way:?}: {e}"));
        assert!(images > 2, "nothing was unsynced");
    }
}

const NEW_DIR: forebay_backing::New =
    forebay_backing::New { mode: 0o755, umask: 0, uid: 0, gid: 0 };
