//! The registry's records of instances and transfers: readable keys, JSON values.
//!
//! State goes one way: a request writes *wanted*, the node that makes it real writes *actual*.
//! A record with a field that this version does not know is refused, not half understood.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_base::{Error, Kind, Result};
pub use forebay_job::plan::{Direction, Mode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

mod options;

pub use options::{Attribute, Existing, Preserve, THREADS_MAX, TransferOptions};

/// The owner of an instance or a transfer.
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

/// A job of a scheduler. A job that runs again is a new incarnation, and so is another job with the same number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobKey {
    pub cluster: String,
    pub id: String,
    /// Counts from 1.
    pub incarnation: u32,
}

impl JobKey {
    /// The prefix of the names of the job's instances: one of many below the mount root. The cluster's name is only
    /// in the record.
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
    /// Stage out and flush, then remove.
    Gone,
    /// As `Gone`, but free the node at once: files that are not home wait in the tier.
    GoneInHurry,
}

/// The file system that holds a backing store, as the asked node sees it. If the path is on another one on some node,
/// that node has not mounted it.
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
    /// The bytes that the owner may fill, on each node.
    pub capacity: u64,
    /// The bytes that each node has granted: the capacity and its overhead, in whole grains.
    pub bytes: u64,
    /// The mount point on each node; `None` for swap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mountpoint: Option<PathBuf>,
    /// Set for a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<Backing>,
    /// Set for a private space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<SpaceWish>,
    /// Seconds since 1970.
    pub created: u64,
    pub want: Want,
}

/// How long before its end the owner of a named instance is warned; for a shorter life, in its last quarter.
const WARN_BEFORE: u64 = 24 * 60 * 60;

impl Instance {
    /// Whether this is a named instance whose time is over.
    pub fn has_expired(&self, time: u64) -> bool {
        matches!(self.life, Life::Named { expires: Some(at) } if at <= time)
    }

    /// The rest of its life, in seconds, if it ends by itself and soon.
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
    /// The means by which the capacity is to hold; the pool's choice if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub means: Option<String>,
    /// For an image: `ext4` or `xfs`; `ext4` if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inodes: Option<u64>,
    /// The permissions of the root directory; 0700 if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    #[default]
    Making,
    Ready,
    /// The instance goes: files that are not home are brought home first.
    Leaving,
    /// The instance could not be made or removed; `why` gives the reason. Tried again.
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

/// `actual/instances/ID/NODE`: the state of an instance on a node. The key goes when nothing of the instance is left
/// there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actual {
    pub state: State,
    /// The means by which the capacity holds, such as `image-ext4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub means: Option<String>,
    /// The obstacle, or what the instance waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Seconds since 1970.
    pub since: u64,
    /// The instance waits for nothing any more: from here on none of its transfers is taken up again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub going: bool,
    /// The instance waits only for its owner's decision about the files that are not home.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undecided: bool,
}

/// `pools/NODE/POOL`: the offer of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    pub capacity: u64,
    /// Capacity is granted in multiples of this.
    pub grain: u64,
    /// The means by which the capacity of private spaces can hold there, the best first.
    pub means: Vec<String>,
    /// The file systems that an image can hold there, the best first.
    #[serde(default)]
    pub systems: Vec<String>,
    /// Why other means are not available.
    #[serde(default)]
    pub lacks: Vec<String>,
    pub swap: bool,
    /// Bytes held by instances that were removed and are not gone yet; part of the granted bytes.
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
    /// The boot id of the running kernel.
    pub boot: String,
    /// Seconds since 1970.
    pub since: u64,
    /// The time of the node's clock when it wrote this, seconds since 1970: other nodes compare theirs. 0 if it is
    /// not known to be right.
    #[serde(default)]
    pub clock: u64,
}

/// `wanted/nodes/NODE`: exists while a node is to take nothing new.
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
    /// Stopped where it is; copied files stay.
    Cancelled,
    /// No longer to be carried out at the end.
    Revoked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    File,
    Directory,
    List,
    /// A file or a directory, as found when the transfer is carried out.
    Any,
}

/// `wanted/transfers/ID`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transfer {
    pub id: String,
    pub instance: String,
    /// The node that carries it out.
    pub node: String,
    pub direction: Direction,
    pub what: What,
    /// Absolute; for a stage-out the path in the instance.
    pub source: PathBuf,
    /// Absolute; for a stage-in the path in the instance.
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
    /// The transfer was taken up after its instance was told to hurry, and the hurry does not stop it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub after_hurry: bool,
}

impl Transfer {
    /// Whether the transfer was ordered for this instance, and not for an earlier one of the same name.
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

    /// Whether the transfer can be of no use any more: it is done, or its leftovers are not waited for.
    pub fn is_spent(&self, actual: &TransferActual) -> bool {
        let left = self.direction == Direction::Out && self.want != TransferWant::Revoked;
        actual.attempt == self.attempt
            && match actual.state {
                TransferState::Done => true,
                TransferState::Failed | TransferState::Cancelled => !left,
                TransferState::Waiting | TransferState::Running => false,
            }
    }

    /// The length of the names in it, which its user chooses.
    pub fn names_bytes(&self) -> usize {
        let paths = self.source.as_os_str().len() + self.destination.as_os_str().len();
        paths + self.options.names_bytes()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransferState {
    /// Waits for its instance, or for its turn.
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
    /// When the state began; seconds since 1970.
    pub since: u64,
    /// The attempt to which this applies.
    #[serde(default)]
    pub attempt: u32,
    /// Files that a stage-in left, at most [`FAILED_NAMED_MAX`]; for a stage-out they are in the manifest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedFile>,
    /// How many files or attributes were left out on purpose, or could not be taken along.
    #[serde(default)]
    pub noted: u64,
    /// The first of those notes, at most [`NOTES_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Set at its end.
    #[serde(default, skip_serializing_if = "How::is_nothing")]
    pub how: How,
}

/// How the last attempt of a transfer got its files there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct How {
    /// Files that existed already.
    pub kept_files: u64,
    /// Sizes of files that share the blocks of their source.
    pub cloned_bytes: u64,
    /// Bytes that the kernel copied, or the file system's server.
    pub in_kernel_bytes: u64,
    /// Bytes that were read and written.
    pub copied_bytes: u64,
}

impl How {
    pub fn is_nothing(&self) -> bool {
        *self == How::default()
    }
}

/// A few notes show the kind of obstacle.
pub const NOTES_MAX: usize = 10;

/// With names of the maximum length this is a third of what etcd takes in one value.
pub const FAILED_NAMED_MAX: usize = 100;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedFile {
    /// The path below the source of the transfer.
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
    /// The transfer that was to bring the file home; `None` for a dirty file in a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<String>,
    /// Since when the file waits, seconds since 1970.
    pub since: u64,
    /// When the file is dropped; `None` for a dirty file in a cache, which is never dropped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
}

pub mod keys {
    //! The keys, below the prefix of the cluster.

    pub const NODES: &str = "nodes/";
    /// When each node was last heard of, seconds since 1970: unlike `nodes/`, it outlasts the lease.
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

    /// The prefix for all nodes of the job.
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

    /// The prefix for all nodes of the instance.
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

    /// The prefix for one instance on a node.
    pub fn manifest_of(node: &str, instance: &str) -> String {
        format!("{MANIFEST}{node}/{instance}/")
    }

    /// The lines of one transfer, or of a cache's dirty files.
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
