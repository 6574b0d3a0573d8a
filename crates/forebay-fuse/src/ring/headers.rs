//! A request as it lies in an entry.

use super::abi::{COMMIT_ID, HEADERS_LEN, OP_IN, PAYLOAD_SIZE, RING_ENT};
use crate::codec::{Head, Request};

/// A copy of a request without its payload: the answer overwrites the headers in the entry.
pub struct Headers {
    pub head: Head,
    bytes: [u8; HEADERS_LEN],
}

impl Headers {
    pub fn new(bytes: [u8; HEADERS_LEN]) -> Headers {
        Headers { head: Head::of(bytes.first_chunk().expect("a header fits")), bytes }
    }

    pub fn commit_id(&self) -> u64 {
        u64::from_ne_bytes(self.number(COMMIT_ID))
    }

    pub fn payload_len(&self) -> usize {
        u32::from_ne_bytes(self.number(PAYLOAD_SIZE)) as usize
    }

    fn number<const LEN: usize>(&self, at: usize) -> [u8; LEN] {
        *self.bytes[RING_ENT + at..].first_chunk().expect("it lies within the headers")
    }

    pub fn request<'a>(&'a self, payload: &'a [u8]) -> Request<'a> {
        Request::of_parts(self.head, &self.bytes[OP_IN..RING_ENT], payload)
    }
}
