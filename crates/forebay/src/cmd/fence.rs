//! `forebay fence`.

use std::path::PathBuf;

use forebay_backing::Result;

use super::watch::{self, Scope};
use crate::wire::JobKind;

const EXAMPLES: &str = "\
Examples:
  forebay fence /mnt/fast
  forebay fence --json /mnt/fast/db

Exit code 0 means that everything that was dirty when the command began is on the backing store and
synced there. What is written meanwhile is not waited for, however much it is.";

/// Bring everything that is dirty at this moment to the backing store.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Files or directories in a mount [default: all of it].
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Print the job as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    watch::run(JobKind::Fence, &Scope::of(&args.paths)?, args.json.into())
}
