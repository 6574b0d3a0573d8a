//! Names that do not exist: the kernel caches their absence as long as any other name.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use forebay_tests::sys::{self, errno};
use forebay_tests::user::User;
use forebay_tests::{Bed, Mounted, Tier, is_root, needs_forebay, proof, skip, text};

const BOB: User = User { uid: 2002, gid: 3002, groups: &[] };

const LONG: [&str; 4] = ["--entry-ttl", "1h", "--attr-ttl", "1h"];

/// A way to make a name.
type Make<'a> = (&'static str, &'a dyn Fn(&Path));

fn lookups(mounted: &Mounted) -> u64 {
    let stats = mounted.forebay(&["stats", "--json", text(&mounted.path)]).ok().json();
    stats["fuse"]["lookup"]["count"].as_u64().unwrap_or(0)
}

#[track_caller]
fn is_absent(path: &Path) {
    assert_eq!(errno(fs::symlink_metadata(path)), libc::ENOENT, "{}", path.display());
}

/// Goal: a search through many directories asks the store for each name once. Method: a thousand
/// lookups, counted by the daemon; and each way to make the name ends the cached absence at once.
// S-1
#[test]
fn an_absent_name_is_asked_for_once_and_seen_as_soon_as_it_is_made_here() {
    needs_forebay!();
    if !is_root() {
        skip!("needs root");
    }
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&LONG);
    let at = |name: &str| bed.mnt.join(name);
    let before = lookups(&mounted);
    (0..1000).for_each(|_| is_absent(&at("none")));
    let asked = lookups(&mounted) - before;
    assert!((1..=5).contains(&asked), "{asked} lookups");

    fs::write(at("kept"), "bytes").unwrap();
    let makes: [Make<'_>; 6] = [
        ("file", &|path| fs::write(path, "new").unwrap()),
        ("dir", &|path| fs::create_dir(path).unwrap()),
        ("symlink", &|path| symlink("kept", path).unwrap()),
        ("link", &|path| fs::hard_link(at("kept"), path).unwrap()),
        ("renamed", &|path| {
            fs::write(at("old"), "old").unwrap();
            fs::rename(at("old"), path).unwrap();
            is_absent(&at("old"));
        }),
        ("fifo", &|path| sys::mkfifo(path, 0o644).unwrap()),
    ];
    for (name, make) in makes {
        let path = at(name);
        is_absent(&path);
        make(&path);
        fs::symlink_metadata(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        match path.is_dir() {
            true => fs::remove_dir(&path).unwrap(),
            false => fs::remove_file(&path).unwrap(),
        }
        is_absent(&path);
    }
    mounted.umount();
    proof!("{asked} lookups for a thousand looks, six ways to make a name");
}

/// Goal: a lock file that another client has made is never made twice, and no file of another client
/// is replaced. Method: names made on the store after the kernel has cached their absence.
// S-1
#[test]
fn names_that_others_make_are_seen_by_a_maker_at_once_and_by_all_after_the_time() {
    needs_forebay!();
    if !is_root() {
        skip!("needs root");
    }
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&LONG);
    let behind = |name: &str| {
        is_absent(&bed.mnt.join(name));
        fs::write(bed.backing.join(name), "theirs").unwrap();
        bed.mnt.join(name)
    };
    is_absent(&behind("seen later"));
    let exclusive = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
    assert_eq!(errno(sys::open(&behind("lock"), exclusive, 0o644)), libc::EEXIST);
    assert_eq!(errno(fs::create_dir(behind("dir"))), libc::EEXIST);
    assert_eq!(errno(symlink("target", behind("symlink"))), libc::EEXIST);
    fs::write(bed.mnt.join("mine"), "mine").unwrap();
    assert_eq!(errno(fs::hard_link(bed.mnt.join("mine"), behind("link"))), libc::EEXIST);
    let from = bed.mnt.join("mine");
    let refused = sys::rename(&from, &behind("target"), libc::RENAME_NOREPLACE);
    assert_eq!(errno(refused), libc::EEXIST);
    let path = behind("opened");
    drop(sys::open(&path, libc::O_RDWR | libc::O_CREAT, 0o644).unwrap());
    assert_eq!(fs::read(&path).unwrap(), b"theirs", "it was there, and was opened");
    for name in ["seen later", "lock", "dir", "symlink", "link", "target", "opened"] {
        assert_eq!(fs::read(bed.backing.join(name)).unwrap(), b"theirs", "{name}");
    }
    mounted.umount();
    let mounted = bed.mount(&["--entry-ttl", "0s"]);
    let path = bed.mnt.join("at once");
    is_absent(&path);
    fs::write(bed.backing.join("at once"), "theirs").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"theirs");
    mounted.umount();
    proof!("seven names made behind the mount");
}

/// Goal: O_CREAT opens no file for a user who may not open it. Method: root makes a file on the store
/// under a name whose absence the kernel has cached, in a directory where Bob may make files.
#[test]
fn a_file_that_others_make_meanwhile_is_opened_for_nobody_who_may_not() {
    needs_forebay!();
    if !is_root() {
        skip!("needs root");
    }
    let bed = Bed::new(Tier::Disk);
    fs::set_permissions(&bed.root, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&bed.backing, fs::Permissions::from_mode(0o1777)).unwrap();
    let mounted = bed.mount(&LONG);
    for flags in [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR | libc::O_TRUNC] {
        let name = format!("secret-{flags:x}");
        let path = bed.mnt.join(&name);
        BOB.run(0, || is_absent(&path));
        fs::write(bed.backing.join(&name), "secret").unwrap();
        let theirs = fs::Permissions::from_mode(0o600);
        fs::set_permissions(bed.backing.join(&name), theirs).unwrap();
        let opened = BOB.run(0, || sys::open(&path, flags | libc::O_CREAT, 0o644));
        assert_eq!(errno(opened), libc::EACCES, "{flags:x}");
        assert_eq!(fs::read(&path).unwrap(), b"secret", "root may, and it is whole");
    }
    mounted.umount();
    proof!("four ways to open");
}
