//! The requests of the control socket and their answers.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_backing::{Error, Kind, Result};
use forebay_cluster::member::Member;
use forebay_engine::rules::Origin;
use forebay_engine::{Engine, Failure, Hold, Keep, Order, Progress, Report};
use serde_json::{Value, json};

use super::Daemon;
use super::jobs::Outcome;
use super::metrics;
use super::others;
use super::saved::SavedJob;
use super::statistics::rule_figures;
use crate::config::RuleText;
use crate::http::{Reply, Request};
use crate::moment::unix_secs;
use crate::wire::{
    Copies, File, Job, JobKind, JobReport, JobState, Leave, NewJob, Phase, WirePath,
};

impl Daemon {
    pub fn answer(self: &Arc<Daemon>, request: Request) -> Reply {
        if request.method == "GET" && request.path == "/metrics" {
            return Reply::text(metrics::CONTENT_TYPE, self.metrics());
        }
        let asked_for = watched_job(&request);
        match self.route(request) {
            Ok(body) => {
                let jobs = self.jobs.clone();
                let seen =
                    move |id| Box::new(move || jobs.mark_seen(id)) as Box<dyn FnOnce() + Send>;
                Reply { then: asked_for.map(seen), ..Reply::new(200, body) }
            }
            Err(error) => {
                let body = json!({ "error": error.to_string(), "exit_code": error.exit_code() });
                Reply::new(error.http_status(), body)
            }
        }
    }

    /// Answers a request of another member: the HTTP status, and the body.
    pub fn say(self: &Arc<Daemon>, method: &str, path: &str, body: Value) -> (u16, Value) {
        match self.route(Request::of(method, path, body)) {
            Ok(body) => (200, body),
            Err(error) => (error.http_status(), json!({ "error": error.to_string() })),
        }
    }

    fn route(self: &Arc<Daemon>, request: Request) -> Result<Value> {
        let parts: Vec<&str> = request.path.trim_matches('/').split('/').collect();
        match (request.method.as_str(), parts.as_slice()) {
            ("GET", ["v1", "status"]) => Ok(self.status_json()),
            ("GET", ["v1", "cluster"]) => self.cluster_json(),
            ("GET", ["v1", "cluster", "top"]) => self.cluster_top_json(),
            ("GET", ["v1", "cluster", "missing"]) => self.missing_json(),
            ("GET", ["v1", "held"]) => self.held_json(from_body(request.body)?),
            ("POST", ["v1", "cluster", "drain"]) => self.start_taking_out(from_body(request.body)?),
            ("POST", ["v1", "cluster", what]) => self.decide(what, request.body),
            ("GET", ["v1", "stats"]) => self.stats_of(&request.query),
            ("POST", ["v1", "stats", "reset"]) => Ok(self.reset_stats()),
            ("GET", ["v1", "top"]) => Ok(self.top_json()),
            ("GET", ["v1", "files"]) => self.files_json(&request.query),
            ("GET", ["v1", "config"]) => Ok(self.config_json()),
            ("PUT", ["v1", "config"]) => self.put_config(&request.body),
            ("GET", ["v1", "rules"]) => Ok(self.rules_json()),
            ("POST", ["v1", "rules"]) => {
                let rule = from_body::<RuleText>(request.body)?.read()?;
                tracing::info!(rule = rule.name, "rule added");
                self.engine.room.add_rule(rule).map(|()| json!({}))
            }
            ("POST", ["v1", "rules", "test"]) => self.test_rules(request.body),
            ("DELETE", ["v1", "rules", name]) => {
                self.engine.room.remove_rule(name).map(|()| json!({}))
            }
            ("GET", ["v1", "jobs"]) => Ok(json!(self.jobs.views())),
            ("POST", ["v1", "jobs"]) => self.post_job(request.body),
            ("GET", ["v1", "jobs", id]) => {
                self.job(job_id(id)?).map(|job| json!(job)).ok_or_else(|| no_job(id))
            }
            ("DELETE", ["v1", "jobs", id]) => match self.jobs.cancel(job_id(id)?) {
                true => Ok(json!({})),
                false => Err(no_job(id)),
            },
            ("POST", ["v1", "resolve"]) => self.post_resolve(request.body),
            ("POST", ["v1", "umount"]) => {
                Ok(json!({ "id": self.start_leave(&leave(request.body)?)? }))
            }
            ("POST", ["v1", "detach"]) => self.start_detach(&leave(request.body)?),
            ("POST", ["v1", "attach"]) => self.attach(),
            _ => {
                let what = format!("{} {}: no such request", request.method, request.path);
                Err(Error::new(Kind::Usage, what))
            }
        }
    }

    /// The engine's status, with the daemon's own facts.
    pub fn status_json(&self) -> Value {
        let mut status = self.engine.ops.status();
        // JSON holds no path that is not UTF-8; a lossy path is good enough for people to read.
        for trouble in &mut status.troubles {
            trouble.path = PathBuf::from(trouble.path.to_string_lossy().into_owned());
        }
        // Nothing more is to fill the tier.
        if self.phase() != Phase::Serving {
            status.full_in_secs = None;
        }
        let mut json = json!(status);
        let config = |name: &str| self.settings.value(name).map(ToString::to_string);
        let ours = json!({
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "phase": self.phase(),
            "mountpoint": self.places.mountpoint.to_string_lossy(),
            "backing": self.places.backing.to_string_lossy(),
            "tier": self.places.tier.to_string_lossy(),
            "policy": self.engine.files.tunables().policy,
            "backing_astray": self.anchor.astray(&self.places.tier),
            "attachment": self.attachment_json(),
            "passthrough": config("passthrough"),
            "transport": self.mount.get().map(|mount| mount.transport()),
            "read_only": self.settings.engine.read_only,
            "uptime_secs": self.started.elapsed().as_secs_f64(),
            "recovery": self.engine.recovery(),
            "cluster": self.member.as_ref().map(|member| json!({
                "store": member.store(),
                "member": member.name(),
                "epoch": member.epoch(),
                "address": member.address(),
                "revision": member.followed(),
            })),
            "uncopied_files": self.member.as_ref().map(|_| self.engine.outbox.behind().behind.len()),
        });
        merge(&mut json, ours);
        json
    }

    /// A job. One that has brought bytes home warns if these are not where the user looks for them.
    fn job(&self, id: u64) -> Option<Job> {
        let job = self.jobs.view(id)?;
        let is_over = job.kind.brings_home() && job.state != JobState::Running;
        let warning = is_over.then(|| self.anchor.astray(&self.places.tier)).flatten();
        Some(Job { warning, ..job })
    }

    pub fn one_of_many(&self) -> Result<&Arc<Member>> {
        self.member.as_ref().ok_or_else(|| {
            let at = self.places.mountpoint.display();
            let what = format!("{at}: this mount is alone: it was mounted without --registry");
            Error::new(Kind::Usage, what)
        })
    }

    /// Carries out an operator's decision about a dead member.
    fn decide(&self, what: &str, body: Value) -> Result<Value> {
        let member = self.one_of_many()?;
        let About { member: name, paths, without } = from_body(body)?;
        tracing::warn!(member = name, what, "an operator has decided");
        match what {
            "stopped" => member.has_stopped(&name).map(|()| json!({})),
            "give-up" => Ok(json!({ "given_up": member.give_up(&name, &paths, &without)? })),
            "remove" => member.remove(&name).map(|()| json!({})),
            _ => Err(Error::new(Kind::Usage, format!("{what}: no such decision"))),
        }
    }

    fn files_json(&self, query: &[(String, String)]) -> Result<Value> {
        let prefix = query.iter().find(|(name, _)| name == "prefix");
        let prefix = prefix.map_or("", |(_, value)| value.trim_matches('/'));
        let files = self.engine.ops.list(Path::new(prefix))?;
        let copied = self.copied();
        let told = files.into_iter().map(|info| {
            let copies = copied.as_ref().and_then(|copied| copied.of(&info.path));
            File { copies, ..File::from(info) }
        });
        Ok(json!(told.collect::<Vec<File>>()))
    }

    /// The files of which partners have copies; `None` if no partner is to have any.
    fn copied(&self) -> Option<Copied> {
        let (wanted, in_sync) = self.member.as_ref()?.copies();
        let behind = (wanted > 0).then(|| self.engine.outbox.behind())?;
        let paths = behind.behind.into_iter().map(|file| file.path).collect();
        Some(Copied {
            wanted: wanted.into(),
            in_sync: in_sync as u64,
            behind: paths,
            copied: behind.copied.into_iter().collect(),
        })
    }

    fn post_job(&self, body: Value) -> Result<Value> {
        let asked: NewJob = from_body(body)?;
        let kind = asked.kind;
        if let Some(request) = kind.request() {
            let message = format!("kind: for this there is POST /v1/{request}");
            return Err(Error::new(Kind::Usage, message));
        }
        // A job without paths covers everything, if nothing is lost by it that cannot be had again.
        let needs_paths = matches!(kind, JobKind::Pin | JobKind::Unpin | JobKind::Purge);
        if asked.paths.is_empty() && needs_paths {
            let message = format!("paths: {} needs at least one", kind.name());
            return Err(Error::new(Kind::Usage, message));
        }
        let order = order(&asked)?;
        let spread = self.spread(&asked)?;
        let engine = self.engine.clone();
        // The hold begins when the job is taken, not when its thread starts (O2).
        let hold = order.last.as_ref().map(|last| engine.drain.hold(&order.scope, last));
        let work = move |_, progress: &Arc<Progress>| {
            let missing = engine.ops.missing(&order.scope);
            let outcome = others::everywhere(spread, progress, || {
                work(&engine, kind, &order, progress, missing)
            });
            drop(hold);
            outcome
        };
        let id = self.jobs.start(asked, work)?;
        Ok(json!({ "id": id }))
    }

    /// Goes on with the jobs that an earlier daemon left; each job keeps its hold meanwhile.
    pub fn resume_jobs(&self, unfinished: Vec<SavedJob>, holds: Vec<Hold>) {
        for (job, hold) in with_holds(unfinished, holds) {
            let (id, kind) = (job.id, job.asked.kind);
            let engine = self.engine.clone();
            let resumed = order(&job.asked).and_then(|order| {
                let spread = self.spread(&job.asked)?;
                self.jobs.resume(job, move |_, progress| {
                    let outcome = others::everywhere(spread, progress, || {
                        // A missing name is no failure: it existed when the job was asked for.
                        work(&engine, kind, &order, progress, Vec::new())
                    });
                    drop(hold);
                    outcome
                })
            });
            match resumed {
                Ok(()) => tracing::info!(id, kind = kind.name(), "going on with a job"),
                Err(error) => tracing::error!(id, %error, "a job was not resumed"),
            }
        }
    }

    /// The rules as written, with their figures.
    fn rules_json(&self) -> Value {
        let rules = self.engine.room.rules().into_iter().map(|used| {
            let mut json = json!(RuleText::from(&used.rule));
            merge(&mut json, rule_figures(&used));
            json
        });
        rules.collect()
    }

    fn test_rules(&self, body: Value) -> Result<Value> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Body {
            path: WirePath,
            size: u64,
            uid: u32,
            gid: u32,
            pid: u32,
        }
        let Body { path, size, uid, gid, pid } = from_body(body)?;
        let found = self.engine.room.try_rules(&relative(path)?, size, Origin { uid, gid, pid });
        Ok(found.map_or(Value::Null, |rule| json!(RuleText::from(&rule))))
    }

    fn post_resolve(&self, body: Value) -> Result<Value> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Body {
            path: WirePath,
            keep: String,
        }
        let Body { path, keep } = from_body(body)?;
        let keep = match keep.as_str() {
            "ours" => Keep::Ours,
            "theirs" => Keep::Theirs,
            "both" => Keep::Both,
            _ => return Err(Error::new(Kind::Usage, "keep: choose ours, theirs or both")),
        };
        self.mount()?.resolve(&relative(path)?, keep)?;
        Ok(json!({}))
    }
}

/// The state of the copies of files with acknowledged bytes.
struct Copied {
    wanted: u64,
    in_sync: u64,
    behind: HashSet<PathBuf>,
    copied: HashSet<PathBuf>,
}

impl Copied {
    /// How many other members certainly have a file's newest acknowledged bytes; `None` if the file has no bytes that
    /// are newer than the store's.
    fn of(&self, path: &Path) -> Option<Copies> {
        let members = match (self.behind.contains(path), self.copied.contains(path)) {
            (true, _) => 0,
            (false, true) => self.in_sync,
            (false, false) => return None,
        };
        Some(Copies { members, wanted: self.wanted })
    }
}

/// The id of the job whose view a request asks for.
fn watched_job(request: &Request) -> Option<u64> {
    let id = request.path.strip_prefix("/v1/jobs/")?;
    id.parse().ok().filter(|_| request.method == "GET")
}

/// The engine's order for a new job.
pub fn order(asked: &NewJob) -> Result<Order> {
    let usage = |what: String| Error::new(Kind::Usage, what);
    let mut scope: Vec<PathBuf> =
        asked.paths.iter().cloned().map(relative).collect::<Result<_>>()?;
    // An empty path is the root and means everything; in the engine an empty scope does.
    if scope.iter().any(|path| path.as_os_str().is_empty()) {
        scope.clear();
    }
    if !asked.kind.flushes() && (asked.last.is_some() || asked.drain_by_unix_secs.is_some()) {
        let what = format!("last, drain_by_unix_secs: not for {}", asked.kind.name());
        return Err(usage(what));
    }
    let last = match &asked.last {
        None => None,
        Some(text) => Some(text.parse().map_err(|why| usage(format!("last: {text:?}: {why}")))?),
    };
    let left = |unix: f64| Duration::from_secs_f64((unix - unix_secs()).clamp(0.0, 1e9));
    let by = asked.drain_by_unix_secs.map(|unix| Instant::now() + left(unix));
    Ok(Order { scope, last, by })
}

/// Gives each job its own hold; `holds` are those of the jobs with `last`, in their order.
fn with_holds<H>(unfinished: Vec<SavedJob>, holds: Vec<H>) -> Vec<(SavedJob, Option<H>)> {
    let mut holds = holds.into_iter();
    let own = |job: SavedJob| {
        let holds_back = order(&job.asked).is_ok_and(|order| order.last.is_some());
        let hold = if holds_back { holds.next() } else { None };
        (job, hold)
    };
    unfinished.into_iter().map(own).collect()
}

/// Runs one job on the engine. An empty scope is everything; the `missing` paths count as failures.
fn work(
    engine: &Arc<Engine>,
    kind: JobKind,
    order: &Order,
    progress: &Progress,
    missing: Vec<Failure>,
) -> Outcome {
    let scope = &order.scope[..];
    let everything = [PathBuf::new()];
    let named = if scope.is_empty() { &everything[..] } else { scope };
    let mut report = match kind {
        JobKind::Flush | JobKind::Fence | JobKind::Durable | JobKind::Drain => {
            engine.drain.execute(order, progress)
        }
        JobKind::Prefetch => engine.ops.prefetch(named, progress),
        JobKind::Evict => engine.ops.evict(scope, progress),
        JobKind::Pin => engine.ops.pin(named, progress),
        JobKind::Unpin => engine.ops.set_pinned(named, false),
        JobKind::Purge => engine.ops.purge(named),
        JobKind::Umount | JobKind::Detach | JobKind::MemberDrain => {
            unreachable!("refused when posted")
        }
    };
    // A job that walks the backing store has reported missing paths itself.
    report.failures.retain(|failure| missing.iter().all(|gone| gone.path != failure.path));
    report.failures.splice(0..0, missing);
    let exit_code = exit_code(kind, &report);
    let error = remark(kind, &report);
    Outcome { report: JobReport::from(&report), error, exit_code }
}

/// Flushes all dirty bytes.
pub fn drain(engine: &Arc<Engine>, progress: &Progress) -> Outcome {
    work(engine, JobKind::Drain, &Order::default(), progress, Vec::new())
}

/// The error of a job that failed as a whole, beside its failures.
fn remark(kind: JobKind, report: &Report) -> Option<String> {
    let failed = kind == JobKind::Pin && !report.cancelled && !report.failures.is_empty();
    let what = match report.files {
        0 => "nothing of it was pinned that was not before",
        _ => "only what was fetched is pinned",
    };
    failed.then(|| what.into())
}

fn exit_code(kind: JobKind, report: &Report) -> u8 {
    let flushes = kind.flushes();
    let conflict = report.failures.iter().any(|failure| failure.state == "conflict");
    match (report.cancelled, report.failures.is_empty()) {
        (true, _) => 130,
        (false, true) => 0,
        // A conflict stays until a user decides which bytes win.
        (false, false) if flushes && conflict => 4,
        (false, false) => 1,
    }
}

/// A client's path, relative to the root. It cannot lead out of the root.
fn relative(path: WirePath) -> Result<PathBuf> {
    use std::path::Component;
    let path = PathBuf::from(path);
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => plain.push(name),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                let message = format!("{}: leave out `..`", path.display());
                return Err(Error::new(Kind::Usage, message));
            }
        }
    }
    Ok(plain)
}

fn from_body<T: serde::de::DeserializeOwned>(body: Value) -> Result<T> {
    serde_json::from_value(body).map_err(|e| Error::new(Kind::Usage, format!("body: {e}")))
}

/// A member, and some of its files.
#[derive(serde::Deserialize)]
struct About {
    member: String,
    #[serde(default)]
    paths: Vec<String>,
    #[serde(default)]
    without: Vec<String>,
}

fn leave(body: Value) -> Result<Leave> {
    if body.is_null() { Ok(Leave::default()) } else { from_body(body) }
}

fn job_id(text: &str) -> Result<u64> {
    text.parse().map_err(|_| no_job(text))
}

fn no_job(id: &str) -> Error {
    let what = format!(
        "job {id}: not known; only the last 64 are remembered, and `forebay jobs` lists them"
    );
    Error::new(Kind::Usage, what)
}

fn merge(into: &mut Value, from: Value) {
    if let (Some(into), Value::Object(from)) = (into.as_object_mut(), from) {
        into.extend(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_from_outside_cannot_leave_the_root() {
        let path = |text: &str| relative(WirePath::Text(text.into()));
        assert_eq!(path("/a/./b/").unwrap(), Path::new("a/b"));
        assert_eq!(path("").unwrap(), Path::new(""));
        assert_eq!(path("a/../../b").unwrap_err().exit_code(), 2);
    }

    #[test]
    fn each_resumed_job_keeps_its_own_hold_and_no_other() {
        let job = |id, last: Option<&str>| {
            let last = last.map(String::from);
            let asked = NewJob { last, ..NewJob::of(JobKind::Flush, Vec::new()) };
            SavedJob { id, asked, started_unix_secs: 0.0, ended: None }
        };
        let jobs = vec![job(1, None), job(2, Some("M")), job(3, None), job(4, Some("N"))];
        let given = with_holds(jobs, vec!["M", "N"]).into_iter().map(|(job, hold)| (job.id, hold));
        let wanted = [(1, None), (2, Some("M")), (3, None), (4, Some("N"))];
        assert_eq!(given.collect::<Vec<_>>(), wanted);
    }
}
