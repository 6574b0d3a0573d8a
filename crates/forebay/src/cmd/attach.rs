//! `forebay attach`.

use std::path::PathBuf;

use forebay_backing::Result;
use serde_json::Value;

use crate::http::Client;
use crate::mounts::Mounts;
use crate::ui::{say, say_json};
use crate::units::{counted, human_size};

const EXAMPLES: &str = "\
Examples:
  forebay attach /mnt/fast

From the next request on the fast tier takes part as before, by the policy and the rules in force;
what was kept dirty is flushed as any other dirty byte.";

/// Use the fast tier again after a detach.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A mount point, or any path in the mount.
    mountpoint: PathBuf,

    /// Print the answer as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    let place = Mounts::read()?.daemon_of(&args.mountpoint)?;
    let answer = Client::new(&place.tier).post("/v1/attach", &Value::Null)?;
    if args.json {
        say_json(&answer);
        return Ok(0);
    }
    let number = |name: &str| answer[name].as_u64().unwrap_or(0);
    let dirty = match number("dirty_files") {
        0 => String::new(),
        files => {
            let bytes = human_size(number("dirty_bytes"));
            format!("; {bytes} dirty in {} are flushed from now on", counted(files, "file"))
        }
    };
    say(format!("attached {}{dirty}", place.tier.display()));
    Ok(0)
}
