//! The health of the registry, checked now and then: each problem is logged once, and the metrics have it.

use std::sync::Arc;
use std::time::Duration;

use forebay_backing::Result;
use forebay_base::lock::{Mutex, MutexGuard, Rank, sleep};
use forebay_cluster::member::Member;
use forebay_registry::Health;
use serde_json::{Value, json};

use super::{Daemon, saved};
use crate::registry_problems::{news_of, problems_of};

/// A quota is used up in hours, not in minutes.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The registry's newest health.
pub struct Found(Mutex<Option<Health>>);

impl Default for Found {
    fn default() -> Found {
        Found(Mutex::new(Rank::DaemonNotes, None))
    }
}

impl Found {
    #[track_caller]
    fn lock(&self) -> MutexGuard<'_, Option<Health>> {
        self.0.lock()
    }

    pub fn newest(&self) -> Option<Health> {
        self.lock().clone()
    }

    /// The problems that are new since the last look, and whether the last problem is gone.
    fn note(&self, health: Health) -> (Vec<String>, bool) {
        let before = self.lock().replace(health.clone());
        let had = before.as_ref().is_some_and(|before| !problems_of(before).is_empty());
        (news_of(before.as_ref(), &health), had && problems_of(&health).is_empty())
    }
}

impl Daemon {
    /// Checks the registry for as long as the daemon lives.
    pub fn watch_registry(self: &Arc<Daemon>) {
        let Some(member) = self.member.clone() else { return };
        let daemon = Arc::downgrade(self);
        super::spawn("registry", move || {
            while let Some(daemon) = daemon.upgrade() {
                daemon.look_at_registry(&member);
                drop(daemon);
                sleep(LOOK_EVERY);
            }
        });
    }

    fn look_at_registry(&self, member: &Member) {
        // The code that needs the registry reports that it does not answer.
        let Ok(health) = member.registry_health() else { return };
        if self.registry.newest().is_none_or(|before| before.identity != health.identity) {
            saved::store_registry(&self.run, &health.identity);
        }
        let (news, is_over) = self.registry.note(health);
        news.iter().for_each(|problem| tracing::warn!("the registry: {problem}"));
        if is_over {
            tracing::info!("nothing is wrong with the registry any more");
        }
    }

    /// The registry's problems now, each with its remedy.
    pub fn registry_problems(&self, member: &Member) -> Result<Value> {
        Ok(json!(problems_of(&member.registry_health()?)))
    }
}
