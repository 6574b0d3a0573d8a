//! Answers that can be given once, by whoever comes first: the thread that did the work, or the
//! watchdog that saw it hang (S10).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fuser::Errno;

/// A reply of the transport.
pub trait Fail: Send + 'static {
    fn fail(self, errno: i32);
}

macro_rules! fail {
    ($($reply:ty),* $(,)?) => {
        $(impl Fail for $reply {
            fn fail(self, errno: i32) {
                self.error(Errno::from_i32(errno));
            }
        })*
    };
}

fail!(
    fuser::ReplyEntry,
    fuser::ReplyAttr,
    fuser::ReplyData,
    fuser::ReplyEmpty,
    fuser::ReplyOpen,
    fuser::ReplyCreate,
    fuser::ReplyWrite,
    fuser::ReplyStatfs,
    fuser::ReplyDirectory,
    fuser::ReplyDirectoryPlus,
    fuser::ReplyXattr,
    fuser::ReplyLseek,
);

/// A reply that two may want to give.
pub struct Slot<R>(Mutex<Option<R>>);

impl<R: Fail> Slot<R> {
    pub fn new(reply: R) -> Arc<Slot<R>> {
        Arc::new(Slot(Mutex::new(Some(reply))))
    }

    /// The reply, if it was not given yet.
    pub fn take(&self) -> Option<R> {
        self.0.lock().expect("no panic inside").take()
    }
}

trait Expire: Send + Sync {
    fn expire(&self);
}

impl<R: Fail> Expire for Slot<R> {
    fn expire(&self) {
        if let Some(reply) = self.take() {
            reply.fail(libc::ETIMEDOUT);
        }
    }
}

/// Requests in progress by the time they began.
#[derive(Default)]
pub struct Watch {
    open: Mutex<Requests>,
}

#[derive(Default)]
struct Requests {
    next: u64,
    running: BTreeMap<u64, Running>,
}

struct Running {
    began: Instant,
    patience: Patience,
    slot: Arc<dyn Expire>,
}

/// How long a request may rightly take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// One or a few calls to the backing store.
    Short,
    /// As long as the backing store makes progress: a writer that waits for room, a flush.
    Long,
}

impl Watch {
    pub fn begin<R: Fail>(&self, slot: &Arc<Slot<R>>, patience: Patience) -> u64 {
        let mut open = self.open.lock().expect("no panic inside");
        open.next += 1;
        let n = open.next;
        let slot: Arc<dyn Expire> = slot.clone();
        open.running.insert(n, Running { began: Instant::now(), patience, slot });
        n
    }

    pub fn end(&self, n: u64) {
        self.open.lock().expect("no panic inside").running.remove(&n);
    }

    /// Answers ETIMEDOUT to what has run for longer than `limit`; to the patient ones only if the
    /// store is `away`. Returns how many.
    pub fn expire(&self, limit: Duration, away: bool) -> usize {
        let mut late = Vec::new();
        {
            let mut open = self.open.lock().expect("no panic inside");
            open.running.retain(|_, running| {
                let may = running.patience == Patience::Short || away;
                let expired = may && running.began.elapsed() > limit;
                if expired {
                    late.push(running.slot.clone());
                }
                !expired
            });
        }
        late.iter().for_each(|slot| slot.expire());
        late.len()
    }
}
