//! Paths in directives: `$DW_JOB_...` and similar variables, `%`-symbols, and forbidden parts of a
//! path.
//!
//! A directive is read without a shell, so the variables of instances are known words, and other
//! variables mean nothing. No path contains `..`, a line break or another control character.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::Job;
use crate::fields::{Field, clip, near};
use crate::plan::Of;
use crate::problem::{Problems, Span};

/// The kernel's limits.
const PATH_MAX: usize = 4095;
const NAME_MAX: usize = 255;

const SYMBOLS: &str = "there are %j (job), %A (array), %a (index in it), %u (user), %x (job's name), \
    %d (directory of submission), %n (node, in stage-outs) and %% (a percent sign)";

/// The variables that name instances.
#[derive(Debug, Default)]
pub struct Symbols {
    known: BTreeMap<String, Of>,
    /// A directive that gives variables was refused: a missing variable is no second mistake.
    lacks: bool,
}

/// The meaning of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meant {
    pub place: Place,
    pub end: End,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// An absolute path. Where `%n` may stand, `%n` and `%%` are left, for [`crate::plan::at_node`].
    Outside(PathBuf),
    /// An instance, and the path below its root.
    Inside(Of, PathBuf),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Slash,
    Name,
}

/// Whether `%n` may stand in a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PerNode {
    May,
    MayNot,
}

/// Variables that people write in directives, and the remedy for each.
const OF_THE_SHELL: &[(&str, &str)] = &[
    ("SLURM_JOB_ID", "%j"),
    ("SLURM_JOBID", "%j"),
    ("SLURM_ARRAY_JOB_ID", "%A"),
    ("SLURM_ARRAY_TASK_ID", "%a"),
    ("SLURM_JOB_NAME", "%x"),
    ("SLURM_JOB_USER", "%u"),
    ("USER", "%u"),
    ("LOGNAME", "%u"),
    ("SLURM_SUBMIT_DIR", "%d"),
    ("PWD", "%d"),
    ("SLURMD_NODENAME", "%n"),
    ("HOSTNAME", "%n"),
];

impl Symbols {
    pub fn add(&mut self, variable: &str, of: &Of) {
        self.known.insert(variable.into(), of.clone());
    }

    pub fn has(&self, variable: &str) -> bool {
        self.known.contains_key(variable)
    }

    pub fn count(&self) -> usize {
        self.known.len()
    }

    pub fn lacks_some(&mut self) {
        self.lacks = true;
    }

    /// A variable to give as an example.
    pub fn example(&self) -> &str {
        self.known.keys().next().map_or("DW_JOB_STRIPED", String::as_str)
    }
}

/// The context for reading paths.
pub struct Paths<'a> {
    pub symbols: &'a Symbols,
    pub job: &'a Job<'a>,
}

impl Paths<'_> {
    /// Reads a path; `None` if a problem was reported.
    pub fn read(
        &self,
        field: &Field<'_>,
        per_node: PerNode,
        problems: &mut Problems,
    ) -> Option<Meant> {
        let value = field.value;
        let at = require_plain(field, problems)?;
        let (of, skipped) = match value.starts_with('$') {
            true => self.instance(field, problems).map(|(of, skipped)| (Some(of), skipped))?,
            false => (None, 0),
        };
        let rest = &value[skipped..];
        require_no_variable(field, skipped, problems)?;
        let per_node = if of.is_some() { PerNode::MayNot } else { per_node };
        let path = self.replaced(field, skipped, per_node, problems)?;
        if of.is_none() && !path.starts_with('/') && !rest.starts_with("%d") {
            let remedy = match rest.starts_with('~') {
                true => "write the home directory: ~ is of the shell",
                false => {
                    "write the whole path, from / on; %d stands for the directory of submission"
                }
            };
            problems.error(at, format!("{} is no absolute path", clip(value)), remedy);
            return None;
        }
        require_tidy(at, &path, problems)?;
        let end = if path.is_empty() || path.ends_with('/') { End::Slash } else { End::Name };
        let place = match of {
            Some(of) => Place::Inside(of, tidy(&path)),
            None => Place::Outside(if path.starts_with('/') {
                PathBuf::from("/").join(tidy(&path))
            } else {
                tidy(&path)
            }),
        };
        Some(Meant { place, end })
    }

    /// The instance that a path begins with, and the number of bytes that name it.
    fn instance(&self, field: &Field<'_>, problems: &mut Problems) -> Option<(Of, usize)> {
        let value = field.value;
        let Some((name, skipped)) = self.variable(value) else {
            problems.error(field.at(), "no variable is behind the $", "write ${NAME} or $NAME");
            return None;
        };
        let at = field.part(0, value[..skipped].chars().count());
        let Some(of) = self.symbols.known.get(name) else {
            self.tell_unknown(name, &value[1..], at, problems);
            return None;
        };
        // Values of Cray's variables end in a slash.
        let rest = &value[skipped..];
        if !name.starts_with("DW_") && !rest.is_empty() && !rest.starts_with('/') {
            let remedy = format!("write ${name}/{}", clip(rest));
            problems.error(at, "a slash is missing behind the variable", remedy);
            return None;
        }
        Some((of.clone(), skipped))
    }

    /// The name in `${NAME}`, or the longest known name that follows the `$`. Names of persistent
    /// instances have `-` and `.` in them, which no shell variable has.
    fn variable<'v>(&self, value: &'v str) -> Option<(&'v str, usize)> {
        let rest = value.strip_prefix('$')?;
        if let Some(braced) = rest.strip_prefix('{') {
            let end = braced.find('}')?;
            return (end > 0).then(|| (&braced[..end], end + 3));
        }
        let run = |more: &[char]| {
            rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || more.contains(&c)))
                .unwrap_or(rest.len())
        };
        let (wide, end) = (run(&['-', '.']), run(&[]));
        let end = if self.symbols.has(&rest[..wide]) { wide } else { end };
        (end > 0).then(|| (&rest[..end], end + 1))
    }

    /// Reports an unknown variable; `written` is everything after the `$`.
    fn tell_unknown(&self, name: &str, written: &str, at: Span, problems: &mut Problems) {
        let known = || self.symbols.known.keys().map(String::as_str);
        let longer =
            known().filter(|known| name.starts_with(known)).max_by_key(|known| known.len());
        let of_ours = name.starts_with("DW_") || name.starts_with("FB_");
        let text = format!("${} is no variable of the job", clip(name));
        let wide = as_variable(written.split('/').next().unwrap_or_default());
        let remedy = match (longer, near(name, known())) {
            _ if self.symbols.has(&wide) => format!("write ${wide}: variables have _ for -"),
            (Some(known), _) => {
                let rest = clip(&name[known.len()..]);
                format!("write ${known}/{rest} or ${{{known}}}{rest}")
            }
            (None, Some(near)) => format!("did you mean ${near}?"),
            (None, None) if of_ours && self.symbols.lacks => return,
            (None, None) if of_ours => match self.symbols.known.is_empty() {
                true => declare(name),
                false => {
                    let all: Vec<String> = known().take(8).map(|name| format!("${name}")).collect();
                    format!("the job has {}; {}", all.join(", "), declare(name))
                }
            },
            (None, None) => return of_the_shell(name, at, problems),
        };
        problems.error(at, text, remedy);
    }

    /// The path with the known `%`-symbols replaced. Where `%n` may stand, `%n` and `%%` are left.
    fn replaced(
        &self,
        field: &Field<'_>,
        skipped: usize,
        per_node: PerNode,
        problems: &mut Problems,
    ) -> Option<String> {
        let mut path = String::with_capacity(field.value.len());
        let mut chars =
            (field.value[..skipped].chars().count()..).zip(field.value[skipped..].chars());
        while let Some((column, c)) = chars.next() {
            if c != '%' {
                path.push(c);
                continue;
            }
            let symbol = chars.next().map(|(_, symbol)| symbol);
            let at = field.part(column, column + 1 + usize::from(symbol.is_some()));
            match (symbol, per_node) {
                (Some('%'), PerNode::May) => path.push_str("%%"),
                (Some('%'), PerNode::MayNot) => path.push('%'),
                (Some('n'), PerNode::May) => path.push_str("%n"),
                (Some('n'), PerNode::MayNot) => {
                    let remedy = "it stands in destinations of stage-outs, where files of several nodes meet";
                    problems.error(at, "%n means nothing here", remedy);
                    return None;
                }
                (Some(symbol), _) => match self.value_of(symbol, at, problems).ok()? {
                    None => path.extend(['%', symbol]),
                    Some(value) => match per_node {
                        PerNode::May => path.push_str(&value.replace('%', "%%")),
                        PerNode::MayNot => path.push_str(value),
                    },
                },
                (None, _) => {
                    problems.error(at, "a % is alone", "write %% for a percent sign");
                    return None;
                }
            }
        }
        Some(path)
    }

    /// The value of a symbol; `Ok(None)` if it is not known yet.
    fn value_of(
        &self,
        symbol: char,
        at: Span,
        problems: &mut Problems,
    ) -> Result<Option<&str>, ()> {
        let job = self.job;
        let value = match symbol {
            'j' => job.id,
            'A' => job.array.map(|(master, _)| master).or(job.id),
            'a' if job.id.is_some() && job.array.is_none() => {
                let text = "%a is the index in an array, and the job is in none";
                problems.error(at, text, "leave it away");
                return Err(());
            }
            'a' => job.array.map(|(_, index)| index),
            'u' => job.user,
            'x' => job.name,
            'd' => job.workdir,
            _ => {
                problems.error(at, format!("%{symbol} stands for nothing"), SYMBOLS);
                return Err(());
            }
        };
        let Some(text) = value else {
            // A plan is final once the job has an id.
            if job.id.is_some() {
                let text = format!("what %{symbol} stands for is not known here");
                problems.error(at, text, "leave it away, or write what is meant");
                return Err(());
            }
            return Ok(None);
        };
        let parts = symbol != 'd' && text.contains('/');
        if parts || text.is_empty() || text.contains(char::is_control) {
            let text = format!("%{symbol} is {:?} here, which is no name of a file", clip(text));
            problems.error(at, text, "write the name that is meant");
            return Err(());
        }
        Ok(Some(text))
    }
}

/// The directive that gives a variable, by the variable's name.
fn declare(name: &str) -> String {
    let of = |prefix: &str| name.strip_prefix(prefix);
    match name {
        "DW_JOB_STRIPED" => "#DW jobdw access_mode=striped capacity=SIZE gives it".into(),
        "DW_JOB_PRIVATE" => "#DW jobdw access_mode=private capacity=SIZE gives it".into(),
        "DW_JOB_STRIPED_CACHE" => "#DW jobdw type=cache pfs=DIR capacity=SIZE gives it".into(),
        _ => match (
            of("DW_PERSISTENT_STRIPED_").or(of("DW_PERSISTENT_")),
            of("FB_PERSISTENT_"),
            of("FB_JOB_"),
        ) {
            (Some(name), ..) => format!("#DW persistentdw name={} gives it", clip(name)),
            (_, Some(name), _) => format!("#FB use name={} gives it", clip(&name.to_lowercase())),
            (.., Some(name)) => {
                format!("#FB private capacity=SIZE name={} gives it", clip(&name.to_lowercase()))
            }
            _ => "#DW jobdw, #DW persistentdw, #FB private, cache and use give variables".into(),
        },
    }
}

fn of_the_shell(name: &str, at: Span, problems: &mut Problems) {
    let remedy = match OF_THE_SHELL.iter().find(|(variable, _)| *variable == name) {
        Some((_, symbol)) => format!("write {symbol}"),
        None => "write the value; %u, %j, %a, %x and %d stand for user, job, index in the array, job's name and directory".into(),
    };
    let text =
        format!("${} is not replaced: directives are read before there is a shell", clip(name));
    problems.error(at, text, remedy);
}

/// The place of the value, if it can be a path at all.
fn require_plain(field: &Field<'_>, problems: &mut Problems) -> Option<Span> {
    let mut chars = field.value.chars().enumerate();
    match chars.find(|(_, c)| c.is_control()) {
        Some((at, c)) => {
            let text = format!("the character {} is in a path", c.escape_unicode());
            problems.error(field.part(at, at + 1), text, "remove it");
            None
        }
        None => Some(field.at()),
    }
}

fn require_no_variable(field: &Field<'_>, skipped: usize, problems: &mut Problems) -> Option<()> {
    let rest = &field.value[skipped..];
    let starts = |c: char| c.is_ascii_alphabetic() || c == '_' || c == '{';
    let found = rest.match_indices('$').find(|(at, _)| rest[at + 1..].starts_with(starts));
    let Some((at, _)) = found else { return Some(()) };
    let name = rest[at + 1..].trim_start_matches('{');
    let end = name.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(name.len());
    let from = field.value[..skipped + at].chars().count();
    let span = field.part(from, from + 1);
    let name = &name[..end];
    match name.starts_with("DW_") || name.starts_with("FB_") {
        true => problems.error(
            span,
            format!("${} stands in the middle of a path", clip(name)),
            "begin the path with it",
        ),
        false => of_the_shell(name, span, problems),
    }
    None
}

fn require_tidy(at: Span, path: &str, problems: &mut Problems) -> Option<()> {
    let (text, remedy) = if path.split('/').any(|name| name == "..") {
        (".. is in a path", "write the path without it")
    } else if path.len() > PATH_MAX || path.split('/').any(|name| name.len() > NAME_MAX) {
        ("the path is longer than file systems take", "a name has at most 255 bytes, a path 4095")
    } else {
        return Some(());
    };
    problems.error(at, text, remedy);
    None
}

/// The path without doubled slashes and `.`, and relative.
fn tidy(path: &str) -> PathBuf {
    path.split('/').filter(|name| !name.is_empty() && *name != ".").collect()
}

/// The variable's name for an instance's name.
pub fn as_variable(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}
