//! `forebay completions`.

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;
use forebay_backing::Result;

use crate::cli::Cli;
use crate::config::keys::{Change, KEYS, Type};
use crate::ui::say_text;

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
    // The generator panics when it cannot write, as into a pipe that its reader has closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut completed(), "forebay", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if args.shell == Shell::Fish {
        script += &for_fish();
    }
    say_text(script.trim_end());
    Ok(0)
}

/// The command line with completions for the words that it takes as plain text: settings, and the
/// benchmark's commands.
fn completed() -> Command {
    let bench = |command: Command| {
        let subs = forebay_bench::names().map(|(name, about)| Command::new(name).about(about));
        command.mut_arg("args", |arg| arg.hide(true)).subcommands(subs)
    };
    Cli::command()
        .mut_subcommand("set", |set| set.mut_arg("pairs", |arg| one_of(arg, assignments())))
        .mut_subcommand("get", |get| get.mut_arg("keys", |arg| one_of(arg, names())))
        .mut_subcommand("bench", bench)
}

fn one_of(arg: Arg, words: impl Iterator<Item = String>) -> Arg {
    arg.value_parser(PossibleValuesParser::new(words.collect::<Vec<_>>()))
}

fn names() -> impl Iterator<Item = String> {
    KEYS.iter().map(|key| key.name.to_string())
}

/// Completions for `set`: `max-age=`, or the whole assignment where there are few choices.
fn assignments() -> impl Iterator<Item = String> {
    let live = KEYS.iter().filter(|key| key.change == Change::Live);
    live.flat_map(|key| match key.kind {
        Type::Choice(words) => words.iter().map(|word| format!("{}={word}", key.name)).collect(),
        _ => vec![format!("{}=", key.name)],
    })
}

/// The generator for fish completes no arguments that are not options; these lines do.
fn for_fish() -> String {
    let line = |command: &str, words: Vec<String>| {
        let seen = format!("__fish_forebay_using_subcommand {command}");
        format!("complete -c forebay -n \"{seen}\" -a \"{}\"\n", words.join(" "))
    };
    line("set", assignments().collect()) + &line("get", names().collect())
}
