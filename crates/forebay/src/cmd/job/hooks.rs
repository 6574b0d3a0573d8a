//! The hooks of a scheduler: one command for each. A hook can be repeated, is bounded in time, and ends
//! with one status line (H1).
//!
//! - H1: the last line on stdout is `forebay: ok`, `forebay: busy` or `forebay: error`, with a text. A
//!   hook that was killed prints none.
//! - H2: `paths`, `pools` and `process` run inside the scheduler: they read local files only.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_base::lock::sleep;
use forebay_base::{Error, Kind, Result};
use forebay_job::plan::{Create, Mode, Plan, Space};
use forebay_job::{Job, Problem, Severity, read};
use forebay_node::config::SPOOL;
use forebay_node::job::{POOLS_FILE, variables_file};
use serde::Serialize;
use serde_json::{Value, json};

use super::hook_args::{
    CreatePersistent, DestroyPersistent, Hook, Limit, Paths, Persistent, Pools, PostRun, PreRun,
    RealSize, Setup, Spool, Status, Step, Teardown, Which,
};
use super::process::script_at;
use crate::burst_conf::BurstConf;
use crate::node::client::NodeClient;
use crate::node::settings;
use crate::node::wire::{JobView, NewJob, NewPersistent, StepOfJob, StepState, StepView};
use crate::slurm::{self, Facts};
use crate::ui::{say, say_json};

/// The pauses between two requests for the same step: they grow from the first to the last.
const POLL_FIRST: Duration = Duration::from_millis(50);
const POLL_LAST: Duration = Duration::from_secs(1);

/// Slurm ends a hook at its time limit without a word, so a hook ends by itself this much earlier.
const MARGIN: Duration = Duration::from_secs(10);

/// The time limit of Slurm's that a hook has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timeout {
    Other,
    StageIn,
    StageOut,
}

/// The time limit of an epilog: Slurm drains a node whose epilog does not end.
const EPILOG: Duration = Duration::from_secs(30);

pub fn run(hook: &Hook) -> u8 {
    match hook {
        Hook::Status(args) => plainly(status(args)),
        Hook::Epilog(args) => epilog(args),
        Hook::Setup(args) => told(setup(args)),
        Hook::DataIn(args) => told(step(args, "data-in", Timeout::StageIn)),
        Hook::TestDataIn(args) => told(test(args, "data-in")),
        Hook::RealSize(args) => told(real_size(args)),
        Hook::Paths(args) => told(paths(args)),
        Hook::PreRun(args) => told(pre_run(args)),
        Hook::PostRun(args) => told(post_run(args)),
        Hook::DataOut(args) => told(step(args, "data-out", Timeout::StageOut)),
        Hook::TestDataOut(args) => told(test(args, "data-out")),
        Hook::Teardown(args) => told(teardown(args)),
        Hook::Pools(args) => told(pools(args)),
        Hook::Persistent(Persistent::Create(args)) => told(create(args)),
        Hook::Persistent(Persistent::Destroy(args)) => told(destroy(args)),
    }
}

/// The result of a hook.
pub enum Went {
    Ok(String),
    Busy(String),
}

/// Prints the status line (H1) and returns the exit code.
pub fn told(went: Result<Went>) -> u8 {
    let line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    match went {
        Ok(Went::Ok(text)) => {
            say(format!("forebay: ok {}", line(&text)).trim_end());
            0
        }
        Ok(Went::Busy(text)) => {
            say(format!("forebay: busy {}", line(&text)));
            0
        }
        Err(error) => {
            let text = error.to_string();
            // The prefix "daemon: " would puzzle the job's owner, who has called no daemon.
            let text = text.strip_prefix("daemon: ").unwrap_or(&text);
            say(format!("forebay: error {}", line(text)));
            error.exit_code()
        }
    }
}

fn plainly(result: Result<u8>) -> u8 {
    result.unwrap_or_else(|error| {
        crate::ui::note!("{error}");
        error.exit_code()
    })
}

fn setup(args: &Setup) -> Result<Went> {
    let limit = args.limit.or(Timeout::Other);
    let begun = Instant::now();
    let mut plan = plan_of(args, limit / 2)?;
    if args.named_apart {
        plan.creates.clear();
        plan.destroys.clear();
    }
    let body = NewJob {
        id: args.which.job.clone(),
        uid: args.uid,
        gid: args.gid,
        plan,
        pool: args.pool.clone(),
    };
    let left = limit.saturating_sub(begun.elapsed());
    until_done(&args.which.node.client(), "/v1/jobs", &body, left)
}

/// The plan in the script; a mistake in the script is the error.
fn plan_of(args: &Setup, patience: Duration) -> Result<Plan> {
    let id = &args.which.job;
    let script = script_of(id, &args.script, patience)?;
    let facts = match args.nodes {
        None => slurm::facts(id)?,
        // A caller that gives the nodes may not be Slurm. The script's reader refuses unknown symbols.
        Some(_) if script.contains('%') => slurm::facts(id).unwrap_or_default(),
        Some(_) => Facts::default(),
    };
    let directive = BurstConf::load().unwrap_or_default().directive;
    let job = Job {
        nodes: args.nodes,
        nodes_least: facts.nodes_least,
        id: Some(id),
        user: facts.user.as_deref(),
        name: facts.name.as_deref(),
        workdir: facts.work_dir.as_deref(),
        array: facts.array.as_ref().map(|(master, index)| (master.as_str(), index.as_str())),
        directive: Some(&directive),
        check_setting: Some(settings::check),
    };
    let found = read(&script, &job);
    let mistakes = found.problems.iter().filter(|problem| problem.severity == Severity::Error);
    let all: Vec<String> = mistakes.map(Problem::summary).collect();
    match all.is_empty() {
        true => Ok(found.plan),
        false => Err(Error::new(Kind::Usage, all.join("; "))),
    }
}

/// The script's text. If a directive has a `%`, Slurm hands over a changed file, so Slurm is asked for the
/// real script.
fn script_of(id: &str, given: &Path, patience: Duration) -> Result<String> {
    let own = given.starts_with("/proc").then(|| slurm::script(id, patience)).transpose()?;
    own.flatten().map_or_else(|| script_at(given), Ok)
}

fn step(args: &Step, name: &str, limit: Timeout) -> Result<Went> {
    let limit = args.limit.or(limit);
    take(&args.which, name, &StepOfJob::default(), limit)
}

fn take(which: &Which, name: &str, asked: &StepOfJob, limit: Duration) -> Result<Went> {
    until_done(&which.node.client(), &format!("/v1/jobs/{}/{name}", which.job), asked, limit)
}

fn test(args: &Step, name: &str) -> Result<Went> {
    let path = format!("/v1/jobs/{}/{name}", args.which.job);
    let view: StepView = args.which.node.client().post(&path, &json!({}))?;
    Ok(match view.state {
        StepState::Done => Went::Ok(view.text),
        StepState::Wait => Went::Busy(view.text),
    })
}

/// Asks for the step until it is done, is refused, or the time is over.
fn until_done(
    client: &NodeClient,
    path: &str,
    body: &impl Serialize,
    limit: Duration,
) -> Result<Went> {
    let body = serde_json::to_value(body).expect("requests are strings and numbers");
    let deadline = Instant::now() + limit;
    let mut pause = POLL_FIRST;
    loop {
        let waits = match client.post::<StepView>(path, &body) {
            Ok(StepView { state: StepState::Done, text }) => return Ok(Went::Ok(text)),
            Ok(StepView { state: StepState::Wait, text }) => text,
            // The daemon may be restarting, or the registry unreachable.
            Err(error) if may_pass(&error) => error.to_string(),
            Err(error) => return Err(error),
        };
        if Instant::now() >= deadline {
            let limit = crate::units::human_secs(limit.as_secs_f64());
            return Err(Error::new(Kind::TimedOut, format!("not done within {limit}: {waits}")));
        }
        sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
        pause = (pause * 3 / 2).min(POLL_LAST);
    }
}

/// Whether the step may still succeed: it was not refused.
fn may_pass(error: &Error) -> bool {
    matches!(error.kind(), Kind::Unreachable | Kind::Unavailable | Kind::TimedOut)
}

impl Limit {
    fn or(&self, usual: Timeout) -> Duration {
        // Slurm reports a burst_buffer.conf that cannot be read; until then its defaults are used.
        let conf = BurstConf::load().unwrap_or_default();
        let seconds = match usual {
            Timeout::Other => conf.other_secs,
            Timeout::StageIn => conf.stage_in_secs,
            Timeout::StageOut => conf.stage_out_secs,
        };
        let usual = Duration::from_secs(seconds);
        self.limit.unwrap_or(usual.saturating_sub(MARGIN).max(usual / 2))
    }
}

/// Prints the job's room on all its nodes, if their number is known.
fn real_size(args: &RealSize) -> Result<Went> {
    let view: JobView = args.which.node.client().get(&format!("/v1/jobs/{}", args.which.job))?;
    let nodes = view.job.nodes.len();
    if nodes > 0 {
        let on_all = |space: &Space| space.bytes_on(nodes).saturating_mul(nodes as u64);
        say(view.job.plan.instances.iter().map(on_all).fold(0, u64::saturating_add));
    }
    Ok(Went::Ok(String::new()))
}

impl Spool {
    fn dir(&self) -> PathBuf {
        let given =
            self.spool.clone().or_else(|| std::env::var_os("FOREBAY_SPOOL").map(Into::into));
        given.unwrap_or_else(|| SPOOL.into())
    }
}

/// Reads local files only (H2).
fn paths(args: &Paths) -> Result<Went> {
    let file = variables_file(&args.spool.dir(), &args.job);
    let text = std::fs::read(&file).map_err(|e| {
        Error::io(e, format!("{}: job {} was not set up here", file.display(), args.job))
    })?;
    write(&args.file, &text)?;
    Ok(Went::Ok(String::new()))
}

fn write(path: &Path, text: &[u8]) -> Result<()> {
    std::fs::write(path, text).map_err(|e| Error::io(e, path.display().to_string()))
}

/// Reads local files only (H2). Always prints pools: without an answer Slurm would refuse to start.
fn pools(args: &Pools) -> Result<Went> {
    let file = args.spool.dir().join(POOLS_FILE);
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let found: Option<Value> = serde_json::from_str(&text).ok();
    match found {
        Some(pools) => say_line(&pools),
        None => say_line(&json!({ "pools": [] })),
    }
    Ok(Went::Ok(String::new()))
}

/// Prints the value in one line, as Slurm expects it.
fn say_line(value: &Value) {
    say(value.to_string());
}

fn pre_run(args: &PreRun) -> Result<Went> {
    let limit = args.limit.or(Timeout::Other);
    let nodes = match (&args.nodes, &args.nodes_file) {
        (Some(names), _) => names_in(names),
        (None, Some(file)) => {
            let text = std::fs::read_to_string(file);
            names_in(&text.map_err(|e| Error::io(e, file.display().to_string()))?)
        }
        (None, None) => slurm::nodes(&args.which.job)?,
    };
    take(&args.which, "pre-run", &StepOfJob { nodes, ..StepOfJob::default() }, limit)
}

fn names_in(text: &str) -> Vec<String> {
    let names = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|name| !name.is_empty());
    names.map(String::from).collect()
}

fn post_run(args: &PostRun) -> Result<Went> {
    let limit = args.limit.or(Timeout::Other);
    let begun = Instant::now();
    let exit_code = args.exit_code.or_else(|| slurm::exit_code(&args.which.job, limit / 2));
    let asked = StepOfJob { exit_code, ..StepOfJob::default() };
    take(&args.which, "post-run", &asked, limit.saturating_sub(begun.elapsed()))
}

fn teardown(args: &Teardown) -> Result<Went> {
    let limit = args.limit.or(Timeout::Other);
    let asked = StepOfJob { hurry: args.hurry, ..StepOfJob::default() };
    take(&args.which, "teardown", &asked, limit)
}

/// Ends within its limit, always with code 0: a failure would drain the node.
fn epilog(args: &Step) -> u8 {
    let deadline = Instant::now() + args.limit.limit.unwrap_or(EPILOG);
    let client = args.which.node.client();
    let path = format!("/v1/jobs/{}/released", args.which.job);
    loop {
        let over = Instant::now() >= deadline;
        let asked = json!({ "over": over });
        let went = match client.post::<StepView>(&path, &asked) {
            Ok(StepView { state: StepState::Done, text }) => Ok(Went::Ok(text)),
            Ok(StepView { state: StepState::Wait, .. }) if !over => {
                sleep(POLL_LAST / 4);
                continue;
            }
            Ok(StepView { text, .. }) => Ok(Went::Busy(text)),
            Err(error) if may_pass(&error) && !over => {
                sleep(POLL_LAST);
                continue;
            }
            Err(error) => Err(error),
        };
        told(went);
        return 0;
    }
}

fn create(args: &CreatePersistent) -> Result<Went> {
    let create = Create {
        name: args.name.clone(),
        mode: Mode::Private,
        pool: args.pool.clone(),
        bytes: args.bytes,
        backing: None,
        nodes: Vec::new(),
        expires_after: None,
        line: 0,
    };
    let body = NewPersistent { uid: args.uid, gid: args.gid, create };
    until_done(&args.node.client(), "/v1/persistent", &body, args.limit.or(Timeout::Other))
}

fn destroy(args: &DestroyPersistent) -> Result<Went> {
    let path = format!("/v1/persistent/{}/destroy", args.name);
    let asked = StepOfJob { hurry: args.hurry, ..StepOfJob::default() };
    until_done(&args.node.client(), &path, &asked, Limit { limit: None }.or(Timeout::Other))
}

fn status(args: &Status) -> Result<u8> {
    let client = args.node.client();
    let jobs: Vec<JobView> = match &args.job {
        Some(id) => vec![client.get(&format!("/v1/jobs/{id}"))?],
        None => client.get("/v1/jobs")?,
    };
    if args.json {
        say_json(&jobs);
        return Ok(0);
    }
    jobs.iter().for_each(show);
    Ok(0)
}

fn show(view: &JobView) {
    let job = &view.job;
    let nodes = if job.nodes.is_empty() { "no nodes yet".into() } else { job.nodes.join(",") };
    let owner = forebay_base::users::show(job.owner.uid);
    say(format!("job {} of {owner}: {}, on {nodes}", job.key.id, job.phase.name()));
    for instance in &view.instances {
        for (node, actual) in &instance.actual {
            let why = actual.why.as_ref().map_or(String::new(), |why| format!(": {why}"));
            say(format!("  {} on {node}: {}{why}", instance.wanted.id, actual.state.name()));
        }
    }
    for transfer in &view.transfers {
        let actual = transfer.actual.as_ref();
        let state = actual.map_or("waiting", |actual| actual.state.name());
        let why = actual.and_then(|actual| actual.why.as_ref());
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        let (id, direction) = (&transfer.wanted.id, transfer.wanted.direction.name());
        say(format!("  transfer {id} ({direction}): {state}{why}"));
    }
    say(format!("  log: {}", view.log.display()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_listed_with_commas_or_lines() {
        assert_eq!(names_in("n1,n2\nn3\n"), ["n1", "n2", "n3"]);
        assert!(names_in(" \n").is_empty());
    }
}
