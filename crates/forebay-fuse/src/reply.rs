//! The answers of verbs, over either transport: what a reply must be able to send, and the slot that
//! lets an answer be given once. The thread that did the work gives it, or the watchdog does if that
//! thread hangs in the backing store (S10).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_backing::{Attr, DirEntry, Error, Kind, Result};
use forebay_base::lock::{Mutex, MutexGuard, Rank};
use forebay_engine::time::Time;
use forebay_engine::{Pool, Requester};

use crate::request::Shared;
use crate::spare::take_spare;
use crate::vfs::Entry;

/// A reply of a transport. A reply that is dropped unanswered answers EIO.
pub trait Fail: Send + 'static {
    fn fail(self, errno: i32);
}

/// A reply that carries a `T`.
pub trait Tell<T>: Fail {
    fn tell(self, shared: &Shared, value: T);
}

/// A reply of bytes.
pub trait Bytes: Fail {
    /// Room of `size` bytes in the reply, for work that cannot hang.
    fn room(&mut self, size: usize) -> &mut [u8];
    /// Sends the first `len` bytes of the room.
    fn filled(self, len: usize);
    /// A buffer of at least `size` bytes outside the reply, for work that may hang.
    fn buffer(&mut self, size: usize) -> Vec<u8> {
        take_spare(size)
    }
    /// Sends bytes that are not in the room, one part after the other.
    fn parts(self, parts: &[&[u8]]);
    fn bytes(self, bytes: &[u8])
    where
        Self: Sized,
    {
        self.parts(&[bytes]);
    }
}

/// A reply of directory entries; `next` is where the listing goes on after the entry.
pub trait Fill: Fail {
    /// False if there is no more room.
    fn add(&mut self, entry: &DirEntry, ino: u64, next: u64) -> bool;
    fn done(self);
}

/// A reply of directory entries with attributes.
pub trait FillPlus: Fail {
    /// The number of entries that have room, roughly.
    fn fits(&self) -> usize;
    /// False if there is no more room.
    fn add(&mut self, shared: &Shared, name: &OsStr, entry: &Entry, next: u64) -> bool;
    /// Adds an entry without attributes, for which the kernel then asks. False if there is no more room.
    fn add_bare(&mut self, entry: &DirEntry, ino: u64, next: u64) -> bool;
    fn done(self);
}

/// Attributes of a node.
pub struct AttrOf {
    pub attr: Attr,
    /// As in [`Entry`].
    pub as_of: Instant,
}

/// The number of bytes written.
pub struct Written(pub u32);

/// A position found in a file.
pub struct Found(pub u64);

/// The value of an extended attribute, or the list of attribute names, for a caller with `room`
/// bytes. A caller without room asks for the size.
pub struct Value {
    pub room: u32,
    pub bytes: Vec<u8>,
}

pub type Answer<T> = Box<dyn FnOnce(&Shared, Result<T>) + Send>;

/// Finds the result of a request, with or without the backing store.
pub type Work<T> = Box<dyn FnOnce(&Shared) -> Result<T> + Send>;

type Pending<T> = (Answer<T>, Option<Work<T>>);

/// An answer that two threads may want to give: the first one gives it.
pub struct Slot<T>(Mutex<Asked<T>>);

struct Asked<T> {
    /// `None` once the answer was given.
    pending: Option<Pending<T>>,
    at: At,
}

/// Where the work is done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// Not begun yet, or outside the pool.
    Elsewhere,
    Pool,
    /// In the pool, after the answer was given: the pool has another thread for waiting requests.
    Replaced,
}

impl<T: 'static> Slot<T> {
    pub fn new(
        answer: impl FnOnce(&Shared, Result<T>) + Send + 'static,
        fallback: Option<Work<T>>,
    ) -> Arc<Slot<T>> {
        let pending: Option<Pending<T>> = Some((Box::new(answer), fallback));
        let asked = Asked { pending, at: At::Elsewhere };
        Arc::new(Slot(Mutex::new(Rank::Request, asked)))
    }

    /// Gives the answer. Returns the result if an answer was given already.
    pub fn give(&self, shared: &Shared, result: Result<T>) -> Option<Result<T>> {
        let taken = self.lock().pending.take();
        match taken {
            Some((answer, _)) => {
                answer(shared, result);
                None
            }
            None => Some(result),
        }
    }

    /// Marks the request as at work in the pool until the returned guard is dropped.
    pub fn in_pool<'a>(&'a self, shared: &'a Shared) -> InPool<'a, T> {
        let mut asked = self.lock();
        asked.at = At::Pool;
        if asked.pending.is_none() {
            asked.replace(shared);
        }
        drop(asked);
        InPool { slot: self, shared }
    }
}

impl<T> Slot<T> {
    #[track_caller]
    fn lock(&self) -> MutexGuard<'_, Asked<T>> {
        self.0.lock()
    }
}

impl<T> Asked<T> {
    /// Nobody waits for the answer any more, and the work may hang: the pool gets another thread.
    fn replace(&mut self, shared: &Shared) {
        if self.at == At::Pool {
            self.at = At::Replaced;
            shared.replace_hanging();
        }
    }
}

pub struct InPool<'a, T> {
    slot: &'a Slot<T>,
    shared: &'a Shared,
}

impl<T> Drop for InPool<'_, T> {
    fn drop(&mut self) {
        if std::mem::replace(&mut self.slot.lock().at, At::Elsewhere) == At::Replaced {
            self.shared.came_back();
        }
    }
}

/// The requester is gone if the watchdog has answered before the work is done.
impl<T: 'static> Requester for Slot<T> {
    fn is_gone(&self) -> bool {
        self.lock().pending.is_none()
    }
}

trait Expire: Send + Sync {
    fn expire(&self, shared: &Arc<Shared>);
}

impl<T: 'static> Expire for Slot<T> {
    fn expire(&self, shared: &Arc<Shared>) {
        let taken = {
            let mut asked = self.lock();
            let taken = asked.pending.take();
            if taken.is_some() {
                asked.replace(shared);
            }
            taken
        };
        match taken {
            None => {}
            Some((answer, None)) => {
                answer(shared, Err(Error::new(Kind::TimedOut, "the backing store hangs")));
            }
            // The fallback may wait for the lock of a file that hangs in the tier.
            Some((answer, Some(fallback))) => {
                let mine = shared.clone();
                shared.watch.finders.run(move || answer(&mine, fallback(&mine)));
            }
        }
    }
}

/// The requests in progress, in the order of their beginning.
pub struct Watch {
    open: Mutex<Requests>,
    /// The threads that run fallbacks, so that the watchdog itself never waits.
    finders: Pool,
}

impl Default for Watch {
    fn default() -> Watch {
        let finders = Pool::new("fb-find", FINDERS, Time::default());
        Watch { open: Mutex::new(Rank::Requests, Requests::default()), finders }
    }
}

/// A request that is watched until this is dropped.
pub struct Watched<'a>(&'a Watch, u64);

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        let removed = self.0.open.lock_anyway().running.remove(&self.1);
        drop(removed); // Outside the lock.
    }
}

/// The number of requests that may be in the pool at once.
const FINDERS: usize = 64;

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
    pub fn begin<T: 'static>(&self, slot: &Arc<Slot<T>>, patience: Patience) -> u64 {
        let slot: Arc<dyn Expire> = slot.clone();
        let began = Instant::now();
        let mut open = self.open.lock();
        open.next += 1;
        let n = open.next;
        open.running.insert(n, Running { began, patience, slot });
        n
    }

    /// The guard ends the watch over a request, also if the request panics.
    pub fn watched(&self, n: u64) -> Watched<'_> {
        Watched(self, n)
    }

    /// Answers the requests that have run longer than `limit`; those with long patience only if the
    /// store is `away`. Returns their number.
    pub fn expire(&self, shared: &Arc<Shared>, limit: Duration, away: bool) -> usize {
        let mut late = Vec::new();
        self.open.lock().running.retain(|_, running| {
            let may = running.patience == Patience::Short || away;
            let expired = may && running.began.elapsed() > limit;
            if expired {
                late.push(running.slot.clone());
            }
            !expired
        });
        late.iter().for_each(|slot| slot.expire(shared));
        late.len()
    }
}
