//! The detection of long sequential streams, whose requests are to go around the tier.
//!
//! Pure. Up to [`STREAMS_MAX`] streams are followed at once, over all files or within one; the
//! stream that was seen least recently makes way. A request continues the stream whose expected
//! offset is nearest to it, within [`SLACK`]: the kernel's read-ahead arrives out of order. A
//! stream's length is how far it has moved forward, including skipped parts that will come late;
//! reading one place again and again does not make it longer.

use crate::id::FileId;

pub(crate) const STREAMS_MAX: usize = 256;

/// How far off the expected offset a request still counts as the stream's.
const SLACK: u64 = 512 << 10;

#[derive(Debug, Clone, Copy)]
struct Stream {
    id: FileId,
    next: u64,
    len: u64,
    seen: u64,
}

#[derive(Debug, Default)]
pub struct Streams {
    known: Vec<Stream>,
    clock: u64,
}

impl Streams {
    /// Notes a request for `[start, end)` and returns the length of its stream so far.
    pub fn note(&mut self, id: FileId, start: u64, end: u64) -> u64 {
        self.clock += 1;
        let seen = self.clock;
        match self.nearest(id, start) {
            Some(at) => {
                let stream = &mut self.known[at];
                stream.len += end.saturating_sub(stream.next);
                stream.next = stream.next.max(end);
                stream.seen = seen;
                stream.len
            }
            None => {
                let len = end - start;
                self.begin(Stream { id, next: end, len, seen });
                len
            }
        }
    }

    /// Counts the length of the stream that has just reached `end` from zero again.
    pub fn restart(&mut self, id: FileId, end: u64) {
        if let Some(at) = self.nearest(id, end) {
            self.known[at].len = 0;
        }
    }

    fn nearest(&self, id: FileId, start: u64) -> Option<usize> {
        let off = |stream: &Stream| stream.next.abs_diff(start);
        let near = self.known.iter().enumerate();
        near.filter(|(_, stream)| stream.id == id && off(stream) <= SLACK)
            .min_by_key(|(_, stream)| off(stream))
            .map(|(at, _)| at)
    }

    fn begin(&mut self, stream: Stream) {
        if self.known.len() < STREAMS_MAX {
            return self.known.push(stream);
        }
        let oldest = self.known.iter_mut().min_by_key(|known| known.seen);
        *oldest.expect("the table is full, so not empty") = stream;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: u64 = 128 << 10;
    const FILE: FileId = FileId(1);

    #[test]
    fn interleaved_streams_of_one_file_are_told_apart() {
        let mut streams = Streams::default();
        let far = 1 << 30;
        for step in 0..100 {
            for n in 0..64 {
                let at = n * far + step * PIECE;
                assert_eq!(streams.note(FILE, at, at + PIECE), (step + 1) * PIECE);
            }
        }
    }

    #[test]
    fn the_kernels_read_ahead_may_come_out_of_order() {
        let mut streams = Streams::default();
        let mut longest = 0;
        for step in (0..64).step_by(2) {
            for at in [(step + 1) * PIECE, step * PIECE] {
                longest = longest.max(streams.note(FILE, at, at + PIECE));
            }
        }
        assert!(longest >= 60 * PIECE, "{longest}");
        assert_eq!(streams.known.len(), 1);
    }

    #[test]
    fn random_and_repeated_requests_never_look_long() {
        let mut streams = Streams::default();
        let mut at = 7_u64;
        for _ in 0..10_000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let start = (at >> 24) % (1 << 40);
            assert!(streams.note(FILE, start, start + 4096) < 16 << 10);
            assert!(streams.note(FileId(2), 0, PIECE) <= PIECE);
        }
        assert!(streams.known.len() <= STREAMS_MAX);
    }

    #[test]
    fn files_are_told_apart_and_a_stream_can_begin_anew() {
        let mut streams = Streams::default();
        streams.note(FILE, 0, PIECE);
        assert_eq!(streams.note(FileId(2), PIECE, 2 * PIECE), PIECE);
        assert_eq!(streams.note(FILE, PIECE, 2 * PIECE), 2 * PIECE);
        streams.restart(FILE, 2 * PIECE);
        assert_eq!(streams.note(FILE, 2 * PIECE, 3 * PIECE), PIECE);
    }
}
