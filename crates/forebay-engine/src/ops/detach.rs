//! Taking the tier out of the way of a mount that goes on serving, and putting it back.
//!
//! While the tier is detached everything goes around it, whatever the policy and the rules say. It
//! is nothing but a word that all ways into the tier look at, a flush, and an eviction of all there
//! is; so a crash in the middle of it is a crash in the middle of these.
//!
//! - D1: a fill lands, and a program goes past us as the first one, only while the tier is attached,
//!   judged under the file's lock. So a file that was found without clean bytes after the word was
//!   given stays so.
//! - D2: what became dirty on a way that was taken before the word was given is flushed and evicted
//!   when it is found.
//! - D3: dirty bytes that are kept stay the newest: the file is written in the tier until they are
//!   flushed.

use std::sync::Arc;
use std::time::Duration;

use crate::core::config::{Attachment, KeepDirty};
use crate::core::report::{Progress, Report};
use crate::ops::Ops;

/// How often a detach looks whether what stood in its way has gone.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

impl Ops {
    fn set_attachment(&self, attachment: Attachment) {
        self.files.set_attachment(attachment);
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
