//! Memory that forked tasks and their parent see alike.

use std::ops::Deref;

/// Types that may live in shared memory.
///
/// # Safety
///
/// All-zero bytes are a valid value, every field another process may write is an atomic, and
/// nothing in it points anywhere.
pub unsafe trait Plain: Sync {}

// SAFETY: an atomic integer; zero is valid.
unsafe impl Plain for std::sync::atomic::AtomicU64 {}
// SAFETY: an atomic integer; zero is valid.
unsafe impl Plain for std::sync::atomic::AtomicU32 {}
// SAFETY: atomics only, and zeros are an empty histogram (H2 of the module).
unsafe impl<const S: u32, const B: usize> Plain for forebay_base::histogram::Histogram<S, B> {}
// SAFETY: atomics only (S2 of the module).
unsafe impl Plain for crate::slices::Slices {}
// SAFETY: atomics, a histogram and slices.
unsafe impl Plain for crate::meter::Meter {}
// SAFETY: no bytes at all.
unsafe impl Plain for () {}
// SAFETY: an array of plain values is plain.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// A zeroed slice of `T` in an anonymous shared mapping; forked children keep sharing it.
pub struct Shared<T: Plain> {
    start: *mut T,
    len: usize,
}

// SAFETY: `T: Sync`, and the mapping is only ever handed out by shared reference.
unsafe impl<T: Plain> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Shared<T> {}

impl<T: Plain> Shared<T> {
    /// # Panics
    ///
    /// If the kernel has no address space left for it.
    pub fn new(len: usize) -> Self {
        let bytes = (size_of::<T>() * len).max(1);
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: an anonymous mapping touches no existing memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
        let error = std::io::Error::last_os_error();
        assert!(start != libc::MAP_FAILED, "no shared memory of {bytes} bytes: {error}");
        Self { start: start.cast(), len }
    }
}

impl<T: Plain> Deref for Shared<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping is page-aligned, `len` long, zeroed (valid for `T: Plain`), and lives
        // as long as `self`; other processes write only through atomics.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl<T: Plain> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`; no reference outlives `self`.
        unsafe { libc::munmap(self.start.cast(), (size_of::<T>() * self.len).max(1)) };
    }
}
