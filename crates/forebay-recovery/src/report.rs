//! What recovery says.

use serde::Serialize;

use crate::tier::witness::Since;

/// What was found in the tier at start, and what was done about it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RecoveryReport {
    /// The machine has not been restarted since the tier was last used.
    pub same_boot: bool,
    /// It has not, but the tier's file system was unmounted in between.
    pub remounted: bool,
    pub clean_shutdown: bool,
    pub files: u64,
    pub dirty_files: u64,
    pub dirty_bytes: u64,
    /// Files that wait for somebody to settle a conflict.
    pub conflicted_files: u64,
    /// Files of which never-synced bytes were lost with the power or the tier's file system.
    pub dropped_files: u64,
    pub dropped_bytes: u64,
    /// Files of which dirty bytes that have to be in the tier are not, and how many.
    pub lost_files: u64,
    pub lost_bytes: u64,
    /// Damage, in words.
    pub problems: Vec<String>,
}

impl RecoveryReport {
    /// How what was dropped went, in words.
    pub fn why_dropped(&self) -> &'static str {
        match self.remounted {
            true => why_dropped(Since::Remounted),
            false => why_dropped(Since::Rebooted),
        }
    }
}

pub(crate) fn why_dropped(since: Since) -> &'static str {
    match since {
        Since::Remounted => "the tier's file system was unmounted after the daemon had died",
        Since::Unused | Since::Kept | Since::Rebooted => "power was lost",
    }
}
