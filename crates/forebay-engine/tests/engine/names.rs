//! Names after a loss of power: that of the fast tier alone, of the backing store alone, of both.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_backing::{Access, Attr, BackingStore, Error, FileKey, RenameMode};
use forebay_engine::{Config, Engine, Named, Naming, Owned, Progress};

use crate::media::{CrashMedia, Disk};
use crate::rng::Rng;
use crate::start::{NEW, abandon, named, patient, read_all, start};
use crate::store::{MemStore, Tree};

const BEFORE: &str = "before";
const AFTER: &str = "after";
const LEN: usize = 8 << 10;

/// The content of every name: the byte that fills its file; 0 is an empty one.
type Names = BTreeMap<PathBuf, u8>;

fn serve(media: &CrashMedia, store: MemStore, boot: &str) -> Arc<Engine> {
    serve_as(media, store, boot, Config::default())
}

fn serve_as(media: &CrashMedia, store: MemStore, boot: &str, config: Config) -> Arc<Engine> {
    let (media, store) = (Arc::new(media.clone()), Arc::new(store));
    start(media, store, boot, config, patient()).expect("a sound tier")
}

/// An engine on a tier and a store, with the operations of a program.
struct Bed {
    media: CrashMedia,
    store: MemStore,
    engine: Arc<Engine>,
}

impl Bed {
    /// Starts on a store with these files, which are durable there.
    fn on(files: &[(&str, u8)]) -> Bed {
        let (media, store) = (CrashMedia::default(), MemStore::new());
        for (path, value) in files {
            let path = Path::new(path);
            if let Some(dir) = path.parent().filter(|dir| store.stat(dir).is_err()) {
                store.mkdir(dir, &NEW).expect("no such name yet");
            }
            let (file, _) = store.create(path, &NEW).expect("no such name yet");
            file.write_at(&[*value; LEN], 0).and_then(|()| file.sync()).expect("memory");
        }
        store.sync_dir(Path::new("")).expect("memory");
        let engine = serve(&media, store.clone(), BEFORE);
        Bed { media, store, engine }
    }

    fn attr(&self, path: &str) -> Attr {
        self.engine.verbs.stat(Path::new(path)).expect("it is there")
    }

    fn create(&self, path: &str) {
        let (file, _) = self.engine.verbs.create(Path::new(path), &NEW).expect("no such name yet");
        drop(file);
    }

    fn write(&self, path: &str, value: u8) {
        let file = self.engine.io.open(Path::new(path), None).expect("it is there");
        self.engine.io.write(&file, 0, &[value; LEN]).expect("room");
        drop(file);
    }

    fn sync(&self, path: &str) {
        let file = self.engine.io.open(Path::new(path), None).expect("it is there");
        self.engine.io.sync(&file).expect("a sound tier");
        drop(file);
    }

    /// Makes a file that is written and synced.
    fn put(&self, path: &str, value: u8) {
        self.create(path);
        self.write(path, value);
        self.sync(path);
    }

    fn link(&self, from: &str, to: &str) {
        let attr = self.attr(from);
        self.engine.verbs.link(named(Path::new(from), &attr), Path::new(to)).expect("it is free");
    }

    fn unlink(&self, path: &str) {
        let attr = self.attr(path);
        self.engine.verbs.unlink(named(Path::new(path), &attr)).expect("it is there");
    }

    fn rename(&self, from: &str, to: &str, mode: RenameMode) {
        let is_dir = |attr: &Attr| attr.kind == forebay_backing::FileKind::Dir;
        let (attr, to) = (self.attr(from), Path::new(to));
        let over = self.engine.verbs.stat(to).ok();
        let over = over.as_ref().map(|o| Named { path: to, key: o.key, is_dir: is_dir(o) });
        let from = Named { path: Path::new(from), key: attr.key, is_dir: is_dir(&attr) };
        self.engine.verbs.rename(from, to, over, mode).expect("both are there");
    }

    fn replace(&self, from: &str, to: &str) {
        self.rename(from, to, RenameMode::Replace);
    }

    fn flush(&self) {
        let report = self.engine.drain.flush(&[], &Progress::default());
        assert!(report.failures.is_empty(), "{report:?}");
    }

    fn now(&self) -> Moment {
        Moment { disk: self.media.snapshot(), tree: self.store.snapshot() }
    }

    fn end(self) {
        abandon(self.engine);
    }
}

/// The state of tier and store at one moment.
#[derive(Clone)]
struct Moment {
    disk: Disk,
    tree: Tree,
}

impl Moment {
    /// Returns the possible states of the tier after a loss of power.
    fn disks(&self) -> Vec<Disk> {
        self.disk.crash_images(&mut Rng::new(7), 4)
    }

    /// Returns the possible states of the store: with some of the changes of names since its last sync.
    fn trees(&self) -> Vec<Tree> {
        (0..=self.tree.unsynced_names()).map(|n| self.tree.forgetting(n)).collect()
    }

    /// Returns the names that are found when the tier alone has lost power, the store alone, and both.
    fn all(&self) -> Vec<(&'static str, Names)> {
        let mut found = Vec::new();
        for disk in self.disks() {
            found.push(("the tier", recovered(disk.clone(), self.tree.clone(), AFTER)));
            for tree in self.trees() {
                found.push(("both", recovered(disk.clone(), tree, AFTER)));
            }
        }
        for tree in self.trees() {
            found.push(("the store", recovered(self.disk.clone(), tree, BEFORE)));
        }
        found
    }

    /// Checks that, whichever has lost power, these files are there and no others.
    fn assert_all(&self, want: &[(&str, u8)]) {
        let want: Names = want.iter().map(|(path, value)| (path.into(), *value)).collect();
        for (who, found) in self.all() {
            assert_eq!(found, want, "{who} lost power");
        }
    }
}

fn recovered(disk: Disk, tree: Tree, boot: &str) -> Names {
    recovered_as(disk, tree, boot, Config::default())
}

/// Returns the names on the store after a recovery and a flush, checked through the mount before.
fn recovered_as(disk: Disk, tree: Tree, boot: &str, config: Config) -> Names {
    let store = MemStore::on(tree);
    let engine = serve_as(&CrashMedia::on(disk), store.clone(), boot, config);
    let value = |path: &Path, bytes: &[u8]| {
        let value = bytes.first().copied().unwrap_or(0);
        assert!(bytes.iter().all(|byte| *byte == value), "{}: a mixture", path.display());
        value
    };
    let files = || store.snapshot().files();
    let read = |path: PathBuf| {
        let value = value(&path, &read_all(&engine, &path).expect("it is there"));
        (path, value)
    };
    let seen: Names = files().into_keys().map(read).collect();
    let report = engine.drain.flush(&[], &Progress::default());
    let problems = &engine.recovery().problems;
    assert!(report.failures.is_empty() && problems.is_empty(), "{report:?} {problems:?} {seen:?}");
    let there: Names =
        files().into_iter().map(|(path, bytes)| (path.clone(), value(&path, &bytes))).collect();
    abandon(engine);
    assert_eq!(there, seen, "on the store and through the mount");
    there
}

/// As git publishes objects.
// S-3
#[test]
fn a_file_that_was_linked_to_its_final_name_has_that_alone() {
    let bed = Bed::on(&[("old", b'O')]);
    bed.put("tmp", b'N');
    bed.link("tmp", "final");
    bed.unlink("tmp");
    let at_once = bed.now();
    bed.sync("final");
    bed.now().assert_all(&[("final", b'N'), ("old", b'O')]);
    // The names were not synced yet: at least one of them has the bytes.
    for (who, found) in at_once.all() {
        let names: Vec<_> = found.iter().filter(|(_, value)| **value == b'N').collect();
        assert!(!names.is_empty(), "{who} lost power: {found:?}");
        assert_eq!(found.len(), names.len() + 1, "{who} lost power: {found:?}");
        assert!(who == "both" || found.contains_key(Path::new("final")), "{who}: {found:?}");
    }
    bed.end();
}

// S-3
#[test]
fn a_file_that_was_synced_and_removed_does_not_come_back() {
    let bed = Bed::on(&[]);
    bed.put("f", b'A');
    bed.unlink("f");
    for (who, found) in bed.now().all() {
        assert!(found.is_empty() || who == "both", "{who} lost power: {found:?}");
    }
    bed.put("g", b'G');
    bed.now().assert_all(&[("g", b'G')]);
    bed.end();
}

// S-3 S-8
#[test]
fn a_name_that_was_made_again_is_no_conflict() {
    let bed = Bed::on(&[]);
    bed.put("f", b'A');
    bed.unlink("f");
    bed.create("f");
    let moment = bed.now();
    for disk in moment.disks() {
        let want = [(PathBuf::from("f"), 0)].into();
        assert_eq!(recovered(disk, moment.tree.clone(), AFTER), want);
    }
    moment.all();
    bed.write("f", b'B');
    bed.sync("f");
    bed.now().assert_all(&[("f", b'B')]);
    bed.end();
}

/// A commit ends with the removal of the rollback journal.
// S-3
#[test]
fn a_rollback_journal_that_was_removed_undoes_no_commit() {
    let bed = Bed::on(&[("db", b'0')]);
    for value in [b'1', b'2'] {
        bed.put("db-journal", value - 1);
        bed.write("db", value);
        bed.sync("db");
        bed.unlink("db-journal");
        bed.engine.verbs.sync_dir(Path::new("")).expect("a sound store");
        bed.now().assert_all(&[("db", value)]);
    }
    // A sync of the directory makes the store remember; here the tier's journal has the removal.
    bed.put("db-journal", b'2');
    bed.unlink("db-journal");
    bed.write("db", b'3');
    bed.sync("db");
    bed.now().assert_all(&[("db", b'3')]);
    bed.end();
}

// S-3
#[test]
fn two_renames_of_one_file_are_made_again() {
    for flushed in [false, true] {
        let bed = Bed::on(&[]);
        bed.put("a", b'A');
        if flushed {
            bed.flush();
            bed.write("a", b'B');
            bed.sync("a");
        }
        bed.replace("a", "b");
        bed.replace("b", "c");
        bed.sync("c");
        bed.now().assert_all(&[("c", if flushed { b'B' } else { b'A' })]);
        bed.end();
    }
}

// S-3
#[test]
fn a_name_that_was_replaced_twice_is_the_last() {
    for middle in [None, Some(b'M')] {
        let bed = Bed::on(&[("f", b'O')]);
        bed.create("tmp");
        if let Some(value) = middle {
            // Flushed, and not known any more.
            bed.write("tmp", value);
            bed.flush();
            bed.engine.ops.evict(&[], &Progress::default());
        }
        bed.replace("tmp", "f");
        bed.put("tmp", b'N');
        bed.replace("tmp", "f");
        bed.sync("f");
        bed.now().assert_all(&[("f", b'N')]);
        bed.end();
    }
}

// S-3
#[test]
fn a_name_that_was_removed_and_made_again_is_the_new_file() {
    let bed = Bed::on(&[("f", b'O'), ("g", b'G')]);
    bed.unlink("f");
    bed.put("f", b'N');
    bed.unlink("g");
    bed.link("f", "g");
    bed.sync("g");
    bed.now().assert_all(&[("f", b'N'), ("g", b'N')]);
    bed.end();
}

// S-3
#[test]
fn a_directory_that_was_renamed_takes_new_files_along() {
    let bed = Bed::on(&[("d/old", b'O'), ("d/f", b'F')]);
    bed.put("d/tmp", b'N');
    bed.rename("d", "e", RenameMode::Replace);
    bed.replace("e/tmp", "e/f");
    bed.sync("e/f");
    bed.now().assert_all(&[("e/f", b'N'), ("e/old", b'O')]);
    bed.end();
}

/// Changes that a sync of the store covers are not looked at any more.
// S-3
#[test]
fn names_that_the_store_has_synced_are_not_made_again() {
    let bed = Bed::on(&[]);
    bed.put("a", b'A');
    bed.replace("a", "b");
    bed.flush();
    // Another program renames the file after that.
    bed.store.rename(Path::new("b"), Path::new("c"), RenameMode::Replace).expect("it is there");
    let moment = bed.now();
    let want: Names = [("c".into(), b'A')].into();
    assert_eq!(recovered(moment.disk, moment.tree, BEFORE), want);
    bed.end();
}

/// Directories are renamed and exchanged, files are made below them and removed: answered changes
/// outlive the daemon, and synced ones a loss of the tier's power.
// S-2 S-3
#[test]
fn directories_that_move_keep_their_files_whoever_dies() {
    const DIRS: [&str; 6] = ["a", "b", "c", "a/d", "b/e", "c/e"];
    let mut moved = 0;
    for seed in 1..=3 {
        let mut chance = Rng::new(seed);
        let bed = Bed::on(&[("a/x", b'X'), ("b/y", b'Y')]);
        let mut want: Names = [("a/x".into(), b'X'), ("b/y".into(), b'Y')].into();
        let mut value = 0;
        while value < 12 {
            value += 1;
            let mut any = || DIRS[chance.below(6) as usize];
            let (one, two) = (any(), any());
            let is_there = |path: &str| bed.engine.verbs.stat(Path::new(path)).is_ok();
            let is_ready = |path: &str| path.rsplit_once('/').is_none_or(|(dir, _)| is_there(dir));
            let apart = !Path::new(one).starts_with(two) && !Path::new(two).starts_with(one);
            match chance.below(8) {
                0..=1 if is_there(one) => {
                    let path = format!("{one}/f{value}");
                    bed.put(&path, value);
                    want.insert(path.into(), value);
                }
                2 if want.len() > 3 => {
                    let nth = chance.below(want.len() as u64) as usize;
                    let path = want.keys().nth(nth).expect("so many").clone();
                    bed.unlink(path.to_str().expect("ASCII"));
                    want.remove(&path);
                }
                3..=5 if apart && is_there(one) && !is_there(two) && is_ready(two) => {
                    bed.replace(one, two);
                    want =
                        want.into_iter().map(|(path, it)| (turned(&path, one, two), it)).collect();
                    moved += 1;
                }
                6 if apart && is_there(one) && is_there(two) => {
                    bed.rename(one, two, RenameMode::Exchange);
                    let other = |path: PathBuf| match path.starts_with(one) {
                        true => turned(&path, one, two),
                        false => turned(&path, two, one),
                    };
                    want = want.into_iter().map(|(path, it)| (other(path), it)).collect();
                    moved += 1;
                }
                7 if !is_there(one) && is_ready(one) => {
                    let made = bed.engine.names.alter(|b| b.mkdir(Path::new(one), &NEW));
                    bed.engine.names.note_made(Path::new(one), &made.expect("it is free"));
                }
                _ => {
                    value -= 1;
                    continue;
                }
            }
            let Moment { disk, tree } = bed.now();
            let found = recovered(disk.process_crash_image(), tree, BEFORE);
            assert_eq!(found, want, "seed {seed}, step {value}: killed");
        }
        bed.put("last", b'L');
        want.insert("last".into(), b'L');
        let moment = bed.now();
        for disk in moment.disks() {
            let found = recovered(disk, moment.tree.clone(), AFTER);
            assert_eq!(found, want, "seed {seed}: the tier lost power");
        }
        bed.end();
    }
    assert!(moved > 4, "{moved}");
}

/// Returns the names that are found after the daemon was killed.
fn after_a_kill(bed: &Bed) -> Names {
    let Moment { disk, tree } = bed.now();
    recovered(disk.process_crash_image(), tree, BEFORE)
}

/// A program's file is in the journal as made here, and others rename it before it is written under its new name.
// S-2 S-8
#[test]
fn a_file_that_others_have_renamed_is_not_made_anew() {
    let bed = Bed::on(&[]);
    bed.create("f");
    bed.store.rename(Path::new("f"), Path::new("g"), RenameMode::Replace).expect("it is free");
    bed.write("g", b'N');
    assert_eq!(after_a_kill(&bed), [("g".into(), b'N')].into());
    bed.end();
}

/// Returns a configuration where other members mount the store, too.
fn beside_others(of: impl Fn(FileKey) -> Naming + Send + Sync + 'static) -> Config {
    Config { owned: Owned(Some(Arc::new(of))), ..Config::default() }
}

/// The change over another member's file is a part of what happened to the file that is this member's own.
// S-2 S-25
#[test]
fn a_file_that_was_renamed_over_another_members_is_found_after_a_kill() {
    for naming in [Naming::Own, Naming::Unclaimed, Naming::Others] {
        let bed = Bed::on(&[("p", b'O')]);
        let over = bed.attr("p").key;
        bed.create("aside");
        bed.write("aside", b'N');
        bed.replace("aside", "p");
        let of = move |key| if key == over { naming } else { Naming::Own };
        let Moment { disk, tree } = bed.now();
        let found = recovered_as(disk.process_crash_image(), tree, BEFORE, beside_others(of));
        assert_eq!(found, [("p".into(), b'N')].into(), "{naming:?}");
        bed.end();
    }
}

/// Nobody has a claim of a directory.
// S-2 S-25
#[test]
fn a_file_in_a_directory_that_was_renamed_is_found_after_a_kill() {
    let bed = Bed::on(&[("old/p", b'O')]);
    let dir = bed.attr("old").key;
    bed.put("old/f", b'N');
    bed.replace("old", "new");
    let of = move |key| if key == dir { Naming::Unclaimed } else { Naming::Own };
    let Moment { disk, tree } = bed.now();
    let found = recovered_as(disk.process_crash_image(), tree, BEFORE, beside_others(of));
    assert_eq!(found, [("new/f".into(), b'N'), ("new/p".into(), b'O')].into());
    bed.end();
}

/// The home of the replaced file makes the rename on the store, and dies before it knows the result.
// S-2 S-25
#[test]
fn a_file_that_another_members_has_replaced_is_gone_after_a_kill() {
    for is_made in [true, false] {
        let bed = Bed::on(&[("aside", b'N')]);
        bed.create("p");
        bed.write("p", b'O');
        let (from, over) = (bed.attr("aside"), bed.attr("p"));
        let (aside, p) = (Path::new("aside"), Path::new("p"));
        let mut at = None;
        let make = || {
            if is_made {
                bed.store.rename(aside, p, RenameMode::Replace)?;
            }
            at = Some(bed.now());
            Err(Error::os(libc::EIO, "it dies"))
        };
        let over = Some(named(p, &over));
        let mode = RenameMode::Replace;
        bed.engine.verbs.rename_by(named(aside, &from), p, over, mode, make).expect_err("it dies");
        let of = move |key| if key == from.key { Naming::Others } else { Naming::Own };
        let Moment { disk, tree } = at.expect("it was asked");
        let found = recovered_as(disk.process_crash_image(), tree, BEFORE, beside_others(of));
        let want: Names = match is_made {
            true => [("p".into(), b'N')].into(),
            false => [("aside".into(), b'N'), ("p".into(), b'O')].into(),
        };
        assert_eq!(found, want);
        bed.end();
    }
}

/// What the store has forgotten is for the file's home to make again; a file that this member's was to lose its name
/// to, and that did not get it, takes no name away.
// S-3 S-25
#[test]
fn names_of_other_members_files_are_not_made_again() {
    let bed = Bed::on(&[("aside", b'N'), ("f", b'F'), ("p", b'O')]);
    let over = bed.attr("p").key;
    bed.replace("f", "g");
    bed.replace("aside", "p");
    let Moment { disk, tree } = bed.now();
    let tree = tree.forgetting(2);
    let of = move |key| if key == over { Naming::Own } else { Naming::Others };
    let found = recovered_as(disk.process_crash_image(), tree, BEFORE, beside_others(of));
    let want: [(PathBuf, u8); 3] = [("aside".into(), b'N'), ("f".into(), b'F'), ("p".into(), b'O')];
    assert_eq!(found, want.into());
    bed.end();
}

/// A flush of one file covers the changes of its names, of which the rest of the journal makes no sense without some:
/// the link alone says that the old file has the name `f`.
// S-2 S-3
#[test]
fn a_flush_takes_no_change_that_the_rest_of_the_journal_needs() {
    let bed = Bed::on(&[("f", b'O')]);
    bed.link("f", "f.bak");
    bed.put("new", b'N');
    bed.replace("new", "f");
    bed.replace("f", "g");
    let report = bed.engine.drain.flush(&["g".into()], &Progress::default());
    assert_eq!((report.files, report.failures.len()), (1, 0), "{report:?}");
    bed.replace("f.bak", "f.old");
    let want: [(PathBuf, u8); 2] = [("f.old".into(), b'O'), ("g".into(), b'N')];
    assert_eq!(after_a_kill(&bed), want.into());
    bed.end();
}

/// The same with an exchange, after which the first file has left and come under other names. Recovery must not take
/// its only name for one that it has lost.
// S-2 S-3
#[test]
fn a_flush_of_an_exchanged_file_costs_the_other_file_no_name() {
    let bed = Bed::on(&[("d", b'P')]);
    bed.link("d", "e");
    bed.replace("d", "p");
    bed.put("d", b'B');
    bed.rename("d", "p", RenameMode::Exchange);
    bed.replace("p", "z");
    let report = bed.engine.drain.flush(&["z".into()], &Progress::default());
    assert_eq!((report.files, report.failures.len()), (1, 0), "{report:?}");
    bed.unlink("e");
    bed.put("p", b'C');
    let want: [(PathBuf, u8); 3] = [("d".into(), b'P'), ("p".into(), b'C'), ("z".into(), b'B')];
    assert_eq!(after_a_kill(&bed), want.into());
    bed.end();
}

/// Another program rewrites a cached file that was renamed here, with the old size and time, and the daemon is killed:
/// the clean bytes are old.
// S-1
#[test]
fn a_file_that_others_have_rewritten_since_its_rename_is_read_anew() {
    let bed = Bed::on(&[("f", b'1')]);
    let path = Path::new("g");
    assert_eq!(read_all(&bed.engine, Path::new("f")).unwrap(), [b'1'; LEN]);
    bed.replace("f", "g");
    let file = bed.store.open(path, Access::ReadWrite).expect("it is there");
    let mtime = bed.store.stat(path).unwrap().mtime;
    file.write_at(&[b'2'; LEN], 0).and_then(|()| file.set_times(None, Some(mtime))).unwrap();
    assert_eq!(after_a_kill(&bed), [(path.to_path_buf(), b'2')].into());
    bed.end();
}

/// Another program renames a file that is pinned here, so that it stays on record, then this mount
/// renames it, and perhaps the daemon is killed: an open by the file's present name reads it.
// S-25
#[test]
fn a_file_that_others_rename_is_read_by_the_name_that_it_has() {
    for killed in [false, true] {
        let bed = Bed::on(&[("a", b'1')]);
        let pinned = bed.engine.ops.pin(&["a".into()], &Progress::default());
        assert!(pinned.failures.is_empty(), "{pinned:?}");
        bed.store.rename(Path::new("a"), Path::new("b"), RenameMode::Replace).expect("it is free");
        bed.replace("b", "c");
        let Moment { disk, tree } = bed.now();
        let (engine, after) = match killed {
            true => {
                let store = MemStore::on(tree);
                let disk = CrashMedia::on(disk.process_crash_image());
                (serve(&disk, store, BEFORE), Some(bed))
            }
            false => (bed.engine.clone(), None),
        };
        let path = Path::new("c");
        let key = engine.verbs.stat(path).unwrap().key;
        let known = engine.files.find(key).expect("on record");
        assert_eq!(known.path().as_deref(), Some(path), "killed: {killed}");
        let file = engine.io.open_to_read(path, Some(key)).unwrap();
        let mut bytes = [0; LEN];
        assert_eq!(engine.io.read(&file, 0, &mut bytes).unwrap(), LEN, "killed: {killed}");
        assert_eq!(bytes, [b'1'; LEN]);
        drop((file, known));
        abandon(engine);
        after.into_iter().for_each(Bed::end);
    }
}

fn turned(path: &Path, from: &str, to: &str) -> PathBuf {
    path.strip_prefix(from).map_or_else(|_| path.into(), |rest| Path::new(to).join(rest))
}
