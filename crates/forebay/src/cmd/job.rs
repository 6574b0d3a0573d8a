//! `forebay job`: jobs of a scheduler, from their scripts' directives to the last byte at home.

mod check;
mod forecast;
mod hook_args;
mod hooks;
mod process;
mod rates;
mod room;
mod sources;
mod told;

use clap::Subcommand;
use forebay_base::Result;

const EXAMPLES: &str = "\
Examples:
  forebay job check job.sh
  forebay job process --script job.sh --nodes 2
  forebay job status --job 17

A script asks for space and files with #DW (as for DataWarp and NNF), #BB and #FB lines;
docs/DIRECTIVES.md has them all. The other commands are a scheduler's hooks: each may be repeated, is
bounded in time, and ends with a line 'forebay: ok', 'forebay: busy' or 'forebay: error', and a text.";

/// Check job scripts, and run a scheduler's hooks.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Check(check::Args),
    Process(process::Args),
    #[command(flatten)]
    Hook(hook_args::Hook),
}

pub fn run(args: &Args) -> Result<u8> {
    match &args.what {
        What::Check(args) => check::run(args),
        What::Process(args) => Ok(process::run(args)),
        What::Hook(hook) => Ok(hooks::run(hook)),
    }
}
