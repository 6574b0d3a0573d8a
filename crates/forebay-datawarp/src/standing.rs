//! The state of a stage, derived from the records. Pure.
//!
//! - J1: the newest stage of a file is the one that counts; a revoked or cancelled stage counts as none.
//! - J2: no file is complete before its transfer is: only then are the names durable, too.

use std::path::Path;

use crate::records::{State, Transfer, Want, What, When};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Complete,
    Pending,
    /// It begins when the job ends.
    Deferred,
    Failed,
}

/// Numbers of files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub complete: u64,
    pub pending: u64,
    pub deferred: u64,
    pub failed: u64,
}

/// The object of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    File,
    /// A directory and everything below it.
    Tree,
}

impl Standing {
    /// `None`: the stage was revoked or cancelled.
    pub fn of(transfer: &Transfer) -> Option<Standing> {
        if transfer.want != Want::Done {
            return None;
        }
        match (transfer.state(), transfer.when) {
            (Some(State::Done), _) => Some(Standing::Complete),
            (Some(State::Failed), _) => Some(Standing::Failed),
            (Some(State::Cancelled), _) => None,
            (None, When::AtEnd) => Some(Standing::Deferred),
            (Some(State::Waiting | State::Running) | None, _) => Some(Standing::Pending),
        }
    }
}

impl Counts {
    pub fn add(&mut self, standing: Standing, files: u64) {
        *match standing {
            Standing::Complete => &mut self.complete,
            Standing::Pending => &mut self.pending,
            Standing::Deferred => &mut self.deferred,
            Standing::Failed => &mut self.failed,
        } += files;
    }

    pub fn and(self, other: Counts) -> Counts {
        Counts {
            complete: self.complete + other.complete,
            pending: self.pending + other.pending,
            deferred: self.deferred + other.deferred,
            failed: self.failed + other.failed,
        }
    }
}

/// Whether a stage is of exactly this place.
pub fn is_of(transfer: &Transfer, path: &Path) -> bool {
    transfer.inside() == path
}

/// Whether a stage is of a directory above this place.
pub fn is_above(transfer: &Transfer, path: &Path) -> bool {
    transfer.what == What::Directory
        && path.starts_with(transfer.inside())
        && !is_of(transfer, path)
}

/// Whether a stage is of a place below this one.
pub fn is_below(transfer: &Transfer, path: &Path) -> bool {
    transfer.inside().starts_with(path) && !is_of(transfer, path)
}

/// The stages that count for a place (J1); `all` has the newest first.
pub fn counting<'t>(all: &[&'t Transfer], path: &Path, scope: Scope) -> Vec<&'t Transfer> {
    let mut counting: Vec<&Transfer> = Vec::new();
    for transfer in all {
        let concerned = is_of(transfer, path)
            || is_above(transfer, path)
            || (scope == Scope::Tree && is_below(transfer, path));
        let at = transfer.inside();
        let renewed = counting.iter().any(|newer| is_of(newer, at) || is_above(newer, at));
        if concerned && !renewed && Standing::of(transfer).is_some() {
            counting.push(transfer);
            if scope == Scope::File {
                break;
            }
        }
    }
    counting
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::*;

    /// A stage-out; of a directory if its name ends in a slash.
    pub fn transfer(id: &str, inside: &str, state: Option<&str>) -> Transfer {
        let what = if inside.ends_with('/') { "directory" } else { "file" };
        let actual = state.map(|state| json!({"state": state, "files": 3, "attempt": 0}));
        serde_json::from_value(json!({
            "id": id, "instance": "i", "owner": {"uid": 1, "gid": 1}, "created": 5, "node": "n", "direction": "out", "what": what,
            "source": inside.trim_end_matches('/'), "destination": "/pfs/x", "when": "now",
            "want": "done", "attempt": 0, "actual": actual,
        }))
        .unwrap()
    }

    fn ids(all: &[Transfer], path: &str, scope: Scope) -> Vec<String> {
        let all: Vec<&Transfer> = all.iter().collect();
        let found = counting(&all, Path::new(path), scope);
        found.iter().map(|transfer| transfer.id.clone()).collect()
    }

    #[test]
    fn a_stage_stands_as_the_records_of_its_attempt_say() {
        let mut one = transfer("t1", "/i/a", None);
        assert_eq!(Standing::of(&one), Some(Standing::Pending));
        one.when = When::AtEnd;
        assert_eq!(Standing::of(&one), Some(Standing::Deferred));
        for (state, standing) in [
            ("waiting", Some(Standing::Pending)),
            ("running", Some(Standing::Pending)),
            ("done", Some(Standing::Complete)),
            ("failed", Some(Standing::Failed)),
            ("cancelled", None),
        ] {
            let mut one = transfer("t1", "/i/a", Some(state));
            assert_eq!(Standing::of(&one), standing, "{state}");
            // The transfer was taken up again, and its new attempt has no state yet.
            one.attempt = 1;
            assert_eq!(Standing::of(&one), Some(Standing::Pending), "{state}");
            one.want = Want::Revoked;
            assert_eq!(Standing::of(&one), None, "{state}");
        }
    }

    #[test]
    fn the_newest_stage_of_a_file_counts_and_one_that_was_called_off_does_not() {
        let mut all = [
            transfer("t5", "/i/d/a", Some("cancelled")),
            transfer("t4", "/i/d/a", Some("failed")),
            transfer("t3", "/i/d/", Some("done")),
            transfer("t2", "/i/d/b", Some("failed")),
            transfer("t1", "/i/e", Some("done")),
        ];
        assert_eq!(ids(&all, "/i/d/a", Scope::File), ["t4"]);
        assert_eq!(ids(&all, "/i/d/b", Scope::File), ["t3"]);
        assert_eq!(ids(&all, "/i/d/c/x", Scope::File), ["t3"]);
        assert_eq!(ids(&all, "/i/d", Scope::Tree), ["t4", "t3"]);
        assert_eq!(ids(&all, "/i/d/c", Scope::Tree), ["t3"]);
        assert_eq!(ids(&all, "/i", Scope::Tree), ["t4", "t3", "t1"]);
        assert!(ids(&all, "/i/dd", Scope::Tree).is_empty());
        all[2].want = Want::Cancelled;
        assert_eq!(ids(&all, "/i/d", Scope::Tree), ["t4", "t2"]);
    }
}
