//! A new directory whose name another program takes meanwhile: the tree made beside is merged into that directory,
//! and not copied again.

mod bed;

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bed::{Rng, done, file, left_over, spec};
use forebay_stage::{Control, Outcome, Overwrite, Phase, Report, Spec, What};

const FILES: [&str; 4] = ["a", "sub/b", "sub/closed/c", "last"];

/// Files of 1 MiB, one with a second name, one in a directory that is closed even to its owner.
fn source(from: &Path) {
    std::fs::create_dir_all(from.join("sub/closed")).unwrap();
    for (seed, name) in (1..).zip(FILES) {
        file(&from.join(name), &Rng::new(seed).bytes(1 << 20));
    }
    std::fs::hard_link(from.join("a"), from.join("sub/link of a")).unwrap();
    for (name, mode) in [("sub/closed", 0o100), ("sub", 0o500)] {
        std::fs::set_permissions(from.join(name), PermissionsExt::from_mode(mode)).unwrap();
    }
}

fn beside(to: &Path, id: &str) -> PathBuf {
    to.with_file_name(format!(".forebay-stage-{id}.tree"))
}

fn inodes(top: &Path) -> BTreeMap<&'static str, u64> {
    let of = |name: &&'static str| Some((*name, top.join(name).metadata().ok()?.ino()));
    FILES.iter().filter_map(of).collect()
}

fn moved(report: &Report) -> u64 {
    report.bytes_copied + report.bytes_cloned
}

/// Takes the name, as another program would: a directory with some of the source's names in it.
fn take(to: &Path) {
    std::fs::create_dir_all(to.join("sub")).unwrap();
    file(&to.join("theirs"), b"theirs");
    file(&to.join("sub/b"), b"theirs, too");
}

fn assert_merged(from: &Path, to: &Path, theirs: &[&str]) {
    for name in FILES.into_iter().filter(|name| !theirs.contains(name)) {
        let read = |top: &Path| std::fs::read(top.join(name)).unwrap();
        assert!(read(from) == read(to), "{name}");
    }
    assert_eq!(std::fs::read(to.join("theirs")).unwrap(), b"theirs");
    let inode = |name: &str| to.join(name).metadata().unwrap().ino();
    assert_eq!(inode("a"), inode("sub/link of a"));
    assert_eq!(to.join("a").metadata().unwrap().nlink(), 2);
    assert_eq!(left_over(to.parent().unwrap()), Vec::<PathBuf>::new());
}

#[test]
fn a_name_that_is_taken_meanwhile_costs_no_second_copy() {
    for (overwrite, theirs) in [(Overwrite::Always, &[][..]), (Overwrite::Never, &["sub/b"][..])] {
        let top = tempfile::tempdir().unwrap();
        let (from, to) = (top.path().join("from"), top.path().join("to"));
        source(&from);
        let mut spec = spec("taken", &from, &to, What::Directory);
        spec.options.rate = 8 << 20;
        spec.options.overwrite = overwrite;
        spec.options.last = vec!["last".into()];
        let mut made = BTreeMap::new();
        let told = |_: &_| {
            if !to.exists() {
                take(&to);
            }
            // At the end of the run that finds the name taken, all files are in the tree beside.
            made.extend(inodes(&beside(&to, "taken")));
        };
        let report =
            forebay_stage::run(&spec, &Control::default(), Duration::from_millis(20), told);
        let report = report.unwrap();
        assert_eq!((report.outcome, report.files), (Outcome::Done, 5), "{report:#?}");
        assert_eq!(moved(&report), 4 << 20, "{report:#?}");
        assert_merged(&from, &to, theirs);
        made.retain(|name, _| !theirs.contains(name));
        let mut are = inodes(&to);
        are.retain(|name, _| !theirs.contains(name));
        assert_eq!(are, made, "other files than those that were copied first");
        for name in theirs {
            assert_eq!(std::fs::read(to.join(name)).unwrap(), b"theirs, too");
        }
    }
}

/// Runs the transfer, and stops it when `wanted` bytes are copied.
fn stopped(spec: &Spec, wanted: u64) -> Report {
    let control = Control::default();
    let told = |progress: &forebay_stage::Progress| {
        if progress.bytes_done >= wanted {
            control.stop();
        }
    };
    let report = forebay_stage::run(spec, &control, Duration::from_millis(5), told).unwrap();
    assert_eq!(report.outcome, Outcome::Stopped, "{report:#?}");
    report
}

/// The stop comes when all files are copied to the tree beside, and the name is taken.
#[test]
fn a_stop_between_the_last_file_and_the_name_is_no_end() {
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    source(&from);
    let mut spec = spec("between", &from, &to, What::Directory);
    spec.options.rate = 8 << 20;
    let control = Control::default();
    let told = |progress: &forebay_stage::Progress| {
        if !to.exists() {
            take(&to);
        }
        if progress.phase == Phase::Finishing {
            control.stop();
        }
    };
    let report = forebay_stage::run(&spec, &control, Duration::from_millis(20), told).unwrap();
    assert!(control.stops());
    assert_eq!(report.outcome, Outcome::Stopped, "{report:#?}");
    assert!(beside(&to, "between").exists() && !to.join("a").exists());
    spec.options.rate = 0;
    let report = done(&spec);
    assert_eq!((report.files, moved(&report)), (5, 0), "{report:#?}");
    assert_merged(&from, &to, &[]);
}

/// This also holds for a large file, which is copied in pieces.
#[test]
fn a_run_that_goes_on_finds_the_name_taken_and_copies_what_is_missing() {
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    source(&from);
    let large = Rng::new(9).bytes(200 << 20);
    file(&from.join("large"), &large);
    let mut spec = spec("resumed", &from, &to, What::Directory);
    spec.options.threads = 2;
    spec.options.rate = 150 << 20;
    let first = stopped(&spec, 130 << 20);
    take(&to);
    let second = done(&spec);
    assert!(moved(&first) >= 128 << 20 && moved(&second) <= 80 << 20, "{first:#?} {second:#?}");
    assert!(std::fs::read(to.join("large")).unwrap() == large);
    assert_merged(&from, &to, &[]);
}

/// In a file system that is mounted at the destination, files cannot get second names from the tree beside.
#[test]
fn into_another_file_system_it_is_copied() {
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    source(&from);
    let mut spec = spec("across", &from, &to, What::Directory);
    spec.options.rate = 4 << 20;
    stopped(&spec, 2 << 20);
    std::fs::create_dir(&to).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("tmpfs", &to, "tmpfs", flags, None).unwrap();
    let mounted = Unmount(&to);
    take(&to);
    done(&spec);
    assert_merged(&from, &to, &[]);
    drop(mounted);
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// A source that has changed since is copied again.
#[test]
fn what_is_of_an_older_source_is_not_taken() {
    let top = tempfile::tempdir().unwrap();
    let (from, to) = (top.path().join("from"), top.path().join("to"));
    source(&from);
    let mut spec = spec("older", &from, &to, What::Directory);
    spec.options.rate = 4 << 20;
    stopped(&spec, 2 << 20);
    let ages = |name: &&str| file(&from.join(name), &Rng::new(99).bytes(1 << 20));
    FILES.iter().for_each(ages);
    take(&to);
    assert_eq!(moved(&done(&spec)), 4 << 20);
    assert_merged(&from, &to, &[]);
}
