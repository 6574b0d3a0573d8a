//! Names, directories, attributes.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use forebay_tests::sample;
use forebay_tests::sys::{self, errno};

use crate::{Case, cases};

pub const CASES: &[Case] = cases![
    creating_exclusively_creates_once,
    errors_are_those_of_a_local_file_system,
    names_may_be_long_but_not_too_long,
    names_may_be_any_bytes,
    hard_links_share_everything,
    symbolic_links_are_kept_as_written,
    fifos_sockets_and_devices_exist,
    new_files_get_mode_and_umask,
    a_default_acl_stands_in_place_of_the_umask,
    set_gid_directories_pass_their_group_on,
    modes_and_owners_change,
    writing_by_an_ordinary_user_clears_set_uid,
    times_keep_their_nanoseconds,
    writing_moves_the_modification_time,
    extended_attributes_are_kept,
    a_large_directory_is_listed_completely,
    listing_can_be_resumed,
    listing_while_removing_removes_all,
    listing_is_resumed_by_another_descriptor,
    removing_piece_by_piece_removes_all,
    files_are_renamed_over_files,
    directories_are_renamed_with_their_contents,
    rename_can_refuse_or_exchange,
    rename_errors_are_those_of_a_local_file_system,
    removed_directories_are_gone,
    inode_numbers_are_stable_and_unique,
    free_space_is_reported,
    permissions_bind_other_users,
    deep_paths_work,
    programs_run,
];

fn creating_exclusively_creates_once(dir: &Path) {
    let path = dir.join("f");
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
    sys::open(&path, flags, 0o644).unwrap();
    assert_eq!(errno(sys::open(&path, flags, 0o644)), libc::EEXIST);
    let won = std::thread::scope(|scope| {
        let race = || sys::open(&dir.join("raced"), flags, 0o644).is_ok();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(race)).collect();
        threads.into_iter().filter_map(|t| t.join().ok()).filter(|won| *won).count()
    });
    assert_eq!(won, 1, "exactly one of four creates the file");
}

fn errors_are_those_of_a_local_file_system(dir: &Path) {
    fs::write(dir.join("f"), b"x").unwrap();
    fs::create_dir(dir.join("d")).unwrap();
    fs::write(dir.join("d/inner"), b"x").unwrap();
    assert_eq!(errno(File::open(dir.join("none"))), libc::ENOENT);
    assert_eq!(errno(File::open(dir.join("none/deeper"))), libc::ENOENT);
    assert_eq!(errno(File::open(dir.join("f/below"))), libc::ENOTDIR);
    assert_eq!(errno(fs::create_dir(dir.join("d"))), libc::EEXIST);
    assert_eq!(errno(fs::create_dir(dir.join("f"))), libc::EEXIST);
    assert_eq!(errno(fs::remove_dir(dir.join("d"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::remove_dir(dir.join("f"))), libc::ENOTDIR);
    assert_eq!(errno(fs::remove_file(dir.join("d"))), libc::EISDIR);
    assert_eq!(errno(fs::remove_file(dir.join("none"))), libc::ENOENT);
    assert_eq!(errno(fs::hard_link(dir.join("d"), dir.join("l"))), libc::EPERM);
    assert_eq!(errno(fs::hard_link(dir.join("f"), dir.join("d"))), libc::EEXIST);
    assert_eq!(errno(fs::read_link(dir.join("f"))), libc::EINVAL);
    assert_eq!(errno(symlink("x", dir.join("f"))), libc::EEXIST);
    assert_eq!(errno(sys::open(&dir.join("f"), libc::O_DIRECTORY, 0)), libc::ENOTDIR);
}

fn names_may_be_long_but_not_too_long(dir: &Path) {
    let long = "n".repeat(255);
    fs::write(dir.join(&long), b"x").unwrap();
    assert_eq!(fs::read(dir.join(&long)).unwrap(), b"x");
    let longer = dir.join("n".repeat(256));
    assert_eq!(errno(fs::write(&longer, b"x")), libc::ENAMETOOLONG);
    assert_eq!(errno(fs::create_dir(&longer)), libc::ENAMETOOLONG);
    assert_eq!(errno(fs::metadata(&longer)), libc::ENAMETOOLONG);
    assert_eq!(errno(fs::rename(dir.join(&long), &longer)), libc::ENAMETOOLONG);
}

fn names_may_be_any_bytes(dir: &Path) {
    use std::os::unix::ffi::OsStrExt;
    let names: [&[u8]; 6] = [b"\xff\xfe", b"new\nline", b" ", b"...", b"%s", b"\\"];
    for name in names {
        fs::write(dir.join(std::ffi::OsStr::from_bytes(name)), name).unwrap();
    }
    let listed: BTreeSet<Vec<u8>> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().as_bytes().to_vec()).collect();
    assert_eq!(listed, names.iter().map(|n| n.to_vec()).collect());
    for name in names {
        assert_eq!(fs::read(dir.join(std::ffi::OsStr::from_bytes(name))).unwrap(), name);
    }
}

fn hard_links_share_everything(dir: &Path) {
    let (a, b) = (dir.join("a"), dir.join("b"));
    sample::file(&a, 1, 50_000);
    fs::hard_link(&a, &b).unwrap();
    let ids = [&a, &b].map(|p| fs::metadata(p).map(|m| (m.ino(), m.nlink())).unwrap());
    assert_eq!(ids[0], ids[1]);
    assert_eq!(ids[0].1, 2);
    fs::write(&b, b"through b").unwrap();
    assert_eq!(fs::read(&a).unwrap(), b"through b");
    fs::set_permissions(&a, Permissions::from_mode(0o604)).unwrap();
    assert_eq!(fs::metadata(&b).unwrap().mode() & 0o777, 0o604);
    fs::remove_file(&a).unwrap();
    assert_eq!(fs::metadata(&b).unwrap().nlink(), 1);
    assert_eq!(fs::read(&b).unwrap(), b"through b");
    fs::hard_link(&b, &a).unwrap();
    let open = fs::OpenOptions::new().append(true).open(&a).unwrap();
    fs::remove_file(&a).unwrap();
    use std::io::Write;
    (&open).write_all(b", and on").unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"through b, and on");
}

fn symbolic_links_are_kept_as_written(dir: &Path) {
    let long = format!("/{}", "t".repeat(3000));
    for (i, target) in ["f", "./d/../f", "/absolute", "dangling", &long].iter().enumerate() {
        let link = dir.join(format!("l{i}"));
        symlink(target, &link).unwrap();
        assert_eq!(fs::read_link(&link).unwrap().to_str().unwrap(), *target);
        assert_eq!(fs::symlink_metadata(&link).unwrap().len(), target.len() as u64);
    }
    fs::write(dir.join("f"), b"here").unwrap();
    assert_eq!(fs::read(dir.join("l0")).unwrap(), b"here");
    fs::write(dir.join("l0"), b"there").unwrap();
    assert_eq!(fs::read(dir.join("f")).unwrap(), b"there");
    assert_eq!(errno(fs::read(dir.join("l3"))), libc::ENOENT);
    symlink("loop", dir.join("loop")).unwrap();
    assert_eq!(errno(fs::read(dir.join("loop"))), libc::ELOOP);
    assert_eq!(errno(sys::open(&dir.join("l0"), libc::O_NOFOLLOW, 0)), libc::ELOOP);
}

fn fifos_sockets_and_devices_exist(dir: &Path) {
    sys::mkfifo(&dir.join("fifo"), 0o600).unwrap();
    assert!(fs::metadata(dir.join("fifo")).unwrap().file_type().is_fifo());
    std::thread::scope(|scope| {
        scope.spawn(|| fs::write(dir.join("fifo"), b"through a pipe").unwrap());
        assert_eq!(fs::read(dir.join("fifo")).unwrap(), b"through a pipe");
    });
    // The path of a socket address must be short: a descriptor leads there.
    let here = File::open(dir).unwrap();
    let path = format!("/proc/self/fd/{}/s", std::os::fd::AsRawFd::as_raw_fd(&here));
    drop(UnixListener::bind(path).unwrap());
    assert!(fs::metadata(dir.join("s")).unwrap().file_type().is_socket());
    let null = fs::metadata("/dev/null").unwrap().rdev();
    sys::mknod(&dir.join("null"), libc::S_IFCHR | 0o666, null).unwrap();
    let meta = fs::metadata(dir.join("null")).unwrap();
    assert!(meta.file_type().is_char_device() && meta.rdev() == null);
    sys::mknod(&dir.join("plain"), libc::S_IFREG | 0o640, 0).unwrap();
    assert!(fs::metadata(dir.join("plain")).unwrap().is_file());
}

/// In a shell of its own, because the mask belongs to the process.
fn new_files_get_mode_and_umask(dir: &Path) {
    let script = "umask 027; touch f; mkdir d; mkfifo p; umask 0; touch g; mkdir -m 1777 t";
    forebay_tests::tool_in(dir, "sh", &["-ec", script]).ok();
    let modes =
        ["f", "d", "p", "g", "t"].map(|n| fs::metadata(dir.join(n)).unwrap().mode() & 0o7777);
    assert_eq!(modes.map(|m| format!("{m:o}")), ["640", "750", "640", "666", "1777"]);
}

/// The group may write, which the umask would forbid.
fn a_default_acl_stands_in_place_of_the_umask(dir: &Path) {
    let shared = dir.join("shared");
    fs::create_dir(&shared).unwrap();
    // The format of linux/posix_acl_xattr.h: owner, group and others.
    let entry = |tag: u16, may: u16| [tag.to_le_bytes(), may.to_le_bytes(), [0xff; 2], [0xff; 2]];
    let entries = [entry(1, 7), entry(4, 7), entry(32, 5)];
    let acl = [&2_u32.to_le_bytes()[..], entries.as_flattened().as_flattened()].concat();
    match sys::set_xattr(&shared, "system.posix_acl_default", &acl, 0) {
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => return,
        set => set.unwrap(),
    }
    let script = "umask 077; touch f; mkdir d; mkfifo p; touch ../f";
    forebay_tests::tool_in(&shared, "sh", &["-ec", script]).ok();
    let modes =
        ["f", "d", "p", "../f"].map(|n| fs::metadata(shared.join(n)).unwrap().mode() & 0o7777);
    assert_eq!(modes.map(|m| format!("{m:o}")), ["664", "775", "664", "600"]);
}

fn set_gid_directories_pass_their_group_on(dir: &Path) {
    let shared = dir.join("shared");
    fs::create_dir(&shared).unwrap();
    chown(&shared, None, Some(4321)).unwrap();
    fs::set_permissions(&shared, Permissions::from_mode(0o2775)).unwrap();
    fs::write(shared.join("f"), b"x").unwrap();
    fs::create_dir(shared.join("d")).unwrap();
    assert_eq!(fs::metadata(shared.join("f")).unwrap().gid(), 4321);
    let inner = fs::metadata(shared.join("d")).unwrap();
    assert_eq!((inner.gid(), inner.mode() & 0o2000), (4321, 0o2000));
}

fn modes_and_owners_change(dir: &Path) {
    let path = dir.join("f");
    fs::write(&path, b"x").unwrap();
    for mode in [0o000, 0o400, 0o777, 0o4755, 0o2711, 0o1644] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, mode);
    }
    chown(&path, Some(1001), None).unwrap();
    chown(&path, None, Some(1002)).unwrap();
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (1001, 1002));
    std::os::unix::fs::lchown(&path, Some(7), Some(8)).unwrap();
    symlink("f", dir.join("l")).unwrap();
    std::os::unix::fs::lchown(dir.join("l"), Some(9), Some(10)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().uid(), 7);
    assert_eq!(fs::symlink_metadata(dir.join("l")).unwrap().uid(), 9);
}

fn writing_by_an_ordinary_user_clears_set_uid(dir: &Path) {
    let path = dir.join("f");
    fs::write(&path, b"x").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
    as_user(dir, "echo changed >> f");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
    fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
    as_user(dir, "fallocate --punch-hole --length 1 f").ok();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777, "after a hole");
    fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
    chown(&path, Some(5), Some(5)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o6000, 0, "after chown");
}

fn times_keep_their_nanoseconds(dir: &Path) {
    let path = dir.join("f");
    fs::write(&path, b"x").unwrap();
    for time in [(1, 1), (1_234_567_890, 123_456_789), (2_000_000_000, 999_999_999), (-5, 7)] {
        sys::utimens(&path, time, time).unwrap();
        assert_eq!(sys::mtime(&path), time);
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.atime(), meta.atime_nsec()), time);
    }
    symlink("f", dir.join("l")).unwrap();
    sys::utimens(&dir.join("l"), (77, 1), (78, 2)).unwrap();
    assert_eq!(sys::mtime(&dir.join("l")), (78, 2));
    assert_eq!(sys::mtime(&path), (-5, 7));
    let file = File::options().write(true).open(&path).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::new(99, 98)).unwrap();
    assert_eq!(sys::mtime(&path), (99, 98));
    drop(file);
    assert_eq!(sys::mtime(&path), (99, 98), "a time set through a descriptor survives its close");
}

fn writing_moves_the_modification_time(dir: &Path) {
    use std::io::Write;
    let path = dir.join("f");
    fs::write(&path, b"x").unwrap();
    let steps: &[Case] = &[
        ("append", |p| {
            fs::OpenOptions::new().append(true).open(p).unwrap().write_all(b"y").unwrap()
        }),
        ("rewrite", |p| fs::write(p, b"z").unwrap()),
        ("truncate", |p| sys::truncate(p, 100).unwrap()),
        ("change", |p| {
            let file = File::options().write(true).open(p).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, b"w", 50).unwrap();
        }),
    ];
    for (what, step) in steps.iter().copied() {
        sys::utimens(&path, (1000, 0), (1000, 0)).unwrap();
        step(&path);
        let (sec, _) = sys::mtime(&path);
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64;
        assert!((now - sec).abs() < 60, "mtime {sec} after {what}, now {now}");
    }
    let before = sys::mtime(&path);
    fs::read(&path).unwrap();
    assert_eq!(sys::mtime(&path), before, "reading leaves it alone");
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(sys::mtime(&path), before, "chmod leaves it alone");
    sys::utimens(dir, (1000, 0), (1000, 0)).unwrap();
    fs::write(dir.join("g"), b"").unwrap();
    assert_ne!(sys::mtime(dir).0, 1000, "a new name moves the directory's");
}

fn extended_attributes_are_kept(dir: &Path) {
    let path = dir.join("f");
    fs::write(&path, b"x").unwrap();
    sys::set_xattr(&path, "user.one", b"1", 0).unwrap();
    sys::set_xattr(&path, "user.empty", b"", 0).unwrap();
    sys::set_xattr(&path, "user.binary", &[0, 255, 10, 0], 0).unwrap();
    let big = vec![5; 2000];
    sys::set_xattr(dir, "user.big", &big, 0).unwrap();
    assert_eq!(sys::get_xattr(dir, "user.big").unwrap(), big);
    assert_eq!(sys::get_xattr(&path, "user.binary").unwrap(), [0, 255, 10, 0]);
    assert_eq!(sys::get_xattr(&path, "user.empty").unwrap(), b"");
    let user = |list: Vec<String>| list.into_iter().filter(|n| n.starts_with("user.")).count();
    assert_eq!(user(sys::list_xattr(&path).unwrap()), 3);
    let set = |name, flags| sys::set_xattr(&path, name, b"2", flags);
    assert_eq!(errno(set("user.one", libc::XATTR_CREATE)), libc::EEXIST);
    assert_eq!(errno(set("user.none", libc::XATTR_REPLACE)), libc::ENODATA);
    set("user.one", libc::XATTR_REPLACE).unwrap();
    assert_eq!(sys::get_xattr(&path, "user.one").unwrap(), b"2");
    sys::remove_xattr(&path, "user.one").unwrap();
    assert_eq!(errno(sys::get_xattr(&path, "user.one")), libc::ENODATA);
    assert_eq!(errno(sys::remove_xattr(&path, "user.one")), libc::ENODATA);
}

fn many(dir: &Path, count: usize) -> BTreeSet<String> {
    let names: BTreeSet<String> = (0..count).map(|i| format!("entry-{i:05}")).collect();
    for name in &names {
        File::create(dir.join(name)).unwrap();
    }
    names
}

fn a_large_directory_is_listed_completely(dir: &Path) {
    let names = many(dir, 2500);
    for _ in 0..2 {
        let list: Vec<String> = fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(list.len(), 2500, "no name twice");
        assert!(list.into_iter().collect::<BTreeSet<_>>() == names);
    }
}

/// `telldir` and `seekdir`: every remembered place leads to the same rest.
fn listing_can_be_resumed(dir: &Path) {
    many(dir, 700);
    let path = sys::c(dir);
    // SAFETY: a directory stream of our own, used by this thread only and closed at the end; each
    // name is copied before the next call.
    unsafe {
        let stream = libc::opendir(path.as_ptr());
        assert!(!stream.is_null());
        let next = || {
            let entry = libc::readdir(stream);
            (!entry.is_null())
                .then(|| std::ffi::CStr::from_ptr((*entry).d_name.as_ptr()).to_owned())
        };
        let mut places = Vec::new();
        let mut names = Vec::new();
        loop {
            places.push(libc::telldir(stream));
            let Some(name) = next() else { break };
            names.push(name);
        }
        assert_eq!(names.len(), 702);
        for at in [650, 3, 0, 333, 701] {
            libc::seekdir(stream, places[at]);
            assert_eq!(next().as_ref(), Some(&names[at]), "place {at}");
        }
        libc::rewinddir(stream);
        assert_eq!(next().as_ref(), Some(&names[0]));
        libc::closedir(stream);
    }
}

fn listing_while_removing_removes_all(dir: &Path) {
    many(dir, 1500);
    for entry in fs::read_dir(dir).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
}

/// One piece of a listing by a descriptor of its own, from an offset on: the names in it, and the
/// offset of its end. `None` at the end.
fn piece(dir: &Path, from: u64) -> Option<(Vec<String>, u64)> {
    let opened = File::open(dir).unwrap();
    rustix::fs::seek(&opened, rustix::fs::SeekFrom::Start(from)).unwrap();
    let mut space = [std::mem::MaybeUninit::uninit(); 4096];
    let mut list = rustix::fs::RawDir::new(&opened, &mut space);
    let (mut names, mut end) = (Vec::new(), from);
    while let Some(entry) = list.next() {
        let entry = entry.unwrap();
        names.push(entry.file_name().to_str().unwrap().to_string());
        end = entry.next_entry_cookie();
        if list.is_buffer_empty() {
            break;
        }
    }
    (!names.is_empty()).then_some((names, end))
}

/// Names that stay are all listed exactly once, whatever other names come and go between the
/// pieces.
fn listing_is_resumed_by_another_descriptor(dir: &Path) {
    let names: Vec<String> = many(dir, 1600).into_iter().collect();
    let (stay, go): (Vec<_>, Vec<_>) = names.chunks(2).map(|two| (&two[0], &two[1])).unzip();
    let mut go = go.into_iter();
    let (mut listed, mut from, mut pieces) = (Vec::new(), 0, 0);
    while let Some((names, end)) = piece(dir, from) {
        listed.extend(names);
        (from, pieces) = (end, pieces + 1);
        for name in go.by_ref().take(100) {
            fs::remove_file(dir.join(name)).unwrap();
            fs::write(dir.join(format!("new-{name}")), b"x").unwrap();
        }
    }
    assert!(pieces > 10, "{pieces} pieces");
    let count = listed.len();
    let listed: BTreeSet<String> = listed.into_iter().collect();
    assert_eq!(listed.len(), count, "no name twice");
    let missed: Vec<_> = stay.into_iter().filter(|name| !listed.contains(*name)).collect();
    assert!(missed.is_empty(), "{} names were missed: {missed:?}", missed.len());
    assert!(listed.contains(".") && listed.contains(".."));
}

fn removing_piece_by_piece_removes_all(dir: &Path) {
    many(dir, 1600);
    let (mut from, mut pieces) = (0, 0);
    while let Some((names, end)) = piece(dir, from) {
        for name in names.iter().filter(|name| !name.starts_with('.')) {
            fs::remove_file(dir.join(name)).unwrap();
        }
        (from, pieces) = (end, pieces + 1);
    }
    assert!(pieces > 10, "{pieces} pieces");
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
}

fn files_are_renamed_over_files(dir: &Path) {
    let (a, b) = (dir.join("a"), dir.join("b"));
    let bytes = sample::file(&a, 1, 30_000);
    sample::file(&b, 2, 90_000);
    fs::rename(&a, &b).unwrap();
    assert!(fs::read(&b).unwrap() == bytes && !a.exists());
    fs::create_dir(dir.join("d")).unwrap();
    fs::rename(&b, dir.join("d/c")).unwrap();
    assert!(fs::read(dir.join("d/c")).unwrap() == bytes);
    fs::write(&a, b"again").unwrap();
    fs::rename(&a, dir.join("d/c")).unwrap();
    assert_eq!(fs::read(dir.join("d/c")).unwrap(), b"again");
    fs::hard_link(dir.join("d/c"), &a).unwrap();
    fs::rename(&a, dir.join("d/c")).unwrap();
    assert!(a.exists(), "renaming a link over its twin does nothing");
}

fn directories_are_renamed_with_their_contents(dir: &Path) {
    let bytes = sample::file(&dir.join("from/deep/f"), 1, 30_000);
    fs::rename(dir.join("from"), dir.join("to")).unwrap();
    assert!(fs::read(dir.join("to/deep/f")).unwrap() == bytes);
    assert!(!dir.join("from").exists());
    fs::write(dir.join("to/deep/g"), b"new").unwrap();
    fs::create_dir(dir.join("empty")).unwrap();
    fs::rename(dir.join("to"), dir.join("empty")).unwrap();
    assert_eq!(fs::read(dir.join("empty/deep/g")).unwrap(), b"new");
    fs::create_dir(dir.join("from")).unwrap();
    fs::write(dir.join("from/f"), b"another").unwrap();
    assert_eq!(fs::read(dir.join("from/f")).unwrap(), b"another", "the old name is free");
}

fn rename_can_refuse_or_exchange(dir: &Path) {
    let (a, b, d) = (dir.join("a"), dir.join("b"), dir.join("d"));
    let (first, second) = (sample::file(&a, 1, 10_000), sample::file(&b, 2, 20_000));
    assert_eq!(errno(sys::rename(&a, &b, libc::RENAME_NOREPLACE)), libc::EEXIST);
    sys::rename(&a, &b, libc::RENAME_EXCHANGE).unwrap();
    assert!(fs::read(&a).unwrap() == second && fs::read(&b).unwrap() == first);
    sys::rename(&a, &dir.join("c"), libc::RENAME_NOREPLACE).unwrap();
    sample::file(&d.join("inner"), 3, 100);
    sys::rename(&d, &b, libc::RENAME_EXCHANGE).unwrap();
    assert!(b.join("inner").exists() && fs::read(&d).unwrap() == first);
    let gone = sys::rename(&dir.join("none"), &b, libc::RENAME_EXCHANGE);
    assert_eq!(errno(gone), libc::ENOENT);
}

fn rename_errors_are_those_of_a_local_file_system(dir: &Path) {
    fs::create_dir_all(dir.join("d/e")).unwrap();
    fs::write(dir.join("f"), b"x").unwrap();
    let rename = |a: &str, b: &str| errno(fs::rename(dir.join(a), dir.join(b)));
    assert_eq!(rename("d", "d/e/below"), libc::EINVAL);
    assert_eq!(rename("f", "d"), libc::EISDIR);
    assert_eq!(rename("d", "f"), libc::ENOTDIR);
    assert_eq!(rename("none", "x"), libc::ENOENT);
    assert_eq!(rename("f", "none/x"), libc::ENOENT);
    fs::create_dir(dir.join("other")).unwrap();
    assert_eq!(rename("other", "d"), libc::ENOTEMPTY);
}

fn removed_directories_are_gone(dir: &Path) {
    for round in 0..3 {
        sample::file(&dir.join("d/e/f"), round, 5000);
        fs::remove_dir_all(dir.join("d")).unwrap();
        assert!(!dir.join("d").exists(), "round {round}");
    }
    fs::create_dir(dir.join("d")).unwrap();
    let open = File::open(dir.join("d")).unwrap();
    open.sync_all().unwrap();
    fs::remove_dir(dir.join("d")).unwrap();
    open.sync_all().unwrap();
    assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
}

fn inode_numbers_are_stable_and_unique(dir: &Path) {
    let ids = || -> Vec<u64> {
        (0..50).map(|i| fs::metadata(dir.join(format!("f{i}"))).unwrap().ino()).collect()
    };
    for i in 0..50 {
        fs::write(dir.join(format!("f{i}")), b"x").unwrap();
    }
    let before = ids();
    assert_eq!(before.iter().collect::<BTreeSet<_>>().len(), 50);
    forebay_tests::drop_caches();
    assert_eq!(ids(), before);
    for entry in fs::read_dir(dir).unwrap() {
        use std::os::unix::fs::DirEntryExt;
        let entry = entry.unwrap();
        assert_eq!(
            entry.ino(),
            fs::metadata(entry.path()).unwrap().ino(),
            "readdir and stat agree"
        );
    }
    fs::rename(dir.join("f0"), dir.join("renamed")).unwrap();
    assert_eq!(fs::metadata(dir.join("renamed")).unwrap().ino(), before[0]);
}

fn free_space_is_reported(dir: &Path) {
    let vfs = sys::statvfs(dir);
    assert!(vfs.f_blocks > 0 && vfs.f_bfree > 0 && vfs.f_bavail <= vfs.f_bfree);
    assert!(vfs.f_bsize >= 512 && vfs.f_namemax == 255);
}

/// Runs a shell command as the user nobody.
fn as_user(dir: &Path, script: &str) -> forebay_tests::Out {
    forebay_tests::tool_in(
        dir,
        "setpriv",
        &["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script],
    )
}

fn permissions_bind_other_users(dir: &Path) {
    fs::write(dir.join("private"), b"secret").unwrap();
    fs::set_permissions(dir.join("private"), Permissions::from_mode(0o600)).unwrap();
    fs::write(dir.join("public"), b"open").unwrap();
    fs::set_permissions(dir, Permissions::from_mode(0o777)).unwrap();
    assert_ne!(as_user(dir, "cat private").code, Some(0), "a private file of root");
    assert_eq!(as_user(dir, "cat public").ok().stdout, "open");
    assert_ne!(as_user(dir, "echo x >> public").code, Some(0));
    as_user(dir, "echo mine > new && mkdir d").ok();
    let meta = fs::metadata(dir.join("new")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (65534, 65534), "files belong to who makes them");
    assert_eq!(fs::metadata(dir.join("d")).unwrap().uid(), 65534);
    // A file that its owner may not write must still take a write through a descriptor opened
    // earlier.
    as_user(dir, "exec 3> locked; chmod 0 locked; echo still >&3; echo more >&3").ok();
    assert_eq!(fs::read(dir.join("locked")).unwrap(), b"still\nmore\n");
    fs::set_permissions(dir, Permissions::from_mode(0o1777)).unwrap();
    assert_ne!(as_user(dir, "rm -f public").code, Some(0), "sticky directory");
}

fn deep_paths_work(dir: &Path) {
    let mut path = dir.to_path_buf();
    for i in 0..60 {
        path.push(format!("level-{i:02}-{}", "x".repeat(30)));
        fs::create_dir(&path).unwrap();
    }
    fs::write(path.join("leaf"), b"deep").unwrap();
    fs::rename(dir.join("level-00-".to_string() + &"x".repeat(30)), dir.join("top")).unwrap();
    let moved = dir
        .join("top")
        .join(path.strip_prefix(dir).unwrap().components().skip(1).collect::<std::path::PathBuf>());
    assert_eq!(fs::read(moved.join("leaf")).unwrap(), b"deep");
}

fn programs_run(dir: &Path) {
    fs::copy("/bin/true", dir.join("true")).unwrap();
    fs::set_permissions(dir.join("true"), Permissions::from_mode(0o755)).unwrap();
    forebay_tests::tool(dir.join("true").to_str().unwrap(), &[]).ok();
    fs::write(dir.join("script"), b"#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(dir.join("script"), Permissions::from_mode(0o755)).unwrap();
    assert_eq!(forebay_tests::tool(dir.join("script").to_str().unwrap(), &[]).ok().stdout, "ran\n");
}
