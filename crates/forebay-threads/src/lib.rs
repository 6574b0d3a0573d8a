//! What everything that runs in several threads stands on, beside the locks ([`forebay_base::lock`]): the time, a pool, for
//! whom a thread works, and where a test has it die.

#[cfg(all(any(test, feature = "explored"), debug_assertions))]
pub mod explored;
pub mod failpoint;
pub mod pool;
pub mod requester;
pub mod time;
