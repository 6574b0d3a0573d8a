//! `forebay pin`.

use forebay_backing::Result;

use super::watch;
use crate::wire::JobKind;

const EXAMPLES: &str = "\
Examples:
  forebay pin /mnt/fast/reference
  forebay pin /mnt/fast/index.db /mnt/fast/model.bin

A directory stands for the files in it now. Pinned bytes count against tier-size: if not all of it
fits beside what is dirty or pinned, nothing is fetched or pinned that was not before. Of other files that cannot be fetched only these are not
pinned. Either way the exit code is 1.";

/// Fetch files and keep them in the fast tier until they are unpinned.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    asked: watch::Asked,
}

pub fn run(args: &Args) -> Result<u8> {
    watch::ask(JobKind::Pin, &args.asked)
}
