//! Emptying a tier that is detached. The rules D1 to D3 are in `ops/detach.rs`.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_backing::Error;

use crate::core::config::KeepDirty;
use crate::core::report::Failure;
use crate::files::file::{File, Inner, failure};
use crate::room::Room;

/// The number of obstructing files that are named.
const NAMED_MAX: usize = 100;

impl Room {
    /// Evicts bytes that came into a detached tier after all (D2).
    pub(crate) fn keep_empty(&self) {
        if !self.files.is_attached() && !self.is_empty() {
            self.evict_all(KeepDirty::Yes);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.totals().used() == 0
    }

    /// Evicts all clean bytes, pinned or not. Returns the files that cannot be evicted, and the
    /// dirty ones if they are not kept.
    pub(crate) fn evict_all(&self, keep: KeepDirty) -> Vec<Failure> {
        let mut left = Vec::new();
        let mut named_bytes = 0;
        for file in self.files.all_files() {
            let mut inner = file.lock();
            if let Err(error) = self.take_out(&file, &mut inner, keep)
                && left.len() < NAMED_MAX
            {
                left.push(failure(&inner, &error));
            }
            named_bytes += inner.charged();
            self.files.retire(&file, inner);
        }
        self.files.empty_trash();
        let nameless = self.files.totals().used().saturating_sub(named_bytes);
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
        let clean = !inner.state.clean(0, u64::MAX).is_empty();
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
}
