//! The keys that members of a store write to the registry: keys are text, values JSON.
//!
//! | key | value | goes when |
//! |---|---|---|
//! | `stores/S` | [`Store`] | never |
//! | `stores/S/members/M` | [`Member`] | a member is taken out for good |
//! | `stores/S/alive/M` | empty | the lease of M's process ends |
//! | `stores/S/partners/M` | [`Partners`] | a member is taken out for good |
//! | `stores/S/fenced/M` | [`Fenced`] | never |
//! | `stores/S/removed/M` | [`Removed`] | never |
//! | `stores/S/claims/FILE` | [`Claim`] | given back |
//! | `stores/S/creates/DIR/M` | empty | given back |
//! | `stores/S/grants/M` | empty | given up, or the lease of M's process ends |
//! | `stores/S/called/M` | empty | M has given its grant up, or the lease of the member that gets no answer of M ends |
//! | `stores/S/given/FILE` | [`Given`] | the lease of the member that gave it back ends |
//! | `stores/S/gate` | [`Gate`] | the lease of the member that renames ends, or the rename is over |
//! | `stores/S/ticks/M` | empty | the lease of M's process ends |
//!
//! Claims and members hang on no lease: the death of a process must never erase what it holds.

use forebay_backing::FileKey;
use serde::{Deserialize, Serialize};

/// The version of the keys and of peers' messages. Members of another version are refused.
pub const PROTOCOL: u32 = 11;

/// A store that members share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    pub protocol: u32,
    /// The file of the store's mark as its first member numbers it: a member that numbers it otherwise would confuse
    /// files.
    pub probe: String,
}

/// One mount of the store: a tier on a node, and where it is reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub node: String,
    /// `HOST:PORT` of the door for its peers.
    pub address: String,
    /// The tier's own number: another tier under the same name is another member.
    pub tier: String,
    /// Rises with each start. A peer that believes an older epoch is refused.
    pub epoch: u64,
    /// Changes each time that the tier has lost bytes that were written there and never synced.
    pub boot: String,
    pub protocol: u32,
    /// The failure domain: copies go to members of other domains. Empty: the node alone.
    #[serde(default)]
    pub domain: String,
    /// How many copies this member wants of the bytes that it acknowledges as durable.
    #[serde(default)]
    pub copies: u8,
    /// The member reads parts of files for others ([`Question::Fetch`](crate::words::Question::Fetch)).
    #[serde(default)]
    pub shares: bool,
    /// Messages to the member go over TLS.
    #[serde(default)]
    pub sealed: bool,
    /// The member's process died, and another member took its files over. The next start removes this.
    #[serde(default)]
    pub taken: Option<Taken>,
    /// The epoch of the first process of the line: since then no member has taken the place of any of its processes,
    /// and each has what the one before had. 0 if written by an older release, which does not say.
    #[serde(default)]
    pub line: u64,
}

#[cfg(test)]
impl Member {
    /// A member in its first life, without optional settings.
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

    /// The epoch up to which no process of this member runs or writes to the store, as its own starts say: a process
    /// that begins has the tier for itself. See [`Fenced`] too.
    pub fn stopped(&self) -> u64 {
        self.living().saturating_sub(1)
    }

    /// The epoch of the member's newest process. A take-over raises `epoch` above it.
    pub fn living(&self) -> u64 {
        self.taken.as_ref().map_or(self.epoch, |taken| taken.epoch)
    }

    /// The epoch since which no member has taken this one's place, for certain: see [`Member::line`].
    pub fn line(&self) -> u64 {
        match self.taken.is_some() || self.line == 0 {
            true => self.epoch,
            false => self.line,
        }
    }
}

/// A take-over. Writing it raises the member's epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// Empty if only some of the files were given up: a member that has copies may still take the rest over.
    pub by: String,
    /// The epoch of the process that was taken over.
    pub epoch: u64,
    /// All files that `by` has copies of are claimed by `by`, and nothing more is in the dead member's name: its
    /// copies are no longer needed.
    pub done: bool,
    /// Members that have claimed what they have copies of, and have lost some copies that they were sent: the rest
    /// is with another partner, or with the dead member's own tier alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub short: Vec<String>,
}

impl Taken {
    pub fn by_nobody(epoch: u64) -> Taken {
        Taken { by: String::new(), epoch, done: false, short: Vec::new() }
    }

    /// Whether `member` lacks some of the copies.
    pub fn is_short(&self, member: &str) -> bool {
        self.short.iter().any(|short| short == member)
    }
}

/// The members that have all durable bytes of a member that are newer than the store's: one of them may take it
/// over. Only the member itself writes this; its next start keeps it, unless the member was taken over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partners {
    /// The member's epoch at the time of writing. Unless it is that of the newest process, this key says nothing.
    pub epoch: u64,
    pub in_sync: Vec<String>,
}

/// A member of that name was removed. Its epochs are not given again: others have heard of them, and if its tier is
/// mounted after all, the tier's bytes are older than later changes of the files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Removed {
    /// The member's last epoch.
    pub epoch: u64,
}

/// No process of the member up to that epoch runs, or writes to the store any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fenced {
    pub epoch: u64,
}

/// The member may hold bytes of the file that are newer than the backing store's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub member: String,
    /// The file's path when it was claimed, below the store's root: for people.
    pub path: String,
    /// The claim's number, if it was taken over: that of the first owner's claim. 0: the revision at which the key
    /// was put.
    #[serde(default)]
    pub number: u64,
    /// The former owners, the first one first. Each may still write to the store until it is known to have stopped.
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
    /// The epoch of the process that may still write.
    pub epoch: u64,
}

/// A member has flushed its newer bytes of the file: members that looked at the store before look again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    pub by: String,
}

/// A directory is being renamed: while this key exists no member claims anything.
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
