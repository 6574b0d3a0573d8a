//! The answer to a request, in the entry that brought it: whoever answers owns the entry until
//! then, and after that it goes home, or to another thread if somebody answered in its stead.

use std::cell::RefCell;
use std::sync::Arc;

use super::Crew;
use super::abi::{OUT_HEADER_LEN, PAYLOAD_SIZE, RING_ENT};
use super::buffer::{Buffer, KEPT};

/// An entry of a queue, between the completion of one command and the submission of the next.
pub struct Seat {
    pub queue: u16,
    /// Names the request that is answered with the next commit.
    pub commit_id: u64,
    pub buffer: Buffer,
    /// The payload was used beyond [`KEPT`].
    pub large: bool,
}

impl Seat {
    pub fn new(queue: u16) -> std::io::Result<Box<Seat>> {
        Ok(Box::new(Seat { queue, commit_id: 0, buffer: Buffer::new()?, large: false }))
    }
}

thread_local! {
    /// The request this thread works on, and the entry that brought it once it is answered.
    static HOME: RefCell<(u64, Option<Box<Seat>>)> = const { RefCell::new((0, None)) };
}

/// Says that this thread works on a request.
pub fn at_home(unique: u64) {
    HOME.set((unique, None));
}

/// The entry of the request, if it was answered on this thread.
pub fn come_home() -> Option<Box<Seat>> {
    HOME.take().1
}

/// A reply that can be given once. Dropped without, it answers EIO.
pub struct Reply {
    crew: Arc<Crew>,
    unique: u64,
    /// Taken when the answer is given.
    seat: Option<Box<Seat>>,
    /// The buffer has new pages already.
    parted: bool,
}

impl Reply {
    pub fn new(crew: Arc<Crew>, unique: u64, seat: Box<Seat>) -> Reply {
        Reply { crew, unique, seat: Some(seat), parted: false }
    }

    /// Where the answer goes.
    pub fn payload(&mut self) -> &mut [u8] {
        self.part();
        self.seat.as_mut().expect("an answer is given once").buffer.payload()
    }

    /// Before another thread than the one that took the request writes to the entry, the buffer
    /// gets new pages: that one may still read the old ones (B2).
    fn part(&mut self) {
        let here = HOME.with_borrow(|home| home.0 == self.unique);
        if here || self.parted {
            return;
        }
        self.parted = true;
        if let Some(seat) = self.seat.as_mut()
            && let Err(error) = seat.buffer.renew()
        {
            // To go on would mix the bytes of two requests; a daemon that ends loses none.
            tracing::error!(%error, "no memory for the answer to a request: ending");
            std::process::abort();
        }
    }

    /// Answers with the first bytes of the payload, or with an error.
    pub fn send(mut self, result: Result<usize, i32>) {
        self.give(result);
    }

    fn give(&mut self, result: Result<usize, i32>) {
        if self.seat.is_none() {
            return;
        }
        self.part();
        let Some(mut seat) = self.seat.take() else { return };
        let len = result.unwrap_or(0);
        // Beyond these the kernel has numbers of its own, which no program may see.
        let error = match result {
            Ok(_) => 0,
            Err(errno @ 1..512) => -errno,
            Err(_) => -libc::EIO,
        };
        let headers = seat.buffer.headers();
        headers[..4].copy_from_slice(&((OUT_HEADER_LEN + len) as u32).to_ne_bytes());
        headers[4..8].copy_from_slice(&error.to_ne_bytes());
        headers[8..16].copy_from_slice(&self.unique.to_ne_bytes());
        let size = RING_ENT + PAYLOAD_SIZE;
        headers[size..size + 4].copy_from_slice(&(len as u32).to_ne_bytes());
        seat.large |= len > KEPT;
        let away = HOME.with_borrow_mut(|home| match home.0 == self.unique {
            true => {
                home.1 = Some(seat);
                None
            }
            false => Some(seat),
        });
        if let Some(seat) = away {
            self.crew.adopt(seat);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.give(Err(libc::EIO));
    }
}

/// A reply to a listing, filled entry by entry.
pub struct Listing {
    pub reply: Reply,
    room: usize,
    used: usize,
}

impl Listing {
    pub fn new(reply: Reply, room: u32) -> Listing {
        Listing { reply, room: room as usize, used: 0 }
    }

    /// Adds one record of several parts; false if there is no room for it.
    pub fn add(&mut self, parts: &[&[u8]]) -> bool {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        // Records begin at multiples of eight.
        let end = self.used + len.next_multiple_of(8);
        if end > self.room {
            return false;
        }
        let payload = self.reply.payload();
        let mut at = self.used;
        for part in parts {
            payload[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        payload[at..end].fill(0);
        self.used = end;
        true
    }

    pub fn send(self) {
        self.reply.send(Ok(self.used));
    }
}
