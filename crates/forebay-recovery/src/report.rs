//! The report of a recovery.

use serde::Serialize;

use crate::tier::witness::Since;

/// What was found in the tier at start, and how it was handled.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RecoveryReport {
    /// Whether the machine has not been restarted since the tier was last used.
    pub same_boot: bool,
    /// Whether in that time the tier's file system was unmounted.
    pub remounted: bool,
    pub clean_shutdown: bool,
    pub files: u64,
    pub dirty_files: u64,
    pub dirty_bytes: u64,
    /// Files with a conflict that an operator has to settle.
    pub conflicted_files: u64,
    /// Files whose never-synced bytes were lost with the power or with the tier's file system, and the bytes.
    pub dropped_files: u64,
    pub dropped_bytes: u64,
    /// Files whose dirty bytes should be in the tier and are missing, and the bytes.
    pub lost_files: u64,
    pub lost_bytes: u64,
    /// Damage, in words.
    pub problems: Vec<String>,
}

impl RecoveryReport {
    /// Returns how dropped bytes were lost, as text.
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
