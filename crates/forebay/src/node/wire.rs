//! What is asked of a node daemon, and what it answers. Owners are not in it: the kernel tells who
//! asks.

use std::collections::BTreeMap;
use std::path::PathBuf;

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
    /// Root may make an instance for somebody else.
    #[serde(default)]
    pub uid: Option<u32>,
    #[serde(default)]
    pub gid: Option<u32>,
    #[serde(default)]
    pub expires: Option<u64>,
    /// Without one: the node that is asked.
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

/// Body of `POST /v1/transfers`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewTransfer {
    /// Without one: the instance that one of the paths is in.
    #[serde(default)]
    pub instance: Option<String>,
    #[serde(default)]
    pub node: Option<String>,
    pub direction: Direction,
    /// Without one: what the source is.
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
    /// By node.
    pub actual: BTreeMap<String, Actual>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TransferView {
    #[serde(flatten)]
    pub wanted: Transfer,
    pub actual: Option<TransferActual>,
    /// As of now, if it runs on the node that was asked.
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
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeView {
    pub name: String,
    /// Absent for a node whose daemon is not there.
    pub record: Option<NodeRecord>,
    pub draining: bool,
    pub instances: u64,
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
    #[serde(flatten)]
    pub missing: forebay_node::records::Missing,
}
