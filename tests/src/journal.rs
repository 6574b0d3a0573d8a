//! The journal of a writer, op by op, in a place that the crash under test cannot reach.
//!
//! A journal is a text file with one line when an operation begins (`B create f1`) and one when it
//! returned (`E`). A writer has one operation in flight at most, so a crash leaves at most one `B`
//! without its `E`. No other program touches the writer's directory: its contents follow from the
//! journal.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::rng::fill;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Create(String),
    /// Writes the bytes `fill(key)` at the offset.
    Write {
        name: String,
        offset: u64,
        len: u64,
        key: u64,
    },
    Truncate(String, u64),
    Rename(String, String),
    /// Another name; only [`crate::names`] can judge a file with several names.
    Link(String, String),
    Unlink(String),
    Fsync(String),
    /// The file holds the bytes of a side file: this records the outcome of an interrupted operation
    /// once it was looked at.
    Load(String, PathBuf),
}

impl Op {
    fn line(&self) -> String {
        match self {
            Op::Create(name) => format!("create {name}"),
            Op::Write { name, offset, len, key } => format!("write {name} {offset} {len} {key}"),
            Op::Truncate(name, len) => format!("truncate {name} {len}"),
            Op::Rename(from, to) => format!("rename {from} {to}"),
            Op::Link(from, to) => format!("link {from} {to}"),
            Op::Unlink(name) => format!("unlink {name}"),
            Op::Fsync(name) => format!("fsync {name}"),
            Op::Load(name, side) => format!("load {name} {}", side.display()),
        }
    }

    fn parse(line: &str) -> Op {
        let words: Vec<&str> = line.split(' ').collect();
        let name = words[1].to_string();
        let number = |i: usize| words[i].parse::<u64>().expect("a number in the journal");
        match words[0] {
            "create" => Op::Create(name),
            "write" => Op::Write { name, offset: number(2), len: number(3), key: number(4) },
            "truncate" => Op::Truncate(name, number(2)),
            "rename" => Op::Rename(name, words[2].into()),
            "link" => Op::Link(name, words[2].into()),
            "unlink" => Op::Unlink(name),
            "fsync" => Op::Fsync(name),
            "load" => Op::Load(name, words[2].into()),
            other => panic!("unknown operation {other} in a journal"),
        }
    }

    fn names(&self) -> Vec<&str> {
        match self {
            Op::Rename(from, to) | Op::Link(from, to) => vec![from, to],
            Op::Create(name) | Op::Truncate(name, _) | Op::Unlink(name) => vec![name],
            Op::Fsync(name) | Op::Load(name, _) | Op::Write { name, .. } => vec![name],
        }
    }
}

/// The bytes that a write puts into a file.
pub fn written(offset: u64, len: u64, key: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    fill(&mut bytes, key, offset);
    bytes
}

/// The writing side.
pub struct Journal(File);

impl Journal {
    pub fn append(path: &Path) -> Journal {
        Journal(File::options().create(true).append(true).open(path).expect("journal"))
    }

    /// Writes down that `op` begins, runs it, and writes down that it returned.
    pub fn record<T>(&mut self, op: &Op, run: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.line(&format!("B {}", op.line()));
        let value = run()?;
        self.line("E");
        Ok(value)
    }

    /// Records an operation that is done already.
    pub fn note(&mut self, op: &Op) {
        self.line(&format!("B {}\nE", op.line()));
    }

    fn line(&mut self, line: &str) {
        // One write call, so that a killed writer leaves whole lines.
        self.0.write_all(format!("{line}\n").as_bytes()).expect("journal");
    }
}

/// The places where zeros may stand for unsynced bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zeros {
    Never,
    /// Anywhere beyond the end of the synced bytes: a plain ext4, too, may commit the size of an
    /// append before it commits its bytes.
    BeyondSynced,
}

/// Files by name, as a sequence of operations leaves them.
pub type Files = BTreeMap<String, Vec<u8>>;

pub(crate) fn apply(files: &mut Files, op: &Op) {
    match op {
        Op::Create(name) => drop(files.insert(name.clone(), Vec::new())),
        Op::Write { name, offset, len, key } => {
            let file = files.get_mut(name).expect("written files exist");
            let end = (offset + len) as usize;
            file.resize(file.len().max(end), 0);
            fill(&mut file[*offset as usize..end], *key, *offset);
        }
        Op::Truncate(name, len) => {
            files.get_mut(name).expect("truncated files exist").resize(*len as usize, 0);
        }
        Op::Rename(from, to) => {
            let file = files.remove(from).expect("renamed files exist");
            files.insert(to.clone(), file);
        }
        Op::Link(from, to) => {
            let bytes = files.get(from).expect("linked files exist").clone();
            files.insert(to.clone(), bytes);
        }
        Op::Unlink(name) => drop(files.remove(name)),
        Op::Fsync(_) => {}
        Op::Load(name, side) => {
            files.insert(name.clone(), std::fs::read(side).expect("side file"));
        }
    }
}

/// A journal read back.
pub struct History {
    pub acked: Vec<Op>,
    pub in_flight: Option<Op>,
}

impl History {
    pub fn read(path: &Path) -> History {
        History::parse(&std::fs::read_to_string(path).unwrap_or_default())
    }

    /// The first `len` bytes of a journal only.
    pub fn read_prefix(path: &Path, len: u64) -> History {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        History::parse(&text[..len as usize])
    }

    fn parse(text: &str) -> History {
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        let mut history = History { acked: Vec::new(), in_flight: None };
        for line in whole.lines() {
            match line.strip_prefix("B ") {
                Some(op) => history.in_flight = Some(Op::parse(op)),
                None => history.acked.extend(history.in_flight.take()),
            }
        }
        history
    }

    pub fn files(&self) -> Files {
        let mut files = Files::new();
        for op in &self.acked {
            apply(&mut files, op);
        }
        files
    }

    /// The number of acknowledged writes and of synced files: proof that there was load.
    pub fn writes(&self) -> usize {
        self.acked.iter().filter(|op| matches!(op, Op::Write { .. })).count()
    }

    pub fn syncs(&self) -> usize {
        self.acked.iter().filter(|op| matches!(op, Op::Fsync(_))).count()
    }

    /// Compares a directory with the acknowledged operations; the operation in flight may have
    /// happened, not happened, or (a write) happened in part. Returns the problems.
    pub fn check(&self, dir: &Path) -> Vec<String> {
        let before = self.files();
        let mut after = before.clone();
        if let Some(op) = &self.in_flight {
            apply(&mut after, op);
        }
        let found = read_dir(dir);
        let touched: BTreeSet<&str> = self.in_flight.iter().flat_map(|op| op.names()).collect();
        let mut wrong = Vec::new();
        let names: BTreeSet<&String> =
            before.keys().chain(after.keys()).chain(found.keys()).collect();
        for name in names {
            let (old, new, now) = (before.get(name), after.get(name), found.get(name));
            let fits = now == old
                || touched.contains(name.as_str()) && (now == new || mixed(old, new, now));
            if !fits {
                wrong.push(format!("{name}: {}", explain(old, now)));
            }
        }
        wrong
    }

    /// Records the outcome of the operation in flight, as found in `dir`, in the journal; contents go
    /// into files beside the journal.
    pub fn settle(&self, dir: &Path, journal: &Path) {
        let Some(op) = &self.in_flight else { return };
        let found = read_dir(dir);
        let mut journal_file = Journal::append(journal);
        // Ends the interrupted line, so that the loads below state its outcome.
        journal_file.line("E");
        for (i, name) in op.names().into_iter().enumerate() {
            let mut side = journal.to_path_buf();
            side.as_mut_os_string().push(format!("-{}-{i}", self.acked.len()));
            match found.get(name) {
                Some(bytes) => {
                    std::fs::write(&side, bytes).expect("side file");
                    journal_file.note(&Op::Load(name.into(), side));
                }
                None => journal_file.note(&Op::Unlink(name.into())),
            }
        }
    }

    /// After a power cut: bytes synced by the end of `self` must be there; bytes issued later, up to
    /// the end of `until`, may be there or not, byte by byte; no others may. Knows creates, loads,
    /// writes and fsyncs only. Returns the problems.
    pub fn check_synced(&self, until: &History, dir: &Path, zeros: Zeros) -> Vec<String> {
        let issued: Vec<&Op> = until.acked.iter().chain(&until.in_flight).collect();
        let mut wrong = Vec::new();
        let names: BTreeSet<&str> = issued.iter().flat_map(|op| op.names()).collect();
        let found = read_dir(dir);
        for name in &names {
            let of_name = |op: &&Op| op.names()[0] == *name;
            let synced_to = self
                .acked
                .iter()
                .rposition(|op| matches!(op, Op::Fsync(n) | Op::Load(n, _) if n == name));
            let split = synced_to.map_or(0, |at| at + 1);
            let mut files = Files::new();
            for op in issued[..split].iter().filter(|op| of_name(op)) {
                apply(&mut files, op);
            }
            let later: Vec<&Op> =
                issued[split..].iter().copied().filter(|op| of_name(op)).collect();
            let base = files.get(*name).map(Vec::as_slice);
            let problem = after_cut(base, &later, found.get(*name).map(Vec::as_slice), zeros);
            wrong.extend(problem.map(|p| format!("{name}: {p}")));
        }
        let foreign = found.keys().filter(|name| !names.contains(name.as_str()));
        wrong.extend(foreign.map(|name| format!("{name}: nobody created it")));
        wrong
    }
}

/// Whether every byte is the old or the new one, as an interrupted write may leave it.
fn mixed(old: Option<&Vec<u8>>, new: Option<&Vec<u8>>, now: Option<&Vec<u8>>) -> bool {
    let (Some(old), Some(new), Some(now)) = (old, new, now) else { return false };
    let long = old.len().max(new.len());
    let short = old.len().min(new.len());
    (short..=long).contains(&now.len())
        && now
            .iter()
            .enumerate()
            .all(|(i, byte)| old.get(i) == Some(byte) || new.get(i) == Some(byte))
}

fn explain(old: Option<&Vec<u8>>, now: Option<&Vec<u8>>) -> String {
    match (old, now) {
        (None, Some(_)) => "is there though it was never created or was removed".into(),
        (Some(old), None) => format!("is gone; it had {} acknowledged bytes", old.len()),
        (Some(old), Some(now)) => {
            let at = old.iter().zip(now).position(|(a, b)| a != b);
            let bad = old.iter().zip(now).filter(|(a, b)| a != b).count();
            let zeros = old.iter().zip(now).filter(|(a, b)| a != b && **b == 0).count();
            format!(
                "size {} where {} was acknowledged; {bad} bytes differ ({zeros} are zero), first at {at:?}",
                now.len(),
                old.len()
            )
        }
        (None, None) => "not there".into(),
    }
}

pub(crate) fn after_cut(
    base: Option<&[u8]>,
    later: &[&Op],
    found: Option<&[u8]>,
    zeros: Zeros,
) -> Option<String> {
    let Some(found) = found else {
        return base.map(|b| format!("is gone; {} bytes of it were synced", b.len()));
    };
    let base = base.unwrap_or_default();
    if found.len() < base.len() {
        return Some(format!("{} bytes, but {} were synced", found.len(), base.len()));
    }
    let mut allowed = vec![false; found.len()];
    for (ok, (a, b)) in allowed.iter_mut().zip(base.iter().zip(found)) {
        *ok = a == b;
    }
    for op in later {
        let Op::Write { offset, len, key, .. } = op else { continue };
        let bytes = written(*offset, *len, *key);
        let start = (*offset as usize).min(found.len());
        let end = ((offset + len) as usize).min(found.len());
        for at in start..end {
            allowed[at] |= found[at] == bytes[at - *offset as usize];
        }
    }
    let zeros_end = match zeros {
        Zeros::Never => base.len(),
        Zeros::BeyondSynced => found.len(),
    };
    for at in base.len()..zeros_end {
        allowed[at] |= found[at] == 0;
    }
    let bad = allowed.iter().filter(|ok| !**ok).count();
    let at = allowed.iter().position(|ok| !ok)?;
    let zeros = allowed.iter().zip(found).filter(|(ok, byte)| !**ok && **byte == 0).count();
    let synced = base.len();
    Some(format!(
        "{bad} bytes that nobody wrote there ({zeros} zeros), first at {at}; size {}, synced size {synced}",
        found.len()
    ))
}

/// All files of one directory with their bytes.
pub(crate) fn read_dir(dir: &Path) -> Files {
    let list = match std::fs::read_dir(dir) {
        // A lost directory has lost its files: the callers name them.
        Err(error) if is_lost(&error) => return Files::new(),
        other => other.unwrap_or_else(|e| panic!("{}: {e}", dir.display())),
    };
    let read = |entry: io::Result<std::fs::DirEntry>| {
        let entry = entry.expect("directory entry");
        let name = entry.file_name().into_string().expect("plain names");
        match std::fs::read(entry.path()) {
            Err(error) if is_lost(&error) => None,
            other => {
                Some((name, other.unwrap_or_else(|e| panic!("{}: {e}", entry.path().display()))))
            }
        }
    };
    list.filter(|entry| !matches!(entry, Err(error) if is_lost(error))).filter_map(read).collect()
}

/// Whether the file is missing, or its file system is damaged, as one that syncs without barriers may
/// be.
fn is_lost(error: &io::Error) -> bool {
    let damaged = [libc::EBADMSG, libc::EUCLEAN];
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error().is_some_and(|errno| damaged.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(name: &str, offset: u64, len: u64, key: u64) -> Op {
        Op::Write { name: name.into(), offset, len, key }
    }

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("fbt-journal-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// The checker must be able to fail: a lost, a zeroed and a foreign byte, each after a kill.
    #[test]
    fn a_lost_acknowledged_byte_is_noticed() {
        let dir = scratch("lost");
        let acked = vec![Op::Create("a".into()), write("a", 0, 100, 1)];
        let history = History { acked, in_flight: Some(write("a", 50, 100, 2)) };
        let mut bytes = written(0, 100, 1);
        std::fs::write(dir.join("a"), &bytes).unwrap();
        assert!(history.check(&dir).is_empty(), "the write in flight may be missing");
        bytes[60..70].copy_from_slice(&written(50, 100, 2)[10..20]);
        std::fs::write(dir.join("a"), &bytes).unwrap();
        assert!(history.check(&dir).is_empty(), "or be there in part");
        bytes[5] = 0;
        std::fs::write(dir.join("a"), &bytes).unwrap();
        assert_eq!(history.check(&dir).len(), 1, "but an acknowledged byte may not change");
        std::fs::remove_file(dir.join("a")).unwrap();
        assert_eq!(history.check(&dir).len(), 1, "nor may the file go");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn after_a_power_cut_only_unsynced_bytes_may_be_missing() {
        let dir = scratch("cut");
        let synced = vec![Op::Create("a".into()), write("a", 0, 100, 1), Op::Fsync("a".into())];
        let at_cut = History { acked: synced.clone(), in_flight: None };
        let mut later = synced;
        later.push(write("a", 50, 100, 2));
        let until = History { acked: later, in_flight: None };
        let mut bytes = written(0, 100, 1);
        let check = |bytes: &[u8]| {
            std::fs::write(dir.join("a"), bytes).unwrap();
            at_cut.check_synced(&until, &dir, Zeros::Never).len()
        };
        assert_eq!(check(&bytes), 0);
        assert_eq!(check(&bytes[..99]), 1, "a synced byte is missing");
        bytes.extend([0; 20]);
        assert_eq!(check(&bytes), 1, "zeros for unsynced bytes");
        bytes[100..120].copy_from_slice(&written(100, 20, 2));
        assert_eq!(check(&bytes), 0);
        bytes[3] ^= 0x40;
        assert_eq!(check(&bytes), 1, "a foreign byte");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
