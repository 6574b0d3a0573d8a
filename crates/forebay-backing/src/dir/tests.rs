//! Tests of a directory of the local kernel; the tests of all stores are in the suite.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use super::DirStore;
use crate::suite::TempDir;
use crate::{Access, BackingStore, Kind, New, RenameMode};

fn new(mode: u32) -> New {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    New { mode, umask: 0, uid: uid.as_raw(), gid: gid.as_raw() }
}

/// D3.
#[test]
fn a_root_that_is_gone_is_unavailable_not_empty() {
    let dir = TempDir::new();
    let store = DirStore::open(dir.path()).unwrap();
    assert!(store.stat(Path::new("f")).unwrap_err().is(libc::ENOENT));
    std::fs::remove_dir(dir.path()).unwrap();
    let error = store.stat(Path::new("f")).unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert_eq!(error.errno(), libc::EIO);
    assert!(store.create(Path::new("f"), &new(0o644)).is_err());
}

#[test]
fn a_store_that_cannot_be_opened_says_which() {
    let dir = TempDir::new();
    std::fs::write(dir.path().join("file"), "").unwrap();
    for (name, errno) in [("none", libc::ENOENT), ("file", libc::ENOTDIR)] {
        let error = DirStore::open(&dir.path().join(name)).unwrap_err();
        assert_eq!(error.errno(), errno, "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn identity_belongs_to_the_directory() {
    let (one, two) = (TempDir::new(), TempDir::new());
    let link = two.path().join("link");
    std::os::unix::fs::symlink(one.path(), &link).unwrap();
    let identity = |path: &Path| DirStore::open(path).unwrap().identity().unwrap();
    assert_eq!(identity(one.path()), identity(&link));
    assert_ne!(identity(one.path()), identity(two.path()));
    let store = DirStore::open(&link).unwrap();
    assert_eq!(store.root(), one.path().canonicalize().unwrap());
}

#[test]
fn what_the_kernel_shows_of_itself_is_not_served_wherever_it_is_mounted() {
    let error = DirStore::open(Path::new("/proc/self")).unwrap_err();
    assert!(error.to_string().contains("this is proc"), "{error}");
    let mut by_walking = DirStore::open(Path::new("/")).unwrap();
    Arc::get_mut(&mut by_walking.root).unwrap().resolve_by_walking();
    for store in [DirStore::open(Path::new("/")).unwrap(), by_walking] {
        let refused = |error: crate::Error| assert!(error.is(libc::EACCES), "{error}");
        refused(store.read_dir(Path::new("proc")).unwrap_err());
        refused(store.stat(Path::new("proc/1")).unwrap_err());
        refused(store.read_link(Path::new("proc/1/exe")).unwrap_err());
        refused(store.open(Path::new("proc/version"), Access::Read).err().unwrap());
        refused(store.mkdir(Path::new("sys/kernel/new"), &new(0o755)).unwrap_err());
        store.read_dir(Path::new("dev")).unwrap();
        store.stat(Path::new("dev/null")).unwrap();
    }
}

/// D1, where a link could be slipped into a path between two calls: the target stays as it was.
#[test]
fn no_change_goes_through_a_link_out_of_the_tree() {
    let (dir, outside) = (TempDir::new(), TempDir::new());
    let victim = outside.path().join("victim");
    std::fs::write(&victim, "safe").unwrap();
    std::fs::set_permissions(&victim, PermissionsExt::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(outside.path(), dir.path().join("way")).unwrap();
    std::os::unix::fs::symlink(&victim, dir.path().join("victim")).unwrap();
    let store = DirStore::open(dir.path()).unwrap();
    for path in [Path::new("way/victim"), Path::new("victim")] {
        assert!(store.open(path, Access::ReadWrite).is_err());
        let set = crate::SetAttr { mode: Some(0o777), ..Default::default() };
        assert!(store.set_attr(path, None, &set).is_err());
        assert!(
            store.xattr_set(path, None, "user.x".as_ref(), b"", crate::XattrMode::Any).is_err()
        );
    }
    assert!(store.unlink(Path::new("way/victim")).is_err());
    assert!(
        store.rename(Path::new("way/victim"), Path::new("x"), crate::RenameMode::Replace).is_err()
    );
    let meta = std::fs::metadata(&victim).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.len()), (0o600, 4));
}

/// Both resolvers must agree, since only old kernels use the one by components.
#[test]
fn resolving_by_components_conforms_too() {
    let dir = TempDir::new();
    let mut store = DirStore::open(dir.path()).unwrap();
    Arc::get_mut(&mut store.root).unwrap().resolve_by_walking();
    assert!(crate::suite::run(&store) > 0);
}

/// Method: a thread of this process gives up root, which the raw calls do for the calling thread
/// alone.
#[test]
fn an_ordinary_users_store_conforms() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: the suite itself runs as an ordinary user");
        return;
    }
    let dir = TempDir::new();
    std::os::unix::fs::chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let ordinary = std::thread::spawn({
        let path = dir.path().to_owned();
        move || {
            // SAFETY: changes the effective ids of this thread, which ends below.
            let failed = unsafe {
                libc::syscall(libc::SYS_setresgid, -1, NOBODY, -1)
                    | libc::syscall(libc::SYS_setresuid, -1, NOBODY, -1)
            };
            assert_eq!(failed, 0);
            assert!(!rustix::process::geteuid().is_root());
            crate::suite::run(&DirStore::open(&path).unwrap())
        }
    });
    assert!(ordinary.join().unwrap() > 0);
}

#[test]
fn creating_for_many_owners_at_once_mixes_nothing_up() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: needs root");
        return;
    }
    let dir = TempDir::new();
    let store = DirStore::open(dir.path()).unwrap();
    std::thread::scope(|scope| {
        for id in 1000..1004 {
            let store = &store;
            scope.spawn(move || {
                for i in 0..200 {
                    let path = format!("{id}-{i}");
                    let new = New { mode: 0o640, umask: 0, uid: id, gid: id + 1 };
                    let attr = store.create(Path::new(&path), &new).unwrap().1;
                    assert_eq!((attr.uid, attr.gid, attr.mode), (id, id + 1, 0o640));
                }
            });
        }
    });
}

#[test]
fn holes_are_seen_and_made_where_the_file_system_has_them() {
    let dir = TempDir::new();
    let store = DirStore::open(dir.path()).unwrap();
    let (file, _) = store.create(Path::new("f"), &new(0o644)).unwrap();
    file.write_at(&[1; 1 << 20], 0).unwrap();
    file.sync().unwrap();
    let before = file.stat().unwrap().blocks;
    file.punch(0, 1 << 19).unwrap();
    file.sync().unwrap();
    let after = file.stat().unwrap().blocks;
    assert!(after <= before / 2 + 64, "{before} to {after} blocks");
    assert_eq!(file.next_data(0).unwrap(), Some((1 << 19, 1 << 20)));
}

/// A directory that is moved or replaced, through the store or behind its back, is not taken for
/// the earlier one.
#[test]
fn a_directory_replaced_a_moment_ago_is_seen() {
    let dir = TempDir::new();
    let store = DirStore::open(dir.path()).unwrap();
    let inside = |name: &str| dir.path().join(name);
    let make = |name: &str, text: &str| {
        std::fs::create_dir(inside(name)).unwrap();
        std::fs::write(inside(name).join("f"), text).unwrap();
    };
    make("a", "one");
    let size = |path: &str| store.stat(Path::new(path)).unwrap().size;
    assert_eq!(size("a/f"), 3);
    store.rename(Path::new("a"), Path::new("b"), RenameMode::Replace).unwrap();
    make("a", "three");
    assert_eq!((size("a/f"), size("b/f")), (5, 3));
    store.rename(Path::new("a"), Path::new("b"), RenameMode::Exchange).unwrap();
    assert_eq!((size("a/f"), size("b/f")), (3, 5));
    std::fs::remove_dir_all(inside("a")).unwrap();
    make("a", "seventh");
    assert_eq!(size("a/f"), 7);
}
