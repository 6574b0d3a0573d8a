//! Jobs of a scheduler: the plan of each, and how it becomes instances and transfers.
//!
//! A hook of the scheduler asks for the next step and is told whether the step is done, and if not,
//! what it waits for. Each step writes *wanted* records and may be repeated: hooks, scheduler and
//! daemons may die at any time.
//!
//! - J1: the decisions made at setup are stored, and no later step reads the script.
//! - J2: files that were to be staged out are not removed before they are home, except in a hurry, and
//!   then they are kept (T3).
//! - J3: each run of a job has instances of its own; it does not touch what an earlier run left.
//! - J4: a scheduler that does not answer ends no job.

mod log;
mod order;
mod phases;
mod reaper;
mod record;
mod release;
mod spool;

pub use log::Log;
pub use order::Eyes;
pub use phases::{Answer, Hurry, Jobs, NewJob, choose_pool};
pub use reaper::{Reaper, Scheduler, refresh_spool, tidy};
pub use record::{Ended, Job, Phase, Places, Released};
pub(crate) use release::is_elsewhere;
pub use release::{Patience, release};
pub use spool::{POOLS_FILE, Spool, variables_file};
