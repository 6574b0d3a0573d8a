//! `forebay jobs`: lists the daemon's jobs, waits for one, cancels one.

use std::path::PathBuf;

use forebay_backing::{Error, Kind, Result};
use serde_json::Value;

use super::watch::{self, Interrupt};
use crate::http::Client;
use crate::moment;
use crate::mounts::{Mounts, Place};
use crate::ui::table::Align::{Left, Right};
use crate::ui::table::tabulate;
use crate::ui::{say, say_json};
use crate::units::{counted, human_rate, human_secs, human_size};
use crate::wire::{Job, JobState};

const EXAMPLES: &str = "\
Examples:
  forebay jobs
  forebay jobs --json /mnt/fast
  forebay jobs wait 7
  forebay jobs cancel 7 /mnt/fast

The last 64 jobs are remembered. Flushes, fences, waits, prefetches and pins are so also when the
daemon is restarted, and unfinished ones go on then.";

const WAIT_EXAMPLES: &str = "\
Examples:
  forebay jobs wait 7
  forebay jobs wait 7 --json /mnt/fast

The exit code is the job's: 0 done, 1 done with failures listed, 4 dirty data at risk, 130
cancelled. An interrupt ends the waiting and not the job.";

const CANCEL_EXAMPLES: &str = "\
Examples:
  forebay jobs cancel 7
  forebay jobs cancel 7 /mnt/fast

What a flush has not done by then stays dirty in the fast tier.";

/// List the daemon's jobs, wait for one, or cancel one.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    action: Option<Action>,

    /// A mount point, or any path in the mount [default: where we are, or the only mount].
    mountpoint: Option<PathBuf>,

    /// Print the list as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Wait until a job ends.
    #[command(after_help = WAIT_EXAMPLES)]
    Wait(One),
    /// Ask a job to stop.
    #[command(after_help = CANCEL_EXAMPLES)]
    Cancel(One),
}

#[derive(Debug, clap::Args)]
struct One {
    /// Number of the job.
    #[arg(value_parser = job_number)]
    id: u64,

    /// A mount point, or any path in the mount [default: where we are, or the only mount].
    mountpoint: Option<PathBuf>,

    /// Print the job as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    match &args.action {
        None => list(args),
        Some(Action::Wait(one)) => wait(one),
        Some(Action::Cancel(one)) => cancel(one),
    }
}

fn place(mountpoint: Option<&PathBuf>) -> Result<Place> {
    Mounts::read()?.daemon_or_implied(mountpoint.map(PathBuf::as_path))
}

fn client(mountpoint: Option<&PathBuf>) -> Result<Client> {
    place(mountpoint).map(|place| Client::new(&place.tier))
}

fn list(args: &Args) -> Result<u8> {
    let answer = client(args.mountpoint.as_ref())?.get("/v1/jobs")?;
    if args.json {
        say_json(&answer);
        return Ok(0);
    }
    let jobs: Vec<Job> = parsed(answer)?;
    if jobs.is_empty() {
        say("no jobs");
        return Ok(0);
    }
    let columns = [
        ("id", Right),
        ("kind", Left),
        ("state", Left),
        ("done", Right),
        ("files", Right),
        ("failed", Right),
        ("rate", Right),
        ("time", Left),
        ("what", Left),
    ];
    tabulate(&columns, jobs.iter().map(row)).iter().for_each(say);
    Ok(0)
}

fn row(job: &Job) -> Vec<String> {
    let state = match job.state {
        JobState::Running if job.resumed => "resumed",
        JobState::Running => "running",
        JobState::Done if job.exit_code == Some(0) => "done",
        JobState::Done => "failed",
        JobState::Cancelled => "cancelled",
    };
    let time = match (job.state, job.eta_secs) {
        (JobState::Running, Some(eta)) => format!("ETA {}", human_secs(eta)),
        _ => human_secs(job.elapsed_secs),
    };
    vec![
        job.id.to_string(),
        job.kind.name().into(),
        state.into(),
        format!("{} of {}", human_size(job.done_bytes), human_size(job.total_bytes)),
        format!("{}/{}", job.done_files, job.total_files),
        job.failed_files.to_string(),
        human_rate(job.rate_bytes_per_sec as f64),
        time,
        what(job),
    ]
}

fn what(job: &Job) -> String {
    if let Some(member) = &job.member {
        return format!("member {member}");
    }
    let mut text = match &job.paths[..] {
        [] => "everything".into(),
        [one] if one.to_string().is_empty() => "everything".into(),
        [one] => one.to_string(),
        [first, rest @ ..] => format!("{first} and {} more", counted(rest.len() as u64, "path")),
    };
    if let Some(last) = &job.last {
        text += &format!(", last {last}");
    }
    if let Some(by) = job.drain_by_unix_secs {
        text += &format!(", by {}", moment::show(by));
    }
    text
}

fn job_number(text: &str) -> std::result::Result<u64, String> {
    text.parse().map_err(|_| "give the number of a job; `forebay jobs` lists them".into())
}

fn wait(one: &One) -> Result<u8> {
    let place = place(one.mountpoint.as_ref())?;
    let client = Client::new(&place.tier);
    let label = format!("job {}", one.id);
    let job = watch::attend(&client, one.id, &label, None, Interrupt::Leaves)?;
    Ok(watch::conclude(&job, one.json.into(), &place.mountpoint))
}

fn cancel(one: &One) -> Result<u8> {
    let client = client(one.mountpoint.as_ref())?;
    let url = format!("/v1/jobs/{}", one.id);
    let job: Job = parsed(client.get(&url)?)?;
    if job.state == JobState::Running {
        client.delete(&url)?;
    }
    match (one.json, job.state) {
        (true, _) => say_json(&client.get(&url)?),
        (false, JobState::Running) => say(format!("job {} is asked to stop", one.id)),
        (false, _) => say(format!("job {} had ended before", one.id)),
    }
    Ok(0)
}

fn parsed<T: serde::de::DeserializeOwned>(answer: Value) -> Result<T> {
    serde_json::from_value(answer)
        .map_err(|e| Error::new(Kind::Unreachable, format!("the daemon's answer: {e}")))
}
