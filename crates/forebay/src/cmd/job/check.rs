//! `forebay job check`: what a script would get, checked before it is submitted. Changes nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_base::{Result, users};
use forebay_job::plan::{Direction, Mode, Of, Plan, Space, Staging, value_of};
use forebay_job::{Job, Problem, Read, Severity, read};
use forebay_node::desk::place_for;
use forebay_node::records::Owner;
use serde::Serialize;

use super::forecast::{self, Hook, Load};
use super::process::{script_at, shown};
use super::rates::Rates;
use super::room::{Granted, Nodes};
use super::sources::{Budget, Counted, ENTRIES_MAX, TIME_MAX};
use super::told;
use crate::burst_conf::BurstConf;
use crate::node::client::NodeArgs;
use crate::node::settings;
use crate::units::parse_rate;

const EXAMPLES: &str = "\
Examples:
  forebay job check job.sh
  forebay job check job.sh --nodes 4 --rate 2GB/s
  forebay job check job.sh --json

Shows the instances with their sizes in the pool's grains, what is staged and how long that takes, what
would not end within Slurm's limits, and the variables that the job finds. Sources are counted with your
rights. Exit code 2 if the script has a mistake.";

/// Show what a job script asks for, and what is wrong with it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The script, as it would be submitted.
    #[arg(value_name = "SCRIPT")]
    script: PathBuf,

    /// How many nodes the job gets; if not given, what #SBATCH lines say.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    nodes: Option<u32>,

    /// The user for %u; if not given, you.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,

    /// How fast one node stages; if not given, as your last transfers did, or 500MB/s.
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    rate: Option<u64>,

    /// How many files a second one node stages: an assumption.
    #[arg(long, value_name = "COUNT", default_value_t = 500,
          value_parser = clap::value_parser!(u64).range(1..))]
    file_rate: u64,

    /// Print everything as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    node: NodeArgs,
}

/// The report about a script.
#[derive(Debug, Serialize)]
pub struct Report {
    pub script: PathBuf,
    pub directives: usize,
    pub nodes: u32,
    pub nodes_known: bool,
    pub plan: Plan,
    /// The pools' answer for each of the plan's instances, in its order; absent if no node daemon answered.
    pub granted: Vec<Option<Granted>>,
    /// Why no node daemon answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes_silent: Option<String>,
    pub transfers: Vec<Transfer>,
    pub hooks: Vec<Load>,
    pub rates: Rates,
    /// The path of burst_buffer.conf; absent if Slurm's defaults were taken.
    pub limits_of: Option<PathBuf>,
    pub variables: BTreeMap<String, String>,
    pub problems: Vec<Problem>,
    pub problems_left_out: usize,
}

#[derive(Debug, Serialize)]
pub struct Transfer {
    pub line: u32,
    pub hook: Hook,
    pub from: String,
    pub to: String,
    /// The size of a stage-in whose source could be read.
    pub counted: Option<Counted>,
    pub secs: Option<f64>,
}

pub fn run(args: &Args) -> Result<u8> {
    let script = script_at(&args.script)?;
    let conf = BurstConf::load()?;
    let me = match &args.user {
        Some(user) => Some(user.clone()),
        None => myself(),
    };
    let job = Job {
        nodes: args.nodes,
        user: me.as_deref(),
        directive: Some(&conf.directive),
        check_setting: Some(settings::check),
        ..Job::default()
    };
    let nodes = Nodes::ask(&args.node.client());
    let rates = Rates::of(args.rate, args.file_rate, &nodes.transfers);
    let report = Look { script: &script, nodes: &nodes, rates, conf: &conf }
        .report(args, read(&script, &job));
    match args.json {
        true => crate::ui::say_json(&report),
        false => {
            let problems = told_of(&report, &args.script, &script);
            told::tell(&report, &problems);
        }
    }
    let wrong = report.problems.iter().any(|problem| problem.severity == Severity::Error);
    Ok(if wrong { 2 } else { 0 })
}

fn told_of(report: &Report, file: &std::path::Path, script: &str) -> Vec<String> {
    shown(&report.problems, report.problems_left_out, &file.display().to_string(), script)
}

fn myself() -> Option<String> {
    let uid = rustix::process::getuid().as_raw();
    users::User::with_id(uid).ok().flatten().map(|user| user.name)
}

struct Look<'a> {
    script: &'a str,
    nodes: &'a Nodes,
    rates: Rates,
    conf: &'a BurstConf,
}

impl Look<'_> {
    fn report(&self, args: &Args, found: Read) -> Report {
        let mut problems = found.problems;
        let granted = self.granted(&found.plan, found.nodes, &mut problems);
        self.require_named(&found.plan, &mut problems);
        let counted = self.counted(&found.plan, &mut problems);
        self.require_room(&found.plan, &counted, &mut problems);
        let hooks = forecast::loads(&found.plan, &counted, &self.rates, self.conf);
        for load in &hooks {
            if let Some((text, remedy)) = load.complaint(&self.rates) {
                problems.push(self.problem(load.line, Severity::Warning, text, &remedy));
            }
        }
        problems.sort_by_key(|problem| (problem.line, problem.column));
        Report {
            script: args.script.clone(),
            directives: found.directives,
            nodes: found.nodes,
            nodes_known: found.nodes_known,
            transfers: self.transfers(&found.plan, &counted),
            variables: self.variables(&found.plan),
            granted,
            nodes_silent: self.nodes.silent.clone(),
            hooks,
            rates: self.rates,
            limits_of: self.conf.file.clone(),
            problems,
            problems_left_out: found.left_out,
            plan: found.plan,
        }
    }

    fn problem(&self, line: u32, severity: Severity, text: String, remedy: &str) -> Problem {
        Problem::of_line(self.script, line, severity, text, remedy)
    }

    fn granted(
        &self,
        plan: &Plan,
        nodes: u32,
        problems: &mut Vec<Problem>,
    ) -> Vec<Option<Granted>> {
        if self.nodes.silent.is_some() {
            return plan.instances.iter().map(|_| None).collect();
        }
        let mut each = |space: &Space| match self.nodes.granted(space, nodes) {
            Ok(granted) => {
                if granted.free_on < nodes as usize {
                    let text = format!(
                        "{} of {nodes} nodes have so much free in pool {} now",
                        granted.free_on, granted.pool
                    );
                    let remedy = "the job waits until there is room; `forebay pools` shows it";
                    problems.push(self.problem(space.line, Severity::Remark, text, remedy));
                }
                Some(granted)
            }
            Err(why) => {
                let remedy = "`forebay pools` shows what there is";
                problems.push(self.problem(space.line, Severity::Error, why, remedy));
                None
            }
        };
        plan.instances.iter().map(&mut each).collect()
    }

    /// Reports used instances that do not exist now: they must exist when the job begins.
    fn require_named(&self, plan: &Plan, problems: &mut Vec<Problem>) {
        if self.nodes.silent.is_some() {
            return;
        }
        for used in &plan.uses {
            let made = plan.creates.iter().any(|create| create.name == used.name);
            if !made && !self.nodes.named.contains(&used.name) {
                let text = format!("no instance {} of yours is there now", used.name);
                let remedy = "`forebay instance list` shows those there are";
                problems.push(self.problem(used.line, Severity::Warning, text, remedy));
            }
        }
    }

    fn counted(&self, plan: &Plan, problems: &mut Vec<Problem>) -> Vec<Option<Counted>> {
        let mut budget = Budget::new();
        let mut each = |staging: &Staging| {
            if staging.direction == Direction::Out {
                return None;
            }
            if staging.outside.to_string_lossy().contains('%') && !staging.outside.exists() {
                let text = "the source is not looked at: a part of its name is not known yet";
                problems.push(self.problem(staging.line, Severity::Remark, text.into(), ""));
                return None;
            }
            match budget.count(&staging.outside, staging.what, &staging.inside) {
                Ok(counted) => {
                    self.tell_of_count(staging, &counted, problems);
                    Some(counted)
                }
                Err(why) => {
                    let remedy = "the job would end before it begins: mend the source, or its name";
                    problems.push(self.problem(staging.line, Severity::Error, why, remedy));
                    None
                }
            }
        };
        plan.transfers.iter().map(&mut each).collect()
    }

    fn tell_of_count(&self, staging: &Staging, counted: &Counted, problems: &mut Vec<Problem>) {
        if !counted.whole {
            let text = format!(
                "not all was counted: {} s and {ENTRIES_MAX} entries are the limits",
                TIME_MAX.as_secs()
            );
            problems.push(self.problem(staging.line, Severity::Remark, text, ""));
        }
        if counted.unreadable > 0 {
            let text = format!("{} entries cannot be read by you", counted.unreadable);
            let remedy = "they would fail, and the job with them";
            problems.push(self.problem(staging.line, Severity::Error, text, remedy));
        }
    }

    /// Reports sources that are larger than the space that they are staged into.
    fn require_room(&self, plan: &Plan, counted: &[Option<Counted>], problems: &mut Vec<Problem>) {
        for space in plan.instances.iter().filter(|space| space.mode == Mode::Private) {
            let into = |staging: &Staging| staging.of == Of::Job(space.name.clone());
            let all = plan.transfers.iter().zip(counted).filter(|(staging, _)| into(staging));
            let bytes: u64 = all.filter_map(|(_, counted)| Some(counted.as_ref()?.bytes)).sum();
            if bytes > space.bytes {
                let text = format!(
                    "{} are staged into {}, which holds {}",
                    crate::units::human_size(bytes),
                    space.name,
                    crate::units::human_size(space.bytes)
                );
                let remedy = "ask for more capacity, or stage less";
                problems.push(self.problem(space.line, Severity::Error, text, remedy));
            }
        }
    }

    fn transfers(&self, plan: &Plan, counted: &[Option<Counted>]) -> Vec<Transfer> {
        let each = |(staging, counted): (&Staging, &Option<Counted>)| {
            let inside = inside_of(plan, staging);
            let outside = staging.outside.display().to_string();
            let (from, to) = match staging.direction {
                Direction::In => (outside, inside),
                Direction::Out => (inside, outside),
            };
            Transfer {
                line: staging.line,
                hook: Hook::of(staging),
                from,
                to,
                counted: *counted,
                secs: counted
                    .as_ref()
                    .map(|counted| self.rates.secs(&self.rates.stage_in, counted)),
            }
        };
        plan.transfers.iter().zip(counted).map(each).collect()
    }

    fn variables(&self, plan: &Plan) -> BTreeMap<String, String> {
        let root = &self.nodes.mount_root;
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let own = plan.instances.iter().flat_map(|space| {
            let id = format!("job-%j-{}", space.name);
            let at = place_for(root, &id, space.mode, Owner { uid, gid }).unwrap_or_default();
            space.variables.iter().map(move |name| (name.clone(), value_of(name, &at)))
        });
        let used = plan.uses.iter().flat_map(|used| {
            let shown = self.nodes.shown.get(&used.name).cloned();
            let at = shown.unwrap_or_else(|| root.join(&used.name));
            used.variables.iter().map(move |name| (name.clone(), value_of(name, &at)))
        });
        own.chain(used).collect()
    }
}

/// The place inside an instance, as a script writes it.
fn inside_of(plan: &Plan, staging: &Staging) -> String {
    let variables = match &staging.of {
        Of::Job(name) => {
            plan.instances.iter().find(|space| space.name == *name).map(|s| &s.variables)
        }
        Of::Persistent(name) => {
            plan.uses.iter().find(|used| used.name == *name).map(|u| &u.variables)
        }
    };
    let variable = variables.and_then(|all| all.first()).map_or("?", String::as_str);
    format!("${variable}/{}", staging.inside.display())
}
