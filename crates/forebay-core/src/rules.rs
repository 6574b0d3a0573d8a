//! Admission rules: which files, opened by which programs, may come into the tier.
//!
//! Pure, but for [`Process`], which the caller looks up. Rules are tried in order and the first
//! that matches decides; without a match the file is allowed. All conditions of a rule must hold; a
//! condition with several values holds if one of them does.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_base::glob::Pattern;
use serde::{Deserialize, Serialize};

use crate::served::{Requests, Served, Tally};
use forebay_base::lock::{Mutex, Rank};

/// Whether bytes may come into the tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Admit {
    #[default]
    Allow,
    Deny,
}

/// The decision for one handle, when it is opened.
#[derive(Debug, Clone, Default)]
pub struct Admission {
    pub read: Admit,
    pub write: Admit,
    pub quota: Quota,
    /// The rule that decided, which counts the handle's requests.
    pub rule: Option<Arc<Active>>,
}

impl Admission {
    /// Whether the handle's requests may pass the daemon.
    pub fn is_free(&self) -> bool {
        self.read == Admit::Allow && self.write == Admit::Allow && self.quota == Quota::Unlimited
    }

    pub fn note_read(&self, served: Served, bytes: u64) {
        if let Some(active) = &self.rule {
            active.reads.note(served, bytes);
        }
    }

    pub fn note_write(&self, served: Served, bytes: u64) {
        if let Some(active) = &self.rule {
            active.writes.note(served, bytes);
        }
    }
}

/// Whether a rule limits the bytes of its files in the tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Quota {
    #[default]
    Unlimited,
    Limited,
}

/// An admission rule in force: the bytes that its files take of the tier, and the requests of the
/// handles it decided for, since it was added.
#[derive(Debug, Clone)]
pub struct RuleUse {
    pub rule: Rule,
    pub used_bytes: u64,
    pub dirty_bytes: u64,
    pub reads: Requests,
    pub writes: Requests,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    #[default]
    Allow,
    Deny,
    DenyReads,
    DenyWrites,
}

/// One rule, as it is written. Paths are relative to the root of the mount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Rule {
    pub name: String,
    pub action: Action,
    /// `*` and `?` within a name, `**` over directories. Without a slash: a name in any directory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uid: Vec<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gid: Vec<u32>,
    /// A process and its descendants; the rule ends with the last of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// A control group (version 2) and those below it, such as `system.slice/backup.service`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cgroup: Vec<String>,
    /// Files of at least this many bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_min: Option<u64>,
    /// Files of at most this many bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_max: Option<u64>,
    /// Bytes of the tier for the rule's files together: new bytes replace those that have been
    /// there longest, and are denied if none of these can be evicted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<u64>,
    /// The rule's files are not evicted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pin: bool,
}

/// The program that opens a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Origin {
    pub uid: u32,
    pub gid: u32,
    /// 0 if unknown.
    pub pid: u32,
}

/// One process: pids are used again, so its start time tells it apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcId {
    pub pid: u32,
    /// Clock ticks from the machine's boot to its start.
    pub started: u64,
}

/// The facts about a process that rules ask for.
#[derive(Debug, Clone, Default)]
pub struct Process {
    /// The process itself, its parent, and so on.
    pub line: Vec<ProcId>,
    pub cgroup: String,
}

/// How long a rule whose files gave no bytes is not asked again, in milliseconds: the search goes
/// over everything in the tier.
const REST_MS: u64 = 100;

/// A rule in force, with the bytes of the tier that its files take.
#[derive(Debug)]
pub struct Active {
    pub rule: Rule,
    /// The path patterns of the rule, which is valid.
    paths: Vec<Pattern>,
    pub used: AtomicU64,
    /// The part of `used` that is dirty.
    pub dirty: AtomicU64,
    pub(crate) reads: Tally,
    pub(crate) writes: Tally,
    /// The time from which the rule may be asked for clean bytes again, in milliseconds since the
    /// epoch.
    asked_from: AtomicU64,
    /// Processes that the rule follows.
    family: Mutex<Vec<ProcId>>,
}

impl Active {
    /// `first` is the process that the rule names, if it names one.
    pub fn new(rule: Rule, first: Option<ProcId>) -> Arc<Active> {
        let family = Mutex::new(Rank::Room, first.into_iter().collect());
        let (used, dirty, reads, writes, asked_from) = Default::default();
        let paths = rule.path.iter().filter_map(|pattern| pattern.parse().ok()).collect();
        Arc::new(Active { rule, paths, used, dirty, reads, writes, asked_from, family })
    }

    pub fn usage(&self) -> RuleUse {
        RuleUse {
            rule: self.rule.clone(),
            used_bytes: self.used.load(Relaxed),
            dirty_bytes: self.dirty.load(Relaxed),
            reads: self.reads.requests(),
            writes: self.writes.requests(),
        }
    }

    /// The bytes beyond the quota if `len` bytes came.
    pub fn excess(&self, len: u64) -> u64 {
        let after = self.used.load(Relaxed).saturating_add(len);
        self.rule.quota.map_or(0, |quota| after.saturating_sub(quota))
    }

    /// Whether some of the rule's bytes may be evicted, as far as can be told without a search.
    pub fn may_give(&self, now_ms: u64) -> bool {
        let clean = self.used.load(Relaxed).saturating_sub(self.dirty.load(Relaxed));
        clean > 0 && !self.rule.pin && now_ms >= self.asked_from.load(Relaxed)
    }

    /// Notes that a search found nothing: all files are open past the daemon, or pinned one by one.
    pub fn gave_nothing(&self, now_ms: u64) {
        self.asked_from.store(now_ms + REST_MS, Relaxed);
    }

    pub fn admission(self: &Arc<Self>) -> Admission {
        let deny = |denied| if denied { Admit::Deny } else { Admit::Allow };
        Admission {
            read: deny(matches!(self.rule.action, Action::Deny | Action::DenyReads)),
            write: deny(matches!(self.rule.action, Action::Deny | Action::DenyWrites)),
            quota: match self.rule.quota {
                Some(_) => Quota::Limited,
                None => Quota::Unlimited,
            },
            rule: Some(self.clone()),
        }
    }

    /// Whether the rule looks at processes, which costs a look into /proc.
    pub fn asks_process(&self) -> bool {
        self.rule.pid.is_some() || !self.rule.cgroup.is_empty()
    }

    pub fn matches(&self, path: &Path, size: u64, who: Option<(Origin, &Process)>) -> bool {
        let rule = &self.rule;
        let sized = rule.size_min.is_none_or(|min| size >= min)
            && rule.size_max.is_none_or(|max| size <= max);
        let named = rule.path.is_empty() || self.paths.iter().any(|pattern| pattern.matches(path));
        if !sized || !named {
            return false;
        }
        let asks_who = !rule.uid.is_empty() || !rule.gid.is_empty() || self.asks_process();
        match who {
            None => !asks_who,
            Some((who, process)) => {
                (rule.uid.is_empty() || rule.uid.contains(&who.uid))
                    && (rule.gid.is_empty() || rule.gid.contains(&who.gid))
                    && (rule.cgroup.is_empty() || self.in_cgroup(process))
                    && (rule.pid.is_none() || self.in_family(process))
            }
        }
    }

    fn in_cgroup(&self, process: &Process) -> bool {
        let group = Path::new(process.cgroup.trim_start_matches('/'));
        self.rule.cgroup.iter().any(|above| group.starts_with(above.trim_start_matches('/')))
    }

    /// A child that matches once is remembered: its own children are followed when it has ended.
    fn in_family(&self, process: &Process) -> bool {
        let mut family = self.family.lock();
        let Some(at) = process.line.iter().position(|id| family.contains(id)) else {
            return false;
        };
        family.extend(&process.line[..at]);
        true
    }

    /// Forgets processes that have ended; `false` once all of them have.
    pub fn keep_alive(&self, is_alive: impl Fn(ProcId) -> bool) -> bool {
        let mut family = self.family.lock();
        family.retain(|id| is_alive(*id));
        self.rule.pid.is_none() || !family.is_empty()
    }
}

impl Rule {
    /// Whether the rule has no condition, so that it matches every file.
    pub fn is_for_all(&self) -> bool {
        let is_about_files = !self.path.is_empty() || self.size_min.or(self.size_max).is_some();
        let is_about_programs = !self.uid.is_empty() || !self.gid.is_empty() || self.pid.is_some();
        !is_about_files && !is_about_programs && self.cgroup.is_empty()
    }

    /// # Errors
    ///
    /// Says what is wrong, and what to write instead.
    pub fn validate(&self) -> Result<(), String> {
        if self.name.is_empty()
            || !self.name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        {
            return Err("name: use letters, digits and '-'".into());
        }
        for pattern in &self.path {
            pattern.parse::<Pattern>().map_err(|why| {
                format!("path '{pattern}': {why}; write one such as 'logs/**' or '*.tmp'")
            })?;
        }
        if let (Some(min), Some(max)) = (self.size_min, self.size_max)
            && min > max
        {
            return Err(format!("size-min ({min}) is above size-max ({max}): no file matches"));
        }
        if self.quota == Some(0) {
            return Err("quota: is 0; write action = \"deny\" to keep the files out".into());
        }
        if self.action == Action::Deny && (self.quota.is_some() || self.pin) {
            let what = if self.pin { "pin" } else { "quota" };
            return Err(format!(
                "{what}: a file that is kept out has no part of the tier; leave {what} out, or \
                 write action = \"allow\""
            ));
        }
        Ok(())
    }
}

/// The first rule that matches.
pub fn first<'a>(
    rules: &'a [Arc<Active>],
    path: &Path,
    size: u64,
    who: Option<(Origin, &Process)>,
) -> Option<&'a Arc<Active>> {
    rules.iter().find(|rule| rule.matches(path, size, who))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(action: Action) -> Rule {
        Rule { name: "r".into(), action, ..Rule::default() }
    }

    const WHO: Origin = Origin { uid: 1000, gid: 100, pid: 30 };

    fn hits(rule: &Rule, path: &str) -> bool {
        Active::new(rule.clone(), None).matches(
            Path::new(path),
            10,
            Some((WHO, &Process::default())),
        )
    }

    #[test]
    fn patterns_are_names_or_paths() {
        let hit =
            |glob: &str, path| hits(&Rule { path: vec![glob.into()], ..rule(Action::Deny) }, path);
        for (glob, path) in [
            ("*.log", "a/b/x.log"),
            ("*.log", "x.log"),
            ("a/*", "a/x"),
            ("/a/*.t?t", "a/x.txt"),
            ("/x.log", "x.log"),
            ("**", "a/b"),
            ("a/**", "a/b/c"),
            ("**/tmp/**", "x/y/tmp/z"),
            ("**/tmp/*", "tmp/z"),
            ("a*b*c", "axxbxbxc"),
        ] {
            assert!(hit(glob, path), "{glob} {path}");
        }
        for (glob, path) in [
            ("*.log", "x.log/y"),
            ("/x.log", "a/x.log"),
            ("a/*", "a/b/c"),
            ("a/*", "b/a/x"),
            ("a*b*c", "axxbxbx"),
            ("?", "ab"),
            ("a/**/c", "a/b/d"),
        ] {
            assert!(!hit(glob, path), "{glob} {path}");
        }
    }

    #[test]
    fn all_conditions_must_hold() {
        let all =
            Rule { uid: vec![1, 1000], gid: vec![100], size_max: Some(10), ..rule(Action::Deny) };
        assert!(hits(&all, "x"));
        assert!(!hits(&Rule { uid: vec![1], ..all.clone() }, "x"));
        assert!(!hits(&Rule { size_max: Some(9), ..all.clone() }, "x"));
        assert!(!hits(&Rule { size_min: Some(11), size_max: None, ..all.clone() }, "x"));
        assert!(!Active::new(all, None).matches(Path::new("x"), 10, None), "nobody is no user");
    }

    #[test]
    fn the_first_rule_decides() {
        let rules = [
            Rule { path: vec!["keep/**".into()], ..rule(Action::Allow) },
            Rule { path: vec!["**".into()], ..rule(Action::DenyWrites) },
        ];
        let rules = rules.map(|rule| Active::new(rule, None));
        let admission = |path: &str| first(&rules, Path::new(path), 0, None).unwrap().admission();
        assert!(admission("keep/x").is_free());
        let denied = admission("x");
        assert_eq!((denied.read, denied.write), (Admit::Allow, Admit::Deny));
    }

    fn process(pid: u32) -> ProcId {
        ProcId { pid, started: u64::from(pid) * 100 }
    }

    fn asks(active: &Active, line: &[ProcId]) -> bool {
        let process = Process { line: line.into(), cgroup: String::new() };
        active.matches(Path::new("x"), 0, Some((WHO, &process)))
    }

    #[test]
    fn a_process_is_followed_through_its_children_until_the_last_has_ended() {
        let rule = Rule { pid: Some(10), ..rule(Action::Deny) };
        let active = Active::new(rule, Some(process(10)));
        assert!(!asks(&active, &[40, 1].map(process)));
        assert!(asks(&active, &[30, 20, 10, 1].map(process)));
        assert!(active.keep_alive(|id| id != process(10)), "its children live");
        assert!(asks(&active, &[50, 30, 1].map(process)), "a grandchild of one that was seen");
        assert!(!active.keep_alive(|_| false));
    }

    #[test]
    fn a_process_that_got_a_number_again_is_another() {
        let rule = Rule { pid: Some(10), ..rule(Action::Deny) };
        let active = Active::new(rule, Some(process(10)));
        let later = ProcId { started: 1001, ..process(10) };
        assert!(!asks(&active, &[later]) && !asks(&active, &[process(30), later]));
        assert!(asks(&active, &[process(30), process(10)]));
        assert!(!asks(&active, &[ProcId { started: 3001, ..process(30) }]));
    }

    #[test]
    fn a_quota_counts_what_comes_and_only_clean_bytes_can_make_room() {
        let active = Active::new(Rule { quota: Some(100), ..rule(Action::Allow) }, None);
        active.used.store(90, Relaxed);
        assert_eq!((active.excess(10), active.excess(15)), (0, 5));
        assert!(active.may_give(0));
        active.gave_nothing(1000);
        assert!(!active.may_give(1000) && active.may_give(1000 + REST_MS));
        active.dirty.store(90, Relaxed);
        assert!(!active.may_give(9999), "all of it is dirty");
        let pinned = Active::new(Rule { pin: true, ..active.rule.clone() }, None);
        pinned.used.store(90, Relaxed);
        assert!(!pinned.may_give(9999));
        assert_eq!(Active::new(rule(Action::Allow), None).excess(u64::MAX), 0, "no quota");
    }

    #[test]
    fn control_groups_are_trees() {
        let rule = Rule { cgroup: vec!["/system.slice/b.service".into()], ..rule(Action::Deny) };
        let asks = |cgroup: &str| {
            let process = Process { line: vec![process(30)], cgroup: cgroup.into() };
            Active::new(rule.clone(), None).matches(Path::new("x"), 0, Some((WHO, &process)))
        };
        assert!(asks("/system.slice/b.service") && asks("/system.slice/b.service/job"));
        assert!(!asks("/system.slice/b.service2") && !asks("/"));
    }

    #[test]
    fn nonsense_is_refused_with_a_remedy() {
        let wrong = |rule: Rule| rule.validate().unwrap_err();
        let deny = || rule(Action::Deny);
        assert!(wrong(Rule { name: "a b".into(), ..deny() }).contains("letters"));
        assert!(wrong(Rule { path: vec![String::new()], ..deny() }).contains("logs/**"));
        assert!(wrong(Rule { size_min: Some(2), size_max: Some(1), ..deny() }).contains("no file"));
        assert!(wrong(Rule { quota: Some(0), ..deny() }).contains("deny"));
        assert_eq!(deny().validate(), Ok(()));
    }
}
