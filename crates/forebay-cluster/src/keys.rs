//! What members of a store write to the registry: keys are text, values JSON.
//!
//! | key | value | goes when |
//! |---|---|---|
//! | `stores/S` | [`Store`] | never |
//! | `stores/S/members/M` | [`Member`] | a member is taken out for good |
//! | `stores/S/alive/M` | empty | the lease of M's process ends |
//! | `stores/S/partners/M` | [`Partners`] | never |
//! | `stores/S/fenced/M` | [`Fenced`] | never |
//! | `stores/S/removed/M` | [`Removed`] | never |
//! | `stores/S/claims/FILE` | [`Claim`] | given back |
//! | `stores/S/creates/DIR/M` | empty | given back |
//! | `stores/S/grants/M` | empty | given up, or the lease of M's process ends |
//! | `stores/S/called/M` | empty | M has given its grant up, or the lease of whoever gets no answer of M ends |
//! | `stores/S/given/FILE` | [`Given`] | the lease of whoever gave it back ends |
//! | `stores/S/gate` | [`Gate`] | the lease of whoever renames ends, or the rename is over |
//!
//! Claims and members hang on no lease: that a process died must never erase what it holds.

use forebay_backing::FileKey;
use serde::{Deserialize, Serialize};

/// The version of the keys and of what peers say. Members of another one are refused.
pub const PROTOCOL: u32 = 9;

/// A store that members share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    pub protocol: u32,
    /// The file of the store's mark as its first member numbers it: who numbers it otherwise would take
    /// files for others.
    pub probe: String,
}

/// One mount of the store: a tier on a node, and where it is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub node: String,
    /// `HOST:PORT` of its peers' door.
    pub address: String,
    /// The tier's own number: another tier under the same name is another member.
    pub tier: String,
    /// Rises with each start. Who believes an older one is refused.
    pub epoch: u64,
    /// Another one each time that its tier has lost what was written there and never synced.
    pub boot: String,
    pub protocol: u32,
    /// What fails together with this member: copies go elsewhere. Empty: its node alone.
    #[serde(default)]
    pub domain: String,
    /// How many copies this member wants of what it acknowledges as durable.
    #[serde(default)]
    pub copies: u8,
    /// It reads parts of files for others ([`Question::Fetch`](crate::words::Question::Fetch)).
    #[serde(default)]
    pub shares: bool,
    /// What is said to it goes over TLS.
    #[serde(default)]
    pub sealed: bool,
    /// Its process died, and another took its files over. Its next start takes this away.
    #[serde(default)]
    pub taken: Option<Taken>,
    /// The epoch of the first of its processes whose place, and the places of all that came after, nobody has taken:
    /// each has what the one before had. 0 in what an older release has written, which does not say.
    #[serde(default)]
    pub line: u64,
}

#[cfg(test)]
impl Member {
    /// In its first life, without anything that it could do without.
    pub fn of(node: &str) -> Member {
        let nothing = String::new;
        Member {
            node: node.into(),
            address: nothing(),
            tier: nothing(),
            epoch: 1,
            boot: nothing(),
            protocol: PROTOCOL,
            domain: nothing(),
            copies: 0,
            shares: false,
            sealed: false,
            taken: None,
            line: 0,
        }
    }
}

impl Member {
    pub fn domain(&self) -> &str {
        if self.domain.is_empty() { &self.node } else { &self.domain }
    }

    /// Up to which epoch nothing of this member's is running or writes to the store, as its own starts say:
    /// who begins has the tier for itself. See [`Fenced`] too.
    pub fn stopped(&self) -> u64 {
        self.living().saturating_sub(1)
    }

    /// The epoch of its newest process. A take-over raises `epoch` above it.
    pub fn living(&self) -> u64 {
        self.taken.as_ref().map_or(self.epoch, |taken| taken.epoch)
    }

    /// Since which epoch nobody has taken its place, for certain: see [`Member::line`].
    pub fn line(&self) -> u64 {
        match self.taken.is_some() || self.line == 0 {
            true => self.epoch,
            false => self.line,
        }
    }
}

/// Raises the member's epoch when it is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// Nobody, if only some of its files were given up: whoever has copies may still take the rest over.
    pub by: String,
    /// The epoch of the process that it was taken from.
    pub epoch: u64,
    /// All of its files that `by` has copies of are claimed by `by`, and nothing more is in its name: nobody needs
    /// copies of it.
    pub done: bool,
    /// Who has claimed what it has copies of, and has lost some of those that it was sent: the rest is with another
    /// partner, or with the member's own tier alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub short: Vec<String>,
}

impl Taken {
    pub fn by_nobody(epoch: u64) -> Taken {
        Taken { by: String::new(), epoch, done: false, short: Vec::new() }
    }

    /// Whether `member` cannot bring the rest.
    pub fn is_short(&self, member: &str) -> bool {
        self.short.iter().any(|short| short == member)
    }
}

/// Who has all durable bytes of a member that are newer than the store's: one of these may take it over.
/// The member alone writes it; its next start keeps it, unless it was taken over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partners {
    /// The member's, at the time of writing. Another one than its newest process's says nothing.
    pub epoch: u64,
    pub in_sync: Vec<String>,
}

/// A member of that name was removed: its epochs are not given again. Others have heard of them, and what its tier
/// has, should that be mounted after all, is older than what was made of it since.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// Its last.
    pub epoch: u64,
}

/// Nothing of the member's processes up to that epoch is running, or writes to the store any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fenced {
    pub epoch: u64,
}

/// The member may hold bytes of the file that are newer than the backing store's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub member: String,
    /// Where the file was when it was claimed, below the store's root: for people.
    pub path: String,
    /// The claim's number, if it was taken over: the one that the first owner's claim had. 0: the revision
    /// at which the key was put.
    #[serde(default)]
    pub number: u64,
    /// From whom it was taken over, the first owner first. Each may still write to the store until it is
    /// known to have stopped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taken_from: Vec<TakenFrom>,
}

impl Claim {
    pub fn new(member: &str, path: &str) -> Claim {
        let (member, path) = (member.into(), path.into());
        Claim { member, path, number: 0, taken_from: Vec::new() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenFrom {
    pub member: String,
    /// Of its process that may still write.
    pub epoch: u64,
}

/// Somebody's newer bytes have come home: who looked at the store before looks again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    pub by: String,
}

/// While it is there nobody claims anything: a directory is being renamed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    pub by: String,
    pub from: String,
}

pub fn file(key: FileKey) -> String {
    format!("{:x}.{:x}", key.ino, key.generation)
}

pub fn parse_file(text: &str) -> Option<FileKey> {
    let (ino, generation) = text.split_once('.')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some(FileKey { ino: hex(ino)?, generation: hex(generation)? })
}
