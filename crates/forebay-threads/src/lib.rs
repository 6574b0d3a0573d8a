//! What everything that runs in several threads stands on: locks in one order, the time, a pool, for whom a thread
//! works, and where a test has it die.

pub mod failpoint;
pub mod lock;
pub mod pool;
pub mod requester;
pub mod time;
