//! Names, directories and links.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::{Bench, am_root, fails, mine};
use crate::{Access, FileKind, RenameMode};

pub fn create_is_exclusive(b: &Bench<'_>) {
    let path = b.file("f", b"first");
    fails(b.store.create(&path, &mine(0o644)), libc::EEXIST);
    fails(b.store.mkdir(&path, &mine(0o755)), libc::EEXIST);
    fails(b.store.symlink(&path, "x".as_ref(), &mine(0o777)), libc::EEXIST);
    fails(b.store.mknod(&path, &mine(0o644), FileKind::Fifo, 0), libc::EEXIST);
    assert_eq!(b.read(&path), b"first");
    let dangling = b.symlink("dangling", "nowhere");
    fails(b.store.create(&dangling, &mine(0o644)), libc::EEXIST);
    fails(b.store.stat(&b.path("nowhere")), libc::ENOENT);
}

pub fn missing_names_and_parents_are_told_apart(b: &Bench<'_>) {
    let file = b.file("f", b"");
    fails(b.store.stat(&b.path("none")), libc::ENOENT);
    fails(b.store.open(&b.path("none"), Access::Read), libc::ENOENT);
    fails(b.store.unlink(&b.path("none/deeper")), libc::ENOENT);
    fails(b.store.create(&b.path("none/deeper"), &mine(0o644)), libc::ENOENT);
    fails(b.store.stat(&file.join("below")), libc::ENOTDIR);
    let error = fails(b.store.rename(&b.path("none"), &file, RenameMode::Replace), libc::ENOENT);
    assert!(error.to_string().contains("none"), "names its path: {error}");
}

pub fn directories_are_not_files(b: &Bench<'_>) {
    let (dir, file) = (b.subdir("d"), b.file("f", b""));
    fails(b.store.open(&dir, Access::ReadWrite), libc::EISDIR);
    fails(b.store.open(&dir, Access::Read), libc::EISDIR);
    fails(b.store.unlink(&dir), libc::EISDIR);
    fails(b.store.rmdir(&file), libc::ENOTDIR);
    fails(b.store.read_dir(&file), libc::ENOTDIR);
    fails(b.store.rename(&dir, &file, RenameMode::Replace), libc::ENOTDIR);
    fails(b.store.rename(&file, &dir, RenameMode::Replace), libc::EISDIR);
    fails(b.store.read_link(&file), libc::EINVAL);
}

pub fn a_full_directory_is_not_removed(b: &Bench<'_>) {
    let (full, empty) = (b.subdir("full"), b.subdir("empty"));
    let inside = b.file("full/f", b"");
    fails(b.store.rmdir(&full), libc::ENOTEMPTY);
    // POSIX allows both answers; XFS gives EEXIST.
    let error = b.store.rename(&empty, &full, RenameMode::Replace).unwrap_err();
    assert!(error.is(libc::ENOTEMPTY) || error.is(libc::EEXIST), "{error}");
    b.store.unlink(&inside).unwrap();
    b.store.rename(&empty, &full, RenameMode::Replace).unwrap();
    b.store.rmdir(&full).unwrap();
    fails(b.store.stat(&full), libc::ENOENT);
}

pub fn a_pinned_file_opens_whatever_becomes_of_its_name(b: &Bench<'_>) {
    let (path, new) = (b.file("f", b"old"), b.file("new", b"new"));
    let Some(pin) = b.store.pin(&path).unwrap() else { return };
    let known = b.store.stat(&path).unwrap();
    assert_eq!(pin.open(Access::Read).unwrap().1.nlink, 1);
    b.store.rename(&new, &path, RenameMode::Replace).unwrap();
    let (file, attr) = pin.open(Access::ReadWrite).unwrap();
    assert_eq!((attr.key, attr.nlink), (known.key, 0));
    file.write_at(b"!", 3).unwrap();
    let mut bytes = [0; 8];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 4);
    assert_eq!(&bytes[..4], b"old!");
    assert_eq!(b.read(&path), b"new");
    let dir = b.store.pin(&b.subdir("d")).unwrap().expect("as for a file");
    fails(dir.open(Access::Read), libc::EISDIR);
}

pub fn rename_replaces(b: &Bench<'_>) {
    let (from, to) = (b.file("from", b"new"), b.file("to", b"old"));
    let key = b.store.stat(&from).unwrap().key;
    b.store.rename(&from, &to, RenameMode::Replace).unwrap();
    fails(b.store.stat(&from), libc::ENOENT);
    assert_eq!(b.read(&to), b"new");
    assert_eq!(b.store.stat(&to).unwrap().key, key);
    let moved = b.subdir("d").join("moved");
    b.store.rename(&to, &moved, RenameMode::Replace).unwrap();
    assert_eq!(b.store.stat(&moved).unwrap().key, key);
}

pub fn rename_can_refuse_to_replace(b: &Bench<'_>) {
    let (from, to) = (b.file("from", b"new"), b.file("to", b"old"));
    fails(b.store.rename(&from, &to, RenameMode::NoReplace), libc::EEXIST);
    assert_eq!(b.read(&to), b"old");
    b.store.rename(&from, &b.path("free"), RenameMode::NoReplace).unwrap();
    assert_eq!(b.read(&b.path("free")), b"new");
}

pub fn rename_can_exchange(b: &Bench<'_>) {
    let (dir, file) = (b.subdir("a"), b.file("b", b"file"));
    b.file("a/inside", b"");
    b.store.rename(&dir, &file, RenameMode::Exchange).unwrap();
    assert_eq!(b.read(&dir), b"file");
    assert_eq!(b.store.stat(&b.path("b/inside")).unwrap().kind, FileKind::File);
    fails(b.store.rename(&dir, &b.path("none"), RenameMode::Exchange), libc::ENOENT);
}

pub fn a_directory_does_not_move_into_itself(b: &Bench<'_>) {
    let dir = b.subdir("d");
    fails(b.store.rename(&dir, &dir.join("below"), RenameMode::Replace), libc::EINVAL);
}

pub fn hard_links_share_a_key(b: &Bench<'_>) {
    let (one, two) = (b.file("one", b"shared"), b.path("two"));
    let attr = b.store.link(&one, None, &two).unwrap();
    assert_eq!((attr.nlink, attr.kind), (2, FileKind::File));
    assert_eq!(attr, b.store.stat(&one).unwrap());
    fails(b.store.link(&one, None, &two), libc::EEXIST);
    fails(b.store.link(&b.subdir("d"), None, &b.path("three")), libc::EPERM);
    b.store.unlink(&one).unwrap();
    assert_eq!(b.store.stat(&two).unwrap().nlink, 1);
    assert_eq!(b.read(&two), b"shared");
}

pub fn links_are_never_followed(b: &Bench<'_>) {
    let (dir, target) = (b.subdir("d"), b.file("f", b"target"));
    let (to_dir, to_file) = (b.symlink("to-dir", "d"), b.symlink("to-file", "f"));
    b.file("d/inside", b"");
    let link = b.store.stat(&to_file).unwrap();
    assert_eq!((link.kind, link.size), (FileKind::Symlink, 1));
    assert_eq!(b.store.read_link(&to_file).unwrap(), Path::new("f"));
    assert!(b.store.open(&to_file, Access::ReadWrite).is_err());
    assert!(b.store.read_dir(&to_dir).is_err());
    assert!(b.store.stat(&to_dir.join("inside")).is_err());
    assert!(b.store.create(&to_dir.join("new"), &mine(0o644)).is_err());
    assert!(
        b.store.xattr_set(&to_file, None, "user.x".as_ref(), b"", crate::XattrMode::Any).is_err()
    );
    assert_eq!(b.store.read_dir(&dir).unwrap().len(), 1);
    b.store.unlink(&to_file).unwrap();
    assert_eq!(b.read(&target), b"target");
    fails(b.store.rmdir(&to_dir), libc::ENOTDIR);
}

pub fn a_hard_link_to_a_symlink_is_one_too(b: &Bench<'_>) {
    let link = b.symlink("link", "some/where");
    let attr = b.store.link(&link, None, &b.path("second")).unwrap();
    assert_eq!((attr.kind, attr.nlink), (FileKind::Symlink, 2));
    assert_eq!(b.store.read_link(&b.path("second")).unwrap(), Path::new("some/where"));
    // XFS allows at most 1023 bytes.
    let long = "x".repeat(1000);
    let path = b.symlink("long", &long);
    assert_eq!(b.store.read_link(&path).unwrap(), PathBuf::from(&long));
}

pub fn paths_stay_below_the_root(b: &Bench<'_>) {
    for path in ["..", "../x", "/etc/passwd", "a/../../x", "/"] {
        fails(b.store.stat(Path::new(path)), libc::EINVAL);
        fails(b.store.open(Path::new(path), Access::Read), libc::EINVAL);
        fails(b.store.unlink(Path::new(path)), libc::EINVAL);
    }
}

pub fn names_are_bytes(b: &Bench<'_>) {
    for name in [&b"\xff\xfe"[..], b"new\nline", b" ", b"-rf", b"a\\b", b"..."] {
        let path = b.path(OsStr::from_bytes(name));
        b.store.create(&path, &mine(0o644)).unwrap();
        let listed = b.store.read_dir(&b.dir).unwrap();
        assert!(listed.iter().any(|e| e.name.as_bytes() == name), "{name:?}");
        b.store.unlink(&path).unwrap();
    }
}

pub fn names_have_a_longest(b: &Bench<'_>) {
    let longest = b.store.statfs().unwrap().namelen as usize;
    let name = |len| OsString::from_vec(vec![b'n'; len]);
    b.store.create(&b.path(name(longest)), &mine(0o644)).unwrap();
    fails(b.store.create(&b.path(name(longest + 1)), &mine(0o644)), libc::ENAMETOOLONG);
}

pub fn a_long_listing_is_complete(b: &Bench<'_>) {
    const COUNT: usize = 1500;
    let mut expected = BTreeMap::new();
    for i in 0..COUNT {
        let name = format!("a-name-of-usual-length-{i}");
        b.file(&name, b"");
        expected.insert(OsString::from(name), FileKind::File);
    }
    b.subdir("dir");
    b.symlink("link", "x");
    expected.insert("dir".into(), FileKind::Dir);
    expected.insert("link".into(), FileKind::Symlink);
    let listed = b.store.read_dir(&b.dir).unwrap();
    assert_eq!(listed.len(), COUNT + 2, "each entry once");
    let listed: BTreeMap<OsString, FileKind> =
        listed.into_iter().map(|e| (e.name, e.kind)).collect();
    assert_eq!(listed, expected);
}

pub fn a_deep_path_works(b: &Bench<'_>) {
    let mut path = b.dir.clone();
    for i in 0..50 {
        path.push(format!("level{i}"));
        b.store.mkdir(&path, &mine(0o755)).unwrap();
    }
    let (file, attr) = b.store.create(&path.join("f"), &mine(0o644)).unwrap();
    assert_eq!(file.stat().unwrap().key, attr.key);
    assert_eq!(b.store.stat(&path.join("f")).unwrap().key, attr.key);
}

pub fn the_root_is_a_directory(b: &Bench<'_>) {
    let root = Path::new("");
    let attr = b.store.stat(root).unwrap();
    assert_eq!(attr.kind, FileKind::Dir);
    assert!(b.store.read_dir(root).unwrap().iter().any(|e| Path::new(&e.name) == b.dir));
    b.store.sync_dir(root).unwrap();
    b.store.xattr_list(root).unwrap();
    let mode = crate::SetAttr { mode: Some(attr.mode), ..Default::default() };
    assert_eq!(b.store.set_attr(root, None, &mode).unwrap().mode, attr.mode);
    fails(b.store.mkdir(root, &mine(0o755)), libc::EEXIST);
    assert!(b.store.rmdir(root).is_err());
    assert!(b.store.unlink(root).is_err());
    assert!(b.store.rename(root, &b.path("x"), RenameMode::Replace).is_err());
}

pub fn special_files_keep_their_kind(b: &Bench<'_>) {
    let make = |name: &str, kind, rdev| b.store.mknod(&b.path(name), &mine(0o640), kind, rdev);
    for (name, kind) in
        [("fifo", FileKind::Fifo), ("socket", FileKind::Socket), ("file", FileKind::File)]
    {
        let attr = make(name, kind, 0).unwrap();
        assert_eq!((attr.kind, attr.mode), (kind, 0o640));
    }
    // Opening a FIFO must neither wait for its other end nor succeed.
    fails(b.store.open(&b.path("fifo"), Access::Read), libc::EINVAL);
    b.open(&b.path("file"));
    let null = rustix::fs::makedev(1, 3);
    let device = make("null", FileKind::Char, null);
    match device {
        Ok(attr) => assert_eq!((attr.kind, attr.rdev), (FileKind::Char, null)),
        // A container's root may lack the right.
        Err(error) => assert!(error.is(libc::EPERM), "{error} (root: {})", am_root()),
    }
}

pub fn a_new_file_has_a_new_key(b: &Bench<'_>) {
    let path = b.file("f", b"");
    let first = b.store.stat(&path).unwrap();
    b.store.unlink(&path).unwrap();
    // File systems stamp births by their clock tick, 10 ms at most.
    std::thread::sleep(std::time::Duration::from_millis(12));
    b.file("f", b"");
    let second = b.store.stat(&path).unwrap();
    assert!(first.key != second.key || first.key.generation == 0, "{first:?} {second:?}");
}
