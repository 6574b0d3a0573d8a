//! The mounts and transfers of a node, as processes of their own: this binary with other arguments. They
//! outlive the node daemon, and the next daemon finds them in the kernel's table of mounts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use forebay_base::command::within;
use forebay_base::lock::sleep;
use forebay_base::{Error, Kind, Result};
use forebay_node::hands::{
    Cache, Failed, Hands, Leave, Look, Moved, Order, Stage, Staging, Stop, Unflushed,
};
use forebay_node::records::{Direction, What};
use rustix::mount::UnmountFlags;
use serde_json::{Value, json};

use super::children::Children;
use super::running::Running;
use super::{asker, settings};
use crate::http::{Client, Liveness};
use crate::mounts::{Mounts, users_of};
use crate::units;
use crate::wire::{File, Job, JobKind, JobState, NewJob, WirePath};

/// A drain is started again after this time; in between the daemon reports the files that are not home.
const DRAIN_PATIENCE: Duration = Duration::from_secs(20);

/// The time limit for reading the dirty files of a tier that is not mounted.
const GLANCE: Duration = Duration::from_secs(4);

/// The pause between two polls of a job of a mount's daemon.
const POLL: Duration = Duration::from_millis(100);

/// The number of programs that are named as users of a mount.
const HOLDERS: usize = 5;

/// The time that a cancelled job gets to end; a flush that hangs in it goes on.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// A job that makes no progress for this long gives its thread to others.
const STANDS: Duration = Duration::from_secs(60);

/// The time limit for unmounting a mount that programs still use: only the unmount is waited for.
const TAKE_AWAY: Duration = Duration::from_secs(20);

/// The exit code of a forebay command if a daemon lives and does not answer.
const UNREACHABLE: i32 = 3;

/// The time that a daemon gets to end after its connection was ended.
const DAEMON_PATIENCE: Duration = Duration::from_secs(2);

pub struct Processes {
    children: Children,
    /// The control group of transfers.
    cgroup: Option<PathBuf>,
}

impl Processes {
    pub fn new(cgroup: Option<PathBuf>) -> Processes {
        Processes { children: Children::default(), cgroup }
    }

    fn is_dead(cache: &Cache) -> bool {
        Client::new(&cache.tier).liveness() == Liveness::Dead
    }
}

impl Hands for Processes {
    fn look(&self, cache: &Cache) -> Result<Look> {
        let seen = Mounts::read()?;
        let mounted = seen.ours().any(|(at, tier)| at == cache.mountpoint && tier == cache.tier);
        Ok(match (mounted, mounted && Processes::is_dead(cache)) {
            (false, _) => Look::NotMounted,
            (true, true) => Look::Dead,
            (true, false) => Look::Serving,
        })
    }

    fn serve(&self, cache: &Cache) -> Result<()> {
        let reached = asker::reach(&cache.backing, cache.owner.uid, cache.owner.gid)?;
        let mut mount = ourselves("mount");
        mount.arg(&reached.path).arg(&cache.mountpoint).arg("--tier").arg(&cache.tier);
        mount.arg(format!("--tier-size={}", units::exact_size(cache.bytes)));
        // The mount must be of the directory that was reached, even if another has its name by then.
        mount.arg("--backing-identity").arg(&reached.identity);
        let flags = settings::flags(&cache.settings);
        mount.args(flags.map_err(|why| Error::new(Kind::Usage, why))?);
        let output = self.children.run(&cache.tier, mount)?;
        match output.status.success() {
            true => Ok(()),
            false => Err(Error::new(Kind::Unavailable, last_line(&output.stderr))),
        }
    }

    fn leave(&self, cache: &Cache, leave: Leave, busy: Duration) -> Result<Vec<String>> {
        let umount = || {
            let mut umount = ourselves("umount");
            umount.arg(&cache.mountpoint).arg("--json");
            match leave {
                Leave::Drain => umount.arg(format!("--timeout={}s", DRAIN_PATIENCE.as_secs())),
                Leave::KeepDirty | Leave::Cleared => umount.arg("--keep-dirty"),
            };
            umount
        };
        let began = Instant::now();
        // When the daemon stopped answering.
        let mut silent: Option<Instant> = None;
        let mut holders = Vec::new();
        loop {
            let output = self.children.run(&cache.tier, umount())?;
            let answers = output.status.code() != Some(UNREACHABLE);
            silent = silent.or_else(|| Some(Instant::now())).filter(|_| !answers);
            if self.look(cache)? == Look::NotMounted || (answers && !is_in_use(&output)) {
                return Ok(holders);
            }
            if silent.is_some() && leave == Leave::Cleared {
                return Err(Error::new(Kind::Unreachable, last_line(&output.stderr)));
            }
            if silent.unwrap_or(began).elapsed() >= busy {
                match answers {
                    true => take_away(cache)?,
                    false => holders.push(end_connection(cache)?),
                }
                return Ok(holders);
            }
            holders = users_of(&cache.mountpoint, HOLDERS);
            sleep(Duration::from_millis(250));
        }
    }

    fn bring_home(&self, cache: &Cache) -> Result<Vec<Unflushed>> {
        // A tier that cannot be read may have dirty bytes.
        if !was_mounted(cache)? {
            return Ok(Vec::new());
        }
        let mut recover = ourselves("recover");
        recover.arg(&cache.tier).arg("--json");
        let output = self.children.run(&cache.tier, recover)?;
        match output.status.code() {
            Some(0) => Ok(Vec::new()),
            _ => {
                let why = last_line(&output.stderr);
                let mut left = self.unflushed(cache)?;
                left.iter_mut().for_each(|one| one.why = why.clone());
                match left.is_empty() {
                    // No byte is dirty, but the tier is damaged: a person has to look at it.
                    true => Err(Error::new(Kind::Corrupt, why)),
                    false => Ok(left),
                }
            }
        }
    }

    fn unflushed(&self, cache: &Cache) -> Result<Vec<Unflushed>> {
        if self.look(cache)? == Look::Serving {
            return serving_unflushed(cache);
        }
        checked_unflushed(&self.children.run(&cache.tier, check_of(cache))?)
    }

    fn glance(&self, cache: &Cache) -> Result<Vec<Unflushed>> {
        if self.look(cache)? == Look::Serving {
            return serving_unflushed(cache);
        }
        match was_mounted(cache)? {
            true => checked_unflushed(&within(&mut check_of(cache), GLANCE)?),
            false => Ok(Vec::new()),
        }
    }

    fn carry(&self, order: &Order<'_>, stop: &Stop, told: &mut dyn FnMut(&Moved)) -> Result<Moved> {
        let place = Mounts::read()?.find(&order.path)?;
        let client = Client::new(&place.tier);
        let kind = match order.direction {
            Direction::In => JobKind::Prefetch,
            Direction::Out => JobKind::Flush,
        };
        let paths = match order.what {
            What::File | What::Directory | What::Any => vec![WirePath::from(place.path.as_path())],
            What::List => {
                let why = "a list is for private instances: a cache takes the directory";
                return Err(Error::new(Kind::Usage, why));
            }
        };
        let mut asked = NewJob::of(kind, paths);
        if kind == JobKind::Flush {
            asked.last = order.options.last.first().cloned();
        }
        let id = match client.post("/v1/jobs", &json!(asked)) {
            Ok(job) => job["id"].as_u64().unwrap_or(0),
            // The daemon refuses the order itself, and would refuse it again.
            Err(error) if error.kind() == Kind::Usage => {
                return Ok(Moved::refused(error.to_string()));
            }
            Err(error) => return Err(error),
        };
        let url = format!("/v1/jobs/{id}");
        let mut cancelled: Option<Instant> = None;
        let mut pace = Pace { done: (0, 0), since: Instant::now() };
        loop {
            let job: Job = serde_json::from_value(client.get(&url)?)
                .map_err(|e| Error::new(Kind::Unreachable, format!("the daemon's answer: {e}")))?;
            let moved = moved_by(&job);
            told(&moved);
            if job.state != JobState::Running {
                return Ok(Moved { failures: sized(&client, moved.failures), ..moved });
            }
            if stop.leaves() {
                let why = "the node daemon stops; the job goes on";
                return Err(Error::new(Kind::Interrupted, why));
            }
            match cancelled {
                None if stop.is_wanted() => {
                    client.delete(&url)?;
                    cancelled = Some(Instant::now());
                }
                None if pace.stands(&moved) => {
                    // The job is asked for again when its turn comes.
                    client.delete(&url)?;
                    let why = "it stands still: its backing store does not answer";
                    return Err(Error::new(Kind::TimedOut, why));
                }
                Some(since) if since.elapsed() > STOP_PATIENCE => {
                    let hangs = Some("it does not end: its backing store does not answer".into());
                    return Ok(Moved { cancelled: true, hangs, ..moved });
                }
                _ => {}
            }
            sleep(POLL);
        }
    }

    fn stage(
        &self,
        staging: &Staging<'_>,
        stop: &Stop,
        told: &mut dyn FnMut(&Moved),
    ) -> Result<Moved> {
        super::staging::stage(staging, self.cgroup.as_deref(), stop, told)
    }

    fn size_of(&self, staging: &Staging<'_>) -> u64 {
        super::staging::size_of(staging)
    }

    fn clean(&self, staging: &Staging<'_>) -> Result<()> {
        super::staging::clean(staging)
    }
}

/// The progress of a job, and when it last changed.
struct Pace {
    done: (u64, u64),
    since: Instant,
}

impl Pace {
    fn stands(&mut self, moved: &Moved) -> bool {
        let done = (moved.files, moved.bytes);
        if done != self.done {
            *self = Pace { done, since: Instant::now() };
        }
        self.since.elapsed() > STANDS
    }
}

/// This binary, without the `FOREBAY_` variables of the node daemon.
pub fn ourselves(verb: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(verb).stdin(Stdio::null());
    let ours =
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FOREBAY_"));
    for (name, _) in ours {
        command.env_remove(name);
    }
    // The configuration files of users and of the machine are for mounts that people make.
    command.env("FOREBAY_CONFIG", "/dev/null");
    command
}

/// The last line of a command's output, without the prefix `forebay: `.
fn last_line(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let last = text.lines().last().unwrap_or("it ended without a word");
    last.strip_prefix("forebay: ").unwrap_or(last).to_string()
}

fn is_in_use(output: &Output) -> bool {
    let job: Option<Job> = serde_json::from_slice(&output.stdout).ok();
    job.is_some_and(|job| crate::cmd::umount::is_in_use(&job))
}

/// Kills a daemon that does not answer, and ends the connection of its mount: the dirty bytes stay in the tier.
/// Returns a text that names the daemon. It is killed first: a run cut short in between leaves a dead mount.
fn end_connection(cache: &Cache) -> Result<String> {
    let at = cache.mountpoint.display();
    let pid = Client::new(&cache.tier).daemon_pid().map(|pid| pid.as_raw_nonzero().get());
    let daemon = pid.and_then(|pid| u32::try_from(pid).ok()).map(Running::open).transpose()?;
    let (Some(pid), Some(daemon)) = (pid, daemon.flatten()) else {
        let what = format!(
            "the daemon of {at} does not answer, and does not say which process it is: end it by hand"
        );
        return Err(Error::new(Kind::Unreachable, what));
    };
    daemon.kill()?;
    // With FORCE the kernel answers all waiting programs with an error, without asking the daemon.
    let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    let gone = |e: rustix::io::Errno| Error::os(e.raw_os_error(), format!("ending the mount {at}"));
    rustix::mount::unmount(&cache.mountpoint, flags).map_err(gone)?;
    if !daemon.ended(DAEMON_PATIENCE)? {
        let what = format!(
            "the daemon of {at} (pid {pid}) was killed and does not end: a file system does not answer it"
        );
        return Err(Error::new(Kind::Unavailable, what));
    }
    Ok(format!("its own daemon (pid {pid}), which did not answer and was ended"))
}

/// Unmounts a mount that programs still use: they get errors from then on.
fn take_away(cache: &Cache) -> Result<()> {
    let client = Client::new(&cache.tier);
    let ask = crate::wire::Leave { keep_dirty: true, lazy: true, ..Default::default() };
    crate::cmd::umount::leave_within(&client, &ask, TAKE_AWAY).map(|_| ())
}

fn files_of(client: &Client) -> Result<Vec<File>> {
    serde_json::from_value(client.get("/v1/files")?)
        .map_err(|e| Error::new(Kind::Unreachable, format!("the daemon's answer: {e}")))
}

/// Adds to failed files their dirty bytes: the job has only names, so the mount's daemon is asked.
fn sized(client: &Client, failed: Vec<Failed>) -> Vec<Failed> {
    if failed.is_empty() {
        return failed;
    }
    let files = files_of(client).unwrap_or_default().into_iter();
    let dirty: BTreeMap<String, u64> =
        files.map(|file| (file.path.to_string(), file.dirty_bytes)).collect();
    let with = |failed: Failed| {
        let bytes = dirty.get(&failed.path).copied().unwrap_or(failed.bytes);
        Failed { bytes, ..failed }
    };
    failed.into_iter().map(with).collect()
}

fn check_of(cache: &Cache) -> Command {
    let mut check = ourselves("check");
    check.arg("--json").arg(&cache.tier);
    check
}

/// Whether the tier was ever mounted: otherwise it holds nothing. A tier that cannot be read may hold bytes.
fn was_mounted(cache: &Cache) -> Result<bool> {
    let mark = cache.tier.join("forebay.json");
    mark.try_exists().map_err(|e| Error::io(e, mark.display().to_string()))
}

/// The dirty files in the output of `forebay check`, for a tier that is not mounted.
fn checked_unflushed(output: &Output) -> Result<Vec<Unflushed>> {
    let found: Value = serde_json::from_slice(&output.stdout)
        .map_err(|_| Error::new(Kind::Corrupt, last_line(&output.stderr)))?;
    let names = found["dirty"].as_array().cloned().unwrap_or_default();
    let bytes = found["dirty_bytes"].as_u64().unwrap_or(0);
    let each = bytes.checked_div(names.len() as u64).unwrap_or(0);
    let mut rest = bytes - each * names.len() as u64;
    let name = |value: Value| {
        serde_json::from_value::<WirePath>(value).map_or_else(|_| "?".into(), |p| p.to_string())
    };
    Ok(names
        .into_iter()
        .map(|value| Unflushed {
            file: name(value),
            // The tier gives only the sum; it is spread evenly, since only a mount knows each file's part.
            bytes: each + std::mem::take(&mut rest),
            age: Duration::ZERO,
            why: "waits for the backing store".into(),
        })
        .collect())
}

fn serving_unflushed(cache: &Cache) -> Result<Vec<Unflushed>> {
    let files = files_of(&Client::new(&cache.tier))?;
    let dirty = files.into_iter().filter(|file| file.dirty_bytes > 0 || file.state != "clean");
    Ok(dirty
        .map(|file| Unflushed {
            file: file.path.to_string(),
            bytes: file.dirty_bytes,
            age: Duration::from_secs_f64(file.dirty_age_secs.unwrap_or(0.0).max(0.0)),
            why: file.error.unwrap_or_else(|| "waits for the backing store".into()),
        })
        .collect())
}

fn moved_by(job: &Job) -> Moved {
    let report = job.report.clone().unwrap_or_default();
    let failures: Vec<Failed> = job
        .failures
        .iter()
        .chain(&report.failures)
        .map(|failure| Failed {
            path: failure.path.to_string(),
            why: failure.error.clone(),
            bytes: 0,
        })
        .collect();
    let failed_as_a_whole = job.error.iter().filter(|_| failures.is_empty());
    let whole = failed_as_a_whole.map(|why| Failed {
        path: "/".into(),
        why: why.clone(),
        bytes: job.total_bytes.saturating_sub(job.done_bytes),
    });
    let failures: Vec<Failed> = failures.iter().cloned().chain(whole).collect();
    Moved {
        files: job.done_files,
        bytes: job.done_bytes,
        files_total: job.total_files,
        bytes_total: job.total_bytes,
        bytes_per_second: job.rate_bytes_per_sec,
        stage: Stage::Copying,
        eta: job.eta_secs.and_then(|secs| Duration::try_from_secs_f64(secs).ok()),
        failures_count: (failures.len() as u64).max(job.failed_files),
        failures,
        cancelled: job.state == JobState::Cancelled,
        ..Moved::default()
    }
}
