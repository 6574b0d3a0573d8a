//! The memory of a ring entry: headers and payload, at an address that the kernel keeps.
//!
//! Invariants:
//! - B1: the kernel writes to a buffer only between the submission of a command for its entry and
//!   that command's completion.
//! - B2: the thread that works on a request reads it through a *view*, a second mapping of the same
//!   pages. If the entry goes on to another thread before that thread is done, the buffer gets new
//!   pages: the pages of the view are not written to any more.

use std::io;
use std::ptr::NonNull;

use super::abi::HEADERS_LEN;
use crate::verbs::MAX_WRITE;

/// The place of the payload: the headers have a page of their own, whatever size pages have.
const PAYLOAD_AT: usize = 64 << 10;
/// The kernel asks for the largest write, the largest read, and 8 KiB at least.
const PAYLOAD_LEN: usize = MAX_WRITE as usize;
const LEN: usize = PAYLOAD_AT + PAYLOAD_LEN;

/// A payload's memory beyond this is given back when no request has come for a while.
pub const KEPT: usize = 64 << 10;

/// A mapping that is unmapped when dropped.
struct Mapping(NonNull<u8>);

// SAFETY: the memory belongs to the owner of the mapping, on any thread.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by us, and nothing borrows from it any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), LEN) };
    }
}

fn mapped(at: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    match NonNull::new(at.cast()) {
        Some(place) if at != libc::MAP_FAILED => Ok(place),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The kernel's side of an entry.
pub struct Buffer(Mapping);

/// The pages a buffer had when the view was made.
pub struct View(Mapping);

impl Buffer {
    pub fn new() -> io::Result<Buffer> {
        // SAFETY: a new mapping touches nothing that exists.
        let at = unsafe { map(std::ptr::null_mut(), 0) };
        Ok(Buffer(Mapping(mapped(at)?)))
    }

    pub fn view(&self) -> io::Result<View> {
        // SAFETY: with an old size of 0, mremap leaves the old mapping alone and makes a second one
        // of its pages, which are shared.
        let at = unsafe { libc::mremap(self.0.0.as_ptr().cast(), 0, LEN, libc::MREMAP_MAYMOVE) };
        Ok(View(Mapping(mapped(at)?)))
    }

    /// Puts new pages in place of the old ones, which live on in the view (B2).
    pub fn renew(&mut self) -> io::Result<()> {
        let here: *mut libc::c_void = self.0.0.as_ptr().cast();
        // SAFETY: the range is ours, and `&mut self` says that nobody reads or writes it.
        let at = unsafe { map(here, libc::MAP_FIXED) };
        mapped(at).map(|_| ())
    }

    /// Gives back the pages of the payload beyond [`KEPT`].
    pub fn trim(&mut self) {
        // SAFETY: the range lies in the mapping; its bytes are nobody's any more.
        unsafe {
            let from = self.0.0.as_ptr().add(PAYLOAD_AT + KEPT);
            libc::madvise(from.cast(), PAYLOAD_LEN - KEPT, libc::MADV_REMOVE);
        }
    }

    pub fn headers(&mut self) -> &mut [u8; HEADERS_LEN] {
        // SAFETY: the range lies in the mapping, and the kernel does not write to it now (B1).
        unsafe { &mut *self.0.0.as_ptr().cast() }
    }

    pub fn payload(&mut self) -> &mut [u8] {
        // SAFETY: as for the headers.
        unsafe { std::slice::from_raw_parts_mut(self.0.0.as_ptr().add(PAYLOAD_AT), PAYLOAD_LEN) }
    }

    /// The headers and the payload, as they are registered with the kernel.
    pub fn iovecs(&self) -> [libc::iovec; 2] {
        let at = self.0.0.as_ptr();
        let headers = libc::iovec { iov_base: at.cast(), iov_len: HEADERS_LEN };
        let payload =
            libc::iovec { iov_base: at.wrapping_add(PAYLOAD_AT).cast(), iov_len: PAYLOAD_LEN };
        [headers, payload]
    }
}

impl View {
    /// The payload of a request. It may change under the reader once the request is answered on
    /// the thread that works on it, and not before.
    pub fn payload(&self, len: usize) -> &[u8] {
        // SAFETY: the range lies in the mapping, whose pages are written by nobody while the
        // request is worked on (B1, B2).
        unsafe {
            std::slice::from_raw_parts(self.0.0.as_ptr().add(PAYLOAD_AT), len.min(PAYLOAD_LEN))
        }
    }
}

/// # Safety
///
/// With `MAP_FIXED`, nobody may be using the range at `at`.
unsafe fn map(at: *mut libc::c_void, fixed: libc::c_int) -> *mut libc::c_void {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: the caller's promise.
    unsafe { libc::mmap(at, LEN, access, flags, -1, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_keeps_what_it_saw_when_the_buffer_is_renewed() {
        let mut buffer = Buffer::new().unwrap();
        let view = buffer.view().unwrap();
        buffer.payload()[..5].copy_from_slice(b"first");
        assert_eq!(view.payload(5), b"first");
        buffer.renew().unwrap();
        buffer.payload()[..5].copy_from_slice(b"other");
        assert_eq!(view.payload(5), b"first");
        assert_eq!(buffer.view().unwrap().payload(5), b"other");
    }

    #[test]
    fn trimming_keeps_the_beginning() {
        let mut buffer = Buffer::new().unwrap();
        buffer.payload().fill(7);
        buffer.trim();
        assert!(buffer.payload()[..KEPT].iter().all(|byte| *byte == 7));
        assert!(buffer.payload()[KEPT..].iter().all(|byte| *byte == 0));
    }
}
