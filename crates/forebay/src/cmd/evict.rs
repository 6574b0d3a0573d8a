//! `forebay evict`.

use std::path::PathBuf;

use forebay_backing::Result;

use super::job::{self, Scope};
use crate::wire::JobKind;

const EXAMPLES: &str = "\
Examples:
  forebay evict /mnt/fast/old
  forebay evict /mnt/fast

Dirty bytes and pinned files stay: flush or unpin them first. The next read comes from the backing
store again.";

/// Give up the clean cached bytes of files, to make room.
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
    job::run(JobKind::Evict, &Scope::of(&args.paths)?, args.json.into())
}
