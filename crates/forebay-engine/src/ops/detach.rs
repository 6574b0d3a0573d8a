use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::core::config::{Attachment, KeepDirty};
use crate::core::report::{Progress, Report};
use crate::ops::Ops;

/// How often a detach looks whether what stood in its way has gone.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

impl Ops {
    fn set_attachment(&self, attachment: Attachment) {
        self.files.attached.set(attachment);
        self.files.nudge();
    }

    /// Lets the tier take part again: from the next request on, by the policy and the rules.
    pub fn attach(&self) {
        self.set_attachment(Attachment::Attached);
    }

    /// Detaches the tier: from the next request on everything goes around it, and when this returns
    /// without failures no data is in it, or, if dirty bytes are kept, none that is clean. Waits
    /// for programs that have files open past us or without a name.
    ///
    /// If it is cancelled or a flush fails, all is as it was, but for what was flushed and evicted;
    /// the report says what was in the way.
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
            // Who writes past us makes all of his file dirty again and again.
            while !left.is_empty() && self.files.totals.writers.load(Relaxed) > 0 {
                if progress.is_cancelled() {
                    break;
                }
                std::thread::sleep(LOOK);
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
            std::thread::sleep(LOOK);
        }
        self.set_attachment(before);
        report
    }
}
