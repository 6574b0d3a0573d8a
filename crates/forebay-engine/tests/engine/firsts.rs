//! The first sync of a file that is written past us: one flush of the device, for its bytes and for what the log has of it.

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

/// An engine, and what was synced past it.
struct Firsts {
    media: CrashMedia,
    store: MemStore,
    hook: Arc<Hook>,
    engine: Arc<Engine>,
    open: Vec<(OpenFile, Past)>,
    synced: Contents,
}

impl Firsts {
    /// One whose log was synced once: what is ahead of its records is filled.
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

    /// A file that is written, past us, and not synced yet.
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

    /// A file that the daemon has written and synced, and with it the log.
    fn seen(&self, name: &str) -> OpenFile {
        let (file, _) = self.engine.verbs.create(Path::new(name), &NEW).expect("a new name");
        self.engine.io.write(&file, 0, &[1; 10]).expect("room");
        let before = self.media.syncs().0;
        self.engine.io.sync(&file).expect("a tier that works");
        assert_eq!(self.media.syncs().0 - before, 1);
        file
    }

    /// One that was flushed since, of which the log has the record, not synced.
    fn settled(&self, name: &str) -> OpenFile {
        let file = self.seen(name);
        self.engine.drain.flush_file(&file).expect("a store that works");
        file
    }

    fn sync(&mut self, name: &str, file: &Arc<File>) {
        self.engine.io.sync(file).expect("a tier that works");
        self.synced.insert(name.into(), bytes_of(name));
    }

    /// Whether after any cut of the power what was synced is there, also on a store that has lost its power too.
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

/// Whether each image of the tier leaves all of `there`, and nothing of `gone`. Returns how many there were.
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

/// The sync of the directory, which many programs make right after it, finds the names durable, and makes those durable that
/// have changed since.
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

/// What else the log has by then is durable with it.
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

/// Without what the seal presumes of the log on the device, the file is lost with the power.
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

/// The zeros ahead of the log's records have to be durable: else the file system has something to do with its sync.
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

/// Where no flush of one file is one of the other each is synced.
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

/// The file system may commit the seal before the sync has ended: what it presumes is there, or it is not.
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

/// Others who need the log durable do not take it for that before the flush.
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

/// A device that could not be flushed may have lost what it had of the log: that is written again before anybody is told
/// that it is durable.
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

/// Something else could not be synced while the first sync of a file is under way: what the log was given is given once more.
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

/// How a name goes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Unlink,
    Rename,
    /// That of a directory above it.
    Above,
}

const WAYS: [Way; 3] = [Way::Unlink, Way::Rename, Way::Above];

impl Way {
    /// Takes the name `d/f` away. Returns the one that the file has then.
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

/// `d/f`, which was not synced; the store has its directory durably.
fn named_in_a_directory() -> (Firsts, Arc<File>) {
    let mut first = Firsts::new();
    first.engine.names.ask(|b| b.mkdir(Path::new("d"), &NEW_DIR)).expect("memory");
    first.store.sync_dir(Path::new("")).expect("memory");
    let file = first.write("d/f");
    (first, file)
}

/// What is announced of a name before its file is sealed is durable with the seal: the file is not found by the name that it
/// had, whether its records were durable before or not.
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

/// What is announced of it once it is sealed is durable before the store is asked, though the sync has not ended.
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
