//! The limits of a registry. They are etcd's, with room for forebay's additions, and hold for all
//! registries, so that a commit that works on one machine works on many.

use std::collections::BTreeSet;

use crate::{Change, Commit, Error, Kind, LeaseId, Result};

/// Long enough for a path-like name of five parts; users' file names are never keys.
pub const KEY_MAX: usize = 512;

/// A page of a range holds [`PAGE`] values, and a commit must fit in etcd's 1.5 MiB.
pub const VALUE_MAX: usize = 256 << 10;

/// etcd takes 128 operations a transaction, and the mark of a commit is one.
pub const COMPARES_MAX: usize = 120;
pub const CHANGES_MAX: usize = 120;

/// The bytes of all keys and values of a commit. etcd takes 1.5 MiB per request, its own framing
/// included.
const COMMIT_BYTES_MAX: usize = 1 << 20;

/// Keys that are fetched at once by a range.
pub const PAGE: usize = 500;

/// # Errors
///
/// [`Kind::Usage`] if `key` is not valid.
pub fn check_key(key: &str) -> Result<()> {
    match key.as_bytes().first() {
        None => Err(usage("a key of the registry may not be empty".into())),
        Some(first) if !first.is_ascii_alphanumeric() => {
            Err(usage(format!("{key:?}: a key of the registry begins with a letter or a digit")))
        }
        Some(_) => check_text(key, "key"),
    }
}

/// # Errors
///
/// [`Kind::Usage`] if no valid key begins with the prefix.
pub fn check_prefix(prefix: &str) -> Result<()> {
    if prefix.is_empty() { Ok(()) } else { check_key(prefix) }
}

fn check_text(text: &str, what: &str) -> Result<()> {
    if text.len() > KEY_MAX {
        return Err(usage(format!(
            "{:?}...: a {what} of the registry has at most {KEY_MAX} bytes, and this one has {}",
            text.chars().take(40).collect::<String>(),
            text.len()
        )));
    }
    match text.chars().any(char::is_control) {
        true => Err(usage(format!("{text:?}: a {what} of the registry has no control characters"))),
        false => Ok(()),
    }
}

/// # Errors
///
/// [`Kind::Usage`] that names the part that is too much, too long or contradictory.
pub fn check_commit(commit: &Commit) -> Result<()> {
    check_count(commit.compares.len(), COMPARES_MAX, "compares")?;
    check_count(commit.changes.len(), CHANGES_MAX, "changes")?;
    if commit.changes.is_empty() {
        return Err(usage("a commit to the registry has to change something".into()));
    }
    let mut bytes = 0;
    for compare in &commit.compares {
        check_key(compare.key())?;
        bytes += compare.key().len();
        if let crate::Compare::Value(key, value) = compare {
            bytes += check_value(key, value)?;
        }
    }
    for change in &commit.changes {
        bytes += check_change(change)?;
    }
    match bytes > COMMIT_BYTES_MAX {
        true => Err(usage(format!(
            "a commit to the registry has at most {COMMIT_BYTES_MAX} bytes of keys and values, and \
             this one has {bytes}: divide it"
        ))),
        false => check_each_once(&commit.changes),
    }
}

fn check_count(count: usize, max: usize, what: &str) -> Result<()> {
    match count > max {
        true => Err(usage(format!(
            "a commit to the registry has at most {max} {what}, and this one has {count}: divide it"
        ))),
        false => Ok(()),
    }
}

fn check_value(key: &str, value: &[u8]) -> Result<usize> {
    match value.len() > VALUE_MAX {
        true => Err(usage(format!(
            "{key}: a value of the registry has at most {VALUE_MAX} bytes, and this one has {}",
            value.len()
        ))),
        false => Ok(value.len()),
    }
}

fn check_change(change: &Change) -> Result<usize> {
    match change {
        Change::Put { key, lease: Some(LeaseId(0)), .. } => {
            Err(usage(format!("{key}: 0 is the number of no lease")))
        }
        Change::Put { key, value, .. } => {
            check_key(key).and_then(|()| Ok(key.len() + check_value(key, value)?))
        }
        Change::Delete { key } => check_key(key).map(|()| key.len()),
        Change::DeletePrefix { prefix } => check_prefix(prefix).map(|()| prefix.len()),
    }
}

/// The result of a commit must not depend on the order of its changes: etcd refuses that.
fn check_each_once(changes: &[Change]) -> Result<()> {
    let mut keys = BTreeSet::new();
    let mut prefixes: Vec<&str> = Vec::new();
    for change in changes {
        match change {
            Change::Put { key, .. } | Change::Delete { key } => {
                if !keys.insert(key.as_str()) {
                    return Err(twice(key));
                }
            }
            Change::DeletePrefix { prefix } => {
                let overlaps =
                    |other: &&str| other.starts_with(prefix) || prefix.starts_with(other);
                if prefixes.iter().any(overlaps) {
                    return Err(twice(prefix));
                }
                prefixes.push(prefix);
            }
        }
    }
    let below =
        |prefix: &&&str| keys.range(**prefix..).next().is_some_and(|k| k.starts_with(**prefix));
    match prefixes.iter().find(below) {
        Some(prefix) => Err(twice(prefix)),
        None => Ok(()),
    }
}

fn twice(key: &str) -> Error {
    usage(format!("{key}: a commit to the registry changes each key once"))
}

fn usage(message: String) -> Error {
    Error::new(Kind::Usage, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each limit, just kept and just broken.
    #[test]
    fn limits_are_told_with_what_broke_them() {
        let kept = Commit::new()
            .if_value("a", vec![0; VALUE_MAX])
            .put("k".repeat(KEY_MAX), "")
            .delete("job/1")
            .delete_prefix("jobs/");
        check_commit(&kept).expect("it is within the limits");
        let many = |n: usize| (0..n).fold(Commit::new(), |c, i| c.put(format!("k{i}"), ""));
        check_commit(&many(CHANGES_MAX)).expect("as many as there may be");
        let large = (0..5).fold(Commit::new(), |c, i| c.put(format!("k{i}"), vec![0; VALUE_MAX]));
        for (broken, word) in [
            (Commit::new().if_absent("a"), "change something"),
            (many(CHANGES_MAX + 1), "at most 120 changes"),
            ((0..=COMPARES_MAX).fold(many(1), |c, _| c.if_absent("a")), "at most 120 compares"),
            (large, "bytes of keys and values"),
            (Commit::new().put("a", vec![0; VALUE_MAX + 1]), "a value of the registry"),
            (Commit::new().put("k".repeat(KEY_MAX + 1), ""), "at most 512 bytes"),
            (Commit::new().put("", ""), "may not be empty"),
            (Commit::new().put("/a", ""), "begins with a letter"),
            (Commit::new().put("a\n", ""), "control characters"),
            (Commit::new().put("a", "").delete("a"), "each key once"),
            (Commit::new().put("a/b", "").delete_prefix("a/"), "each key once"),
            (Commit::new().delete_prefix("").delete_prefix("a/"), "each key once"),
            (Commit::new().put_leased("a", "", LeaseId(0)), "no lease"),
        ] {
            let error = check_commit(&broken).expect_err("it breaks a limit");
            assert_eq!(error.kind(), Kind::Usage);
            assert!(error.to_string().contains(word), "{word}: {error}");
        }
    }
}
