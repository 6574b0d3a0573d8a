//! Names that change under open files.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use forebay_tests::sample;
use forebay_tests::sys::{self};

use crate::{Case, cases};

pub const CASES: &[Case] = cases![
    an_unlinked_file_lives_until_closed,
    an_unlinked_file_can_grow_and_be_mapped,
    an_unlinked_file_opens_again_by_its_descriptor,
    a_name_can_be_used_again_while_the_old_file_is_open,
    rename_over_an_open_file_leaves_it_readable,
    a_dirty_file_is_renamed_while_open,
    a_directory_with_open_dirty_files_is_renamed,
    a_removed_directory_with_open_files_keeps_them,
    a_removed_directory_that_is_in_use_stays_itself,
    one_file_is_open_in_every_way_at_once,
    attributes_change_through_descriptors,
    many_opens_of_one_file_from_threads,
    the_write_rename_idiom_never_shows_a_partial_file,
    a_number_that_is_given_again_mixes_no_bytes,
];

fn rw(path: &Path) -> File {
    sys::open(path, libc::O_RDWR | libc::O_CREAT, 0o644).expect("open")
}

fn bytes_of(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn an_unlinked_file_lives_until_closed(dir: &Path) {
    let path = dir.join("f");
    let mut bytes = sample::file(&path, 1, 200_000);
    let file = rw(&path);
    let reader = File::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert!(!path.exists());
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert!(bytes_of(&reader) == bytes);
    file.write_all_at(b"after unlink", 1000).unwrap();
    bytes[1000..1012].copy_from_slice(b"after unlink");
    assert!(bytes_of(&reader) == bytes);
    file.sync_all().unwrap();
    file.set_len(500).unwrap();
    assert!(bytes_of(&reader) == bytes[..500]);
}

fn an_unlinked_file_can_grow_and_be_mapped(dir: &Path) {
    let path = dir.join("f");
    let file = rw(&path);
    fs::remove_file(&path).unwrap();
    file.write_all_at(&[9; 100_000], 0).unwrap();
    let mut map = sys::Map::shared(&file, 100_000, true).unwrap();
    map.bytes()[77] = 1;
    drop(map);
    let bytes = bytes_of(&file);
    assert!(bytes.len() == 100_000 && bytes[77] == 1 && bytes[78] == 9);
}

/// Also long after its name was removed.
fn an_unlinked_file_opens_again_by_its_descriptor(dir: &Path) {
    let path = dir.join("f");
    let mut bytes = sample::file(&path, 1, 200_000);
    let file = rw(&path);
    file.write_all_at(b"before unlink", 1000).unwrap();
    bytes[1000..1013].copy_from_slice(b"before unlink");
    fs::remove_file(&path).unwrap();
    for pause in [Duration::ZERO, Duration::from_millis(1500)] {
        std::thread::sleep(pause);
        let again = rw(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())));
        assert!(bytes_of(&again) == bytes);
        again.write_all_at(b"without", 2000).unwrap();
        bytes[2000..2007].copy_from_slice(b"without");
        assert!(bytes_of(&file) == bytes);
    }
}

fn a_name_can_be_used_again_while_the_old_file_is_open(dir: &Path) {
    let path = dir.join("f");
    let mut old = Vec::new();
    for i in 0..10u8 {
        let file = rw(&path);
        file.write_all_at(&[i; 5000], 0).unwrap();
        old.push(file);
        fs::remove_file(&path).unwrap();
    }
    for (i, file) in old.iter().enumerate() {
        assert!(bytes_of(file) == [i as u8; 5000], "generation {i}");
    }
    assert!(!path.exists());
    fs::write(&path, b"last").unwrap();
    drop(old);
    assert_eq!(fs::read(&path).unwrap(), b"last");
}

fn rename_over_an_open_file_leaves_it_readable(dir: &Path) {
    let (a, b) = (dir.join("a"), dir.join("b"));
    let (old, new) = (sample::file(&b, 1, 60_000), sample::file(&a, 2, 70_000));
    let open = rw(&b);
    fs::rename(&a, &b).unwrap();
    assert!(bytes_of(&open) == old, "the file that lost its name");
    assert!(fs::read(&b).unwrap() == new, "the file that has it");
    open.write_all_at(b"to nobody", 0).unwrap();
    assert!(fs::read(&b).unwrap() == new);
}

fn a_dirty_file_is_renamed_while_open(dir: &Path) {
    let mut file = rw(&dir.join("a"));
    let mut want = Vec::<u8>::new();
    for i in 0..5 {
        let line = format!("line {i}\n").repeat(1000);
        file.write_all(line.as_bytes()).unwrap();
        want.extend(line.as_bytes());
        fs::rename(dir.join(name(i)), dir.join(name(i + 1))).unwrap();
    }
    file.write_all(b"end").unwrap();
    want.extend(b"end");
    assert!(fs::read(dir.join(name(5))).unwrap() == want);
    assert_eq!(fs::read_dir(dir).unwrap().count(), 1);
}

fn name(i: usize) -> String {
    ["a", "b", "c", "d", "e", "f"][i].into()
}

fn a_directory_with_open_dirty_files_is_renamed(dir: &Path) {
    fs::create_dir_all(dir.join("old/sub")).unwrap();
    let fresh = rw(&dir.join("old/sub/fresh"));
    sample::file(&dir.join("old/sub/closed"), 1, 50_000);
    let closed = fs::read(dir.join("old/sub/closed")).unwrap();
    fresh.write_all_at(b"before", 0).unwrap();
    fs::rename(dir.join("old"), dir.join("new")).unwrap();
    fresh.write_all_at(b" after", 6).unwrap();
    assert_eq!(fs::read(dir.join("new/sub/fresh")).unwrap(), b"before after");
    assert!(fs::read(dir.join("new/sub/closed")).unwrap() == closed);
    fs::create_dir_all(dir.join("old/sub")).unwrap();
    fs::write(dir.join("old/sub/fresh"), b"somebody else").unwrap();
    fresh.write_all_at(b"!", 12).unwrap();
    fresh.sync_all().unwrap();
    assert_eq!(fs::read(dir.join("new/sub/fresh")).unwrap(), b"before after!");
    assert_eq!(fs::read(dir.join("old/sub/fresh")).unwrap(), b"somebody else");
}

fn a_removed_directory_with_open_files_keeps_them(dir: &Path) {
    fs::create_dir(dir.join("d")).unwrap();
    let file = rw(&dir.join("d/f"));
    file.write_all_at(b"bytes", 0).unwrap();
    let held = File::open(dir.join("d")).unwrap();
    fs::remove_dir_all(dir.join("d")).unwrap();
    file.write_all_at(b"BYTES", 0).unwrap();
    assert_eq!(bytes_of(&file), b"BYTES");
    assert_eq!(held.metadata().unwrap().nlink(), 0);
    drop(file);
    assert!(!dir.join("d").exists());
}

/// The access modes that a passthrough file system must keep apart, in several orders: reading,
/// writing, truncating, appending and direct descriptors, and a mapping.
fn one_file_is_open_in_every_way_at_once(dir: &Path) {
    let ways = [
        libc::O_RDONLY,
        libc::O_RDWR,
        libc::O_WRONLY | libc::O_APPEND,
        libc::O_WRONLY | libc::O_TRUNC,
        libc::O_RDWR | libc::O_DIRECT,
        libc::O_RDONLY | libc::O_DIRECT,
    ];
    for order in 0..ways.len() {
        let path = dir.join(format!("f{order}"));
        sample::file(&path, order as u64, 100_000);
        let mut open = Vec::new();
        for i in 0..ways.len() {
            let flags = ways[(order + i) % ways.len()];
            let file = sys::open(&path, flags, 0)
                .unwrap_or_else(|e| panic!("order {order}, opening with {flags:o}: {e}"));
            if flags & libc::O_ACCMODE == libc::O_RDWR && flags & libc::O_DIRECT == 0 {
                file.write_all_at(&[order as u8 + 1; 9000], 3000).unwrap();
                assert!(fs::read(&path).unwrap()[3000..12_000] == [order as u8 + 1; 9000]);
            }
            open.push(file);
        }
        let append = open.iter_mut().position(|f| f.write(b"tail").is_ok()).expect("one can write");
        drop(open.swap_remove(append));
        for file in &open {
            let mut buf = [0; 16];
            match file.read_at(&mut buf, 0) {
                Ok(_) => {}
                Err(e) => assert!(
                    [libc::EBADF, libc::EINVAL].contains(&e.raw_os_error().unwrap()),
                    "order {order}: {e}"
                ),
            }
        }
    }
}

fn attributes_change_through_descriptors(dir: &Path) {
    use std::os::fd::AsRawFd;
    let path = dir.join("f");
    let file = rw(&path);
    file.write_all_at(b"x", 0).unwrap();
    // SAFETY: integers only.
    sys::check(unsafe { libc::fchmod(file.as_raw_fd(), 0o611) }).unwrap();
    // SAFETY: integers only.
    sys::check(unsafe { libc::fchown(file.as_raw_fd(), 11, 12) }).unwrap();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.mode() & 0o777, meta.uid(), meta.gid()), (0o611, 11, 12));
    fs::rename(&path, dir.join("g")).unwrap();
    // SAFETY: integers only.
    sys::check(unsafe { libc::fchmod(file.as_raw_fd(), 0o622) }).unwrap();
    assert_eq!(fs::metadata(dir.join("g")).unwrap().mode() & 0o777, 0o622, "after a rename");
    fs::remove_file(dir.join("g")).unwrap();
    // SAFETY: integers only.
    sys::check(unsafe { libc::fchmod(file.as_raw_fd(), 0o633) }).unwrap();
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o633, "after unlink");
}

fn many_opens_of_one_file_from_threads(dir: &Path) {
    let path = dir.join("f");
    sample::file(&path, 1, 64 * 4096);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let path = &path;
            scope.spawn(move || {
                for round in 0..40u64 {
                    let file = sys::open(path, libc::O_RDWR, 0).unwrap();
                    let at = (thread * 16 + round % 16) * 4096;
                    let byte = (round + 1) as u8;
                    file.write_all_at(&[byte; 4096], at).unwrap();
                    let mut back = [0; 4096];
                    let reader = File::open(path).unwrap();
                    reader.read_exact_at(&mut back, at).unwrap();
                    assert!(back == [byte; 4096], "thread {thread} round {round}");
                }
            });
        }
    });
}

fn the_write_rename_idiom_never_shows_a_partial_file(dir: &Path) {
    let path = dir.join("config");
    fs::write(&path, [0; 30_000]).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            for _ in 0..150 {
                let bytes = fs::read(&path).unwrap();
                assert_eq!(bytes.len(), 30_000);
                assert!(bytes.iter().all(|b| *b == bytes[0]), "a mix of two versions");
            }
        });
        for i in 0..100u8 {
            let new = dir.join("config.new");
            let mut file = File::create(&new).unwrap();
            file.write_all(&[i; 30_000]).unwrap();
            file.sync_all().unwrap();
            drop(file);
            fs::rename(&new, &path).unwrap();
        }
        reader.join().unwrap();
    });
    assert_eq!(fs::read(&path).unwrap(), [99; 30_000]);
}

/// A directory made later would otherwise get its inode number.
fn a_removed_directory_that_is_in_use_stays_itself(dir: &Path) {
    let at = |name: &str| dir.join(name);
    let removed = |open: &File| {
        let meta = open.metadata().expect("it is still there");
        assert!(meta.is_dir() && meta.nlink() == 0, "{} links", meta.nlink());
        meta.ino()
    };
    fs::create_dir(at("one")).unwrap();
    let one = path_only(&at("one"));
    fs::remove_dir(at("one")).unwrap();
    fs::create_dir(at("over")).unwrap();
    let over = path_only(&at("over"));
    fs::create_dir(at("another")).unwrap();
    fs::rename(at("another"), at("over")).unwrap();
    for i in 0..20 {
        let new = at(&format!("new{i}"));
        fs::create_dir(&new).unwrap();
        let ino = fs::metadata(&new).unwrap().ino();
        assert!(ino != removed(&one) && ino != removed(&over), "its number was given again");
    }
    let in_use = File::open(at("new0")).unwrap();
    fs::remove_dir(at("new0")).unwrap();
    let changed = in_use.set_permissions(fs::Permissions::from_mode(0o500)).is_ok();
    let mode = in_use.metadata().unwrap().mode() & 0o777;
    assert!(!changed || mode == 0o500, "said to be changed, but {mode:o}");
    let script =
        "mkdir e1; cd e1; rmdir \"$PWD\"; mkdir ../e2; stat -c %h . && ls -a && ! mkdir in";
    assert_eq!(forebay_tests::tool_in(dir, "sh", &["-c", script]).ok().stdout.trim(), "0");
}

fn path_only(path: &Path) -> File {
    File::options().read(true).custom_flags(libc::O_PATH).open(path).expect("it is there")
}

/// More files are removed than the daemon holds open, while the kernel still knows them all.
fn a_number_that_is_given_again_mixes_no_bytes(dir: &Path) {
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let all = rustix::process::Rlimit { current: limits.maximum, ..limits };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, all).unwrap();
    let known = |i: usize| {
        let path = dir.join(format!("known{i}"));
        File::create(&path).unwrap();
        let file = path_only(&path);
        fs::remove_file(&path).unwrap();
        file
    };
    let (old, new) = (dir.join("old"), dir.join("new"));
    let round = |i: u8| {
        fs::write(&old, [i; 5000]).unwrap();
        let seen = path_only(&old);
        fs::remove_file(&old).unwrap();
        // Looked up while it had a name, opened after it had lost it.
        let open = File::open(format!("/proc/self/fd/{}", seen.as_raw_fd()));
        fs::write(&new, [i + 100; 5000]).unwrap();
        let mut bytes = Vec::new();
        // The kernel may find its inode number gone. It must not show other bytes than its own.
        let was_read = open.is_ok_and(|mut open| open.read_to_end(&mut bytes).is_ok());
        if was_read {
            assert!(bytes == [i; 5000], "the removed file has {} bytes", bytes.len());
        }
        assert!(fs::read(&new).unwrap() == [i + 100; 5000], "the new file");
        fs::remove_file(&new).unwrap();
        was_read
    };
    // The daemon does hold a few open, among those that it has in the tier.
    let policy = dir.parent().expect("the mount").join(".forebay/config/policy");
    let around = fs::read_to_string(policy).is_ok_and(|policy| policy.trim() == "write-around");
    let few = (0..5).filter(|i| round(*i)).count();
    assert!(few > 0 || around, "none of a few removed files could be read");
    let known: Vec<File> = (0..4500).map(known).collect();
    (5..35).for_each(|i| _ = round(i));
    drop(known);
}
