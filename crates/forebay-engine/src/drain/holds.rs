//! Files that the drain leaves alone because an order publishes them last.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_base::glob::Pattern;

use crate::files::file::Inner;
use forebay_base::lock::{Mutex, MutexGuard, Rank};

/// Keeps the drain from the files that an order publishes last, until it is dropped.
pub struct Hold {
    pub(crate) holds: Arc<Holds>,
    pub(crate) id: u64,
}

/// The holds in force.
pub(crate) struct Holds(Mutex<HoldTable>);

impl Default for Holds {
    fn default() -> Holds {
        Holds(Mutex::new(Rank::Orders, HoldTable::default()))
    }
}

#[derive(Default)]
pub(crate) struct HoldTable {
    pub last_id: u64,
    /// The entries, which are examined without the lock.
    pub entries: Arc<Vec<(u64, Vec<PathBuf>, Pattern)>>,
}

impl Holds {
    pub fn table(&self) -> MutexGuard<'_, HoldTable> {
        self.0.lock()
    }

    pub fn covers(&self, inner: &Inner) -> bool {
        let entries = self.table().entries.clone();
        let held = |(_, scope, last): &(u64, Vec<PathBuf>, Pattern)| {
            is_within(inner, scope, |path| last.matches(path))
        };
        entries.iter().any(held)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let id = self.id;
        Arc::make_mut(&mut self.holds.table().entries).retain(|(held, _, _)| *held != id);
    }
}

pub(crate) fn is_within(inner: &Inner, scope: &[PathBuf], fits: impl Fn(&Path) -> bool) -> bool {
    let below = |path: &Path| scope.is_empty() || scope.iter().any(|s| path.starts_with(s));
    inner.state.paths.iter().any(|path| below(&path) && fits(&path))
}
