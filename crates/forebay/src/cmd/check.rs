//! `forebay check`.

use std::path::PathBuf;

use forebay_backing::Result;
use serde_json::json;

use crate::mounts::{Wish, name_user};
use crate::rights;
use crate::ui::{say, say_json};
use crate::units::{counted, human_size};
use crate::wire::WirePath;

const EXAMPLES: &str = "\
Examples:
  forebay check /nvme/forebay
  forebay check --json /nvme/forebay

Nothing is changed. Exit code 1 if anything is wrong; `forebay recover` saves what is sound. The
tier must not be mounted.";

/// Verify a tier that is not mounted, and list what is dirty in it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The directory of the tier.
    tier: PathBuf,

    /// Print everything as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    rights::act_as_owner_of(&args.tier)?;
    let report = forebay_engine::check(&args.tier)
        .map_err(|error| name_user(&args.tier, error, Wish::Check))?;
    let exit_code = u8::from(!report.ok || !report.problems.is_empty());
    if args.json {
        let dirty: Vec<WirePath> = report.dirty.iter().map(|path| path.as_path().into()).collect();
        say_json(&json!({
            "ok": exit_code == 0,
            "files": report.files,
            "clean_bytes": report.clean_bytes,
            "dirty_files": report.dirty_files,
            "dirty_bytes": report.dirty_bytes,
            "dirty": dirty,
            "dropped_files": report.dropped_files,
            "dropped_bytes": report.dropped_bytes,
            "lost_files": report.lost_files,
            "lost_bytes": report.lost_bytes,
            "problems": report.problems,
        }));
        return Ok(exit_code);
    }
    say(format!(
        "{}: {}, {} clean, {} dirty in {}",
        args.tier.display(),
        counted(report.files, "file"),
        human_size(report.clean_bytes),
        human_size(report.dirty_bytes),
        counted(report.dirty_files, "file")
    ));
    if let Some(why) = report.why_dropped {
        say(format!(
            "{why}: {} in {}, never synced, are gone; that is no damage",
            human_size(report.dropped_bytes),
            counted(report.dropped_files, "file")
        ));
    }
    report.dirty.iter().for_each(|path| say(format!("dirty: {}", path.display())));
    report.problems.iter().for_each(|problem| say(format!("problem: {problem}")));
    match exit_code {
        0 => say("sound"),
        _ => say("damaged: `forebay recover` saves what is sound and lists what is not"),
    }
    Ok(exit_code)
}
