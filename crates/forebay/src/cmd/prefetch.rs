//! `forebay prefetch`.

use std::path::PathBuf;

use forebay_backing::Result;

use super::job::{self, Scope};
use crate::wire::JobKind;

const EXAMPLES: &str = "\
Examples:
  forebay prefetch /mnt/fast/dataset
  forebay prefetch --json /mnt/fast/a.bin /mnt/fast/b.bin

Returns when the bytes are there, with the number of files and bytes verified to be. What does not
fit in the tier is listed as failed.";

/// Fetch files into the fast tier before they are read.
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
    job::run(JobKind::Prefetch, &Scope::of(&args.paths)?, args.json.into())
}
