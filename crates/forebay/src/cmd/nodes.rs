//! `forebay nodes`.

use forebay_base::Result;
use forebay_node::now;

use crate::node::client::NodeArgs;
use crate::node::wire::NodeView;
use crate::ui::table::Align::{Left, Right};
use crate::ui::table::tabulate;
use crate::ui::{say, say_json};
use crate::units::human_secs;

const EXAMPLES: &str = "\
Examples:
  forebay nodes
  forebay nodes --json

Of a node that is drained it says which of its mounts have not left yet, and why.";

/// List the nodes that share a registry.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Print everything as JSON.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    node: NodeArgs,
}

pub fn run(args: &Args) -> Result<u8> {
    let nodes: Vec<NodeView> = args.node.client().get("/v1/nodes")?;
    if args.json {
        say_json(&nodes);
        return Ok(0);
    }
    let columns =
        [("NODE", Left), ("STATE", Left), ("INSTANCES", Right), ("UP", Right), ("VERSION", Left)];
    tabulate(&columns, nodes.iter().map(row)).iter().for_each(say);
    nodes.iter().flat_map(staying).for_each(say);
    Ok(0)
}

/// A line for each mount of a drained node that has not left yet.
pub fn staying(node: &NodeView) -> impl Iterator<Item = String> {
    node.mounts.iter().map(|mount| format!("{}: {}: {}", node.name, mount.mountpoint, mount.why))
}

fn row(node: &NodeView) -> Vec<String> {
    let state = match (&node.record, node.draining) {
        (None, _) => "away",
        (Some(_), true) => "drained",
        (Some(_), false) => "up",
    };
    let up = node.record.as_ref().map(|record| now().saturating_sub(record.since));
    vec![
        node.name.clone(),
        state.into(),
        node.instances.to_string(),
        up.map_or_else(|| "-".into(), |secs| human_secs(secs as f64)),
        node.record.as_ref().map_or_else(|| "-".into(), |record| record.version.clone()),
    ]
}
