//! How files become durable at a destination.
//!
//! One `syncfs` makes a whole batch durable at once, where the file system is known to honor it.
//! Elsewhere each file and directory is synced by itself, by all threads. So are files in other file
//! systems that are mounted below the destination.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_base::lock::{Mutex, Rank};
use forebay_base::magic::honours_syncfs;
use rustix::fs;
use rustix::io::Errno;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    Whole,
    Each,
}

/// When a file was begun, as the number of syncs that had failed until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Since(u64);

/// The result of a sync: files begun since the last failed sync are durable. The kernel reports a failed
/// write once, to the next sync, and that sync may be for other files.
#[derive(Debug, Clone, Copy)]
pub struct Durable {
    since: Since,
    last: Option<Errno>,
}

impl Durable {
    /// Whether a file is durable; otherwise the error of the sync that may have lost some of its bytes.
    pub fn has(&self, since: Since) -> rustix::io::Result<()> {
        match self.last {
            Some(errno) if since != self.since => Err(errno),
            _ => Ok(()),
        }
    }
}

type Call = dyn Fn(&OwnedFd) -> rustix::io::Result<()> + Send + std::marker::Sync;

pub struct Sync {
    how: How,
    /// The device that the one call syncs.
    device: u64,
    /// Opened before any byte is written, so that its syncs report every failed write.
    dir: OwnedFd,
    whole: Box<Call>,
    alone: Box<Call>,
    /// Read at any time; raised only while `last` is held.
    failures: AtomicU64,
    /// The last failure. Held during the call, so that the count is right when the next call begins.
    last: Mutex<Option<Errno>>,
}

impl Sync {
    pub fn of(dir: &impl AsFd) -> rustix::io::Result<Sync> {
        let dir = rustix::io::fcntl_dupfd_cloexec(dir, 3)?;
        let how = if honours_syncfs(&dir) { How::Whole } else { How::Each };
        Sync::by(how, dir, Box::new(|dir| fs::syncfs(dir)), Box::new(|fd| fs::fsync(fd)))
    }

    fn by(how: How, dir: OwnedFd, whole: Box<Call>, alone: Box<Call>) -> rustix::io::Result<Sync> {
        let device = fs::fstat(&dir)?.st_dev;
        let (failures, last) = (AtomicU64::new(0), Mutex::new(Rank::Durable, None));
        Ok(Sync { how, device, dir, whole, alone, failures, last })
    }

    /// How files on this device are synced.
    pub fn how(&self, device: u64) -> How {
        if device == self.device { self.how } else { How::Each }
    }

    /// Syncs a file that the one call does not reach.
    pub fn file(&self, fd: &OwnedFd) -> rustix::io::Result<()> {
        match self.how(fs::fstat(fd)?.st_dev) {
            How::Whole => Ok(()),
            How::Each => again(|| (self.alone)(fd)),
        }
    }

    /// The same for a directory. Some stores cannot sync directories, and need not.
    pub fn dir(&self, fd: &OwnedFd) -> rustix::io::Result<()> {
        has_none(self.file(fd))
    }

    /// Must be called before the first byte of a file is written.
    pub fn since(&self) -> Since {
        Since(self.failures.load(Ordering::SeqCst))
    }

    /// Syncs the whole batch, where one call can.
    pub fn all(&self) -> rustix::io::Result<Durable> {
        let mut last = self.last.lock();
        if self.how == How::Whole
            && let Err(errno) = again(|| (self.whole)(&self.dir))
        {
            *last = Some(errno);
            self.failures.fetch_add(1, Ordering::SeqCst);
            return Err(errno);
        }
        Ok(Durable { since: self.since(), last: *last })
    }
}

pub fn file(fd: &impl AsFd) -> rustix::io::Result<()> {
    again(|| fs::fsync(fd))
}

pub fn data(fd: &impl AsFd) -> rustix::io::Result<()> {
    again(|| fs::fdatasync(fd))
}

/// After this call a store through a mapping moves the times of the file: when the kernel sends pages to
/// the device, it write-protects them, and the next store into such a page updates the times. The call waits
/// for pages that are being sent, since it would skip these, and for nothing else. A tmpfs sends no pages
/// (sync_file_range(2)).
///
/// # Errors
///
/// Errors of pages that were sent before, which no other call may report any more.
pub fn watch_mappings(fd: &OwnedFd) -> rustix::io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE;
    // SAFETY: an open descriptor.
    match unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, 0, flags) } {
        0 => Ok(()),
        _ => match Errno::from_io_error(&std::io::Error::last_os_error()) {
            Some(errno @ (Errno::IO | Errno::NOSPC | Errno::DQUOT)) => Err(errno),
            _ => Ok(()), // This file system sends no pages.
        },
    }
}

pub fn dir(fd: &impl AsFd) -> rustix::io::Result<()> {
    has_none(file(fd))
}

fn has_none(synced: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match synced {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(()),
        other => other,
    }
}

fn again(call: impl Fn() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

#[cfg(test)]
pub mod tests {
    use std::ffi::CString;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use super::*;

    pub struct Mounted(PathBuf);

    impl Drop for Mounted {
        fn drop(&mut self) {
            _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
        }
    }

    pub fn mounted(at: &Path, kind: &str, options: Option<&str>) -> Mounted {
        let options = options.map(|options| CString::new(options).unwrap());
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount(kind, at, kind, flags, options.as_deref()).unwrap();
        Mounted(at.into())
    }

    /// A sync by one call, of which the calls with these numbers fail, the first being 0.
    pub fn failing(dir: &impl AsFd, calls: &'static [u64]) -> Sync {
        let dir = rustix::io::fcntl_dupfd_cloexec(dir, 3).unwrap();
        let count = AtomicU64::new(0);
        let call = move |_: &OwnedFd| match calls.contains(&count.fetch_add(1, Ordering::SeqCst)) {
            true => Err(Errno::IO),
            false => Ok(()),
        };
        Sync::by(How::Whole, dir, Box::new(call), Box::new(|fd| fs::fsync(fd))).unwrap()
    }

    /// Records in `seen` every file that is synced by itself.
    pub fn seeing(how: How, dir: &impl AsFd, seen: Arc<std::sync::Mutex<Vec<(u64, u64)>>>) -> Sync {
        let dir = rustix::io::fcntl_dupfd_cloexec(dir, 3).unwrap();
        let alone = move |fd: &OwnedFd| {
            let stat = fs::fstat(fd)?;
            seen.lock().unwrap().push((stat.st_dev, stat.st_ino));
            fs::fsync(fd)
        };
        Sync::by(how, dir, Box::new(|dir| fs::syncfs(dir)), Box::new(alone)).unwrap()
    }

    /// An overlay is the example of a file system that is not known to honor `syncfs`.
    #[test]
    fn one_call_is_enough_only_where_it_is_known_to_be() {
        let top = tempfile::tempdir().unwrap();
        let how = |at: &Path| {
            let dir = std::fs::File::open(at).unwrap();
            Sync::of(&dir).unwrap().how(fs::fstat(&dir).unwrap().st_dev)
        };
        let _tmpfs = mounted(top.path(), "tmpfs", None);
        assert_eq!(how(top.path()), How::Whole);
        let paths = ["lower", "upper", "work", "at"].map(|name| top.path().join(name));
        paths.iter().for_each(|path| std::fs::create_dir(path).unwrap());
        let [lower, upper, work, at] = &paths;
        let [lower, upper, work] = [lower, upper, work].map(|path| path.display());
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let _overlay = mounted(at, "overlay", Some(&options));
        assert_eq!(how(at), How::Each);
    }

    #[test]
    fn a_failure_counts_for_all_that_was_begun_before() {
        let dir = tempfile::tempdir().unwrap();
        let dir = std::fs::File::open(dir.path()).unwrap();
        let sync = failing(&dir, &[1, 2, 4]);
        let first = sync.since();
        assert_eq!(sync.all().unwrap().has(first), Ok(()));
        assert_eq!(sync.all().unwrap_err(), Errno::IO);
        let second = sync.since();
        assert_eq!(sync.all().unwrap_err(), Errno::IO);
        let third = sync.since();
        let durable = sync.all().unwrap();
        let told = [first, second, third].map(|since| durable.has(since));
        assert_eq!(told, [Err(Errno::IO), Err(Errno::IO), Ok(())]);
        assert_eq!(sync.all().unwrap_err(), Errno::IO);
        assert_eq!(sync.all().unwrap().has(third), Err(Errno::IO));
    }

    /// A sync that has waited for a failing one sees the failure.
    #[test]
    fn syncs_take_turns() {
        let dir = tempfile::tempdir().unwrap();
        let dir = std::fs::File::open(dir.path()).unwrap();
        let (begun, calls) = (std::sync::Barrier::new(2), AtomicU64::new(0));
        let begun = Arc::new(begun);
        let (inside, fd) = (begun.clone(), dir.into());
        let call = move |_: &OwnedFd| {
            if calls.fetch_add(1, Ordering::SeqCst) > 0 {
                return Ok(());
            }
            inside.wait();
            std::thread::sleep(std::time::Duration::from_millis(300));
            Err(Errno::IO)
        };
        let sync = Sync::by(How::Whole, fd, Box::new(call), Box::new(|_| Ok(()))).unwrap();
        let since = sync.since();
        std::thread::scope(|scope| {
            let failed = scope.spawn(|| sync.all().map(|_| ()));
            begun.wait();
            assert_eq!(sync.all().unwrap().has(since), Err(Errno::IO));
            assert_eq!(failed.join().unwrap(), Err(Errno::IO));
        });
    }
}
