//! What members say to each other of locks.

use serde::{Deserialize, Serialize};

use super::{Lock, Range, Space};

/// Whose a lock is, at the member that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Of {
    pub space: Space,
    pub owner: u64,
}

/// Asked of a file's home. `number` counts what a member asks: of one owner's requests an older one that
/// comes after a newer one is refused ([`LockAnswer::Stale`]), so that none that was given up comes to pass
/// later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LockAsk {
    /// `waits`: until it is granted. Asked again with the same number it says how things stand.
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
    /// Which lock is in the way of this one.
    Test {
        of: Of,
        lock: Lock,
    },
    /// Who waits by this number no longer does.
    Cancel {
        of: Of,
        number: u64,
    },
    /// All that the member's programs had of the file at a home that has begun anew.
    Reclaim {
        held: Vec<(Of, Vec<Lock>)>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LockAnswer {
    /// It is done: all that the owner has of the file now. Of two answers that with the greater `change` is
    /// newer.
    Held { change: u64, locks: Vec<Lock> },
    /// Somebody else has a lock there.
    InTheWay,
    /// It is to be granted later.
    Waits,
    /// Who waited does no longer, and was not granted it.
    Cancelled,
    /// The home has begun anew and waits for others to reclaim theirs: ask again.
    Early,
    /// A newer request of this owner came before.
    Stale,
    /// To a test.
    By(Option<HeldBy>),
    /// To a reclaim: whose locks are lost.
    Lost(Vec<Of>),
}

/// A lock of somebody.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldBy {
    pub member: String,
    pub lock: Lock,
}
