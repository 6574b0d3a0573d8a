//! Detaching and attaching the tier while the mount serves. The state is kept in the tier, so that
//! a restart of the daemon leaves it as it was; a detach that did not end did not happen.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use forebay_backing::{Error, Kind, Result};
use forebay_engine::{Attachment, KeepDirty, Progress, Report, Status};
use serde_json::{Value, json};

use super::jobs::Outcome;
use super::leave::with_deadline;
use super::{Daemon, saved};
use crate::units::{counted, human_size};
use crate::wire::{JobKind, JobReport, Leave, NewJob};

/// The right to detach, which one job has at a time.
struct Claim(Arc<AtomicBool>);

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

impl Daemon {
    /// The state as a word, for people.
    pub fn attachment_json(&self) -> Value {
        match self.detaching.load(SeqCst) {
            true => json!("detaching"),
            false => json!(self.engine.files.attachment()),
        }
    }

    /// Starts the job that empties and detaches the tier.
    pub fn start_detach(self: &Arc<Daemon>, ask: &Leave) -> Result<Value> {
        let claim = self.claim()?;
        let keep = if ask.keep_dirty { KeepDirty::Yes } else { KeepDirty::No };
        refuse_again(self.engine.files.attachment(), keep)?;
        let timeout = ask.timeout_secs.map(|secs| Duration::from_secs_f64(secs.clamp(0.0, 1e9)));
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let waits_for = self.detach_waits_for(keep);
        let daemon = self.clone();
        let job = NewJob::of(JobKind::Detach, Vec::new());
        let id = self.jobs.start(job, move |_, progress| {
            let _claim = claim;
            daemon.detach(keep, deadline, progress)
        })?;
        Ok(json!({ "id": id, "waits_for": waits_for }))
    }

    /// Attaches the tier; the answer says what is dirty in it.
    pub fn attach(&self) -> Result<Value> {
        let _claim = self.claim()?;
        if self.engine.files.attachment() == Attachment::Attached {
            return Err(usage("the tier is attached already"));
        }
        saved::store_attachment(&self.run, Attachment::Attached)?;
        self.engine.ops.attach();
        tracing::info!("the tier is attached");
        let now = self.engine.ops.status();
        Ok(json!({ "dirty_bytes": now.dirty_bytes, "dirty_files": now.dirty_files }))
    }

    fn claim(&self) -> Result<Claim> {
        match self.detaching.swap(true, SeqCst) {
            false => Ok(Claim(self.detaching.clone())),
            true => Err(usage("a detach is under way: wait for it, or `forebay jobs cancel` it")),
        }
    }

    fn detach_waits_for(&self, keep: KeepDirty) -> Vec<String> {
        let now = self.engine.ops.status();
        let mut waits = Vec::new();
        if keep == KeepDirty::No && now.dirty_files > 0 {
            waits.push(to_be_flushed(&now));
        }
        let past_us = self.engine.files.files_past_us();
        if past_us > 0 {
            let files = counted(past_us, "file");
            waits.push(format!("{files} open past the daemon, until programs close them"));
        }
        waits
    }

    fn detach(&self, keep: KeepDirty, deadline: Option<Instant>, progress: &Progress) -> Outcome {
        let before = self.engine.files.attachment();
        let (report, expired) =
            with_deadline(deadline, progress, || self.engine.ops.detach(keep, progress));
        if let Some(outcome) = self.still_attached(&report, expired) {
            return outcome;
        }
        if let Err(error) = saved::store_attachment(&self.run, self.engine.files.attachment()) {
            // Otherwise a restart would silently undo a detach that was reported as done.
            if before == Attachment::Attached {
                self.engine.ops.attach();
            }
            let (report, exit_code) = (JobReport::from(&report), error.exit_code());
            return Outcome { report, error: Some(error.to_string()), exit_code };
        }
        tracing::info!(kept = keep == KeepDirty::Yes, "the tier is detached");
        Outcome { report: self.with_left(&report), error: None, exit_code: 0 }
    }

    /// The reason why a detach failed.
    fn still_attached(&self, report: &Report, expired: bool) -> Option<Outcome> {
        let (message, exit_code) = if expired {
            ("the time is up: the tier stays attached, nothing is lost", 4)
        } else if report.cancelled {
            ("cancelled: the tier stays attached, nothing is lost", 130)
        } else if !report.failures.is_empty() {
            ("not everything could be flushed: the tier stays attached", 4)
        } else {
            return None;
        };
        Some(Outcome { report: self.with_left(report), error: Some(message.into()), exit_code })
    }

    fn with_left(&self, report: &Report) -> JobReport {
        let left = self.engine.ops.status();
        JobReport {
            left_dirty_files: Some(left.dirty_files),
            left_dirty_bytes: Some(left.dirty_bytes),
            ..JobReport::from(report)
        }
    }
}

/// What is dirty, and has to reach the backing store. A file may be dirty without a byte: by its size, or as a new one.
pub fn to_be_flushed(now: &Status) -> String {
    let files = counted(now.dirty_files, "file");
    let what = match now.dirty_bytes {
        0 => format!("{files} without dirty bytes"),
        bytes => format!("{} dirty in {files}", human_size(bytes)),
    };
    format!("{what} to reach the backing store")
}

/// Refuses a detach of a detached tier, except to flush the dirty bytes that an earlier one kept.
fn refuse_again(now: Attachment, keep: KeepDirty) -> Result<()> {
    match (now, keep) {
        (Attachment::Attached, _) | (Attachment::DetachedKeepDirty, KeepDirty::No) => Ok(()),
        (Attachment::Detached, _) => Err(usage("the tier is detached already")),
        (Attachment::DetachedKeepDirty, KeepDirty::Yes) => {
            Err(usage("the tier is detached already, and keeps what is dirty"))
        }
    }
}

fn usage(what: &str) -> Error {
    Error::new(Kind::Usage, what)
}
