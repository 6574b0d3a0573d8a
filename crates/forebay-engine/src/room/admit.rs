//! The rules in force: the opens that they match, the room that their files take, and when they end.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use forebay_backing::{Error, Kind, Result};

use crate::core::rules::{Active, Admission, Origin, ProcId, Process, Quota, Rule, RuleUse, first};
use crate::files::file::{File, Inner};
use crate::room::Room;

/// The maximum number of rules: each open of a file tries them in order.
const RULES_MAX: usize = 256;

/// The extra that a rule evicts, as a part of its quota, so that it does not evict for every
/// request.
const QUOTA_STEP_PARTS: u64 = 32;

/// How many ancestors of a process are examined at most.
const LINE_MAX: usize = 64;

/// The facts that `/proc/PID/stat` has about a process that has not ended.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    id: ProcId,
    parent: u32,
}

impl Found {
    fn read(pid: u32) -> Option<Found> {
        Found::parse(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses the line. The name, in parentheses, may hold anything; after the last parenthesis come fields:
    /// the third of all is the state, the fourth the parent, the 20th the threads, the 22nd the start.
    fn parse(pid: u32, stat: &str) -> Option<Found> {
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |n: usize| fields.get(n - 3)?.parse::<u64>().ok();
        // A first thread that has ended looks like an ended process, but for the number of threads.
        if matches!(*fields.first()?, "Z" | "X") && number(20)? <= 1 {
            return None;
        }
        let (parent, started) = (u32::try_from(number(4)?).ok()?, number(22)?);
        Some(Found { id: ProcId { pid, started }, parent })
    }
}

impl Room {
    /// Returns the rules in their order, with their requests and the room of their files.
    pub fn rules(&self) -> Vec<RuleUse> {
        self.rules.list().iter().map(|active| active.usage()).collect()
    }

    /// Adds a rule at the end of the list.
    pub fn add_rule(&self, rule: Rule) -> Result<()> {
        let usage =
            |reason: String| Error::new(Kind::Usage, format!("rule {}: {reason}", rule.name));
        rule.validate().map_err(usage)?;
        let first = rule.pid.map(|pid| {
            let found = Found::read(leader(pid).unwrap_or(pid)).map(|found| found.id);
            found.ok_or_else(|| usage("pid: no such process".into()))
        });
        let first = first.transpose()?;
        self.rules.change(|list| {
            if list.iter().any(|active| active.rule.name == rule.name) {
                return Err(usage("there is one of that name: remove it first".into()));
            }
            if list.len() >= RULES_MAX {
                return Err(usage(format!("there are {RULES_MAX} already: remove one first")));
            }
            list.push(Active::new(rule.clone(), first));
            Ok(())
        })?;
        self.assign_all();
        Ok(())
    }

    pub fn remove_rule(&self, name: &str) -> Result<()> {
        self.rules.change(|list| {
            let at = list.iter().position(|active| active.rule.name == name);
            let at = at.ok_or_else(|| {
                Error::new(
                    Kind::Usage,
                    format!("rule {name}: not known; `forebay rules list` lists all"),
                )
            })?;
            list.remove(at);
            Ok(())
        })?;
        self.assign_all();
        Ok(())
    }

    /// Returns the rule that would apply to a path opened by `who`.
    pub fn try_rules(&self, path: &std::path::Path, size: u64, who: Origin) -> Option<Rule> {
        let list = self.rules.list();
        let process = look_up(&list, who.pid);
        first(&list, path, size, Some((who, &process))).map(|active| active.rule.clone())
    }

    /// Decides for a handle that has just been opened. The decision holds until the handle is closed.
    pub fn admission_of(&self, file: &Arc<File>, who: Origin) -> Admission {
        let list = self.rules.list();
        if list.is_empty() {
            return Admission::default();
        }
        let process = look_up(&list, who.pid);
        let mut inner = file.lock();
        let path = inner.state.paths.first();
        let size = inner.size();
        let found = path.and_then(|path| first(&list, &path, size, Some((who, &process))).cloned());
        let admission = found.as_ref().map_or_else(Admission::default, |active| active.admission());
        assign(&mut inner, found);
        admission
    }

    /// Gives each file whose rule is gone, or that has none, the first rule that matches without a process.
    fn assign_all(&self) {
        let list = self.rules.list();
        for file in self.files.all_files() {
            let mut inner = file.lock();
            let known = |rule: &Arc<Active>| list.iter().any(|active| Arc::ptr_eq(active, rule));
            if inner.rule().is_some_and(known) {
                continue;
            }
            let path = inner.state.paths.first();
            let size = inner.size();
            assign(&mut inner, path.and_then(|path| first(&list, &path, size, None).cloned()));
        }
    }

    /// Drops rules of processes that have ended.
    pub(crate) fn keep_rules(&self) {
        let list = self.rules.list();
        if !list.iter().any(|active| active.rule.pid.is_some()) {
            return;
        }
        let ended = list.iter().filter(|active| !active.keep_alive(is_alive));
        let ended: Vec<String> = ended.map(|active| active.rule.name.clone()).collect();
        for name in ended {
            tracing::info!(rule = name, "its processes have ended: the rule is dropped");
            let _ = self.remove_rule(&name);
        }
    }

    /// Whether `len` new bytes of the file are within the quota of its rule. The rule evicts clean
    /// bytes of its own files for them.
    pub(crate) fn has_quota_for(&self, file: &File, len: u64) -> bool {
        let Some(rule) = file.lock().rule().cloned() else { return true };
        let Some(quota) = rule.rule.quota else { return true };
        let excess = rule.excess(len);
        if excess > 0 && len <= quota {
            self.evict_own(&rule, excess + quota / QUOTA_STEP_PARTS);
        }
        rule.excess(len) == 0
    }

    /// Whether a write does not fit into the quota of a rule. Bytes that are in the tier already
    /// are written there.
    pub(crate) fn is_over_quota(
        &self,
        file: &File,
        admission: &Admission,
        start: u64,
        end: u64,
    ) -> bool {
        if admission.quota == Quota::Unlimited {
            return false;
        }
        let before = file.lock().before(start, end);
        let new = before.len - before.present;
        new > 0 && !self.has_quota_for(file, new)
    }
}

fn assign(inner: &mut Inner, rule: Option<Arc<Active>>) {
    if let Some(rule) = inner.rule() {
        rule.used.fetch_sub(inner.charged(), Relaxed);
        rule.dirty.fetch_sub(inner.dirty_charged(), Relaxed);
    }
    if let Some(rule) = &rule {
        rule.used.fetch_add(inner.charged(), Relaxed);
        rule.dirty.fetch_add(inner.dirty_charged(), Relaxed);
    }
    inner.follow(rule);
}

/// Looks a process up if one of the rules matches processes.
fn look_up(list: &[Arc<Active>], pid: u32) -> Process {
    let mut process = Process::default();
    if pid == 0 || !list.iter().any(|active| active.asks_process()) {
        return process;
    }
    // The kernel names the calling thread.
    let mut at = leader(pid).unwrap_or(pid);
    while at > 0 && process.line.len() < LINE_MAX {
        let Some(found) = Found::read(at) else { break };
        process.line.push(found.id);
        at = found.parent;
    }
    let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let unified = cgroups.lines().find_map(|line| line.strip_prefix("0::"));
    process.cgroup = unified.unwrap_or_default().into();
    process
}

/// The process that a thread belongs to.
fn leader(thread: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

fn is_alive(id: ProcId) -> bool {
    Found::read(id.pid).is_some_and(|found| found.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_its_number_and_its_start() {
        let stat = |state, threads| {
            format!("7 (a) R 1 b) {state} 3{} {threads} 21 22 23", " 0".repeat(15))
        };
        let found = Some(Found { id: ProcId { pid: 7, started: 22 }, parent: 3 });
        assert_eq!(Found::parse(7, &stat("S", 1)), found);
        assert_eq!(Found::parse(7, &stat("Z", 1)), None);
        assert_eq!(Found::parse(7, &stat("Z", 2)), found);
        assert_eq!(Found::parse(7, "7 (a) S 1"), None);
    }

    #[test]
    fn the_line_of_a_thread_begins_with_its_process() {
        let me = std::process::id();
        // SAFETY: takes nothing and returns a number.
        let thread = unsafe { libc::gettid() } as u32;
        assert_ne!(thread, me, "tests run in threads of their own");
        assert_eq!(leader(thread), Some(me));
        let id = Found::read(me).expect("it runs").id;
        assert!(is_alive(id) && !is_alive(ProcId { started: id.started + 1, ..id }));
    }
}
