//! Leases of members, as the registry counts them.

use std::time::Duration;

use forebay_registry::{Change, Commit};

use super::Neglect;
use super::world::{Checked, LEASE, What, World, name};
use crate::core::{Input, OWN_LEASE};
use crate::keys;

impl World {
    pub fn has_lease(&self, node: usize) -> bool {
        self.registry.keys.contains_key(&format!("stores/s/alive/m{node}"))
    }

    /// Whether a commit would put a key on a lease that has ended.
    pub fn is_without_lease(&self, node: usize, commit: Option<&Commit>) -> bool {
        let is_own = |change: &Change| matches!(change, Change::Put { lease: Some(OWN_LEASE), .. });
        !self.has_lease(node) && commit.is_some_and(|commit| commit.changes.iter().any(is_own))
    }

    /// Ends the lease of a process that does not renew it, unless the registry is away itself.
    pub fn expire(&mut self, node: usize) {
        let alive = format!("stores/s/alive/m{node}");
        if !self.registry.keys.contains_key(&alive) || self.nodes[node].lease_at > self.now {
            return;
        }
        if self.outage > self.now {
            self.nodes[node].lease_at = self.outage + LEASE;
            self.at(self.outage + LEASE - self.now, What::Expire(node));
            return;
        }
        let n = &self.nodes[node];
        self.counts.more.ended_slow += u64::from(n.core.is_some() && n.clock.is_slow());
        self.counts.more.ended_standing += u64::from(n.core.is_some() && n.paused > self.now);
        let mut gone = Commit::new().delete(alive);
        let gate = self.registry.keys.get("stores/s/gate").and_then(super::parse::<keys::Gate>);
        if gate.is_some_and(|gate| gate.by == name(node)) {
            gone = gone.delete("stores/s/gate");
            // The mount of the gate's owner still believes in the gate. Writes below it are no
            // longer checked.
            self.renaming.take_if(|(by, _)| *by == node);
        }
        let grant = format!("stores/s/grants/m{node}");
        if self.registry.keys.contains_key(&grant) {
            self.counts.granted.expired += 1;
            gone = gone.delete(grant);
        }
        let _ = self.registry.commit(&gone);
        self.told();
    }

    pub fn renew(&mut self, node: usize) {
        self.at(100, What::Renew(node));
        if self.nodes[node].core.is_some() {
            let (life, sent) = (self.nodes[node].life, self.clock(node));
            let delay = self.delay();
            self.at(delay, What::Renewed(node, life, sent));
        }
    }

    /// The registry renews a lease. Claims hang on no lease: one that has run out is taken anew, if
    /// the epoch stands.
    pub fn renewed(&mut self, node: usize, life: u64, sent: Duration) -> Checked {
        if !self.lives(node, life) || self.is_cut(node) {
            return Ok(());
        }
        let alive = format!("stores/s/alive/m{node}");
        if !self.registry.keys.contains_key(&alive) {
            let member = self.registry.keys.get(&format!("stores/s/members/m{node}"));
            let epoch = member.and_then(super::parse::<keys::Member>).map(|member| member.epoch);
            if epoch != Some(self.nodes[node].epoch) {
                return Ok(());
            }
            let _ = self.registry.commit(&Commit::new().put(alive, ""));
            self.told();
        }
        self.nodes[node].lease_at = self.now + LEASE;
        self.at(LEASE, What::Expire(node));
        let delay = self.delay();
        self.at(delay, What::Leased(node, life, sent));
        Ok(())
    }

    /// The registry's answer to a renewal that was sent at `sent`.
    pub fn leased(&mut self, node: usize, life: u64, sent: Duration) -> Checked {
        if !self.lives(node, life) {
            return Ok(());
        }
        let is_careless = self.neglect == Some(Neglect::CountFromBefore);
        let since = if is_careless { self.clock(node) } else { sent };
        self.give(node, Input::Lease(self.believes(since)))
    }
}
