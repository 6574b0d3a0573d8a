//! Extended attributes.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::Path;

use super::{Bench, am_root, fails};
use crate::XattrMode::{Any, Create, Replace};

fn name(name: &str) -> &OsStr {
    OsStr::new(name)
}

fn list(b: &Bench<'_>, path: &Path) -> BTreeSet<String> {
    let names = b.store.xattr_list(path).unwrap().into_iter();
    // Security modules add attributes of their own.
    names
        .map(|n| n.into_string().unwrap())
        .filter(|n| n.starts_with("user.") || n.starts_with("trusted."))
        .collect()
}

pub fn values_come_back(b: &Bench<'_>) {
    let path = b.file("f", b"");
    assert!(list(b, &path).is_empty());
    b.store.xattr_set(&path, None, name("user.one"), b"1\0\xff", Any).unwrap();
    b.store.xattr_set(&path, None, name("user.two"), b"2", Any).unwrap();
    assert_eq!(b.store.xattr_get(&path, name("user.one")).unwrap(), b"1\0\xff");
    assert_eq!(list(b, &path), ["user.one", "user.two"].map(String::from).into());
    b.store.xattr_remove(&path, None, name("user.one")).unwrap();
    assert_eq!(list(b, &path), ["user.two"].map(String::from).into());
}

pub fn create_and_replace_are_told_apart(b: &Bench<'_>) {
    let path = b.file("f", b"");
    fails(b.store.xattr_set(&path, None, name("user.x"), b"1", Replace), libc::ENODATA);
    b.store.xattr_set(&path, None, name("user.x"), b"1", Create).unwrap();
    fails(b.store.xattr_set(&path, None, name("user.x"), b"2", Create), libc::EEXIST);
    b.store.xattr_set(&path, None, name("user.x"), b"3", Replace).unwrap();
    assert_eq!(b.store.xattr_get(&path, name("user.x")).unwrap(), b"3");
}

pub fn long_and_empty_values(b: &Bench<'_>) {
    let path = b.file("f", b"");
    // Fits the one block that ext4 gives to all attributes of a file.
    let long = vec![b'v'; 3000];
    b.store.xattr_set(&path, None, name("user.long"), &long, Any).unwrap();
    b.store.xattr_set(&path, None, name("user.empty"), b"", Any).unwrap();
    assert_eq!(b.store.xattr_get(&path, name("user.long")).unwrap(), long);
    assert_eq!(b.store.xattr_get(&path, name("user.empty")).unwrap(), b"");
    let names: BTreeSet<String> =
        (0..30).map(|i| format!("user.a-rather-long-name-to-fill-the-list-{i}")).collect();
    let many = b.file("many", b"");
    for n in &names {
        b.store.xattr_set(&many, None, name(n), b"", Any).unwrap();
    }
    assert_eq!(list(b, &many), names);
}

pub fn a_missing_one_is_enodata(b: &Bench<'_>) {
    let path = b.file("f", b"");
    fails(b.store.xattr_get(&path, name("user.none")), libc::ENODATA);
    fails(b.store.xattr_remove(&path, None, name("user.none")), libc::ENODATA);
    fails(b.store.xattr_get(&b.path("none"), name("user.x")), libc::ENOENT);
    fails(b.store.xattr_set(&path, None, name("nonsense"), b"", Any), libc::EOPNOTSUPP);
}

pub fn attributes_work_on_directories(b: &Bench<'_>) {
    let dir = b.subdir("d");
    b.store.xattr_set(&dir, None, name("user.x"), b"dir", Any).unwrap();
    assert_eq!(b.store.xattr_get(&dir, name("user.x")).unwrap(), b"dir");
}

pub fn attributes_work_on_the_link_itself(b: &Bench<'_>) {
    let target = b.file("f", b"");
    let link = b.symlink("link", "f");
    fails(b.store.xattr_set(&link, None, name("user.x"), b"", Any), libc::EPERM);
    if am_root() {
        b.store.xattr_set(&link, None, name("trusted.x"), b"link", Any).unwrap();
        assert_eq!(b.store.xattr_get(&link, name("trusted.x")).unwrap(), b"link");
        assert_eq!(list(b, &link), ["trusted.x"].map(String::from).into());
    }
    assert!(list(b, &target).is_empty());
}
