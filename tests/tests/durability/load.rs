//! Writers under load and their journals.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forebay_tests::journal::History;
use forebay_tests::{Bed, PATIENCE, Proc, within};

/// The work of a writer; see `src/bin/writer.rs`.
#[derive(Clone, Copy)]
pub enum Work {
    Mixed,
    Synced,
    /// Appends a little to several files at once, and syncs them.
    Growing,
    /// Syncs without a request to the daemon where it writes past the daemon.
    Silent,
    /// Claims to sync, and does not.
    Unsynced,
    /// Publishes, replaces and removes; see `src/bin/namer.rs`.
    Names,
}

/// Several writers, each with a directory on the mount and a journal off it.
pub struct Load {
    writers: Vec<(Proc, Writer)>,
}

/// The directory of one writer, on the mount or on the backing store, and its journal.
#[derive(Clone)]
pub struct Writer {
    pub name: String,
    pub journal: PathBuf,
    log: PathBuf,
}

fn name(i: usize) -> String {
    format!("w{i}")
}

impl Load {
    pub fn start(bed: &Bed, count: usize, seed: u64, work: Work) -> Load {
        Load::start_in(&bed.mnt, bed, count, seed, work)
    }

    /// Starts writers in another directory than the mount.
    pub fn start_in(root: &Path, bed: &Bed, count: usize, seed: u64, work: Work) -> Load {
        // All directories first: the daemon may die by the work of the first writer.
        for i in 0..count {
            std::fs::create_dir_all(root.join(name(i))).expect("a directory for the writer");
        }
        Load::start_laid(root, bed, count, seed, work)
    }

    /// Starts writers in directories that exist.
    pub fn start_laid(root: &Path, bed: &Bed, count: usize, seed: u64, work: Work) -> Load {
        let journals = bed.dir("journals");
        let writer = |i: usize| Writer {
            journal: journals.join(name(i)),
            log: journals.join(format!("{}.log", name(i))),
            name: name(i),
        };
        let start = |(i, writer): (usize, Writer)| {
            let dir = root.join(&writer.name);
            (writer.spawn(&dir, seed.wrapping_mul(31) + i as u64, work), writer)
        };
        Load { writers: (0..count).map(writer).enumerate().map(start).collect() }
    }

    pub fn writers(&self) -> Vec<Writer> {
        self.writers.iter().map(|(_, writer)| writer.clone()).collect()
    }

    /// Waits until every writer has done this many more operations. A writer that ended early is
    /// an error, unless the daemon it worked against is dead.
    pub fn progress(&mut self, operations: u64) {
        for (proc, writer) in &mut self.writers {
            let from = writer.journal_len();
            // An operation takes about twenty bytes of journal or more.
            let enough = from + operations * 20;
            let mut len = from;
            // However slow the disk is: a writer that does nothing at all hangs.
            while len < enough {
                let before = len;
                within(PATIENCE, &format!("{} works", writer.name), || {
                    assert!(proc.running(), "a writer ended: {}", writer.log_text());
                    len = writer.journal_len();
                    len > before
                });
            }
        }
    }

    /// Stops the writers. A read that returned wrong bytes fails the test here.
    pub fn stop(mut self) -> Vec<Writer> {
        for (proc, _) in &mut self.writers {
            proc.kill();
        }
        let writers = self.writers();
        for writer in &writers {
            let log = writer.log_text();
            assert!(!log.contains("WRONG READ"), "{}: {log}", writer.name);
        }
        writers
    }
}

impl Writer {
    fn spawn(&self, dir: &Path, seed: u64, work: Work) -> Proc {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .expect("log of a writer");
        let (program, kind) = match work {
            Work::Mixed => (env!("CARGO_BIN_EXE_writer"), Some("mixed")),
            Work::Synced => (env!("CARGO_BIN_EXE_writer"), Some("synced")),
            Work::Growing => (env!("CARGO_BIN_EXE_writer"), Some("growing")),
            Work::Silent => (env!("CARGO_BIN_EXE_writer"), Some("silent")),
            Work::Unsynced => (env!("CARGO_BIN_EXE_writer"), Some("unsynced")),
            Work::Names => (env!("CARGO_BIN_EXE_namer"), None),
        };
        let mut command = Command::new(program);
        command.arg(dir).arg(&self.journal).arg(seed.to_string()).args(kind);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Proc::spawn(&mut command)
    }

    pub fn journal_len(&self) -> u64 {
        std::fs::metadata(&self.journal).map_or(0, |meta| meta.len())
    }

    pub fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn history(&self) -> History {
        History::read(&self.journal)
    }

    /// Compares the directory below `root` with the journal.
    pub fn problems(&self, root: &Path) -> Vec<String> {
        let found = self.history().check(&root.join(&self.name));
        found.into_iter().map(|problem| format!("{}/{problem}", self.name)).collect()
    }

    /// Records the outcome of the interrupted operation, so that the next round builds on it.
    pub fn settle(&self, root: &Path) {
        self.history().settle(&root.join(&self.name), &self.journal);
    }
}

/// Panics with all problems of all writers.
#[track_caller]
pub fn assert_all_there(writers: &[Writer], root: &Path, when: &str) {
    let problems: Vec<String> = writers.iter().flat_map(|w| w.problems(root)).collect();
    assert!(
        problems.is_empty(),
        "{when}, {} problems:\n  {}",
        problems.len(),
        problems.join("\n  ")
    );
}
