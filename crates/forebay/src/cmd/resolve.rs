//! `forebay resolve`.

use std::path::PathBuf;

use clap::ValueEnum;
use forebay_backing::Result;
use serde_json::json;

use super::watch::Scope;
use crate::ui::{say, say_json};

const EXAMPLES: &str = "\
Examples:
  forebay resolve /mnt/fast/report.odt --keep ours
  forebay resolve /mnt/fast/report.odt --keep theirs
  forebay resolve /mnt/fast/report.odt --keep both

A file is in conflict when it changed in the backing store while the fast tier held dirty bytes
for it, or when a damaged tier has lost some of its dirty bytes. Nothing of it is flushed until this is settled; `forebay status` lists such files.";

/// Settle a file that changed in the backing store while dirty bytes for it were held.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A file in a mount.
    path: PathBuf,

    /// Whose bytes stay under the name.
    #[arg(long)]
    keep: Side,

    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Side {
    /// The bytes written through the mount; those in the backing store are overwritten.
    Ours,
    /// The bytes in the backing store; those written through the mount are dropped.
    Theirs,
    /// The backing store's bytes under the name, ours in a new file beside it.
    Both,
}

pub fn run(args: &Args) -> Result<u8> {
    let scope = Scope::of(std::slice::from_ref(&args.path))?;
    let keep = match args.keep {
        Side::Ours => "ours",
        Side::Theirs => "theirs",
        Side::Both => "both",
    };
    let body = json!({ "path": scope.paths[0], "keep": keep });
    let answer = scope.client().post("/v1/resolve", &body)?;
    match args.json {
        true => say_json(&answer),
        false => say(format!("{}: settled, kept {keep}", args.path.display())),
    }
    Ok(0)
}
