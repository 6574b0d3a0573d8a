//! `libdatawarp.so`: what programs written for DataWarp call, made of a node daemon's transfers.
//!
//! - A1: nothing of it crosses the C boundary but numbers, and memory that C frees with `free`: no panic,
//!   no signal handler, no thread, no word on the error output.
//! - A2: it keeps no state but the number of threads of later stages, in atomics: what a stage is, the
//!   registry knows. So it may be called by many threads, and after a fork.
//! - A3: a call that gives orders returns when the registry has them; the node daemon's word is
//!   believed, and where it says less than DataWarp would, the answer is the one that loses no data.
//!
//! [`abi`] is the boundary, [`stage`] gives orders, [`query`] looks and waits, [`standing`] judges.

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
