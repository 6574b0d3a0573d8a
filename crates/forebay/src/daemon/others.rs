//! The services that the daemons of a store's members do for each other.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use forebay_backing::{Error, Kind, Result};
use forebay_base::lock::{Mutex, MutexGuard, Rank, sleep};
use forebay_cluster::front::Desk;
use forebay_cluster::member::Member;
use forebay_engine::Progress;
use serde_json::{Value, json};

use super::Daemon;
use super::jobs::Outcome;
use crate::wire::{Job, JobFailure, JobKind, JobState, MemberView, NewJob};

/// The pause between two polls of a job on another node.
const POLL: Duration = Duration::from_millis(200);

/// After this number of polls in a row without an answer, the member is given up.
const POLLS_MISSED: u32 = 25;

/// The number of members' drains that are remembered; a daemon leaves only once.
const DRAINS_MAX: usize = 16;

/// Answers other members' requests to this daemon.
pub struct TheDesk {
    daemon: Weak<Daemon>,
    /// Jobs by which members drain this one: members may watch and cancel these, and no other unmount.
    drains: Mutex<VecDeque<u64>>,
}

impl TheDesk {
    pub fn of(daemon: &Arc<Daemon>) -> TheDesk {
        let drains = Mutex::new(Rank::DaemonNotes, VecDeque::new());
        TheDesk { daemon: Arc::downgrade(daemon), drains }
    }

    #[track_caller]
    fn drains(&self) -> MutexGuard<'_, VecDeque<u64>> {
        self.drains.lock()
    }

    fn is_drain(&self, id: &str) -> Option<u64> {
        id.parse().ok().filter(|id| self.drains().contains(id))
    }

    /// Remembers a drain that a member began.
    fn began(&self, answer: &Value) {
        let mut drains = self.drains();
        drains.extend(answer["id"].as_u64());
        while drains.len() > DRAINS_MAX {
            drains.pop_front();
        }
    }
}

/// Whether an unmount flushes everything, and fails while programs use the mount.
fn is_orderly(body: &Value) -> bool {
    let is_off = |key: &str| body[key].is_null() || body[key] == false;
    is_off("keep_dirty") && is_off("lazy")
}

impl Desk for TheDesk {
    fn answer(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        let refuse = |what: String| (403, json!({ "error": what }));
        let Some(daemon) = self.daemon.upgrade() else { return refuse("it is ending".into()) };
        let is_prefetch = |id: &str| {
            let job = id.parse().ok().and_then(|id| daemon.jobs.view(id));
            job.is_some_and(|job| job.kind == JobKind::Prefetch)
        };
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let may = match (method, parts.as_slice()) {
            ("GET", ["v1", "status" | "top" | "held"]) => true,
            ("POST", ["v1", "jobs"]) => body["kind"] == "prefetch" && body["all_nodes"] != true,
            ("POST", ["v1", "umount"]) => is_orderly(&body),
            ("GET" | "DELETE", ["v1", "jobs", id]) => {
                is_prefetch(id) || self.is_drain(id).is_some()
            }
            _ => false,
        };
        if !may {
            return refuse(format!("{method} {path}: members may not ask this of each other"));
        }
        let (status, answer) = daemon.say(method, path, body);
        match (method, parts.as_slice()) {
            ("POST", ["v1", "umount"]) => self.began(&answer),
            // For an ended job, DELETE says that the member has seen the end.
            ("DELETE", ["v1", "jobs", id]) => {
                self.is_drain(id).into_iter().for_each(|id| daemon.jobs.mark_seen(id));
            }
            _ => {}
        }
        (status, answer)
    }
}

/// A job that all members do, each on its own node.
pub struct Spread {
    member: Arc<Member>,
    body: Value,
    others: Vec<(String, Result<u64>)>,
}

impl Spread {
    /// Starts the job on all other members.
    fn begin(mut self) -> Spread {
        let (member, body) = (&self.member, &self.body);
        let asked = each(member.others(), |name| {
            let answer = member.ask_daemon(name, "POST", "/v1/jobs", body.clone())?;
            answer["id"].as_u64().ok_or_else(|| {
                Error::new(Kind::Unavailable, "it named no job: is it of another release?")
            })
        });
        self.others = asked;
        self
    }

    /// Waits until the job has ended on all members, and adds their failures to the outcome.
    fn finish(self, progress: &Progress, outcome: &mut Outcome) {
        let Spread { member, others, .. } = self;
        let missed = |name: &str, error: &Error| JobFailure {
            path: std::path::Path::new("").into(),
            state: format!("member {name}"),
            error: error.to_string(),
        };
        for (name, begun) in others {
            match begun.and_then(|id| wait(&member, &name, id, progress, |_| ())) {
                Ok(job) => {
                    let failures = job.report.map(|report| report.failures).unwrap_or_default();
                    let named = failures.into_iter().map(|failure| JobFailure {
                        state: format!("member {name}: {}", failure.state),
                        ..failure
                    });
                    outcome.report.failures.extend(named);
                }
                Err(error) => outcome.report.failures.push(missed(&name, &error)),
            }
        }
        if outcome.exit_code == 0 && !outcome.report.failures.is_empty() {
            outcome.exit_code = 1;
        }
    }
}

/// Asks all members at once; the answers keep the order of the names.
fn each<T: Send>(names: Vec<String>, ask: impl Fn(&str) -> T + Sync) -> Vec<(String, T)> {
    thread::scope(|scope| {
        let ask = &ask;
        let asked = names.into_iter().map(|name| {
            let to = name.clone();
            (name, scope.spawn(move || ask(&to)))
        });
        let asked: Vec<_> = asked.collect();
        let ended = |(name, asked): (String, thread::ScopedJoinHandle<'_, T>)| {
            (name, asked.join().expect("no panic inside"))
        };
        asked.into_iter().map(ended).collect()
    })
}

/// Waits for a job on another member, which is cancelled with this one. `see` gets each view of it.
pub fn wait(
    member: &Member,
    name: &str,
    id: u64,
    progress: &Progress,
    see: impl Fn(&Job),
) -> Result<Job> {
    let path = format!("/v1/jobs/{id}");
    let mut missed = 0;
    let mut is_cancelled = false;
    let is_alive = || member.others().iter().any(|other| other == name);
    loop {
        if progress.is_cancelled() && !std::mem::replace(&mut is_cancelled, true) {
            let _ = member.ask_daemon(name, "DELETE", &path, Value::Null);
        }
        match member.ask_daemon(name, "GET", &path, Value::Null) {
            Ok(job) => {
                missed = 0;
                let job: Job = serde_json::from_value(job).map_err(|e| {
                    Error::new(Kind::Unavailable, format!("the daemon's answer: {e}"))
                })?;
                see(&job);
                if job.state != JobState::Running {
                    return Ok(job);
                }
            }
            Err(error) if missed >= POLLS_MISSED || !is_alive() => return Err(error),
            Err(_) => missed += 1,
        }
        sleep(POLL);
    }
}

impl Daemon {
    /// The other members that do a job, if it is for all nodes.
    pub fn spread(&self, asked: &NewJob) -> Result<Option<Spread>> {
        if !asked.all_nodes {
            return Ok(None);
        }
        if asked.kind != JobKind::Prefetch {
            let what = format!("all_nodes: not for {}", asked.kind.name());
            return Err(Error::new(Kind::Usage, what));
        }
        let body = json!(NewJob { all_nodes: false, ..asked.clone() });
        Ok(Some(Spread { member: self.one_of_many()?.clone(), body, others: Vec::new() }))
    }

    /// All members of the store, with the status of those that are alive.
    pub fn cluster_json(&self) -> Result<Value> {
        let member = self.one_of_many()?;
        let overview = member.overview()?;
        let mut statuses =
            each(member.others(), |name| member.ask_daemon(name, "GET", "/v1/status", Value::Null));
        statuses.push((member.name().into(), Ok(self.status_json())));
        let mut view = json!(overview);
        view["registry_problems"] = self.registry_problems(member)?;
        let said = statuses.into_iter().map(|(name, status)| match status {
            Ok(status) => (name, json!(MemberView::of(&status))),
            Err(error) => (name, json!(MemberView::failed(&error))),
        });
        view["daemons"] = said.collect::<serde_json::Map<String, Value>>().into();
        Ok(view)
    }

    /// The figures of `forebay top`, of all members that are alive.
    pub fn cluster_top_json(&self) -> Result<Value> {
        let member = self.one_of_many()?;
        let tops =
            each(member.others(), |name| member.ask_daemon(name, "GET", "/v1/top", Value::Null));
        let mut all: serde_json::Map<String, Value> = tops
            .into_iter()
            .map(|(name, top)| (name, top.unwrap_or_else(|e| json!({ "error": e.to_string() }))))
            .collect();
        all.insert(member.name().into(), self.top_json());
        Ok(all.into())
    }
}

/// Runs `work` here and, for a spread job, on all other members.
pub fn everywhere(
    spread: Option<Spread>,
    progress: &Progress,
    work: impl FnOnce() -> Outcome,
) -> Outcome {
    let begun = spread.map(Spread::begin);
    let mut outcome = work();
    if let Some(spread) = begun {
        spread.finish(progress, &mut outcome);
    }
    outcome
}
