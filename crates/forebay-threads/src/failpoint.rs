//! Named points at which the process kills itself with SIGKILL, for crash tests.
//!
//! `FOREBAY_FAILPOINTS=name=n,...` arms point `name` for its n-th passage (1 without `=n`). The
//! names and what a crash there leaves behind are listed in `docs/FORMAT.md`. Not armed, a point
//! costs one load.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

fn armed() -> &'static HashMap<String, AtomicU64> {
    static ARMED: OnceLock<HashMap<String, AtomicU64>> = OnceLock::new();
    ARMED.get_or_init(|| {
        let spec = std::env::var("FOREBAY_FAILPOINTS").unwrap_or_default();
        spec.split(',').filter(|item| !item.is_empty()).map(parse).collect()
    })
}

fn parse(item: &str) -> (String, AtomicU64) {
    let (name, n) = item.split_once('=').unwrap_or((item, "1"));
    (name.to_string(), AtomicU64::new(n.parse().unwrap_or(1)))
}

/// Whether a test has asked to leave out a sync (`FOREBAY_SKIP_SYNC=shadow` or `log`), to prove
/// that the power-cut tests detect its absence.
pub fn skips_sync(what: &str) -> bool {
    static SKIPPED: OnceLock<Option<String>> = OnceLock::new();
    let skipped = SKIPPED.get_or_init(|| std::env::var("FOREBAY_SKIP_SYNC").ok());
    skipped.as_deref() == Some(what)
}

/// Kills the process here if the point is armed and this is its passage.
pub fn pass(name: &str) {
    let armed = armed();
    if armed.is_empty() {
        return;
    }
    if let Some(left) = armed.get(name)
        && left.fetch_sub(1, Relaxed) == 1
    {
        tracing::warn!(failpoint = name, "killing myself");
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}
