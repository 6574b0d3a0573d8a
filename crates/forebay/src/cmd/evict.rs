//! `forebay evict`.

use forebay_backing::Result;

use super::watch;
use crate::wire::JobKind;

const EXAMPLES: &str = "\
Examples:
  forebay evict /mnt/fast/old
  forebay evict /mnt/fast

Dirty bytes and pinned files stay: flush or unpin them first. The next read comes from the backing
store again. A directory stands for the files that forebay knows by a name below it.";

/// Give up the clean cached bytes of files, to make room.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    asked: watch::Asked,
}

pub fn run(args: &Args) -> Result<u8> {
    watch::ask(JobKind::Evict, &args.asked)
}
