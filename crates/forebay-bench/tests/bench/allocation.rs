//! The measured loop allocates nothing per transfer, counted by the test's own allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use forebay_bench::drive::{Limits, Plan, drive};
use forebay_bench::io::{Buffers, Direction, Null, Op};
use forebay_bench::meter::Meter;
use forebay_bench::shared::Shared;

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is handed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller vouches.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as the caller vouches.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

struct Ops(u64);

impl Plan for Ops {
    fn next(&mut self) -> Option<Op> {
        self.0 = self.0.checked_sub(1)?;
        let direction = if self.0.is_multiple_of(2) { Direction::Read } else { Direction::Write };
        Some(Op { direction, offset: self.0 * 4096, len: 4096 })
    }
}

/// The number of allocations while `ops` transfers are driven.
fn allocations(ops: u64) -> u64 {
    let meters = Shared::<Meter>::new(1);
    let mut buffers = Buffers::new(1, 4096);
    let before = COUNT.get();
    let limits = Limits::default();
    let start = forebay_bench::clock::now();
    let (mut target, mut plan) = (Null::default(), Ops(ops));
    let driven = drive(&mut target, &mut buffers, &mut plan, &meters[0], limits, || false, start);
    let after = COUNT.get();
    assert_eq!((driven.expect("null never fails").ops, meters[0].latency.count()), (ops, ops));
    after - before
}

#[test]
fn transfers_and_their_histogram_allocate_nothing() {
    let before = COUNT.get();
    drop(std::hint::black_box(Box::new(7)));
    assert_eq!(COUNT.get() - before, 1, "the counter counts");
    assert_eq!(allocations(100_000), allocations(1), "a hundred thousand as many as one");
}
