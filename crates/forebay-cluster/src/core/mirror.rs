//! The registry's keys of the store, as the watch has told them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forebay_backing::FileKey;
use forebay_registry::{Entry, Event, Revision};
use serde::de::DeserializeOwned;

use super::{Process, Processes};
use crate::keys;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    pub member: String,
    pub path: String,
    pub revision: Revision,
    /// The number stays the same when the claim is taken over.
    pub number: u64,
    pub taken_from: Vec<keys::TakenFrom>,
}

/// The meaning of a change.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    Claimed {
        file: FileKey,
        by: String,
    },
    /// A member that had claimed the file before `at` no longer has it.
    Unclaimed {
        file: FileKey,
        by: String,
        at: Revision,
    },
    Given {
        file: FileKey,
        by: String,
        at: Revision,
    },
}

#[derive(Debug, Default)]
pub struct Mirror {
    prefix: String,
    pub revision: Revision,
    pub claims: BTreeMap<FileKey, Claimed>,
    /// The files of `claims` by member.
    pub claims_of: BTreeMap<String, BTreeSet<FileKey>>,
    pub creates: BTreeMap<FileKey, BTreeMap<String, Revision>>,
    /// Read grants, and when each was put.
    pub grants: BTreeMap<String, Revision>,
    /// Members whose grants are to go, since another member gets no answer from them.
    pub called: BTreeSet<String>,
    pub alive: BTreeSet<String>,
    pub members: BTreeMap<String, (keys::Member, Revision)>,
    /// The processes of `members`, which the ends of claims share.
    pub processes: Arc<Processes>,
    pub partners: BTreeMap<String, (keys::Partners, Revision)>,
    pub fenced: BTreeMap<String, (keys::Fenced, Revision)>,
    /// Whether `alive`, `members`, `partners` or `fenced` has changed since the last look.
    pub has_moved: bool,
    pub gate: Option<(keys::Gate, Revision)>,
}

fn parse<T: DeserializeOwned>(entry: &Entry) -> Option<T> {
    serde_json::from_slice(&entry.value).ok()
}

/// Sets or deletes one key of a kind that has one key for each member.
fn set<T: DeserializeOwned>(
    all: &mut BTreeMap<String, (T, Revision)>,
    name: &str,
    put: Option<&Entry>,
    revision: Revision,
) {
    match put.and_then(parse) {
        Some(value) => _ = all.insert(name.into(), (value, revision)),
        None => _ = all.remove(name),
    }
}

impl Mirror {
    pub fn new(prefix: String) -> Mirror {
        Mirror { prefix, ..Mirror::default() }
    }

    pub fn key(&self, rest: &str) -> String {
        format!("{}{rest}", self.prefix)
    }

    /// Replaces all keys. Returns the differences, and the files given back since, as the news that the
    /// watch would have told.
    pub fn snapshot(&mut self, revision: Revision, entries: Vec<Entry>) -> Vec<News> {
        let mut anew = Mirror::new(self.prefix.clone());
        let mut news = Vec::new();
        let mut given = Vec::new();
        for entry in entries {
            match anew.apply(Event::Put(entry.clone())) {
                Some(news @ News::Given { .. }) if entry.revision > self.revision => {
                    given.push(news);
                }
                _ => {}
            }
        }
        anew.revision = revision;
        anew.has_moved = true;
        for (&file, was) in &self.claims {
            let is = anew.claims.get(&file);
            if is.is_none_or(|is| is.revision != was.revision) {
                let at = is.map_or(revision, |is| is.revision);
                news.push(News::Unclaimed { file, by: was.member.clone(), at });
            }
        }
        news.extend(given);
        for (&file, is) in &anew.claims {
            if self.claims.get(&file).is_none_or(|was| was.revision != is.revision) {
                news.push(News::Claimed { file, by: is.member.clone() });
            }
        }
        *self = anew;
        news
    }

    pub fn apply(&mut self, event: Event) -> Option<News> {
        let rest = event.key().strip_prefix(&self.prefix)?.to_string();
        let (kind, name) = rest.split_once('/').unwrap_or((&rest, ""));
        let put = match &event {
            Event::Put(entry) => Some(entry),
            Event::Deleted { .. } => None,
        };
        let revision = event.revision();
        match kind {
            "claims" => {
                let file = keys::parse_file(name)?;
                let was = self.claims.remove(&file).map(|claim| claim.member);
                if let Some(of) = was.as_ref().and_then(|was| self.claims_of.get_mut(was)) {
                    of.remove(&file);
                }
                match put.and_then(parse::<keys::Claim>) {
                    Some(keys::Claim { member, path, number, taken_from }) => {
                        let by = member.clone();
                        let number = if number == 0 { revision.0 } else { number };
                        let claimed = Claimed { member, path, revision, number, taken_from };
                        self.claims.insert(file, claimed);
                        self.claims_of.entry(by.clone()).or_default().insert(file);
                        return Some(News::Claimed { file, by });
                    }
                    None => return Some(News::Unclaimed { file, by: was?, at: revision }),
                }
            }
            "given" => {
                let file = keys::parse_file(name)?;
                let by = parse::<keys::Given>(put?)?.by;
                return Some(News::Given { file, by, at: revision });
            }
            "creates" => self.creates(name, put.is_some(), revision)?,
            "grants" => match put {
                Some(_) => _ = self.grants.insert(name.into(), revision),
                None => _ = self.grants.remove(name),
            },
            "called" => match put {
                Some(_) => _ = self.called.insert(name.into()),
                None => _ = self.called.remove(name),
            },
            "alive" => {
                self.has_moved = true;
                match put {
                    Some(_) => _ = self.alive.insert(name.into()),
                    None => _ = self.alive.remove(name),
                }
            }
            "members" => {
                self.has_moved = true;
                set(&mut self.members, name, put, revision);
                self.note_process(name);
            }
            "partners" => {
                self.has_moved = true;
                set(&mut self.partners, name, put, revision);
            }
            "fenced" => {
                self.has_moved = true;
                set(&mut self.fenced, name, put, revision);
            }
            "gate" => self.gate = put.and_then(parse).map(|gate| (gate, revision)),
            _ => {}
        }
        None
    }

    fn note_process(&mut self, name: &str) {
        let now = self.members.get(name).map(|(member, _)| Process::from(member));
        if self.processes.get(name) != now.as_ref() {
            let all = Arc::make_mut(&mut self.processes);
            all.remove(name);
            all.extend(now.map(|now| (name.to_string(), now)));
        }
    }

    /// A `creates` key, of a directory and a member.
    fn creates(&mut self, name: &str, is_put: bool, revision: Revision) -> Option<()> {
        let (dir, member) = name.split_once('/')?;
        let dir = keys::parse_file(dir)?;
        let members = self.creates.entry(dir).or_default();
        match is_put {
            true => _ = members.insert(member.into(), revision),
            false => _ = members.remove(member),
        }
        if members.is_empty() {
            self.creates.remove(&dir);
        }
        Some(())
    }

    /// Members other than `me` with any claim or with `creates`.
    pub fn holders(&self, me: &str) -> BTreeSet<String> {
        let claims = self.claims.values().map(|claim| &claim.member);
        let creates = self.creates.values().flat_map(|creators| creators.keys());
        claims.chain(creates).filter(|member| *member != me).cloned().collect()
    }
}
