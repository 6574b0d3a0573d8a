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

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use forebay_backing::Error;
use serde::{Deserialize, Serialize};

use crate::engine::Engine;
use crate::file::{File, Inner};
use crate::operate::{KeepDirty, failure};
use crate::report::{Failure, Progress, Report};

/// Whether the tier takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attachment {
    #[default]
    Attached,
    /// Reads and writes go around the tier; what is dirty is flushed.
    Detached,
    /// The same, but what is dirty stays, and is read and written in the tier.
    DetachedKeepDirty,
}

pub(crate) struct Attached(AtomicU8);

impl Attached {
    pub fn new(attachment: Attachment) -> Attached {
        Attached(AtomicU8::new(attachment as u8))
    }
}

/// How often a detach looks whether what stood in its way has gone.
const LOOK: Duration = Duration::from_millis(100);

/// As many files in its way are named.
const NAMED_MAX: usize = 100;

impl Engine {
    pub fn attachment(&self) -> Attachment {
        let word = self.attached.0.load(Relaxed);
        let all = [Attachment::Attached, Attachment::Detached, Attachment::DetachedKeepDirty];
        all.into_iter().find(|one| *one as u8 == word).expect("only these are stored")
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.attachment() == Attachment::Attached
    }

    /// Whether a program may read or write the file past us (D1). Beside others who do it must: the
    /// kernel knows one way at a time.
    pub(crate) fn may_pass(&self, inner: &Inner) -> bool {
        self.is_attached() || inner.is_passed()
    }

    fn set_attachment(&self, attachment: Attachment) {
        self.attached.0.store(attachment as u8, Relaxed);
        self.nudge();
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
        let before = self.attachment();
        self.set_attachment(match keep {
            KeepDirty::No => Attachment::Detached,
            KeepDirty::Yes => Attachment::DetachedKeepDirty,
        });
        let mut report = Report::default();
        loop {
            if keep == KeepDirty::No {
                report.add(self.flush(&[], progress));
            }
            if report.cancelled || !report.failures.is_empty() {
                break;
            }
            let mut left = self.evict_all(keep);
            // Who writes past us makes all of his file dirty again and again.
            while !left.is_empty() && self.space.writers.load(Relaxed) > 0 {
                if progress.is_cancelled() {
                    break;
                }
                std::thread::sleep(LOOK);
                left = self.evict_all(keep);
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

    /// Evicts what came into a detached tier after all (D2).
    pub(crate) fn keep_empty(&self) {
        if !self.is_attached() && !self.is_empty() {
            self.evict_all(KeepDirty::Yes);
        }
    }

    fn is_empty(&self) -> bool {
        self.space.used.load(Relaxed) == 0
    }

    /// Takes out all that is clean, pinned or not. Returns what does not let itself be taken out,
    /// and what is dirty if that is not kept.
    fn evict_all(&self, keep: KeepDirty) -> Vec<Failure> {
        let mut left = Vec::new();
        let mut named_bytes = 0;
        for file in self.all_files() {
            let mut inner = file.lock();
            if let Err(error) = self.take_out(&file, &mut inner, keep)
                && left.len() < NAMED_MAX
            {
                left.push(failure(&inner, &error));
            }
            named_bytes += inner.charged;
            self.retire(&file, inner);
        }
        self.empty_trash();
        let nameless = self.space.used.load(Relaxed).saturating_sub(named_bytes);
        if nameless > 0 && left.len() < NAMED_MAX {
            let error = format!("{nameless} bytes of files that were removed: close them");
            left.push(Failure { path: PathBuf::from("(unlinked)"), state: "failed", error });
        }
        left
    }

    fn take_out(
        &self,
        file: &Arc<File>,
        inner: &mut Inner,
        keep: KeepDirty,
    ) -> forebay_backing::Result<()> {
        let busy = |why: &str| Err(Error::os(libc::EBUSY, why));
        if inner.is_passed() {
            return busy("a program has it open past the daemon: close it");
        }
        let clean = inner.state.ranges.bytes(|state| !state.is_dirty()) > 0;
        if clean && !inner.may_evict() {
            return busy("it is being read");
        }
        if clean {
            self.evict_range(file, inner, 0, u64::MAX)?;
        }
        match inner.state.is_dirty() && keep == KeepDirty::No {
            true => busy("it has just been written"),
            false => Ok(()),
        }
    }

    /// How many files programs have open past us.
    pub fn files_past_us(&self) -> u64 {
        self.all_files().iter().filter(|file| file.lock().is_passed()).count() as u64
    }
}
