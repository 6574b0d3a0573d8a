//! For whom this thread works. A request that hung in the backing store was answered for it with an
//! error (S10); its thread goes on when the store comes back, and must change nothing then: others
//! have gone on from that answer, and what they have written since is acknowledged.

use std::cell::RefCell;
use std::sync::Arc;

use forebay_backing::{Error, Kind, Result};

/// Who waits for what a thread does.
pub trait Requester: Send + Sync {
    /// Whether he was answered already, and so was told that it failed.
    fn is_gone(&self) -> bool;
}

thread_local! {
    static REQUESTER: RefCell<Option<Arc<dyn Requester>>> = const { RefCell::new(None) };
}

/// Does `work` for `requester`: once he is gone it changes nothing any more, and fails.
pub fn on_behalf_of<T>(requester: Arc<dyn Requester>, work: impl FnOnce() -> T) -> T {
    working(Some(requester), work)
}

/// Does `work`, which belongs to a change that was made already, whether anybody still waits or not.
pub fn for_nobody<T>(work: impl FnOnce() -> T) -> T {
    working(None, work)
}

fn working<T>(requester: Option<Arc<dyn Requester>>, work: impl FnOnce() -> T) -> T {
    /// Restores who was asking before, after a panic too.
    struct Before(Option<Arc<dyn Requester>>);
    impl Drop for Before {
        fn drop(&mut self) {
            let done = REQUESTER.replace(self.0.take());
            drop(done); // Not while it is borrowed.
        }
    }
    let _before = Before(REQUESTER.replace(requester));
    work()
}

/// For whom this thread works now, if for anybody.
pub fn now() -> Option<Arc<dyn Requester>> {
    REQUESTER.with_borrow(Clone::clone)
}

/// To be asked right before a change, and in every wait before one. Under the lock that all changes of the kind take, nobody can
/// be answered and overtaken between the two.
///
/// # Errors
///
/// [`Kind::TimedOut`] if who asked for the change is gone.
pub fn check() -> Result<()> {
    let is_gone = REQUESTER
        .with_borrow(|requester| requester.as_ref().is_some_and(|requester| requester.is_gone()));
    match is_gone {
        true => Err(Error::new(Kind::TimedOut, "answered before it was done: nothing is changed")),
        false => Ok(()),
    }
}
