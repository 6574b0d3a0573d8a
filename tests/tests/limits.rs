//! Bounds: a tree larger than the tier, descriptors, memory.
// S-9

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use forebay_tests::{
    Bed, Faults, Mounted, PATIENCE, Rng, Tier, binary, drop_caches, eventually, finish, is_alive,
    needs_forebay, open_fds, proof, rss_kib, sample, soak, sys, text, within,
};
use serde_json::json;

const MIB: u64 = 1 << 20;

/// A tier of 1 GiB serves a tree of 2.5 GiB (20 GiB in a soak): read, changed in places, new files
/// written, everything right on the backing store.
#[test]
fn a_tier_of_one_gibibyte_serves_a_tree_that_is_larger() {
    needs_forebay!();
    let files = if soak().is_some() { 640 } else { 80 };
    const LEN: usize = 32 << 20;
    let bed = Bed::new(Tier::Xfs(1024));
    for i in 0..files {
        sample::file(&bed.backing.join(format!("d{}/f{i}", i % 8)), i, LEN);
    }
    let mounted = bed.mount(&[]);
    let path = |root: &Path, i: u64| root.join(format!("d{}/f{i}", i % 8));
    for i in 0..files {
        assert!(fs::read(path(&bed.mnt, i)).unwrap() == Rng::new(i).bytes(LEN), "file {i}");
        if i % 10 == 3 {
            let file = fs::File::options().write(true).open(path(&bed.mnt, i)).unwrap();
            FileExt::write_all_at(&file, b"changed", 12 * MIB + 5).unwrap();
        }
        if i % 10 == 7 {
            sample::file(&path(&bed.mnt, i), i + 10_000, LEN / 2);
        }
    }
    let status = mounted.status();
    assert!(status["used_bytes"].as_u64() <= status["tier_bytes"].as_u64(), "{status:#}");
    mounted.umount();
    for i in 0..files {
        let mut want = Rng::new(i).bytes(LEN);
        let at = 12 * MIB as usize + 5;
        match i % 10 {
            3 => want[at..at + 7].copy_from_slice(b"changed"),
            7 => want = Rng::new(i + 10_000).bytes(LEN / 2),
            _ => {}
        }
        assert!(fs::read(path(&bed.backing, i)).unwrap() == want, "file {i} on the backing store");
    }
    proof!("{} MiB through a tier of 1024 MiB", files * LEN as u64 / MIB);
}

#[test]
fn a_prefetch_of_more_than_fits_says_what_is_there() {
    needs_forebay!();
    const LEN: usize = 17_000_000;
    let bed = Bed::new(Tier::Disk);
    for i in 0..6 {
        sample::file(&bed.backing.join(format!("set/f{i}")), i, LEN);
    }
    let mounted = bed.mount(&["--tier-size", "64MiB"]);
    for round in 0..2 {
        let out = mounted.forebay(&["prefetch", text(&mounted.at("set"))]).expect(1);
        assert!(out.text().contains("in 3 files, 3 failed"), "round {round}: {out:#?}");
        let list = mounted.forebay(&["ls", "--json", text(&mounted.path)]).ok().json();
        let files = list.as_array().unwrap();
        let whole = files.iter().filter(|file| file["cached_bytes"] == LEN).count();
        assert_eq!(whole, 3, "round {round}: {list:#}");
    }
    mounted.umount();
    proof!("three files of six, twice");
}

#[test]
fn descriptors_are_bounded_while_thousands_of_files_are_touched() {
    needs_forebay!();
    const FILES: usize = 5000;
    let bed = Bed::new(Tier::Disk);
    for i in 0..FILES {
        fs::create_dir_all(bed.backing.join(format!("d{}", i % 50))).unwrap();
        fs::write(bed.backing.join(format!("d{}/f{i}", i % 50)), [i as u8; 3000]).unwrap();
    }
    let mounted = bed.mount(&["--preset", "hold"]);
    let idle = open_fds(mounted.pid);
    let (done, most) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                most.fetch_max(open_fds(mounted.pid), Relaxed);
                std::thread::yield_now();
            }
        });
        for i in 0..FILES {
            let path = mounted.at(format!("d{}/f{i}", i % 50));
            assert_eq!(fs::read(&path).unwrap(), [i as u8; 3000]);
            if i % 3 == 0 {
                fs::write(mounted.at(format!("d{}/new{i}", i % 50)), [1; 100]).unwrap();
            }
        }
        done.store(true, Relaxed);
    });
    let most = most.load(Relaxed);
    let after = open_fds(mounted.pid);
    mounted.flush();
    let mut flushed = 0;
    // The kernel reports a close some time after it.
    eventually(PATIENCE, || {
        flushed = open_fds(mounted.pid);
        flushed < 300
    });
    assert!(most >= idle, "{most} descriptors at most, {idle} when idle: nobody looked");
    assert!(most < 1000, "{most} descriptors open at once (idle: {idle})");
    assert!(flushed < 300, "{flushed} descriptors open when idle again (before: {idle})");
    mounted.umount();
    proof!(
        "{FILES} files; {idle} descriptors before, {most} at most, {after} after, {flushed} flushed"
    );
}

#[test]
fn memory_is_bounded_with_a_hundred_thousand_names() {
    needs_forebay!();
    const NAMES: usize = 100_000;
    let bed = Bed::new(Tier::Disk);
    for dir in 0..100 {
        let dir = bed.backing.join(format!("d{dir}"));
        fs::create_dir(&dir).unwrap();
        for i in 0..NAMES / 100 {
            fs::File::create(dir.join(format!("name-{i}"))).unwrap();
        }
    }
    let mounted = bed.mount(&["--names-max", "20000"]);
    let idle = rss_kib(mounted.pid);
    assert!(idle < 50 << 10, "{idle} KiB when idle");
    let list = forebay_tests::tool("find", &[text(&bed.mnt), "-name", "name-*", "-size", "0"]);
    assert_eq!(list.ok().stdout.lines().count(), NAMES);
    let after = rss_kib(mounted.pid);
    assert!(after < idle + (150 << 10), "{after} KiB after {NAMES} names, {idle} KiB before");
    forebay_tests::drop_caches();
    let forgotten = rss_kib(mounted.pid);
    mounted.umount();
    proof!(
        "{NAMES} names: {idle} KiB idle, {after} KiB with them, {forgotten} KiB when the kernel forgot them"
    );
}

#[test]
fn memory_is_bounded_with_many_cached_files() {
    needs_forebay!();
    let files = if soak().is_some() { 100_000 } else { 20_000 };
    let bed = Bed::new(Tier::Disk);
    for i in 0..files {
        let dir = bed.backing.join(format!("d{}", i % 100));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("f{i}")), [i as u8; 64]).unwrap();
    }
    let mounted = bed.mount(&[]);
    let idle = rss_kib(mounted.pid);
    mounted.forebay(&["prefetch", text(&bed.mnt)]).ok();
    assert_eq!(mounted.number("files"), files);
    let after = rss_kib(mounted.pid);
    let each = (after.saturating_sub(idle)) * 1024 / files;
    assert!(each < 2048, "{each} bytes of memory for each cached file ({idle} to {after} KiB)");
    mounted.umount();
    let mounted = bed.mount(&[]);
    let again = rss_kib(mounted.pid);
    assert_eq!(mounted.number("files"), files, "the tier remembers");
    mounted.umount();
    proof!("{files} cached files: {each} bytes each; {again} KiB right after the next mount");
}

/// Mounts from a shell that has called `ulimit LIMIT`.
#[track_caller]
fn mount_under(bed: &Bed, limit: &str, flags: &[&str]) -> Mounted {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit {limit} && exec \"$@\""), "sh", text(binary())]);
    shell.args(["mount", text(&bed.backing), text(&bed.mnt), "--tier", text(&bed.tier)]);
    shell.args(flags);
    finish(&mut shell, PATIENCE).ok();
    bed.mounted()
}

#[test]
fn a_shell_that_limits_the_size_of_files_does_not_limit_the_mount() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    // The daemon may lift this limit, ...
    let mounted = mount_under(&bed, "-S -f 2048", &[]);
    let bytes = sample::file(&mounted.at("f"), 1, 8 << 20);
    mounted.umount();
    assert!(fs::read(bed.backing.join("f")).unwrap() == bytes);
    // ... and perhaps not this one: then the flush fails, and the daemon lives.
    let mounted = mount_under(&bed, "-f 30000", &[]);
    let bytes = sample::file(&mounted.at("g"), 2, 40 << 20);
    mounted.forebay(&["flush", "--wait", text(&bed.mnt)]);
    assert!(is_alive(mounted.pid));
    mounted.umount_with(&["--keep-dirty"]).ok();
    bed.mount(&[]).umount();
    assert!(fs::read(bed.backing.join("g")).unwrap() == bytes);
    proof!("files beyond a soft and a hard limit arrived");
}

/// Programs that have open as many files as the daemon can open leave it some descriptors, for
/// status queries.
// S-10
#[test]
fn the_daemon_answers_though_programs_have_all_the_files_open_that_it_can() {
    needs_forebay!();
    let bed = Bed::new(Tier::Disk);
    // The store is slow to close files, too: each that waits to be closed holds a descriptor.
    let slow = Faults::none(&bed);
    slow.set(json!([{ "op": "close", "stall_ms": 100 }]));
    let mounted = mount_under(&bed, "-n 1024", &["--fault", slow.path()]);
    let written = |i| {
        let mut file = fs::File::create(mounted.at(format!("f{i}")))?;
        file.write_all(&[0; 5000]).map(|()| file)
    };
    let mut held = Vec::new();
    let refused = (0..3000).find_map(|i: u32| written(i).map(|file| held.push(file)).err());
    let errno = refused.expect("the limit bites").raw_os_error();
    assert_eq!(errno, Some(libc::EMFILE));
    assert_eq!(mounted.number("open_files"), held.len() as u64);
    let out = mounted.forebay(&["umount", text(&bed.mnt), "--timeout", "60s"]);
    assert_eq!(out.code, Some(1), "{out:#?}");
    assert!(out.text().contains("is in use"), "{out:#?}");
    let count = held.len();
    // The daemon can close files that programs have closed, and serve others.
    held.truncate(count / 2);
    within(PATIENCE, "another file can be opened", || written(4000).is_ok());
    drop(held);
    mounted.umount();
    let there = |i| fs::read(bed.backing.join(format!("f{i}"))).unwrap() == [0; 5000];
    assert!((0..count).all(there), "all that were written are there");
    proof!("{count} files open, and none too many for the next status");
}

/// The kernel forgets a file, finds it again, and a program removes it.
// S-9
#[test]
fn files_that_are_removed_after_the_kernel_forgot_them_once_leave_nothing_behind() {
    needs_forebay!();
    const FILES: usize = 500;
    let bed = Bed::new(Tier::Disk);
    let paths = |root: &Path| (0..FILES).map(|i| root.join(format!("f{i}"))).collect::<Vec<_>>();
    paths(&bed.backing).iter().for_each(|path| fs::write(path, [1; 100]).unwrap());
    let mounted = bed.mount(&[]);
    let before = open_fds(mounted.pid);
    let look = |path: &Path| assert!(path.exists());
    paths(&bed.mnt).iter().for_each(|path| look(path));
    drop_caches();
    paths(&bed.mnt).iter().for_each(|path| look(path));
    paths(&bed.mnt).iter().for_each(|path| fs::remove_file(path).unwrap());
    within(PATIENCE, "their descriptors are closed", || open_fds(mounted.pid) < before + 50);
    mounted.umount();
    proof!("{FILES} files, each forgotten, found again and removed");
}

/// ext4 takes no file of more than 16 TiB; the store of this test does.
#[test]
fn a_file_too_large_for_the_tier_is_read_and_is_no_damage_to_the_tier() {
    needs_forebay!();
    const HUGE: u64 = 17 << 40;
    let mut bed = Bed::new(Tier::Ext4(256));
    bed.backing_in_memory(64);
    let old = fs::File::create(bed.backing.join("old")).unwrap();
    old.write_all_at(b"tail", HUGE).unwrap();
    let mounted = bed.mount(&[]);
    let errno = |result: std::io::Result<()>| result.unwrap_err().raw_os_error();
    let new = sys::open(&mounted.at("new"), libc::O_RDWR | libc::O_CREAT, 0o644).unwrap();
    assert_eq!(errno(new.set_len(HUGE)), Some(libc::EFBIG));
    assert_eq!(errno(new.write_all_at(b"x", HUGE)), Some(libc::EFBIG));
    assert_eq!(new.metadata().unwrap().len(), 0);
    let file = fs::File::open(mounted.at("old")).unwrap();
    let mut bytes = [1; 8];
    assert_eq!(file.read_at(&mut bytes, HUGE).unwrap(), 4);
    assert_eq!(&bytes[..4], b"tail");
    assert_eq!(file.read_at(&mut bytes, 5000).unwrap(), 8);
    assert_eq!(bytes, [0; 8]);
    let written = sys::open(&mounted.at("old"), libc::O_WRONLY, 0).unwrap();
    assert_eq!(errno(written.write_all_at(b"x", 0)), Some(libc::EFBIG));
    let stats = mounted.forebay(&["stats", "--json", text(&mounted.path)]).ok().json();
    assert_eq!(stats["counters"]["tier_errors"], 0, "{stats:#}");
    drop((new, file, written, old));
    mounted.umount();
    proof!("read beyond {HUGE} bytes, written nowhere");
}

/// The cost of one name does not grow with the number of the file's names: native tools make and
/// remove tens of thousands in seconds.
// S-9
#[test]
fn a_file_may_have_thousands_of_names() {
    needs_forebay!();
    const NAMES: usize = 12_000;
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--preset", "hold"]);
    let (dir, name) = (mounted.at("d"), |i: usize| format!("n{i}"));
    fs::create_dir(&dir).unwrap();
    let bytes = sample::file(&dir.join(name(0)), 1, 100_000);
    let began = Instant::now();
    (1..NAMES).for_each(|i| fs::hard_link(dir.join(name(0)), dir.join(name(i))).unwrap());
    let linked = began.elapsed();
    // Half of the names are renamed, too.
    for i in (1..NAMES).step_by(2) {
        fs::rename(dir.join(name(i)), dir.join(name(i + NAMES))).unwrap();
    }
    let renamed = began.elapsed() - linked;
    let mut left: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left.len(), NAMES);
    left.sort();
    let last = left.pop().unwrap();
    left.iter().for_each(|path| fs::remove_file(path).unwrap());
    let removed = began.elapsed() - linked - renamed;
    assert!(began.elapsed() < PATIENCE, "{linked:?} {renamed:?} {removed:?}");
    assert!(fs::read(&last).unwrap() == bytes);
    assert_eq!(fs::metadata(&last).unwrap().nlink(), 1);
    mounted.umount();
    let name = last.strip_prefix(&bed.mnt).unwrap();
    assert!(fs::read(bed.backing.join(name)).unwrap() == bytes, "by its last name");
    proof!(
        "{NAMES} names: made in {linked:?}, half renamed in {renamed:?}, removed in {removed:?}"
    );
}
