//! Locks of files that several nodes share: flock's, and the record locks of fcntl.
//!
//! A file's home has its table of locks ([`Desk`]). This mount is the home of some files, and asks the homes
//! of others; it asks about its own files in the same way (`asking`). It remembers the locks of its own
//! programs by file ([`Mine`]), so that the close of a file without locks needs no question, and so that a
//! home which has begun anew can be given its table again (`reclaim`). Requests of other members' programs
//! come by `home`.
//!
//! Without other members the kernel has the locks, and nothing here is called. With `locks = node` the kernel has the
//! locks of this mount's own programs: then this serves the programs of other members alone.

mod asking;
mod home;
mod mine;
mod reclaim;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_backing::{Error, FileKey, Result};
use forebay_base::lock::{Mutex, Rank};
use forebay_cluster::front::Guard;
use forebay_cluster::locks::desk::Desk;
use forebay_cluster::locks::{Lock, Of, Waiter};
use hashbrown::HashMap;

use self::mine::Mine;
use super::{Handle, Vfs};

/// A lock that a program asks for, through an open file.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    pub handle: u64,
    pub of: Of,
    pub lock: Lock,
}

/// The result of a request for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Came {
    Granted,
    /// The lock is to be granted later.
    Waits,
    /// The wait has ended, without the lock.
    Cancelled,
}

/// A message to the thread that tends the locks.
#[derive(Debug)]
pub enum Told {
    /// The wait with this number, of a program here, is granted its lock.
    Granted(u64),
    /// This wait of a program of another member is granted its lock.
    GrantedThere(Waiter),
    /// A member is dead, or has begun anew.
    Ended(String),
    /// There may be something to do.
    Look,
}

pub struct Locks {
    /// The locks of the files that this mount is the home of.
    desk: Mutex<Desk<Option<Guard>>>,
    mine: Mutex<HashMap<FileKey, Arc<Mine>>>,
    /// Handles that have lost their locks, or their file to another member; and the number of handles.
    lost: Mutex<HashSet<u64>>,
    lost_count: AtomicUsize,
    /// The last number of a request.
    number: AtomicU64,
    /// Whether the kernel has the locks of this mount's programs.
    are_kernels: AtomicBool,
    tells: OnceLock<Sender<Told>>,
}

impl Default for Locks {
    fn default() -> Locks {
        Locks {
            desk: Mutex::new(Rank::Desk, Desk::default()),
            mine: Mutex::new(Rank::Locked, HashMap::new()),
            lost: Mutex::new(Rank::Locks, HashSet::new()),
            lost_count: AtomicUsize::new(0),
            number: AtomicU64::new(0),
            are_kernels: AtomicBool::new(false),
            tells: OnceLock::new(),
        }
    }
}

impl Locks {
    /// A number that no earlier daemon gave.
    fn next(&self) -> u64 {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let _ = self.number.compare_exchange(0, now().as_nanos() as u64, Relaxed, Relaxed);
        self.number.fetch_add(2, Relaxed)
    }

    fn tell(&self, told: Told) {
        if let Some(tells) = self.tells.get() {
            let _ = tells.send(told); // Nobody listens when the mount ends.
        }
    }

    /// EIO if locks of this handle are lost, or its claim: its program must not go on as if it had them.
    pub(super) fn check(&self, handle: u64) -> Result<()> {
        match self.lost_count.load(Relaxed) > 0 && self.lost.lock().contains(&handle) {
            true => Err(Error::os(
                libc::EIO,
                "a lock of this open file, or the file itself, is lost to another member",
            )),
            false => Ok(()),
        }
    }

    pub(super) fn lose(&self, handle: u64) {
        let mut lost = self.lost.lock();
        lost.insert(handle);
        self.lost_count.store(lost.len(), Relaxed);
    }

    fn closed(&self, handle: u64) {
        if self.lost_count.load(Relaxed) > 0 {
            let mut lost = self.lost.lock();
            lost.remove(&handle);
            self.lost_count.store(lost.len(), Relaxed);
        }
    }
}

impl Vfs {
    /// Whether the daemon is asked for locks, and not the kernel.
    pub fn grants_locks(&self) -> bool {
        self.cluster().is_some() && !self.locks.are_kernels.load(Relaxed)
    }

    /// Sets the programs between which locks hold; to be called before requests are served.
    pub fn set_locks(&self, locks: crate::Locks) {
        self.locks.are_kernels.store(locks == crate::Locks::Node, Relaxed);
    }

    /// Sets where messages about locks go; to be called before requests are served.
    pub fn tell_of_locks(&self, tells: Sender<Told>) {
        let _ = self.locks.tells.set(tells);
        if let Some(cluster) = self.cluster() {
            self.locks.desk.lock().begin(std::time::Instant::now(), cluster.held());
        }
    }

    /// Has the thread that tends the locks look for what is due.
    pub fn look_at_locks(&self) {
        self.locks.tell(Told::Look);
    }

    /// A number for a wait.
    pub fn lock_number(&self) -> u64 {
        self.locks.next()
    }

    /// The file of a handle and its node.
    fn lockable(&self, handle: u64) -> Result<(FileKey, u64)> {
        match &*self.handle(handle)? {
            Handle::File { id, file, .. } => Ok((file.key, *id)),
            Handle::There(remote) => Ok((remote.key(), remote.id())),
            Handle::Control { .. } | Handle::Dir { .. } => {
                Err(Error::os(libc::ENOLCK, "only regular files are locked on several nodes"))
            }
        }
    }
}
