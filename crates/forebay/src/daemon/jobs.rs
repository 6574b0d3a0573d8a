//! Long operations on behalf of a client: each runs in a thread of its own and can be watched and
//! cancelled. At most [`RUNNING_MAX`] run at once and the last [`FINISHED_MAX`] are remembered.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use forebay_backing::{Error, Kind, Result};
use forebay_engine::Progress;

use crate::wire::{Job, JobKind, JobReport, JobState};

/// A job is a thread with buffers of its own; more at once would only share the same store.
const RUNNING_MAX: usize = 8;

/// A client polls within seconds; this is for a person who looks later.
const FINISHED_MAX: usize = 64;

/// How a job ended.
#[derive(Debug, Default)]
pub struct Outcome {
    pub report: JobReport,
    pub error: Option<String>,
    pub exit_code: u8,
}

#[derive(Default)]
pub struct Jobs {
    table: Mutex<Table>,
    changed: Condvar,
}

#[derive(Default)]
struct Table {
    last_id: u64,
    entries: BTreeMap<u64, Entry>,
}

struct Entry {
    kind: JobKind,
    progress: Arc<Progress>,
    started: Instant,
    ended: Option<(Instant, Outcome)>,
    /// A view was taken that tells how it ended ...
    told: bool,
    /// ... and was sent.
    seen: bool,
}

impl Jobs {
    /// Starts a job and returns its id.
    pub fn start<W>(self: &Arc<Jobs>, kind: JobKind, work: W) -> Result<u64>
    where
        W: FnOnce(u64, &Progress) -> Outcome + Send + 'static,
    {
        let progress = Arc::new(Progress::default());
        let id = self.admit(kind, progress.clone())?;
        let jobs = self.clone();
        let run = move || {
            let outcome = work(id, &progress);
            jobs.end(id, outcome);
        };
        let spawned = thread::Builder::new().name(format!("job-{id}")).spawn(run);
        if let Err(e) = spawned {
            self.lock().entries.remove(&id);
            return Err(Error::io(e, format!("{} job", kind.name())));
        }
        Ok(id)
    }

    pub fn view(&self, id: u64) -> Option<Job> {
        let mut table = self.lock();
        let entry = table.entries.get_mut(&id)?;
        entry.told = entry.ended.is_some();
        Some(entry.view(id))
    }

    /// To be called once the last view of a job has left for its client.
    pub fn mark_seen(&self, id: u64) {
        if let Some(entry) = self.lock().entries.get_mut(&id) {
            entry.seen = entry.told;
        }
        self.changed.notify_all();
    }

    pub fn views(&self) -> Vec<Job> {
        self.lock().entries.iter().map(|(id, entry)| entry.view(*id)).collect()
    }

    /// Asks a job to stop at its next safe point. False if there is none.
    pub fn cancel(&self, id: u64) -> bool {
        let table = self.lock();
        let entry = table.entries.get(&id);
        if let Some(entry) = entry {
            entry.progress.cancel();
        }
        entry.is_some()
    }

    /// Waits until somebody has seen how a job ended, so that the daemon does not vanish under a
    /// client that waits for its own unmount.
    pub fn wait_seen(&self, id: u64, patience: Duration) {
        let waiting = |table: &mut Table| table.entries.get(&id).is_some_and(|entry| !entry.seen);
        let waited = self.changed.wait_timeout_while(self.lock(), patience, waiting);
        drop(waited.expect("no job panics with the table locked"));
    }

    fn admit(&self, kind: JobKind, progress: Arc<Progress>) -> Result<u64> {
        let mut table = self.lock();
        let running = table.entries.values().filter(|entry| entry.ended.is_none()).count();
        // Unmounting must not wait behind what it would end.
        if running >= RUNNING_MAX && kind != JobKind::Umount {
            let message = format!("{running} jobs are running, the most allowed; try again later");
            return Err(Error::new(Kind::Unavailable, message));
        }
        table.last_id += 1;
        let id = table.last_id;
        let started = Instant::now();
        table
            .entries
            .insert(id, Entry { kind, progress, started, ended: None, told: false, seen: false });
        Ok(id)
    }

    fn end(&self, id: u64, outcome: Outcome) {
        let mut table = self.lock();
        if let Some(entry) = table.entries.get_mut(&id) {
            entry.ended = Some((Instant::now(), outcome));
        }
        table.forget();
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no job panics with the table locked")
    }
}

impl Table {
    fn forget(&mut self) {
        let ended: Vec<u64> =
            self.entries.iter().filter(|(_, e)| e.ended.is_some()).map(|(id, _)| *id).collect();
        for id in ended.iter().take(ended.len().saturating_sub(FINISHED_MAX)) {
            self.entries.remove(id);
        }
    }
}

impl Entry {
    fn view(&self, id: u64) -> Job {
        let end = self.ended.as_ref().map_or_else(Instant::now, |(at, _)| *at);
        let elapsed = end.duration_since(self.started).as_secs_f64();
        let outcome = self.ended.as_ref().map(|(_, outcome)| outcome);
        let (total, done) =
            (self.progress.total_bytes.load(Relaxed), self.progress.done_bytes.load(Relaxed));
        Job {
            id,
            kind: self.kind,
            state: match outcome {
                None => JobState::Running,
                Some(outcome) if outcome.report.cancelled => JobState::Cancelled,
                Some(_) => JobState::Done,
            },
            total_bytes: total,
            done_bytes: done,
            total_files: self.progress.total_files.load(Relaxed),
            done_files: self.progress.done_files.load(Relaxed),
            failed_files: self.progress.failed_files.load(Relaxed),
            elapsed_secs: elapsed,
            eta_secs: outcome.is_none().then(|| eta(total, done, elapsed)).flatten(),
            report: outcome.map(|outcome| outcome.report.clone()),
            error: outcome.and_then(|outcome| outcome.error.clone()),
            exit_code: outcome.map(|outcome| outcome.exit_code),
        }
    }
}

/// Seconds left at the average rate so far.
fn eta(total: u64, done: u64, elapsed: f64) -> Option<f64> {
    let left = total.saturating_sub(done) as f64;
    (done > 0 && elapsed > 0.0).then(|| left * elapsed / done as f64)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn wait_end(jobs: &Jobs, id: u64) -> Job {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let job = jobs.view(id).unwrap();
            if job.state != JobState::Running {
                return job;
            }
            assert!(Instant::now() < deadline, "the job does not end");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_job_is_watched_and_its_outcome_kept() {
        let jobs = Arc::new(Jobs::default());
        let (go, gate) = mpsc::channel::<()>();
        let id = jobs
            .start(JobKind::Flush, move |_, progress| {
                progress.total_bytes.store(100, Relaxed);
                progress.done_bytes.store(50, Relaxed);
                gate.recv().unwrap();
                let report = JobReport { files: 3, ..JobReport::default() };
                Outcome { report, exit_code: 1, ..Outcome::default() }
            })
            .unwrap();
        let running = jobs.view(id).unwrap();
        assert_eq!((running.state, running.exit_code), (JobState::Running, None));
        go.send(()).unwrap();
        let ended = wait_end(&jobs, id);
        assert_eq!((ended.report.unwrap().files, ended.exit_code), (3, Some(1)));
        jobs.mark_seen(id);
        let start = Instant::now();
        jobs.wait_seen(id, Duration::from_secs(60));
        assert!(start.elapsed() < Duration::from_secs(30), "it was seen");
    }

    #[test]
    fn the_number_that_runs_and_the_number_remembered_are_bounded() {
        let jobs = Arc::new(Jobs::default());
        let wait_cancel = |_, progress: &Progress| {
            while !progress.is_cancelled() {
                thread::sleep(Duration::from_millis(1));
            }
            let report = JobReport { cancelled: true, ..JobReport::default() };
            Outcome { report, exit_code: 130, ..Outcome::default() }
        };
        let ids: Vec<u64> =
            (0..RUNNING_MAX).map(|_| jobs.start(JobKind::Flush, wait_cancel).unwrap()).collect();
        let refused = jobs.start(JobKind::Flush, wait_cancel).unwrap_err();
        assert_eq!(refused.kind(), Kind::Unavailable);
        for id in ids {
            assert!(jobs.cancel(id));
            assert_eq!(wait_end(&jobs, id).state, JobState::Cancelled);
        }
        for _ in 0..FINISHED_MAX + 5 {
            let id = jobs.start(JobKind::Evict, |_, _| Outcome::default()).unwrap();
            wait_end(&jobs, id);
        }
        assert_eq!(jobs.views().len(), FINISHED_MAX);
        assert!(!jobs.cancel(1), "forgotten");
    }
}
