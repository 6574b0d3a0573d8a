//! The files of all members that are not on the store: the registry knows their names, and the members that have
//! the bytes know sizes and ages. For a dead member, its partners answer, which have copies.

use std::collections::BTreeMap;
use std::path::Path;

use forebay_backing::Result;
use forebay_cluster::member::{Member, Missing, Seen};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Daemon;
use crate::moment::unix_secs;
use crate::wire::MissingFile;

/// The limits of one request to another member, in paths and in bytes of their text: with these the request and its
/// answer are within the limits of the connection.
const PATHS_MAX: usize = 2000;
const TEXT_MAX: usize = 256 << 10;

/// Body of `GET /v1/held`: asks for the bytes of these files that are newer than the store's. `of` is the asked
/// member, or a member of which it has copies.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    of: String,
    paths: Vec<String>,
}

/// The bytes of a file that a member holds.
#[derive(Clone, Serialize, Deserialize)]
struct Held {
    bytes: u64,
    age_secs: Option<f64>,
}

type ByPath = BTreeMap<String, Held>;

impl Daemon {
    pub fn held_json(&self, asked: Asked) -> Result<Value> {
        Ok(json!(self.held(&asked)?))
    }

    fn held(&self, asked: &Asked) -> Result<ByPath> {
        let own = self.member.as_ref().is_some_and(|member| member.name() == asked.of);
        let mut all = if own { self.own()? } else { self.copies_of(&asked.of) };
        Ok(asked.paths.iter().filter_map(|path| all.remove_entry(path)).collect())
    }

    fn own(&self) -> Result<ByPath> {
        let files = self.engine.ops.list(Path::new(""))?.into_iter();
        let held = files.map(|file| {
            let held = Held { bytes: file.dirty_bytes, age_secs: file.dirty_age_secs };
            (file.path.to_string_lossy().into_owned(), held)
        });
        Ok(held.collect())
    }

    /// Copies that are kept for `home`. A copy is as old as the last change that it has.
    fn copies_of(&self, home: &str) -> ByPath {
        let now = unix_secs();
        let copies = self.engine.copies.list(home).into_iter();
        let held = copies.map(|copy| {
            let age = (now - copy.mtime.sec as f64 - f64::from(copy.mtime.nsec) / 1e9).max(0.0);
            let held = Held { bytes: copy.bytes, age_secs: Some(age) };
            (copy.path.to_string_lossy().into_owned(), held)
        });
        held.collect()
    }

    pub fn missing_json(&self) -> Result<Value> {
        let member = self.one_of_many()?;
        let missing = member.missing()?;
        let seen = member.overview()?.members;
        let mut by_member: BTreeMap<String, Vec<Missing>> = BTreeMap::new();
        for file in missing {
            by_member.entry(file.member.clone()).or_default().push(file);
        }
        let mut files = Vec::new();
        for (home, missing) in by_member {
            let known = self.known(member, &seen, &home, &missing);
            files.extend(missing.into_iter().map(|file| {
                let (said_by, held) = match &known {
                    Some((by, held)) => (Some(by.clone()), held.get(&file.path).cloned()),
                    None => (None, None),
                };
                // Without an entry the file's own member has nothing newer than the store; a partner may not know.
                let is_home = said_by.as_ref() == Some(&home);
                let bytes = held.as_ref().map(|held| held.bytes).or(is_home.then_some(0));
                MissingFile { file, bytes, age_secs: held.and_then(|held| held.age_secs), said_by }
            }));
        }
        files.sort_by(|a, b| a.file.path.cmp(&b.file.path));
        Ok(json!(files))
    }

    /// The first of a member and its partners that answers, with its answer.
    fn known(
        &self,
        member: &Member,
        seen: &[Seen],
        home: &str,
        missing: &[Missing],
    ) -> Option<(String, ByPath)> {
        let named = |name: &str| seen.iter().find(|seen| seen.name == name);
        let is_alive = |name: &str| named(name).is_some_and(|seen| seen.alive);
        let partners = named(home).map(|seen| seen.in_sync.clone()).unwrap_or_default();
        let mut have = std::iter::once(home.to_string()).chain(partners);
        have.find_map(|who| {
            let known = is_alive(&who).then(|| self.held_by(member, &who, home, missing))?.ok()?;
            Some((who, known))
        })
    }

    fn held_by(
        &self,
        member: &Member,
        who: &str,
        home: &str,
        missing: &[Missing],
    ) -> Result<ByPath> {
        let mut found = ByPath::new();
        for paths in batches(missing) {
            let asked = Asked { of: home.into(), paths };
            let held = match who == member.name() {
                true => self.held(&asked)?,
                false => {
                    let answer = member.ask_daemon(who, "GET", "/v1/held", json!(asked))?;
                    serde_json::from_value(answer).unwrap_or_default()
                }
            };
            found.extend(held);
        }
        Ok(found)
    }
}

fn batches(missing: &[Missing]) -> Vec<Vec<String>> {
    let mut batches = vec![Vec::new()];
    let mut text = 0;
    for Missing { path, .. } in missing {
        let last = batches.last().map_or(0, Vec::len);
        if last >= PATHS_MAX || (last > 0 && text + path.len() > TEXT_MAX) {
            batches.push(Vec::new());
            text = 0;
        }
        text += path.len();
        batches.last_mut().expect("there is one").push(path.clone());
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_never_longer_than_may_be_asked() {
        let missing = |count: usize, length: usize| -> Vec<Missing> {
            let (member, alive, taken_from) = ("n1".to_string(), true, Vec::new());
            let file = Missing { path: "p".repeat(length), member, alive, taken_from };
            vec![file; count]
        };
        let sizes = |all: &[Missing]| batches(all).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(&missing(4500, 10)), [2000, 2000, 500]);
        assert_eq!(sizes(&missing(130, 4096)), [64, 64, 2]);
        assert_eq!(sizes(&[]), [0]);
    }
}
