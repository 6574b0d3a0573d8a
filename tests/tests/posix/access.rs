//! Permissions: random modes, owners and access lists on a plain directory and on the mount, and the same operations
//! by the same users on both, with results compared one by one.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder};
use std::io::{Error, Read, Result, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_tests::acl::{self, Entry};
use forebay_tests::user::{ROOT, User};
use forebay_tests::{
    Bed, Faults, PATIENCE, Rng, Tier, is_root, proof, seed, skip, soak, sys, within,
};

const ANN: User = User { uid: 2001, gid: 3001, groups: &[3003] };
const BOB: User = User { uid: 2002, gid: 3002, groups: &[] };
const CAROL: User = User { uid: 2003, gid: 3003, groups: &[3001] };
const USERS: [User; 4] = [ROOT, ANN, BOB, CAROL];

const NAMES: [&str; 14] = [
    "a", "b", "a/c", "a/f", "a/g", "b/f", "b/g", "a/c/f", "a/c/g", "f", "g", "b/d", "b/d/f",
    "a/c/d",
];

#[derive(Debug, Clone)]
enum Do {
    Open(i32),
    Create { flags: i32, mode: u32 },
    Mkdir(u32),
    Unlink,
    Rmdir,
    Rename(&'static str),
    Stat,
    List,
    Truncate,
    Chmod(u32),
    Chown(Option<u32>, Option<u32>),
    SetAcl(&'static str, Vec<Entry>),
    GetAcl(&'static str),
    RemoveAcl(&'static str),
}

#[derive(Debug)]
struct Step {
    user: User,
    umask: u32,
    name: &'static str,
    what: Do,
}

impl Step {
    /// Makes a missing object.
    fn restore(name: &'static str) -> Step {
        let what = match name.ends_with(['f', 'g']) {
            true => Do::Create { flags: libc::O_CREAT | libc::O_RDWR, mode: 0o666 },
            false => Do::Mkdir(0o777),
        };
        Step { user: ROOT, umask: 0, name, what }
    }

    fn draw(rng: &mut Rng, bits: u32) -> Step {
        // More is granted than denied: a user who may not enter a directory tests nothing in it.
        let mode = |rng: &mut Rng| (rng.word() | rng.word()) as u32 & bits;
        let which = |rng: &mut Rng| *rng.pick(&[acl::ACCESS, acl::ACCESS, acl::DEFAULT]);
        let what = match rng.below(20) {
            0 => Do::Open(libc::O_RDONLY),
            1 => Do::Open(libc::O_WRONLY | libc::O_APPEND),
            2 => Do::Open(libc::O_RDWR),
            3 => Do::Open(libc::O_WRONLY | libc::O_TRUNC),
            4 | 5 => Do::Create { flags: libc::O_CREAT | libc::O_RDWR, mode: mode(rng) },
            6 => {
                Do::Create { flags: libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, mode: mode(rng) }
            }
            7 | 8 => Do::Mkdir(mode(rng)),
            9 if rng.one_in(3) => Do::Unlink,
            10 if rng.one_in(3) => Do::Rmdir,
            11 if rng.one_in(3) => Do::Rename(draw_name(rng)),
            12 => Do::List,
            13 => Do::Truncate,
            14 => Do::Chmod(mode(rng)),
            15 => {
                let uid = rng.one_in(3).then(|| rng.pick(&USERS).uid);
                Do::Chown(uid, Some(rng.pick(&USERS).gid))
            }
            16 => Do::GetAcl(which(rng)),
            17 => Do::RemoveAcl(which(rng)),
            18 | 19 => {
                Do::SetAcl(which(rng), acl::random(rng, &[2001, 2002, 2003], &[3001, 3002, 3003]))
            }
            _ => Do::Stat,
        };
        let umask = *rng.pick(&[0, 0o022, 0o077, 0o027]);
        Step { user: *rng.pick(&USERS), umask, name: draw_name(rng), what }
    }

    /// The result that the user gets.
    fn run(&self, root: &Path) -> std::result::Result<Vec<u8>, i32> {
        let done = self.user.run(self.umask, || self.act(root));
        done.map_err(|error: Error| error.raw_os_error().expect("an errno"))
    }

    fn act(&self, root: &Path) -> Result<Vec<u8>> {
        let path = root.join(self.name);
        match &self.what {
            Do::Open(flags) => sys::open(&path, *flags, 0).and_then(|file| touch(file, *flags)),
            Do::Create { flags, mode } => {
                sys::open(&path, *flags, *mode).and_then(|file| touch(file, *flags))
            }
            Do::Mkdir(mode) => DirBuilder::new().mode(*mode).create(&path).map(nothing),
            Do::Unlink => fs::remove_file(&path).map(nothing),
            Do::Rmdir => fs::remove_dir(&path).map(nothing),
            Do::Rename(to) => fs::rename(&path, root.join(to)).map(nothing),
            Do::Stat => fs::symlink_metadata(&path).map(|meta| text(&meta)),
            Do::List => {
                let mut names = Vec::new();
                for entry in fs::read_dir(&path)? {
                    names.push(entry?.file_name().into_encoded_bytes());
                }
                names.sort();
                Ok(names.concat())
            }
            Do::Truncate => sys::truncate(&path, 1).map(nothing),
            Do::Chmod(mode) => {
                fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).map(nothing)
            }
            Do::Chown(uid, gid) => lchown(&path, *uid, *gid).map(nothing),
            Do::SetAcl(which, list) => {
                sys::set_xattr(&path, which, &acl::encode(list), 0).map(nothing)
            }
            Do::GetAcl(which) => sys::get_xattr(&path, which),
            Do::RemoveAcl(which) => sys::remove_xattr(&path, which).map(nothing),
        }
    }
}

fn draw_name(rng: &mut Rng) -> &'static str {
    NAMES[rng.below(NAMES.len() as u64) as usize]
}

fn nothing((): ()) -> Vec<u8> {
    Vec::new()
}

/// Reads or writes through a descriptor, as its flags permit.
fn touch(mut file: fs::File, flags: i32) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if flags & libc::O_ACCMODE != libc::O_WRONLY {
        file.read_to_end(&mut bytes)?;
    }
    if flags & libc::O_ACCMODE != libc::O_RDONLY {
        file.write_all(b"x")?;
    }
    Ok(bytes)
}

fn text(meta: &fs::Metadata) -> Vec<u8> {
    format!("{:o} {} {} {}", meta.mode(), meta.uid(), meta.gid(), meta.nlink()).into()
}

/// Root's view of a name: mode, owner, and both lists.
fn seen(path: &Path) -> String {
    match fs::symlink_metadata(path) {
        Ok(meta) => {
            let lists = [acl::ACCESS, acl::DEFAULT].map(|which| sys::get_xattr(path, which).ok());
            format!("{} {lists:?}", String::from_utf8_lossy(&text(&meta)))
        }
        Err(error) => error.to_string(),
    }
}

fn walk(root: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).expect("root lists").flatten() {
            let path = entry.path();
            if path.is_dir() {
                todo.push(path.clone());
            }
            let name = path.strip_prefix(root).expect("below it").to_path_buf();
            found.insert(name, seen(&path));
        }
    }
    found
}

fn compare(own_seed: u64, bits: u32, flags: &[&str]) {
    if !is_root() {
        skip!("needs root");
    }
    let deadline = soak().map(|time| Instant::now() + time);
    let mut seed = seed(own_seed);
    loop {
        compare_seed(seed, bits, flags);
        seed = seed.wrapping_add(1000);
        if deadline.is_none_or(|at| Instant::now() > at) {
            return;
        }
    }
}

fn compare_seed(seed: u64, bits: u32, flags: &[&str]) {
    const STEPS: usize = 2500;
    let bed = Bed::new(Tier::Disk);
    let plain = bed.dir("plain");
    for root in [&plain, &bed.backing] {
        fs::set_permissions(root, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let open_up = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755));
    open_up(&bed.root).expect("others may come in");
    let mounted = bed.mount(flags);
    let (mut rng, mut granted, mut denied) = (Rng::new(seed), 0, 0);
    let mut log = Vec::new();
    for n in 0..STEPS {
        let step = match *rng.pick(&NAMES) {
            missing if !plain.join(missing).exists() => Step::restore(missing),
            _ => Step::draw(&mut rng, bits),
        };
        log.push(format!("{step:?}"));
        // Until the daemon learns of the close, the program that wrote the file past it may still write: then a
        // set-uid bit that is set meanwhile is removed by the next write, also by root's.
        if matches!(step.what, Do::Chmod(mode) if mode & 0o6000 != 0) {
            mounted.hear_closes();
        }
        let (want, got) = (step.run(&plain), step.run(&bed.mnt));
        let of = |root: &Path| seen(&root.join(step.name));
        let (want_then, got_then) = (of(&plain), of(&bed.mnt));
        if want != got || want_then != got_then {
            let from = log.len().saturating_sub(25);
            panic!(
                "seed {seed}, step {n}: {step:?}\n plain: {want:?} {want_then}\n mount: {got:?} {got_then}\n  {}",
                log[from..].join("\n  ")
            );
        }
        match want {
            Ok(_) => granted += 1,
            Err(libc::EACCES) => denied += 1,
            Err(_) => {}
        }
    }
    let want = walk(&plain);
    assert_eq!(want, walk(&bed.mnt));
    mounted.umount();
    assert_eq!(want, walk(&bed.backing));
    assert!(granted > STEPS / 8 && denied > STEPS / 20, "too tame: {granted}, {denied}");
    proof!("{granted} operations granted and {denied} denied alike, {} names equal", want.len());
}

const PERMISSIONS: u32 = 0o777;
const ALL: u32 = 0o7777;

#[test]
fn random_lists_grant_and_deny_what_they_do_on_a_plain_directory() {
    (1..4).for_each(|seed| compare(seed, PERMISSIONS, &[]));
}

#[test]
fn random_lists_do_so_without_passthrough() {
    compare(4, PERMISSIONS, &["--passthrough", "off"]);
}

/// Also: no attribute that such an operation changes is seen as it was before.
#[test]
fn set_user_id_and_set_group_id_are_lost_when_they_are_on_a_plain_directory() {
    (5..8).for_each(|seed| compare(seed, ALL, &[]));
    compare(8, ALL, &["--passthrough", "off"]);
    compare(9, ALL, &["--policy", "write-around"]);
    compare(10, ALL, &["--attr-ttl", "1h", "--entry-ttl", "1h"]);
}

/// A file of root's that its group may not read, except as `list` says.
fn listed(bed: &Bed, name: &str, list: &[Entry]) -> PathBuf {
    let path = bed.backing.join(name);
    fs::write(&path, b"secret").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    lchown(&path, Some(0), Some(BOB.gid)).unwrap();
    if !list.is_empty() {
        sys::set_xattr(&path, acl::ACCESS, &acl::encode(list), 0).unwrap();
    }
    bed.mnt.join(name)
}

fn open_to_others() -> Bed {
    let bed = Bed::new(Tier::Disk);
    fs::set_permissions(&bed.root, fs::Permissions::from_mode(0o755)).unwrap();
    bed
}

/// Rights for Carol and no other user but root.
const FOR_CAROL: [Entry; 5] =
    [Entry::Owner(6), Entry::User(CAROL.uid, 6), Entry::Group(0), Entry::Mask(6), Entry::Other(0)];

fn may_read(user: User, path: &Path) -> bool {
    user.run(0, || fs::read(path)).is_ok_and(|bytes| bytes == b"secret")
}

#[test]
fn a_list_that_others_change_binds_once_the_attributes_are_asked_for_again() {
    if !is_root() {
        skip!("needs root");
    }
    let bed = open_to_others();
    let path = listed(&bed, "f", &[]);
    let mounted = bed.mount(&["--attr-ttl", "0s"]);
    assert!(may_read(BOB, &path) && !may_read(CAROL, &path), "by the mode");
    let list = acl::encode(&FOR_CAROL);
    sys::set_xattr(&bed.backing.join("f"), acl::ACCESS, &list, 0).unwrap();
    assert!(!may_read(BOB, &path) && may_read(CAROL, &path), "by the list");
    sys::remove_xattr(&bed.backing.join("f"), acl::ACCESS).unwrap();
    assert!(!may_read(CAROL, &path), "no list any more");
    mounted.umount();
    proof!("three changes on the backing store");
}

/// A program that has a file open by a descriptor opens it again without a name.
#[test]
fn the_list_of_a_file_without_a_name_binds() {
    if !is_root() {
        skip!("needs root");
    }
    let bed = open_to_others();
    let path = listed(&bed, "f", &FOR_CAROL);
    let mounted = bed.mount(&["--attr-ttl", "0s"]);
    let open = fs::File::open(&path).unwrap();
    let again = PathBuf::from(format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        std::os::fd::AsRawFd::as_raw_fd(&open)
    ));
    fs::remove_file(&path).unwrap();
    assert_eq!(fs::read(&again).unwrap(), b"secret");
    let list = sys::get_xattr_followed(&again, acl::ACCESS).unwrap();
    assert_eq!(list, acl::encode(&FOR_CAROL));
    drop(open);
    mounted.umount();
    proof!("{} bytes of a list", list.len());
}

// S-10
#[test]
fn while_the_store_is_away_a_known_list_decides_and_an_unknown_one_denies() {
    forebay_tests::needs_forebay!();
    let bed = open_to_others();
    let faults = Faults::none(&bed);
    let (known, unknown) = (listed(&bed, "known", &FOR_CAROL), listed(&bed, "unknown", &FOR_CAROL));
    let flags = ["--fault", faults.path(), "--attr-ttl", "0s", "--entry-ttl", "0s"];
    let mounted = bed.mount(&flags);
    assert!(may_read(CAROL, &known) && !may_read(BOB, &known));
    assert_eq!(fs::read(&unknown).unwrap(), b"secret", "root owns it: no list is asked for");
    faults.gone();
    within(PATIENCE, "the store counts as away", || {
        let _ = fs::metadata(bed.mnt.join("none"));
        mounted.status()["backing_available"] == false
    });
    assert!(may_read(CAROL, &known), "the list is known");
    assert!(!may_read(BOB, &known) && !may_read(BOB, &unknown), "it does not say so");
    assert!(!may_read(CAROL, &unknown), "nobody knows");
    assert_eq!(fs::read(&unknown).unwrap(), b"secret");
    faults.clear();
    within(PATIENCE, "the store is back", || may_read(CAROL, &unknown));
    mounted.umount();
    proof!("asked while away");
}

/// Through a held descriptor and through a new open; made here and found on the backing store.
fn a_store_moves_the_time(path: &Path) {
    let before = sys::mtime(path);
    within(PATIENCE, "the clock has moved on", || now() > (before.0, before.1 + 20_000_000));
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut map = sys::Map::shared(&file, 4096, true).unwrap();
    assert_eq!(sys::mtime(path), before, "nothing was stored");
    map.bytes()[7] ^= 1;
    drop(map);
    drop(file);
    // For a file past the daemon the kernel asks again after 50 ms.
    within(Duration::from_millis(500), "a store moves the time", || sys::mtime(path) > before);
}

fn now() -> (i64, i64) {
    let now = std::time::UNIX_EPOCH.elapsed().expect("after 1970");
    (now.as_secs() as i64, now.subsec_nanos().into())
}

#[test]
fn times_after_a_store_through_a_mapping_are_new_at_once() {
    if !is_root() {
        skip!("needs root");
    }
    for flags in [&["--passthrough", "always"][..], &[], &["--passthrough", "off"]] {
        let bed = Bed::new(Tier::Disk);
        fs::write(bed.backing.join("old"), [1; 4096]).unwrap();
        let mounted = bed.mount(&[flags, &["--attr-ttl", "1h", "--entry-ttl", "1h"]].concat());
        fs::write(bed.mnt.join("new"), [1; 4096]).unwrap();
        let made = sys::open(&bed.mnt.join("made"), libc::O_RDWR | libc::O_CREAT, 0o644).unwrap();
        made.set_len(4096).unwrap();
        for name in ["old", "new", "made", "made", "new"] {
            a_store_moves_the_time(&bed.mnt.join(name));
        }
        drop(made);
        mounted.umount();
    }
    proof!("five stores on each of three mounts");
}
