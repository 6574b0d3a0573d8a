//! Command lines as getopt reads them, with help and a suggestion for a mistyped word.
//!
//! Short options combine (`-wrk`), count (`-vv`) and take their value attached or apart (`-b16m`,
//! `-b 16m`, `-b=16m`); long ones take `--name value` or `--name=value`. `--` ends options.

use std::iter::Peekable;

use forebay_base::nearest::nearest;

use crate::prose::{COLUMNS, laid_out, wrapped};
use crate::units::{terse_seconds, terse_size};
use crate::{Error, Result};

type Words<'a> = Peekable<std::slice::Iter<'a, String>>;

#[derive(Debug, Clone)]
struct Opt {
    short: Option<char>,
    long: &'static str,
    /// The name of the value in the help; `None` for a flag.
    value: Option<&'static str>,
    help: String,
}

/// The options that a command accepts. Long names are the keys under which [`Parsed`] answers.
#[derive(Debug, Clone)]
pub struct Spec {
    name: &'static str,
    about: &'static str,
    usage: &'static str,
    examples: &'static str,
    options: Vec<Opt>,
}

/// The options and words of a command line.
#[derive(Debug, Clone)]
pub struct Parsed {
    given: Vec<(&'static str, String)>,
    rest: Vec<String>,
    help: Option<String>,
}

impl Spec {
    pub fn new(name: &'static str) -> Self {
        Self { name, about: "", usage: "[OPTIONS]", examples: "", options: Vec::new() }
    }

    /// Sets the description of the command, a sentence or a paragraph.
    #[must_use]
    pub fn about(mut self, text: &'static str) -> Self {
        self.about = text;
        self
    }

    /// Sets the text after the command's name in its usage line.
    #[must_use]
    pub fn usage(mut self, text: &'static str) -> Self {
        self.usage = text;
        self
    }

    /// Sets the lines of examples, printed at the end of the help.
    #[must_use]
    pub fn examples(mut self, text: &'static str) -> Self {
        self.examples = text;
        self
    }

    #[must_use]
    pub fn flag(self, short: Option<char>, long: &'static str, help: impl Into<String>) -> Self {
        self.with(Opt { short, long, value: None, help: help.into() })
    }

    /// A value whose name is in brackets may be left out; it is `-` then.
    #[must_use]
    pub fn value(
        self,
        short: Option<char>,
        long: &'static str,
        value: &'static str,
        help: impl Into<String>,
    ) -> Self {
        self.with(Opt { short, long, value: Some(value), help: help.into() })
    }

    fn with(mut self, option: Opt) -> Self {
        self.options.push(option);
        self
    }

    /// Reads a command line; a usage error names the wrong option and the nearest that exists.
    pub fn parse(&self, args: &[String]) -> Result<Parsed> {
        let mut parsed = Parsed { given: Vec::new(), rest: Vec::new(), help: None };
        let mut words = args.iter().peekable();
        while let Some(word) = words.next() {
            if word == "--" {
                parsed.rest.extend(words.by_ref().cloned());
            } else if let Some(long) = word.strip_prefix("--") {
                self.long(long, &mut words, &mut parsed)?;
            } else if let Some(letters) = word.strip_prefix('-').filter(|l| !l.is_empty()) {
                self.short(letters, &mut words, &mut parsed)?;
            } else {
                parsed.rest.push(word.clone());
            }
        }
        Ok(parsed)
    }

    fn long(&self, word: &str, words: &mut Words<'_>, parsed: &mut Parsed) -> Result<()> {
        let (name, attached) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word, None),
        };
        let Some(option) = self.options.iter().find(|o| o.long == name) else {
            if name == "help" {
                parsed.help = Some(self.help());
                return Ok(());
            }
            return Err(self.unknown(&format!("--{name}")));
        };
        let value = match (option.value, attached) {
            (None, Some(_)) => {
                return Err(self.wrong(&format!("--{name} takes no value")));
            }
            (None, None) => String::new(),
            (Some(_), Some(value)) => value,
            (Some(what), None) if what.starts_with('[') => {
                let is_value = |word: &&String| *word == "-" || !word.starts_with('-');
                words.next_if(is_value).map_or("-".into(), Clone::clone)
            }
            (Some(what), None) => words.next().cloned().ok_or_else(|| self.lacks(name, what))?,
        };
        parsed.given.push((option.long, value));
        Ok(())
    }

    fn short(&self, letters: &str, words: &mut Words<'_>, parsed: &mut Parsed) -> Result<()> {
        for (at, letter) in letters.char_indices() {
            let Some(option) = self.options.iter().find(|o| o.short == Some(letter)) else {
                if letter == 'h' {
                    parsed.help = Some(self.help());
                    continue;
                }
                return Err(self.unknown(&format!("-{letter}")));
            };
            let Some(what) = option.value else {
                parsed.given.push((option.long, String::new()));
                continue;
            };
            let attached = &letters[at + letter.len_utf8()..];
            let attached = attached.strip_prefix('=').unwrap_or(attached);
            let value = match attached {
                "" => words.next().cloned().ok_or_else(|| self.lacks(&letter.to_string(), what))?,
                value => value.to_owned(),
            };
            parsed.given.push((option.long, value));
            return Ok(());
        }
        Ok(())
    }

    fn unknown(&self, given: &str) -> Error {
        let known = self.options.iter().flat_map(|o| {
            o.short.map(|s| format!("-{s}")).into_iter().chain([format!("--{}", o.long)])
        });
        // A long name is only ever a misspelled long name; any letter is one letter from any other.
        let known = known.filter(|name| match given.starts_with("--") {
            true => name.starts_with("--"),
            false => name.eq_ignore_ascii_case(given),
        });
        match nearest(given, known) {
            Some(near) => self.wrong(&format!("no option {given}; did you mean {near}?")),
            None => self.wrong(&format!("no option {given}")),
        }
    }

    fn lacks(&self, name: &str, what: &str) -> Error {
        let dashes = if name.len() == 1 { "-" } else { "--" };
        self.wrong(&format!("{dashes}{name} needs a value: {what}"))
    }

    fn wrong(&self, message: &str) -> Error {
        Error::usage(format!("{}: {message} (see --help)", self.name))
    }

    /// The help text, which `--help` prints, too.
    pub fn help(&self) -> String {
        let about: Vec<String> =
            self.about.split("\n\n").map(|part| wrapped(part, COLUMNS, 0)).collect();
        let mut text = format!(
            "{}\n\nUsage: forebay bench {} {}\n\nOptions:\n",
            about.join("\n\n"),
            self.name,
            self.usage
        );
        let left = |o: &Opt| {
            let short = o.short.map_or("    ".to_owned(), |s| format!("-{s}, "));
            let value = o.value.map_or(String::new(), |v| format!(" {v}"));
            format!("  {short}--{}{value}", o.long)
        };
        let width = self.options.iter().map(|o| left(o).len()).max().unwrap_or(0).min(34);
        for option in &self.options {
            let line = format!("{:width$}  ", left(option));
            let room = COLUMNS - line.len();
            let help = wrapped(&option.help, room, 0)
                .replace('\n', &format!("\n{:w$}", "", w = line.len()));
            text += &format!("{line}{help}\n");
        }
        text += &format!("{:width$}  this text\n", "  -h, --help");
        if !self.examples.is_empty() {
            text += &format!("\nExamples:\n{}\n", laid_out(self.examples, COLUMNS));
        }
        text
    }
}

impl Parsed {
    /// The help text if it was asked for; the caller prints it and returns 0.
    pub fn help_wanted(&self) -> Option<&str> {
        self.help.as_deref()
    }

    pub fn flag(&self, name: &str) -> bool {
        self.count(name) > 0
    }

    /// The number of times that an option was given.
    pub fn count(&self, name: &str) -> usize {
        self.given.iter().filter(|(given, _)| *given == name).count()
    }

    /// The last value given; earlier ones are overridden, as in getopt.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.given.iter().rev().find(|(given, _)| *given == name).map(|(_, value)| value.as_str())
    }

    /// Options and values in the order given.
    pub fn given(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.given.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// The words that are not options.
    pub fn rest(&self) -> &[String] {
        &self.rest
    }

    pub fn size(&self, name: &str, default: u64) -> Result<u64> {
        self.parsed(name, default, |text| terse_size(text).map_err(Error::usage))
    }

    pub fn seconds(&self, name: &str, default: f64) -> Result<f64> {
        self.parsed(name, default, |text| terse_seconds(text).map_err(Error::usage))
    }

    pub fn number<T: std::str::FromStr>(&self, name: &str, default: T) -> Result<T> {
        self.parsed(name, default, |text| {
            text.parse().map_err(|_| Error::usage(format!("{text:?} is not a number it takes")))
        })
    }

    fn parsed<T>(&self, name: &str, default: T, read: impl Fn(&str) -> Result<T>) -> Result<T> {
        match self.get(name) {
            Some(text) => read(text).map_err(|error| Error::usage(format!("--{name}: {error}"))),
            None => Ok(default),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        Spec::new("ior")
            .flag(Some('w'), "writeFile", "write")
            .flag(Some('z'), "randomOffset", "random")
            .value(Some('b'), "blockSize", "SIZE", "block")
            .value(None, "json", "[FILE]", "results")
    }

    fn parse(line: &str) -> Result<Parsed> {
        spec().parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn a_value_may_be_attached_apart_or_after_an_equals_sign() {
        for line in ["-b16m", "-b 16m", "-b=16m", "--blockSize=16m", "--blockSize 16m", "-wzb16m"] {
            assert_eq!(parse(line).unwrap().size("blockSize", 0), Ok(16 << 20), "{line}");
        }
    }

    #[test]
    fn a_value_in_brackets_may_be_left_out() {
        for (line, json) in [
            ("--json", "-"),
            ("--json -", "-"),
            ("--json -w", "-"),
            ("--json -- x", "-"),
            ("--json x", "x"),
            ("--json=x", "x"),
        ] {
            assert_eq!(parse(line).unwrap().get("json"), Some(json), "{line}");
        }
    }

    #[test]
    fn flags_combine_and_count() {
        let parsed = parse("-zzw -z file -- -w").unwrap();
        assert_eq!((parsed.count("randomOffset"), parsed.count("writeFile")), (3, 1));
        assert_eq!(parsed.rest(), ["file", "-w"]);
    }

    #[test]
    fn the_last_value_counts_and_a_bad_one_names_its_option() {
        assert_eq!(parse("-b1k -b2k").unwrap().size("blockSize", 0), Ok(2048));
        let error = parse("-b1x").unwrap().size("blockSize", 0).unwrap_err().to_string();
        assert!(error.contains("blockSize") && error.contains("1x"), "{error}");
    }

    #[test]
    fn an_unknown_option_is_named_with_its_nearest() {
        let said = |line: &str| parse(line).unwrap_err().to_string();
        assert!(said("--blokSize=1").contains("did you mean --blockSize?"));
        assert!(said("-Z").contains("no option -Z; did you mean -z?"));
        assert!(said("-9").contains("no option -9 (see --help)"));
        assert!(said("--xyzzy").contains("no option --xyzzy"));
        assert!(said("-b").contains("-b needs a value: SIZE"));
        assert!(said("--writeFile=1").contains("takes no value"));
    }

    #[test]
    fn help_is_asked_for_in_two_ways() {
        assert!(parse("-h").unwrap().help_wanted().unwrap().contains("--blockSize SIZE"));
        assert!(parse("--help").unwrap().help_wanted().is_some());
    }
}
