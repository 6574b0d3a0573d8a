//! Upkeep of jobs without a request: files of the spool follow the registry, records of jobs that left
//! nothing go, and jobs that the scheduler no longer knows are ended. The scheduler may be slow to
//! answer: the thread that asks it does nothing else.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use forebay_base::command::told_within;
use forebay_base::users::User;
use forebay_base::{Error, Kind, Result};

use super::log::Log;
use super::order::Eyes;
use super::phases::{Hurry, Jobs};
use super::record::{Job, Phase, Released};
use super::spool::{Listed, Spool};
use crate::Book;
use crate::config::SchedulerConfig;
use crate::desk::Desk;
use crate::ledger::Ledger;
use crate::records::{Backing, JobKey, Life, Owner, PoolRecord, Want, keys};

/// How often the scheduler is asked which jobs exist.
const ASK: Duration = Duration::from_secs(30);

/// How long the scheduler has to answer.
const ANSWER: Duration = Duration::from_secs(20);

/// Slurm's message for a number that no job has.
const NO_SUCH_JOB: &str = "Invalid job id";

/// The state of this daemon for a scheduler.
pub struct Scheduler {
    pub config: SchedulerConfig,
    /// The user of the hooks.
    pub uid: u32,
    pub log: Log,
    pub spool: Spool,
}

impl Scheduler {
    pub fn open(config: &SchedulerConfig) -> Result<Scheduler> {
        let missing = || {
            let user = &config.user;
            let why = format!("scheduler: user {user}: there is no such account: name SlurmUser");
            Error::new(Kind::Usage, why)
        };
        let user = User::named(&config.user).map_err(|e| Error::io(e, "scheduler: user"))?;
        let user = user.ok_or_else(missing)?;
        Ok(Scheduler {
            uid: user.uid,
            log: Log::open(&config.logs)?,
            spool: Spool::open(&config.spool, Owner { uid: user.uid, gid: user.gid })?,
            config: config.clone(),
        })
    }
}

/// Checks nothing: the orders of the reaper were checked before.
struct NoEyes;

impl Eyes for NoEyes {
    fn source(&self, _: Owner, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn backing(&self, _: Owner, path: &Path, _: &BTreeMap<String, String>) -> Result<Backing> {
        Err(Error::new(Kind::Usage, format!("{}: made at setup only", path.display())))
    }
}

/// Brings the spool in line with the registry.
pub fn refresh_spool(jobs: &Jobs<'_>, here: &Scheduler) -> Result<Listed> {
    let list = || {
        let (all, pools) = (jobs.all()?, granted(jobs.book)?);
        Ok(Listed { jobs: all, pools, instances: jobs.desk.instances()? })
    };
    here.spool.refresh(jobs.desk.mount_root(), list)
}

/// Brings the spool in line with the registry, forgets jobs that left nothing, and ends what forgotten
/// jobs left.
pub fn tidy(book: &Book, desk: &Desk, here: &Scheduler) -> Result<()> {
    let jobs = Jobs { book, desk, scheduler: &here.config, eyes: &NoEyes };
    let Listed { jobs: all, instances, .. } = refresh_spool(&jobs, here)?;
    for instance in &instances {
        let unknown = |key: &JobKey| {
            key.cluster == here.config.cluster && all.iter().all(|job| job.key != *key)
        };
        // The job may have been set up since jobs were listed.
        if matches!(&instance.life, Life::Job(key) if unknown(key))
            && desk.end_orphan(&instance.id)?
        {
            tracing::warn!("instance {}: nobody knows its job any more: it goes", instance.id);
        }
    }
    for job in all.iter().filter(|job| job.phase == Phase::TornDown) {
        let of_it = |life: &Life| matches!(life, Life::Job(key) if *key == job.key);
        if instances.iter().any(|instance| of_it(&instance.life)) {
            // A daemon of an earlier version may have made an instance after the teardown.
            jobs.give_up(job, Want::Gone)?;
        } else {
            here.log.say(job, "nothing is left of it");
            here.log.forget(job);
            forget(book, job)?;
        }
    }
    Ok(())
}

/// Ends jobs that the scheduler no longer knows.
#[derive(Default)]
pub struct Reaper {
    /// Jobs that the scheduler did not know when it last answered, and since when.
    unknown: BTreeMap<String, Instant>,
}

impl Reaper {
    /// How long to wait between two turns.
    pub fn pause(here: &Scheduler) -> Duration {
        ASK.min(here.config.unknown_after)
    }

    /// J4. Takes as long as the scheduler takes to answer.
    pub fn turn(&mut self, book: &Book, desk: &Desk, here: &Scheduler) -> Result<()> {
        let jobs = Jobs { book, desk, scheduler: &here.config, eyes: &NoEyes };
        let mut live = jobs.all()?;
        live.retain(|job| job.phase != Phase::TornDown);
        if live.is_empty() {
            self.unknown.clear();
            return Ok(());
        }
        let known = match known_jobs(&here.config) {
            Ok(known) => known,
            Err(why) => {
                tracing::warn!("jobs that the scheduler knows: {why}");
                return Ok(());
            }
        };
        self.unknown
            .retain(|id, _| !known.contains(id) && live.iter().any(|job| job.key.id == *id));
        for job in live.iter().filter(|job| !known.contains(&job.key.id)) {
            let since = *self.unknown.entry(job.key.id.clone()).or_insert_with(Instant::now);
            if since.elapsed() >= here.config.unknown_after && !may_be_known(&here.config, job) {
                here.log.say(job, "the scheduler does not know it any more: it is ended");
                tracing::warn!("job {}: the scheduler does not know it: it is ended", job.key.id);
                if let Err(error) = jobs.leave(job, Hurry::No) {
                    here.log.say(job, &format!("ending it: {error}"));
                    tracing::warn!("job {}: ending it: {error}", job.key.id);
                }
            }
        }
        Ok(())
    }
}

fn granted(book: &Book) -> Result<Vec<(String, PoolRecord, u64)>> {
    let pools: Vec<(String, PoolRecord)> = book.list(keys::POOLS)?;
    let ledgers: BTreeMap<String, Ledger> = book.list(keys::LEDGER)?.into_iter().collect();
    let with = |(key, record): (String, PoolRecord)| {
        let granted = ledgers.get(&key).map_or(0, Ledger::granted);
        (key, record, granted)
    };
    Ok(pools.into_iter().map(with).collect())
}

fn forget(book: &Book, job: &Job) -> Result<()> {
    let prefix = keys::released_all(&job.key);
    let released: Vec<(String, Released)> = book.list(&prefix)?;
    book.change(&format!("job {}", job.key.id), |draft| {
        released.iter().for_each(|(node, _)| draft.delete(&format!("{prefix}{node}")));
        draft.delete(&keys::job(&job.key));
        Ok(())
    })
}

/// A list may leave a job out: before a job is ended, it is asked for alone.
fn may_be_known(config: &SchedulerConfig, job: &Job) -> bool {
    let id = &job.key.id;
    match squeue(config, &["--jobs", id]) {
        Ok(known) => known.contains(id),
        Err(why) if why.to_string().contains(NO_SUCH_JOB) => false,
        Err(why) => {
            tracing::warn!("job {id}: the scheduler does not say whether it knows it: {why}");
            true
        }
    }
}

/// The numbers of all jobs that Slurm knows, ended ones for as long as it remembers them.
fn known_jobs(config: &SchedulerConfig) -> Result<Vec<String>> {
    // Without this option waiting tasks of an array are listed under the array's number.
    squeue(config, &["--array"])
}

fn squeue(config: &SchedulerConfig, which: &[&str]) -> Result<Vec<String>> {
    let mut squeue = Command::new("squeue");
    squeue.args(["--noheader", "--all", "--states=all", "--format=%A"]).args(which);
    if let Some(conf) = &config.slurm_conf {
        squeue.env("SLURM_CONF", conf);
    }
    let told = told_within(&mut squeue, ANSWER)?;
    Ok(told.split_whitespace().map(String::from).collect())
}
