//! The messages of a home to the members that keep copies of its files, their effect there, and who
//! owns a file when its home is back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use forebay_backing::wrap::Verb;
use forebay_backing::{BackingStore, FileKey, RenameMode, Result, SetAttr};
use forebay_engine::{Config, CopiesAt, Engine, OpenFile, Progress, Teller, Told, Tunables};

use crate::copies::{Act, HOME, Way, partner_on, settle_all, take_over};
use crate::hook::Hook;
use crate::media::{CrashMedia, Fault};
use crate::start::{
    NEW, PATIENCE, abandon, beside, named, patient, read_all, receive, simulated, start, time,
    within,
};
use crate::store::MemStore;

/// The home of a pair, with its first process and the first fill.
const FIRST: Teller<'static> = Teller { home: HOME, epoch: 1, fill: 1 };

/// A home, a member that keeps its copies, and the store of both.
pub struct Pair {
    pub store: MemStore,
    pub hook: Arc<Hook>,
    pub home: Arc<Engine>,
    pub media: CrashMedia,
    pub keeper: Arc<Engine>,
    pub way: Arc<Way>,
}

pub fn home_on(
    store: &MemStore,
    media: &CrashMedia,
    tunables: Tunables,
) -> (Arc<Engine>, Arc<Hook>) {
    home_with(store, media, tunables, Config::default())
}

pub fn home_with(
    store: &MemStore,
    media: &CrashMedia,
    tunables: Tunables,
    config: Config,
) -> (Arc<Engine>, Arc<Hook>) {
    let (backing, hook) = Hook::on(store.clone());
    let config = Config { fill_rate: 1 << 20, ..config };
    (start(Arc::new(media.clone()), backing, "boot-m", config, tunables).unwrap(), hook)
}

pub fn pair() -> Pair {
    pair_with(&CrashMedia::default(), Config::default())
}

/// Makes a pair whose home is on this medium.
pub fn pair_with(at_home: &CrashMedia, config: Config) -> Pair {
    let (store, media) = (MemStore::new(), CrashMedia::default());
    let keeper = partner_on(&media, store.clone(), "boot-p").unwrap();
    let (home, hook) = home_with(&store, at_home, patient(), config);
    let way = Way::to(&[&keeper]);
    home.files.begin_copies(way.clone(), CopiesAt::Sync);
    way.fill_up(&home, "p").unwrap();
    Pair { store, hook, home, media, keeper, way }
}

impl Pair {
    /// Makes a file at the home with these bytes.
    pub fn make(&self, name: &str, bytes: &[u8]) -> OpenFile {
        let (file, _) = self.home.verbs.create(Path::new(name), &NEW).unwrap();
        self.home.io.write(&file, 0, bytes).unwrap();
        file
    }

    pub fn flush(&self) {
        let report = self.home.drain.flush(&[], &Progress::default());
        assert!(report.failures.is_empty(), "{:?}", report.failures);
    }

    /// Returns the copies for the home: path and bytes.
    pub fn kept(&self) -> Vec<(String, u64)> {
        let list = self.keeper.copies.list(HOME);
        list.iter().map(|copy| (copy.path.display().to_string(), copy.bytes)).collect()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.way.cut();
        abandon(self.home.clone());
        abandon(self.keeper.clone());
    }
}

pub fn read(engine: &Arc<Engine>, name: &str) -> Vec<u8> {
    read_all(engine, Path::new(name)).unwrap()
}

pub fn on_store(store: &MemStore, name: &str) -> Vec<u8> {
    store.snapshot().files()[Path::new(name)].clone()
}

/// The sync here and that of the partner each wait until the other has begun.
#[test]
fn a_sync_here_and_that_of_partners_run_at_once() {
    let media = CrashMedia::default();
    let pair = pair_with(&media, Config::default());
    let file = pair.make("f", &[1; 9000]);
    let [syncs, told] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    let (begun, there) = (syncs.clone(), told.clone());
    media.at_shadow_sync(move || {
        begun.fetch_add(1, Relaxed);
        within("partners are told", || there.load(Relaxed) > 0);
    });
    *pair.way.after.lock().unwrap() = Some(Act::new(move || {
        told.fetch_add(1, Relaxed);
        within("it is synced here", || syncs.load(Relaxed) > 0);
    }));
    pair.home.io.sync(&file).unwrap();
    *pair.way.after.lock().unwrap() = None;
    assert_eq!(pair.kept(), [("f".into(), 9000)]);
}

/// A sync is answered once both ends are durable: a failure at either end fails it.
#[test]
fn a_sync_that_fails_at_one_end_fails() {
    let media = CrashMedia::default();
    let pair = pair_with(&media, Config::default());
    let file = pair.make("f", &[1; 9000]);
    media.set_fault(Some(Fault { n: 1, count: u64::MAX, errno: libc::EIO }));
    pair.home.io.sync(&file).unwrap_err();
    media.set_fault(None);
    let other = pair.make("g", &[2; 9000]);
    pair.way.cut();
    pair.home.io.sync(&other).unwrap_err();
}

/// After a bug in one sync the next one neither acknowledges bytes that were never sent, nor waits
/// for ever for a round that no thread ends.
#[test]
fn a_sync_after_one_that_met_a_bug_sends_all_of_it() {
    let pair = pair();
    let file = pair.make("f", &[1; 9000]);
    pair.home.io.sync(&file).unwrap();
    pair.home.io.write(&file, 100, &[2; 5000]).unwrap();
    pair.way.bug.store(true, Relaxed);
    let first = catch_unwind(AssertUnwindSafe(|| pair.home.io.sync(&file)));
    assert!(first.is_err() || first.is_ok_and(|synced| synced.is_err()), "it is not acknowledged");
    assert!(!pair.way.bug.load(Relaxed), "the bug was met");
    pair.home.io.sync(&file).unwrap();
    pair.way.cut();
    assert_eq!(take_over(&pair.keeper).unwrap().0, 1);
    let mut want = [1; 9000];
    want[100..5100].fill(2);
    assert!(read(&pair.keeper, "f") == want, "the partner has what the first one was to send");
}

/// Partners have all synced bytes, and only new ones are sent, however many stretches the file has.
#[test]
fn a_sync_sends_what_partners_do_not_have() {
    let pair = pair();
    let file = pair.make("f", &[1; 100]);
    assert_eq!(pair.kept(), [], "never synced");
    for at in 0..500 {
        pair.home.io.write(&file, at * 8192, &[2; 512]).unwrap();
    }
    pair.home.io.sync(&file).unwrap();
    pair.way.take_counts();
    pair.home.io.write(&file, 8192, &[3; 512]).unwrap();
    pair.home.io.sync(&file).unwrap();
    let (told, words, bytes) = pair.way.take_counts();
    assert!(told == 1 && bytes == 512 && words < 100, "{told} messages, {words}, {bytes}");
    pair.home.io.sync(&file).unwrap();
    assert_eq!(pair.way.take_counts(), (0, 0, 0), "nothing is new");
    pair.home.io.write(&file, 5000 << 20, &[4; 10]).unwrap();
    pair.home.io.sync(&file).unwrap();
    let (_, _, bytes) = pair.way.take_counts();
    // Holes are whole pages.
    assert!((10..5000).contains(&bytes), "holes are told of, and not sent: {bytes}");
    let seen = |engine: &Arc<Engine>| {
        let file = engine.io.open(Path::new("f"), None).unwrap();
        let mut buf = vec![9; 500 * 8192];
        assert_eq!(engine.io.read(&file, 0, &mut buf).unwrap(), buf.len());
        let mut end = [9; 20];
        assert_eq!(engine.io.read(&file, (5000 << 20) - 10, &mut end).unwrap(), 20);
        (engine.verbs.stat_open(&file).size, buf, end)
    };
    let ours = seen(&pair.home);
    pair.way.cut();
    assert_eq!(take_over(&pair.keeper).unwrap().0, 1);
    assert!(seen(&pair.keeper) == ours);
}

/// Partners know a change of a name, a size or a mode when it is answered; files that are flushed,
/// or removed, they forget, and free their room.
#[test]
fn partners_know_of_changes_when_they_are_answered() {
    let pair = pair();
    let used = || pair.keeper.ops.status().used_bytes;
    let before = used();
    let file = pair.make("f", &[1; 20_000]);
    pair.home.io.sync(&file).unwrap();
    assert!(used() >= before + 20_000, "copies take room");
    pair.home.io.set_len(&file, 10_000).unwrap();
    assert_eq!(pair.kept(), [("f".into(), 10_000)]);
    let attr = pair.home.verbs.stat(Path::new("f")).unwrap();
    let from = named(Path::new("f"), &attr);
    pair.home.verbs.rename(from, Path::new("g"), None, RenameMode::Replace).unwrap();
    assert_eq!(pair.kept(), [("g".into(), 10_000)]);
    pair.home.names.alter(|b| b.mkdir(Path::new("d"), &NEW)).unwrap();
    let at = named(Path::new("g"), &attr);
    pair.home.verbs.rename(at, Path::new("d/g"), None, RenameMode::Replace).unwrap();
    let dir = pair.home.names.ask(|b| b.stat(Path::new("d"))).unwrap();
    let dir = forebay_engine::Named { path: Path::new("d"), key: dir.key, is_dir: true };
    pair.home.verbs.rename(dir, Path::new("e"), None, RenameMode::Replace).unwrap();
    assert_eq!(pair.kept(), [("e/g".into(), 10_000)]);
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    pair.home.verbs.set_attr(named(Path::new("e/g"), &attr), &set).unwrap();
    drop(file);
    pair.flush();
    assert_eq!(pair.kept(), []);
    let file = pair.make("h", &[2; 5000]);
    pair.home.io.sync(&file).unwrap();
    let attr = pair.home.verbs.stat(Path::new("h")).unwrap();
    pair.home.verbs.unlink(named(Path::new("h"), &attr)).unwrap();
    assert_eq!(pair.kept(), []);
    pair.home.io.write(&file, 0, &[3; 100]).unwrap();
    pair.home.io.sync(&file).unwrap();
    assert_eq!(pair.kept(), [], "nobody can open it any more");
    drop(file);
    within("the room is given back", || used() == before);
}

/// The member that takes over ends a flush that was cut half way, and late writes of the old home
/// do not remain.
#[test]
fn what_a_former_home_writes_late_does_not_remain() {
    for cut_at in [Verb::WriteAt, Verb::SyncFiles, Verb::FileStat] {
        let pair = pair();
        let file = pair.make("f", &[1; 60_000]);
        pair.flush();
        // The second half was not synced by any program: the flush has to do it.
        pair.home.io.write(&file, 10_000, &[2; 20_000]).unwrap();
        pair.home.io.sync(&file).unwrap();
        pair.home.io.write(&file, 40_000, &[2; 30_000]).unwrap();
        let (reached, at) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        pair.hook.set(move |call| {
            if call.verb == cut_at {
                let _ = reached.send(());
                let _ = wait.recv();
            }
        });
        let home = pair.home.clone();
        let flush = beside(move || home.drain.flush(&[], &Progress::default()));
        receive(&at, PATIENCE).unwrap();
        pair.way.cut();
        let keeper = &pair.keeper;
        take_over(keeper).unwrap();
        let mut now = read(&pair.home, "f");
        assert_eq!(read(keeper, "f"), now, "all of what the flush was to bring home");
        let taken = keeper.io.open(Path::new("f"), None).unwrap();
        keeper.io.write(&taken, 20_000, &[3; 25_000]).unwrap();
        keeper.io.set_len(&taken, 65_000).unwrap();
        now[20_000..45_000].fill(3);
        now.truncate(65_000);
        assert!(keeper.drain.flush(&[], &Progress::default()).failures.is_empty());
        assert_eq!(on_store(&pair.store, "f"), now);
        assert!(!keeper.files.is_at_rest(taken.key), "the old home may write still");
        assert_eq!(keeper.ops.evict(&[], &Progress::default()).bytes, 0, "it is needed again");
        drop(go);
        flush.join();
        let writes = cut_at == Verb::WriteAt;
        assert_eq!(on_store(&pair.store, "f") != now, writes, "{cut_at:?}: it has written late");
        assert_eq!(read(keeper, "f"), now, "whatever the store has");
        let attr = keeper.verbs.stat(Path::new("f")).unwrap();
        assert_eq!(attr.size, 65_000);
        keeper.ops.settle_taken(taken.key).unwrap();
        assert_eq!(on_store(&pair.store, "f"), now);
        assert!(keeper.files.is_at_rest(taken.key));
        drop(taken);
        settle_all(keeper, &pair.store).unwrap();
    }
}

/// A held file stays held, and its flushed bytes are flushed again, even if the member that took it over dies.
#[test]
fn a_file_is_held_across_the_death_of_its_taker() {
    for (boot, power) in [("boot-p", false), ("boot-p2", true)] {
        let pair = pair();
        let file = pair.make("f", &[1; 9000]);
        pair.home.io.sync(&file).unwrap();
        pair.way.cut();
        take_over(&pair.keeper).unwrap();
        assert!(pair.keeper.drain.flush(&[], &Progress::default()).failures.is_empty());
        let disk = pair.media.snapshot();
        let disk = match power {
            true => disk.crash_images(&mut crate::rng::Rng::new(1), 0).remove(0),
            false => disk.process_crash_image(),
        };
        let again = partner_on(&CrashMedia::on(disk), pair.store.clone(), boot).unwrap();
        assert!(!again.files.is_at_rest(file.key), "it is held still");
        let (late, _) =
            pair.store.open_seen(Path::new("f"), forebay_backing::Access::ReadWrite).unwrap();
        late.write_at(&[7; 12_000], 0).unwrap();
        again.ops.settle_taken(file.key).unwrap();
        assert_eq!(on_store(&pair.store, "f"), [1; 9000]);
        assert!(again.files.is_at_rest(file.key));
        abandon(again);
    }
}

/// If the member that takes over dies in the middle, either the copy or the file is there, and a
/// repeated adoption finds one of them.
#[test]
fn an_adoption_that_is_broken_off_can_be_done_again() {
    let pair = pair();
    let file = pair.make("f", &[1; 9000]);
    pair.home.io.sync(&file).unwrap();
    pair.way.cut();
    let moments = Arc::new(std::sync::Mutex::new(Vec::new()));
    let out = moments.clone();
    pair.media.set_hook(Some(Box::new(move |_, disk| out.lock().unwrap().push(disk.clone()))));
    take_over(&pair.keeper).unwrap();
    pair.media.set_hook(None);
    let mut moments = std::mem::take(&mut *moments.lock().unwrap());
    moments.push(pair.media.snapshot());
    assert!(moments.len() > 3, "it is done in steps");
    let (mut copies, mut files, mut rng) = (0, 0, crate::rng::Rng::new(5));
    for disk in &moments {
        let images = disk.crash_images(&mut rng, 3).into_iter().map(|image| ("boot-p2", image));
        for (boot, image) in [("boot-p", disk.process_crash_image())].into_iter().chain(images) {
            let media = CrashMedia::on(image);
            let engine = partner_on(&media, pair.store.clone(), boot).unwrap();
            match engine.copies.list(HOME).len() {
                0 => files += 1,
                _ => copies += 1,
            }
            take_over(&engine).unwrap();
            let again = engine.ops.adopt(HOME, file.key);
            again.and_then(|()| engine.ops.hold_taken(file.key, &[])).unwrap();
            assert_eq!(read(&engine, "f"), [1; 9000]);
            assert_eq!(engine.ops.list(Path::new("")).unwrap().len(), 1);
            abandon(engine);
        }
    }
    assert!(copies > 0 && files > 0, "{copies} copies, {files} files");
}

/// An adopted file is not flushed, and not found by programs, until it is completely taken over;
/// not after a restart either.
#[test]
fn what_is_adopted_rests_until_it_is_ours() {
    let pair = pair();
    let file = pair.make("f", &[1; 9000]);
    pair.home.io.sync(&file).unwrap();
    pair.way.cut();
    pair.keeper.ops.adopt(HOME, file.key).unwrap();
    let rests = |engine: &Arc<Engine>| {
        engine.drain.flush(&[], &Progress::default());
        assert_eq!(on_store(&pair.store, "f"), [0u8; 0], "not flushed");
        assert_eq!(read(engine, "f"), [0u8; 0], "nor served");
        assert_eq!(engine.files.unsettled().len(), 1);
        engine.ops.adopt(HOME, file.key).unwrap();
    };
    rests(&pair.keeper);
    let media = CrashMedia::on(pair.media.snapshot().process_crash_image());
    let again = partner_on(&media, pair.store.clone(), "boot-p").unwrap();
    rests(&again);
    again.ops.hold_taken(file.key, &[]).unwrap();
    assert_eq!(read(&again, "f"), [1; 9000]);
    assert!(again.drain.flush(&[], &Progress::default()).failures.is_empty());
    assert_eq!(on_store(&pair.store, "f"), [1; 9000]);
    again.ops.settle_taken(file.key).unwrap();
    abandon(again);
}

/// A home that is back keeps its own files: the member that took a file over drops it, and can take
/// it over again.
#[test]
fn what_is_disowned_leaves_nothing_behind() {
    let pair = pair();
    let file = pair.make("f", &[1; 9000]);
    pair.home.io.sync(&file).unwrap();
    let used = || pair.keeper.ops.status().used_bytes;
    for open in [false, true] {
        pair.way.fill_up(&pair.home, "p").unwrap();
        take_over(&pair.keeper).unwrap();
        let held = open.then(|| pair.keeper.io.open(Path::new("f"), None).unwrap());
        pair.keeper.ops.disown(file.key).unwrap();
        drop(held);
        assert!(pair.keeper.files.is_at_rest(file.key));
        assert!(pair.keeper.drain.flush(&[], &Progress::default()).failures.is_empty());
        within("nothing is left", || used() == 0);
        assert_eq!(on_store(&pair.store, "f"), [0u8; 0], "nor was anything flushed");
    }
    pair.way.fill_up(&pair.home, "p").unwrap();
    pair.flush();
    assert_eq!(on_store(&pair.store, "f"), [1; 9000]);
}

/// A partner that was full has acknowledged nothing, and is filled anew once it has room.
#[test]
fn a_full_partner_acknowledges_nothing() {
    let pair = pair();
    let file = pair.make("f", &[1; 9000]);
    pair.home.io.sync(&file).unwrap();
    pair.home.io.write(&file, 4000, &[2; 9000]).unwrap();
    let mut failed = 0;
    for n in 1.. {
        pair.media.set_fault(Some(Fault { n, count: u64::MAX, errno: libc::ENOSPC }));
        let synced = pair.home.io.sync(&file);
        let given = pair.media.faults_given();
        pair.media.set_fault(None);
        let image = CrashMedia::on(
            pair.media.snapshot().crash_images(&mut crate::rng::Rng::new(n), 0).remove(0),
        );
        if synced.is_ok() {
            assert_eq!(given, failed, "no fault was left out");
            break;
        }
        failed = given;
        let engine = partner_on(&image, pair.store.clone(), "boot-p2").unwrap();
        assert_eq!(take_over(&engine).unwrap().0, 1, "what it had acknowledged is there");
        let seen = read(&engine, "f");
        assert!(seen[..4000] == [1; 4000], "fault {n}");
        abandon(engine);
        if pair.home.io.sync(&file).is_err() {
            // Success of a later sync of its own proves nothing any more.
            pair.way.fill_up(&pair.home, "p").unwrap();
        }
        pair.home.io.write(&file, 13_000 + n * 5000, &[2; 100]).unwrap();
    }
    assert!(failed > 3, "{failed} faults");
    take_over(&pair.keeper).unwrap();
    assert_eq!(read(&pair.keeper, "f"), read(&pair.home, "f"));
}

/// Messages that come late, or twice, change nothing.
#[test]
fn an_older_round_never_lands_on_a_newer_one() {
    let pair = pair();
    let file = pair.make("f", &[1; 3 << 20]);
    pair.home.io.sync(&file).unwrap();
    pair.home.io.write(&file, 100, &[2; 2 << 20]).unwrap();
    pair.home.io.sync(&file).unwrap();
    pair.home.io.set_len(&file, 1 << 20).unwrap();
    let other = pair.make("g", &[5; 100]);
    pair.home.io.sync(&other).unwrap();
    pair.home.drain.flush_file(&other).unwrap();
    let sent = std::mem::take(&mut *pair.way.sent.lock().unwrap());
    assert!(sent.len() > 5, "in pieces");
    let before = pair.kept();
    let mut refused = 0;
    for message in &sent {
        let (file, words, bytes) = (message.file, &message.words, &message.bytes);
        let kept = pair.keeper.copies.keep(FIRST, Told::Owes, 1, file, words, bytes);
        refused += usize::from(kept.is_err());
        if let Err(e) = kept {
            assert!(e.is(libc::ESTALE), "{e}");
        }
    }
    assert!(refused > 3, "{refused}");
    assert_eq!(pair.kept(), before);
    pair.home.io.write(&file, 0, &[3; 10]).unwrap();
    pair.home.io.sync(&file).unwrap();
    pair.way.cut();
    take_over(&pair.keeper).unwrap();
    assert_eq!(read(&pair.keeper, "f"), read(&pair.home, "f"));
}

/// Bytes that are read from a file that is cut meanwhile may be zeros that no program wrote:
/// whenever the home dies, partners have the file from before the cut or from after it.
#[test]
fn a_file_that_is_cut_while_it_is_copied_is_never_half_of_each() {
    let pair = pair();
    let file = pair.make("f", &[1; 3 << 20]);
    let (home, open, media) = (pair.home.clone(), file.clone(), pair.media.clone());
    let disks = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (out, mut cut) = (disks.clone(), None);
    *pair.way.after.lock().unwrap() = Some(Act::new(move || {
        out.lock().unwrap().push(media.snapshot());
        if cut.is_none() {
            let (theirs, file) = (home.clone(), open.clone());
            cut = Some(beside(move || theirs.io.set_len(&file, 100)));
            within("it is cut", || home.verbs.stat_open(&open).size == 100);
        }
    }));
    pair.home.io.sync(&file).unwrap();
    *pair.way.after.lock().unwrap() = None;
    let disks = std::mem::take(&mut *disks.lock().unwrap());
    let mut lens = Vec::new();
    for disk in disks {
        let media = CrashMedia::on(disk.process_crash_image());
        let keeper = partner_on(&media, pair.store.clone(), "boot-p").unwrap();
        if take_over(&keeper).unwrap().0 > 0 {
            let seen = read(&keeper, "f");
            assert!(seen.iter().all(|byte| *byte == 1), "of {} bytes", seen.len());
            lens.push(seen.len());
        }
        abandon(keeper);
    }
    assert_eq!(lens.last(), Some(&100), "{lens:?}");
}

/// Between the store's rename and its answer a file is found by its new name, also if a directory
/// above it was renamed.
#[test]
fn a_rename_that_dies_half_way_loses_no_copy() {
    let pair = pair();
    pair.home.names.alter(|b| b.mkdir(Path::new("d"), &NEW)).unwrap();
    let file = pair.make("d/f", &[1; 5000]);
    pair.home.io.sync(&file).unwrap();
    let moment = Arc::new(std::sync::Mutex::new(None));
    let (out, store, media) = (moment.clone(), pair.store.clone(), pair.media.clone());
    pair.hook.set_after(move |call| {
        if call.verb == Verb::Rename {
            *out.lock().unwrap() = Some((store.snapshot(), media.snapshot()));
        }
    });
    let key = |path: &str| pair.home.names.ask(|b| b.stat(Path::new(path))).unwrap().key;
    for (from, to, now, is_dir) in [("d/f", "d/g", "d/g", false), ("d", "e", "e/g", true)] {
        let named = forebay_engine::Named { path: Path::new(from), key: key(from), is_dir };
        pair.home.verbs.rename(named, Path::new(to), None, RenameMode::Replace).unwrap();
        let (tree, disk) = moment.lock().unwrap().take().expect("the store has renamed it");
        let (media, store) = (CrashMedia::on(disk), MemStore::on(tree));
        let keeper = partner_on(&media, store.clone(), "boot-p").unwrap();
        assert_eq!(take_over(&keeper).unwrap().0, 1);
        assert_eq!(read(&keeper, now), [1; 5000]);
        assert!(keeper.drain.flush(&[], &Progress::default()).failures.is_empty());
        assert_eq!(on_store(&store, now), [1; 5000]);
        abandon(keeper);
        assert_eq!(pair.kept(), [(now.to_string(), 5000)]);
    }
}

/// A partner that comes later has everything once it was filled, at the configured rate, while
/// programs go on.
#[test]
fn a_partner_is_filled_while_programs_go_on() {
    let _simulated = simulated();
    let pair = pair();
    for n in 0..8 {
        let file = pair.make(&format!("f{n}"), &[n + 1; 1 << 20]);
        if n != 7 {
            pair.home.io.sync(&file).unwrap();
        }
    }
    assert_eq!(pair.home.outbox.behind().copied_files, 7);
    let media = CrashMedia::default();
    let second = partner_on(&media, pair.store.clone(), "boot-q").unwrap();
    *pair.way.comes.lock().unwrap() = Some(second.clone());
    let (home, way) = (pair.home.clone(), pair.way.clone());
    let began = time().now();
    let filled = beside(move || way.fill_up(&home, "q"));
    let file = pair.home.io.open(Path::new("f3"), None).unwrap();
    let mut n = 0;
    while !filled.is_finished() {
        n += 1;
        pair.home.io.write(&file, n * 4096 % (2 << 20), &[n as u8; 4096]).unwrap();
        pair.home.io.sync(&file).unwrap();
        if n % 16 == 0 {
            pair.home.io.set_len(&file, 1 << 20).unwrap();
        }
        time().sleep(Duration::from_millis(20));
    }
    filled.join().unwrap();
    // 7 MiB, at 1 MiB/s, and the pauses between files.
    let took = time().since(began);
    assert!(took > Duration::from_secs(6) && took < Duration::from_secs(60), "{took:?}");
    assert!(n > 20, "{n}");
    pair.home.io.write(&file, 0, &[200; 10]).unwrap();
    pair.home.io.sync(&file).unwrap();
    assert_eq!(second.copies.list(HOME).len(), 7);
    // Only the second partner is left.
    pair.way.cut();
    take_over(&second).unwrap();
    for n in 0..7 {
        let name = format!("f{n}");
        assert!(read(&second, &name) == read(&pair.home, &name), "{name}");
    }
    abandon(second);
}

/// While it is suspended the drain makes no call to the store, not even one that a flush under way
/// had still to make; then it goes on.
#[test]
fn a_drain_that_is_suspended_leaves_the_store_alone() {
    let pair = pair();
    let file = pair.make("f", &[1; 3 << 20]);
    let calls = Arc::new(AtomicU64::new(0));
    let (reached, at) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let count = calls.clone();
    pair.hook.set(move |call| {
        count.fetch_add(1, Relaxed);
        if call.verb == Verb::WriteAt {
            let _ = reached.send(());
            let _ = wait.recv();
        }
    });
    let home = pair.home.clone();
    let flush = beside(move || home.drain.flush(&[], &Progress::default()));
    receive(&at, PATIENCE).unwrap();
    let suspension = pair.home.drain.suspend();
    assert!(!pair.home.drain.idle(Duration::from_millis(20)), "a write is on");
    let before = calls.load(Relaxed);
    drop(go);
    assert!(pair.home.drain.idle(PATIENCE));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(calls.load(Relaxed), before, "none was made since");
    assert_ne!(on_store(&pair.store, "f"), [1; 3 << 20]);
    drop(suspension);
    flush.join();
    pair.home.drain.flush_file(&file).unwrap();
    assert_eq!(on_store(&pair.store, "f"), [1; 3 << 20]);
}

/// A member that comes back does not flush files that another one took over. Equal bytes are
/// dropped; different ones stay aside, and programs see the file of the other member.
#[test]
fn what_is_superseded_is_not_flushed_and_stays_aside_if_it_differs() {
    let (store, media) = (MemStore::new(), CrashMedia::default());
    let (home, _) = home_on(&store, &media, patient());
    let keys: Vec<FileKey> = ["same", "other", "mine"]
        .map(|name| {
            let (file, attr) = home.verbs.create(Path::new(name), &NEW).unwrap();
            home.io.write(&file, 0, &[1; 5000]).unwrap();
            home.io.sync(&file).unwrap();
            attr.key
        })
        .to_vec();
    abandon(home);
    let disk = media.snapshot().process_crash_image();
    for (name, byte) in [("same", 1), ("other", 2)] {
        let file = store.open(Path::new(name), forebay_backing::Access::ReadWrite).unwrap();
        file.write_at(&[byte; 5000], 0).unwrap();
    }
    let again = |disk| {
        let media = CrashMedia::on(disk);
        let (home, _) = home_on(&store, &media, patient());
        (home, media)
    };
    let (home, media) = again(disk);
    keys[..2].iter().for_each(|key| home.ops.supersede(*key).unwrap());
    assert_eq!(home.files.unsettled().len(), 1, "the others are not its own");
    let compare = |home: &Arc<Engine>, key| {
        let name = home.ops.superseded().into_iter().find(|it| it.file == key).unwrap().path;
        let now = store.open(&name, forebay_backing::Access::Read).unwrap();
        let reading = |at, buf: &mut [u8]| -> Result<usize> { now.read_at(buf, at) };
        home.ops.compare_superseded(key, now.stat().unwrap().size, &reading).unwrap()
    };
    let check = |home: &Arc<Engine>, kept: usize| {
        let report = home.drain.flush(&[], &Progress::default());
        assert_eq!(report.failures.len(), kept, "{:?}", report.failures);
        assert!(report.failures.iter().all(|it| it.state == "conflict"));
        assert_eq!(on_store(&store, "other"), [2; 5000]);
        assert_eq!(read(home, "other"), [2; 5000], "programs see the file as it is");
        assert_eq!(on_store(&store, "mine"), [1; 5000]);
    };
    check(&home, 2);
    let disk = media.snapshot().process_crash_image();
    abandon(home);
    let (home, _) = again(disk);
    check(&home, 2);
    assert_eq!(home.ops.superseded().len(), 2);
    assert!(compare(&home, keys[0]) && !compare(&home, keys[1]));
    check(&home, 1);
    home.ops.resolve(Path::new("other"), forebay_engine::Keep::Both).unwrap();
    check(&home, 0);
    assert_eq!(on_store(&store, "other.forebay-ours-1"), [1; 5000]);
    assert!(home.ops.superseded().is_empty());
    abandon(home);
}

/// Nobody takes over bytes that a home wrote around its tier: partners have durably forgotten the
/// earlier ones.
#[test]
fn partners_forget_durably_before_a_file_is_changed_around_the_tier() {
    let pair = pair();
    let file = pair.make("f", &[1; 5000]);
    pair.home.io.sync(&file).unwrap();
    pair.flush();
    let tunables = Tunables { policy: forebay_engine::WritePolicy::WriteAround, ..patient() };
    pair.home.ops.set_tunables(tunables).unwrap();
    pair.home.io.write(&file, 0, &[2; 100]).unwrap();
    let image = pair.media.snapshot().crash_images(&mut crate::rng::Rng::new(3), 0).remove(0);
    let keeper = partner_on(&CrashMedia::on(image), pair.store.clone(), "boot-p2").unwrap();
    assert!(keeper.copies.list(HOME).is_empty());
    abandon(keeper);
}

/// A member that is cut off from its partners acknowledges no sync and flushes nothing.
#[test]
fn without_partners_nothing_is_acknowledged_or_flushed() {
    let pair = pair();
    let file = pair.make("f", &[1; 5000]);
    pair.way.cut();
    assert!(pair.home.io.sync(&file).is_err());
    let report = pair.home.drain.flush(&[], &Progress::default());
    assert_eq!(report.failures.len(), 1);
    assert_eq!(on_store(&pair.store, "f"), [0u8; 0]);
    // Copies are not wanted any more: everything works as without partners.
    pair.way.wants.store(false, Relaxed);
    pair.home.io.sync(&file).unwrap();
    pair.flush();
    assert_eq!(on_store(&pair.store, "f"), [1; 5000]);
}

/// With too few partners syncs fail for programs; dirty files are still taken over, renamed and flushed.
#[test]
fn with_too_few_partners_a_sync_fails_and_a_flush_does_not() {
    let pair = pair();
    let file = pair.make("f", &[1; 5000]);
    pair.way.is_short.store(true, Relaxed);
    let why = pair.home.io.sync(&file).unwrap_err();
    assert!(why.is(libc::EIO), "{why}");
    assert_eq!(pair.kept(), [("f".into(), 5000)]);
    let from = named(Path::new("f"), &pair.home.verbs.stat(Path::new("f")).unwrap());
    pair.home.verbs.rename(from, Path::new("g"), None, RenameMode::Replace).unwrap();
    pair.home.io.set_len(&file, 4000).unwrap();
    pair.flush();
    assert_eq!(on_store(&pair.store, "g"), [1; 4000]);
    pair.home.io.sync(&file).expect("it is on the store");
    // The member that takes over has too few partners itself.
    pair.home.io.write(&file, 0, &[2; 100]).unwrap();
    pair.home.io.sync(&file).unwrap_err();
    pair.way.cut();
    let way = Way::to(&[]);
    way.is_short.store(true, Relaxed);
    pair.keeper.files.begin_copies(way.clone(), CopiesAt::Sync);
    take_over(&pair.keeper).unwrap();
    assert_eq!(read(&pair.keeper, "g")[..101], [&[2; 100][..], &[1]].concat());
    let report = pair.keeper.drain.flush(&[], &Progress::default());
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert_eq!(on_store(&pair.store, "g"), read(&pair.keeper, "g"));
    // Where partners are to have each write, a write fails.
    pair.keeper.files.begin_copies(way, CopiesAt::Write);
    let file = pair.keeper.io.open(Path::new("g"), None).unwrap();
    pair.keeper.io.write(&file, 0, &[3; 100]).unwrap_err();
}

/// A member without copies for the sender says so; malformed messages are refused.
#[test]
fn words_that_cannot_be_read_are_refused() {
    let pair = pair();
    let key = pair.make("f", &[1; 10]).key;
    let owes = Told::Owes;
    let refused = pair.keeper.copies.keep(FIRST, owes, 1, key, &[255; 3], &[]).unwrap_err();
    assert!(refused.is(libc::EPROTO), "{refused}");
    let file = pair.home.io.open(Path::new("f"), None).unwrap();
    pair.home.io.sync(&file).unwrap();
    let message = pair.way.sent.lock().unwrap().pop().unwrap();
    let other = Teller { home: "other", ..FIRST };
    let stranger = pair.keeper.copies.keep(other, owes, 1, key, &message.words, &message.bytes);
    assert!(stranger.unwrap_err().is(libc::ESTALE));
    assert_eq!(pair.keeper.copies.homes(), [HOME]);
    pair.keeper.copies.drop_home(HOME).unwrap();
    assert!(pair.keeper.copies.homes().is_empty());
    pair.home.io.write(&file, 0, &[2; 10]).unwrap();
    assert!(
        pair.home.io.sync(&file).unwrap_err().is(libc::ESTALE),
        "it has not what it is to have"
    );
    assert!(pair.keeper.copies.homes().is_empty());
}
