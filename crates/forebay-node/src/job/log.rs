//! A file for each job that says what was done for it and what was in the way. The job's owner can read
//! it, and only root can write it.

use std::collections::HashMap;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use forebay_base::lock::{Mutex, Rank};
use forebay_base::{Error, Result};

use super::record::Job;
use crate::closed;

/// The maximum length of a job's file; later lines are not written.
const BYTES_MAX: u64 = 1 << 20;

pub struct Log {
    dir: PathBuf,
    /// The last line of each job; the same line is not written twice in a row.
    last: Mutex<HashMap<String, String>>,
}

impl Log {
    pub fn open(dir: &Path) -> Result<Log> {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(dir);
        made.map_err(|e| Error::io(e, format!("logs of jobs, {}", dir.display())))?;
        Ok(Log { dir: dir.into(), last: Mutex::new(Rank::NodeNotes, HashMap::new()) })
    }

    pub fn path(&self, job: &Job) -> PathBuf {
        self.dir.join(format!("{}-{}.log", job.key.cluster, job.key.id))
    }

    /// Writes a line about a job, if it is new. A log that cannot be written stops nothing.
    pub fn say(&self, job: &Job, what: &str) {
        let name = job.key.name();
        let mut last = self.last.lock();
        if last.get(&name).is_some_and(|said| said == what) {
            return;
        }
        if let Err(error) = self.write(job, what) {
            tracing::warn!("log of job {}: {error}", job.key.id);
        }
        last.insert(name, what.into());
    }

    pub fn forget(&self, job: &Job) {
        self.last.lock().remove(&job.key.name());
    }

    fn write(&self, job: &Job, what: &str) -> std::io::Result<()> {
        let mut file = closed::open_log(&self.path(job), job.owner)?;
        let length = file.metadata()?.len();
        if length > BYTES_MAX {
            return Ok(());
        }
        let lines = what.lines().map(|line| format!("{} {}: {line}\n", stamp(), job.key.name()));
        file.write_all(lines.collect::<String>().as_bytes())
    }
}

/// The present time, such as `2026-11-24 18:40:02Z`.
fn stamp() -> String {
    let seconds = i64::try_from(crate::clock::now()).unwrap_or(i64::MAX);
    // SAFETY: a structure of integers and a pointer, for which zeros are valid.
    let mut at: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both are valid for the call; on failure `at` stays as it is.
    unsafe { libc::gmtime_r(&raw const seconds, &raw mut at) };
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}Z",
        at.tm_year + 1900,
        at.tm_mon + 1,
        at.tm_mday,
        at.tm_hour,
        at.tm_min,
        at.tm_sec
    )
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::job;
    use super::*;

    #[test]
    fn a_job_s_log_says_each_thing_once_and_with_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path()).unwrap();
        let job = job(2);
        ["waits", "waits", "done"].iter().for_each(|what| log.say(&job, what));
        let text = std::fs::read_to_string(log.path(&job)).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].starts_with("20") && lines[0].ends_with("Z job-17-r2: waits"), "{text}");
        assert!(log.path(&job).ends_with("c-17.log"));
    }

    /// A job's number is used again: a job of another user had it before.
    #[test]
    fn a_job_s_log_is_read_by_its_owner_and_written_by_the_daemon_alone() {
        use std::os::unix::fs::{MetadataExt, PermissionsExt};
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path()).unwrap();
        let job = job(2);
        let path = log.path(&job);
        std::fs::write(&path, "another's").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).unwrap();
        log.say(&job, "waits");
        log.say(&job, "done");
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2);
        let made = std::fs::metadata(&path).unwrap();
        assert_eq!(made.uid(), rustix::process::geteuid().as_raw());
        assert_eq!(made.mode() & 0o137, 0, "{:o}", made.mode());
        let mut list = [0; 64];
        let len = rustix::fs::getxattr(&path, "system.posix_acl_access", &mut list).unwrap();
        let uid = job.owner.uid.to_le_bytes();
        let reads = [&2u16.to_le_bytes()[..], &4u16.to_le_bytes(), &uid].concat();
        assert!(list[..len].windows(8).any(|entry| entry == reads), "{:?}", &list[..len]);
    }
}
