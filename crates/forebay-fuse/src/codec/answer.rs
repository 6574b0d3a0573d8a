//! The answer to a request: given once, to the carrier of either transport.

use super::abi::OUT_HEADER_LEN;
use crate::reply::{Bytes, Fail};
use crate::spare::take_spare;

/// Takes the answer of one request to the kernel.
pub trait Carrier: Send + 'static {
    /// Room for an answer of `size` bytes; no more than the largest read.
    fn room(&mut self, size: usize) -> &mut [u8];
    /// Sends the first bytes of the room, or an error.
    fn send(self, result: Result<usize, i32>);
    /// Sends bytes that are not in the room, one part after the other.
    fn send_parts(self, parts: &[&[u8]]);
    /// A buffer of at least `size` bytes outside the carrier.
    fn buffer(&mut self, size: usize) -> Vec<u8> {
        take_spare(size)
    }
}

/// A reply that can be given once. If it is dropped before that, it answers EIO.
pub struct Reply<C: Carrier>(Option<C>);

impl<C: Carrier> Reply<C> {
    pub fn new(carrier: C) -> Reply<C> {
        Reply(Some(carrier))
    }

    fn carrier(&mut self) -> &mut C {
        self.0.as_mut().expect("an answer is given once")
    }

    fn give(mut self) -> C {
        self.0.take().expect("an answer is given once")
    }

    /// Answers with nothing but success.
    pub fn done(self) {
        self.give().send(Ok(0));
    }
}

impl<C: Carrier> Drop for Reply<C> {
    fn drop(&mut self) {
        if let Some(carrier) = self.0.take() {
            carrier.send(Err(libc::EIO));
        }
    }
}

impl<C: Carrier> Fail for Reply<C> {
    fn fail(self, errno: i32) {
        self.give().send(Err(errno));
    }
}

impl<C: Carrier> Bytes for Reply<C> {
    fn room(&mut self, size: usize) -> &mut [u8] {
        &mut self.carrier().room(size)[..size]
    }

    fn filled(self, len: usize) {
        self.give().send(Ok(len));
    }

    fn buffer(&mut self, size: usize) -> Vec<u8> {
        self.carrier().buffer(size)
    }

    fn parts(self, parts: &[&[u8]]) {
        self.give().send_parts(parts);
    }
}

/// `struct fuse_out_header` of an answer: the number of its bytes, or its error.
pub fn out_header(unique: u64, result: Result<usize, i32>) -> [u8; OUT_HEADER_LEN] {
    let error = match result {
        Ok(_) => 0,
        // Numbers from 512 on are the kernel's own: no program may see them.
        Err(errno @ 1..512) => -errno,
        Err(_) => -libc::EIO,
    };
    header(result.unwrap_or(0), error, unique)
}

/// The header of an answer or of a notification. A notification has its code in the place of the
/// error.
pub fn header(len: usize, code: i32, unique: u64) -> [u8; OUT_HEADER_LEN] {
    let mut bytes = [0; OUT_HEADER_LEN];
    bytes[..4].copy_from_slice(&((OUT_HEADER_LEN + len) as u32).to_ne_bytes());
    bytes[4..8].copy_from_slice(&code.to_ne_bytes());
    bytes[8..].copy_from_slice(&unique.to_ne_bytes());
    bytes
}

/// A reply to a listing, filled entry by entry.
pub struct Listing<C: Carrier> {
    reply: Reply<C>,
    room: usize,
    used: usize,
}

impl<C: Carrier> Listing<C> {
    pub fn new(reply: Reply<C>, room: u32) -> Listing<C> {
        Listing { reply, room: room as usize, used: 0 }
    }

    /// The room in bytes.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Adds one record of several parts; false if there is no room for it.
    pub fn add(&mut self, parts: &[&[u8]]) -> bool {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        // Records begin at multiples of eight.
        let end = self.used + len.next_multiple_of(8);
        if end > self.room {
            return false;
        }
        let room = self.reply.room(self.room);
        let mut at = self.used;
        for part in parts {
            room[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        room[at..end].fill(0);
        self.used = end;
        true
    }

    pub fn send(self) {
        self.reply.filled(self.used);
    }
}

impl<C: Carrier> Fail for Listing<C> {
    fn fail(self, errno: i32) {
        self.reply.fail(errno);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// A carrier that hands answers to the test.
    struct ToTest {
        room: Vec<u8>,
        sent: Sender<Result<Vec<u8>, i32>>,
    }

    impl Carrier for ToTest {
        fn room(&mut self, size: usize) -> &mut [u8] {
            // The room has old bytes in it, as that of a real carrier.
            self.room.resize(size, 0xff);
            &mut self.room
        }

        fn send(self, result: Result<usize, i32>) {
            self.sent.send(result.map(|len| self.room[..len].to_vec())).unwrap();
        }

        fn send_parts(self, parts: &[&[u8]]) {
            self.sent.send(Ok(parts.concat())).unwrap();
        }
    }

    /// All answers that `work` gives.
    fn answers(work: impl FnOnce(Reply<ToTest>)) -> Vec<Result<Vec<u8>, i32>> {
        let (sent, received) = channel();
        work(Reply::new(ToTest { room: Vec::new(), sent }));
        received.into_iter().collect()
    }

    #[test]
    fn every_request_has_one_answer() {
        assert_eq!(answers(drop), [Err(libc::EIO)]);
        assert_eq!(answers(Reply::done), [Ok(Vec::new())]);
        assert_eq!(answers(|reply| reply.fail(libc::ENOENT)), [Err(libc::ENOENT)]);
        assert_eq!(answers(|reply| reply.bytes(b"abc")), [Ok(b"abc".to_vec())]);
        let bug = |reply| {
            let work = AssertUnwindSafe(|| {
                let _reply: Reply<ToTest> = reply;
                resume_unwind(Box::new("a bug"));
            });
            assert!(catch_unwind(work).is_err());
        };
        assert_eq!(answers(bug), [Err(libc::EIO)]);
    }

    #[test]
    fn an_error_is_one_that_programs_know() {
        let error = |errno| i32::from_ne_bytes(out_header(7, Err(errno))[4..8].try_into().unwrap());
        assert_eq!(error(libc::ENOENT), -libc::ENOENT);
        for odd in [0, -5, 512, i32::MAX, i32::MIN] {
            assert_eq!(error(odd), -libc::EIO, "{odd}");
        }
        let header = [21u32, 0].map(u32::to_ne_bytes).concat();
        assert_eq!(out_header(7, Ok(5))[..8], header);
    }

    #[test]
    fn a_listing_takes_whole_records_while_there_is_room() {
        let listed = answers(|reply| {
            let mut listing = Listing::new(reply, 40);
            assert!(listing.add(&[b"12345678", b"abc"]));
            assert!(!listing.add(&[&[1; 25]]), "no room for so long a one");
            assert!(listing.add(&[&[2; 24]]));
            assert!(!listing.add(&[b"x"]));
            listing.send();
        });
        let expected = [&b"12345678abc\0\0\0\0\0"[..], &[2; 24]].concat();
        assert_eq!(listed, [Ok(expected)]);
    }
}
