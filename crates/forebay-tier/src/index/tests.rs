use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use forebay_backing::suite::TempDir;
use forebay_backing::{Attr, FileKey, FileKind};
use redb::{ReadableDatabase, ReadableTable};

use super::*;
use crate::core::journal::{Moved, rebased};
use crate::core::paths::{Paths, Weight};
use crate::core::state::FileState;
use crate::media::{DirMedia, MediaFile, MediaStat, Space};

/// The naive model: the whole paths of each file.
type Naive = BTreeMap<FileId, Vec<PathBuf>>;

struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    /// A random directory of few names, so that paths meet; one name is not UTF-8.
    fn dir(&mut self) -> PathBuf {
        let names: [&[u8]; 4] = [b"a", b"b", b"\xff", b"c"];
        let name = |chance: &mut Chance| OsStr::from_bytes(names[chance.below(4) as usize]);
        (0..=self.below(3)).map(|_| name(self).to_os_string()).collect()
    }

    fn path(&mut self) -> PathBuf {
        let name = format!("f{}", self.below(9));
        match self.below(6) {
            0 => name.into(),
            _ => self.dir().join(name),
        }
    }
}

fn attr(id: FileId) -> Attr {
    let now = Timestamp::default();
    let key = FileKey { ino: id.0, generation: 0 };
    let (mode, nlink, uid, gid, rdev, size) = (0o644, 1, 0, 0, 0, 0);
    let times = (now, now, now, now);
    let (atime, mtime, ctime, btime) = times;
    let (blocks, blksize, kind) = (0, 4096, FileKind::File);
    Attr {
        key,
        kind,
        mode,
        nlink,
        uid,
        gid,
        rdev,
        size,
        blocks,
        blksize,
        atime,
        mtime,
        ctime,
        btime,
    }
}

fn weight(id: FileId) -> Weight {
    if id.0.is_multiple_of(3) { Weight::Durable } else { Weight::None }
}

fn enter(id: FileId, paths: &Paths) {
    paths.enter(id);
    if weight(id) == Weight::Durable {
        paths.weigh(Weight::Durable);
    }
}

/// An index with the states of its files in memory.
struct Bench {
    media: Arc<dyn Media>,
    index: Index,
    files: BTreeMap<FileId, Record>,
    next: u64,
}

impl Bench {
    fn open(media: Arc<dyn Media>) -> Bench {
        let (index, loaded) = Index::open(media.clone(), &Witness::default()).unwrap();
        assert_eq!(loaded.problems, [""; 0]);
        let files = loaded.files;
        files.iter().for_each(|(id, record)| enter(*id, &record.paths));
        index
            .begin(&Witness::default(), loaded.next_id, &[], &|id| files.get(&id).cloned())
            .unwrap();
        Bench { media, index, files, next: loaded.next_id.max(1) }
    }

    fn put(&self, id: FileId) {
        self.index.append(&Entry::Put(id, Cow::Owned(Box::new(self.files[&id].clone())))).unwrap();
    }

    fn create(&mut self, path: &Path) -> FileId {
        let id = FileId(self.next);
        self.next += 1;
        let paths = Paths::of(self.index.tree(), path);
        enter(id, &paths);
        let record = Record { key: attr(id).key, state: FileState::absent(paths, &attr(id)) };
        self.files.insert(id, record);
        self.put(id);
        id
    }

    fn remove(&mut self, id: FileId) {
        self.files.remove(&id).unwrap().paths.leave(id, weight(id));
        self.index.append(&Entry::Drop(id)).unwrap();
    }

    fn rename(&self, way: Way<'_>) {
        let key = FileKey { ino: 1, generation: 0 };
        let (from, to) = match way {
            Way::To { from, to } => (from, to),
            Way::Exchange { one, two } => (one, two),
        };
        let (from, to) = (from.to_path_buf(), to.to_path_buf());
        let op = NameOp::Rename { from, to, key, over: None, moved: Moved::Dir };
        let n = self.index.name(op, Told::Announced, None).unwrap();
        self.index.conclude(n, None, Some(way)).unwrap();
        self.index.retire(vec![n]).unwrap();
    }

    fn compact(&self) {
        self.index.compact(self.next, &|id| self.files.get(&id).cloned()).unwrap();
    }

    fn names(&self) -> Naive {
        self.files.iter().map(|(id, record)| (*id, record.paths.iter().collect())).collect()
    }
}

/// Directories are moved, exchanged, made and forgotten, with compactions and crashes in between: the names are
/// equal to those of the whole-path model, in memory and on record.
// S-2
#[test]
fn directories_that_move_take_the_names_below_along() {
    for seed in 1..=3 {
        let dir = TempDir::new();
        let media: Arc<dyn Media> = Arc::new(DirMedia::open(dir.path()).unwrap());
        let mut chance = Chance(seed * 0x9e37_79b9);
        let mut bench = Bench::open(media);
        let mut naive = Naive::new();
        let (mut moved, mut crashes, mut found_below) = (0, 0, 0);
        for step in 0..400 {
            let at = format!("seed {seed}, step {step}");
            let (one, two) = (chance.dir(), chance.dir());
            let apart = !one.starts_with(&two) && !two.starts_with(&one);
            let any = |naive: &Naive, chance: &mut Chance| {
                naive.keys().nth(chance.below(naive.len().max(1) as u64) as usize).copied()
            };
            let is_free = |dir: &Path| naive.values().flatten().all(|path| !path.starts_with(dir));
            match chance.below(20) {
                0..=5 => {
                    let path = chance.path();
                    naive.insert(bench.create(&path), vec![path]);
                }
                6..=7 => {
                    if let Some(id) = any(&naive, &mut chance) {
                        naive.remove(&id);
                        bench.remove(id);
                    }
                }
                8..=9 => {
                    if let Some(id) = any(&naive, &mut chance) {
                        let (path, names) = (chance.path(), naive.get_mut(&id).unwrap());
                        if !names.contains(&path) && names.len() < 4 {
                            names.push(path.clone());
                        }
                        let record = bench.files.get_mut(&id).unwrap();
                        if record.paths.len() < 4 {
                            let tree = bench.index.tree();
                            record
                                .paths
                                .change_of(id, weight(id), |paths| paths.learn_also(tree, &path));
                        }
                        bench.put(id);
                    }
                }
                10..=14 if apart && is_free(&two) => {
                    moved += usize::from(!is_free(&one));
                    bench.rename(Way::To { from: &one, to: &two });
                    for path in naive.values_mut().flatten() {
                        *path = rebased(path, &one, &two).unwrap_or_else(|| path.clone());
                    }
                }
                15..=16 if apart => {
                    bench.rename(Way::Exchange { one: &one, two: &two });
                    for path in naive.values_mut().flatten() {
                        let other = rebased(path, &one, &two).or_else(|| rebased(path, &two, &one));
                        *path = other.unwrap_or_else(|| path.clone());
                    }
                }
                17 => bench.compact(),
                18 => {
                    let Bench { media, index, files, .. } = bench;
                    drop((index, files));
                    bench = Bench::open(media);
                    crashes += 1;
                }
                _ => {}
            }
            assert_eq!(bench.names(), naive, "{at}");
            let moving = bench.index.tree().begin(Way::To { from: &one, to: &one });
            let is_durable = naive.iter().any(|(id, names)| {
                let is_in = |path: &PathBuf| path.starts_with(&one) && *path != one;
                weight(*id) == Weight::Durable && names.iter().any(is_in)
            });
            assert_eq!(moving.has_durable(), is_durable, "{at}: {}", one.display());
            drop(moving);
            let is_known = bench.index.tree().find(&one).is_some();
            let is_below = naive
                .values()
                .flatten()
                .any(|path| path.parent().is_some_and(|dir| dir.starts_with(&one)));
            assert_eq!(is_known, is_below, "{at}: {}", one.display());
            for (id, record) in &bench.files {
                assert!(naive[id].iter().all(|path| record.paths.has(path)), "{at}");
            }
            for path in [one, two, chance.path()] {
                let found: BTreeSet<FileId> =
                    bench.index.tree().at_or_below(&path).into_iter().collect();
                let is_there = |names: &[PathBuf]| names.iter().any(|it| it.starts_with(&path));
                let there = naive.iter().filter(|(_, names)| is_there(names));
                assert_eq!(found, there.map(|(id, _)| *id).collect(), "{at}: no others");
                found_below += found.len();
            }
        }
        assert!(moved > 2 && crashes > 2 && found_below > 100, "{moved} {crashes} {found_below}");
        // No directory remains once it is empty.
        naive.keys().for_each(|id| bench.remove(*id));
        bench.compact();
        bench.compact();
        let store = bench.index.compact.lock();
        let read = store.as_ref().unwrap().db.begin_read().unwrap();
        assert_eq!(read.open_table(DIRS).unwrap().iter().unwrap().count(), 0, "seed {seed}");
    }
}

/// A directory that another writer removed may still be known at a name that is taken since: both stay known,
/// after a restart as well.
#[test]
fn a_directory_takes_the_place_of_one_that_is_still_known() {
    let dir = TempDir::new();
    let mut bench = Bench::open(Arc::new(DirMedia::open(dir.path()).unwrap()));
    let old = bench.create(Path::new("to/sub/old"));
    let new = bench.create(Path::new("from/sub/new"));
    bench.rename(Way::To { from: Path::new("from"), to: Path::new("to") });
    let names = |bench: &Bench, id| bench.files[&id].paths.first().unwrap();
    assert_eq!(names(&bench, old), Path::new("to/sub/old"));
    assert_eq!(names(&bench, new), Path::new("to/sub/new"));
    let Bench { media, index, files, .. } = bench;
    drop((index, files));
    let bench = Bench::open(media);
    bench.rename(Way::To { from: Path::new("to"), to: Path::new("d/e") });
    assert_eq!(names(&bench, old), Path::new("d/e/sub/old"));
    assert_eq!(names(&bench, new), Path::new("d/e/sub/new"));
    assert!(bench.files[&old].paths.has(Path::new("d/e/sub/old")));
    assert!(bench.index.tree().find(Path::new("to")).is_none());
}

/// A tier whose store cannot be read is saved from its log alone: the log holds the whole name of each file in
/// it.
// S-11
#[test]
fn each_file_of_the_log_says_where_the_names_in_it_are() {
    let dir = TempDir::new();
    let mut bench = Bench::open(Arc::new(DirMedia::open(dir.path()).unwrap()));
    let id = bench.create(Path::new("a/b/f"));
    bench.rename(Way::To { from: Path::new("a"), to: Path::new("x/y") });
    bench.compact();
    bench.put(id);
    let loaded = load_logs(&*bench.media, &Witness::default());
    assert_eq!(loaded.files[&id].display_path(), Path::new("x/y/b/f"));
}

/// A medium that is full for new writes to the file of this name.
struct Full {
    dir: DirMedia,
    what: Mutex<&'static str>,
    failed_syncs: AtomicU64,
    /// The number of syncs of other files that fail while the log's own sync succeeds.
    failing: AtomicU64,
}

impl Full {
    fn of_dir(dir: DirMedia) -> Arc<Full> {
        let what = Mutex::new(Rank::TierSync, "");
        Arc::new(Full { dir, what, failed_syncs: AtomicU64::new(0), failing: AtomicU64::new(0) })
    }

    fn of(&self, name: &str) -> io::Result<()> {
        let what = *self.what.lock();
        let full = !what.is_empty() && name.starts_with(what);
        if full { Err(io::Error::from_raw_os_error(libc::ENOSPC)) } else { Ok(()) }
    }
}

struct FullFile {
    media: Arc<Full>,
    file: Arc<dyn MediaFile>,
    name: String,
}

impl MediaFile for FullFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.media.of(&self.name).and_then(|()| self.file.write_at(buf, offset))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.media.of(&self.name).and_then(|()| self.file.set_len(len))
    }

    fn stat(&self) -> io::Result<MediaStat> {
        self.file.stat()
    }

    fn set_mtime(&self, mtime: Timestamp) -> io::Result<()> {
        self.file.set_mtime(mtime)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.name.starts_with("log/") && self.media.failing.load(Relaxed) > 0 {
            self.media.failing.fetch_sub(1, Relaxed);
            self.media.failed_syncs.fetch_add(1, Relaxed);
        }
        // Only the sync of the store fails.
        let is_store = self.name == STORE_NAME;
        self.media.of(if is_store { "sync" } else { "" }).and_then(|()| self.file.sync_data())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.punch(offset, len)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.reserve(offset, len)
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<(u64, u64)>> {
        self.file.next_data(offset)
    }

    fn is_flushed_by_others(&self) -> bool {
        *self.media.what.lock() != "apart"
    }
}

impl Media for Arc<Full> {
    fn open(&self, name: &str, how: Open) -> io::Result<Arc<dyn MediaFile>> {
        let file = self.dir.open(name, how)?;
        // The file exists, and its entry is not known to be durable.
        if how == Open::Keep && file.stat()?.len == 0 {
            self.of(name)?;
        }
        Ok(Arc::new(FullFile { media: self.clone(), file, name: name.into() }))
    }

    fn stat(&self, name: &str) -> io::Result<MediaStat> {
        self.dir.stat(name)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        // The removal fails as after a crash.
        self.of(name).and_then(|()| self.dir.remove(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.dir.rename(from, to)
    }

    fn make_dir(&self, name: &str) -> io::Result<()> {
        self.dir.make_dir(name)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.dir.list(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.dir.sync_dir(dir)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.dir.sync_all()
    }

    fn space(&self) -> io::Result<Space> {
        self.dir.space()
    }

    fn failed_syncs(&self) -> u64 {
        self.failed_syncs.load(Relaxed)
    }
}

/// A tier that has no room for a while can be compacted once there is room, and the records made meanwhile
/// survive a crash at any moment.
// S-9 S-11
#[test]
fn a_compaction_that_found_no_room_is_made_later() {
    for (what, crashes) in
        [(STORE_NAME, false), (STORE_NAME, true), ("log/", false), ("log/", true)]
    {
        let dir = TempDir::new();
        let root = DirMedia::open(dir.path()).unwrap();
        let full = Full::of_dir(root);
        let mut bench = Bench::open(Arc::new(full.clone()));
        // More files than redb has room for in the file.
        let ids: Vec<_> = (0..2000).map(|n| bench.create(Path::new(&format!("d/{n}")))).collect();
        *full.what.lock() = what;
        let states = |bench: &Bench| {
            let state_of = |id| bench.files.get(&id).cloned();
            bench.index.compact(bench.next, &state_of)
        };
        states(&bench).expect_err(what);
        *full.what.lock() = "";
        let more = bench.create(Path::new("more"));
        if !crashes {
            bench.compact();
        }
        let Bench { media, index, files, .. } = bench;
        drop(index);
        let again = Bench::open(media);
        assert!(ids.iter().chain([&more]).all(|id| again.files.contains_key(id)), "{what}");
        assert_eq!(again.files.len(), files.len(), "{what}");
    }
}

/// A store whose sync has failed may have lost what it reads back: whatever is reported after that, the log
/// stays.
// S-3 S-11
#[test]
fn after_a_failed_sync_of_the_store_the_log_stays() {
    let dir = TempDir::new();
    let root = DirMedia::open(dir.path()).unwrap();
    let full = Full::of_dir(root);
    let mut bench = Bench::open(Arc::new(full.clone()));
    bench.create(Path::new("f"));
    *full.what.lock() = "sync";
    let compact =
        |bench: &Bench| bench.index.compact(bench.next, &|id| bench.files.get(&id).cloned());
    compact(&bench).expect_err("it cannot be synced");
    *full.what.lock() = "";
    bench.create(Path::new("g"));
    compact(&bench).expect_err("nobody knows what of it is on the medium");
    let loaded = load_logs(&*bench.media, &Witness::default());
    assert_eq!(loaded.files.len(), 2, "both are in the log");
}

/// The count rises once the tier is in use again, however many starts have failed before.
#[test]
fn what_was_never_synced_is_lost_once_each_time() {
    let dir = TempDir::new();
    let media: Arc<dyn Media> = Arc::new(DirMedia::open(dir.path()).unwrap());
    let start = |boot: &str, begins: bool| {
        let witness = Witness { boot: boot.into(), mount: None };
        let (index, loaded) = Index::open(media.clone(), &witness).unwrap();
        if begins {
            index.begin(&witness, 1, &[], &|_| None).unwrap();
        }
        loaded.losses(&witness)
    };
    let starts = [
        ("a", true),
        ("a", true),
        ("b", false),
        ("b", false),
        ("b", true),
        ("b", true),
        ("c", true),
    ];
    assert_eq!(starts.map(|(boot, begins)| start(boot, begins)), [0, 0, 1, 1, 1, 1, 2]);
}

/// The next use of the tier has every promised byte, and numbers of lost records are used again.
// S-3 S-4
#[test]
fn a_seal_is_of_one_use_of_the_tier() {
    let dir = TempDir::new();
    let media: Arc<dyn Media> = Arc::new(DirMedia::open(dir.path()).unwrap());
    let witness = Witness { boot: "a".into(), mount: None };
    let begun = || {
        let (index, loaded) = Index::open(media.clone(), &witness).unwrap();
        index.begin(&witness, 1, &[], &|_| None).unwrap();
        (index.seal(5), loaded)
    };
    let (seal, _) = begun();
    let (next, loaded) = begun();
    assert!(loaded.counts(seal, FileId(7)), "nothing happened since");
    assert_eq!(next.seq, seal.seq, "the number alone does not tell");
    let (_, loaded) = begun();
    assert!(!loaded.counts(seal, FileId(7)) && loaded.counts(next, FileId(7)));
}

/// Once the store holds records from behind a seal, they cannot be told from earlier ones.
// S-3
#[test]
fn a_seal_is_within_the_log_until_more_of_it_is_in_the_store() {
    let dir = TempDir::new();
    let mut bench = Bench::open(Arc::new(DirMedia::open(dir.path()).unwrap()));
    bench.create(Path::new("f"));
    let seal = bench.index.seal(5);
    bench.compact();
    assert!(bench.index.is_within_log(seal), "the store has what was before it");
    bench.create(Path::new("g"));
    assert!(bench.index.is_within_log(seal));
    bench.compact();
    assert!(!bench.index.is_within_log(seal));
}

/// Records that were handed to the device are durable after a flush, unless a sync failed in between; and
/// nothing is handed out where a flush is not enough.
// S-3
#[test]
fn what_was_handed_out_is_durable_after_a_flush() {
    let dir = TempDir::new();
    let full = Full::of_dir(DirMedia::open(dir.path()).unwrap());
    let mut bench = Bench::open(Arc::new(full.clone()));
    let put = |bench: &mut Bench, name: &str| {
        bench.create(Path::new(name));
        bench.index.seq()
    };
    let first = put(&mut bench, "a");
    assert!(bench.index.hand_out(first).is_none(), "nothing is filled ahead");
    bench.index.sync().unwrap();
    assert!(bench.index.hand_out(first).is_none(), "it is durable");

    let second = put(&mut bench, "b");
    *full.what.lock() = "apart";
    assert!(bench.index.hand_out(second).is_none(), "it is on a device of its own");
    *full.what.lock() = "";
    let out = bench.index.hand_out(second).unwrap();
    assert!(out.seq == second && !bench.index.is_synced(second));
    let again = bench.index.hand_out(second).unwrap();
    bench.index.flushed(out).unwrap();
    assert!(again.seq == second && bench.index.is_synced(second));

    let third = put(&mut bench, "c");
    let out = bench.index.hand_out(third).unwrap();
    full.failed_syncs.fetch_add(1, Relaxed);
    assert!(!bench.index.stands(out) && !bench.index.is_synced(third));
    assert!(bench.index.hand_out(third).is_none(), "it is written again first");
    full.failing.store(2, Relaxed);
    bench.index.flushed(out).unwrap();
    assert!(bench.index.is_synced(third), "the log was synced");
    assert_eq!(full.failing.load(Relaxed), 0, "until nothing else failed meanwhile");

    let fourth = put(&mut bench, "d");
    bench.index.sync().unwrap();
    let fifth = put(&mut bench, "e");
    let out = bench.index.hand_out(fifth).unwrap();
    bench.compact();
    let sixth = put(&mut bench, "f");
    bench.index.flushed(out).unwrap();
    assert!(bench.index.is_synced(fourth) && !bench.index.is_synced(sixth));
    assert!(bench.index.hand_out(sixth).is_none(), "a new file is not filled");
}
