//! Files that go to partners before a program syncs them, so that the sync finds little left to send.
//!
//! They go in rounds like any other: bytes count once each partner has all of a round durably, and
//! no waiting caller is answered earlier than otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::files::file::Inner;

/// The number of files that go ahead at once. The others wait for their sync.
const AT_ONCE: usize = 4;

/// The number of files that go ahead now.
#[derive(Default)]
pub(super) struct Ahead(Arc<AtomicUsize>);

/// The place of one file that goes ahead; dropping it gives the place back.
pub(super) struct Going(Arc<AtomicUsize>);

impl Ahead {
    /// Takes a place; `None` if all are taken.
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

/// Notes a write of `bytes`. Returns whether the file is to go ahead now, once `from` bytes are
/// new, and marks it so.
pub(super) fn begins(inner: &mut Inner, bytes: u64, from: u64) -> bool {
    let is_dirty = inner.state.is_dirty();
    let live = inner.live();
    live.note_fresh(bytes);
    if live.fresh < from || live.goes_ahead || !is_dirty {
        return false;
    }
    // From now on the file is considered again only after as many more bytes.
    live.take_fresh();
    live.go_ahead(true);
    true
}

/// Whether a file that has gone ahead goes on, since it is written as fast; if not, its mark is removed.
pub(super) fn goes_on(inner: &mut Inner, may: bool, from: u64) -> bool {
    let Some(live) = inner.in_use_mut() else { return false };
    let goes = may && live.fresh >= from;
    live.go_ahead(goes);
    if goes {
        live.take_fresh();
    }
    goes
}
