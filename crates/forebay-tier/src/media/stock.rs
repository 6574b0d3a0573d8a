//! A stock of unnamed files, made ahead for a tier on which making a file is slow.
//!
//! For each new inode, ext4 looks at all inodes of the group that were freed in the last minutes
//! (`recently_deleted` in its `ialloc.c`): after many unlinks a new file takes a millisecond. A
//! file of `O_TMPFILE` has that behind it, and naming it is cheap. A crash leaves nothing of the
//! unused files.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::fs;
use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::io::{Errno, Result};

use crate::pool::run_anywhere;
use forebay_base::lock::{Mutex, MutexGuard, Rank};

/// The number of files in stock; each is an open descriptor.
const KEPT: usize = 64;

/// Making a file counts as slow if it takes longer than this.
const SLOW: Duration = Duration::from_micros(100);

const NOW: Timestamps = {
    let now = Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW };
    Timestamps { last_access: now, last_modification: now }
};

#[derive(Debug)]
pub struct Stock {
    shared: Arc<Shared>,
    maker: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    ready: Mutex<Vec<OwnedFd>>,
    /// The recent cost of making a file, in nanoseconds.
    cost: AtomicU64,
    /// The file system cannot make such files, or the stock is about to end.
    ended: AtomicBool,
}

impl Default for Stock {
    fn default() -> Stock {
        let shared = Shared {
            ready: Mutex::new(Rank::Shadows, Vec::new()),
            cost: AtomicU64::default(),
            ended: AtomicBool::default(),
        };
        Stock { shared: Arc::new(shared), maker: Mutex::new(Rank::Shadows, None) }
    }
}

impl Stock {
    /// Notes the time that it took to make a file with a name.
    pub fn note(&self, took: Duration) {
        self.shared.note(took);
    }

    /// A file from the stock under this name, if one is ready. `EEXIST` as for open(2).
    pub fn take(&self, dir: BorrowedFd<'_>, name: &str) -> Result<Option<OwnedFd>> {
        if self.shared.is_slow() {
            self.order(dir);
        }
        let Some(fd) = self.shared.ready().pop() else { return Ok(None) };
        match fs::linkat(&fd, "", dir, name, AtFlags::EMPTY_PATH) {
            // The times are those of a file that is made now.
            Ok(()) => fs::futimens(&fd, &NOW).map(|()| Some(fd)),
            Err(Errno::EXIST) => {
                self.shared.ready().push(fd);
                Err(Errno::EXIST)
            }
            Err(e) => {
                // For example without the right to link an unnamed file.
                if !passes(e) {
                    self.shared.end();
                }
                Ok(None)
            }
        }
    }

    /// Orders more files in the background when half of the stock is gone.
    fn order(&self, dir: BorrowedFd<'_>) {
        if self.shared.ended.load(Relaxed) || self.shared.ready().len() > KEPT / 2 {
            return;
        }
        let mut maker = self.maker.lock();
        if maker.as_ref().is_some_and(|maker| !maker.is_finished()) {
            return;
        }
        let Ok(dir) = dir.try_clone_to_owned() else { return };
        let shared = self.shared.clone();
        let make = move || {
            run_anywhere(); // The thread that needed a file may be bound to a processor.
            shared.fill(dir.as_fd());
        };
        *maker = std::thread::Builder::new().name("fb-stock".into()).spawn(make).ok();
    }
}

impl Drop for Stock {
    /// A process that takes the tier away next finds nothing open.
    fn drop(&mut self) {
        self.shared.end();
        if let Some(maker) = self.maker.get_mut().take() {
            let _ = maker.join();
        }
        self.shared.ready().clear();
    }
}

impl Shared {
    fn ready(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        self.ready.lock()
    }

    fn note(&self, took: Duration) {
        let (took, before) = (took.as_nanos() as u64, self.cost.load(Relaxed));
        self.cost.store((before * 7 + took.min(SLOW.as_nanos() as u64 * 16)) / 8, Relaxed);
    }

    fn is_slow(&self) -> bool {
        self.cost.load(Relaxed) > SLOW.as_nanos() as u64
    }

    fn end(&self) {
        self.ended.store(true, Relaxed);
    }

    fn fill(&self, dir: BorrowedFd<'_>) {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        while !self.ended.load(Relaxed) && self.ready().len() < KEPT {
            let began = Instant::now();
            match fs::openat(dir, ".", flags, Mode::RUSR | Mode::WUSR) {
                Ok(fd) => self.ready().push(fd),
                Err(e) if passes(e) => break,
                Err(_) => self.end(),
            }
            self.note(began.elapsed());
        }
    }
}

/// Too many open files, or a full or failing tier: the caller that needs a file sees the error.
fn passes(e: Errno) -> bool {
    matches!(e, Errno::MFILE | Errno::NFILE | Errno::NOSPC | Errno::DQUOT | Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use forebay_backing::suite::TempDir;

    use super::*;

    fn names(dir: &std::path::Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn settled(stock: &Stock) {
        let maker = stock.maker.lock().take();
        maker.expect("one was started").join().unwrap();
    }

    #[test]
    fn files_are_made_ahead_once_making_them_was_slow() {
        let dir = TempDir::new();
        let root = std::fs::File::open(dir.path()).unwrap();
        let stock = Stock::default();
        assert!(stock.take(root.as_fd(), "a").unwrap().is_none());
        assert!(stock.maker.lock().is_none(), "nothing was slow yet");
        (0..64).for_each(|_| stock.note(Duration::from_millis(1)));
        assert!(stock.shared.is_slow());
        stock.order(root.as_fd());
        settled(&stock);
        assert_eq!(names(dir.path()), [""; 0], "they have no names");
        let fd = stock.take(root.as_fd(), "a").unwrap().expect("one was ready");
        let stat = std::fs::File::from(fd).metadata().unwrap();
        assert_eq!((stat.nlink(), stat.len(), stat.mode() & 0o7777), (1, 0, 0o600));
        assert_eq!(names(dir.path()), ["a"]);
        let again = stock.take(root.as_fd(), "a").map(|_| ());
        assert_eq!(again, Err(Errno::EXIST));
        drop(stock);
        assert_eq!(names(dir.path()), ["a"]);
    }

    #[test]
    fn where_it_is_quick_the_stock_is_not_filled_again() {
        let dir = TempDir::new();
        let root = std::fs::File::open(dir.path()).unwrap();
        let stock = Stock::default();
        (0..64).for_each(|_| stock.note(Duration::from_millis(1)));
        stock.order(root.as_fd());
        settled(&stock);
        (0..64).for_each(|_| stock.note(Duration::from_micros(5)));
        (0..KEPT).for_each(|n| drop(stock.take(root.as_fd(), &n.to_string()).unwrap().unwrap()));
        assert!(stock.take(root.as_fd(), "last").unwrap().is_none());
        assert!(stock.maker.lock().is_none());
    }
}
