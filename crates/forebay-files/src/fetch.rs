//! What the backing store is asked for, for who waits for the bytes and not for their place in the tier.

use std::sync::Arc;
use std::time::Duration;

use crate::core::clock::Look;
use crate::time::Time;
use forebay_base::lock::{Condvar, Mutex, Rank};

/// Buffers from this size on are kept for the next fetch: the kernel would have to find memory for each anew.
const KEPT_MIN: usize = 256 << 10;

/// So much memory waits for fetches.
const KEPT_BYTES: usize = 16 << 20;

/// A range that is being fetched, and then put into the tier.
pub struct Fetch {
    pub range: (u64, u64),
    /// Bytes that are fetched are of no use once any of the range went since then.
    pub seen: Look,
    /// The bytes are being put into the shadow, without the file's lock: who changes bytes there waits.
    pub lands: bool,
    pub said: Arc<Said>,
}

impl Fetch {
    /// Whether any of `[start, end)` is in it.
    pub fn overlaps(&self, start: u64, end: u64) -> bool {
        self.range.0 < end && start < self.range.1
    }
}

/// What the store said of a range, told to all who wait for it.
pub struct Said {
    answer: Mutex<Answer>,
    told: Condvar,
}

enum Answer {
    Awaited,
    Bytes(Arc<Fetched>),
    /// It has failed, or there was nothing to be said.
    Nothing,
}

impl Default for Said {
    fn default() -> Said {
        Said { answer: Mutex::new(Rank::Fetched, Answer::Awaited), told: Condvar::default() }
    }
}

impl Said {
    /// Bytes, or that there will be none. What was said first stands.
    pub fn say(&self, bytes: Option<Arc<Fetched>>) {
        let mut answer = self.answer.lock();
        if matches!(*answer, Answer::Awaited) {
            *answer = bytes.map_or(Answer::Nothing, Answer::Bytes);
            self.told.notify_all();
        }
    }

    /// The bytes; `None` if there are none, or not within the limit.
    pub fn wait(&self, time: &Time, limit: Duration) -> Option<Arc<Fetched>> {
        let awaited = |answer: &mut Answer| matches!(answer, Answer::Awaited);
        let (answer, _) = time.wait_while(&self.told, self.answer.lock(), limit, awaited);
        match &*answer {
            Answer::Bytes(bytes) => Some(bytes.clone()),
            Answer::Awaited | Answer::Nothing => None,
        }
    }
}

/// Bytes of a file as the store has them.
pub struct Fetched {
    start: u64,
    bytes: Vec<u8>,
    spares: Arc<Spares>,
}

impl Fetched {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// What it has of a range.
    pub fn part(&self, start: u64, end: u64) -> &[u8] {
        let at = |offset: u64| offset.clamp(self.start, self.end()) - self.start;
        &self.bytes[at(start) as usize..at(end) as usize]
    }

    /// The buffer, to be filled.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        self.spares.keep(std::mem::take(&mut self.bytes));
    }
}

/// Buffers that wait for the next fetch.
pub struct Spares(Mutex<Vec<Vec<u8>>>);

impl Default for Spares {
    fn default() -> Spares {
        Spares(Mutex::new(Rank::Fetched, Vec::new()))
    }
}

impl Spares {
    /// A buffer for `[start, end)`, with whatever is in it.
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
