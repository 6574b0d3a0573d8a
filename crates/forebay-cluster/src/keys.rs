//! What members of a store write to the registry: keys are text, values JSON.
//!
//! | key | value | goes when |
//! |---|---|---|
//! | `stores/S` | [`Store`] | never |
//! | `stores/S/members/M` | [`Member`] | a member is taken out for good |
//! | `stores/S/alive/M` | empty | the lease of M's process ends |
//! | `stores/S/claims/FILE` | [`Claim`] | given back |
//! | `stores/S/creates/DIR/M` | empty | given back |
//! | `stores/S/given/FILE` | [`Given`] | the lease of whoever gave it back ends |
//! | `stores/S/gate` | [`Gate`] | the lease of whoever renames ends, or the rename is over |
//!
//! Claims and members hang on no lease: that a process died must never erase what it holds.

use forebay_backing::FileKey;
use serde::{Deserialize, Serialize};

/// The version of the keys and of what peers say. Members of another one are refused.
pub const PROTOCOL: u32 = 1;

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
    /// The machine's boot id at its last start.
    pub boot: String,
    pub protocol: u32,
}

/// The member may hold bytes of the file that are newer than the backing store's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub member: String,
    /// Where the file was when it was claimed, below the store's root: for people.
    pub path: String,
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
