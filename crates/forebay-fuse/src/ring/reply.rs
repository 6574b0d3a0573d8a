//! The answer to a request, in the entry that brought the request. The thread that answers owns the
//! entry until then. After that the entry goes back to the thread that took the request, or to a new
//! thread if another thread, such as the watchdog, has answered.

use std::cell::RefCell;
use std::sync::Arc;

use super::Crew;
use super::abi::{PAYLOAD_SIZE, RING_ENT};
use super::buffer::{Buffer, KEPT};
use crate::codec::{Carrier, OUT_HEADER_LEN, out_header};

/// An entry of a queue, between the completion of one command and the submission of the next.
pub struct Seat {
    pub queue: u16,
    /// Names the request that is answered with the next commit.
    pub commit_id: u64,
    pub buffer: Buffer,
    /// Whether the payload was used beyond [`KEPT`].
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

/// Notes that this thread works on a request.
pub fn at_home(unique: u64) {
    HOME.set((unique, None));
}

/// Returns the entry of the request, if the request was answered on this thread.
pub fn come_home() -> Option<Box<Seat>> {
    HOME.take().1
}

/// The carrier of one answer: the entry that brought the request.
pub struct OnRing {
    crew: Arc<Crew>,
    unique: u64,
    seat: Box<Seat>,
    /// Whether the buffer has new pages already.
    parted: bool,
}

impl OnRing {
    pub fn new(crew: Arc<Crew>, unique: u64, seat: Box<Seat>) -> OnRing {
        OnRing { crew, unique, seat, parted: false }
    }

    fn is_at_home(&self) -> bool {
        HOME.with_borrow(|home| home.0 == self.unique)
    }

    /// Gives the buffer new pages before a thread that did not take the request writes to the entry:
    /// the thread that took the request may still read the old pages (B2).
    fn part(&mut self) {
        if self.parted || self.is_at_home() {
            return;
        }
        self.parted = true;
        if let Err(error) = self.seat.buffer.renew() {
            // Going on would mix the bytes of two requests; a daemon that ends loses none.
            tracing::error!(%error, "no memory for the answer to a request: ending");
            std::process::abort();
        }
    }
}

impl Carrier for OnRing {
    fn room(&mut self, _: usize) -> &mut [u8] {
        self.part();
        self.seat.buffer.payload()
    }

    fn send(mut self, result: Result<usize, i32>) {
        self.part();
        let len = result.unwrap_or(0);
        let headers = self.seat.buffer.headers();
        headers[..OUT_HEADER_LEN].copy_from_slice(&out_header(self.unique, result));
        let size = RING_ENT + PAYLOAD_SIZE;
        headers[size..size + 4].copy_from_slice(&(len as u32).to_ne_bytes());
        self.seat.large |= len > KEPT;
        match self.is_at_home() {
            true => HOME.with_borrow_mut(|home| home.1 = Some(self.seat)),
            false => self.crew.adopt(self.seat),
        }
    }

    fn send_parts(mut self, parts: &[&[u8]]) {
        let len = parts.iter().map(|part| part.len()).sum();
        let mut room = &mut self.room(len)[..len];
        for part in parts {
            let (place, rest) = room.split_at_mut(part.len());
            place.copy_from_slice(part);
            room = rest;
        }
        self.send(Ok(len));
    }
}
