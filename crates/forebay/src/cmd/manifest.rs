//! `forebay manifest`.

use std::path::Path;

use forebay_base::Result;
use forebay_node::desk::Known;
use forebay_node::now;

use super::instance::name_of;
use super::ls::encode;
use crate::node::client::NodeArgs;
use crate::node::wire::MissingView;
use crate::ui::table::Align::{Left, Right};
use crate::ui::table::tabulate;
use crate::ui::{say, say_json};
use crate::units::{counted, human_secs, human_size};

const EXAMPLES: &str = "\
Examples:
  forebay manifest
  forebay manifest --instance ckpt
  forebay manifest --here
  forebay manifest --json

Exit code 0 if everything is home, 1 if something is not: what a transfer or a cache that went has left
(`known` in the JSON is \"left\"), a stage-out that is ordered and not done (\"ordered\"), what is dirty in a
cache of this node (\"dirty\"). 3 if nothing of that is listed and something could not be asked (\"unknown\"):
caches of other nodes, whose daemons answer on their own nodes alone, and what does not answer. Each such
line says where to ask. A script runs `forebay manifest --here` on each node of its instances: what other
nodes' caches have is left out then, so that 0 is the answer of each when everything is home.

`forebay stage resume TRANSFER` takes up what a transfer left; what is dirty in a cache goes home by itself when
it is due and its backing store can be reached, and at the latest by `forebay instance destroy`.";

/// List bytes that are not home: files, sizes, why, and until when they are kept.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Only this instance.
    #[arg(long, value_name = "ID")]
    instance: Option<String>,

    /// Leave out what only the daemons of other nodes can know.
    #[arg(long)]
    here: bool,

    /// Print everything as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    node: NodeArgs,
}

/// The exit code if all known bytes are home and a daemon could not be asked: that of an unreachable daemon.
const UNASKED: u8 = 3;

pub fn run(args: &Args) -> Result<u8> {
    let instance = args.instance.as_ref().map(|id| format!("instance={}", encode(Path::new(id))));
    let here = args.here.then(|| "here=1".to_string());
    let query: Vec<String> = instance.into_iter().chain(here).collect();
    let path = format!("/v1/manifest?{}", query.join("&"));
    let mut lines: Vec<MissingView> = args.node.client().get(&path)?;
    if let Some(instance) = &args.instance {
        lines.retain(|line| line.instance == *instance);
    }
    let (unknown, known): (Vec<_>, Vec<_>) =
        lines.iter().partition(|line| line.known == Known::Unknown);
    let exit_code = match (known.is_empty(), unknown.is_empty()) {
        (true, true) => 0,
        (false, _) => 1,
        (true, false) => UNASKED,
    };
    if args.json {
        say_json(&lines);
        return Ok(exit_code);
    }
    if lines.is_empty() {
        say("everything is home");
        return Ok(0);
    }
    let columns = [
        ("NODE", Left),
        ("INSTANCE", Left),
        ("TRANSFER", Left),
        ("OWNER", Left),
        ("BYTES", Right),
        ("AGE", Right),
        ("KEPT FOR", Right),
        ("FILE", Left),
        ("WHY", Left),
    ];
    tabulate(&columns, lines.iter().map(row)).iter().for_each(say);
    if !known.is_empty() {
        let bytes = known.iter().map(|line| line.missing.bytes).sum();
        let files = counted(known.len() as u64, "line");
        say(format!("{} in {files} are not home", human_size(bytes)));
    }
    if !unknown.is_empty() {
        let lines = counted(unknown.len() as u64, "line");
        say(format!("of {lines} nobody could be asked here: whether that is home is not known"));
    }
    Ok(exit_code)
}

fn row(line: &MissingView) -> Vec<String> {
    let missing = &line.missing;
    let since = now().saturating_sub(missing.since);
    let kept = missing.expires.map(|at| at.saturating_sub(now()));
    vec![
        line.node.clone(),
        line.instance.clone(),
        missing.transfer.clone().unwrap_or_else(|| "-".into()),
        name_of(missing.owner.uid),
        human_size(missing.bytes),
        human_secs(since as f64),
        kept.map_or_else(|| "-".into(), |secs| human_secs(secs as f64)),
        missing.file.clone(),
        missing.why.clone(),
    ]
}
