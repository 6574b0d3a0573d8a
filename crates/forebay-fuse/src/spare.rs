//! One buffer for each thread that reads.

thread_local! {
    /// A used read buffer: clearing and faulting in a new one of 128 KiB costs more than the read.
    static SPARE: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// A buffer of at least `size` bytes.
pub fn take_spare(size: usize) -> Vec<u8> {
    let mut buf = SPARE.with_borrow_mut(std::mem::take);
    if buf.len() < size {
        buf.resize(size, 0);
    }
    buf
}

pub fn give_back(buf: Vec<u8>) {
    SPARE.with_borrow_mut(|spare| *spare = buf);
}
