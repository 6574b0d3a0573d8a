//! Helpers that the tests of this crate share: trees from a seed, pictures of trees, specs.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_stage::{Control, Options, Outcome, Place, Report, Spec, What};
use rustix::fs::{AtFlags, CWD, Mode, Timespec, Timestamps, XattrFlags};

pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(len).collect()
    }
}

pub fn spec(id: &str, from: &Path, to: &Path, what: What) -> Spec {
    let place = |path: &Path| Place {
        root: path.parent().unwrap().into(),
        path: path.file_name().unwrap().into(),
    };
    Spec {
        id: id.into(),
        source: place(from),
        destination: place(to),
        what,
        options: Options::default(),
    }
}

pub fn run(spec: &Spec) -> Report {
    forebay_stage::run(spec, &Control::default(), Duration::from_millis(20), |_| ()).unwrap()
}

/// Runs a transfer in which nothing may fail.
pub fn done(spec: &Spec) -> Report {
    let report = run(spec);
    assert_eq!(report.outcome, Outcome::Done, "{report:#?}");
    assert_eq!((report.left_files, report.left_bytes, report.failed), (0, 0, 0), "{report:#?}");
    report
}

/// A name that is odd on purpose: not UTF-8, line breaks, quotes, long.
pub fn odd_name(rng: &mut Rng, number: usize) -> OsString {
    let mut name = match rng.below(6) {
        0 => b"plain".to_vec(),
        1 => b"with space\nand line ".to_vec(),
        2 => b"\xff\xfe\x80 not UTF-8 ".to_vec(),
        3 => b"-rf \"quote' \\".to_vec(),
        4 => vec![b'l'; 240],
        _ => ".hidden\u{e9}*?".as_bytes().to_vec(),
    };
    name.extend(number.to_string().bytes());
    OsString::from_vec(name)
}

/// Makes a tree with files of every type.
pub fn grow(top: &Path, seed: u64, files: usize) {
    let mut rng = Rng::new(seed);
    std::fs::create_dir_all(top).unwrap();
    let mut dirs = vec![top.to_path_buf()];
    let mut plain: Vec<PathBuf> = Vec::new();
    for number in 0..files {
        let dir = dirs[rng.below(dirs.len() as u64) as usize].clone();
        let path = dir.join(odd_name(&mut rng, number));
        match rng.below(12) {
            0 | 1 => {
                std::fs::create_dir(&path).unwrap();
                dirs.push(path.clone());
            }
            2 => symlink(odd_name(&mut rng, 99), &path).unwrap(),
            3 => rustix::fs::mkfifoat(CWD, &path, Mode::RUSR).unwrap(),
            4 if !plain.is_empty() => {
                let first = &plain[rng.below(plain.len() as u64) as usize];
                std::fs::hard_link(first, &path).unwrap();
            }
            5 => {
                sparse(&path, &mut rng);
                plain.push(path.clone());
            }
            _ => {
                let len = [0, 1, 4096, 5000, 100_000, 3_000_000][rng.below(6) as usize];
                std::fs::write(&path, rng.bytes(len)).unwrap();
                plain.push(path.clone());
            }
        }
    }
    for path in plain.iter().chain(&dirs) {
        dress(path, &mut rng);
    }
    // Files that were made in a directory have changed its times.
    for path in dirs.iter().rev() {
        date(path, &mut rng);
    }
}

fn sparse(path: &Path, rng: &mut Rng) {
    let file = std::fs::File::create(path).unwrap();
    file.set_len(10 << 20).unwrap();
    for _ in 0..rng.below(4) {
        file.write_all_at(&rng.bytes(70_000), rng.below(150) << 16).unwrap();
    }
}

fn dress(path: &Path, rng: &mut Rng) {
    let is_dir = path.is_dir();
    if rng.below(3) == 0 {
        let value = rng.bytes(100);
        rustix::fs::setxattr(path, "user.color", &value, XattrFlags::empty()).unwrap();
        rustix::fs::setxattr(path, "user.empty", b"", XattrFlags::empty()).unwrap();
    }
    if rng.below(4) == 0 {
        let acl = acl(rng.below(8) as u16);
        rustix::fs::setxattr(path, "system.posix_acl_access", &acl, XattrFlags::empty()).unwrap();
    }
    if rng.below(2) == 0 {
        let owner = Some(rng.below(3000) as u32);
        std::os::unix::fs::chown(path, owner, owner).unwrap();
    }
    let mode = if is_dir { [0o755, 0o2750, 0o1777, 0o500] } else { [0o644, 0o600, 0o4755, 0o444] };
    let mode = mode[rng.below(4) as usize];
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    date(path, rng);
}

/// An access list with an entry for user 1234 beside the three that every file has.
fn acl(bits: u16) -> Vec<u8> {
    let none = u32::MAX;
    let entries = [(1u16, 6u16, none), (2, bits, 1234), (4, 4, none), (16, 7, none), (32, 0, none)];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

pub fn date(path: &Path, rng: &mut Rng) {
    let time = Timespec {
        tv_sec: 1_000_000_000 + rng.below(1 << 29) as i64,
        tv_nsec: rng.below(1_000_000_000) as i64,
    };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Everything that is visible of a file, except its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    mode: u32,
    owner: (u32, u32),
    mtime: (i64, i64),
    size: u64,
    content: Vec<u8>,
    sparse: bool,
    xattrs: BTreeMap<OsString, Vec<u8>>,
    /// The first path of the same file.
    pub first: PathBuf,
}

/// A tree as a map from paths to their files.
pub fn picture(top: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut found = BTreeMap::new();
    look(top, Path::new(""), &mut found);
    let mut firsts = BTreeMap::new();
    let inode = |path: &Path| std::fs::symlink_metadata(top.join(path)).unwrap().ino();
    for (path, seen) in &mut found {
        seen.first = firsts.entry(inode(path)).or_insert_with(|| path.clone()).clone();
    }
    found
}

fn look(top: &Path, path: &Path, found: &mut BTreeMap<PathBuf, Seen>) {
    let whole = top.join(path);
    found.insert(path.into(), seen(&whole));
    if std::fs::symlink_metadata(&whole).unwrap().is_dir() {
        for entry in std::fs::read_dir(&whole).unwrap() {
            look(top, &path.join(entry.unwrap().file_name()), found);
        }
    }
}

fn seen(path: &Path) -> Seen {
    let meta = std::fs::symlink_metadata(path).unwrap();
    let content = match meta.file_type() {
        kind if kind.is_file() => std::fs::read(path).unwrap(),
        kind if kind.is_symlink() => std::fs::read_link(path).unwrap().into_os_string().into_vec(),
        _ => Vec::new(),
    };
    Seen {
        mode: meta.mode(),
        owner: (meta.uid(), meta.gid()),
        mtime: (meta.mtime(), meta.mtime_nsec()),
        size: if meta.is_dir() { 0 } else { meta.size() },
        sparse: meta.is_file() && meta.blocks() * 512 + 65536 < meta.size(),
        content,
        xattrs: if meta.is_symlink() { BTreeMap::new() } else { xattrs(path) },
        first: PathBuf::new(),
    }
}

fn xattrs(path: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let mut names = vec![0u8; 65536];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let names = names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let mut value = vec![0u8; 65536];
            let name = OsStr::from_bytes(name);
            let len = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
            (name.to_os_string(), value[..len].to_vec())
        })
        .collect()
}

#[track_caller]
pub fn assert_same(from: &Path, to: &Path) {
    let (a, b) = (picture(from), picture(to));
    for (path, seen) in &a {
        let other = b.get(path).unwrap_or_else(|| panic!("{path:?} is missing"));
        assert!(seen == other, "{path:?}: {:?} became {:?}", brief(seen), brief(other));
    }
    let more: Vec<_> = b.keys().filter(|path| !a.contains_key(*path)).collect();
    assert!(more.is_empty(), "there is more: {more:?}");
}

fn brief(seen: &Seen) -> Seen {
    Seen { content: seen.content.iter().copied().take(40).collect(), ..seen.clone() }
}

/// Names of temporary files that a transfer has left in a tree.
pub fn left_over(top: &Path) -> Vec<PathBuf> {
    let all = picture(top).into_keys();
    let is = |name: &OsStr| name.as_bytes().starts_with(b".forebay-stage-");
    all.filter(|path| path.file_name().is_some_and(is)).collect()
}

pub fn file(path: &Path, bytes: &[u8]) {
    std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o644)
        .open(path)
        .and_then(|mut file| std::io::Write::write_all(&mut file, bytes))
        .unwrap();
}
