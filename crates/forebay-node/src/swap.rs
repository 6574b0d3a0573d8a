//! Swap files of a pool, on while an instance needs them.
//!
//! - W1: swap is never left on unnoticed: swap that is on has a record, and keeps its grant until the kernel
//!   says that it is off.
//! - W2: whether a file is in use is asked of the file, not of the names in `/proc/swaps`: the kernel
//!   refuses to allocate in a file to which it swaps.
//! - W3: a swap file has no holes, is 0600, and lies on ext4 or XFS itself: not in an image, whose
//!   loop device needs memory to write, and not in memory.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use forebay_base::folder::Wanted;
use forebay_base::lock::{Mutex, Rank};
use forebay_base::units::human_size;
use forebay_base::{Error, Kind, Result};
use rustix::fs;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::Errno;

use crate::failpoint;
use crate::space::{Ground, Id, Pool, Record, Stage, What, failed, open_file, usage_error};

/// A smaller file holds little but a header and a few pages.
const BYTES_MIN: u64 = 1 << 20;

/// linux/swap.h
const PREFER: i32 = 0x8000;
const PRIORITY_MAX: u16 = 0x7fff;

/// `union swap_header`: follows 1024 bytes for a boot loader.
const AT_VERSION: usize = 1024;
const AT_LAST_PAGE: usize = 1028;
const AT_UUID: usize = 1036;
const SIGNATURE: &[u8; 10] = b"SWAPSPACE2";

/// A swap file that the kernel uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swap {
    pub id: Id,
    pub path: PathBuf,
    pub bytes: u64,
}

/// The state of an id's swap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SwapState {
    Absent,
    /// A file that is not in use: [`Pool::swap_on`] puts it in use, [`Pool::remove`] removes it.
    Off,
    On(Swap),
}

/// Calls of swapoff that are under way, by file: a second call would only fail.
type Calls = HashMap<PathBuf, Receiver<io::Result<()>>>;

fn calls() -> &'static Mutex<Calls> {
    static CALLS: OnceLock<Mutex<Calls>> = OnceLock::new();
    CALLS.get_or_init(|| Mutex::new(Rank::Spaces, Calls::new()))
}

impl Pool {
    /// Makes a swap file and puts it in use, or confirms an existing one.
    ///
    /// `priority`, up to 32767: higher ones are used first; without one the kernel chooses one below all
    /// that were given. The kernel is never told to discard freed pages.
    pub fn swap_on(&self, id: &Id, bytes: u64, priority: Option<u16>) -> Result<Swap> {
        self.require_ground(id)?;
        let page = rustix::param::page_size() as u64;
        if bytes < BYTES_MIN || priority.is_some_and(|priority| priority > PRIORITY_MAX) {
            let least = human_size(BYTES_MIN);
            return Err(usage_error(format!(
                "{id}: swap has {least} or more, and a priority up to {PRIORITY_MAX}"
            )));
        }
        let bytes = bytes.next_multiple_of(page);
        let _turn = self.turn(id);
        let record = match Record::load(&self.inner.state, id)? {
            Some(record) => confirmed(record, bytes, priority)?,
            None => {
                self.require_room(id, bytes)?;
                let record = Record::new(id, bytes, What::Swap { priority });
                record.save(&self.inner.state)?;
                record
            }
        };
        failpoint::pass("swap-recorded");
        let was_ready = record.stage == Stage::Ready;
        self.bring_on(record.clone(), priority).inspect_err(|_| {
            if !was_ready && let Err(e) = self.undo(record) {
                tracing::warn!(%id, error = %e, "what was begun could not be removed");
            }
        })
    }

    pub fn swap_state(&self, id: &Id) -> Result<SwapState> {
        let Some(record) = Record::load(&self.inner.state, id)? else {
            return Ok(SwapState::Absent);
        };
        if !matches!(record.what, What::Swap { .. }) {
            return Err(usage_error(format!("{id} is there, but is no swap")));
        }
        match open_file(&self.inner.swap, id.as_str())? {
            Some(file) if is_on(&file).map_err(failed(id))? => Ok(SwapState::On(Swap {
                id: id.clone(),
                path: self.swap_path(id),
                bytes: record.room,
            })),
            _ => Ok(SwapState::Off),
        }
    }

    /// Takes a swap file out of use; its contents return to memory. The file is left: see [`Pool::remove`].
    ///
    /// # Errors
    ///
    /// The swap is still on then, and keeps its grant. [`Kind::TimedOut`]: the kernel's call goes on, and
    /// the next call here waits for it; ENOMEM: memory is too short to take back the contents.
    pub fn swap_off(&self, id: &Id, limit: Duration) -> Result<()> {
        let _turn = self.turn(id);
        let Some(file) = open_file(&self.inner.swap, id.as_str())? else { return Ok(()) };
        let path = self.swap_path(id);
        let at = path.display();
        if !is_on(&file).map_err(failed(&at))? && !calls().lock().contains_key(&path) {
            return Ok(());
        }
        failpoint::pass("swap-off");
        let done = bounded_off(&path, limit);
        match done {
            _ if !is_on(&file).map_err(failed(&at))? => Ok(()),
            Some(Err(e)) => Err(still_on(id, Error::io(e, still_on_words(&file, &at)))),
            _ => {
                let words = still_on_words(&file, &at);
                let context = format!("{words}: not off within {limit:?}");
                Err(still_on(id, Error::new(Kind::TimedOut, context)))
            }
        }
    }

    fn bring_on(&self, mut record: Record, priority: Option<u16>) -> Result<Swap> {
        let id = record.id.clone();
        let (path, bytes) = (self.swap_path(&id), record.room);
        let at = path.display();
        let file = self.made_file(&id, bytes)?;
        if !is_on(&file).map_err(failed(&at))? {
            write_header(&file, bytes).map_err(failed(&at))?;
            failpoint::pass("swap-header");
            turn_on(&path, priority).map_err(failed(format_args!("{at}: swapon")))?;
        }
        failpoint::pass("swap-on");
        if record.stage == Stage::Making {
            record.stage = Stage::Ready;
            record.save(&self.inner.state)?;
        }
        Ok(Swap { id, path, bytes })
    }

    fn made_file(&self, id: &Id, bytes: u64) -> Result<File> {
        let folder = &self.inner.swap;
        let at = folder.path().join(id.as_str());
        let flags = OFlags::RDWR | OFlags::CREATE;
        let opened = folder.open(id.as_str(), flags, Wanted::File);
        let file = File::from(opened.map_err(failed(at.display()))?);
        if is_on(&file).map_err(failed(at.display()))? {
            return Ok(file);
        }
        let stat = file.metadata().map_err(failed(at.display()))?;
        if stat.len() != bytes || stat.blocks() * 512 < bytes {
            file.set_len(0).map_err(failed(at.display()))?;
            match fs::fallocate(&file, FallocateFlags::empty(), 0, bytes) {
                Err(Errno::NOSPC) => return Err(self.no_room(id, bytes)),
                other => other.map_err(failed(at.display()))?,
            }
            failpoint::pass("swap-allocated");
        }
        fs::fchmod(&file, fs::Mode::RUSR | fs::Mode::WUSR).map_err(failed(at.display()))?;
        Ok(file)
    }

    fn swap_path(&self, id: &Id) -> PathBuf {
        self.inner.swap.path().join(id.as_str())
    }

    /// W3.
    /// Why swap is not possible in this pool, if it is not.
    pub fn swap_missing(&self) -> Result<Option<&'static str>> {
        Ok(match self.ground()? {
            Ground::Memory => Some("it is in memory itself"),
            Ground::Other => Some("it is on neither ext4 nor XFS"),
            Ground::Ext4 | Ground::Xfs if self.is_in_image()? => {
                Some("it is in an image, whose loop device may need memory to write")
            }
            Ground::Ext4 | Ground::Xfs => None,
        })
    }

    fn require_ground(&self, id: &Id) -> Result<()> {
        let at = self.path().display();
        let Some(why) = self.swap_missing()? else { return Ok(()) };
        Err(usage_error(format!(
            "{id}: no swap in pool {at}: {why}: use a pool on ext4 or XFS of a device"
        )))
    }

    fn is_in_image(&self) -> Result<bool> {
        let stat = fs::fstat(&self.inner.root).map_err(failed(self.path().display()))?;
        // The major number of loop devices.
        Ok(fs::major(stat.st_dev) == 7)
    }
}

fn confirmed(record: Record, bytes: u64, priority: Option<u16>) -> Result<Record> {
    let id = &record.id;
    match &record.what {
        _ if record.is_removing() => {
            let context = format!("{id} is being removed: wait until it is gone");
            Err(Error::os(libc::EBUSY, context))
        }
        What::Swap { priority: known } if *known == priority && record.room == bytes => Ok(record),
        What::Swap { .. } => Err(usage_error(format!(
            "{id}: there is swap of {} with another priority or size: remove it first",
            human_size(record.room)
        ))),
        _ => Err(usage_error(format!("{id} is there, but is no swap"))),
    }
}

/// Whether a record's swap may be removed.
pub(crate) fn require_off(pool: &Pool, record: &Record) -> Result<()> {
    let id = &record.id;
    match open_file(&pool.inner.swap, id.as_str())? {
        Some(file) if is_on(&file).map_err(failed(id))? => Err(Error::os(
            libc::EBUSY,
            format!("{id}: its swap is on: take it out of use first (swap_off)"),
        )),
        _ => Ok(()),
    }
}

/// W2. Allocating an allocated range changes nothing in a file that is not in use.
fn is_on(file: &File) -> io::Result<bool> {
    match file.metadata()?.len() {
        0 => Ok(false),
        len => match fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, len.min(4096)) {
            Err(Errno::TXTBSY) => Ok(true),
            other => other.map(|()| false).map_err(io::Error::from),
        },
    }
}

/// Writes the header as `mkswap` does.
fn write_header(file: &File, bytes: u64) -> io::Result<()> {
    let size = rustix::param::page_size();
    let pages = u32::try_from(bytes / size as u64 - 1);
    let last = pages.map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    let mut page = vec![0u8; size];
    page[AT_VERSION..AT_VERSION + 4].copy_from_slice(&1u32.to_ne_bytes());
    page[AT_LAST_PAGE..AT_LAST_PAGE + 4].copy_from_slice(&last.to_ne_bytes());
    std::io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut page[AT_UUID..AT_UUID + 16])?;
    page[size - SIGNATURE.len()..].copy_from_slice(SIGNATURE);
    file.write_all_at(&page, 0)?;
    file.sync_all()
}

fn c_path(path: &std::path::Path) -> io::Result<std::ffi::CString> {
    Ok(std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?)
}

fn turn_on(path: &std::path::Path, priority: Option<u16>) -> io::Result<()> {
    let flags = priority.map_or(0, |priority| PREFER | i32::from(priority));
    let path = c_path(path)?;
    // SAFETY: a path that ends in NUL, and flags.
    check(unsafe { libc::swapon(path.as_ptr(), flags) })
}

/// Runs swapoff in a process of its own: where memory is short, the kernel first kills the process that
/// takes swap out of use, and that must not be the daemon.
fn turn_off(path: &std::path::Path) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the child makes system calls only, and ends.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: as above; the path ends in NUL.
        0 => unsafe {
            // Locks and connections of the daemon are not to outlive it here.
            libc::close_range(0, u32::MAX, 0);
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            let done = libc::swapoff(path.as_ptr());
            libc::_exit(if done == 0 { 0 } else { *libc::__errno_location() })
        },
        child => ended(child),
    }
}

/// The result of swapoff, from the process that ended.
fn ended(child: libc::pid_t) -> io::Result<()> {
    let mut status = 0;
    // SAFETY: the kernel writes one integer.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    match libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)) {
        Some(0) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(error)),
        // The kernel has killed the process, for want of memory.
        None => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
    }
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The result of the call under way, or of a new one; `None` if it goes on.
fn bounded_off(path: &std::path::Path, limit: Duration) -> Option<io::Result<()>> {
    let under_way = calls().lock().remove(path);
    let wait = match under_way {
        Some(wait) => wait,
        None => match start_off(path.to_path_buf()) {
            Ok(wait) => wait,
            Err(e) => return Some(Err(e)),
        },
    };
    match wait.recv_timeout(limit) {
        Ok(done) => Some(done),
        Err(_) => {
            calls().lock().insert(path.to_path_buf(), wait);
            None
        }
    }
}

fn start_off(path: PathBuf) -> io::Result<Receiver<io::Result<()>>> {
    let (done, wait) = sync_channel(1);
    std::thread::Builder::new().name("swapoff".into()).spawn(move || {
        let _ = done.send(turn_off(&path));
    })?;
    Ok(wait)
}

fn still_on_words(file: &File, at: &std::path::Display<'_>) -> String {
    let bytes = file.metadata().map_or(0, |stat| stat.len());
    format!(
        "{at}: this swap of {} is STILL ON and keeps its grant: end the processes that use it, or \
         give the machine memory, and try again",
        human_size(bytes)
    )
}

/// Also logged: the report must not depend on a caller that looks at the answer (W1).
fn still_on(id: &Id, error: Error) -> Error {
    tracing::error!(%id, %error, "swap is still on");
    error
}
