//! `forebay bench COMMAND ...`: finds the command and turns its result into an exit code.

use std::ffi::OsString;

use forebay_base::nearest::nearest;

use crate::prose::{COLUMNS, laid_out};
use crate::{Error, Result};

type Run = fn(&[String]) -> Result<u8>;

/// Name, one line about it, and its entry.
const COMMANDS: &[(&str, &str, Run)] = &[
    ("ior", "IOR's workload, options and output", crate::ior::run),
    ("mdtest", "mdtest's metadata workload, options and summary", crate::mdtest::run),
    ("compare", "two targets by turns: ratios, and whether they are noise", crate::compare::run),
    ("report", "turns results into a page, pictures and a summary", crate::report::run),
    ("bars", "draws times of two ways side by side", crate::report::bars::run),
];

/// All commands, including the workloads named after questions.
fn commands() -> impl Iterator<Item = &'static (&'static str, &'static str, Run)> {
    COMMANDS.iter().chain(crate::workloads::COMMANDS)
}

/// Runs the command in `args` (all words after `bench`). Exit codes: 0 done, 1 done with errors
/// listed, 2 usage, 130 interrupted.
pub fn run(args: Vec<OsString>) -> u8 {
    match dispatch(args) {
        Ok(code) => code,
        Err(error) => {
            for line in error.to_string().lines() {
                eprintln!("forebay bench: {line}");
            }
            error.exit_code()
        }
    }
}

fn dispatch(args: Vec<OsString>) -> Result<u8> {
    let args = args.into_iter().map(text).collect::<Result<Vec<_>>>()?;
    let Some((name, rest)) = args.split_first() else {
        eprint!("{}", help());
        return Ok(2);
    };
    if ["-h", "--help", "help"].contains(&name.as_str()) {
        print!("{}", help());
        return Ok(0);
    }
    let Some((_, _, run)) = commands().find(|(known, ..)| known == name) else {
        return Err(unknown(name));
    };
    crate::interrupt::install();
    run(rest)
}

fn text(arg: OsString) -> Result<String> {
    arg.into_string().map_err(|arg| Error::usage(format!("{} is not UTF-8", arg.display())))
}

fn unknown(name: &str) -> Error {
    let hint = nearest(name, commands().map(|(known, ..)| *known))
        .map_or(String::new(), |near| format!("; did you mean {near}?"));
    Error::usage(format!("no benchmark named {name:?}{hint} (see forebay bench --help)"))
}

/// The names of all commands, for shell completion.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    commands().map(|(name, about, _)| (*name, *about))
}

/// At least one example for each command.
pub const EXAMPLES: &str = "\
Examples:
  forebay bench ior -t 1m -b 16m -s 16 -N 4 -F -e --cache fadvise -o /mnt/fast/testFile
  forebay bench ior --target null -t 4k -b 4g
  forebay bench mdtest -n 1000 --tasks 4 -u -d /mnt/fast/metadata
  forebay bench fill /mnt/fast --capacity 8g
  forebay bench steps /mnt/fast
  forebay bench steady /mnt/fast --rate 2000 --reads 70 --skew zipf:1.1 --out steady.ndjson
  forebay bench checkpoint /mnt/forebay -n 8 -s 256m --layout strided
  forebay bench reread /mnt/fast -s 512m -n 2
  forebay bench bfs /mnt/fast
  forebay bench rates /mnt/fast
  forebay bench compare /mnt/forebay /data/project
  forebay bench report steady.ndjson
  forebay bench bars times.tsv --out times.svg

docs/BENCHMARKING.md teaches how to get numbers that are true.";

fn help() -> String {
    let mut text = "An honest, IOR-compatible benchmark of any path.\n\n\
                    Usage: forebay bench COMMAND [OPTIONS]\n\nCommands:\n"
        .to_owned();
    for (name, about, _) in commands() {
        text += &format!("  {name:<12}{about}\n");
    }
    text + "\n`forebay bench COMMAND --help` tells its options, with more examples.\n\n"
        + &laid_out(EXAMPLES, COLUMNS)
        + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_with(words: &[&str]) -> Result<u8> {
        dispatch(words.iter().map(OsString::from).collect())
    }

    #[test]
    fn an_unknown_benchmark_is_a_usage_error() {
        let error = run_with(&["nonsense"]).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("nonsense"));
    }

    #[test]
    fn help_lists_every_command() {
        for (name, ..) in commands() {
            assert!(help().contains(&format!("  {name} ")), "{name} is not listed");
            assert!(help().contains(&format!("forebay bench {name} ")), "{name} has no example");
        }
        assert_eq!(run_with(&["--help"]), Ok(0));
    }
}
