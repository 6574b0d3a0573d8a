//! The base of all multi-threaded code, beside the locks ([`forebay_base::lock`]): the time, a thread pool, the
//! requester a thread works for, and the points at which a test kills the process.

#[cfg(all(any(test, feature = "explored"), debug_assertions))]
pub mod explored;
pub mod failpoint;
pub mod pool;
pub mod requester;
pub mod time;
