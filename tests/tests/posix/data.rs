//! Bytes: reading, writing, sizes, holes, mappings.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use forebay_tests::sys::{self, errno};
use forebay_tests::{Rng, sample};

use crate::{Case, cases};

pub const CASES: &[Case] = cases![
    what_was_written_is_read,
    an_existing_file_is_changed_in_its_middle,
    appending_descriptors_interleave,
    writes_of_one_descriptor_are_seen_by_another,
    truncate_cuts_and_extends_with_zeros,
    a_cut_tail_does_not_come_back,
    writing_past_the_end_leaves_a_hole,
    punching_a_hole_reads_zeros_and_keeps_the_size,
    fallocate_extends_or_keeps_the_size,
    holes_are_found_by_seek,
    opening_with_truncation_empties_the_file,
    direct_io_reads_and_writes,
    direct_and_buffered_descriptors_agree,
    shared_mappings_write_the_file,
    mappings_and_reads_agree,
    a_mapping_outlives_its_descriptor,
    copy_file_range_copies,
    large_random_writes_are_all_there,
    vectored_and_short_reads_end_at_the_end,
    reading_a_write_only_descriptor_fails,
    sendfile_copies,
];

fn rw(path: &Path) -> File {
    sys::open(path, libc::O_RDWR | libc::O_CREAT, 0o644).expect("open")
}

fn what_was_written_is_read(dir: &Path) {
    for len in [0, 1, 4095, 4096, 4097, 1 << 20, (3 << 20) + 17] {
        let path = dir.join(format!("f{len}"));
        let bytes = sample::file(&path, len as u64, len);
        assert!(fs::read(&path).unwrap() == bytes, "{len} bytes");
        assert_eq!(fs::metadata(&path).unwrap().len(), len as u64);
    }
}

fn an_existing_file_is_changed_in_its_middle(dir: &Path) {
    let path = dir.join("f");
    let mut bytes = sample::file(&path, 1, 300_000);
    let file = sys::open(&path, libc::O_RDWR, 0).unwrap();
    for (at, len) in [(5, 10), (4096, 4096), (100_001, 77_777), (299_990, 10)] {
        let patch = Rng::new(at as u64).bytes(len);
        file.write_all_at(&patch, at as u64).unwrap();
        bytes[at..at + len].copy_from_slice(&patch);
    }
    assert!(fs::read(&path).unwrap() == bytes);
    drop(file);
    assert!(fs::read(&path).unwrap() == bytes, "after close");
}

fn appending_descriptors_interleave(dir: &Path) {
    let path = dir.join("log");
    fs::write(&path, b"start\n").unwrap();
    let open = || sys::open(&path, libc::O_WRONLY | libc::O_APPEND, 0).unwrap();
    let (mut a, mut b) = (open(), open());
    let mut want = b"start\n".to_vec();
    for i in 0..50 {
        for (name, file) in [("a", &mut a), ("b", &mut b)] {
            let line = format!("{name}{i}\n");
            file.write_all(line.as_bytes()).unwrap();
            want.extend(line.as_bytes());
        }
    }
    assert_eq!(fs::read(&path).unwrap(), want);
}

fn writes_of_one_descriptor_are_seen_by_another(dir: &Path) {
    let path = dir.join("f");
    let writer = rw(&path);
    let reader = File::open(&path).unwrap();
    let read = |at, len| {
        let mut buf = vec![0; len];
        reader.read_exact_at(&mut buf, at).map(|()| buf)
    };
    writer.write_all_at(b"first", 0).unwrap();
    assert_eq!(read(0, 5).unwrap(), b"first");
    writer.write_all_at(b"FI", 0).unwrap();
    assert_eq!(read(0, 5).unwrap(), b"FIrst");
    assert_eq!(reader.metadata().unwrap().len(), 5);
    writer.set_len(2).unwrap();
    assert_eq!(reader.metadata().unwrap().len(), 2);
    assert!(read(0, 5).is_err(), "the file is shorter now");
}

fn truncate_cuts_and_extends_with_zeros(dir: &Path) {
    let path = dir.join("f");
    let bytes = sample::file(&path, 2, 100_000);
    sys::truncate(&path, 50_001).unwrap();
    assert!(fs::read(&path).unwrap() == bytes[..50_001]);
    rw(&path).set_len(80_000).unwrap();
    let mut want = bytes[..50_001].to_vec();
    want.resize(80_000, 0);
    assert!(fs::read(&path).unwrap() == want);
    sys::truncate(&path, 0).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    assert_eq!(errno(sys::truncate(&path, -1)), libc::EINVAL);
    assert_eq!(errno(sys::truncate(&dir.join("none"), 1)), libc::ENOENT);
    assert_eq!(errno(sys::truncate(dir, 1)), libc::EISDIR);
}

/// After a cut and an extension the old bytes must be zeros, also on the page that was cut.
fn a_cut_tail_does_not_come_back(dir: &Path) {
    let path = dir.join("f");
    let bytes = sample::file(&path, 3, 20_000);
    let file = rw(&path);
    for cut in [10_000, 5000, 100] {
        file.set_len(cut).unwrap();
        file.set_len(20_000).unwrap();
        let now = fs::read(&path).unwrap();
        assert!(now[..cut as usize] == bytes[..cut as usize], "head at {cut}");
        assert!(now[cut as usize..].iter().all(|b| *b == 0), "tail at {cut}");
    }
}

fn writing_past_the_end_leaves_a_hole(dir: &Path) {
    let file = rw(&dir.join("f"));
    file.write_all_at(b"end", 10 << 20).unwrap();
    let meta = file.metadata().unwrap();
    assert_eq!(meta.len(), (10 << 20) + 3);
    assert!(meta.blocks() * 512 < 2 << 20, "{} blocks for a hole", meta.blocks());
    let mut buf = vec![1; 4096];
    file.read_exact_at(&mut buf, 5 << 20).unwrap();
    assert!(buf.iter().all(|b| *b == 0));
}

fn punching_a_hole_reads_zeros_and_keeps_the_size(dir: &Path) {
    let path = dir.join("f");
    let mut bytes = sample::file(&path, 4, 200_000);
    let file = rw(&path);
    for (at, len) in [(8192, 65536), (100_001, 5000), (190_000, 50_000)] {
        sys::fallocate(&file, sys::PUNCH, at, len).unwrap();
        let end = (at + len).min(200_000) as usize;
        bytes[at as usize..end].fill(0);
    }
    assert!(fs::read(&path).unwrap() == bytes);
    file.write_all_at(b"refilled", 9000).unwrap();
    bytes[9000..9008].copy_from_slice(b"refilled");
    assert!(fs::read(&path).unwrap() == bytes, "after writing into the hole");
}

fn fallocate_extends_or_keeps_the_size(dir: &Path) {
    let path = dir.join("f");
    let mut file = rw(&path);
    file.write_all(b"x").unwrap();
    sys::fallocate(&file, libc::FALLOC_FL_KEEP_SIZE, 0, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1);
    sys::fallocate(&file, 0, 0, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    let bytes = fs::read(&path).unwrap();
    assert!(bytes[0] == b'x' && bytes[1..].iter().all(|b| *b == 0));
    assert_eq!(errno(sys::fallocate(&file, 0, 0, 0)), libc::EINVAL);
}

fn holes_are_found_by_seek(dir: &Path) {
    let file = rw(&dir.join("f"));
    file.write_all_at(&[7; 65536], 0).unwrap();
    file.write_all_at(&[7; 65536], 4 << 20).unwrap();
    file.sync_all().unwrap();
    let data = sys::lseek(&file, 1 << 20, libc::SEEK_DATA).unwrap();
    // A file system may report less precisely, but never call data a hole.
    assert!(data <= 4 << 20, "data at {data}");
    let hole = sys::lseek(&file, 0, libc::SEEK_HOLE).unwrap();
    assert!((65536..=(4 << 20) + 65536).contains(&hole), "hole at {hole}");
    assert_eq!(errno(sys::lseek(&file, 5 << 20, libc::SEEK_DATA)), libc::ENXIO);
    assert_eq!(sys::lseek(&file, 4 << 20, libc::SEEK_HOLE).unwrap(), (4 << 20) + 65536);
}

fn opening_with_truncation_empties_the_file(dir: &Path) {
    let path = dir.join("f");
    sample::file(&path, 5, 70_000);
    let reader = File::open(&path).unwrap();
    let mut writer = sys::open(&path, libc::O_WRONLY | libc::O_TRUNC, 0).unwrap();
    assert_eq!(reader.metadata().unwrap().len(), 0);
    writer.write_all(b"new").unwrap();
    let mut text = String::new();
    (&reader).read_to_string(&mut text).unwrap();
    assert_eq!(text, "new");
    drop(writer);
    assert_eq!(fs::read(&path).unwrap(), b"new");
}

/// A buffer as O_DIRECT wants it.
#[repr(align(4096))]
struct Aligned([u8; 65536]);

fn direct_io_reads_and_writes(dir: &Path) {
    let path = dir.join("f");
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_DIRECT;
    let file = match sys::open(&path, flags, 0o644) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => return,
        other => other.unwrap(),
    };
    let mut block = Box::new(Aligned([0; 65536]));
    for i in 0..16u64 {
        forebay_tests::fill(&mut block.0, i, 0);
        file.write_all_at(&block.0, i * 65536).unwrap();
    }
    for i in (0..16u64).rev() {
        let mut want = [0; 65536];
        forebay_tests::fill(&mut want, i, 0);
        file.read_exact_at(&mut block.0, i * 65536).unwrap();
        assert!(block.0 == want, "block {i}");
    }
    drop(file);
    let file = sys::open(&path, libc::O_RDWR | libc::O_DIRECT, 0).unwrap();
    forebay_tests::fill(&mut block.0, 99, 0);
    file.write_all_at(&block.0, 3 * 65536).unwrap();
    assert!(fs::read(&path).unwrap()[3 * 65536..4 * 65536] == block.0, "reopened, then changed");
}

fn direct_and_buffered_descriptors_agree(dir: &Path) {
    let path = dir.join("f");
    let buffered = rw(&path);
    buffered.write_all_at(&[1; 65536], 0).unwrap();
    buffered.sync_all().unwrap();
    let direct = match sys::open(&path, libc::O_RDWR | libc::O_DIRECT, 0) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => return,
        other => other.unwrap(),
    };
    let mut block = Box::new(Aligned([2; 65536]));
    direct.write_all_at(&block.0, 0).unwrap();
    let mut small = [0; 10];
    buffered.read_exact_at(&mut small, 100).unwrap();
    assert_eq!(small, [2; 10]);
    buffered.write_all_at(&[3; 10], 100).unwrap();
    direct.read_exact_at(&mut block.0, 0).unwrap();
    assert_eq!(block.0[95..115], [2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2]);
}

fn shared_mappings_write_the_file(dir: &Path) {
    let path = dir.join("f");
    let mut bytes = sample::file(&path, 6, 1 << 20);
    let file = rw(&path);
    let mut map = sys::Map::shared(&file, 1 << 20, true).unwrap();
    let mut rng = Rng::new(60);
    for _ in 0..300 {
        let at = rng.below((1 << 20) - 64) as usize;
        let patch = rng.bytes(64);
        map.bytes()[at..at + 64].copy_from_slice(&patch);
        bytes[at..at + 64].copy_from_slice(&patch);
    }
    map.sync().unwrap();
    assert!(fs::read(&path).unwrap() == bytes);
}

fn mappings_and_reads_agree(dir: &Path) {
    let path = dir.join("f");
    let file = rw(&path);
    file.set_len(65536).unwrap();
    let mut map = sys::Map::shared(&file, 65536, true).unwrap();
    map.bytes()[5000] = 42;
    let mut byte = [0];
    file.read_exact_at(&mut byte, 5000).unwrap();
    assert_eq!(byte, [42], "pread sees the mapping's store");
    file.write_all_at(&[43], 5001).unwrap();
    assert_eq!(map.bytes()[5001], 43, "the mapping sees pwrite");
    let other = rw(&path);
    other.write_all_at(&[44], 5002).unwrap();
    assert_eq!(map.bytes()[5002], 44, "and pwrite through another descriptor");
}

fn a_mapping_outlives_its_descriptor(dir: &Path) {
    let path = dir.join("f");
    let file = rw(&path);
    file.set_len(8192).unwrap();
    let mut map = sys::Map::shared(&file, 8192, true).unwrap();
    drop(file);
    map.bytes()[100..105].copy_from_slice(b"alive");
    map.sync().unwrap();
    assert_eq!(&fs::read(&path).unwrap()[100..105], b"alive");
    map.bytes()[100] = b'A';
    drop(map);
    assert_eq!(&fs::read(&path).unwrap()[100..105], b"Alive");
}

fn copy_file_range_copies(dir: &Path) {
    let bytes = sample::file(&dir.join("from"), 7, 300_000);
    let (from, to) = (rw(&dir.join("from")), rw(&dir.join("to")));
    let mut done = 0;
    while done < 200_000 {
        let n = sys::copy_range(&from, 50_000 + done, &to, 1000 + done, (200_000 - done) as usize);
        let n = n.unwrap();
        assert!(n > 0, "copied nothing at {done}");
        done += n;
    }
    let now = fs::read(dir.join("to")).unwrap();
    assert_eq!(now.len(), 201_000);
    assert!(now[..1000].iter().all(|b| *b == 0) && now[1000..] == bytes[50_000..250_000]);
}

fn large_random_writes_are_all_there(dir: &Path) {
    let path = dir.join("f");
    let mut want = sample::file(&path, 8, 4 << 20);
    let mut rng = Rng::new(80);
    for round in 0..4 {
        let file = rw(&path);
        for _ in 0..200 {
            let len = rng.range(1, 30_000) as usize;
            let at = rng.below((4 << 20) - len as u64) as usize;
            let patch = rng.bytes(len);
            file.write_all_at(&patch, at as u64).unwrap();
            want[at..at + len].copy_from_slice(&patch);
        }
        assert!(fs::read(&path).unwrap() == want, "round {round}");
    }
}

fn vectored_and_short_reads_end_at_the_end(dir: &Path) {
    let path = dir.join("f");
    sample::file(&path, 9, 10_000);
    let mut file = File::open(&path).unwrap();
    let mut buf = vec![0; 20_000];
    assert_eq!(file.read_at(&mut buf, 4000).unwrap(), 6000);
    assert_eq!(file.read_at(&mut buf, 10_000).unwrap(), 0);
    assert_eq!(file.read_at(&mut buf, 1 << 40).unwrap(), 0);
    let (mut a, mut b) = ([0; 3000], [0; 9000]);
    let mut slices = [std::io::IoSliceMut::new(&mut a), std::io::IoSliceMut::new(&mut b)];
    file.seek(SeekFrom::Start(1)).unwrap();
    assert_eq!(file.read_vectored(&mut slices).unwrap(), 9999);
    assert_eq!(file.seek(SeekFrom::End(-10)).unwrap(), 9990);
}

fn reading_a_write_only_descriptor_fails(dir: &Path) {
    let path = dir.join("f");
    let file = sys::open(&path, libc::O_WRONLY | libc::O_CREAT, 0o644).unwrap();
    assert_eq!(errno(file.read_at(&mut [0], 0)), libc::EBADF);
    let file = File::open(&path).unwrap();
    assert_eq!(errno(file.write_at(&[0], 0)), libc::EBADF);
    assert_eq!(errno(File::options().write(true).open(dir)), libc::EISDIR);
}

fn sendfile_copies(dir: &Path) {
    use std::os::fd::AsRawFd;
    let bytes = sample::file(&dir.join("from"), 10, 100_000);
    let (from, to) = (File::open(dir.join("from")).unwrap(), rw(&dir.join("to")));
    let null = std::ptr::null_mut();
    let mut done = 0;
    while done < bytes.len() {
        // SAFETY: two open descriptors, no offset pointer.
        let n = unsafe { libc::sendfile(to.as_raw_fd(), from.as_raw_fd(), null, bytes.len()) };
        let n = sys::check(n as i64).unwrap();
        assert!(n > 0, "sent nothing at {done}");
        done += n as usize;
    }
    assert!(fs::read(dir.join("to")).unwrap() == bytes);
}
