//! Fetches from the backing store, for readers that wait for the bytes and not for their place in the tier.

use std::sync::Arc;
use std::time::Duration;

use crate::core::clock::Look;
use crate::time::Time;
use forebay_base::lock::{Condvar, Mutex, Rank};

/// Buffers of at least this size are kept for the next fetch: the kernel would have to find memory
/// for each anew.
const KEPT_MIN: usize = 256 << 10;

/// The most memory in kept buffers.
const KEPT_BYTES: usize = 16 << 20;

/// A range that is being fetched, and then put into the tier.
pub struct Fetch {
    pub range: (u64, u64),
    /// Fetched bytes are of no use if any of the range was thrown away since this look.
    pub seen: Look,
    /// Whether the bytes are being put into the shadow, without the file's lock: changes of bytes there wait.
    pub lands: bool,
    pub said: Arc<Said>,
}

impl Fetch {
    /// Whether the range overlaps `[start, end)`.
    pub fn overlaps(&self, start: u64, end: u64) -> bool {
        self.range.0 < end && start < self.range.1
    }
}

/// The store's answer for a range, for all threads that wait for it.
pub struct Said {
    answer: Mutex<Answer>,
    told: Condvar,
}

enum Answer {
    Awaited,
    Bytes(Arc<Fetched>),
    /// The fetch has failed, or has no bytes.
    Nothing,
}

impl Default for Said {
    fn default() -> Said {
        Said { answer: Mutex::new(Rank::Fetched, Answer::Awaited), told: Condvar::default() }
    }
}

impl Said {
    /// Gives the answer: bytes, or none. The first answer stands.
    pub fn say(&self, bytes: Option<Arc<Fetched>>) {
        let mut answer = self.answer.lock();
        if matches!(*answer, Answer::Awaited) {
            *answer = bytes.map_or(Answer::Nothing, Answer::Bytes);
            self.told.notify_all();
        }
    }

    /// Waits for the bytes; `None` if there are none, or not within `limit`.
    pub fn wait(&self, time: &Time, limit: Duration) -> Option<Arc<Fetched>> {
        let awaited = |answer: &mut Answer| matches!(answer, Answer::Awaited);
        let (answer, _) = time.wait_while(&self.told, self.answer.lock(), limit, awaited);
        match &*answer {
            Answer::Bytes(bytes) => Some(bytes.clone()),
            Answer::Awaited | Answer::Nothing => None,
        }
    }
}

/// Bytes of a file, as the store has them.
pub struct Fetched {
    start: u64,
    bytes: Vec<u8>,
    spares: Arc<Spares>,
}

impl Fetched {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// Returns the part of `[start, end)` that was fetched.
    pub fn part(&self, start: u64, end: u64) -> &[u8] {
        let at = |offset: u64| offset.clamp(self.start, self.end()) - self.start;
        &self.bytes[at(start) as usize..at(end) as usize]
    }

    /// Returns the buffer, to be filled.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        self.spares.keep(std::mem::take(&mut self.bytes));
    }
}

/// Buffers kept for the next fetches.
pub struct Spares(Mutex<Vec<Vec<u8>>>);

impl Default for Spares {
    fn default() -> Spares {
        Spares(Mutex::new(Rank::Fetched, Vec::new()))
    }
}

impl Spares {
    /// Returns a buffer for `[start, end)`, with arbitrary content.
    pub fn take(self: &Arc<Spares>, start: u64, end: u64) -> Fetched {
        let len = (end - start) as usize;
        let fits = |bytes: &Vec<u8>| bytes.capacity() >= len;
        let kept = match len >= KEPT_MIN {
            true => {
                let mut kept = self.0.lock();
                kept.iter().rposition(fits).map(|at| kept.swap_remove(at))
            }
            false => None,
        };
        let mut bytes = kept.unwrap_or_default();
        bytes.resize(len, 0);
        Fetched { start, bytes, spares: self.clone() }
    }

    fn keep(&self, bytes: Vec<u8>) {
        if bytes.capacity() < KEPT_MIN {
            return;
        }
        let mut kept = self.0.lock();
        let held: usize = kept.iter().map(Vec::capacity).sum();
        if held + bytes.capacity() <= KEPT_BYTES {
            kept.push(bytes);
        }
    }
}
