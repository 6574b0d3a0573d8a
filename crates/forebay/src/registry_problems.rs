//! The problems of a registry, and what to do about them: for `registry check`, and for members that use it.

use forebay_base::{Error, Kind};
use forebay_registry::{Alarm, Health};

/// A quota that is used beyond this is a problem: a full quota stops every write.
const QUOTA_PERCENT_MAX: u64 = 60;

/// The use of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    pub quota: u64,
    pub percent: u64,
}

impl Usage {
    pub fn of(health: &Health) -> Option<Usage> {
        let quota = health.quota.filter(|quota| *quota > 0)?;
        Some(Usage { quota, percent: health.bytes.saturating_mul(100) / quota })
    }
}

/// The problems of a registry, each with its remedy.
pub fn problems_of(health: &Health) -> Vec<String> {
    let mut problems: Vec<String> =
        health.alarms.iter().map(|alarm| remedy(*alarm).into()).collect();
    if let Some(usage) = Usage::of(health).filter(|usage| usage.percent > QUOTA_PERCENT_MAX) {
        problems.push(format!(
            "{} % of its quota are used: compact and defragment it (etcdctl compact, etcdctl defrag; \
             --auto-compaction-retention does the first by itself), or raise --quota-backend-bytes",
            usage.percent
        ));
    }
    problems
}

/// Adds to the error of a registry that does not answer what to do about it.
pub fn with_way_out(error: Error) -> Error {
    match error.kind() {
        Kind::TimedOut => error.with_source(
            "is an etcd's client port at that address (--listen-client-urls), and the way to it open? \
             `forebay registry check ADDRESS` tries it",
        ),
        _ => error,
    }
}

/// The problems that are new since `before`.
pub fn news_of(before: Option<&Health>, now: &Health) -> Vec<String> {
    let mut news = now.clone();
    if let Some(before) = before {
        news.alarms.retain(|alarm| !before.alarms.contains(alarm));
        news.quota = news.quota.filter(|_| !is_short(before));
    }
    problems_of(&news)
}

fn is_short(health: &Health) -> bool {
    Usage::of(health).is_some_and(|usage| usage.percent > QUOTA_PERCENT_MAX)
}

fn remedy(alarm: Alarm) -> &'static str {
    match alarm {
        Alarm::NoSpace => {
            "its quota is used up (alarm NOSPACE) and it takes nothing more: compact and defragment it, \
             then etcdctl alarm disarm"
        }
        Alarm::Corrupt => {
            "its members' data differ (alarm CORRUPT): restore the wrong member from the others before \
             anything relies on it"
        }
        Alarm::Other => "it has raised an alarm: etcdctl alarm list names it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_registry::{Identity, Revision};

    fn health(bytes: u64, quota: Option<u64>, alarms: Vec<Alarm>) -> Health {
        let identity = Identity { cluster: "c".into(), revision: Revision(1) };
        let version = "etcd 3.4.23".into();
        Health { version, identity, bytes, bytes_in_use: bytes, quota, alarms }
    }

    #[test]
    fn a_quota_is_told_before_it_is_used_up() {
        assert!(problems_of(&health(60, Some(100), vec![])).is_empty());
        assert!(problems_of(&health(u64::MAX, None, vec![])).is_empty());
        let told = problems_of(&health(62, Some(100), vec![Alarm::NoSpace]));
        assert!(told[0].contains("NOSPACE") && told[1].starts_with("62 %"), "{told:?}");
    }

    #[test]
    fn each_problem_is_news_once() {
        let [fine, short, full] = [
            health(10, Some(100), vec![]),
            health(70, Some(100), vec![]),
            health(99, Some(100), vec![Alarm::NoSpace]),
        ];
        let news = |before, now| news_of(before, now).len();
        assert_eq!((news(None, &fine), news(None, &full)), (0, 2));
        assert_eq!((news(Some(&fine), &short), news(Some(&short), &short)), (1, 0));
        let told = news_of(Some(&short), &full);
        assert!(told.len() == 1 && told[0].contains("NOSPACE"), "{told:?}");
        assert_eq!(news(Some(&full), &short), 0);
    }
}
