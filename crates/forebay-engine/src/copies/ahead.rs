//! What is written goes to partners before anybody syncs it, so that who does finds little left to send.
//!
//! It goes in rounds like any other: it counts once each partner has all of one durably, and nobody who waits for
//! partners is told sooner than he would be otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use forebay_backing::FileKey;

use crate::copies::outbox::Outbox;
use crate::files::file::File;

/// Files that are told of ahead at once. The others wait for their sync.
const AT_ONCE: usize = 4;

/// How many files are told of ahead now.
#[derive(Default)]
pub(super) struct Ahead(AtomicUsize);

impl Ahead {
    fn enter(&self) -> bool {
        let more = |now| (now < AT_ONCE).then_some(now + 1);
        self.0.fetch_update(SeqCst, SeqCst, more).is_ok()
    }

    fn leave(&self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Outbox {
    /// So many bytes of a file were written, which nobody waits for yet.
    pub(super) fn tell_ahead(self: &Arc<Self>, file: &Arc<File>, bytes: u64) {
        {
            let mut inner = file.lock();
            let is_dirty = inner.state.is_dirty();
            let live = inner.live();
            live.fresh += bytes;
            if live.fresh < self.ahead_from() || live.goes_ahead || !is_dirty {
                return;
            }
            // Whatever becomes of it now: it is not thought of again before as much more is written.
            (live.fresh, live.goes_ahead) = (0, true);
        }
        if !self.may_go_ahead(file.key) || !self.ahead().enter() {
            file.lock().live().goes_ahead = false;
            return;
        }
        let (outbox, file) = (self.clone(), file.clone());
        self.threads().run(move || {
            outbox.go_ahead(&file);
            outbox.ahead().leave();
        });
    }

    /// Goes on for as long as the file is written as fast.
    fn go_ahead(&self, file: &Arc<File>) {
        loop {
            let told = self.tell(file);
            if let Err(error) = &told {
                // Whoever syncs it tells them again, and is told so.
                tracing::debug!(%error, "partners could not be told of what is written");
            }
            let goes_on = told.is_ok() && self.may_go_ahead(file.key);
            let mut inner = file.lock();
            let Some(live) = inner.live.as_mut() else { return };
            live.goes_ahead = goes_on && live.fresh >= self.ahead_from();
            if !live.goes_ahead {
                return;
            }
            live.fresh = 0;
        }
    }

    fn may_go_ahead(&self, file: FileKey) -> bool {
        let takes = |partners: Arc<dyn crate::Partners>| partners.takes(file);
        self.files().copying().wanted().is_some_and(takes)
    }

    fn ahead_from(&self) -> u64 {
        self.files().config().ahead_from
    }
}
