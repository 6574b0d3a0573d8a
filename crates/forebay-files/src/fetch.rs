//! Fetches from the backing store, for readers that wait for the bytes and not for their place in the tier.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::core::clock::Look;
use crate::core::id::FileId;
use crate::time::Time;
use forebay_base::lock::{Condvar, Mutex, Rank};

/// Buffers of at least this size are kept for the next fetch: the kernel would have to find memory
/// for each anew.
const KEPT_MIN: usize = 256 << 10;

/// The most memory in kept buffers, and in those of bytes that wait for their reader: about what is fetched
/// ahead of one reader.
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

/// A part of fetched bytes, in the buffer that they came in.
pub struct Came {
    of: Arc<Fetched>,
    start: u64,
    end: u64,
}

impl Came {
    pub fn bytes(&self) -> &[u8] {
        self.of.part(self.start, self.end)
    }
}

/// Fetched bytes that lie in the tier by now, and that a reader who follows will ask for: to read them back from
/// there would cost more than to keep their buffers for a moment.
pub struct Landed(Mutex<VecDeque<Landing>>);

/// Fetched bytes of a file that equaled the tier's when the file was looked at.
struct Landing {
    file: FileId,
    seen: Look,
    bytes: Arc<Fetched>,
}

impl Default for Landed {
    fn default() -> Landed {
        Landed(Mutex::new(Rank::Fetched, VecDeque::new()))
    }
}

impl Landed {
    /// Keeps bytes that have landed in a file that looks like `seen`; the oldest make room for them.
    pub fn keep(&self, file: FileId, seen: Look, bytes: Arc<Fetched>) {
        if bytes.bytes.len() < KEPT_MIN {
            return;
        }
        let mut all = self.0.lock();
        all.push_back(Landing { file, seen, bytes });
        let mut held: usize = all.iter().map(|landing| landing.bytes.bytes.len()).sum();
        let mut gone = Vec::new();
        while held > KEPT_BYTES
            && let Some(oldest) = all.pop_front()
        {
            held -= oldest.bytes.bytes.len();
            gone.push(oldest);
        }
        drop(all);
        // Their buffers become spares, under a lock of the same rank.
        drop(gone);
    }

    /// Returns all bytes of `[start, end)` of a file, in one part or more; `None` if some are not here. `holds` says
    /// whether the range still has the bytes that it had at a look. Bytes are given up once they are read to their end.
    pub fn take(
        &self,
        file: FileId,
        (start, end): (u64, u64),
        holds: impl Fn(Look, (u64, u64)) -> bool,
    ) -> Option<Vec<Came>> {
        let mut all = self.0.lock();
        let (mut parts, mut at) = (Vec::new(), start);
        while at < end {
            let has = |landing: &&Landing| {
                let of = &landing.bytes;
                landing.file == file && of.start <= at && at < of.end()
            };
            let found = all.iter().rev().find(has)?;
            let part = Came { of: found.bytes.clone(), start: at, end: end.min(found.bytes.end()) };
            if !holds(found.seen, (part.start, part.end)) {
                return None;
            }
            at = part.end;
            parts.push(part);
        }
        let is_read = |landing: &Landing| {
            let is_it = |part: &Came| Arc::ptr_eq(&part.of, &landing.bytes);
            landing.bytes.end() <= end && parts.iter().any(is_it)
        };
        all.retain(|landing| !is_read(landing));
        Some(parts)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_its_reader_is_bounded_and_the_oldest_goes_first() {
        let (spares, landed) = (Arc::<Spares>::default(), Landed::default());
        let (file, len) = (FileId(7), KEPT_BYTES as u64 / 4);
        for at in 0..5 {
            let fetched = spares.take(at * len, (at + 1) * len);
            landed.keep(file, Look::now(), Arc::new(fetched));
        }
        let take = |at: u64| {
            let range = (at * len, (at + 1) * len);
            landed.take(file, range, |_, _| true).map_or(0, |parts| parts.len())
        };
        assert_eq!([0, 1, 2, 3, 4].map(take), [0, 1, 1, 1, 1]);
        assert_eq!(take(4), 0, "it was read");
        assert!(landed.take(FileId(8), (len, 2 * len), |_, _| true).is_none(), "another file");
    }
}
