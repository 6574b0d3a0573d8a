//! A target that does nothing: what remains is the cost of the benchmark itself.

use super::{Done, Op, Target};

#[derive(Debug, Default)]
pub struct Null {
    last: (usize, usize),
}

impl Target for Null {
    #[inline]
    unsafe fn start(&mut self, slot: usize, op: Op, _buffer: *mut u8) {
        self.last = (slot, op.len);
    }

    #[inline]
    fn wait(&mut self) -> Done {
        // Opaque, so that the compiler cannot remove the loop around it.
        let (slot, len) = std::hint::black_box(self.last);
        Done { slot, result: Ok(len) }
    }

    fn sync(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
