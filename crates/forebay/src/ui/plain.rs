//! Text in one line without control characters, whatever names are in it.

use std::fmt::{self, Display, Formatter, Write};

/// Shows its value with control characters, and characters that change the direction of writing,
/// escaped as Rust writes them.
pub struct Plain<T>(pub T);

impl<T: Display> Display for Plain<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'f>(&'a mut Formatter<'f>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.find(commands) {
            let (before, from) = rest.split_at(at);
            let char = from.chars().next().expect("one was found");
            self.0.write_str(before)?;
            Display::fmt(&char.escape_default(), self.0)?;
            rest = &from[char.len_utf8()..];
        }
        self.0.write_str(rest)
    }
}

/// Escapes control characters that JSON leaves in its strings.
pub fn json(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\n' => plain.push(char),
            _ if commands(char) => plain.push_str(&format!("\\u{:04x}", u32::from(char))),
            _ => plain.push(char),
        }
    }
    plain
}

/// Whether a character controls the terminal instead of being shown.
pub fn commands(char: char) -> bool {
    // Marks and overrides of direction, and separators of lines and paragraphs.
    let unseen = matches!(char, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}');
    char.is_control() || unseen || matches!(char, '\u{061c}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_commands_a_terminal_is_escaped_and_all_else_as_it_is() {
        let name = "a\nb\x1b[2Jc\u{9b}d\x7f\u{202e}\u{e4}\u{65e5}";
        assert_eq!(
            Plain(name).to_string(),
            "a\\nb\\u{1b}[2Jc\\u{9b}d\\u{7f}\\u{202e}\u{e4}\u{65e5}"
        );
        assert_eq!(Plain(format_args!("{}: {}", 1, "x\r")).to_string(), "1: x\\r");
    }

    #[test]
    fn json_that_is_printed_is_the_same_json_and_commands_nothing() {
        let value = serde_json::json!({ "path": "a\nb\u{9b}c\x7f\u{202e}\u{e4}\"\\" });
        let text = serde_json::to_string_pretty(&value).unwrap();
        let plain = json(&text);
        assert!(!plain.chars().any(|char| char != '\n' && commands(char)), "{plain:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&plain).unwrap(), value);
    }
}
