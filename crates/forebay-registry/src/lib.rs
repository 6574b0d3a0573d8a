//! The registry: the ordered, transactional key-value store through which nodes share facts.
//!
//! Callers see [`Registry`]; [`open`] returns one for an address. Keys are readable text, values are small,
//! and all of a cluster's keys lie below one prefix that callers never see.
//!
//! - R1: revisions rise with each commit, and all changes of a commit have one revision, which no other
//!   commit has.
//! - R2: a commit happens whole or not at all, and only if all its compares hold.
//! - R3: an answered commit survives the death of the process that serves the registry.
//! - R4: a watch returns each change after its revision once, in order, whole commits at a time, or says
//!   that the history no longer reaches back ([`Seen::Compacted`]).
//! - R5: the keys of a lease vanish, in one commit, once the lease was not renewed for its time; never
//!   before the holder's own deadline ([`Lease::remaining`]).
//! - R6: no call waits for longer than its patience, and the error names what it waited for. (The time of a
//!   sync of an embedded registry's storage is added.)
//!
//! The outcome of a commit that ends in an error is unknown: it may have happened. It may also happen later,
//! even after a [`Registry::barrier`], if the network or a member that stands still holds its request back. So
//! keys that are read after a barrier tell what has happened; a caller that has to exclude the rest first changes
//! a key that the commit compares.

mod address;
mod bytes;
mod clock;
pub mod embedded;
mod etcd;
#[cfg(test)]
mod holders;
mod keep;
pub mod limits;
pub mod pem;
#[cfg(any(test, feature = "suite"))]
pub mod suite;
mod types;

use std::sync::Arc;
use std::time::Duration;

pub use address::{Access, Address, Endpoint, Host};
pub use clock::{BootClock, Clock, ManualClock};
pub use embedded::Embedded;
pub use etcd::Etcd;
pub use forebay_base::{Error, Kind, Result};
pub use keep::{LEASE_MIN, believed};
pub use types::{
    Alarm, Change, Commit, Compare, Entry, Event, Events, Health, Identity, LeaseId, Outcome,
    Revision, Seen,
};

/// The default time that a call may take.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A registry, shared by all threads of a process.
///
/// # Errors
///
/// [`Kind::Usage`] for a request that breaks a limit (module [`limits`]); [`Kind::TimedOut`] or
/// [`Kind::Unavailable`] without an answer within the patience; `EACCES` if the registry refuses this user;
/// [`Kind::Lapsed`] for a lease that has ended; [`Kind::WrongTier`], from then on, once the registry is seen
/// to be another one than before, or an older one (restored from a copy). Each names the registry.
pub trait Registry: Send + Sync {
    /// The address without secrets, for messages.
    fn address(&self) -> &str;

    /// A key, and the registry's revision when it was looked up.
    fn get(&self, key: &str) -> Result<(Option<Entry>, Revision)>;

    /// All keys that begin with `prefix`, in order, as of one revision.
    fn range(&self, prefix: &str) -> Result<(Vec<Entry>, Revision)>;

    /// Makes the changes of a commit if all its compares hold (R2).
    fn commit(&self, commit: &Commit) -> Result<Outcome>;

    /// Follows the keys that begin with `prefix`, from the first change after `after` (R4).
    fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>>;

    /// Takes a lease and keeps it: a thread of its own renews it every third of `ttl`. The registry
    /// may grant a longer time, never a shorter one.
    fn lease(&self, ttl: Duration) -> Result<Box<dyn Lease>>;

    /// A revision at least as new as every commit that has returned anywhere.
    fn barrier(&self) -> Result<Revision>;

    /// Drops the history up to `upto`, as far as it still exists; the newest commit stays in it. A watch
    /// that has not returned all dropped changes returns [`Seen::Compacted`]; keys and values are unchanged.
    ///
    /// etcd has one history for all its keys: this affects all users of that etcd, whatever their prefix.
    /// Its members drop the history one after the other, and free the room by and by. If etcd asks for
    /// users, it may want one with the role `root`.
    fn compact(&self, upto: Revision) -> Result<()>;

    /// The cluster's identity, and its revision: a revision lower than one that a caller has seen is that of
    /// a restored snapshot.
    fn cluster(&self) -> Result<Identity>;

    /// The facts for an operator.
    fn health(&self) -> Result<Health>;
}

/// A position in the stream of changes. Each change is returned once.
pub trait Watch: Send {
    /// Waits for changes, at most for `timeout`; if a connection has to be made again or a member is asked
    /// whether it still hears from the others, at most for the patience.
    ///
    /// # Errors
    ///
    /// If the registry could not be asked for longer than the patience. The next call goes on from the same
    /// position, except after [`Kind::WrongTier`]: the changes not yet returned are unknown then.
    fn next(&mut self, timeout: Duration) -> Result<Seen>;
}

/// A lease that is kept until it is given up or dropped; both end it, and its keys, at once.
pub trait Lease: Send + Sync {
    fn id(&self) -> LeaseId;

    /// How long the keys stand for certain, on `CLOCK_BOOTTIME` from when the last successful renewal was
    /// sent. Zero means that other clients may have seen them vanish already; it rises again if a late
    /// renewal succeeds.
    fn remaining(&self) -> Duration;

    /// Whether the registry said that the lease has ended: that is final.
    fn is_gone(&self) -> bool;

    /// Ends the lease, and its keys, now; the keys are gone when this returns without an error.
    fn give_up(self: Box<Self>) -> Result<()>;

    /// Stops the renewals: the keys stand until the lease's time is over.
    fn let_run_out(self: Box<Self>);
}

/// Opens the registry at an address, such as `/var/lib/forebay/registry`, `embedded:///dir` or
/// `etcd://host:2379/forebay`.
///
/// # Errors
///
/// [`Kind::Usage`] for a text that is no address, with an example of one.
pub fn open(address: &str) -> Result<Arc<dyn Registry>> {
    open_at(&address.parse()?, PATIENCE)
}

/// Opens the registry at a parsed address; no call to it takes longer than `patience`.
pub fn open_at(address: &Address, patience: Duration) -> Result<Arc<dyn Registry>> {
    match address {
        Address::Embedded(dir) => Ok(Arc::new(Embedded::open(dir, patience)?)),
        Address::Etcd(endpoint) => Ok(Arc::new(Etcd::new(endpoint, patience)?)),
    }
}
