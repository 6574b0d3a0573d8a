//! Makes a good store fail, stall or vanish, by rules that can change while it serves.
//!
//! Rules come from code or from a JSON file that is read again whenever it changes; see
//! [`FaultRules`] for the format. Every change starts all rules afresh and ends every stall.

mod rules;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_base::lock::{Condvar, Mutex, MutexGuard, Rank};
use serde::Serialize;

use super::layer::{Call, Done, Layer};
use super::store::Wrapped;
use crate::{BackingStore, Error, Kind, Result};
use rules::{Active, Hit};
pub use rules::{Failure, FaultRule, FaultRules, Moment};

/// How soon a stalled call notices that the rules file changed.
const STALL_CHECK: Duration = Duration::from_millis(20);

/// Changes the rules and reads their counts; stays valid as long as it is held.
pub type FaultHandle = Arc<Fault>;

pub struct Fault {
    state: Mutex<State>,
    changed: Condvar,
}

/// The number of faults injected so far, also by rules that are gone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct FaultCounts {
    pub injected: u64,
    pub by_op: BTreeMap<&'static str, u64>,
}

struct State {
    active: Active,
    /// Grows with each change of the rules.
    edition: u64,
    counts: FaultCounts,
    file: Option<RulesFile>,
}

struct RulesFile {
    path: PathBuf,
    /// The stamp of the file when it was last read well; `None` makes the next call read it.
    seen: Option<Stamp>,
}

/// A stamp that changes whenever a file's content does, except for two writes of one length in one
/// clock tick.
#[derive(PartialEq, Eq)]
struct Stamp {
    ino: u64,
    size: u64,
    mtime: (i64, i64),
}

impl Fault {
    /// Checks the rules too: an unknown operation is `Kind::Usage`.
    pub fn with_rules(
        store: Arc<dyn BackingStore>,
        rules: FaultRules,
    ) -> Result<(Arc<Wrapped<Fault>>, FaultHandle)> {
        Ok(Fault::wrap(store, Active::new(rules)?, None))
    }

    /// Takes the rules from a JSON file, which must exist and be valid now. Later, a missing file
    /// means no rules, and an unreadable one leaves the rules as they are.
    pub fn with_file(
        store: Arc<dyn BackingStore>,
        path: &Path,
    ) -> Result<(Arc<Wrapped<Fault>>, FaultHandle)> {
        let seen = Stamp::of(path);
        let active = Active::new(read_rules(path)?)?;
        let file = RulesFile { path: path.to_owned(), seen };
        Ok(Fault::wrap(store, active, Some(file)))
    }

    fn wrap(
        store: Arc<dyn BackingStore>,
        active: Active,
        file: Option<RulesFile>,
    ) -> (Arc<Wrapped<Fault>>, FaultHandle) {
        let state = State { active, edition: 0, counts: FaultCounts::default(), file };
        let fault =
            Arc::new(Fault { state: Mutex::new(Rank::Played, state), changed: Condvar::new() });
        (Wrapped::new(store, fault.clone()), fault)
    }

    pub fn set_rules(&self, rules: FaultRules) -> Result<()> {
        let active = Active::new(rules)?;
        self.state().replace(active);
        self.changed.notify_all();
        Ok(())
    }

    /// Lets every call through again.
    pub fn clear(&self) {
        self.state().replace(Active::default());
        self.changed.notify_all();
    }

    pub fn counts(&self) -> FaultCounts {
        self.state().counts.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn stall(&self, hit: &Hit, edition: u64) {
        let end = Instant::now() + hit.stall;
        let mut state = self.state();
        while state.edition == edition {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.changed.wait_timeout(state, left.min(STALL_CHECK)).0;
            state.refresh();
        }
    }
}

impl Layer for Fault {
    const PASSES_FD: bool = false;

    fn around<T>(
        &self,
        call: &Call<'_>,
        mut run: impl FnMut() -> Result<Done<T>>,
    ) -> Result<Done<T>> {
        let (hit, edition) = self.state().decide(call);
        let Some(hit) = hit else { return run() };
        if !hit.stall.is_zero() {
            self.stall(&hit, edition);
        }
        let Some(failure) = hit.fail else { return run() };
        if hit.moment == Moment::After {
            run()?;
        }
        Err(failure.error(call))
    }
}

impl State {
    fn decide(&mut self, call: &Call<'_>) -> (Option<Hit>, u64) {
        self.refresh();
        let hit = self.active.decide(call);
        if hit.is_some() {
            self.counts.injected += 1;
            *self.counts.by_op.entry(call.verb.name()).or_default() += 1;
        }
        (hit, self.edition)
    }

    fn replace(&mut self, active: Active) {
        self.active = active;
        self.edition += 1;
    }

    /// Reads the rules file again if its stamp has changed.
    fn refresh(&mut self) {
        let Some(file) = &mut self.file else { return };
        let now = Stamp::of(&file.path);
        if now == file.seen {
            return;
        }
        let rules = match now {
            Some(_) => read_rules(&file.path).and_then(Active::new),
            None => Ok(Active::default()),
        };
        // A file caught half written keeps its old stamp, so that the next call tries again.
        if let Ok(active) = rules {
            file.seen = now;
            self.replace(active);
        }
    }
}

impl Stamp {
    fn of(path: &Path) -> Option<Stamp> {
        use std::os::unix::fs::MetadataExt;
        let meta = std::fs::metadata(path).ok()?;
        Some(Stamp { ino: meta.ino(), size: meta.size(), mtime: (meta.mtime(), meta.mtime_nsec()) })
    }
}

fn read_rules(path: &Path) -> Result<FaultRules> {
    let context = || format!("fault rules {}", path.display());
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::new(Kind::Usage, context()).with_source(e))?;
    serde_json::from_str(&text).map_err(|e| Error::new(Kind::Usage, context()).with_source(e))
}
