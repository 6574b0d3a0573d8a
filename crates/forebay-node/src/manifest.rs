//! The manifest: what is not home, on which node, and why.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use forebay_base::units::human_size;
use forebay_base::{Error, Result};

use crate::book::Book;
use crate::desk::now;
use crate::hands::{Failed, Unflushed};
use crate::records::{Instance, Missing, keys};

/// Files of one instance that are named; the rest are counted in one more line.
pub const NAMED_MAX: usize = 1000;

/// Lines of the registry that are written in one commit: below what etcd takes.
const AT_ONCE: usize = 60;

/// Puts `missing` in the place of all that was said of an instance on a node.
pub fn replace(book: &Book, node: &str, instance: &str, missing: &[Missing]) -> Result<()> {
    let prefix = keys::manifest_of(node, instance);
    let old: Vec<(String, Missing)> = book.list(&prefix)?;
    let lines = bounded(missing);
    let key = |n: usize| format!("{prefix}{n:06}");
    let changed: Vec<usize> = (0..lines.len())
        .filter(|n| old.get(*n).is_none_or(|(_, line)| *line != lines[*n]))
        .collect();
    for some in changed.chunks(AT_ONCE) {
        book.change("the manifest", |draft| {
            some.iter().for_each(|n| draft.put(&key(*n), &lines[*n]));
            Ok(())
        })?;
    }
    let spare: Vec<&String> = old.iter().skip(lines.len()).map(|(name, _)| name).collect();
    for some in spare.chunks(AT_ONCE) {
        book.change("the manifest", |draft| {
            some.iter().for_each(|name| draft.delete(&format!("{prefix}{name}")));
            Ok(())
        })?;
    }
    Ok(())
}

/// At most [`NAMED_MAX`] lines, of which the last counts what has none of its own.
fn bounded(missing: &[Missing]) -> Vec<Missing> {
    if missing.len() <= NAMED_MAX {
        return missing.to_vec();
    }
    let (named, rest) = missing.split_at(NAMED_MAX - 1);
    let last = Missing {
        file: format!("{} more files", rest.len()),
        bytes: rest.iter().map(|line| line.bytes).sum(),
        ..rest[0].clone()
    };
    named.iter().cloned().chain([last]).collect()
}

/// What is dirty in a cache: it waits as long as it takes.
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
    found.iter().map(line).collect()
}

/// What a transfer left behind; with `keep` it is dropped after that time.
pub fn of_transfer(
    instance: &Instance,
    transfer: &str,
    failed: &[Failed],
    keep: Option<Duration>,
) -> Vec<Missing> {
    let since = now();
    let line = |failed: &Failed| Missing {
        file: failed.path.clone(),
        bytes: failed.bytes,
        why: failed.why.clone(),
        owner: instance.owner,
        transfer: Some(transfer.into()),
        since,
        expires: keep.map(|keep| since + keep.as_secs()),
    };
    failed.iter().map(line).collect()
}

/// Tells the scheduler once when more than `max` bytes of a node are not home, by a command in which
/// `%n` is the node and `%r` the reason. It is no line for a shell: words are split at blanks.
pub struct Over {
    told: AtomicBool,
}

impl Over {
    pub const fn new() -> Over {
        Over { told: AtomicBool::new(false) }
    }

    pub fn look(&self, book: &Book, node: &str, max: u64, command: &str) -> Result<()> {
        let lines: Vec<(String, Missing)> = book.list(&format!("{}{node}/", keys::MANIFEST))?;
        let bytes: u64 = lines.iter().map(|(_, line)| line.bytes).sum();
        if bytes <= max {
            self.told.store(false, Relaxed);
            return Ok(());
        }
        if !self.told.swap(true, Relaxed) {
            let over =
                format!("{} are not home, {} are allowed", human_size(bytes), human_size(max));
            tracing::warn!("{over}: telling the scheduler");
            run(command, node, &format!("forebay: {over}"))?;
        }
        Ok(())
    }
}

fn run(command: &str, node: &str, reason: &str) -> Result<()> {
    let words =
        command.split_whitespace().map(|word| word.replace("%n", node).replace("%r", reason));
    let words: Vec<String> = words.collect();
    let Some((program, args)) = words.split_first() else { return Ok(()) };
    let ended = Command::new(program).args(args).stdin(Stdio::null()).output();
    let ended = ended.map_err(|e| Error::io(e, format!("over-manifest-command {program}")))?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr).trim().to_string();
        tracing::warn!("over-manifest-command {program}: {}: {said}", ended.status);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
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
    fn a_million_files_are_a_thousand_lines_and_no_byte_is_left_out() {
        let all: Vec<Missing> = (0..5000).map(line).collect();
        let lines = bounded(&all);
        assert_eq!(lines.len(), NAMED_MAX);
        let sum = |lines: &[Missing]| lines.iter().map(|line| line.bytes).sum::<u64>();
        assert_eq!(sum(&lines), sum(&all));
        assert_eq!(lines.last().unwrap().file, "4001 more files");
        assert_eq!(bounded(&all[..3]), all[..3]);
    }
}
