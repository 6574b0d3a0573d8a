//! The ends of claims, as a member hears of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_registry::Revision;

use crate::keys;

/// A process of another member, as far as this member has heard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Process {
    pub epoch: u64,
    /// Changes each time that the tier has lost bytes that were never synced.
    pub boot: String,
    /// The first process of the line: no member has taken the place of any since ([`keys::Member::line`]).
    pub line: u64,
}

impl From<&keys::Member> for Process {
    fn from(member: &keys::Member) -> Process {
        Process { epoch: member.epoch, boot: member.boot.clone(), line: member.line() }
    }
}

/// The newest process of each member.
pub type Processes = BTreeMap<String, Process>;

/// Claims of a file that were put before `at` have ended. `processes` are the members' processes when this member heard
/// of the end: later processes say nothing of how a claim ended. A member that ends another's claim has raised the
/// other's epoch before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    pub at: Revision,
    pub processes: Arc<Processes>,
}

/// Ends of claims of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ends(Vec<End>);

impl Ends {
    /// Consecutive ends with no member's start between them merge into the last one: there are at most as many ends
    /// as starts.
    pub fn add(&mut self, end: End) {
        match self.0.last_mut() {
            Some(last) if last.processes == end.processes => last.at = last.at.max(end.at),
            _ => self.0.push(end),
        }
    }

    pub fn extend(&mut self, ends: &Ends) {
        ends.0.iter().for_each(|end| self.add(end.clone()));
    }

    /// How the claim that stood at this revision ended, if it has.
    pub fn of_claim(&self, as_of: Revision) -> Option<&End> {
        self.0.iter().filter(|end| as_of < end.at).min_by_key(|end| end.at)
    }

    /// The revision before which all claims have ended.
    pub fn newest(&self) -> Revision {
        self.0.iter().map(|end| end.at).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(at: u64, epoch: u64) -> End {
        let process = Process { epoch, boot: String::new(), line: epoch };
        End { at: Revision(at), processes: Arc::new([("a".to_string(), process)].into()) }
    }

    #[test]
    fn a_claim_ended_as_the_first_end_after_it_says() {
        let mut ends = Ends::default();
        [end(10, 1), end(20, 1), end(30, 3)].into_iter().for_each(|end| ends.add(end));
        assert_eq!(ends.0.len(), 2, "nobody began between the first two");
        let how = |as_of| ends.of_claim(Revision(as_of)).map(|end| end.processes["a"].epoch);
        assert_eq!(
            [5, 10, 19, 20, 29, 30].map(how),
            [1, 1, 1, 3, 3, 0].map(|n| Some(n).filter(|n| *n > 0))
        );
        assert_eq!(ends.newest(), Revision(30));
    }
}
