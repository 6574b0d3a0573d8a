//! The node daemon's answers to the hooks of a scheduler, to a job's owner, and to a node's epilog.
//!
//! - D3: only the scheduler's user and root take steps of jobs; a job's owner sees it.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use forebay_base::{Error, Result};
use forebay_node::job::{
    self, Answer, Ended, Eyes, Hurry, Job, Jobs, NewJob, Patience, Phase, Scheduler,
};
use forebay_node::records::{Backing, Life, Owner};
use serde_json::Value;

use super::api::{Door, answer, body, may_see, usage};
use super::asker;
use super::wire::{self, JobView, NewPersistent, StepOfJob, StepState, StepView};
use crate::http::Peer;
use crate::mounts::users_of;

/// The number of processes that are named.
const HOLDERS: usize = 5;

pub fn is_ours(parts: &[&str]) -> bool {
    matches!(parts, ["jobs" | "persistent", ..])
}

pub fn route(door: &Door, peer: Peer, method: &str, parts: &[&str], sent: Value) -> Result<Value> {
    if let ("POST", ["jobs", id, "released"]) = (method, parts) {
        return answer(view(released(door, peer, id, &body(sent)?)?));
    }
    let desk = door.node.desk();
    let here = door.node.scheduler().ok_or_else(|| {
        usage(
            "this node daemon knows no scheduler: ask the one on the scheduler's machine, or write a \
             section [scheduler] into its configuration",
        )
    })?;
    let eyes = EyesOf(door);
    let jobs = Jobs { book: door.node.book(), desk: &desk, scheduler: &here.config, eyes: &eyes };
    match (method, parts) {
        ("GET", ["jobs"]) => {
            let seen = jobs.all()?.into_iter().filter(|job| may_see_job(here, peer, job));
            let views: Result<Vec<JobView>> = seen.map(|job| job_view(door, here, job)).collect();
            answer(views?)
        }
        ("GET", ["jobs", id]) => {
            let found = jobs.find(id)?.filter(|job| may_see_job(here, peer, job));
            let job = found.ok_or_else(|| usage(format!("no job {id} of yours is known")))?;
            answer(job_view(door, here, job)?)
        }
        _ => {
            require_scheduler(here, peer)?;
            steps(&jobs, here, method, parts, sent)
        }
    }
}

fn steps(
    jobs: &Jobs<'_>,
    here: &Scheduler,
    method: &str,
    parts: &[&str],
    sent: Value,
) -> Result<Value> {
    let took = match (method, parts) {
        ("POST", ["jobs"]) => {
            let asked: wire::NewJob = body(sent)?;
            let owner = Owner { uid: asked.uid, gid: asked.gid };
            let new = NewJob { id: asked.id.clone(), owner, plan: asked.plan, pool: asked.pool };
            logged(jobs, here, &asked.id, "setup", || jobs.set_up(&new))
        }
        ("POST", ["jobs", id, step]) => {
            let asked: StepOfJob = body(sent)?;
            logged(jobs, here, id, step, || one_step(jobs, id, step, &asked))
        }
        ("POST", ["persistent"]) => {
            let NewPersistent { uid, gid, create } = body(sent)?;
            jobs.persistent(Owner { uid, gid }, &create)
        }
        ("POST", ["persistent", name, "destroy"]) => {
            let asked: StepOfJob = body(sent)?;
            jobs.destroy_persistent(name, hurry(&asked))
        }
        _ => Err(usage(format!("{method} {}: no such request", parts.join("/")))),
    };
    answer(view(took?))
}

fn one_step(jobs: &Jobs<'_>, id: &str, step: &str, asked: &StepOfJob) -> Result<Answer> {
    match step {
        "data-in" => jobs.data_in(id),
        "pre-run" => jobs.pre_run(id, &asked.nodes),
        "post-run" => jobs.post_run(
            id,
            match asked.exit_code {
                Some(0) => Ended::Success,
                Some(_) => Ended::Failure,
                None => Ended::Unknown,
            },
        ),
        "data-out" => jobs.data_out(id),
        "teardown" => jobs.tear_down(id, hurry(asked)),
        other => Err(usage(format!("{other}: a job has no such step"))),
    }
}

/// Takes a step, and writes its outcome into the job's log and its changes into the spool.
fn logged(
    jobs: &Jobs<'_>,
    here: &Scheduler,
    id: &str,
    step: &str,
    take: impl FnOnce() -> Result<Answer>,
) -> Result<Answer> {
    let took = take();
    // A job that cannot be read has no log; the outcome of the step is still the answer.
    if let Ok(Some(found)) = jobs.find(id) {
        here.log.say(
            &found,
            &match &took {
                Ok(Answer::Done(text)) => format!("{step}: {text}"),
                Ok(Answer::Wait(text)) => format!("{step}: waits: {text}"),
                Err(error) => format!("{step}: {error}"),
            },
        );
        if step == "setup" {
            job::refresh_spool(jobs, here)?;
        }
    }
    took
}

/// Handles root's message on a node that a job has left the node.
fn released(door: &Door, peer: Peer, id: &str, asked: &StepOfJob) -> Result<Answer> {
    if peer.uid != 0 {
        return Err(Error::os(libc::EPERM, "only root says that a job has left a node"));
    }
    let patience = if asked.over { Patience::Over } else { Patience::Wait };
    let users = |at: &Path| users_of(at, HOLDERS);
    job::release(door.node.book(), door.node.name(), id, patience, users)
}

fn hurry(asked: &StepOfJob) -> Hurry {
    if asked.hurry { Hurry::Yes } else { Hurry::No }
}

fn view(answer: Answer) -> StepView {
    match answer {
        Answer::Done(text) => StepView { state: StepState::Done, text },
        Answer::Wait(text) => StepView { state: StepState::Wait, text },
    }
}

/// Refuses all users but the scheduler's and root (D3).
fn require_scheduler(here: &Scheduler, peer: Peer) -> Result<()> {
    match peer.uid == 0 || peer.uid == here.uid {
        true => Ok(()),
        false => {
            let user = &here.config.user;
            let why = format!("only the scheduler's user {user} and root take steps of jobs");
            Err(Error::os(libc::EPERM, why))
        }
    }
}

fn may_see_job(here: &Scheduler, peer: Peer, job: &Job) -> bool {
    may_see(peer, job.owner) || peer.uid == here.uid
}

fn job_view(door: &Door, here: &Scheduler, job: Job) -> Result<JobView> {
    let desk = door.node.desk();
    let all = desk.instances()?.into_iter();
    let own = all.filter(|instance| matches!(&instance.life, Life::Job(key) if *key == job.key));
    let instances: Result<Vec<_>> = own.map(|instance| door.view(instance)).collect();
    let prefix = format!("{}-t", job.key.name());
    let ours = desk
        .transfers()?
        .into_iter()
        .filter(|(transfer, _)| job.phase < Phase::TornDown && transfer.id.starts_with(&prefix));
    let transfers = ours.map(|(wanted, actual)| door.transfer_view(wanted, actual)).collect();
    Ok(JobView { instances: instances?, transfers, log: here.log.path(&job), job })
}

/// Looks with the rights of a job's owner (D2).
struct EyesOf<'d>(&'d Door);

impl Eyes for EyesOf<'_> {
    fn source(&self, owner: Owner, path: &Path) -> io::Result<()> {
        let mounts = &self.0.node.config().backing_mounts;
        forebay_node::require_mounted(path, mounts).map_err(io::Error::other)?;
        let looked = path.to_path_buf();
        asker::as_user(owner.uid, owner.gid, path, move || std::fs::metadata(looked)).map(|_| ())
    }

    fn backing(
        &self,
        owner: Owner,
        path: &Path,
        settings: &BTreeMap<String, String>,
    ) -> Result<Backing> {
        self.0.backing(path, owner, settings.clone())
    }
}
