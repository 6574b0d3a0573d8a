//! Which files go to partners before anybody syncs them, so that who does finds little left to send.
//!
//! They go in rounds like any other: bytes count once each partner has all of a round durably, and nobody who waits
//! for partners is told sooner than he would be otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::files::file::Inner;

/// Files that go ahead at once. The others wait for their sync.
const AT_ONCE: usize = 4;

/// How many files go ahead now.
#[derive(Default)]
pub(super) struct Ahead(Arc<AtomicUsize>);

/// One of them, until it is dropped.
pub(super) struct Going(Arc<AtomicUsize>);

impl Ahead {
    /// `None` if there are enough.
    pub fn enter(&self) -> Option<Going> {
        let more = |now| (now < AT_ONCE).then_some(now + 1);
        self.0.fetch_update(SeqCst, SeqCst, more).ok().map(|_| Going(self.0.clone()))
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// So many bytes of a file were written. Whether it is to go ahead now, as it is marked then: once `from` bytes are new.
pub(super) fn begins(inner: &mut Inner, bytes: u64, from: u64) -> bool {
    let is_dirty = inner.state.is_dirty();
    let live = inner.live();
    live.note_fresh(bytes);
    if live.fresh < from || live.goes_ahead || !is_dirty {
        return false;
    }
    // Whatever becomes of it now: it is not thought of again before as much more is written.
    live.take_fresh();
    live.go_ahead(true);
    true
}

/// Whether a file that has gone ahead goes on, since it is written as fast; its mark goes if not.
pub(super) fn goes_on(inner: &mut Inner, may: bool, from: u64) -> bool {
    let Some(live) = inner.in_use_mut() else { return false };
    let goes = may && live.fresh >= from;
    live.go_ahead(goes);
    if goes {
        live.take_fresh();
    }
    goes
}
