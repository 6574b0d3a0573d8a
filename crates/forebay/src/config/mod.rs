//! Configuration: one table of keys, four places to type a value, one meaning.

mod file;
mod ids;
pub mod keys;
pub mod raw;
mod reference;
mod rules;
mod settings;
mod words;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::ui::note_wrong;
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use forebay_backing::Result;

pub use file::{ConfigFile, Section};
pub use ids::{group, user};
use keys::{KEYS, Key, Type};
pub use raw::{Origin, RawConfig};
pub use rules::RuleText;
pub use settings::{Certificates, ClusterSettings, LogSettings, Settings, change_tunable, tunable};

/// Values given on the command line, one flag per key, and the file to read.
#[derive(Debug, Clone, Default)]
pub struct ConfigFlags {
    pub values: BTreeMap<&'static str, String>,
    pub file: Option<PathBuf>,
}

impl ConfigFlags {
    /// The settings: flags win over the environment, and both over the file. Warnings go to standard error.
    pub fn load(&self) -> Result<Settings> {
        self.load_from(self.read_file()?.common)
    }

    /// Like `load`, for a mount that the file describes.
    pub fn load_section(&self, file: &ConfigFile, section: &Section) -> Result<Settings> {
        self.load_from(section.raw.clone().over(file.common.clone()))
    }

    pub fn read_file(&self) -> Result<ConfigFile> {
        match self.file.clone().or_else(default_file) {
            Some(path) => ConfigFile::read(&path),
            None => Ok(ConfigFile::default()),
        }
    }

    fn load_from(&self, file: RawConfig) -> Result<Settings> {
        let (env, warnings) = RawConfig::from_env(std::env::vars_os());
        for warning in warnings {
            note_wrong(&format!("warning: {warning}"));
        }
        Settings::resolve(&RawConfig::from_flags(&self.values).over(env).over(file))
    }
}

/// `$FOREBAY_CONFIG`, else the user's file, else the machine's; `None` if none exists.
fn default_file() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("FOREBAY_CONFIG") {
        return Some(path.into());
    }
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".config"));
    let user = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home);
    let user = user.map(|dir| dir.join("forebay/config.toml"));
    [user, Some(PathBuf::from("/etc/forebay.toml"))]
        .into_iter()
        .flatten()
        .find(|path| path.exists())
}

impl Args for ConfigFlags {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help_heading(HEADING)
            .help(
                "Read settings from this file [default: $XDG_CONFIG_HOME/forebay/config.toml (with \
                 ~/.config if that is not set) or /etc/forebay.toml, if present]",
            );
        KEYS.iter().fold(command.arg(file), |command, key| command.arg(flag(key)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        ConfigFlags::augment_args(command)
    }
}

impl FromArgMatches for ConfigFlags {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<ConfigFlags, clap::Error> {
        let mut flags = ConfigFlags::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(
        &mut self,
        matches: &ArgMatches,
    ) -> std::result::Result<(), clap::Error> {
        self.file = matches.get_one::<PathBuf>("config").cloned();
        for key in KEYS {
            if let Some(text) = matches.get_one::<String>(key.name) {
                self.values.insert(key.name, text.clone());
            }
        }
        Ok(())
    }
}

const HEADING: &str = "Settings (also FOREBAY_* variables and keys of the configuration file)";

fn flag(key: &'static Key) -> Arg {
    let default = match key.default {
        "" => String::new(),
        default => format!(" [default: {default}]"),
    };
    let arg = Arg::new(key.name)
        .long(key.name)
        .value_name(key.placeholder())
        .action(ArgAction::Set)
        .help_heading(HEADING)
        .help(format!("{}{default}", key.doc));
    match key.kind {
        Type::Choice(words) => arg.value_parser(PossibleValuesParser::new(words)),
        // `--read-only` alone means true; the value, if any, is attached by `=`.
        Type::Bool => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_parser(PossibleValuesParser::new(["true", "false"])),
        // Without this `-1s` would be read as a flag of its own, and not refused as a value of this one.
        _ => arg.allow_hyphen_values(true),
    }
}
