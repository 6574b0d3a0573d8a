//! Named points at which the process kills itself with SIGKILL, for crash tests.
//!
//! `FOREBAY_FAILPOINTS=name,...` arms them. Not armed, a point costs one load.

use std::sync::OnceLock;

fn armed() -> &'static [String] {
    static ARMED: OnceLock<Vec<String>> = OnceLock::new();
    ARMED.get_or_init(|| {
        let names = std::env::var("FOREBAY_FAILPOINTS").unwrap_or_default();
        names.split(',').filter(|name| !name.is_empty()).map(str::to_string).collect()
    })
}

/// Kills the process here if the point is armed.
pub fn pass(name: &str) {
    if armed().iter().any(|armed| armed == name) {
        tracing::warn!(failpoint = name, "killing myself");
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}
