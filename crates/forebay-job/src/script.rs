//! A script's head, cut into directives and words as Slurm cuts it: the comments up to the first line
//! that is no comment; empty lines do not count.

use crate::problem::{Problems, Span};
use crate::{DIRECTIVES_MAX, WORDS_MAX};

/// The prefix of a directive, which tells its addressee.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Prefix {
    /// `#DW`: DataWarp's and NNF's.
    Dw,
    /// `#BB`: Slurm's own, for persistent instances.
    Bb,
    /// `#BB_LUA`, or the value of `Directive=` in burst_buffer.conf.
    Lua,
    /// `#FB`: forebay's.
    Fb,
    /// `#SBATCH`.
    Sbatch,
}

/// A word of the script, without its quotes; each character with its column.
#[derive(Debug, Clone)]
pub struct Word {
    pub text: String,
    columns: Vec<u32>,
    line: u32,
    start: usize,
}

#[derive(Debug)]
pub struct Directive {
    pub prefix: Prefix,
    /// The place of the prefix.
    pub at: Span,
    pub words: Vec<Word>,
}

impl Word {
    /// The place of the characters from `from` to `to` (exclusive), or of the whole word if there are
    /// none.
    pub fn span(&self, from: usize, to: usize) -> Span {
        let all = self.columns.len();
        let (from, to) = if from < to && to <= all { (from, to) } else { (0, all) };
        let (first, last) = (self.columns[from], self.columns[to - 1]);
        Span { line: self.line, column: first, length: last - first + 1, start: self.start }
    }

    pub fn whole(&self) -> Span {
        self.span(0, self.columns.len())
    }
}

/// The most `#SBATCH` lines that are read.
const OF_SLURM_MAX: usize = 1024;

/// The directives of a script in order; reports the first directive beyond the limit.
pub fn directives(script: &str, own: Option<&str>, problems: &mut Problems) -> Vec<Directive> {
    let mut reader =
        Reader { own, problems, found: Vec::new(), of_slurm: 0, goes_on: None, dos: false };
    let mut body = None;
    let mut start = 0;
    for (number, line) in (1..).zip(script.split('\n')) {
        let line = Line { number, start, text: line };
        start += line.text.len() + 1;
        match body {
            None => {
                if let End::Here = reader.read(line) {
                    body = Some(number);
                }
            }
            Some(end) => reader.late(line, end),
        }
    }
    reader.close();
    reader.found
}

#[derive(Clone, Copy)]
struct Line<'s> {
    number: u32,
    start: usize,
    text: &'s str,
}

enum End {
    Here,
    NotYet,
}

/// A directive whose last line ends in a backslash.
struct GoesOn {
    index: usize,
    backslash: Span,
}

struct Reader<'a> {
    own: Option<&'a str>,
    problems: &'a mut Problems,
    found: Vec<Directive>,
    /// The number of Slurm's directives among them.
    of_slurm: usize,
    goes_on: Option<GoesOn>,
    /// Whether DOS line ends were reported.
    dos: bool,
}

impl Reader<'_> {
    fn read(&mut self, line: Line<'_>) -> End {
        if line.text.trim_end_matches('\r').is_empty() {
            return End::NotYet;
        }
        if let Some(goes_on) = self.goes_on.take() {
            return self.go_on(line, &goes_on);
        }
        if !line.text.starts_with('#') {
            return End::Here;
        }
        match self.prefix(line) {
            Some((prefix, length)) if self.has_room(prefix) => {
                let at = line.span(0, length);
                self.of_slurm += usize::from(prefix == Prefix::Sbatch);
                self.found.push(Directive { prefix, at, words: Vec::new() });
                self.take(line, length);
            }
            Some(_) => {}
            None => self.nearly(line),
        }
        End::NotYet
    }

    fn has_room(&self, prefix: Prefix) -> bool {
        match prefix {
            Prefix::Sbatch => self.of_slurm < OF_SLURM_MAX,
            _ => self.found.len() - self.of_slurm <= DIRECTIVES_MAX,
        }
    }

    /// Reads the line after a line that ended in a backslash.
    fn go_on(&mut self, line: Line<'_>, goes_on: &GoesOn) -> End {
        let own = self.found[goes_on.index].prefix;
        match (self.prefix(line), line.text.starts_with('#')) {
            (Some((prefix, length)), _) if prefix == own => self.take(line, length),
            (None, false) => {
                self.problems.warning(
                    goes_on.backslash,
                    "the next line does not begin with the directive's name",
                    "Slurm itself ends here: begin the next line with it, too",
                );
                self.take(line, 0);
            }
            _ => {
                self.problems.error(
                    goes_on.backslash,
                    "the directive goes on, and the next line is another",
                    "remove the backslash, or begin the next line with the directive's name",
                );
                return self.read(line);
            }
        }
        End::NotYet
    }

    fn take(&mut self, line: Line<'_>, skipped: usize) {
        let text = self.without_return(line);
        let trimmed = text.trim_end();
        let index = self.found.len() - 1;
        let (text, backslash) = match trimmed.strip_suffix('\\') {
            Some(text) if self.found[index].prefix != Prefix::Sbatch => (text, true),
            _ => (text, false),
        };
        if backslash {
            let column = text.chars().count();
            self.goes_on = Some(GoesOn { index, backslash: line.at(column, 1) });
        }
        let room = (WORDS_MAX + 1).saturating_sub(self.found[index].words.len());
        let mut words = words(Line { text, ..line }, skipped, room, self.problems);
        self.found[index].words.append(&mut words);
    }

    fn without_return<'s>(&mut self, line: Line<'s>) -> &'s str {
        let Some(text) = line.text.strip_suffix('\r') else { return line.text };
        if !std::mem::replace(&mut self.dos, true) {
            self.problems.error(
                line.span(0, line.text.len()),
                "the line ends as lines do under DOS",
                "Slurm refuses such scripts: dos2unix mends it",
            );
        }
        text
    }

    /// The prefix that a line begins with, and its length in bytes, which are ASCII.
    fn prefix(&self, line: Line<'_>) -> Option<(Prefix, usize)> {
        let rest = line.text.strip_prefix('#')?;
        let end = rest.find([' ', '\t', '\r', '\\']).unwrap_or(rest.len());
        let prefix = match &rest[..end] {
            "DW" => Prefix::Dw,
            "BB" => Prefix::Bb,
            "FB" => Prefix::Fb,
            "BB_LUA" => Prefix::Lua,
            "SBATCH" => Prefix::Sbatch,
            other if self.own == Some(other) && other.is_ascii() => Prefix::Lua,
            _ => return None,
        };
        Some((prefix, end + 1))
    }

    /// Reports a comment that was probably meant to be a directive.
    fn nearly(&mut self, line: Line<'_>) {
        let rest = line.text[1..].trim_start();
        let name = rest.split([' ', '\t']).next().unwrap_or_default();
        let verb = rest[name.len()..].split_whitespace().next().unwrap_or_default();
        let upper = name.to_ascii_uppercase();
        let known = matches!(upper.as_str(), "DW" | "BB" | "FB") && crate::verb_is_known(verb);
        let glued = ["DW", "BB", "FB"]
            .into_iter()
            .find(|p| name.strip_prefix(p).is_some_and(crate::verb_is_known));
        let (length, right) = match glued {
            _ if known => (line.text.len() - rest.len() + name.len(), format!("#{upper} {verb}")),
            Some(prefix) if line.text[1..] == *rest => {
                (1 + name.len(), format!("#{prefix} {}", &name[prefix.len()..]))
            }
            _ => return,
        };
        let right = format!("write {right}, with no blank behind the # and one before the verb");
        self.problems.warning(line.span(0, length), "this is a comment and no directive", right);
    }

    /// Reports directives behind the head, which are text for the shell.
    fn late(&mut self, line: Line<'_>, end: u32) {
        let Some((prefix, length)) = self.prefix(line) else { return };
        let rest = line.text[length.min(line.text.len())..].split_whitespace().next();
        if prefix == Prefix::Sbatch || !rest.is_some_and(crate::verb_is_known) {
            return;
        }
        self.problems.warning(
            line.span(0, length),
            "this directive is not read",
            format!("move it above line {end}, the first that is no comment"),
        );
    }

    fn close(&mut self) {
        if let Some(goes_on) = self.goes_on.take() {
            self.problems.error(
                goes_on.backslash,
                "the directive goes on, and the script ends",
                "remove the backslash",
            );
        }
    }
}

impl Line<'_> {
    /// The place of some characters.
    fn at(&self, column: usize, length: usize) -> Span {
        Span {
            line: self.number,
            column: column as u32 + 1,
            length: length as u32,
            start: self.start,
        }
    }

    /// The place of some bytes.
    fn span(&self, from: usize, to: usize) -> Span {
        let to = to.clamp(from + 1, self.text.len().max(from + 1));
        let count = |text: Option<&str>| text.map_or(1, |text| text.chars().count());
        self.at(count(self.text.get(..from)), count(self.text.get(from..to)).max(1))
    }
}

/// Splits a line into words at blanks; quotes keep blanks in a word, and no other character is special.
/// At most `room` words are read.
fn words(line: Line<'_>, skipped: usize, room: usize, problems: &mut Problems) -> Vec<Word> {
    let mut words = Vec::new();
    let mut word: Option<Word> = None;
    let mut quote: Option<(char, u32)> = None;
    // The skipped part is ASCII.
    let rest = line.text.get(skipped..).unwrap_or_default();
    let mut last = skipped as u32;
    for (column, c) in (skipped as u32 + 1..).zip(rest.chars()) {
        if words.len() == room {
            return words;
        }
        last = column;
        match (quote, c) {
            (Some((open, _)), c) if c == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some((c, column));
                word.get_or_insert_with(|| Word::empty(line));
            }
            (None, ' ' | '\t') => words.extend(word.take().filter(Word::is_something)),
            (_, c) => word.get_or_insert_with(|| Word::empty(line)).push(c, column),
        }
    }
    words.extend(word.filter(Word::is_something));
    if let Some((open, column)) = quote {
        let at = line.at(column as usize - 1, (last + 1 - column) as usize);
        problems.error(at, format!("no second {open} is on the line"), "close the quotes");
    }
    words
}

impl Word {
    fn empty(line: Line<'_>) -> Word {
        let columns = Vec::new();
        Word { text: String::new(), columns, line: line.number, start: line.start }
    }

    fn is_something(&self) -> bool {
        !self.columns.is_empty()
    }

    fn push(&mut self, c: char, column: u32) {
        self.text.push(c);
        self.columns.push(column);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(script: &str) -> (Vec<Directive>, Vec<crate::Problem>) {
        let mut problems = Problems::default();
        let found = directives(script, None, &mut problems);
        (found, problems.sorted().0)
    }

    fn texts(directive: &Directive) -> Vec<&str> {
        directive.words.iter().map(|word| word.text.as_str()).collect()
    }

    #[test]
    fn the_head_ends_at_the_first_line_that_is_no_comment() {
        let (found, problems) =
            read("#!/bin/sh\n#DW a\n\n# c\n#FB b\necho\n#DW swap 1GiB\n#DW x\n");
        assert_eq!(found.iter().map(|d| d.prefix).collect::<Vec<_>>(), [Prefix::Dw, Prefix::Fb]);
        assert_eq!(problems.len(), 1);
        assert_eq!((problems[0].line, problems[0].remedy.contains("above line 6")), (7, true));
    }

    #[test]
    fn a_line_goes_on_behind_a_backslash() {
        for (script, warnings) in [
            ("#DW jobdw \\\n#DW  capacity=1GB\necho", 0),
            ("#DW jobdw \\  \n  capacity=1GB\necho", 1),
        ] {
            let (found, problems) = read(script);
            assert_eq!(texts(&found[0]), ["jobdw", "capacity=1GB"], "{script}");
            assert_eq!(found[0].words[1].whole().line, 2);
            assert_eq!(problems.len(), warnings, "{problems:?}");
        }
        let (found, problems) = read("#DW jobdw \\\n#BB destroy_persistent name=a");
        assert_eq!((found.len(), problems.len()), (2, 1));
        let (_, problems) = read("#DW jobdw \\");
        assert_eq!((problems[0].line, problems[0].column), (1, 11));
    }

    #[test]
    fn quotes_keep_blanks() {
        let (found, problems) = read("#FB a source=\"/x y\"'z' ''");
        assert_eq!(texts(&found[0]), ["a", "source=/x yz"]);
        let at = found[0].words[1].span(7, 12);
        assert_eq!((at.column, at.length, problems.len()), (15, 7, 0));
        assert_eq!(read("#FB a 'b c").1[0].column, 7);
    }

    #[test]
    fn comments_that_were_meant_to_be_directives_are_told() {
        for (line, right) in [
            ("# DW jobdw capacity=1GB", "write #DW jobdw,"),
            ("#dw jobdw capacity=1GB", "write #DW jobdw,"),
            ("#DWjobdw capacity=1GB", "write #DW jobdw,"),
            ("#FBprivate", "write #FB private,"),
        ] {
            let (found, problems) = read(line);
            assert!(found.is_empty(), "{line}");
            assert!(problems[0].remedy.contains(right), "{line}: {problems:?}");
        }
        for line in ["##DW jobdw", "# DW is nice", "#", "# ", "#DWARF"] {
            assert!(read(line).1.is_empty(), "{line}");
        }
    }

    #[test]
    fn dos_lines_are_told() {
        let (found, problems) = read("#!/bin/sh\r\n\r\n#DW swap 1GiB\r\n");
        assert_eq!(texts(&found[0]), ["swap", "1GiB"]);
        assert!(problems[0].remedy.contains("dos2unix"));
    }
}
