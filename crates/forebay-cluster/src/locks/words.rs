//! The messages of members about locks.

use serde::{Deserialize, Serialize};

use super::{Lock, Range, Space};

/// The owner of a lock, as the asking member numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Of {
    pub space: Space,
    pub owner: u64,
}

/// A request to a file's home. `number` counts a member's requests: of one owner's requests an older one
/// that comes after a newer one is refused ([`LockAnswer::Stale`]), and no request that was given up is
/// carried out later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LockAsk {
    /// `waits`: until the lock is granted. Repeated with the same number it returns the present state.
    Set {
        of: Of,
        lock: Lock,
        number: u64,
        waits: bool,
    },
    Unset {
        of: Of,
        range: Range,
        number: u64,
    },
    /// Asks which lock is in the way of this one.
    Test {
        of: Of,
        lock: Lock,
    },
    /// The waiter of this number gives up.
    Cancel {
        of: Of,
        number: u64,
    },
    /// All locks that the member's programs had of the file, for a home that has begun anew.
    Reclaim {
        held: Vec<(Of, Vec<Lock>)>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LockAnswer {
    /// The request is done; `locks` are all that the owner has of the file now. Of two answers the one with
    /// the greater `change` is newer.
    Held { change: u64, locks: Vec<Lock> },
    /// Another owner has a lock there.
    InTheWay,
    /// The lock is to be granted later.
    Waits,
    /// The waiter no longer waits, and was not granted the lock.
    Cancelled,
    /// The home has begun anew and waits for others to reclaim their locks: ask again.
    Early,
    /// A newer request of this owner came earlier.
    Stale,
    /// The answer to a test.
    By(Option<HeldBy>),
    /// The answer to a reclaim: the owners whose locks are lost.
    Lost(Vec<Of>),
}

/// A lock, and the member of its owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldBy {
    pub member: String,
    pub lock: Lock,
}
