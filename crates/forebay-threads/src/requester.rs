//! The requester that a thread works for. A request that hung in the backing store is answered with an error (S10);
//! its thread goes on when the store comes back, and must not change anything then: other requests have gone on from
//! that answer, and their writes since are acknowledged.

use std::cell::RefCell;
use std::sync::Arc;

use forebay_backing::{Error, Kind, Result};

/// The requester that waits for a thread's work.
pub trait Requester: Send + Sync {
    /// Whether the requester was answered already, and so was told that the request failed.
    fn is_gone(&self) -> bool;
}

thread_local! {
    static REQUESTER: RefCell<Option<Arc<dyn Requester>>> = const { RefCell::new(None) };
}

/// Does `work` for `requester`: once the requester is gone, the work changes nothing any more, and fails.
pub fn on_behalf_of<T>(requester: Arc<dyn Requester>, work: impl FnOnce() -> T) -> T {
    working(Some(requester), work)
}

/// Does `work`, which belongs to a change that was made already, whether a requester waits or not.
pub fn for_nobody<T>(work: impl FnOnce() -> T) -> T {
    working(None, work)
}

fn working<T>(requester: Option<Arc<dyn Requester>>, work: impl FnOnce() -> T) -> T {
    /// Restores the earlier requester, after a panic too.
    struct Before(Option<Arc<dyn Requester>>);
    impl Drop for Before {
        fn drop(&mut self) {
            let done = REQUESTER.replace(self.0.take());
            drop(done); // `done` may run code, so it is dropped after the borrow has ended.
        }
    }
    let _before = Before(REQUESTER.replace(requester));
    work()
}

/// The requester that this thread works for now, if there is one.
pub fn now() -> Option<Arc<dyn Requester>> {
    REQUESTER.with_borrow(Clone::clone)
}

/// Called right before a change, and in every wait before one. Under the lock that all changes of the kind take, a
/// requester cannot be answered and overtaken between the check and the change.
/// be answered and overtaken between the two.
///
/// # Errors
///
/// [`Kind::TimedOut`] if the requester of the change is gone.
pub fn check() -> Result<()> {
    let is_gone = REQUESTER
        .with_borrow(|requester| requester.as_ref().is_some_and(|requester| requester.is_gone()));
    match is_gone {
        true => Err(Error::new(Kind::TimedOut, "answered before it was done: nothing is changed")),
        false => Ok(()),
    }
}
