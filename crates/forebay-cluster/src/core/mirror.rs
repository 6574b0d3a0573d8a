//! The registry's keys of the store, as the watch has told them.

use std::collections::{BTreeMap, BTreeSet};

use forebay_backing::FileKey;
use forebay_registry::{Entry, Event, Revision};
use serde::de::DeserializeOwned;

use crate::keys;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    pub member: String,
    pub path: String,
    /// The directory that it was claimed in; `None`: any.
    pub dir: Option<FileKey>,
    pub revision: Revision,
    /// It stays the same when the claim is taken over.
    pub number: u64,
    pub taken_from: Vec<keys::TakenFrom>,
}

/// What a change came to.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    Claimed { file: FileKey, by: String },
    Unclaimed { file: FileKey, by: String },
    Given { file: FileKey, by: String },
    Creates { dir: FileKey, by: String, revision: Revision },
}

#[derive(Debug, Default)]
pub struct Mirror {
    prefix: String,
    pub revision: Revision,
    pub claims: BTreeMap<FileKey, Claimed>,
    /// The same by member.
    pub claims_of: BTreeMap<String, BTreeSet<FileKey>>,
    pub creates: BTreeMap<FileKey, BTreeMap<String, Revision>>,
    /// Read grants.
    pub grants: BTreeMap<FileKey, BTreeMap<String, Revision>>,
    pub alive: BTreeSet<String>,
    pub members: BTreeMap<String, (keys::Member, Revision)>,
    pub partners: BTreeMap<String, (keys::Partners, Revision)>,
    pub fenced: BTreeMap<String, (keys::Fenced, Revision)>,
    /// One of the four above has changed since this was last taken.
    pub has_moved: bool,
    pub gate: Option<(keys::Gate, Revision)>,
}

fn parse<T: DeserializeOwned>(entry: &Entry) -> Option<T> {
    serde_json::from_slice(&entry.value).ok()
}

/// One key of a kind that has one for each directory and member.
fn set_in_dir(
    all: &mut BTreeMap<FileKey, BTreeMap<String, Revision>>,
    name: &str,
    is_put: bool,
    revision: Revision,
) -> Option<(FileKey, String)> {
    let (dir, member) = name.split_once('/')?;
    let dir = keys::parse_file(dir)?;
    let members = all.entry(dir).or_default();
    match is_put {
        true => _ = members.insert(member.into(), revision),
        false => _ = members.remove(member),
    }
    if members.is_empty() {
        all.remove(&dir);
    }
    Some((dir, member.into()))
}

/// One key of a kind that has one for each member.
fn set<T: DeserializeOwned>(
    all: &mut BTreeMap<String, (T, Revision)>,
    name: &str,
    put: Option<&Entry>,
    revision: Revision,
) -> bool {
    match put.and_then(parse) {
        Some(value) => _ = all.insert(name.into(), (value, revision)),
        None => _ = all.remove(name),
    }
    true
}

impl Mirror {
    pub fn new(prefix: String) -> Mirror {
        Mirror { prefix, ..Mirror::default() }
    }

    pub fn key(&self, rest: &str) -> String {
        format!("{}{rest}", self.prefix)
    }

    /// All keys anew. What differs, and what was given since, is told as if the watch had told it.
    pub fn snapshot(&mut self, revision: Revision, entries: Vec<Entry>) -> Vec<News> {
        let mut anew = Mirror::new(self.prefix.clone());
        let mut news = Vec::new();
        let mut given = Vec::new();
        for entry in entries {
            match anew.apply(Event::Put(entry.clone())) {
                Some(News::Given { file, by }) if entry.revision > self.revision => {
                    given.push(News::Given { file, by });
                }
                _ => {}
            }
        }
        anew.revision = revision;
        anew.has_moved = true;
        for (&file, was) in &self.claims {
            let is = anew.claims.get(&file);
            if is.is_none_or(|is| is.revision != was.revision) {
                news.push(News::Unclaimed { file, by: was.member.clone() });
            }
        }
        news.extend(given);
        for (&file, is) in &anew.claims {
            if self.claims.get(&file).is_none_or(|was| was.revision != is.revision) {
                news.push(News::Claimed { file, by: is.member.clone() });
            }
        }
        for (&dir, is) in &anew.creates {
            let was = self.creates.get(&dir);
            let is = is.iter().filter(|(by, revision)| {
                was.and_then(|was| was.get(*by)).is_none_or(|was| was != *revision)
            });
            news.extend(is.map(|(by, &revision)| News::Creates { dir, by: by.clone(), revision }));
        }
        *self = anew;
        news
    }

    /// Another member than `me` with a read grant of the directory, or of any, that is older.
    pub fn granted_before(
        &self,
        me: &str,
        dir: Option<FileKey>,
        revision: Revision,
    ) -> Option<&String> {
        let all = match dir {
            Some(dir) => self.grants.range(dir..=dir),
            None => self.grants.range(..),
        };
        let mut holders = all.flat_map(|(_, by)| by);
        holders.find(|(by, since)| *by != me && **since < revision).map(|(by, _)| by)
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
                    Some(keys::Claim { member, path, dir, number, taken_from }) => {
                        let by = member.clone();
                        let number = if number == 0 { revision.0 } else { number };
                        let dir = keys::parse_file(&dir);
                        let claimed = Claimed { member, path, dir, revision, number, taken_from };
                        self.claims.insert(file, claimed);
                        self.claims_of.entry(by.clone()).or_default().insert(file);
                        return Some(News::Claimed { file, by });
                    }
                    None => return Some(News::Unclaimed { file, by: was? }),
                }
            }
            "given" => {
                let file = keys::parse_file(name)?;
                let by = parse::<keys::Given>(put?)?.by;
                return Some(News::Given { file, by });
            }
            "creates" => {
                let (dir, by) = set_in_dir(&mut self.creates, name, put.is_some(), revision)?;
                return put.map(|_| News::Creates { dir, by, revision });
            }
            "grants" => _ = set_in_dir(&mut self.grants, name, put.is_some(), revision),
            "alive" => {
                self.has_moved = true;
                match put {
                    Some(_) => _ = self.alive.insert(name.into()),
                    None => _ = self.alive.remove(name),
                }
            }
            "members" => self.has_moved |= set(&mut self.members, name, put, revision),
            "partners" => self.has_moved |= set(&mut self.partners, name, put, revision),
            "fenced" => self.has_moved |= set(&mut self.fenced, name, put, revision),
            "gate" => self.gate = put.and_then(parse).map(|gate| (gate, revision)),
            _ => {}
        }
        None
    }

    /// Members other than `me` with any claim or with `creates`.
    pub fn holders(&self, me: &str) -> BTreeSet<String> {
        let claims = self.claims.values().map(|claim| &claim.member);
        let creates = self.creates.values().flat_map(|creators| creators.keys());
        claims.chain(creates).filter(|member| *member != me).cloned().collect()
    }
}
