//! Values of the control socket's JSON. A path is a string; a path that is not UTF-8, which JSON
//! cannot hold, is the array of its bytes.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use forebay_engine::{Failure, FileInfo, Gauges, Report};
use serde::{Deserialize, Serialize};

use crate::ui::plain::Plain;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum WirePath {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<&Path> for WirePath {
    fn from(path: &Path) -> WirePath {
        match path.to_str() {
            Some(text) => WirePath::Text(text.into()),
            None => WirePath::Bytes(path.as_os_str().as_bytes().into()),
        }
    }
}

impl From<WirePath> for PathBuf {
    fn from(path: WirePath) -> PathBuf {
        match path {
            WirePath::Text(text) => text.into(),
            WirePath::Bytes(bytes) => OsString::from_vec(bytes).into(),
        }
    }
}

/// For people: control characters, and bytes that are no text, are escaped.
impl std::fmt::Display for WirePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = match self {
            WirePath::Text(text) => text.as_bytes(),
            WirePath::Bytes(bytes) => bytes,
        };
        for chunk in bytes.utf8_chunks() {
            Plain(chunk.valid()).fmt(f)?;
            chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobKind {
    Flush,
    Fence,
    Durable,
    Prefetch,
    Evict,
    Pin,
    Unpin,
    Purge,
    Drain,
    Umount,
    Detach,
    /// A drain of another member, which leaves the store.
    MemberDrain,
}

impl JobKind {
    pub fn name(self) -> &'static str {
        match self {
            JobKind::Flush => "flush",
            JobKind::Fence => "fence",
            JobKind::Durable => "durable",
            JobKind::Prefetch => "prefetch",
            JobKind::Evict => "evict",
            JobKind::Pin => "pin",
            JobKind::Unpin => "unpin",
            JobKind::Purge => "purge",
            JobKind::Drain => "drain",
            JobKind::Umount => "umount",
            JobKind::Detach => "detach",
            JobKind::MemberDrain => "member-drain",
        }
    }
}

impl JobKind {
    /// Whether the job brings dirty bytes to the backing store.
    pub fn flushes(self) -> bool {
        matches!(self, JobKind::Flush | JobKind::Fence | JobKind::Durable | JobKind::Drain)
    }

    /// Whether the job flushes, or takes the tier away once all is flushed.
    pub fn brings_home(self) -> bool {
        self.flushes() || matches!(self, JobKind::Umount | JobKind::Detach)
    }

    /// The request that starts the job, below `/v1/`, if it is not `POST /v1/jobs`.
    pub fn request(self) -> Option<&'static str> {
        match self {
            JobKind::Umount => Some("umount"),
            JobKind::Detach => Some("detach"),
            JobKind::MemberDrain => Some("cluster/drain"),
            _ => None,
        }
    }

    /// Whether a new daemon goes on with the job if it finds it unfinished: doing it twice does no harm.
    pub fn survives(self) -> bool {
        let flushes = self.flushes() && self != JobKind::Drain;
        flushes || matches!(self, JobKind::Prefetch | JobKind::Pin)
    }
}

/// Body of `POST /v1/jobs`. No paths means everything.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewJob {
    pub kind: JobKind,
    #[serde(default)]
    pub paths: Vec<WirePath>,
    /// A flush: files that match come last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
    /// A flush: leave the bytes to the drain until this time, in seconds since the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_by_unix_secs: Option<f64>,
    /// A prefetch: on all members of the store.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub all_nodes: bool,
    /// A drain of a member: its name. `POST /v1/jobs` does not accept it.
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
}

impl NewJob {
    pub fn of(kind: JobKind, paths: Vec<WirePath>) -> NewJob {
        NewJob { kind, paths, last: None, drain_by_unix_secs: None, all_nodes: false, member: None }
    }
}

/// Body of `POST /v1/umount` and `POST /v1/detach`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Leave {
    pub keep_dirty: bool,
    pub timeout_secs: Option<f64>,
    /// An unmount: unmount even a mount that is in use; programs that use it then get errors.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lazy: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    Running,
    Done,
    Cancelled,
}

/// Answer of `GET /v1/jobs/ID`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Job {
    pub id: u64,
    pub kind: JobKind,
    pub paths: Vec<WirePath>,
    #[serde(default)]
    pub last: Option<String>,
    #[serde(default)]
    pub drain_by_unix_secs: Option<f64>,
    /// The member that is drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    pub state: JobState,
    pub started_unix_secs: f64,
    /// Begun by an earlier daemon of this tier; the figures count from the restart.
    pub resumed: bool,
    pub total_bytes: u64,
    pub done_bytes: u64,
    pub total_files: u64,
    pub done_files: u64,
    pub failed_files: u64,
    pub elapsed_secs: f64,
    /// The rate of the later half of the job's time so far.
    pub rate_bytes_per_sec: u64,
    /// Seconds left at that rate; absent as long as there is no rate.
    pub eta_secs: Option<f64>,
    /// The files that failed so far, while the job runs. Afterwards they are in the report.
    pub failures: Vec<JobFailure>,
    pub report: Option<JobReport>,
    /// Why the job as a whole did not do what was asked.
    pub error: Option<String>,
    /// The exit code of the command that waits for the job.
    pub exit_code: Option<u8>,
    /// Of a job that has ended: the path of the backing store leads elsewhere by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

impl Job {
    /// All bytes that the job has moved, with parts of files that failed, and bytes that another task
    /// moved meanwhile.
    pub fn moved_bytes(&self) -> u64 {
        let reported = self.report.as_ref().map_or(0, |report| report.bytes);
        reported.max(self.done_bytes)
    }

    /// Whether the mount is gone after its unmount: also if bytes stayed dirty and the exit code says so.
    pub fn is_gone(&self) -> bool {
        let ended = self.error.as_ref().is_none_or(|error| error.starts_with("unmounted"));
        ended && !self.report.as_ref().is_some_and(|report| report.cancelled)
    }
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct JobReport {
    pub files: u64,
    /// Of a flush: what was dirty when it began and is home, whoever has copied it.
    pub bytes: u64,
    pub cancelled: bool,
    pub failures: Vec<JobFailure>,
    /// After an unmount or a detach: the files that stayed dirty in the tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_dirty_files: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_dirty_bytes: Option<u64>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobFailure {
    pub path: WirePath,
    pub state: String,
    pub error: String,
}

impl From<&Failure> for JobFailure {
    fn from(failure: &Failure) -> JobFailure {
        JobFailure {
            path: failure.path.as_path().into(),
            state: failure.state.into(),
            error: failure.error.clone(),
        }
    }
}

impl From<&Report> for JobReport {
    fn from(report: &Report) -> JobReport {
        JobReport {
            files: report.files,
            bytes: report.bytes,
            cancelled: report.cancelled,
            failures: report.failures.iter().map(JobFailure::from).collect(),
            ..JobReport::default()
        }
    }
}

/// One element of the answer of `GET /v1/files`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct File {
    pub path: WirePath,
    pub size: u64,
    pub cached_bytes: u64,
    pub dirty_bytes: u64,
    pub pinned: bool,
    pub state: String,
    pub dirty_age_secs: Option<f64>,
    pub error: Option<String>,
    /// The file that holds its bytes, in the tier's directory.
    pub shadow: String,
    /// Absent if no bytes of the file are to have copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<Copies>,
}

/// How many other members have the newest acknowledged bytes of a dirty file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copies {
    /// The number of members that certainly have them.
    pub members: u64,
    pub wanted: u64,
}

/// One element of the answer of `GET /v1/cluster/missing`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MissingFile {
    #[serde(flatten)]
    pub file: forebay_cluster::member::Missing,
    /// Its bytes that are not on the store, and their age, as far as a member with these bytes could be asked.
    pub bytes: Option<u64>,
    pub age_secs: Option<f64>,
    /// The member that reports this: the file's own, or one that has copies.
    pub said_by: Option<String>,
}

impl From<FileInfo> for File {
    fn from(info: FileInfo) -> File {
        File {
            path: info.path.as_path().into(),
            size: info.size,
            cached_bytes: info.cached_bytes,
            dirty_bytes: info.dirty_bytes,
            pinned: info.pinned,
            state: info.state.into(),
            dirty_age_secs: info.dirty_age_secs,
            error: info.error,
            shadow: info.shadow,
            copies: None,
        }
    }
}

/// The part of `GET /v1/cluster` about the daemon of a live member.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MemberView {
    pub version: String,
    pub dirty_bytes: u64,
    pub dirty_files: u64,
    pub oldest_dirty_age_secs: f64,
    pub conflicted_files: u64,
    /// Files whose newest acknowledged bytes are on fewer members than wanted.
    pub uncopied_files: u64,
    /// The registry's revision up to which the member has followed it.
    pub revision: Option<u64>,
    /// Why the daemon does not answer.
    pub error: Option<String>,
}

impl MemberView {
    /// Reads the answer of `GET /v1/status`.
    pub fn of(status: &serde_json::Value) -> MemberView {
        let revision = status["cluster"]["revision"].as_u64();
        MemberView { revision, ..MemberView::deserialize(status).unwrap_or_default() }
    }

    /// The number of changes of the registry, up to `newest`, that the member has not seen.
    pub fn lag(&self, newest: u64) -> Option<u64> {
        self.revision.map(|revision| newest.saturating_sub(revision))
    }

    pub fn failed(error: &forebay_backing::Error) -> MemberView {
        MemberView { error: Some(error.to_string()), ..MemberView::default() }
    }
}

/// How far a daemon is from its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    #[default]
    Serving,
    /// It drains, and then unmounts.
    Leaving,
    /// The mount is gone; it drains, and then ends.
    Unmounted,
}

impl Phase {
    /// Reads the answer of `GET /v1/status`.
    pub fn of(status: &serde_json::Value) -> Phase {
        Phase::deserialize(&status["phase"]).unwrap_or_default()
    }
}

/// The fields of `GET /v1/status` that commands read; the answer has more.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct StatusView {
    pub pid: u32,
    pub phase: Phase,
    pub backing: String,
    /// Where the bytes of the backing store are, if not at its path.
    pub backing_astray: Option<String>,
    pub policy: String,
    pub passthrough: String,
    /// Absent in the moment before the mount serves.
    pub transport: Option<String>,
    pub uptime_secs: f64,
    /// The number of other tiers on the tier's file system.
    pub tier_shared_with: u64,
    #[serde(flatten)]
    pub gauges: Gauges,
    pub attachment: String,
    pub troubles: Vec<JobFailure>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_survive_json_whatever_their_bytes() {
        for bytes in [b"plain".as_slice(), "umlaut-\u{e4}".as_bytes(), b"not-\xff-utf8"] {
            let path = PathBuf::from(OsString::from_vec(bytes.into()));
            let json = serde_json::to_string(&WirePath::from(path.as_path())).unwrap();
            let back: WirePath = serde_json::from_str(&json).unwrap();
            assert_eq!(PathBuf::from(back), path);
        }
    }

    #[test]
    fn a_name_commands_no_terminal() {
        let shown = |bytes: &[u8]| {
            let path = PathBuf::from(OsString::from_vec(bytes.into()));
            WirePath::from(path.as_path()).to_string()
        };
        assert_eq!(shown("\u{e4}/b c".as_bytes()), "\u{e4}/b c");
        assert_eq!(shown(b"two\nlines\x1b[2J"), "two\\nlines\\u{1b}[2J");
        assert_eq!(shown(b"not-\xff-utf8"), "not-\\xff-utf8");
    }
}
