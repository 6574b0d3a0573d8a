//! The problems of a script, with their places and remedies.

use std::fmt::Write;

use serde::Serialize;

/// The problems that are kept; more are only counted. A text with this many mistakes is no job
/// script.
pub const PROBLEMS_MAX: usize = 200;

/// Characters of a line that are shown around a problem.
const SHOWN_MAX: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The job is refused.
    Error,
    /// The job may not do what its owner thinks.
    Warning,
    /// Good to know.
    Remark,
}

impl Severity {
    pub fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Remark => "remark",
        }
    }
}

/// The place of some characters in one line. Never empty, and never beyond the line's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
    /// In characters.
    pub length: u32,
    /// The offset in bytes of the line's beginning in the script.
    pub start: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub severity: Severity,
    pub line: u32,
    pub column: u32,
    pub length: u32,
    pub text: String,
    /// The text to write instead; may be empty.
    pub remedy: String,
    #[serde(skip)]
    start: usize,
}

impl Problem {
    /// A problem of a directive as a whole, found by a check beyond its text.
    pub fn of_line(
        script: &str,
        line: u32,
        severity: Severity,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Problem {
        let before = script.split('\n').take(line.saturating_sub(1) as usize);
        let start: usize = before.map(|line| line.len() + 1).sum();
        let found =
            script.get(start..).and_then(|rest| rest.split('\n').next()).unwrap_or_default();
        let length = found.trim_end().chars().count().max(1) as u32;
        Problem {
            severity,
            line,
            column: 1,
            length,
            text: text.into(),
            remedy: remedy.into(),
            start,
        }
    }

    /// The problem in one line, without the place.
    pub fn summary(&self) -> String {
        let mut line = format!("line {}: {}", self.line, self.text);
        if !self.remedy.is_empty() {
            let _ = write!(line, "; {}", self.remedy);
        }
        line
    }

    /// The problem with its line and a caret under the place. Several lines, without a line break at
    /// the end; characters that could command a terminal are shown as `?`.
    pub fn shown(&self, file: &str, script: &str) -> String {
        let place = format!("{file}:{}:{}", self.line, self.column);
        let mut shown = format!("{place}: {}: {}", self.severity.name(), plain(&self.text));
        if let Some((line, column, length)) = self.excerpt(script) {
            let (blanks, carets) = (" ".repeat(column), "^".repeat(length));
            let _ = write!(shown, "\n    {line}\n    {blanks}{carets}");
        }
        if !self.remedy.is_empty() {
            let _ = write!(shown, "\n    {}", plain(&self.remedy));
        }
        shown
    }

    /// The part of the line around the place, the index of the place's first character in it, and the
    /// number of its characters in it.
    fn excerpt(&self, script: &str) -> Option<(String, usize, usize)> {
        let line = script.get(self.start..)?.lines().next()?;
        let place = (self.column as usize).checked_sub(1)?;
        let all = line.char_indices().nth(SHOWN_MAX).is_none();
        let skipped = if all { 0 } else { place.saturating_sub(SHOWN_MAX / 2) };
        let window: String = line.chars().skip(skipped).take(SHOWN_MAX).collect();
        let column = place - skipped;
        let length = (self.length as usize).min(window.chars().count().saturating_sub(column));
        (length > 0).then(|| (plain(&window), column, length))
    }
}

/// Replaces each unsafe character by one other, so that columns stay.
fn plain(text: &str) -> String {
    let unseen = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}');
    let turns =
        |c: char| matches!(c, '\u{061c}' | '\u{2066}'..='\u{2069}' | '\u{200b}'..='\u{200d}');
    let shown = |c: char| match c {
        '\t' => ' ',
        c if c.is_control() || unseen(c) || turns(c) => '?',
        c => c,
    };
    text.chars().map(shown).collect()
}

/// Gathers problems; at most [`PROBLEMS_MAX`] are kept.
#[derive(Debug, Default)]
pub struct Problems {
    kept: Vec<Problem>,
    left_out: usize,
    errors: usize,
}

impl Problems {
    pub fn error(&mut self, at: Span, text: impl Into<String>, remedy: impl Into<String>) {
        self.errors += 1;
        self.add(Severity::Error, at, text.into(), remedy.into());
    }

    pub fn warning(&mut self, at: Span, text: impl Into<String>, remedy: impl Into<String>) {
        self.add(Severity::Warning, at, text.into(), remedy.into());
    }

    pub fn remark(&mut self, at: Span, text: impl Into<String>, remedy: impl Into<String>) {
        self.add(Severity::Remark, at, text.into(), remedy.into());
    }

    pub fn errors(&self) -> usize {
        self.errors
    }

    fn add(&mut self, severity: Severity, at: Span, text: String, remedy: String) {
        let Span { line, column, length, start } = at;
        let problem = Problem { severity, line, column, length, text, remedy, start };
        if self.kept.len() < PROBLEMS_MAX {
            self.kept.push(problem);
            return;
        }
        self.left_out += 1;
        // A mistake matters more than an earlier remark.
        if severity == Severity::Error
            && let Some(other) = self.kept.iter_mut().find(|p| p.severity != Severity::Error)
        {
            *other = problem;
        }
    }

    /// The problems by line and column, and the number of those left out.
    pub fn sorted(mut self) -> (Vec<Problem>, usize) {
        self.kept.sort_by_key(|p| (p.line, p.column, p.severity));
        (self.kept, self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(script: &str, column: u32, length: u32) -> String {
        let mut problems = Problems::default();
        problems.error(Span { line: 1, column, length, start: 0 }, "wrong", "write right");
        problems.sorted().0[0].shown("job.sh", script)
    }

    #[test]
    fn the_caret_stands_below_the_word() {
        let shown = one("#DW\tjobdw capcity=1GB", 11, 7);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[0], "job.sh:1:11: error: wrong");
        assert_eq!(lines[1], "    #DW jobdw capcity=1GB");
        assert_eq!(lines[2], "              ^^^^^^^");
        assert_eq!(lines[3], "    write right");
    }

    #[test]
    fn a_long_line_is_shown_around_the_place_and_commands_no_terminal() {
        let script = format!("#DW {} \u{1b}[2J {}", "x".repeat(5000), "y".repeat(5000));
        let shown = one(&script, 5006, 4);
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[1].contains("?[2J") && lines[1].len() <= 4 + SHOWN_MAX, "{shown}");
        assert_eq!(lines[1].find("?[2J"), lines[2].find("^^^^"));
        assert!(!shown.contains('\u{1b}'));
    }

    #[test]
    fn a_directive_is_found_by_its_line() {
        let script = "\n#DW a\n\n#FB b \r\nx";
        for (line, marked) in [(2, "#DW a"), (4, "#FB b")] {
            let problem = Problem::of_line(script, line, Severity::Warning, "t", "");
            let shown = problem.shown("f", script);
            let lines: Vec<&str> = shown.lines().collect();
            assert_eq!(lines[1].trim_end_matches([' ', '?']).trim_start(), marked, "{shown}");
            assert_eq!(lines[2].trim_start().len(), marked.len());
        }
    }

    #[test]
    fn mistakes_push_out_remarks_when_there_are_too_many() {
        let at = Span { line: 1, column: 1, length: 1, start: 0 };
        let mut problems = Problems::default();
        (0..PROBLEMS_MAX).for_each(|_| problems.remark(at, "r", ""));
        problems.error(at, "e", "");
        let (kept, left_out) = problems.sorted();
        assert_eq!((kept.len(), left_out), (PROBLEMS_MAX, 1));
        assert!(kept.iter().any(|p| p.severity == Severity::Error));
    }
}
