//! What the registry says of itself, looked at now and then: said in the log once, and told to whoever collects metrics.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use forebay_backing::Result;
use forebay_cluster::member::Member;
use forebay_registry::Health;
use serde_json::{Value, json};

use super::Daemon;
use crate::registry_problems::problems_of;

/// A quota is used up in hours, not in minutes.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// The newest that the registry said.
#[derive(Default)]
pub struct Found(Mutex<Option<Health>>);

impl Found {
    fn lock(&self) -> MutexGuard<'_, Option<Health>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn newest(&self) -> Option<Health> {
        self.lock().clone()
    }

    /// What has been wrong since this look, and whether something was before it.
    fn note(&self, health: Health) -> (Vec<String>, bool) {
        let news = problems_of(&health);
        let before = self.lock().replace(health).map(|health| problems_of(&health));
        let had = before.is_some_and(|before| !before.is_empty());
        (news, had)
    }
}

impl Daemon {
    /// Looks at the registry for as long as the daemon is there.
    pub fn watch_registry(self: &Arc<Daemon>) {
        let Some(member) = self.member.clone() else { return };
        let daemon = Arc::downgrade(self);
        super::spawn("registry", move || {
            while let Some(daemon) = daemon.upgrade() {
                daemon.look_at_registry(&member);
                drop(daemon);
                thread::sleep(LOOK_EVERY);
            }
        });
    }

    fn look_at_registry(&self, member: &Member) {
        // A registry that does not answer is told of by those who need it.
        let Ok(health) = member.registry_health() else { return };
        match self.registry.note(health) {
            (problems, false) => {
                problems.iter().for_each(|problem| tracing::warn!("the registry: {problem}"));
            }
            (problems, true) if problems.is_empty() => {
                tracing::info!("nothing is wrong with the registry any more");
            }
            _ => {}
        }
    }

    /// What is wrong with the registry now, each with what to do about it.
    pub fn registry_problems(&self, member: &Member) -> Result<Value> {
        Ok(json!(problems_of(&member.registry_health()?)))
    }
}
