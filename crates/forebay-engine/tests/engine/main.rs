//! The engine against models of what it promises: any sequence of operations, loss of power at
//! any moment, and a fast tier that fails.

mod anew;
mod around;
mod attach;
mod bytes;
mod closing;
mod content;
mod copied;
mod copies;
mod died;
mod drain;
mod hook;
mod hot;
mod journal;
mod kept;
mod leaving;
mod losses;
mod media;
mod model;
mod names;
mod past_us;
mod power_cut;
mod quota;
mod rescue;
mod reserved;
mod resolve;
mod rng;
mod shrunk;
mod spared;
mod sparse;
mod start;
mod store;
mod syncs;
mod tier_faults;
mod times;
mod waiting;
