//! The trials of `forebay registry check`. They write only keys of their own, which hang on a lease.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_backing::Result;
use forebay_base::lock::sleep;
use forebay_registry::{Commit, Health, Lease, Registry, Revision, Seen};

use crate::registry_problems::problems_of;

/// Commits whose time is measured.
const COMMITS: usize = 20;

/// A lease long enough for a slow registry, and short enough to see its renewal.
const LEASE: Duration = Duration::from_secs(3);

/// A watch that takes longer is broken.
const SOON: Duration = Duration::from_secs(5);

pub struct Probe {
    pub health: Health,
    pub commits: Option<Commits>,
    pub lease: Option<Duration>,
    /// The problems, each with its remedy.
    pub problems: Vec<String>,
}

pub struct Commits {
    pub count: usize,
    pub median_ms: f64,
}

impl Probe {
    /// # Errors
    ///
    /// If the registry does not answer, or cannot be read: nothing more can be reported then.
    pub fn of(registry: &Arc<dyn Registry>) -> Result<Probe> {
        registry.barrier()?;
        let health = registry.health()?;
        let problems = problems_of(&health);
        let mut probe = Probe { health, commits: None, lease: None, problems };
        if let Err(error) = probe.write(&**registry) {
            probe.problems.push(error.to_string());
        }
        Ok(probe)
    }

    fn write(&mut self, registry: &dyn Registry) -> Result<()> {
        let lease = registry.lease(LEASE)?;
        let key = format!("check/{}-{}", std::process::id(), lease.id());
        let commit = |value: usize| Commit::new().put_leased(&key, value.to_string(), lease.id());
        let mut times = Vec::with_capacity(COMMITS);
        let before = registry.barrier()?;
        for value in 0..COMMITS {
            let began = Instant::now();
            registry.commit(&commit(value))?;
            times.push(began.elapsed());
        }
        times.sort_unstable();
        let median_ms = times[COMMITS / 2].as_secs_f64() * 1e3;
        self.commits = Some(Commits { count: COMMITS, median_ms });
        self.watch(registry, before)?;
        match kept(&*lease) {
            true => self.lease = Some(LEASE),
            false => self.problems.push(
                "a lease was granted and not renewed in its time: is the registry overloaded, or \
                 this machine?"
                    .into(),
            ),
        }
        lease.give_up()?;
        if registry.get(&key)?.0.is_some() {
            self.problems.push(format!("{key} stayed when its lease was given up"));
        }
        Ok(())
    }

    fn watch(&mut self, registry: &dyn Registry, after: Revision) -> Result<()> {
        let mut watch = registry.watch("check/", after)?;
        if !matches!(watch.next(SOON)?, Seen::Changes(_)) {
            self.problems.push(format!(
                "a watch was told of nothing within {SOON:?}: is there a proxy that holds answers back?"
            ));
        }
        Ok(())
    }
}

/// Whether the lease was renewed in its time.
fn kept(lease: &dyn Lease) -> bool {
    let began = Instant::now();
    let mut least = lease.remaining();
    while began.elapsed() < LEASE {
        let left = lease.remaining();
        if left > least {
            return true;
        }
        least = left;
        sleep(Duration::from_millis(20));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The probe also leaves no keys behind.
    #[test]
    fn a_registry_of_one_machine_is_sound() {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let address = dir.path().display().to_string();
        let registry = forebay_registry::open(&address).expect("it can be made");
        let probe = Probe::of(&registry).expect("it answers");
        assert_eq!(probe.problems, Vec::<String>::new());
        assert!(probe.commits.is_some() && probe.lease.is_some());
        assert!(registry.range("").expect("it answers").0.is_empty());
    }
}
