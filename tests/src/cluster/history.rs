//! The operations of programs on several nodes and their results, with times, and the check whether one
//! order of events explains them.
//!
//! The checked rule: an open that begins after a write has returned sees that write or a newer one. A
//! failed operation may have happened, at any time after it began.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// One clock for all nodes, which are on one machine.
pub struct Clock(Instant);

/// The beginning and the end of an operation; without an end if it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub began: Duration,
    pub ended: Option<Duration>,
}

impl Span {
    fn end(self) -> Duration {
        self.ended.unwrap_or(Duration::MAX)
    }

    /// Whether this operation was over before the other began.
    fn precedes(self, other: Span) -> bool {
        self.end() < other.began
    }
}

impl Clock {
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    pub fn now(&self) -> Duration {
        self.0.elapsed()
    }

    /// Runs an operation and notes its span.
    pub fn time<T, E>(&self, work: impl FnOnce() -> Result<T, E>) -> (Span, Result<T, E>) {
        let began = self.now();
        let result = work();
        let ended = result.is_ok().then(|| self.now());
        (Span { began, ended }, result)
    }
}

/// Files that hold one value each, written whole. Value 0 is the initial one.
#[derive(Default)]
pub struct Registers(Mutex<Vec<Register>>);

#[derive(Default)]
struct Register {
    writes: BTreeMap<u64, Span>,
    reads: Vec<(Span, u64, String)>,
}

impl Registers {
    fn with(&self, file: usize, work: impl FnOnce(&mut Register)) {
        let mut all = self.0.lock().expect("no panic inside");
        if all.len() <= file {
            all.resize_with(file + 1, Register::default);
        }
        work(&mut all[file]);
    }

    pub fn wrote(&self, file: usize, value: u64, span: Span) {
        self.with(file, |register| {
            register.writes.insert(value, span);
        });
    }

    /// Notes a read; `who` is for the message.
    pub fn read(&self, file: usize, value: u64, span: Span, who: &str) {
        self.with(file, |register| register.reads.push((span, value, who.into())));
    }

    /// The files that a value was written to.
    pub fn files_of(&self, value: u64) -> Vec<usize> {
        let all = self.0.lock().expect("no panic inside");
        let has = |(_, register): &(usize, &Register)| register.writes.contains_key(&value);
        all.iter().enumerate().filter(has).map(|(file, _)| file).collect()
    }

    /// The numbers of successful reads and writes.
    pub fn count(&self) -> (usize, usize) {
        let all = self.0.lock().expect("no panic inside");
        let ended = |register: &Register| {
            register.writes.values().filter(|span| span.ended.is_some()).count()
        };
        (all.iter().map(|one| one.reads.len()).sum(), all.iter().map(ended).sum())
    }

    /// The reads that no order of events explains. A name may be `slack` old.
    pub fn wrong(&self, slack: Duration) -> Vec<String> {
        let all = self.0.lock().expect("no panic inside");
        let each = all.iter().enumerate();
        each.flat_map(|(file, register)| {
            register.wrong(slack).map(move |why| format!("file {file}: {why}"))
        })
        .collect()
    }
}

impl Register {
    fn wrong(&self, slack: Duration) -> impl Iterator<Item = String> + '_ {
        self.reads.iter().filter_map(move |(span, value, who)| {
            let why = self.misfit(*span, *value, slack)?;
            Some(format!("{who} read {value} at {span:?}: {why}"))
        })
    }

    fn misfit(&self, read: Span, value: u64, slack: Duration) -> Option<String> {
        let before = Span { began: Duration::ZERO, ended: Some(Duration::ZERO) };
        let written = match value {
            0 => before,
            _ => match self.writes.get(&value) {
                None => return Some("nobody has written that".into()),
                Some(span) => *span,
            },
        };
        if read.precedes(written) {
            return Some(format!("it is written later, at {written:?}"));
        }
        let seen = Span { began: read.began.saturating_sub(slack), ..read };
        let newer = |(_, span): &(&u64, &Span)| written.precedes(**span) && span.precedes(seen);
        let (newer, at) = self.writes.iter().find(newer)?;
        Some(format!("{newer} replaced it before, at {at:?}; it was written at {written:?}"))
    }
}

/// A file to which lines are appended. A line is named by its writer and its number.
#[derive(Default)]
pub struct Appends(Mutex<AppendLog>);

#[derive(Default)]
struct AppendLog {
    lines: BTreeMap<String, Span>,
    wrong: Vec<String>,
    reads: usize,
}

impl Appends {
    pub fn appended(&self, line: &str, span: Span) {
        self.0.lock().expect("no panic inside").lines.insert(line.into(), span);
    }

    /// Notes a line before it is written: reads meanwhile may have it.
    pub fn begins(&self, line: &str, at: Duration) {
        self.appended(line, Span { began: at, ended: None });
    }

    /// Checks the bytes of a read whose open began at `began`.
    pub fn read(&self, began: Duration, bytes: &[u8], who: &str) {
        let mut log = self.0.lock().expect("no panic inside");
        let wrong = log.misfits(began, bytes);
        log.wrong.extend(wrong.into_iter().take(5).map(|why| format!("{who} at {began:?}: {why}")));
        log.reads += 1;
    }

    pub fn wrong(&self) -> Vec<String> {
        self.0.lock().expect("no panic inside").wrong.clone()
    }

    /// The numbers of reads, and of lines whose append succeeded.
    pub fn count(&self) -> (usize, usize) {
        let log = self.0.lock().expect("no panic inside");
        (log.reads, log.lines.values().filter(|span| span.ended.is_some()).count())
    }
}

impl AppendLog {
    fn misfits(&self, began: Duration, bytes: &[u8]) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut found = BTreeSet::new();
        let text = String::from_utf8_lossy(bytes);
        for line in text.split_inclusive('\n') {
            match line.strip_suffix('\n') {
                Some(whole) if self.lines.contains_key(whole) => {
                    if !found.insert(whole) {
                        wrong.push(format!("{whole:?} is there twice"));
                    }
                }
                _ => wrong.push(format!(
                    "{:?} is no line that was appended",
                    line.get(..60).unwrap_or(line)
                )),
            }
        }
        for (line, span) in &self.lines {
            if span.end() < began && !found.contains(line.as_str()) {
                wrong.push(format!("{line:?}, appended at {span:?}, is not there"));
            }
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Duration = Duration::ZERO;

    fn span(began: u64, ended: u64) -> Span {
        let at = Duration::from_secs;
        Span { began: at(began), ended: (ended > 0).then(|| at(ended)) }
    }

    fn wrong(writes: &[(u64, Span)], read: (u64, Span)) -> bool {
        let registers = Registers::default();
        writes.iter().for_each(|(value, span)| registers.wrote(0, *value, *span));
        registers.read(0, read.0, read.1, "n1");
        !registers.wrong(NONE).is_empty()
    }

    #[test]
    fn a_read_must_see_the_last_write_before_it_or_one_beside_it() {
        let writes = [(1, span(1, 2)), (2, span(3, 4)), (3, span(6, 9))];
        assert!(!wrong(&writes, (2, span(5, 6))), "the last one before it");
        assert!(wrong(&writes, (1, span(5, 6))), "an older one");
        assert!(wrong(&writes, (0, span(5, 6))), "what was there before all");
        for value in [2, 3] {
            assert!(
                !wrong(&writes, (value, span(7, 8))),
                "a write that goes on may be seen or not"
            );
        }
        assert!(wrong(&writes, (3, span(5, 5))), "one that has not begun");
        assert!(wrong(&writes, (9, span(5, 6))), "one that there was not");
        assert!(!wrong(&[], (0, span(1, 2))));
    }

    #[test]
    fn a_write_that_failed_may_have_happened_late() {
        let writes = [(1, span(1, 0)), (2, span(3, 4))];
        for value in [1, 2] {
            assert!(!wrong(&writes, (value, span(5, 6))));
        }
        assert!(wrong(&writes, (0, span(5, 6))), "the one that did not fail");
    }

    #[test]
    fn lines_are_whole_and_once_and_not_lost() {
        let judge = |bytes: &[u8], began| {
            let log = Appends::default();
            log.appended("a 1", span(1, 2));
            log.appended("b 1", span(1, 8));
            log.appended("a 2", span(3, 0));
            log.read(Duration::from_secs(began), bytes, "n1");
            log.wrong().len()
        };
        assert_eq!(judge(b"a 1\n", 5), 0, "one goes on, one failed");
        assert_eq!(judge(b"b 1\na 1\na 2\n", 5), 0);
        assert_eq!(judge(b"b 1\n", 5), 1, "lost");
        assert_eq!(judge(b"a 1\n", 9), 1, "lost");
        assert_eq!(judge(b"a 1\na 1\n", 5), 1, "doubled");
        assert_eq!(judge(b"a 1\na 2\na 2\n", 5), 1, "doubled, after a failure");
        assert_eq!(judge(b"a 1\nb", 5), 1, "torn");
        assert_eq!(judge(b"a b 1\n1\n", 5), 3, "mixed");
    }
}
