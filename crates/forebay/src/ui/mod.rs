//! What people see: progress on standard error, aligned tables, questions.

pub mod members;
pub mod plain;
pub mod progress;
pub mod table;
pub mod top;

use std::io::{self, BufRead, IsTerminal, Write};

use forebay_backing::{Error, Kind, Result};
use plain::Plain;
use serde::Serialize;

/// Prints a line to standard output. A reader that has gone (`| head`) is no error worth a panic.
pub fn say(line: impl std::fmt::Display) {
    let _ = writeln!(io::stdout().lock(), "{}", Plain(line));
}

/// Prints lines that are ours from end to end: no name of anybody's is in them.
pub fn say_text(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}

pub fn say_json(value: &impl Serialize) {
    let text = serde_json::to_string_pretty(value).expect("wire types hold strings and numbers");
    let _ = writeln!(io::stdout().lock(), "{}", plain::json(&text));
}

/// Tells the person at the terminal something beside the result, in one line.
#[expect(clippy::print_stderr, reason = "the one place that does")]
pub fn tell_aside(line: std::fmt::Arguments<'_>) {
    eprintln!("forebay: {}", Plain(line));
}

/// [`tell_aside`] with the arguments of `format!`.
macro_rules! note {
    ($($arg:tt)*) => { $crate::ui::tell_aside(format_args!($($arg)*)) };
}
pub(crate) use note;

pub enum Answer {
    Yes,
    No,
}

/// Asks on the terminal; without one, only `--yes` will do.
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
