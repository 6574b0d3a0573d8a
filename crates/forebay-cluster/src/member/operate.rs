//! An operator's decisions about a dead member: that it has stopped for certain, that its bytes are given up, that it
//! does not come back.

use forebay_base::{Error, Kind, Result};
use forebay_registry::{Commit, Entry, Revision};
use serde::{Deserialize, Serialize};

use super::Member;
use super::join::{json, parse};
use crate::core::GIVEN_LEASE;
use crate::keys;

/// Claims in one commit, each with two changes, within the registry's limit of 128.
const BATCH: usize = 40;

/// A file whose newest bytes are not on the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    pub path: String,
    pub member: String,
    /// The member's process renews its lease: the bytes are flushed without an operator.
    pub alive: bool,
    /// Members that had the bytes before, and may still write to the store unless they are known to have stopped.
    #[serde(default)]
    pub taken_from: Vec<String>,
}

/// Whether the registry names `name` as a partner that has all of `home`'s newer bytes.
fn is_named(entries: &[Entry], prefix: &str, home: &str, partners: &Entry, name: &str) -> bool {
    let key = format!("{prefix}members/{home}");
    let member = entries.iter().find(|entry| entry.key == key).and_then(parse::<keys::Member>);
    let Some((member, partners)) = member.zip(parse::<keys::Partners>(partners)) else {
        return false;
    };
    let is_done = member.taken.as_ref().is_some_and(|taken| taken.done);
    !is_done
        && partners.epoch == member.living()
        && partners.in_sync.iter().any(|partner| partner == name)
}

/// A dead member, as the registry has it.
struct Dead {
    entry: Entry,
    member: keys::Member,
    prefix: String,
}

impl Member {
    /// The files of all members whose newer bytes the store lacks, by path.
    ///
    /// # Errors
    ///
    /// If the registry does not answer.
    pub fn missing(&self) -> Result<Vec<Missing>> {
        let prefix = format!("stores/{}/", self.store);
        let (entries, _) = self.registry.range(&prefix)?;
        let below = |entry: &Entry, dir: &str| {
            entry.key.strip_prefix(&prefix)?.strip_prefix(dir).map(str::to_string)
        };
        let alive: std::collections::BTreeSet<String> =
            entries.iter().filter_map(|entry| below(entry, "alive/")).collect();
        let claims = entries.iter().filter(|entry| below(entry, "claims/").is_some());
        let claims = claims.filter_map(parse::<keys::Claim>);
        let mut missing: Vec<Missing> = claims
            .map(|claim| Missing {
                alive: alive.contains(&claim.member),
                path: claim.path,
                member: claim.member,
                taken_from: claim.taken_from.into_iter().map(|from| from.member).collect(),
            })
            .collect();
        missing.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(missing)
    }

    fn dead(&self, name: &str) -> Result<Dead> {
        let prefix = format!("stores/{}/", self.store);
        let (entry, _) = self.registry.get(&format!("{prefix}members/{name}"))?;
        let usage = |what: String| Error::new(Kind::Usage, what);
        let unknown = || usage(format!("member {name}: this store has none of that name"));
        let entry = entry.ok_or_else(unknown)?;
        let member = parse(&entry).ok_or_else(unknown)?;
        let (alive, _) = self.registry.get(&format!("{prefix}alive/{name}"))?;
        match alive {
            Some(_) => Err(usage(format!(
                "member {name} is alive: unmount it there, or wait until its lease has run out (10 s)"
            ))),
            None => Ok(Dead { entry, member, prefix }),
        }
    }

    /// The members that have copies of a dead member's unflushed files, until all of those have been claimed; each
    /// with whether it is alive.
    fn heirs(&self, name: &str, dead: &Dead) -> Result<Vec<(String, bool)>> {
        let Dead { member, prefix, .. } = dead;
        if member.taken.as_ref().is_some_and(|taken| taken.done) {
            return Ok(Vec::new());
        }
        let (entry, _) = self.registry.get(&format!("{prefix}partners/{name}"))?;
        let partners = entry.as_ref().and_then(parse::<keys::Partners>);
        let partners = partners.filter(|it| it.epoch == member.living());
        let is_short = |heir: &String| member.taken.as_ref().is_some_and(|it| it.is_short(heir));
        let heirs = partners.map_or(vec![], |partners| partners.in_sync).into_iter();
        let lives = |heir: String| {
            let (alive, _) = self.registry.get(&format!("{prefix}alive/{heir}"))?;
            Ok((heir, alive.is_some()))
        };
        heirs.filter(|heir| !is_short(heir)).map(lives).collect()
    }

    fn commit_or(&self, commit: Commit, name: &str) -> Result<Revision> {
        self.registry.commit(&self.leased(commit)?)?.committed().ok_or_else(|| {
            Error::new(
                Kind::Unavailable,
                format!("member {name} has changed meanwhile: look, and try again"),
            )
        })
    }

    /// Records the operator's word that a dead member has stopped for certain: its machine is off, or cannot reach
    /// the store. Files that were taken over from it are compared with the store and then no longer held.
    ///
    /// # Errors
    ///
    /// [`Kind::Usage`] if the member is unknown or alive; errors of the registry.
    pub fn has_stopped(&self, name: &str) -> Result<()> {
        let Dead { entry, member, prefix } = self.dead(name)?;
        let fenced = keys::Fenced { epoch: member.living() };
        let commit = Commit::new()
            .if_unchanged(&entry)
            .if_absent(format!("{prefix}alive/{name}"))
            .put(format!("{prefix}fenced/{name}"), json(&fenced));
        self.commit_or(commit, name).map(drop)
    }

    /// Gives up a dead member's unflushed bytes: the store's bytes count from now on. Without `paths` all files;
    /// otherwise those with these paths, and those below them. If the member comes back it keeps its bytes aside, as
    /// conflicts. Returns the files that were given up. `without`: partners that have copies, are away, and are not
    /// waited for. They can still take over the files that are not given up, when they are back.
    ///
    /// # Errors
    ///
    /// [`Kind::Usage`] if the member is unknown or alive, or if another member has its bytes and takes its place, or
    /// may when it is back; errors of the registry. Files that were given up before stay given up.
    pub fn give_up(&self, name: &str, paths: &[String], without: &[String]) -> Result<Vec<String>> {
        let dead = self.dead(name)?;
        for (heir, is_alive) in self.heirs(name, &dead)? {
            let what = match is_alive {
                true => format!(
                    "member {name}: {heir} has copies of its newer bytes and takes its place: wait for that, or unmount {heir}"
                ),
                false if without.contains(&heir) => continue,
                false => format!(
                    "member {name}: {heir} has copies of its newer bytes and is away: mount it again; if its copies are to be given up, too, say --confirm {heir} besides"
                ),
            };
            return Err(Error::new(Kind::Usage, what));
        }
        let Dead { entry, mut member, prefix } = dead;
        let alive = format!("{prefix}alive/{name}");
        let epoch = member.living();
        member.epoch += 1;
        let mut taken = member.taken.take().unwrap_or(keys::Taken::by_nobody(epoch));
        member.taken = Some(taken.clone());
        let raised =
            Commit::new().if_unchanged(&entry).if_absent(&alive).put(&entry.key, json(&member));
        let revision = self.commit_or(raised, name)?;
        // From here on nothing more is claimed in the dead member's name.
        let (entries, _) = self.registry.range(&prefix)?;
        let below = |kind: &str| {
            let kind = format!("{prefix}{kind}/");
            entries.iter().filter(move |entry| entry.key.starts_with(&kind))
        };
        let creates = below("creates").filter(|entry| entry.key.rsplit('/').next() == Some(name));
        let creates: Vec<&Entry> = creates.collect();
        let claims =
            below("claims").filter_map(|entry| Some((entry, parse::<keys::Claim>(entry)?)));
        let claims = claims.filter(|(_, claim)| claim.member == name);
        let is_meant = |path: &String| {
            let path = std::path::Path::new(path);
            paths.is_empty() || paths.iter().any(|p| path.starts_with(p))
        };
        let (meant, rest): (Vec<_>, Vec<_>) =
            claims.map(|(entry, claim)| (entry, claim.path)).partition(|(_, path)| is_meant(path));
        let is_all = rest.is_empty() && (paths.is_empty() || creates.is_empty());
        // The directories go first: a member that comes back in the middle takes no file for new that was claimed
        // before.
        let dirs = creates.into_iter().filter(|_| paths.is_empty()).map(|entry| (entry, None));
        let files = meant.iter().map(|(claim, _)| {
            let file = claim.key.rsplit('/').next().unwrap_or_default();
            (*claim, Some(format!("{prefix}given/{file}")))
        });
        let all: Vec<(&Entry, Option<String>)> = dirs.chain(files).collect();
        let given = json(&keys::Given { by: name.into() });
        let mut batches: Vec<Commit> = all
            .chunks(BATCH)
            .map(|batch| {
                batch.iter().fold(Commit::new(), |commit, (entry, mark)| {
                    let commit = commit.if_unchanged(entry).delete(&entry.key);
                    match mark {
                        Some(mark) => commit.put_leased(mark, given.clone(), GIVEN_LEASE),
                        None => commit,
                    }
                })
            })
            .collect();
        if is_all && !taken.done {
            (taken.by, taken.done) = (self.name.clone(), true);
            member.taken = Some(taken);
            let last = batches.pop().unwrap_or_default();
            batches.push(last.put(&entry.key, json(&member)));
        }
        for mut commit in batches {
            let (key, revision) = (entry.key.clone(), revision);
            commit.compares.push(forebay_registry::Compare::Revision(key, revision));
            self.commit_or(commit, name)?;
        }
        Ok(meant.into_iter().map(|(_, path)| path).collect())
    }

    /// Removes a dead member for good: its name is free for another tier.
    ///
    /// # Errors
    ///
    /// [`Kind::Usage`] if the member is unknown, alive, has unflushed bytes, may still write over files that were
    /// taken over from it, or is named as a partner that has copies of another's; errors of the registry.
    pub fn remove(&self, name: &str) -> Result<()> {
        let Dead { entry, member, prefix } = self.dead(name)?;
        let (entries, _) = self.registry.range(&prefix)?;
        let has = |entry: &&Entry| {
            let rest = entry.key.strip_prefix(&prefix).unwrap_or_default();
            let claims = rest.starts_with("claims/")
                && parse::<keys::Claim>(entry).is_some_and(|claim| claim.member == name);
            claims || (rest.starts_with("creates/") && rest.rsplit('/').next() == Some(name))
        };
        let left = entries.iter().filter(has).count();
        if left > 0 {
            let what = format!(
                "member {name} holds {left} files and directories: mount its tier again, or give up what it has first"
            );
            return Err(Error::new(Kind::Usage, what));
        }
        // Another tier under this name is known by its own starts, which say nothing of this member's processes.
        let fenced = entries.iter().find(|entry| entry.key == format!("{prefix}fenced/{name}"));
        let said = fenced.and_then(parse::<keys::Fenced>).map_or(0, |fenced| fenced.epoch);
        let stopped = said.max(member.stopped());
        let writes = |from: &keys::TakenFrom| from.member == name && from.epoch > stopped;
        let held =
            entries.iter().filter(|entry| entry.key.starts_with(&format!("{prefix}claims/")));
        let held = held.filter_map(parse::<keys::Claim>);
        let held = held.filter(|claim| claim.taken_from.iter().any(writes)).count();
        if held > 0 {
            let what = format!(
                "{held} files were taken over from member {name}, which may still write to them: once its machine is off for certain, say so first, with 'forebay member stopped'"
            );
            return Err(Error::new(Kind::Usage, what));
        }
        let mut commit =
            Commit::new().if_unchanged(&entry).if_absent(format!("{prefix}alive/{name}"));
        // Another tier under this name would be taken for the partner that has the copies.
        for partners in
            entries.iter().filter(|entry| entry.key.starts_with(&format!("{prefix}partners/")))
        {
            let home = partners.key.rsplit('/').next().unwrap_or_default();
            if home != name && is_named(&entries, &prefix, home, partners, name) {
                let what = format!(
                    "member {name} is a partner of {home}: wait until {home} has another, or sync a file on {home}; if {home} is dead too, mount its tier again, or give up what it has first"
                );
                return Err(Error::new(Kind::Usage, what));
            }
            commit = commit.if_unchanged(partners);
        }
        // Members that took files over from it still look up to which epoch it has stopped.
        for kind in ["members", "partners"] {
            commit = commit.delete(format!("{prefix}{kind}/{name}"));
        }
        let epoch = member.epoch;
        commit = commit.put(format!("{prefix}removed/{name}"), json(&keys::Removed { epoch }));
        self.commit_or(commit, name).map(drop)
    }
}
