//! Detaching the tier from a mount that goes on serving, and attaching it again.
//!
//! While the tier is detached every request goes around it, whatever the policy and the rules say.
//! A detach is a flag that all ways into the tier look at, a flush, and an eviction of everything;
//! so a crash in the middle of a detach is a crash in the middle of these.
//!
//! - D1: a fill lands, and a first program goes past the daemon, only while the tier is attached,
//!   judged under the file's lock. So a file that was found without clean bytes after the flag was
//!   set stays so.
//! - D2: bytes that became dirty on a way that was taken before the flag was set are flushed and
//!   evicted when they are found.
//! - D3: dirty bytes that are kept stay the newest: the file is written in the tier until they are
//!   flushed.

use std::sync::Arc;
use std::time::Duration;

use crate::core::config::{Attachment, KeepDirty};
use crate::core::report::{Progress, Report};
use crate::ops::Ops;

/// How often a detach checks whether its obstacles have gone.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

impl Ops {
    fn set_attachment(&self, attachment: Attachment) {
        self.files.set_attachment(attachment);
        self.files.nudge();
    }

    /// Attaches the tier: from the next request on the policy and the rules decide again.
    pub fn attach(&self) {
        self.set_attachment(Attachment::Attached);
    }

    /// Detaches the tier: from the next request on everything goes around it. When this returns
    /// without failures no data is in the tier, or, if dirty bytes are kept, no clean data. Waits
    /// for programs that have files open past the daemon or without a name.
    ///
    /// If it is cancelled or a flush fails, the tier is attached as before, without the bytes that
    /// were flushed and evicted; the report names the obstacles.
    pub fn detach(self: &Arc<Self>, keep: KeepDirty, progress: &Progress) -> Report {
        let before = self.files.attachment();
        self.set_attachment(match keep {
            KeepDirty::No => Attachment::Detached,
            KeepDirty::Yes => Attachment::DetachedKeepDirty,
        });
        let mut report = Report::default();
        loop {
            if keep == KeepDirty::No {
                report.add(self.drain.flush(&[], progress));
            }
            if report.cancelled || !report.failures.is_empty() {
                break;
            }
            let mut left = self.room.evict_all(keep);
            // A writer past the daemon makes all of its file dirty again and again.
            while !left.is_empty() && self.files.totals().writers() > 0 {
                if progress.is_cancelled() {
                    break;
                }
                self.files.time().sleep(LOOK);
                left = self.room.evict_all(keep);
            }
            if left.is_empty() {
                return report;
            }
            if progress.is_cancelled() {
                report.cancelled = true;
                report.failures = left;
                break;
            }
            self.files.time().sleep(LOOK);
        }
        self.set_attachment(before);
        report
    }
}
