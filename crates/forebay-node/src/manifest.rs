//! The manifest: which files are not home, on which node, and why.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use forebay_base::Result;
use forebay_base::command::within;
use forebay_base::units::human_size;
use forebay_registry::limits;

use crate::book::{Book, Listed};
use crate::clock::now;
use crate::hands::{Failed, Unflushed};
use crate::records::{Instance, Missing, keys, written};

/// Files that one record names; the rest are counted in one more line.
pub const NAMED_MAX: usize = 1000;

/// The bytes of the lines in one record: with one more line they are below the registry's limit for a value.
const LINES_MAX: usize = limits::VALUE_MAX - (32 << 10);

/// Records that are deleted in one commit.
const AT_ONCE: usize = 60;

/// How long a command that tells the scheduler may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(60);

/// The record of dirty files in a cache. Other records are those of transfers, whose ids begin otherwise.
pub const DIRTY: &str = "dirty";

/// Replaces the lines that `who`, a transfer or [`DIRTY`], has left of an instance on a node. Each has one record
/// and changes no other's: two that end at once do not collide.
pub fn write(
    book: &Book,
    node: &str,
    instance: &str,
    who: &str,
    missing: &[Missing],
) -> Result<()> {
    let key = keys::manifest(node, instance, who);
    let lines = bounded(missing);
    book.change("the manifest", |draft| {
        let old: Option<Vec<Missing>> = draft.read(&key)?;
        match old {
            None if lines.is_empty() => {}
            Some(old) if old == lines => {}
            Some(_) if lines.is_empty() => draft.delete(&key),
            _ => draft.put(&key, &lines),
        }
        Ok(())
    })
}

/// The lines that `who` has left.
pub fn of(book: &Book, node: &str, instance: &str, who: &str) -> Result<Vec<Missing>> {
    Ok(book.read(&keys::manifest(node, instance, who))?.unwrap_or_default())
}

/// Forgets all lines of an instance on a node.
pub fn clear(book: &Book, node: &str, instance: &str) -> Result<()> {
    clear_but(book, node, instance, &[])
}

/// As [`clear`], except the lines of `kept`.
pub fn clear_but(book: &Book, node: &str, instance: &str, kept: &[&str]) -> Result<()> {
    let prefix = keys::manifest_of(node, instance);
    let (mut entries, _) = book.registry().range(&prefix)?;
    entries.retain(|entry| kept.iter().all(|who| entry.key[prefix.len()..] != **who));
    for some in entries.chunks(AT_ONCE) {
        book.change("the manifest", |draft| {
            some.iter().for_each(|entry| draft.delete(&entry.key));
            Ok(())
        })?;
    }
    Ok(())
}

/// All lines below a prefix, each with the rest of its record's key.
pub fn lines(book: &Book, prefix: &str) -> Result<Vec<(String, Missing)>> {
    let records = book.list_some::<Vec<Missing>>(prefix)?.read;
    let each = |(name, lines): (String, Vec<Missing>)| {
        lines.into_iter().map(move |line| (name.clone(), line))
    };
    Ok(records.into_iter().flat_map(each).collect())
}

/// At most [`NAMED_MAX`] lines and about [`LINES_MAX`] bytes; the last line counts the files that have no line of
/// their own.
fn bounded(missing: &[Missing]) -> Vec<Missing> {
    let mut bytes = 0;
    let fits = |line: &&Missing| {
        bytes += written(line).len() + 1;
        bytes <= LINES_MAX
    };
    let fitting = missing.iter().take_while(fits).count();
    if fitting == missing.len() && fitting <= NAMED_MAX {
        return missing.to_vec();
    }
    let (named, rest) = missing.split_at(fitting.min(NAMED_MAX - 1));
    let last = Missing {
        file: format!("{} more files", rest.len()),
        bytes: rest.iter().map(|line| line.bytes).fold(0, u64::saturating_add),
        why: "they are too many to be named".into(),
        ..rest[0].clone()
    };
    named.iter().cloned().chain([last]).collect()
}

/// The lines of dirty files in a cache: they wait as long as it takes.
pub fn of_cache(instance: &Instance, found: &[Unflushed]) -> Vec<Missing> {
    let line = |unflushed: &Unflushed| Missing {
        file: unflushed.file.clone(),
        bytes: unflushed.bytes,
        why: unflushed.why.clone(),
        owner: instance.owner,
        transfer: None,
        since: now().saturating_sub(unflushed.age.as_secs()),
        expires: None,
    };
    bounded(&found.iter().map(line).collect::<Vec<_>>())
}

/// The lines of files that a transfer left behind.
pub fn of_transfer(instance: &Instance, transfer: &str, failed: &[Failed]) -> Vec<Missing> {
    let since = now();
    let line = |failed: &Failed| Missing {
        file: failed.path.clone(),
        bytes: failed.bytes,
        why: failed.why.clone(),
        owner: instance.owner,
        transfer: Some(transfer.into()),
        since,
        expires: None,
    };
    failed.iter().map(line).collect()
}

/// Tells the scheduler once when more than `max` bytes of a node are not home, by a command in which `%n` is the
/// node and `%r` the reason. No shell runs it: words are split at blanks.
pub struct Over {
    told: AtomicBool,
}

impl Over {
    pub const fn new() -> Over {
        Over { told: AtomicBool::new(false) }
    }

    pub fn look(&self, book: &Book, node: &str, max: u64, command: &str) -> Result<()> {
        let Some(over) = over(book, node, max)? else {
            self.told.store(false, Relaxed);
            return Ok(());
        };
        if !self.told.swap(true, Relaxed) {
            tracing::warn!("{over}: telling the scheduler");
            run(command, node, &format!("forebay: {over}"), COMMAND_LIMIT)?;
        }
        Ok(())
    }
}

/// A message if more than `max` bytes of a node are not home.
pub fn over(book: &Book, node: &str, max: u64) -> Result<Option<String>> {
    let bytes = bytes(book, node)?;
    let text = || format!("{} are not home, {} are allowed", human_size(bytes), human_size(max));
    Ok((bytes > max).then(text))
}

/// The bytes of a node that are not home. Each instance counts at most with its grant: two transfers may name the
/// same file, and a file may be longer than its bytes in the instance.
fn bytes(book: &Book, node: &str) -> Result<u64> {
    let wanted: Listed<Instance> = book.list_some(keys::WANTED_INSTANCES)?;
    let of = |(id, instance): &(String, Instance)| (id.clone(), instance.bytes);
    let granted: BTreeMap<String, u64> = wanted.read.iter().map(of).collect();
    let lines = lines(book, &format!("{}{node}/", keys::MANIFEST))?;
    let mut missing: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, line) in &lines {
        let instance = name.split_once('/').map_or(name.as_str(), |(instance, _)| instance);
        let bytes = missing.entry(instance).or_default();
        *bytes = bytes.saturating_add(line.bytes);
    }
    let bounded =
        |(id, bytes): (&&str, &u64)| granted.get(*id).map_or(*bytes, |most| *bytes.min(most));
    Ok(missing.iter().map(bounded).fold(0, u64::saturating_add))
}

fn run(command: &str, node: &str, reason: &str, limit: Duration) -> Result<()> {
    let words =
        command.split_whitespace().map(|word| word.replace("%n", node).replace("%r", reason));
    let words: Vec<String> = words.collect();
    let Some((program, args)) = words.split_first() else { return Ok(()) };
    let ended = within(Command::new(program).args(args), limit)
        .map_err(|e| e.context("over-manifest-command"))?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr).trim().to_string();
        tracing::warn!("over-manifest-command {program}: {}: {said}", ended.status);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::records::Owner;

    fn line(n: u64) -> Missing {
        Missing {
            file: format!("f{n}"),
            bytes: n,
            why: "w".into(),
            owner: Owner { uid: 1, gid: 1 },
            transfer: None,
            since: 0,
            expires: None,
        }
    }

    #[test]
    fn a_command_that_does_not_end_is_killed() {
        let begun = Instant::now();
        let limit = Duration::from_millis(200);
        let error = run("sleep 600", "n1", "r", limit).unwrap_err();
        assert!(error.to_string().starts_with("over-manifest-command: sleep: it ran"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(60));
        run("true %n %r", "n1", "r", Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn a_million_files_are_a_thousand_lines_and_no_byte_is_left_out() {
        let all: Vec<Missing> = (0..5000).map(line).collect();
        let lines = bounded(&all);
        assert_eq!(lines.len(), NAMED_MAX);
        let sum = |lines: &[Missing]| lines.iter().map(|line| line.bytes).sum::<u64>();
        assert_eq!(sum(&lines), sum(&all));
        assert_eq!(lines.last().unwrap().file, "4001 more files");
        assert_eq!(bounded(&all[..3]), all[..3]);
        let long: Vec<Missing> =
            (0..900).map(|n| Missing { file: "\u{1}".repeat(4000), ..line(n) }).collect();
        let lines = bounded(&long);
        let size = written(&lines).len();
        assert!(size < limits::VALUE_MAX, "{size} bytes for the registry");
        assert_eq!(sum(&lines), sum(&long));
    }
}
