//! Long operations for clients: each runs in a thread of its own and can be watched and cancelled. At
//! most [`RUNNING_MAX`] run at once, and the last [`FINISHED_MAX`] are remembered. The list is kept in
//! the tier, too: the next daemon goes on with jobs that were unfinished when this one ended.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use forebay_backing::{Error, Kind, Result};
use forebay_engine::Progress;

use super::eta::{Left, Pace, Point};
use forebay_base::folder::Folder;
use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank, sleep};

use super::saved::{self, Saved, SavedJob};
use crate::moment::unix_secs;
use crate::wire::{Job, JobKind, JobReport, JobState, NewJob};

/// Each job has a thread and buffers; more jobs at once would only share the same store.
const RUNNING_MAX: usize = 8;

/// The length of the list of finished jobs: a client polls within seconds, but people look later.
const FINISHED_MAX: usize = 64;

/// The pause between two measurements of running jobs.
const MEASURE_EVERY: Duration = Duration::from_millis(200);

/// The time that jobs get to stop before the daemon ends without them.
const FREEZE_PATIENCE: Duration = Duration::from_secs(5);

/// Failures that are kept of a job that ended before the daemon was restarted.
const FAILURES_SAVED: usize = 100;

/// The result of a job.
#[derive(Debug, Default)]
pub struct Outcome {
    pub report: JobReport,
    pub error: Option<String>,
    pub exit_code: u8,
}

impl Outcome {
    fn of_a_bug() -> Outcome {
        let error = Some("the job failed by a bug; see the daemon's log".to_string());
        Outcome { report: JobReport::default(), error, exit_code: 1 }
    }
}

pub struct Jobs {
    table: Mutex<Table>,
    changed: Condvar,
}

#[derive(Default)]
struct Table {
    last_id: u64,
    entries: BTreeMap<u64, Entry>,
    /// The folder of the list; `None` in tests.
    run: Option<Arc<Folder>>,
    /// The daemon is ending: a job that stops now has not ended, and the next daemon goes on with it.
    frozen: bool,
    /// A thread measures the pace.
    measured: bool,
}

struct Entry {
    asked: NewJob,
    progress: Arc<Progress>,
    started: Instant,
    started_unix_secs: f64,
    origin: Origin,
    pace: Pace,
    ended: Option<Box<Job>>,
    /// A view that shows the end was taken.
    told: bool,
    /// A view that shows the end was sent to a client.
    seen: bool,
}

/// The daemon that was asked for a job.
#[derive(Clone, Copy, PartialEq)]
pub enum Origin {
    This,
    Earlier,
}

impl Jobs {
    /// The jobs that an earlier daemon left in `run`: ended ones are remembered, unfinished ones are
    /// returned, to be [resumed](Jobs::resume).
    pub fn load(run: Arc<Folder>) -> (Arc<Jobs>, Vec<SavedJob>) {
        let Saved { last_id, jobs } = saved::load(&run);
        let (ended, unfinished): (Vec<_>, Vec<_>) =
            jobs.into_iter().partition(|job| job.ended.is_some());
        let entries = ended.into_iter().map(|job| (job.id, Entry::of_saved(job))).collect();
        let table = Table { last_id, entries, run: Some(run), ..Table::default() };
        (Arc::new(Jobs::with(table)), unfinished)
    }

    fn with(table: Table) -> Jobs {
        Jobs { table: Mutex::new(Rank::Jobs, table), changed: Condvar::new() }
    }

    /// Starts a job and returns its id.
    pub fn start<W>(self: &Arc<Jobs>, asked: NewJob, work: W) -> Result<u64>
    where
        W: FnOnce(u64, &Arc<Progress>) -> Outcome + Send + 'static,
    {
        let progress = Arc::new(Progress::default());
        let kind = asked.kind;
        let id = self.admit(asked, progress.clone())?;
        self.spawn(id, kind, progress, work)?;
        Ok(id)
    }

    /// Goes on with a job of an earlier daemon, under its id.
    pub fn resume<W>(self: &Arc<Jobs>, job: SavedJob, work: W) -> Result<()>
    where
        W: FnOnce(u64, &Arc<Progress>) -> Outcome + Send + 'static,
    {
        let progress = Arc::new(Progress::default());
        let (id, kind) = (job.id, job.asked.kind);
        let mut entry = Entry::new(job.asked, progress.clone(), Origin::Earlier);
        entry.started_unix_secs = job.started_unix_secs;
        self.lock().entries.insert(id, entry);
        self.spawn(id, kind, progress, work)
    }

    fn spawn<W>(
        self: &Arc<Jobs>,
        id: u64,
        kind: JobKind,
        progress: Arc<Progress>,
        work: W,
    ) -> Result<()>
    where
        W: FnOnce(u64, &Arc<Progress>) -> Outcome + Send + 'static,
    {
        let jobs = self.clone();
        let run = move || {
            forebay_engine::run_anywhere(); // The requesting thread may be bound to processors.
            // A panic must not leave a job that never ends; the log has the panic.
            let outcome = catch_unwind(AssertUnwindSafe(|| work(id, &progress)));
            jobs.end(id, outcome.unwrap_or_else(|_| Outcome::of_a_bug()));
        };
        let spawned = thread::Builder::new().name(format!("job-{id}")).spawn(run);
        if let Err(e) = spawned {
            self.lock().entries.remove(&id);
            return Err(Error::io(e, format!("{} job", kind.name())));
        }
        self.measure();
        Ok(())
    }

    /// Measures the pace of the jobs while some are running.
    fn measure(self: &Arc<Jobs>) {
        if std::mem::replace(&mut self.lock().measured, true) {
            return;
        }
        let jobs = self.clone();
        let watch = move || {
            while jobs.measure_once() {
                sleep(MEASURE_EVERY);
            }
        };
        if thread::Builder::new().name("job-pace".into()).spawn(watch).is_err() {
            self.lock().measured = false;
        }
    }

    fn measure_once(&self) -> bool {
        let mut table = self.lock();
        let mut running = false;
        for entry in table.entries.values_mut().filter(|entry| entry.ended.is_none()) {
            running = true;
            entry.measure();
        }
        table.measured = running;
        running
    }

    pub fn view(&self, id: u64) -> Option<Job> {
        let mut table = self.lock();
        let entry = table.entries.get_mut(&id)?;
        entry.told = entry.ended.is_some();
        Some(entry.view(id))
    }

    /// Must be called once the last view of a job has been sent to its client.
    pub fn mark_seen(&self, id: u64) {
        if let Some(entry) = self.lock().entries.get_mut(&id) {
            entry.seen = entry.told;
        }
        self.changed.notify_all();
    }

    pub fn views(&self) -> Vec<Job> {
        self.lock().entries.iter().map(|(id, entry)| entry.view(*id)).collect()
    }

    /// Asks a job to stop at its next safe point. False if there is no such job.
    pub fn cancel(&self, id: u64) -> bool {
        let table = self.lock();
        let entry = table.entries.get(&id);
        if let Some(entry) = entry {
            entry.progress.cancel();
        }
        entry.is_some()
    }

    /// Stops all jobs except unmounts, without recording an end: the next daemon goes on with them.
    pub fn freeze(&self) {
        let mut table = self.lock();
        table.frozen = true;
        table.entries.values().filter(|e| e.is_in_the_way()).for_each(|e| e.progress.cancel());
        let busy = |table: &mut Table| table.entries.values().any(Entry::is_in_the_way);
        drop(self.changed.wait_timeout_while(table, FREEZE_PATIENCE, busy));
    }

    /// Waits until a client has seen how a job ended, so that the daemon does not vanish while a client
    /// waits for its own unmount.
    pub fn wait_seen(&self, id: u64, patience: Duration) {
        let unseen = |table: &Table| table.entries.get(&id).is_some_and(|entry| !entry.seen);
        self.wait_while(patience, unseen);
    }

    /// Waits likewise for all clients that asked for an unmount; some of them may have gone.
    pub fn wait_all_seen(&self, patience: Duration) {
        let unseen = |entry: &Entry| entry.asked.kind == JobKind::Umount && !entry.seen;
        self.wait_while(patience, |table| table.entries.values().any(unseen));
    }

    fn wait_while(&self, patience: Duration, unseen: impl Fn(&Table) -> bool) {
        let waiting = |table: &mut Table| unseen(table);
        drop(self.changed.wait_timeout_while(self.lock(), patience, waiting));
    }

    fn admit(&self, asked: NewJob, progress: Arc<Progress>) -> Result<u64> {
        let mut table = self.lock();
        let running = table.entries.values().filter(|entry| entry.ended.is_none()).count();
        // An unmount must not wait for jobs that it would end.
        if running >= RUNNING_MAX && asked.kind != JobKind::Umount {
            let message = format!("{running} jobs are running, the most allowed; try again later");
            return Err(Error::new(Kind::Unavailable, message));
        }
        table.last_id += 1;
        let id = table.last_id;
        let survives = asked.kind.survives();
        table.entries.insert(id, Entry::new(asked, progress, Origin::This));
        if survives {
            table.save();
        }
        Ok(id)
    }

    fn end(&self, id: u64, outcome: Outcome) {
        let mut table = self.lock();
        let mut survives = false;
        if let Some(entry) = table.entries.get_mut(&id) {
            entry.measure();
            let job = entry.ended_as(id, outcome);
            entry.ended = Some(Box::new(job));
            survives = entry.asked.kind.survives();
        }
        table.forget();
        if survives {
            table.save();
        }
        self.changed.notify_all();
    }

    #[track_caller]
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
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

    fn save(&self) {
        let Some(run) = self.run.as_ref().filter(|_| !self.frozen) else { return };
        let kept = self.entries.iter().filter(|(_, entry)| entry.asked.kind.survives());
        let jobs = kept.map(|(id, entry)| entry.save(*id)).collect();
        saved::store(run, &Saved { last_id: self.last_id, jobs });
    }
}

impl Entry {
    fn new(asked: NewJob, progress: Arc<Progress>, origin: Origin) -> Entry {
        Entry {
            asked,
            progress,
            started: Instant::now(),
            started_unix_secs: unix_secs(),
            origin,
            pace: Pace::default(),
            ended: None,
            told: false,
            seen: false,
        }
    }

    fn of_saved(job: SavedJob) -> Entry {
        let mut entry = Entry::new(job.asked, Arc::default(), Origin::Earlier);
        entry.ended = job.ended.map(Box::new);
        entry
    }

    fn save(&self, id: u64) -> SavedJob {
        let mut ended = self.ended.as_deref().cloned();
        if let Some(report) = ended.as_mut().and_then(|job| job.report.as_mut()) {
            report.failures.truncate(FAILURES_SAVED);
        }
        let (asked, started_unix_secs) = (self.asked.clone(), self.started_unix_secs);
        SavedJob { id, asked, started_unix_secs, ended }
    }

    /// Whether the daemon must wait for the job before it ends.
    fn is_in_the_way(&self) -> bool {
        self.ended.is_none() && self.asked.kind != JobKind::Umount
    }

    fn measure(&mut self) {
        self.pace.note(Point {
            at: self.started.elapsed(),
            bytes: self.progress.moved_bytes(),
            files: self.progress.done_files.load(Relaxed),
        });
    }

    fn ended_as(&self, id: u64, outcome: Outcome) -> Job {
        let state = if outcome.report.cancelled { JobState::Cancelled } else { JobState::Done };
        let job = self.view(id);
        // Bytes that were copied but not synced when the job ended do not count, nor does what others had copied.
        let own = job.done_bytes.saturating_sub(self.progress.by_others.load(Relaxed));
        Job {
            state,
            eta_secs: None,
            rate_bytes_per_sec: (own as f64 / job.elapsed_secs.max(1e-3)) as u64,
            failures: Vec::new(),
            report: Some(outcome.report),
            error: outcome.error,
            exit_code: Some(outcome.exit_code),
            ..job
        }
    }

    fn view(&self, id: u64) -> Job {
        if let Some(job) = &self.ended {
            return (**job).clone();
        }
        let progress = &self.progress;
        let (total, done) = (progress.total_bytes.load(Relaxed), progress.moved_bytes());
        let files = (progress.total_files.load(Relaxed), progress.done_files.load(Relaxed));
        let left =
            Left { bytes: total.saturating_sub(done), files: files.0.saturating_sub(files.1) };
        Job {
            id,
            kind: self.asked.kind,
            paths: self.asked.paths.clone(),
            last: self.asked.last.clone(),
            drain_by_unix_secs: self.asked.drain_by_unix_secs,
            member: self.asked.member.clone(),
            state: JobState::Running,
            started_unix_secs: self.started_unix_secs,
            resumed: self.origin == Origin::Earlier,
            total_bytes: total,
            done_bytes: done,
            total_files: files.0,
            done_files: files.1,
            failed_files: progress.failed_files.load(Relaxed),
            elapsed_secs: self.started.elapsed().as_secs_f64(),
            rate_bytes_per_sec: self.pace.rate() as u64,
            eta_secs: self.pace.eta(left).map(|eta| eta.as_secs_f64()),
            failures: progress.failures().iter().map(Into::into).collect(),
            report: None,
            error: None,
            exit_code: None,
            warning: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use std::os::fd::AsFd;

    use super::*;

    fn flush() -> NewJob {
        NewJob::of(JobKind::Flush, Vec::new())
    }

    fn wait_end(jobs: &Jobs, id: u64) -> Job {
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            let job = jobs.view(id).unwrap();
            if job.state != JobState::Running {
                return job;
            }
            assert!(Instant::now() < deadline, "the job does not end");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// A drain had copied most of it before, and the job only waited for the sync.
    #[test]
    fn the_rate_of_a_job_that_is_done_counts_what_it_copied_itself() {
        let jobs = Arc::new(Jobs::with(Table::default()));
        let work = |own: u64| {
            move |_: u64, progress: &Arc<Progress>| {
                progress.total_bytes.store(1_000_000, Relaxed);
                progress.done_bytes.store(1_000_000, Relaxed);
                progress.by_others.store(1_000_000 - own, Relaxed);
                Outcome::default()
            }
        };
        let rate = |own: u64| {
            let id = jobs.start(flush(), work(own)).unwrap();
            let job = wait_end(&jobs, id);
            job.rate_bytes_per_sec as f64 * job.elapsed_secs.max(1e-3)
        };
        assert!(rate(0) < 1.0);
        assert!((rate(1000) - 1000.0).abs() < 10.0);
        assert!((rate(1_000_000) - 1_000_000.0).abs() < 10_000.0);
    }

    #[test]
    fn a_job_that_panics_ends_with_an_error() {
        let jobs = Arc::new(Jobs::with(Table::default()));
        let id = jobs.start(flush(), |_, _| panic!("a bug")).unwrap();
        let ended = wait_end(&jobs, id);
        assert_eq!((ended.state, ended.exit_code), (JobState::Done, Some(1)));
        assert!(ended.error.unwrap().contains("a bug"));
    }

    #[test]
    fn a_job_is_watched_and_its_outcome_kept() {
        let jobs = Arc::new(Jobs::with(Table::default()));
        let (go, gate) = mpsc::channel::<()>();
        let id = jobs
            .start(flush(), move |_, progress| {
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
        jobs.wait_seen(id, Duration::from_secs(600));
        assert!(start.elapsed() < Duration::from_secs(120), "it was seen");
    }

    #[test]
    fn the_number_that_runs_and_the_number_remembered_are_bounded() {
        let jobs = Arc::new(Jobs::with(Table::default()));
        let wait_cancel = |_, progress: &Arc<Progress>| {
            while !progress.is_cancelled() {
                thread::sleep(Duration::from_millis(1));
            }
            let report = JobReport { cancelled: true, ..JobReport::default() };
            Outcome { report, exit_code: 130, ..Outcome::default() }
        };
        let ids: Vec<u64> =
            (0..RUNNING_MAX).map(|_| jobs.start(flush(), wait_cancel).unwrap()).collect();
        let refused = jobs.start(flush(), wait_cancel).unwrap_err();
        assert_eq!(refused.kind(), Kind::Unavailable);
        for id in ids {
            assert!(jobs.cancel(id));
            assert_eq!(wait_end(&jobs, id).state, JobState::Cancelled);
        }
        for _ in 0..FINISHED_MAX + 5 {
            let id = jobs.start(flush(), |_, _| Outcome::default()).unwrap();
            wait_end(&jobs, id);
        }
        assert_eq!(jobs.views().len(), FINISHED_MAX);
        assert!(!jobs.cancel(1), "forgotten");
    }

    fn until_cancelled(_: u64, progress: &Arc<Progress>) -> Outcome {
        while !progress.is_cancelled() {
            thread::sleep(Duration::from_millis(1));
        }
        let report = JobReport { cancelled: true, ..JobReport::default() };
        Outcome { report, exit_code: 130, ..Outcome::default() }
    }

    #[test]
    fn unfinished_jobs_are_found_again_and_ended_ones_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let open = std::fs::File::open(dir.path()).unwrap();
        let run = Arc::new(Folder::of(open.as_fd(), dir.path()).unwrap());
        let (jobs, none) = Jobs::load(run.clone());
        assert!(none.is_empty());
        let ended = jobs.start(flush(), |_, _| Outcome { exit_code: 1, ..Outcome::default() });
        wait_end(&jobs, ended.unwrap());
        let asked = NewJob { last: Some("M".into()), ..flush() };
        let id = jobs.start(asked, until_cancelled).unwrap();
        let purge = NewJob::of(JobKind::Purge, Vec::new());
        jobs.start(purge, until_cancelled).unwrap();
        jobs.freeze();
        assert_eq!(jobs.view(id).unwrap().state, JobState::Cancelled, "stopped");

        let (jobs, unfinished) = Jobs::load(run);
        let [job] = &unfinished[..] else { panic!("{unfinished:?}") };
        assert_eq!((job.id, job.asked.last.as_deref()), (id, Some("M")));
        assert_eq!(jobs.view(1).unwrap().exit_code, Some(1));
        jobs.resume(job.clone(), |_, _| Outcome::default()).unwrap();
        assert!(wait_end(&jobs, id).resumed);
        assert!(jobs.start(flush(), |_, _| Outcome::default()).unwrap() > id);
    }
}
