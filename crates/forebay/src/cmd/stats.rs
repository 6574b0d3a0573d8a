//! `forebay stats`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_backing::Result;
use forebay_backing::metrics::OpSummary;
use serde_json::Value;

use crate::http::Client;
use crate::mounts::Mounts;
use crate::ui::table::{Align, lay_out};
use crate::ui::{say, say_json};
use crate::units::human_size;

const EXAMPLES: &str = "\
Examples:
  forebay stats
  forebay stats /mnt/fast
  forebay stats --json /mnt/fast
  forebay stats --window 5min
  forebay stats --reset
  forebay stats --since-reset --json

Requests are what comes to the daemon: what the kernel answers from its page cache or passes through
to the fast tier is not in here. Each is a hit, a partial hit, a miss, new (a write behind the end of
the file) or a bypass. passthrough_new_bytes is by how much files grew that are written past the
daemon; tier_device_* is what the device under the tier moved, for whomever. Latencies are in
microseconds: fuse is what programs see, tier the fast tier, backing the backing store. A reset
leaves the totals as they are.";

/// Show counters, how requests were served, and the latencies of every operation on all sides.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A mount point, or any path in the mount [default: where we are, or the only mount].
    mountpoint: Option<PathBuf>,

    /// Only what happened in the last 1min, 5min or 1h.
    #[arg(long, value_name = "TIME", conflicts_with = "since_reset")]
    window: Option<String>,

    /// Only what happened since the last --reset.
    #[arg(long)]
    since_reset: bool,

    /// Begin to count anew for --since-reset.
    #[arg(long, conflicts_with_all = ["window", "since_reset"])]
    reset: bool,

    /// Print everything as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    let place = Mounts::read()?.daemon_or_implied(args.mountpoint.as_deref())?;
    let client = Client::new(&place.tier);
    if args.reset {
        let answer = client.post("/v1/stats/reset", &Value::Null)?;
        if args.json {
            say_json(&answer);
        }
        return Ok(0);
    }
    let query = match (&args.window, args.since_reset) {
        (Some(name), _) => format!("?window={name}"),
        (None, true) => "?since=reset".into(),
        (None, false) => String::new(),
    };
    let stats = client.get(&format!("/v1/stats{query}"))?;
    if args.json {
        say_json(&stats);
        return Ok(0);
    }
    tell_requests(&stats["requests"]);
    tell_counters(&stats["counters"]);
    tell_unseen(&stats["counters"]);
    for side in ["fuse", "tier", "backing"] {
        tell_latencies(side, &stats[side]);
    }
    Ok(0)
}

/// Prints how requests were served, and for bypasses of the tier the reasons.
fn tell_requests(requests: &Value) {
    let fields = ["total", "hits", "partial_hits", "misses", "new", "bypasses"];
    let head = ["requests", "all", "hits", "partial", "misses", "new", "bypasses", "because of"];
    let row = |direction: &str| {
        let of = &requests[direction];
        let numbers = fields.map(|field| of[field].as_u64().unwrap_or(0).to_string());
        let reasons = of["bypass_reasons"].as_object().into_iter().flatten();
        let reasons = reasons.filter(|(_, count)| **count != 0);
        let reasons: Vec<String> =
            reasons.map(|(reason, count)| format!("{reason} {count}")).collect();
        std::iter::once(direction.to_string()).chain(numbers).chain([reasons.join(", ")]).collect()
    };
    let rows = vec![head.map(String::from).to_vec(), row("read"), row("write")];
    let mut columns = [Align::Right; 8];
    (columns[0], columns[7]) = (Align::Left, Align::Left);
    lay_out(&columns, &rows).iter().for_each(say);
    say("");
}

fn tell_counters(counters: &Value) {
    let counters = counters.as_object().into_iter().flatten();
    let rows = counters.map(|(name, value)| {
        let human = match (name.contains("bytes"), value.as_u64()) {
            (true, Some(bytes)) => human_size(bytes),
            _ => String::new(),
        };
        vec![name.clone(), value.to_string(), human]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    lay_out(&[Align::Left, Align::Right, Align::Right], &rows).iter().for_each(say);
}

/// Prints the requests that the figures above do not count.
fn tell_unseen(counters: &Value) {
    let passed = |name: &str| counters[name].as_u64().unwrap_or(0);
    let (reads, writes) = (passed("passthrough_reads"), passed("passthrough_writes"));
    if reads + writes > 0 {
        say("");
        say(format!(
            "passed through: opens for reading {reads}, for writing {writes}; of these only"
        ));
        say("new bytes are known (passthrough_new_bytes), not what was read or replaced");
    }
}

fn tell_latencies(side: &str, ops: &Value) {
    let mut ops: BTreeMap<String, OpSummary> =
        serde_json::from_value(ops.clone()).unwrap_or_default();
    ops.retain(|_, op| op.count > 0);
    if ops.is_empty() {
        return;
    }
    let head = [side, "count", "errors", "bytes", "mean", "p50", "p99", "p99.9", "max"];
    let rows = ops.iter().map(|(name, op)| {
        let numbers = [op.mean_us, op.p50_us, op.p99_us, op.p999_us, op.max_us];
        let mut row = vec![name.clone(), op.count.to_string(), op.errors.to_string()];
        row.push(human_size(op.bytes));
        row.extend(numbers.map(|n| n.to_string()));
        row
    });
    let rows: Vec<Vec<String>> =
        std::iter::once(head.map(String::from).to_vec()).chain(rows).collect();
    let mut columns = [Align::Right; 9];
    columns[0] = Align::Left;
    say("");
    lay_out(&columns, &rows).iter().for_each(say);
}
