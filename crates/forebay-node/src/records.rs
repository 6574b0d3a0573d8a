//! What the registry holds of instances and transfers: readable keys, JSON values.
//!
//! State goes one way: *wanted* is written by whoever asks, *actual* by the node that makes it so.
//! A record with a field that this version does not know is refused, not half understood.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_base::{Error, Kind, Result};
pub use forebay_job::plan::{Direction, Mode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

mod options;

pub use options::{Attribute, Existing, Preserve, THREADS_MAX, TransferOptions};

/// Whose an instance or a transfer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

/// How long an instance lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Life {
    /// As long as the scheduler's job.
    Job(JobKey),
    /// Until it is destroyed or expires (seconds since 1970).
    Named { expires: Option<u64> },
}

/// A job of a scheduler. A job that is run again, and another one that has its number, is a new
/// incarnation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobKey {
    pub cluster: String,
    pub id: String,
    /// Counts from 1.
    pub incarnation: u32,
}

impl JobKey {
    /// What names of its instances begin with: one of many below the mount root, so the cluster's name
    /// is only in the record.
    pub fn name(&self) -> String {
        match self.incarnation {
            1 => format!("job-{}", self.id),
            n => format!("job-{}-r{n}", self.id),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Want {
    Here,
    /// Bring home what was asked for and what is dirty, then remove.
    Gone,
    /// The same, but free the node at once: what is not home waits in the tier.
    GoneInHurry,
}

/// The file system that holds a backing store, as the node that was asked sees it. Another node on
/// which the path is on something else has not mounted it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSystem {
    /// Such as `nfs4`.
    pub kind: String,
    /// Such as `server:/export`.
    pub source: String,
    /// Where it is mounted.
    pub at: PathBuf,
}

/// `wanted/instances/ID`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instance {
    pub id: String,
    pub mode: Mode,
    pub owner: Owner,
    pub life: Life,
    pub nodes: Vec<String>,
    pub pool: String,
    /// What its owner may fill, on each node.
    pub capacity: u64,
    /// What each node has granted for it: the capacity and what holds it, in whole grains.
    pub bytes: u64,
    /// Where it shows on each node; `None` for swap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mountpoint: Option<PathBuf>,
    /// Of a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<Backing>,
    /// Of a private space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<SpaceWish>,
    /// Seconds since 1970.
    pub created: u64,
    pub want: Want,
}

/// Who has named something with an end is told in good time: so long before, or in the last quarter of
/// what lives shorter.
const WARN_BEFORE: u64 = 24 * 60 * 60;

impl Instance {
    /// Whether it is a named one whose time is over.
    pub fn has_expired(&self, time: u64) -> bool {
        matches!(self.life, Life::Named { expires: Some(at) } if at <= time)
    }

    /// What is left of its life, in seconds, if it ends by itself and soon.
    pub fn ends_soon(&self, now: u64) -> Option<u64> {
        let Life::Named { expires: Some(at) } = self.life else { return None };
        let (left, lasts) = (at.saturating_sub(now), at.saturating_sub(self.created));
        let soon = self.want == Want::Here && left <= WARN_BEFORE.min(lasts / 4);
        soon.then_some(left)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backing {
    pub path: PathBuf,
    pub on: FileSystem,
    /// Settings of the mount, as `forebay mount` takes them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpaceWish {
    /// By what the capacity is to hold; the pool's choice if not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub means: Option<String>,
    /// Of an image: `ext4` or `xfs`; `ext4` if not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inodes: Option<u64>,
    /// Permissions of its root; 0700 if not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    #[default]
    Making,
    Ready,
    /// It goes: what is not home is brought home first.
    Leaving,
    /// It could not be made or removed; `why` says what is in the way. Tried again.
    Failed,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Making => "making",
            State::Ready => "ready",
            State::Leaving => "leaving",
            State::Failed => "failed",
        }
    }
}

/// `actual/instances/ID/NODE`: what a node has made of an instance. The key goes when nothing of the
/// instance is left there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actual {
    pub state: State,
    /// How the capacity holds, such as `image-ext4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub means: Option<String>,
    /// What is in the way, or what is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Seconds since 1970.
    pub since: u64,
    /// Nothing of it is waited for any more: no transfer of it is taken up from here on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub going: bool,
    /// It goes when its owner has said what becomes of what is not home: nothing else is waited for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undecided: bool,
}

/// `pools/NODE/POOL`: what a node offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    pub capacity: u64,
    /// Capacity is granted in multiples of this.
    pub grain: u64,
    /// By what the capacity of private spaces can hold there, the best first.
    pub means: Vec<String>,
    /// Which file systems an image can hold there, the best first.
    #[serde(default)]
    pub systems: Vec<String>,
    /// Why other means cannot be had.
    #[serde(default)]
    pub lacks: Vec<String>,
    pub swap: bool,
    /// Held by what was removed and is not gone yet; part of what is granted.
    pub leftover_bytes: u64,
    /// Why nothing can be made there now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// `nodes/NODE`: lasts as long as the node daemon's lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    #[serde(default)]
    pub address: Option<String>,
    pub version: String,
    pub pid: u32,
    /// Of the kernel that runs there.
    pub boot: String,
    /// Seconds since 1970.
    pub since: u64,
    /// What its clock said when it told this, seconds since 1970: other nodes compare theirs. 0 if it is not known to be right.
    #[serde(default)]
    pub clock: u64,
}

/// `wanted/nodes/NODE`: there while a node is to take nothing new.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeDrain {
    pub since: u64,
    pub by: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum When {
    Now,
    /// When the instance goes.
    AtEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransferWant {
    Done,
    /// Stopped where it is; what was copied stays.
    Cancelled,
    /// Not to be done at the end any more.
    Revoked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    File,
    Directory,
    List,
    /// A file or a directory, whichever the source is found to be when it is carried.
    Any,
}

/// `wanted/transfers/ID`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    pub id: String,
    pub instance: String,
    /// Who carries it out.
    pub node: String,
    pub direction: Direction,
    pub what: What,
    /// Absolute; of a stage-out as it shows in the instance.
    pub source: PathBuf,
    /// Absolute; of a stage-in as it shows in the instance.
    pub destination: PathBuf,
    pub when: When,
    pub owner: Owner,
    #[serde(default)]
    pub options: TransferOptions,
    pub want: TransferWant,
    /// Seconds since 1970.
    pub created: u64,
    /// Raised by each `resume`.
    #[serde(default)]
    pub attempt: u32,
    /// It was taken up after its instance was told to hurry, which does not stop it then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub after_hurry: bool,
}

impl Transfer {
    /// Whether it was ordered of this instance, and not of an earlier one of the same name.
    pub fn belongs_to(&self, instance: &Instance) -> bool {
        self.instance == instance.id
            && self.owner == instance.owner
            && self.created >= instance.created
    }

    /// The side that is not in the instance.
    pub fn outside(&self) -> &Path {
        match self.direction {
            Direction::In => &self.source,
            Direction::Out => &self.destination,
        }
    }

    pub fn is_of(&self, instance: &str, node: Option<&str>) -> bool {
        self.instance == instance && node.is_none_or(|node| self.node == node)
    }

    /// Whether nothing of it can be of use any more: it is done, or nobody waits for what it left.
    pub fn is_spent(&self, actual: &TransferActual) -> bool {
        let left = self.direction == Direction::Out && self.want != TransferWant::Revoked;
        actual.attempt == self.attempt
            && match actual.state {
                TransferState::Done => true,
                TransferState::Failed | TransferState::Cancelled => !left,
                TransferState::Waiting | TransferState::Running => false,
            }
    }

    /// Of the names in it, which are as long as its user likes.
    pub fn names_bytes(&self) -> usize {
        let paths = self.source.as_os_str().len() + self.destination.as_os_str().len();
        paths + self.options.names_bytes()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransferState {
    /// For its instance, or for its turn.
    Waiting,
    Running,
    Done,
    /// Files are left; the manifest names them.
    Failed,
    Cancelled,
}

impl TransferState {
    pub fn name(self) -> &'static str {
        match self {
            TransferState::Waiting => "waiting",
            TransferState::Running => "running",
            TransferState::Done => "done",
            TransferState::Failed => "failed",
            TransferState::Cancelled => "cancelled",
        }
    }

    pub fn has_ended(self) -> bool {
        matches!(self, TransferState::Done | TransferState::Failed | TransferState::Cancelled)
    }
}

/// `actual/transfers/ID`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferActual {
    pub state: TransferState,
    pub files: u64,
    pub bytes: u64,
    pub files_total: u64,
    pub bytes_total: u64,
    pub failures: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Of its state; seconds since 1970.
    pub since: u64,
    /// The attempt that this is said of.
    #[serde(default)]
    pub attempt: u32,
    /// Files that a stage-in left, at most [`FAILED_NAMED_MAX`]; of a stage-out the manifest has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedFile>,
    /// What was left out on purpose, or could not be taken along: how often.
    #[serde(default)]
    pub noted: u64,
    /// The first of it, at most [`NOTES_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Of its end.
    #[serde(default, skip_serializing_if = "How::is_nothing")]
    pub how: How,
}

/// How the files of a transfer got there, of its last attempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct How {
    /// Files that were there.
    pub kept_files: u64,
    /// Sizes of files that share the blocks of their source.
    pub cloned_bytes: u64,
    /// What the kernel copied, or the file system's server.
    pub in_kernel_bytes: u64,
    /// What was read and written.
    pub copied_bytes: u64,
}

impl How {
    pub fn is_nothing(&self) -> bool {
        *self == How::default()
    }
}

/// They show what kind of thing it is.
pub const NOTES_MAX: usize = 10;

/// With names as long as may be this is a third of what etcd takes in one value.
pub const FAILED_NAMED_MAX: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedFile {
    /// Of the source, from where the transfer begins.
    pub path: String,
    pub why: String,
}

/// One of the lines of `manifest/NODE/INSTANCE/WHO`: bytes that are not home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    pub file: String,
    pub bytes: u64,
    pub why: String,
    pub owner: Owner,
    /// The transfer that was to bring it home; `None` for what is dirty in a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<String>,
    /// Since when it waits, seconds since 1970.
    pub since: u64,
    /// When it is dropped; never, for what is dirty in a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
}

pub mod keys {
    //! The keys, below the prefix of the cluster.

    pub const NODES: &str = "nodes/";
    /// When each node was heard of last, seconds since 1970: unlike `nodes/`, it outlasts the lease.
    pub const HEARD: &str = "heard/";
    pub const POOLS: &str = "pools/";
    pub const LEDGER: &str = "ledger/";
    pub const WANTED_INSTANCES: &str = "wanted/instances/";
    pub const ACTUAL_INSTANCES: &str = "actual/instances/";
    pub const WANTED_TRANSFERS: &str = "wanted/transfers/";
    pub const ACTUAL_TRANSFERS: &str = "actual/transfers/";
    pub const MANIFEST: &str = "manifest/";
    pub const USERS: &str = "users/";
    pub const WANTED: &str = "wanted/";
    pub const WANTED_NODES: &str = "wanted/nodes/";
    pub const JOBS: &str = "wanted/jobs/";
    pub const ACTUAL_JOBS: &str = "actual/jobs/";

    /// All incarnations of a job.
    pub fn jobs_of(cluster: &str, id: &str) -> String {
        format!("{JOBS}{cluster}/{id}/")
    }

    pub fn job(key: &super::JobKey) -> String {
        format!("{}{:06}", jobs_of(&key.cluster, &key.id), key.incarnation)
    }

    /// Of all its nodes.
    pub fn released_all(key: &super::JobKey) -> String {
        format!("{ACTUAL_JOBS}{}/{}/{:06}/", key.cluster, key.id, key.incarnation)
    }

    pub fn released(key: &super::JobKey, node: &str) -> String {
        format!("{}{node}", released_all(key))
    }

    pub fn node(node: &str) -> String {
        format!("{NODES}{node}")
    }

    pub fn heard(node: &str) -> String {
        format!("{HEARD}{node}")
    }

    pub fn node_drain(node: &str) -> String {
        format!("{WANTED_NODES}{node}")
    }

    pub fn pool(node: &str, pool: &str) -> String {
        format!("{POOLS}{node}/{pool}")
    }

    pub fn ledger(node: &str, pool: &str) -> String {
        format!("{LEDGER}{node}/{pool}")
    }

    pub fn user(uid: u32) -> String {
        format!("{USERS}{uid}")
    }

    pub fn wanted_instance(id: &str) -> String {
        format!("{WANTED_INSTANCES}{id}")
    }

    /// Of all nodes.
    pub fn actual_instance_all(id: &str) -> String {
        format!("{ACTUAL_INSTANCES}{id}/")
    }

    pub fn actual_instance(id: &str, node: &str) -> String {
        format!("{ACTUAL_INSTANCES}{id}/{node}")
    }

    pub fn wanted_transfer(id: &str) -> String {
        format!("{WANTED_TRANSFERS}{id}")
    }

    pub fn actual_transfer(id: &str) -> String {
        format!("{ACTUAL_TRANSFERS}{id}")
    }

    /// Of one instance on a node.
    pub fn manifest_of(node: &str, instance: &str) -> String {
        format!("{MANIFEST}{node}/{instance}/")
    }

    /// What a transfer has left, or what is dirty.
    pub fn manifest(node: &str, instance: &str, who: &str) -> String {
        format!("{}{who}", manifest_of(node, instance))
    }
}

/// The longest name of a node, pool or instance: it is part of keys and of file names.
pub const NAME_MAX: usize = 63;

/// Checks a name that becomes part of keys and of file names.
pub fn check_name(what: &str, name: &str) -> Result<()> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let starts = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    match starts && name.len() <= NAME_MAX && name.bytes().all(plain) {
        true => Ok(()),
        false => Err(Error::new(
            Kind::Usage,
            format!(
                "{what} {name:?}: a name begins with a letter or digit, goes on with letters, digits, \
                 '-', '_' and '.', and has at most {NAME_MAX} of them"
            ),
        )),
    }
}

/// Reads a value of the registry.
pub fn read<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T> {
    serde_json::from_slice(value).map_err(|e| {
        let why = "is not what this version writes; are all nodes of one version?";
        Error::new(Kind::Corrupt, format!("registry: {key} {why}")).with_source(e)
    })
}

pub fn written(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("records hold strings and numbers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_be_paths_or_words_of_a_shell_are_refused() {
        for name in ["a", "n1", "job-17.2_x", &"x".repeat(NAME_MAX)] {
            assert!(check_name("instance", name).is_ok(), "{name}");
        }
        for name in ["", ".", "..", "a/b", "-rf", "a b", "a\n", "\u{e4}", &"x".repeat(NAME_MAX + 1)]
        {
            let error = check_name("instance", name).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{name:?}");
        }
    }

    #[test]
    fn a_record_of_another_version_is_refused_and_not_half_understood() {
        let key = JobKey { cluster: "c".into(), id: "7".into(), incarnation: 2 };
        assert_eq!(key.name(), "job-7-r2");
        let life = written(&Life::Job(key.clone()));
        assert_eq!(read::<Life>("k", &life).unwrap(), Life::Job(key));
        let error =
            read::<Backing>("wanted/instances/a", b"{\"path\":\"/p\",\"new\":1}").unwrap_err();
        assert!(error.to_string().contains("wanted/instances/a"), "{error}");
    }
}
