//! `forebay pin`.

use std::path::PathBuf;

use forebay_backing::Result;

use super::job::{self, Scope};
use crate::wire::JobKind;

const EXAMPLES: &str = "\
Examples:
  forebay pin /mnt/fast/reference
  forebay pin /mnt/fast/index.db /mnt/fast/model.bin

A directory stands for the files in it now. Pinned bytes count against tier-size: if not all of it
fits, nothing is pinned that was not before. Of other files that cannot be fetched only these are not
pinned. Either way the exit code is 1.";

/// Fetch files and keep them in the fast tier until they are unpinned.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Files or directories in a mount.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Print the job as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    job::run(JobKind::Pin, &Scope::of(&args.paths)?, args.json.into())
}
