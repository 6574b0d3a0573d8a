//! The leases of an embedded registry, and when each runs out.
//!
//! A deadline lives in memory only. After a restart each lease has its whole time again, as with etcd
//! after a change of its leader: a living holder renews it, and the keys of a dead holder stand that
//! much longer.

use std::collections::HashMap;
use std::time::Duration;

use crate::{Error, Kind, LeaseId, Result};

/// One for each member and each daemon of a machine; more leases are a mistake of some program.
const LEASES_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub struct Leases(HashMap<LeaseId, Held>);

#[derive(Debug)]
struct Held {
    ttl: Duration,
    deadline: Duration,
}

impl Leases {
    pub fn add(&mut self, id: LeaseId, ttl: Duration, now: Duration) -> Result<()> {
        if self.0.len() >= LEASES_MAX {
            let text = format!("a registry of one machine has at most {LEASES_MAX} leases");
            return Err(Error::new(Kind::Usage, text));
        }
        self.0.insert(id, Held { ttl, deadline: now + ttl });
        Ok(())
    }

    /// Renews a lease. `None` if the lease has run out, or never was.
    pub fn renew(&mut self, id: LeaseId, now: Duration) -> Option<Duration> {
        let held = self.0.get_mut(&id).filter(|held| held.deadline > now)?;
        held.deadline = now + held.ttl;
        Some(held.ttl)
    }

    pub fn stands(&self, id: LeaseId, now: Duration) -> bool {
        self.0.get(&id).is_some_and(|held| held.deadline > now)
    }

    /// Makes the lease run out now.
    pub fn run_out(&mut self, id: LeaseId, now: Duration) {
        if let Some(held) = self.0.get_mut(&id) {
            held.deadline = held.deadline.min(now);
        }
    }

    /// Forgets a lease whose keys are gone.
    pub fn forget(&mut self, id: LeaseId) {
        self.0.remove(&id);
    }

    pub fn next_deadline(&self) -> Option<Duration> {
        self.0.values().map(|held| held.deadline).min()
    }

    /// The leases that have run out, in that order.
    pub fn due(&self, now: Duration) -> Vec<LeaseId> {
        let mut due: Vec<_> = self
            .0
            .iter()
            .filter(|(_, held)| held.deadline <= now)
            .map(|(id, h)| (h.deadline, *id))
            .collect();
        due.sort_unstable();
        due.into_iter().map(|(_, id)| id).collect()
    }
}
