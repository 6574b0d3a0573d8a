//! Bytes of files.

use std::sync::Arc;

use super::{Bench, fails, mine};
use crate::{Access, BackingFile};

const MIB: u64 = 1 << 20;

pub fn bytes_come_back(b: &Bench<'_>) {
    let bytes: Vec<u8> = (0..3 * MIB + 17).map(|i| (i % 251) as u8).collect();
    let path = b.file("f", &bytes);
    assert_eq!(b.read(&path), bytes);
    b.open(&path).write_at(b"xyz", 1000).unwrap();
    assert_eq!(&b.read(&path)[999..1004], &[bytes[999], b'x', b'y', b'z', bytes[1003]]);
}

pub fn reads_end_at_the_end(b: &Bench<'_>) {
    let file = b.open(&b.file("f", b"12345"));
    let mut buf = [7; 10];
    assert_eq!(file.read_at(&mut buf, 3).unwrap(), 2);
    assert_eq!(&buf[..3], b"45\x07");
    assert_eq!(file.read_at(&mut buf, 5).unwrap(), 0);
    assert_eq!(file.read_at(&mut buf, MIB).unwrap(), 0);
    assert_eq!(file.read_at(&mut [], 0).unwrap(), 0);
}

pub fn a_gap_reads_as_zeros_and_stays_a_hole(b: &Bench<'_>) {
    let path = b.file("f", b"head");
    let file = b.open(&path);
    file.write_at(b"tail", 4 * MIB).unwrap();
    file.sync().unwrap();
    let bytes = b.read(&path);
    assert_eq!(bytes.len() as u64, 4 * MIB + 4);
    assert!(bytes[4..4 * MIB as usize].iter().all(|byte| *byte == 0));

    let runs = runs(&*file);
    assert!(runs.first().is_some_and(|(start, _)| *start == 0), "{runs:?}");
    assert!(runs.last().is_some_and(|(_, end)| *end == 4 * MIB + 4), "{runs:?}");
    // A store without holes reports it all as data; a store with holes has a hole in the middle.
    assert!(runs.len() == 1 || runs[0].1 < 4 * MIB, "{runs:?}");
    assert_eq!(file.next_data(4 * MIB + 4).unwrap(), None);
}

fn runs(file: &dyn BackingFile) -> Vec<(u64, u64)> {
    let mut runs = Vec::new();
    let mut at = 0;
    while let Some((start, end)) = file.next_data(at).unwrap() {
        assert!(at <= start && start < end, "{at}: {start}..{end}");
        runs.push((start, end));
        at = end;
    }
    runs
}

pub fn length_grows_and_shrinks(b: &Bench<'_>) {
    let path = b.file("f", b"123456");
    let file = b.open(&path);
    file.set_len(3).unwrap();
    file.set_len(5).unwrap();
    assert_eq!(b.read(&path), b"123\0\0");
    file.set_len(0).unwrap();
    assert_eq!(file.stat().unwrap().size, 0);
    assert_eq!(b.store.stat(&path).unwrap().size, 0);
}

pub fn a_punched_hole_reads_as_zeros(b: &Bench<'_>) {
    let path = b.file("f", &vec![9; MIB as usize]);
    let file = b.open(&path);
    file.punch(1000, MIB / 2).unwrap();
    file.punch(5, 0).unwrap();
    file.punch(MIB - 10, MIB).unwrap();
    let bytes = b.read(&path);
    assert_eq!(bytes.len() as u64, MIB);
    let hole = 1000..1000 + MIB as usize / 2;
    let tail = MIB as usize - 10;
    for (i, byte) in bytes.iter().enumerate() {
        let expected = if hole.contains(&i) || i >= tail { 0 } else { 9 };
        assert_eq!(*byte, expected, "at {i}");
    }
}

pub fn offsets_reach_beyond_32_bits(b: &Bench<'_>) {
    let file = b.open(&b.file("f", b""));
    let far = (1 << 36) + 5;
    file.write_at(b"far", far).unwrap();
    let mut buf = [0; 8];
    assert_eq!(file.read_at(&mut buf, far - 1).unwrap(), 4);
    assert_eq!(&buf[..4], b"\0far");
    assert_eq!(file.stat().unwrap().size, far + 3);
}

pub fn an_unlinked_file_stays_usable(b: &Bench<'_>) {
    let path = b.file("f", b"still here");
    let file = b.open(&path);
    b.store.unlink(&path).unwrap();
    fails(b.store.stat(&path), libc::ENOENT);
    file.write_at(b"STILL", 0).unwrap();
    let mut buf = [0; 10];
    file.read_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"STILL here");
    assert_eq!(file.stat().unwrap().nlink, 0);
}

pub fn a_read_only_file_refuses_writes(b: &Bench<'_>) {
    let path = b.file("f", b"x");
    let file = b.store.open(&path, Access::Read).unwrap();
    assert!(file.write_at(b"y", 0).is_err());
    assert!(file.set_len(0).is_err());
    assert_eq!(b.read(&path), b"x");
}

pub fn many_files_are_synced_at_once(b: &Bench<'_>) {
    b.store.sync_files(&[]).unwrap();
    for count in [1, 2, 8] {
        let files: Vec<Arc<dyn BackingFile>> = (0..count)
            .map(|i| {
                let path = b.path(format!("{count}-{i}"));
                let (file, _) = b.store.create(&path, &mine(0o600)).unwrap();
                file.write_at(b"durable", 0).unwrap();
                file
            })
            .collect();
        b.store.sync_files(&files).unwrap();
    }
    b.store.sync_dir(&b.dir).unwrap();
    fails(b.store.sync_dir(&b.path("1-0")), libc::ENOTDIR);
}

pub fn a_closed_file_keeps_its_bytes(b: &Bench<'_>) {
    let path = b.file("f", b"before");
    let (file, other) = (b.open(&path), b.open(&path));
    file.write_at(b"closed", 0).unwrap();
    let shared = file.clone();
    file.close().unwrap();
    assert_eq!(shared.stat().unwrap().size, 6, "closed by its last owner only");
    shared.close().unwrap();
    assert_eq!(b.read(&path), b"closed");
    other.close().unwrap();
}
