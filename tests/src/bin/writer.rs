//! A program under load: works on files of its own directory and records, elsewhere, the acknowledged operations.
//! Ends at the first error (exit 3), which is how it notices a killed daemon; a read of wrong bytes is exit 4.
//!
//! `writer DIR JOURNAL SEED mixed|synced|growing|silent|unsynced [MAX_OPS]`

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::exit;

use forebay_tests::Rng;
use forebay_tests::journal::{Files, History, Journal, Op, written};
use forebay_tests::sys::Map;

const FILE_MAX: u64 = 1 << 20;
const FILES_MAX: usize = 24;
const WRITE_MAX: u64 = 64 << 10;

/// Files that grow by up to this many bytes are logs; several at once.
const APPEND_MAX: u64 = 9000;
const LOGS_MAX: usize = 4;

#[derive(PartialEq)]
enum Mode {
    /// Everything a program does to files.
    Mixed,
    /// Only operations that the power cut test can judge: create, write, append, fsync.
    Synced,
    /// Some files, open all the time, that grow by a little, and are synced often.
    Growing,
    /// As `Synced`; a file that is as long as at its last fsync is synced without a request to its file system's
    /// daemon, if it is open past the daemon: by msync of a mapping, or by each write for itself (RWF_DSYNC).
    Silent,
    /// As `Synced`, with fsyncs claimed and not made: a judge must catch this.
    Unsynced,
}

struct Writer {
    dir: PathBuf,
    journal: Journal,
    rng: Rng,
    mode: Mode,
    files: Files,
    open: HashMap<String, File>,
    /// The lengths of files at their last fsync, and the files that were written since.
    known: HashMap<String, usize>,
    unsynced: HashSet<String>,
    next: u64,
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let mut writer = Writer::new(&args);
    let max = args.get(5).map_or(u64::MAX, |n| n.parse().expect("MAX_OPS"));
    for _ in 0..max {
        if let Err(error) = writer.step() {
            eprintln!("writer {}: ended by {error}", writer.dir.display());
            exit(3);
        }
    }
}

impl Writer {
    fn new(args: &[String]) -> Writer {
        let history = History::read(args[2].as_ref());
        Writer {
            dir: args[1].clone().into(),
            journal: Journal::append(args[2].as_ref()),
            rng: Rng::new(args[3].parse().expect("SEED")),
            mode: match args[4].as_str() {
                "synced" => Mode::Synced,
                "growing" => Mode::Growing,
                "silent" => Mode::Silent,
                "unsynced" => Mode::Unsynced,
                _ => Mode::Mixed,
            },
            files: history.files(),
            open: HashMap::new(),
            known: HashMap::new(),
            unsynced: HashSet::new(),
            next: history.acked.len() as u64,
        }
    }

    fn step(&mut self) -> io::Result<()> {
        if self.files.is_empty() {
            return self.create();
        }
        if self.mode != Mode::Growing && self.rng.one_in(8) {
            let name = self.any();
            self.open.remove(&name);
        }
        let dice = self.rng.below(100);
        match (&self.mode, dice) {
            (Mode::Growing, 0..45) => self.append(),
            (Mode::Growing, 45..86) => self.fsync(),
            (Mode::Growing, 86..90) if self.files.len() < LOGS_MAX => self.create(),
            (Mode::Growing, 86..90) => self.append(),
            (Mode::Growing, 90..98) => self.verify(),
            (_, 0..45) => self.write(),
            (_, 45..60) => self.append(),
            (_, 60..72) => self.fsync(),
            (_, 72..80) => self.verify(),
            (_, 80..86) if self.files.len() < FILES_MAX => self.create(),
            (Mode::Mixed, 86..91) => self.truncate(),
            (Mode::Mixed, 91..96) => self.rename(),
            (Mode::Mixed, 96..100) => self.unlink(),
            _ => self.write(),
        }
    }

    fn any(&mut self) -> String {
        let at = self.rng.below(self.files.len() as u64) as usize;
        self.files.keys().nth(at).expect("there are files").clone()
    }

    fn fresh(&mut self) -> String {
        self.next += 1;
        format!("f{}", self.next)
    }

    fn file(&mut self, name: &str) -> io::Result<&File> {
        if !self.open.contains_key(name) {
            let file = File::options().read(true).write(true).open(self.dir.join(name))?;
            self.open.insert(name.into(), file);
        }
        Ok(&self.open[name])
    }

    fn create(&mut self) -> io::Result<()> {
        let name = self.fresh();
        let path = self.dir.join(&name);
        let open = || File::options().read(true).write(true).create_new(true).open(path);
        let file = self.journal.record(&Op::Create(name.clone()), open)?;
        self.open.insert(name.clone(), file);
        self.files.insert(name, Vec::new());
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        let name = self.any();
        let size = self.files[&name].len() as u64;
        // Never beyond the end: the zeros of a hole could hide lost bytes.
        let offset = self.rng.below(size + 1);
        self.write_at(name, offset)
    }

    fn append(&mut self) -> io::Result<()> {
        let name = self.any();
        let offset = self.files[&name].len() as u64;
        self.write_at(name, offset)
    }

    fn write_at(&mut self, name: String, offset: u64) -> io::Result<()> {
        let len = self.write_len().min(FILE_MAX.saturating_sub(offset));
        if len == 0 {
            return Ok(());
        }
        let key = self.rng.word();
        let bytes = written(offset, len, key);
        let file = self.file(&name)?.try_clone()?;
        let op = Op::Write { name: name.clone(), offset, len, key };
        let end = (offset + len) as usize;
        if self.is_silent(&name, end) && !self.unsynced.contains(&name) && self.rng.one_in(3) {
            self.journal.record(&op, || write_durably(&file, &bytes, offset))?;
            // The sync covers this write alone, and there is no other.
            self.journal.record(&Op::Fsync(name.clone()), || Ok(()))?;
        } else {
            self.unsynced.insert(name.clone());
            self.journal.record(&op, || file.write_all_at(&bytes, offset))?;
        }
        let mine = self.files.get_mut(&name).expect("known");
        mine.resize(mine.len().max(end), 0);
        mine[offset as usize..end].copy_from_slice(&bytes);
        Ok(())
    }

    fn write_len(&mut self) -> u64 {
        match self.mode {
            Mode::Growing if self.rng.one_in(3) => 4096,
            Mode::Growing => self.rng.range(1, APPEND_MAX),
            _ => self.rng.range(1, WRITE_MAX),
        }
    }

    fn fsync(&mut self) -> io::Result<()> {
        let name = self.any();
        let file = self.file(&name)?.try_clone()?;
        let len = self.files[&name].len();
        let is_silent = self.is_silent(&name, len);
        let claim = self.mode == Mode::Unsynced;
        self.journal.record(&Op::Fsync(name.clone()), || match (claim, is_silent && len > 0) {
            (true, _) => Ok(()),
            (false, true) => Map::shared(&file, len, false)?.sync(),
            (false, false) => file.sync_all(),
        })?;
        self.unsynced.remove(&name);
        if !is_silent {
            self.known.insert(name, len);
        }
        Ok(())
    }

    /// Whether a write that ends there is synced silently.
    fn is_silent(&self, name: &str, end: usize) -> bool {
        self.mode == Mode::Silent && self.known.get(name).is_some_and(|len| end <= *len)
    }

    fn truncate(&mut self) -> io::Result<()> {
        let name = self.any();
        let len = self.rng.below(self.files[&name].len() as u64 + WRITE_MAX).min(FILE_MAX);
        let file = self.file(&name)?.try_clone()?;
        self.journal.record(&Op::Truncate(name.clone(), len), || file.set_len(len))?;
        self.files.get_mut(&name).expect("known").resize(len as usize, 0);
        Ok(())
    }

    fn rename(&mut self) -> io::Result<()> {
        let from = self.any();
        let to = if self.rng.one_in(2) { self.any() } else { self.fresh() };
        if from == to {
            return Ok(());
        }
        let (a, b) = (self.dir.join(&from), self.dir.join(&to));
        let op = Op::Rename(from.clone(), to.clone());
        self.journal.record(&op, || std::fs::rename(a, b))?;
        self.open.remove(&to);
        if let Some(file) = self.open.remove(&from) {
            self.open.insert(to.clone(), file);
        }
        let bytes = self.files.remove(&from).expect("known");
        self.files.insert(to, bytes);
        Ok(())
    }

    fn unlink(&mut self) -> io::Result<()> {
        let name = self.any();
        let path = self.dir.join(&name);
        self.journal.record(&Op::Unlink(name.clone()), || std::fs::remove_file(path))?;
        self.open.remove(&name);
        self.files.remove(&name);
        Ok(())
    }

    /// Reads a whole file and compares it with the written bytes.
    fn verify(&mut self) -> io::Result<()> {
        let name = self.any();
        let want = self.files[&name].clone();
        let mut got = vec![0; want.len()];
        match self.file(&name)?.read_exact_at(&mut got, 0) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                eprintln!("writer: WRONG READ of {name}: shorter than {} bytes", want.len());
                exit(4);
            }
            other => other?,
        }
        if got != want {
            eprintln!("writer: WRONG READ of {name}: {}", difference(&got, &want));
            eprintln!("  read again by this descriptor: {}", self.again(&name, &want)?);
            self.open.remove(&name);
            eprintln!("  read again by a new one: {}", self.again(&name, &want)?);
            exit(4);
        }
        Ok(())
    }

    /// A second reading tells a stale page of the kernel from lost bytes.
    fn again(&mut self, name: &str, want: &[u8]) -> io::Result<String> {
        let mut got = vec![0; want.len()];
        self.file(name)?.read_exact_at(&mut got, 0)?;
        Ok(difference(&got, want))
    }
}

/// Writes all bytes, which are durable when it returns.
fn write_durably(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: one part, which lives through the call and is only read.
    let n = unsafe {
        libc::pwritev2(file.as_raw_fd(), &part, 1, offset as libc::off_t, libc::RWF_DSYNC)
    };
    match n {
        n if n == bytes.len() as isize => Ok(()),
        n if n < 0 => Err(io::Error::last_os_error()),
        n => Err(io::Error::other(format!("{n} of {} bytes are written", bytes.len()))),
    }
}

/// The runs of bytes that differ, each with its first bytes in both.
fn difference(got: &[u8], want: &[u8]) -> String {
    let mut runs = Vec::new();
    let mut at = 0;
    while let Some(start) = (at..want.len()).find(|i| got[*i] != want[*i]) {
        // A few bytes may agree by chance within a run.
        let same = |i: usize| got[i..].iter().zip(&want[i..]).take(64).all(|(a, b)| a == b);
        let end = (start..want.len()).find(|i| same(*i)).unwrap_or(want.len());
        let head = |bytes: &[u8]| format!("{:02x?}", &bytes[start..end.min(start + 8)]);
        runs.push(format!("[{start}, {end}) is {} not {}", head(got), head(want)));
        at = end;
    }
    match runs.is_empty() {
        true => "as written".into(),
        false => format!("{} of {} bytes", runs.join(", "), want.len()),
    }
}
