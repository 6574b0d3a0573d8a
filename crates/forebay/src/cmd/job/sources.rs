//! The size of a stage-in's source: counted by the caller, with the caller's rights, for a bounded time.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_job::plan::What;
use forebay_stage::list;
use serde::Serialize;

/// The limits for all sources of a script together.
pub const TIME_MAX: Duration = Duration::from_secs(10);
pub const ENTRIES_MAX: u64 = 1_000_000;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counted {
    pub files: u64,
    pub bytes: u64,
    /// Entries that could not be read.
    pub unreadable: u64,
    /// Whether everything was counted.
    pub whole: bool,
}

/// The remaining time and entries.
pub struct Budget {
    until: Instant,
    entries: u64,
}

#[derive(Default)]
struct Count {
    files: AtomicU64,
    bytes: AtomicU64,
    unreadable: AtomicU64,
}

struct Walk {
    count: Arc<Count>,
    until: Instant,
    entries: u64,
}

impl Budget {
    pub fn new() -> Budget {
        Budget { until: Instant::now() + TIME_MAX, entries: ENTRIES_MAX }
    }

    /// Counts the files at a path. An error says what is wrong with the path. A file system that does not
    /// answer keeps a thread until this process ends; the caller does not wait for it.
    ///
    /// Names of a list are placed below `destination`.
    pub fn count(
        &mut self,
        path: &Path,
        what: Option<What>,
        destination: &Path,
    ) -> Result<Counted, String> {
        let count = Arc::new(Count::default());
        let walk = Walk { count: count.clone(), until: self.until, entries: self.entries };
        let (tell, told) = mpsc::channel();
        let (path, below) = (path.to_path_buf(), destination.to_path_buf());
        thread::spawn(move || tell.send(walk.top(&path, what, &below)));
        let patience = self.until.saturating_duration_since(Instant::now());
        let whole = match told.recv_timeout(patience + Duration::from_millis(200)) {
            Ok(done) => done?,
            Err(_) => false,
        };
        let counted = count.so_far(whole);
        self.entries = self.entries.saturating_sub(counted.files + counted.unreadable);
        Ok(counted)
    }
}

impl Count {
    fn so_far(&self, whole: bool) -> Counted {
        Counted {
            files: self.files.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            unreadable: self.unreadable.load(Ordering::Relaxed),
            whole,
        }
    }

    fn add(&self, found: &Metadata) {
        self.files.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(found.len(), Ordering::Relaxed);
    }
}

impl Walk {
    /// Counts the source; returns whether everything was counted.
    fn top(mut self, path: &Path, what: Option<What>, below: &Path) -> Result<bool, String> {
        let told = |e: std::io::Error| format!("{}: {e}", path.display());
        let found = fs::metadata(path).map_err(told)?;
        match (what, found.is_dir()) {
            (Some(What::File), true) => Err(format!("{} is a directory", path.display())),
            (Some(What::Directory), false) => Err(format!("{} is no directory", path.display())),
            (Some(What::List), true) => Err(format!("{} is no list", path.display())),
            (Some(What::List), false) => self.list(path, below),
            (_, true) => {
                // A top directory that cannot be read is an error, not an unreadable entry.
                fs::read_dir(path).map_err(told)?;
                Ok(self.tree(path.to_path_buf()))
            }
            (_, false) => {
                fs::File::open(path).map_err(told)?;
                self.count.add(&found);
                Ok(true)
            }
        }
    }

    fn list(&mut self, path: &Path, below: &Path) -> Result<bool, String> {
        let told = |e: std::io::Error| format!("{}: {e}", path.display());
        let found = fs::metadata(path).map_err(told)?;
        if found.len() > list::BYTES_MAX {
            return Err(format!("{}: a list has at most 256 MiB", path.display()));
        }
        let text = fs::read(path).map_err(told)?;
        let shown = path.display().to_string();
        let items = list::parse(&text, &shown, below).map_err(|e| e.to_string())?;
        let beside = path.parent().unwrap_or(Path::new("/"));
        for item in items {
            let path = beside.join(item.from);
            match fs::symlink_metadata(&path) {
                _ if self.is_spent() => return Ok(false),
                Ok(found) if found.is_dir() => {
                    if !self.tree(path) {
                        return Ok(false);
                    }
                }
                Ok(found) => self.see(&found),
                Err(e) => return Err(format!("{}: {e}", path.display())),
            }
        }
        Ok(true)
    }

    /// Counts a tree. Links are entries of their own, and are not followed.
    fn tree(&mut self, top: PathBuf) -> bool {
        let mut left = vec![top];
        while let Some(dir) = left.pop() {
            let Ok(entries) = fs::read_dir(&dir) else {
                self.count.unreadable.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            for entry in entries {
                if self.is_spent() {
                    return false;
                }
                match entry.and_then(|entry| Ok((entry.path(), entry.metadata()?))) {
                    Ok((path, found)) if found.is_dir() => left.push(path),
                    Ok((_, found)) => self.see(&found),
                    Err(_) => {
                        self.count.unreadable.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
        true
    }

    fn see(&mut self, found: &Metadata) {
        self.entries = self.entries.saturating_sub(1);
        self.count.add(found);
    }

    fn is_spent(&self) -> bool {
        self.entries == 0 || Instant::now() >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("in")).unwrap();
        for (name, bytes) in [("a", 3), ("in/b", 5), ("in/c", 7)] {
            fs::write(dir.path().join(name), vec![0; bytes]).unwrap();
        }
        fs::write(dir.path().join("list"), "a\nin there\n").unwrap();
        let whole = format!("{}/a $DW_JOB_STRIPED/x\n", dir.path().display());
        fs::write(dir.path().join("whole"), whole).unwrap();
        dir
    }

    #[test]
    fn files_and_bytes_are_counted() {
        let dir = tree();
        let count = |name: &str, what| {
            let at = dir.path().join(name);
            let counted = Budget::new().count(&at, what, Path::new("")).unwrap();
            assert!(counted.whole && counted.unreadable == 0);
            (counted.files, counted.bytes)
        };
        assert_eq!(count("in", Some(What::Directory)), (2, 12));
        assert_eq!(count("a", None), (1, 3));
        assert_eq!(count("list", Some(What::List)), (3, 15));
        assert_eq!(count("whole", Some(What::List)), (1, 3));
    }

    #[test]
    fn what_is_not_as_it_was_said_is_told() {
        let dir = tree();
        for (name, what, why) in [
            ("in", Some(What::File), "is a directory"),
            ("a", Some(What::Directory), "is no directory"),
            ("none", None, "No such file"),
            ("in", Some(What::List), "is no list"),
        ] {
            let at = dir.path().join(name);
            let error = Budget::new().count(&at, what, Path::new("")).unwrap_err();
            assert!(error.contains(why) && error.contains(name), "{error}");
        }
    }

    #[test]
    fn a_spent_budget_says_that_not_all_was_counted() {
        let dir = tree();
        let mut budget = Budget { entries: 1, ..Budget::new() };
        let counted = budget.count(&dir.path().join("in"), None, Path::new("")).unwrap();
        assert_eq!((counted.files, counted.whole), (1, false));
        let mut late = Budget { until: Instant::now(), entries: 9 };
        assert!(!late.count(&dir.path().join("in"), None, Path::new("")).unwrap().whole);
    }
}
