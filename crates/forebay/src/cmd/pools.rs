//! `forebay pools`.

use forebay_base::Result;

use crate::node::client::NodeArgs;
use crate::node::wire::PoolView;
use crate::ui::table::Align::{Left, Right};
use crate::ui::table::tabulate;
use crate::ui::{say, say_json};
use crate::units::human_size;

const EXAMPLES: &str = "\
Examples:
  forebay pools
  forebay pools --json

GRANTED is the room that instances may use, whether they use it or not, and the room of removed
instances that are still being deleted (LEFTOVER). MEANS lists how a pool can hold a private instance
to its capacity: quota is a project quota of the file system, image a file system of its own in a file,
tmpfs one in memory, dir a plain directory, whose capacity nothing enforces.";

/// List the nodes' pools: the room that they offer.
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
    let pools: Vec<PoolView> = args.node.client().get("/v1/pools")?;
    if args.json {
        say_json(&pools);
        return Ok(0);
    }
    let columns = [
        ("NODE", Left),
        ("POOL", Left),
        ("CAPACITY", Right),
        ("GRANTED", Right),
        ("FREE", Right),
        ("LEFTOVER", Right),
        ("GRAIN", Right),
        ("MEANS", Left),
        ("SWAP", Left),
    ];
    tabulate(&columns, pools.iter().map(row)).iter().for_each(say);
    for pool in &pools {
        let at = format!("{}/{}", pool.node, pool.name);
        let fault = pool.record.fault.iter();
        fault.for_each(|why| say(format!("{at}: cannot be used now: {why}")));
        pool.record.lacks.iter().for_each(|lack| say(format!("{at}: offers {lack}")));
    }
    Ok(0)
}

fn row(pool: &PoolView) -> Vec<String> {
    let record = &pool.record;
    let means = match record.means.is_empty() {
        true => "none".into(),
        false => record.means.join(","),
    };
    vec![
        pool.node.clone(),
        pool.name.clone(),
        human_size(record.capacity),
        human_size(pool.granted),
        human_size(pool.free),
        human_size(record.leftover_bytes),
        human_size(record.grain),
        means,
        if record.swap { "yes" } else { "no" }.into(),
    ]
}
