//! Texts laid out for a terminal of eighty columns, or of the width it has.

/// The assumed width of a terminal that does not report it.
pub const COLUMNS: usize = 80;

/// Lines of at most `columns`, broken between words; a word that is longer stays whole. All but the
/// first begin with `hang` blanks.
pub fn wrapped(text: &str, columns: usize, hang: usize) -> String {
    let mut out = String::new();
    let mut at = 0;
    for word in text.split_whitespace() {
        let len = word.chars().count();
        if at > 0 && at + 1 + len > columns {
            out += &format!("\n{:hang$}", "");
            at = hang;
        } else if at > 0 {
            out.push(' ');
            at += 1;
        }
        out += word;
        at += len;
    }
    out
}

/// Paragraphs wrapped anew, wherever their lines were broken; indented lines, which are commands, are
/// laid out by [`continued`].
pub fn laid_out(text: &str, columns: usize) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut paragraph = String::new();
    for line in text.trim_end().lines().chain([""]) {
        if !line.is_empty() && !line.starts_with(' ') {
            paragraph += line;
            paragraph.push(' ');
            continue;
        }
        if !paragraph.is_empty() {
            out.push(wrapped(&std::mem::take(&mut paragraph), columns, 0));
        }
        out.push(continued(line, columns));
    }
    out.pop();
    out.join("\n")
}

/// A command line over several lines, as a shell takes it.
pub fn continued(line: &str, columns: usize) -> String {
    if line.chars().count() <= columns {
        return line.to_owned();
    }
    const HANG: usize = 6;
    let indent = line.len() - line.trim_start().len();
    let broken = wrapped(line.trim_start(), columns - indent - " \\".len(), HANG - indent);
    let broken = broken.replace('\n', &format!(" \\\n{:indent$}", ""));
    format!("{:indent$}{broken}", "")
}

/// The part of a line that fits.
pub fn clipped(line: &str, columns: usize) -> String {
    line.chars().take(columns).collect()
}

/// The width of the terminal behind standard error.
pub fn columns_of_stderr() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stderr()).ok();
    size.map(|size| usize::from(size.ws_col)).filter(|&columns| columns > 0).unwrap_or(COLUMNS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words_and_hang() {
        assert_eq!(wrapped("one two  three", 7, 2), "one two\n  three");
        assert_eq!(wrapped("unbreakable x", 4, 0), "unbreakable\nx");
        assert_eq!(wrapped("", 4, 0), "");
    }

    #[test]
    fn paragraphs_are_wrapped_anew_and_commands_stay() {
        let text = "Examples:\n  a b\n  c\n\nOne two\nthree four.\n\nFive.";
        let laid = "Examples:\n  a b\n  c\n\nOne two three\nfour.\n\nFive.";
        assert_eq!(laid_out(text, 13), laid);
    }

    #[test]
    fn a_long_command_goes_on_behind_a_backslash() {
        assert_eq!(continued("  ls -l a", 20), "  ls -l a");
        let long = continued("  forebay bench fill /mnt/fast --capacity 8g", 31);
        assert_eq!(long, "  forebay bench fill \\\n      /mnt/fast --capacity 8g");
        assert!(long.lines().all(|line| line.len() <= 31), "{long}");
    }
}
