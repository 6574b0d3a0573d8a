//! `forebay prefetch`.

use forebay_backing::Result;

use super::watch;
use crate::wire::JobKind;

const EXAMPLES: &str = "\
Examples:
  forebay prefetch /mnt/fast/dataset
  forebay prefetch --json /mnt/fast/a.bin /mnt/fast/b.bin
  forebay prefetch --all-nodes /mnt/fast/app/lib

Returns when the bytes are there, with the number of files and bytes verified to be. What it has fetched
stays until then. A file that does not fit beside what it has fetched, and what is dirty or pinned, is
listed as failed.

With --all-nodes every member of the store that is alive fetches them into its own tier; mounted with
share-reads the backing store gives each byte once. The figures are this node's, failures are listed of
all.";

/// Fetch files into the fast tier before they are read.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    asked: watch::Asked,

    /// On all nodes that mount this backing store.
    #[arg(long)]
    all_nodes: bool,
}

pub fn run(args: &Args) -> Result<u8> {
    watch::ask_with(JobKind::Prefetch, &args.asked, |job| job.all_nodes = args.all_nodes)
}
