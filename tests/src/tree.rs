//! The contents of a tree, and the differences between two trees.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, Metadata};
use std::hash::Hasher;
use std::io::Read;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::sys;

/// A directory's times may differ by this much from those of the backing store, in nanoseconds.
const RECKONED: u64 = 1_000_000_000;

/// `FUSE_SUPER_MAGIC`, statfs(2).
const FUSE: u32 = 0x6573_5546;

/// One name of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub kind: &'static str,
    pub mode: u32,
    pub owner: (u32, u32),
    pub size: u64,
    pub mtime: (i64, i64),
    pub target: Option<PathBuf>,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// Hash of the contents of a regular file.
    pub hash: u64,
    /// The first of the names that are hard links of one file.
    pub same_as: PathBuf,
    pub rdev: u64,
    /// Whether more than half of a file of more than 1 MiB takes no space.
    pub sparse: bool,
}

/// A tree as it was at one moment.
pub struct Tree {
    root: PathBuf,
    /// The tree was read through a mount, which may estimate the times of directories.
    reckons: bool,
    pub entries: BTreeMap<PathBuf, Entry>,
}

/// Whether modification times count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    Compare,
    Ignore,
}

impl Tree {
    /// Reads everything below `root`, but the virtual `.forebay` at the root of a mount.
    pub fn read(root: &Path) -> Tree {
        let reckons = rustix::fs::statfs(root).is_ok_and(|stat| stat.f_type as u32 == FUSE);
        let mut tree = Tree { root: root.to_path_buf(), reckons, entries: BTreeMap::new() };
        let mut firsts = HashMap::new();
        let mut todo = vec![PathBuf::new()];
        while let Some(name) = todo.pop() {
            let path = root.join(&name);
            let meta = std::fs::symlink_metadata(&path)
                .unwrap_or_else(|e| panic!("stat {}: {e}", path.display()));
            if meta.is_dir() {
                todo.extend(children(&path).into_iter().map(|child| name.join(child)));
            }
            tree.entries.insert(name.clone(), entry(&path, &meta));
        }
        // In the order of names, so that two trees agree on the first of several links.
        for (name, entry) in &mut tree.entries {
            let meta = std::fs::symlink_metadata(root.join(name)).expect("stat a second time");
            let key = (meta.dev(), meta.ino());
            entry.same_as = firsts.entry(key).or_insert_with(|| name.clone()).clone();
        }
        tree
    }

    pub fn files(&self) -> usize {
        self.entries.values().filter(|entry| entry.kind == "file").count()
    }

    pub fn bytes(&self) -> u64 {
        self.entries.values().filter(|e| e.kind == "file").map(|e| e.size).sum()
    }

    /// All differences from `other`, one line each.
    pub fn differences(&self, other: &Tree, times: Times) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, mine) in &self.entries {
            match other.entries.get(name) {
                None => lines.push(format!("{}: missing in {}", name.display(), other.root_name())),
                Some(theirs) if theirs != mine => self.differ(other, name, times, &mut lines),
                Some(_) => {}
            }
        }
        let extra = other.entries.keys().filter(|name| !self.entries.contains_key(*name));
        lines.extend(extra.map(|n| format!("{}: only in {}", n.display(), other.root_name())));
        lines
    }

    fn root_name(&self) -> String {
        self.root.display().to_string()
    }

    fn differ(&self, other: &Tree, name: &Path, times: Times, lines: &mut Vec<String>) {
        let (a, b) = (&self.entries[name], &other.entries[name]);
        let mut say = |what: &str, a: String, b: String| {
            if a != b {
                lines.push(format!("{}: {what} {a} != {b}", name.display()));
            }
        };
        say("kind", a.kind.into(), b.kind.into());
        say("mode", format!("{:o}", a.mode), format!("{:o}", b.mode));
        say("owner", format!("{:?}", a.owner), format!("{:?}", b.owner));
        say("size", a.size.to_string(), b.size.to_string());
        say("target", format!("{:?}", a.target), format!("{:?}", b.target));
        say("xattrs", format!("{:?}", a.xattrs), format!("{:?}", b.xattrs));
        say("link of", format!("{:?}", a.same_as), format!("{:?}", b.same_as));
        say("device", a.rdev.to_string(), b.rdev.to_string());
        say("sparse", a.sparse.to_string(), b.sparse.to_string());
        // A directory's times are estimated for up to a second after a change in it if the store is slow (S1),
        // and any disk may be slow for a moment.
        let may_be = (self.reckons || other.reckons) && a.kind == "dir";
        let is_reckoned = may_be && apart(a.mtime, b.mtime) < RECKONED;
        if times == Times::Compare && !is_reckoned {
            say("mtime", format!("{:?}", a.mtime), format!("{:?}", b.mtime));
        }
        if a.hash != b.hash {
            let place = first_difference(&self.root.join(name), &other.root.join(name));
            lines.push(format!("{}: contents differ ({place})", name.display()));
        }
    }

    /// Panics with the differences, if any.
    #[track_caller]
    pub fn assert_same(&self, other: &Tree, times: Times) {
        let lines = self.differences(other, times);
        let shown = lines.iter().take(30).cloned().collect::<Vec<_>>().join("\n  ");
        assert!(
            lines.is_empty(),
            "{} and {} differ in {} ways:\n  {shown}",
            self.root_name(),
            other.root_name(),
            lines.len()
        );
    }
}

fn children(dir: &Path) -> Vec<std::ffi::OsString> {
    std::fs::read_dir(dir)
        .unwrap_or_else(|e| panic!("reading directory {}: {e}", dir.display()))
        .map(|entry| entry.expect("directory entry").file_name())
        .filter(|name| name != ".forebay" && name != "lost+found")
        .collect()
}

fn entry(path: &Path, meta: &Metadata) -> Entry {
    let kind = kind_of(meta);
    let regular = kind == "file";
    let names = sys::list_xattr(path).unwrap_or_default();
    let shared = names.into_iter().filter(|name| name.starts_with("user."));
    Entry {
        kind,
        mode: meta.mode() & 0o7777,
        owner: (meta.uid(), meta.gid()),
        size: if meta.is_dir() { 0 } else { meta.size() },
        mtime: (meta.mtime(), meta.mtime_nsec()),
        target: meta.is_symlink().then(|| std::fs::read_link(path).expect("readlink")),
        xattrs: shared
            .map(|name| (name.clone(), sys::get_xattr(path, &name).expect("getxattr")))
            .collect(),
        hash: if regular { hash_file(path) } else { 0 },
        same_as: PathBuf::new(),
        rdev: meta.rdev(),
        sparse: regular && meta.size() > 1 << 20 && meta.blocks() * 512 < meta.size() / 2,
    }
}

fn kind_of(meta: &Metadata) -> &'static str {
    let kind = meta.file_type();
    match () {
        () if kind.is_file() => "file",
        () if kind.is_dir() => "dir",
        () if kind.is_symlink() => "symlink",
        () if kind.is_fifo() => "fifo",
        () if kind.is_socket() => "socket",
        () if kind.is_char_device() => "char",
        () => "block",
    }
}

/// Hash of the contents of a file.
pub fn hash_file(path: &Path) -> u64 {
    let mut file = File::open(path).unwrap_or_else(|e| panic!("open {}: {e}", path.display()));
    let mut buf = vec![0; 1 << 18];
    let mut hasher = std::hash::DefaultHasher::new();
    loop {
        match file.read(&mut buf) {
            Ok(0) => return hasher.finish(),
            Ok(n) => hasher.write(&buf[..n]),
            Err(e) => panic!("read {}: {e}", path.display()),
        }
    }
}

/// The first difference of two files, in words.
pub fn first_difference(a: &Path, b: &Path) -> String {
    let (Ok(a), Ok(b)) = (std::fs::read(a), std::fs::read(b)) else {
        return "one cannot be read any more".into();
    };
    match a.iter().zip(&b).position(|(x, y)| x != y) {
        Some(at) => {
            let zeros = |bytes: &[u8]| bytes[at..].iter().take(16).all(|x| *x == 0);
            let note = if zeros(&b) && !zeros(&a) { ", zeros in the second" } else { "" };
            format!("first at byte {at} of {}{note}", a.len())
        }
        None => format!("lengths {} and {}", a.len(), b.len()),
    }
}

/// Reads a range, asserting that all of it is there.
#[track_caller]
pub fn read_range(path: &Path, offset: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0; len];
    let file = File::open(path).unwrap_or_else(|e| panic!("open {}: {e}", path.display()));
    file.read_exact_at(&mut buf, offset)
        .unwrap_or_else(|e| panic!("read {len} at {offset} of {}: {e}", path.display()));
    buf
}

/// The difference of two times in nanoseconds.
fn apart(a: (i64, i64), b: (i64, i64)) -> u64 {
    ((a.0 - b.0) * 1_000_000_000 + a.1 - b.1).unsigned_abs()
}
