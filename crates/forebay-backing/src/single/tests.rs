//! Tests of one file or device; the tests of all stores are in the suite.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::SingleStore;
use crate::suite::{TempDir, run_single};
use crate::wrap::{Fault, FaultRules, Limits, Meter, Retry, RetryPolicy, Throttle};
use crate::{Access, BackingStore, Kind, SetAttr};

const SIZE: u64 = 8 << 20;

fn image(dir: &TempDir, name: &str) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    path
}

fn open(path: &Path) -> SingleStore {
    SingleStore::open(path, Access::ReadWrite).unwrap()
}

/// A loop device, detached when dropped.
struct Loop(PathBuf);

impl Loop {
    /// `None` where loop devices cannot be used: not root, or no such devices.
    fn attach(image: &Path) -> Option<Loop> {
        let out = Command::new("losetup").args(["--find", "--show"]).arg(image).output().ok()?;
        if !out.status.success() {
            eprintln!("SKIPPED: {}", String::from_utf8_lossy(&out.stderr));
            return None;
        }
        Some(Loop(String::from_utf8(out.stdout).ok()?.trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn an_image_conforms_bare_and_wrapped() {
    let dir = TempDir::new();
    let path = image(&dir, "disk.img");
    assert!(run_single(&open(&path), Path::new("disk.img")) > 0);
    let store = Fault::with_rules(Arc::new(open(&path)), FaultRules::default()).unwrap().0;
    let store = Throttle::wrap(store, Limits { latency: Duration::ZERO, ..Limits::default() });
    let store = Meter::wrap(Retry::wrap(store, RetryPolicy::default()));
    assert!(run_single(&*store, Path::new("disk.img")) > 0);
}

#[test]
fn a_device_conforms() {
    let dir = TempDir::new();
    let Some(device) = Loop::attach(&image(&dir, "disk.img")) else { return };
    let store = open(&device.0);
    assert!(run_single(&store, device.0.file_name().unwrap().as_ref()) > 0);
}

/// The hole reaches the file behind the device.
#[test]
fn a_hole_in_a_device_is_a_discard() {
    use std::os::unix::fs::MetadataExt;
    let dir = TempDir::new();
    let path = image(&dir, "disk.img");
    let Some(device) = Loop::attach(&path) else { return };
    let store = open(&device.0);
    let file = store.open(Path::new(store.name()), Access::ReadWrite).unwrap();
    file.write_at(&vec![1; SIZE as usize], 0).unwrap();
    file.sync().unwrap();
    let blocks = || std::fs::metadata(&path).unwrap().blocks();
    let before = blocks();
    file.punch(0, SIZE / 2).unwrap();
    file.sync().unwrap();
    assert!(blocks() <= before / 2 + 64, "{before} to {} blocks", blocks());
}

#[test]
fn a_device_has_one_version_whatever_is_written() {
    let dir = TempDir::new();
    let Some(device) = Loop::attach(&image(&dir, "disk.img")) else { return };
    let version = |store: &SingleStore| store.stat(Path::new(store.name())).unwrap().version();
    let store = open(&device.0);
    let before = (store.identity().unwrap(), version(&store));
    let file = store.open(Path::new(store.name()), Access::ReadWrite).unwrap();
    file.write_at(b"changed", 0).unwrap();
    file.sync().unwrap();
    drop((file, store));
    let again = open(&device.0);
    assert_eq!((again.identity().unwrap(), version(&again)), before);
    let mode = SetAttr { mode: Some(0o666), ..SetAttr::default() };
    assert!(again.set_attr(Path::new(again.name()), None, &mode).unwrap_err().is(libc::EPERM));
}

/// O2.
#[test]
fn what_is_in_use_is_refused() {
    let dir = TempDir::new();
    let path = image(&dir, "disk.img");
    let refused = |path: &Path, access| {
        let error = SingleStore::open(path, access).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage, "{error}");
        assert!(error.to_string().contains("end that use first"), "{error}");
    };
    let first = open(&path);
    refused(&path, Access::ReadWrite);
    refused(&path, Access::Read);
    drop(first);
    let readers = [0, 1].map(|_| SingleStore::open(&path, Access::Read).unwrap());
    refused(&path, Access::ReadWrite);
    drop(readers);
    let Some(device) = Loop::attach(&path) else { return };
    let first = open(&device.0);
    refused(&device.0, Access::Read);
    drop(first);
    open(&device.0);
}

#[test]
fn identity_belongs_to_the_medium() {
    let dir = TempDir::new();
    let (one, two) = (image(&dir, "one"), image(&dir, "two"));
    let identity = |path: &Path| open(path).identity().unwrap();
    assert_ne!(identity(&one), identity(&two));
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&one, &link).unwrap();
    assert_eq!(identity(&one), identity(&link));
    let first = identity(&one);
    std::fs::rename(&two, &one).unwrap();
    assert_ne!(identity(&one), first, "another file took the name");
}

/// O1.
#[test]
fn the_medium_stays_when_its_name_goes() {
    let dir = TempDir::new();
    let path = image(&dir, "disk.img");
    let store = open(&path);
    std::fs::remove_file(&path).unwrap();
    let file = store.open(Path::new("disk.img"), Access::ReadWrite).unwrap();
    file.write_at(b"still here", 100).unwrap();
    let mut buf = [0; 10];
    store.open(Path::new("disk.img"), Access::Read).unwrap().read_at(&mut buf, 100).unwrap();
    assert_eq!(&buf, b"still here");
}

#[test]
fn the_file_can_go_by_another_name() {
    let dir = TempDir::new();
    let store = open(&image(&dir, "vdb")).named("vdc".as_ref());
    assert!(run_single(&store, Path::new("vdc")) > 0);
    assert!(store.stat(Path::new("vdb")).unwrap_err().is(libc::ENOENT));
}

#[test]
fn what_is_neither_file_nor_device_is_refused() {
    for path in ["/dev/null", "/tmp"] {
        assert!(!SingleStore::serves(Path::new(path)));
        let error = SingleStore::open(Path::new(path), Access::Read).unwrap_err();
        assert!(error.to_string().contains("block device"), "{error}");
    }
    let error = SingleStore::open(Path::new("/no/such"), Access::Read).unwrap_err();
    assert!(error.is(libc::ENOENT) && error.to_string().contains("/no/such"), "{error}");
}
