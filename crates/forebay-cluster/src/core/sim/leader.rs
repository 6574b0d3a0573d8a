//! A registry whose leader changes, and registry members that lag behind.
//!
//! Without a leader nothing is agreed. A commit that was proposed before may come to pass under the next leader, and
//! its sender is not told. An acknowledged commit stays, also where all the registry's machines have lost power. The
//! next leader gives every lease its whole time anew: leases end later than their holders believe, and never earlier.
//! A watch may be served by a lagging member of the registry, while the leader answers commits, barriers and leases.

use forebay_registry::{Commit, Entry, Revision};

use super::Neglect;
use super::world::{LEASE, What, World};
use crate::core::{Input, Ticket};

impl World {
    pub fn leader_changes(&mut self, until: u64) {
        self.counts.more.leaders += 1;
        for node in 0..self.plan.members {
            if self.neglect == Some(Neglect::LeasesStand) {
                self.nodes[node].lease_at = self.now;
                self.expire(node);
            } else if self.has_lease(node) {
                self.counts.more.extended += 1;
                self.nodes[node].lease_at = until + LEASE;
                self.at(until + LEASE - self.now, What::Expire(node));
            }
        }
        self.outage = self.outage.max(until);
        self.election = until;
    }

    /// Whether a commit reaches the registry during an election, and its outcome is in doubt.
    pub fn is_in_doubt(
        &mut self,
        node: usize,
        life: u64,
        ticket: Ticket,
        commit: &Option<Commit>,
    ) -> bool {
        let Some(commit) = commit.as_ref().filter(|_| self.election > self.now) else {
            return false;
        };
        if self.dice.roll(2) == 0 {
            return false;
        }
        self.counts.more.in_doubt += 1;
        let wait = self.election - self.now + self.dice.roll(60);
        self.at(wait, What::ToRegistry(node, life, ticket, Some(commit.clone()), true));
        self.at(150, What::Give(node, life, Input::Committed(ticket, Err(()))));
        true
    }

    /// The revision with which a barrier is answered.
    pub fn newest_for(&mut self, node: usize) -> u64 {
        let n = &self.nodes[node];
        self.counts.more.asked_behind += u64::from(n.behind > self.now);
        match self.neglect {
            Some(Neglect::AskLeader) => n.seen,
            _ => self.registry.revision,
        }
    }

    /// The keys that a member reads after its watch was torn.
    pub fn all_keys(&mut self, node: usize, seen: u64) -> (Revision, Vec<Entry>) {
        if self.neglect != Some(Neglect::ReadFromLeader) {
            return self.registry.snapshot();
        }
        let upto = seen.saturating_sub(self.dice.roll(20));
        self.nodes[node].seen = upto;
        self.at(20, What::Watch(node));
        self.registry.snapshot_at(upto)
    }
}
