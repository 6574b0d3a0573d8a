//! `forebay prefetch`.

use forebay_backing::Result;

use super::watch;
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
    #[command(flatten)]
    asked: watch::Asked,
}

pub fn run(args: &Args) -> Result<u8> {
    watch::ask(JobKind::Prefetch, &args.asked)
}
