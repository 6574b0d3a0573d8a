//! Advisory locks.

use std::fs::File;
use std::path::Path;

use forebay_tests::PATIENCE;
use forebay_tests::sys::{self, errno};

use crate::{Case, cases};

pub const CASES: &[Case] =
    cases![record_locks_exclude_by_range, whole_file_locks_exclude, locks_end_with_their_holder];

fn open(path: &Path) -> File {
    sys::open(path, libc::O_RDWR | libc::O_CREAT, 0o644).expect("open")
}

fn record_locks_exclude_by_range(dir: &Path) {
    let path = dir.join("f");
    let (a, b) = (open(&path), open(&path));
    sys::ofd_lock(&a, libc::F_WRLCK, 0, 100).unwrap();
    assert_eq!(errno(sys::ofd_lock(&b, libc::F_WRLCK, 50, 10)), libc::EAGAIN);
    assert_eq!(errno(sys::ofd_lock(&b, libc::F_RDLCK, 99, 1)), libc::EAGAIN);
    sys::ofd_lock(&b, libc::F_WRLCK, 100, 10).unwrap();
    sys::ofd_lock(&a, libc::F_UNLCK, 0, 60).unwrap();
    sys::ofd_lock(&b, libc::F_WRLCK, 50, 10).unwrap();
    assert_eq!(errno(sys::ofd_lock(&b, libc::F_RDLCK, 60, 1)), libc::EAGAIN);
    drop(a);
    // A program that another test is just starting has this test's descriptors until it execs.
    let free = || sys::ofd_lock(&b, libc::F_RDLCK, 60, 1).is_ok();
    forebay_tests::within(PATIENCE, "the lock is free", free);
}

fn whole_file_locks_exclude(dir: &Path) {
    let path = dir.join("f");
    let (a, b) = (open(&path), open(&path));
    sys::flock(&a, libc::LOCK_SH).unwrap();
    sys::flock(&b, libc::LOCK_SH).unwrap();
    assert_eq!(errno(sys::flock(&a, libc::LOCK_EX | libc::LOCK_NB)), libc::EAGAIN);
    sys::flock(&b, libc::LOCK_UN).unwrap();
    sys::flock(&a, libc::LOCK_EX | libc::LOCK_NB).unwrap();
    assert_eq!(errno(sys::flock(&b, libc::LOCK_SH | libc::LOCK_NB)), libc::EAGAIN);
}

/// Between processes: `flock(1)` holds the lock of a child that is killed.
fn locks_end_with_their_holder(dir: &Path) {
    let path = dir.join("f");
    let file = open(&path);
    let mut command = std::process::Command::new("flock");
    // exec: the killed process is the one that holds the lock.
    command.arg(&path).args(["sh", "-c", "touch held; exec sleep 600"]).current_dir(dir);
    let mut child = forebay_tests::Proc::spawn(&mut command);
    let held = dir.join("held");
    forebay_tests::within(PATIENCE, "the child holds the lock", || held.exists());
    assert_eq!(errno(sys::flock(&file, libc::LOCK_EX | libc::LOCK_NB)), libc::EAGAIN);
    let sleeper = children_of(child.pid());
    child.kill();
    for pid in sleeper {
        forebay_tests::kill(pid, libc::SIGKILL);
    }
    let free = || sys::flock(&file, libc::LOCK_EX | libc::LOCK_NB).is_ok();
    forebay_tests::within(PATIENCE, "the lock is free", free);
}

fn children_of(pid: i32) -> Vec<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let list = std::fs::read_to_string(path).unwrap_or_default();
    list.split_whitespace().map(|pid| pid.parse().expect("a pid")).collect()
}
