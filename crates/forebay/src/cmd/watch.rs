//! Starting a job in the daemon, watching its progress, and reporting how it ended.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_backing::{Error, Kind, Result};
use forebay_base::lock::sleep;
use serde_json::json;

use crate::daemons::Drainer;
use crate::http::Client;
use crate::mounts::{Mounts, Place};
use crate::signals;
use crate::ui::progress::{Line, Sample};
use crate::ui::{Output, note, note_wrong, say, say_json};
use crate::units::{counted, human_secs, human_size};
use crate::wire::{Job, JobFailure, JobKind, JobReport, JobState, NewJob, WirePath};

/// A job is polled after each fiftieth of its time, so a waiting caller loses no more than that.
const POLLS: u32 = 50;
const POLL_FIRST: Duration = Duration::from_millis(2);
const POLL_LAST: Duration = Duration::from_millis(200);

/// The time that a cancelled job gets to reach a safe point; then the command stops watching it.
const CANCEL_PATIENCE: Duration = Duration::from_secs(15);

/// The time to wait for a turn when the daemon runs as many jobs as it may.
const TURN_PATIENCE: Duration = Duration::from_secs(60);

/// Failures listed one by one; the rest are counted.
const FAILURES_SHOWN: usize = 20;

/// The arguments of commands that start a job on files.
#[derive(Debug, clap::Args)]
pub struct Asked {
    /// Files or directories in a mount.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Print the job as JSON.
    #[arg(long)]
    json: bool,
}

pub fn ask(kind: JobKind, asked: &Asked) -> Result<u8> {
    ask_with(kind, asked, |_| ())
}

/// Like [`ask`], after `more` has completed the job's order.
pub fn ask_with(kind: JobKind, asked: &Asked, more: impl FnOnce(&mut NewJob)) -> Result<u8> {
    let scope = Scope::of(&asked.paths)?;
    let mut job = scope.job(kind);
    more(&mut job);
    run_new(&scope.place, &job, asked.json.into())
}

/// Paths of one mount.
pub struct Scope {
    pub place: Place,
    pub paths: Vec<WirePath>,
}

impl Scope {
    /// All paths must be in one mount; without paths, the scope is all of the current directory's mount.
    pub fn of(typed: &[PathBuf]) -> Result<Scope> {
        let mounts = Mounts::read()?;
        let Some(first) = typed.first() else {
            return Ok(Scope { place: mounts.implied()?, paths: Vec::new() });
        };
        let place = mounts.daemon_of(first)?;
        let mut paths = Vec::new();
        for path in typed {
            let other = mounts.daemon_of(path)?;
            if other.tier != place.tier {
                let message = format!(
                    "{} and {} are in different mounts: run the command once for each",
                    first.display(),
                    path.display()
                );
                return Err(Error::new(Kind::Usage, message));
            }
            paths.push(other.path.as_path().into());
        }
        Ok(Scope { place, paths })
    }

    /// The daemon, if its mount is gone and it still drains.
    pub fn drainer(&self) -> Result<Option<Drainer>> {
        Ok(Mounts::read()?.drainer(&self.place))
    }

    pub fn client(&self) -> Client {
        Client::new(&self.place.tier)
    }

    pub fn job(&self, kind: JobKind) -> NewJob {
        NewJob::of(kind, self.paths.clone())
    }
}

/// Runs one job to its end and returns the exit code.
pub fn run(kind: JobKind, scope: &Scope, output: Output) -> Result<u8> {
    run_new(&scope.place, &scope.job(kind), output)
}

/// Starts a job, shows its progress, and returns the exit code.
pub fn run_new(place: &Place, asked: &NewJob, output: Output) -> Result<u8> {
    let client = Client::new(&place.tier);
    let id = start_new(&client, asked)?;
    let job = watch(&client, id, asked.kind.name(), None)?;
    Ok(conclude(&job, output, &place.mountpoint))
}

/// Says how a job ended and returns the exit code.
pub fn conclude(job: &Job, output: Output, at: &Path) -> u8 {
    match output {
        Output::Json => say_json(job),
        Output::Human => tell(job, at),
    }
    job.exit_code.unwrap_or(0)
}

/// Starts a job, waiting for a turn if the daemon runs as many as it may.
pub fn start_new(client: &Client, asked: &NewJob) -> Result<u64> {
    let body = json!(asked);
    let deadline = Instant::now() + TURN_PATIENCE;
    loop {
        match client.post("/v1/jobs", &body) {
            Ok(answer) => return Ok(answer["id"].as_u64().unwrap_or(0)),
            Err(e) if e.kind() == Kind::Unavailable && Instant::now() < deadline => {
                sleep(POLL_LAST);
            }
            Err(e) => return Err(e),
        }
    }
}

/// Shows progress until the job ends. An interrupt cancels it; so does `deadline`, after which the
/// job gets a little time to stop before it is left to itself.
pub fn watch(client: &Client, id: u64, label: &str, deadline: Option<Instant>) -> Result<Job> {
    attend(client, id, label, deadline, Interrupt::Cancels)
}

/// What an interrupt does to a job that is watched.
#[derive(Clone, Copy)]
pub enum Interrupt {
    Cancels,
    /// The job goes on; only the watching ends.
    Leaves,
}

pub fn attend(
    client: &Client,
    id: u64,
    label: &str,
    deadline: Option<Instant>,
    interrupt: Interrupt,
) -> Result<Job> {
    signals::catch_interrupts();
    let url = format!("/v1/jobs/{id}");
    let mut line = Line::new(label);
    let began = Instant::now();
    let mut give_up = deadline;
    loop {
        let job = read_job(client, &url).map_err(|error| {
            line.clear();
            explained(client, error)
        })?;
        if job.state != JobState::Running {
            line.clear();
            return Ok(job);
        }
        line.update(Sample::from(&job));
        if signals::take_interrupt().is_some() {
            if let Interrupt::Leaves = interrupt {
                line.clear();
                return Ok(left_alone(job));
            }
            client.delete(&url)?;
            give_up = Some(Instant::now() + CANCEL_PATIENCE);
        }
        if give_up.is_some_and(|at| Instant::now() > at) {
            line.clear();
            return Ok(abandoned(job, deadline.is_some()));
        }
        sleep((began.elapsed() / POLLS).clamp(POLL_FIRST, POLL_LAST));
    }
}

/// The error of a daemon that has died or ended while its job was watched says so.
fn explained(client: &Client, error: Error) -> Error {
    let Some(tier) = client.tier().filter(|_| error.kind() == Kind::Unreachable) else {
        return error;
    };
    if !client.is_gone() {
        return error;
    }
    let tier = tier.display();
    let text = format!(
        "the daemon died, or was ended, before the job was done: what is dirty is safe in the tier {tier}, and the \
         next mount flushes it"
    );
    Error::new(Kind::Unreachable, text)
}

pub fn read_job(client: &Client, url: &str) -> Result<Job> {
    serde_json::from_value(client.get(url)?)
        .map_err(|e| Error::new(Kind::Unreachable, format!("the daemon's answer: {e}")))
}

/// The result when the user stops watching: the job goes on.
fn left_alone(mut job: Job) -> Job {
    job.error = Some("interrupted; the job goes on".into());
    job.exit_code = Some(130);
    job
}

/// The result of a job that did not stop in time: it goes on in the daemon.
fn abandoned(mut job: Job, timed_out: bool) -> Job {
    job.error =
        Some("the daemon is still waiting for the backing store; `forebay status` tells".into());
    job.exit_code = Some(if timed_out { 4 } else { 130 });
    job.state = JobState::Cancelled;
    job.report = Some(JobReport { cancelled: true, ..JobReport::default() });
    job
}

/// Prints what a job did on the mount at `at`, and lists its failures.
pub fn tell(job: &Job, at: &Path) {
    let report = job.report.clone().unwrap_or_default();
    tell_failures(&report.failures, Some(at));
    warn(job.warning.as_deref());
    if let Some(error) = &job.error {
        note!("{error}");
    }
    let whole = counted(report.files, "file");
    let done = match job.state {
        JobState::Done => format!("{} {} in {whole}", past(job.kind), human_size(report.bytes)),
        JobState::Cancelled if job.kind == JobKind::Pin => {
            format!("fetched {}; nothing of it is pinned", human_size(job.moved_bytes()))
        }
        JobState::Running | JobState::Cancelled => {
            format!("{} {}, {whole} as a whole", past(job.kind), human_size(job.moved_bytes()))
        }
    };
    let failed = match report.failures.len() {
        0 => String::new(),
        n => format!(", {n} failed"),
    };
    match job.state {
        JobState::Done => {
            say(format!("{done}{failed} in {}", human_secs(job.elapsed_secs)));
        }
        JobState::Running => note!("so far {done}{failed}"),
        JobState::Cancelled => {
            note!("interrupted: {done}{failed}; {}", rest(job.kind));
        }
    }
}

pub fn warn(of: Option<&str>) {
    if let Some(text) = of {
        note_wrong(&format!("WARNING: {text}"));
    }
}

/// Lists failures. `at` is the mount point, if the files are mounted.
pub fn tell_failures(failures: &[JobFailure], at: Option<&Path>) {
    for failure in failures.iter().take(FAILURES_SHOWN) {
        let path = failure.path.to_string();
        // Most errors begin with the file that they are about.
        let error = failure.error.strip_prefix(&format!("{path}: ")).unwrap_or(&failure.error);
        note!("{path}: {}: {error}", failure.state);
        if failure.state == "conflict" {
            note!("  {}", how_to_settle(&failure.path, at));
        }
    }
    if failures.len() > FAILURES_SHOWN {
        note!("and {} more; --json lists all", failures.len() - FAILURES_SHOWN);
    }
}

/// The command that settles a conflict of the file at `path` in a mount.
pub fn how_to_settle(path: &WirePath, at: Option<&Path>) -> String {
    match at {
        Some(at) => {
            let file = quoted(&at.join(PathBuf::from(path.clone())));
            format!("settle it with `forebay resolve {file} --keep ours|theirs|both`")
        }
        None => "mount it, and settle it with `forebay resolve`".into(),
    }
}

/// The path, quoted for a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    match text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

fn past(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Flush | JobKind::Fence | JobKind::Durable => "flushed",
        JobKind::Prefetch => "fetched and verified",
        JobKind::Evict => "evicted",
        JobKind::Pin => "pinned",
        JobKind::Unpin => "unpinned",
        JobKind::Purge => "purged",
        JobKind::Drain | JobKind::Umount | JobKind::Detach | JobKind::MemberDrain => "drained",
    }
}

/// What remains of an interrupted job.
fn rest(kind: JobKind) -> &'static str {
    match kind {
        JobKind::Flush
        | JobKind::Fence
        | JobKind::Durable
        | JobKind::Drain
        | JobKind::Umount
        | JobKind::Detach
        | JobKind::MemberDrain => {
            "the rest, also what was copied and not synced, stays dirty in the fast tier and is flushed \
             in the background"
        }
        JobKind::Prefetch | JobKind::Pin => "the rest is fetched when it is read",
        JobKind::Evict => "the rest stays cached",
        JobKind::Unpin | JobKind::Purge => "the rest is as it was",
    }
}
