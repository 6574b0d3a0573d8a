//! The steps of a job, one for each hook of a scheduler. Each does what is still to be done, and says what it
//! waits for.

use std::collections::BTreeSet;

use forebay_base::units::{counted, human_size};
use forebay_base::{Error, Kind, Result};
use forebay_job::plan::{Destroy, Direction, Of, On, Plan, Staging};

use super::order::{Eyes, Leg, Orders};
use super::record::{Ended, Job, Phase, Released};
use crate::Book;
use crate::book::Listed;
use crate::clock::now;
use crate::config::SchedulerConfig;
use crate::desk::{Asker, Desk};
use crate::failpoint;
use crate::records::{
    Actual, Instance, JobKey, Owner, PoolRecord, State, TransferState, TransferWant, Want, When,
    check_name, keys,
};

/// The result of a step. A step that cannot be done returns an error, whose text is for the job's owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Done(String),
    /// The step waits for this; the hook asks for the same step again.
    Wait(String),
}

/// A job as the scheduler announces it.
#[derive(Debug, Clone)]
pub struct NewJob {
    pub id: String,
    pub owner: Owner,
    pub plan: Plan,
    /// The pool that the scheduler has counted for the job.
    pub pool: Option<String>,
}

/// The jobs of a scheduler's cluster.
pub struct Jobs<'a> {
    pub book: &'a Book,
    pub desk: &'a Desk,
    pub scheduler: &'a SchedulerConfig,
    pub eyes: &'a dyn Eyes,
}

/// The scheduler's role: the scheduler may end the instances and transfers of any user's job.
const SCHEDULER: Asker = Asker { uid: 0, gid: 0 };

fn usage(why: String) -> Error {
    Error::new(Kind::Usage, why)
}

fn done(why: impl Into<String>) -> Result<Answer> {
    Ok(Answer::Done(why.into()))
}

impl Jobs<'_> {
    fn orders(&self) -> Orders<'_> {
        Orders { book: self.book, desk: self.desk, eyes: self.eyes }
    }

    /// All jobs of the cluster, each incarnation separately.
    pub fn all(&self) -> Result<Vec<Job>> {
        let prefix = format!("{}{}/", keys::JOBS, self.scheduler.cluster);
        let found: Listed<Job> = self.book.list_some(&prefix)?;
        Ok(found.read.into_iter().map(|(_, job)| job).collect())
    }

    /// The last incarnation of a job.
    pub fn find(&self, id: &str) -> Result<Option<Job>> {
        Ok(self.runs(id)?.into_iter().max_by_key(|job| job.key.incarnation))
    }

    fn runs(&self, id: &str) -> Result<Vec<Job>> {
        check_name("job", id)?;
        let found: Vec<(String, Job)> =
            self.book.list(&keys::jobs_of(&self.scheduler.cluster, id))?;
        Ok(found.into_iter().map(|(_, job)| job).collect())
    }

    fn require(&self, id: &str) -> Result<Job> {
        let found = self.find(id)?.filter(|job| job.phase != Phase::TornDown);
        found.ok_or_else(|| usage(format!("job {id} was not set up, or is torn down")))
    }

    /// Stores the plan (J1) and makes the named instances that it creates.
    pub fn set_up(&self, asked: &NewJob) -> Result<Answer> {
        check_name("job", &asked.id)?;
        refuse_root(asked.owner)?;
        let mut plan = asked.plan.clone();
        self.choose_pools(&mut plan, asked.pool.as_deref())?;
        let job = self.incarnate(asked, plan)?;
        failpoint::pass("job-recorded");
        for before in self.runs(&asked.id)? {
            if before.key.incarnation < job.key.incarnation && before.phase != Phase::TornDown {
                self.leave(&before, Hurry::No)?;
            }
        }
        job.plan.destroys.iter().try_for_each(|destroy| self.destroy(&job, destroy))?;
        for create in &job.plan.creates {
            let made = self.orders().persistent(job.owner, create)?;
            if let Some(why) = self.not_ready(&made)? {
                return Ok(Answer::Wait(why));
            }
        }
        done(match job.key.incarnation {
            1 => String::from("set up"),
            n => format!("set up for run {n}"),
        })
    }

    /// Orders that an instance goes which existed before the job: on repetition an instance that the job has
    /// made in its place is not meant.
    fn destroy(&self, job: &Job, destroy: &Destroy) -> Result<()> {
        let there: Option<Instance> = self.book.read(&keys::wanted_instance(&destroy.name))?;
        let made_again = job.plan.creates.iter().any(|create| create.name == destroy.name);
        let before = |there: &Instance| match made_again {
            true => there.created < job.created,
            false => there.created <= job.created,
        };
        if !there.as_ref().is_some_and(before) {
            return Ok(());
        }
        let want = if destroy.hurry { Want::GoneInHurry } else { Want::Gone };
        let Owner { uid, gid } = job.owner;
        self.desk.destroy(&destroy.name, Asker { uid, gid }, want).map(|_| ())
    }

    /// The record of a new incarnation, unless this one was set up already (J3).
    fn incarnate(&self, asked: &NewJob, plan: Plan) -> Result<Job> {
        self.book.change(&format!("job {}", asked.id), |draft| {
            let last = self.find(&asked.id)?;
            let alike = |job: &Job| {
                let may_run = job.phase == Phase::SetUp && job.ending.is_none();
                may_run && job.is_the_same(asked.owner, &plan)
            };
            if let Some(same) = last.clone().filter(alike) {
                return Ok(same);
            }
            let after = last.as_ref().map_or(0, |last| last.key.incarnation);
            let key = self.unused(&asked.id, after)?;
            let record = keys::job(&key);
            draft.read::<Job>(&record)?;
            let job = Job {
                key,
                owner: asked.owner,
                plan: plan.clone(),
                phase: Phase::SetUp,
                nodes: Vec::new(),
                ending: None,
                ended: None,
                since: now(),
                created: now(),
            };
            draft.put(&record, &job);
            Ok(job)
        })
    }

    /// The next incarnation whose name no transfer has, and no job of another cluster: the transfers of an
    /// earlier run are remembered longer than their job, and must not pass for those of this run.
    fn unused(&self, id: &str, after: u32) -> Result<JobKey> {
        let transfers = self.desk.transfers()?;
        let jobs: Listed<Job> = self.book.list_some(keys::JOBS)?;
        let unread = jobs.unread.iter();
        let unread = unread.filter_map(|(_, job)| serde_json::from_value(job["key"].clone()).ok());
        let taken: Vec<JobKey> =
            jobs.read.iter().map(|(_, job)| job.key.clone()).chain(unread).collect();
        let cluster = &self.scheduler.cluster;
        let key = |incarnation| JobKey { cluster: cluster.clone(), id: id.into(), incarnation };
        let is_free = |key: &JobKey| {
            let prefix = format!("{}-t", key.name());
            !transfers.iter().any(|(transfer, _)| transfer.id.starts_with(&prefix))
                && !taken.iter().any(|other| other.name() == key.name())
        };
        let mut free = (after + 1..).map(key).filter(is_free);
        Ok(free.next().expect("there are fewer transfers than numbers"))
    }

    /// Makes every instance of the plan name a pool that can hold it on some node.
    fn choose_pools(&self, plan: &mut Plan, counted: Option<&str>) -> Result<()> {
        let pools: Vec<(String, PoolRecord)> = self.book.list(keys::POOLS)?;
        let name_of = |key: &str| key.split_once('/').map(|(_, name)| name.to_string());
        let names: Vec<String> = pools.iter().filter_map(|(key, _)| name_of(key)).collect();
        for space in &mut plan.instances {
            let asked = space.pool.as_deref().or(counted);
            let pool = choose_pool(names.iter().map(String::as_str), asked)
                .map_err(|why| usage(format!("line {}: {why}", space.line)))?;
            let of_it = pools.iter().filter(|(key, _)| name_of(key).as_ref() == Some(&pool));
            let most = of_it.map(|(_, record)| record.capacity).max().unwrap_or(0);
            if space.bytes > most {
                let (wanted, most) = (human_size(space.bytes), human_size(most));
                return Err(Error::os(
                    libc::ENOSPC,
                    format!(
                        "line {}: {wanted} are wanted on each node, and pool {pool} has {most} on the \
                     largest: ask for less, or for more nodes",
                        space.line
                    ),
                ));
            }
            space.pool = Some(pool);
        }
        Ok(())
    }

    /// Does what needs no nodes: fills named instances, and checks sources that will be needed.
    pub fn data_in(&self, id: &str) -> Result<Answer> {
        let job = self.require(id)?;
        for used in &job.plan.uses {
            self.desk.instance(&used.name).map_err(|e| e.context(format!("line {}", used.line)))?;
        }
        let ins = || stagings(&job, Direction::In);
        job.plan.transfers.iter().try_for_each(|staging| self.require_own(&job, staging))?;
        if self.scheduler.look_at_sources {
            for (_, staging) in ins() {
                self.eyes.source(job.owner, &staging.outside).map_err(|e| {
                    let source = staging.outside.display();
                    usage(format!("line {}: stage_in source {source}: {e}", staging.line))
                })?;
            }
        }
        let persistent = ins().filter(|(_, staging)| matches!(staging.of, Of::Persistent(_)));
        let legs = self.legs(&job, persistent)?;
        legs.iter().try_for_each(|leg| self.orders().transfer(&job, leg, When::Now).map(|_| ()))?;
        self.carried(&legs)
    }

    /// Refuses, before the job runs, to stage into or out of a named instance that the job's owner does not
    /// own.
    fn require_own(&self, job: &Job, staging: &Staging) -> Result<()> {
        let Of::Persistent(name) = &staging.of else { return Ok(()) };
        let at = |e: Error| e.context(format!("line {}", staging.line));
        let instance = self.desk.instance(name).map_err(at)?;
        match instance.owner.uid == job.owner.uid {
            true => Ok(()),
            false => Err(usage(format!(
                "line {}: {name} is not yours: read it in the job, and stage from a space of your own",
                staging.line
            ))),
        }
    }

    /// Makes and fills instances on the job's nodes, and orders the stage-outs at the end.
    pub fn pre_run(&self, id: &str, nodes: &[String]) -> Result<Answer> {
        let job = self.on_nodes(&self.require(id)?, nodes)?;
        if job.phase != Phase::SetUp {
            return done("ready");
        }
        self.require_uses(&job)?;
        for space in &job.plan.instances {
            match self.orders().instance(&job, space) {
                Ok(_) => {}
                Err(error) if waits(&error) => return Ok(Answer::Wait(error.to_string())),
                Err(error) => return Err(error.context(format!("line {}", space.line))),
            }
        }
        failpoint::pass("job-instances");
        for instance in self.orders().instances_of(&job)? {
            if let Some(why) = self.not_ready(&instance)? {
                return Ok(Answer::Wait(why));
            }
        }
        let own = |(_, staging): &(usize, &Staging)| matches!(staging.of, Of::Job(_));
        let ins = self.legs(&job, stagings(&job, Direction::In).filter(own))?;
        ins.iter().try_for_each(|leg| self.orders().transfer(&job, leg, When::Now).map(|_| ()))?;
        if let Answer::Wait(why) = self.carried(&ins)? {
            return Ok(Answer::Wait(why));
        }
        // This comes last: nothing is published for a job that never ran.
        let outs = self.legs(&job, stagings(&job, Direction::Out).filter(own))?;
        outs.iter()
            .try_for_each(|leg| self.orders().transfer(&job, leg, When::AtEnd).map(|_| ()))?;
        failpoint::pass("job-outs");
        let noted = self.noted(&ins)?;
        let ready = |job: &mut Job| {
            if job.require_open().is_ok() {
                job.enter(Phase::Ready);
            }
        };
        self.alter(&job, ready)?.require_open()?;
        done(format!("ready{noted}"))
    }

    fn on_nodes(&self, job: &Job, nodes: &[String]) -> Result<Job> {
        if nodes.is_empty() {
            return Err(usage(format!("job {}: no node is known that it runs on", job.key.id)));
        }
        if !job.nodes.is_empty() && job.nodes != nodes {
            let (before, now) = (job.nodes.join(","), nodes.join(","));
            return Err(usage(format!("it was prepared on {before}, and is to run on {now}")));
        }
        if let Some(most) = job.plan.nodes_max.filter(|most| nodes.len() > *most as usize) {
            return Err(usage(format!(
                "it got {} nodes ({}), and what it asks for is good for {most} only (`forebay job \
                 check` says why): cancel it and submit with --nodes={most}",
                nodes.len(),
                nodes.join(",")
            )));
        }
        self.alter(job, |job| job.nodes = nodes.to_vec())
    }

    fn require_uses(&self, job: &Job) -> Result<()> {
        for used in &job.plan.uses {
            let instance = self.desk.instance(&used.name)?;
            if let Some(node) = job.nodes.iter().find(|node| !instance.nodes.contains(node)) {
                let (name, there) = (&used.name, instance.nodes.join(","));
                return Err(usage(format!(
                    "line {}: {name} is on {there}, and the job is to run on {node}: submit with \
                     --nodelist={there}",
                    used.line
                )));
            }
            if let Some(why) = self.not_ready(&instance)? {
                return Err(usage(format!("line {}: {why}", used.line)));
            }
        }
        Ok(())
    }

    /// The job has ended: once its processes are gone, its stage-outs are carried out.
    pub fn post_run(&self, id: &str, ended: Ended) -> Result<Answer> {
        let Some(job) = self.find(id)? else { return done("nothing is known of it") };
        if job.phase >= Phase::Ended {
            if let Some(why) = self.settle(&job, ended)? {
                return Ok(Answer::Wait(why));
            }
            self.give_up(&job, Want::Gone)?;
            return done("its data go home");
        }
        let job = self.close(&job)?;
        if let Some(why) = self.not_released(&job)? {
            return Ok(Answer::Wait(why));
        }
        self.end(&job, ended)?;
        done("its data go home")
    }

    /// Ends a job's run, whichever caller says that it is over.
    pub(super) fn end(&self, job: &Job, ended: Ended) -> Result<()> {
        let on_success = |staging: &Staging| staging.on == On::Success;
        match ended {
            Ended::Success => {}
            Ended::Failure => self.call_off(job, TransferWant::Revoked, on_success)?,
            // To publish the files and to drop them could both be wrong: they are held, and listed (J2).
            Ended::Unknown => self.call_off(job, TransferWant::Cancelled, on_success)?,
        }
        let ordered = match job.phase {
            Phase::Ready => self.order_shared(job, ended),
            _ => Ok(()),
        };
        // An order whose obstacle may pass is tried again, before the instance knows that the job has ended.
        if let Err(error) = &ordered
            && waits(error)
        {
            return ordered;
        }
        // An order that cannot be made keeps nothing else from going home.
        let job = self.alter(job, |job| {
            job.enter(Phase::Ended);
            job.ended = job.ended.or(Some(ended));
        })?;
        failpoint::pass("job-ended");
        self.give_up(&job, Want::Gone)?;
        ordered
    }

    /// Publishes or gives up the files that were held because it was unknown how the job had ended, once that
    /// is known.
    fn settle(&self, job: &Job, ended: Ended) -> Result<Option<String>> {
        if job.ended != Some(Ended::Unknown) || ended == Ended::Unknown {
            return Ok(None);
        }
        let held = stagings(job, Direction::Out).filter(|(_, staging)| staging.on == On::Success);
        for leg in self.legs(job, held)? {
            let Some((transfer, actual)) = self.orders().found(&leg)? else { continue };
            if transfer.want != TransferWant::Cancelled {
                continue;
            }
            if !actual.is_some_and(|actual| actual.state.has_ended()) {
                return Ok(Some(format!("for transfer {} to be held", transfer.id)));
            }
            match ended {
                Ended::Success => self.desk.resume(&transfer.id, SCHEDULER)?,
                _ => self.desk.call_off(&transfer.id, SCHEDULER, TransferWant::Revoked)?,
            };
        }
        self.order_shared(job, ended)?;
        self.alter(job, |job| job.ended = Some(ended)).map(|_| None)
    }

    /// Orders the stage-outs of named instances.
    fn order_shared(&self, job: &Job, ended: Ended) -> Result<()> {
        let shared = stagings(job, Direction::Out).filter(|(_, staging)| {
            let wanted = staging.on == On::Always || ended == Ended::Success;
            wanted && matches!(staging.of, Of::Persistent(_))
        });
        let mut first = Ok(());
        for leg in self.legs(job, shared)? {
            let ordered = self.orders().transfer(job, &leg, When::Now).map(|_| ());
            first = first.and(ordered);
        }
        first
    }

    fn not_released(&self, job: &Job) -> Result<Option<String>> {
        let until =
            job.ending.unwrap_or(0).saturating_add(self.scheduler.release_patience.as_secs());
        if self.desk.time() >= until {
            return Ok(None);
        }
        let told: Vec<(String, Released)> = self.book.list(&keys::released_all(&job.key))?;
        let missing = job.nodes.iter().find(|node| !told.iter().any(|(there, _)| there == *node));
        Ok(missing.map(|node| format!("for the epilog of node {node}")))
    }

    /// Whether all stage-outs are done.
    pub fn data_out(&self, id: &str) -> Result<Answer> {
        let Some(job) = self.find(id)? else { return done("nothing is known of it") };
        if job.phase == Phase::Ended {
            // Stage-outs that could not be ordered when the job ended are reported again.
            self.order_shared(&job, job.ended.unwrap_or(Ended::Unknown))?;
        }
        let legs = self.legs(&job, stagings(&job, Direction::Out))?;
        if let Answer::Wait(why) = self.carried(&legs)? {
            return Ok(Answer::Wait(why));
        }
        match self.orders().instances_of(&job)?.first() {
            Some(instance) => Ok(Answer::Wait(self.going(instance)?)),
            None => done(format!("its data are home{}", self.noted(&legs)?)),
        }
    }

    /// The scheduler forgets the job: files that are not home yet go on by themselves, or are kept (J2).
    pub fn tear_down(&self, id: &str, hurry: Hurry) -> Result<Answer> {
        let Some(job) = self.find(id)? else { return done("nothing is known of it") };
        self.leave(&job, hurry)?;
        done("torn down")
    }

    /// Tears down one run of a job.
    pub(super) fn leave(&self, job: &Job, hurry: Hurry) -> Result<()> {
        let job = &self.close(job)?;
        match (job.phase, hurry) {
            // The job never ran.
            (Phase::SetUp, _) => self.call_off(job, TransferWant::Revoked, |_| true)?,
            (Phase::Ready, Hurry::No) => self.end(job, Ended::Unknown)?,
            _ => {}
        }
        let want = if hurry == Hurry::Yes { Want::GoneInHurry } else { Want::Gone };
        self.give_up(job, want)?;
        failpoint::pass("job-given-up");
        self.enter(job, Phase::TornDown).map(|_| ())
    }

    /// From here on nothing is ordered for the job's run, not even by a step that is under way: no instance or
    /// transfer is added any more.
    fn close(&self, job: &Job) -> Result<Job> {
        self.alter(job, |job| job.ending = job.ending.or(Some(self.desk.time())))
    }

    /// Calls off stage-outs of a job that have not begun.
    fn call_off(
        &self,
        job: &Job,
        want: TransferWant,
        which: impl Fn(&Staging) -> bool,
    ) -> Result<()> {
        let outs = stagings(job, Direction::Out).filter(|(_, staging)| which(staging));
        for leg in self.legs(job, outs)? {
            let Some((transfer, actual)) = self.orders().found(&leg)? else { continue };
            if actual.is_none_or(|actual| actual.state == TransferState::Waiting) {
                self.desk.call_off(&transfer.id, SCHEDULER, want)?;
            }
        }
        Ok(())
    }

    pub(super) fn give_up(&self, job: &Job, want: Want) -> Result<()> {
        let all = self.orders().instances_of(job)?;
        all.iter().try_for_each(|instance| {
            // An instance that was told to go need not be told again, and may be gone by now.
            let told = instance.want == want || instance.want == Want::GoneInHurry;
            if told { Ok(()) } else { self.desk.destroy(&instance.id, SCHEDULER, want).map(|_| ()) }
        })
    }

    /// The reason for which an instance that is to go still waits.
    fn going(&self, instance: &Instance) -> Result<String> {
        let actual = self.desk.actual(&instance.id)?;
        let told = actual.into_iter().find_map(|(node, actual)| Some((node, actual.why?)));
        Ok(match told {
            Some((node, why)) => format!("node {node}: {}: {why}", instance.id),
            None => format!("{} goes", instance.id),
        })
    }

    /// The reason for which an instance that is to be there is not ready.
    fn not_ready(&self, instance: &Instance) -> Result<Option<String>> {
        let actual: Vec<(String, Actual)> = self.desk.actual(&instance.id)?;
        for node in &instance.nodes {
            let there = actual.iter().find(|(name, _)| name == node).map(|(_, actual)| actual);
            let (state, why) = match there {
                Some(actual) if actual.state == State::Ready => continue,
                Some(actual) => (actual.state.name(), actual.why.clone()),
                None => ("waits for its node daemon", None),
            };
            let why = why.map_or(String::new(), |why| format!(": {why}"));
            return Ok(Some(format!("node {node}: {} {state}{why}", instance.id)));
        }
        Ok(None)
    }

    fn legs<'j>(
        &self,
        job: &'j Job,
        stagings: impl Iterator<Item = (usize, &'j Staging)>,
    ) -> Result<Vec<Leg<'j>>> {
        let mut all = Vec::new();
        for (number, staging) in stagings {
            all.extend(self.orders().legs(job, staging, number)?);
        }
        Ok(all)
    }

    /// Whether the ordered transfers are done. One that was never ordered, or was taken back, counts as done.
    fn carried(&self, legs: &[Leg<'_>]) -> Result<Answer> {
        let mut waits = None;
        let (mut files, mut bytes) = (0, 0);
        for leg in legs {
            let Some((wanted, actual)) = self.orders().found(leg)? else { continue };
            let current = actual.filter(|actual| actual.attempt == wanted.attempt);
            let state = current.as_ref().map_or(TransferState::Waiting, |actual| actual.state);
            let why = current.as_ref().and_then(|actual| actual.why.clone());
            match state {
                TransferState::Done => {
                    files += current.as_ref().map_or(0, |actual| actual.files);
                    bytes += current.as_ref().map_or(0, |actual| actual.bytes);
                }
                _ if wanted.want == TransferWant::Revoked => {}
                TransferState::Failed | TransferState::Cancelled => {
                    return Err(failed(leg, state, why));
                }
                TransferState::Waiting | TransferState::Running => {
                    let why = why.map_or(String::new(), |why| format!(": {why}"));
                    let (id, line) = (&leg.id, leg.staging.line);
                    waits.get_or_insert(format!(
                        "transfer {id} (line {line}) {}{why}",
                        state.name()
                    ));
                }
            }
        }
        Ok(match waits {
            Some(why) => Answer::Wait(why),
            None => {
                let noted = self.noted(legs)?;
                Answer::Done(format!("{files} files, {}{noted}", human_size(bytes)))
            }
        })
    }

    /// The notes of transfers that are done: empty, or what did not come along.
    fn noted(&self, legs: &[Leg<'_>]) -> Result<String> {
        let mut said = String::new();
        for leg in legs {
            let Some((wanted, Some(actual))) = self.orders().found(leg)? else { continue };
            let current = Some(&actual).filter(|actual| actual.attempt == wanted.attempt);
            if let Some(first) = current.and_then(|actual| actual.notes.first()) {
                let (id, line, count) = (&leg.id, leg.staging.line, counted(actual.noted, "note"));
                said += &format!("; transfer {id} (line {line}): {count}, the first: {first}");
            }
        }
        Ok(said)
    }

    fn enter(&self, job: &Job, phase: Phase) -> Result<Job> {
        self.alter(job, |job| job.enter(phase))
    }

    fn alter(&self, job: &Job, alter: impl Fn(&mut Job)) -> Result<Job> {
        let key = keys::job(&job.key);
        self.book.change(&format!("job {}", job.key.id), |draft| {
            let gone = || usage(format!("job {} is gone", job.key.id));
            let there: Job = draft.read(&key)?.ok_or_else(gone)?;
            let mut new = there.clone();
            alter(&mut new);
            if new != there {
                draft.put(&key, &new);
            }
            Ok(new)
        })
    }

    /// Makes a named instance for `dw_wlm_cli`, apart from any job's plan.
    pub fn persistent(&self, owner: Owner, create: &forebay_job::plan::Create) -> Result<Answer> {
        refuse_root(owner)?;
        let made = self.orders().persistent(owner, create)?;
        Ok(match self.not_ready(&made)? {
            Some(why) => Answer::Wait(why),
            None => Answer::Done(format!("created {}", made.id)),
        })
    }

    pub fn destroy_persistent(&self, name: &str, hurry: Hurry) -> Result<Answer> {
        let want = if hurry == Hurry::Yes { Want::GoneInHurry } else { Want::Gone };
        check_name("instance", name)?;
        let there: Option<Instance> = self.book.read(&keys::wanted_instance(name))?;
        match there {
            None => done("it is gone"),
            Some(there) if matches!(there.life, crate::records::Life::Job(_)) => {
                Err(usage(format!("{name} is a job's, and goes with it")))
            }
            Some(_) => {
                self.desk.destroy(name, SCHEDULER, want)?;
                done("it goes")
            }
        }
    }
}

/// Whether files that are not home may be left behind for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hurry {
    Yes,
    No,
}

/// The stagings of a direction, with their numbers in the plan.
fn stagings(job: &Job, direction: Direction) -> impl Iterator<Item = (usize, &Staging)> {
    job.plan.transfers.iter().enumerate().filter(move |(_, staging)| staging.direction == direction)
}

/// The scheduler acts for users. Only an operator makes instances for root.
fn refuse_root(owner: Owner) -> Result<()> {
    match owner.uid {
        0 => Err(Error::os(libc::EPERM, "root has no jobs and no named instances of a scheduler")),
        _ => Ok(()),
    }
}

/// Whether the obstacle may pass: room and nodes come and go.
fn waits(error: &Error) -> bool {
    error.is(libc::ENOSPC) || matches!(error.kind(), Kind::Unavailable | Kind::TimedOut)
}

/// The pool that is asked for, or the only one; otherwise an error that says what to write.
pub fn choose_pool<'n>(
    there: impl Iterator<Item = &'n str>,
    asked: Option<&str>,
) -> std::result::Result<String, String> {
    let names: BTreeSet<&str> = there.collect();
    let listed = || names.iter().copied().collect::<Vec<_>>().join("|");
    match (asked, names.len()) {
        (_, 0) => {
            Err("no node offers a pool: does `forebay node` run on the compute nodes?".into())
        }
        (Some(pool), _) if names.contains(pool) => Ok(pool.into()),
        (Some(pool), _) => Err(format!("there is no pool {pool}: write pool={}", listed())),
        (None, 1) => Ok(listed()),
        (None, _) => Err(format!("several pools are there: write pool={}", listed())),
    }
}

fn failed(leg: &Leg<'_>, state: TransferState, why: Option<String>) -> Error {
    let (id, line, state) = (&leg.id, leg.staging.line, state.name());
    let why = why.map_or(String::new(), |why| format!(": {why}"));
    let next = match leg.staging.direction {
        Direction::In => String::new(),
        Direction::Out => {
            format!(
                "; `forebay manifest` lists what is not home, `forebay stage resume {id}` brings it"
            )
        }
    };
    Error::os(libc::EIO, format!("line {line}: transfer {id} {state}{why}{next}"))
}
