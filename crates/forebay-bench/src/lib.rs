//! `forebay bench`: IOR's and mdtest's workloads, and a few of forebay's own, from one binary
//! without MPI, on any path.
//!
//! The crate does not depend on the engine or the mount: it measures a path, so it can measure
//! anything. Only [`beneath`] lets the surrounding program say where the bytes of a path really
//! are. The layers, bottom up:
//! - [`args`], [`error`], [`rng`], [`clock`]: words, numbers and time;
//! - [`slices`], [`meter`]: the measurements of one task, of fixed size, in shared memory;
//! - [`shared`], [`futex`], [`team`], [`interrupt`], [`progress`]: tasks as processes or threads;
//! - [`io`], [`drive`]: the ways to transfer bytes, and the one loop that measures them;
//! - [`cache`], [`honest`]: the contents of the page cache, and whether a number can be true;
//! - [`ior`], [`mdtest`] and the workloads.
//!
//! Standard output carries results only; progress and warnings about the run go to standard error.

pub mod args;
pub mod beneath;
pub mod cache;
pub mod cli;
pub mod clock;
pub mod compare;
pub mod drive;
pub mod environment;
pub mod error;
pub mod futex;
pub mod honest;
pub mod interrupt;
pub mod io;
pub mod ior;
pub mod mdtest;
pub mod meter;
pub mod pattern;
pub mod progress;
pub mod prose;
pub mod record;
pub mod recorder;
pub mod report;
pub mod rng;
pub mod shared;
pub mod slices;
pub mod spark;
pub mod stats;
pub mod team;
pub mod workloads;

pub use cli::{EXAMPLES, names, run};
pub use error::{Error, Result};
use forebay_base::units;
