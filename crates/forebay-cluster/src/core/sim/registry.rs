//! A model of the registry: one order of commits, compared and applied whole.

use std::collections::BTreeMap;

use forebay_registry::{Change, Commit, Entry, Event, Outcome, Revision};

#[derive(Default)]
pub struct Model {
    pub revision: u64,
    pub keys: BTreeMap<String, Entry>,
    pub log: Vec<(u64, Event)>,
}

impl Model {
    pub fn commit(&mut self, commit: &Commit) -> Outcome {
        let holds = |c: &forebay_registry::Compare| c.holds(self.keys.get(c.key()));
        if !commit.compares.iter().all(holds) {
            return Outcome::Refused(Revision(self.revision));
        }
        self.revision += 1;
        let revision = Revision(self.revision);
        for change in &commit.changes {
            let event = match change.clone() {
                Change::Put { key, value, lease } => {
                    let entry = Entry { key: key.clone(), value, revision, lease };
                    self.keys.insert(key, entry.clone());
                    Event::Put(entry)
                }
                Change::Delete { key } => {
                    self.keys.remove(&key);
                    Event::Deleted { key, revision }
                }
                Change::DeletePrefix { .. } => unreachable!("the core deletes keys by name"),
            };
            self.log.push((revision.0, event));
        }
        Outcome::Committed(revision)
    }

    pub fn after(&self, revision: u64) -> Vec<Event> {
        let from = self.log.partition_point(|(r, _)| *r <= revision);
        self.log[from..].iter().map(|(_, event)| event.clone()).collect()
    }

    pub fn snapshot(&self) -> (Revision, Vec<Entry>) {
        (Revision(self.revision), self.keys.values().cloned().collect())
    }

    /// The keys as a lagging member of the registry has them.
    pub fn snapshot_at(&self, upto: u64) -> (Revision, Vec<Entry>) {
        let mut keys = BTreeMap::new();
        for (_, event) in self.log.iter().take_while(|(revision, _)| *revision <= upto) {
            match event {
                Event::Put(entry) => _ = keys.insert(entry.key.clone(), entry.clone()),
                Event::Deleted { key, .. } => _ = keys.remove(key),
            }
        }
        (Revision(upto), keys.into_values().collect())
    }
}
