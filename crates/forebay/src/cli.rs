//! The command line: one source for parsing, help, completions and man pages.

use std::ffi::OsString;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use forebay_bench::prose;

use crate::cmd;
use crate::ui::Output;

const EXAMPLES: &str = "\
Examples:
  forebay mount /slow/project /mnt/fast --tier /nvme/forebay
  forebay status /mnt/fast
  forebay flush --wait /mnt/fast
  forebay umount /mnt/fast

Day to day: mount, status, flush, umount. To watch: top, jobs, stats. In trouble: resolve, check,
recover.

Exit codes: 0 done, 1 done with failures listed, 2 usage or configuration, 3 daemon not reachable,
4 dirty data at risk, 130 interrupted.";

/// A fast tier in front of a slow directory: writes land in it at once and reach the backing
/// store later, reads are served from it, and nothing is lost in between.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// The command line as help shows it: texts laid out for the terminal, and per command only the settings
/// that matter to it.
pub fn shown(columns: usize) -> clap::Command {
    let root = Cli::command().term_width(columns);
    laid_out(root, columns).mut_subcommand("recover", cmd::recover::without_what_mounts_alone_need)
}

pub fn has_command(name: &str) -> bool {
    Cli::command().find_subcommand(name).is_some()
}

fn laid_out(mut command: clap::Command, columns: usize) -> clap::Command {
    if let Some(text) = command.get_after_help().map(ToString::to_string) {
        command = command.after_help(prose::laid_out(&text, columns));
    }
    command.mut_subcommands(|sub| laid_out(sub, columns))
}

/// Wider lines are hard to read.
const COLUMNS_MAX: usize = 100;

impl Cli {
    /// Reads the command line and the form in which its result is wanted. Ends the process for a usage error
    /// or a help text.
    pub fn read(args: Vec<OsString>) -> (Cli, Output) {
        let matches = shown(columns_of_stdout().min(COLUMNS_MAX)).get_matches_from(args);
        let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.exit());
        (cli, Output::from(has_json(&matches)))
    }
}

/// Whether the innermost command was given `--json`.
fn has_json(matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some((_, inner)) => has_json(inner),
        None => matches!(matches.try_get_one("json"), Ok(Some(true))),
    }
}

fn columns_of_stdout() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let columns = size.map(|size| usize::from(size.ws_col)).filter(|&columns| columns > 0);
    columns.unwrap_or(prose::COLUMNS)
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Mount(cmd::mount::Args),
    Umount(cmd::umount::Args),
    Status(cmd::status::Args),
    Stats(cmd::stats::Args),
    Top(cmd::top::Args),
    Ls(cmd::ls::Args),
    Flush(cmd::flush::Args),
    Fence(cmd::fence::Args),
    Wait(cmd::wait::Args),
    Job(cmd::job::Args),
    Jobs(cmd::jobs::Args),
    Evict(cmd::evict::Args),
    Prefetch(cmd::prefetch::Args),
    Pin(cmd::pin::Args),
    Unpin(cmd::unpin::Args),
    Purge(cmd::purge::Args),
    Resolve(cmd::resolve::Args),
    Run(cmd::run::Args),
    Check(cmd::check::Args),
    Recover(cmd::recover::Args),
    Get(cmd::get::Args),
    Set(cmd::set::Args),
    Rules(cmd::rules::Args),
    Registry(cmd::registry::Args),
    Detach(cmd::detach::Args),
    Attach(cmd::attach::Args),
    Config(cmd::config::Args),
    Bench(cmd::bench::Args),
    Node(cmd::node::Args),
    Nodes(cmd::nodes::Args),
    Pools(cmd::pools::Args),
    Instance(cmd::instance::Args),
    Stage(cmd::stage::Args),
    Manifest(cmd::manifest::Args),
    Member(cmd::member::Args),
    Completions(cmd::completions::Args),
    Man(cmd::man::Args),
    StageWorker(cmd::stage_worker::Args),
}

impl Command {
    /// Runs the command and returns the exit code.
    pub fn run(self) -> forebay_backing::Result<u8> {
        match self {
            Command::Mount(args) => cmd::mount::run(args),
            Command::Umount(args) => cmd::umount::run(&args),
            Command::Status(args) => cmd::status::run(&args),
            Command::Stats(args) => cmd::stats::run(&args),
            Command::Top(args) => cmd::top::run(&args),
            Command::Ls(args) => cmd::ls::run(&args),
            Command::Flush(args) => cmd::flush::run(&args),
            Command::Fence(args) => cmd::fence::run(&args),
            Command::Wait(args) => cmd::wait::run(&args),
            Command::Job(args) => cmd::job::run(&args),
            Command::Jobs(args) => cmd::jobs::run(&args),
            Command::Evict(args) => cmd::evict::run(&args),
            Command::Prefetch(args) => cmd::prefetch::run(&args),
            Command::Pin(args) => cmd::pin::run(&args),
            Command::Unpin(args) => cmd::unpin::run(&args),
            Command::Purge(args) => cmd::purge::run(&args),
            Command::Resolve(args) => cmd::resolve::run(&args),
            Command::Run(args) => cmd::run::run(args),
            Command::Check(args) => cmd::check::run(&args),
            Command::Recover(args) => cmd::recover::run(&args),
            Command::Get(args) => cmd::get::run(&args),
            Command::Set(args) => cmd::set::run(&args),
            Command::Rules(args) => cmd::rules::run(&args),
            Command::Registry(args) => cmd::registry::run(&args),
            Command::Detach(args) => cmd::detach::run(&args),
            Command::Attach(args) => cmd::attach::run(&args),
            Command::Config(args) => cmd::config::run(&args),
            Command::Bench(args) => Ok(cmd::bench::run(args)),
            Command::Node(args) => cmd::node::run(&args),
            Command::Nodes(args) => cmd::nodes::run(&args),
            Command::Pools(args) => cmd::pools::run(&args),
            Command::Instance(args) => cmd::instance::run(&args),
            Command::Stage(args) => cmd::stage::run(&args),
            Command::Manifest(args) => cmd::manifest::run(&args),
            Command::Member(args) => cmd::member::run(&args),
            Command::Completions(args) => cmd::completions::run(&args),
            Command::Man(args) => cmd::man::run(&args),
            Command::StageWorker(_) => Ok(cmd::stage_worker::run()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    /// Every line of an "Examples:" section that starts with `forebay` must parse.
    #[test]
    fn every_example_in_a_help_text_parses() {
        let root = Cli::command();
        let mut tried = examples_of(&root);
        for command in root.get_subcommands() {
            let examples = examples_of(command);
            assert!(
                command.is_hide_set() || examples > 0,
                "{} has no examples",
                command.get_name()
            );
            tried += examples + command.get_subcommands().map(examples_of).sum::<usize>();
        }
        assert!(tried > 25, "only {tried} examples were found");
    }

    fn examples_of(command: &clap::Command) -> usize {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let lines = help.lines().map(str::trim).filter(|line| line.starts_with("forebay "));
        let parsed = lines.map(|line| {
            let words =
                line.split(" # ").next().unwrap_or(line).split(" > ").next().unwrap_or(line);
            let result = Cli::try_parse_from(words.split_whitespace().map(as_typed));
            assert!(result.is_ok(), "{line}: {}", result.unwrap_err());
        });
        parsed.count()
    }

    /// On a terminal of eighty columns no line of a help text is broken.
    #[test]
    fn help_texts_fit_eighty_columns_without_orphans() {
        let mut texts = 0;
        let mut each = |command: &mut clap::Command| {
            let name = command.get_name().to_string();
            let text = command.render_long_help().to_string();
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{name}: {text}");
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let paragraphs = after.split("\n\n").filter(|text| !text.contains("\n  "));
            for paragraph in paragraphs {
                let lines: Vec<&str> = paragraph.lines().collect();
                let (_, full) = lines.split_last().unwrap_or((&"", &[]));
                assert!(full.iter().all(|line| line.len() > 50), "{name}: {paragraph}");
            }
            texts += 1;
        };
        let mut root = shown(80);
        root.build();
        each(&mut root);
        for command in root.get_subcommands_mut() {
            each(command);
            command.get_subcommands_mut().for_each(&mut each);
        }
        assert!(texts > 30, "{texts}");
    }

    #[test]
    fn recover_shows_only_the_settings_that_matter_to_it_and_takes_all() {
        let mut root = shown(80);
        let help = |root: &mut clap::Command, name: &str| {
            root.find_subcommand_mut(name).unwrap().render_help().to_string()
        };
        let recover = help(&mut root, "recover");
        assert!(recover.contains("--flush-depth") && recover.contains("--backing-timeout"));
        assert!(!recover.contains("--entry-ttl") && !recover.contains("--readahead"), "{recover}");
        assert!(help(&mut root, "mount").contains("--entry-ttl"));
        Cli::try_parse_from(["forebay", "recover", "t", "--entry-ttl", "1s"]).unwrap();
    }

    /// A word as the shell passes it on. A word that the shell would expand must be quoted.
    fn as_typed(word: &str) -> &str {
        let quoted = word.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
        assert!(quoted.is_some() || !word.contains(['*', '?']), "{word} is not quoted");
        quoted.unwrap_or(word)
    }

    #[test]
    fn settings_are_flags_of_mount() {
        let line = "forebay mount a b --tier c --read-only --max-age 10s --policy write-around";
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        let Command::Mount(args) = cli.command else { panic!("mount") };
        assert_eq!(args.config.values["read-only"], "true");
        assert_eq!(args.config.values["max-age"], "10s");
        assert_eq!(args.config.values.len(), 3);
    }
}
