//! `forebay wait`.

use std::path::PathBuf;

use forebay_backing::Result;

use super::watch::{self, Scope};
use crate::wire::JobKind;

const EXAMPLES: &str = "\
Examples:
  forebay wait --durable /mnt/fast/results/table.csv
  forebay wait --durable --json a.bin b.bin

Exit code 0 means that the bytes that were dirty in each PATH when the command began are on the
backing store and synced there. They are flushed now, whatever the drain is doing.";

/// Wait until files are safe on the backing store.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Wait until the bytes are on the backing store, and synced there.
    #[arg(long, required = true)]
    durable: bool,

    /// Files or directories in a mount.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Print the job as JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    watch::run(JobKind::Durable, &Scope::of(&args.paths)?, args.json.into())
}
