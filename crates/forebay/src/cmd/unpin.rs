//! `forebay unpin`.

use forebay_backing::Result;

use super::watch;
use crate::wire::JobKind;

const EXAMPLES: &str = "\
Examples:
  forebay unpin /mnt/fast/reference
  forebay unpin --json /mnt/fast/a /mnt/fast/b";

/// Let files be evicted again.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    asked: watch::Asked,
}

pub fn run(args: &Args) -> Result<u8> {
    watch::ask(JobKind::Unpin, &args.asked)
}
