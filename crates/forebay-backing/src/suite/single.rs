//! The behaviour that a store of one file of fixed size must have, whatever its medium.

use std::path::Path;
use std::sync::Arc;

use super::{am_root, fails, mine};
use crate::{
    Access, BackingFile, BackingStore, FileKind, RenameMode, SetAttr, Sizes, StatFs, Timestamp,
    XattrMode,
};

const MIB: usize = 1 << 20;

type Check = (&'static str, fn(&One<'_>));

macro_rules! checks {
    ($($name:ident)*) => {
        &[$((stringify!($name), $name as fn(&One<'_>)),)*]
    };
}

const CHECKS: &[Check] = checks! {
    the_tree_is_a_root_and_a_file
    the_tree_cannot_be_changed
    bytes_come_back
    reads_end_at_the_end
    the_size_is_fixed
    a_hole_reads_as_zeros_at_any_offset
    a_reader_cannot_write
    syncs_and_times_are_accepted
    the_store_describes_itself
};

/// A store and the name of its file.
struct One<'a> {
    store: &'a dyn BackingStore,
    name: &'a Path,
    size: u64,
}

impl One<'_> {
    fn open(&self) -> Arc<dyn BackingFile> {
        self.store.open(self.name, Access::ReadWrite).expect("open")
    }

    fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let file = self.store.open(self.name, Access::Read).expect("open");
        let mut bytes = vec![0xee; len];
        assert_eq!(file.read_at(&mut bytes, offset).expect("read"), len);
        bytes
    }
}

/// Runs every check in `store`, whose one file is called `name` and is a multiple of 4 KiB and at
/// least 4 MiB long, and returns their number. The bytes of the file are overwritten.
pub fn run_single(store: &dyn BackingStore, name: &Path) -> usize {
    let size = store.stat(name).expect("the file").size;
    assert!(size >= 4 * MIB as u64 && size.is_multiple_of(4096), "{size} bytes");
    for (check, run) in CHECKS {
        eprintln!("{check}");
        run(&One { store, name, size });
    }
    CHECKS.len()
}

fn the_tree_is_a_root_and_a_file(one: &One<'_>) {
    let root = one.store.stat(Path::new("")).unwrap();
    let file = one.store.stat(one.name).unwrap();
    assert_eq!((root.kind, file.kind, file.nlink), (FileKind::Dir, FileKind::File, 1));
    assert_ne!(root.key, file.key);
    let entries = one.store.read_dir(Path::new("")).unwrap();
    assert_eq!(entries.len(), 1);
    assert_eq!((entries[0].name.as_os_str(), entries[0].ino), (one.name.as_os_str(), file.key.ino));
    assert_eq!(one.open().stat().unwrap().version(), file.version());
    fails(one.store.stat(Path::new("other")), libc::ENOENT);
    fails(one.store.stat(&one.name.join("below")), libc::ENOTDIR);
    fails(one.store.stat(Path::new("../etc")), libc::EINVAL);
    fails(one.store.read_dir(one.name), libc::ENOTDIR);
    fails(one.store.open(Path::new(""), Access::Read).map(drop), libc::EISDIR);
    fails(one.store.sync_dir(one.name), libc::ENOTDIR);
    one.store.sync_dir(Path::new("")).unwrap();
}

fn the_tree_cannot_be_changed(one: &One<'_>) {
    let (store, name, new) = (one.store, one.name, mine(0o644));
    let other = Path::new("other");
    fails(store.create(other, &new).map(drop), libc::EPERM);
    fails(store.create(name, &new).map(drop), libc::EEXIST);
    fails(store.mkdir(other, &new), libc::EPERM);
    fails(store.mknod(other, &new, FileKind::Fifo, 0), libc::EPERM);
    fails(store.symlink(other, name.as_os_str(), &new), libc::EPERM);
    fails(store.link(name, None, other), libc::EPERM);
    fails(store.unlink(name), libc::EPERM);
    fails(store.unlink(other), libc::ENOENT);
    fails(store.rmdir(name), libc::ENOTDIR);
    for mode in [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange] {
        fails(store.rename(name, other, mode), libc::EPERM);
    }
    fails(store.rename(other, name, RenameMode::Replace), libc::ENOENT);
    fails(store.read_link(name), libc::EINVAL);
    let xattr = "user.x".as_ref();
    fails(store.xattr_set(name, None, xattr, b"1", XattrMode::Any), libc::EOPNOTSUPP);
    fails(store.xattr_get(name, xattr), libc::EOPNOTSUPP);
    fails(store.xattr_remove(name, None, xattr), libc::EOPNOTSUPP);
    assert!(store.xattr_list(name).unwrap().is_empty());
    assert!(store.pin(name).unwrap().is_none());
    store.stat(name).unwrap();
}

fn bytes_come_back(one: &One<'_>) {
    let bytes: Vec<u8> = (0..MIB + 17).map(|i| (i % 251) as u8).collect();
    let file = one.open();
    file.write_at(&bytes, 1001).unwrap();
    assert_eq!(one.read(1001, bytes.len()), bytes);
    file.write_at(b"end", one.size - 3).unwrap();
    assert_eq!(one.read(one.size - 3, 3), b"end");
    file.write_at(&[], one.size).unwrap();
    assert_eq!(file.next_data(one.size - 3).unwrap(), Some((one.size - 3, one.size)));
    assert_eq!(file.next_data(one.size).unwrap(), None);
}

fn reads_end_at_the_end(one: &One<'_>) {
    let file = one.open();
    let mut buf = [7; 10];
    assert_eq!(file.read_at(&mut buf, one.size - 4).unwrap(), 4);
    assert_eq!(file.read_at(&mut buf, one.size).unwrap(), 0);
    assert_eq!(file.read_at(&mut buf, one.size + MIB as u64).unwrap(), 0);
}

fn the_size_is_fixed(one: &One<'_>) {
    assert_eq!(one.store.sizes(), Sizes::Fixed);
    let file = one.open();
    fails(file.write_at(b"beyond", one.size - 3), libc::ENOSPC);
    fails(file.write_at(b"beyond", one.size), libc::ENOSPC);
    fails(file.set_len(one.size + 1), libc::EPERM);
    fails(file.set_len(0), libc::EPERM);
    file.set_len(one.size).unwrap();
    file.punch(one.size - 10, MIB as u64).unwrap();
    file.punch(one.size, 10).unwrap();
    assert_eq!(file.stat().unwrap().size, one.size);
}

fn a_hole_reads_as_zeros_at_any_offset(one: &One<'_>) {
    let file = one.open();
    for (start, len) in [(1000, MIB), (8192, 4096), (5, 1), (4096, 0), (100, 5000), (4095, 4098)] {
        file.write_at(&vec![9; 2 * MIB], 0).unwrap();
        file.punch(start as u64, len as u64).unwrap();
        let bytes = one.read(0, 2 * MIB);
        let hole = start..start + len;
        let wrong = (0..2 * MIB).find(|i| bytes[*i] != if hole.contains(i) { 0 } else { 9 });
        assert_eq!(wrong, None, "a hole of {len} bytes at {start}");
    }
}

fn a_reader_cannot_write(one: &One<'_>) {
    let file = one.store.open(one.name, Access::Read).unwrap();
    assert!(file.write_at(b"y", 0).is_err());
    assert!(file.punch(0, 4096).is_err());
}

fn syncs_and_times_are_accepted(one: &One<'_>) {
    let file = one.open();
    file.write_at(b"durable", 0).unwrap();
    file.set_times(None, Some(Timestamp { sec: 1_000_000, nsec: 5 })).unwrap();
    file.sync().unwrap();
    one.store.sync_files(&[file.clone(), one.open()]).unwrap();
    one.store.sync_files(&[]).unwrap();
    one.store.set_attr(one.name, None, &SetAttr::default()).unwrap();
    let root = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    fails(one.store.set_attr(Path::new(""), None, &root), libc::EPERM);
    let time = SetAttr { mtime: Some(crate::SetTime::Now), ..SetAttr::default() };
    assert!(file.set_attr(&time).is_ok() || !am_root());
}

fn the_store_describes_itself(one: &One<'_>) {
    let StatFs { blocks, frsize, bavail, .. } = one.store.statfs().unwrap();
    assert_eq!((blocks * u64::from(frsize), bavail), (one.size, 0));
    assert_eq!(one.store.identity().unwrap(), one.store.identity().unwrap());
}
