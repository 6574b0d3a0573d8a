//! What people see: progress on standard error, aligned tables, questions.

pub mod progress;
pub mod table;
pub mod top;

use std::io::{self, BufRead, IsTerminal, Write};

use forebay_backing::{Error, Kind, Result};
use serde::Serialize;

/// Prints a line to standard output. A reader that has gone (`| head`) is no error worth a panic.
pub fn say(line: impl std::fmt::Display) {
    let _ = writeln!(io::stdout().lock(), "{line}");
}

pub fn say_json(value: &impl Serialize) {
    let text = serde_json::to_string_pretty(value).expect("wire types hold strings and numbers");
    say(text);
}

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
    eprint!("{question} Type yes to go on: ");
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(|e| Error::io(e, "standard input"))?;
    Ok(if line.trim() == "yes" { Answer::Yes } else { Answer::No })
}
