//! `forebay flush`.

use std::path::PathBuf;

use forebay_backing::Result;
use serde_json::json;

use super::job::{self, Scope};
use crate::ui::{say, say_json};
use crate::wire::JobKind;

const EXAMPLES: &str = "\
Examples:
  forebay flush --wait /mnt/fast
  forebay flush --wait /mnt/fast/results/run-17
  forebay flush /mnt/fast
  forebay flush --wait --json

With --wait, exit code 0 means that every byte that was dirty in PATH when the command began is on
the backing store and synced there. Without --wait the flush goes on in the daemon. Without PATH it
is everything in the mount of the current directory, or in the only mount there is.";

/// Copy dirty bytes to the backing store now.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Files or directories in a mount.
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Return when the bytes are on the backing store and synced there.
    #[arg(long)]
    wait: bool,

    /// Print the job as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    let scope = Scope::of(&args.paths)?;
    if args.wait {
        return job::run(JobKind::Flush, &scope, args.json.into());
    }
    let id = job::start(&scope.client(), JobKind::Flush, &scope)?;
    match args.json {
        true => say_json(&json!({ "id": id })),
        false => say(format!(
            "flushing {}; `forebay status` shows how far it is",
            scope.place.mountpoint.display()
        )),
    }
    Ok(0)
}
