//! Orderly ends: interrupts, time bounds, scratch directories, mounts and daemons.
//!
//! A benchmark that hangs in a system call on a mount cannot look at a flag, so the watchdog
//! kills the daemon behind the mount, which makes the call return. Owners clean up in `Drop`.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use forebay_base::mounts;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static EXPIRED: AtomicBool = AtomicBool::new(false);
/// Seconds since `clock()` at which the present case must have ended; 0 = no bound.
static DEADLINE: AtomicU64 = AtomicU64::new(0);
/// Mount points and the daemons behind them.
static SERVING: Mutex<BTreeMap<PathBuf, i32>> = Mutex::new(BTreeMap::new());

/// After the first Ctrl-C, how long orderly unmounting may take before daemons are killed.
const GRACE: Duration = Duration::from_secs(15);

fn clock() -> Instant {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    *START.get_or_init(Instant::now)
}

extern "C" fn on_signal(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Catches SIGINT and SIGTERM and starts the watchdog.
pub fn install() {
    clock();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic.
        unsafe { libc::signal(signal, on_signal as *const () as libc::sighandler_t) };
    }
    std::thread::spawn(watch);
}

fn watch() {
    let mut interrupted_at = None;
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let deadline = DEADLINE.load(Ordering::Relaxed);
        let late = deadline != 0 && clock().elapsed().as_secs() >= deadline;
        if late && !EXPIRED.swap(true, Ordering::Relaxed) {
            kill_daemons();
        }
        if INTERRUPTED.load(Ordering::Relaxed) {
            let since = interrupted_at.get_or_insert_with(Instant::now);
            if since.elapsed() > GRACE {
                kill_daemons();
            }
        }
    }
}

fn kill_daemons() {
    for pid in SERVING.lock().unwrap_or_else(PoisonError::into_inner).values() {
        // SAFETY: a process that this one started, directly or through a command.
        unsafe { libc::kill(*pid, libc::SIGKILL) };
    }
}

pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Fails when the run was interrupted or the case is over its time; loops call it as they go.
pub fn go_on() -> Result<()> {
    if interrupted() {
        bail!("interrupted");
    }
    if EXPIRED.load(Ordering::Relaxed) {
        bail!("stopped");
    }
    Ok(())
}

/// Runs `work`; past `bound` the daemons are killed and `go_on` fails.
pub fn bounded<T>(bound: Duration, work: impl FnOnce() -> Result<T>) -> Result<T> {
    EXPIRED.store(false, Ordering::Relaxed);
    let end = clock().elapsed() + bound;
    DEADLINE.store(end.as_secs().max(1), Ordering::Relaxed);
    let result = work();
    DEADLINE.store(0, Ordering::Relaxed);
    if EXPIRED.load(Ordering::Relaxed) {
        // Any failure is due to the killed daemon.
        return result.with_context(|| format!("exceeded its time bound of {bound:?}"));
    }
    result
}

/// A mount point with a daemon behind it; kills and detaches when dropped without `release`.
pub struct Serving {
    mountpoint: PathBuf,
    pid: i32,
}

impl Serving {
    pub fn new(mountpoint: &Path, pid: i32) -> Serving {
        let mut serving = SERVING.lock().unwrap_or_else(PoisonError::into_inner);
        serving.insert(mountpoint.to_owned(), pid);
        Serving { mountpoint: mountpoint.to_owned(), pid }
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        SERVING.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.mountpoint);
        if is_mounted(&self.mountpoint) {
            detach(&self.mountpoint);
            // SAFETY: as in kill_daemons.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
        }
    }
}

/// Detaches a mount even if it is busy or its daemon is gone.
pub fn detach(mountpoint: &Path) {
    let path = CString::new(mountpoint.as_os_str().as_bytes()).expect("paths hold no NUL");
    // SAFETY: a NUL-terminated path.
    unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
}

pub fn is_mounted(mountpoint: &Path) -> bool {
    mounts::at(&mounts::read().unwrap_or_default(), mountpoint).is_some()
}

/// A directory of this process, removed when dropped.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    pub fn new(parent: &Path) -> Result<Scratch> {
        let path = parent.join(format!("forebay-perf-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Scratch { path: path.canonicalize()? })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the empty directory `name` in the scratch directory, in place of an earlier one.
    pub fn fresh(&self, name: &str) -> Result<PathBuf> {
        let dir = self.path.join(name);
        if is_mounted(&dir) {
            detach(&dir);
        }
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Never walk into a mount that outlived its owner: that would delete through it.
        for mount in mounts::read().unwrap_or_default() {
            if mount.path.starts_with(&self.path) {
                detach(&mount.path);
            }
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}
