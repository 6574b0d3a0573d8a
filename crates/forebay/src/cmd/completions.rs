//! `forebay completions`.

use clap::CommandFactory;
use clap_complete::Shell;
use forebay_backing::Result;

use crate::cli::Cli;

const EXAMPLES: &str = "\
Examples:
  forebay completions bash > /etc/bash_completion.d/forebay
  forebay completions zsh > ~/.zfunc/_forebay
  forebay completions fish > ~/.config/fish/completions/forebay.fish";

/// Print the completions of a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    shell: Shell,
}

pub fn run(args: &Args) -> Result<u8> {
    clap_complete::generate(args.shell, &mut Cli::command(), "forebay", &mut std::io::stdout());
    Ok(0)
}
