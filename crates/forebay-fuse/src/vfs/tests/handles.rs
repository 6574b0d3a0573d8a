//! Descriptors of files whose names other mounts change.

use forebay_backing::{Attr, RenameMode, SetAttr, SetTime, Timestamp};

use super::*;

const NAMES: [&str; 3] = ["f", "g", "h"];

/// Something that C does to the name `f`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fortune {
    Renamed,
    Removed,
    Replaced,
}

use Fortune::{Removed, Renamed, Replaced};

fn befalls(c: &Mount, fortune: Fortune) {
    let [f, g, h] = NAMES.map(|name| (ROOT, OsStr::new(name)));
    match fortune {
        Renamed => c.vfs.rename(f, g, RenameMode::Replace).expect("its home renames it"),
        Removed => c.vfs.unlink(ROOT, f.1).expect("its home removes it"),
        Replaced => {
            c.vfs.release(c.create("h"));
            c.vfs.rename(h, f, RenameMode::Replace).expect("its home replaces it");
        }
    }
}

/// `f` is a file of A that B has open: its handles at A and B, and its node at B.
fn shared_by_two_of_three(bed: &Bed) -> (u64, u64, u64) {
    let [a, b, _] = &bed.mounts[..] else { panic!("three mounts") };
    let near = a.create("f");
    a.write(near, 0, "old text").expect("it is A's");
    let far = b.opened("f");
    (near, far, b.lookup("f").expect("A serves it").id)
}

fn sets(mount: &Mount, id: u64, set: SetAttr, size: Option<(u64, Option<u64>)>) -> Result<Attr> {
    mount.vfs.setattr(id, Origin::default(), &set, size)
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

fn mode_of(attr: &Attr) -> u32 {
    attr.mode & 0o7777
}

// S-25
#[test]
fn a_file_open_at_another_home_is_changed_whatever_becomes_of_its_name() {
    for fortune in [Renamed, Removed, Replaced] {
        let bed = Bed::new(3);
        let (near, far, id) = shared_by_two_of_three(&bed);
        let [a, b, c] = &bed.mounts[..] else { panic!("three mounts") };
        let number = b.lookup("f").expect("A serves it").attr.key.ino;
        befalls(c, fortune);
        let done = |what: &str, done: Result<Attr>| {
            let attr = done.unwrap_or_else(|error| panic!("{what} of a {fortune:?} file: {error}"));
            let links = u32::from(fortune == Renamed);
            assert_eq!((attr.nlink, b.vfs.shown(&attr)), (links, number), "{what}, {fortune:?}");
            attr
        };
        let cut = done("ftruncate", sets(b, id, SetAttr::default(), Some((3, Some(far)))));
        assert_eq!(cut.size, 3);
        let changed = done("fchmod", sets(b, id, mode(0o640), None));
        assert_eq!((changed.size, mode_of(&changed)), (3, 0o640));
        let at = Timestamp { sec: 1_234_567, nsec: 890 };
        let time = SetAttr { mtime: Some(SetTime::At(at)), ..SetAttr::default() };
        assert_eq!(done("futimens", sets(b, id, time, None)).mtime, at);
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let owner = SetAttr { uid: Some(uid), gid: Some(gid), ..SetAttr::default() };
        let given = done("fchown", sets(b, id, owner, None));
        assert_eq!((given.uid, given.gid), (uid, gid));
        let told = done("fstat", b.vfs.getattr(id));
        assert_eq!((told.size, told.mtime), (3, at));
        assert_eq!((a.read(near), b.read(far)), ("old".to_string(), "old".to_string()));
        let file = a.vfs.file(near).expect("it is open");
        assert_eq!(mode_of(&a.vfs.engine.verbs.stat_open(&file)), 0o640);
        if fortune == Replaced {
            let other = c.vfs.getattr(c.lookup("f").expect("it is C's").id).expect("just so");
            assert_eq!((mode_of(&other), other.size), (0o644, 0), "that is another file");
        }
    }
}

/// Nobody has the file open at B: only its name is meant.
#[test]
fn a_name_that_is_gone_is_no_other_files() {
    for fortune in [Renamed, Removed, Replaced] {
        let bed = Bed::new(3);
        let (near, far, id) = shared_by_two_of_three(&bed);
        let [a, b, c] = &bed.mounts[..] else { panic!("three mounts") };
        befalls(c, fortune);
        b.vfs.release(far);
        let changed = sets(b, id, mode(0o640), None);
        let errno = changed.expect_err("no such name").errno();
        assert!([libc::ENOENT, libc::ESTALE].contains(&errno), "{fortune:?}: {errno}");
        let file = a.vfs.file(near).expect("it is open");
        assert_eq!(mode_of(&a.vfs.engine.verbs.stat_open(&file)), 0o644);
    }
}

/// Otherwise an open that may create the file fails with ENOENT: the kernel asks for the permission first.
#[test]
fn the_kernel_looks_a_name_up_again_that_others_have_removed() {
    for is_far in [false, true] {
        let bed = Bed::new(2);
        let [a, b] = &bed.mounts[..] else { panic!("two mounts") };
        a.vfs.release(a.create("f"));
        if !is_far {
            lock(&bed.net.homes).clear();
        }
        let id = b.lookup("f").expect("it is there").id;
        assert_eq!(b.vfs.is_far(id), is_far);
        lock(&bed.net.homes).clear();
        std::fs::remove_file(bed.root.join("backing/f")).expect("it is writable");
        let error = b.vfs.getattr(id).expect_err("it is gone");
        assert!(error.is(libc::ESTALE), "far: {is_far}, {error}");
        assert!(b.lookup("f").expect_err("it is gone").is(libc::ENOENT));
    }
}

/// A has brought the file home and given it back. It was opened for reading before.
fn read_since_before(bed: &Bed) -> (u64, u64) {
    let (near, far, id) = shared_by_two_of_three(bed);
    let [a, b, _] = &bed.mounts[..] else { panic!("three mounts") };
    b.vfs.release(far);
    let reader = b.open("f", libc::O_RDONLY).expect("A serves it").handle;
    a.vfs.release(near);
    let known = a.vfs.engine.files.find(a.key("f")).expect("it is A's");
    a.vfs.engine.drain.flush_file(&known).expect("the store works");
    lock(&bed.net.homes).clear();
    (reader, id)
}

/// A program of `by` opens the file for writing, and others then change its name.
fn an_older_reader_knows_the_size(by: usize, fortune: Option<Fortune>) {
    let bed = Bed::new(3);
    let (reader, id) = read_since_before(&bed);
    let b = &bed.mounts[1];
    let writer = &bed.mounts[by];
    writer.write(writer.opened("f"), 0, "a longer text").expect("it has the claim");
    fortune.into_iter().for_each(|fortune| befalls(&bed.mounts[2], fortune));
    let attr = b.vfs.getattr(id).unwrap_or_else(|error| panic!("{by}, {fortune:?}: {error}"));
    assert_eq!(attr.size, 13, "{by}, {fortune:?}");
    assert_eq!(b.read(reader), "a longer text", "{by}, {fortune:?}");
}

#[test]
fn an_older_descriptor_has_attributes_wherever_the_file_goes() {
    for by in [1, 2] {
        for fortune in [None, Some(Renamed)] {
            an_older_reader_knows_the_size(by, fortune);
        }
    }
}

/// The home has begun anew and given the file back: B's handle has come to B.
#[test]
fn a_descriptor_whose_file_has_come_here_cuts_it() {
    let bed = Bed::new(3);
    let (near, far, id) = shared_by_two_of_three(&bed);
    let [a, b, _] = &bed.mounts[..] else { panic!("three mounts") };
    a.vfs.release(near);
    let known = a.vfs.engine.files.find(a.key("f")).expect("it is A's");
    a.vfs.engine.drain.flush_file(&known).expect("the store works");
    let forgotten = std::mem::take(&mut *a.vfs.members.guests.lock());
    drop(forgotten);
    lock(&bed.net.homes).clear();
    assert!(b.vfs.fsync(far).is_err(), "A has begun anew");
    b.write(far, 0, "new").expect("it is B's now");
    assert!(b.vfs.is_far(id));
    let cut = sets(b, id, SetAttr::default(), Some((5, Some(far)))).expect("it is open here");
    assert_eq!((cut.size, b.read(far).as_str()), (5, "new t"));
}

/// B has the file open from before C claimed it, and C has renamed it since.
#[test]
fn a_file_opened_before_it_went_elsewhere_is_changed() {
    let bed = Bed::new(3);
    let [_, b, c] = &bed.mounts[..] else { panic!("three mounts") };
    std::fs::write(bed.root.join("backing/f"), "old text").expect("it is writable");
    let opened = b.open("f", libc::O_RDONLY).expect("it is there");
    let id = b.lookup("f").expect("it is there").id;
    c.write(c.opened("f"), 0, "new text").expect("it is C's");
    befalls(c, Renamed);
    let changed = sets(b, id, mode(0o640), None).expect("it is open");
    assert_eq!((mode_of(&changed), changed.nlink), (0o640, 1));
    b.vfs.release(opened.handle);
}

/// No member has claimed the file, so that B does not hear of its new name.
#[test]
fn an_open_unclaimed_file_is_changed_under_its_new_name() {
    let bed = Bed::new(2);
    let b = &bed.mounts[1];
    let at = bed.root.join("backing");
    std::fs::write(at.join("f"), "old text").expect("it is writable");
    let opened = b.open("f", libc::O_RDONLY).expect("it is there");
    assert_eq!(b.read(opened.handle), "old text");
    let id = b.lookup("f").expect("it is there").id;
    std::fs::rename(at.join("f"), at.join("g")).expect("it is writable");
    let changed = sets(b, id, mode(0o640), None).expect("it is open");
    assert_eq!(mode_of(&changed), 0o640);
    use std::os::unix::fs::PermissionsExt;
    let stored = std::fs::metadata(at.join("g")).expect("it is there").permissions().mode();
    assert_eq!(stored & 0o7777, 0o640);
}
