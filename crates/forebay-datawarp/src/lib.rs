//! `libdatawarp.so`: the library for programs written for DataWarp, built on a node daemon's transfers.
//!
//! - A1: only numbers, and memory that C frees with `free`, cross the C boundary: no panic, no signal
//!   handler, no thread, no output to standard error.
//! - A2: the library keeps no state but the number of threads of later stages, in atomics; the registry
//!   knows the stages. So the library may be called by many threads, and after a fork.
//! - A3: a call that gives orders returns when the registry has them. The node daemon's answer is believed;
//!   where it says less than DataWarp would, the call gives the answer that loses no data.
//!
//! [`abi`] is the boundary, [`stage`] gives orders, [`query`] reads and waits, [`standing`] judges.

mod abi;
mod account;
mod concurrency;
mod daemon;
mod failed;
mod given;
mod place;
mod query;
mod records;
mod stage;
mod standing;
