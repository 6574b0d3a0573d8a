//! The benchmark from the outside, as a child process of the tests.

mod allocation;
mod harness;
mod ior;
mod mdtest;
mod workloads;

/// Not a test of its own: the children that other tests start begin here.
#[test]
fn benchmark_entry() {
    harness::entry();
}
