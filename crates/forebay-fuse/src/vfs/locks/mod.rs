//! Locks of files that several nodes share: flock's, and the record locks of fcntl.
//!
//! A file's home has its table of locks ([`Desk`]). This mount is the home of some files, and asks the homes
//! of others; what it asks about its own it asks in the same way (`asking`). It remembers what its own
//! programs have, by file ([`Mine`]), so that a close of a file without locks asks nobody, and so that a
//! home which has begun anew can be given its table again (`reclaim`). What programs of other members ask
//! comes by `home`.
//!
//! Without other members the kernel has the locks, and nothing here is called. The same is so of this mount's own programs
//! where locks are its node's: then this is for those of other members alone.

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

/// What asking for a lock came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Came {
    Granted,
    /// It is to be granted later.
    Waits,
    /// Who waited does no longer, and does not have it.
    Cancelled,
}

/// What whoever tends the locks is told.
#[derive(Debug)]
pub enum Told {
    /// Who waits here by this number is granted what it waited for.
    Granted(u64),
    /// The same of a program of another member.
    GrantedThere(Waiter),
    /// A member is dead, or has begun anew.
    Ended(String),
    /// There is something to come back to.
    Look,
}

pub struct Locks {
    /// Of the files that this mount is the home of.
    desk: Mutex<Desk<Option<Guard>>>,
    mine: Mutex<HashMap<FileKey, Arc<Mine>>>,
    /// Handles whose locks are gone, or whose file is another's, and how many they are.
    lost: Mutex<HashSet<u64>>,
    lost_count: AtomicUsize,
    /// The last number of a request.
    number: AtomicU64,
    /// The kernel has those of this mount's programs.
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

    /// EIO if locks of this handle are gone, or its claim: nobody may go on as if it had them.
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
    /// Whether locks are asked of us, and not of the kernel.
    pub fn grants_locks(&self) -> bool {
        self.cluster().is_some() && !self.locks.are_kernels.load(Relaxed)
    }

    /// Between whose programs locks hold; to be called before anybody is served.
    pub fn set_locks(&self, locks: crate::Locks) {
        self.locks.are_kernels.store(locks == crate::Locks::Node, Relaxed);
    }

    /// Who is told what happens to locks; to be called before anybody is served.
    pub fn tell_of_locks(&self, tells: Sender<Told>) {
        let _ = self.locks.tells.set(tells);
        if let Some(cluster) = self.cluster() {
            self.locks.desk.lock().begin(std::time::Instant::now(), cluster.held());
        }
    }

    /// Has whoever tends the locks look when something is due.
    pub fn look_at_locks(&self) {
        self.locks.tell(Told::Look);
    }

    /// A number for who waits.
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
