//! kill -9 at named points, between every two steps that touch the tier or the backing store.
// S-2, S-6

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_tests::journal::History;
use forebay_tests::tree::{Times, Tree};
use forebay_tests::{
    Bed, Foreground, PATIENCE, Rng, Tier, binary_mentions, images, needs_forebay, proof, skip, sys,
};

use crate::load::{Load, Work, Writer, assert_all_there};

/// Kills at the first and at a later passage of a point, on a mount that flushes and evicts all the
/// time while its writers do everything.
fn dies_and_recovers(point: &str) {
    if !binary_mentions(point) {
        skip!("this forebay has no failpoint {point}");
    }
    for passage in passages(point) {
        let mut bed = Bed::new(Tier::Disk);
        let old = prepare(&bed);
        bed.env("FOREBAY_FAILPOINTS", &format!("{point}={passage}"));
        // One passage on the daemon's path, the other past the daemon.
        let flags = match passage {
            1 => &["--max-age", "100ms"][..],
            _ => &["--max-age", "100ms", "--passthrough", "always", "--digests-from", "4KiB"],
        };
        let foreground = bed.mount_foreground(flags);
        let mut load = Load::start_if_alive(&bed, 2, passage + 60);
        let (died, mut foreground) = work_until_dead(&bed, foreground, patience(point));
        let writers = load.take().map(Load::stop).unwrap_or_default();
        // A point that the work did not reach may be reached by an orderly end.
        let died = died || {
            foreground.mounted.umount_with(&["--timeout", "60s"]);
            killed_itself(&bed, &mut foreground, PATIENCE)
        };
        let log = bed.daemon_log();
        let tail = &log[log.floor_char_boundary(log.len().saturating_sub(2000))..];
        assert!(died, "{point}={passage}: the daemon never came by\n{tail}");
        drop(foreground);
        images::unmount(&bed.mnt, true).expect("a dead mount can be detached");
        bed.unset("FOREBAY_FAILPOINTS");
        verify(&bed, &writers, &old, &format!("{point}={passage}"));
        let writes: usize = writers.iter().map(|w| w.history().writes()).sum();
        proof!("killed at passage {passage} after {writes} acknowledged writes");
    }
}

/// Compactions are rare: one at the start, one at the end.
fn passages(point: &str) -> [u64; 2] {
    if point.starts_with("compaction.") { [1, 2] } else { [1, 7] }
}

fn patience(point: &str) -> Duration {
    if point.starts_with("compaction.") { Duration::from_secs(3) } else { PATIENCE }
}

impl Load {
    /// Starts the writers; the daemon may die while it is mounting or while the directories are
    /// made.
    fn start_if_alive(bed: &Bed, count: usize, seed: u64) -> Option<Load> {
        // A daemon that died before it mounted left a bare directory.
        images::mounted_at(&bed.mnt)?;
        for i in 0..count {
            fs::create_dir_all(bed.mnt.join(format!("w{i}"))).ok()?;
        }
        Some(Load::start_laid(&bed.mnt, bed, count, seed, Work::Mixed))
    }
}

const OLD: usize = 24;
const OLD_LEN: usize = 200_000;

/// Files that exist from the start, to be filled, changed and evicted.
fn prepare(bed: &Bed) -> Vec<Vec<u8>> {
    fs::create_dir(bed.backing.join("old")).unwrap();
    (0..OLD)
        .map(|i| {
            forebay_tests::sample::file(&bed.backing.join(format!("old/{i}")), i as u64, OLD_LEN)
        })
        .collect()
}

/// Keeps every mechanism busy until the daemon is gone; checks that SIGKILL ended it.
fn work_until_dead(bed: &Bed, mut foreground: Foreground, limit: Duration) -> (bool, Foreground) {
    let deadline = Instant::now() + limit;
    let mnt = bed.mnt.to_string_lossy().into_owned();
    let mut rng = Rng::new(3);
    while foreground.child.running() && Instant::now() < deadline {
        if images::mounted_at(&bed.mnt).is_none() {
            continue;
        }
        let _ = fs::read(bed.mnt.join(format!("old/{}", rng.below(OLD as u64))));
        patch(&bed.mnt, &mut rng);
        bed.forebay(&["flush", &mnt]);
        bed.forebay(&["evict", &mnt]);
        churn(&bed.mnt, &mut rng);
    }
    (killed_itself(bed, &mut foreground, Duration::ZERO), foreground)
}

fn killed_itself(bed: &Bed, foreground: &mut Foreground, limit: Duration) -> bool {
    let status = foreground.child.wait(limit);
    if let Some(status) = status {
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}\n{}", bed.daemon_log());
    }
    status.is_some()
}

/// Changes a byte of an old file to the value that `verify` knows for its place. Without a journal:
/// both the old and the new value are right.
fn patch(mnt: &Path, rng: &mut Rng) {
    let path = mnt.join(format!("old/{}", rng.below(OLD as u64)));
    if let Ok(file) = fs::File::options().write(true).open(path) {
        let at = rng.below(OLD_LEN as u64 - 5000);
        let _ = file.write_all_at(&[0xff; 5000], at);
        let _ = file.sync_all();
    }
}

/// Makes and removes names in a directory that is only judged for consistency.
fn churn(mnt: &Path, rng: &mut Rng) {
    let at = |i: u64| mnt.join(format!("churn-{i}"));
    for _ in 0..5 {
        let (a, b) = (rng.below(6), rng.below(6));
        let _ = fs::write(at(a), vec![a as u8 + 1; 10_000]);
        let _ = fs::rename(at(a), at(b));
        let _ = fs::File::options().write(true).open(at(b)).and_then(|f| f.set_len(5000));
        let holes = fs::File::options().write(true).open(at(rng.below(6)));
        let _ = holes.and_then(|file| sys::fallocate(&file, sys::PUNCH, 100, 4000));
        let _ = fs::remove_file(at(rng.below(6)));
    }
}

fn verify(bed: &Bed, writers: &[Writer], old: &[Vec<u8>], when: &str) {
    let mounted = bed.mount(&[]);
    assert_all_there(writers, &bed.mnt, &format!("{when}, after recovery"));
    check_old(&bed.mnt, old, when);
    let seen = Tree::read(&bed.mnt);
    mounted.umount();
    assert_all_there(writers, &bed.backing, &format!("{when}, on the backing store"));
    check_old(&bed.backing, old, &format!("{when}, on the backing store"));
    seen.assert_same(&Tree::read(&bed.backing), Times::Compare);
    let check = bed.forebay(&["check", &bed.tier.to_string_lossy(), "--json"]).ok().json();
    assert_eq!(check["ok"], true, "{when}: {check:#}");
}

fn check_old(root: &Path, old: &[Vec<u8>], when: &str) {
    for (i, want) in old.iter().enumerate() {
        let now = fs::read(root.join(format!("old/{i}"))).expect("an old file");
        assert_eq!(now.len(), want.len(), "{when}: size of old/{i}");
        let bad = now.iter().zip(want).position(|(now, want)| now != want && *now != 0xff);
        assert_eq!(bad, None, "{when}: old/{i} has a byte that nobody wrote");
    }
}

/// The journal of a writer that never started is empty, and so is its directory.
#[test]
fn an_empty_journal_asks_for_nothing() {
    let history = History::read(Path::new("/nonexistent"));
    assert!(history.acked.is_empty() && history.in_flight.is_none());
}

/// An append to a clean file that was written to the tier and not recorded was never acknowledged:
/// later readers see the file with its recorded size, past the daemon, too.
#[test]
fn an_append_that_died_before_its_record_is_not_there() {
    needs_forebay!();
    if !binary_mentions("write.data") {
        skip!("this forebay has no failpoints");
    }
    for flags in [&["--passthrough", "off"], &["--policy", "write-through"]] {
        let mut bed = Bed::new(Tier::Disk);
        let old = forebay_tests::sample::file(&bed.backing.join("file"), 1, 10_000);
        bed.env("FOREBAY_FAILPOINTS", "write.data=1");
        let foreground = bed.mount_foreground(flags);
        assert!(fs::read(bed.mnt.join("file")).unwrap() == old);
        let file = fs::File::options().append(true).open(bed.mnt.join("file")).unwrap();
        std::io::Write::write_all(&mut &file, &[7; 5000]).expect_err("the daemon dies");
        drop((file, foreground));
        images::unmount(&bed.mnt, true).expect("a dead mount can be detached");
        bed.unset("FOREBAY_FAILPOINTS");
        let shadows: u64 = sizes_below(&bed.tier.join("shadow"));
        // The kernel may send the bytes in two requests; the daemon has died in the first.
        assert!(shadows > 10_000, "bytes had reached the tier: {shadows}");

        let mounted = bed.mount(&[]);
        let seen = fs::read(bed.mnt.join("file")).unwrap();
        assert!(seen == old, "{flags:?}: {} bytes of {}", seen.len(), old.len());
        assert_eq!(fs::metadata(bed.mnt.join("file")).unwrap().len(), 10_000, "{flags:?}");
        // Bytes that were cut off must not come back when the file grows over them.
        fs::File::options()
            .write(true)
            .open(bed.mnt.join("file"))
            .unwrap()
            .set_len(15_000)
            .unwrap();
        let mut want = old;
        want.resize(15_000, 0);
        assert!(fs::read(bed.mnt.join("file")).unwrap() == want, "{flags:?}, grown");
        mounted.umount();
        assert!(fs::read(bed.backing.join("file")).unwrap() == want, "{flags:?}, backing store");
    }
    proof!("two appends died between the tier and the record");
}

fn sizes_below(dir: &Path) -> u64 {
    let size = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.unwrap();
        let meta = entry.metadata().unwrap();
        if meta.is_dir() { sizes_below(&entry.path()) } else { meta.len() }
    };
    fs::read_dir(dir).unwrap().map(size).sum()
}

macro_rules! points {
    ($($name:ident: $point:expr;)*) => {
        $(#[test]
        fn $name() {
            needs_forebay!();
            dies_and_recovers($point);
        })*

        /// A new failpoint in the engine that lacks a test here would not be noticed.
        const POINTS: &[&str] = &[$($point),*];
    };
}

points! {
    dying_when_a_flush_begins_loses_nothing: "flush.begin";
    dying_when_a_flush_has_copied_loses_nothing: "flush.copied";
    dying_when_a_flush_has_synced_loses_nothing: "flush.synced";
    dying_when_a_flush_has_settled_loses_nothing: "flush.settled";
    dying_when_an_erasure_is_logged_loses_nothing: "erase.logged";
    dying_when_an_eviction_is_logged_loses_nothing: "evict.logged";
    dying_when_an_eviction_has_punched_loses_nothing: "evict.punched";
    dying_when_a_rename_is_intended_loses_nothing: "rename.intent";
    dying_when_a_rename_is_done_loses_nothing: "rename.done";
    dying_when_an_unlink_is_intended_loses_nothing: "unlink.intent";
    dying_when_an_unlink_is_done_loses_nothing: "unlink.done";
    dying_when_a_truncate_is_logged_loses_nothing: "truncate.logged";
    dying_when_a_truncate_is_done_loses_nothing: "truncate.done";
    dying_when_a_create_is_done_loses_nothing: "create.done";
    dying_when_a_fill_is_written_loses_nothing: "fill.written";
    dying_when_a_write_is_in_the_shadow_loses_nothing: "write.data";
    dying_when_a_write_is_marked_loses_nothing: "write.marked";
    dying_when_a_sync_has_the_shadow_loses_nothing: "sync.shadow";
    dying_when_a_sync_is_marked_loses_nothing: "sync.marked";
    dying_when_a_compaction_is_committed_loses_nothing: "compaction.committed";
    dying_when_a_compaction_is_done_loses_nothing: "compaction.done";
}

/// Points of a take-over, which needs two nodes: `tests/cluster/takeover.rs`.
const OF_TAKE_OVERS: &[&str] = &["adopt.done"];

/// Every `pass("...")` in the daemon's sources has a test above. Those of the node are passed one by
/// one, whatever their names, in `forebay-node/tests/crash.rs` and `swap.rs`.
#[test]
fn every_failpoint_has_a_test() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut found = Vec::new();
    let mut todo = vec![crates];
    while let Some(dir) = todo.pop() {
        let Ok(list) = fs::read_dir(&dir) else { continue };
        for entry in list.flatten() {
            let path = entry.path();
            match path.extension().is_some_and(|e| e == "rs") {
                true => found.extend(points_in(&fs::read_to_string(&path).unwrap_or_default())),
                false if path.is_dir() && !path.ends_with("forebay-node") => todo.push(path),
                false => {}
            }
        }
    }
    let has_test = |p: &str| POINTS.contains(&p) || OF_TAKE_OVERS.contains(&p);
    let missing: Vec<_> = found.iter().filter(|p| !has_test(p)).collect();
    assert!(missing.is_empty(), "failpoints without a test here: {missing:?}");
    assert!(
        POINTS.iter().chain(OF_TAKE_OVERS).all(|point| found.iter().any(|it| it == point)),
        "all are found: {found:?}"
    );
    proof!("{} passages of failpoints in the sources", found.len());
}

fn points_in(source: &str) -> Vec<String> {
    let calls = source.split("pass(\"").skip(1);
    calls.filter_map(|rest| Some(rest.split_once('"')?.0.to_string())).collect()
}
