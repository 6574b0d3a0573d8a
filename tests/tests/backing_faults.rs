//! The backing store fails, stalls, goes and comes back.
// S-5, S-7, S-10

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_tests::tree::{Times, Tree};
use forebay_tests::{
    Bed, Faults, Mounted, Out, PATIENCE, Proc, Tier, finish, images, kill, needs_forebay,
    needs_tools, proof, sample, text, within,
};
use serde_json::json;

const LEN: usize = 300_000;
const FILES: u64 = 8;

/// Old files on the backing store, some of which the test caches.
fn laid() -> (Bed, Faults) {
    lay(Bed::new(Tier::Disk))
}

/// The same in memory, without a disk: only the injected fault takes longer than the patience of
/// such a mount with its store, not the load of other programs on the disk.
fn laid_in_memory() -> (Bed, Faults) {
    let mut bed = Bed::new(Tier::Tmpfs(256));
    bed.backing_in_memory(64);
    lay(bed)
}

fn lay(bed: Bed) -> (Bed, Faults) {
    for i in 0..FILES {
        sample::file(&bed.backing.join(format!("old-{i}")), i, LEN);
    }
    let faults = Faults::none(&bed);
    (bed, faults)
}

/// Makes new files and changes old ones.
fn write_some(root: &Path) {
    for i in 0..FILES {
        sample::file(&root.join(format!("new-{i}")), 100 + i, LEN);
    }
    for i in 0..FILES / 2 {
        let file = fs::File::options().write(true).open(root.join(format!("old-{i}"))).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"changed", 1000).unwrap();
    }
}

fn check_written(root: &Path) {
    for i in 0..FILES {
        let now = fs::read(root.join(format!("new-{i}"))).unwrap();
        assert!(now == forebay_tests::Rng::new(100 + i).bytes(LEN), "new-{i}");
        let mut want = forebay_tests::Rng::new(i).bytes(LEN);
        if i < FILES / 2 {
            want[1000..1007].copy_from_slice(b"changed");
        }
        assert!(fs::read(root.join(format!("old-{i}"))).unwrap() == want, "old-{i}");
    }
}

/// Reads a file in another process, which may be killed when it hangs.
fn read_elsewhere(path: &Path, limit: Duration) -> Out {
    finish(Command::new("cat").arg(path), limit)
}

/// Runs `work` and asserts that it ends in time.
#[track_caller]
fn in_time<T>(limit: Duration, what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let value = work();
    let took = start.elapsed();
    assert!(took < limit, "{what} took {took:?}, allowed were {limit:?}");
    value
}

/// Less than the default patience of a mount with its store.
const SOON: Duration = Duration::from_secs(25);

fn a_failing_flush_keeps_everything(op: &str, errno: &str) {
    let (bed, faults) = laid();
    let mounted = bed.mount(&["--fault", faults.path(), "--preset", "hold"]);
    write_some(&bed.mnt);
    mounted.hear_closes();
    faults.fail(op, errno);
    let out = mounted.forebay(&["flush", "--wait", text(&bed.mnt)]);
    assert!(matches!(out.code, Some(1 | 4)), "{out:#?}");
    assert!(out.text().contains("new-0"), "the failures are listed: {out:#?}");
    let status = mounted.status();
    let dirty =
        status["dirty_bytes"].as_u64().unwrap() + status["flushing_bytes"].as_u64().unwrap();
    assert!(dirty >= FILES * LEN as u64, "{op} {errno}: {status:#}");
    assert!(status["failed_files"].as_u64() > Some(0), "{status:#}");
    assert!(!status["troubles"].as_array().unwrap().is_empty(), "{status:#}");
    let out = in_time(PATIENCE, "umount", || mounted.umount_with(&["--timeout", "3s"]));
    assert_eq!(out.code, Some(4), "{out:#?}");
    check_written(&bed.mnt);
    faults.clear();
    mounted.flush();
    assert_eq!(mounted.number("dirty_bytes"), 0);
    assert_eq!(mounted.number("failed_files"), 0);
    // The flushed bytes are on the backing store before the unmount.
    check_written(&bed.backing);
    let seen = Tree::read(&bed.mnt);
    mounted.umount();
    seen.assert_same(&Tree::read(&bed.backing), Times::Compare);
    proof!("{op} failed with {errno}: {dirty} bytes stayed dirty, then reached the backing store");
}

#[test]
fn bytes_stay_dirty_while_the_backing_store_answers_eio() {
    needs_forebay!();
    a_failing_flush_keeps_everything("write_at", "EIO");
}

#[test]
fn bytes_stay_dirty_while_the_backing_store_is_full() {
    needs_forebay!();
    a_failing_flush_keeps_everything("write_at", "ENOSPC");
}

#[test]
fn bytes_stay_dirty_while_the_quota_is_used_up() {
    needs_forebay!();
    a_failing_flush_keeps_everything("write_at", "EDQUOT");
}

/// Copied bytes are not clean before they are synced.
// S-6
#[test]
fn bytes_stay_dirty_while_the_backing_store_cannot_sync() {
    needs_forebay!();
    let (bed, faults) = laid();
    let mounted = bed.mount(&["--fault", faults.path(), "--preset", "hold"]);
    write_some(&bed.mnt);
    mounted.hear_closes();
    faults.set(json!([{ "op": "sync", "fail": "EIO" }, { "op": "sync_files", "fail": "EIO" }]));
    let out = mounted.forebay(&["flush", "--wait", text(&bed.mnt)]);
    assert!(matches!(out.code, Some(1 | 4)), "{out:#?}");
    assert!(mounted.number("dirty_bytes") >= FILES * LEN as u64, "{:#}", mounted.status());
    faults.clear();
    mounted.flush();
    check_written(&bed.backing);
    mounted.umount();
    proof!("syncs failed, everything stayed dirty");
}

#[test]
fn a_flush_is_retried_until_the_backing_store_works_again() {
    needs_forebay!();
    let (bed, faults) = laid();
    let mounted = bed.mount(&["--fault", faults.path(), "--max-age", "200ms"]);
    faults.set(json!([{ "op": "write_at", "fail": "EIO", "count": 5 }]));
    write_some(&bed.mnt);
    within(PATIENCE, "the flusher gets through by itself", || {
        mounted.number("dirty_bytes") == 0 && mounted.number("failed_files") == 0
    });
    check_written(&bed.backing);
    let stats = mounted.forebay(&["stats", "--json", text(&bed.mnt)]).ok().json();
    let failed =
        stats["counters"].as_object().unwrap().iter().any(|(name, n)| {
            (name.contains("fail") || name.contains("error")) && n.as_u64() > Some(0)
        });
    assert!(failed, "failures are counted: {:#}", stats["counters"]);
    mounted.umount();
    proof!("five failures, then flushed");
}

/// Reads the cached file, and expects an error in time for the uncached one.
fn cached_works_and_uncached_fails(bed: &Bed, mounted: &Mounted, limit: Duration) {
    let out = read_elsewhere(&bed.mnt.join("old-0"), limit);
    assert_eq!(out.code, Some(0), "cached: {out:#?}");
    let out = read_elsewhere(&bed.mnt.join(format!("old-{}", FILES - 1)), limit);
    assert_eq!(out.code, Some(1), "uncached, an error in time: {} {}", out.command, out.stderr);
    in_time(limit, "writing to a cached file", || {
        let file = fs::File::options().write(true).open(bed.mnt.join("old-0")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"written while away", 50).unwrap();
        file.sync_all().unwrap();
    });
    let status = in_time(limit, "status", || mounted.status());
    assert_eq!(status["backing_available"], false, "{status:#}");
    let out = in_time(PATIENCE, "umount", || mounted.umount_with(&["--timeout", "2s"]));
    assert_eq!(out.code, Some(4), "{out:#?}");
}

/// Reads a file from a store that is there, but may count as away for a moment on a busy machine.
fn read_in_the_end(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    within(PATIENCE, "the store to answer", || {
        let read = fs::read(path);
        read.map(|read| bytes = read).is_ok()
    });
    bytes
}

fn away_and_back(break_it: fn(&Faults)) {
    let (bed, faults) = laid_in_memory();
    let mounted =
        bed.mount(&["--fault", faults.path(), "--max-age", "500ms", "--backing-timeout", "1s"]);
    for i in 0..3 {
        read_in_the_end(&bed.mnt.join(format!("old-{i}")));
    }
    break_it(&faults);
    cached_works_and_uncached_fails(&bed, &mounted, SOON);
    faults.clear();
    within(PATIENCE, "everything is flushed once the store is back", || {
        mounted.number("dirty_bytes") == 0
    });
    assert_eq!(&fs::read(bed.backing.join("old-0")).unwrap()[50..68], b"written while away");
    let uncached = read_in_the_end(&bed.mnt.join("old-7"));
    assert!(uncached == forebay_tests::Rng::new(7).bytes(LEN));
    within(PATIENCE, "the store counts as there", || mounted.status()["backing_available"] == true);
    mounted.umount();
    proof!("away and back");
}

#[test]
fn what_is_cached_works_while_the_backing_store_is_gone() {
    needs_forebay!();
    away_and_back(Faults::gone);
}

#[test]
fn what_is_cached_works_while_the_backing_store_stalls() {
    needs_forebay!();
    away_and_back(Faults::stalled);
}

/// A request that was answered with an error changes nothing when the store comes back: other
/// programs have written since, and their writes were acknowledged.
// S-2 S-10
#[test]
fn what_failed_because_the_store_hung_does_not_happen_later() {
    needs_forebay!();
    type Late = fn(&Path) -> std::io::Result<()>;
    let cases: [(&str, Late); 2] = [
        ("open", |path| fs::File::options().write(true).truncate(true).open(path).map(drop)),
        ("truncate", |path| truncate(path)),
    ];
    for (what, late) in cases {
        let (bed, faults) = laid_in_memory();
        let mounted = bed.mount(&[
            "--fault",
            faults.path(),
            "--preset",
            "hold",
            "--passthrough",
            "off",
            "--backing-timeout",
            "1s",
            "--entry-ttl",
            "60s",
            "--attr-ttl",
            "60s",
        ]);
        let path = bed.mnt.join("old-0");
        let mut want = fs::read(&path).unwrap();
        let file = fs::File::options().read(true).write(true).open(&path).unwrap();
        file.write_all_at(b"first", 0).unwrap();
        drop(file);
        mounted.hear_closes();
        faults.set(json!([{ "op": "stat", "stall_ms": 3_600_000 }]));
        let failed = late(&path).expect_err("the store hangs");
        assert!(matches!(failed.raw_os_error(), Some(libc::EIO | libc::ETIMEDOUT)), "{failed}");
        let mut opened = None;
        within(PATIENCE, "what is cached can be opened", || {
            opened = fs::File::options().write(true).open(&path).ok();
            opened.is_some()
        });
        let file = opened.expect("just seen");
        file.write_all_at(b"acknowledged", 100).unwrap();
        file.sync_all().unwrap();
        faults.clear();
        within(PATIENCE, "no call hangs any more", || {
            mounted.status()["backing_available"] == true
        });
        // The hung calls go on now, and would make their changes.
        std::thread::sleep(Duration::from_millis(500));
        want[..5].copy_from_slice(b"first");
        want[100..112].copy_from_slice(b"acknowledged");
        assert!(fs::read(&path).unwrap() == want, "{what}: through the mount");
        drop(file);
        mounted.umount();
        assert!(fs::read(bed.backing.join("old-0")).unwrap() == want, "{what}: on the store");
    }
    proof!("open with O_TRUNC, and truncate");
}

fn truncate(path: &Path) -> std::io::Result<()> {
    let path = std::ffi::CString::new(text(path)).expect("no zero byte");
    // SAFETY: a path that ends with a zero byte.
    match unsafe { libc::truncate(path.as_ptr(), 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// The dirty bytes of a mount that was unmounted from a dead store wait in the tier for the next
/// mount.
// S-12
#[test]
fn unmounting_from_a_dead_store_keeps_the_dirty_bytes_when_told_to() {
    needs_forebay!();
    let (bed, faults) = laid_in_memory();
    let mounted =
        bed.mount(&["--fault", faults.path(), "--preset", "hold", "--backing-timeout", "1s"]);
    write_some(&bed.mnt);
    mounted.hear_closes();
    faults.stalled();
    let out = in_time(PATIENCE, "umount", || mounted.umount_with(&["--keep-dirty"]));
    assert_eq!(out.code, Some(0), "{out:#?}");
    mounted.assert_gone();
    let tier = text(&bed.tier).to_string();
    let check = bed.forebay(&["check", &tier, "--json"]).json();
    assert!(check["dirty_bytes"].as_u64() >= Some(FILES * LEN as u64), "{check:#}");
    let mounted = bed.mount(&[]);
    check_written(&bed.mnt);
    mounted.umount();
    check_written(&bed.backing);
    proof!("kept {} dirty bytes over an unmount", check["dirty_bytes"]);
}

/// Many stores write out the last bytes when a file is closed, and may hang there.
// S-10
#[test]
fn a_store_that_hangs_in_close_does_not_hang_the_mount() {
    needs_forebay!();
    let (bed, faults) = laid_in_memory();
    let mounted = bed.mount(&["--fault", faults.path(), "--backing-timeout", "1s"]);
    read_in_the_end(&bed.mnt.join("old-0"));
    faults.set(json!([{ "op": "close", "path": "old-1", "stall_ms": 3_600_000 }]));
    read_in_the_end(&bed.mnt.join("old-1"));
    within(PATIENCE, "the store counts as away", || {
        let status = in_time(SOON, "status", || mounted.status());
        assert_eq!(status["busy_files"], 0, "{status:#}");
        status["backing_available"] == false
    });
    cached_works_and_uncached_fails(&bed, &mounted, SOON);
    let out = in_time(PATIENCE, "umount", || mounted.umount_with(&["--keep-dirty"]));
    assert_eq!(out.code, Some(0), "{out:#?}");
    mounted.assert_gone();
    let mounted = bed.mount(&[]);
    mounted.umount();
    assert_eq!(&fs::read(bed.backing.join("old-0")).unwrap()[50..68], b"written while away");
    proof!("a close hung for good, and what is cached was served");
}

/// Without injected faults: the backing store is another FUSE mount, whose daemon is stopped.
#[test]
fn a_backing_store_that_really_hangs_does_not_hang_the_mount() {
    needs_forebay!();
    needs_tools!("bindfs");
    let mut bed = Bed::new(Tier::Tmpfs(256));
    let (real, hung) = (bed.dir("real"), bed.dir("hung"));
    let _memory = images::MountedFs::tmpfs(&real, 64);
    for i in 0..FILES {
        sample::file(&real.join(format!("old-{i}")), i, LEN);
    }
    let mut bindfs = Proc::spawn(Command::new("bindfs").arg("-f").args([&real, &hung]));
    within(PATIENCE, "bindfs serves", || images::mounted_at(&hung).is_some());
    let _hung = Detach(hung.clone());
    bed.backing = hung;
    let mounted = bed.mount(&["--max-age", "500ms", "--backing-timeout", "1s"]);
    for i in 0..3 {
        read_in_the_end(&bed.mnt.join(format!("old-{i}")));
    }
    kill(bindfs.pid(), libc::SIGSTOP);
    cached_works_and_uncached_fails(&bed, &mounted, SOON);
    kill(bindfs.pid(), libc::SIGCONT);
    within(PATIENCE, "everything is flushed once the store is back", || {
        mounted.number("dirty_bytes") == 0
    });
    assert_eq!(&fs::read(real.join("old-0")).unwrap()[50..68], b"written while away");
    mounted.umount();
    assert!(bindfs.running());
    proof!("the store hung and came back");
}

struct Detach(std::path::PathBuf);

impl Drop for Detach {
    fn drop(&mut self) {
        let _ = images::unmount(&self.0, true);
    }
}
