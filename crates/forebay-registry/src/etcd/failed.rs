//! What an error of etcd means.

use crate::Error;

/// The meaning of an error of etcd.
#[derive(Debug)]
pub enum Failed {
    /// The failure may pass.
    Passing(String),
    /// An idle connection had ended, or ended now: another connection is worth a try at once. The
    /// request may have arrived all the same.
    Again(String),
    /// The token is not valid any more.
    Token(String),
    /// The request cannot be done.
    Final(Error),
    /// This member is none that can be used; another one may be.
    Unfit(usize, Error),
    /// The lease does not exist.
    NoLease,
    /// The lease exists already.
    LeaseExists,
    /// The revision is compacted.
    Compacted,
    /// The cluster has no users.
    NoUsers,
    /// The answer is larger than this side takes.
    TooLarge(String),
}
