//! One file per subcommand; what several share is in `job` (a job of the daemon, watched) and
//! `trial` (flags for trials).

pub mod attach;
pub mod bench;
pub mod check;
pub mod completions;
pub mod config;
pub mod detach;
pub mod evict;
pub mod fence;
pub mod flush;
pub mod get;
mod job;
pub mod jobs;
pub mod ls;
pub mod man;
pub mod mount;
pub mod pin;
pub mod prefetch;
pub mod purge;
pub mod recover;
pub mod resolve;
pub mod rules;
pub mod run;
pub mod set;
pub mod stage_worker;
pub mod stats;
pub mod status;
pub mod top;
mod trial;
pub mod umount;
pub mod unpin;
pub mod wait;
