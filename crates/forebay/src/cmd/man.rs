//! `forebay man`: the man pages, for whoever packages.

use std::path::PathBuf;

use clap::CommandFactory;
use forebay_backing::{Error, Result};

use crate::cli::Cli;

/// Write the man pages into a directory.
#[derive(Debug, clap::Args)]
pub struct Args {
    dir: PathBuf,
}

pub fn run(args: &Args) -> Result<u8> {
    clap_mangen::generate_to(Cli::command(), &args.dir)
        .map_err(|e| Error::io(e, args.dir.display().to_string()))?;
    Ok(0)
}
