//! Page-aligned transfer buffers, one per slot, as O_DIRECT needs them.

/// Fresh zeroed buffers, touched once so that no page fault falls into a measured loop.
pub struct Buffers {
    start: *mut u8,
    each: usize,
    stride: usize,
    slots: usize,
}

const PAGE: usize = 4096;

impl Buffers {
    /// # Panics
    ///
    /// If the kernel has no address space left for them.
    pub fn new(slots: usize, each: usize) -> Self {
        let stride = each.next_multiple_of(PAGE).max(PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: an anonymous mapping touches no existing memory.
        let start = unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), stride * slots, prot, flags, -1, 0)
        };
        assert!(start != libc::MAP_FAILED, "no memory for {slots} buffers of {each} bytes");
        Self { start: start.cast(), each, stride, slots }
    }

    pub fn slots(&self) -> usize {
        self.slots
    }

    /// The memory that the kernel may transfer to and from.
    #[inline]
    pub fn pointer(&mut self, slot: usize) -> *mut u8 {
        debug_assert!(slot < self.slots);
        // SAFETY: within the mapping, as `slot < slots`.
        unsafe { self.start.add(slot * self.stride) }
    }

    /// The buffer of a slot that is not in flight (I1 of [`crate::io`]).
    #[inline]
    pub fn slice(&mut self, slot: usize) -> &mut [u8] {
        assert!(slot < self.slots);
        // SAFETY: within the mapping; borrowed from `&mut self`, so there is no second slice.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(slot * self.stride), self.each) }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`.
        unsafe { libc::munmap(self.start.cast(), self.stride * self.slots) };
    }
}
