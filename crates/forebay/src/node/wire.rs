//! The requests to a node daemon and its answers. Requests name no owner: the kernel tells which user
//! asks.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_job::plan::{Create, Plan};
use forebay_node::desk::Known;
use forebay_node::hands::Stage;
use forebay_node::job::Job;
use forebay_node::records::{
    Actual, Direction, Instance, JobKey, Mode, NodeRecord, PoolRecord, Transfer, TransferActual,
    TransferOptions, What, When,
};
use serde::{Deserialize, Serialize};

/// Body of `POST /v1/instances`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewInstance {
    #[serde(default)]
    pub name: Option<String>,
    pub mode: Mode,
    #[serde(default)]
    pub job: Option<JobKey>,
    /// Only root may make an instance for another user.
    #[serde(default)]
    pub uid: Option<u32>,
    #[serde(default)]
    pub gid: Option<u32>,
    #[serde(default)]
    pub expires: Option<u64>,
    /// If empty: the node that is asked.
    #[serde(default)]
    pub nodes: Vec<String>,
    #[serde(default)]
    pub pool: Option<String>,
    pub bytes: u64,
    #[serde(default)]
    pub mountpoint: Option<PathBuf>,
    #[serde(default)]
    pub backing: Option<PathBuf>,
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    #[serde(default)]
    pub means: Option<String>,
    #[serde(default)]
    pub fs: Option<String>,
    #[serde(default)]
    pub inodes: Option<u64>,
    #[serde(default)]
    pub permissions: Option<u32>,
}

/// Body of `POST /v1/instances/ID/destroy`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Destroy {
    pub hurry: bool,
}

/// Body of `POST /v1/instances/ID/extend`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extend {
    /// Seconds since 1970; without a value the instance never expires.
    pub expires: Option<u64>,
}

/// Body of `POST /v1/transfers`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewTransfer {
    /// If absent: the instance that one of the paths is in.
    #[serde(default)]
    pub instance: Option<String>,
    #[serde(default)]
    pub node: Option<String>,
    pub direction: Direction,
    /// If absent: the type that the source has.
    #[serde(default)]
    pub what: Option<What>,
    pub source: PathBuf,
    pub destination: PathBuf,
    pub when: When,
    #[serde(default)]
    pub options: TransferOptions,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InstanceView {
    #[serde(flatten)]
    pub wanted: Instance,
    /// The remaining seconds, if the instance expires soon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_in_seconds: Option<u64>,
    /// The state on each node.
    pub actual: BTreeMap<String, Actual>,
    /// The cache on the asked node, if the request was for this instance alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheView>,
}

/// The state of a cache, as its daemon reports it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CacheView {
    pub daemon: CacheDaemon,
    /// Absent if no daemon reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty_files: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheDaemon {
    Serving,
    Dead,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TransferView {
    #[serde(flatten)]
    pub wanted: Transfer,
    pub actual: Option<TransferActual>,
    /// The present progress, if the transfer runs on the node that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Progress {
    pub files: u64,
    pub bytes: u64,
    pub files_total: u64,
    pub bytes_total: u64,
    pub bytes_per_second: u64,
    pub failures: u64,
    /// `None` from a node daemon of an earlier version.
    #[serde(default)]
    pub stage: Option<Stage>,
    #[serde(default)]
    pub files_per_second: f64,
    /// `None` while the totals still grow, and while nothing moves.
    #[serde(default)]
    pub eta_seconds: Option<f64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeView {
    pub name: String,
    /// Absent for a node whose daemon is away.
    pub record: Option<NodeRecord>,
    pub draining: bool,
    pub instances: u64,
    /// On a drained node: mounts that are members under its name, and have not left yet.
    #[serde(default)]
    pub mounts: Vec<Staying>,
}

/// A mount that has yet to leave.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staying {
    pub mountpoint: String,
    /// Why the mount is still there.
    pub why: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PoolView {
    pub node: String,
    pub name: String,
    #[serde(flatten)]
    pub record: PoolRecord,
    pub granted: u64,
    pub free: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MissingView {
    pub node: String,
    pub instance: String,
    /// From a node daemon of an earlier version the value is absent: it lists only files that nodes recorded.
    #[serde(default = "left")]
    pub known: Known,
    #[serde(flatten)]
    pub missing: forebay_node::records::Missing,
}

fn left() -> Known {
    Known::Left
}

/// Body of `POST /v1/jobs`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewJob {
    pub id: String,
    pub uid: u32,
    pub gid: u32,
    pub plan: Plan,
    /// The pool from which the scheduler has granted room.
    #[serde(default)]
    pub pool: Option<String>,
}

/// Body of `POST /v1/jobs/ID/STEP`; each step takes what it needs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StepOfJob {
    pub nodes: Vec<String>,
    /// The job's exit code; `None` if it is unknown.
    pub exit_code: Option<i32>,
    pub hurry: bool,
    /// The time limit is over: processes that remain are not waited for.
    pub over: bool,
}

/// Body of `POST /v1/persistent`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewPersistent {
    pub uid: u32,
    pub gid: u32,
    pub create: Create,
}

/// The progress of a step of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StepView {
    pub state: StepState,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepState {
    Done,
    Wait,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobView {
    #[serde(flatten)]
    pub job: Job,
    pub instances: Vec<InstanceView>,
    pub transfers: Vec<TransferView>,
    /// The log on the scheduler's machine, which the job's owner can read.
    pub log: PathBuf,
}
