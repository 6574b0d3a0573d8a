//! A mount that may not serve: it is cut off, or another member has its place.

use std::sync::atomic::Ordering::Relaxed;

use forebay_backing::RenameMode;
use forebay_cluster::locks::{Kind as LockKind, Lock, Of, Range, Space};

use super::*;
use crate::vfs::locks::{Came, Wanted};

fn wanted(handle: u64, owner: u64) -> Wanted {
    let lock = Lock { kind: LockKind::Exclusive, range: Range::ALL, pid: 1 };
    Wanted { handle, of: Of { space: Space::Record, owner }, lock }
}

fn unfit(bed: &Bed, errno: Option<i32>) {
    let mut unfit = lock(&bed.net.unfit);
    unfit.clear();
    unfit.extend(errno.map(|errno| ("a".into(), errno)));
}

/// Another member may have this one's place, and grant the same lock to another program.
#[test]
fn a_home_that_may_not_serve_answers_its_own_programs_no_lock() {
    let bed = Bed::new(1);
    let a = &bed.mounts[0];
    let (first, second) = (a.create("f"), a.opened("f"));
    unfit(&bed, Some(libc::ETIMEDOUT));
    let errno = |came: Result<Came>| came.unwrap_err().errno();
    assert_eq!(errno(a.vfs.set_lock(&wanted(first, 1), None)), libc::ETIMEDOUT);
    let waiter = AtomicU64::new(5);
    assert_eq!(errno(a.vfs.set_lock(&wanted(first, 1), Some(&waiter))), libc::ETIMEDOUT);
    assert_ne!(waiter.load(Relaxed), 5, "that one was granted, and given back");
    let tested = a.vfs.test_lock(first, wanted(first, 1).of, wanted(first, 1).lock);
    assert_eq!(tested.unwrap_err().errno(), libc::ETIMEDOUT);
    assert!(a.vfs.fallocate(first, 0, 100, 0).is_err());
    unfit(&bed, None);
    assert_eq!(a.vfs.set_lock(&wanted(second, 2), None).unwrap(), Came::Granted);
    a.vfs.unset_lock(second, wanted(second, 2).of, Range::ALL).unwrap();
    // A lock that the program had before is lost when a request for it fails.
    assert_eq!(a.vfs.set_lock(&wanted(first, 1), None).unwrap(), Came::Granted);
    unfit(&bed, Some(libc::ETIMEDOUT));
    assert_eq!(errno(a.vfs.set_lock(&wanted(first, 1), None)), libc::ETIMEDOUT);
    unfit(&bed, None);
    assert_eq!(a.write(first, 0, "as if it had it").unwrap_err().errno(), libc::EIO);
}

#[test]
fn a_lock_holder_on_a_home_that_is_taken_over_hears_of_it_too() {
    let bed = Bed::new(1);
    let a = &bed.mounts[0];
    let (has, has_none) = (a.create("f"), a.opened("f"));
    a.vfs.set_lock(&wanted(has, 1), None).unwrap();
    a.vfs.lose_own_locks();
    assert_eq!(a.write(has, 0, "as if it had it").unwrap_err().errno(), libc::EIO);
    a.write(has_none, 0, "it never had one").unwrap();
}

/// Other members may hold files below the directory by then.
#[test]
fn a_directory_whose_gate_has_gone_is_not_renamed() {
    let bed = Bed::new(1);
    let (a, at) = (&bed.mounts[0], bed.root.join("backing"));
    std::fs::create_dir(at.join("d")).expect("it is writable");
    a.lookup_in(ROOT, "d").expect("it is there");
    let [from, to] = ["d", "e"].map(|name| (ROOT, OsStr::new(name)));
    bed.net.ungated.store(true, SeqCst);
    let refused = a.vfs.rename(from, to, RenameMode::Replace).expect_err("it has no gate");
    assert_eq!((refused.errno(), at.join("d").exists()), (libc::ESTALE, true));
    bed.net.ungated.store(false, SeqCst);
    a.vfs.rename(from, to, RenameMode::Replace).expect("it has one");
    assert!(at.join("e").exists());
}
