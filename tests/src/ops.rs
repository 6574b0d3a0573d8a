//! Random operations, the same ones on two directories, with results compared one by one.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use crate::rng::Rng;
use crate::sys;

const SLOTS: usize = 6;
const SIZE_MAX: u64 = 600 << 10;

/// Two directories that must stay equal.
pub struct Pair {
    plain: Side,
    mount: Side,
    rng: Rng,
    log: Vec<String>,
    /// Names of operations that succeeded at least once: proof that the sequence is effective.
    pub succeeded: BTreeSet<&'static str>,
    pub failed_alike: usize,
}

struct Side {
    root: PathBuf,
    open: [Option<File>; SLOTS],
}

/// One operation with its arguments, drawn once and run twice.
#[derive(Debug, Clone)]
enum Op {
    Open { slot: usize, name: String, flags: i32, mode: u32 },
    Close(usize),
    Pwrite { slot: usize, offset: u64, len: usize, key: u64 },
    Write { slot: usize, len: usize, key: u64 },
    Pread { slot: usize, offset: u64, len: usize },
    Ftruncate { slot: usize, len: u64 },
    Truncate { name: String, len: u64 },
    Fallocate { slot: usize, mode: i32, offset: u64, len: u64 },
    Fsync(usize),
    Fstat(usize),
    MapWrite { slot: usize, offset: u64, len: usize, key: u64 },
    CopyRange { from: usize, to: usize, offset: u64, to_offset: u64, len: usize },
    Stat(String),
    ReadFile(String),
    List(String),
    Mkdir { name: String, mode: u32 },
    Rmdir(String),
    Unlink(String),
    Rename { from: String, to: String, flags: u32 },
    Link { from: String, to: String },
    Symlink { target: String, name: String },
    ReadLink(String),
    Chmod { name: String, mode: u32 },
    Chown { name: String, uid: u32, gid: u32 },
    Utimens { name: String, time: (i64, i64) },
    SetXattr { name: String, key: String, len: usize },
    GetXattr { name: String, key: String },
    RemoveXattr { name: String, key: String },
    ListXattr(String),
}

impl Pair {
    pub fn new(plain: &Path, mount: &Path, seed: u64) -> Pair {
        let side = |root: &Path| Side { root: root.into(), open: Default::default() };
        Pair {
            plain: side(plain),
            mount: side(mount),
            rng: Rng::new(seed),
            log: Vec::new(),
            succeeded: BTreeSet::new(),
            failed_alike: 0,
        }
    }

    /// Runs one operation on both sides and compares results.
    #[track_caller]
    pub fn step(&mut self) {
        let op = draw(&mut self.rng);
        self.log.push(format!("{op:?}"));
        let (want, got) = (self.plain.run(&op), self.mount.run(&op));
        if want != got {
            let from = self.log.len().saturating_sub(40);
            panic!(
                "step {}: {op:?}\n  plain: {want:?}\n  mount: {got:?}\nlast steps:\n  {}",
                self.log.len(),
                self.log[from..].join("\n  ")
            );
        }
        match want {
            Ok(_) => drop(self.succeeded.insert(kind(&op))),
            Err(_) => self.failed_alike += 1,
        }
    }

    pub fn note(&mut self, what: &str) {
        self.log.push(format!("-- {what}"));
    }

    /// Closes all descriptors, as before an unmount.
    pub fn close_all(&mut self) {
        self.log.push("-- close all".into());
        self.plain.open = Default::default();
        self.mount.open = Default::default();
    }

    /// Gives every name the same times on both sides, so that times can be compared too.
    pub fn stamp(&mut self) {
        for root in [&self.plain.root, &self.mount.root] {
            let mut names = walk(root);
            // Children first: setting times inside changes no parent's time, but listing order must
            // agree.
            names.sort_by(|a, b| b.cmp(a));
            for (i, name) in names.iter().enumerate() {
                let time = (1_500_000_000 + i as i64, 123_456_789 + i as i64);
                sys::utimens(&root.join(name), time, time).expect("utimens");
            }
        }
    }
}

fn kind(op: &Op) -> &'static str {
    // The name of the variant, without a table that must be kept in step.
    let text = format!("{op:?}");
    let name: String = text.chars().take_while(|c| c.is_alphanumeric()).collect();
    match name.as_str() {
        "Open" => "open",
        "Pwrite" => "pwrite",
        "MapWrite" => "mmap",
        "Fallocate" => "fallocate",
        "CopyRange" => "copy_file_range",
        "Rename" => "rename",
        "Link" => "link",
        "SetXattr" => "setxattr",
        "Truncate" | "Ftruncate" => "truncate",
        _ => "other",
    }
}

/// A name out of few, so that operations meet each other.
fn draw_name(rng: &mut Rng) -> String {
    let leaf = *rng.pick(&["f0", "f1", "f2", "f3", "f4", "s0", "x0"]);
    match rng.below(10) {
        0..4 => leaf.into(),
        4..7 => format!("d0/{leaf}"),
        7..9 => format!("d1/{leaf}"),
        _ => format!("d0/sub/{leaf}"),
    }
}

fn draw_dir(rng: &mut Rng) -> String {
    (*rng.pick(&["d0", "d1", "d2", "d0/sub", "d1/sub", "."])).into()
}

fn draw_any(rng: &mut Rng) -> String {
    if rng.one_in(5) { draw_dir(rng) } else { draw_name(rng) }
}

fn draw_flags(rng: &mut Rng) -> i32 {
    let mut flags = *rng.pick(&[libc::O_RDONLY, libc::O_RDWR, libc::O_RDWR, libc::O_RDWR]);
    if !rng.one_in(4) {
        flags |= libc::O_CREAT;
    } else if rng.one_in(3) {
        flags = libc::O_WRONLY;
    }
    for (flag, odds) in [(libc::O_TRUNC, 6), (libc::O_APPEND, 6), (libc::O_EXCL, 12)] {
        if rng.one_in(odds) {
            flags |= flag;
        }
    }
    if rng.one_in(12) { flags | libc::O_NOFOLLOW } else { flags }
}

fn draw(rng: &mut Rng) -> Op {
    let slot = rng.below(SLOTS as u64) as usize;
    let offset = if rng.one_in(3) { rng.below(SIZE_MAX) & !4095 } else { rng.below(SIZE_MAX) };
    let len = rng.range(1, 40_000) as usize;
    let key = rng.word();
    let name = draw_name(rng);
    match rng.below(100) {
        0..13 => {
            Op::Open { slot, name, flags: draw_flags(rng), mode: *rng.pick(&[0o644, 0o600, 0o755]) }
        }
        16..17 => Op::Close(slot),
        17..27 => Op::Pwrite { slot, offset, len, key },
        27..32 => Op::Write { slot, len, key },
        32..43 => Op::Pread { slot, offset, len },
        43..47 => Op::Ftruncate { slot, len: rng.below(SIZE_MAX) },
        47..49 => Op::Truncate { name, len: rng.below(SIZE_MAX) },
        49..53 => draw_fallocate(rng, slot, offset, len as u64),
        53..55 => Op::Fsync(slot),
        55..57 => Op::Fstat(slot),
        57..61 => Op::MapWrite { slot, offset, len, key },
        61..63 => {
            let (to, to_offset) = (rng.below(SLOTS as u64) as usize, rng.below(SIZE_MAX));
            Op::CopyRange { from: slot, to, offset, to_offset, len }
        }
        63..66 => Op::Stat(draw_any(rng)),
        66..70 => Op::ReadFile(name),
        70..72 => Op::List(draw_dir(rng)),
        72..75 => Op::Mkdir { name: draw_dir(rng), mode: *rng.pick(&[0o755, 0o700, 0o2775]) },
        75..76 => Op::Rmdir(draw_any(rng)),
        76..80 => Op::Unlink(draw_any(rng)),
        80..86 => draw_rename(rng),
        86..88 => Op::Link { from: name, to: draw_name(rng) },
        88..90 => Op::Symlink { target: draw_any(rng), name: format!("{}l", draw_name(rng)) },
        90..91 => Op::ReadLink(format!("{}l", draw_name(rng))),
        91..92 => Op::Chmod { name: draw_any(rng), mode: rng.below(0o1000) as u32 | 0o600 },
        92..93 => {
            Op::Chown { name: draw_any(rng), uid: rng.below(3) as u32, gid: rng.below(3) as u32 }
        }
        93..95 => {
            let time = (rng.range(1, 2_000_000_000) as i64, rng.below(1_000_000_000) as i64);
            Op::Utimens { name: draw_any(rng), time }
        }
        95..97 => Op::SetXattr { name: draw_any(rng), key: draw_xattr(rng), len: len / 40 },
        97..98 => Op::GetXattr { name: draw_any(rng), key: draw_xattr(rng) },
        98..99 => Op::RemoveXattr { name: draw_any(rng), key: draw_xattr(rng) },
        _ => Op::ListXattr(draw_any(rng)),
    }
}

fn draw_xattr(rng: &mut Rng) -> String {
    format!("user.{}", rng.pick(&["a", "b", "with.dots"]))
}

fn draw_fallocate(rng: &mut Rng, slot: usize, offset: u64, len: u64) -> Op {
    let mode = *rng.pick(&[0, libc::FALLOC_FL_KEEP_SIZE, sys::PUNCH, sys::PUNCH]);
    Op::Fallocate { slot, mode, offset, len }
}

fn draw_rename(rng: &mut Rng) -> Op {
    let flags = *rng.pick(&[0, 0, 0, 0, libc::RENAME_NOREPLACE, libc::RENAME_EXCHANGE]);
    Op::Rename { from: draw_any(rng), to: draw_any(rng), flags }
}

impl Side {
    /// The result of the operation, in words that are the same on both sides; errors by errno.
    fn run(&mut self, op: &Op) -> Result<String, i32> {
        self.act(op).map_err(|e| e.raw_os_error().unwrap_or(-1))
    }

    fn file(&self, slot: usize) -> io::Result<&File> {
        self.open[slot].as_ref().ok_or(io::Error::from_raw_os_error(libc::EBADF))
    }

    fn act(&mut self, op: &Op) -> io::Result<String> {
        match op {
            Op::Open { .. } | Op::Close(_) | Op::Fsync(_) | Op::Fstat(_) => self.act_handle(op),
            Op::Pwrite { .. } | Op::Write { .. } | Op::Pread { .. } | Op::MapWrite { .. } => {
                self.act_data(op)
            }
            Op::Ftruncate { .. } | Op::Fallocate { .. } | Op::CopyRange { .. } => self.act_data(op),
            Op::SetXattr { .. }
            | Op::GetXattr { .. }
            | Op::RemoveXattr { .. }
            | Op::ListXattr(_) => self.act_xattr(op),
            _ => self.act_name(op),
        }
    }

    fn act_handle(&mut self, op: &Op) -> io::Result<String> {
        match op {
            Op::Open { slot, name, flags, mode } => {
                // The slot is emptied first, so that both sides agree when the open fails.
                self.open[*slot] = None;
                let file = sys::open(&self.root.join(name), *flags, *mode)?;
                let meta = file.metadata()?;
                self.open[*slot] = meta.is_file().then_some(file);
                Ok(format!("size {}", if meta.is_file() { meta.len() } else { 0 }))
            }
            Op::Close(slot) => Ok(format!("{}", self.open[*slot].take().is_some())),
            Op::Fsync(slot) => self.file(*slot)?.sync_all().map(|()| String::new()),
            Op::Fstat(slot) => Ok(describe(&self.file(*slot)?.metadata()?)),
            other => unreachable!("{other:?} is not about handles"),
        }
    }

    fn act_data(&mut self, op: &Op) -> io::Result<String> {
        use io::Write;
        match op {
            Op::Pwrite { slot, offset, len, key } => {
                let n = self.file(*slot)?.write_at(&data(*len, *key), *offset)?;
                Ok(n.to_string())
            }
            Op::Write { slot, len, key } => {
                let mut file = self.file(*slot)?;
                Ok(file.write(&data(*len, *key))?.to_string())
            }
            Op::Pread { slot, offset, len } => {
                let mut buf = vec![0; *len];
                let n = read_fully(self.file(*slot)?, &mut buf, *offset)?;
                Ok(digest(&buf[..n]))
            }
            Op::Ftruncate { slot, len } => self.file(*slot)?.set_len(*len).map(|()| String::new()),
            Op::Fallocate { slot, mode, offset, len } => {
                sys::fallocate(self.file(*slot)?, *mode, *offset, *len).map(|()| String::new())
            }
            Op::MapWrite { slot, offset, len, key } => self.map_write(*slot, *offset, *len, *key),
            Op::CopyRange { from, to, offset, to_offset, len } => {
                // Overlapping ranges of one file are an error by inode; leave them out.
                if from == to {
                    return Err(io::Error::from_raw_os_error(libc::EBADF));
                }
                let n =
                    sys::copy_range(self.file(*from)?, *offset, self.file(*to)?, *to_offset, *len);
                n.map(|n| n.to_string())
            }
            other => unreachable!("{other:?} is not about data"),
        }
    }

    fn map_write(&self, slot: usize, offset: u64, len: usize, key: u64) -> io::Result<String> {
        let file = self.file(slot)?;
        let size = file.metadata()?.len();
        if size == 0 {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        let mut map = sys::Map::shared(file, size as usize, true)?;
        let start = offset.min(size - 1) as usize;
        let end = (start + len).min(size as usize);
        map.bytes()[start..end].copy_from_slice(&data(len, key)[..end - start]);
        map.sync()?;
        Ok(digest(map.bytes()))
    }

    fn act_name(&mut self, op: &Op) -> io::Result<String> {
        let at = |name: &String| self.root.join(name);
        let done = |()| String::new();
        match op {
            Op::Truncate { name, len } => sys::truncate(&at(name), *len as i64).map(done),
            Op::Stat(name) => fs::symlink_metadata(at(name)).map(|meta| describe(&meta)),
            Op::ReadFile(name) => fs::read(at(name)).map(|bytes| digest(&bytes)),
            Op::List(name) => list(&at(name)),
            Op::Mkdir { name, mode } => sys::mkdir(&at(name), *mode).map(done),
            Op::Rmdir(name) => fs::remove_dir(at(name)).map(done),
            Op::Unlink(name) => fs::remove_file(at(name)).map(done),
            Op::Rename { from, to, flags } => sys::rename(&at(from), &at(to), *flags).map(done),
            Op::Link { from, to } => fs::hard_link(at(from), at(to)).map(done),
            Op::Symlink { target, name } => symlink(target, at(name)).map(done),
            Op::ReadLink(name) => fs::read_link(at(name)).map(|path| format!("{path:?}")),
            Op::Chmod { name, mode } => {
                fs::set_permissions(at(name), fs::Permissions::from_mode(*mode)).map(done)
            }
            Op::Chown { name, uid, gid } => chown(at(name), Some(*uid), Some(*gid)).map(done),
            Op::Utimens { name, time } => {
                sys::utimens(&at(name), *time, *time)?;
                Ok(format!("{:?}", sys::mtime(&at(name))))
            }
            other => unreachable!("{other:?} is not about names"),
        }
    }

    fn act_xattr(&mut self, op: &Op) -> io::Result<String> {
        let at = |name: &String| self.root.join(name);
        match op {
            Op::SetXattr { name, key, len } => {
                sys::set_xattr(&at(name), key, &data(*len, 1), 0).map(|()| String::new())
            }
            Op::GetXattr { name, key } => sys::get_xattr(&at(name), key).map(|v| digest(&v)),
            Op::RemoveXattr { name, key } => {
                sys::remove_xattr(&at(name), key).map(|()| String::new())
            }
            Op::ListXattr(name) => sys::list_xattr(&at(name)).map(|names| format!("{names:?}")),
            other => unreachable!("{other:?} is not about attributes"),
        }
    }
}

fn data(len: usize, key: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    crate::rng::fill(&mut bytes, key, 0);
    bytes
}

fn read_fully(file: &File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
}

fn digest(bytes: &[u8]) -> String {
    use std::hash::Hasher;
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(bytes);
    format!("{} bytes {:x}", bytes.len(), hasher.finish())
}

/// The attributes that must be equal on every file system; sizes of directories need not be.
fn describe(meta: &fs::Metadata) -> String {
    let size = if meta.is_dir() { 0 } else { meta.len() };
    format!("{:o} {}:{} links {} size {size}", meta.mode(), meta.uid(), meta.gid(), meta.nlink())
}

fn list(dir: &Path) -> io::Result<String> {
    let mut names: Vec<_> = fs::read_dir(dir)?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<io::Result<_>>()?;
    names.retain(|name| name != ".forebay" && name != "lost+found");
    names.sort();
    Ok(format!("{names:?}"))
}

fn walk(root: &Path) -> Vec<PathBuf> {
    crate::tree::Tree::read(root).entries.into_keys().collect()
}
