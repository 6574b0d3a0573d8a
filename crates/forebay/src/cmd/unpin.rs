//! `forebay unpin`.

use std::path::PathBuf;

use forebay_backing::Result;

use super::job::{self, Scope};
use crate::wire::JobKind;

const EXAMPLES: &str = "\
Examples:
  forebay unpin /mnt/fast/reference
  forebay unpin --json /mnt/fast/a /mnt/fast/b";

/// Let files be evicted again.
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
    job::run(JobKind::Unpin, &Scope::of(&args.paths)?, args.json.into())
}
