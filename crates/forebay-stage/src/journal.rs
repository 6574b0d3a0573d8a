//! The journal of a transfer, by which a run goes on after an earlier one was killed.
//!
//! A file of lines at the destination, `.forebay-stage-ID.journal`. Lines are appended, and only `t` and
//! `x` are synced by themselves:
//!
//! - `v1 FINGERPRINT`: begins a run of this source and destination; lines before a run of another
//!   are void
//! - `f KEY SOURCE DESTINATION`: this version of the source is about to get its name as this file
//! - `n KEY NAME.`: the file of the `f` line before lacks this extended attribute of its source; in
//!   hexadecimal, and a point at the end
//! - `t KEY SOURCE NONCE`: this version of the source is about to get a new temporary file for its
//!   pieces, which has the nonce in its name; lines about an earlier one are void
//! - `p KEY NONCE PIECE`: this piece of that temporary file is on the medium
//! - `d KEY`: this directory was made by the transfer
//! - `x INODE`: this directory is about to take the place of another
//!
//! A line is believed only together with the state of the file system, so a missing line costs a copy
//! and an early line costs nothing. A torn line is ignored, and so are pieces that an earlier version
//! has written, `p KEY SOURCE INODE PIECE`: an inode number is given again.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::ffi::{CString, OsString};
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use forebay_base::lock::{Mutex, MutexGuard, Rank};
use rustix::fs::{self, AtFlags, OFlags, Stat};
use rustix::io::Errno;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::beneath;

/// Files beyond this number are not remembered, only compared: about 200 MB of memory.
const FILES_MAX: usize = 4_000_000;

pub const PREFIX: &str = ".forebay-stage-";

/// The hash of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(u128);

impl Key {
    pub fn of(path: &Path) -> Key {
        Key(xxh3_128(path.as_os_str().as_bytes()))
    }
}

/// The hash of a file's state; two states that differ in anything differ in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version(u64);

impl Version {
    /// The version of a source: every change of the file changes it.
    pub fn of_source(stat: &Stat) -> Version {
        let parts = [
            stat.st_size,
            stat.st_mtime,
            stat.st_mtime_nsec as i64,
            stat.st_ctime,
            stat.st_ctime_nsec as i64,
            stat.st_ino as i64,
        ];
        Version::hashed(&parts)
    }

    /// The version of a destination: a rename does not change it.
    pub fn of_destination(stat: &Stat) -> Version {
        Version::of_content(stat)
    }

    /// The version of a file's content, whatever names the file has.
    pub fn of_content(stat: &Stat) -> Version {
        Version::hashed(&[stat.st_size, stat.st_mtime, stat.st_mtime_nsec as i64])
    }

    fn hashed(parts: &[i64]) -> Version {
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.to_le_bytes()).collect();
        Version(xxh3_64(&bytes))
    }
}

/// Distinguishes a temporary file from all earlier ones of the same file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nonce(u64);

impl Nonce {
    pub fn new() -> Nonce {
        Nonce(RandomState::new().build_hasher().finish())
    }
}

/// The journal's lines about an unfinished large file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    pub source: Version,
    pub nonce: Nonce,
    pub pieces: HashSet<u64>,
}

#[derive(Default)]
struct Known {
    files: HashMap<Key, (Version, Version)>,
    lost: HashMap<Key, Vec<CString>>,
    begun: HashMap<Key, Begun>,
    dirs: HashSet<Key>,
    exchanged: Option<u64>,
}

pub struct Journal {
    known: Known,
    file: Mutex<File>,
}

pub fn name(id: &str) -> OsString {
    format!("{PREFIX}{id}.journal").into()
}

/// The name of a tree that is not yet in its place, or no longer.
pub fn tree_name(id: &str) -> OsString {
    format!("{PREFIX}{id}.tree").into()
}

/// The name of an old tree for the moment between two renames.
pub fn old_name(id: &str) -> OsString {
    format!("{PREFIX}{id}.old").into()
}

/// The name of a temporary file: the same in every run, so that a later run finds it.
pub fn temp_name(id: &str, key: Key) -> OsString {
    format!("{PREFIX}{id}-{:032x}", key.0).into()
}

/// The name of a temporary file that is copied in pieces: no earlier file had it.
pub fn pieces_name(id: &str, key: Key, nonce: Nonce) -> OsString {
    format!("{PREFIX}{id}-{:032x}.{:016x}", key.0, nonce.0).into()
}

/// Whether a name is that of a temporary file or tree of this transfer.
pub fn is_of(id: &str, name: &[u8]) -> bool {
    let rest = name.strip_prefix(PREFIX.as_bytes()).and_then(|n| n.strip_prefix(id.as_bytes()));
    rest.is_some_and(|rest| {
        let is_hex = |text: &[u8], len| text.len() == len && text.iter().all(u8::is_ascii_hexdigit);
        let temp = rest.strip_prefix(b"-").is_some_and(|rest| match rest.split_at_checked(32) {
            Some((key, b"")) => is_hex(key, 32),
            Some((key, [b'.', nonce @ ..])) => is_hex(key, 32) && is_hex(nonce, 16),
            _ => false,
        });
        temp || matches!(rest, b".journal" | b".tree" | b".old")
    })
}

impl Journal {
    pub fn open(dir: &impl AsFd, id: &str, fingerprint: u64) -> rustix::io::Result<Journal> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE;
        let fd = beneath::open_name(dir, &name(id), flags)?;
        let stat = fs::fstat(&fd)?;
        let ours = stat.st_uid == rustix::process::geteuid().as_raw();
        if !ours || fs::FileType::from_raw_mode(stat.st_mode) != fs::FileType::RegularFile {
            return Err(Errno::EXIST);
        }
        let mut file = File::from(fd);
        let known = read(&file, fingerprint);
        // An empty line first: a torn line must not swallow this one.
        let line = format!("\nv1 {fingerprint:016x}\n");
        file.write_all(line.as_bytes()).map_err(errno)?;
        Ok(Journal { known, file: Mutex::new(Rank::Durable, file) })
    }

    pub fn remove(&self, dir: &impl AsFd, id: &str) -> rustix::io::Result<()> {
        match fs::unlinkat(dir, name(id), AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    pub fn published(&self, key: Key) -> Option<(Version, Version)> {
        self.known.files.get(&key).copied()
    }

    /// The extended attributes that a published file lacks.
    pub fn lost(&self, key: Key) -> &[CString] {
        self.known.lost.get(&key).map_or(&[], |lost| lost)
    }

    pub fn begun(&self, key: Key) -> Option<&Begun> {
        self.known.begun.get(&key)
    }

    pub fn made_dir(&self, key: Key) -> bool {
        self.known.dirs.contains(&key)
    }

    pub fn exchanged(&self) -> Option<u64> {
        self.known.exchanged
    }

    /// Called before files get their names.
    pub fn publish<'a>(
        &self,
        files: impl Iterator<Item = (Key, Version, Version, &'a [CString])>,
    ) -> rustix::io::Result<()> {
        let mut lines = String::new();
        for (Key(key), src, dst, lost) in files {
            lines += &format!("f {key:032x} {:016x} {:016x}\n", src.0, dst.0);
            for name in lost {
                lines += &format!("n {key:032x} {}.\n", hex(name.to_bytes()));
            }
        }
        self.append(&lines)
    }

    /// Called before a temporary file for pieces is made.
    pub fn begin(&self, key: Key, src: Version, nonce: Nonce) -> rustix::io::Result<()> {
        self.append(&format!("t {:032x} {:016x} {:016x}\n", key.0, src.0, nonce.0))?;
        crate::sync::file(&*self.file())
    }

    /// Called after a piece was synced.
    pub fn piece(&self, key: Key, nonce: Nonce, piece: u64) -> rustix::io::Result<()> {
        self.append(&format!("p {:032x} {:016x} {piece:x}\n", key.0, nonce.0))
    }

    /// Called before a directory is made.
    pub fn dir(&self, key: Key) -> rustix::io::Result<()> {
        self.append(&format!("d {:032x}\n", key.0))
    }

    /// Called before a new tree takes the place of an old one.
    pub fn exchange(&self, inode: u64) -> rustix::io::Result<()> {
        self.append(&format!("x {inode:x}\n"))?;
        crate::sync::file(&*self.file())
    }

    fn append(&self, lines: &str) -> rustix::io::Result<()> {
        self.file().write_all(lines.as_bytes()).map_err(errno)
    }

    #[track_caller]
    fn file(&self) -> MutexGuard<'_, File> {
        self.file.lock()
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

fn read(file: &File, fingerprint: u64) -> Known {
    let mut known = Known::default();
    // A part that cannot be read counts as not written.
    for line in BufReader::new(file).split(b'\n').map_while(std::io::Result::ok) {
        let Ok(line) = std::str::from_utf8(&line) else { continue };
        let words: Vec<&str> = line.split(' ').collect();
        if let ["v1", other] = words[..] {
            if hex64(other) != Some(fingerprint) {
                known = Known::default();
            }
        } else {
            known.learn(&words);
        }
    }
    known
}

impl Known {
    /// `None` for a line that is torn or of a later version.
    fn learn(&mut self, words: &[&str]) -> Option<()> {
        match *words {
            ["f", key, src, dst] if self.files.len() < FILES_MAX => {
                let versions = (Version(hex64(src)?), Version(hex64(dst)?));
                let key = hex_key(key)?;
                self.files.insert(key, versions);
                self.lost.remove(&key);
            }
            ["n", key, name] if self.lost.len() < FILES_MAX => {
                let name = CString::new(from_hex(name.strip_suffix('.')?)?).ok()?;
                self.lost.entry(hex_key(key)?).or_default().push(name);
            }
            ["t", key, src, nonce] => {
                let (source, nonce) = (Version(hex64(src)?), Nonce(hex64(nonce)?));
                self.begun.insert(hex_key(key)?, Begun { source, nonce, pieces: HashSet::new() });
            }
            ["p", key, nonce, piece] => {
                let (nonce, piece) = (Nonce(hex64(nonce)?), u64::from_str_radix(piece, 16).ok()?);
                let begun = self.begun.get_mut(&hex_key(key)?)?;
                if begun.nonce == nonce {
                    begun.pieces.insert(piece);
                }
            }
            ["d", key] => _ = self.dirs.insert(hex_key(key)?),
            ["x", inode] => self.exchanged = Some(u64::from_str_radix(inode, 16).ok()?),
            _ => {}
        }
        Some(())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2).map(std::str::from_utf8);
    digits.map(|digits| u8::from_str_radix(digits.ok()?, 16).ok()).collect()
}

/// Reads a number of fixed width, so that a torn number is not read as another.
fn hex64(text: &str) -> Option<u64> {
    (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok())?
}

fn hex_key(text: &str) -> Option<Key> {
    (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok().map(Key))?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir() -> (tempfile::TempDir, std::os::fd::OwnedFd) {
        let dir = tempfile::tempdir().unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let fd = fs::open(dir.path(), flags, fs::Mode::empty()).unwrap();
        (dir, fd)
    }

    #[test]
    fn what_was_said_is_known_to_the_next_run_and_void_for_another_transfer() {
        let (_keep, dir) = dir();
        let (a, b) = (Key::of(Path::new("a")), Key::of(Path::new("b")));
        let first = Journal::open(&dir, "t", 7).unwrap();
        let lost = [c"user.a name".into()];
        first.publish([(a, Version(1), Version(2), &lost[..])].into_iter()).unwrap();
        first.begin(b, Version(3), Nonce(4)).unwrap();
        first.piece(b, Nonce(4), 0).unwrap();
        first.piece(b, Nonce(4), 5).unwrap();
        first.dir(a).unwrap();
        let next = Journal::open(&dir, "t", 7).unwrap();
        assert_eq!(next.published(a), Some((Version(1), Version(2))));
        assert_eq!((next.lost(a), next.lost(b)), (&lost[..], &[][..]));
        next.publish([(a, Version(3), Version(2), &[][..])].into_iter()).unwrap();
        let next = Journal::open(&dir, "t", 7).unwrap();
        assert!(next.lost(a).is_empty(), "it is another file by now");
        assert_eq!(next.begun(b).unwrap().pieces, HashSet::from([0, 5]));
        assert!(next.made_dir(a) && !next.made_dir(b) && next.published(b).is_none());
        let other = Journal::open(&dir, "t", 8).unwrap();
        assert!(other.published(a).is_none() && other.begun(b).is_none());
    }

    #[test]
    fn a_new_temporary_file_has_no_pieces_of_an_earlier_one() {
        let (_keep, dir) = dir();
        let key = Key::of(Path::new("a"));
        let journal = Journal::open(&dir, "t", 7).unwrap();
        journal.begin(key, Version(3), Nonce(4)).unwrap();
        journal.piece(key, Nonce(4), 0).unwrap();
        journal.begin(key, Version(3), Nonce(5)).unwrap();
        let pieces = || Journal::open(&dir, "t", 7).unwrap().begun(key).unwrap().pieces.clone();
        assert_eq!(pieces(), HashSet::new());
        journal.piece(key, Nonce(5), 1).unwrap();
        journal.piece(key, Nonce(4), 2).unwrap();
        assert_eq!(pieces(), HashSet::from([1]));
    }

    #[test]
    fn pieces_that_are_told_by_inode_do_not_count() {
        let (_keep, dir) = dir();
        let key = Key::of(Path::new("a"));
        let journal = Journal::open(&dir, "t", 7).unwrap();
        journal.append(&format!("p {:032x} {:016x} c 0\n", key.0, 3)).unwrap();
        assert!(Journal::open(&dir, "t", 7).unwrap().begun(key).is_none());
    }

    #[test]
    fn a_torn_line_is_passed_over() {
        let (keep, dir) = dir();
        let journal = Journal::open(&dir, "t", 7).unwrap();
        let (a, b) = (Key::of(Path::new("a")), Key::of(Path::new("b")));
        for key in [a, b] {
            journal.publish([(key, Version(1), Version(2), &[][..])].into_iter()).unwrap();
        }
        let path = keep.path().join(name("t"));
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 3]).unwrap();
        let next = Journal::open(&dir, "t", 7).unwrap();
        assert!(next.published(a).is_some() && next.published(b).is_none());
        next.dir(b).unwrap();
        assert!(Journal::open(&dir, "t", 7).unwrap().made_dir(b));
    }

    #[test]
    fn names_of_other_transfers_are_not_ours() {
        let key = Key::of(Path::new("a"));
        assert!(is_of("t-1", temp_name("t-1", key).as_bytes()));
        let pieces = pieces_name("t-1", key, Nonce::new());
        assert!(is_of("t-1", pieces.as_bytes()) && !is_of("t", pieces.as_bytes()));
        assert!(is_of("t-1", name("t-1").as_bytes()) && is_of("t-1", tree_name("t-1").as_bytes()));
        assert!(!is_of("t-1", temp_name("t-12", key).as_bytes()));
        assert!(!is_of("t", temp_name("t-1", key).as_bytes()));
        assert!(!is_of("t", b"t.journal"));
    }
}
