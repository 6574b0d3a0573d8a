//! A commit as one transaction of etcd.
//!
//! ```text
//! if the mark is unchanged, and all compares hold:  put the mark, make the changes
//! else:                                             get the mark
//! ```
//!
//! There are no nested transactions: their puts are not counted against etcd's quota.

use std::time::Instant;

use super::client::Client;
use super::failed::Failed;
use super::marks::{Mark, Marks};
use super::messages::{self, Condition, Granted, Kv, Operation, TXN, Txn};
use super::proto::Message;
use super::range_of;
use crate::{Change, Commit, Compare, Error, Kind, LeaseId, Outcome, Result, Revision};

/// The end of the token of a refused commit (M2).
const REFUSED: &str = "-refused";

/// The most replacements of an own lost lease within one commit; more means that something is wrong.
const LOST_MAX: usize = 3;

/// Whether a commit was requested more than once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Once,
    Again,
}

/// The answer of a transaction.
enum Said {
    /// The commit happened, with this revision.
    Done(u64),
    /// Nothing happened, and the mark is unchanged.
    Refused(Outcome),
    /// Another client changed the mark, or it is gone.
    Lost,
}

pub fn commit(client: &Client, marks: &Marks, commit: &Commit) -> Result<Outcome> {
    let deadline = client.deadline();
    for _ in 0..LOST_MAX {
        let mark = marks.take(client, deadline)?;
        let (answer, asked) = repeat(client, &mark, commit, deadline);
        if asked == Asked::Again || answer.is_err() {
            marks.doubt();
        }
        match answer.map(|txn| read(&mark, txn)) {
            Ok(Said::Done(revision)) => return Ok(done(marks, &mark, revision)),
            Ok(Said::Refused(outcome)) if asked == Asked::Once => {
                marks.give_back(&mark, mark.changed);
                return Ok(outcome);
            }
            Ok(Said::Refused(outcome)) => return settle(client, marks, &mark, outcome, deadline),
            Ok(Said::Lost) if asked == Asked::Once => marks.lost(mark.lease),
            Ok(Said::Lost) => return Err(unknown(client)),
            Err(Failed::NoLease) if asked == Asked::Again => return Err(unknown(client)),
            Err(Failed::NoLease) => {
                if let Some(lapsed) = lapsed(client, commit, deadline)? {
                    let text = format!("{}: the lease {lapsed} has run out", client.address());
                    return Err(Error::new(Kind::Lapsed, text));
                }
                marks.lost(mark.lease);
            }
            Err(failed) => return Err(client.unexpected(failed)),
        }
    }
    let text = format!("{}: it forgets leases that were just granted", client.address());
    Err(Error::new(Kind::Unavailable, text))
}

fn done(marks: &Marks, mark: &Mark, revision: u64) -> Outcome {
    marks.give_back(mark, revision);
    Outcome::Committed(Revision(revision))
}

fn unknown(client: &Client) -> Error {
    let text = format!(
        "{}: an answer was lost, and then the lease that would tell what became of the commit: read \
         again what it was to change",
        client.address()
    );
    Error::new(Kind::Unavailable, text)
}

fn repeat(
    client: &Client,
    mark: &Mark,
    commit: &Commit,
    deadline: Instant,
) -> (std::result::Result<Txn, Failed>, Asked) {
    let message = transaction(client.root(), mark, commit);
    let mut attempts = 0;
    let answer = client.try_until(deadline, |turn| {
        attempts += 1;
        client.once(TXN, &message, turn)
    });
    (answer, if attempts > 1 { Asked::Again } else { Asked::Once })
}

/// M2: makes sure that no request of a refused commit can still happen, or finds that one has
/// happened.
fn settle(
    client: &Client,
    marks: &Marks,
    mark: &Mark,
    refused: Outcome,
    deadline: Instant,
) -> Result<Outcome> {
    let refusal = put(mark, &format!("{}{REFUSED}", mark.token));
    let message = messages::txn(&[unchanged(mark)], &[refusal], &[get(mark)]);
    let txn: Txn = client.ask(TXN, &message, deadline)?;
    if txn.succeeded {
        marks.give_back(mark, txn.header.revision);
        return Ok(refused);
    }
    let found = found(txn);
    let changed = found.changed;
    match found.value.strip_prefix(mark.token.as_bytes()) {
        Some(b"") => Ok(done(marks, mark, changed)),
        Some(end) if end == REFUSED.as_bytes() => {
            marks.give_back(mark, changed);
            Ok(refused)
        }
        _ => Err(unknown(client)),
    }
}

fn transaction(root: &str, mark: &Mark, commit: &Commit) -> Message {
    let mut compares = vec![unchanged(mark)];
    compares.extend(commit.compares.iter().map(|c| condition(root, c)));
    let mut changes = vec![put(mark, &mark.token)];
    changes.extend(commit.changes.iter().map(|change| operation(root, change)));
    messages::txn(&compares, &changes, &[get(mark)])
}

fn unchanged(mark: &Mark) -> Message {
    messages::compare(&mark.key, &Condition::Changed(mark.changed))
}

fn get(mark: &Mark) -> Operation {
    Operation::Range(messages::one(&mark.key))
}

fn put(mark: &Mark, token: &str) -> Operation {
    Operation::Put(messages::put(&mark.key, token, mark.lease))
}

fn read(mark: &Mark, txn: Txn) -> Said {
    let revision = txn.header.revision;
    if txn.succeeded {
        return Said::Done(revision);
    }
    let found = found(txn);
    let changed = found.changed;
    if changed == mark.changed {
        return Said::Refused(Outcome::Refused(Revision(revision)));
    }
    match found.value == mark.token.as_bytes() {
        true => Said::Done(changed),
        false => Said::Lost,
    }
}

/// The mark, as a transaction without changes has found it.
fn found(txn: Txn) -> Kv {
    let first = txn.responses.into_iter().next().and_then(|response| response.range);
    first.unwrap_or_default().kvs.into_iter().next().unwrap_or_default()
}

fn condition(root: &str, compare: &Compare) -> Message {
    let condition = match compare {
        Compare::Absent(_) => Condition::NotCreated,
        Compare::Present(_) => Condition::Created,
        // A missing key has revision 0, at which nothing was changed.
        Compare::Revision(_, revision) => Condition::Changed(revision.0.max(1)),
        Compare::Value(_, value) => Condition::Value(value),
    };
    messages::compare(&format!("{root}{}", compare.key()), &condition)
}

fn operation(root: &str, change: &Change) -> Operation {
    match change {
        Change::Put { key, value, lease } => {
            let lease = lease.map_or(0, |lease| lease.0);
            Operation::Put(messages::put(&format!("{root}{key}"), value, lease))
        }
        Change::Delete { key } => Operation::Delete(messages::one(&format!("{root}{key}"))),
        Change::DeletePrefix { prefix } => {
            let (first, end) = range_of(root, prefix);
            Operation::Delete(messages::range(&first, &end))
        }
    }
}

/// The lease of the commit that has ended, if there is one.
fn lapsed(client: &Client, commit: &Commit, deadline: Instant) -> Result<Option<LeaseId>> {
    for change in &commit.changes {
        let Change::Put { lease: Some(id), .. } = change else { continue };
        let message = messages::lease(id.0);
        let left = client.try_until(deadline, |turn| {
            client.once::<Granted>(messages::TIME_TO_LIVE, &message, turn)
        });
        match left {
            Ok(left) if left.left().is_some() => {}
            Ok(_) | Err(Failed::NoLease) => return Ok(Some(*id)),
            Err(failed) => return Err(client.unexpected(failed)),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// etcd sends a transaction to all its members, with both branches.
    #[test]
    fn a_key_is_carried_once_to_be_compared_and_once_to_be_put() {
        let mark = Mark::named("/r/.marks/1");
        let claim = |c: Commit, n: u32| c.if_absent(format!("k{n}")).put(format!("k{n}"), "v");
        let message = transaction("/r/", &mark, &(0..60).fold(Commit::new(), claim));
        let text = String::from_utf8_lossy(message.as_ref());
        let times = |key: &str| text.matches(key).count();
        assert_eq!((times("/r/k59"), times(&mark.key)), (2, 3));
    }
}
