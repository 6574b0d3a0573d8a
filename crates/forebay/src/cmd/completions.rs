//! `forebay completions`.

use clap::CommandFactory;
use clap_complete::Shell;
use forebay_backing::Result;

use crate::cli::Cli;
use crate::ui::say;

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
    // The generator panics when it cannot write, as into a pipe whose reader has seen enough.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "forebay", &mut script);
    say(String::from_utf8_lossy(&script).trim_end());
    Ok(0)
}
