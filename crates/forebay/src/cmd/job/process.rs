//! `forebay job process`: slurmctld calls it while a job is submitted. slurmctld holds its locks meanwhile
//! and cannot end the command, so nothing but the script's text is read.

use std::fmt::Display;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use forebay_base::{Error, Kind, Result};
use forebay_job::plan::Mode;
use forebay_job::{Job, Problem, Read, Severity, read};

use crate::node::settings;
use crate::ui::say;

/// Slurm's own limit (`max_script_size`) is 4 MiB.
const SCRIPT_MAX: u64 = 16 << 20;

/// Problems that are shown; the user sees the rest once these are fixed.
const SHOWN_MAX: usize = 20;

const EXAMPLES: &str = "\
Examples:
  forebay job process --script job.sh
  forebay job process --script job.sh --nodes 4 --directive BB_LUA

Prints lines KEY=VALUE (bytes_per_node, pool, persistent, swap, nodes_max, lone, directives), then what is
to be told to the job's owner, each line behind '| ', then one line that says how it went:
'forebay: ok' or 'forebay: error TEXT'. Exit code 2 for a mistake in the script.";

/// Read a script as a scheduler does when it is submitted.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The script's text.
    #[arg(long, value_name = "FILE")]
    script: PathBuf,

    /// How many nodes the job gets; if not given, what #SBATCH lines say.
    #[arg(long, value_name = "COUNT", conflicts_with = "nodes_least")]
    nodes: Option<u32>,

    /// How many nodes it gets at least, if it may get more.
    #[arg(long, value_name = "COUNT")]
    nodes_least: Option<u32>,

    /// The word of Directive= in burst_buffer.conf.
    #[arg(long, value_name = "WORD")]
    directive: Option<String>,
}

pub fn run(args: &Args) -> u8 {
    let script = match script_at(&args.script) {
        Ok(script) => script,
        Err(error) => {
            say(format!("forebay: error {error}"));
            return 1;
        }
    };
    let job = Job {
        nodes: args.nodes,
        nodes_least: args.nodes_least,
        directive: args.directive.as_deref(),
        check_setting: Some(settings::check),
        ..Job::default()
    };
    let found = read(&script, &job);
    facts(&found);
    let told = shown(&found.problems, found.left_out, "job script", &script);
    told.iter().for_each(|line| say(format!("| {line}")));
    let error = found.problems.iter().find(|problem| problem.severity == Severity::Error);
    match error {
        None => {
            say("forebay: ok");
            0
        }
        Some(first) => {
            say(format!("forebay: error {}", summary(first, &found)));
            2
        }
    }
}

/// The text of a script. Bytes that are not UTF-8 cannot be part of a valid directive.
pub fn script_at(path: &Path) -> Result<String> {
    let told = |e| Error::io(e, path.display().to_string());
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|e| cannot_open(path, &e))?;
    file.take(SCRIPT_MAX + 1).read_to_end(&mut bytes).map_err(told)?;
    if bytes.len() as u64 > SCRIPT_MAX {
        let why = format!("{}: is longer than 16 MiB, and no job script", path.display());
        return Err(Error::new(Kind::Usage, why));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn cannot_open(path: &Path, error: &std::io::Error) -> Error {
    let why = format!("script {}: {error}: name a job script that you can read", path.display());
    Error::new(Kind::Usage, why)
}

/// The lines that report the problems.
pub fn shown(problems: &[Problem], left_out: usize, file: &str, script: &str) -> Vec<String> {
    let first = problems.iter().take(SHOWN_MAX).map(|problem| problem.shown(file, script));
    let mut lines: Vec<String> =
        first.flat_map(|text| text.lines().map(String::from).collect::<Vec<_>>()).collect();
    let rest = problems.len().saturating_sub(SHOWN_MAX) + left_out;
    if rest > 0 {
        lines.push(format!("and {rest} more"));
    }
    lines
}

fn summary(first: &Problem, found: &Read) -> String {
    let all = found.problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    match all {
        1 => first.summary(),
        n => format!("{} (and {} more)", first.summary(), n - 1),
    }
}

fn facts(found: &Read) {
    let plan = &found.plan;
    fact("directives", found.directives);
    if plan.bytes_per_node() > 0 {
        fact("bytes_per_node", plan.bytes_per_node());
    }
    if let Some(pool) = &found.pool {
        fact("pool", pool);
    }
    plan.uses.iter().for_each(|used| fact("persistent", &used.name));
    if plan.instances.iter().any(|space| space.mode == Mode::Swap) {
        fact("swap", "yes");
    }
    if let Some(nodes) = plan.nodes_max {
        fact("nodes_max", nodes);
    }
    if plan.is_lone() {
        fact("lone", "yes");
    }
}

/// Prints `KEY=VALUE`, if the value is plain: the reader passes it to a shell.
fn fact(key: &str, value: impl Display) {
    let value = value.to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./:=,@%-".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        say(format!("{key}={value}"));
    }
}
