//! Modes, owners, times.

use std::path::Path;

use super::{Bench, am_root, fails, mine};
use crate::{Attr, FileKind, New, RenameMode, Result, SetAttr, SetTime, Timestamp, XattrMode};

fn at(sec: i64, nsec: u32) -> Timestamp {
    Timestamp { sec, nsec }
}

pub fn modes_are_exact_whatever_the_umask(b: &Bench<'_>) {
    for mode in [0o666, 0o777, 0o600, 0o444, 0o4755, 0o2711, 0o1777, 0] {
        let made = b.store.create(&b.path(format!("f{mode:o}")), &mine(mode)).unwrap().1;
        assert_eq!((made.mode, made.kind), (mode, FileKind::File), "{mode:o}");
        let made = b.store.mkdir(&b.path(format!("d{mode:o}")), &mine(mode)).unwrap();
        assert_eq!((made.mode, made.kind), (mode, FileKind::Dir), "{mode:o}");
        let fifo = b.path(format!("p{mode:o}"));
        let made = b.store.mknod(&fifo, &mine(mode), FileKind::Fifo, 0).unwrap();
        assert_eq!(made, b.store.stat(&fifo).unwrap());
        assert_eq!(made.mode, mode, "{mode:o}");
    }
    let path = b.file("f", b"");
    for mode in [0o4711, 0o640, 0] {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        assert_eq!(b.store.set_attr(&path, None, &set).unwrap().mode, mode);
    }
}

/// A user with the right to change a file may lack it for an object that was put in its place.
pub fn what_took_a_name_since_is_left_alone(b: &Bench<'_>) {
    let stale = |done: Result<()>| assert!(done.unwrap_err().is(libc::ESTALE));
    for dir in [false, true] {
        let make = |name: &str| if dir { b.subdir(name) } else { b.file(name, b"") };
        let (asked, other) = (make(&format!("asked{dir}")), make(&format!("other{dir}")));
        let key = Some(b.store.stat(&asked).unwrap().key);
        let before = b.store.stat(&other).unwrap();
        b.store.rename(&other, &b.path(format!("kept{dir}")), RenameMode::Replace).unwrap();
        b.store.rename(&asked, &b.path(format!("moved{dir}")), RenameMode::Replace).unwrap();
        b.store.rename(&b.path(format!("kept{dir}")), &asked, RenameMode::Replace).unwrap();
        let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        stale(b.store.set_attr(&asked, key, &set).map(drop));
        let name = "user.x".as_ref();
        stale(b.store.xattr_set(&asked, key, name, b"1", XattrMode::Any));
        stale(b.store.xattr_remove(&asked, key, name));
        if !dir {
            stale(b.store.link(&asked, key, &b.path("linked")).map(drop));
            assert!(b.store.stat(&b.path("linked")).is_err());
        }
        let found = b.store.stat(&asked).unwrap();
        assert_eq!((found.key, found.mode), (before.key, before.mode));
        let own = Some(found.key);
        assert_eq!(b.store.set_attr(&asked, own, &set).unwrap().mode, 0o777);
    }
}

pub fn times_keep_their_nanoseconds(b: &Bench<'_>) {
    let (file, dir) = (b.file("f", b"x"), b.subdir("d"));
    let (atime, mtime) = (at(1_234_567_890, 123_456_789), at(1_700_000_000, 999_999_999));
    let set = SetAttr {
        atime: Some(SetTime::At(atime)),
        mtime: Some(SetTime::At(mtime)),
        ..SetAttr::default()
    };
    for path in [&file, &dir] {
        let attr = b.store.set_attr(path, None, &set).unwrap();
        assert_eq!((attr.atime, attr.mtime), (atime, mtime));
        assert_eq!(b.store.stat(path).unwrap().mtime, mtime);
    }
    let opened = b.open(&file);
    opened.set_times(Some(mtime), Some(at(-5, 7))).unwrap();
    let attr = opened.stat().unwrap();
    assert_eq!((attr.atime, attr.mtime), (mtime, at(-5, 7)));
    assert_eq!(attr, b.store.stat(&file).unwrap());
}

pub fn times_of_a_link_are_its_own(b: &Bench<'_>) {
    let target = b.file("f", b"");
    let before = b.store.stat(&target).unwrap();
    let link = b.symlink("link", "f");
    let mtime = at(1_000_000_000, 5);
    let set = SetAttr { mtime: Some(SetTime::At(mtime)), ..SetAttr::default() };
    assert_eq!(b.store.set_attr(&link, None, &set).unwrap().mtime, mtime);
    assert_eq!(b.store.stat(&target).unwrap().mtime, before.mtime);
}

pub fn a_time_left_out_stays(b: &Bench<'_>) {
    let path = b.file("f", b"x");
    let file = b.open(&path);
    file.set_times(Some(at(10, 1)), Some(at(20, 2))).unwrap();
    file.set_times(None, Some(at(30, 3))).unwrap();
    assert_eq!(file.stat().unwrap().atime, at(10, 1));
    file.set_times(Some(at(40, 4)), None).unwrap();
    assert_eq!(file.stat().unwrap().mtime, at(30, 3));
    let now = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    let attr = b.store.set_attr(&path, None, &now).unwrap();
    assert_eq!(attr.atime, at(40, 4));
    assert!(attr.mtime.sec > 1_500_000_000, "{attr:?}");
}

pub fn a_symlink_has_no_mode_to_change(b: &Bench<'_>) {
    let target = b.file("f", b"");
    let link = b.symlink("link", "f");
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    fails(b.store.set_attr(&link, None, &set), libc::EOPNOTSUPP);
    assert_eq!(b.store.stat(&target).unwrap().mode, 0o644);
}

/// Makes one object of each kind; their modes, for kinds that have one, are `new.mode`.
fn one_of_each(b: &Bench<'_>, dir: &Path, new: &New) -> Vec<Attr> {
    vec![
        b.store.create(&dir.join("file"), new).unwrap().1,
        b.store.mkdir(&dir.join("dir"), new).unwrap(),
        b.store.mknod(&dir.join("fifo"), new, FileKind::Fifo, 0).unwrap(),
        b.store.symlink(&dir.join("link"), "x".as_ref(), new).unwrap(),
    ]
}

pub fn new_objects_belong_to_the_caller(b: &Bench<'_>) {
    let new = New { mode: 0o4750, umask: 0, uid: 12345, gid: 23456 };
    let owner = if am_root() { (12345, 23456) } else { (mine(0).uid, mine(0).gid) };
    for attr in one_of_each(b, &b.dir, &new) {
        assert_eq!((attr.uid, attr.gid), owner, "{attr:?}");
        if attr.kind != FileKind::Symlink {
            assert_eq!(attr.mode, 0o4750, "{attr:?}");
        }
    }
    let after = b.store.create(&b.path("after"), &mine(0o644)).unwrap().1;
    assert_eq!((after.uid, after.gid), (mine(0).uid, mine(0).gid), "nothing sticks to us");
}

pub fn a_set_gid_directory_passes_its_group_on(b: &Bench<'_>) {
    let group = if am_root() { 34567 } else { mine(0).gid };
    let dir = b.path("d");
    b.store.mkdir(&dir, &New { gid: group, ..mine(0o2775) }).unwrap();
    assert_eq!(b.store.stat(&dir).unwrap().mode, 0o2775);
    let other = New { mode: 0o755, umask: 0, uid: 12345, gid: 23456 };
    for attr in one_of_each(b, &dir, &other) {
        assert_eq!(attr.gid, group, "{attr:?}");
        if attr.kind == FileKind::Dir {
            assert_eq!(attr.mode, 0o2755, "a directory inherits the bit");
        }
    }
}

pub fn mode_survives_a_change_of_owner(b: &Bench<'_>) {
    let path = b.file("f", b"");
    let (uid, gid) = if am_root() { (12345, 23456) } else { (mine(0).uid, mine(0).gid) };
    let set = SetAttr { mode: Some(0o6755), uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
    let attr = b.store.set_attr(&path, None, &set).unwrap();
    assert_eq!((attr.mode, attr.uid, attr.gid), (0o6755, uid, gid));
    let link = b.symlink("link", "f");
    let only_owner = SetAttr { uid: Some(uid), ..SetAttr::default() };
    assert_eq!(b.store.set_attr(&link, None, &only_owner).unwrap().uid, uid);
    if !am_root() {
        let foreign = SetAttr { uid: Some(uid + 1), ..SetAttr::default() };
        fails(b.store.set_attr(&path, None, &foreign), libc::EPERM);
    }
}

pub fn the_owner_may_open_what_its_mode_forbids(b: &Bench<'_>) {
    let path = b.path("f");
    for mode in [0o444, 0o200, 0] {
        b.store.create(&path, &mine(mode)).unwrap().0.write_at(b"x", 0).unwrap();
        b.open(&path).write_at(b"y", 0).unwrap();
        assert_eq!(b.read(&path), b"y");
        assert_eq!(b.store.stat(&path).unwrap().mode, mode, "the mode is back");
        b.store.unlink(&path).unwrap();
    }
}

pub fn a_write_changes_the_version(b: &Bench<'_>) {
    let file = b.open(&b.file("f", b"one"));
    let before = file.stat().unwrap().version();
    assert_eq!(before, file.stat().unwrap().version());
    std::thread::sleep(std::time::Duration::from_millis(12));
    file.write_at(b"two", 0).unwrap();
    assert_ne!(before, file.stat().unwrap().version());
}

pub fn the_store_describes_itself(b: &Bench<'_>) {
    let identity = b.store.identity().unwrap();
    assert!(!identity.is_empty());
    b.file("f", b"change");
    assert_eq!(b.store.identity().unwrap(), identity);
    let s = b.store.statfs().unwrap();
    assert!(s.blocks >= s.bfree && s.bfree >= s.bavail && s.frsize > 0 && s.namelen > 0, "{s:?}");
}
