//! The decisions of the engine: pure, with no call to a store, a disk or a thread, and no lock held
//! over any.

pub mod clock;
pub mod config;
pub mod copied;
pub mod counters;
pub mod digest;
pub mod evict;
pub mod governor;
pub mod heat;
pub mod held;
pub mod id;
pub mod journal;
pub mod near;
pub mod paths;
pub mod policy;
pub mod portion;
pub mod ranges;
pub mod report;
pub mod rules;
pub mod seal;
pub mod served;
pub mod spans;
pub mod stamps;
pub mod state;
pub mod streams;
pub mod taken;
pub mod turns;

use forebay_threads::time;
