//! Dangers around a transfer: names replaced by links, sources that change, disks that fill, readers
//! that look too early.

mod bed;

use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bed::{Rng, assert_same, done, file, left_over, picture, run, spec};
use forebay_stage::{Control, Existing, Outcome, Reason, What};
use rustix::fs::{CWD, RenameFlags, XattrFlags, renameat_with};

/// Ends the other threads, also when an assertion fails.
struct Until<'a>(&'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn exchange(a: &Path, b: &Path) {
    renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
}

/// A directory on either side is exchanged again and again for a link that leads outside, while
/// transfers run: no file outside is read, changed or removed.
#[test]
fn a_link_swapped_in_the_middle_leads_nowhere() {
    let top = tempfile::tempdir().unwrap();
    let path = |name: &str| top.path().join(name);
    std::fs::create_dir_all(path("from/sub/deep")).unwrap();
    std::fs::create_dir_all(path("to/sub/deep")).unwrap();
    std::fs::create_dir_all(path("secret/deep")).unwrap();
    std::fs::create_dir_all(path("outside/deep")).unwrap();
    for number in 0..40 {
        file(&path(&format!("from/sub/deep/{number}")), b"data");
        file(&path(&format!("secret/deep/{number}")), b"secret");
        file(&path(&format!("outside/deep/{number}")), b"stays");
    }
    symlink(path("secret"), path("from/sub.link")).unwrap();
    symlink(path("outside"), path("to/sub.link")).unwrap();
    let (over, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut files, mut failures) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                exchange(&path("from/sub"), &path("from/sub.link"));
                exchange(&path("to/sub"), &path("to/sub.link"));
                swaps.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_micros(swaps.load(Ordering::Relaxed) % 700));
            }
        });
        let _until = Until(&over);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(4) || files == 0 || failures == 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "{files} files, {failures} failed");
            let mut spec = spec("swap", &path("from"), &path("to"), What::Directory);
            spec.options.preserve.times = false;
            let report = run(&spec);
            files += report.files;
            failures += report.failed;
        }
    });
    assert!(swaps.load(Ordering::Relaxed) > 100);
    for number in 0..40 {
        let text = |dir: &str| std::fs::read(path(&format!("{dir}/deep/{number}"))).unwrap();
        assert_eq!((text("secret"), text("outside")), (b"secret".to_vec(), b"stays".to_vec()));
    }
    for dir in ["outside", "outside/deep", "secret", "secret/deep"] {
        let count = std::fs::read_dir(path(dir)).unwrap().count();
        assert_eq!(count, if dir.contains('/') { 40 } else { 1 }, "{dir}");
    }
    // The files at the destination have the right data, wherever their directory is now, or through the
    // link that was copied as a link.
    for dir in ["to/sub/deep", "to/sub.link/deep"] {
        if std::fs::symlink_metadata(path(dir).parent().unwrap()).unwrap().is_symlink() {
            continue;
        }
        for entry in std::fs::read_dir(path(dir)).unwrap() {
            assert_eq!(std::fs::read(entry.unwrap().path()).unwrap(), b"data");
        }
    }
}

/// A file that is written to while it is copied fails with that reason, and the old copy stays.
#[test]
fn a_source_that_changes_is_not_published() {
    for large in [false, true] {
        let top = tempfile::tempdir().unwrap();
        let (from, to) = (top.path().join("from"), top.path().join("to"));
        std::fs::create_dir(&from).unwrap();
        std::fs::create_dir(&to).unwrap();
        let size = if large { 80 << 20 } else { 8 << 20 };
        file(&from.join("changing"), &vec![1; size]);
        file(&from.join("still"), b"still");
        file(&to.join("changing"), b"old copy");
        let mut spec = spec("change", &from, &to, What::Directory);
        spec.options.rate = size as u64 / 2;
        let over = AtomicBool::new(false);
        let report = std::thread::scope(|scope| {
            scope.spawn(|| {
                let file = std::fs::File::options().write(true).open(from.join("changing"));
                let file = file.unwrap();
                while !over.load(Ordering::Relaxed) {
                    file.write_all_at(b"changed", 100).unwrap();
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            let _until = Until(&over);
            run(&spec)
        });
        assert_eq!((report.outcome, report.failed, report.files), (Outcome::Failed, 1, 1));
        assert_eq!(report.failures[0].reason, Reason::Changed, "{report:#?}");
        assert_eq!((report.left_files, report.left_bytes), (1, size as u64));
        assert_eq!(std::fs::read(to.join("changing")).unwrap(), b"old copy");
        let temporary: Vec<PathBuf> =
            left_over(&to).into_iter().filter(|path| !path.ends_with(".journal")).collect();
        assert!(temporary.is_empty(), "{temporary:?}");
        // Once the file no longer changes, the same transfer ends.
        spec.options.rate = 0;
        assert_eq!(done(&spec).files, 2);
    }
}

/// A tree replaces an old one as a whole or not at all: the old tree may have the last good copy of a failed file.
#[test]
fn a_tree_of_which_something_failed_replaces_none() {
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::create_dir(&to).unwrap();
    file(&from.join("checkpoint"), &vec![1; 8 << 20]);
    file(&from.join("still"), b"still");
    file(&to.join("checkpoint"), b"the last good one");
    file(&to.join("old"), b"old");
    let mut spec = spec("whole", &from, &to, What::Directory);
    (spec.options.rate, spec.options.existing) = (4 << 20, Existing::Replace);
    let over = AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = std::fs::File::options().write(true).open(from.join("checkpoint")).unwrap();
            while !over.load(Ordering::Relaxed) {
                file.write_all_at(b"changed", 100).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let _until = Until(&over);
        run(&spec)
    });
    let reasons: Vec<Reason> = report.failures.iter().map(|failure| failure.reason).collect();
    assert_eq!(reasons, [Reason::Changed, Reason::HeldBack], "{report:#?}");
    assert_eq!(std::fs::read(to.join("checkpoint")).unwrap(), b"the last good one");
    assert_eq!(picture(&to).len(), 3, "{:?}", picture(&to));
    // Once all files can be copied, the new tree takes the place.
    spec.options.rate = 0;
    done(&spec);
    assert_same(&from, &to);
    assert_eq!(left_over(top.path()), Vec::<PathBuf>::new());
}

/// Stores through a mapping do not move the times of a file whose pages are dirty already.
#[test]
fn a_source_that_changes_through_a_mapping_is_not_published() {
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    std::fs::create_dir(&from).unwrap();
    std::fs::create_dir(&to).unwrap();
    file(&from.join("changing"), &vec![1; 8 << 20]);
    if !keeps_no_times_of_mappings(&from) {
        println!("SKIPPED: this file system moves times at each store, or never sends a page");
        return;
    }
    let mut spec = spec("mapped", &from, &to, What::Directory);
    spec.options.rate = 4 << 20;
    let changing = std::fs::File::options().read(true).write(true).open(from.join("changing"));
    let map = Mapping::of(&changing.unwrap(), 8 << 20);
    map.fill(2);
    let over = AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            // The first page is always among the pages that are sent.
            while !over.load(Ordering::Relaxed) {
                map.fill_first(3);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let _until = Until(&over);
        run(&spec)
    });
    assert_eq!((report.outcome, report.failed), (Outcome::Failed, 1), "{report:#?}");
    assert_eq!(report.failures[0].reason, Reason::Changed, "{report:#?}");
    assert!(!to.join("changing").exists());
}

/// A writable shared mapping of a whole file.
struct Mapping(*mut u8, usize);

// SAFETY: plain memory; each test has one thread that stores into it.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn of(file: &std::fs::File, len: usize) -> Mapping {
        use std::os::fd::AsRawFd;
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping of a file that stays as long.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        Mapping(at.cast(), len)
    }

    /// Stores one byte into each page.
    fn fill(&self, byte: u8) {
        for at in (0..self.1).step_by(4096) {
            // SAFETY: inside of the mapping.
            unsafe { self.0.add(at).write_volatile(byte) };
        }
    }
}

impl Mapping {
    fn fill_first(&self, byte: u8) {
        // SAFETY: inside of the mapping.
        unsafe { self.0.write_volatile(byte) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: ours alone.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

/// Whether, on this file system, only the first store after a page was sent moves the times.
fn keeps_no_times_of_mappings(dir: &Path) -> bool {
    use std::os::fd::AsRawFd;
    let path = dir.join("probe");
    file(&path, &[0; 4096]);
    let probe = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let map = Mapping::of(&probe, 4096);
    let time = || {
        std::thread::sleep(Duration::from_millis(20));
        let before = probe.metadata().unwrap().modified().unwrap();
        map.fill(1);
        probe.metadata().unwrap().modified().unwrap() != before
    };
    time();
    let at_each = time();
    // SAFETY: an open descriptor.
    unsafe { libc::fdatasync(probe.as_raw_fd()) };
    let after_sync = time();
    std::fs::remove_file(&path).unwrap();
    !at_each && after_sync
}

/// Of two transfers to one new directory, the second finds the name taken and adds to the directory.
#[test]
fn two_transfers_to_one_new_directory_become_one() {
    let top = tempfile::tempdir().unwrap();
    let to = top.path().join("to");
    let mut specs = Vec::new();
    for name in ["a", "b"] {
        let from = top.path().join(name);
        std::fs::create_dir(&from).unwrap();
        file(&from.join(format!("of-{name}")), &vec![1; 2 << 20]);
        let mut spec = spec(name, &from, &to, What::Directory);
        spec.options.rate = 2 << 20;
        specs.push(spec);
    }
    std::thread::scope(|scope| {
        specs.iter().for_each(|spec| _ = scope.spawn(|| done(spec)));
    });
    let mut names: Vec<_> =
        std::fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort_unstable();
    assert_eq!(names, ["of-a", "of-b"]);
    assert_eq!(left_over(top.path()), Vec::<PathBuf>::new());
}

/// A file that is replaced or removed while it is read is not published either.
#[test]
fn a_source_that_vanishes_is_told_from_one_that_changes() {
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    std::fs::create_dir(&from).unwrap();
    file(&from.join("vanishing"), &vec![1; 6 << 20]);
    let mut spec = spec("vanish", &from, &to, What::Directory);
    spec.options.rate = 4 << 20;
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(500));
            std::fs::remove_file(from.join("vanishing")).unwrap();
        });
        run(&spec)
    });
    assert_eq!(report.failed, 1);
    assert!(matches!(report.failures[0].reason, Reason::Vanished | Reason::Changed), "{report:#?}");
    assert!(!to.join("vanishing").exists());
}

/// A file system for the test, unmounted even if the test fails.
struct Mounted(PathBuf);

impl Mounted {
    fn at(at: &Path, kind: &str, options: &std::ffi::CStr) -> Mounted {
        std::fs::create_dir(at).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount(kind, at, kind, flags, options).unwrap();
        Mounted(at.into())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// A file that is too large fails alone. When no file fits, the transfer ends early, and goes on when there
/// is room.
#[test]
fn a_full_destination_is_told_and_costs_no_other_file() {
    let top = tempfile::tempdir().unwrap();
    let (from, full) = (top.path().join("from"), top.path().join("full"));
    std::fs::create_dir(&from).unwrap();
    let _mount = Mounted::at(&full, "tmpfs", c"size=8m");
    let to = full.join("to");
    std::fs::create_dir(&to).unwrap();
    file(&from.join("too large"), &Rng::new(1).bytes(20 << 20));
    for number in 0..10 {
        file(&from.join(number.to_string()), &[1; 100_000]);
    }
    let mut spec = spec("full", &from, &to, What::Directory);
    spec.options.threads = 1;
    let report = run(&spec);
    assert_eq!((report.outcome, report.failed, report.files), (Outcome::Failed, 1, 10));
    assert_eq!(report.failures[0].reason, Reason::NoSpace, "{report:#?}");
    assert_eq!(report.failures[0].path.0, Path::new("too large"));
    std::fs::remove_file(from.join("too large")).unwrap();
    for number in 10..300 {
        file(&from.join(number.to_string()), &[1; 100_000]);
    }
    let report = run(&spec);
    assert_eq!(report.outcome, Outcome::Full, "{report:#?}");
    assert!(report.failed >= 16 && report.failed < 40, "{}", report.failed);
    assert!(report.files > 40 && report.left_files == 300 - report.files, "{report:#?}");
    let options = c"size=80m";
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount_remount(&full, flags, options).unwrap();
    let there = std::fs::read_dir(&to).unwrap().count() as u64;
    // The second run may have stopped before it looked at the files of the first.
    assert!((report.files..=report.files + 10).contains(&there), "{there}, {report:#?}");
    let again = done(&spec);
    assert_eq!((again.kept, again.files), (there, 300), "{again:#?}");
}

/// Attributes that the destination does not keep are noted for every file at the destination, also by a run that
/// found the file there.
#[test]
fn attributes_that_do_not_come_along_are_told_by_whatever_run() {
    let top = tempfile::tempdir().unwrap();
    let (from, plain) = (top.path().join("from"), top.path().join("plain"));
    std::fs::create_dir(&from).unwrap();
    let _mount = Mounted::at(&plain, "ramfs", c"");
    let to = plain.join("to");
    std::fs::create_dir_all(to.join("blocked")).unwrap();
    for name in ["a", "b", "blocked"] {
        file(&from.join(name), name.as_bytes());
    }
    for path in [from.join("a"), from.clone()] {
        rustix::fs::setxattr(&path, "user.color", b"red", XattrFlags::empty()).unwrap();
    }
    let spec = spec("lost", &from, &to, What::Directory);
    let mut report = run(&spec);
    assert_eq!((report.outcome, report.files), (Outcome::Failed, 2), "{report:#?}");
    let lost = ["a: user.color: the destination keeps no such attributes"];
    assert_eq!((report.noted, &report.notes[..]), (1, &lost.map(String::from)[..]));
    // The directory was in the way; it is not the transfer's.
    std::fs::remove_dir(to.join("blocked")).unwrap();
    report = done(&spec);
    assert_eq!((report.kept, report.noted), (2, 1), "{report:#?}");
    assert_eq!(report.notes, lost);
    std::fs::remove_dir_all(&to).unwrap();
    report = done(&spec);
    assert_eq!(report.noted, 2, "{report:#?}");
    assert!(report.notes[1].starts_with(".: user.color: "), "{report:#?}");
}

/// A reader that sees the marker finds all other files; after a failure there is no marker.
#[test]
fn what_comes_last_is_published_last() {
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    std::fs::create_dir_all(from.join("data")).unwrap();
    std::fs::create_dir_all(to.join("data")).unwrap();
    file(&from.join("COMMIT"), b"done");
    std::fs::hard_link(from.join("COMMIT"), from.join("also")).unwrap();
    for number in 0..500 {
        file(&from.join(format!("data/{number}")), &[1; 2000]);
    }
    let mut spec = spec("last", &from, &to, What::Directory);
    spec.options.last = vec!["COMMIT".into()];
    let (over, looks, early) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let marked = to.join("COMMIT").exists();
                let there = std::fs::read_dir(to.join("data")).unwrap().count();
                looks.fetch_add(u64::from(!marked && there > 0), Ordering::Relaxed);
                early.fetch_add(u64::from(marked && there < 500), Ordering::Relaxed);
            }
        });
        let _until = Until(&over);
        done(&spec);
    });
    assert!(looks.load(Ordering::Relaxed) > 0, "nobody looked while it was copied");
    assert_eq!(early.load(Ordering::Relaxed), 0);
    std::fs::write(from.join("COMMIT"), b"next").unwrap();
    std::fs::remove_file(to.join("data/7")).unwrap();
    std::fs::create_dir(to.join("data/7")).unwrap();
    let report = run(&spec);
    let reasons: Vec<Reason> = report.failures.iter().map(|failure| failure.reason).collect();
    assert_eq!(reasons[0], Reason::InTheWay, "{report:#?}");
    assert!(reasons.len() >= 2 && reasons[1..].iter().all(|reason| *reason == Reason::HeldBack));
    assert_eq!(std::fs::read(to.join("COMMIT")).unwrap(), b"done");
}

/// Only the upper bound is checked: how near the rate comes to it depends on the disk, too.
#[test]
fn the_rate_is_not_passed_by_a_tenth_and_hurrying_lifts_it() {
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    std::fs::create_dir(&from).unwrap();
    for number in 0..24 {
        file(&from.join(number.to_string()), &[1; 1 << 20]);
    }
    let mut spec = spec("rate", &from, &to, What::Directory);
    spec.options.rate = 8 << 20;
    let report = done(&spec);
    let rate = report.bytes as f64 / report.seconds;
    assert!((0.2..1.1).contains(&(rate / f64::from(8 << 20))), "{rate}");
    std::fs::remove_dir_all(&to).unwrap();
    let control = Control::default();
    control.hurry();
    let tell = |_: &forebay_stage::Progress| ();
    spec.options.rate = 1 << 20;
    let report = forebay_stage::run(&spec, &control, Duration::from_secs(1), tell).unwrap();
    assert!(report.seconds < 20.0, "{report:#?}");
}

/// The totals are right once they are marked as final, and never below the work done.
#[test]
fn ten_thousand_files_in_one_directory_are_counted_and_copied() {
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    std::fs::create_dir(&from).unwrap();
    for number in 0..10_000u32 {
        file(&from.join(format!("f{number}")), &number.to_le_bytes());
    }
    let spec = spec("many", &from, &to, What::Directory);
    let mut last = None;
    let report = forebay_stage::run(&spec, &Control::default(), Duration::from_millis(5), |p| {
        assert!(p.files_done <= p.files_total && p.bytes_done <= p.bytes_total, "{p:?}");
        assert!(p.phase == forebay_stage::Phase::Counting || p.files_total == 10_000, "{p:?}");
        last = Some(p.clone());
    });
    let report = report.unwrap();
    assert_eq!((report.outcome, report.files, report.bytes), (Outcome::Done, 10_000, 40_000));
    let last = last.expect("progress is told");
    assert_eq!((last.files_done, last.bytes_done, last.eta_seconds), (10_000, 40_000, Some(0.0)));
    for number in 0..10_000u32 {
        let bytes = std::fs::read(to.join(format!("f{number}"))).unwrap();
        assert_eq!(bytes, number.to_le_bytes());
    }
}

/// Whether two descriptors belong to one open file; `None` if this kernel does not say.
fn are_one(a: u64, b: u64) -> Option<bool> {
    let pid = std::process::id();
    // SAFETY: integers only; KCMP_FILE is 0.
    match unsafe { libc::syscall(libc::SYS_kcmp, pid, pid, 0, a, b) } {
        0 => Some(true),
        1..=3 => Some(false),
        _ => None,
    }
}

/// The kernel reports a failed write once per open file: pieces that shared one could take each other's
/// errors, and count as being on the medium.
#[test]
fn pieces_of_a_large_file_share_no_descriptor() {
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    std::fs::create_dir(&from).unwrap();
    let large = std::fs::File::create(from.join("large")).unwrap();
    (0..4u64).for_each(|piece| large.write_all_at(&[1; 4 << 20], piece << 26).unwrap());
    let mut spec = spec("pieces", &from, &to, What::Directory);
    spec.options.rate = 8 << 20;
    let (over, most) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
                let is_temp = |path: PathBuf| {
                    path.starts_with(top.path()) && path.to_string_lossy().contains("stage-pieces-")
                };
                let of_temp = open.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(is_temp));
                let fds: Vec<u64> =
                    of_temp.map(|fd| fd.file_name().to_str().unwrap().parse().unwrap()).collect();
                most.fetch_max(fds.len() as u64, Ordering::Relaxed);
                for (number, a) in fds.iter().enumerate() {
                    assert!(fds[..number].iter().all(|b| are_one(*a, *b) != Some(true)));
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let _until = Until(&over);
        done(&spec);
    });
    assert!(most.load(Ordering::Relaxed) > 2, "{most:?} descriptors were seen");
}
