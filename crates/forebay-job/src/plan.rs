//! The plan of a job: made once, from the script's text, and stored; no later step reads the script
//! again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Everything that is to be made, filled, staged out and removed for one job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Spaces that are made for the job, and removed with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<Space>,
    /// Named instances that the job uses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uses: Vec<Use>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub creates: Vec<Create>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub destroys: Vec<Destroy>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transfers: Vec<Staging>,
    /// The most nodes: on more nodes bytes would be lost, and the job must not run there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_max: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// A mount that mirrors a backing directory.
    Cache,
    /// Scratch space of the node's own flash.
    Private,
    /// A swap file.
    Swap,
}

impl Mode {
    pub fn name(self) -> &'static str {
        match self {
            Mode::Cache => "cache",
            Mode::Private => "private",
            Mode::Swap => "swap",
        }
    }
}

/// An instance for the job alone, on each of its nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Space {
    /// The name among the job's instances; part of the instance's id.
    pub name: String,
    pub mode: Mode,
    /// `None`: the only pool there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Bytes on each node; with a `total`, on as many nodes as the plan was made for.
    pub bytes: u64,
    /// Bytes on all nodes together, if the directive says that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// The absolute backing directory of a cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<PathBuf>,
    /// The settings of a cache, as `forebay mount` takes them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
    /// The file system of a private space: `ext4` or `xfs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs: Option<String>,
    /// The variables by which the job finds the space; their values come from [`value_of`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<String>,
    /// The line of the directive in the script.
    pub line: u32,
}

impl Space {
    /// The bytes on each of `nodes` nodes.
    pub fn bytes_on(&self, nodes: usize) -> u64 {
        self.total.map_or(self.bytes, |total| total.div_ceil(nodes.max(1) as u64))
    }
}

/// A named instance that was made before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Use {
    pub name: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<String>,
    pub line: u32,
}

/// A named instance to be made, which outlives the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Create {
    pub name: String,
    pub mode: Mode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Bytes on the node, or on each node.
    pub bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<PathBuf>,
    /// The nodes; if empty, the node with most room.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// Seconds from its making to its expiry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_after: Option<u64>,
    pub line: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Destroy {
    pub name: String,
    #[serde(default)]
    pub hurry: bool,
    pub line: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    In,
    Out,
}

impl Direction {
    pub fn name(self) -> &'static str {
        match self {
            Direction::In => "in",
            Direction::Out => "out",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    File,
    Directory,
    List,
}

/// The instance that a transfer fills or empties.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Of {
    /// The name among the job's instances.
    Job(String),
    Persistent(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Nodes {
    First,
    All,
}

/// When a stage-out publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum On {
    /// Only if the job has completed with exit code 0.
    Success,
    Always,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Staging {
    pub direction: Direction,
    /// The kind of source; `None`: the kind that it is found to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<What>,
    pub of: Of,
    /// The path below the root of the instance; empty for the root itself.
    pub inside: PathBuf,
    /// An absolute path; [`at_node`] replaces `%n` in it, all other symbols have been replaced.
    pub outside: PathBuf,
    pub nodes: Nodes,
    pub on: On,
    /// Files that match these patterns are published after all others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last: Vec<String>,
    #[serde(default)]
    pub checksum: bool,
    pub line: u32,
}

impl Plan {
    /// Whether the script only makes or destroys named instances, without a space for the job itself.
    pub fn is_lone(&self) -> bool {
        let makes = !self.creates.is_empty() || !self.destroys.is_empty();
        makes && self.instances.is_empty() && self.uses.is_empty() && self.transfers.is_empty()
    }

    /// The bytes that the pool of each node must have for the job itself.
    pub fn bytes_per_node(&self) -> u64 {
        self.instances.iter().fold(0, |sum, space| sum.saturating_add(space.bytes))
    }
}

/// A path of [`Staging::outside`] on a node: `%n` is its name, `%%` a percent sign.
pub fn at_node(outside: &Path, node: &str) -> PathBuf {
    let text = outside.to_string_lossy();
    let mut path = String::with_capacity(text.len());
    let mut rest = text.as_ref();
    while let Some((before, from)) = rest.split_once('%') {
        path.push_str(before);
        let (for_it, skipped) = match from.chars().next() {
            Some('n') => (node, 1),
            Some('%') => ("%", 1),
            _ => ("%", 0),
        };
        path.push_str(for_it);
        rest = &from[skipped..];
    }
    path.push_str(rest);
    path.into()
}

/// The value of a variable that names an instance. Scripts write `${DW_JOB_STRIPED}out`, so values of
/// Cray's variables end in a slash.
pub fn value_of(variable: &str, mountpoint: &Path) -> String {
    let shown = mountpoint.display();
    match variable.starts_with("DW_") {
        true => format!("{shown}/"),
        false => shown.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_cray_end_in_a_slash() {
        assert_eq!(value_of("DW_JOB_STRIPED", Path::new("/m/a")), "/m/a/");
        assert_eq!(value_of("TMPDIR", Path::new("/m/a")), "/m/a");
    }

    #[test]
    fn a_node_finds_its_own_path() {
        for (outside, path) in [
            ("/pfs/out/%n", "/pfs/out/n1"),
            ("/pfs/100%%/%n.%n/%%n", "/pfs/100%/n1.n1/%n"),
            ("/pfs/%j%", "/pfs/%j%"),
        ] {
            assert_eq!(at_node(Path::new(outside), "n1"), Path::new(path));
        }
    }

    #[test]
    fn a_plan_is_read_as_it_was_written() {
        let staging = Staging {
            direction: Direction::In,
            what: Some(What::Directory),
            of: Of::Job("striped".into()),
            inside: "in".into(),
            outside: "/pfs/in".into(),
            nodes: Nodes::First,
            on: On::Always,
            last: Vec::new(),
            checksum: false,
            line: 3,
        };
        let plan = Plan { transfers: vec![staging], ..Plan::default() };
        let text = serde_json::to_string(&plan).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
    }
}
