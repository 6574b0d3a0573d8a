//! Output for people: progress on standard error, aligned tables, questions.

pub mod members;
pub mod plain;
pub mod progress;
pub mod table;
pub mod top;

use std::io::{self, BufRead, IsTerminal, Write};

use forebay_backing::{Error, Kind, Result};
use plain::Plain;
use serde::Serialize;
use serde_json::json;

/// Prints a line to standard output. A reader that has gone (`| head`) causes no panic.
pub fn say(line: impl std::fmt::Display) {
    let _ = writeln!(io::stdout().lock(), "{}", Plain(line));
}

/// Prints lines of forebay's own text alone: they contain no names of users, files or programs.
pub fn say_text(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}

pub fn say_json(value: &impl Serialize) {
    let text = serde_json::to_string_pretty(value).expect("wire types hold strings and numbers");
    let _ = writeln!(io::stdout().lock(), "{}", plain::json(&text));
}

/// Prints a message beside the result to standard error, in one line.
#[expect(clippy::print_stderr, reason = "the one place that does")]
pub fn tell_aside(line: std::fmt::Arguments<'_>) {
    eprintln!("forebay: {}", Plain(line));
}

/// [`tell_aside`] with the arguments of `format!`.
macro_rules! note {
    ($($arg:tt)*) => { $crate::ui::tell_aside(format_args!($($arg)*)) };
}
pub(crate) use note;

/// The longest line that is read at a glance.
const LINE_MAX: usize = 160;

/// Prints a problem, in lines by [`lines_of`].
pub fn say_wrong(text: &str) {
    lines_of(text).iter().for_each(say);
}

/// Prints a problem to standard error, in lines by [`lines_of`].
pub fn note_wrong(text: &str) {
    lines_of(text).iter().for_each(|line| note!("{line}"));
}

/// The text as one line, or, if that is too long, the fact and below it the remedy, which follows the last colon.
fn lines_of(text: &str) -> Vec<String> {
    let is_long = text.chars().count() > LINE_MAX;
    match text.rsplit_once(": ").filter(|_| is_long) {
        Some((fact, remedy)) => vec![fact.into(), format!("  {remedy}")],
        None => vec![text.into()],
    }
}

/// The form of a command's result.
#[derive(Clone, Copy, PartialEq)]
pub enum Output {
    Human,
    /// `--json`: a document on standard output, also for an error.
    Json,
}

impl From<bool> for Output {
    fn from(json: bool) -> Output {
        if json { Output::Json } else { Output::Human }
    }
}

/// Reports a command's error and returns its exit code.
pub fn tell_error(error: &Error, output: Output) -> u8 {
    note!("{error}");
    let exit_code = error.exit_code();
    if output == Output::Json {
        say_json(&json!({ "error": error.to_string(), "exit_code": exit_code }));
    }
    exit_code
}

pub enum Answer {
    Yes,
    No,
}

/// Asks on the terminal; without a terminal the command needs `--yes`.
pub fn confirm(question: &str) -> Result<Answer> {
    if !io::stdin().is_terminal() {
        let message = "there is no terminal to ask at: add --yes if you mean it";
        return Err(Error::new(Kind::Usage, message));
    }
    let _ = write!(io::stderr(), "{} Type yes to go on: ", Plain(question));
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(|e| Error::io(e, "standard input"))?;
    Ok(if line.trim() == "yes" { Answer::Yes } else { Answer::No })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_for_a_line_has_its_remedy_below() {
        let short = "a file: it cannot be read: mend it";
        assert_eq!(lines_of(short), [short]);
        let (fact, remedy) = (format!("a file: it cannot be read {}", "x".repeat(140)), "mend it");
        assert_eq!(lines_of(&format!("{fact}: {remedy}")), [fact, format!("  {remedy}")]);
        let one = "x".repeat(200);
        assert_eq!(lines_of(&one), [one]);
    }
}
