//! The texts of settings and their origins: the flags, the environment and the file, of which the
//! first wins. [`super::Settings`] reads the values.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use forebay_backing::{Error, Kind, Result};
use forebay_engine::rules::Rule;
use toml::de::{DeTable, DeValue};

use super::keys::{self, KEYS, Key, Value};
use crate::nearest::nearest;

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Flag,
    Env(String),
    File {
        path: PathBuf,
        line: usize,
    },
    /// Set on the running daemon.
    Runtime,
    Default,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Typed {
    pub text: String,
    pub origin: Origin,
}

/// A configuration file's text, from which the line of an offset is found.
pub struct Place<'a> {
    pub path: &'a Path,
    pub text: &'a str,
}

impl Place<'_> {
    pub fn line(&self, offset: usize) -> usize {
        line_of(self.text, offset)
    }

    pub fn usage(&self, offset: usize, message: String) -> Error {
        let (path, line) = (self.path.display(), self.line(offset));
        Error::new(Kind::Usage, format!("{path}:{line}: {message}"))
    }
}

/// The typed texts by key; a key that was not typed is absent.
#[derive(Debug, Clone, Default)]
pub struct RawConfig {
    typed: BTreeMap<&'static str, Typed>,
    /// Admission rules, from the file alone.
    pub rules: Vec<Rule>,
}

impl RawConfig {
    pub fn from_flags(flags: &BTreeMap<&'static str, String>) -> RawConfig {
        let typed = |text: &String| Typed { text: text.clone(), origin: Origin::Flag };
        let typed = flags.iter().map(|(name, text)| (*name, typed(text))).collect();
        RawConfig { typed, ..RawConfig::default() }
    }

    /// Takes the `FOREBAY_*` variables that are keys. Unknown ones come back as warnings: to refuse them
    /// would be wrong, since other software uses the prefix, too (containers get `FOREBAY_PORT` and more
    /// from a service of that name).
    pub fn from_env(vars: impl Iterator<Item = (OsString, OsString)>) -> (RawConfig, Vec<String>) {
        let mut raw = RawConfig::default();
        let mut warnings = Vec::new();
        for (name, text) in vars {
            let Some(name) = name.to_str().filter(|name| name.starts_with("FOREBAY_")) else {
                continue;
            };
            let text = text.to_string_lossy().into_owned();
            match KEYS.iter().find(|key| key.env() == name) {
                Some(key) => {
                    raw.typed.insert(key.name, Typed { text, origin: Origin::Env(name.into()) });
                }
                None if is_known(name) => {}
                None => warnings.push(unknown(name)),
            }
        }
        (raw, warnings)
    }

    /// The settings among the keys of a table; `others` are keys that other code reads.
    pub fn from_table(
        table: &DeTable<'_>,
        others: &[&str],
        place: &Place<'_>,
    ) -> Result<RawConfig> {
        let mut raw = RawConfig::default();
        let keys = table.iter().filter(|(name, _)| !others.contains(&name.get_ref().as_ref()));
        for (name, value) in keys {
            let at = name.span().start;
            let key = keys::find(name.get_ref())
                .map_err(|reason| place.usage(at, format!("{}: {reason}", name.get_ref())))?;
            let text = scalar(value.get_ref()).ok_or_else(|| {
                let kind = value.get_ref().type_str();
                place.usage(at, format!("{}: is a TOML {kind}; write {}", key.name, key.allowed()))
            })?;
            let origin = Origin::File { path: place.path.into(), line: place.line(at) };
            raw.typed.insert(key.name, Typed { text, origin });
        }
        Ok(raw)
    }

    /// Fills what is missing here from `below`.
    #[must_use]
    pub fn over(mut self, below: RawConfig) -> RawConfig {
        self.rules.extend(below.rules);
        for (name, typed) in below.typed {
            self.typed.entry(name).or_insert(typed);
        }
        self
    }

    /// The value of a key with its origin; the default if the key was not typed.
    pub fn value(&self, key: &Key) -> Result<(Value, Origin)> {
        let Some(typed) = self.typed.get(key.name) else {
            return Ok((key.default_value(), Origin::Default));
        };
        let place = typed.place(key);
        let value = key.parse(&typed.text).map_err(|reason| {
            Error::new(Kind::Usage, format!("{place} = {}: {reason}", quoted(&typed.text)))
        })?;
        Ok((value, typed.origin.clone()))
    }
}

impl Typed {
    /// The name under which the user typed the value, for messages.
    fn place(&self, key: &Key) -> String {
        match &self.origin {
            Origin::Flag => format!("--{}", key.name),
            Origin::Env(name) => name.clone(),
            origin @ Origin::File { .. } => format!("{origin}: {}", key.name),
            Origin::Runtime | Origin::Default => key.name.into(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag => f.write_str("flag"),
            Origin::Env(name) => write!(f, "environment {name}"),
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Runtime => f.write_str("set at run time"),
            Origin::Default => f.write_str("default"),
        }
    }
}

/// The text of a TOML scalar, in the form of a flag's value.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        DeValue::Boolean(on) => Some(on.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

/// Whether a variable is known and not a setting: forebay's own, those of tests and trials, and those
/// that describe a service to a container.
fn is_known(name: &str) -> bool {
    const OURS: [&str; 9] = [
        "FOREBAY_CONFIG",
        "FOREBAY_NODE_SOCKET",
        "FOREBAY_MOUNTPOINT",
        "FOREBAY_BIN",
        "FOREBAY_BOOT_ID",
        "FOREBAY_FAILPOINTS",
        "FOREBAY_SKIP_SYNC",
        "FOREBAY_SEED",
        "FOREBAY_SOAK",
    ];
    const OF_TESTS: [&str; 3] = ["FOREBAY_TEST_", "FOREBAY_BENCH_", "FOREBAY_DEMO_"];
    let of_a_service = name == "FOREBAY_PORT"
        || ["FOREBAY_PORT_", "FOREBAY_SERVICE_"].iter().any(|start| name.starts_with(start));
    OURS.contains(&name) || OF_TESTS.iter().any(|start| name.starts_with(start)) || of_a_service
}

fn unknown(name: &str) -> String {
    let names: Vec<String> = KEYS.iter().map(Key::env).collect();
    let lower: Vec<String> = names.iter().map(|name| key_like(name)).collect();
    let near = nearest(&key_like(name), lower.iter().map(String::as_str));
    let hint = match near.and_then(|near| lower.iter().position(|other| other == near)) {
        Some(at) => format!("did you mean {}?", names[at]),
        None => "`forebay config show` lists those there are".into(),
    };
    format!("{name} is not a setting and is ignored: {hint}")
}

fn key_like(env: &str) -> String {
    env.trim_start_matches("FOREBAY_").replace('_', "-").to_ascii_lowercase()
}

/// Quotes a text that is empty or blank.
fn quoted(text: &str) -> String {
    match text.trim().is_empty() {
        true => format!("\"{text}\""),
        false => text.into(),
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|b| **b == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::super::file::ConfigFile;
    use super::*;

    fn file(text: &str) -> Result<RawConfig> {
        ConfigFile::from_toml(text, Path::new("f.toml")).map(|file| file.common)
    }

    fn flags(pairs: &[(&'static str, &str)]) -> RawConfig {
        RawConfig::from_flags(&pairs.iter().map(|(k, v)| (*k, (*v).to_string())).collect())
    }

    fn env(pairs: &[(&str, &str)]) -> (RawConfig, Vec<String>) {
        RawConfig::from_env(pairs.iter().map(|(k, v)| (k.into(), v.into())))
    }

    #[test]
    fn a_flag_wins_over_the_environment_over_the_file_over_the_default() {
        let layers = || {
            let file = file("max-age = \"1s\"\nthreads = 2\nlog-level = \"warn\"\n").unwrap();
            let env = env(&[("FOREBAY_MAX_AGE", "2s"), ("FOREBAY_THREADS", "3")]).0;
            flags(&[("max-age", "3s")]).over(env).over(file)
        };
        let shown = |name| {
            let (value, origin) = layers().value(keys::find(name).unwrap()).unwrap();
            format!("{value} ({origin})")
        };
        assert_eq!(shown("max-age"), "3s (flag)");
        assert_eq!(shown("threads"), "3 (environment FOREBAY_THREADS)");
        assert_eq!(shown("log-level"), "warn (f.toml:3)");
        assert_eq!(shown("fill-depth"), "16 (default)");
    }

    #[test]
    fn errors_name_place_value_reason_and_remedy() {
        let message =
            |raw: RawConfig, name| raw.value(keys::find(name).unwrap()).unwrap_err().to_string();
        assert_eq!(
            message(file("\ntier-size = 10\n").unwrap(), "tier-size"),
            "f.toml:2: tier-size = 10: add a unit, for example 10GiB"
        );
        assert_eq!(
            message(flags(&[("tier-size", "10")]), "tier-size"),
            "--tier-size = 10: add a unit, for example 10GiB"
        );
        assert_eq!(
            message(env(&[("FOREBAY_MAX_AGE", "")]).0, "max-age"),
            "FOREBAY_MAX_AGE = \"\": write a number with a unit, for example 30s"
        );
    }

    #[test]
    fn unknown_keys_and_broken_files_are_usage_errors_with_a_line() {
        for (text, expected) in [
            ("a = 1", "f.toml:1: a: unknown key"),
            ("\nmaxage = \"1s\"", "f.toml:2: maxage: unknown key; did you mean max-age?"),
            ("threads = [1]", "f.toml:1: threads: is a TOML array"),
            ("\n\nthreads == 1", "f.toml:3: not TOML"),
        ] {
            let error = file(text).unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
    }

    #[test]
    fn known_variables_are_left_alone_and_others_warned_of() {
        let (raw, warnings) = env(&[
            ("FOREBAY_PORT", "tcp://10.0.0.1"),
            ("FOREBAY_PORT_80_TCP_ADDR", "10.0.0.1"),
            ("FOREBAY_SERVICE_HOST", "10.0.0.1"),
            ("FOREBAY_FAILPOINTS", "x"),
            ("FOREBAY_NODE_SOCKET", "/run/node.sock"),
            ("FOREBAY_TEST_DIR", "/x"),
            ("FOREBAY_MAX_AEG", "1s"),
            ("FOREBAY_COLOUR", "red"),
            ("HOME", "/"),
        ]);
        assert!(raw.typed.is_empty());
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].contains("did you mean FOREBAY_MAX_AGE?"), "{warnings:?}");
        assert!(warnings[1].contains("FOREBAY_COLOUR is not a setting"), "{warnings:?}");
    }
}
