//! Draining another member: its own daemon flushes, gives its claims back, unmounts and ends. This daemon asks for
//! it, and shows the progress.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use forebay_backing::{Error, Kind, Result};
use forebay_base::lock::sleep;
use forebay_cluster::member::{Member, Seen};
use forebay_engine::Progress;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Daemon;
use super::jobs::Outcome;
use super::others::wait;
use crate::units::counted;
use crate::wire::{Job, JobKind, JobReport, Leave, NewJob};

/// After the answer "unmounted" a daemon only closes files before it ends.
const END_PATIENCE: Duration = Duration::from_secs(30);

const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Body of `POST /v1/cluster/drain`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TakeOut {
    member: String,
    #[serde(default)]
    timeout_secs: Option<f64>,
}

impl Daemon {
    /// Starts the job that drains a member. A member that has left and holds nothing needs no job.
    pub fn start_taking_out(&self, asked: TakeOut) -> Result<Value> {
        let TakeOut { member: name, timeout_secs } = asked;
        let member = self.one_of_many()?.clone();
        if name == member.name() {
            let at = self.places.mountpoint.display();
            let what = format!("member {name} is this mount: `forebay umount {at}` takes it out");
            return Err(Error::new(Kind::Usage, what));
        }
        let seen = look(&member, &name)?;
        if seen.has_left() {
            return Ok(json!({ "is_out": true }));
        }
        if !seen.alive {
            return Err(Error::new(Kind::Usage, away(&seen)));
        }
        tracing::info!(member = name, "asked to take a member out");
        let ask = Leave { timeout_secs, ..Leave::default() };
        let job =
            NewJob { member: Some(name.clone()), ..NewJob::of(JobKind::MemberDrain, Vec::new()) };
        let work = move |_, progress: &Arc<Progress>| take_out(&member, &name, &ask, progress);
        Ok(json!({ "id": self.jobs.start(job, work)? }))
    }
}

/// The member's present state in the registry.
fn look(member: &Member, name: &str) -> Result<Seen> {
    let members = member.overview()?.members;
    let names: Vec<String> = members.iter().map(|seen| seen.name.clone()).collect();
    members.into_iter().find(|seen| seen.name == name).ok_or_else(|| {
        let what = format!("member {name}: this store has {}", names.join(", "));
        Error::new(Kind::Usage, what)
    })
}

fn holds(seen: &Seen) -> u64 {
    seen.claims + seen.creates
}

fn files_and_directories(seen: &Seen) -> String {
    match seen.creates {
        0 => counted(seen.claims, "file"),
        1 => format!("{} and a directory", counted(seen.claims, "file")),
        dirs => format!("{} and {dirs} directories", counted(seen.claims, "file")),
    }
}

fn away(seen: &Seen) -> String {
    format!(
        "member {name} is away, and still holds {held}: mount its tier again, there or on another machine with --node \
         {name}, and take it out then; if its flash is lost, see `forebay member give-up`",
        name = seen.name,
        held = files_and_directories(seen),
    )
}

fn take_out(member: &Arc<Member>, name: &str, ask: &Leave, progress: &Arc<Progress>) -> Outcome {
    let begun = member.ask_daemon(name, "POST", "/v1/umount", json!(ask));
    let ended = begun.and_then(|answer| {
        let none = || {
            Error::new(
                Kind::Unavailable,
                format!("member {name} named no job: is it of another release?"),
            )
        };
        let id = answer["id"].as_u64().ok_or_else(none)?;
        Ok((id, wait(member, name, id, progress, |job| mirror(job, progress))?))
    });
    match ended {
        Ok((id, job)) if job.is_gone() => {
            see_off(member, name, id);
            has_left(member, name, job)
        }
        Ok((_, job)) => stays(name, job),
        Err(error) => unheard(member, name, &error),
    }
}

/// Copies the progress of the other member's job to this daemon's job.
fn mirror(job: &Job, progress: &Progress) {
    progress.total_bytes.store(job.total_bytes, Relaxed);
    progress.done_bytes.store(job.done_bytes, Relaxed);
    progress.total_files.store(job.total_files, Relaxed);
    progress.done_files.store(job.done_files, Relaxed);
    progress.failed_files.store(job.failed_files, Relaxed);
}

/// Says that the end of the job was seen, since the other daemon waits for that, and waits until it has ended.
fn see_off(member: &Member, name: &str, id: u64) {
    let ask = |method, path: &str| member.ask_daemon(name, method, path, Value::Null);
    let mut answers = ask("DELETE", &format!("/v1/jobs/{id}")).is_ok();
    let began = Instant::now();
    while answers && began.elapsed() < END_PATIENCE {
        sleep(LOOK_AGAIN);
        answers = ask("GET", "/v1/status").is_ok();
    }
}

fn stays(name: &str, job: Job) -> Outcome {
    let error = job.error.map(|error| format!("member {name}: {error}"));
    Outcome { report: job.report.unwrap_or_default(), error, exit_code: job.exit_code.unwrap_or(1) }
}

/// The outcome of a member that has unmounted. It keeps claims that programs on other nodes need.
fn has_left(member: &Member, name: &str, job: Job) -> Outcome {
    let mut outcome = stays(name, job);
    let seen = look(member, name).ok().filter(|seen| holds(seen) > 0);
    if let Some(seen) = seen.filter(|_| outcome.error.is_none()) {
        outcome.error = Some(format!(
            "member {name}: unmounted, but it still holds {}, which programs on other nodes have open or locked: \
             they get errors until it is mounted again",
            files_and_directories(&seen)
        ));
        outcome.exit_code = 4;
    }
    outcome
}

/// The outcome if the member's daemon stops answering: it has left, has died, or is out of reach.
fn unheard(member: &Member, name: &str, error: &Error) -> Outcome {
    let failed = |error: String, exit_code| {
        let report = JobReport::default();
        Outcome { report, error: Some(error), exit_code }
    };
    match look(member, name) {
        Ok(seen) if !seen.alive && holds(&seen) == 0 => Outcome::default(),
        Ok(seen) if !seen.alive => failed(away(&seen), 4),
        _ => failed(error.to_string(), error.exit_code()),
    }
}
