//! The node daemon's records of instances and transfers, with the fields that are used here. Other fields
//! are ignored, so that a newer daemon is understood.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Deserialize)]
pub struct Instance {
    pub id: String,
    pub owner: Owner,
    pub created: u64,
    pub mode: Mode,
    #[serde(default)]
    pub nodes: Vec<String>,
    pub mountpoint: Option<PathBuf>,
    pub backing: Option<Backing>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Cache,
    Private,
    /// Swap, and modes of later versions.
    #[serde(other)]
    Other,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Backing {
    pub path: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    In,
    Out,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    File,
    Directory,
    /// A list, an open type in a job's plan, and types of later versions: DataWarp's functions create none of these.
    #[serde(other)]
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum When {
    Now,
    AtEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Want {
    Done,
    Cancelled,
    Revoked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Waiting,
    Running,
    Done,
    Failed,
    Cancelled,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Transfer {
    /// The ids sort in the order of the orders; those of jobs come first.
    pub id: String,
    pub instance: String,
    pub owner: Owner,
    pub created: u64,
    pub node: String,
    pub direction: Direction,
    pub what: What,
    pub source: PathBuf,
    pub destination: PathBuf,
    pub when: When,
    pub want: Want,
    #[serde(default)]
    pub attempt: u32,
    pub actual: Option<Actual>,
    #[serde(default)]
    pub progress: Option<Progress>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Actual {
    pub state: State,
    #[serde(default)]
    pub files: u64,
    #[serde(default)]
    pub bytes: u64,
    #[serde(default)]
    pub failures: u64,
    pub why: Option<String>,
    #[serde(default)]
    pub attempt: u32,
    /// The failed files of a stage-in; those of a stage-out are in the manifest.
    #[serde(default)]
    pub failed: Vec<FailedFile>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct FailedFile {
    pub path: String,
    pub why: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Progress {
    pub files_total: u64,
    pub failures: u64,
}

/// A line of the manifest.
#[derive(Debug, Clone, Deserialize)]
pub struct Missing {
    pub file: String,
    pub why: String,
    pub transfer: Option<String>,
}

/// The body of `POST /v1/transfers`.
#[derive(Debug, Serialize)]
pub struct NewTransfer<'a> {
    pub instance: &'a str,
    pub node: &'a str,
    pub direction: Direction,
    pub what: What,
    pub source: &'a Path,
    pub destination: &'a Path,
    pub when: When,
    pub options: Options,
}

#[derive(Debug, Default, Serialize)]
pub struct Options {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
}

impl Transfer {
    /// Whether the transfer belongs to this instance, and not to an earlier one of the same name.
    pub fn belongs_to(&self, instance: &Instance) -> bool {
        self.instance == instance.id
            && self.owner == instance.owner
            && self.created >= instance.created
    }

    /// The side that is in the instance.
    pub fn inside(&self) -> &Path {
        match self.direction {
            Direction::In => &self.destination,
            Direction::Out => &self.source,
        }
    }

    /// The side that is on the parallel file system.
    pub fn outside(&self) -> &Path {
        match self.direction {
            Direction::In => &self.source,
            Direction::Out => &self.destination,
        }
    }

    /// The state of the latest attempt.
    pub fn current(&self) -> Option<&Actual> {
        self.actual.as_ref().filter(|actual| actual.attempt == self.attempt)
    }

    pub fn state(&self) -> Option<State> {
        self.current().map(|actual| actual.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_daemon_is_understood() {
        let said = r#"{"id": "s", "owner": {"uid": 1, "gid": 2}, "created": 3, "mode": "swap", "nodes": ["n1"], "backing": null, "news": 1}"#;
        let instance: Instance = serde_json::from_str(said).unwrap();
        assert_eq!((instance.mode, instance.mountpoint), (Mode::Other, None));
    }

    /// A job's transfer among the user's own must not make every call fail.
    #[test]
    fn a_transfer_of_another_kind_is_passed_over() {
        for (said, what) in [("\"file\"", What::File), ("\"any\"", What::Other)] {
            assert_eq!(serde_json::from_str::<What>(said).unwrap(), what);
        }
    }
}
